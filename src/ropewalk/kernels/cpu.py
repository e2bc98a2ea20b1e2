"""The rotation in C++, as torch operators: registered when this module is imported, or not there, with the reason.

The library beside this file is built when the package is installed, if there is a compiler. At run time it needs torch
2.10 or later. The operators take x with its token axis named by `seq_dim`, cos and sin with one column a pair, the
layout as a number (`LAYOUTS`) and the first channel that turns.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ropewalk.kernels import triton

log = logging.getLogger("ropewalk")

INSTRUCTION_SETS = ("portable", "avx2", "avx512")
"""What the kernels are compiled for, by number."""

LAYOUTS = {"half": 0, "interleaved": 1}

MAX_CHANNELS = 2048
"""Of a head, and twice as many as pairs that turn: as in rotate.h."""

WRITTEN = {
    "rotate_": slice(0, 1),
    "rotate_pair_": slice(0, 2),
    "rotate_out": slice(-1, None),
    "rotate_to_cache": slice(-3, -1),
}
"""Which arguments an operator writes into."""

NOT_BUILT = "they were not built; was there a C++ compiler when ropewalk was installed?"
"""The usual reason why there are none."""


@dataclass(frozen=True)
class Kernels:
    """The loaded library, or why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""

    @property
    def isa(self) -> str:
        """The instruction set in use, or `"none"`."""
        return "none" if self.library is None else INSTRUCTION_SETS[self.library.ropewalk_isa_in_use()]


def refuses(name: str, tensors: tuple[Tensor, ...]) -> str | None:
    """Why that operator cannot take these tensors, or None; shapes, dtypes and strides it checks itself."""
    if exporting_to_onnx():
        return None  # which has an operator of its own
    if KERNELS.library is None:
        return KERNELS.reason
    compiling = torch.compiler.is_compiling()
    for t in tensors:
        if not t.is_cpu and (elsewhere := _refuses_elsewhere(name, tensors)):
            return elsewhere
        if compiling:
            continue
        if type(t) is not Tensor and type(t) is not torch.nn.Parameter and not _is_distributed(t):
            return f"a tensor is a {type(t).__name__}"
        if t.is_neg():
            return "a tensor is a view of negated numbers, as torch makes of the imaginary part of a conjugate"
    if _being_transformed() if compiling else _transforms():
        return "torch.func is at work, or forward differentiation, for which the eager form is right as it stands"
    return None


def misfit(name: str, xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, more: tuple[Any, ...]) -> str | None:
    """Why an operator will refuse these shapes, dtypes and strides when a graph runs; the C++ has the same rules."""
    written = (*xs, cos, sin, *more)[WRITTEN[name]] if name in WRITTEN else ()
    for x in xs:
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        if not 2 <= x.dim() <= 4 or x.shape[-1] > MAX_CHANNELS or cos.shape[-1] > MAX_CHANNELS // 2:
            return f"x has 2 to 4 axes and at most {MAX_CHANNELS} channels"
        if cos.dtype != work or sin.dtype != work:
            return f"cos and sin are {work} for {x.dtype}"
    if not 2 <= cos.dim() <= 4 or cos.stride() != sin.stride() or cos.stride(-1) != 1:
        return "cos and sin have 2 to 4 axes and the same strides, and their last axis is contiguous"
    if any(t.stride(-1) != 1 for t in written):
        return "the last axis is contiguous"
    if name == "rotate_to_cache" and more[-1].dim() == 2 and xs[0].dim() < 4:
        return "slots of each sample want an axis of heads"
    return None


def _transforms() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _being_transformed() -> bool:
    """The same while a compiler traces, which would not look at these by itself; its guards watch over both."""
    return _transforms()


# What `torch.compiler.assume_constant_result` does, without loading the compiler.
_being_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _refuses_elsewhere(name: str, tensors: tuple[Tensor, ...]) -> str | None:
    devices = {t.device for t in tensors}
    if len(devices) > 1 or not tensors[0].is_cuda:
        return f"a tensor is on {next(d for d in devices if d.type != 'cpu')}"
    return triton.refuses(name)


def exporting_to_onnx() -> bool:
    """Whether `torch.onnx.export` is tracing, with a torch that can trace ONNX's own operators (2.8 or later)."""
    return torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export() and hasattr(torch.onnx, "ops")


def _is_distributed(t: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


def call(name: str, tensors: tuple[Tensor, ...], *rest: Any) -> Any:
    """Call an operator; around autograd where no gradient is wanted, whose bookkeeping costs more than a short turn."""
    if exporting_to_onnx():
        from ropewalk.kernels import onnx

        return onnx.trace(name, tensors, *rest)
    operator = OPERATORS[name]
    if not torch.compiler.is_compiling() and _is_distributed(tensors[0]):
        from ropewalk.kernels import sharding_rule

        return sharding_rule.call(operator, *tensors, *rest)
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and _any_learns((*tensors, *rest))):
        return operator(*tensors, *rest)
    with torch._C._AutoDispatchBelowAutograd():
        result = operator(*tensors, *rest)
    written = WRITTEN.get(name)
    if written:  # torch must know, or a backward pass that needs the old values would not complain
        changed = [t for t in (*tensors, *rest)[written] if not t.is_inference()]
        torch.autograd.graph.increment_version(changed)
    return result


def _any_learns(arguments: tuple[Any, ...]) -> bool:
    for argument in arguments:  # noqa: SIM110  # a generator would cost more than the loop, at every call
        if isinstance(argument, Tensor) and argument.requires_grad:
            return True
    return False


def _load() -> ctypes.CDLL:
    here = Path(__file__).parent
    built = [path for ending in ("so", "dylib", "pyd") for path in sorted(here.glob(f"_rotate*.{ending}"))]
    if not built:
        raise RuntimeError(NOT_BUILT)
    library = ctypes.CDLL(str(built[0]))
    library.ropewalk_register.restype = ctypes.c_char_p
    library.ropewalk_register.argtypes = [ctypes.c_char_p]
    folder = Path(torch.__file__).parent / "lib"
    names = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")
    libtorch = next((folder / name for name in names if (folder / name).exists()), None)
    if libtorch is None:
        raise RuntimeError(f"there is no libtorch_cpu in {folder}")
    problem = library.ropewalk_register(str(libtorch).encode())
    if problem:
        raise RuntimeError(problem.decode())
    _say_what_they_do()
    return library


def _say_what_they_do() -> None:
    """Shapes for tracing, and gradients: the gradient of a rotation is the rotation back."""
    for name, results in (("rotate", 1), ("rotate_pair", 2), ("norm_rotate", 1)):
        torch.library.register_fake(f"ropewalk::{name}", functools.partial(_fake_like, results))
    for name in WRITTEN:
        torch.library.register_fake(f"ropewalk::{name}", _fake_nothing)
    torch.library.register_fake("ropewalk::cos_sin", _fake_tables)
    triton.register()
    torch.library.register_autograd("ropewalk::rotate", _backward, setup_context=_setup)
    torch.library.register_autograd("ropewalk::norm_rotate", _backward_norm, setup_context=_setup_norm)
    torch.library.register_autograd("ropewalk::rotate_pair", _backward_pair, setup_context=_setup_pair)


def _fake_like(results: int, *arguments: Any) -> Any:
    made = tuple(torch.empty_like(t) for t in arguments[:results])
    return made if results > 1 else made[0]


def _fake_nothing(*arguments: Any) -> None:
    return None


def _fake_tables(phases: Tensor, factor: float, double: bool) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if double else torch.float32
    return torch.empty_like(phases, dtype=dtype), torch.empty_like(phases, dtype=dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, cos, sin, *ctx.how = inputs
    ctx.needs = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    ctx.save_for_backward(cos, sin, *([x] if ctx.needs else []))


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    cos, sin, *x = ctx.saved_tensors
    grad_x = _back(grad, cos, sin, ctx.how) if ctx.needs_input_grad[0] else None
    tables = _table_gradients(x[0], grad, cos, *ctx.how) if ctx.needs else (None, None)
    return grad_x, *tables, None, None, None, None


def _setup_pair(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, cos, sin, *ctx.how = inputs
    ctx.needs = ctx.needs_input_grad[2] or ctx.needs_input_grad[3]
    ctx.save_for_backward(cos, sin, *([q, k] if ctx.needs else []))


def _backward_pair(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Any, ...]:
    cos, sin, *x = ctx.saved_tensors
    back = [_back(g, cos, sin, ctx.how) for g in (grad_q, grad_k)]
    tables: tuple[Any, Any] = (None, None)
    if ctx.needs:
        of_q, of_k = (_table_gradients(t, g, cos, *ctx.how) for t, g in zip(x, (grad_q, grad_k), strict=True))
        tables = of_q[0] + of_k[0], of_q[1] + of_k[1]
    return *back, *tables, None, None, None, None


def _setup_norm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, cos, sin, *ctx.how, weight, ctx.epsilon = inputs
    ctx.save_for_backward(x, cos, sin, weight)


def _backward_norm(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, cos, sin, weight = ctx.saved_tensors
    wide, gain = x.to(cos.dtype), weight.to(cos.dtype)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + ctx.epsilon)
    normed = wide * scale
    tables: tuple[Any, Any] = (None, None)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        tables = _table_gradients(normed * gain, grad, cos, *ctx.how)
    back = _back(grad.to(cos.dtype), cos, sin, ctx.how)
    by_weight = (back * normed).sum_to_size(weight.shape).to(weight.dtype)
    back = back * gain
    by_x = scale * (back - normed * (back * normed).mean(-1, keepdim=True))
    return by_x.to(x.dtype), *tables, None, None, None, None, by_weight, None


def _back(grad: Tensor, cos: Tensor, sin: Tensor, how: list[Any]) -> Tensor:
    layout, seq_dim, first, inverse = how
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    turned: Tensor = torch.ops.ropewalk.rotate(grad, cos, sin, layout, seq_dim, first, not inverse)
    return turned


def _table_gradients(
    x: Tensor, grad: Tensor, cos: Tensor, layout: int, seq_dim: int, first: int, inverse: bool
) -> tuple[Tensor, Tensor]:
    """By cos and sin: sums over the axes along which they were repeated."""
    width = 2 * cos.shape[-1]
    x, grad = (t[..., first : first + width].to(cos.dtype) for t in (x, grad))
    pick = (lambda t: t.chunk(2, -1)) if layout == LAYOUTS["half"] else (lambda t: (t[..., 0::2], t[..., 1::2]))
    (a, b), (grad_a, grad_b) = pick(x), pick(grad)
    by_cos, by_sin = grad_a * a + grad_b * b, grad_b * a - grad_a * b
    shape = _table_shape(cos, x.dim(), seq_dim)
    by_cos, by_sin = (t.sum_to_size(shape).reshape(cos.shape) for t in (by_cos, by_sin))
    return by_cos, -by_sin if inverse else by_sin


def _table_shape(cos: Tensor, dims: int, seq_dim: int) -> list[int]:
    """The shape in which cos broadcasts against x."""
    if cos.dim() == dims:
        return list(cos.shape)
    shape = [1] * dims
    shape[seq_dim], shape[-1] = cos.shape[-2], cos.shape[-1]
    if cos.dim() == 3:
        shape[0] = cos.shape[0]
    return shape


def _short_calls(library: ctypes.CDLL | None) -> list[Callable[..., Any]]:
    """The built-in functions of short_calls.cpp; such as never serve where torch has not what they need."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    try:
        if library is None or capsule is None:
            raise AttributeError
        known = (
            None,
            Tensor,
            torch.nn.Parameter,
            "requires_grad",
            Tensor.is_neg,
            torch._C._increment_version,
            torch.empty_like,
            forward_ad,
            "_current_level",
            torch._C._len_torch_dispatch_stack,
            torch._C._is_torch_function_mode_enabled,
            torch._C._functorch.peek_interpreter_stack,
            torch._C._is_tracing,
            torch._C._autograd._profiler_enabled,
        )
        start = ctypes.PyDLL(library._name).ropewalk_short_calls  # which a library of an older build has not
    except AttributeError:
        return [_serves_nothing] * 5
    start.restype, start.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.py_object, ctypes.c_int32]
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    methods = [start(known, capsule, which) for which in range(5)]
    if not all(methods):
        return [_serves_nothing] * 5
    return [make(method, None, None) for method in methods]


def _serves_nothing(*arguments: Any) -> None:
    return None


def _find() -> Kernels:
    """Load the library; where that cannot be, say why in one log line."""
    try:
        return Kernels(_load())
    except (OSError, RuntimeError) as error:
        log.warning("the rotation runs in eager PyTorch, since its C++ kernels are not there: %s", error)
        return Kernels(None, str(error))


# At import, not in a cached function: a compiler that traces a call looks through caches, but takes constants as given.
KERNELS = _find()
"""What was found."""

SHORT_TURN, SHORT_TO_CACHE, SHORT_NORM_TURN, SHORT_TURN_AT, SHORT_TABLES = _short_calls(KERNELS.library)
"""What short calls take around torch's dispatcher. They give None where they do not serve: then the operators do, or
say what is wrong.

- `turn(in_place, q, k or None, cos, sin, layout, seq_dim, place, inverse, impl)`
- `to_cache(k, v, cos, sin, k_cache, v_cache, slots, layout, seq_dim, place, inverse, impl)`
- `norm_turn(x, weight, cos, sin, layout, seq_dim, place, inverse, impl, epsilon)`
- `turn_at(in_place, q, k or None, ids, turns, factor, channels, layout, seq_dim, place, inverse, impl)`
- `tables(ids, turns, factor, like)`
"""

OPERATORS: dict[str, Any] = (
    {}
    if KERNELS.library is None
    else {
        name: getattr(torch.ops.ropewalk, name).default
        for name in ("rotate", "rotate_pair", "cos_sin", "norm_rotate", *WRITTEN)
    }
)
"""The operators by name; none where there is no library. Called directly they know nothing of torch.func or of forward
differentiation, of which `refuses` tells: tangents would be lost."""

if KERNELS.library is not None and "torch.distributed.tensor" in sys.modules:
    from ropewalk.kernels import sharding_rule  # noqa: F401  # at a DTensor's first call a compiler would look through it
