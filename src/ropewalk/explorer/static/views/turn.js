// Turn: one pair of a query and a key on the plane, then all pairs as clocks.

import { h, replace, svg } from "ropewalk/dom.js";
import { frame } from "ropewalk/figure.js";
import { ENCODINGS, INK, PALE } from "ropewalk/looks.js";
import { geometric } from "ropewalk/math/spectra.js";
import { fixed, number, say } from "ropewalk/words.js";

const Q = ENCODINGS.rope.color,
  K = "#b35900",
  R = 150,
  UNIT = 95,
  DIM = 64;
const degrees = (radians) => (radians * 180) / Math.PI;

/** The pair of channels before and after the turn. */
function turned({ m, n, shift, pair, qa, ql, ka, kl }) {
  const f = geometric(DIM)[pair],
    rad = Math.PI / 180;
  const q = { angle: qa * rad + (m + shift) * f, length: ql },
    k = { angle: ka * rad + (n + shift) * f, length: kl };
  return { f, q, k, product: ql * kl * Math.cos(q.angle - k.angle), between: Math.acos(Math.cos(q.angle - k.angle)) };
}

const tip = ({ angle, length }, scale = UNIT) => [scale * length * Math.cos(angle), -scale * length * Math.sin(angle)];

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

const words = (x, y, text, color, more = {}) =>
  svg("text", { x, y, fill: color, "font-size": 14, "text-anchor": "middle", ...more }, text);

function plane(values) {
  const { q, k, between, product } = turned(values);
  const ahead = Math.atan2(Math.sin(q.angle - k.angle), Math.cos(q.angle - k.angle)); // of the key, the short way round
  const start = ahead > 0 ? k.angle : q.angle,
    small = Math.abs(ahead);
  const arc = Array.from({ length: 33 }, (_, n) =>
    tip({ angle: start + (small * n) / 32, length: 0.42 })
      .map((c) => c.toFixed(1))
      .join(),
  ).join(" ");
  const still = { opacity: 0.3 },
    name = (v, text, color) => words(...tip({ ...v, length: v.length + 0.2 }), text, color);
  const q0 = { angle: (values.qa * Math.PI) / 180, length: values.ql },
    k0 = { angle: (values.ka * Math.PI) / 180, length: values.kl };
  return svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width: 2 * R + 40,
      height: 2 * R + 40,
      viewBox: `${-R - 20} ${-R - 20} ${2 * R + 40} ${2 * R + 40}`,
      role: "img",
      "font-family": "system-ui, 'Noto Sans CJK JP', sans-serif",
      "aria-label": say(
        `Query and key on the plane, ${fixed(degrees(between), 1)} degrees apart; product ${fixed(product, 4)}`,
        `平面上のクエリとキー。角度の差 ${fixed(degrees(between), 1)} 度、内積 ${fixed(product, 4)}`,
      ),
    },
    svg("rect", { x: -R - 20, y: -R - 20, width: 2 * R + 40, height: 2 * R + 40, fill: "#fff" }),
    svg("circle", { r: UNIT, fill: "none", stroke: "#d0d0d0" }),
    svg("line", { x1: -R, x2: R, stroke: "#d0d0d0" }),
    svg("line", { y1: -R, y2: R, stroke: "#d0d0d0" }),
    svg("polyline", { points: arc, fill: "none", stroke: INK, "stroke-width": 2 }),
    arrow(q0, Q, still),
    arrow(k0, K, still),
    arrow(q, Q),
    arrow(k, K),
    name(q, "q", Q),
    name(k, "k", K),
  );
}

/** A handle at the tip of an arrow: dragged with the pointer, or moved with the arrow keys. */
function handle(which, values, set) {
  const color = which === "q" ? Q : K,
    vector = turned(values)[which],
    [x, y] = tip(vector);
  const change = (angle, length) =>
    set({
      [`${which}a`]: Math.round((((angle % 360) + 540) % 360) - 180),
      [`${which}l`]: +Math.min(1.3, Math.max(0.2, length)).toFixed(2),
    });
  return svg("circle", {
    cx: x,
    cy: y,
    r: 13,
    fill: color,
    "fill-opacity": 0.18,
    stroke: color,
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
    "aria-valuenow": values[`${which}a`],
    "aria-valuetext": say(
      `${values[`${which}a`]} degrees, length ${values[`${which}l`]}`,
      `${values[`${which}a`]} 度、長さ ${values[`${which}l`]}`,
    ),
    onkeydown: (e) => {
      const step = { ArrowLeft: [5, 0], ArrowRight: [-5, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }[e.key];
      if (!step) return;
      e.preventDefault();
      change(values[`${which}a`] + step[0], values[`${which}l`] + step[1]);
    },
  });
}

/** All pairs: a dial each, with the hand of the query and that of the key. */
function clocks(values, width) {
  const cells = geometric(DIM),
    size = 46,
    columns = Math.max(4, Math.floor(width / size)),
    rows = Math.ceil(cells.length / columns);
  const hand = (angle, color, long) =>
    svg("line", {
      x2: (long * Math.cos(angle)).toFixed(2),
      y2: (-long * Math.sin(angle)).toFixed(2),
      stroke: color,
      "stroke-width": 2,
    });
  return svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width: columns * size,
      height: rows * (size + 12),
      viewBox: `0 0 ${columns * size} ${rows * (size + 12)}`,
      role: "img",
      "font-family": "system-ui, sans-serif",
      "aria-label": say(
        `${cells.length} clocks, the first the fastest: hands of the query and of the key`,
        `${cells.length} 個の時計。先頭が最も速い。クエリとキーの針`,
      ),
    },
    svg("rect", { width: columns * size, height: rows * (size + 12), fill: "#fff" }),
    Array.from(cells, (f, i) =>
      svg(
        "g",
        {
          transform: `translate(${(i % columns) * size + size / 2} ${Math.floor(i / columns) * (size + 12) + size / 2})`,
        },
        svg("circle", {
          r: 18,
          fill: i === values.pair ? "#eef4fb" : "#fff",
          stroke: i === values.pair ? INK : "#c4c4c4",
          "stroke-width": i === values.pair ? 2 : 1,
        }),
        hand((values.n + values.shift) * f, K, 16),
        hand((values.m + values.shift) * f, Q, 12),
        svg("text", { y: 30, "text-anchor": "middle", "font-size": 10, fill: PALE }, i),
      ),
    ),
  );
}

function rows(values) {
  const f = geometric(DIM),
    angle = (pos, w) => ((pos + values.shift) * w) % (2 * Math.PI);
  return [
    [
      say("pair", "ペア"),
      say("radians per token", "1 トークンあたりの角度（rad）"),
      say("angle of q", "q の角度"),
      say("angle of k", "k の角度"),
      "cos((m−n)ω)",
    ],
    ...Array.from(f, (w, i) => [i, w, angle(values.m, w), angle(values.n, w), Math.cos((values.m - values.n) * w)]),
  ];
}

export default {
  id: "turn",
  title: () => say("Turn", "回転"),
  idea: () =>
    say(
      "RoPE turns each pair of channels of a query by its position, and of a key by its own. What their product sees is the angle between the two, so moving both by the same distance changes nothing.",
      "RoPE は、クエリのチャネルを二つずつ組にしてその位置の分だけ回し、キーもキー自身の位置の分だけ回す。内積に効くのは二つの間の角度だけなので、両方を同じだけ動かしても何も変わらない。",
    ),
  defaults: { m: 3, n: 8, shift: 0, pair: 4, qa: 70, ql: 1, ka: 30, kl: 1 },
  controls: () => [
    { name: "m", kind: "range", min: 0, max: 100, label: say("position m of the query", "クエリの位置 m") },
    { name: "n", kind: "range", min: 0, max: 100, label: say("position n of the key", "キーの位置 n") },
    { name: "shift", kind: "range", min: 0, max: 1000, label: say("move both by", "両方を動かす量") },
    { name: "pair", kind: "range", min: 0, max: DIM / 2 - 1, label: say("pair of channels", "チャネルのペア") },
  ],
  mount(host, { set, seen }) {
    host.classList.add("two");
    let values;
    const left = h("div", { class: "map" }),
      right = h("div", { class: "map" });
    const pick = (e) => {
      const which = e.target.dataset?.handle,
        drawn = left.querySelector("svg");
      if (!which) return;
      e.preventDefault();
      const move = (moved) => {
        const box = drawn.getBoundingClientRect(),
          scale = (2 * R + 40) / box.width;
        const x = (moved.clientX - box.left) * scale - R - 20,
          y = (moved.clientY - box.top) * scale - R - 20;
        const f = geometric(DIM)[values.pair],
          pos = (which === "q" ? values.m : values.n) + values.shift;
        const angle = degrees(Math.atan2(-y, x) - pos * f);
        set({
          [`${which}a`]: Math.round((((angle % 360) + 540) % 360) - 180),
          [`${which}l`]: +Math.min(1.3, Math.max(0.2, Math.hypot(x, y) / UNIT)).toFixed(2),
        });
      };
      const stop = () => {
        removeEventListener("pointermove", move);
        removeEventListener("pointerup", stop);
      };
      addEventListener("pointermove", move);
      addEventListener("pointerup", stop);
    };
    left.addEventListener("pointerdown", pick);
    const planes = frame(left, { name: () => "turn", svg: () => plane(values), rows: () => rows(values) });
    const dials = frame(right, { name: () => "clocks", svg: () => clocks(values, 560), rows: () => rows(values) });
    planes.node.prepend(h("h3", {}, say("One pair", "一つのペア")));
    dials.node.prepend(
      h("h3", {}, say(`All ${DIM / 2} pairs, at their own speeds`, `${DIM / 2} 個のペア、それぞれの速さ`)),
    );
    host.append(planes.node, dials.node);
    return {
      update(now) {
        values = now;
        const focused = document.activeElement?.dataset?.handle,
          { f, product, between } = turned(values),
          picture = plane(values);
        picture.setAttribute("role", "group");
        picture.append(handle("q", values, set), handle("k", values, set));
        replace(left, picture);
        if (focused) left.querySelector(`[data-handle="${focused}"]`)?.focus();
        replace(right, clocks(values, right.clientWidth || 560));
        seen.pictures.turn = { product, between, frequency: f };
        planes.refresh();
        dials.refresh();
        const turns = number((2 * Math.PI) / f, 4);
        return say(
          `Query at ${values.m + values.shift}, key at ${values.n + values.shift}: the angle between them is ${fixed(degrees(between), 1)}°, their product ${fixed(product, 4)}. Pair ${values.pair} turns once in ${turns} tokens.`,
          `クエリは位置 ${values.m + values.shift}、キーは位置 ${values.n + values.shift}。間の角度は ${fixed(degrees(between), 1)}°、内積は ${fixed(product, 4)}。ペア ${values.pair} は ${turns} トークンで一回転する。`,
        );
      },
    };
  },
};
