"""Try a rotation function on random numbers, and tell by its results which of the known semantics it has.

Names and source text prove nothing: families share the text of a function and differ in a helper that it calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor

from ropewalk.hf.semantics import Columns, Heads, NotServedError, Semantics, Signature, halves
from ropewalk.rotation import Layout, rotate

BATCH, HEADS, KEY_HEADS, TOKENS, PAIRS = 2, 4, 2, 5, 4
WIDTH = 2 * PAIRS
SLACK = 1e-4
"""Some functions compute in float32, where such numbers are good to 1e-6; another meaning is off by more than 0.1."""


@dataclass
class Trial:
    """Random activations and tables, and what a rotation makes of them."""

    function: Callable[..., Any]
    signature: Signature
    random: torch.Generator

    def draw(self, *shape: int) -> Tensor:
        """Normal numbers."""
        return torch.randn(*shape, generator=self.random, dtype=torch.float64)

    @property
    def picks_rows(self) -> bool:
        """Whether it has to be told positions."""
        return self.signature.roles.get("position_ids") in self.signature.required

    def call(
        self,
        q: Tensor,
        k: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        columns: Columns,
        *,
        with_values: bool = False,
        **more: Any,
    ) -> Any:
        """The function's result, whatever it raises let through."""
        roles = self.signature.roles
        given: dict[str, Any] = {roles["q"]: q, **more}
        if "k" in roles:
            given[roles["k"]] = k
        if "v" in roles and (with_values or roles["v"] in self.signature.required):
            given[roles["v"]] = k
        if self.picks_rows:  # tables of rows in any order, and where to find those of the tokens
            order = torch.randperm(cos.shape[:-1].numel(), generator=self.random)
            given[roles["position_ids"]] = order.reshape(cos.shape[:-1])
            cos, sin = (torch.empty_like(t.flatten(0, -2)).index_copy_(0, order, t.flatten(0, -2)) for t in (cos, sin))
        if "table" in roles:
            given[roles["table"]] = _joined(cos, sin, columns)
        else:
            given[roles["cos"]], given[roles["sin"]] = _spread(cos, columns), _spread(sin, columns)
        return self.function(**given)


def probe(function: Callable[..., Any]) -> Semantics:
    """Which semantics a rotation function has: it is called with random numbers, and judged by its results.

    Args:
        function: takes queries, or queries and keys (and values), and cos and sin (or one table of both), under the
            names that transformers uses, such as `q`, `k`, `cos`, `sin`, `freqs_cis`.

    >>> def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    ...     cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    ...     swap = lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    ...     return q * cos + swap(q) * sin, k * cos + swap(k) * sin
    >>> print(probe(apply_rotary_pos_emb))
    interleaved; tables repeated

    Raises:
        NotServedError: none that ropewalk serves.
    """
    signature = Signature.of(function)
    if signature.unknown:
        raise NotServedError(f"it wants {', '.join(signature.unknown)}, which is not known here")
    trial = Trial(function, signature, torch.Generator().manual_seed(20210420))
    with torch.no_grad(), torch.device("cpu"):
        found = [s for s in _candidates(signature) if _agrees(trial, s)]
        if not found:
            raise NotServedError("on random numbers it computes no rotation that is known here")
        # Where tables of several shapes are taken, all of them mean the same.
        return _details(trial, found[0])


def _candidates(signature: Signature) -> Iterator[Semantics]:
    columns: tuple[Columns, ...] = ("doubled", "repeated", "single")
    if "table" in signature.roles:
        columns = ("complex", "stacked")
    heads: tuple[Heads, ...] = ("given",) if "unsqueeze_dim" in signature.roles else ("last", "second", "none")
    for form, where, layout, emits_half, inverse in itertools.product(
        columns, heads, get_args(Layout), (False, True), (False, True)
    ):
        if not (emits_half and layout == "half"):
            yield Semantics(layout, form, where, emits_half=emits_half, inverse=inverse)


def _agrees(trial: Trial, s: Semantics) -> bool:
    """Whether the function does on 4-D activations what these semantics say."""
    shapes = [(1, 1)] if s.heads != "given" else [(1, 1), (2, 2)]
    for unsqueeze, _ in shapes:
        tokens_first = s.heads == "last" or (s.heads == "given" and unsqueeze == 2)
        cos, sin = trial.draw(BATCH, TOKENS, PAIRS), trial.draw(BATCH, TOKENS, PAIRS)
        if s.heads == "none":
            cos, sin = cos[:1, None], sin[:1, None]
        q, k = (_activations(trial, heads, WIDTH, tokens_first) for heads in (HEADS, KEY_HEADS))
        more = {trial.signature.roles["unsqueeze_dim"]: unsqueeze} if s.heads == "given" else {}
        if not _matches(trial, s, q, k, cos, sin, unsqueeze, **more):
            return False
    return True


def _activations(trial: Trial, heads: int, width: int, tokens_first: bool, tokens: int = TOKENS) -> Tensor:
    x = trial.draw(BATCH, heads, tokens, width)
    return x.transpose(1, 2).contiguous() if tokens_first else x


def _matches(
    trial: Trial, s: Semantics, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze: int = 1, **more: Any
) -> bool:
    try:
        got = trial.call(q.clone(), k.clone(), cos, sin, s.columns, **more)
    except Exception:  # a shape that this function does not take
        return False
    single = "k" not in trial.signature.roles
    results = (got,) if single else got
    wanted = [expected(x, cos, sin, s, unsqueeze) for x in ((q,) if single else (q, k))]
    values = trial.signature.roles.get("v") in trial.signature.required
    if not isinstance(results, tuple) or len(results) != len(wanted) + values:
        return False
    return all(
        isinstance(r, Tensor) and r.shape == w.shape and r.dtype == w.dtype and torch.allclose(r, w, atol=SLACK)
        for r, w in zip(results, wanted, strict=False)
    )


def expected(x: Tensor, cos: Tensor, sin: Tensor, s: Semantics, unsqueeze: int = 1) -> Tensor:
    """What these semantics make of `x`, from tables with one column a pair."""
    seq_dim = -3 if s.heads == "last" or (s.heads == "given" and unsqueeze == 2) else -2
    rows = cos.shape[-2]
    skipped = x.shape[seq_dim] - rows if s.skips_prefix else 0
    prefix, rest = x.narrow(seq_dim, 0, skipped), x.narrow(seq_dim, skipped, x.shape[seq_dim] - skipped)
    if s.last_rows:
        cos, sin = cos[..., -x.shape[seq_dim] :, :], sin[..., -x.shape[seq_dim] :, :]
    turned = rotate(rest, cos, sin, layout=s.layout, seq_dim=seq_dim, place=s.place, inverse=s.inverse, impl="eager")
    if s.emits_half:
        turned = halves(turned)
    return torch.cat((prefix, turned), dim=seq_dim) if skipped else turned


def _details(trial: Trial, s: Semantics) -> Semantics:
    """What else the function does: with wider heads, more or fewer tokens, without keys, with values."""
    cos, sin = trial.draw(BATCH, TOKENS, PAIRS), trial.draw(BATCH, TOKENS, PAIRS)
    if s.heads == "none":
        cos, sin = cos[:1, None], sin[:1, None]
    tokens_first = s.heads == "last"
    wide = [_activations(trial, heads, WIDTH + 6, tokens_first) for heads in (HEADS, KEY_HEADS)]
    for place in ("leading", "trailing"):
        partial = replace(s, partial=True, place=place)
        if not s.emits_half and _matches(trial, partial, wide[0], wide[1], cos, sin):
            s = partial
            break
    q, k = (_activations(trial, heads, WIDTH, tokens_first) for heads in (HEADS, KEY_HEADS))
    if s.heads == "none":
        longer = [_activations(trial, heads, WIDTH, False, TOKENS + 3) for heads in (HEADS, KEY_HEADS)]
        skipping = replace(s, skips_prefix=True)
        s = skipping if _matches(trial, skipping, longer[0], longer[1], cos, sin) else s
    elif s.heads == "given" and "k" in trial.signature.roles:
        fewer = replace(s, last_rows=True)
        s = fewer if _matches(trial, fewer, q[:, :, 2:], k, cos, sin) else s
    if "position_ids" in trial.signature.roles and not trial.picks_rows:
        order = torch.arange(TOKENS - 1, -1, -1).expand(BATCH, -1)
        told: dict[str, Any] = {trial.signature.roles["position_ids"]: order}
        if not _matches(trial, s, q, k, cos, sin, **told):
            raise NotServedError("told position_ids it does something else, which is not known here")
    return replace(
        s,
        without_key=_without_key(trial, s, q, cos, sin),
        turns_values="v" in trial.signature.roles and _turns_values(trial, s, q, k, cos, sin),
        picks_rows=trial.picks_rows,
    )


def _turns_values(trial: Trial, s: Semantics, q: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> bool:
    got = trial.call(q.clone(), v.clone(), cos, sin, s.columns, with_values=True)
    if not isinstance(got, tuple) or len(got) != 3:
        return False
    if not torch.allclose(got[2], expected(v, cos, sin, s), atol=SLACK):
        raise NotServedError("it does something else to values than to keys")
    return True


def _without_key(trial: Trial, s: Semantics, q: Tensor, cos: Tensor, sin: Tensor) -> Any:
    if "k" not in trial.signature.roles:
        return ""
    try:
        got = trial.call(q.clone(), None, cos, sin, s.columns)
    except Exception:  # it wants both
        return ""
    wanted = expected(q, cos, sin, s)
    alone = isinstance(got, Tensor)
    turned = got if alone else got[0]
    if not (torch.allclose(turned, wanted, atol=SLACK) and (alone or got[1] is None)):
        raise NotServedError("without a key it does something else to the query")
    return "alone" if alone else "pair"


def _spread(t: Tensor, columns: Columns) -> Tensor:
    if columns == "doubled":
        return torch.cat((t, t), dim=-1)
    return t.repeat_interleave(2, dim=-1) if columns == "repeated" else t


def _joined(cos: Tensor, sin: Tensor, columns: Columns) -> Tensor:
    return torch.complex(cos, sin) if columns == "complex" else torch.cat((sin, cos), dim=-1)
