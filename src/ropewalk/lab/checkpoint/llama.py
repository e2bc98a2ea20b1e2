"""A Llama-shaped model, small enough to read: its positions come from a plan, its attention is `attend`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu

from ropewalk.attention import attend
from ropewalk.cache import KeyCache
from ropewalk.lab.checkpoint.shape import Shape
from ropewalk.lab.checkpoint.weights import Weights
from ropewalk.plans import RotaryPlan
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import PositionalEncoding


class Norm(nn.Module):
    """x / √(mean(x²) + ε) · weight, in float32, rounded before the weight is multiplied as transformers does."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)


class Attention(nn.Module):
    """Projections, norms of queries and keys if there are any, and `attend`."""

    def __init__(self, shape: Shape, biases: frozenset[str], normed: bool) -> None:
        super().__init__()
        self.head_dim, self.window = shape.head_dim, shape.window
        q, kv, width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.width
        self.q_proj = nn.Linear(width, q, bias="q_proj" in biases)
        self.k_proj = nn.Linear(width, kv, bias="k_proj" in biases)
        self.v_proj = nn.Linear(width, kv, bias="v_proj" in biases)
        self.o_proj = nn.Linear(q, width, bias="o_proj" in biases)
        if normed:
            self.q_norm: nn.Module = Norm(shape.head_dim, shape.epsilon)
            self.k_norm: nn.Module = Norm(shape.head_dim, shape.epsilon)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(self, x: Tensor, encoding: PositionalEncoding, pos: Positions, cache: KeyCache | None) -> Tensor:
        """`(B, S, width)`; with a cache, tokens see what it holds, and are added to it."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, heads, S, head_dim)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.q_norm(q), self.k_norm(k)
        if cache is None:
            out = attend(q, k, v, encoding, pos, window=self.window)
        else:
            cache.append(encoding.key(k, pos), v, pos, encoding=encoding)
            out = cache.attend(q, encoding, pos, window=self.window)
        made: Tensor = self.o_proj(out.transpose(1, 2).flatten(-2))
        return made


class Gated(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, shape: Shape, biases: frozenset[str]) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias="gate_proj" in biases)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias="up_proj" in biases)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias="down_proj" in biases)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        made: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return made


class Layer(nn.Module):
    """Attention and the gated layer, each after a norm and added to the stream."""

    def __init__(self, shape: Shape, biases: frozenset[str], normed: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.epsilon)
        self.self_attn = Attention(shape, biases, normed)
        self.post_attention_layernorm = Norm(shape.width, shape.epsilon)
        self.mlp = Gated(shape, biases)

    def forward(self, x: Tensor, encoding: PositionalEncoding, pos: Positions, cache: KeyCache | None) -> Tensor:
        """`(B, S, width)`."""
        x = x + self.self_attn(self.input_layernorm(x), encoding, pos, cache)
        made: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return made


class Llama(nn.Module):
    """A Llama-shaped model whose positions can be exchanged while its weights stay.

    Parameters have the names that transformers gives them, without the leading `model.`.

    Args:
        shape: sizes.
        plan: what each layer does about positions.
        at_length: the length of the whole text, for an extension that depends on it.
        biases: which projections have one.
        normed: whether queries and keys have norms of their own (Qwen 3).

    >>> from ropewalk.plans import LayerPlan
    >>> plan = RotaryPlan("llama", (LayerPlan("rope", "", 8, 8, layout="half", base=1e4),) * 2)
    >>> model = Llama(Shape(vocabulary=10, width=16, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=8,
    ...                     epsilon=1e-5), plan)
    >>> caches, ids = model.caches(), torch.arange(6)[None]
    >>> with torch.no_grad():
    ...     whole = model(ids)
    ...     parts = torch.cat([model(ids[:, :4], caches=caches), model(ids[:, 4:], caches=caches)], 1)
    >>> model.logits(whole).shape, torch.allclose(whole, parts, atol=1e-5)
    (torch.Size([1, 6, 10]), True)

    Raises:
        ValueError: a plan of another number of layers.
    """

    def __init__(
        self,
        shape: Shape,
        plan: RotaryPlan,
        *,
        at_length: int | None = None,
        biases: frozenset[str] = frozenset(),
        normed: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape, biases, normed) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.epsilon)
        self.lm_head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.encodings: tuple[PositionalEncoding, ...] = ()
        self.turn_by(plan, at_length=at_length)

    def turn_by(self, plan: RotaryPlan, *, at_length: int | None = None) -> None:
        """Go over to another plan. Caches that were filled before are of no use after.

        Args:
            plan: what each layer does about positions.
            at_length: the length of the whole text, for an extension that depends on it.

        Raises:
            ValueError: a plan of another number of layers.
        """
        if plan.counted and len(plan.layers) != self.shape.layers:
            raise ValueError(f"the model has {self.shape.layers} layers, the plan {len(plan.layers)}")
        alike = {layer: layer.build(at_length=at_length) for layer in set(plan.layers)}
        self.encodings = tuple(alike[plan.plan_of(i)] for i in range(self.shape.layers))

    def caches(self) -> list[KeyCache]:
        """Empty ones, one a layer."""
        return [KeyCache(encoding) for encoding in self.encodings]

    def forward(
        self, ids: Tensor, positions: PositionsLike | None = None, *, caches: Sequence[KeyCache] | None = None
    ) -> Tensor:
        """The stream after the last norm, `(B, S, width)`; `logits` makes scores of it.

        Args:
            ids: tokens `(B, S)`.
            positions: by default they count up: from 0, or from where the caches end.
            caches: one a layer, which tokens see and are added to.
        """
        pos = self._positions(ids, positions, caches)
        x = embedding(ids, self.embed_tokens.weight)
        for i, (layer, encoding) in enumerate(zip(self.layers, self.encodings, strict=True)):
            x = layer(x, encoding, pos, None if caches is None else caches[i])
        made: Tensor = self.norm(x)
        return made

    def logits(self, x: Tensor) -> Tensor:
        """`(…, width)` → `(…, vocabulary)`."""
        return linear(x, self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight)

    def _positions(self, ids: Tensor, positions: PositionsLike | None, caches: Sequence[KeyCache] | None) -> Positions:
        if positions is not None:
            return Positions.of(positions)
        if caches is not None and len(caches[0]):
            return caches[0].next_positions(ids.shape[1])
        return Positions.arange(ids.shape[1])


def load(shape: Shape, plan: RotaryPlan, weights: Weights, *, dtype: torch.dtype = torch.float32) -> Llama:
    """The model with its weights, each read, checked and cast before the next.

    Raises:
        ValueError: a weight that is missing, of another shape than the header says, or that nobody wants, by name.
    """
    _check_type(plan.model_type, weights)
    biases = frozenset(name.split(".")[-2] for name in weights.shapes if name.endswith("_proj.bias"))
    with torch.device("meta"):
        model = Llama(shape, plan, biases=biases, normed="model.layers.0.self_attn.q_norm.weight" in weights.shapes)
    wanted = {in_file(name): tuple(p.shape) for name, p in model.named_parameters()}
    unread = set(weights.shapes) - set(wanted) - ({"lm_head.weight"} if shape.tied else set())
    for name in sorted(unread):
        raise ValueError(f"there is a weight {name[:100]!r}, for which this model has no place")
    for name, size in wanted.items():
        if name not in weights.shapes:
            raise ValueError(f"the weight {name} is missing")
        if weights.shapes[name] != size:
            raise ValueError(f"{name} has the shape {weights.shapes[name]}, its header asks for {size}")
    state = {name: weights.tensor(in_file(name)).to(dtype).contiguous() for name, _ in model.named_parameters()}
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


_SIGNS = {"qwen2": "model.layers.0.self_attn.q_proj.bias", "qwen3": "model.layers.0.self_attn.q_norm.weight"}
"""A weight that every model of the type has."""


def _check_type(kind: str, weights: Weights) -> None:
    """Refuse weights that another type of model has: read with its layout they would be nonsense, and look whole."""
    sign = _SIGNS.get(kind)
    if sign is not None and sign not in weights.shapes:
        raise ValueError(f"it says that it is of type {kind}, but has no {sign}, which those have")
    if kind != "qwen3" and _SIGNS["qwen3"] in weights.shapes:
        raise ValueError(f"it says that it is of type {kind}, but has {_SIGNS['qwen3']}, which those have not")


def in_file(name: str) -> str:
    """What transformers' files call a parameter of ours."""
    return name if name.startswith("lm_head") else f"model.{name}"
