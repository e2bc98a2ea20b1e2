// Lab: curves that were measured: perplexity under extensions, losses of small models trained side by side.

import { Chart } from "ropewalk/chart.js";
import * as data from "ropewalk/data.js";
import { h, replace } from "ropewalk/dom.js";
import { dropPlace } from "ropewalk/drop.js";
import { HeatMap } from "ropewalk/heatmap.js";
import { KINDS, drawable, extended, kind, needle } from "ropewalk/results.js";
import { byPosition, pictures, validation } from "ropewalk/runs.js";
import { groups, study, verdicts } from "ropewalk/studies.js";
import { current, number, say } from "ropewalk/words.js";

let results = null;

const known = () => (results ?? []).filter(drawable);
const runs = () => known().filter((r) => kind(r) === "train");
const sets = () => pictures(runs());
const chosen = (name) => known().find((r) => r.name === name && kind(r) !== "train");

/** What can be chosen: a result by its name, and all training runs together. */
function choices() {
  const single = known().filter((r) => kind(r) !== "train");
  const all = [["runs", say("training runs", "学習した各モデル")]];
  return [...single.map((r) => [r.name, r.name]), ...(runs().length ? all : [])];
}

/** What else can be chosen of a result, by the name of the control. */
function parts(one) {
  const curves = [
    ["training", say("along training", "学習の経過")],
    ["length", say("by length", "長さごと")],
    ["position", say("by position", "位置ごと")],
  ];
  const named = (names) => [...names].map((name) => [name, name]);
  if (!one) return runs().length ? { of: named(sets().keys()), curve: curves.filter(([key]) => key !== "length") } : {};
  if (kind(one) === "extend.needle") return { try: named(one.result.tries.map((t) => t.try)) };
  return kind(one) === "findings" ? { of: named(groups(one)), curve: curves } : {};
}

/** The claim of a study, and what became of each thing that it expected. */
const told = (one) => [
  h("h3", {}, one.result.claim[current()]),
  h("p", {}, say("Source: ", "出典："), one.result.source[current()]),
  h(
    "ul",
    { class: "verdicts" },
    verdicts(one).map(([verdict, statement, numbers]) =>
      h("li", {}, h("strong", {}, verdict), say(": ", "："), statement, numbers ? say(` (${numbers})`, `（${numbers}）`) : null),
    ),
  ),
];

/** What the bands around the lines say. */
function bands(series) {
  if (!series.some((s) => s.low)) return "";
  const most = Math.max(...series.map((s) => s.seeds ?? 0));
  return most
    ? say(
        `Means of up to ${most} seeds; the bands go from the lowest to the highest.`,
        `最大 ${most} 個のシードの平均。帯は最小から最大まで。`,
      )
    : say("The bands are 95 % intervals.", "帯は 95% 区間。");
}

export default {
  id: "lab",
  title: () => say("Lab", "実験"),
  idea: () =>
    say(
      "Curves that were measured, not computed here: what an extension costs a real model within its trained length and saves beyond it, and how small models learn with one encoding or another. Open the JSON that `ropewalk extend`, `ropewalk train` and `ropewalk lab report` write, or name the files to `ropewalk explore`.",
      "ここで計算したものではなく、測定した曲線を見せる。拡張を使うと実際のモデルが学習時の長さの中で何を失い、その先で何を得るか。位置符号化によって小さなモデルの学習がどう変わるか。`ropewalk extend`、`ropewalk train`、`ropewalk lab report` が書き出した JSON を開くか、`ropewalk explore` の引数に渡してほしい。",
    ),
  defaults: { result: "", of: "", curve: "training", try: "" },
  controls: ({ result }) => {
    const labels = {
      result: say("result", "結果"),
      of: say("setting", "設定"),
      curve: say("curves", "曲線"),
      try: say("extension", "拡張"),
    };
    return Object.entries({ result: choices(), ...parts(chosen(result)) })
      .filter(([name, some]) => some.length > (name === "of" ? 1 : 0))
      .map(([name, options]) => ({
        name,
        kind: "select",
        wide: name === "result" || name === "of",
        label: labels[name],
        options,
      }));
  },
  mount(host, { refill, update, values: shared, seen }) {
    const drop = dropPlace({
      id: "result-file",
      accept: ".json",
      label: say("Open or drop results (JSON): ", "結果の JSON を開くか、ここにドロップ："),
      async open(file) {
        const { name, result } = await data.read(file);
        if (!result) {
          throw new Error(
            say(
              `${name} is a model; open it in the view Stretch`,
              `${name} はモデルです。「伸長」の画面で開いてください`,
            ),
          );
        }
        if (!KINDS.includes(kind({ result }))) {
          throw new Error(
            say(
              `${name} holds ${result.schema}, which has no curves that are shown here`,
              `${name} は ${result.schema} で、ここで描ける曲線がありません`,
            ),
          );
        }
        if (!drawable({ result })) {
          throw new Error(
            say(
              `${name} is not what this version of ropewalk writes as ${result.schema}`,
              `${name} は、このバージョンの ropewalk が書き出す ${result.schema} ではありません`,
            ),
          );
        }
        if (kind({ result }) === "findings" && !groups({ result }).length) {
          throw new Error(
            say(`no run of the study in ${name} has ended yet`, `${name} の研究では、まだ一つも学習が終わっていません`),
          );
        }
        results = [{ name, result }, ...(results ?? []).filter((r) => r.name !== name)];
        shared.result = kind({ result }) === "train" ? "runs" : name;
        settle();
      },
    });
    const box = h("div"),
      found = h("div");
    host.append(drop.node, box, found);
    let picture = null,
      gone = false;

    /** Names in the address that are not there give way to the first that is. */
    function settle() {
      among("result", choices());
      for (const [name, options] of Object.entries(parts(chosen(shared.result)))) among(name, options);
      refill();
      update();
    }

    function among(name, options) {
      const keys = options.map(([key]) => key);
      if (!keys.includes(shared[name])) shared[name] = keys[0] ?? "";
    }

    function show(Kind) {
      if (picture instanceof Kind) return picture;
      picture?.destroy();
      box.replaceChildren();
      return (picture = new Kind(box, { height: 380 }));
    }

    async function load() {
      try {
        const found = await data.get("results");
        results = [...(results ?? []), ...found];
        if (!gone) settle();
      } catch (error) {
        drop.say(error);
      }
    }
    if (results)
      queueMicrotask(settle); // when this view is the one that is shown
    else load();

    /** The chart that is asked for; the first setting where that in the address is not there. */
    function curves(one, { of, curve }) {
      const settings = one ? (kind(one) === "findings" ? groups(one) : []) : [...sets().keys()];
      const setting = settings.includes(of) ? of : settings[0];
      if (one) return settings.length ? study(one, setting, curve) : extended(one);
      const spec = (curve === "position" ? byPosition : validation)(sets().get(setting));
      return setting ? { ...spec, title: spec.title + say(": ", "：") + setting } : spec;
    }

    return {
      update({ result, try: name, ...which }) {
        if (!results) return say("Looking for results…", "結果を探しています…");
        const one = chosen(result);
        replace(found, one && kind(one) === "findings" ? told(one) : null);
        if (!one && !runs().length) {
          return say(
            "Nothing to show yet. `ropewalk extend MODEL --json > result.json` makes such a file.",
            "まだ表示するものがありません。`ropewalk extend MODEL --json > result.json` で作れます。",
          );
        }
        if (one && kind(one) === "extend.needle") {
          const spec = needle(one, name);
          show(HeatMap).draw(spec);
          seen.pictures.lab = { cells: spec.values };
          return say(
            "The right key's share of the probability, by length and depth.",
            "正しい鍵の確率の割合を、長さと深さごとに示す。",
          );
        }
        const spec = curves(one, which);
        show(Chart).draw({ name: "lab", ...spec });
        seen.pictures.lab = spec;
        const last = ({ ys }) => number(ys.findLast((v) => v != null) ?? NaN);
        const ends = spec.series.map((s) => `${s.label} ${last(s)}`).join(say("; ", "、"));
        return say(`At the end of the curves: ${ends}. `, `曲線の終わりの値：${ends}。`) + bands(spec.series);
      },
      destroy: () => {
        gone = true;
        picture?.destroy();
      },
    };
  },
};
