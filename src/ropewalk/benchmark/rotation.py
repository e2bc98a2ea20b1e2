"""The rotation of queries and keys: ours in its forms, its peers, and the limits that memory sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ropewalk.angles import cos_sin
from ropewalk.benchmark import oracle, peers
from ropewalk.benchmark.timing import Contender
from ropewalk.encodings.rope import RoPE
from ropewalk.positions import Positions
from ropewalk.rotation import Layout, rotate, rotate_pair, rotate_pair_
from ropewalk.spectra import geometric

HEADS, KEY_HEADS, HEAD_DIM, BASE = 32, 8, 128, 10_000.0
"""Of an 8B Llama."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

LONGEST_FOR_ALL = 8192
"""Tokens beyond which only the rotation itself has all its peers: the rest takes minutes, and shows nothing new."""

Tensors = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Cell:
    """One place in the grid of measurements; what it is asked to measure is part of it."""

    part: str
    dtype: str
    length: int
    threads: int
    layouts: tuple[Layout, ...]
    peers: tuple[str, ...]
    device: str = "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """As torch has it."""
        return DTYPES[self.dtype]

    @property
    def label(self) -> str:
        """What is shown while it is measured."""
        return f"{self.part}, {self.dtype}, {self.length:,}, ×{self.threads}"

    @property
    def weight(self) -> float:
        """About how long it takes, compared with others."""
        return {"rotation": 2.0, "trained": 3.0}.get(self.part, 1.0) * (1 + self.length / 2000)

    def draw(self, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Normal random tensors, the same every time."""
        generator = torch.Generator().manual_seed(self.length)
        return [torch.randn(shape, generator=generator).to(self.device, self.torch_dtype) for shape in shapes]

    @property
    def positions(self) -> Tensor:
        """0, 1, … `(S,)`."""
        return torch.arange(self.length, device=self.device)

    def query_key(self) -> list[Tensor]:
        """Queries `(1, 32, S, 128)` and keys `(1, 8, S, 128)`."""
        return self.draw((1, HEADS, self.length, HEAD_DIM), (1, KEY_HEADS, self.length, HEAD_DIM))


def forward(cell: Cell) -> list[Contender]:
    """Every way to rotate queries and keys once, and what copying them costs."""
    q, k = cell.query_key()
    out, own = ([torch.empty_like(x) for x in (q, k)] for _ in range(2))
    spectrum, inv_freq = geometric(HEAD_DIM, BASE), geometric(HEAD_DIM, BASE).inv_freq
    cos, sin = cos_sin(cell.positions, spectrum)
    pos = Positions(cell.positions)
    same = oracle.same((q, k))

    def fill() -> None:
        for mine, x in zip(own, (q, k), strict=True):
            mine.copy_(x)

    def poison() -> None:
        for to in out:
            to.fill_(torch.nan)

    found = [
        Contender("copy_", lambda: [to.copy_(x) for to, x in zip(out, (q, k), strict=True)], same, prepare=poison),
        Contender("clone", lambda: (q.clone(), k.clone()), same),
        Contender("mul_", lambda: [x.mul_(1.0) for x in own], same, prepare=fill),
    ]
    for layout in cell.layouts:
        wanted = oracle.turned((q, k), inv_freq, layout)
        rope = RoPE(HEAD_DIM, base=BASE, layout=layout)
        rope.query_key(q[:, :, :1], k[:, :, :1], [0])
        made = partial(Contender, wanted=wanted, layout=layout, roundings=2)
        found += [
            made("new", partial(rotate_pair, q, k, cos, sin, layout=layout)),
            made("query_key", partial(rope.query_key, q, k, pos)),
            made("in place", partial(rotate_pair_, own[0], own[1], cos, sin, layout=layout), prepare=fill),
            made("out=", partial(_into, (q, k), out, cos, sin, layout), prepare=poison),
        ]
        if cell.device != "cpu":
            found.append(made("eager", partial(rotate_pair, q, k, cos, sin, layout=layout, impl="eager")))
    return found + others(cell, q, k, lambda turn: partial(turn, q, k), inverse=False)


def _into(xs: Tensors, out: list[Tensor], cos: Tensor, sin: Tensor, layout: Layout) -> list[Tensor]:
    return [rotate(x, cos, sin, layout=layout, out=to) for x, to in zip(xs, out, strict=True)]


def trained(cell: Cell) -> list[Contender]:
    """Forward and backward; the results are the gradients, which are the upstream ones turned back."""
    q, k = (x.requires_grad_() for x in cell.query_key())
    upstream = cell.draw(q.shape, k.shape)
    out = [torch.empty_like(x) for x in upstream]
    spectrum = geometric(HEAD_DIM, BASE)
    cos, sin = cos_sin(cell.positions, spectrum)
    pos = Positions(cell.positions)

    def both(turn: Callable[[Tensor, Tensor], Tensors]) -> Callable[[], Tensors]:
        return lambda: torch.autograd.grad(turn(q, k), (q, k), upstream)  # type: ignore[return-value]

    def copy() -> list[Tensor]:
        for to, x in zip(out, (q, k), strict=True):
            to.copy_(x.detach())
        return [to.copy_(x) for to, x in zip(out, upstream, strict=True)]

    found = [Contender("copy_", copy, oracle.same(upstream))]
    for layout in cell.layouts:
        wanted = oracle.turned(upstream, spectrum.inv_freq, layout, inverse=True)
        rope = RoPE(HEAD_DIM, base=BASE, layout=layout)
        made = partial(Contender, wanted=wanted, layout=layout, roundings=2)
        found += [
            made("new", both(lambda q, k, layout=layout: rotate_pair(q, k, cos, sin, layout=layout))),  # type: ignore[misc]
            made("query_key", both(lambda q, k, rope=rope: rope.query_key(q, k, pos))),  # type: ignore[misc]
        ]
    return found + others(cell, upstream[0], upstream[1], both, inverse=True)


def others(
    cell: Cell,
    q: Tensor,
    k: Tensor,
    wrapped: Callable[[Callable[[Tensor, Tensor], Tensors]], Callable[[], Tensors]],
    *,
    inverse: bool,
) -> list[Contender]:
    """The peers asked for.

    Args:
        cell: what is measured.
        q: of which the results are the rotation.
        k: likewise.
        wrapped: makes the measured call of a function of queries and keys.
        inverse: whether the results are turned back.
    """
    length, dtype, training = cell.length, cell.torch_dtype, inverse
    inv_freq = geometric(HEAD_DIM, BASE).inv_freq
    cos, sin = cos_sin(cell.positions, geometric(HEAD_DIM, BASE))
    wide = doubled(cos, sin, dtype)
    half = partial(oracle.turned, (q, k), inv_freq, "half", inverse=inverse)
    neighbours = partial(oracle.turned, (q, k), inv_freq, "interleaved", inverse=inverse)
    asked = cell.peers if not training or length <= LONGEST_FOR_ALL else tuple(p for p in cell.peers if p == "hf")
    found = []
    for peer in asked:
        if peer == "hf":
            theirs = peers.hf()
            found.append(Contender(peer, wrapped(lambda q, k, f=theirs: f(q, k, *wide)), half(), roundings=3))  # type: ignore[misc]
        elif peer == "hf-compiled":
            theirs = peers.hf_compiled(cell.threads, dtype, training)
            call = wrapped(lambda q, k, f=theirs: f(q, k, *wide))  # type: ignore[misc]
            found.append(Contender(peer, call, half(), roundings=3, prepare=call))  # compiles
        elif peer == "rotary-embedding-torch":
            one = peers.rotary_embedding_torch(HEAD_DIM, length, BASE, cell.device)
            drift = length * torch.finfo(torch.float32).eps  # radians: its angles are float32
            call = wrapped(lambda q, k, f=one: (f(q), f(k)))  # type: ignore[misc]
            found.append(Contender(peer, call, neighbours(), roundings=3, drift=drift))
        elif peer == "liger":
            theirs = peers.liger()
            call = wrapped(lambda q, k, f=theirs: f(q, k, *wide))  # type: ignore[misc]
            found.append(Contender(peer, call, half(), roundings=3))
        elif peer == "torchtune":
            call = wrapped(lambda q, k: (peers.torchtune(q, cos, sin), peers.torchtune(k, cos, sin)))
            found.append(Contender(peer, call, neighbours(), roundings=2))
        elif peer == "complex":
            unit = torch.complex(cos, sin)
            call = wrapped(lambda q, k, u=unit: (peers.by_complex(q, u), peers.by_complex(k, u)))  # type: ignore[misc]
            found.append(Contender(peer, call, neighbours(), roundings=2))
    return found


def doubled(cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensors:
    """Tables as transformers has them: every column twice, a leading batch axis, the dtype of the activations."""
    return torch.cat((cos, cos), -1)[None].to(dtype), torch.cat((sin, sin), -1)[None].to(dtype)
