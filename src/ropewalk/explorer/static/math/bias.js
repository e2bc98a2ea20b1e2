// What encodings add to the score, for a query at i and a key at j: the same formulas as ropewalk.encodings.

/** ALiBi's slope of each head; for a number of heads that is no power of two, as its authors do. */
export function alibiSlopes(heads) {
  const power = 2 ** Math.floor(Math.log2(heads));
  const some = (count) => Array.from({ length: count }, (_, h) => 2 ** ((-8 * (h + 1)) / count));
  return [
    ...some(power),
    ...some(2 * power)
      .filter((_, h) => h % 2 === 0)
      .slice(0, heads - power),
  ];
}

/** The smallest distance of each of T5's buckets but the first. */
function bounds(buckets, maxDistance) {
  const exact = buckets >> 1,
    steps = buckets - exact,
    out = [];
  for (let n = 1; n <= exact; n++) out.push(n);
  for (let b = 1; b < steps; b++) {
    const bound = exact * (maxDistance / exact) ** (b / steps),
      near = Math.round(bound);
    out.push(Math.abs(bound - near) <= 1e-9 * bound ? near : Math.ceil(bound));
  }
  return out;
}

let kept = {}; // the bounds that were asked for last: they are asked for thousands of distances in turn

/** T5's bucket of a signed distance j - i; half of them serve later keys. */
export function bucket(distance, { buckets = 32, maxDistance = 128, bidirectional = true } = {}) {
  const mine = bidirectional ? buckets >> 1 : buckets,
    far = bidirectional ? Math.abs(distance) : Math.max(-distance, 0);
  if (kept.mine !== mine || kept.maxDistance !== maxDistance)
    kept = { mine, maxDistance, bounds: bounds(mine, maxDistance) };
  let found = 0;
  while (kept.bounds[found] <= far) found++;
  return found + (bidirectional && distance > 0 ? mine : 0);
}

/** KERPLE's penalty: -r1 log(1 + r2 d), or -r1 d^r2. */
export function kerple(distance, { r1, r2, kernel = "log" }) {
  if (kernel === "log") return -r1 * Math.log1p(r2 * distance);
  return distance === 0 ? 0 : -r1 * distance ** r2;
}

/** What FIRE's network is given: the distance as a share of the way, from 0 to 1. */
export function fireRatio(i, j, { c = 0.1, threshold = 512, bidirectional = true } = {}) {
  const psi = (x) => Math.log1p(c * x);
  const distance = bidirectional ? Math.abs(i - j) : Math.max(i - j, 0),
    way = bidirectional ? Math.max(i, j) : i;
  return psi(distance) / (psi(Math.max(way, threshold)) + 1e-6);
}
