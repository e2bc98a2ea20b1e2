// Results of the lab as pictures: each function takes what a command wrote and gives what `chart.js` or `heatmap.js` draw.

import { ENCODINGS, LINES } from "ropewalk/looks.js";
import { say, whole } from "ropewalk/words.js";

/** `extend`, `extend.needle`, `train` or `findings` (a study), of { name, result }. */
export const kind = ({ result }) => result.schema.replace(/^ropewalk\./, "").replace(/\/\d+$/, "");

/** Perplexity by position, one line an extension, with its interval. */
export function extended({ result }) {
  const at = (tried, end) => tried.perplexity.map((p) => p[end] ?? p.value);
  const trained = result.model?.trained_length;
  return {
    title: say("Perplexity by position", "位置ごとのパープレキシティ") + (result.model ? `: ${result.model.name}` : ""),
    x: { label: say("position", "位置"), min: 0, max: Math.max(...result.buckets.flat()) },
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
    marks: trained ? [{ x: trained, label: `${say("trained", "学習時")} ${whole(trained)}` }] : [],
  };
}

/** How surely a hidden key is found, by length and depth, under one extension. */
export function needle({ result: { lengths, depths, tries } }, name) {
  const tried = tries.find((t) => t.try === name) ?? tries[0];
  const share = (l, d) => tried.cells.find((c) => c.length === l && c.depth === d)?.share ?? NaN;
  return {
    name: "needle",
    title: say("Finding a key in a long text", "長いテキストから鍵を探す") + `: ${tried.try}`,
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

/** Lines of several training runs over one axis, each in the colour of its encoding; several of one go by their files. */
function together(runs, pointsOf) {
  const found = runs.map((run) => new Map(pointsOf(run.result)));
  const times = (encoding) => runs.filter(({ result }) => result.settings?.encoding === encoding).length;
  const xs = [...new Set(found.flatMap((points) => [...points.keys()]))].sort((a, b) => a - b);
  const series = runs.map(({ name, result }, n) => {
    const encoding = result.settings?.encoding,
      look = ENCODINGS[encoding];
    return {
      ...(look ?? LINES[n % LINES.length]),
      label: look && times(encoding) === 1 ? look.label : name.replace(/\.json$/, ""),
      ys: xs.map((x) => found[n].get(x) ?? null),
    };
  });
  return { xs, series };
}

export const measure = (runs) =>
  runs[0].result.measure === "bits" ? say("bits per byte", "1 バイトあたりのビット数") : say("accuracy", "正解率");

/** The validation part along training, of runs. */
export const validation = (runs) => ({
  title: say("Validation along training", "学習中の検証結果"),
  x: { label: say("step", "ステップ") },
  y: { label: measure(runs) },
  ...together(runs, ({ validation: points }) => points),
});

/** The test part, at the longest length that was measured, by position. */
export function byPosition(runs) {
  const longest = ({ test = [] }) => test.filter((e) => e.by_position).sort((a, b) => b.length - a.length)[0];
  const tested = runs.filter(({ result }) => longest(result)),
    trained = tested[0]?.result.settings?.length;
  return {
    title: say("Test by position", "位置ごとのテスト結果"),
    x: { label: say("position", "位置") },
    y: { label: measure(runs) },
    ...together(tested, (result) => longest(result).by_position.map((s) => [(s.from + s.to) / 2, s.mean])),
    marks: trained ? [{ x: trained, label: `${say("trained", "学習時")} ${whole(trained)}` }] : [],
  };
}
