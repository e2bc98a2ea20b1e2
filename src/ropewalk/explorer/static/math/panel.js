// One of each encoding, drawn from one seed, and the score of a query with keys around it: what `ropewalk decay` and
// `ropewalk compare` compute, with the same numbers.

import { Generator } from "ropewalk/math/random.js";
import { geometric, turning } from "ropewalk/math/spectra.js";
import { alibiSlopes, bucket, fireRatio, kerple } from "ropewalk/math/bias.js";

/** Names in teaching order. */
export const NAMES = [
  "nope",
  "sinusoidal",
  "learned",
  "relative_bias",
  "shaw",
  "t5",
  "alibi",
  "kerple",
  "fire",
  "cope",
  "rope",
  "xpos",
];

/**
 * All tables, drawn in the order of the registry as torch draws them, for positions below `length` (9 or more).
 * Tables are from N(0, 1), neighbours are paired, keys may come after the query: the settings of the article.
 */
export function draw({ dim, length, seed, base = 10000 }) {
  const random = new Generator(seed),
    twice = (count) => (random.normal(count), random.normal(count));
  const learned = twice(length * dim);
  const relative = twice(2 * length - 1);
  const shaw = { key: random.normal(33 * dim), value: random.normal(33 * dim) };
  const t5 = random.normal(32);
  const kerpleParameters = { r1: random.uniform(0.01, 2), r2: random.uniform(0.01, 0.999) };
  const network = (linear(random), linear(random));
  const cope = random.normal(length * dim);
  return { dim, length, base, learned, relative, shaw, t5, kerple: kerpleParameters, fire: network, cope };
}

/** Weights of FIRE's network with 32 hidden units, as torch draws those of two linear layers. */
function linear(random) {
  const some = (count, bound) => Float64Array.from({ length: count }, () => random.uniform(-bound, bound));
  const each = 1 / Math.sqrt(32);
  return { weight1: some(32, 1), bias1: some(32, 1), weight2: some(32, each), bias2: some(1, each)[0] };
}

/** What FIRE's network says of a share of the way. */
export function fireNetwork({ weight1, bias1, weight2, bias2 }, ratio) {
  let out = bias2;
  for (let i = 0; i < 32; i++) out += weight2[i] * Math.max(0, weight1[i] * ratio + bias1[i]);
  return out;
}

/** The vector that a sinusoidal encoding adds at a position; channels interleaved as in the paper. */
export function sinusoid(pos, dim, base = 10000) {
  const out = new Float64Array(dim);
  geometric(dim, base).forEach((f, i) => {
    out[2 * i] = Math.sin(pos * f);
    out[2 * i + 1] = Math.cos(pos * f);
  });
  return out;
}

const ones = (dim) => new Float64Array(dim).fill(1);

/** Pairs of query and key: `"ones"`, or `pairs` normal random ones as `ropewalk decay --vectors random` draws them. */
export function vectors(kind, dim, { pairs = 1000, seed = 42 } = {}) {
  if (kind === "ones") return { q: [ones(dim)], k: [ones(dim)] };
  const all = new Generator(seed).normal(2 * pairs * dim);
  const row = (n) => Float64Array.from(all.subarray(n * dim, (n + 1) * dim));
  const rows = (first) => Array.from({ length: pairs }, (_, n) => row(first + n));
  return { q: rows(0), k: rows(pairs) };
}

/** What is added to the score at (i, j), by encodings whose bias does not read the content; null for others. */
function contentFree(name, drawn) {
  const slope = alibiSlopes(1)[0];
  return (
    {
      nope: () => 0,
      relative_bias: (i, j) => drawn.relative[j - i + drawn.length - 1],
      t5: (i, j) => drawn.t5[bucket(j - i)],
      alibi: (i, j) => -slope * Math.abs(i - j),
      kerple: (i, j) => kerple(Math.abs(i - j), drawn.kerple),
      fire: (i, j) => fireNetwork(drawn.fire, fireRatio(i, j)),
    }[name] ?? null
  );
}

const dot = (a, b, from = 0) => {
  let sum = 0;
  for (let c = 0; c < a.length; c++) sum += a[c] * b[from + c];
  return sum;
};

/**
 * Scores of each query with its key standing at query, query ± 1, …: mean over the pairs, and standard deviation.
 * @param {number[]} distances whole numbers from 0 on, rising.
 * @param {number} side 1: keys stand after the query; -1: before it.
 */
export function curve(name, drawn, { q, k }, query, distances, side = 1) {
  const count = distances.length,
    sum = new Float64Array(count),
    squares = new Float64Array(count);
  const one = { ...prepare(name, drawn, query, distances, side), scores: new Float64Array(count) };
  for (let p = 0; p < q.length; p++) {
    one.score(q[p], k[p], one.scores);
    for (let n = 0; n < count; n++) {
      sum[n] += one.scores[n];
      squares[n] += one.scores[n] * one.scores[n];
    }
  }
  const pairs = q.length,
    mean = sum.map((s) => s / pairs);
  if (pairs === 1) return { mean, std: null };
  return { mean, std: squares.map((s, n) => Math.sqrt(Math.max(0, (s - pairs * mean[n] ** 2) / (pairs - 1)))) };
}

/** A function that fills in the scores of one pair of vectors; everything that all pairs share is done once, here. */
function prepare(name, drawn, query, distances, side) {
  const { dim, base } = drawn,
    at = distances.map((d) => query + side * d);
  const bias = contentFree(name, drawn);
  if (bias) {
    const added = at.map((j) => bias(query, j));
    return { score: (q, k, out) => fill(out, dot(q, k), added) };
  }
  if (name === "rope" || name === "xpos") return turned(name, drawn, distances, side);
  if (name === "sinusoidal") return added(drawn, query, at);
  if (name === "learned") {
    const score = (q, k, out) => {
      const moved = q.map((v, c) => v + drawn.learned[query * dim + c]),
        same = dot(moved, k);
      for (let n = 0; n < out.length; n++) out[n] = same + dot(moved, drawn.learned, at[n] * dim);
    };
    return { score };
  }
  if (name === "shaw") {
    const row = distances.map((d) => (Math.min(d, 16) * side + 16) * dim);
    const score = (q, k, out) => {
      const same = dot(q, k),
        by = new Map();
      for (let n = 0; n < out.length; n++) {
        if (!by.has(row[n])) by.set(row[n], dot(q, drawn.shaw.key, row[n]));
        out[n] = same + by.get(row[n]);
      }
    };
    return { score };
  }
  return { score: (q, k, out) => cope(drawn, dot(q, k), q, out, side) };
}

function fill(out, same, added) {
  for (let n = 0; n < out.length; n++) out[n] = same + added[n];
}

const remembered = new Map();

/** cos and sin of every pair at 0, 1, 2, …, at least `count` of them; kept, since a slider asks again and again. */
function waves(dim, base, count) {
  const length = count <= 128 ? 128 : count <= 4097 ? 4097 : count,
    key = `${dim} ${base} ${length}`;
  if (!remembered.has(key)) {
    if (remembered.size > 8) remembered.clear();
    remembered.set(
      key,
      Array.from(geometric(dim, base), (f) => turning(f, 0, length)),
    );
  }
  return remembered.get(key);
}

/** Sinusoids: (q + e_m)·(k + e_n), pair by pair. */
function added({ dim, base }, query, at) {
  const all = waves(dim, base, Math.max(query, ...at) + 1),
    mine = sinusoid(query, dim, base),
    where = Int32Array.from(at);
  const score = (q, k, out) => {
    const moved = q.map((v, c) => v + mine[c]),
      same = dot(moved, k);
    out.fill(same);
    all.forEach(([cos, sin], i) => {
      const [onSin, onCos] = [moved[2 * i], moved[2 * i + 1]];
      for (let n = 0; n < out.length; n++) out[n] += onSin * sin[where[n]] + onCos * cos[where[n]];
    });
  };
  return { score };
}

/** xPos's factor of every pair at 0, 1, 2, …, at least `count` of them; kept, as `waves` are. */
function dampings(dim, side, count) {
  const length = count <= 128 ? 128 : count <= 4097 ? 4097 : count,
    key = `xpos ${dim} ${side} ${length}`;
  if (!remembered.has(key)) {
    const factors = (_, i) => {
      const zeta = ((2 * i) / dim + 0.4) / 1.4;
      return Float64Array.from({ length }, (_, d) => Math.pow(zeta, (-side * d) / 512));
    };
    remembered.set(key, Array.from({ length: dim / 2 }, factors));
  }
  return remembered.get(key);
}

/** RoPE: Σ over pairs of Re(q k*) cos(dω) + Im(q k*) sin(dω); xPos damps each pair too. */
function turned(name, { dim, base }, distances, side) {
  const where = Int32Array.from(distances),
    count = where.length,
    all = waves(dim, base, where[count - 1] + 1);
  const damping = name === "xpos" && dampings(dim, side, where[count - 1] + 1);
  const score = (q, k, out) => {
    out.fill(0);
    all.forEach(([cos, sin], i) => {
      const [q1, q2, k1, k2] = [q[2 * i], q[2 * i + 1], k[2 * i], k[2 * i + 1]],
        damped = damping && damping[i];
      const even = q1 * k1 + q2 * k2,
        odd = side * (q2 * k1 - q1 * k2);
      if (damped) for (let n = 0; n < count; n++) out[n] += damped[where[n]] * (even * cos[where[n]] + odd * sin[where[n]]);
      else if (odd === 0) for (let n = 0; n < count; n++) out[n] += even * cos[where[n]];
      else for (let n = 0; n < count; n++) out[n] += even * cos[where[n]] + odd * sin[where[n]];
    });
  };
  return { score };
}

/** CoPE: every key between is counted by how much the query cares for it; here all keys are alike. */
function cope({ cope: table, dim, length }, same, q, out, side) {
  const gate = 1 / (1 + Math.exp(-same)),
    rows = new Map();
  const at = (p) => {
    if (!rows.has(p)) rows.set(p, dot(q, table, p * dim));
    return rows.get(p);
  };
  for (let n = 0; n < out.length; n++) {
    // a later key counts the gates after the query up to its own; an earlier one counts those up to the query's own
    const p = Math.min(n === 0 ? gate : gate * (side > 0 ? n : n + 1), length - 1),
      low = Math.floor(p);
    out[n] = same + at(low) + (at(Math.ceil(p)) - at(low)) * (p - low);
  }
}
