"""Rotations as one node of ONNX each, run by onnxruntime at lengths that the tracing has not seen."""

import logging
from collections import Counter

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.kernels import cpu

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),  # torch, about itself
    pytest.mark.filterwarnings("ignore:.*will not be used, since it shares the same shape constraints:UserWarning"),
]
DYNAMIC = torch.export.Dim.DYNAMIC
TRACED, UNSEEN = (2, 5), ((3, 17), (1, 1), (2, 260))
"""Batch and length: what is traced, and what is run."""
FAR = 1 << 20


class Graph:
    """A module as an ONNX model, checked, and run by onnxruntime."""

    def __init__(self, module, inputs, dynamic, **options):
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision
        options = {"opset_version": 23, "dynamic_shapes": dynamic, **options}
        if isinstance(module, torch.nn.Module):
            module.eval()
        self.proto = torch.onnx.export(module, inputs, dynamo=True, verbose=False, **options).model_proto
        onnx.checker.check_model(self.proto, full_check=True)
        self.nodes = Counter(node.op_type for node in self.proto.graph.node)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            self.proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )

    def __call__(self, *inputs):
        named = dict(zip((i.name for i in self.session.get_inputs()), inputs, strict=True))
        outputs = self.session.run(None, {name: t.detach().numpy() for name, t in named.items()})
        return [torch.from_numpy(np.array(o)) for o in outputs]


def heads_first(batch, length):
    return torch.randn(batch, 4, length, 16), torch.randn(batch, 2, length, 16)


def positions(batch, length):
    return torch.randint(0, FAR, (length,))


def assert_same(graph, module, *inputs, atol=1e-6):
    for theirs, ours in zip(graph(*inputs), module(*inputs), strict=True):
        assert theirs.dtype == ours.dtype
        torch.testing.assert_close(theirs, ours.detach(), rtol=0, atol=atol)


class Encoded(torch.nn.Module):
    """Several encodings of one query and key, in one graph."""

    def __init__(self, *encodings):
        super().__init__()
        self.encodings = torch.nn.ModuleList(encodings)

    def forward(self, q, k, pos):
        pos = rw.Positions.of(pos)
        return [t for e in self.encodings for t in e.query_key(q, k, pos)]


ROPES = [
    rw.RoPE(16),
    rw.RoPE(16, layout="interleaved"),
    rw.RoPE(16, rotary_dim=8, extension=rw.YaRN(factor=4, original_length=64)),
    rw.RoPE(16, rotary_dim=6, layout="interleaved", place="trailing"),
]


@pytest.mark.parametrize("batched", [False, True])
def test_a_rotation_is_one_node_and_equals_ours_at_unseen_lengths(batched):
    def inputs(batch, length):
        return (*heads_first(batch, length), torch.randint(0, FAR, (batch, length) if batched else (length,)))

    module = Encoded(*ROPES)
    rows = {0: DYNAMIC, 1: DYNAMIC} if batched else {0: DYNAMIC}
    graph = Graph(module, inputs(*TRACED), ({0: DYNAMIC, 2: DYNAMIC}, {0: DYNAMIC, 2: DYNAMIC}, rows))
    assert graph.nodes["RotaryEmbedding"] == 2 * len(ROPES)
    if batched:
        assert not graph.nodes["Expand"], "tables are used as they are"
    for shape in UNSEEN:
        assert_same(graph, module, *inputs(*shape))


def test_angles_stay_exact_at_far_positions():
    class Tables(torch.nn.Module):
        def forward(self, pos):
            return rw.cos_sin(pos, spectrum)

    spectrum = rw.YaRN(factor=40, original_length=4096, attention_factor=0.7).spectrum(64, 10_000.0)
    graph = Graph(Tables(), (torch.arange(5),), ({0: DYNAMIC},))
    pos = torch.tensor([0, 1, 257, FAR + 1, 2**31 - 1, -(2**31), 2**40 + 3])
    for theirs, ours in zip(graph(pos), rw.cos_sin(pos, spectrum), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=6e-8)  # a unit in the last place of numbers below 1


class Rotated(torch.nn.Module):
    """Calls of the functions, on tables that are inputs."""

    def __init__(self, *calls):
        super().__init__()
        self.calls = calls

    def forward(self, x, cos, sin):
        return [call(x, cos, sin) for call in self.calls]


def tables(*shape):
    angle = torch.rand(shape) * 6 - 3
    return angle.cos(), angle.sin()


def test_every_form_of_x_and_its_tables():
    """Axes in any order and number, tables for each head, inverse, out of place and in place."""
    weight, per_head = torch.randn(16), torch.rand(1, 3, 1, 1)
    module = Rotated(
        lambda x, c, s: rw.rotate(x, c, s, layout="half"),
        lambda x, c, s: rw.rotate(x, c[:, None], s[:, None], layout="half", inverse=True),
        lambda x, c, s: rw.rotate(x, *(t[:, None] * per_head for t in (c, s)), layout="interleaved"),
        lambda x, c, s: rw.rotate(x.transpose(1, 2), c, s, layout="interleaved", seq_dim=-3),
        lambda x, c, s: rw.rotate(
            x.transpose(1, 2), c[:, :, None], s[:, :, None], layout="half", seq_dim=1, inverse=True
        ),
        lambda x, c, s: rw.rotate(x[:, 0], c, s, layout="half", place="trailing"),
        lambda x, c, s: rw.rotate(x[:, 1], c[0], s[0], layout="half"),
        lambda x, c, s: rw.rotate(x[0], c[0], s[0], layout="half"),
        lambda x, c, s: rw.rotate(x[0, 0], c[0], s[0], layout="interleaved"),
        lambda x, c, s: rw.rotate(x[:, None], c[:, None, None], s[:, None, None], layout="half"),
        lambda x, c, s: rw.rotate_(2 * x, c, s, layout="half"),
        lambda x, c, s: rw.rotate_pair(x, x[:, :1], c, s, layout="half")[1],  # q is dropped
        lambda x, c, s: rw.norm_rotate(x, weight, c, s, layout="half"),
    )

    def inputs(batch, length):
        return torch.randn(batch, 3, length, 16), *tables(batch, length, 5)

    both = {0: DYNAMIC, 1: DYNAMIC}
    graph = Graph(module, inputs(*TRACED), ({0: DYNAMIC, 2: DYNAMIC}, both, both))
    assert graph.nodes["RotaryEmbedding"] == len(module.calls)
    assert graph.nodes["RMSNormalization"] == 1
    for shape in UNSEEN:
        assert_same(graph, module, *inputs(*shape), atol=3e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_turned_in_float32_and_rounded_once(dtype):
    module = Rotated(lambda x, c, s: rw.rotate(x.to(dtype), c, s, layout="half").float())
    x, (cos, sin) = torch.randn(2, 3, 9, 16), tables(9, 8)
    graph = Graph(module, (x, cos, sin), ({2: DYNAMIC}, {0: DYNAMIC}, {0: DYNAMIC}))
    assert graph.nodes["RotaryEmbedding"] == 1
    (theirs,), (ours,) = graph(x, cos, sin), module(x, cos, sin)
    assert (theirs != ours).float().mean() < 0.01, "but for ties of the float32 in between"
    torch.testing.assert_close(theirs, ours, rtol=torch.finfo(dtype).eps, atol=0)


class Head(torch.nn.Module):
    """Causal self-attention, as in a model."""

    def __init__(self, rope):
        super().__init__()
        self.rope, self.project = rope, torch.nn.Linear(32, 3 * 32)

    def forward(self, x):
        pos = rw.Positions.arange(x.shape[1])
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        q, k = self.rope.query_key(q, k, pos)
        return [torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)]


@pytest.mark.parametrize("kernels", [True, False])
def test_a_model_needs_neither_positions_nor_kernels(kernels, monkeypatch):
    if not kernels:
        monkeypatch.setattr(cpu, "KERNELS", cpu.Kernels(None, "not built"))
    extension = rw.DynamicNTK(factor=2, original_length=16)
    module = Head(rw.RoPE(16, extension=extension, at_length=300))  # its frequencies are those of at_length
    graph = Graph(module, (torch.randn(*TRACED, 32),), ({0: DYNAMIC, 1: DYNAMIC},))
    assert graph.nodes["RotaryEmbedding"] == 2
    for shape in UNSEEN:
        assert_same(graph, module, torch.randn(*shape, 32))


def refused(call, **options):
    """What an export says that ends in an error."""
    x, (cos, sin) = torch.randn(2, 3, 5, 8), tables(5, 4)
    with pytest.raises(Exception) as error:  # noqa: PT011  # torch wraps it in an error of its own
        Graph(Rotated(call), (x, cos, sin), ({2: DYNAMIC}, {0: DYNAMIC}, {0: DYNAMIC}), **options)
    return str(error.value)


def test_what_cannot_be_exported_is_refused_while_tracing():
    dynamic = rw.RoPE(8, extension=rw.DynamicNTK(factor=2, original_length=16), at_length=64)
    said = refused(lambda x, c, s: dynamic.at(x.shape[-2]).query(x, torch.arange(x.shape[-2])))
    assert "length is a positive whole number of tokens" in said, "a length that is not known yet"
    one_row = refused(lambda x, c, s: rw.rotate(x, c[None, None, :1], s[None, None, :1], layout="half"))
    assert "ropewalk" in one_row, "tables with one row for many tokens"
    assert "20 less than node version: 23" in refused(
        lambda x, c, s: rw.rotate(x, c, s, layout="half"), opset_version=20
    )


def test_older_opsets_are_served_by_the_eager_form_and_float64_by_no_node():
    module = Rotated(
        lambda x, c, s: rw.rotate(x, c, s, layout="half", impl="eager"),
        lambda x, c, s: rw.rotate(x.double(), c.double(), s.double(), layout="interleaved"),
    )

    def inputs(batch, length):
        return torch.randn(batch, 3, length, 8), *tables(length, 4)

    graph = Graph(module, inputs(*TRACED), ({0: DYNAMIC, 2: DYNAMIC}, {0: DYNAMIC}, {0: DYNAMIC}), opset_version=18)
    assert not graph.nodes["RotaryEmbedding"]
    for shape in UNSEEN:
        assert_same(graph, module, *inputs(*shape))


@pytest.mark.skipif(cpu.KERNELS.library is None, reason="without kernels a program holds no operators of ours")
def test_a_program_captured_before_gets_the_same_nodes():
    class Normed(torch.nn.Module):
        def forward(self, q, k, pos):
            cos, sin = rw.cos_sin(pos, rw.geometric(16))
            weight = torch.linspace(0.5, 1.5, 16)
            return rw.norm_rotate(q, weight, cos, sin, layout="half"), *rw.rotate_pair(q, k, cos, sin, layout="half")

    module, dynamic = Normed().eval(), ({2: DYNAMIC}, {2: DYNAMIC}, {0: DYNAMIC})
    inputs = (*heads_first(2, 5), positions(2, 5))
    program = torch.export.export(module, inputs, dynamic_shapes=dynamic)
    assert sum("ropewalk" in str(node.target) for node in program.graph.nodes) == 3
    graph = Graph(program.run_decompositions(rw.onnx_decompositions()), None, None)
    assert (graph.nodes["RotaryEmbedding"], graph.nodes["RMSNormalization"]) == (3, 1)
    assert_same(graph, module, *heads_first(2, 33), positions(2, 33), atol=3e-6)
