// Waves: the sinusoidal table, and that a shift of position is one fixed linear map.

import { Chart } from "ropewalk/chart.js";
import { HeatMap } from "ropewalk/heatmap.js";
import { ENCODINGS, LINES } from "ropewalk/looks.js";
import { sinusoid } from "ropewalk/math/panel.js";
import { geometric, turning } from "ropewalk/math/spectra.js";
import { number, say, whole } from "ropewalk/words.js";

/** PE(pos + k) from PE(pos) by turning each pair of channels by k: the map does not know pos. */
export function shifted(row, k, base) {
  const out = new Float64Array(row.length);
  geometric(row.length, base).forEach((f, i) => {
    const [c, s] = [Math.cos(k * f), Math.sin(k * f)];
    out[2 * i] = row[2 * i] * c + row[2 * i + 1] * s;
    out[2 * i + 1] = row[2 * i + 1] * c - row[2 * i] * s;
  });
  return out;
}

/** The table, row by row: each pair of channels once along all positions. */
function table(rows, dim, base) {
  const out = new Float64Array(rows * dim);
  geometric(dim, base).forEach((f, i) => {
    const [cos, sin] = turning(f, 0, rows);
    for (let p = 0; p < rows; p++) {
      out[p * dim + 2 * i] = sin[p];
      out[p * dim + 2 * i + 1] = cos[p];
    }
  });
  return out;
}

export default {
  id: "waves",
  title: () => say("Waves", "波"),
  idea: () =>
    say(
      "The sinusoidal encoding adds to a word a row of this table: fast waves in the first channels, slow ones in the last. To go k positions further, each pair of channels turns by a fixed angle, whatever the position was.",
      "正弦波の位置符号化は、この表の一行を単語に足す。前のチャネルほど速く、後ろのチャネルほど遅い波になる。k だけ先の行は、もとの位置がどこであっても、各ペアを決まった角度だけ回せば得られる。",
    ),
  defaults: { dim: "64", base: 10000, rows: 100, pos: 20, k: 10 },
  controls: () => [
    {
      name: "dim",
      kind: "select",
      label: say("channels", "チャネル数"),
      options: ["8", "16", "32", "64", "128"].map((d) => [d, d]),
    },
    { name: "base", kind: "log", min: 10, max: 1000000, label: "base" },
    { name: "rows", kind: "range", min: 20, max: 400, step: 10, label: say("positions shown", "表示する位置の数") },
    { name: "pos", kind: "range", min: 0, max: 300, label: say("position p", "位置 p") },
    { name: "k", kind: "range", min: 0, max: 100, label: say("shift k", "ずらす量 k") },
  ],
  mount(host, { seen }) {
    host.classList.add("two");
    const map = new HeatMap(host),
      lengths = new Chart(host, { height: 300 }),
      shift = new Chart(host, { height: 300 });
    return {
      update({ dim: width, base, rows, pos, k }) {
        const dim = +width,
          f = geometric(dim, base),
          values = table(rows, dim, base);
        const longest = (2 * Math.PI) / f.at(-1);
        const here = sinusoid(pos, dim, base),
          moved = shifted(here, k, base),
          true_ = sinusoid(pos + k, dim, base);
        const off = moved.reduce((most, v, c) => Math.max(most, Math.abs(v - true_[c])), 0);
        const steps = [0, dim / 4, dim / 2, (3 * dim) / 4].map((c) => [c, c]);
        map.draw({
          name: "sinusoids",
          title: say("The table: a row a position; p and p + k are framed", "表（一行が一つの位置）。枠は p と p + k"),
          rows,
          cols: dim,
          values,
          low: -1,
          high: 1,
          square: false,
          framed: [pos, pos + k].filter((p) => p < rows),
          x: { label: say("channel", "チャネル"), ticks: steps },
          y: {
            label: say("position", "位置"),
            ticks: [0, 0.25, 0.5, 0.75].map((s) => [Math.round(s * rows), Math.round(s * rows)]),
          },
        });
        lengths.draw({
          name: "wavelengths",
          title: say("Wavelength of each pair", "各ペアの波長"),
          x: { label: say("pair of channels", "チャネルのペア"), min: 0, max: Math.max(1, f.length - 1) },
          y: { label: say("tokens", "トークン数"), log: true, min: 1, max: 1e7 },
          xs: Array.from(f, (_, i) => i),
          series: [
            {
              ...ENCODINGS.sinusoidal,
              label: say("wavelength", "波長"),
              points: true,
              ys: Array.from(f, (w) => (2 * Math.PI) / w),
            },
          ],
          marks: [{ y: rows, label: say(`${rows} positions shown`, `表示中の ${rows} 位置`) }],
        });
        const channels = Array.from({ length: dim }, (_, c) => c);
        shift.draw({
          name: "shift",
          title: say("A shift is a fixed linear map", "ずらすことは決まった線形写像"),
          x: { label: say("channel", "チャネル"), min: 0, max: dim - 1 },
          y: { label: say("value", "値"), min: -1.15, max: 1.15 },
          xs: channels,
          series: [
            { label: `PE(${pos})`, ...LINES[3], width: 1, ys: here },
            { ...ENCODINGS.sinusoidal, label: `PE(${pos + k})`, width: 5, ys: true_ },
            {
              label: say(`PE(${pos}), each pair turned by ${k}`, `PE(${pos}) の各ペアを ${k} だけ回したもの`),
              ...LINES[0],
              width: 1.5,
              ys: moved,
            },
          ],
        });
        seen.pictures.waves = { values, longest, off };
        return say(
          `The longest wavelength is ${whole(longest)} tokens: 2π·base^((d−2)/d), short of the 2π·base = ${whole(2 * Math.PI * base)} that the paper names as a limit. Turned by k and computed anew, PE(${pos + k}) is the same but for ${off === 0 ? "0" : number(off, 2)}.`,
          `最も長い波長は ${whole(longest)} トークン、つまり 2π·base^((d−2)/d) で、論文が極限として挙げる 2π·base = ${whole(2 * Math.PI * base)} には届かない。k だけ回して得た PE(${pos + k}) と直接計算した値の差は ${off === 0 ? "0" : number(off, 2)}。`,
        );
      },
      destroy: () => [map, lengths, shift].forEach((p) => p.destroy()),
    };
  },
};
