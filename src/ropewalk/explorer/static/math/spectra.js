// How fast each pair of channels turns, and what a context extension changes of it.
// The same formulas, names and defaults as the Python modules ropewalk.spectra and ropewalk.extensions, in float64.

export const TURN = 2 * Math.PI;

/** Radians per token of each pair: base^(-2i/width). */
export function geometric(width, base = 10000) {
  return Float64Array.from({ length: width >> 1 }, (_, i) => Math.pow(base, (-2 * i) / width));
}

const sharpness = (factor, mscale = 1) => (factor <= 1 ? 1 : 0.1 * mscale * Math.log(factor) + 1);
const clip = (x, low, high) => Math.min(Math.max(x, low), high);
const mix = (f, factor, keep) => (f / factor) * (1 - keep) + f * keep;

/** How much of each pair YaRN interpolates: 0 up to the lower bound, 1 from the upper, linear in the index. */
function rampInIndex({ original_length, beta_fast, beta_slow, truncate }, width, base) {
  const index = (turns) => (width * Math.log(original_length / (turns * TURN))) / (2 * Math.log(base));
  let [low, high] = [index(beta_fast), index(beta_slow)];
  if (truncate) [low, high] = [Math.floor(low), Math.ceil(high)];
  [low, high] = [Math.max(low, 0), Math.min(high, width - 1)];
  if (low === high) high += 0.001;
  return Float64Array.from({ length: width >> 1 }, (_, i) => clip((i - low) / (high - low), 0, 1));
}

const raise = (base, factor, width) => base * Math.pow(factor, width / (width - 2));

function blendByTurns(f, { factor, original_length }, low, high) {
  return f.map((w) => mix(w, factor, clip(((original_length * w) / TURN - low) / (high - low), 0, 1)));
}

function yarn(given, width, base) {
  const p = { beta_fast: 32, beta_slow: 1, truncate: true, ramp: "index", ...given };
  const f = geometric(width, base);
  const stretched =
    p.ramp === "turns"
      ? blendByTurns(f, p, p.beta_slow, p.beta_fast)
      : rampInIndex(p, width, base).map((ramp, i) => mix(f[i], p.factor, 1 - ramp));
  let attention = sharpness(p.factor);
  if (p.mscale && p.mscale_all_dim) attention = sharpness(p.factor, p.mscale) / sharpness(p.factor, p.mscale_all_dim);
  if (p.attention_factor != null) attention = p.attention_factor;
  const softmax = p.softmax_mscale == null ? 1 : sharpness(p.factor, p.softmax_mscale) ** 2;
  return [stretched, attention, softmax];
}

const EXTENSIONS = {
  linear: ({ factor }, width, base) => [geometric(width, base).map((f) => f / factor)],
  ntk: ({ factor }, width, base) => [geometric(width, raise(base, factor, width))],
  dynamic: ({ factor, original_length: trained }, width, base, length) => [
    geometric(width, length > trained ? raise(base, (factor * length) / trained - (factor - 1), width) : base),
  ],
  "ntk-by-parts": (p, width, base) => [blendByTurns(geometric(width, base), p, p.alpha ?? 1, p.beta ?? 32)],
  yarn,
  "dynamic-yarn": (p, width, base, length) =>
    length > p.original_length
      ? yarn({ ...p, factor: length / p.original_length }, width, base)
      : [geometric(width, base)],
  llama3: (p, width, base) => {
    const {
      factor,
      original_length: trained,
      low_freq_factor: low,
      high_freq_factor: high,
    } = {
      original_length: 8192,
      low_freq_factor: 1,
      high_freq_factor: 4,
      ...p,
    };
    return [
      geometric(width, base).map((f) => {
        const turns = (trained * f) / TURN;
        if (TURN / f > trained / low) return f / factor;
        return low === high || turns > high ? f : mix(f, factor, (turns - low) / (high - low));
      }),
    ];
  },
  longrope: (p, width, base, length) => {
    const long = length > p.original_length;
    const factors = long ? p.long_factor : p.short_factor;
    const given = (long ? p.long_mscale : p.short_mscale) ?? p.attention_factor;
    const grown = p.factor > 1 ? Math.sqrt(1 + Math.log(p.factor) / Math.log(p.original_length)) : 1;
    return [geometric(width, base).map((f, i) => f / factors[i]), given ?? grown];
  },
  "per-pair": ({ factors }, width, base) => [geometric(width, base).map((f, i) => f / factors[i])],
  proportional: ({ proportion, factor = 1 }, width, base) => {
    const turning = Math.trunc(Math.floor((proportion * width) / 2));
    return [geometric(width, base).map((f, i) => (i < turning ? f / factor : 0))];
  },
  product: ({ parts }, width, base, length) => {
    const plain = geometric(width, base);
    const all = parts.map((part) => spectrum(width, base, part, length));
    return [
      plain.map((f, i) => all.reduce((out, s) => out * (s.inv_freq[i] / f), f)),
      all.reduce((out, s) => out * s.attention_factor, 1),
      all.reduce((out, s) => out * s.softmax_multiplier, 1),
    ];
  },
};

/** Names of the extensions that this module knows. */
export const extensions = Object.keys(EXTENSIONS);

/**
 * The spectrum of a rotary width under an extension.
 * @param {?{name: string}} extension its name and parameters, as `ropewalk inspect --json` prints them; null for none.
 * @param {number} length tokens of the text, for an extension that depends on it.
 */
export function spectrum(width, base, extension = null, length = 0) {
  const make = extension ? EXTENSIONS[extension.name] : null;
  if (extension && !make) throw new Error(`unknown extension ${extension.name}`);
  const [inv_freq, attention_factor = 1, softmax_multiplier = 1] = make
    ? make(extension, width, base, length)
    : [geometric(width, base)];
  return { inv_freq, attention_factor, softmax_multiplier };
}

/** What happened to each pair: the same words as ropewalk.inspection, for an extension with one factor. */
export function fates(before, after, extension) {
  const close = (a, b, tolerance) => Math.abs(a - b) <= tolerance * Math.max(Math.abs(a), Math.abs(b));
  return Array.from(before, (f, i) => {
    if (close(f, after[i], 1e-12)) return "kept";
    if (after[i] === 0) return "stopped";
    if (["ntk", "dynamic"].includes(extension.name)) return "raised";
    const factor =
      extension.name === "dynamic-yarn" ? Math.max(...before.map((b, j) => b / after[j])) : extension.factor;
    const own = ["longrope", "per-pair", "product"].includes(extension.name);
    return own || close(f / after[i], factor, 1e-6) ? "divided" : "blended";
  });
}

/**
 * cos and sin of `frequency` times first, first + 1, …: exact every 64 steps, turned on from there, which costs four
 * products a step where a cosine costs dozens. The error stays below 1e-12.
 */
export function turning(frequency, first, count) {
  const cos = new Float64Array(count),
    sin = new Float64Array(count);
  const c1 = Math.cos(frequency),
    s1 = Math.sin(frequency);
  let c = 0,
    s = 0;
  for (let n = 0; n < count; n++) {
    if (n % 64 === 0) {
      c = Math.cos((first + n) * frequency);
      s = Math.sin((first + n) * frequency);
    } else {
      const turned = c * c1 - s * s1;
      s = s * c1 + c * s1;
      c = turned;
    }
    cos[n] = c;
    sin[n] = s;
  }
  return [cos, sin];
}
