// A map of numbers as colours. What is on the page is the SVG that is saved, at the width of the page.
//
// A picture is told by an object: { name, title, reading, rows, cols, values (row by row; NaN is left white), x, y: {
// label, ticks: [[cell, word], …], words: cut ticks to their cells }, low, high, square, dots: [[row, col], …], framed:
// rows in a frame, which get a tick too }.

import { h, replace, svg } from "ropewalk/dom.js";
import { frame } from "ropewalk/figure.js";
import { INK, PALE, cividis } from "ropewalk/looks.js";
import { wide } from "ropewalk/marks.js";
import { number, tick } from "ropewalk/words.js";

export class HeatMap {
  constructor(host, { most = 560 } = {}) {
    this.most = most;
    this.picture = h("div", {
      class: "map",
      onpointermove: (e) => this.#point(e),
      onpointerleave: () => this.#say("\u00a0"),
    });
    this.title = h("figcaption");
    this.pointed = h("p", { class: "pointed", "aria-hidden": "true" }, "\u00a0");
    const { node, refresh } = frame([this.title, this.picture, this.pointed], {
      name: () => this.spec.name,
      svg: () => draw(this.spec, 760, this.spec.title),
      rows: () => rows(this.spec),
    });
    this.refresh = refresh;
    host.append(node);
    this.watch = new ResizeObserver(() => this.spec && this.#show());
    this.watch.observe(node);
  }

  draw(spec) {
    this.spec = spec;
    this.title.textContent = spec.title;
    this.#show();
    this.refresh();
  }

  destroy() {
    this.watch.disconnect();
  }

  #show() {
    const width = Math.min(this.picture.clientWidth || 400, this.most);
    const made = draw(this.spec, width);
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", `${this.spec.title}. ${this.spec.reading ?? ""}`);
    replace(this.picture, made);
  }

  #point(event) {
    const image = this.picture.querySelector("image")?.getBoundingClientRect();
    if (!image) return;
    const { rows: r, cols: c, values, x, y } = this.spec;
    const col = Math.floor(((event.clientX - image.left) / image.width) * c),
      row = Math.floor(((event.clientY - image.top) / image.height) * r);
    const inside = row >= 0 && row < r && col >= 0 && col < c;
    const name = (axis, n) => axis.names?.[n] ?? n;
    this.#say(
      inside ? `${y.label} ${name(y, row)}, ${x.label} ${name(x, col)}: ${number(values[row * c + col])}` : "\u00a0",
    );
  }

  #say(words) {
    this.pointed.textContent = words;
  }
}

/** The colour map as pixels: bytes red, green, blue and opaque, the first of them the lowest of a number. */
const COLORS = Uint32Array.from({ length: 256 }, (_, n) => {
  const [red, green, blue] = cividis(n / 255);
  return red + green * 2 ** 8 + blue * 2 ** 16 + 255 * 2 ** 24;
});

/** The cells as a picture of one pixel each. */
function cells({ rows: r, cols: c, values }, low, high) {
  const canvas = h("canvas", { width: c, height: r }),
    pen = canvas.getContext("2d"),
    image = pen.createImageData(c, r);
  const pixels = new Uint32Array(image.data.buffer),
    scale = (COLORS.length - 1) / (high - low || 1);
  for (let n = 0; n < r * c; n++) {
    const at = Math.round((values[n] - low) * scale);
    pixels[n] = Number.isFinite(at) ? COLORS[Math.min(Math.max(at, 0), COLORS.length - 1)] : 0xffffffff;
  }
  pen.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

export function range({ values, low, high }) {
  if (low != null && high != null) return [low, high];
  let [least, most] = [Infinity, -Infinity];
  for (const v of values) if (Number.isFinite(v)) [least, most] = [Math.min(least, v), Math.max(most, v)];
  if (least === most) return [least - 1, most + 1];
  return [low ?? least, high ?? most];
}

let scales = 0;

/** Three digits, or as many as tell the ends of the scale apart. */
function short(v, span) {
  const digits = Math.ceil(Math.log10(Math.max(Math.abs(v), 1e-9) / (span || 1))) + 2;
  return +v.toPrecision(Math.min(8, Math.max(3, digits)));
}

/** As many letters as there is room for. */
function cut(word, room) {
  const letters = [...String(word)];
  while (letters.length > 1 && wide(letters, 12) > room) letters.pop();
  return letters.join("");
}

/** The ticks of the rows: those of framed rows, and others that keep off them. */
function down({ rows, y, framed = [] }, height) {
  const near = (row) => framed.some((f) => (Math.abs(f - row) * height) / rows < 14);
  return [...(y.ticks ?? []).filter(([row]) => !near(row)), ...framed.map((row) => [row, y.names?.[row] ?? row])];
}

/** The picture, of some width; with its title where no page is around it. */
function draw(spec, width, title = null) {
  const [low, high] = range(spec),
    longest = Math.max(16, ...(spec.y.ticks ?? []).map(([, word]) => wide(String(word), 12)));
  const left = 32 + Math.min(longest, 110),
    top = title ? 34 : 8,
    bar = 64;
  const w = width - left - bar,
    height = spec.square === false ? Math.min(w * 0.6, 300) : (w * spec.rows) / spec.cols,
    row = height / spec.rows;
  const total = top + height + 46,
    id = `scale${scales++}`;
  const text = (x, y, say, more = {}) => svg("text", { x, y, "font-size": 12, fill: INK, ...more }, say);
  return svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width,
      height: total,
      viewBox: `0 0 ${width} ${total}`,
      "font-family": "system-ui, 'Noto Sans CJK JP', 'Hiragino Sans', 'Yu Gothic', sans-serif",
    },
    svg("rect", { width, height: total, fill: "#fff" }),
    title && text(4, 18, title, { "font-size": 14 }),
    svg("image", {
      href: cells(spec, low, high),
      x: left,
      y: top,
      width: w,
      height,
      preserveAspectRatio: "none",
      "image-rendering": "pixelated",
    }),
    svg("rect", { x: left, y: top, width: w, height, fill: "none", stroke: PALE }),
    (spec.x.ticks ?? []).map(([at, word]) =>
      text(left + ((at + 0.5) * w) / spec.cols, top + height + 15, spec.x.words ? cut(word, w / spec.cols - 3) : word, {
        "text-anchor": "middle",
      }),
    ),
    down(spec, height).map(([at, word]) =>
      text(left - 6, top + (at + 0.5) * row + 4, cut(word, 110), { "text-anchor": "end" }),
    ),
    (spec.framed ?? []).flatMap((at) =>
      [
        ["#fff", 4],
        [INK, 1.5],
      ].map(([stroke, size]) =>
        svg("rect", {
          x: left - 2,
          y: top + at * row - 2,
          width: w + 4,
          height: row + 4,
          fill: "none",
          stroke,
          "stroke-width": size,
        }),
      ),
    ),
    (spec.dots ?? []).map(([row, col]) =>
      svg("circle", {
        cx: left + ((col + 0.5) * w) / spec.cols,
        cy: top + ((row + 0.5) * height) / spec.rows,
        r: Math.max(3, Math.min(8, w / spec.cols / 4)),
        fill: "#fff",
        stroke: INK,
        "stroke-width": 2,
      }),
    ),
    text(left + w / 2, top + height + 34, spec.x.label, { "text-anchor": "middle" }),
    text(0, 0, spec.y.label, { "text-anchor": "middle", transform: `translate(14 ${top + height / 2}) rotate(-90)` }),
    svg(
      "linearGradient",
      { id, x1: 0, x2: 0, y1: 1, y2: 0 },
      Array.from({ length: 9 }, (_, n) =>
        svg("stop", { offset: n / 8, "stop-color": `rgb(${cividis(n / 8).join(",")})` }),
      ),
    ),
    svg("rect", { x: left + w + 10, y: top, width: 12, height, fill: `url(#${id})`, stroke: PALE }),
    [
      [high, 10],
      [low, height],
    ].map(([v, y]) => text(left + w + 26, top + y, tick(short(v, high - low)), { "font-size": 11 })),
  );
}

function rows({ rows: r, cols: c, values, x, y }) {
  const name = (axis, n) => axis.names?.[n] ?? n;
  return [
    [`${y.label} \\ ${x.label}`, ...Array.from({ length: c }, (_, n) => name(x, n))],
    ...Array.from({ length: r }, (_, n) => [name(y, n), ...Array.from(values.slice(n * c, (n + 1) * c))]),
  ];
}
