// Turn: one pair of a query and a key on the plane, then all pairs as clocks.

import { clocks, rows } from "ropewalk/clocks.js";
import { h, replace, svg } from "ropewalk/dom.js";
import { frame } from "ropewalk/figure.js";
import { COLORS, DIM, degrees, drag, handle, moved, plane, turned } from "ropewalk/plane.js";
import { fixed, number, say } from "ropewalk/words.js";

const hands = () =>
  h(
    "ul",
    { class: "legend" },
    [
      ["q", 16, say("query: short hand", "クエリ：短い針")],
      ["k", 28, say("key: long hand", "キー：長い針")],
    ].map(([which, long, label]) =>
      h(
        "li",
        {},
        svg(
          "svg",
          { width: 28, height: 10, "aria-hidden": "true" },
          svg("line", { x1: 0, x2: long, y1: 5, y2: 5, stroke: COLORS[which], "stroke-width": 3 }),
        ),
        ` ${label}`,
      ),
    ),
  );

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
  sane: ({ qa, ql, ka, kl }) => ({ ...moved("q", qa, ql), ...moved("k", ka, kl) }),
  mount(host, { set, seen }) {
    host.classList.add("two");
    let values;
    const left = h("div", { class: "map" }),
      right = h("div", { class: "map" });
    left.addEventListener("pointerdown", (e) => drag(e, left, () => values, set));
    const note = say(
      "Pale arrows: before the turn. Drag the tips, or move them with the arrow keys.",
      "薄い矢印は回す前。先端はドラッグでも矢印キーでも動かせる。",
    );
    const planes = frame([left, h("p", { class: "note" }, note)], {
      name: () => "turn",
      svg: () => plane(values),
      rows: () => rows(values),
    });
    const dials = frame([hands(), right], {
      name: () => "clocks",
      svg: () => clocks(values, 560),
      rows: () => rows(values),
    });
    planes.node.prepend(h("figcaption", {}, say("One pair", "一つのペア")));
    dials.node.prepend(
      h("figcaption", {}, say(`All ${DIM / 2} pairs, at their own speeds`, `${DIM / 2} 個のペア、それぞれの速さ`)),
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
