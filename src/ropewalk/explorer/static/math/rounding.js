// Numbers as narrower formats hold them, and the angles that come of it. Bits are looked at through a second view of the
// same memory; computers that run browsers have the low half of a number first.

const float32 = new Float32Array(1),
  word = new Uint32Array(float32.buffer);
const float64 = new Float64Array(1),
  words = new Uint32Array(float64.buffer);

/** The nearest bfloat16: eight bits of precision, ties to even. */
export function bfloat16(x) {
  float32[0] = x;
  const raw = word[0];
  if ((raw & 0x7f800000) === 0x7f800000) return Math.fround(x);
  word[0] = (raw + 0x7fff + ((raw >>> 16) & 1)) & 0xffff0000;
  return float32[0];
}

/**
 * The nearest float16: eleven bits of precision, ties to even, nothing above 65504.
 * Added to 1.5·2⁴² times its own power of two (2⁻¹⁴ at least), a float64 has no room for the bits beyond the eleventh.
 */
export function float16(x) {
  float64[0] = x;
  const exponent = words[1] & 0x7ff00000;
  if (exponent === 0x7ff00000) return x;
  words[1] = Math.max(exponent, 0x3f100000);
  words[0] = 0;
  const large = float64[0] * 1.5 * 2 ** 42,
    near = x + large - large;
  return Math.abs(near) > 65504 ? near * Infinity : near;
}

export const FORMATS = { float32: Math.fround, bfloat16, float16 };

/**
 * How far the angle of a position is from the true one, in radians, if position, frequency and their product are each
 * rounded to a format; beyond its range, infinite.
 * @param {number} narrow the frequency, rounded already: it is the same at every position.
 */
export const angleError = (round, position, frequency, narrow = round(frequency)) =>
  Math.abs(round(round(position) * narrow) - position * frequency);
