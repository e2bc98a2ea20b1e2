"""The rotation in Triton: run by Triton's interpreter on the CPU, compiled for a GPU that need not be there."""

import importlib.util
from itertools import product

import pytest
import torch

import ropewalk as rw
from ropewalk.kernels import cpu
from ropewalk.kernels import triton as in_triton
from ropewalk.rotation import rotate, rotate_pair

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
LAYOUTS = ("half", "interleaved")
SHAPES = (  # of x, the axis of its tokens, how many channels turn
    ((2, 3, 5, 16), -2, 16),
    ((2, 5, 3, 16), -3, 12),
    ((1, 9, 4, 24), -2, 20),
    ((3, 5, 2), -2, 2),
    ((5, 10), -2, 6),
    ((1, 11, 2, 256), -2, 250),
)


@pytest.fixture
def interpreter(monkeypatch):
    """Kernels run in Python, on the CPU's memory."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    in_triton._kernel.cache_clear()
    yield
    in_triton._kernel.cache_clear()


def tables(positions, width, dtype):
    return rw.cos_sin(positions, rw.geometric(width), dtype=torch.float64 if dtype == torch.float64 else torch.float32)


def assert_right(y, x, cos, sin, **how):
    """Within the rounding of the arithmetic; half precision is that, rounded once.

    Triton's interpreter cuts a float32 to bfloat16 where a GPU rounds it, so there the last digit may be one less.
    """
    exact = rotate(x.double(), cos.double(), sin.double(), impl="eager", **how)
    error = (1e-15 if y.dtype == torch.float64 else 2e-7) * float(x.abs().max())
    cut = exact.abs() * 2**-8 if y.dtype == torch.bfloat16 else 0
    towards_zero = exact - exact.sign() * cut
    low, high = torch.minimum(exact, towards_zero) - error, torch.maximum(exact, towards_zero) + error
    assert y.dtype == x.dtype
    assert bool(((low.to(y.dtype) <= y) & (y <= high.to(y.dtype))).all())


@pytest.mark.parametrize(("layout", "place", "inverse"), list(product(LAYOUTS, ("leading", "trailing"), (False, True))))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_shape_equals_float64_out_of_place_and_in_place(interpreter, dtype, layout, place, inverse):
    for shape, seq_dim, width in SHAPES:
        x = torch.randn(shape).to(dtype)
        cos, sin = tables(torch.randint(-99, 99_999, (shape[seq_dim],)), width, dtype)
        how = (cpu.LAYOUTS[layout], seq_dim, 0 if place == "leading" else shape[-1] - width, inverse)
        named = {"layout": layout, "seq_dim": seq_dim, "place": place, "inverse": inverse}
        y = in_triton.rotate(x, cos, sin, *how)
        assert_right(y, x, cos, sin, **named)
        guarded = torch.full((x.numel() + 64,), torch.nan, dtype=dtype)
        out = guarded[32:-32].view(shape)
        in_triton.rotate_out(x, cos, sin, *how, out)
        assert torch.equal(out, y)
        assert bool(guarded[:32].isnan().all() & guarded[-32:].isnan().all()), "nothing else is touched"
        inside = x.clone()
        in_triton.rotate_(inside, cos, sin, *how)
        assert torch.equal(inside, y)


def test_strides_batched_tables_and_tables_of_heads(interpreter):
    wide = torch.randn(2, 5, 3, 20)
    x = wide.transpose(1, 2)[..., 2:18]  # (2, 3, 5, 16)
    rows = tables(torch.randint(0, 999, (2, 5)), 16, x.dtype)
    of_heads = tuple(t.view(2, 3, 5, 8) for t in tables(torch.randint(0, 999, (6, 5)), 16, x.dtype))
    for cos, sin in (rows, of_heads, tuple(t[:, :1] for t in of_heads), tuple(t[:1] for t in of_heads)):
        assert_right(in_triton.rotate(x, cos, sin, 0, -2, 0, False), x, cos, sin, layout="half")
    empty = torch.empty(2, 3, 0, 16)
    assert in_triton.rotate(empty, *tables(torch.arange(0), 16, x.dtype), 0, -2, 0, False).shape == empty.shape


@pytest.mark.skipif(cpu.KERNELS.library is None, reason="the operators are not there")
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_the_operators_run_it_forward_and_backward(interpreter):
    # There is no GPU to dispatch to, so for this test the operators' CPU form is the one for CUDA.
    q, k = torch.randn(1, 4, 6, 8, requires_grad=True), torch.randn(1, 2, 6, 8, requires_grad=True)
    cos, sin = tables(torch.arange(6), 8, q.dtype)
    calls = []

    def served(*arguments):
        calls.append(arguments)
        return in_triton.rotate(*arguments)

    with torch.library._scoped_library("ropewalk", "IMPL") as library:
        library.impl("rotate", served, "CPU", allow_override=True)
        library.impl("rotate_pair", in_triton.rotate_pair, "CPU", allow_override=True)
        ours = torch.autograd.grad(
            sum(t.square().sin().sum() for t in rotate_pair(q, k, cos, sin, layout="half")), (q, k)
        )
    assert len(calls) == 2, "the gradient is the turn back, by the same kernel"
    eager = rotate_pair(q, k, cos, sin, layout="half", impl="eager")
    expected = torch.autograd.grad(sum(t.square().sin().sum() for t in eager), (q, k))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(("dtype", "layout"), [("bf16", 1), ("fp16", 0), ("fp32", 0), ("fp64", 1)])
def test_it_compiles_for_a_gpu(monkeypatch, tmp_path, dtype, layout):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    in_triton._kernel.cache_clear()
    kernel, _ = in_triton._kernel()
    constants = {"SIGN": 1, "INTERLEAVED": bool(layout), "DOUBLE": dtype == "fp64", "TABLE_OF_HEADS": False}
    constants |= {"HEADS": 8, "PAIRS": 64, "REST": 16}
    pointers = {"x": dtype, "y": dtype, **dict.fromkeys(("cos", "sin"), "fp64" if dtype == "fp64" else "fp32")}
    signature = {
        name: "constexpr" if name in constants else f"*{pointers[name]}" if name in pointers else "i64"
        for name in kernel.arg_names
    }
    made = triton.compile(ASTSource(kernel, signature, constexprs=constants), target=GPUTarget("cuda", 80, 32))
    assert "st.global" in made.asm["ptx"]
    assert dtype != "bf16" or "cvt.rn.bf16" in made.asm["ptx"], "rounded to the nearest"


def test_what_does_not_fit_is_refused(interpreter):
    x, (cos, sin) = torch.randn(1, 2, 5, 8), tables(torch.arange(5), 8, torch.float32)
    for arguments in (
        (x, cos[:4], sin[:4], 0, -2, 0, False),
        (x, cos, sin[:, :2], 0, -2, 0, False),
        (x, cos.double(), sin.double(), 0, -2, 0, False),
        (x, cos, sin, 0, -2, 2, False),
        (x, cos, sin, 0, -1, 0, False),
        (x.mT, cos, sin, 0, -2, 0, False),
        (x.long(), cos, sin, 0, -2, 0, False),
        (x, cos[None, :3], sin[None, :3], 0, -2, 0, False),
    ):
        with pytest.raises(ValueError, match="ropewalk"):
            in_triton.rotate(*arguments)
    with pytest.raises(ValueError, match="shape and dtype"):
        in_triton.rotate_out(x, cos, sin, 0, -2, 0, False, x[..., :4])
    assert "no form for CUDA" in in_triton.refuses("norm_rotate")
