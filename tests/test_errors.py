"""Every refusal of the library, provoked: the right type, the numbers in the message, and none left out."""

from __future__ import annotations

import ast
import functools
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk
from ropewalk import (
    FIRE,
    KERPLE,
    T5,
    ALiBi,
    Bands,
    Compose,
    CoPE,
    DynamicNTK,
    Learned,
    Linear,
    NoPE,
    Positions,
    RelativeBias,
    RoPE,
    Shaw,
    Sinusoidal,
    Spectrum,
    XPos,
    attend,
    build,
    cos_sin,
    geometric,
    norm_rotate,
    rotate,
    rotate_pair_,
    rotate_to_cache,
)
from ropewalk.attention import flex, scores
from ropewalk.attention.ranks import agree
from ropewalk.encodings import find
from ropewalk.measure.compare import compare
from ropewalk.measure.decay import decay
from ropewalk.measure.order import order
from ropewalk.spectra import periods

HOME = Path(ropewalk.__file__).parent
COVERED = [
    HOME / "__init__.py",
    *(HOME / f"{name}.py" for name in ("protocol", "positions", "angles", "rotation", "spectra")),
    *sorted((HOME / "attention").glob("*.py")),
    *sorted((HOME / "encodings").glob("*.py")),
    *sorted((HOME / "measure").glob("*.py")),
]
"""Files of which every refusal has to be in the list below; other parts of the library have tests of their own."""

X = torch.ones(1, 4, 8)
Q = torch.ones(1, 4, 3, 8)
COS, SIN = cos_sin(range(3), geometric(8))
MANY = torch.zeros(3, 1, 4, dtype=torch.int64)  # positions with three axes
IN_ORDER = Positions(torch.arange(12).reshape(3, 1, 4)).ordered()


def turn(x: torch.Tensor = Q, cos: torch.Tensor = COS, sin: torch.Tensor = SIN, **options: Any) -> object:
    return rotate(x, cos, sin, **{"layout": "half", **options})


def store(**changed: Any) -> object:
    """Keys and values into a cache of nine tokens, with something changed."""
    into = {"k_cache": torch.zeros(1, 4, 9, 8), "v_cache": torch.zeros(1, 4, 9, 8), "slots": torch.arange(3)}
    return rotate_to_cache(**{"k": Q, "v": Q, "cos": COS, "sin": SIN, "layout": "half", **into, **changed})


def many_axes(n: int) -> Positions:
    return Positions(torch.zeros(n, 1, 4, dtype=torch.int64))


class Untrue(NoPE):
    """A bias of one position alone, under the base class's claim of distance_only."""

    def bias(self, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (i + 0 * j + 0 * h).float()


def on_four_ranks(*splits: object, x: torch.Tensor = Q, k: object = None, group: object = None) -> object:
    """Attention with x for q, k and v, split along these axes; the other three ranks are made up."""
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        q_axes, k_axes, v_axes = splits or (1, 1 if k is None else k, 1)

        def split(axes: Any) -> torch.Tensor:
            if isinstance(axes, torch.Tensor):
                return axes
            axes = axes if isinstance(axes, tuple) else (axes,)
            mesh = init_device_mesh("cpu", (4,) if len(axes) == 1 else (2, 2))
            return distribute_tensor(x, mesh, [Shard(axis) for axis in axes])

        return attend(split(q_axes), split(k_axes), split(v_axes), NoPE(), range(3), group=group)
    finally:
        dist.destroy_process_group()


def derived_twice() -> None:
    """A penalty on the gradient of a strip."""
    q = Q.clone().requires_grad_()
    (first,) = torch.autograd.grad(attend(q, Q, Q, ALiBi(4), range(3)).sum(), q, create_graph=True)
    first.sum().backward()


def compiled_too_often() -> None:
    """FlexAttention for one length more than PyTorch compiles it."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    def full(*_: Any, **__: Any) -> None:
        raise FailOnRecompileLimitHit("recompile_limit reached")

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(flex, "_kernel", lambda device: full)
        attend(Q, Q, Q, NoPE(), range(3), impl="flex")


Refusal = tuple[Callable[[], object], type[Exception], str]

REFUSALS: list[Refusal] = [
    # The package
    (lambda: ropewalk.RoPe, AttributeError, "module 'ropewalk' has no attribute 'RoPe'"),
    # Protocol
    (lambda: Compose(), ValueError, r"Compose needs at least one encoding, e\.g\. Compose\(Learned\("),
    (lambda: Compose(NoPE(), 3), ValueError, r"^Compose takes encodings, got 3$"),
    (lambda: Compose(ALiBi), ValueError, r"ALiBi'>; make one first, e\.g\. ALiBi\(heads=8\)"),
    (lambda: Compose(ALiBi(4), NoPE(), T5(8)), ValueError, r"made for different numbers of heads: \['4', '8'\]"),
    (lambda: Learned(8).embed(X, MANY), ValueError, "takes one position a token, these positions have 3 axes"),
    (
        lambda: RoPE(8).query(Q, range(5)),
        ValueError,
        r"q has shape \(1, 4, 3, 8\), .* but there are 5 positions.*axes 1",
    ),
    (lambda: RoPE(8).key(Q[0, 0, 0], [0]), ValueError, r"k has shape \(8,\), token axis last but one, .* 1 positions"),
    (lambda: RoPE(8).inverse(Q, [[0, 1, 2]] * 2), ValueError, "x has batch size 1, the positions have 2 rows"),
    (lambda: Learned(8).embed(X[0], [[0] * 4]), ValueError, "x has no batch axis, the positions have 1 rows"),
    (lambda: ALiBi(8).of_heads(6, 3), ValueError, "ALiBi has no 3 heads from number 6 on of its 8 heads"),
    (lambda: ALiBi(8).of_heads(0, 0), ValueError, "ALiBi has no 0 heads from number 0 on"),
    (lambda: RoPE(8).of_heads(-1, 2), ValueError, "RoPE has no 2 heads from number -1 on$"),
    (lambda: T5(8).of_heads(0, 2.0), ValueError, r"T5 has no 2\.0 heads from number 0 on"),
    # Positions
    (lambda: Positions.packed(torch.tensor([0, 1.5])), ValueError, r"in whole numbers, got \[0\.0, 1\.5\]"),
    (
        lambda: Positions(torch.tensor([True])),
        TypeError,
        r"not booleans; for a padding mask use Positions\.left_padded",
    ),
    (lambda: Positions([0.5]), TypeError, r"integers, got torch\.float32 of shape \(1,\); bfloat16 .* call \.long\(\)"),
    (lambda: Positions(torch.zeros(1, dtype=torch.cfloat)), TypeError, r"integers, got torch\.complex64"),
    (lambda: Positions(3), ValueError, r"positions have shape \(S,\), \(B, S\) or \(axes, B, S\), got \(\)"),
    (lambda: Positions(MANY[None]), ValueError, r"\(axes, B, S\), got \(1, 3, 1, 4\)"),
    (lambda: Positions([0, 1], order=torch.arange(2)), ValueError, "positions with one axis are their own order"),
    (lambda: Positions([0, 1], valid=torch.ones(3)), ValueError, r"valid has shape \(3,\), the positions have \(2,\)"),
    (lambda: Positions([0], documents=torch.ones(2, 1)), ValueError, r"documents has shape \(2, 1\), .* have \(1,\)"),
    (lambda: Positions.arange(-1), ValueError, "the number of tokens cannot be negative, got -1"),
    (lambda: Positions.arange(2, MANY), ValueError, r"offset is an int or has shape \(B,\), got \(3, 1, 4\)"),
    (lambda: Positions.packed([1, 3]), ValueError, r"cu_seqlens starts with 0 and never falls, got \[1, 3\]"),
    (lambda: Positions.packed([0, 3, 2]), ValueError, r"cu_seqlens starts with 0 and never falls, got \[0, 3, 2\]"),
    (lambda: Positions.packed([]), ValueError, r"cu_seqlens starts with 0 and never falls, got \[\]"),
    (lambda: Positions.packed([[0, 3]]), ValueError, r"cu_seqlens starts with 0 and never falls, got \[\[0, 3\]\]"),
    (lambda: Positions.left_padded(torch.ones(3)), ValueError, r"mask has shape \(B, S\), got \(3,\)"),
    (lambda: Positions.left_padded(torch.tensor([[0, 1, 0]])), ValueError, "padding after a real token; for right"),
    (lambda: Positions.grid(), ValueError, r"a grid has positive whole sizes, such as \(t, h, w\), got \(\)"),
    (lambda: Positions.grid(2, 0), ValueError, r"a grid has positive whole sizes, .* got \(2, 0\)"),
    (lambda: Positions.cat([]), ValueError, "there is nothing to put together"),
    (lambda: Positions.cat([IN_ORDER, Positions([1])]), ValueError, "with 3 and 1 axes do not continue one another"),
    (lambda: Positions.cat([Positions([[1]] * 2), Positions([[1]] * 3)]), ValueError, "of 2 and 3 rows do not fit"),
    (lambda: Positions.cat([Positions([1]), Positions.packed([0, 1])]), ValueError, "some of these .* have documents"),
    (lambda: Positions([1, 2])[0], TypeError, "positions are cut by slices of the token axis, got 0"),
    (lambda: Positions.packed([0, 2]).after(), ValueError, "only for one text a row: not for packed or no positions"),
    (lambda: Positions([]).after(), ValueError, "only for one text a row: not for packed or no positions"),
    (lambda: Positions(MANY).line(), ValueError, r"give order=…, or, .* \.ordered\(\)"),
    # Angles
    (lambda: cos_sin([1], geometric(8), dtype=torch.float16), ValueError, r"float32 or float64, got torch\.float16"),
    (lambda: cos_sin([1], geometric(8), precision="half"), ValueError, "'exact' or 'float32', got 'half'"),
    (
        lambda: cos_sin([1], Spectrum([1.0], start_tokens=2, start_radians=[2.0]), precision="float32"),
        ValueError,
        "start tokens are served with precision 'exact' only",
    ),
    (lambda: cos_sin([1], geometric(8), axes=(0, 1)), ValueError, "one axis for each of the 4 pairs, got 2"),
    (lambda: cos_sin(MANY, geometric(8)), ValueError, "these positions have 3 axes: say by axes"),
    (
        lambda: cos_sin(MANY, geometric(8), axes=(0, 1, 2, 3)),
        ValueError,
        "name axis 3, but these positions have 3: 0 to 2",
    ),
    # Rotation
    (lambda: turn(layout="neox"), ValueError, r"layout is 'half' .* or 'interleaved' .* got 'neox'"),
    (lambda: turn(place="middle"), ValueError, "place is 'leading' or 'trailing', got 'middle'"),
    (lambda: turn(Q.long()), ValueError, r"only floating tensors turn, got torch\.int64"),
    (lambda: turn(sin=SIN[:, :2]), ValueError, r"cos and sin have different shapes: \(3, 4\) and \(3, 2\)"),
    (lambda: turn(cos=COS[0], sin=SIN[0]), ValueError, r"have shape \(…, S, width/2\), got \(4,\)"),
    (lambda: turn(cos=COS[:, :0], sin=SIN[:, :0]), ValueError, r"have shape \(…, S, width/2\), got \(3, 0\)"),
    (
        lambda: turn(Q[..., :6]),
        ValueError,
        "4 columns, one a pair, so they turn 8 channels, but x has only 6; tables with",
    ),
    (lambda: turn(seq_dim=-1), ValueError, r"seq_dim names an axis of x \(1, 4, 3, 8\) other than the last, got -1"),
    (lambda: turn(seq_dim=3), ValueError, r"other than the last, got 3"),
    (lambda: turn(seq_dim=-5), ValueError, r"other than the last, got -5"),
    (lambda: turn(seq_dim=1), ValueError, r"do not fit x \(1, 4, 3, 8\) with tokens on axis 1: .* with S = 4"),
    (
        lambda: turn(cos=COS[None].expand(2, 3, 4), sin=SIN[None].expand(2, 3, 4)),
        ValueError,
        r"\(2, 3, 4\) do not fit x",
    ),
    (lambda: turn(Q[0, 0], COS[None], SIN[None]), ValueError, r"\(1, 3, 4\) do not fit x \(3, 8\)"),
    (
        lambda: turn(cos=COS[None, None, :1], sin=SIN[None, None, :1]),
        ValueError,
        "do not broadcast against x .* axis -2",
    ),
    (
        lambda: turn(Q, *(t[None, None].expand(1, 2, 3, 4) for t in (COS, SIN))),
        ValueError,
        "do not broadcast against x",
    ),
    (lambda: turn(impl="cuda"), ValueError, "impl is 'auto', 'eager' or 'native', got 'cuda'"),
    (
        lambda: turn(Q.to("meta"), COS.to("meta"), SIN.to("meta"), impl="native"),
        ValueError,
        "impl='native' cannot serve this: .*; impl='auto' takes the eager form",
    ),
    (
        lambda: rotate_pair_(Q, Q, COS, SIN, layout="half"),
        ValueError,
        "q and k are the same tensor, which would turn twice: use rotate_",
    ),
    (
        lambda: norm_rotate(Q, torch.ones(6), COS, SIN, layout="half"),
        ValueError,
        r"weight has one number for each of the 8 channels, got shape \(6,\)",
    ),
    (
        lambda: norm_rotate(Q, torch.ones(8), COS, SIN, layout="half", epsilon=-1.0),
        ValueError,
        r"epsilon is 0 or more, got -1\.0",
    ),
    (
        lambda: turn(Q.clone().requires_grad_(), out=torch.empty_like(Q)),
        ValueError,
        "out= takes no part in gradients, but x, cos, sin or out requires one",
    ),
    (
        lambda: store(k_cache=torch.zeros(1, 4, 9, 6)),
        ValueError,
        r"k_cache has the shape and dtype of k .*torch.float32 \(1, 4, 3, 8\), got torch.float32 \(1, 4, 9, 6\)",
    ),
    (
        lambda: store(v=torch.ones(1, 4, 2, 8)),
        ValueError,
        r"k and v have the same axes but for the last, .*got \(1, 4, 3, 8\) and \(1, 4, 2, 8\)",
    ),
    (
        lambda: store(slots=torch.arange(2)),
        ValueError,
        r"slots are int64, one for each of the 3 tokens .*, got torch.int64 \(2,\)",
    ),
    (
        lambda: store(slots=torch.tensor([0, 9, 1])),
        ValueError,
        "slots name rows 0 to 8 of the cache, got 9",
    ),
    # Attention
    (
        lambda: attend(X, Q, Q, NoPE(), range(3)),
        ValueError,
        r"q, k and v are \(batch, .*, got \(1, 4, 8\), \(1, 4, 3, 8\)",
    ),
    (
        lambda: attend(Q, Q[:, :3], Q[:, :3], NoPE(), range(3)),
        ValueError,
        "4 query heads cannot share 3 key heads evenly",
    ),
    (
        lambda: attend(Q, Q[:, :0], Q[:, :0], NoPE(), range(3)),
        ValueError,
        "4 query heads cannot share 0 key heads evenly",
    ),
    (
        lambda: attend(Q, Q, Q, ALiBi(8), range(3)),
        ValueError,
        r"ALiBi was made for 8 heads, q has 4; for some .* encoding\.of_heads\(first, count\)$",
    ),
    (lambda: attend(Q, Q, Q, ALiBi(2), range(3)), ValueError, r"ALiBi was made for 2 heads, q has 4$"),
    (lambda: attend(Q, Q, Q[:, :, :2], NoPE(), range(3)), ValueError, r"and v \(1, 4, 2, 8\) do not fit together"),
    (lambda: attend(Q, Q[..., :4], Q, NoPE(), range(3)), ValueError, r"k \(1, 4, 3, 4\) and v .* do not fit together"),
    (
        lambda: attend(Q, Q.repeat(2, 1, 1, 1), Q.repeat(2, 1, 1, 1), NoPE(), range(3)),
        ValueError,
        "do not fit together",
    ),
    (
        lambda: attend(Q[:, :, :1], Q, Q, NoPE(), [2]),
        ValueError,
        "3 keys and 1 positions: give key_positions, one for each",
    ),
    (lambda: attend(Q, Q, Q, NoPE(), range(3), key_positions=[1]), ValueError, r"k has shape .* there are 1 positions"),
    (
        lambda: attend(Q, Q, Q, NoPE(), range(3), key_positions=Positions.grid(1, 3)),
        ValueError,
        "the queries' positions have 1 axes and the keys' 2",
    ),
    (
        lambda: attend(Q, Q, Q, ALiBi(4), Positions.grid(1, 3)),
        ValueError,
        "ALiBi takes one position a token, these .* 2 axes",
    ),
    (lambda: attend(Q, Q, Q, FIRE(4), range(3), causal=False), ValueError, "FIRE is .* causal .* bidirectional=True"),
    (derived_twice, RuntimeError, "not gradients of gradients; impl='reference' has them"),
    (compiled_too_often, RuntimeError, "give a higher .*recompile_limit, or take impl='auto'"),
    (lambda: attend(Q, Q, Q, NoPE(), range(3), block=0), ValueError, "block is a positive number of query rows, got 0"),
    (
        lambda: attend(Q, Q, Q, CoPE(8), range(3), prefix=2),
        ValueError,
        "CoPE is .* never follows its query, got a prefix; give",
    ),
    (
        lambda: attend(Q, Q, Q, NoPE(), range(3), window=0),
        ValueError,
        "window is a positive number of positions, got 0",
    ),
    (lambda: attend(Q, Q, Q, NoPE(), range(3), prefix=-1), ValueError, "prefix is 0 or more positions, got -1"),
    (lambda: attend(Q, Q, Q, NoPE(), range(3), causal=False, prefix=1), ValueError, "with causal=False everything is"),
    (
        lambda: attend(Q, Q, Q, NoPE(), range(3), prefix=torch.ones(2, 1)),
        ValueError,
        r"integers of shape \(1,\), got torch\.float32 \(2, 1\)",
    ),
    (
        lambda: attend(Q, Q, Q, NoPE(), range(3), impl="flash"),
        ValueError,
        "impl is one of auto, reference, sdpa, strip, blocks, flex; got 'flash'",
    ),
    (
        lambda: attend(Q, Q, Q, CoPE(8), range(3), impl="sdpa"),
        ValueError,
        "impl='sdpa' cannot serve this: CoPE acts on the scores, .*; impl='auto' takes a path that can",
    ),
    (lambda: attend(Q, Q, Q, Shaw(8), range(3), impl="strip"), ValueError, "Shaw acts on the scores themselves"),
    (lambda: attend(Q, Q, Q, RoPE(8), range(3), impl="strip"), ValueError, "RoPE adds no bias, so there is nothing"),
    (
        lambda: attend(Q, Q, Q, FIRE(4), range(3), impl="strip"),
        ValueError,
        r"bias of FIRE depends on more than the distance \(distance_only is False\)",
    ),
    (
        lambda: attend(Q, Q, Q, ALiBi(4), [5, 0, 7], impl="strip"),
        ValueError,
        "positions jump too often for distances to lie along diagonals",
    ),
    (lambda: attend(Q, Q, Q, Shaw(8), range(3), impl="flex"), ValueError, "FlexAttention changes one score at a time"),
    (
        lambda: attend(Q, Q, Q, T5(4), range(3), impl="flex"),
        ValueError,
        "on the CPU FlexAttention has no backward pass",
    ),
    (
        lambda: attend(Q, Q, Q, ALiBi(4), [0, 1, 1_000_000_000], impl="flex"),
        ValueError,
        "positions lie 2000000000 apart, and it holds a number for each distance",
    ),
    (
        lambda: attend(Q, Q, Q, Untrue(), range(3)),
        ValueError,
        r"NoPE claims distance_only, but its bias at positions \[\(0, 0\), .* set distance_only = False",
    ),
    (
        lambda: attend(Q[:, :, :0], Q[:, :, :0], Q[:, :, :0], NoPE(), [], impl="sdpa"),
        ValueError,
        "impl='sdpa' cannot serve this: there are no queries or no keys",
    ),
    # Across ranks
    (
        lambda: agree([[-1, -1, -2], [-1, -2, -2], [4, -1, 4]]),
        ValueError,
        r"documents of the positions are none on rank 1 of the group, and \(S,\) on rank 0; make them alike",
    ),
    (
        lambda: agree([[4, -2, 4], [4, -2, 2]]),
        ValueError,
        r"valid of the positions are \(2, S\) on rank 1 of the group, and \(4, S\) on rank 0",
    ),
    (lambda: on_four_ranks(group=True), ValueError, "distributed tensors know their mesh; group is for each rank's"),
    (lambda: on_four_ranks(k=Q), ValueError, "q is a distributed tensor, so k and v have to be"),
    (
        lambda: on_four_ranks(k=0),
        ValueError,
        r"split alike, on one mesh, got \(Shard\(dim=1\),\), \(Shard\(dim=0\),\) and \(Shard\(dim=1\),\); redistribute",
    ),
    (lambda: on_four_ranks(3, 3, 3), ValueError, r"by sample, head or token, .* axes 0 to 2, got \(Shard\(dim=3\),\)"),
    (
        lambda: on_four_ranks((2, 2), (2, 2), (2, 2)),
        ValueError,
        r"tokens are split along one axis of the mesh, got \(Shard\(dim=2\), Shard\(dim=2\)\)",
    ),
    (lambda: on_four_ranks(x=Q[:, :2]), ValueError, "2 query heads and 2 key heads do not divide among 4 ranks"),
    # Spectra
    (lambda: Spectrum([]), ValueError, r"a spectrum needs at least one frequency, all finite, got \[\]"),
    (lambda: Spectrum([1.0], softmax_multiplier=0), ValueError, "softmax_multiplier is a positive number, got 0"),
    (lambda: Spectrum([1.0], start_tokens=3), ValueError, "a frequency for each of the 1 pairs, got 0"),
    (lambda: periods(8, 10.0, "half"), ValueError, "precision is 'exact' or 'float32', got 'half'"),
    (lambda: geometric(8, ladder="half-1", precision="float32"), ValueError, "is for ladder 'paper', got 'half-1'"),
    (lambda: geometric(8, ladder="half"), ValueError, "ladder is 'paper' or 'half-1', got 'half'"),
    (lambda: geometric(0), ValueError, "the width is a positive whole number of channels, got 0"),
    (lambda: geometric(8, 1.0), ValueError, r"base is a finite number above 1, got 1\.0"),
    # The registry
    (lambda: find("ropes"), ValueError, "no encoding is called 'ropes', did you mean 'rope'"),
    (lambda: find("zzz"), ValueError, "no encoding is called 'zzz'; there are nope, sinusoidal"),
    (lambda: build("alibi"), ValueError, "ALiBi needs heads"),
    (lambda: build("rope", head_dim=8, bse=3), ValueError, "RoPE has no option 'bse', did you mean 'base'"),
    (lambda: build("nope", base=3), ValueError, "NoPE has no option 'base'; it has none"),
    # Constructors
    (lambda: ALiBi(0), ValueError, "heads is a positive whole number, got 0"),
    (lambda: ALiBi(2.0), ValueError, r"heads is a positive whole number, got 2\.0"),
    (lambda: ALiBi(True), ValueError, "heads is a positive whole number, got True"),
    (lambda: CoPE(0), ValueError, "head_dim is a positive whole number, got 0"),
    (lambda: CoPE(8, length=0), ValueError, "length is a positive whole number, got 0"),
    (lambda: CoPE(8, std=-1), ValueError, "std is 0 or more, got -1"),
    (lambda: FIRE(-2), ValueError, "heads is a positive whole number, got -2"),
    (lambda: FIRE(2, width=0), ValueError, "width is a positive whole number, got 0"),
    (lambda: FIRE(2, threshold=0), ValueError, "threshold is above 0, got 0"),
    (lambda: FIRE(2, threshold=float("nan")), ValueError, "threshold is above 0, got nan"),
    (lambda: KERPLE(0), ValueError, "heads is a positive whole number, got 0"),
    (lambda: KERPLE(2, kernel="exp"), ValueError, "kernel is 'log' or 'power', got 'exp'"),
    (lambda: KERPLE(2).set(r1=0.0, r2=1.0), ValueError, r"r1 is above 0, got 0\.0"),
    (lambda: KERPLE(2).set(r1=1.0, r2=-1.0), ValueError, r"r2 is above 0, got -1\.0"),
    (lambda: KERPLE(2, kernel="power").set(r1=1.0, r2=2.0), ValueError, r"r2 is above 0 and below 2, got 2\.0"),
    (lambda: Learned(0), ValueError, "dim is a positive whole number, got 0"),
    (lambda: Learned(8, length=0), ValueError, "length is a positive whole number, got 0"),
    (lambda: Learned(8, offset=-1), ValueError, "offset is a whole number, 0 or more, got -1"),
    (lambda: Learned(8, std=-0.1), ValueError, r"std is 0 or more, got -0\.1"),
    (lambda: Learned(6).embed(X, range(4)), ValueError, "x has 8 channels, this table has dim=6"),
    (
        lambda: Learned(8).embed(X, [0, 1, 2, -3]),
        ValueError,
        "position -3 is negative, and a learned table begins at 0",
    ),
    (
        lambda: Learned(8, length=3).embed(X, range(4)),
        ValueError,
        r"position 3 is beyond .* length 3 \(positions 0 to 2\)",
    ),
    (lambda: RelativeBias(clip=2, length=3), ValueError, "give clip or length, not both: got clip=2, length=3"),
    (lambda: RelativeBias(clip=0), ValueError, "clip is a positive whole number, got 0"),
    (lambda: RelativeBias(length=-1), ValueError, "length is a positive whole number, got -1"),
    (lambda: RelativeBias(heads=0), ValueError, "heads is a positive whole number, got 0"),
    (lambda: RelativeBias(std=-1), ValueError, "std is 0 or more, got -1"),
    (
        lambda: attend(Q, Q, Q, RelativeBias(length=2), range(3)),
        ValueError,
        r"distance 2 is beyond this table, which has length 2 \(distances up to ±1\)",
    ),
    (lambda: RoPE(0), ValueError, "head_dim is a positive whole number, got 0"),
    (lambda: RoPE(8, rotary_dim=0), ValueError, "rotary_dim is a positive whole number, got 0"),
    (lambda: RoPE(7), ValueError, "channels turn in pairs, so head_dim must be even, got 7"),
    (lambda: RoPE(8, rotary_dim=3), ValueError, "channels turn in pairs, so rotary_dim must be even, got 3"),
    (lambda: RoPE(8, rotary_dim=10), ValueError, "rotary_dim is at most head_dim = 8, got 10"),
    (lambda: RoPE(8, layout="llama"), ValueError, "layout is 'half' or 'interleaved', got 'llama'"),
    (lambda: RoPE(8, place="end"), ValueError, "place is 'leading' or 'trailing', got 'end'"),
    (lambda: RoPE(8, impl="triton"), ValueError, "impl is 'auto', 'eager' or 'native', got 'triton'"),
    (lambda: RoPE(8, base=1), ValueError, "base is a finite number above 1, got 1"),
    (
        lambda: RoPE(8, extension=DynamicNTK(2, 64)),
        ValueError,
        "DynamicNTK depends on the length of the text: give at_len",
    ),
    (lambda: RoPE(8, extension=Linear(2), at_length=9), ValueError, "at_length=9 needs an extension that depends on"),
    (lambda: RoPE(8, bands=Bands("THW")), ValueError, "bands name the axis of 3 pairs, but head_dim=8 has 4"),
    (lambda: RoPE(6).query(Q, range(3)), ValueError, "q has 8 channels, this encoding was made for head_dim=6"),
    (lambda: XPos(8, scale_base=0), ValueError, "scale_base is above 0, got 0"),
    (lambda: XPos(8, reference=0.5), ValueError, r"reference is a position, a whole number, got 0\.5"),
    (
        lambda: XPos(8).key(Q[:, :, :1], [-40_000]),
        ValueError,
        r"a position 40000 tokens from reference 0 .* torch\.float32",
    ),
    (lambda: Shaw(0), ValueError, "head_dim is a positive whole number, got 0"),
    (lambda: Shaw(8, clip=0), ValueError, "clip is a positive whole number, got 0"),
    (lambda: Shaw(8, heads=0), ValueError, "heads is a positive whole number, got 0"),
    (lambda: Shaw(8, std=-1), ValueError, "std is 0 or more, got -1"),
    (lambda: Sinusoidal(0), ValueError, "dim is a positive whole number, got 0"),
    (
        lambda: Sinusoidal(8, order="sines"),
        ValueError,
        "order is one of interleaved, concatenated, cosine_first; got 'si",
    ),
    (lambda: Sinusoidal(8, embedding_scale=float("inf")), ValueError, "embedding_scale is a finite number, got inf"),
    (lambda: Sinusoidal(8, bands=Bands("THW")), ValueError, "bands name the axis of 3 pairs, but dim=8 has 4"),
    (lambda: Sinusoidal(6).embed(X, range(4)), ValueError, "x has 8 channels, this encoding was made for dim=6"),
    (lambda: Sinusoidal(7).shift_matrix(1), ValueError, "with dim=7 the last sine has no cosine beside it"),
    (lambda: T5(0), ValueError, "heads is a positive whole number, got 0"),
    (lambda: T5(2, buckets=1), ValueError, "buckets is a whole number, 2 or more, got 1"),
    (lambda: T5(2, buckets=0, bidirectional=False), ValueError, "buckets is a whole number, 1 or more, got 0"),
    (lambda: T5(2, max_distance=8), ValueError, "beyond the 8 distances that have a bucket of their own, got 8"),
    (lambda: T5(2, std=-1), ValueError, "std is 0 or more, got -1"),
    # Measurements
    (lambda: compare(keys=[]), ValueError, r"there is at least one key, got query 2 and keys \[\]"),
    (lambda: compare(keys=[3, -1]), ValueError, r"positions are 0 or more .* got query 2 and keys \[3, -1\]"),
    (lambda: compare(vectors="zeros"), ValueError, r"vectors are 'ones', 'random' or a \.npy file, got 'zeros'"),
    (lambda: compare(vectors="none.npy"), ValueError, r"none\.npy cannot be read as a \.npy file: "),
    (lambda: compare(dim=7), ValueError, r"dim is even and at least 2 \(RoPE turns channels in pairs\), got 7"),
    (lambda: compare(query=1_000_001), ValueError, "positions run from 0 to 1,000,000, got 1,000,001"),
    (lambda: compare(encodings=["ropee"]), ValueError, "no encoding is called 'ropee', did you mean 'rope'"),
    (lambda: decay(length=0), ValueError, "query is 0 or more, length and pairs 1 or more; got 0, 0 and 1000"),
    (lambda: decay(query=-1), ValueError, "got -1, 100 and 1000"),
    (lambda: decay(pairs=0), ValueError, "got 0, 100 and 0"),
    (lambda: order("a b", "a c"), ValueError, r"only the first has \['b'\] and only the second \['c'\]"),
    (lambda: order("a b", "a b"), ValueError, "the two are the same order of the same tokens: 'a b' and 'a b'"),
    (lambda: order("a", "a"), ValueError, "the two are the same order of the same tokens: 'a' and 'a'"),
]


def in_file(tmp_path: Path, array: np.ndarray) -> str:
    np.save(tmp_path / "vectors.npy", array)
    return str(tmp_path / "vectors.npy")


@functools.cache
def sites() -> dict[tuple[str, int], range]:
    """Every `raise` and every `expect(…)` of the covered files: the file and first line, and all its lines."""
    found = {}
    for path in COVERED:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        expect_itself = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "expect"]
        inside = {id(n) for function in expect_itself for n in ast.walk(function)}
        for node in ast.walk(tree):
            call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "expect"
            if (isinstance(node, ast.Raise) or call) and id(node) not in inside:
                found[str(path.relative_to(HOME)), node.lineno] = range(node.lineno, (node.end_lineno or 0) + 1)
    return found


def site_of(trace: TracebackType | None) -> tuple[str, int] | None:
    """Where in the package an exception was raised; for `expect`, where it was called."""
    frames = [f for f in traceback.extract_tb(trace) if Path(f.filename).is_relative_to(HOME)]
    if frames and frames[-1].name == "expect":
        frames.pop()
    if not frames:
        return None
    where = str(Path(frames[-1].filename).relative_to(HOME))
    return next((s for s, lines in sites().items() if s[0] == where and frames[-1].lineno in lines), None)


@pytest.mark.parametrize(("provoke", "kind", "message"), REFUSALS, ids=[f"{n}" for n in range(len(REFUSALS))])
def test_refusals_say_what_was_given_and_what_is_allowed(
    provoke: Callable[[], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        provoke()
    assert type(caught.value) is kind
    assert site_of(caught.tb) is not None, "raised by something else"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(3), r"holds float64 of shape \(3,\); wanted are numbers of shape \(64,\), or \(2, 64\)"),
        (np.ones((3, 64)), r"holds float64 of shape \(3, 64\)"),
        (np.array(["a"] * 64), r"holds <U1 of shape \(64,\)"),
        (np.full(64, np.nan), "holds numbers that are not finite"),
    ],
)
def test_refusals_of_files(tmp_path: Path, array: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(vectors=in_file(tmp_path, array))


def test_a_file_that_is_no_array_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"not an array"):
        (tmp_path / "bad.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.npy cannot be read as a \.npy file"):
            compare(vectors=str(tmp_path / "bad.npy"))


def test_no_refusal_is_left_out(tmp_path: Path) -> None:
    files = [(lambda a=a: compare(vectors=in_file(tmp_path, a))) for a in (np.ones(3), np.full(64, np.nan))]
    reached = set()
    for provoke in (*(r[0] for r in REFUSALS), *files):
        try:
            provoke()
        except Exception as error:
            reached.add(site_of(error.__traceback__))
    missing = sorted(set(sites()) - reached)
    assert not missing, f"add a line to REFUSALS for each of {[f'{file}:{line}' for file, line in missing]}"


def test_refusals_come_before_any_work() -> None:
    """A learned table of a million rows is not made to learn that a name is wrong, nor scores to refuse a mask."""
    calls = []

    class Counting(FIRE):
        def key(self, k, pos):
            calls.append("key")
            return k

    with pytest.raises(ValueError, match="causal"):
        attend(Q, Q, Q, Counting(4), range(3), causal=False)
    assert not calls
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="no encoding is called"):
        compare(encodings=["rope", "wrong"])
    assert torch.equal(torch.get_rng_state(), before)


def test_scores_wants_as_many_heads_as_it_is_given() -> None:
    assert scores(Q, Q, ALiBi(4), range(3), range(3)).shape == (1, 4, 3, 3)


def test_messages_end_without_a_full_stop_and_name_no_place() -> None:
    for path in COVERED:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                text = "".join(
                    c.value for c in ast.walk(node.exc) if isinstance(c, ast.Constant) and isinstance(c.value, str)
                )
                assert not text.endswith("."), f"{path.name}:{node.lineno}"
                assert not re.search(r"/work|/home|TODO|FIXME", text)
