// Which axis of position each pair of channels follows, for images, video and text: ropewalk.bands.

import { geometric } from "ropewalk/math/spectra.js";

/** All pairs of the first axis, then of the next (Qwen2-VL). */
export const chunked = (sections, names = "THW") => [...names].map((a, n) => a.repeat(sections[n] ?? 0)).join("");

/** Axes in turn, what is over belongs to the first (Qwen3-VL). */
export function interleaved(sections, names = "THW") {
  const pairs = sections.reduce((a, b) => a + b, 0),
    out = Array(pairs).fill(names[0]),
    n = sections.length;
  for (let axis = 1; axis < n; axis++) {
    for (let m = 0; m < sections[axis]; m++) out[axis + m * n] = names[axis];
  }
  return out.join("");
}

/** Height and width in turn, time last (ERNIE 4.5 VL); sections are those of H, W and T. */
export const ernie = ([h, , t]) => "HW".repeat(h) + "T".repeat(t);

/** Each axis has channels, and a ladder of frequencies, of its own (vision towers). */
export const axial = (sections, names = "HW") => chunked(sections, names);

/** The schemes that the page shows: sections are counts of pairs, `each` tells whether axes have their own ladders. */
export const SCHEMES = {
  chunked: { axes: chunked([16, 24, 24]), base: 1e6, each: false, model: "Qwen2-VL" },
  interleaved: { axes: interleaved([24, 20, 20]), base: 5e6, each: false, model: "Qwen3-VL" },
  ernie: { axes: ernie([22, 22, 20]), base: 5e5, each: false, model: "ERNIE 4.5 VL" },
  axial: { axes: axial([18, 18]), base: 1e4, each: true, model: "Qwen2-VL (vision)" },
};

/** Radians per step of every pair. */
export function frequencies({ axes, base, each }) {
  if (!each) return geometric(2 * axes.length, base);
  const own = {},
    seen = {};
  for (const a of axes) own[a] ??= geometric(2 * [...axes].filter((b) => b === a).length, base);
  return Float64Array.from(axes, (a) => own[a][(seen[a] = (seen[a] ?? -1) + 1)]);
}

/** The score of vectors of ones whose tokens are (t, h, w) apart: Σ 2 cos(angle). */
export function score(scheme, inv_freq, apart) {
  let sum = 0;
  for (let i = 0; i < inv_freq.length; i++) sum += 2 * Math.cos(apart[scheme.axes[i]] * inv_freq[i]);
  return sum;
}
