"""注意機構を複数のプロセスに分けて計算し、一つのプロセスで計算した結果と比べます。

Attention split among several processes, by heads and by tokens, against one process that computes it all.

    torchrun --standalone --nproc-per-node 2 examples/parallel/attention.py

Prints the largest difference of the outputs and of the gradients, and exits with 1 if one is above 1e-5.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

import ropewalk as rw

BATCH, HEADS, KV_HEADS, LENGTH, HEAD_DIM = 2, 8, 4, 96, 16
TOLERANCE = 1e-5  # float32, relative to the largest number / float32 での丸めの程度

Result = tuple[Tensor, list[Tensor]]
"""出力と、q・k・v とパラメータの勾配。 / The output, and the gradients of q, k, v and the parameters."""


def encodings() -> list[rw.PositionalEncoding]:
    """学習するバイアス、固定のバイアス、内容を見るもの、回転。 / Learned, fixed, reading the content, and turning."""
    torch.manual_seed(0)
    return [rw.RoPE(HEAD_DIM), rw.ALiBi(HEADS), rw.T5(HEADS, std=1.0), rw.Shaw(HEAD_DIM, heads=HEADS, std=1.0)]


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """どのランクでも同じ q、k、v と、出力の勾配。 / q, k, v and the output's gradient, the same on every rank."""
    random = torch.Generator().manual_seed(1)
    shapes = [(BATCH, heads, LENGTH, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    q, k, v, upstream = (torch.randn(shape, generator=random) for shape in shapes)
    return q, k, v, upstream


def backward(out: Tensor, upstream: Tensor, *leaves: Tensor) -> list[Tensor]:
    """勾配（届かなければ 0）。 / Gradients; zeros where none arrives."""
    found = torch.autograd.grad(out, leaves, upstream, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def summed(gradients: list[Tensor]) -> list[Tensor]:
    """パラメータの勾配は全ランクの和です。 / Gradients of shared parameters are summed over the ranks."""
    for gradient in gradients:
        dist.all_reduce(gradient)
    return gradients


def alone(encoding: rw.PositionalEncoding) -> Result:
    """一つのプロセスで。 / In one process."""
    *qkv, upstream = inputs()
    q, k, v = (t.requires_grad_() for t in qkv)
    out = rw.attend(q, k, v, encoding, rw.Positions.arange(LENGTH))
    return out.detach(), backward(out, upstream, q, k, v, *encoding.parameters())


def by_heads(encoding: rw.PositionalEncoding, whole: Result) -> float:
    """ヘッドを分けます（テンソル並列）。 / Heads split: tensor parallelism."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = slice(rank * HEADS // world, (rank + 1) * HEADS // world)
    keys = slice(rank * KV_HEADS // world, (rank + 1) * KV_HEADS // world)
    q, k, v, upstream = inputs()
    q, k, v = (t[:, h].requires_grad_() for t, h in ((q, mine), (k, keys), (v, keys)))
    some = encoding.of_heads(mine.start, HEADS // world)
    out = rw.attend(q, k, v, some, rw.Positions.arange(LENGTH))
    dq, dk, dv, *shares = backward(out, upstream[:, mine], q, k, v, *some.parameters())
    out_whole, (dq_whole, dk_whole, dv_whole, *exact) = whole
    wanted = [out_whole[:, mine], dq_whole[:, mine], dk_whole[:, keys], dv_whole[:, keys], *exact]
    return difference([out, dq, dk, dv, *summed(shares)], wanted)


def by_tokens(encoding: rw.PositionalEncoding, whole: Result, scheme: str) -> float:
    """トークンを分けます（コンテキスト並列）。 / Tokens split: context parallelism."""
    rank, world = dist.get_rank(), dist.get_world_size()
    index = rw.Positions.shard_index(LENGTH, rank, world, scheme=scheme)
    positions = rw.Positions.arange(LENGTH).shard(rank, world, scheme=scheme)
    *qkv, upstream = (t[:, :, index] for t in inputs())
    q, k, v = (t.requires_grad_() for t in qkv)
    out = rw.attend(q, k, v, encoding, positions, group=dist.group.WORLD)
    here = backward(out, upstream, q, k, v, *encoding.parameters())
    out_whole, exact = whole
    wanted = [t[:, :, index] for t in (out_whole, *exact[:3])] + exact[3:]
    return difference([out, *here[:3], *summed(here[3:])], wanted)


def by_mesh(encoding: rw.PositionalEncoding, whole: Result, axis: int) -> float:
    """DTensor を渡すだけです。位置は全体のもの。 / Distributed tensors, and the positions of the whole."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    *qkv, upstream = (distribute_tensor(t, mesh, [Shard(axis)]) for t in inputs())
    q, k, v = (t.requires_grad_() for t in qkv)
    out = rw.attend(q, k, v, encoding, rw.Positions.arange(LENGTH))
    here = backward(out, upstream, q, k, v, *encoding.parameters())
    split = [t.full_tensor() for t in (out, *here[:3]) if isinstance(t, DTensor)]
    return difference(split + summed(here[3:]), [whole[0], *whole[1]])


def difference(ours: list[Tensor], wanted: list[Tensor]) -> float:
    """最大の相対差（全ランクで）。 / The largest difference on any rank, relative to the largest number."""
    off = [float((a.detach() - b).abs().max() / b.abs().max()) for a, b in zip(ours, wanted, strict=True)]
    worst = torch.tensor(max(off))
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


def main() -> int:
    """表を一度だけ出力します。 / Prints the table once."""
    dist.init_process_group("gloo")
    if KV_HEADS % dist.get_world_size():
        print(f"{KV_HEADS} key heads do not divide among {dist.get_world_size()} processes", file=sys.stderr)
        return 2
    worst = 0.0
    for encoding in encodings():
        whole = alone(encoding)
        found = {"heads": by_heads(encoding, whole)}
        for scheme in ("contiguous", "zigzag"):
            found[f"tokens, {scheme}"] = by_tokens(encoding, whole, scheme)
        for axis, what in ((1, "heads"), (2, "tokens")):
            found[f"DTensor, {what}"] = by_mesh(encoding, whole, axis)
        worst = max(worst, *found.values())
        if dist.get_rank() == 0:
            for split, off in found.items():
                print(f"{encoding.label:8} {split:20} {off:.1e}")
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes and one differ by {worst:.1e} at most, {TOLERANCE:.0e} is allowed")
    dist.destroy_process_group()
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # DTensor を使うと gloo のスレッドが残り、Python の終了処理と競合して異常終了することがあります。
    # After DTensor gloo's threads stay, and one that still ends its work while Python takes itself down aborts it.
    os._exit(status)
