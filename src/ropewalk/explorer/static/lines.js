// A chart of lines as SVG: what `chart.js` draws, to be saved; the picture is told by the same object.

import { svg } from "ropewalk/dom.js";
import { GRID, INK, PALE } from "ropewalk/looks.js";
import { across, wide } from "ropewalk/marks.js";
import { tick } from "ropewalk/words.js";

/** The ends of an axis, with a little room around the values. */
export function padded(low, high, log = false) {
  if (low == null) return log ? [1, 10] : [0, 1];
  if (log) return [low / (high / low || 10) ** 0.06, high * (high / low || 10) ** 0.06];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}

const WIDTH = 760,
  HEIGHT = 440,
  BOX = { left: 70, top: 40, right: 16, bottom: 54 };

/** Whole steps of 1, 2 or 5 times a power of ten; on a logarithmic axis the powers of ten, or such multiples of them. */
export function ticks(low, high, log) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9),
      last = Math.floor(Math.log10(high) + 1e-9);
    if (last - first < 2) {
      const finer = Array.from(
        { length: 3 * (last - first + 3) },
        (_, n) => [1, 2, 5][n % 3] * 10 ** (first - 1 + Math.floor(n / 3)),
      );
      return finer.filter((t) => t >= low * (1 - 1e-9) && t <= high * (1 + 1e-9));
    }
    const step = Math.max(1, Math.ceil((last - first) / 8));
    return Array.from(
      { length: Math.max(0, Math.floor((last - first) / step) + 1) },
      (_, n) => 10 ** (first + n * step),
    );
  }
  const rough = (high - low) / 6,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= rough) ?? 10),
    out = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) out.push(n * step);
  return out;
}

/** The ends of the vertical axis: as told, or so that all lines and their bands are seen. */
export function height({ y: { log, min, max }, series }) {
  if (min != null && max != null) return [min, max];
  let low = Infinity,
    high = -Infinity;
  for (const one of series) {
    for (const values of [one.ys, one.low ?? [], one.high ?? []]) {
      for (const v of values) {
        if (v == null || !Number.isFinite(v) || (log && v <= 0)) continue;
        low = Math.min(low, v);
        high = Math.max(high, v);
      }
    }
  }
  return low > high ? padded(null, null, log) : padded(low, high, log);
}

/** A picture as an SVG element that stands alone. */
export function draw(spec) {
  const xs = Array.from(spec.xs),
    inside = {
      w: WIDTH - BOX.left - BOX.right,
      h: HEIGHT - BOX.top - BOX.bottom - 18 * Math.ceil(spec.series.length / 4),
    };
  const [x0, x1] =
    spec.x.min != null && spec.x.max != null
      ? [spec.x.min, spec.x.max]
      : [xs.find((x) => !spec.x.log || x > 0), xs.at(-1)];
  const [y0, y1] = height(spec);
  const place = (v, low, high, log) => (log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low || 1));
  const px = (x) => BOX.left + inside.w * place(x, x0, x1, spec.x.log);
  const py = (y) => BOX.top + inside.h * (1 - place(y, y0, y1, spec.y.log));
  const good = (x, y) => y != null && Number.isFinite(y) && (!spec.y.log || y > 0) && (!spec.x.log || x > 0);
  const line = (ys) => {
    let open = false,
      d = "";
    xs.forEach((x, n) => {
      if (!good(x, ys[n])) return;
      d += `${open ? "L" : "M"}${px(x).toFixed(1)} ${py(ys[n]).toFixed(1)}`;
      open = true;
    });
    return d;
  };
  const text = (x, y, words, more = {}) => svg("text", { x, y, "font-size": 12, fill: INK, ...more }, words);
  const bottom = BOX.top + inside.h;
  const dashed = (ends) => svg("line", { ...ends, stroke: INK, "stroke-dasharray": "4 3" });
  const mark = (x, y, label, end) => {
    const halo = { stroke: "#fff", "stroke-width": 4, "stroke-opacity": 0.8, "paint-order": "stroke" };
    return text(x, y, label, { "font-size": 11, "text-anchor": end ? "end" : "start", ...halo });
  };
  const made = svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width: WIDTH,
      height: HEIGHT,
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      "font-family": "system-ui, 'Noto Sans CJK JP', 'Hiragino Sans', 'Yu Gothic', sans-serif",
    },
    svg("title", {}, spec.title),
    svg("rect", { width: WIDTH, height: HEIGHT, fill: "#fff" }),
    svg("clipPath", { id: "inside" }, svg("rect", { x: BOX.left, y: BOX.top, width: inside.w, height: inside.h })),
    text(BOX.left, 24, spec.title, { "font-size": 15 }),
    (spec.zones ?? []).map(({ from, to, color, label }) => {
      const [left, right] = [Math.max(px(from), BOX.left), Math.min(px(to), BOX.left + inside.w)],
        room = Math.max(0, right - left);
      return [
        svg("rect", { x: left, y: BOX.top, width: room, height: inside.h, fill: color }),
        label && wide(label, 11) + 6 < room
          ? text(left + room / 2, BOX.top + 12, label, { "font-size": 11, "text-anchor": "middle" })
          : null,
      ];
    }),
    (spec.x.at ?? ticks(x0, x1, spec.x.log)).map((t) => [
      svg("line", { x1: px(t), x2: px(t), y1: BOX.top, y2: bottom, stroke: GRID }),
      text(px(t), bottom + 16, tick(t, spec.x.log), { "text-anchor": "middle" }),
    ]),
    ticks(y0, y1, spec.y.log).map((t) => [
      svg("line", { x1: BOX.left, x2: BOX.left + inside.w, y1: py(t), y2: py(t), stroke: GRID }),
      text(BOX.left - 6, py(t) + 4, tick(t, spec.y.log), { "text-anchor": "end" }),
    ]),
    text(BOX.left + inside.w / 2, bottom + 34, spec.x.label, { "text-anchor": "middle" }),
    text(0, 0, spec.y.label, {
      "text-anchor": "middle",
      transform: `translate(16 ${BOX.top + inside.h / 2}) rotate(-90)`,
    }),
    svg(
      "g",
      { "clip-path": "url(#inside)" },
      spec.series
        .filter((s) => s.low)
        .map((s) => {
          const spot = (x, y) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`;
          const edge = (ys) => xs.flatMap((x, n) => (good(x, ys[n]) ? spot(x, ys[n]) : []));
          const points = [...edge(s.high), ...edge(s.low).reverse()].join(" ");
          return svg("polygon", { points, fill: s.color, "fill-opacity": 0.19 });
        }),
      spec.series.map((s) => [
        s.points === "only"
          ? null
          : svg("path", {
              d: line(s.ys),
              fill: "none",
              stroke: s.color,
              "stroke-width": s.width ?? 2,
              "stroke-dasharray": s.dash?.join(" ") || null,
            }),
        s.points
          ? xs.map((x, n) =>
              good(x, s.ys[n]) ? svg("circle", { cx: px(x), cy: py(s.ys[n]), r: 3, fill: s.color }) : null,
            )
          : null,
      ]),
      (spec.marks ?? [])
        .filter((m) => m.x != null)
        .map(({ x, label }) => {
          const far = px(x) + wide(label, 11) + 8 > BOX.left + inside.w;
          return [
            dashed({ x1: px(x), x2: px(x), y1: BOX.top, y2: bottom }),
            mark(px(x) + (far ? -4 : 4), BOX.top + 12, label, far),
          ];
        }),
      across(spec.marks ?? [], py).map(({ y, label, right }) => [
        dashed({ x1: BOX.left, x2: BOX.left + inside.w, y1: py(y), y2: py(y) }),
        mark(right ? BOX.left + inside.w - 4 : BOX.left + 4, py(y) - 4, label, right),
      ]),
    ),
    svg("rect", { x: BOX.left, y: BOX.top, width: inside.w, height: inside.h, fill: "none", stroke: PALE }),
    spec.series.map((s, n) => {
      const x = BOX.left + (n % 4) * (inside.w / 4),
        y = bottom + 52 + 18 * Math.floor(n / 4);
      return [
        svg("line", {
          x1: x,
          x2: x + 26,
          y1: y,
          y2: y,
          stroke: s.color,
          "stroke-width": s.width ?? 2,
          "stroke-dasharray": s.dash?.join(" ") || null,
        }),
        text(x + 32, y + 4, s.label),
      ];
    }),
  );
  return made;
}
