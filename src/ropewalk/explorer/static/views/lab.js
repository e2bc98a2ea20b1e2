// Lab: curves that were measured: perplexity under extensions, losses of small models trained side by side.

import { Chart } from "ropewalk/chart.js";
import * as data from "ropewalk/data.js";
import { h } from "ropewalk/dom.js";
import { dropPlace } from "ropewalk/drop.js";
import { HeatMap } from "ropewalk/heatmap.js";
import { KINDS, drawable, extended, kind, needle } from "ropewalk/results.js";
import { byPosition, pictures, validation } from "ropewalk/runs.js";
import { number, say } from "ropewalk/words.js";

let results = null;

const known = () => (results ?? []).filter(drawable);
const runs = () => known().filter((r) => kind(r) === "train");
const sets = () => pictures(runs());
const chosen = (name) => known().find((r) => r.name === name && kind(r) !== "train");

/** What can be chosen: a result by its name, and all training runs together. */
function choices() {
  const single = known().filter((r) => kind(r) !== "train");
  const all = [
    ["train", say("training runs: along training", "学習：学習の経過")],
    ["test", say("training runs: by position", "学習：位置ごと")],
  ];
  return [...single.map((r) => [r.name, r.name]), ...(runs().length ? all : [])];
}

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
      "Curves that were measured, not computed here: what an extension costs a real model within its trained length and saves beyond it, and how small models learn with one encoding or another. Open the JSON that `ropewalk extend`, `ropewalk train` and the lab write, or name the files to `ropewalk explore`.",
      "ここで計算したものではなく、測定した曲線を見せる。拡張を使うと実際のモデルが学習時の長さの中で何を失い、その先で何を得るか。位置符号化によって小さなモデルの学習がどう変わるか。`ropewalk extend` や `ropewalk train` が書き出した JSON を開くか、`ropewalk explore` の引数に渡してほしい。",
    ),
  defaults: { result: "", of: "", try: "" },
  controls: ({ result }) => {
    const one = chosen(result),
      options = choices(),
      found = [];
    if (options.length) found.push({ name: "result", kind: "select", wide: true, label: say("result", "結果"), options });
    const among = [...sets().keys()];
    if (!one && among.length > 1) {
      const label = say("setting", "設定");
      found.push({ name: "of", kind: "select", wide: true, label, options: among.map((name) => [name, name]) });
    }
    if (one && kind(one) === "extend.needle") {
      const tries = one.result.tries.map((t) => [t.try, t.try]);
      found.push({ name: "try", kind: "select", label: say("extension", "拡張"), options: tries });
    }
    return found;
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
        results = [{ name, result }, ...(results ?? []).filter((r) => r.name !== name)];
        shared.result = kind({ result }) === "train" ? "train" : name;
        settle();
      },
    });
    const box = h("div");
    host.append(drop.node, box);
    let picture = null,
      gone = false;

    /** Names in the address that are not there give way to the first that is. */
    function settle() {
      const options = choices().map(([key]) => key);
      if (!options.includes(shared.result)) shared.result = options[0] ?? "";
      const among = sets();
      if (!among.has(shared.of)) shared.of = [...among.keys()][0] ?? "";
      const tries = chosen(shared.result)?.result.tries.map((t) => t.try) ?? [];
      if (!tries.includes(shared.try)) shared.try = tries[0] ?? "";
      refill();
      update();
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

    return {
      update({ result, of, try: name }) {
        if (!results) return say("Looking for results…", "結果を探しています…");
        const one = chosen(result);
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
        const among = sets(),
          some = among.get(of) ?? [...among.values()][0];
        const spec = one ? extended(one) : (result === "test" ? byPosition : validation)(some);
        if (!one && of) spec.title += say(": ", "：") + of;
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
