// The random numbers that PyTorch draws from a seed on a CPU, so that tables here are those of the Python commands.
// Mersenne Twister (Matsumoto and Nishimura 1998); normal numbers by Box and Muller in blocks of sixteen, as torch fills
// a tensor of sixteen numbers or more.

const N = 624,
  M = 397;

export class Generator {
  constructor(seed) {
    this.state = new Uint32Array(N);
    this.state[0] = seed;
    for (let i = 1; i < N; i++) {
      const before = this.state[i - 1] ^ (this.state[i - 1] >>> 30);
      this.state[i] = Math.imul(1812433253, before) + i;
    }
    this.at = N;
  }

  /** 32 random bits. */
  bits() {
    if (this.at === N) this.#twist();
    let y = this.state[this.at++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  #twist() {
    const s = this.state;
    for (let i = 0; i < N; i++) {
      const y = (s[i] & 0x80000000) | (s[(i + 1) % N] & 0x7fffffff);
      s[i] = s[(i + M) % N] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.at = 0;
  }

  /** A float32 in [low, high). */
  uniform(low = 0, high = 1) {
    const unit = (this.bits() & 0xffffff) / 0x1000000;
    return Math.fround(Math.fround(unit * Math.fround(high - low)) + Math.fround(low));
  }

  /** `count` float32 numbers from N(0, std²); torch draws fewer than sixteen in another way, which is not needed here. */
  normal(count, std = 1) {
    if (count < 16) throw new Error(`sixteen numbers or more, got ${count}`);
    const out = Float32Array.from({ length: count }, () => this.uniform());
    for (let i = 0; i + 15 < count; i += 16) pair(out, i, std);
    if (count % 16) {
      for (let i = count - 16; i < count; i++) out[i] = this.uniform();
      pair(out, count - 16, std);
    }
    return out;
  }
}

/** Sixteen uniform numbers become sixteen normal ones. */
function pair(out, start, std) {
  for (let i = start; i < start + 8; i++) {
    const radius = Math.sqrt(-2 * Math.log(1 - out[i])),
      angle = 2 * Math.PI * out[i + 8];
    out[i] = radius * Math.cos(angle) * std;
    out[i + 8] = radius * Math.sin(angle) * std;
  }
}
