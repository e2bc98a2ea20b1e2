"""How long the rotation takes, in ratios within one run: to transformers' eager rotation, and to copying the bytes.

    python benchmarks/rotation.py                      # one thread, a table on stdout
    python benchmarks/rotation.py --threads 2 --lengths 1,512 --json results.json

Queries (1, 32, S, 128) and keys (1, 8, S, 128), as in an 8B Llama. Every contender runs once in each round, in turn, so
that whatever else the machine does falls on all of them; the numbers are medians over the rounds. Needs transformers
(`pip install 'ropewalk[hf]'`).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import ropewalk as rw
from ropewalk.kernels import cpu

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Contenders = dict[str, Callable[[], object]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="1,16,512,4096", help="numbers of tokens")
    parser.add_argument("--dtypes", default="float32,bfloat16,float16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write all numbers there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    results = []
    for dtype in options.dtypes.split(","):
        for length in map(int, options.lengths.split(",")):
            print(f"{dtype}, {length} tokens …", file=sys.stderr)
            forward = measure(forward_contenders(DTYPES[dtype], length), options.rounds, length)
            trained = measure(trained_contenders(DTYPES[dtype], length), options.rounds, length)
            results.append({"dtype": dtype, "length": length, "seconds": {**forward, **trained}})
    angles = measure(angle_contenders(4096), options.rounds, 4096)
    machine = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "ropewalk": rw.__version__,
        "kernels": cpu.KERNELS.isa,
        "threads": options.threads,
        "machine": f"{platform.system()} {platform.machine()}",
    }
    show(results, angles, machine)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rotation": results, "angles": angles}, indent=1))


def forward_contenders(dtype: torch.dtype, length: int) -> Contenders:
    """Transformers' rotation, a copy and a clone of the same tensors, and ours in its forms."""
    q, k = torch.randn(1, 32, length, 128).to(dtype), torch.randn(1, 8, length, 128).to(dtype)
    to_q, to_k = torch.empty_like(q), torch.empty_like(k)
    cos, sin, wide_cos, wide_sin = tables(length, dtype)
    expected = apply_rotary_pos_emb(q, k, wide_cos, wide_sin)  # which rounds to the dtype at every step
    for ours, theirs in zip(rw.rotate_pair(q, k, cos, sin, layout="half"), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=30 * torch.finfo(dtype).eps)
    found: Contenders = {
        "transformers": lambda: apply_rotary_pos_emb(q, k, wide_cos, wide_sin),
        "copy": lambda: (to_q.copy_(q), to_k.copy_(k)),
        "clone": lambda: (q.clone(), k.clone()),
    }
    for layout in ("half", "interleaved"):
        found |= {
            f"new, {layout}": lambda layout=layout: rw.rotate_pair(q, k, cos, sin, layout=layout),
            f"in place, {layout}": lambda layout=layout: rw.rotate_pair_(q, k, cos, sin, layout=layout),
            f"out=, {layout}": lambda layout=layout: (
                rw.rotate(q, cos, sin, layout=layout, out=to_q),
                rw.rotate(k, cos, sin, layout=layout, out=to_k),
            ),
        }
    return found


def trained_contenders(dtype: torch.dtype, length: int) -> Contenders:
    """Forward and backward."""
    q, k = torch.randn(1, 32, length, 128).to(dtype), torch.randn(1, 8, length, 128).to(dtype)
    upstream = torch.randn_like(q), torch.randn_like(k)
    cos, sin, wide_cos, wide_sin = tables(length, dtype)
    q.requires_grad_(), k.requires_grad_()

    def both(turn: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(turn(), (q, k), upstream)

    return {
        "transformers, trained": both(lambda: apply_rotary_pos_emb(q, k, wide_cos, wide_sin)),
        "trained": both(lambda: rw.rotate_pair(q, k, cos, sin, layout="half")),
    }


def angle_contenders(length: int) -> Contenders:
    """Tables of cosine and sine: float32 with doubled columns, as transformers, against exact ones."""
    pos, spectrum = torch.arange(length), rw.geometric(128)
    inv_freq = spectrum.inv_freq.float()

    def theirs() -> tuple[Tensor, Tensor]:
        angle = (inv_freq[None, :, None] @ pos[None, None, :].float()).transpose(1, 2)
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()

    return {"transformers": theirs, "exact": lambda: rw.cos_sin(pos, spectrum)}


def tables(length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ours, and transformers' of the same angles: doubled and in the dtype of the activations."""
    cos, sin = rw.cos_sin(torch.arange(length), rw.geometric(128))
    return cos, sin, *(torch.cat((t, t), dim=-1)[None].to(dtype) for t in (cos, sin))


def measure(contenders: Contenders, rounds: int, length: int) -> dict[str, float]:
    """Median seconds of one call. Short calls are timed in bunches."""
    calls = max(1, 2000 // max(length, 10))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for warm in (True, *[False] * rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            if not warm:
                times[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(t) for name, t in times.items()}


def show(results: list[dict[str, object]], angles: dict[str, float], machine: dict[str, object]) -> None:
    """One row a dtype and length, each cell our time over transformers' / over the copy's."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="time ÷ transformers' eager rotation / ÷ copy_", caption=str(machine))
    ours = [n for n in results[0]["seconds"] if "transformers" not in n and n not in ("copy", "clone", "trained")]
    for column in ("dtype", "tokens", *ours, "forward + backward"):
        table.add_column(column, justify="left" if column == "dtype" else "right")
    for row in results:
        s = row["seconds"]
        cells = [f"{s[n] / s['transformers']:.3f} / {s[n] / s['copy']:.2f}" for n in ours]
        cells.append(f"{s['trained'] / s['transformers, trained']:.3f}")
        table.add_row(str(row["dtype"]), str(row["length"]), *cells)
    console.print(table)
    console.print(
        f"exact tables of 4096 positions ÷ transformers' float32: {angles['exact'] / angles['transformers']:.2f}"
    )


if __name__ == "__main__":
    main()
