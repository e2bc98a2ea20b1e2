"""A checkpoint in the other layout: its query and key weights reordered, proven by its logits, and written."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from ropewalk.lab.checkpoint.files import Checkpoint
from ropewalk.lab.checkpoint.llama import load
from ropewalk.lab.checkpoint.safetensors import LAYOUT, SafetensorsWeights
from ropewalk.lab.checkpoint.weights import Weights
from ropewalk.lab.checkpoint.writer import size_of, whole_or_not_at_all, write
from ropewalk.permutation import permute
from ropewalk.plans import LayerPlan, RotaryPlan
from ropewalk.rotation import Layout
from ropewalk.version import __version__

TOKENS = 48
"""How many the proof reads; any text will do, since equal weights in another order agree on all."""

ALLOWED = 1e-4
"""Of the largest logit: how far sums of float32 in another order may be apart."""

_TURNED = re.compile(r"model\.layers\.(\d+)\.self_attn\.([qk])_(proj\.weight|proj\.bias|norm\.weight)")


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its logits are from those of the source."""

    file: Path
    from_: Layout
    to: Layout
    tensors: int
    permuted: int
    size: int
    """Bytes of the file."""
    difference: float
    """The largest among all logits of the proof."""
    largest: float
    """The largest logit, in magnitude."""

    def json(self) -> dict[str, Any]:
        """As `ropewalk export --json` prints it, `ropewalk.export/1`."""
        return {
            "schema": "ropewalk.export/1",
            "file": str(self.file),
            "from": self.from_,
            "to": self.to,
            "tensors": self.tensors,
            "permuted": self.permuted,
            "bytes": self.size,
            "proof": {
                "tokens": TOKENS,
                "largest_difference": self.difference,
                "largest_logit": self.largest,
                "allowed": ALLOWED * self.largest,
            },
        }


class InLayout:
    """The weights of a checkpoint for a model of another layout, one at a time; see `Weights`.

    Query and key weights, their biases and norms have their channels in another order; all others stay.
    """

    def __init__(self, weights: Weights, plan: RotaryPlan, to: Layout, head_dim: int) -> None:
        self.weights, self.plan, self.to, self.head_dim = weights, plan, to, head_dim
        self.shapes = weights.shapes

    def turned(self, name: str) -> LayerPlan | None:
        """The plan of the layer whose rotation meets the channels of this weight; None: none does."""
        found = _TURNED.fullmatch(name)
        layer = None if found is None else self.plan.plan_of(int(found[1]))
        return layer if layer is not None and layer.kind == "rope" and layer.layout != self.to else None

    def tensor(self, name: str) -> Tensor:
        """In its own dtype."""
        weight, layer = self.weights.tensor(name), self.turned(name)
        if layer is None or layer.layout is None:
            return weight
        heads = weight.shape[0] // self.head_dim  # its own: keys have fewer; a norm is of one head
        return permute(
            weight,
            layer.layout,
            self.to,
            heads=heads,
            head_dim=self.head_dim,
            rotary_dim=layer.rotary_dim,
            place=layer.place,
        )


class Rounded:
    """The same weights in another dtype; see `Weights`."""

    def __init__(self, weights: Weights, dtypes: dict[str, torch.dtype]) -> None:
        self.weights, self.dtypes = weights, dtypes
        self.shapes = weights.shapes

    def tensor(self, name: str) -> Tensor:
        """Rounded to the nearest.

        Raises:
            ValueError: a number beyond the dtype.
        """
        weight = self.weights.tensor(name)
        rounded = weight.to(self.dtypes[name])
        if not bool(rounded.isfinite().all()):
            what = "is not finite" if not bool(weight.isfinite().all()) else f"is beyond {self.dtypes[name]}"
            raise ValueError(f"a number of {name} {what}".replace("torch.", ""))
        return rounded


def layout_of(plan: RotaryPlan) -> Layout:
    """The layout that all rotating layers share.

    Raises:
        ValueError: they have two, or none rotates.
    """
    found = {layer.layout for layer in plan.layers if layer.kind == "rope" and layer.layout is not None}
    if len(found) != 1:
        raise ValueError(f"its layers have {len(found)} layouts; one that all share can be exported")
    return found.pop()


def export(
    checkpoint: Checkpoint,
    to: Layout,
    target: Path,
    *,
    dtype: torch.dtype | None = None,
    force: bool = False,
    done: Callable[[int, str], object] = lambda size, name: None,
) -> Exported:
    """Write the weights of a checkpoint for a model of the other layout, under the names that transformers gives them.

    A file beside `target` is written first, read back, and run through the model on a few tokens; only if its logits
    are those of the source does it get the name. One tensor is in memory at a time, and for the proof one model, in
    float32.

    Args:
        checkpoint: of `open_checkpoint`.
        to: the layout that is wanted.
        target: the file to write.
        dtype: of all weights written; by default that of each in the source, and float32 for what was quantised.
        force: whether `target` may exist.
        done: told the bytes and the name of each tensor that was written.

    Raises:
        ValueError: it is in that layout already, its layers have several, a weight is missing or not finite, or the
            logits differ; then nothing is written.
        FileExistsError: `target` exists.
        OSError: the system refuses to write, for want of space for instance.
    """
    if to not in get_args(Layout):
        raise ValueError(f"layout is 'half' or 'interleaved', got {to!r}")
    from_ = layout_of(checkpoint.plan)
    if from_ == to:
        raise ValueError(f"{checkpoint.name} has the layout {to} already")
    shapes, dtypes = checkpoint.weights.shapes, _dtypes(checkpoint, dtype)
    with whole_or_not_at_all(target, force=force) as part:
        _check_space(part.parent, size_of(shapes, dtypes))
        source = Rounded(checkpoint.weights, dtypes)
        logits = _logits(checkpoint, source, checkpoint.plan)
        made = InLayout(source, checkpoint.plan, to, checkpoint.shape.head_dim)
        write(part, shapes, dtypes, made.tensor, _metadata(checkpoint, to), done)
        difference = float((_logits(checkpoint, _read(part), checkpoint.plan.in_layout(to)) - logits).abs().max())
        largest, size = float(logits.abs().max()), part.stat().st_size
        if not difference <= ALLOWED * largest:
            raise ValueError(
                f"the logits of the exported weights are off by {difference:.1e}, allowed is {ALLOWED * largest:.1e}; "
                "nothing was written"
            )
    permuted = sum(made.turned(name) is not None for name in shapes)
    return Exported(target, from_, to, len(shapes), permuted, size, difference, largest)


def _dtypes(checkpoint: Checkpoint, dtype: torch.dtype | None) -> dict[str, torch.dtype]:
    """Of each weight as it is written."""
    shapes = checkpoint.weights.shapes
    if dtype is not None or checkpoint.kind == "GGUF":
        return dict.fromkeys(shapes, dtype or torch.float32)
    assert isinstance(checkpoint.weights, SafetensorsWeights)
    return checkpoint.weights.dtypes


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OSError(28, f"{math.ceil(size / 1e6):,} MB are needed, {free // 10**6:,} are free")


def _metadata(checkpoint: Checkpoint, to: Layout) -> dict[str, str]:
    """`format` is what transformers looks for."""
    return {
        "format": "pt",
        LAYOUT: to,
        "ropewalk.source": checkpoint.name if checkpoint.name == "smollm2" else checkpoint.path.resolve().name,
        "ropewalk.source_kind": checkpoint.kind,
        "ropewalk.model_type": checkpoint.plan.model_type,
        "ropewalk.version": __version__,
    }


def _read(part: Path) -> Weights:
    return SafetensorsWeights(part.parent, [part.name])


def _logits(checkpoint: Checkpoint, weights: Weights, plan: RotaryPlan) -> Tensor:
    """Of a few tokens, `(1, TOKENS, vocabulary)`, in float32."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(checkpoint.shape.vocabulary, (1, TOKENS), generator=random)
    with torch.no_grad():
        model = load(checkpoint.shape, plan, weights, dtype=torch.float32)
        logits: Tensor = model.logits(model(ids))
    return logits
