// A chart of lines: uPlot on the page, an SVG of the same when saved.
//
// A picture is told by an object: { title, reading, x: { label, log, min, max, at }, y: the same, xs, series: [{ label,
// color, dash, ys, width, points, low, high }], marks: [{ x or y, label }], zones: [{ from, to, color, label }] }.
// `low` and `high` are the edges of a band around a line; `at` lists the ticks of an axis.

import uPlot from "ropewalk/vendor/uPlot.esm.js";
import { h, replace, svg } from "ropewalk/dom.js";
import { FONT, before, behind } from "ropewalk/canvas.js";
import { frame } from "ropewalk/figure.js";
import { draw, height, padded, ticks } from "ropewalk/lines.js";
import { GRID, INK } from "ropewalk/looks.js";
import { number, say, tick } from "ropewalk/words.js";

export class Chart {
  constructor(host, { height = 340 } = {}) {
    this.height = height;
    this.plot = h("div", { class: "plot", role: "img" });
    this.title = h("figcaption");
    this.legend = h("ul", { class: "legend" });
    this.pointed = h("p", { class: "pointed", "aria-hidden": "true" }, "\u00a0");
    const { node, refresh } = frame([this.title, this.legend, this.plot, this.pointed], {
      name: () => this.spec.name,
      svg: () => draw(this.spec),
      rows: () => rows(this.spec),
    });
    this.refresh = refresh;
    this.node = node;
    this.hide();
    host.append(node);
    this.watch = new ResizeObserver(() => {
      const width = this.plot.clientWidth;
      if (this.chart && width && width !== this.chart.width) this.chart.setSize({ width, height: this.height });
    });
    this.watch.observe(this.plot);
  }

  /** There is nothing to show, now or yet. */
  hide() {
    this.node.hidden = true;
  }

  /** Show a picture; the chart is made anew only where its lines or axes are others. */
  draw(spec) {
    this.spec = spec;
    this.node.hidden = false;
    this.plot.setAttribute("aria-label", `${spec.title}. ${spec.reading ?? ""}`);
    this.title.textContent = spec.title;
    const data = [spec.xs, ...spec.series.map((s) => s.ys)];
    const shape = JSON.stringify([
      spec.x,
      spec.y,
      spec.series.map(({ label, color, dash, width, points }) => [label, color, dash, width, points]),
    ]);
    if (this.chart && shape === this.shape) {
      this.chart.setData(data, true);
    } else {
      this.chart?.destroy();
      this.chart = new uPlot(this.#options(spec), data, this.plot);
      this.shape = shape;
      replace(this.legend, spec.series.map(entry));
    }
    this.refresh();
  }

  destroy() {
    this.watch.disconnect();
    this.chart?.destroy();
  }

  #options(spec) {
    const scale = ({ log }, range) => ({ time: false, distr: log ? 3 : 1, range });
    const { min, max } = spec.x;
    const across = min != null && max != null ? [min, max] : (_, low, high) => padded(low, high, spec.x.log);
    const axis = ({ label, log, at }, size) => ({
      label,
      size,
      font: FONT,
      labelFont: FONT,
      labelSize: 20,
      stroke: INK,
      grid: { stroke: GRID, width: 1 },
      ticks: { stroke: GRID },
      values: (_, splits) => splits.map((v) => (v == null ? "" : tick(v, log))),
      ...(log || at
        ? { splits: (_, __, low, high) => at ?? ticks(low, high, true), filter: (_, splits) => splits }
        : {}),
    });
    return {
      width: this.plot.clientWidth || 600,
      height: this.height,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: scale(spec.x, across), y: scale(spec.y, () => height(this.spec)) },
      axes: [axis(spec.x, 34), axis(spec.y, 56)],
      series: [
        {},
        ...spec.series.map((s) => ({
          label: s.label,
          stroke: s.color,
          width: s.width ?? 2,
          dash: s.dash?.length ? s.dash : undefined,
          points: { show: Boolean(s.points), size: 6 },
          pxAlign: 0, // a slope stays straight
          spanGaps: true, // lines that were measured at different places share an axis
          ...(s.points === "only" ? { paths: () => null } : {}),
        })),
      ],
      hooks: {
        drawClear: [(u) => behind(u, this.spec)],
        draw: [(u) => before(u, this.spec)],
        setCursor: [(u) => this.#point(u)],
      },
    };
  }

  /** The numbers under the pointer. */
  #point(u) {
    const { idx } = u.cursor;
    const text =
      idx == null
        ? "\u00a0"
        : `${this.spec.x.label} ${number(this.spec.xs[idx], 6)}: ${this.spec.series.map((s) => `${s.label} ${number(s.ys[idx] ?? NaN)}`).join(" · ")}`;
    this.pointed.textContent = text;
  }
}

function entry({ label, color, dash, width, points }) {
  const line =
    points === "only"
      ? svg("circle", { cx: 14, cy: 5, r: 3.5, fill: color })
      : svg("line", {
          x1: 0,
          x2: 28,
          y1: 5,
          y2: 5,
          stroke: color,
          "stroke-width": width ?? 2,
          "stroke-dasharray": dash?.join(" ") || null,
        });
  return h("li", {}, svg("svg", { width: 28, height: 10, "aria-hidden": "true" }, line), ` ${label}`);
}

function rows({ x, xs, series }) {
  const head = [
    x.label,
    ...series.flatMap((s) =>
      s.low ? [s.label, `${s.label} ${say("low", "下")}`, `${s.label} ${say("high", "上")}`] : [s.label],
    ),
  ];
  return [
    head,
    ...Array.from(xs, (at, n) => [at, ...series.flatMap((s) => (s.low ? [s.ys[n], s.low[n], s.high[n]] : [s.ys[n]]))]),
  ];
}
