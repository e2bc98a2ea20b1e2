"""Other frequencies for a live model: its own, computed exactly, or another spectrum."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.angles import cos_sin
from ropewalk.extensions import Extension
from ropewalk.hf.rebind import Patch
from ropewalk.hf.semantics import Columns, NotServedError
from ropewalk.hf.spectra import registered
from ropewalk.plans import LayerPlan
from ropewalk.readers import from_config
from ropewalk.spectra import Spectrum

ENDING = "inv_freq"
TRIED_AT = (0, 1, 2, 5)
"""Positions at which a module's tables are compared: short, so that nothing that depends on the length wakes up."""
ALIKE = 1e-5
"""How far a model's frequencies, kept in float32, may be from what its configuration says, as a share."""


@dataclass(frozen=True)
class Tabled:
    """What one kind of layer of a rotary module computes: from which frequencies, in which form."""

    label: str
    inv_freq: Tensor
    factor: float
    """What cos and sin are multiplied by."""
    columns: Columns
    axes: tuple[int, ...] | None
    """The axis that each pair follows, for modules that take positions with three."""


@dataclass(frozen=True)
class Wanted:
    """What the frequencies are to be."""

    spectrum: Spectrum | None = None
    extension: Extension | None = None
    at_length: int | None = None

    def of(self, module: nn.Module, found: Tabled) -> Spectrum:
        """The spectrum for that kind of layer.

        Raises:
            NotServedError: the configuration does not say what the model computes, or the spectrum does not fit.
        """
        if self.spectrum is not None:
            if len(self.spectrum.radians) != len(found.inv_freq):
                raise NotServedError(
                    f"the spectrum has {len(self.spectrum.radians)} pairs, the model {len(found.inv_freq)}"
                )
            if self.spectrum.softmax_multiplier != 1:
                raise NotServedError("a spectrum's softmax_multiplier is not put into a live model")
            return self.spectrum
        plan = _plan(module, found, self.at_length)
        if self.extension is None:
            dynamic = plan.extension is not None and plan.extension.depends_on_length
            if dynamic and self.at_length is None:
                raise NotServedError(
                    f"{type(plan.extension).__name__} depends on the length of the text: give at_length=…"
                )
            made = plan.spectrum(length=self.at_length)
            assert made is not None
            return made
        if plan.bands is not None and plan.bands.widths is not None:
            raise NotServedError("its pairs make several ladders, one an axis, which no extension here stretches")
        before, made = plan.spectrum(), replace(plan, extension=self.extension).spectrum(length=self.at_length)
        assert before is not None
        assert made is not None
        if made.softmax_multiplier != before.softmax_multiplier:
            raise NotServedError(
                f"its softmax scale has a multiplier of {before.softmax_multiplier:g}, and the extension wants "
                f"{made.softmax_multiplier:g}"
            )
        if len(made.radians) != len(found.inv_freq):
            raise NotServedError(f"the extension makes {len(made.radians)} pairs, the model has {len(found.inv_freq)}")
        return made


def replace_tables(
    model: nn.Module, wanted: Wanted, keep_float32: bool, patch: Patch
) -> tuple[dict[str, str], dict[str, str]]:
    """Give the rotary modules of a model tables of other frequencies, exact at every position.

    Args:
        model: a live model.
        wanted: which frequencies.
        keep_float32: leave the tables in float32, whatever the model computes in; only ropewalk's rotation reads them.
        patch: remembers what was there.

    Returns:
        What was replaced and what was left as it is, by the module's name: what is computed now, and why not.
    """
    done: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        labels = labels_of(module)
        if not labels:
            continue
        try:
            found = {label: try_out(module, label) for label in labels}
            spectra = {label: wanted.of(module, one) for label, one in found.items()}
        except NotServedError as error:
            left[name] = str(error)
            continue
        patch.set(module, "forward", types.MethodType(_forward(found, spectra, keep_float32), module))
        done[name] = "; ".join(f"{label}: {s}" if label else str(s) for label, s in spectra.items())
    return done, left


def labels_of(module: nn.Module) -> list[str]:
    """The types of layers for which a module has frequencies of its own; `[""]` for all alike, `[]` for none."""
    names = [n for n, _ in module.named_buffers(recurse=False) if n.endswith(ENDING) and "original_" not in n]
    return [n.removesuffix(ENDING).removesuffix("_") for n in names]


def try_out(module: nn.Module, label: str) -> Tabled:
    """Run a rotary module at a few positions, and tell what it computes.

    Raises:
        NotServedError: nothing that is known here.
    """
    name = f"{label}_{ENDING}" if label else ENDING
    buffer = getattr(module, name)
    if buffer.dim() != 1 or buffer.device.type == "meta":
        raise NotServedError(f"its frequencies have shape {tuple(buffer.shape)} on {buffer.device}")
    with _as_it_was(module):
        return _try_out(module, label, name)


@contextmanager
def _as_it_was(module: nn.Module) -> Iterator[None]:
    """Undo what running a module changes in it: frequencies that depend on the length are made anew, or in place."""
    before, names = dict(module.__dict__), dict(module._buffers)
    kept = {n: (b, b.clone()) for n, b in module._buffers.items() if b is not None}
    try:
        yield
    finally:
        module.__dict__.clear()
        module.__dict__.update(before)
        module._buffers.clear()
        module._buffers.update(names)
        for n, (buffer, values) in kept.items():
            module._buffers[n] = buffer.copy_(values)


def _try_out(module: nn.Module, label: str, name: str) -> Tabled:
    buffer = getattr(module, name)
    options = {"layer_type": label} if label else {}
    x = torch.zeros(1, 1, 1, device=buffer.device)

    def run(ids: Tensor) -> Any:
        with torch.no_grad():
            return module(x, ids.to(buffer.device), **options)

    line = torch.tensor([TRIED_AT])
    try:
        got = run(line)
    except Exception as error:
        raise NotServedError(f"it does not take positions of shape (1, tokens): {error}") from None
    inv_freq = getattr(module, name).detach().to("cpu", torch.float64)  # as it is after that
    cos, sin, complex_table = _parts(got)
    factor = float(cos.flatten()[0])
    angle = line[..., None].double() * inv_freq
    columns = _form(cos, sin, angle, factor, complex_table)
    if columns is None:
        raise NotServedError("its tables are not the cosines and sines of position times frequency")
    return Tabled(label, inv_freq, factor, columns, _axes(run, inv_freq, factor, columns))


def _parts(got: Any) -> tuple[Tensor, Tensor, bool]:
    if isinstance(got, Tensor) and got.is_complex():
        return got.real.cpu().double(), got.imag.cpu().double(), True
    if isinstance(got, tuple) and len(got) == 2 and all(isinstance(t, Tensor) for t in got):
        return got[0].cpu().double(), got[1].cpu().double(), False
    raise NotServedError("it gives something else than a cosine and a sine")


def _form(cos: Tensor, sin: Tensor, angle: Tensor, factor: float, complex_table: bool) -> Columns | None:
    forms: tuple[Columns, ...] = ("complex",) if complex_table else ("doubled", "repeated", "single")
    for form in forms:
        wide = spread(angle, form)
        if all(
            t.shape == wide.shape and torch.allclose(t, f(wide) * factor, atol=1e-4)
            for t, f in ((cos, torch.cos), (sin, torch.sin))
        ):
            return form
    return None


def _axes(run: Callable[[Tensor], Any], inv_freq: Tensor, factor: float, columns: Columns) -> tuple[int, ...] | None:
    """Which of three axes each pair follows, found by trying; None for a module that takes one."""
    ids = torch.tensor([[[3, 40, 7]], [[11, 5, 90]], [[64, 21, 2]]])
    try:
        cos, _, _ = _parts(run(ids))
    except Exception:  # it takes one axis
        return None
    narrow = cos.chunk(2, dim=-1)[0] if columns == "doubled" else cos[..., ::2] if columns == "repeated" else cos
    if narrow.shape != (1, 3, len(inv_freq)):
        return None
    off = [(narrow - torch.cos(ids[a][..., None].double() * inv_freq) * factor).abs().amax((0, 1)) for a in range(3)]
    nearest = torch.stack(off).min(dim=0)
    if float(nearest.values.max()) > 1e-4:
        raise NotServedError("its pairs follow several axes in a way that is not known here")
    return tuple(nearest.indices.tolist())


def spread(t: Tensor, columns: Columns) -> Tensor:
    """One column a pair to the columns that a model has."""
    if columns == "doubled":
        return torch.cat((t, t), dim=-1)
    return t.repeat_interleave(2, dim=-1) if columns == "repeated" else t


def _plan(module: nn.Module, found: Tabled, at_length: int | None) -> LayerPlan:
    """What the configuration says about these layers, if that is what the module computes."""
    config = getattr(module, "config", None)
    if config is None:
        raise NotServedError("it keeps no configuration, from which its exact frequencies could be read")
    said = config.to_dict()
    own = _registered(said, found.label)
    try:
        plan = from_config(said)
    except ValueError as error:
        raise NotServedError(f"its configuration is not read: {error}") from None
    turning = [layer for layer in dict.fromkeys(plan.layers) if layer.kind == "rope"]
    if own is not None:
        turning = [replace(layer, extension=own) for layer in turning]
    lengths = [at_length] if own is not None else [None, at_length]  # a dynamic one begins at the trained length
    for layer in sorted(turning, key=lambda layer: layer.label != found.label):
        spectra = (layer.spectrum(length=n, precision="float32") for n in lengths)
        if any(s is not None and _alike(s, found) for s in spectra):
            return layer
    raise NotServedError("its frequencies are not those that its configuration says; give spectrum=…")


def _registered(said: dict[str, Any], label: str) -> Extension | None:
    """What `register_spectrum` put behind a rope_type, which is struck out of what the configuration says."""
    block = said.get("rope_parameters") or {}
    block = block.get(label, block) if label else block
    own = registered(block.get("rope_type", ""))
    if own is None:
        return None
    if isinstance(own, Spectrum):
        raise NotServedError(f"rope_type {block['rope_type']!r} is a spectrum: give it as spectrum=…")
    block["rope_type"] = "default"
    return own


def _alike(spectrum: Spectrum, found: Tabled) -> bool:
    said = spectrum.inv_freq
    return said.shape == found.inv_freq.shape and (
        torch.allclose(said, found.inv_freq, rtol=ALIKE, atol=0)
        and math.isclose(spectrum.attention_factor, found.factor, rel_tol=1e-4)
    )


def _forward(found: dict[str, Tabled], spectra: dict[str, Spectrum], keep_float32: bool) -> Callable[..., Any]:
    def forward(self: nn.Module, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Cosine and sine, exact at every position."""
        tabled, spectrum = found[layer_type or ""], spectra[layer_type or ""]
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        axes = tabled.axes if position_ids.dim() == 3 else None
        cos, sin = cos_sin(position_ids, spectrum, axes=axes, dtype=work, device=x.device)
        if tabled.columns == "complex":
            return torch.complex(cos, sin)
        dtype = work if keep_float32 else x.dtype
        return spread(cos, tabled.columns).to(dtype), spread(sin, tabled.columns).to(dtype)

    return forward
