// Numbers as narrower formats hold them, and the angles that come of it.

const bits = new DataView(new ArrayBuffer(4));

/** The nearest bfloat16: eight bits of precision, ties to even. */
export function bfloat16(x) {
  bits.setFloat32(0, x);
  const raw = bits.getUint32(0);
  if ((raw & 0x7f800000) === 0x7f800000) return Math.fround(x);
  bits.setUint32(0, ((raw + 0x7fff + ((raw >>> 16) & 1)) & 0xffff0000) >>> 0);
  return bits.getFloat32(0);
}

/** The nearest float16: eleven bits of precision, nothing above 65504. */
export function float16(x) {
  const size = Math.abs(x);
  if (size === 0 || !Number.isFinite(x)) return x;
  const step = 2 ** (Math.max(Math.floor(Math.log2(size)), -14) - 10),
    near = size / step;
  const low = Math.floor(near),
    over = near - low;
  const whole = over > 0.5 || (over === 0.5 && low % 2) ? low + 1 : low;
  return whole * step > 65504 ? Math.sign(x) * Infinity : Math.sign(x) * whole * step;
}

export const FORMATS = { float32: Math.fround, bfloat16, float16 };

/** The angle of a position: position, frequency and their product each rounded to the format. */
export const rounded = (round, position, frequency) => round(round(position) * round(frequency));

/** How far that angle is from the true one, in radians; beyond the range of the format, infinite. */
export const angleError = (round, position, frequency) =>
  Math.abs(rounded(round, position, frequency) - position * frequency);

/** How wrong cos or sin of it is, whichever is worse: never more than 2. */
export function tableError(round, position, frequency) {
  const wrong = rounded(round, position, frequency),
    right = position * frequency;
  if (!Number.isFinite(wrong)) return NaN;
  return Math.max(Math.abs(Math.cos(wrong) - Math.cos(right)), Math.abs(Math.sin(wrong) - Math.sin(right)));
}
