"""The one idea: position acts in four places, and an encoding fills in the one or two where it acts.

    x' = E(x, pos)                       1  embedding     sinusoidal, learned
    q' = Q(q, i)      k' = K(k, j)       2  query, key    RoPE, xPos
    S  = mask(scale · q'k'ᵀ) + B(…)      3  score         relative bias, T5, ALiBi, KERPLE, FIRE, Shaw, CoPE
    O  = softmax(S) v + V(weights, i, j) 4  value         Shaw

[`PositionalEncoding`][] has a hook for each place. None of them does anything, so the base class is itself an encoding:
**NoPE**, attention that knows no order. `ropewalk.attend` calls the hooks and knows no encoding by name.
"""

from __future__ import annotations

import copy
import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ropewalk.positions import Positions, PositionsLike

if TYPE_CHECKING:
    from typing_extensions import Self

PLACES: dict[str, tuple[str, ...]] = {
    "embedding": ("embed",),
    "query/key": ("query", "key"),
    "score": ("bias", "score"),
    "value": ("value",),
}
"""The four places, in the order in which they act, and the hooks that belong to each."""


@dataclass(frozen=True)
class Paper:
    """Where an encoding was published: what a card prints and a citation needs."""

    key: str
    title: str
    authors: tuple[str, ...]
    year: int
    venue: str
    arxiv: str | None = None
    where: str = ""
    """Section or equation that defines the encoding."""


class PositionalEncoding(nn.Module):
    """How position enters attention. Every hook is a no-op, so this class is itself **NoPE**: no positional encoding.

    Without one, self-attention is permutation-equivariant: shuffle the tokens and the outputs are the same, shuffled.
    Use it as the baseline of a comparison. It is not "no information": a *causal* decoder can count, since its mask
    lets token n see n tokens (Haviv et al. 2022; Kazemnejad et al. 2023).

    A subclass overrides the hooks of the place where it acts and keeps these rules, on which caches, packing and
    sharding rest: a key's transform depends on that key's own position alone; hooks are given positions, never indices
    or lengths; `bias` is given the numbers of heads, and a hook that needs them otherwise asks `head_numbers`; `bias`
    holds what does not depend on content, `score` what does, never the same term in both.

    Shapes: `x` is `(B, S, dim)` or `(S, dim)`; `q` and `k` are `(B, heads, S, head_dim)`, or fewer leading axes.
    `pos` is [`Positions`][ropewalk.Positions] or an int tensor of shape `(S,)` or `(B, S)`.

    >>> import torch
    >>> nope = PositionalEncoding()
    >>> nope.places()
    ()
    >>> q = torch.ones(1, 2, 3, 4)
    >>> nope.query(q, torch.arange(3)) is q
    True
    """

    name: ClassVar[str] = "nope"
    """What the registry, the command line and the JSON call it; the name of its file."""
    label: ClassVar[str] = "NoPE"
    """How tables and plots print it."""
    idea: ClassVar[dict[str, str]] = {
        "en": "No encoding at all: attention sees a bag of tokens.",
        "ja": "位置符号化なし。注意機構にはトークンの袋にしか見えない。",
    }
    formula: ClassVar[str] = "S = scale · q kᵀ"
    paper: ClassVar[Paper] = Paper(
        key="kazemnejad2023nope",
        title="The Impact of Positional Encoding on Length Generalization in Transformers",
        authors=(
            "Amirhossein Kazemnejad",
            "Inkit Padhi",
            "Karthikeyan Natesan Ramamurthy",
            "Payel Das",
            "Siva Reddy",
        ),
        year=2023,
        venue="Advances in Neural Information Processing Systems",
        arxiv="2305.19466",
    )

    shift_invariant: bool = True
    """Claim: adding the same number to every position changes no output."""
    distance_only: bool = True
    """Claim: what is added to the score depends on the head and on j - i, not on i, j or the content."""
    causal_only: bool = False
    """Claim: defined only where a key never follows its query; `attend(causal=False)` refuses it."""
    softmax_multiplier: float = 1.0
    """What the softmax scale is multiplied by, unless the caller gives a scale (DeepSeek's YaRN)."""
    max_length: int | None = None
    """Claim: positions 0 … max_length - 1 work, one more is refused. None: no limit."""
    heads: int | None = None
    """Claim: how many query heads it was made for; `attend` refuses another number. None: any number."""
    first_head: int = 0
    """The number of the first of those heads: above 0 for what `of_heads` gives a rank that holds later ones."""

    def embed(self, x: Tensor, pos: PositionsLike) -> Tensor:
        """Place 1: token embeddings `(…, S, dim)` to embeddings that know their positions, same shape and dtype."""
        return x

    def query(self, q: Tensor, pos: PositionsLike) -> Tensor:
        """Place 2: queries `(…, S, head_dim)` at their positions, same shape and dtype."""
        return q

    def key(self, k: Tensor, pos: PositionsLike) -> Tensor:
        """Place 2: keys `(…, S, head_dim)`. Each depends on its own position alone, so the result may be cached."""
        return k

    def bias(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor | None:
        """Place 3, free of content: what is added to the score of head `h`, query position `i`, key position `j`.

        Elementwise in three int64 tensors that broadcast against one another. On `(H, 1, 1)`, `(Q, 1)`, `(1, K)` the
        result is the dense matrix `(H, Q, K)`; on scalars it is one number. None means no such term. A head has the
        same number on every rank, wherever it lies in a tensor.
        """
        return None

    def score(self, s: Tensor, q: Tensor, k: Tensor, i: Tensor, j: Tensor, scale: float) -> Tensor:
        """Place 3: scores in, scores out; by default adds `bias`.

        Args:
            s: `(B, H, Q, K)`, scaled and already masked: -inf where a query may not look.
            q: `(B, H, Q, head_dim)`, after `query`.
            k: `(B, H, K, head_dim)`, after `key`.
            i: query positions, `(Q, 1)` or `(B, 1, Q, 1)`.
            j: key positions, `(1, K)` or `(B, 1, 1, K)`.
            scale: what the product q·k was multiplied by; a term inside the scale multiplies itself by it.
        """
        b = self.bias(self.head_numbers(s.shape[-3], s.device)[:, None, None], i, j)
        return s if b is None else s + b.to(s.dtype)

    def value(self, w: Tensor, i: Tensor, j: Tensor) -> Tensor | None:
        """Place 4: from the weights `(B, H, Q, K)`, what is added to `w @ v`, `(B, H, Q, head_dim)`; or None."""
        return None

    def of_heads(self, first: int, count: int) -> Self:
        """This encoding for `count` of its query heads from number `first` on: what a rank holds in tensor parallelism.

        It shares all parameters with the whole, whichever of the two is trained, moved or loaded, and has the same
        state dict. Only its own heads' share of them gets gradients, so gradients are to be summed over the ranks.

        >>> from ropewalk import ALiBi
        >>> later = ALiBi(heads=8).of_heads(4, 4)
        >>> later
        ALiBi(heads=4, bidirectional=True, first_head=4)
        >>> later.bias(later.head_numbers(4), torch.tensor(1), torch.tensor(0))
        tensor([-0.0312, -0.0156, -0.0078, -0.0039])

        Raises:
            ValueError: no whole numbers, or heads that it does not have.
        """
        whole = "" if self.heads is None else f" of its {self.heads} heads"
        expect(
            is_int(first)
            and is_int(count)
            and first >= 0
            and count > 0
            and (self.heads is None or first + count <= self.heads),
            f"{self.label} has no {count!r} heads from number {first!r} on{whole}",
        )
        part = copy.copy(self)  # parameters and modules lie in dicts, which are not copied
        part.first_head = self.first_head + first
        part.heads = None if self.heads is None else count
        return part

    def head_numbers(self, count: int, device: torch.device | str | None = None) -> Tensor:
        """The numbers of `count` query heads that lie side by side, as `bias` takes them: int64, `(count,)`."""
        return torch.arange(self.first_head, self.first_head + count, device=device)

    @classmethod
    def places(cls) -> tuple[str, ...]:
        """Where this encoding acts, read off the hooks it overrides."""
        return tuple(place for place, hooks in PLACES.items() if any(_overrides(cls, hook) for hook in hooks))

    def query_key(self, q: Tensor, k: Tensor, pos: PositionsLike) -> tuple[Tensor, Tensor]:
        """`query` and `key` of tokens that stand at the same positions."""
        pos = Positions.of(pos)
        return self.query(q, pos), self.key(k, pos)

    @classmethod
    def parameters_of_constructor(cls) -> dict[str, inspect.Parameter]:
        """Names, kinds and defaults of the constructor's arguments: what `build`, cards and the command line offer."""
        return {
            n: p
            for n, p in inspect.signature(cls).parameters.items()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }

    def extra_repr(self) -> str:
        """Constructor arguments with their values; each is kept as an attribute of the same name."""
        options = {n: getattr(self, n, None) for n in self.parameters_of_constructor()}
        if self.first_head:
            options["first_head"] = self.first_head
        return ", ".join(f"{n}={v!r}" for n, v in options.items() if not isinstance(v, nn.Module))


NoPE = PositionalEncoding
"""The base class, under the name of what it does: nothing."""


def _overrides(cls: type[PositionalEncoding], hook: str) -> bool:
    return getattr(cls, hook) is not getattr(PositionalEncoding, hook)


class Compose(PositionalEncoding):
    """Several encodings at once, each hook applied in the order given: a learned table and ALiBi, say.

    Its claims are those that all parts share; its `max_length` is the shortest. An encoding that reads the content of
    queries (Shaw, CoPE) reads what the others' `query` made of them, in whatever order they are given: beside a
    rotation its term meets rotated queries, so the sum is not `shift_invariant`, although each part is.

    >>> from ropewalk import ALiBi, Sinusoidal
    >>> both = Compose(Sinusoidal(dim=8), ALiBi(heads=2))
    >>> both.places()
    ('embedding', 'score')
    >>> both.shift_invariant
    False

    Raises:
        ValueError: without any part, with one that is no encoding, or with parts made for different numbers of heads.
    """

    name: ClassVar[str] = "compose"
    label: ClassVar[str] = "Compose"

    def __init__(self, *encodings: PositionalEncoding) -> None:
        super().__init__()
        if not encodings:
            raise ValueError(
                "Compose needs at least one encoding, e.g. Compose(Learned(dim=64, length=512), ALiBi(heads=8))"
            )
        for e in encodings:
            if not isinstance(e, PositionalEncoding):
                hint = "; make one first, e.g. ALiBi(heads=8)" if isinstance(e, type) else ""
                raise ValueError(f"Compose takes encodings, got {e!r}{hint}")
        self.parts = nn.ModuleList(encodings)
        leaves = [e for e in self.modules() if isinstance(e, PositionalEncoding) and not isinstance(e, Compose)]
        turned_and_read = any(_overrides(type(e), "query") for e in leaves) and any(
            _overrides(type(e), "score") for e in leaves
        )
        self.shift_invariant = all(e.shift_invariant for e in encodings) and not turned_and_read
        self.distance_only = all(e.distance_only for e in encodings)
        self.causal_only = any(e.causal_only for e in encodings)
        self.softmax_multiplier = math.prod(e.softmax_multiplier for e in encodings)
        made_for = {e.heads for e in encodings} - {None}
        if len(made_for) > 1:
            raise ValueError(f"the parts were made for different numbers of heads: {sorted(map(str, made_for))}")
        self.heads = made_for.pop() if made_for else None
        self.max_length = min((e.max_length for e in encodings if e.max_length is not None), default=None)

    def _parts(self) -> list[PositionalEncoding]:
        return list(self.parts)  # type: ignore[arg-type]  # ModuleList forgets what it was given

    def embed(self, x: Tensor, pos: PositionsLike) -> Tensor:
        """Each part's, in order."""
        pos = Positions.of(pos)
        for part in self._parts():
            x = part.embed(x, pos)
        return x

    def query(self, q: Tensor, pos: PositionsLike) -> Tensor:
        """Each part's, in order."""
        pos = Positions.of(pos)
        for part in self._parts():
            q = part.query(q, pos)
        return q

    def key(self, k: Tensor, pos: PositionsLike) -> Tensor:
        """Each part's, in order."""
        pos = Positions.of(pos)
        for part in self._parts():
            k = part.key(k, pos)
        return k

    def bias(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor | None:
        """The sum of the parts' biases."""
        terms = [b for b in (part.bias(h, i, j) for part in self._parts()) if b is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def score(self, s: Tensor, q: Tensor, k: Tensor, i: Tensor, j: Tensor, scale: float) -> Tensor:
        """Each part's, in order."""
        for part in self._parts():
            s = part.score(s, q, k, i, j, scale)
        return s

    def value(self, w: Tensor, i: Tensor, j: Tensor) -> Tensor | None:
        """The sum of the parts' value terms."""
        terms = [t for t in (part.value(w, i, j) for part in self._parts()) if t is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def of_heads(self, first: int, count: int) -> Self:
        """The same heads of each part."""
        some = super().of_heads(first, count)
        some._modules = {"parts": nn.ModuleList(part.of_heads(first, count) for part in self._parts())}
        return some

    def places(self) -> tuple[str, ...]:  # type: ignore[override]  # here it is the parts, not the class, that decide
        """Where any of the parts acts."""
        own = {place for part in self._parts() for place in part.places()}
        return tuple(place for place in PLACES if place in own)

    def extra_repr(self) -> str:
        """Nothing: the parts print themselves."""
        return ""


def check_tokens(x: Tensor, pos: Positions, what: str) -> None:
    """Refuse activations whose token axis (the last but one) does not match the positions.

    Raises:
        ValueError: naming both shapes, and the usual cause.
    """
    if pos.axes != 1:
        raise ValueError(f"this encoding takes one position a token, these positions have {pos.axes} axes")
    shape, length = x.shape, pos.ids.shape[-1]  # not len(pos), which would be a constant in a graph
    if len(shape) < 2 or shape[-2] != length:
        raise ValueError(
            f"{what} has shape {tuple(x.shape)}, token axis last but one, but there are {length} positions; "
            "is it (batch, tokens, heads, head_dim)? Then transpose axes 1 and 2 first"
        )
    if pos.ids.dim() > 1 and (len(shape) < 3 or pos.shape[0] not in (1, shape[0])):
        batch = f"batch size {x.shape[0]}" if x.dim() > 2 else "no batch axis"
        raise ValueError(f"{what} has {batch}, the positions have {pos.shape[0]} rows")


def expect(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds: one line for each rule of a constructor."""
    if not condition:
        raise ValueError(message)


def is_int(value: Any) -> bool:
    """True for a whole number of type int (a bool is not one)."""
    return isinstance(value, int) and not isinstance(value, bool)
