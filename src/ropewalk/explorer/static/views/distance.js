// Distance: the score of a query with its key, the farther they stand apart.

import { Chart } from "ropewalk/chart.js";
import { ENCODINGS } from "ropewalk/looks.js";
import { NAMES, curve, draw, vectors } from "ropewalk/math/panel.js";
import { fixed, say, whole } from "ropewalk/words.js";

const PAIRS = 100,
  MOST_POINTS = 512,
  FARTHEST = Array.from({ length: 4097 }, (_, n) => n);
const kept = new Map();

/** Made once: tables of 101 rows for short curves, as `ropewalk decay` draws them, and of 4097 for all longer ones. */
function once(key, make) {
  if (kept.size > 60) kept.clear();
  if (!kept.has(key)) kept.set(key, make());
  return kept.get(key);
}

const TABLES = ["learned", "relative_bias", "shaw", "t5", "kerple", "fire", "cope"];

function drawn(dim, length, names) {
  const rows = length <= 100 ? 101 : 4097;
  if (!names.some((name) => TABLES.includes(name))) return { dim, base: 10000, length: rows };
  return once(`tables ${dim} ${rows}`, () => draw({ dim, length: rows, seed: 42 }));
}

/** Numbers as typed, repeated until they fill the width. */
function typed(text, dim) {
  const numbers = text
    .split(/[\s,、]+/u)
    .filter(Boolean)
    .map(Number);
  if (!numbers.length || numbers.some((x) => !Number.isFinite(x) || Math.abs(x) > 1e6)) {
    throw new Error(
      say(
        `write numbers such as 1, 0.5, −1; got “${text}”`,
        `1, 0.5, -1 のように数を並べてください（入力: 「${text}」）`,
      ),
    );
  }
  return Float64Array.from({ length: dim }, (_, c) => numbers[c % numbers.length]);
}

function pairsOf({ vectors: kind, dim, q, k }) {
  if (kind === "typed") return { q: [typed(q, dim)], k: [typed(k, dim)] };
  return once(`${kind} ${dim}`, () => vectors(kind, dim, { pairs: PAIRS, seed: 42 }));
}

/** The largest rise after a fall, as `ropewalk decay` reports it. */
export function rebound(scores, distances) {
  let lowest = 0,
    best = null;
  scores.forEach((score, n) => {
    if (score < scores[lowest]) lowest = n;
    if (score > scores[lowest] && (!best || score - scores[lowest] > best.high - best.low)) {
      best = { low: scores[lowest], lowAt: distances[lowest], high: score, highAt: distances[n] };
    }
  });
  return best;
}

export function compute(values) {
  const names = values.enc.split(",").filter(Boolean),
    { length } = values,
    dim = +values.dim,
    many = values.vectors === "random";
  const count = many ? Math.min(length, MOST_POINTS) : length,
    side = values.side === "before" ? -1 : 1;
  const distances = [...new Set(Array.from({ length: count + 1 }, (_, n) => Math.round((n * length) / count)))];
  const tables = drawn(dim, length, names),
    pairs = pairsOf({ ...values, dim });
  // keys after a query at 0: a curve is the beginning of the longest one, which is made once and cut by the slider
  const cut = side > 0 && !many && length > 100,
    { vectors: kind, q, k } = values;
  const made = (name) => {
    if (!cut) return curve(name, tables, pairs, side > 0 ? 0 : length, distances, side);
    const key = `${name} ${dim} ${kind} ${kind === "typed" ? `${q}; ${k}` : ""}`;
    return { mean: once(key, () => curve(name, tables, pairs, 0, FARTHEST).mean).subarray(0, length + 1) };
  };
  return { distances, curves: names.map((name) => ({ name, std: null, ...made(name) })) };
}

export default {
  id: "distance",
  title: () => say("Distance", "距離"),
  idea: () =>
    say(
      "How strongly a query meets its key, the farther the key stands away. For vectors of ones RoPE's score mostly falls; for random ones it does not fall at all, since the decay is a matter of what the vectors are.",
      "キーが遠ざかるとき、クエリとの内積がどう変わるか。すべて 1 のベクトルなら RoPE のスコアはおおむね下がる。ランダムなベクトルではまったく下がらない。減衰するかどうかはベクトル次第だからである。",
    ),
  defaults: { enc: "rope", vectors: "ones", dim: "64", length: 100, side: "after", q: "1, 0.5", k: "1, -0.5" },
  controls: (values) => [
    {
      name: "vectors",
      kind: "select",
      wide: true,
      label: say("query and key", "クエリとキー"),
      options: [
        ["ones", say("all ones (the article's)", "すべて 1（記事と同じ）")],
        ["random", say(`random: mean and spread of ${PAIRS}`, `ランダム（${PAIRS} 組の平均と広がり）`)],
        ["typed", say("typed", "入力する")],
      ],
    },
    {
      name: "dim",
      kind: "select",
      label: say("channels", "チャネル数"),
      options: ["16", "32", "64", "128"].map((d) => [d, d]),
    },
    { name: "length", kind: "log", min: 20, max: 4096, label: say("greatest distance", "最大の距離") },
    {
      name: "side",
      kind: "select",
      label: say("the key stands", "キーの位置"),
      options: [
        ["after", say("after the query", "クエリの後ろ")],
        ["before", say("before the query", "クエリの前")],
      ],
    },
    ...(values.vectors === "typed"
      ? [
          {
            name: "q",
            kind: "text",
            label: say("query, repeated to fill the channels", "クエリ（チャネル数まで繰り返す）"),
          },
          { name: "k", kind: "text", label: say("key", "キー") },
        ]
      : []),
    {
      name: "enc",
      kind: "several",
      label: say("encodings", "位置符号化"),
      options: NAMES.map((n) => [n, ENCODINGS[n].label, ENCODINGS[n].color]),
    },
  ],
  mount(host, { seen }) {
    const chart = new Chart(host, { height: 380 });
    return {
      update(values) {
        let found;
        try {
          found = compute(values);
        } catch (error) {
          return error.message;
        }
        const { distances, curves } = found,
          first = curves[0];
        seen.pictures.distance = { distances, curves };
        const back = first && rebound(first.mean, distances),
          name = first && ENCODINGS[first.name].label;
        const ends = (values) => [Math.min(...values), Math.max(...values)].map((x) => fixed(x, 2));
        const [low, high] = first ? ends(first.mean) : [],
          spread = first?.std && fixed(first.std.reduce((a, b) => a + b) / first.std.length, 2);
        const reading = !first
          ? say("Choose an encoding.", "位置符号化を選んでください。")
          : spread
            ? say(
                `${name}: over ${PAIRS} random pairs the mean lies between ${low} and ${high}, and a single pair about ${spread} away from it.`,
                `${name}：ランダムな ${PAIRS} 組の平均は ${low} から ${high} の間。一組ごとには平均から ${spread} ほど離れる。`,
              )
            : back
            ? say(
                `${name}: ${fixed(first.mean[0], 2)} at distance 0; its largest rebound is from ${fixed(back.low, 2)} at ${whole(back.lowAt)} back up to ${fixed(back.high, 2)} at ${whole(back.highAt)}.`,
                `${name}：距離 0 で ${fixed(first.mean[0], 2)}。戻りが最も大きいのは、距離 ${whole(back.lowAt)} の ${fixed(back.low, 2)} から距離 ${whole(back.highAt)} の ${fixed(back.high, 2)} まで。`,
              )
            : say(
                `${name}: ${fixed(first.mean[0], 2)} at distance 0, and it never rises.`,
                `${name}：距離 0 で ${fixed(first.mean[0], 2)}。一度も上がらない。`,
              );
        chart.draw({
          name: "distance",
          title: say("Score against distance", "距離に対するスコア"),
          reading,
          x: { label: say("distance, in tokens", "距離（トークン数）"), min: 0, max: values.length },
          y: { label: say("score q·k", "スコア q·k") },
          xs: distances,
          series: curves.map(({ name, mean, std }) => ({
            ...ENCODINGS[name],
            ys: mean,
            ...(std ? { low: mean.map((m, n) => m - std[n]), high: mean.map((m, n) => m + std[n]) } : {}),
          })),
        });
        return reading;
      },
      destroy: () => chart.destroy(),
    };
  },
};
