"""What each rank of test_distributed.py does: a file of its own, so that a new process can import it."""

import multiprocessing
from datetime import timedelta
from itertools import product

import pytest
import torch
import torch.distributed as dist

import ropewalk as rw

BATCH, HEADS, KEY_HEADS, LENGTH, WIDTH = 4, 6, 5, 13, 16
"""On four ranks heads and tokens do not divide, and one rank holds no head."""


def together(world, folder, job):
    """Do a job on so many ranks, each a process.

    Where that can be, all are forked off one server, which has imported what they need: new interpreters would spend
    most of their time on that, and the first might wait too long for the last.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    if forks:
        from multiprocessing.forkserver import set_forkserver_preload

        set_forkserver_preload(["torch.distributed.tensor", "torch._dynamo", "ropewalk.attention", "pytest"])
    method = "forkserver" if forks else "spawn"
    torch.multiprocessing.start_processes(start, (world, str(folder / "meet"), job), world, start_method=method)


def start(rank, world, meet, job):
    """Meet the other ranks, and do the job with them."""
    torch.set_num_threads(1)
    patience = timedelta(seconds=60)  # for ranks that wait for one another: half an hour if nothing is said
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world, timeout=patience)
    try:
        job(world)
    finally:
        dist.destroy_process_group()


def heads_first():
    """q, k and what comes from upstream for each, the same on every rank."""
    random = torch.Generator().manual_seed(5)
    return [
        torch.randn(BATCH, heads, LENGTH, WIDTH, generator=random) for heads in (HEADS, KEY_HEADS, HEADS, KEY_HEADS)
    ]


def tables(batched):
    """Cosine and sine of the same or of other positions in each sample."""
    pos = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 7 if batched else torch.arange(LENGTH)
    return rw.cos_sin(pos, rw.geometric(WIDTH - 4))


def meshes(world):
    """A mesh, and how x and its tables are split on it, by axes `(batch, heads, tokens)`."""
    from torch.distributed.tensor import init_device_mesh

    line = init_device_mesh("cpu", (world,))
    if world == 2:
        return [(line, (axis,)) for axis in (0, 1, 2)]
    square = init_device_mesh("cpu", (2, world // 2))
    return [(line, (1,)), *((square, axes) for axes in ((0, 2), (1, 2), (0, 1)))]


def shares(axes, batched):
    """Placements of x and of its tables."""
    from torch.distributed.tensor import Replicate, Shard

    of_table = {0: Shard(0) if batched else Replicate(), 1: Replicate(), 2: Shard(1 if batched else 0)}
    return [Shard(axis) for axis in axes], [of_table[axis] for axis in axes]


def every_split(world):
    """Batch, heads, tokens and two of them: no communication, forward or backward, and not a bit of difference."""
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    for (mesh, axes), (batched, layout) in product(meshes(world), ((False, "half"), (True, "interleaved"))):
        of_x, of_table = shares(axes, batched)
        whole = [t.requires_grad_(i < 2) for i, t in enumerate(heads_first())]
        q, k, *upstream = (distribute_tensor(t.detach(), mesh, of_x) for t in whole)
        cos, sin = (distribute_tensor(t, mesh, of_table) for t in tables(batched))
        q.requires_grad_(), k.requires_grad_()
        how = {"layout": layout, "place": "trailing", "impl": "native"}
        with CommDebugMode() as communication:
            one = rw.rotate(q, cos, sin, inverse=True, **how)
            two = rw.rotate_pair(q, k, cos, sin, **how)
            torch.autograd.backward((one, *two), (upstream[0], *upstream))
        assert communication.get_total_counts() == 0, (axes, batched, communication.get_comm_counts())
        alone = [rw.rotate(whole[0], *tables(batched), inverse=True, **how)]
        alone += rw.rotate_pair(*whole[:2], *tables(batched), **how)
        torch.autograd.backward(alone, (whole[2], *whole[2:]))
        for ours, exact in zip((one, *two, q.grad, k.grad), (*alone, whole[0].grad, whole[1].grad), strict=True):
            assert list(ours.placements) == of_x
            assert torch.equal(ours.full_tensor(), exact)


def tokens_before_heads(world):
    """`(B, S, heads, D)`, and tables with as many axes."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh("cpu", (world,))
    x, (cos, sin) = heads_first()[0].transpose(1, 2).contiguous(), (t[None, :, None] for t in tables(False))
    for of_x, of_table in ((Shard(0), Replicate()), (Shard(1), Shard(1)), (Shard(2), Replicate())):
        split = [distribute_tensor(t, mesh, [s]) for t, s in ((x, of_x), (cos, of_table), (sin, of_table))]
        with CommDebugMode() as communication:
            ours = rw.rotate(*split, layout="half", seq_dim=-3, impl="native")
        assert communication.get_total_counts() == 0
        assert torch.equal(ours.full_tensor(), rw.rotate(x, cos, sin, layout="half", seq_dim=-3))


def norm_and_its_weight(world):
    """The weight's gradient is a sum over ranks; all else is each rank's own."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    for (mesh, axes), batched in product(meshes(world), (False, True)):
        of_x, of_table = shares(axes, batched)
        x, _, upstream, _ = heads_first()
        weight = torch.linspace(0.5, 1.5, WIDTH)
        ours = [distribute_tensor(x, mesh, of_x), distribute_tensor(weight, mesh, [Replicate()] * mesh.ndim)]
        split = [distribute_tensor(t, mesh, of_table) for t in tables(batched)]
        alone = [x, weight]
        for leaf in (*ours, *alone):
            leaf.requires_grad_()
        y = rw.norm_rotate(*ours, *split, layout="half", impl="native")
        y.backward(distribute_tensor(upstream, mesh, of_x))
        exact = rw.norm_rotate(*alone, *tables(batched), layout="half", impl="native")
        exact.backward(upstream)
        assert torch.equal(y.full_tensor(), exact)
        torch.testing.assert_close(ours[0].grad.full_tensor(), x.grad)
        torch.testing.assert_close(ours[1].grad.full_tensor(), weight.grad)


def learned_tables(world):
    """Gradients of cos and sin, summed over what other ranks hold."""
    from torch.distributed.tensor import distribute_tensor

    for (mesh, axes), batched in product(meshes(world), (False, True)):
        of_x, of_table = shares(axes, batched)
        x, _, upstream, _ = heads_first()
        alone = [t.clone().requires_grad_() for t in tables(batched)]
        split = [distribute_tensor(t.detach(), mesh, of_table).requires_grad_() for t in alone]
        y = rw.rotate(distribute_tensor(x, mesh, of_x), *split, layout="half", impl="native")
        y.backward(distribute_tensor(upstream, mesh, of_x))
        rw.rotate(x, *alone, layout="half").backward(upstream)
        for ours, exact in zip(split, alone, strict=True):
            torch.testing.assert_close(ours.grad.full_tensor(), exact.grad)


def what_is_not_split_alike(world):
    """Channels are gathered; tables that every rank has are cut; plain tensors count as such; in place is eager."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (world,))
    q, k, *_ = heads_first()
    cos, sin = tables(False)
    exact = rw.rotate_pair(q, k, cos, sin, layout="half")
    by_channels = [distribute_tensor(t, mesh, [Shard(3)]) for t in (q, k)]
    by_tokens = [distribute_tensor(t, mesh, [Shard(2)]) for t in (q, k)]
    whole = [distribute_tensor(t, mesh, [Replicate()]) for t in (cos, sin)]
    for ours in (
        rw.rotate_pair(*by_channels, *whole, layout="half", impl="native"),
        rw.rotate_pair(*by_tokens, *whole, layout="half", impl="native"),
        rw.rotate_pair(by_tokens[0], by_channels[1], cos, sin, layout="half", impl="native"),
        rw.rotate_pair_(*(t.clone() for t in by_tokens), *whole, layout="half"),
    ):
        assert all(torch.equal(a.full_tensor(), b) for a, b in zip(ours, exact, strict=True))
    rope = rw.RoPE(WIDTH, layout="interleaved", rotary_dim=WIDTH - 4, impl="native")
    for ours, alone in zip(
        rope.query_key(*by_tokens, torch.arange(LENGTH)), rope.query_key(q, k, torch.arange(LENGTH)), strict=True
    ):
        assert list(ours.placements) == [Shard(2)]
        assert torch.equal(ours.full_tensor(), alone)
    with pytest.raises(ValueError, match="distributed tensors are not written in place"):
        rw.rotate_(by_tokens[0], *whole, layout="half", impl="native")


def compiled(world):
    """In one graph, where DTensor was there before the kernels."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (world,))
    q, *_ = heads_first()
    split = distribute_tensor(q, mesh, [Shard(1)])
    cos, sin = (distribute_tensor(t, mesh, [Replicate()]) for t in tables(False))
    turn = torch.compile(lambda x: rw.rotate(x, cos, sin, layout="half"), fullgraph=True, backend="eager")
    assert torch.equal(turn(split).full_tensor(), rw.rotate(q, *tables(False), layout="half"))


def everything(world):
    """All of these, since processes are dear to start."""
    compiled(world)  # first of all, so that no call before has loaded the rules
    every_split(world)
    tokens_before_heads(world)
    norm_and_its_weight(world)
    learned_tables(world)
    what_is_not_split_alike(world)
