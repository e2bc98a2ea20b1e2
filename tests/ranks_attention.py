"""What each rank of test_ranks.py does: attention with tokens, heads and samples split, against one process."""

from __future__ import annotations

import copy
import importlib
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ropewalk as rw
from helpers import CASES, HEADS, KV_HEADS, Case, Model
from ropewalk import Positions, attend
from ropewalk.attention import fused, ranks

N, SAMPLES = 13, 2
"""Tokens divide neither by two nor by four ranks."""
SCHEMES = ("contiguous", "zigzag", "striped")
SOME = ("nope", "relative-bias-length-heads", "shaw-heads", "t5", "alibi", "kerple", "fire", "cope", "rope", "xpos")
"""One of each kind."""


def cases(names: tuple[str, ...] = SOME) -> list[Case]:
    return [case for case in CASES if case.id in names]


def leaves(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


def summed(gradient: Tensor | None, like: Tensor) -> Tensor:
    """What all ranks found of the gradient of a parameter that they share."""
    total = torch.zeros_like(like) if gradient is None else gradient.detach().clone()
    dist.all_reduce(total)
    return total


def same(ours: Tensor, exact: Tensor) -> None:
    """Equal to rounding; also where nothing is left to compare, or a gradient is zero (of what all keys share)."""
    assert ours.dtype == exact.dtype
    slack = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2e-2}[ours.dtype]
    size = float(exact.detach().abs().max()) if exact.numel() else 0.0
    torch.testing.assert_close(ours.detach(), exact.detach(), rtol=0, atol=slack * max(size, 1.0))


def with_gradients(model: Model, q: Tensor, k: Tensor, v: Tensor, pos: Positions, **options: object) -> list[Tensor]:
    """The output, and gradients of q, k, v and all parameters, of one process."""
    inputs = leaves((q, k, v))
    out = attend(*inputs, model.encoding, pos, **options)
    parameters = list(model.encoding.parameters())
    found = torch.autograd.grad(out, [*inputs, *parameters], upstream(out), allow_unused=True)
    return [
        out.detach(),
        *(torch.zeros_like(t) if g is None else g for t, g in zip([*inputs, *parameters], found, strict=True)),
    ]


def upstream(out: Tensor) -> Tensor:
    random = torch.Generator().manual_seed(7)
    return torch.randn(out.shape, generator=random, dtype=torch.float64).to(out.dtype)


def one_rank(
    model: Model, q: Tensor, k: Tensor, v: Tensor, pos: Positions, index: Tensor, want: list[Tensor], **options
):
    """This rank's tokens against those of the whole: the output, gradients, and what parameters get from all ranks."""
    inputs = leaves(tuple(t[:, :, index] for t in (q, k, v)))
    out = attend(*inputs, model.encoding, pos, group=dist.group.WORLD, **options)
    parameters = list(model.encoding.parameters())
    found = torch.autograd.grad(out, [*inputs, *parameters], upstream(want[0])[:, :, index], allow_unused=True)
    for ours, exact in zip([out, *found[:3]], want[:4], strict=True):
        same(ours, exact[:, :, index])
    for ours, parameter, exact in zip(found[3:], parameters, want[4:], strict=True):
        same(summed(ours, parameter), exact)


def every_encoding(world: int) -> None:
    """Tokens split in three ways: the output, and gradients, learned biases among them."""
    rank = dist.get_rank()
    for case in CASES if world == 2 else cases():
        model = Model(case)
        pos = model.arange(N)
        q, k, v = (t.detach() for t in model.project(model.tokens(SAMPLES, N), pos))
        for causal in {True, model.encoding.causal_only}:
            want = with_gradients(model, q, k, v, pos, causal=causal)
            for scheme in SCHEMES if world == 2 and case.id in SOME else ("zigzag",):
                index = Positions.shard_index(N, rank, world, scheme=scheme)
                mine = pos.shard(rank, world, scheme=scheme)
                one_rank(model, q, k, v, mine, index, want, causal=causal)


def bit_for_bit(world: int) -> None:
    """What is turned here and gathered is what one process turns, in the order of the text, in every dtype."""
    rank = dist.get_rank()
    for dtype, layout, scheme in product((torch.float32, torch.bfloat16), ("half", "interleaved"), SCHEMES):
        rope, pos = rw.RoPE(16, layout=layout), Positions.arange(N, offset=1_000_003)
        q, k = (torch.randn(SAMPLES, heads, N, 16).to(dtype) for heads in (HEADS, KV_HEADS))
        index, mine = Positions.shard_index(N, rank, world, scheme=scheme), pos.shard(rank, world, scheme=scheme)
        turned = rope.query_key(q[:, :, index], k[:, :, index], mine)
        whole = rope.query_key(q, k, pos)
        assert all(torch.equal(ours, exact[:, :, index]) for ours, exact in zip(turned, whole, strict=True))
        shares = ranks.everyones(mine, dist.group.WORLD)
        assert torch.equal(shares.positions.ids, pos.ids)
        assert torch.equal(shares.gather(turned[1]), whole[1])


def other_dtypes(world: int) -> None:
    rank = dist.get_rank()
    for case, dtype in product(cases(("t5", "rope", "shaw-heads")), (torch.float32, torch.bfloat16)):
        model = Model(case, dtype)
        pos = model.arange(N)
        q, k, v = (t.detach() for t in model.project(model.tokens(SAMPLES, N), pos))
        want = with_gradients(model, q, k, v, pos)
        one_rank(model, q, k, v, pos.shard(rank, world), Positions.shard_index(N, rank, world), want)


def masks_and_structure(world: int) -> None:
    """Documents, padding, windows, prefixes, a position of its own for every sample, and paths asked for by name."""
    rank = dist.get_rank()
    padded = Positions.left_padded(torch.arange(N) >= torch.tensor([[N - 3], [0]]))
    at = {
        "packed": Positions.packed([0, 4, 5, N]),
        "packed by sample": Positions(
            torch.tensor([[*range(6), *range(7)], [*range(9), *range(4)]]),
            documents=torch.tensor([[0] * 6 + [1] * 7, [0] * 9 + [1] * 4]),
        ),
        "padded": padded,
        "elsewhere": Positions.arange(N, offset=torch.tensor([5, 31])),
        "gaps": Positions(torch.arange(N) * 3),
    }
    options = [{}, {"window": 4}, {"prefix": 5}, {"prefix": torch.tensor([2, 7]), "window": 6}, {"impl": "reference"}]
    for case, (_, pos), chosen in product(cases(("t5", "shaw-heads")), at.items(), options):
        model = Model(case)
        q, k, v = (t.detach() for t in model.project(model.tokens(SAMPLES, N), pos))
        want = with_gradients(model, q, k, v, pos, **chosen)
        index = Positions.shard_index(N, rank, world)
        one_rank(model, q, k, v, pos.shard(rank, world), index, want, **chosen)


def a_rank_that_sees_nothing(world: int) -> None:
    """Only padding, or no token at all: it comes to add up gradients all the same."""
    rank = dist.get_rank()
    for case in cases():
        model = Model(case)
        mask = torch.arange(8) >= torch.tensor([[7], [5]])
        for pos in (Positions.left_padded(mask), model.arange(1)):
            n = len(pos)
            q, k, v = (t.detach() for t in model.project(model.tokens(SAMPLES, n), pos))
            want = with_gradients(model, q, k, v, pos)
            index = Positions.shard_index(n, rank, world, scheme="contiguous")
            one_rank(model, q, k, v, pos.shard(rank, world, scheme="contiguous"), index, want)


def several_axes(world: int) -> None:
    """Text and a picture: what came first is said by the order, which a part cannot make up."""
    rank = dist.get_rank()
    pos = Positions.interleave([3, rw.Image(2, 4), 2])
    n = len(pos)
    rope = rw.RoPE(16, bands=rw.Bands("THWTHWTH"))
    q, k, v = (torch.randn(1, heads, n, 16, dtype=torch.float64) for heads in (HEADS, KV_HEADS, KV_HEADS))
    index, mine = Positions.shard_index(n, rank, world), pos.shard(rank, world)
    for causal in (True, False):
        out = attend(*(t[:, :, index] for t in (q, k, v)), rope, mine, causal=causal, group=dist.group.WORLD)
        same(out, attend(q, k, v, rope, pos, causal=causal)[:, :, index])
    with pytest.raises(ValueError, match="do not say which token came first"):
        attend(*(t[:, :, index] for t in (q, k, v)), rope, mine.ids, group=dist.group.WORLD)


def other_keys(world: int) -> None:
    """Keys with positions of their own, encoded already."""
    rank, rope = dist.get_rank(), rw.RoPE(16)
    q, k, v = (torch.randn(1, 2, n, 16, dtype=torch.float64) for n in (5, N, N))
    at, key_at = Positions.arange(5, offset=7), Positions.arange(N)
    index, key_index = (Positions.shard_index(n, rank, world) for n in (5, N))
    mine, my_keys = at.shard(rank, world), key_at.shard(rank, world)
    want = attend(q, k, v, rope, at, key_positions=key_at)[:, :, index]
    k_here, v_here = k[:, :, key_index], v[:, :, key_index]
    all_of = {"key_positions": my_keys, "group": dist.group.WORLD}
    same(attend(q[:, :, index], k_here, v_here, rope, mine, **all_of), want)
    encoded = rope.key(k_here, my_keys)
    same(attend(q[:, :, index], encoded, v_here, rope, mine, keys_encoded=True, **all_of), want)


def asked_once(world: int) -> None:
    """The second layer does not ask where tokens stand; changed documents are asked for again."""
    rank = dist.get_rank()
    pos = Positions.packed([0, 4, N]).shard(rank, world)
    q = torch.randn(1, 2, len(pos), 8)
    calls = []
    original = ranks._gathered
    ranks._gathered = lambda x, group: calls.append(x.dtype) or original(x, group)
    try:
        for _ in range(2):
            calls.clear()
            attend(q, q, q, rw.NoPE(), pos, group=dist.group.WORLD)
        assert calls == [torch.float32] * 2  # keys and values
        pos.documents.zero_()
        calls.clear()
        changed = attend(q, q, q, rw.NoPE(), pos, group=dist.group.WORLD)
        assert calls == [torch.int64, torch.int64, torch.float32, torch.float32]
    finally:
        ranks._gathered = original
    fresh = copy.deepcopy(pos)  # of which nothing is remembered, the group least of all
    assert torch.equal(changed, attend(q, q, q, rw.NoPE(), fresh, group=dist.group.WORLD))


def ranks_that_disagree(world: int) -> None:
    """Refused on every rank: nobody is left waiting."""
    pos = Positions.arange(3) if dist.get_rank() else Positions.packed([0, 3])
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(ValueError, match=r"documents .* are none on rank 1 of the group, and \(S,\) on rank 0"):
        attend(q, q, q, rw.NoPE(), pos, group=dist.group.WORLD)


def mistakes_would_show(world: int) -> None:
    """The comparison can fail: with indices for positions, or the first heads' slopes on every rank."""
    rank, alibi = dist.get_rank(), rw.ALiBi(HEADS)
    pos = Positions.arange(N)
    q, k, v = (torch.randn(1, heads, N, 8) for heads in (HEADS, KV_HEADS, KV_HEADS))
    want = attend(q, k, v, alibi, pos)
    index, mine = Positions.shard_index(N, rank, world), pos.shard(rank, world)
    here = [t[:, :, index] for t in (q, k, v)]
    same(attend(*here, alibi, mine, group=dist.group.WORLD), want[:, :, index])
    wrong = attend(*here, alibi, torch.arange(len(index)), group=dist.group.WORLD)
    assert float((wrong - want[:, :, index]).abs().max()) > 0.05
    if world == 2:
        h = slice(rank * HEADS // 2, (rank + 1) * HEADS // 2)
        for first, right in ((h.start, True), (HEADS // 2 - h.start, False)):
            part = alibi.of_heads(first, HEADS // 2)
            off = attend(q[:, h], k[:, rank : rank + 1], v[:, rank : rank + 1], part, pos) - want[:, h]
            assert (float(off.abs().max()) < 1e-5) is right


# Distributed tensors


def splits(world: int) -> list[tuple[object, tuple[int, ...]]]:
    """Meshes, and the axis of q, k and v that each of their axes splits."""
    from torch.distributed.tensor import init_device_mesh

    if world == 2:
        line = init_device_mesh("cpu", (2,))
        return [(line, (axis,)) for axis in (0, 1, 2)]
    square = init_device_mesh("cpu", (2, 2))
    return [(square, axes) for axes in ((1, 2), (2, 1), (0, 2), (0, 1))] + [(init_device_mesh("cpu", (4,)), (2,))]


def distributed_tensors(world: int) -> None:
    """Samples, heads and tokens, one or two at a time."""
    from torch.distributed.tensor import Shard, distribute_tensor

    for (mesh, axes), case in product(splits(world), cases(SOME if world == 2 else ("alibi", "fire", "shaw-heads"))):
        model = Model(case)
        for pos, options in (
            (model.arange(N), {}),
            (Positions.arange(N, offset=torch.tensor([5, 1])), {"prefix": torch.tensor([7, 3]), "window": 6}),
        ):
            if model.encoding.causal_only and options:
                continue
            q, k, v = (t.detach() for t in model.project(model.tokens(SAMPLES, N), pos))
            want = with_gradients(model, q, k, v, pos, **options)
            placements = [Shard(axis) for axis in axes]
            inputs = [distribute_tensor(t, mesh, placements).requires_grad_() for t in (q, k, v)]
            out = attend(*inputs, model.encoding, pos, **options)
            assert list(out.placements) == placements
            assert out.shape == want[0].shape
            parameters = list(model.encoding.parameters())
            found = torch.autograd.grad(
                out,
                [*inputs, *parameters],
                distribute_tensor(upstream(want[0]), mesh, placements),
                allow_unused=True,
            )
            for ours, exact in zip([out, *found[:3]], want[:4], strict=True):
                same(ours.full_tensor(), exact)
            for ours, parameter, exact in zip(found[3:], parameters, want[4:], strict=True):
                same(summed(ours, parameter), exact)


def distributed_tensors_zigzag(world: int) -> None:
    """Tokens put in the order of the shards before they are split; positions in the same order."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    n, mesh = 4 * world, init_device_mesh("cpu", (world,))
    order = torch.cat([Positions.shard_index(n, rank, world) for rank in range(world)])
    pos, fire = Positions(torch.arange(n)[order]), rw.FIRE(HEADS, threshold=4.0)
    q, k, v = (torch.randn(1, heads, n, 8) for heads in (HEADS, KV_HEADS, KV_HEADS))
    inputs = [distribute_tensor(t[:, :, order], mesh, [Shard(2)]) for t in (q, k, v)]
    want = attend(q, k, v, fire, torch.arange(n)).detach()
    out = attend(*inputs, fire, pos).full_tensor()[:, :, Positions.unshard_index(n, world)]
    same(out, want)
    whole = attend(*(t.redistribute(placements=[Replicate()]) for t in inputs), fire, pos)
    same(whole.to_local()[:, :, Positions.unshard_index(n, world)], want)


def refused_splits(world: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh, alibi = init_device_mesh("cpu", (world,)), rw.ALiBi(HEADS)
    q, k = (torch.randn(1, heads, 4, 8) for heads in (HEADS, 3))

    def split(t: Tensor, placement: object) -> Tensor:
        return distribute_tensor(t, mesh, [placement])

    for given, message in (
        ((split(q, Shard(1)), split(k, Replicate())), "split alike"),
        ((split(q, Shard(2)), k), "k and v have to be"),
        ((split(q, Shard(3)), split(k, Shard(3))), "by sample, head or token"),
        ((split(q, Shard(1)), split(k, Shard(1))), f"6 query heads and 3 key heads do not divide among {world} ranks"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(given[0], given[1], given[1], alibi, torch.arange(4))
    with pytest.raises(ValueError, match="ALiBi was made for 8 heads, q has 6"):
        attend(*[split(q, Shard(2))] * 3, rw.ALiBi(8), torch.arange(4))
    with pytest.raises(ValueError, match="know their mesh"):
        attend(*[split(q, Shard(2))] * 3, alibi, torch.arange(4), group=dist.group.WORLD)


# PyTorch's own context parallelism


def context_parallel_buffers(world: int) -> None:
    """Positions that its context shards in place, as it does q, k and v: head and tail chunks to every rank."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    mesh = init_device_mesh("cpu", (world,))
    group, n = mesh.get_group(), 4 * world
    for case in cases():
        model = Model(case)
        pos = model.arange(n)
        q, k, v = (t.detach() for t in model.project(model.tokens(1, n), pos))
        want = attend(q, k, v, model.encoding, pos).detach()
        turned = [t.clone() for t in model.encoding.query_key(q, k, pos)]
        original = torch.nn.functional.scaled_dot_product_attention
        with torch.no_grad(), context_parallel(mesh, buffers=[q, k, v, pos.ids], buffer_seq_dims=[2, 2, 2, 0]):
            assert torch.nn.functional.scaled_dot_product_attention is not original  # it is theirs in here
            importlib.reload(fused)  # as if attention were imported in here first
            assert pos.ids.tolist() == Positions.zigzag(n, dist.get_rank(), world).ids.tolist()
            here = model.encoding.query_key(q, k, pos)  # what was remembered of the whole is forgotten
            rows = [t[:, :, pos.ids - model.start] for t in turned]
            assert all(torch.equal(ours, exact) for ours, exact in zip(here, rows, strict=True))
            out = attend(q, k, v, model.encoding, pos, group=group)
        assert fused.scaled_dot_product_attention is original
        (out,) = context_parallel_unshard(mesh, [out], [2])
        same(out, want)
        assert len(pos) == n


def load_balancers(world: int) -> None:
    """Its balancers, one of which splits every document by itself: ids and documents are buffers like any other."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.experimental import _attention as cp

    mesh = init_device_mesh("cpu", (world,))
    short, long = 2 * world, 4 * world
    n = short + long
    lengths = [[short, long], [long, short]]
    at = [Positions.packed([0, first, n]) for first, _ in lengths]
    pos = Positions(torch.stack([p.ids for p in at]), documents=torch.stack([p.documents for p in at]))
    balancers = [
        None,
        cp._HeadTailLoadBalancer(n, world, "cpu"),
        cp._PerDocumentHeadTailLoadBalancer(lengths, world, "cpu"),
    ]
    for balancer, case in product(balancers, cases(("t5", "rope", "shaw-heads"))):
        model = Model(case)
        q, k, v = (t.detach() for t in model.project(model.tokens(2, n), pos))
        want = attend(q, k, v, model.encoding, pos).detach()
        buffers = [q, k, v, pos.ids, pos.documents]
        *here, ids, documents = cp._context_parallel_shard(mesh, buffers, [2, 2, 2, 1, 1], balancer)
        mine = Positions(ids, documents=documents)
        out = attend(*here, model.encoding, mine, group=mesh.get_group()).detach()
        if balancer is not None:
            (out,) = cp.context_parallel_unshard(mesh, [out], [2], balancer)
        else:
            out = ranks._gathered(out.movedim(2, 0), mesh.get_group()).movedim(0, 2)
        same(out, want)


# The document


def recipe(world: int) -> None:
    """The code of docs/parallel.md, as it stands."""
    text = (Path(__file__).parent.parent / "docs" / "parallel.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S):
        exec(code, names)
    whole, rank = names["whole"], names["rank"]
    same(names["by_heads"], whole[:, rank * names["count"] :][:, : names["count"]])
    same(names["by_tokens"], whole[:, :, names["index"]])
    same(names["split"].full_tensor(), whole)
    same(names["gathered"], whole)
    table, found = names["t5"].table, names["t5"].table.grad
    out = attend(*(names[name] for name in "qkv"), names["t5"], torch.arange(names["n"]))
    same(found, torch.autograd.grad(out.square().mean(), table)[0])


ON_TWO = [
    every_encoding,
    bit_for_bit,
    other_dtypes,
    masks_and_structure,
    a_rank_that_sees_nothing,
    several_axes,
    other_keys,
    asked_once,
    ranks_that_disagree,
    mistakes_would_show,
    distributed_tensors,
    distributed_tensors_zigzag,
    refused_splits,
    context_parallel_buffers,
    load_balancers,
    recipe,
]
ON_FOUR = [
    every_encoding,
    bit_for_bit,
    several_axes,
    mistakes_would_show,
    distributed_tensors,
    distributed_tensors_zigzag,
    load_balancers,
    recipe,
]


def everything(world: int) -> None:
    """All of these, since processes are dear to start."""
    for job in ON_TWO if world == 2 else ON_FOUR:
        torch.manual_seed(0)  # the same on every rank
        job(world)
