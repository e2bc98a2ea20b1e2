// A study of the lab as pictures and verdicts: several arms, each with several seeds.

import { ENCODINGS, LINES } from "ropewalk/looks.js";
import { trainedAt } from "ropewalk/results.js";
import { measure, over } from "ropewalk/runs.js";
import { current, fixed, say } from "ropewalk/words.js";

const trainedArms = ({ arms }) => arms.filter((arm) => arm.seeds.length);

/** The parts of a study whose arms share a picture: settings beside the encoding, "" where there are none. */
export const groups = ({ result }) => [...new Set(trainedArms(result).map((arm) => arm.group))];

/** One line an arm and an extension: the mean over seeds, with their range as its band. */
function seeds(arms, curvesOf) {
  const curves = arms
    .flatMap((arm) => curvesOf(arm).map(({ extension, points }) => ({ arm, extension, at: new Map(points) })))
    .filter(({ at }) => at.size);
  const xs = [...new Set(curves.flatMap(({ at }) => [...at.keys()]))].sort((a, b) => a - b);
  const taken = new Set(arms.map((arm) => ENCODINGS[arm.encoding]?.color)),
    spare = LINES.filter(({ color }) => !taken.has(color)),
    own = new Set();
  let others = 0;
  const look = ({ encoding }) => {
    if (own.has(encoding) || !ENCODINGS[encoding]) return spare[others++ % spare.length];
    own.add(encoding);
    return ENCODINGS[encoding];
  };
  const series = curves.map(({ arm, extension, at }) => ({
    ...look(arm),
    label: extension ? `${arm.name} + ${extension}` : arm.name,
    points: xs.length < 10,
    seeds: arm.seeds.length,
    ...over(xs.map((x) => at.get(x) ?? [])),
  }));
  return { xs, series };
}

const CURVES = {
  training: {
    title: () => say("validation along training", "学習中の検証結果"),
    x: () => ({ label: say("step", "ステップ") }),
    of: ({ validation: { steps, values } }) => [
      { extension: null, points: steps.map((step, n) => [step, values.map((seed) => seed[n])]) },
    ],
  },
  length: {
    title: () => say("test by length", "長さごとのテスト結果"),
    x: (xs) => ({ label: say("length, in tokens", "長さ（トークン数）"), log: true, at: xs }),
    of: ({ test, measure, length }) =>
      [...new Set(test.map((t) => t.extension))].map((extension) => ({
        extension,
        points: test
          .filter((t) => t.extension === extension && t[measure]?.length)
          .map((t) => [t.multiple * length, t[measure]]),
      })),
    marked: true,
  },
  position: {
    title: () => say("test by position, longest texts", "位置ごとのテスト結果（最も長いテキスト）"),
    x: () => ({ label: say("position, in tokens", "位置（トークン数）") }),
    of: ({ by_position: found }) =>
      found.map(({ extension, spans }) => ({
        extension,
        points: spans.map(({ from, to, values }) => [(from + to) / 2, values]),
      })),
    marked: true,
  },
};

/** `training`, `length` or `position` of one part of a study. */
export function study({ result }, group, curve) {
  const arms = trainedArms(result).filter((arm) => arm.group === group),
    { title, x, of, marked } = CURVES[curve] ?? CURVES.training;
  const drawn = seeds(arms, of);
  return {
    title: [result.study, group, title()].filter(Boolean).join(say(": ", "：")),
    x: x(drawn.xs),
    y: measure(arms[0].measure),
    ...drawn,
    marks: marked ? trainedAt(arms[0].length) : [],
  };
}

const signed = (x) => (x < 0 ? "" : "+") + fixed(x, 3);

/** What a study expected beforehand, and what came out: [verdict, statement, numbers]. */
export function verdicts({ result }) {
  const words = {
    holds: say("holds", "成り立つ"),
    "does not hold": say("does not hold", "成り立たない"),
    open: say("open", "判定できない"),
    "not measured": say("not measured", "測れない"),
  };
  return result.statements.map(({ text, verdict, values, difference: d }) => [
    words[verdict] ?? verdict,
    text[current()] ?? text.en,
    d
      ? say(
          `${values.map((v) => fixed(v, 3)).join(" against ")}; difference ${signed(d.mean)}, 95% between ${signed(d.low)} and ${signed(d.high)}`,
          `${values.map((v) => fixed(v, 3)).join(" と ")}、差 ${signed(d.mean)}、95% 区間 ${signed(d.low)} 〜 ${signed(d.high)}`,
        )
      : "",
  ]);
}
