"""ropewalk inside live transformers models: same numbers, one model only, and back again to the last bit."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ropewalk as rw
from ropewalk import hf
from ropewalk.hf.rebind import Patch, Rebinder, rebind
from ropewalk.hf.rotations import Rotations

transformers = pytest.importorskip("transformers", minversion="5.0", reason="tests what happens inside of it")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

from transformers.models.llama import modeling_llama  # noqa: E402

IDS = torch.arange(3, 14).repeat(2, 1) + torch.tensor([[0], [20]])
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "initializer_range": 0.2,
    "max_position_embeddings": 512,
}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def llama(**config: Any) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **config})).eval()


def logits(model: Any, ids: Tensor = IDS, **more: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, **more).logits


def state(model: nn.Module) -> dict[str, dict[str, Any]]:
    """What every module holds, by identity."""
    return {
        name: {k: dict(v) if isinstance(v, dict) else v for k, v in module.__dict__.items()}
        for name, module in model.named_modules()
    }


def same_state(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> bool:
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        return a is b or (isinstance(a, (int, float, str, set)) and a == b)

    return same(one, other)


# The rotation


def test_logits_are_stocks_to_rounding_and_the_model_comes_back_to_the_bit() -> None:
    model, other = llama(), llama()
    stock, before, module = logits(model), state(model), dict(vars(modeling_llama))
    with hf.install(model) as installed:
        assert not same_state(before, state(model))
        ours = logits(model)
        assert list(installed.replaced) == ["llama.modeling_llama.apply_rotary_pos_emb"]
        assert "half; tables doubled" in str(installed)
        assert installed.left == {}
        assert model.model.layers[0].self_attn.forward.__func__ is model.model.layers[1].self_attn.forward.__func__
        assert "forward" not in vars(other.model.layers[0].self_attn), "other models are not touched"
        assert vars(modeling_llama) == module, "nor is the module"
        assert torch.equal(logits(other), stock)
    torch.testing.assert_close(ours, stock, rtol=0, atol=2e-6 * float(stock.abs().max()))
    assert not torch.equal(ours, stock), "this was another computation"
    assert same_state(before, state(model))
    assert torch.equal(logits(model), stock)
    assert "was installed" in str(installed)


def test_the_operator_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = llama(), []
    true = rw.rotate_pair
    monkeypatch.setattr("ropewalk.hf.serve.rotate_pair", lambda *a, **k: seen.append(k["layout"]) or true(*a, **k))
    with hf.install(model):
        logits(model)
    assert seen == ["half", "half"], "once in each layer"
    logits(model)
    assert len(seen) == 2


def test_an_exception_takes_it_out_too() -> None:
    model = llama()
    before = state(model)
    with pytest.raises(RuntimeError, match="on purpose"), hf.install(model, exact=True, encoding=rw.T5(4)):
        raise RuntimeError("on purpose")
    assert same_state(before, state(model))
    with pytest.raises(ValueError, match="2 layers"):  # found out when all the rest was done
        hf.install(model, exact=True, encoding=[rw.T5(4)])
    assert same_state(before, state(model))


def test_generate_with_its_caches_and_one_token_at_a_time() -> None:
    model = llama()
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(IDS)
    mask[1, :4] = 0
    wanted = model.generate(IDS, attention_mask=mask, **options)
    with hf.install(model):
        assert torch.equal(model.generate(IDS, attention_mask=mask, **options), wanted)
        whole = logits(model)
        for cache in (None, transformers.StaticCache(config=model.config, max_cache_len=32)):
            out = model(IDS[:, :5], past_key_values=cache)
            pieces = [out.logits]
            for t in range(5, IDS.shape[1]):
                out = model(IDS[:, t : t + 1], past_key_values=out.past_key_values)
                pieces.append(out.logits)
            torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-5)


def gradients(model: Any) -> list[Tensor]:
    model.zero_grad()
    model.train()
    model(input_ids=IDS, labels=IDS).loss.backward()
    model.eval()
    return [p.grad.clone() for p in model.parameters()]


def test_gradients_are_stocks_with_checkpointing_too() -> None:
    model = llama()
    wanted = gradients(model)
    with hf.install(model):
        ours = gradients(model)
        model.gradient_checkpointing_enable()
        again = gradients(model)
        model.gradient_checkpointing_disable()
    for one, other, third in zip(wanted, ours, again, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-6)
        assert torch.equal(other, third)


def test_half_precision_is_rounded_once() -> None:
    torch.manual_seed(1)
    q = torch.randn(1, 4, 9, 16, dtype=torch.bfloat16)
    model = llama().to(torch.bfloat16)
    tables = model.model.rotary_emb(q, torch.arange(9)[None])
    exact = rw.rotate(q.double(), *(t[0, :, :8].double() for t in tables), layout="half")
    stock = modeling_llama.apply_rotary_pos_emb(q, q, *tables)[0]
    ours = serve(modeling_llama.apply_rotary_pos_emb)(q, q, *tables)[0]
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, exact.to(torch.bfloat16))
    assert (stock.double() - exact).abs().max() > (ours.double() - exact).abs().max()
    wanted = logits(model)
    with hf.install(model):
        assert (logits(model) - wanted).abs().max() < 0.05 * wanted.abs().max()


def serve(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """What takes the place of a function."""
    made = Rotations("auto", **options)(function)
    assert made is not None
    return made


def test_compiled_without_a_break_and_compiled_anew_after_a_change() -> None:
    model, graphs = llama(), []

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph.code)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    stock = logits(compiled, use_cache=False)
    with hf.install(model):
        ours = logits(compiled, use_cache=False)
    again = logits(compiled, use_cache=False)
    assert ["ropewalk" in code for code in graphs[:2]] == [False, rw.kernels.cpu.KERNELS.library is not None]
    assert torch.equal(again, stock)
    assert not torch.equal(ours, stock)
    torch.testing.assert_close(ours, stock, rtol=0, atol=2e-6 * float(stock.abs().max()))
    with hf.install(model, exact=True, encoding=rw.ALiBi(4)):
        torch.testing.assert_close(logits(compiled, use_cache=False), logits(model), rtol=0, atol=1e-5)
    torch._dynamo.reset()


def test_a_copy_is_a_model_of_its_own() -> None:
    model = llama()
    stock = logits(model)
    with hf.install(model, encoding=rw.T5(4, std=1.0)):
        wanted = logits(model)
        other = copy.deepcopy(model)
        assert torch.equal(logits(other), wanted)
        assert other.model.layers[0].self_attn.forward.__self__ is other.model.layers[0].self_attn
        hf.uninstall(other)
        assert torch.equal(logits(other), stock)
        assert torch.equal(logits(model), wanted)


@pytest.mark.parametrize("each", [False, True])
def test_a_copy_uses_its_own_parameters_and_outlives_the_original(each: bool) -> None:
    model = llama()
    hf.install(model, encoding=(lambda layer: rw.T5(4, std=1.0)) if each else rw.T5(4, std=1.0))
    other = copy.deepcopy(model)
    wanted = logits(model)
    for weight in other.ropewalk_encoding.parameters():
        nn.init.normal_(weight, std=3.0)
    assert torch.equal(logits(model), wanted)
    changed = logits(other)
    assert (changed - wanted).abs().max() > 1e-3
    hf.uninstall(model)
    assert torch.equal(logits(other), changed)
    with pytest.raises(ValueError, match="already"):
        hf.register_attention(other.config._attn_implementation, rw.ALiBi(4))
    with pytest.raises(ValueError, match="was not registered"):
        hf.unregister_attention(other.config._attn_implementation)


def test_wrapped_methods_and_functions_in_attributes_are_reached() -> None:
    """As the package accelerate wraps `forward`, and as the package kernels makes modules of functions."""
    model = llama()
    stock, attention = logits(model), model.model.layers[0].self_attn
    true = attention.forward

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._old_forward(*args, **kwargs)

    attention._old_forward = true
    attention.forward = types.MethodType(wrapped, attention)
    with hf.install(model):
        assert attention._old_forward.__func__ is not true.__func__
        assert attention.forward.__func__ is wrapped
        assert (logits(model) - stock).abs().max() < 1e-4
    assert attention._old_forward is true


def test_a_function_made_a_module_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    stock_function = modeling_llama.apply_rotary_pos_emb

    class Kernel(nn.Module):
        kernel_layer_name = "rotary_pos_emb"

        def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
            return stock_function(q, k, cos, sin, unsqueeze_dim)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", Kernel())
    model = llama()
    stock = logits(model)
    with hf.install(model) as installed:
        assert len(installed.replaced) == 1
        assert (logits(model) - stock).abs().max() < 1e-4


# The probe


def half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def pairwise(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def plain(rotate_half: Callable[[Tensor], Tensor] = half, sign: float = 1.0) -> Callable[..., Any]:
    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(x * cos + sign * rotate_half(x) * sin for x in (q, k))

    return function


def single(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
    return x * cos.unsqueeze(unsqueeze_dim) + half(x) * sin.unsqueeze(unsqueeze_dim)


def trailing(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
    cos, sin = (t.repeat_interleave(2, dim=-1).unsqueeze(unsqueeze_dim) for t in (cos, sin))
    rest, turned = x[..., : -cos.shape[-1]], x[..., -cos.shape[-1] :]
    return torch.cat((rest, turned * cos + pairwise(turned) * sin), dim=-1)


def partial(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    width = cos.shape[-1]
    return tuple(torch.cat((x[..., :width] * cos + half(x[..., :width]) * sin, x[..., width:]), -1) for x in (q, k))


def times(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1, factor: float = 1.0) -> Any:
    return tuple(x * factor for x in partial(q, k, cos, sin, unsqueeze_dim))


def emitted(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    cos, sin = (t.chunk(2, dim=-1)[0].unsqueeze(unsqueeze_dim) for t in (cos, sin))
    parts = [(x[..., 0::2], x[..., 1::2]) for x in (q, k)]
    return tuple(torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in parts)


def vision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    cos, sin = cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float()
    return tuple((x.float() * cos + half(x.float()) * sin).to(x.dtype) for x in (q, k))


def prefix(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **kwargs: Any) -> Any:
    skipped = q.shape[-2] - cos.shape[-2]
    pieces = [(x[..., :skipped, :], x[..., skipped:, :]) for x in (q, k)]
    return tuple(torch.cat((a, b * cos + half(b) * sin), dim=-2) for a, b in pieces)


def complex_(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> Any:
    turned = (torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * freqs_cis.unsqueeze(2) for x in (xq, xk))
    return tuple(torch.view_as_real(x).flatten(-2) for x in turned)


def half_width(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    parts = [x.chunk(2, dim=-1) for x in (q, k)]
    return tuple(torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in parts)


def last_rows(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    cos, sin, n = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim), q.shape[-2]
    return q * cos[..., -n:, :] + half(q) * sin[..., -n:, :], k * cos + half(k) * sin


def by_position(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor) -> Any:
    cos, sin = cos[position_ids].unsqueeze(1), sin[position_ids].unsqueeze(1)
    return tuple(x * cos + half(x) * sin for x in (q, k, v))


def sines_first(tensor: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    cos, sin = (t[:, :, None].repeat_interleave(2, 3) for t in (cos, sin))
    return tensor * cos + pairwise(tensor) * sin


KNOWN = {
    "half": (plain(), "half; tables doubled"),
    "interleaved": (plain(pairwise), "interleaved; tables repeated"),
    "opposite": (plain(sign=-1.0), "half, opposite sign; tables doubled"),
    "single": (single, "half; tables doubled"),
    "trailing": (trailing, "interleaved, partial, trailing; tables single"),
    "partial": (partial, "half, partial; tables doubled"),
    "emitted": (emitted, "interleaved, emitted as half; tables doubled"),
    "vision": (vision, "half, tokens before heads; tables doubled"),
    "prefix": (prefix, "half, prefix skipped; tables doubled"),
    "complex": (complex_, "interleaved, tokens before heads; tables complex"),
    "half-width": (half_width, "half; tables single"),
    "by-position": (by_position, "half, values too, rows by position; tables doubled"),
    "sines-first": (sines_first, "interleaved, tokens before heads; tables single"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_probe_tells_what_a_function_means(name: str) -> None:
    function, wanted = KNOWN[name]
    assert str(hf.probe(function)) == wanted


def test_the_probe_sees_what_text_and_names_hide() -> None:
    """Two families have Llama's text with another helper."""
    from transformers.models.blt.modeling_blt import apply_rotary_pos_emb as blt
    from transformers.models.nanochat.modeling_nanochat import apply_rotary_pos_emb as nanochat

    assert hf.probe(modeling_llama.apply_rotary_pos_emb).layout == "half"
    assert hf.probe(blt).layout == "interleaved"
    assert hf.probe(nanochat).inverse
    assert hf.probe(last_rows).last_rows


def tiled(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    cos, sin = (t.unsqueeze(unsqueeze_dim).repeat(1, 1, 1, 2) for t in (cos, sin))
    return tuple(x * cos + pairwise(x) * sin for x in (q, k))


def needy(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairs: int) -> Any:
    return q, k


def scaled(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    q, k = plain()(q, k, cos, sin, unsqueeze_dim)
    return q * 1.01, k


def without(q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    return plain()(q, k, cos, sin, unsqueeze_dim) if k is not None else q


def values_scaled(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, v: Tensor | None = None) -> Any:
    q, k = vision(q, k, cos, sin)
    return (q, k) if v is None else (q, k, v)


def rows_if_told(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
) -> Any:
    if position_ids is not None:
        cos, sin = (torch.stack([rows[at] for rows, at in zip(t, position_ids, strict=True)]) for t in (cos, sin))
    return plain()(q, k, cos, sin, unsqueeze_dim)


def with_more(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    return (*plain()(q, k, cos, sin, unsqueeze_dim), cos)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (rows_if_told, "told position_ids it does something else"),
        (with_more, "computes no rotation that is known"),
        (tiled, "computes no rotation that is known"),
        (scaled, "computes no rotation that is known"),
        (needy, "it wants pairs"),
        (without, "without a key it does something else"),
        (values_scaled, "something else to values"),
        (half, r"its arguments \(x\) are not activations and tables"),
    ],
)
def test_what_is_no_rotation_known_here_is_refused_with_the_reason(function: Any, why: str) -> None:
    with pytest.raises(hf.NotServedError, match=why):
        hf.probe(function)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_takes_its_place_does_the_same(name: str, dtype: torch.dtype) -> None:
    function, _ = KNOWN[name]
    ours, semantics = serve(function), hf.probe(function)
    first = semantics.heads == "last"
    shape = (2, 7, 4, 8) if first else (2, 4, 7, 8)
    q, k = (
        torch.randn(shape, dtype=dtype),
        torch.randn(shape, dtype=dtype)[:, :, :2] if first else torch.randn(2, 2, 7, 8, dtype=dtype),
    )
    cos, sin = torch.randn(2, 2, 7, 4, dtype=dtype)
    if semantics.heads == "none":
        cos, sin = cos[0, 2:], sin[0, 2:]  # two tokens of prefix
    spread = {"doubled": lambda t: torch.cat((t, t), -1), "repeated": lambda t: t.repeat_interleave(2, -1)}
    cos, sin = (spread.get(semantics.columns, lambda t: t)(t) for t in (cos, sin))
    given = {
        "single": (q, cos, sin),
        "trailing": (q, cos, sin),
        "sines-first": (q, sin, cos),
        "complex": (q, k, torch.complex(cos, sin)),
        "by-position": (q, k, k, cos[0], sin[0], torch.randint(7, (2, 7))),
    }.get(name, (q, k, cos, sin))
    wanted, got = function(*given), ours(*given)
    for _ in range(2):  # the second time from memory
        for one, other in zip(*((x,) if isinstance(x, Tensor) else x for x in (got, wanted)), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        got = ours(*given)


def test_what_takes_its_place_takes_every_way_of_calling() -> None:
    ours, q, k = serve(partial), torch.randn(2, 7, 4, 12), torch.randn(2, 7, 2, 12)
    cos, sin = (torch.cat((t, t), -1) for t in torch.randn(2, 2, 7, 4))
    wanted = partial(q, k, cos, sin, 2)
    for got in (
        ours(q, k, cos, sin, 2),
        ours(q=q, k=k, sin=sin, cos=cos, unsqueeze_dim=2),
        ours(q, k, cos, sin, unsqueeze_dim=-2),
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    longer = serve(times)
    torch.testing.assert_close(longer(q, k, cos, sin, 2), wanted, rtol=0, atol=1e-5)
    assert torch.equal(longer(q, k, cos, sin, 2, factor=3.0)[0], 3 * wanted[0]), "a manner that was not tried is theirs"
    with pytest.raises(RuntimeError):  # the message of the function itself: its tables are too narrow
        serve(plain())(q, k, cos, sin, 2)
    inverse = serve(plain(), turns=False)
    assert inverse(q, k, cos, sin)[0] is q


def test_a_table_changed_in_place_or_untied_is_noticed() -> None:
    stock = plain(pairwise)  # its columns are copied out of the table
    ours, q = serve(stock), torch.randn(1, 2, 7, 8)
    cos, sin = (t.repeat_interleave(2, -1) for t in torch.randn(2, 1, 7, 4))
    ours(q, q, cos, sin)
    cos *= 2
    torch.testing.assert_close(ours(q, q, cos, sin), stock(q, q, cos, sin), rtol=0, atol=1e-5)
    for function in (stock, plain()):
        with pytest.raises(ValueError, match="each pair with two equal columns"):
            serve(function)(q, q, torch.randn(1, 7, 8), sin)


def test_tables_that_learn_get_their_gradient() -> None:
    q = torch.randn(1, 2, 7, 8)
    angle = torch.randn(1, 7, 4, requires_grad=True)
    found = []
    for function in (plain(), serve(plain())):
        wide = torch.cat((angle, angle), dim=-1)
        function(q, q, wide.cos(), wide.sin())[0].pow(3).sum().backward()
        found.append(angle.grad.clone())
        angle.grad = None
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    ours, table = serve(plain()), torch.randn(1, 7, 4).repeat(1, 1, 2).bfloat16().requires_grad_()
    with torch.no_grad():
        ours(q, q, table, table)
    assert ours(q, q, table, table)[0].requires_grad, "what was remembered without gradients does not serve here"


# Finding the call


def test_calls_are_found_in_helpers_closures_and_defaults() -> None:
    def rotation(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        return q

    def instead(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        return k

    scope: dict[str, Any] = {"__name__": "elsewhere", "rotation": rotation}
    exec(
        "def helper(*a): return rotation(*a)\n"
        "def deep(*a): return (lambda: helper(*a))()\n"
        "def default(*a, f=helper): return f(*a)\n"
        "def self_calling(n, *a): return helper(*a) if n == 0 else self_calling(n - 1, *a)\n"
        "def other(*a): return len(a)\n",
        scope,
    )
    rebinder = Rebinder(lambda f: instead if f is rotation else None)
    given = (1, 2, 3, 4)
    assert [scope[n](*given) for n in ("helper", "deep", "default")] == [1, 1, 1]
    assert [rebinder.copy(scope[n])(*given) for n in ("helper", "deep", "default")] == [2, 2, 2]
    assert rebinder.copy(scope["self_calling"])(0, *given) == 2
    assert rebinder.copy(scope["other"]) is scope["other"]
    assert [scope[n](*given) for n in ("helper", "deep", "default")] == [1, 1, 1]


def test_methods_of_every_kind_are_rebound_and_put_back() -> None:
    def rotation(x: int) -> int:
        return x

    def decorated(function: Any) -> Any:
        def wrapper(*a: Any, **k: Any) -> Any:
            return function(*a, **k)

        return wrapper

    class Module(nn.Module):
        @decorated
        def forward(self, x: int) -> int:
            return self.still(x)

        def still(self, x: int) -> int:
            return rotation(x)

        @staticmethod
        def static(x: int) -> int:
            return rotation(x)

    one, other, patch = Module(), Module(), Patch()

    def choose(f: Any) -> Any:
        return (lambda x: -x) if f is rotation else None

    rebind(one, Rebinder(choose), choose, patch)
    assert (one(3), one.static(3), other(3), other.static(3)) == (-3, -3, 3, 3)
    patch.undo()
    assert (one(3), one.static(3)) == (3, 3)
    assert {"still", "static", "forward"}.isdisjoint(vars(one))


# Frequencies


def test_exact_angles_hold_where_float32_has_lost_them() -> None:
    model = llama()
    stock = logits(model)
    far = torch.tensor([[1_000_003]])
    rotary = model.model.rotary_emb
    x = torch.zeros(1, 1, 64)
    exact = rw.cos_sin(far, rw.geometric(16, 10_000.0), dtype=torch.float64)[0]
    assert (rotary(x, far)[0][..., :8] - exact).abs().max() > 1e-3
    with hf.install(model, exact=True) as installed:
        assert (rotary(x, far)[0][..., :8] - exact).abs().max() < 1e-7
        assert rotary(x.bfloat16(), far)[0].dtype == torch.float32, "read by nobody but the rotation"
        assert "exact" in str(installed)
        torch.testing.assert_close(logits(model), stock, rtol=0, atol=3e-5)


EXTENDED = [
    ({"rope_type": "linear", "factor": 4.0}, rw.Linear(4), None),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        rw.YaRN(factor=4, original_length=128),
        None,
    ),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        rw.Llama3(factor=8, original_length=64, low_freq_factor=1, high_freq_factor=4),
        None,
    ),
    ({"rope_type": "dynamic", "factor": 4.0}, rw.DynamicNTK(factor=4, original_length=512), 700),
]


@pytest.mark.parametrize(("block", "extension", "length"), EXTENDED, ids=lambda v: getattr(v, "name", ""))
def test_an_extension_put_into_a_live_model_is_transformers_own(block: Any, extension: Any, length: int | None) -> None:
    theirs = llama(rope_parameters={"rope_theta": 10_000.0, **block})
    ours = llama(rope_parameters=PLAIN)
    more = {}
    if length:  # theirs looks at the longest row
        more["position_ids"] = torch.arange(length - IDS.shape[1], length)[None]
    wanted, plain_logits = logits(theirs, **more), logits(ours, **more)
    with hf.install(ours, extension=extension, at_length=length):
        torch.testing.assert_close(logits(ours, **more), wanted, rtol=0, atol=1e-3)
    assert (plain_logits - wanted).abs().max() > 0.02
    with hf.install(theirs, exact=True, at_length=length):  # read from the configuration
        torch.testing.assert_close(logits(theirs, **more), wanted, rtol=0, atol=1e-3)
    rotary = theirs.model.rotary_emb
    logits(theirs, **more)  # a dynamic one keeps what it made for the length
    kept = dict(vars(rotary)), dict(rotary._buffers), rotary.inv_freq.clone()
    hf.install(theirs, exact=True, at_length=length).uninstall()
    assert vars(rotary) == kept[0], "a trial leaves a module as it was, also one that changes when it runs"
    assert rotary.inv_freq is kept[1]["inv_freq"]
    assert torch.equal(rotary.inv_freq, kept[2])
    with hf.install(theirs, spectrum=rw.geometric(16)):
        torch.testing.assert_close(logits(theirs, **more), plain_logits, rtol=0, atol=1e-3)


def test_every_kind_of_layer_gets_its_own_frequencies() -> None:
    layers = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=8, layer_types=layers)
    torch.manual_seed(0)
    model = transformers.Gemma3ForCausalLM(config).eval()
    stock = logits(model)
    with hf.install(model, exact=True) as installed:
        assert "sliding_attention: " in str(installed)
        assert "full_attention: " in str(installed)
        torch.testing.assert_close(logits(model), stock, rtol=0, atol=3e-5 * float(stock.abs().max()))


@pytest.mark.parametrize("name", ["Qwen2VL", "Qwen3VL"])
def test_positions_with_three_axes_are_turned_as_the_model_does(name: str) -> None:
    rope = {**PLAIN, "mrope_section": [3, 3, 2], "mrope_interleaved": name == "Qwen3VL"}
    config = getattr(transformers, f"{name}TextConfig")(**SIZES, head_dim=16, rope_parameters=rope)
    module = getattr(transformers, f"{name}TextModel")
    torch.manual_seed(0)
    model = module(config).eval()
    positions = torch.randint(0, 60, (3, 2, IDS.shape[1]))
    with torch.no_grad():
        stock = model(input_ids=IDS, position_ids=positions).last_hidden_state
        for options in ({"exact": True}, {"spectrum": rw.geometric(16)}):
            with hf.install(model, **options):
                ours = model(input_ids=IDS, position_ids=positions).last_hidden_state
            torch.testing.assert_close(ours, stock, rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spectrum": rw.geometric(32)}, "has 16 pairs, the model 8"),
        ({"spectrum": rw.Spectrum([1.0] * 8, softmax_multiplier=2.0)}, "softmax_multiplier is not put"),
        ({"extension": rw.YaRN(4, 128, softmax_mscale=1.0)}, "multiplier of 1, and the extension wants 1.2"),
    ],
)
def test_frequencies_that_do_not_fit_are_refused(options: Any, message: str) -> None:
    model = llama()
    before = state(model)
    with pytest.raises(hf.NotServedError, match=message):
        hf.install(model, **options)
    assert same_state(before, state(model))


def test_frequencies_that_the_configuration_does_not_say_are_refused() -> None:
    model = llama()
    model.model.rotary_emb.inv_freq.mul_(0.5)
    with pytest.raises(hf.NotServedError, match="not those that its configuration says; give spectrum="):
        hf.install(model, exact=True)
    own = rw.Spectrum(model.model.rotary_emb.inv_freq)
    stock = logits(model)
    with hf.install(model, spectrum=own):
        torch.testing.assert_close(logits(model), stock, rtol=0, atol=3e-5)
    dynamic = llama(rope_parameters={"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(hf.NotServedError, match="give at_length"):
        hf.install(dynamic, exact=True)


# Refusals


class Strange(nn.Module):
    pass


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Strange, {}, "install takes a model of transformers, got Strange"),
        (lambda: 3, {}, "got int"),
        (llama, {"rotate": False}, "rotate=False is for another encoding"),
        (llama, {"extension": rw.Linear(2), "spectrum": rw.geometric(16)}, "give one"),
        (llama, {"extension": rw.geometric(16)}, "extension is an Extension such as YaRN"),
        (llama, {"extension": ""}, "extension is an Extension such as YaRN"),
        (llama, {"spectrum": rw.Linear(2)}, "spectrum is a Spectrum"),
        (llama, {"at_length": 3}, "at_length=3 is for other frequencies"),
        (llama, {"extension": rw.DynamicNTK(2, 64)}, "give at_length"),
        (llama, {"encoding": rw.Sinusoidal(64)}, "acts on embeddings, before attention"),
        (llama, {"encoding": rw.RoPE(16)}, "would turn them again: give rotate=False"),
        (llama, {"encoding": [rw.ALiBi(4), rw.RoPE(16)]}, "would turn them again: give rotate=False"),
        (llama, {"encoding": rw.ALiBi}, "encoding is an encoding such as"),
        (llama, {"encoding": 3}, "encoding is an encoding such as"),
        (llama, {"encoding": [rw.ALiBi(4)]}, "has 2 layers, and there are 1 encodings"),
    ],
)
def test_wrong_use_is_refused_with_one_line(make: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        hf.install(make(), **options)
    assert "\n" not in str(refused.value)


def test_models_without_a_rotation_known_here_are_refused_by_name() -> None:
    small = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 40}
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(**small))
    with pytest.raises(hf.NotServedError, match=r"GPT2LMHeadModel \(model_type 'gpt2'\) calls no rotation"):
        hf.install(gpt2)
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=32, d_kv=8, num_heads=4, num_layers=1, vocab_size=40)
    )
    with pytest.raises(hf.NotServedError, match="T5ForConditionalGeneration"):
        hf.install(t5, encoding=rw.ALiBi(4))
    with pytest.raises(ValueError, match="not installed in this GPT2LMHeadModel"):
        hf.uninstall(gpt2)


def test_twice_is_refused_in_the_whole_and_in_a_part() -> None:
    model = llama()
    installed = hf.install(model)
    with pytest.raises(ValueError, match="already: call uninstall"):
        hf.install(model)
    installed.uninstall()
    with hf.install(model.model), pytest.raises(ValueError, match="in this LlamaModel already"):
        hf.install(model)
    installed.uninstall()
    with hf.install(model):
        pass


def test_a_missing_transformers_names_the_line_that_brings_it() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import ropewalk as rw, torch\n"
        "for f in (lambda: rw.hf.install(torch.nn.Linear(1, 1)), lambda: rw.hf.register_spectrum('x', rw.Linear(2)),\n"
        "          lambda: rw.hf.register_attention('x', rw.ALiBi(2))):\n"
        "    try: f()\n"
        "    except ImportError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert out.splitlines() == ["ropewalk.hf needs transformers: pip install 'ropewalk[hf]'"] * 3


# Encodings in attention

SCORES: dict[str, Callable[[], Any]] = {
    "alibi": lambda: rw.ALiBi(4),
    "t5": lambda: rw.T5(4, std=1.0),
    "fire": lambda: rw.FIRE(4, threshold=2.0),  # which knows where a query stands, not only how far a key is
    "kerple": lambda: rw.KERPLE(4),
    "relative-bias": lambda: rw.RelativeBias(length=64, heads=4, std=1.0),
    "shaw": lambda: rw.Shaw(16, std=1.0),
    "cope-by-layer": lambda: lambda layer: rw.CoPE(16, std=0.5 + layer),
    "xpos": lambda: rw.XPos(16),
    "rope-and-alibi": lambda: rw.Compose(rw.RoPE(16, layout="interleaved"), rw.ALiBi(4)),
    "nope": lambda: rw.NoPE(),
}


@pytest.mark.parametrize("name", SCORES)
def test_any_encoding_serves_as_attention(name: str) -> None:
    model = llama()
    config, before = model.config, state(model)
    torch.manual_seed(3)
    with hf.install(model, encoding=SCORES[name](), rotate=False) as installed:
        whole = logits(model)
        cache = transformers.StaticCache(config=model.config, max_cache_len=20)
        for past in (None, cache):  # a token at a time equals all at once
            out = model(IDS[:, :5], past_key_values=past)
            pieces = [out.logits]
            for t in range(5, IDS.shape[1]):
                out = model(IDS[:, t : t + 1], past_key_values=out.past_key_values)
                pieces.append(out.logits)
            torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=2e-5)
        mask = torch.ones_like(IDS)
        mask[0, :4] = 0
        padded = logits(model, attention_mask=mask)  # padding on the left changes nothing
        torch.testing.assert_close(padded[0, 4:], logits(model, IDS[:1, 4:])[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(padded[1], whole[1], rtol=0, atol=2e-5)
        out = model(IDS[:, :6], attention_mask=mask[:, :6])  # nor in decoding
        out = model(IDS[:, 6:], attention_mask=mask, past_key_values=out.past_key_values)
        torch.testing.assert_close(out.logits, padded[:, 6:], rtol=0, atol=2e-5)
        assert installed.encoding is model.ropewalk_encoding
        assert model.config is not config
    assert same_state(before, state(model))
    names = {*transformers.AttentionInterface._global_mapping, *transformers.AttentionMaskInterface._global_mapping}
    assert {n for n in names if n.startswith("ropewalk")} == {"ropewalk-installed"}, "one name serves all models"
    stock = logits(model)
    assert (whole - stock).abs().max() > 1e-3, "the encoding was used"


def test_rotation_by_attention_is_rotation_by_the_model() -> None:
    """The positions that reach attention are the model's: checked by the one encoding that both have."""
    model, mask = llama(), torch.ones_like(IDS)
    mask[0, :4] = 0
    stock = logits(model), logits(model, attention_mask=mask)
    with hf.install(model, encoding=rw.RoPE(16), rotate=False):
        torch.testing.assert_close(logits(model), stock[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(logits(model, attention_mask=mask)[:, 4:], stock[1][:, 4:], rtol=0, atol=2e-5)
    with hf.install(model, encoding=rw.NoPE()):  # the rotation goes on, and attention adds nothing
        torch.testing.assert_close(logits(model), stock[0], rtol=0, atol=2e-5)


def test_sliding_windows_and_packed_texts_keep_their_masks() -> None:
    config = transformers.MistralConfig(**SIZES, head_dim=16, sliding_window=4)
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config).eval()
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]]).expand(2, -1)
    whole = llama()
    for each, more in ((model, {}), (model, {"position_ids": packed}), (whole, {"position_ids": packed})):
        stock = logits(each, use_cache=False, **more)
        with hf.install(each, encoding=rw.RoPE(16), rotate=False):
            torch.testing.assert_close(logits(each, use_cache=False, **more), stock, rtol=0, atol=2e-5)
    with hf.install(whole, encoding=rw.FIRE(4, threshold=2.0), rotate=False):  # a packed text is what it is alone
        both, alone = logits(whole, use_cache=False, position_ids=packed), logits(whole, IDS[:, 5:])
        torch.testing.assert_close(both[:, 5:], alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dropout", [0.0, 1e-9])
@pytest.mark.parametrize(
    "positions", [[*range(5), *range(6)], [*range(10, -1, -1)], [*range(4), *[4] * 3, *range(5, 9)]]
)
def test_positions_of_ones_own_show_no_token_that_is_to_come(positions: list[int], dropout: float) -> None:
    """Who sees whom is the order of the sequence, as in the stock model; positions only say how far apart."""
    own = torch.tensor([positions]).expand(2, -1)
    model = llama(attention_dropout=dropout).train(dropout > 0)
    changed = IDS.clone()
    changed[:, 6] = 99
    stock = logits(model, position_ids=own)
    for more in ({}, {"attention_mask": torch.ones_like(IDS)}):
        with hf.install(model, encoding=rw.RoPE(16), rotate=False):
            torch.testing.assert_close(logits(model, position_ids=own, **more), stock, rtol=0, atol=2e-5)
        with hf.install(model, encoding=rw.FIRE(4), rotate=False):
            one, other = (logits(model, ids, position_ids=own, **more) for ids in (IDS, changed))
            torch.testing.assert_close(one[:, :6], other[:, :6], rtol=0, atol=1e-6)


def test_every_text_of_a_batch_has_positions_of_its_own() -> None:
    model, own = llama(), torch.stack((torch.arange(11), torch.arange(11) * 3 + 2))
    stock = logits(model, position_ids=own)
    with hf.install(model, encoding=rw.RoPE(16), rotate=False):
        torch.testing.assert_close(logits(model, position_ids=own), stock, rtol=0, atol=2e-5)


def test_a_compiled_model_stops_at_positions_that_it_cannot_order() -> None:
    model = llama()
    with hf.install(model, encoding=rw.ALiBi(4), rotate=False):
        wanted = logits(model)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        own = torch.arange(11).expand(2, -1)
        torch.testing.assert_close(logits(compiled, position_ids=own), wanted, rtol=0, atol=2e-5)
        with pytest.raises(RuntimeError, match="do not grow along the sequence"):
            logits(compiled, position_ids=own.flip(1))


def test_learned_encodings_are_trained_saved_and_left_behind() -> None:
    model = llama()
    names = set(model.state_dict())
    encoding = rw.FIRE(4)
    with hf.install(model, encoding=encoding, rotate=False):
        added = {n for n, _ in model.named_parameters()} - names
        assert added == {f"ropewalk_encoding.{n}" for n, _ in encoding.named_parameters()}
        assert added <= set(model.state_dict())
        model.train()
        model(input_ids=IDS, labels=IDS).loss.backward()
        plain_gradients = [p.grad.clone() for p in encoding.parameters()]
        assert all(g.abs().sum() > 0 for g in plain_gradients)
        model.zero_grad()
        model.gradient_checkpointing_enable()
        model(input_ids=IDS, labels=IDS).loss.backward()
        model.gradient_checkpointing_disable()
        for p, g in zip(encoding.parameters(), plain_gradients, strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-6)
    assert set(model.state_dict()) == names
    with hf.install(model, encoding=[rw.T5(4), rw.T5(4, buckets=8)]):
        assert model.ropewalk_encoding[1].buckets == 8
        logits(model)


def test_dropout_of_attention_falls_on_the_weights() -> None:
    model = llama(attention_dropout=0.5)
    with hf.install(model, encoding=rw.ALiBi(4)):
        still = logits(model)
        model.train()
        torch.manual_seed(0)
        one = logits(model)
        torch.manual_seed(1)
        assert not torch.equal(one, logits(model))
        mean = torch.stack([logits(model)[0, 1] for _ in range(30)]).mean(0)
        assert (mean - still[0, 1]).abs().mean() < (one[0, 1] - still[0, 1]).abs().mean()
    no = llama()
    from ropewalk.hf.attention import _attend, mask

    q, k = torch.randn(1, 4, 6, 16), torch.randn(1, 2, 6, 16)
    given = mask(1, 6, 6, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]]), mask_function=_causal())
    paths = [_attend(no, rw.ALiBi(4), q, k, k, given, 0.25, p, None) for p in (0.0, 1e-12)]
    torch.testing.assert_close(paths[0], paths[1], rtol=0, atol=1e-5)


def _causal() -> Any:
    from transformers.masking_utils import causal_mask_function

    return causal_mask_function


def test_the_softmax_multiplier_of_an_encoding_counts() -> None:
    from ropewalk.hf.attention import attention_of, mask

    rope = rw.RoPE(16, extension=rw.YaRN(4, 128, softmax_mscale=1.0))
    q, k = torch.randn(1, 4, 6, 16), torch.randn(1, 2, 6, 16)
    given = mask(1, 6, 6, mask_function=_causal())
    for scaling in (None, 0.25):
        out, _ = attention_of(rope)(nn.Identity(), q, k, k, given, scaling=scaling)
        torch.testing.assert_close(out.transpose(1, 2), rw.attend(q, k, k, rope, torch.arange(6)), rtol=0, atol=1e-5)


def test_attention_refuses_what_an_encoding_would_leave_out() -> None:
    model = llama()
    with (
        hf.install(model, encoding=rw.ALiBi(4)),
        pytest.raises(hf.NotServedError, match="does not say where tokens stand"),
    ):
        logits(model, attention_mask=torch.ones(2, 1, 11, 11))
    with hf.install(model, encoding=rw.ALiBi(8)), pytest.raises(ValueError, match="made for 8 heads, q has 4"):
        logits(model)
    config = transformers.Gemma2Config(**SIZES, head_dim=16)
    gemma = transformers.Gemma2ForCausalLM(config).eval()
    with hf.install(gemma, encoding=rw.ALiBi(4)), pytest.raises(hf.NotServedError, match="hands softcap to attention"):
        logits(gemma)


# Names in transformers


def test_an_encoding_registered_under_a_name() -> None:
    from transformers import AttentionInterface

    hf.register_attention("my-alibi", rw.ALiBi(4))
    try:
        model = llama(attn_implementation="my-alibi")
        other = llama()
        with hf.install(other, encoding=rw.ALiBi(4)):
            torch.testing.assert_close(logits(model), logits(other), rtol=0, atol=2e-5)
        hf.register_attention("my-alibi", lambda layer: rw.ALiBi(4))  # again, by layer
        torch.testing.assert_close(logits(llama(attn_implementation="my-alibi")), logits(model), rtol=0, atol=2e-5)
        hf.register_attention("my-alibi", [rw.ALiBi(4)])
        with pytest.raises(ValueError, match="there are 1 encodings, and this is layer 1"):
            logits(llama(attn_implementation="my-alibi"))
    finally:
        hf.unregister_attention("my-alibi")
    assert "my-alibi" not in AttentionInterface._global_mapping
    with pytest.raises(ValueError, match="not registered by register_attention"):
        hf.unregister_attention("sdpa")
    for name, message in (("sdpa", "already"), ("a/b", "letters"), ("flash", "flash"), ("eager", "not 'eager'")):
        with pytest.raises(ValueError, match=message):
            hf.register_attention(name, rw.ALiBi(4))


def test_a_rope_type_survives_saving_and_loading(tmp_path: Path) -> None:
    extension = rw.YaRN(factor=4, original_length=128)
    hf.register_spectrum("stretched", extension)
    try:
        model = llama(rope_parameters={"rope_type": "stretched", "rope_theta": 10_000.0})
        model.save_pretrained(tmp_path)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        wanted = logits(model)
        assert torch.equal(logits(again), wanted)
        theirs = llama(rope_parameters={"rope_theta": 10_000.0, **EXTENDED[1][0]})
        assert torch.equal(theirs.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
        assert theirs.model.rotary_emb.attention_scaling == model.model.rotary_emb.attention_scaling
        assert torch.equal(logits(theirs), wanted)
        with hf.install(model, exact=True) as installed:
            torch.testing.assert_close(logits(model), wanted, rtol=0, atol=1e-4)
            assert "7.9" in str(installed), "a quarter of the slowest frequency"
    finally:
        hf.unregister_spectrum("stretched")
    with pytest.raises(KeyError, match="stretched"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="rope_type = 'stretched' is not known"):
        rw.from_config(tmp_path)
    code = (
        "import sys, transformers, ropewalk as rw\n"
        "rw.hf.register_spectrum('stretched', rw.YaRN(factor=4, original_length=128))\n"
        "m = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "print(m.model.rotary_emb.inv_freq.tolist(), m.model.rotary_emb.attention_scaling)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120)
    rotary = model.model.rotary_emb
    assert done.stdout.strip() == f"{rotary.inv_freq.tolist()} {rotary.attention_scaling}"
    assert "Missing validation" not in done.stderr


def test_a_rope_type_for_some_channels_for_layers_and_from_a_spectrum() -> None:
    hf.register_spectrum("mine", rw.Linear(4))
    hf.register_spectrum("given", rw.geometric(8, 100.0))
    hf.register_spectrum("long", rw.DynamicNTK(2, 64), at_length=128)
    try:
        block = {"rope_type": "mine", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
        neox = transformers.GPTNeoXConfig(**SIZES, rope_parameters=block)
        frequencies = transformers.GPTNeoXForCausalLM(neox).gpt_neox.rotary_emb.inv_freq
        torch.testing.assert_close(frequencies, rw.geometric(8, 100.0).inv_freq.float() / 4)
        layers = {"full_attention": {**block, "partial_rotary_factor": 1.0}, "sliding_attention": PLAIN}
        config = transformers.Gemma3TextConfig(**SIZES, head_dim=16, rope_parameters=layers, layer_types=[*layers])
        rotary = transformers.Gemma3ForCausalLM(config).model.rotary_emb
        torch.testing.assert_close(rotary.full_attention_inv_freq, rw.geometric(16, 100.0).inv_freq.float() / 4)
        neox.rope_parameters = {**block, "rope_type": "given"}
        frequencies = transformers.GPTNeoXForCausalLM(neox).gpt_neox.rotary_emb.inv_freq
        torch.testing.assert_close(frequencies, rw.geometric(8, 100.0).inv_freq.float())
        with pytest.raises(ValueError, match="'given' has 4 pairs, this model 8"):
            llama(rope_parameters={**PLAIN, "rope_type": "given"})
        long = llama(rope_parameters={**PLAIN, "rope_type": "long"})
        wanted = rw.DynamicNTK(2, 64).spectrum(16, length=128).inv_freq.float()
        torch.testing.assert_close(long.model.rotary_emb.inv_freq, wanted, rtol=1e-5, atol=0)
        with hf.install(long, exact=True, at_length=128):
            logits(long)
    finally:
        for name in ("mine", "given", "long"):
            hf.unregister_spectrum(name)


@pytest.mark.parametrize(
    ("name", "of", "options", "message"),
    [
        ("yarn", rw.Linear(2), {}, "a rope_type 'yarn' already"),
        ("my-dynamic", rw.Linear(2), {}, "'dynamic' is in a name"),
        ("a b", rw.Linear(2), {}, "a name is letters"),
        ("mine", rw.ALiBi(2), {}, "takes an extension or a spectrum"),
        ("mine", rw.DynamicNTK(2, 64), {}, "give at_length"),
        ("mine", rw.Linear(2), {"at_length": 3}, "needs an extension that depends"),
    ],
)
def test_a_rope_type_that_cannot_be_is_refused(name: str, of: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hf.register_spectrum(name, of, **options)
    with pytest.raises(ValueError, match="was not registered"):
        hf.unregister_spectrum(name)


def test_a_rope_type_brings_no_softmax_multiplier() -> None:
    hf.register_spectrum("sharp", rw.YaRN(4, 128, softmax_mscale=1.0))
    try:
        with pytest.raises(ValueError, match=r"softmax_multiplier of 1\.2"):
            llama(rope_parameters={**PLAIN, "rope_type": "sharp"})
    finally:
        hf.unregister_spectrum("sharp")


# What the document shows


def test_the_code_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parent.parent / "docs" / "transformers.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    try:
        exec("".join(re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)), found)
        by_distance = logits(found["other"], found["ids"])
        found["other"].set_attn_implementation("sdpa")
    finally:
        hf.unregister_spectrum("stretched")
        hf.unregister_attention("by-distance")
    assert "rotation     llama.modeling_llama.apply_rotary_pos_emb: half; tables doubled" in capsys.readouterr().out
    assert (found["exact"] - found["stock"]).abs().max() < 1e-5
    assert len({float(found[n][0, -1, 0]) for n in ("stock", "stretched", "longer", "slower")}) == 4
    assert set(found["learned"]) == {"0.table", "1.table"}
    assert (by_distance - logits(found["other"], found["ids"])).abs().max() > 1e-4, "without a name for attention"
