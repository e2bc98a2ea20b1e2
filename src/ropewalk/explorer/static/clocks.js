// All pairs of channels as clocks, each at its own speed, with a short hand for the query and a long one for the key.

import { svg } from "ropewalk/dom.js";
import { INK, PALE } from "ropewalk/looks.js";
import { geometric } from "ropewalk/math/spectra.js";
import { COLORS, DIM } from "ropewalk/plane.js";
import { say } from "ropewalk/words.js";

const COLUMNS = 8;

/** The picture, of some width: eight clocks a row. */
export function clocks(values, width) {
  const all = geometric(DIM),
    size = Math.min(68, Math.max(34, Math.floor(width / COLUMNS))),
    [high, round] = [size + 12, 0.42 * size];
  const [wide, tall] = [COLUMNS * size, Math.ceil(all.length / COLUMNS) * high];
  const hand = (angle, color, share) =>
    svg("line", {
      x2: (share * round * Math.cos(angle)).toFixed(2),
      y2: (-share * round * Math.sin(angle)).toFixed(2),
      stroke: color,
      "stroke-width": size > 50 ? 3 : 2,
    });
  return svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width: wide,
      height: tall,
      viewBox: `0 0 ${wide} ${tall}`,
      role: "img",
      "font-family": "system-ui, sans-serif",
      "aria-label": say(
        `${all.length} clocks, the first the fastest: hands of the query and of the key`,
        `${all.length} 個の時計。先頭が最も速い。クエリとキーの針`,
      ),
    },
    svg("rect", { width: wide, height: tall, fill: "#fff" }),
    Array.from(all, (f, i) =>
      svg(
        "g",
        { transform: `translate(${((i % COLUMNS) + 0.5) * size} ${Math.floor(i / COLUMNS) * high + size / 2})` },
        svg("circle", {
          r: round,
          fill: i === values.pair ? "#eef4fb" : "#fff",
          stroke: i === values.pair ? INK : "#c4c4c4",
          "stroke-width": i === values.pair ? 2 : 1,
        }),
        hand((values.n + values.shift) * f, COLORS.k, 0.9),
        hand((values.m + values.shift) * f, COLORS.q, 0.6),
        svg("text", { y: size / 2 + 8, "text-anchor": "middle", "font-size": 11, fill: PALE }, i),
      ),
    ),
  );
}

/** The numbers of the picture. */
export function rows({ m, n, shift }) {
  const angle = (position, f) => ((position + shift) * f) % (2 * Math.PI);
  return [
    [
      say("pair", "ペア"),
      say("radians per token", "1 トークンあたりの角度（rad）"),
      say("angle of q", "q の角度"),
      say("angle of k", "k の角度"),
      "cos((m−n)ω)",
    ],
    ...Array.from(geometric(DIM), (f, i) => [i, f, angle(m, f), angle(n, f), Math.cos((m - n) * f)]),
  ];
}
