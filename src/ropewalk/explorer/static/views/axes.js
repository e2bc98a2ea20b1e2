// Axes: which axis of position each pair follows, and what that makes of an image among words.

import { Chart } from "ropewalk/chart.js";
import { h, replace, svg } from "ropewalk/dom.js";
import { frame } from "ropewalk/figure.js";
import { HeatMap } from "ropewalk/heatmap.js";
import { AXES, INK } from "ropewalk/looks.js";
import { SCHEMES, frequencies, score } from "ropewalk/math/bands.js";
import { TURN } from "ropewalk/math/spectra.js";
import { fixed, number, say } from "ropewalk/words.js";

const NAMES = { T: () => say("time", "時間"), H: () => say("height", "高さ"), W: () => say("width", "幅") };
const named = (a) => a + say(": ", "：") + NAMES[a]();
const MANNERS = {
  chunked: () => say("chunked: all pairs of T, then of H, of W", "区分：T の全ペア、次に H、次に W"),
  interleaved: () => say("interleaved: T, H, W in turn", "交互：T・H・W を順番に"),
  ernie: () => say("H and W in turn, T on the slowest", "H と W を交互に、T は最も遅いペア"),
  axial: () => say("axial: a ladder of its own for H and W", "軸別：H と W がそれぞれ独自の波長列を持つ"),
};
const DASH = { T: [2.4, 2.8], H: [], W: [10, 4] };

/** Where tokens stand: some words, an image row by row, words again, counted on from the farthest axis. */
export function positions(before, rows, cols, after) {
  const out = [];
  for (let i = 0; i < before; i++) out.push({ T: i, H: i, W: i });
  for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) out.push({ T: before, H: before + r, W: before + c });
  const next = before + Math.max(rows, cols);
  for (let i = 0; i < after; i++) out.push({ T: next + i, H: next + i, W: next + i });
  return out;
}

/** A bar a pair, as high as its wavelength, coloured and patterned by its axis. */
function strip(scheme, width) {
  const f = frequencies(scheme),
    left = 58,
    top = 30,
    height = 280,
    bottom = top + height,
    step = (width - left - 10) / f.length;
  const most = Math.ceil(Math.log10(TURN / f.reduce((a, b) => Math.min(a, b)))),
    y = (length) => bottom - (height * Math.log10(length)) / most;
  const text = (x, at, words, more = {}) => svg("text", { x, y: at, "font-size": 12, fill: INK, ...more }, words);
  const used = [...new Set(scheme.axes)];
  return svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width,
      height: bottom + 44,
      viewBox: `0 0 ${width} ${bottom + 44}`,
      "font-family": "system-ui, 'Noto Sans CJK JP', sans-serif",
      role: "img",
      "aria-label": used
        .map((a) =>
          say(
            `${NAMES[a]()}: ${[...scheme.axes].filter((b) => a === b).length} pairs`,
            `${NAMES[a]()}：${[...scheme.axes].filter((b) => a === b).length} ペア`,
          ),
        )
        .join(", "),
    },
    svg("rect", { width, height: bottom + 44, fill: "#fff" }),
    used.map((a, n) => [
      svg("rect", { x: 8 + n * 95, y: 6, width: 12, height: 12, fill: AXES[a] }),
      text(8 + n * 95 + 18, 16, named(a)),
    ]),
    Array.from({ length: most + 1 }, (_, n) => [
      svg("line", { x1: left, x2: width - 10, y1: y(10 ** n), y2: y(10 ** n), stroke: "#e4e4e4" }),
      text(left - 6, y(10 ** n) + 4, n < 4 ? 10 ** n : `10${"⁰¹²³⁴⁵⁶⁷⁸⁹"[n]}`, { "text-anchor": "end" }),
    ]),
    Array.from(f, (w, i) => {
      const x = left + i * step,
        up = y(TURN / w),
        a = scheme.axes[i];
      return [
        svg("rect", { x, y: up, width: Math.max(1, step - 1), height: bottom - up, fill: AXES[a] }),
        i % 10 ? null : text(x + step / 2, bottom + 15, i, { "text-anchor": "middle" }),
      ];
    }),
    text(left + (width - left) / 2, bottom + 34, say("pair of channels", "チャネルのペア"), {
      "text-anchor": "middle",
    }),
    text(0, 0, say("wavelength, in positions", "波長（位置の数）"), {
      "text-anchor": "middle",
      transform: `translate(14 ${top + height / 2}) rotate(-90)`,
    }),
  );
}

export default {
  id: "axes",
  title: () => say("Axes", "軸"),
  idea: () =>
    say(
      "In an image a token stands at a height and a width, so each pair is told which of them to turn by; words have the same number on every axis and are placed as before. The map shows the score of one patch with all others: how far it sees in which direction is decided by which pairs an axis was given.",
      "画像のトークンには高さと幅という位置がある。そこで、ペアごとに、どの軸の位置で回すかを決めておく。単語はどの軸でも同じ番号なので、これまでと変わらない。図は一つのパッチと全パッチのスコアである。どの方向にどこまで見えるかは、軸に割り当てられたペアで決まる。",
    ),
  defaults: { scheme: "interleaved", rows: 12, cols: 16, row: 4, col: 5, before: 6 },
  controls: ({ scheme, rows, cols }) => [
    {
      name: "scheme",
      kind: "select",
      label: say("scheme", "割り当て方"),
      options: Object.entries(SCHEMES).map(([key, s]) => [key, `${s.model}`]),
    },
    { name: "rows", kind: "range", min: 2, max: 32, label: say("rows of patches", "パッチの行数") },
    { name: "cols", kind: "range", min: 2, max: 32, label: say("columns of patches", "パッチの列数") },
    {
      name: "row",
      kind: "range",
      min: 0,
      max: 31,
      label: say("row of the query", "クエリの行"),
      show: (x) => Math.min(x, rows - 1),
    },
    {
      name: "col",
      kind: "range",
      min: 0,
      max: 31,
      label: say("column of the query", "クエリの列"),
      show: (x) => Math.min(x, cols - 1),
    },
    ...(SCHEMES[scheme]?.each
      ? [] // a vision tower sees no words
      : [{ name: "before", kind: "range", min: 0, max: 40, label: say("words before the image", "画像の前の単語数") }]),
  ],
  mount(host, { seen, refill }) {
    host.classList.add("two");
    let scheme = SCHEMES.chunked,
      size = "";
    const bars = h("div", { class: "map" });
    const pairs = frame(bars, {
      name: () => "axes",
      svg: () => strip(scheme, 760),
      rows: () => [
        [say("pair", "ペア"), say("axis", "軸"), say("wavelength", "波長")],
        ...Array.from(frequencies(scheme), (f, i) => [i, scheme.axes[i], TURN / f]),
      ],
    });
    const title = h("figcaption");
    pairs.node.prepend(title);
    host.append(pairs.node);
    const map = new HeatMap(host),
      line = new Chart(host, { height: 260 });
    const watch = new ResizeObserver(() => replace(bars, strip(scheme, Math.max(280, bars.clientWidth))));
    watch.observe(pairs.node);
    return {
      update(values) {
        const { rows, cols } = values,
          alone = SCHEMES[values.scheme].each,
          before = alone ? 0 : values.before,
          row = Math.min(values.row, rows - 1),
          col = Math.min(values.col, cols - 1);
        if (size && size !== `${rows} ${cols}`) refill(); // the sliders of the query end where the image does
        size = `${rows} ${cols}`;
        scheme = SCHEMES[values.scheme];
        title.textContent = `${scheme.model}${say(": ", "：")}${MANNERS[values.scheme]()}`;
        replace(bars, strip(scheme, Math.max(280, bars.clientWidth)));
        const f = frequencies(scheme),
          cells = new Float64Array(rows * cols);
        for (let r = 0; r < rows; r++)
          for (let c = 0; c < cols; c++) cells[r * cols + c] = score(scheme, f, { T: 0, H: r - row, W: c - col });
        const every = (n) => Array.from({ length: n }, (_, i) => i).filter((i) => i % Math.ceil(n / 8) === 0);
        map.draw({
          name: "patches",
          title: say(
            "Score of the patch with each patch (vectors of ones)",
            "選んだパッチと各パッチのスコア（すべて 1）",
          ),
          rows,
          cols,
          values: cells,
          high: 2 * f.length,
          dots: [[row, col]],
          x: {
            label: alone ? say("W: column", "W：列") : say("W: column + words before", "W：列 ＋ 前の単語数"),
            names: Array.from({ length: cols }, (_, c) => c + before),
            ticks: every(cols).map((c) => [c, c + before]),
          },
          y: {
            label: alone ? say("H: row", "H：行") : say("H: row + words before", "H：行 ＋ 前の単語数"),
            names: Array.from({ length: rows }, (_, r) => r + before),
            ticks: every(rows).map((r) => [r, r + before]),
          },
        });
        const all = positions(before, rows, cols, alone ? 0 : 8);
        line.draw({
          name: "positions",
          title: alone
            ? say("Positions of the patches, row by row", "パッチの位置（一行ずつ）")
            : say(
                "Positions along the text: words, the image row by row, words",
                "テキストに沿った位置：単語、画像（一行ずつ）、単語",
              ),
          x: { label: say("token", "トークン"), min: 0, max: all.length - 1 },
          y: { label: say("position", "位置") },
          xs: all.map((_, n) => n),
          series: (alone ? ["H", "W"] : ["T", "H", "W"]).map((a) => ({
            label: named(a),
            color: AXES[a],
            dash: DASH[a],
            ys: all.map((p) => p[a]),
          })),
        });
        const along = (dr, dc) => score(scheme, f, { T: 0, H: dr, W: dc });
        seen.pictures.axes = { axes: scheme.axes, frequencies: Array.from(f), cells, positions: all };
        const [down, right] = [fixed(along(4, 0), 2), fixed(along(0, 4), 2)];
        const near = say(
          `Four patches down the score is ${down}, four to the right ${right}, of ${2 * f.length} at the patch itself.`,
          `四つ下のパッチのスコアは ${down}、四つ右は ${right}。自分自身とは ${2 * f.length}。`,
        );
        if (alone) return near;
        const [tokens, used] = [number(rows * cols), Math.max(rows, cols)];
        return (
          near +
          say(
            ` The image takes ${tokens} tokens but only ${used} positions; as many words would take ${tokens}.`,
            `画像は ${tokens} トークンだが、使う位置は ${used} だけで済む。同じ数の単語なら ${tokens} 使う。`,
          )
        );
      },
      destroy: () => {
        watch.disconnect();
        map.destroy();
        line.destroy();
      },
    };
  },
};
