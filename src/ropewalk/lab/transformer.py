"""The model that is trained: a pre-norm Transformer, read from top to bottom, in which only the encoding changes.

    decoder           tokens → causal blocks → next token
    encoder           tokens → blocks that see everything → hidden tokens, or one class for the whole text
    encoder–decoder   source → encoder;  target → causal blocks that also look at the encoder's output → next token

Shapes: B samples, S tokens, D channels, H heads of D/H channels.

**The embeddings.** Token embeddings are drawn with standard deviation 1/√D and multiplied by √D, as in Vaswani et al.
(1706.03762) §3.4, so that each has about the size of a vector of sinusoids, 1/√2 a channel. The proportion of the two
decides how well sinusoids do. `Sinusoidal` multiplies by itself; for all other encodings the model does it, so that
every encoding starts from the same embeddings. A learned table is drawn as its class says. The output projection is the
token table again (the same section).

**One encoding for all layers, or one each.** What has parameters at the scores or values is made anew for each layer;
T5 shares one table, as its paper does. Cross-attention has no encoding.

Otherwise plain: LayerNorm without bias, GELU, no dropout; softmax(q·k/√(D/H)) for all encodings, T5 too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from ropewalk.attention import attend
from ropewalk.encodings import build
from ropewalk.lab.goals import Form
from ropewalk.positions import Positions
from ropewalk.protocol import NoPE, PositionalEncoding

SHARED_BY_LAYERS = ("t5",)
ROWS = 128

Watch = Callable[[Tensor, Tensor, PositionalEncoding, Positions, bool], None]
"""Is shown queries and keys before they are encoded, the encoding, the positions, and whether it is causal."""


@dataclass(frozen=True)
class Shape:
    """What a model is made from.

    Args:
        vocabulary: how many different tokens.
        form: decoder, encoder, or both.
        encoding: its name, as in `ropewalk list`.
        options: of the encoding.
        dim: channels of the embeddings.
        heads: of attention.
        layers: of the decoder, of the encoder, or of each.
        hidden: channels within the feed-forward layers; None is 4·dim.
        length: the longest text in training: what encodings with a table are made for.
        classes: of whole texts; None for tokens.
    """

    vocabulary: int
    form: Form = "decoder"
    encoding: str = "rope"
    options: dict[str, Any] = field(default_factory=dict)
    dim: int = 128
    heads: int = 4
    layers: int = 4
    hidden: int | None = None
    length: int = 256
    classes: int | None = None

    def make_encoding(self, *, causal: bool) -> PositionalEncoding:
        """The encoding for these sizes, one-sided for a decoder where it has that choice.

        Raises:
            ValueError: an unknown name or option, or sizes that do not go together.
        """
        sizes = {"dim": self.dim, "heads": self.heads, "head_dim": self.dim // self.heads}
        options = dict(self.options)
        made = build(self.encoding, **sizes, **options)
        asked = made.parameters_of_constructor()
        if "bidirectional" in asked:
            options.setdefault("bidirectional", not causal)
        if made.max_length is not None and not {"length", "clip"} & set(options):
            options["length"] = self.length
        return build(self.encoding, **sizes, **options)


class Attention(nn.Module):
    """Self-attention under an encoding, or, given a memory, attention to that without one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query_key_value = nn.Linear(shape.dim, 3 * shape.dim, bias=False)
        self.out = nn.Linear(shape.dim, shape.dim, bias=False)
        self.watch: Watch | None = None

    def forward(self, x: Tensor, encoding: PositionalEncoding, positions: Positions, causal: bool) -> Tensor:
        """`(B, S, D)` to the same."""
        q, k, v = self._split(self.query_key_value(x), 3)
        if self.watch is not None:
            self.watch(q, k, encoding, positions, causal)
        # a short text in two blocks of rows skips some of the half that a causal mask hides; it changes no result
        return self._join(attend(q, k, v, encoding, positions, causal=causal, block=ROWS if causal else None))

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Into heads: `parts` times `(B, H, S, D/H)`."""
        return x.view(*x.shape[:2], parts, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()

    def _join(self, x: Tensor) -> Tensor:
        joined: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return joined


class CrossAttention(Attention):
    """From the decoder to what the encoder made of the source."""

    def forward(self, x: Tensor, memory: Tensor, positions: Positions, at: Positions) -> Tensor:  # type: ignore[override]
        """`(B, S, D)` to the same; `memory` is `(B, any, D)`."""
        weight, dim = self.query_key_value.weight, x.shape[-1]
        (q,) = self._split(linear(x, weight[:dim]), 1)
        k, v = self._split(linear(memory, weight[dim:]), 2)
        return self._join(attend(q, k, v, NoPE(), positions, key_positions=at, causal=False))


class Block(nn.Module):
    """x + attention(norm x), then + feed-forward(norm x); between them, where there is a memory, + cross-attention."""

    def __init__(self, shape: Shape, *, causal: bool, cross: bool, encoding: PositionalEncoding | None) -> None:
        super().__init__()
        self.causal, self.encoding = causal, encoding
        self.norm = nn.LayerNorm(shape.dim, bias=False)
        self.attention = Attention(shape)
        self.cross_norm = nn.LayerNorm(shape.dim, bias=False) if cross else None
        self.cross = CrossAttention(shape) if cross else None
        hidden = 4 * shape.dim if shape.hidden is None else shape.hidden
        self.wide_norm = nn.LayerNorm(shape.dim, bias=False)
        self.widen = nn.Linear(shape.dim, hidden, bias=False)
        self.narrow = nn.Linear(hidden, shape.dim, bias=False)

    def forward(
        self,
        x: Tensor,
        shared: PositionalEncoding,
        positions: Positions,
        memory: Tensor | None = None,
        at: Positions | None = None,
    ) -> Tensor:
        """`(B, S, D)` to the same."""
        encoding = shared if self.encoding is None else self.encoding
        x = x + self.attention(self.norm(x), encoding, positions, self.causal)
        if self.cross is not None and self.cross_norm is not None:
            x = x + self.cross(self.cross_norm(x), memory, positions, at)
        narrowed: Tensor = self.narrow(gelu(self.widen(self.wide_norm(x)), approximate="tanh"))
        return x + narrowed


class Stack(nn.Module):
    """Embeddings that know their positions, through all blocks: one encoder or one decoder."""

    def __init__(self, shape: Shape, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.scale = math.sqrt(shape.dim)
        self.encoding = shape.make_encoding(causal=causal)
        own = bool({"score", "value"} & set(self.encoding.places())) and any(True for _ in self.encoding.parameters())
        own = own and shape.encoding not in SHARED_BY_LAYERS
        self.blocks = nn.ModuleList(
            Block(shape, causal=causal, cross=cross, encoding=shape.make_encoding(causal=causal) if own else None)
            for _ in range(shape.layers)
        )
        if own:
            self.encoding = NoPE()  # what acts at scores or values does nothing to the embeddings
        self.norm = nn.LayerNorm(shape.dim, bias=False)

    def forward(
        self, x: Tensor, positions: Positions, memory: Tensor | None = None, at: Positions | None = None
    ) -> Tensor:
        """Token embeddings `(B, S, D)`, of unit size, to what the last block makes of them, normalised."""
        scaled = hasattr(self.encoding, "embedding_scale")  # then it multiplies by itself
        x = self.encoding.embed(x if scaled else x * self.scale, positions)
        for block in self.blocks:
            x = block(x, self.encoding, positions, memory, at)
        normed: Tensor = self.norm(x)
        return normed


class Transformer(nn.Module):
    """Tokens in, logits out.

    >>> model = Transformer(Shape(vocabulary=11, dim=8, heads=2, layers=1, encoding="alibi"))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 11])

    Args:
        shape: sizes, form and encoding.
        seed: of the weights. Those outside the encoding are the same for every encoding.

    Raises:
        ValueError: a width that heads do not divide, or what the encoding refuses.
    """

    def __init__(self, shape: Shape, *, seed: int = 0) -> None:
        super().__init__()
        if shape.dim % shape.heads:
            raise ValueError(f"{shape.heads} heads do not share {shape.dim} channels evenly")
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.dim)
        self.encoder = Stack(shape, causal=False) if shape.form != "decoder" else None
        both = shape.form == "encoder-decoder"
        self.decoder = Stack(shape, causal=True, cross=both) if shape.form != "encoder" else None
        self.to_class = None if shape.classes is None else nn.Linear(shape.dim, shape.classes, bias=False)
        self.reset_parameters(seed)

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        """Draw all weights: a product of unit vectors by a matrix has unit size; what is added to the stream less."""
        random = torch.Generator().manual_seed(seed)
        additions = sum(3 if b.cross is not None else 2 for b in self.modules() if isinstance(b, Block))
        for name, module in self.named_modules():
            if isinstance(module, PositionalEncoding) or ".encoding." in f".{name}.":
                continue
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0, self.shape.dim**-0.5, generator=random)
            elif isinstance(module, nn.Linear):
                adds = name.endswith((".out", ".narrow"))
                std = (module.in_features * (additions if adds else 1)) ** -0.5
                module.weight.normal_(0, std, generator=random)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            for module in self.modules():
                draw = getattr(module, "reset_parameters", None)
                if isinstance(module, PositionalEncoding) and callable(draw):
                    draw()

    def forward(self, tokens: Tensor, source: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        """Logits `(B, S, vocabulary)`, or `(B, classes)`.

        Args:
            tokens: `(B, S)`; for an encoder–decoder those of the target.
            source: `(B, any)`, for an encoder–decoder.
            at: booleans `(B, S)`: logits of these tokens only, `(how many, vocabulary)`.
        """
        positions = Positions.arange(tokens.shape[1], device=tokens.device)
        if self.decoder is None:
            assert self.encoder is not None
            x = self.encoder(self.tokens(tokens), positions)
        elif self.encoder is None:
            x = self.decoder(self.tokens(tokens), positions)
        else:
            assert source is not None, "an encoder–decoder reads a source"
            there = Positions.arange(source.shape[1], device=source.device)
            memory = self.encoder(self.tokens(source), there)
            x = self.decoder(self.tokens(tokens), positions, memory, there)
        if self.to_class is not None:
            logits: Tensor = self.to_class(x.mean(1))
            return logits
        x = x if at is None else x[at]
        return linear(x, self.tokens.weight)
