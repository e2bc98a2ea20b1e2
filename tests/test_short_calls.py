"""Short calls around torch's dispatcher: the same bits as the operators, and only where nobody could tell."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import ropewalk as rw
from ropewalk.kernels import cpu
from ropewalk.rotation import norm_rotate, rotate, rotate_, rotate_pair, rotate_pair_, rotate_to_cache
from turns import DTYPES, LAYOUTS, PLACES, assert_right, in_float64, needs_kernels, tables

pytestmark = needs_kernels

X = torch.randn(2, 3, 5, 8)
COS, SIN = tables(torch.arange(5), 8, torch.float32)
WEIGHT = torch.randn(8)
SLOTS = torch.arange(5)
HOW = ("half", -2, "leading", False, "auto")
CACHE = torch.zeros(2, 3, 9, 8)
SCRATCH = CACHE.clone(), CACHE.clone()
TURNS, LIKE = torch.tensor(rw.geometric(8).turns), torch.empty(1).expand(5, 4)


def short_turn(x: Any = X, cos: Any = COS, sin: Any = SIN, k: Any = None, in_place: bool = False) -> Any:
    return cpu.SHORT_TURN(in_place, x, k, cos, sin, *HOW)


def short_to_cache(k: Any = X, v: Any = X, cos: Any = COS, sin: Any = SIN, into: Any = None, slots: Any = SLOTS) -> Any:
    k_cache, v_cache = into or SCRATCH
    return cpu.SHORT_TO_CACHE(k, v, cos, sin, k_cache, v_cache, slots, *HOW)


def short_norm_turn(x: Any = X, weight: Any = WEIGHT, cos: Any = COS, sin: Any = SIN) -> Any:
    return cpu.SHORT_NORM_TURN(x, weight, cos, sin, *HOW, 1e-6)


def short_tables(ids: Any = SLOTS) -> Any:
    return cpu.SHORT_TABLES(ids, TURNS, 1.0, LIKE if ids is SLOTS else torch.empty(1).expand(*ids.shape, 4))


def short_turn_at(q: Any = X, ids: Any = SLOTS, k: Any = None, turns: Any = None, channels: Any = 8) -> Any:
    return cpu.SHORT_TURN_AT(False, q, k, ids, TURNS if turns is None else turns, 1.0, channels, *HOW)


SHORT = {f.__name__: f for f in (short_turn, short_to_cache, short_norm_turn, short_turn_at, short_tables)}


# ---------------------------------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize(("layout", "dtype"), list(product(LAYOUTS, DTYPES)))
def test_a_short_turn_has_the_bits_and_strides_of_the_operator(isa, layout, dtype):
    shapes = (
        ((5, 26), -2),
        ((3, 5, 26), -2),
        ((5, 3, 26), -3),
        ((2, 3, 5, 26), -2),
        ((2, 5, 3, 26), -3),
        ((2, 3, 5, 26), 2),
    )
    for (shape, seq_dim), place, inverse, width in product(shapes, PLACES, (False, True), (26, 10)):
        q, k = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype).transpose(0, -2).contiguous().transpose(0, -2)
        cos, sin = tables(torch.randint(0, 9000, (5,)), width, dtype)
        how = {"layout": layout, "seq_dim": seq_dim, "place": place, "inverse": inverse}
        names = (layout, seq_dim, place, inverse)
        numbers = (cpu.LAYOUTS[layout], seq_dim, 0 if place == "leading" else 26 - width, inverse)
        operators = cpu.OPERATORS["rotate_pair"](q, k, cos, sin, *numbers)
        both = cpu.SHORT_TURN(False, q, k, cos, sin, *names, "auto")
        for x, one, right in zip((q, k), both, operators, strict=True):
            assert torch.equal(one, right)
            assert one.stride() == right.stride()
            assert_right(one, in_float64(x, cos, sin, **how), x)
            assert torch.equal(cpu.SHORT_TURN(False, x, None, cos, sin, *names, "native"), right)
        inside = q.clone(), k.clone()
        assert all(a is b for a, b in zip(cpu.SHORT_TURN(True, *inside, cos, sin, *names, "auto"), inside, strict=True))
        for x, right in zip(inside, operators, strict=True):
            assert torch.equal(x, right)
        assert cpu.SHORT_TURN(True, inside[0], None, cos, sin, *names, "auto") is inside[0]


@pytest.mark.parametrize(("layout", "dtype"), list(product(LAYOUTS, DTYPES)))
def test_a_short_norm_and_turn_has_the_bits_of_the_operator(isa, layout, dtype):
    for place, weight_dtype in product(PLACES, DTYPES):
        x, (cos, sin) = torch.randn(2, 3, 5, 42).to(dtype), tables(torch.arange(5), 26, dtype)
        weight = torch.randn(42).to(weight_dtype)
        numbers = (cpu.LAYOUTS[layout], -2, 0 if place == "leading" else 16, False)
        ours = cpu.SHORT_NORM_TURN(x, weight, cos, sin, layout, -2, place, False, "auto", 1e-6)
        assert torch.equal(ours, cpu.OPERATORS["norm_rotate"](x, cos, sin, *numbers, weight, 1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5,), (2, 5), (1,), (0,)])
def test_short_tables_have_the_bits_of_the_operator(isa, dtype, shape):
    ids, turns = torch.randint(-(1 << 40), 1 << 40, shape), torch.tensor(rw.geometric(30).turns)
    ours = cpu.SHORT_TABLES(ids, turns, 0.75, torch.empty(1, dtype=dtype).expand(*shape, 15))
    right = cpu.OPERATORS["cos_sin"]((ids[..., None] * turns).contiguous(), 0.75, dtype == torch.float64)
    for a, b in zip(ours, right, strict=True):
        assert torch.equal(a, b)
        assert a.dtype == dtype


@pytest.mark.parametrize(("layout", "dtype"), list(product(LAYOUTS, DTYPES)))
def test_a_few_tokens_turn_as_by_tables(isa, layout, dtype):
    for (shape, rows), place, width in product(
        (
            ((5, 26), (5,)),
            ((2, 3, 5, 26), (5,)),
            ((2, 3, 5, 26), (2, 5)),
            ((2, 3, 5, 26), (1, 5)),
            ((1, 8, 1, 26), (1,)),
        ),
        PLACES,
        (26, 10),
    ):
        q, k, ids = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randint(-99, 99_999, rows)
        rope = rw.RoPE(26, layout=layout, rotary_dim=width, place=place, extension=rw.YaRN(4, 4096))
        cos, sin = rw.cos_sin(ids, rope.spectrum, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        how = {"layout": layout, "place": place}
        turns = torch.tensor(rope.spectrum.turns)
        names = (layout, -2, place, False, "auto")
        assert cpu.SHORT_TURN_AT(False, q, k, ids, turns, rope.spectrum.attention_factor, 26, *names) is not None
        for ours, x in zip(rope.query_key(q, k, ids), (q, k), strict=True):
            assert torch.equal(ours, rotate(x, cos, sin, **how))
            assert torch.equal(ours, rope.query(x, ids))
        for inside, ours in zip(rope.query_key_(q.clone(), k.clone(), ids), rope.query_key(q, k, ids), strict=True):
            assert torch.equal(inside, ours)
        torch.testing.assert_close(
            rope.inverse(rope.query(q, ids), ids), q, rtol=0, atol=8 * float(q.abs().max()) * torch.finfo(dtype).eps
        )


def test_query_and_key_in_place_are_theirs_however_many_they_are():
    for rope, tokens in product((rw.RoPE(8), rw.XPos(8)), (3, 300)):
        q, k, ids = torch.randn(1, 2, tokens, 8), torch.randn(1, 1, tokens, 8), torch.arange(tokens)
        right, before = rope.query_key(q, k, ids), q._version
        assert rope.query_key_(q, k, ids)[0] is q
        assert torch.equal(q, right[0])
        assert torch.equal(k, right[1])
        assert q._version > before


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_more_than_a_few_tokens_or_others_are_left_to_the_tables():
    spectrum = torch.tensor(rw.geometric(128).turns)
    for tokens, served in ((16, True), (17, False)):
        found = cpu.SHORT_TURN_AT(False, torch.ones(tokens, 128), None, torch.arange(tokens), spectrum, 1.0, 128, *HOW)
        assert (found is not None) == served
    assert short_turn_at(channels=10) is None
    assert short_turn_at(k=X.double()) is None
    assert short_turn_at(ids=torch.arange(4)) is None
    for ids in (SLOTS.int(), SLOTS[None, None], torch.arange(10)[::2], freed(SLOTS), [0, 1, 2, 3, 4], None):
        assert short_turn_at(ids=ids) is None
    for turns in (TURNS.double(), TURNS[None], torch.arange(5), freed(TURNS)):
        assert short_turn_at(turns=turns) is None
    for make in NOT_PLAIN.values():
        assert short_turn_at(q=make(X)) is None


def test_tables_of_each_sample_and_each_head_are_served():
    for rows in ((2, 5), (2, 1, 5), (1, 3, 5), (2, 3, 5)):
        cos, sin = (t.reshape(*rows, 4) for t in tables(torch.randint(0, 99, rows).flatten(), 8, torch.float32))
        assert_right(short_turn(X, cos, sin), in_float64(X, cos, sin, layout="half"), X)


# ---------------------------------------------------------------------------------------------- who is not served


class Marked(Tensor):
    """A subclass that does nothing."""


class Watches(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Overrides(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def profiling() -> Iterator[None]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


WATCHED: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "a dispatch mode": Watches,
    "a function mode": Overrides,
    "fake tensors": FakeTensorMode,
    "meta as device": lambda: torch.device("meta"),
    "the CPU as device": lambda: torch.device("cpu"),
    "a profiler": profiling,
    "forward differentiation": forward_ad.dual_level,
}


@pytest.mark.parametrize("call", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("watched", WATCHED.values(), ids=WATCHED)
def test_nothing_is_served_while_somebody_watches(call, watched):
    assert call() is not None
    with watched():
        assert call() is None
    assert call() is not None


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], object]] = {
    "make_fx": lambda f: make_fx(f)(X),
    "vmap": lambda f: torch.func.vmap(f)(X[None]),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: torch.func.jvp(f, (X,), (X,)),
    "functionalize": lambda f: torch.func.functionalize(f)(X),
    "jit.trace": lambda f: torch.jit.trace(f, X, check_trace=False),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("call", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_nothing_is_served_while_something_is_traced_or_transformed(call, transform):
    """Of tensors outside of the transform, too: who reads a plain tensor cannot tell."""
    answers = []

    def traced(x: Tensor) -> Tensor:
        answers.append(call())
        return x * 2

    transform(traced)
    assert answers
    assert set(answers) == {None}
    assert call() is not None


def test_other_modes_get_what_they_came_for():
    how: dict[str, Any] = {"layout": "half"}
    right = rotate(X, COS, SIN, **how, impl="native")
    assert "ropewalk.rotate" in str(make_fx(lambda x: rotate(x, COS, SIN, **how))(X).graph)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert torch.equal(rotate(X, COS, SIN, **how), right)
    assert any(event.key == "ropewalk::rotate" for event in profile.key_averages())
    with forward_ad.dual_level():
        turned = rotate(forward_ad.make_dual(X, X), COS, SIN, **how)
        torch.testing.assert_close(forward_ad.unpack_dual(turned).tangent, right)
    seen = []

    class Lists(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Lists():
        assert torch.equal(rotate(X, COS, SIN, **how), right)
    assert "ropewalk.rotate.default" in seen


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_traced_module_turns_what_comes_later():
    traced = torch.jit.trace(lambda x: rotate(x, COS, SIN, layout="half"), X, check_trace=False)
    assert torch.equal(traced(X * 3), rotate(X * 3, COS, SIN, layout="half"))


def freed(t: Tensor) -> Tensor:
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


NOT_PLAIN: dict[str, Callable[[Tensor], Any]] = {
    "a subclass": lambda t: t.as_subclass(Marked),
    "that learns": lambda t: t.clone().requires_grad_(),
    "a parameter that learns": torch.nn.Parameter,
    "derived from what learns": lambda t: t * torch.ones((), requires_grad=True),
    "on meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "of oneDNN": lambda t: t.to_mkldnn(),
    "a view of negated numbers": lambda t: torch._neg_view(t),
    "integers": lambda t: t.int(),
    "complex": lambda t: t.to(torch.complex64),
    "boolean": lambda t: t > 0,
    "eight bits": lambda t: t.to(torch.float8_e5m2),
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8),
    "of zeros without memory": lambda t: torch._efficientzerotensor(t.shape),
    "freed": freed,
    "of no axes": lambda t: torch.tensor(1.0),
    "of one axis": lambda t: t.flatten(),
    "of five axes": lambda t: t[(None,) * (5 - t.dim())],
    "of a last axis that is not contiguous": lambda t: torch.stack([t, t], dim=-1)[..., 0],
    "no tensor": lambda t: None,
    "a list": lambda t: t.tolist(),
    "a type": lambda t: Tensor,
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("make", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_a_tensor_that_is_not_plain_is_left_to_the_operators(make):
    for place in ("x", "cos", "sin", "k"):
        plain = {"x": X, "cos": COS, "sin": SIN, "k": X}
        odd = make(plain[place])
        if place == "k" and odd is None:
            continue  # no second tensor, which is meant
        assert short_turn(**(plain | {place: odd})) is None
    for place in ("k", "v", "cos", "sin"):
        into = CACHE.clone(), CACHE.clone()
        assert short_to_cache(**{place: make(X if place in "kv" else COS)}, into=into) is None
        assert not into[0].any()
        assert not into[1].any()
    for i in (0, 1):
        caches: list[Any] = [CACHE.clone(), CACHE.clone()]
        caches[i] = make(CACHE)
        assert short_to_cache(into=tuple(caches)) is None
        assert not caches[1 - i].any()
    for place, t in (("x", X), ("cos", COS), ("sin", SIN)):
        assert short_norm_turn(**{place: make(t)}) is None


def test_a_weight_or_slots_that_are_not_plain_are_left_to_the_operators():
    for name, weight in {
        "a list": [1.0] * 8,
        "short": WEIGHT[:7],
        "square": torch.ones(8, 8),
        "whole": torch.ones(8).int(),
    }.items():
        assert short_norm_turn(weight=weight) is None, name
    assert short_norm_turn(weight=torch.nn.Parameter(WEIGHT)) is None
    with torch.no_grad():
        assert short_norm_turn(weight=torch.nn.Parameter(WEIGHT)) is not None
    for slots in (
        None,
        [0, 1, 2, 3, 4],
        SLOTS.int(),
        SLOTS.float(),
        SLOTS[:4],
        torch.tensor(1),
        SLOTS + 5,
        SLOTS - 1,
        freed(SLOTS),
    ):
        assert short_to_cache(slots=slots) is None


def test_what_learns_is_served_where_no_gradient_is_wanted():
    learns = X.clone().requires_grad_()
    assert short_turn(learns) is None
    with torch.no_grad():
        assert torch.equal(short_turn(learns), short_turn())
    with torch.inference_mode():
        assert torch.equal(short_turn(learns), short_turn())


def test_a_view_of_negated_numbers_is_turned_as_it_reads():
    negated = torch._neg_view(X)
    assert negated.is_neg()
    torch.testing.assert_close(rotate(negated, COS, SIN, layout="half"), -rotate(X, COS, SIN, layout="half"))
    torch.testing.assert_close(
        rotate(X, COS, torch._neg_view(SIN), layout="half", inverse=True), rotate(X, COS, SIN, layout="half")
    )
    caches = rotate_to_cache(negated, torch._neg_view(X), COS, SIN, CACHE.clone(), CACHE.clone(), SLOTS, layout="half")
    torch.testing.assert_close(caches[1][:, :, :5], -X)


def test_a_lazy_copy_is_turned_without_its_original():
    original = X.clone()
    copied = torch._lazy_clone(original)
    rotate_(copied, COS, SIN, layout="half")
    assert torch.equal(original, X)
    assert torch.equal(copied, rotate(X, COS, SIN, layout="half"))


def test_long_calls_are_left_to_the_operators():
    cos, sin = tables(torch.arange(513), 128, torch.float32)
    assert short_turn(torch.ones(512, 128), cos[:512], sin[:512]) is not None  # 256 KiB
    assert short_turn(torch.ones(513, 128), cos, sin) is None
    assert short_tables(torch.arange(8192)) is not None
    assert short_tables(torch.arange(8193)) is None


def test_shapes_that_do_not_fit_change_nothing():
    for cos, sin in (
        (COS[:4], SIN[:4]),
        (COS, SIN[:4]),
        (COS[:, :3], SIN),
        (COS.repeat(1, 2), SIN.repeat(1, 2)),
        (COS.double(), SIN.double()),
    ):
        x, k = X.clone(), X.clone()
        assert short_turn(x, cos, sin, in_place=True) is None
        assert short_turn(x, cos, sin, k=k, in_place=True) is None
        assert torch.equal(x, X)
    q, k = X.clone(), torch.ones(2, 3, 4, 8)  # the first would fit
    assert short_turn(q, k=k, in_place=True) is None
    with pytest.raises(ValueError, match="do not fit x"):
        rotate_pair_(q, k, COS, SIN, layout="half")
    assert torch.equal(q, X)


ODD = (
    None,
    True,
    -1,
    7,
    1 << 80,
    1.5,
    float("nan"),
    "",
    "half",
    "half\0",
    "\ud800",
    b"half",
    [],
    (),
    object(),
    int,
    torch.ones(3),
    torch.ones(()),
)


@pytest.mark.parametrize("odd", ODD, ids=[repr(o)[:12] for o in ODD])
def test_arguments_of_any_type_are_served_or_not_but_harm_nothing(odd):
    calls: list[tuple[Callable[..., Any], list[Any]]] = [
        (cpu.SHORT_TURN, [False, X.clone(), None, COS, SIN, *HOW]),
        (cpu.SHORT_TURN, [False, X.clone(), X.clone(), COS, SIN, *HOW]),
        (cpu.SHORT_TO_CACHE, [X, X, COS, SIN, CACHE.clone(), CACHE.clone(), SLOTS, *HOW]),
        (cpu.SHORT_NORM_TURN, [X, WEIGHT, COS, SIN, *HOW, 1e-6]),
        (cpu.SHORT_TABLES, [SLOTS, TURNS, 1.0]),
    ]
    for call, arguments in calls:
        for i in range(call is cpu.SHORT_TURN, len(arguments)):
            changed = [*arguments[:i], odd, *arguments[i + 1 :]]
            given = call(*changed, *([LIKE] if call is cpu.SHORT_TABLES else []))
            assert given is None or isinstance(given, (Tensor, tuple))
        assert call(*arguments[:-1]) is None
        assert call(*arguments, odd, odd, odd, odd) is None
        assert call() is None
    assert short_turn() is not None


def test_names_are_read_to_their_end():
    for layout, place, impl in (
        ("half\0", "leading", "auto"),
        ("hal", "leading", "auto"),
        ("half", "lead", "auto"),
        ("half", "leading", "eager"),
    ):
        assert cpu.SHORT_TURN(False, X, None, COS, SIN, layout, -2, place, False, impl) is None


# ---------------------------------------------------------------------------------------------- what is left behind


CALLS: dict[str, Callable[[], Any]] = {
    "turn": short_turn,
    "turn of two": lambda: short_turn(k=X),
    "in place": lambda: cpu.SHORT_TURN(True, X.clone(), None, COS, SIN, *HOW),
    "cache": lambda: short_to_cache(),
    "norm": short_norm_turn,
    "a few": lambda: short_turn_at(k=X),
    "tables": short_tables,
    "not served": lambda: short_turn(X.int()),
    "not served late": lambda: short_turn(X, COS[:4], SIN[:4], k=X),
    "norm not served": lambda: short_norm_turn(weight=WEIGHT[:7]),
    "cache not served": lambda: short_to_cache(slots=SLOTS + 5),
    "not a text": lambda: cpu.SHORT_TURN(False, X, None, COS, SIN, 1, "", None, None, b""),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_reference_is_kept_or_lost(call):
    watched = [X, COS, SIN, WEIGHT, SLOTS, CACHE, Tensor, "half", "leading", torch.empty_like]
    call()
    gc.collect()
    before, nones = [sys.getrefcount(o) for o in watched], sys.getrefcount(None)
    for _ in range(1000):
        call()
    assert [sys.getrefcount(o) for o in watched] == before
    assert abs(sys.getrefcount(None) - nones) < 100
    given = call()
    for made in given if isinstance(given, tuple) else (given,):
        if made is not None and made is not CACHE:
            del given
            assert sys.getrefcount(made) <= 4
            break


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc here")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_memory_stays_level_over_many_calls(call):
    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(500):
        call()
    before = resident()
    for _ in range(5000):
        call()
    assert resident() - before < 1 << 20, "200 bytes a call would show"


def test_in_place_calls_tell_autograd():
    calls: dict[str, Callable[[Tensor], Any]] = {
        "one": lambda x: rotate_(x, COS, SIN, layout="half"),
        "first of two": lambda x: rotate_pair_(x, X.clone(), COS, SIN, layout="half"),
        "second of two": lambda x: rotate_pair_(X.clone(), x, COS, SIN, layout="half"),
    }
    for name, call in calls.items():
        x = X.clone()
        later = (x * torch.ones(8, requires_grad=True)).sum()  # saves x
        version = x._version
        call(x)
        assert x._version == version + 1, name
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            later.backward()
    version = X._version
    rotate(X, COS, SIN, layout="half"), rotate_pair(X, X, COS, SIN, layout="half")
    norm_rotate(X, WEIGHT, COS, SIN, layout="half")
    assert X._version == version


def test_a_view_and_its_base_share_the_version():
    base = torch.randn(2, 4, 5, 8)
    later = (base * torch.ones(8, requires_grad=True)).sum()
    rotate_(base[:, 1:3], COS, SIN, layout="half")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        later.backward()


def test_inference_tensors_are_served_inside_and_outside():
    right = rotate(X, COS, SIN, layout="half")
    with torch.inference_mode():
        x, cache = X.clone(), CACHE.clone()
        made = short_turn(x)
        assert made.is_inference()
        assert torch.equal(short_turn(x, in_place=True), right)
        assert torch.equal(short_to_cache(into=(cache, cache.clone()))[0][:, :, :5], right)
    assert torch.equal(made, right)
    assert torch.equal(x, right)
    assert torch.equal(short_turn(x, cos=COS, sin=-SIN), rotate(right, COS, -SIN, layout="half"))
    rotate_(x, COS, SIN, layout="half", inverse=True)  # has no version to move
    torch.testing.assert_close(x, X)


def test_autocast_changes_nothing():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(short_turn(), rotate(X, COS, SIN, layout="half", impl="native"))
        assert short_norm_turn().dtype == torch.float32


def test_threads_may_call_at_the_same_time():
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(2, 3, 5, 8, generator=generator)
        right = rotate(x, COS, SIN, layout="half", impl="eager")
        into = CACHE.clone(), CACHE.clone()
        for _ in range(300):
            short_to_cache(x, x, into=into)
            if not (torch.allclose(short_turn(x), right, atol=1e-6) and torch.equal(into[1][:, :, :5], x)):
                failures.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_a_profiler_or_mode_of_one_thread_is_seen_by_it():
    """Modes are per thread: another thread's calls stay short."""
    answers = []
    with Watches():
        thread = threading.Thread(target=lambda: answers.append(short_turn()))
        thread.start()
        thread.join()
        assert short_turn() is None
    assert answers[0] is not None


def test_more_calls_than_the_library_has_are_not_given():
    """As when the library of an older build lies beside newer Python."""
    start = cpu.ctypes.PyDLL(cpu.KERNELS.library._name).ropewalk_short_calls
    start.restype, start.argtypes = (
        cpu.ctypes.c_void_p,
        [cpu.ctypes.py_object, cpu.ctypes.py_object, cpu.ctypes.c_int32],
    )
    for which in (-1, 99):
        assert start((), None, which) is None
