// A small attention layer with one head: enough to see what it does to the order of words.

import { Generator } from "ropewalk/math/random.js";
import { geometric } from "ropewalk/math/spectra.js";
import { sinusoid } from "ropewalk/math/panel.js";
import { alibiSlopes } from "ropewalk/math/bias.js";

export const DIM = 32;

/** A sentence cut into tokens: words, or, where there is no space, characters. */
export function tokens(sentence) {
  const words = sentence.trim().split(/\s+/u).filter(Boolean);
  return words.length > 1 ? words : [...sentence.trim()];
}

/** Every word has one random vector, the same in every sentence: its seed is made of its letters. */
function vector(word) {
  let seed = 42;
  for (const letter of word) seed = (Math.imul(seed, 31) + letter.codePointAt(0)) >>> 0;
  return new Generator(seed).normal(DIM);
}

const PROJECTIONS = (() => {
  const all = new Generator(42).normal(3 * DIM * DIM);
  return [0, 1, 2].map((n) => all.subarray(n * DIM * DIM, (n + 1) * DIM * DIM));
})();

function project(x, matrix) {
  const out = new Float64Array(DIM);
  for (let r = 0; r < DIM; r++) {
    for (let c = 0; c < DIM; c++) out[r] += (matrix[r * DIM + c] * x[c]) / Math.sqrt(DIM);
  }
  return out;
}

function rotate(x, pos) {
  const out = new Float64Array(DIM);
  geometric(DIM).forEach((f, i) => {
    const [c, s] = [Math.cos(pos * f), Math.sin(pos * f)];
    out[2 * i] = x[2 * i] * c - x[2 * i + 1] * s;
    out[2 * i + 1] = x[2 * i] * s + x[2 * i + 1] * c;
  });
  return out;
}

/**
 * Attention of every word to every word, and the average of what it hands on.
 * @param {"nope"|"sinusoidal"|"alibi"|"rope"} encoding
 */
export function attend(words, encoding, { causal = false } = {}) {
  const slope = alibiSlopes(8)[1]; // the one head of a single-head layer would have 1/256, too gentle for a sentence
  const x = words.map((w, pos) => {
    const v = Float64Array.from(vector(w));
    return encoding === "sinusoidal" ? v.map((a, c) => a + sinusoid(pos, DIM)[c]) : v;
  });
  const [q, k, v] = PROJECTIONS.map((m) => x.map((row) => project(row, m)));
  const turn = encoding === "rope" ? rotate : (row) => row;
  const keys = k.map((row, j) => turn(row, j));
  const pooled = new Float64Array(DIM),
    weights = [];
  q.forEach((row, i) => {
    const query = turn(row, i);
    const scores = keys.map((key, j) => {
      if (causal && j > i) return -Infinity;
      const product = query.reduce((sum, a, c) => sum + a * key[c], 0) / Math.sqrt(DIM);
      return encoding === "alibi" ? product - slope * Math.abs(i - j) : product;
    });
    const top = Math.max(...scores),
      powers = scores.map((s) => Math.exp(s - top));
    const total = powers.reduce((a, b) => a + b, 0);
    weights.push(powers.map((p) => p / total));
    for (let c = 0; c < DIM; c++) {
      pooled[c] += weights[i].reduce((sum, w, j) => sum + w * v[j][c], 0) / words.length;
    }
  });
  return { weights, pooled };
}

/** How far apart two averages are, relative to the first. */
export function apart(one, other) {
  const size = (x) => Math.sqrt(x.reduce((sum, a) => sum + a * a, 0));
  return size(one.map((a, c) => a - other[c])) / size(one);
}
