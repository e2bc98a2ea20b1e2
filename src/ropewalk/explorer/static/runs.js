// Training runs side by side: which belong into one picture, which are one line of it, and their curves.

import { ENCODINGS, LINES } from "ropewalk/looks.js";
import { trainedAt } from "ropewalk/results.js";
import { say } from "ropewalk/words.js";

/** Settings that do not part runs into pictures: those of a line, those of a machine, and how often it was measured. */
const WITHIN = [
  ...["encoding", "options", "seed", "learning_rate"],
  ...["precision", "device", "threads"],
  ...["checks", "validation_tokens", "test_tokens", "lengths", "extensions"],
];

const told = (key, value) => (typeof value === "number" ? `${key} ${value}` : [value].flat().join("+"));

/** Runs by the picture they belong to, named by the settings that tell pictures apart: "reverse · encoder". */
export function pictures(runs) {
  const settings = runs.map(({ result }) => ({ ...result.settings, measure: result.measure }));
  const keys = [...new Set(settings.flatMap(Object.keys))].filter((key) => !WITHIN.includes(key));
  const apart = keys.filter((key) => new Set(settings.map((s) => JSON.stringify(s[key]))).size > 1);
  const out = new Map();
  runs.forEach((run, n) => {
    const name = apart.map((key) => told(key, settings[n][key])).join(" · ");
    out.set(name, [...(out.get(name) ?? []), run]);
  });
  return out;
}

const encodingOf = ([{ result }]) => result.settings?.encoding;

/** Runs that differ in their seed alone are one line; two of the same seed are two, and go by their files. */
function lines(runs) {
  const alike = new Map();
  for (const run of runs) {
    const { encoding, options } = run.result.settings ?? {};
    const key = JSON.stringify([encoding, options]);
    alike.set(key, [...(alike.get(key) ?? []), run]);
  }
  const place = (some) => Object.keys(ENCODINGS).indexOf(encodingOf(some)); // in teaching order
  const seeds = (some) => new Set(some.map(({ result }) => result.settings?.seed)).size;
  return [...alike.values()]
    .sort((a, b) => place(a) - place(b))
    .flatMap((some) =>
      seeds(some) === some.length ? [some] : some.map((run) => Object.assign([run], { file: run.name })),
    );
}

/** The encoding's own look where it has one line; else a look of its own, and what tells it from the others. */
function looks(all) {
  return all.map((line, n) => {
    const encoding = encodingOf(line),
      look = ENCODINGS[encoding];
    if (look && all.filter((other) => encodingOf(other) === encoding).length === 1) return look;
    const options = Object.entries(line[0].result.settings?.options ?? {}).map(([key, value]) => `${key}=${value}`);
    const named = look && !line.file ? `${look.label}${options.length ? ` (${options.join(", ")})` : ""}` : null;
    return { ...LINES[n % LINES.length], label: named ?? line[0].name.replace(/\.json$/, "") };
  });
}

/** Of the values of several seeds at each place: their means, and the edges of their range; nothing where there are none. */
export function over(values) {
  const each = (of) => values.map((some) => (some.length ? of(some) : null));
  return {
    ys: each((some) => some.reduce((a, b) => a + b) / some.length),
    low: each((some) => Math.min(...some)),
    high: each((some) => Math.max(...some)),
  };
}

/** Lines over one axis: the mean of the seeds, and a band from the lowest to the highest. */
function together(runs, pointsOf) {
  const all = lines(runs),
    found = all.map((line) => line.map(({ result }) => new Map(pointsOf(result)))),
    xs = [...new Set(found.flat().flatMap((points) => [...points.keys()]))].sort((a, b) => a - b),
    look = looks(all);
  const series = all.map((line, n) => {
    const values = xs.map((x) => found[n].map((points) => points.get(x)).filter(Number.isFinite));
    const { ys, ...band } = over(values);
    return { ...look[n], ys, seeds: line.length, ...(line.length > 1 ? band : {}) };
  });
  return { xs, series };
}

/** The axis of what was measured. */
export const measure = (what) =>
  what === "bits"
    ? { label: say("bits per byte", "1 バイトあたりのビット数") }
    : { label: say("accuracy", "正解率"), min: -0.02, max: 1.02 };

/** The validation part along training. */
export const validation = (runs) => ({
  title: say("Validation along training", "学習中の検証結果"),
  x: { label: say("step", "ステップ") },
  y: measure(runs[0].result.measure),
  ...together(runs, ({ validation: points }) => points),
});

/** The test part, at the longest length that was measured, by position. */
export function byPosition(runs) {
  const longest = ({ test }) => (test ?? []).filter((e) => e.by_position).sort((a, b) => b.length - a.length)[0];
  const tested = runs.filter(({ result }) => longest(result));
  return {
    title: say("Test by position", "位置ごとのテスト結果"),
    x: { label: say("position, in tokens", "位置（トークン数）") },
    y: measure(runs[0].result.measure),
    ...together(tested, (result) => longest(result).by_position.map((s) => [(s.from + s.to) / 2, s.mean])),
    marks: trainedAt(tested[0]?.result.settings?.length),
  };
}
