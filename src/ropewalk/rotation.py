"""Turn pairs of channels by given angles. Knows nothing of positions or frequencies.

Which two channels make a pair is the `layout`, always named and never guessed, since both look right and only one fits
the weights: `"half"` pairs x[i] with x[i + width/2] (GPT-NeoX, Llama in transformers), `"interleaved"` pairs neighbours
x[2i], x[2i+1] (RoFormer, GPT-J, Meta's Llama). One is a fixed permutation of the channels of the other.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling

Layout = Literal["half", "interleaved"]
Place = Literal["leading", "trailing"]
Impl = Literal["auto", "eager", "native"]


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    layout: Layout,
    seq_dim: int = -2,
    place: Place = "leading",
    inverse: bool = False,
    impl: Impl = "auto",
    out: Tensor | None = None,
) -> Tensor:
    """Rotate each pair (a, b) of `x` to (a·cos - b·sin, b·cos + a·sin). RoFormer (2104.09864), equation 34.

    The arithmetic is float32 (float64 for float64), the result has the dtype of `x`, and is rounded once. Queries and
    keys are rotated, values never. One operator reads and writes each byte once, forward and backward: in C++ on the
    CPU, in Triton on CUDA.

    Args:
        x: `(…, S, …, D)` of a floating dtype.
        cos: `(S, width/2)`, `(B, S, width/2)` with `B` the first axis of `x`, or as many axes as `x`, broadcasting
            against it except on the token axis. The rotated width is twice the last axis; channels beyond it pass
            unchanged. The operator wants float32 (float64 for float64 `x`); other dtypes take the slower eager form.
        sin: the same shape.
        layout: which channels pair up.
        seq_dim: the axis of `x` that counts tokens: -2 for `(B, heads, S, D)`, -3 for `(B, S, heads, D)`.
        place: whether the rotated channels lead or trail.
        inverse: turn back.
        impl: `"eager"` is PyTorch's own operations, on any device; `"native"` the operator, or a ValueError that says
            why it cannot serve; `"auto"` the operator where it can.
        out: where to write the result, of the shape and dtype of `x`; takes no part in gradients, so none may be
            wanted.

    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = torch.tensor([[1.0, 0.01]]).cos(), torch.tensor([[1.0, 0.01]]).sin()  # position 1, d = 4
    >>> rotate(x, cos, sin, layout="interleaved")
    tensor([[-1.1426,  1.9221,  2.9599,  4.0298]])
    >>> rotate(x, cos, sin, layout="half")
    tensor([[-1.9841,  1.9599,  2.4624,  4.0198]])

    Raises:
        ValueError: shapes that do not fit, an unknown layout, place or impl, a dtype that is not floating, an
            implementation that cannot serve; `out` while `x`, `cos` or `sin` learns.
    """
    if out is not None:
        if _learn(x, cos, sin, out):
            raise ValueError("out= takes no part in gradients, but x, cos, sin or out requires one: leave it out")
        turned = _native("rotate_out", (x,), cos, sin, layout, seq_dim, place, inverse, impl, out)
        return out if turned is not NotImplemented else out.copy_(_eager(x, cos, sin, layout, seq_dim, place, inverse))
    turned = None if is_compiling() else _short(False, x, None, cos, sin, layout, seq_dim, place, inverse, impl)
    if turned is None:
        turned = _native("rotate", (x,), cos, sin, layout, seq_dim, place, inverse, impl)
    return turned if turned is not NotImplemented else _eager(x, cos, sin, layout, seq_dim, place, inverse)


def rotate_(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    layout: Layout,
    seq_dim: int = -2,
    place: Place = "leading",
    inverse: bool = False,
    impl: Impl = "auto",
) -> Tensor:
    """`rotate` in place; returns `x`. Where a gradient is wanted, a copy of the result takes its place."""
    if not is_compiling() and _short(True, x, None, cos, sin, layout, seq_dim, place, inverse, impl) is not None:
        return x
    if (
        _learn(x, cos, sin)
        or _native("rotate_", (x,), cos, sin, layout, seq_dim, place, inverse, impl) is NotImplemented
    ):
        kept = _kept(x, cos, sin)
        x.copy_(rotate(kept, cos, sin, layout=layout, seq_dim=seq_dim, place=place, inverse=inverse, impl=impl))
    return x


def rotate_pair(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    layout: Layout,
    seq_dim: int = -2,
    place: Place = "leading",
    inverse: bool = False,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """`rotate` for queries and keys that stand at the same positions, in one call.

    >>> q, k = torch.ones(1, 4, 1, 2), torch.ones(1, 2, 1, 2)  # four heads, two key heads
    >>> cos, sin = torch.zeros(1, 1), torch.ones(1, 1)  # a quarter turn
    >>> rotate_pair(q, k, cos, sin, layout="half")[1].flatten()
    tensor([-1.,  1., -1.,  1.])
    """
    turned = None if is_compiling() else _short(False, q, k, cos, sin, layout, seq_dim, place, inverse, impl)
    if turned is None:
        turned = _native("rotate_pair", (q, k), cos, sin, layout, seq_dim, place, inverse, impl)
    if turned is not NotImplemented:
        return turned  # type: ignore[no-any-return]
    how = (cos, sin, layout, seq_dim, place, inverse)
    return _eager(q, *how), _eager(k, *how)


def rotate_pair_(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    layout: Layout,
    seq_dim: int = -2,
    place: Place = "leading",
    inverse: bool = False,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """`rotate_pair` in place; returns `q` and `k`, which share no numbers."""
    if q is k:
        raise ValueError("q and k are the same tensor, which would turn twice: use rotate_")
    if not is_compiling() and _short(True, q, k, cos, sin, layout, seq_dim, place, inverse, impl) is not None:
        return q, k
    if (
        _learn(q, k, cos, sin)
        or _native("rotate_pair_", (q, k), cos, sin, layout, seq_dim, place, inverse, impl) is NotImplemented
    ):
        how: dict[str, Any] = {"layout": layout, "seq_dim": seq_dim, "place": place, "inverse": inverse, "impl": impl}
        kept = _kept(q, cos, sin), _kept(k, cos, sin)
        for t, turned in zip((q, k), rotate_pair(*kept, cos, sin, **how), strict=True):
            t.copy_(turned)
    return q, k


def norm_rotate(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    layout: Layout,
    epsilon: float = 1e-6,
    seq_dim: int = -2,
    place: Place = "leading",
    inverse: bool = False,
    impl: Impl = "auto",
) -> Tensor:
    """RMSNorm over the channels of each head, then the rotation: the qk-norm of Qwen3 and others, in one pass.

    Formula: rotate(x / √(mean(x²) + epsilon) · weight). Rounded once, at the end; transformers rounds to the dtype of x
    after the norm, after the weight, and in the rotation.

    Args:
        x: queries or keys `(…, S, …, D)` of a floating dtype, before their norm.
        weight: `(D,)`.
        cos: as in `rotate`.
        sin: as in `rotate`.
        layout: as in `rotate`, like all the rest.
        epsilon: added to the mean square, 0 or more.
        seq_dim: the axis of `x` that counts tokens.
        place: whether the rotated channels lead or trail.
        inverse: turn back.
        impl: as in `rotate`.

    >>> x, weight = torch.tensor([[3.0, 4.0]]), torch.ones(2)
    >>> norm_rotate(x, weight, torch.zeros(1, 1), torch.ones(1, 1), layout="half")  # a quarter turn
    tensor([[-1.1314,  0.8485]])

    Raises:
        ValueError: as `rotate`; a weight of another width; a negative epsilon.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(
            f"weight has one number for each of the {x.shape[-1]} channels, got shape {tuple(weight.shape)}"
        )
    if not epsilon >= 0:
        raise ValueError(f"epsilon is 0 or more, got {epsilon}")
    turned = None
    if not is_compiling():
        turned = _short_norm(x, weight, cos, sin, layout, seq_dim, place, inverse, impl, epsilon)
    if turned is None:
        turned = _native("norm_rotate", (x,), cos, sin, layout, seq_dim, place, inverse, impl, weight, epsilon)
    if turned is NotImplemented:
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        wide, weight = x.to(work), weight.to(work)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * weight
        turned = _eager(normed, cos, sin, layout, seq_dim, place, inverse).to(x.dtype)
    result: Tensor = turned
    return result


def rotate_to_cache(
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    layout: Layout,
    seq_dim: int = -2,
    place: Place = "leading",
    inverse: bool = False,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Turn new keys straight into the rows of a preallocated cache, with their values as they are; returns the caches.

    The same as `k_cache.index_copy_(seq_dim, slots, rotate(k, …))` and `v_cache.index_copy_(seq_dim, slots, v)`, in one
    pass and without a turned copy of the keys. Where a gradient is wanted, it is that. `slots` are rows of the cache,
    not positions: a window that wraps around writes position 4096 into row 0, turned by the angle of 4096.

    Args:
        k: new keys `(…, S, …, D)`, as `x` in `rotate`.
        v: their values, with the axes of `k` and a width of their own.
        cos: as in `rotate`.
        sin: as in `rotate`.
        k_cache: like `k` in all but its number of tokens; written in place.
        v_cache: like `v`, with as many tokens as `k_cache`; written in place.
        slots: int64 `(S,)`, or `(B, S)` with `B` the first axis: the row that each token goes to. If a row is named
            twice, which of the two stays is not said.
        layout: as in `rotate`, like all the rest.
        seq_dim: the axis that counts tokens.
        place: whether the rotated channels lead or trail.
        inverse: turn back.
        impl: as in `rotate`.

    >>> k_cache, v_cache = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2)
    >>> cos, sin = torch.zeros(1, 1), torch.ones(1, 1)  # a quarter turn
    >>> k, v = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[5.0, 6.0]]]])
    >>> _ = rotate_to_cache(k, v, cos, sin, k_cache, v_cache, torch.tensor([2]), layout="half")
    >>> k_cache[0, 0, 2], v_cache[0, 0, 2]
    (tensor([0., 1.]), tensor([5., 6.]))

    Raises:
        ValueError: as `rotate`; caches of another shape or dtype; slots that are not int64, not one a token, or outside
            of the cache.
    """
    how = (layout, seq_dim, place, inverse, impl)
    into = (k_cache, v_cache, slots)
    if not is_compiling() and _short_to_cache(k, v, cos, sin, *into, *how) is not None:
        return k_cache, v_cache
    if (
        _learn(k, v, cos, sin, k_cache, v_cache)
        or _native("rotate_to_cache", (k, v), cos, sin, *how, *into) is NotImplemented
    ):
        _fit(k, cos, sin, seq_dim)
        _check_cache(k, v, k_cache, v_cache, slots, seq_dim)
        turned = rotate(k, cos, sin, layout=layout, seq_dim=seq_dim, place=place, inverse=inverse, impl=impl)
        for new, cache in ((turned, k_cache), (v, v_cache)):
            _put(new, cache, slots, seq_dim)
    return k_cache, v_cache


def _put(new: Tensor, cache: Tensor, slots: Tensor, seq_dim: int) -> None:
    if slots.dim() == 1:
        cache.index_copy_(seq_dim, slots, new)
        return
    index = slots.reshape(*[n if axis in (0, seq_dim % new.dim()) else 1 for axis, n in enumerate(new.shape)])
    cache.scatter_(seq_dim, index.expand(new.shape), new)


def _check_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, seq_dim: int) -> None:
    axis = seq_dim % k.dim()
    for what, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        shape = (*new.shape[:axis], cache.shape[axis] if cache.dim() == new.dim() else "tokens", *new.shape[axis + 1 :])
        if new.dim() != k.dim() or cache.shape != shape or cache.dtype != new.dtype:
            raise ValueError(
                f"{what}_cache has the shape and dtype of {what} in all but its number of tokens, "
                f"{new.dtype} {tuple(new.shape)}, got {cache.dtype} {tuple(cache.shape)}"
            )
    if k.shape[:-1] != v.shape[:-1] or k_cache.shape[axis] != v_cache.shape[axis]:
        raise ValueError(
            f"k and v have the same axes but for the last, and their caches too, got {tuple(k.shape)} and "
            f"{tuple(v.shape)}, {tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
        )
    allowed = [(k.shape[axis],), (k.shape[0], k.shape[axis])][: 2 if axis else 1]
    if slots.dtype != torch.int64 or slots.shape not in allowed:
        raise ValueError(
            f"slots are int64, one for each of the {k.shape[axis]} tokens (or a row of them for each sample), "
            f"got {slots.dtype} {tuple(slots.shape)}"
        )
    if is_compiling() or slots.device.type != "cpu":
        return  # a graph cannot ask, and a GPU would have to be waited for: indexing refuses them when it runs
    if slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < k_cache.shape[axis]:
        wrong = int(slots.min()) if slots.min() < 0 else int(slots.max())
        raise ValueError(f"slots name rows 0 to {k_cache.shape[axis] - 1} of the cache, got {wrong}")


def _kept(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What a table that learns needs for its gradient, although x itself will be overwritten."""
    return x.clone() if _learn(cos, sin) else x


def _learn(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _load_short(which: int, arguments: tuple[Any, ...]) -> Any:
    """Put the built-in functions in the place of these three, and call one: kernels are loaded when something turns."""
    global _short, _short_to_cache, _short_norm
    from ropewalk.kernels import cpu

    _short, _short_to_cache, _short_norm = cpu.SHORT_TURN, cpu.SHORT_TO_CACHE, cpu.SHORT_NORM_TURN
    return (_short, _short_to_cache, _short_norm)[which](*arguments)


def _short(*arguments: Any) -> Any:
    """`kernels.cpu.SHORT_TURN`: what a short call takes; gives None where it does not serve."""
    return _load_short(0, arguments)


def _short_to_cache(*arguments: Any) -> Any:
    """`kernels.cpu.SHORT_TO_CACHE`, in the same way."""
    return _load_short(1, arguments)


def _short_norm(*arguments: Any) -> Any:
    """`kernels.cpu.SHORT_NORM_TURN`, in the same way."""
    return _load_short(2, arguments)


def _native(
    name: str,
    xs: tuple[Tensor, ...],
    cos: Tensor,
    sin: Tensor,
    layout: Layout,
    seq_dim: int,
    place: Place,
    inverse: bool,
    impl: Impl,
    *more: Any,
) -> Any:
    """Call the C++ operator of that name; NotImplemented where the eager form has to serve.

    What does not fit is left for the eager form to refuse, so that there is one set of messages.
    """
    if impl == "eager":
        return NotImplemented
    if impl != "auto" and impl != "native":
        raise ValueError(f"impl is 'auto', 'eager' or 'native', got {impl!r}")
    from ropewalk.kernels import cpu

    tensors = (*xs, cos, sin)
    problem = cpu.refuses(name, (*tensors, *(t for t in more if isinstance(t, Tensor))))
    if place == "trailing" and name.startswith("rotate_pair") and xs[0].shape[-1] != xs[1].shape[-1]:
        problem = "q and k differ in width, so their trailing channels start at different places"
    if cpu.exporting_to_onnx():
        _fit(xs[0], cos, sin, seq_dim)  # a graph would fail only when it runs
    elif problem is None and is_compiling():
        problem = cpu.misfit(name, xs, cos, sin, more)
    if problem is None and layout in cpu.LAYOUTS and (place == "leading" or place == "trailing"):
        if name not in cpu.WRITTEN:  # a copy in rows is cheaper than the eager form, and gives the same bits
            tensors = (*[x if x.stride(-1) == 1 else x.contiguous() for x in xs], cos, sin)
        first = 0 if place == "leading" else xs[0].shape[-1] - 2 * cos.shape[-1]
        try:
            return cpu.call(name, tensors, cpu.LAYOUTS[layout], seq_dim, first, inverse, *more)
        except ValueError as error:
            problem = str(error)
    if impl == "native":
        _fit(xs[0], cos, sin, seq_dim)
        raise ValueError(f"impl='native' cannot serve this: {problem}; impl='auto' takes the eager form")
    return NotImplemented


def _eager(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, seq_dim: int, place: Place, inverse: bool) -> Tensor:
    cos, sin = _fit(x, cos, sin, seq_dim)
    width = 2 * cos.shape[-1]
    if layout not in get_args(Layout):
        raise ValueError(
            f"layout is 'half' (x[i] with x[i + width/2]) or 'interleaved' (x[2i] with x[2i+1]), got {layout!r}"
        )
    if place not in get_args(Place):
        raise ValueError(f"place is 'leading' or 'trailing', got {place!r}")
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    rest = x.shape[-1] - width
    turned, passed = (x[..., rest:], x[..., :rest]) if place == "trailing" else (x[..., :width], x[..., width:])
    turned, cos, sin = turned.to(work), cos.to(work), sin.to(work)
    if inverse:
        sin = -sin
    if layout == "half":
        a, b = turned.chunk(2, dim=-1)
        out = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    out = out.to(x.dtype)
    if not rest:
        return out
    return torch.cat((passed, out) if place == "trailing" else (out, passed), dim=-1)


def _fit(x: Tensor, cos: Tensor, sin: Tensor, seq_dim: int) -> tuple[Tensor, Tensor]:
    """Check shapes and give cos and sin the axes they need to broadcast against `x`."""
    if not x.is_floating_point():
        raise ValueError(f"only floating tensors turn, got {x.dtype}")
    if cos.shape != sin.shape:
        raise ValueError(f"cos and sin have different shapes: {tuple(cos.shape)} and {tuple(sin.shape)}")
    if cos.dim() < 2 or cos.shape[-1] < 1:
        raise ValueError(f"cos and sin have shape (…, S, width/2), got {tuple(cos.shape)}")
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise ValueError(
            f"cos and sin have {cos.shape[-1]} columns, one a pair, so they turn {2 * cos.shape[-1]} channels, "
            f"but x has only {x.shape[-1]}; tables with both halves repeated have to be cut to one"
        )
    axis = seq_dim - x.dim() if seq_dim >= 0 else seq_dim
    if not -x.dim() <= axis < -1:
        raise ValueError(f"seq_dim names an axis of x {tuple(x.shape)} other than the last, got {seq_dim}")
    if cos.dim() == x.dim():
        # One row for many tokens is a slip (the offset of one decoded token, say), so that axis does not broadcast.
        if cos.shape[axis] != x.shape[axis] or any(
            c not in (1, n) for c, n in zip(cos.shape[:-1], x.shape[:-1], strict=True)
        ):
            raise ValueError(
                f"cos and sin {tuple(cos.shape)} do not broadcast against x {tuple(x.shape)} "
                f"with tokens on axis {seq_dim}"
            )
        return cos, sin
    batched = cos.dim() == 3
    if (
        cos.dim() > 3
        or (batched and (axis == -x.dim() or cos.shape[0] not in (1, x.shape[0])))
        or cos.shape[-2] != x.shape[axis]
    ):
        raise ValueError(
            f"cos and sin {tuple(cos.shape)} do not fit x {tuple(x.shape)} with tokens on axis {seq_dim}: "
            f"they are (S, width/2) or (B, S, width/2) with S = {x.shape[axis]}"
        )
    shape = [1] * x.dim()
    shape[axis], shape[-1] = cos.shape[-2], cos.shape[-1]
    if batched:
        shape[0] = cos.shape[0]
    return cos.reshape(shape), sin.reshape(shape)
