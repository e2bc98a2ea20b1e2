// Bias: what encodings add to the score of every query with every key.

import { Chart } from "ropewalk/chart.js";
import { HeatMap } from "ropewalk/heatmap.js";
import { ENCODINGS } from "ropewalk/looks.js";
import { alibiSlopes, bucket, fireRatio, kerple } from "ropewalk/math/bias.js";
import { draw, fireNetwork } from "ropewalk/math/panel.js";
import { number, say } from "ropewalk/words.js";

const NAMES = ["alibi", "t5", "kerple", "fire", "shaw"],
  DIM = 64;
let panel = null;
const drawn = () => (panel ??= draw({ dim: DIM, length: 16, seed: 42 }));

/** The term at (i, j), for a query and keys of ones. */
export function term(values) {
  const { causal, length } = values;
  const byDistance = (f) => {
    const table = Float64Array.from({ length: 2 * length - 1 }, (_, n) => f(n - length + 1));
    return (i, j) => table[j - i + length - 1];
  };
  switch (values.enc) {
    case "alibi": {
      const slopes = alibiSlopes(values.heads),
        slope = slopes[Math.min(values.head, values.heads) - 1];
      return byDistance((d) => -slope * Math.abs(d));
    }
    case "t5":
      return byDistance((d) => drawn().t5[bucket(d, { bidirectional: !causal, maxDistance: values.max })]);
    case "kerple":
      return byDistance((d) => kerple(Math.abs(d), { r1: values.r1, r2: values.r2, kernel: values.kernel }));
    case "fire":
      return (i, j) =>
        fireNetwork(
          drawn().fire,
          fireRatio(i, j, { c: values.c, threshold: values.threshold, bidirectional: !causal }),
        );
    default: {
      const row = (d) => {
        let sum = 0;
        for (let c = 0; c < DIM; c++) sum += drawn().shaw.key[(d + 16) * DIM + c];
        return sum / Math.sqrt(DIM);
      };
      const table = Array.from({ length: 33 }, (_, d) => row(d - 16));
      return byDistance((d) => table[Math.max(-values.clip, Math.min(values.clip, d)) + 16]);
    }
  }
}

const ABOUT = {
  alibi: ({ heads, head }) => {
    const which = Math.min(head, heads),
      slope = number(alibiSlopes(heads)[which - 1]);
    return say(
      `A fixed slope for each head: the first heads look near, the last far. Nothing is learned. Head ${which} of ${heads} takes ${slope} off the score for each token of distance.`,
      `傾きはヘッドごとに固定。前のヘッドは近くを、後ろのヘッドは遠くを見る。学習はしない。${heads} 個のうち ${which} 番目のヘッドは、1 トークン離れるごとにスコアから ${slope} を引く。`,
    );
  },
  t5: () =>
    say(
      "One number for each bucket of distances, one bucket a distance when near, wide ones when far. Before training the numbers are random: look at where they change.",
      "距離のバケットごとに一つの数。近くは距離ごとに、遠くは広くまとめる。学習前の数はランダムなので、値ではなく、どこで変わるかを見てほしい。",
    ),
  kerple: () =>
    say(
      "A penalty by the logarithm of the distance: steep near, nearly flat far. Each head learns its strength r₁ and shape r₂.",
      "距離の対数に従う罰則。近くでは急に、遠くではほぼ平らになる。強さ r₁ と形 r₂ はヘッドごとに学習する。",
    ),
  fire: () =>
    say(
      "A small network reads the distance as a share of the way, so its input never leaves 0 to 1 however long the text. Before training the network is random.",
      "距離を「道のりに対する割合」として小さなネットワークが読むので、どんなに長いテキストでも入力は 0 から 1 に収まる。学習前のネットワークはランダム。",
    ),
  shaw: () =>
    say(
      "A vector for each clipped distance, which the query multiplies: the term depends on the content. Here the query is all ones, and the vectors are random, as before training.",
      "上限つきの距離ごとにベクトルがあり、クエリとの内積が足される。だから値は内容による。ここではクエリはすべて 1、ベクトルは学習前のランダムな値。",
    ),
};

export default {
  id: "bias",
  title: () => say("Bias", "バイアス"),
  idea: () =>
    say(
      "Some encodings leave queries and keys alone and add a number to their score instead, mostly one that depends on the distance only: then the map has equal diagonals. FIRE's does not, since it measures the distance against how far the query has come.",
      "クエリとキーには触れず、スコアに数を足す位置符号化もある。その数が距離だけで決まるなら、図は対角線に沿って同じ色になる。FIRE はそうならない。クエリまでの道のりに対して距離を測るからである。",
    ),
  defaults: {
    enc: "alibi",
    length: 64,
    heads: 8,
    head: 1,
    max: 128,
    r1: 1,
    r2: 1,
    kernel: "log",
    c: 0.1,
    threshold: 32,
    clip: 8,
    causal: false,
  },
  controls: ({ enc, heads }) => [
    {
      name: "enc",
      kind: "select",
      label: say("encoding", "位置符号化"),
      options: NAMES.map((n) => [n, ENCODINGS[n].label]),
    },
    { name: "length", kind: "range", min: 16, max: 256, step: 8, label: say("tokens", "トークン数") },
    ...(enc === "alibi"
      ? [
          { name: "heads", kind: "range", min: 1, max: 32, label: say("heads", "ヘッド数") },
          {
            name: "head",
            kind: "range",
            min: 1,
            max: 32,
            label: say("head", "ヘッド"),
            show: (x) => Math.min(x, heads),
          },
        ]
      : []),
    ...(enc === "t5" ? [{ name: "max", kind: "range", min: 16, max: 512, step: 8, label: "max_distance" }] : []),
    ...(enc === "kerple"
      ? [
          {
            name: "kernel",
            kind: "select",
            label: say("kernel", "カーネル"),
            options: [
              ["log", say("logarithm", "対数")],
              ["power", say("power", "べき")],
            ],
          },
          { name: "r1", kind: "range", min: 0.05, max: 2, step: 0.05, label: "r₁", show: (x) => number(x) },
          { name: "r2", kind: "range", min: 0.05, max: 1.95, step: 0.05, label: "r₂", show: (x) => number(x) },
        ]
      : []),
    ...(enc === "fire"
      ? [
          { name: "c", kind: "range", min: 0.02, max: 2, step: 0.02, label: "c", show: (x) => number(x) },
          { name: "threshold", kind: "range", min: 4, max: 512, step: 4, label: "L" },
        ]
      : []),
    ...(enc === "shaw" ? [{ name: "clip", kind: "range", min: 1, max: 16, label: "clip" }] : []),
    { name: "causal", kind: "check", label: say("causal mask", "因果マスク") },
  ],
  mount(host, { seen, refill }) {
    host.classList.add("two");
    const map = new HeatMap(host),
      line = new Chart(host, { height: 420 });
    let heads = null;
    return {
      update(values) {
        const { enc, length, causal } = values,
          at = term(values),
          cells = new Float64Array(length * length);
        if (heads !== null && heads !== values.heads) refill();
        heads = values.heads;
        for (let i = 0; i < length; i++)
          for (let j = 0; j < length; j++) cells[i * length + j] = causal && j > i ? NaN : at(i, j);
        const ticks = [0, 0.25, 0.5, 0.75].map((s) => [Math.round(s * length), Math.round(s * length)]),
          name = ENCODINGS[enc].label;
        map.draw({
          name: `bias-${enc}`,
          title: say(`${name}: what is added to the score`, `${name}：スコアに足される数`),
          reading: ABOUT[enc](values),
          rows: length,
          cols: length,
          values: cells,
          x: { label: say("key position", "キーの位置"), ticks },
          y: { label: say("query position", "クエリの位置"), ticks },
        });
        const queries = [Math.floor(length / 4), Math.floor(length / 2), length - 1];
        const distances = Array.from({ length: 2 * length - 1 }, (_, n) => n - length + 1);
        line.draw({
          name: `bias-${enc}-distance`,
          title: say("The same by distance, for three queries", "同じ数を距離で見る（三つのクエリ）"),
          x: { label: say("distance (key − query), in tokens", "距離（キー − クエリ、トークン数）"), min: -length, max: causal ? 0 : length },
          y: { label: say("added to the score", "スコアに足される数") },
          xs: distances,
          series: queries.map((i, n) => ({
            color: [ENCODINGS[enc].color, "#222222", "#757575"][n],
            dash: [[], [10, 4], [2.4, 2.8]][n],
            width: [4, 2, 2][n],
            label: say(`query at ${i}`, `クエリの位置 ${i}`),
            ys: distances.map((d) => (i + d < 0 || i + d >= length || (causal && d > 0) ? null : at(i, i + d))),
          })),
        });
        seen.pictures.bias = { cells, length };
        return ABOUT[enc](values);
      },
      destroy: () => {
        map.destroy();
        line.destroy();
      },
    };
  },
};
