// One pair of a query and a key as arrows on the plane, which can be dragged or moved with keys.

import { svg } from "ropewalk/dom.js";
import { ENCODINGS, INK } from "ropewalk/looks.js";
import { geometric } from "ropewalk/math/spectra.js";
import { fixed, say } from "ropewalk/words.js";

export const DIM = 64;
export const COLORS = { q: ENCODINGS.rope.color, k: "#b35900" };
const HIGH = 170, // half of the picture, in its own units
  WIDE = 200,
  UNIT = 95;
const radians = (degrees) => (degrees * Math.PI) / 180;
export const degrees = (angle) => (angle * 180) / Math.PI;

/** The pair of channels after the turn: positions m and n, angles in degrees and lengths before it. */
export function turned({ m, n, shift, pair, qa, ql, ka, kl }) {
  const f = geometric(DIM)[pair],
    q = { angle: radians(qa) + (m + shift) * f, length: ql },
    k = { angle: radians(ka) + (n + shift) * f, length: kl };
  return { f, q, k, product: ql * kl * Math.cos(q.angle - k.angle), between: Math.acos(Math.cos(q.angle - k.angle)) };
}

const tip = ({ angle, length }) => [UNIT * length * Math.cos(angle), -UNIT * length * Math.sin(angle)];

function arrow(vector, color, more = {}) {
  const [x, y] = tip(vector),
    size = Math.hypot(x, y) || 1,
    [ux, uy] = [x / size, y / size];
  const head = [
    [x, y],
    [x - 12 * ux - 5 * uy, y - 12 * uy + 5 * ux],
    [x - 12 * ux + 5 * uy, y - 12 * uy - 5 * ux],
  ];
  return svg(
    "g",
    more,
    svg("line", { x1: 0, y1: 0, x2: x - 8 * ux, y2: y - 8 * uy, stroke: color, "stroke-width": 3 }),
    svg("polygon", { points: head.map((p) => p.map((c) => c.toFixed(1)).join()).join(" "), fill: color }),
  );
}

const words = (x, y, text, more = {}) =>
  svg("text", { x, y, fill: INK, "font-size": 14, "text-anchor": "middle", ...more }, text);

/** The angle between the arrows, with its size where there is room for it. */
function arc({ q, k, between }) {
  const ahead = Math.atan2(Math.sin(q.angle - k.angle), Math.cos(q.angle - k.angle)), // of the key, the short way round
    start = ahead > 0 ? k.angle : q.angle;
  const points = Array.from({ length: 33 }, (_, n) => tip({ angle: start + (between * n) / 32, length: 0.42 }));
  const [x, y] = tip({ angle: start + between / 2, length: 0.66 });
  return [
    svg("polyline", {
      points: points.map((p) => p.map((c) => c.toFixed(1)).join()).join(" "),
      fill: "none",
      stroke: INK,
      "stroke-width": 2,
    }),
    degrees(between) > 30 ? words(x, y + 5, `${fixed(degrees(between), 1)}°`, { "font-size": 13 }) : null,
  ];
}

/** The picture: pale arrows before the turn, full ones after it. */
export function plane(values) {
  const after = turned(values),
    pale = { opacity: 0.3 };
  const name = (which, position) => {
    const [x, y] = tip({ ...after[which], length: after[which].length + 0.2 }),
      side = Math.cos(after[which].angle);
    const text = say(`${which} at ${position}`, `${which}（位置 ${position}）`);
    const anchor = side > 0.4 ? "start" : side < -0.4 ? "end" : "middle";
    return words(x, y + 5, text, { fill: COLORS[which], "text-anchor": anchor });
  };
  return svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width: 2 * WIDE,
      height: 2 * HIGH,
      viewBox: `${-WIDE} ${-HIGH} ${2 * WIDE} ${2 * HIGH}`,
      role: "img",
      "font-family": "system-ui, 'Noto Sans CJK JP', sans-serif",
      "aria-label": say(
        `Query and key on the plane, ${fixed(degrees(after.between), 1)} degrees apart; product ${fixed(after.product, 4)}`,
        `平面上のクエリとキー。角度の差 ${fixed(degrees(after.between), 1)} 度、内積 ${fixed(after.product, 4)}`,
      ),
    },
    svg("rect", { x: -WIDE, y: -HIGH, width: 2 * WIDE, height: 2 * HIGH, fill: "#fff" }),
    svg("circle", { r: UNIT, fill: "none", stroke: "#d0d0d0" }),
    svg("line", { x1: -150, x2: 150, stroke: "#d0d0d0" }),
    svg("line", { y1: -150, y2: 150, stroke: "#d0d0d0" }),
    arrow({ angle: radians(values.qa), length: values.ql }, COLORS.q, pale),
    arrow({ angle: radians(values.ka), length: values.kl }, COLORS.k, pale),
    arrow(after.q, COLORS.q),
    arrow(after.k, COLORS.k),
    arc(after),
    name("q", values.m + values.shift),
    name("k", values.n + values.shift),
    words(4 - WIDE, 22 - HIGH, `q·k = ${fixed(after.product, 4)}`, { "text-anchor": "start", "font-weight": 600 }),
  );
}

/** Values of an arrow that has been moved: its angle in whole degrees, its length within the picture. */
export const moved = (which, angle, length) => ({
  [`${which}a`]: Math.round((((angle % 360) + 540) % 360) - 180),
  [`${which}l`]: +Math.min(1.3, Math.max(0.2, length)).toFixed(2),
});

/** A handle at the tip of an arrow. */
export function handle(which, values, set) {
  const [x, y] = tip(turned(values)[which]),
    [angle, length] = [values[`${which}a`], values[`${which}l`]];
  return svg("circle", {
    cx: x,
    cy: y,
    r: 13,
    fill: COLORS[which],
    "fill-opacity": 0.18,
    stroke: COLORS[which],
    class: "handle",
    tabindex: 0,
    role: "slider",
    "data-handle": which,
    "aria-label":
      which === "q"
        ? say("direction of the query; up and down change its length", "クエリの向き。上下キーで長さを変えます")
        : say("direction of the key; up and down change its length", "キーの向き。上下キーで長さを変えます"),
    "aria-valuemin": -180,
    "aria-valuemax": 180,
    "aria-valuenow": angle,
    "aria-valuetext": say(`${angle} degrees, length ${length}`, `${angle} 度、長さ ${length}`),
    onkeydown: (e) => {
      const step = { ArrowLeft: [5, 0], ArrowRight: [-5, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }[e.key];
      if (!step) return;
      e.preventDefault();
      set(moved(which, angle + step[0], length + step[1]));
    },
  });
}

/** Follow the pointer with the arrow whose handle it took; every step puts a new picture into `host`. */
export function drag(event, host, values, set) {
  const which = event.target.dataset?.handle;
  if (!which) return;
  event.preventDefault();
  const { m, n, shift } = values(),
    turn = degrees(((which === "q" ? m : n) + shift) * turned(values()).f);
  const follow = (pointer) => {
    const box = host.firstChild.getBoundingClientRect(),
      x = ((pointer.clientX - box.left) * 2 * WIDE) / box.width - WIDE,
      y = ((pointer.clientY - box.top) * 2 * HIGH) / box.height - HIGH;
    set(moved(which, degrees(Math.atan2(-y, x)) - turn, Math.hypot(x, y) / UNIT));
  };
  const over = new AbortController();
  addEventListener("pointermove", follow, { signal: over.signal });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => over.abort(), { signal: over.signal });
}
