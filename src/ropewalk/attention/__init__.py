"""Where encodings meet attention: one function for all of them, which calls the hooks and knows no encoding by name.

[`attend`][] is the call. `reference` is how it is defined; the other files are faster ways to the same result, and
`choice` says which of them serves a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ropewalk.attention import ranks
from ropewalk.attention.call import checked
from ropewalk.attention.choice import PATHS, Explanation, Impl, decide
from ropewalk.attention.masks import Mask
from ropewalk.attention.reference import scores
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import PositionalEncoding

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Explanation", "attend", "explain", "scores"]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding,
    positions: PositionsLike,
    *,
    key_positions: PositionsLike | None = None,
    keys_encoded: bool = False,
    causal: bool = True,
    window: int | None = None,
    prefix: int | Tensor | None = None,
    scale: float | None = None,
    impl: Impl = "auto",
    block: int | None = None,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Attention with any encoding: softmax(mask(scale · q'k'ᵀ) + bias) v, plus the encoding's value term.

    Encodings of the embedding (sinusoidal, learned) act before the projections, through `encoding.embed`; here they
    change nothing. Arithmetic is float32 (float64 for float64), rounded once to the dtype of `q`; on a GPU the fused
    kernels multiply in the dtype of `q`, see `explain`. A query that may look at nothing gives zeros.

    Memory is linear in the number of tokens, in training too. A compiler that traces the call cannot look at positions:
    there this holds for `Positions.arange`, without a prefix, and for encodings that leave scores alone or add a bias
    of the distance. Gradients are of first order; `impl="reference"` has those of any order.

    Across ranks: give `group` where tokens are split and `encoding.of_heads(…)` where heads are, or distributed tensors
    (DTensor), `q`, `k` and `v` split alike by sample, head or token, with the positions of all their tokens; the result
    is then split as they are. Gradients of the encoding's parameters are this rank's share: sum them over the ranks.

    Args:
        q: `(B, heads, Q, head_dim)`, not yet encoded.
        k: `(B, kv_heads, K, head_dim)`; `heads` is a multiple of `kv_heads` (grouped queries).
        v: `(B, kv_heads, K, any)`.
        encoding: any [`PositionalEncoding`][ropewalk.PositionalEncoding].
        positions: of the queries, `(Q,)`, `(B, Q)` or `(axes, B, Q)`; of the keys too unless `key_positions` is given.
        key_positions: `(K,)` or `(B, K)`: what a cache holds, and the new tokens.
        keys_encoded: the keys have been through `encoding.key` already, as a cache keeps them.
        causal: a query sees the keys whose position is not after its own; on several axes, whose order in the sequence
            is not. Documents and padding are always kept apart.
        window: of those, only keys less than this many positions away, itself included (without `causal`, on both
            sides). Like all masks it goes by position, so a gap in a cache counts.
        prefix: keys at positions below this are seen by all queries, earlier ones too (prefix-LM); an int, or `(B,)`.
            It lifts `causal` and nothing else.
        scale: multiplies q·k; by default 1/√head_dim times the encoding's `softmax_multiplier`. (T5 was trained with
            1.)
        impl: `"auto"` chooses by encoding, positions and device, as `explain` tells. `"reference"` is how attention is
            defined here; `"sdpa"` and `"flex"` are PyTorch's fused attention and FlexAttention, `"strip"` is for biases
            of the distance, `"blocks"` for any encoding. One that cannot serve the call refuses it.
        block: how many query rows are worked on at once; changes the memory, not the result.
        group: of the ranks among which the tokens of a text are split: all other arguments are then of this rank's own
            tokens, in any share and order, and queries meet the keys of all ranks. Positions say who stands where;
            they are asked for once and remembered in `positions`. Every rank has to call, and to call backward.

    >>> import torch
    >>> from ropewalk import ALiBi
    >>> q = k = v = torch.ones(1, 8, 5, 16)
    >>> attend(q, k, v, ALiBi(heads=8), torch.arange(5)).shape
    torch.Size([1, 8, 5, 16])

    Raises:
        ValueError: shapes or positions that do not fit, `causal=False` or a prefix with an encoding defined for causal
            attention only, or an `impl` that cannot serve this.
    """
    if ranks.is_distributed(q):
        return ranks.on_mesh(
            attend,
            *(q, k, v, encoding, positions),
            key_positions=key_positions,
            keys_encoded=keys_encoded,
            causal=causal,
            window=window,
            prefix=prefix,
            scale=scale,
            impl=impl,
            block=block,
            group=group,
        )
    if group is not None:
        positions = Positions.of(positions)
        key_positions = positions if key_positions is None else key_positions  # so that no order of its own is made up
    call = checked(
        q,
        k,
        v,
        encoding,
        positions,
        key_positions=key_positions,
        keys_encoded=keys_encoded,
        mask=Mask(causal, window, prefix),
        scale=scale,
        block=block,
    )
    call = call if group is None else ranks.gathered(call, group)
    _, run = PATHS[decide(call, impl).impl]
    out = run(call.encoded())
    return out if group is None else ranks.tie(out, call)


def explain(
    encoding: PositionalEncoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: PositionsLike,
    *,
    key_positions: PositionsLike | None = None,
    keys_encoded: bool = False,
    causal: bool = True,
    window: int | None = None,
    prefix: int | Tensor | None = None,
    scale: float | None = None,
    impl: Impl = "auto",
    block: int | None = None,
) -> Explanation:
    """Which path `attend` would take with the same arguments, in what arithmetic, and what the others said.

    Nothing is computed, so `q`, `k` and `v` may be empty tensors of the right shape. For a call with a group, give one
    rank's `q` and `positions`, and as `k`, `v` and `key_positions` those of all ranks.

    >>> import torch
    >>> from ropewalk import FIRE
    >>> q = k = v = torch.empty(1, 8, 5, 16)
    >>> print(explain(FIRE(heads=8), q, k, v, torch.arange(5)))
    blocks: blocks of query rows, each over the keys it sees; the backward pass computes them again; arithmetic float32,
    result float32
      not sdpa: FIRE adds a bias to the scores, which scaled_dot_product_attention knows nothing of
      not strip: the bias of FIRE depends on more than the distance (distance_only is False)
      not flex: the bias of FIRE depends on more than the distance, and it is looked up by distance

    Raises:
        ValueError: as `attend`.
    """
    call = checked(
        q,
        k,
        v,
        encoding,
        positions,
        key_positions=key_positions,
        keys_encoded=keys_encoded,
        mask=Mask(causal, window, prefix),
        scale=scale,
        block=block,
    )
    return decide(call, impl)
