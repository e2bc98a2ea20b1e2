// Results of the lab as pictures: each function takes what a command wrote and gives what `chart.js` or `heatmap.js` draw.

import { LINES } from "ropewalk/looks.js";
import { say, whole } from "ropewalk/words.js";

/** `extend`, `extend.needle`, `train` or `findings` (a study), of { name, result }. */
export const kind = ({ result }) => String(result?.schema).replace(/^ropewalk\./, "").replace(/\/\d+$/, "");

const list = Array.isArray,
  lists = (value) => list(value) && value.length > 0 && value.every(list);

const arm = (a) => list(a.validation?.steps) && lists(a.validation.values) && list(a.test) && list(a.by_position);

const SHAPES = {
  extend: (r) => lists(r.buckets) && list(r.tries) && lists(r.tries.map((t) => t?.perplexity)),
  "extend.needle": (r) => list(r.lengths) && list(r.depths) && list(r.tries) && lists(r.tries.map((t) => t?.cells)),
  train: (r) => list(r.validation) && r.validation.every(list),
  findings: (r) => list(r.statements) && list(r.arms) && r.arms.every((a) => list(a?.seeds) && (!a.seeds.length || arm(a))),
};

/** Kinds of results that have curves. */
export const KINDS = Object.keys(SHAPES);

/** Whether a result has what is drawn of it: a file may say that it is one and be another. */
export const drawable = (found) => Boolean(SHAPES[kind(found)]?.(found.result));

/** The mark of a trained length, if it is known. */
export const trainedAt = (length) =>
  length ? [{ x: length, label: `${say("trained", "学習時")} ${whole(length)}` }] : [];

/** Perplexity by position, one line an extension, with its interval. */
export function extended({ result }) {
  const at = (tried, end) => tried.perplexity.map((p) => p?.[end] ?? p?.value ?? null);
  const trained = result.model?.trained_length;
  return {
    title:
      say("Perplexity by position", "位置ごとのパープレキシティ") +
      (result.model ? `${say(": ", "：")}${result.model.name}` : ""),
    x: { label: say("position, in tokens", "位置（トークン数）"), min: 0, max: Math.max(...result.buckets.flat()) },
    y: { label: say("perplexity", "パープレキシティ"), log: true },
    xs: result.buckets.map(([from, to]) => (from + to) / 2),
    series: result.tries.map((tried, n) => ({
      ...LINES[n % LINES.length],
      label: tried.try,
      points: true,
      ys: at(tried, "value"),
      low: at(tried, "low"),
      high: at(tried, "high"),
    })),
    marks: trainedAt(trained),
  };
}

/** How surely a hidden key is found, by length and depth, under one extension. */
export function needle({ result: { lengths, depths, tries } }, name) {
  const tried = tries.find((t) => t.try === name) ?? tries[0];
  const share = (l, d) => tried.cells.find((c) => c.length === l && c.depth === d)?.share ?? NaN;
  return {
    name: "needle",
    title: say("Finding a key in a long text: ", "長いテキストから鍵を探す：") + tried.try,
    rows: depths.length,
    cols: lengths.length,
    values: depths.flatMap((d) => lengths.map((l) => share(l, d))),
    low: 0,
    high: 1,
    square: false,
    x: { label: say("length, in tokens", "長さ（トークン数）"), names: lengths, ticks: lengths.map((l, n) => [n, l]) },
    y: { label: say("depth", "深さ"), names: depths, ticks: depths.map((d, n) => [n, d]) },
  };
}
