"""Every encoding once more, written from its paper in plain Python floats and loops: what the library is held against.

Nothing here imports the library or uses tensors. Vectors are lists, one query and one key at a time, and what a real
implementation would never build (Shaw's vector for each pair of tokens, say) is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

Vector = Sequence[float]
Table = Sequence[Vector]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))


def attention(
    q: Table,
    k: Table,
    v: Table,
    i: Sequence[int],
    j: Sequence[int],
    *,
    causal: bool,
    scale: float,
    turn_query: Callable[[Vector, int], Vector] = lambda x, at: x,
    turn_key: Callable[[Vector, int], Vector] = lambda x, at: x,
    key_vector: Callable[[int], Vector] | None = None,
    value_vector: Callable[[int], Vector] | None = None,
    bias: Callable[[int, int], float] = lambda i, j: 0.0,
    contextual: Callable[[Vector, list[float], Sequence[int], int], list[float]] | None = None,
) -> list[list[float]]:
    """One head of attention. `key_vector` and `value_vector` are of the distance j - i, `bias` of i and j."""
    out = []
    for query, at in zip(q, i, strict=True):
        turned = turn_query(query, at)
        row = []
        for key, there in zip(k, j, strict=True):
            key = turn_key(key, there)
            if key_vector is not None:
                key = [a + b for a, b in zip(key, key_vector(there - at), strict=True)]
            score = scale * dot(turned, key) + bias(at, there)
            row.append(score if there <= at or not causal else -math.inf)
        if contextual is not None:
            row = [s + c for s, c in zip(row, contextual(turned, row, j, at), strict=True)]
        top = max(row)
        weights = [math.exp(s - top) for s in row]
        total = math.fsum(weights)
        weights = [w / total for w in weights]
        mixed = []
        for c in range(len(v[0])):
            terms = []
            for w, value, there in zip(weights, v, j, strict=True):
                vector = value_vector(there - at)[c] if value_vector is not None else 0.0
                terms.append(w * (value[c] + vector))
            mixed.append(math.fsum(terms))
        out.append(mixed)
    return out


# Place 1


def sinusoid(pos: int, dim: int, base: float, order: str, ladder: str) -> list[float]:
    """Attention Is All You Need §3.5; tensor2tensor's order and ladder; cosines first."""
    half = (dim + 1) // 2
    if ladder == "paper":
        speed = [base ** (-2 * p / dim) for p in range(half)]
    else:
        speed = [math.exp(-p * math.log(base) / max(half - 1, 1)) for p in range(half)]
    sines = [math.sin(pos * s) for s in speed]
    cosines = [math.cos(pos * s) for s in speed][: dim // 2]
    if order == "interleaved":
        return [sines[c // 2] if c % 2 == 0 else cosines[c // 2] for c in range(dim)]
    return [*sines, *cosines] if order == "concatenated" else [*cosines, *sines]


# Place 2


def pairs(width: int, layout: str) -> list[tuple[int, int]]:
    """Which channels turn together."""
    if layout == "half":
        return [(p, p + width // 2) for p in range(width // 2)]
    return [(2 * p, 2 * p + 1) for p in range(width // 2)]


def turned(
    x: Vector, at: float, *, base: float, layout: str, width: int, trailing: bool, zeta_power: float = 0.0
) -> list[float]:
    """RoFormer, equations 14-16; with `zeta_power`, xPos, equation 12, whose exponent it is."""
    out = list(x)
    first = len(x) - width if trailing else 0
    for p, (a, b) in enumerate(pairs(width, layout)):
        angle = at * base ** (-2 * p / width)
        grow = ((2 * p / width + 0.4) / 1.4) ** zeta_power
        one, other = x[first + a], x[first + b]
        out[first + a] = grow * (one * math.cos(angle) - other * math.sin(angle))
        out[first + b] = grow * (one * math.sin(angle) + other * math.cos(angle))
    return out


# Place 3


def t5_bucket(distance: int, *, bidirectional: bool, buckets: int, max_distance: int) -> int:
    """Raffel et al. §2.1 as mesh-tensorflow has it: n is how far the key lies *before* the query."""
    n, first = -distance, 0
    if bidirectional:
        buckets //= 2
        if n < 0:
            first, n = buckets, -n
    else:
        n = max(n, 0)
    exact = buckets // 2
    if n < exact or exact == 0:
        return first + (n if n < exact else 0)
    steps = buckets - exact
    reached = steps * math.log(n / exact) / math.log(max_distance / exact)
    whole = round(reached)
    if abs(reached - whole) < 1e-9:  # a tie in floats: decide it in whole numbers
        meets = Fraction(n, exact) ** steps >= Fraction(max_distance, exact) ** whole
        reached = whole if meets else whole - 1
    return first + min(exact + math.floor(reached), buckets - 1)


def alibi_slopes(heads: int) -> list[float]:
    """The authors' rule, as their code states it."""

    def power_of_two(n: int) -> list[float]:
        ratio = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [ratio * ratio**h for h in range(n)]

    if math.log2(heads).is_integer():
        return power_of_two(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return power_of_two(closest) + alibi_slopes(2 * closest)[0::2][: heads - closest]


def kerple(distance: int, kernel: str, r1: float, r2: float) -> float:
    """Chi et al. §4."""
    n = abs(distance)
    if kernel == "log":
        return -r1 * math.log(1 + r2 * n)
    return -r1 * n**r2


def fire(
    i: int,
    j: int,
    *,
    c: float,
    threshold: float,
    first: tuple[Table, Vector],
    second: tuple[Table, Vector],
    bidirectional: bool,
) -> list[float]:
    """Li et al. §3 and appendix: one number for each head. `threshold` is the learned one."""
    distance = abs(i - j) if bidirectional else max(i - j, 0)
    way = max(i, j) if bidirectional else i

    def psi(x: float) -> float:
        return math.log(abs(c * x) + 1)

    x = psi(distance) / (psi(max(abs(threshold), way)) + 1e-6)
    hidden = [max(0.0, w[0] * x + b) for w, b in zip(*first, strict=True)]
    return [dot(w, hidden) + b for w, b in zip(*second, strict=True)]


def cope(
    query: Vector, row: list[float], j: Sequence[int], at: int, *, table: Table, bidirectional: bool
) -> list[float]:
    """Golovneva et al. §4: for each key the sum of gates between it and the query decides what is added."""

    def gate(s: float) -> float:
        return 0.0 if s == -math.inf else 1 / (1 + math.exp(-s))

    out = []
    for there in j:
        if there <= at:
            between = [s for s, t in zip(row, j, strict=True) if there <= t <= at]
        elif bidirectional:
            between = [s for s, t in zip(row, j, strict=True) if at < t <= there]
        else:
            between = []
        p = min(math.fsum(gate(s) for s in between), len(table) - 1)
        low, high = math.floor(p), math.ceil(p)
        out.append((1 - (p - low)) * dot(query, table[low]) + (p - low) * dot(query, table[high]))
    return out
