// Precision: what is lost of an angle when it is computed in a narrower format.

import { Chart } from "ropewalk/chart.js";
import { LINES } from "ropewalk/looks.js";
import { FORMATS, angleError } from "ropewalk/math/rounding.js";
import { geometric } from "ropewalk/math/spectra.js";
import { number, say, whole } from "ropewalk/words.js";

const STEPS = 160,
  NEAR = [0, 1, 2, 3, 5, 7, 11, 13];
const NAMES = { float32: "float32", bfloat16: "bfloat16", float16: "float16" };

/** Positions from 1 on, evenly spread over a logarithmic axis. */
const spread = (last) => [...new Set(Array.from({ length: STEPS + 1 }, (_, n) => Math.round(last ** (n / STEPS))))];

/**
 * The largest error over all pairs at a position and a few before it: single positions may be exact by chance.
 * @param {Float64Array} narrow the frequencies `f`, rounded.
 */
function worst(round, position, f, narrow) {
  let most = 0;
  for (const back of NEAR) {
    if (back >= position) break;
    for (let i = 0; i < f.length; i++) most = Math.max(most, angleError(round, position - back, f[i], narrow[i]));
  }
  return most;
}

export default {
  id: "precision",
  title: () => say("Precision", "精度"),
  idea: () =>
    say(
      "An angle is position times frequency, and far positions leave few digits for what remains after the full turns. In bfloat16 the fastest pair is off by a radian within a few hundred tokens, so compute angles in float32 or better and round the cosine, never the angle.",
      "角度は位置と周波数の積なので、遠い位置ほど、一回転を除いた残りに使える桁が減る。bfloat16 では数百トークンで最も速いペアが 1 ラジアンもずれる。角度は float32 以上で計算し、丸めるのは角度ではなく cos と sin にする。",
    ),
  defaults: { base: 10000, dim: "128", last: 1048576, pos: 4097, formats: "float32,bfloat16,float16" },
  controls: () => [
    { name: "base", kind: "log", min: 100, max: 10000000, label: "base" },
    {
      name: "dim",
      kind: "select",
      label: say("channels", "チャネル数"),
      options: ["32", "64", "128", "256"].map((d) => [d, d]),
    },
    { name: "last", kind: "log", min: 1000, max: 10000000, label: say("up to position", "位置の上限") },
    { name: "pos", kind: "log", min: 1, max: 1048576, label: say("look at position", "見る位置") },
    { name: "formats", kind: "several", label: say("formats", "形式"), options: Object.entries(NAMES) },
  ],
  mount(host, { seen }) {
    host.classList.add("two");
    const along = new Chart(host, { height: 340 }),
      pairs = new Chart(host, { height: 340 });
    return {
      update({ base, dim, last, pos, formats }) {
        const f = geometric(+dim, base),
          names = formats.split(",").filter(Boolean),
          positions = spread(last);
        const clean = (e) => (e > 0 && Number.isFinite(e) ? e : null),
          look = (n) => LINES[Object.keys(NAMES).indexOf(n)];
        const narrow = Object.fromEntries(names.map((n) => [n, f.map((w) => FORMATS[n](w))]));
        const curves = names.map((n) => positions.map((p) => clean(worst(FORMATS[n], p, f, narrow[n]))));
        const y = {
          label: say("error of the angle, in radians", "角度の誤差（ラジアン）"),
          log: true,
          min: 1e-9,
          max: 1e5,
        };
        const near = names.map((n) => Array.from(f, (w, i) => clean(worst(FORMATS[n], pos, [w], [narrow[n][i]]))));
        along.draw({
          name: "precision",
          title: say("Largest error over all pairs, by position", "全ペアで最大の誤差（位置ごと）"),
          x: { label: say("position, in tokens", "位置（トークン数）"), log: true, min: 1, max: last },
          y,
          xs: positions,
          series: names.map((n, at) => ({ ...look(n), label: NAMES[n], ys: curves[at] })),
          marks: [
            { y: Math.PI, label: say("half a turn", "半回転") },
            { x: Math.min(pos, last), label: whole(Math.min(pos, last)) },
          ],
        });
        pairs.draw({
          name: "precision-pairs",
          title: say(`Error of each pair near position ${whole(pos)}`, `位置 ${whole(pos)} 付近での各ペアの誤差`),
          x: { label: say("pair of channels", "チャネルのペア"), min: 0, max: f.length - 1 },
          y,
          xs: Array.from(f, (_, i) => i),
          series: names.map((n, at) => ({ ...look(n), label: NAMES[n], ys: near[at] })),
          marks: [{ y: Math.PI, label: say("half a turn", "半回転") }],
        });
        const told = names.map((n) => {
          const e = worst(FORMATS[n], pos, f, narrow[n]);
          return `${NAMES[n]} ${Number.isFinite(e) ? `${number(e, 3)} rad` : say("beyond its range", "表せる範囲の外")}`;
        });
        seen.pictures.precision = { positions, curves, names, near };
        return say(
          `Near position ${whole(pos)} the angle is off by up to: ${told.join("; ")}. (float64, which this page computes in, is right to about ${number(pos * 2 ** -52, 1)}.)`,
          `位置 ${whole(pos)} 付近での角度の最大誤差：${told.join("、")}。（このページの計算は float64 で、誤差はおよそ ${number(pos * 2 ** -52, 1)}。）`,
        );
      },
      destroy: () => [along, pairs].forEach((c) => c.destroy()),
    };
  },
};
