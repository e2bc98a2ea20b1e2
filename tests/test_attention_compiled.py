"""Attention in a compiled graph: positions that say where they begin need no n² matrix there either."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from helpers import close
from ropewalk import KERPLE, T5, ALiBi, Compose, NoPE, PositionalEncoding, Positions, RoPE, attend

T = T5(4, std=1.0)
CASES: list[tuple[PositionalEncoding, dict[str, Any]]] = [
    *((encoding, {}) for encoding in (NoPE(), ALiBi(4), KERPLE(4), Compose(RoPE(8), T))),
    *((RoPE(8), options) for options in ({}, {"window": 5}, {"causal": False})),
    *((T, options) for options in ({}, {"window": 5}, {"causal": False, "window": 3})),
]


class Graphs:
    """A backend that runs graphs as they are, and remembers which operators they hold."""

    def __init__(self) -> None:
        self.count, self.operators = 0, set[str]()
        self.backend = aot_autograd(fw_compiler=self._keep)

    def _keep(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.count += 1
        self.operators |= {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
        return make_boxed_func(graph.forward)


def inputs(n: int, keys: int | None = None, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries of four heads; keys and values of two."""
    shapes = [(2, 4, n, 8), (2, 2, keys or n, 8), (2, 2, keys or n, 5)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def gradients(out: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    weigh = torch.linspace(-1, 2, out.numel()).view_as(out)
    found = torch.autograd.grad((out * weigh).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]


@pytest.mark.parametrize(("encoding", "options"), CASES, ids=lambda given: getattr(given, "name", str(given)))
def test_one_graph_for_all_lengths_equals_the_reference_and_builds_no_matrix(
    encoding: PositionalEncoding, options: dict[str, Any]
) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, at: Positions) -> Tensor:
        return attend(q, k, v, encoding, at, **options)

    torch._dynamo.reset()
    graphs = Graphs()
    compiled = torch.compile(attention, fullgraph=True, backend=graphs.backend)
    for n in (7, 9, 33):
        leaves, at = inputs(n), Positions.arange(n)
        out = compiled(*leaves, at)
        expected = attend(*leaves, encoding, at, impl="reference", **options)
        close(out, expected, torch.float32)
        wanted = [*leaves, *encoding.parameters()]
        for one, other in zip(gradients(out, wanted), gradients(expected, wanted), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert graphs.count <= 4  # forward and backward, for the first length and for all others
    served = {"ropewalk.banded.default", "aten._scaled_dot_product_flash_attention_for_cpu.default"}
    assert len(graphs.operators & served) == 1
    assert not {"aten.bmm.default", "aten.le.Tensor"} & graphs.operators  # neither scores nor masks are built


@pytest.mark.parametrize(
    ("encoding", "options"), [(T, {"window": 6}), (RoPE(8), {}), (RoPE(8), {"window": 6})], ids=["t5", "rope", "window"]
)
def test_positions_made_within_the_graph_and_chunks_of_them(
    encoding: PositionalEncoding, options: dict[str, Any]
) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        whole = Positions.arange(k.shape[2], offset=3)
        return attend(q, k, v, encoding, whole[4:], key_positions=whole, **options)

    torch._dynamo.reset()
    graphs = Graphs()
    compiled = torch.compile(attention, fullgraph=True, backend=graphs.backend)
    for n in (12, 20):
        q, k, v = inputs(n - 4, n)
        at = Positions.arange(n, offset=3)
        expected = attend(q, k, v, encoding, at[4:], key_positions=at, impl="reference", **options)
        close(compiled(q, k, v), expected, torch.float32)
    assert "ropewalk.banded.default" in graphs.operators


@pytest.mark.parametrize("encoding", [RoPE(8), T5(4, std=1.0)], ids=lambda e: e.name)
def test_positions_changed_since_are_noticed_when_the_graph_runs(encoding: PositionalEncoding) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v, at: attend(q, k, v, encoding, at), fullgraph=True, backend=Graphs().backend
    )
    leaves, at = inputs(9), Positions.arange(9)
    compiled(*leaves, at)
    at.ids[5:] += 2
    with pytest.raises(RuntimeError, match="made by arange were changed in place"):
        compiled(*leaves, at)


@pytest.mark.parametrize(
    "at",
    [
        Positions([0, 1, 2, 5, 6, 7, 8, 9, 10]),
        Positions.packed([0, 4, 9]),
        Positions.arange(9, offset=torch.tensor([3, 0])),
        Positions(torch.arange(9), valid=torch.arange(9) > 2),
    ],
    ids=["gaps", "packed", "batched", "padded"],
)
def test_other_positions_are_served_as_they_are(at: Positions) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v, at: attend(q, k, v, T, at), fullgraph=True, backend="eager")
    leaves = inputs(9)
    close(compiled(*leaves, at), attend(*leaves, T, at, impl="reference"), torch.float32)


def test_what_is_said_of_positions_afterwards_counts() -> None:
    at = Positions.arange(6)
    at.documents = torch.tensor([0, 0, 0, 1, 1, 1])
    t5, leaves = T5(4, std=1.0), inputs(6)
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, t5, at), fullgraph=True, backend=Graphs().backend)
    close(compiled(*leaves), attend(*leaves, t5, at, impl="reference"), torch.float32)


def test_an_exported_graph_holds_no_operator_of_attention() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t5 = T5(4, std=1.0)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v, self.t5, Positions.arange(q.shape[2]))

    model, given = Model(), tuple(t.detach() for t in inputs(9))
    program = torch.export.export(model, given)
    assert not any("banded" in str(node.target) for node in program.graph.nodes)
    close(program.module()(*given), model(*given), torch.float32)


@pytest.mark.parametrize("how", [(0, True, None), (0, True, 3), (2, False, 4), (30, True, 3)], ids=str)
def test_the_operator_is_what_pytorch_expects_of_one(how: tuple[Any, ...]) -> None:
    q, k, v = inputs(6, 8)
    q = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()  # tokens before heads in memory
    offset, causal, _ = how
    low, high = 1 - offset - 6, 0 if causal else 7 - offset
    values = torch.randn(1 if causal else 4, high - low + 1, requires_grad=True)
    torch.library.opcheck(torch.ops.ropewalk.banded, (q, k, v, values, *how, 0.5, 4))
    given = [t.detach() for t in (q, k, v, values)]
    torch.library.opcheck(torch.ops.ropewalk.banded_backward, (torch.randn(2, 4, 6, 5), *given, *how, 0.5, 4, True))
