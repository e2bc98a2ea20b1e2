// Lab: curves that were measured: perplexity under extensions, losses of small models trained side by side.

import { Chart } from "ropewalk/chart.js";
import * as data from "ropewalk/data.js";
import { h, marked, replace } from "ropewalk/dom.js";
import { HeatMap } from "ropewalk/heatmap.js";
import { ENCODINGS, LINES } from "ropewalk/looks.js";
import { number, say, whole } from "ropewalk/words.js";

let results = null;

const kind = ({ result }) => result.schema.replace(/^ropewalk\./, "").replace(/\/\d+$/, "");

/** Perplexity by position, one line an extension, with its interval. */
function extended({ result }) {
  const xs = result.buckets.map(([from, to]) => (from + to) / 2), at = (tried, end) => tried.perplexity.map((p) => p[end] ?? p.value);
  const trained = result.model?.trained_length;
  return {
    title: say(`Perplexity by position: ${result.model?.name ?? ""}`, `位置ごとのパープレキシティ：${result.model?.name ?? ""}`), x: { label: say("position", "位置"), min: 0, max: Math.max(...result.buckets.flat()) },
    y: { label: say("perplexity", "パープレキシティ"), log: true }, xs,
    series: result.tries.map((tried, n) => ({ ...LINES[n % LINES.length], label: tried.try, points: true, ys: at(tried, "value"), low: at(tried, "low"), high: at(tried, "high") })),
    marks: trained ? [{ x: trained, label: `${say("trained", "学習時")} ${whole(trained)}` }] : [],
  };
}

/** Validation curves of all training runs together. */
function trained(all) {
  const steps = [...new Set(all.flatMap(({ result }) => result.validation.map(([step]) => step)))].sort((a, b) => a - b);
  const seen = {};
  return {
    title: say("Validation along training", "学習中の検証結果"), x: { label: say("step", "ステップ") }, y: { label: all[0].result.measure ?? say("loss", "損失") }, xs: steps,
    series: all.map(({ name, result }, n) => {
      const encoding = result.settings?.encoding?.name ?? result.settings?.encoding, by = new Map(result.validation.map(([step, value]) => [step, value]));
      const look = ENCODINGS[encoding] ?? LINES[n % LINES.length], times = (seen[encoding] = (seen[encoding] ?? 0) + 1);
      return { ...look, label: `${ENCODINGS[encoding]?.label ?? name}${times > 1 ? ` (${times})` : ""}`, ys: steps.map((s) => by.get(s) ?? null) };
    }),
  };
}

const KNOWN = ["extend", "extend.needle", "train"];

/** What can be chosen: a result by its name, and all training runs together. */
function choices() {
  const some = (results ?? []).filter((r) => KNOWN.includes(kind(r))), single = some.filter((r) => kind(r) !== "train");
  return [...single.map((r) => [r.name, r.name]), ...(single.length < some.length ? [["train", say("all training runs", "すべての学習")]] : [])];
}

const chosen = (name) => (results ?? []).find((r) => r.name === name && kind(r) !== "train" && KNOWN.includes(kind(r)));

export default {
  id: "lab",
  title: () => say("Lab", "実験"),
  idea: () => say(
    "Curves that were measured, not computed here: what an extension costs a real model within its trained length and saves beyond it, and how small models learn with one encoding or another. Open the JSON that `ropewalk extend`, `ropewalk train` and the lab write, or name the files to `ropewalk explore`.",
    "ここで計算したものではなく、測定した曲線を見せる。拡張を使うと実際のモデルが学習時の長さの中で何を失い、その先で何を得るか。位置符号化によって小さなモデルの学習がどう変わるか。`ropewalk extend` や `ropewalk train` が書き出した JSON を開くか、`ropewalk explore` の引数に渡してほしい。"),
  defaults: { result: "", try: "" },
  controls: ({ result, try: name }) => {
    const one = chosen(result), options = choices();
    return [
      ...(options.length ? [{ name: "result", kind: "select", label: say("result", "結果"), options }] : []),
      ...(one && kind(one) === "extend.needle" ? [{ name: "try", kind: "select", label: say("extension", "拡張"), options: one.result.tries.map((t) => [t.try, t.try]) }] : []),
    ];
  },
  mount(host, { refill, update, values: shared, seen }) {
    const note = h("p", { role: "alert", class: "error" });
    const input = h("input", { type: "file", accept: ".json", multiple: true, id: "result-file", onchange: () => open([...input.files]) });
    const drop = h("div", {
      class: "drop", ondragover: (e) => { e.preventDefault(); drop.classList.add("over"); }, ondragleave: () => drop.classList.remove("over"),
      ondrop: (e) => { e.preventDefault(); drop.classList.remove("over"); open([...e.dataTransfer.files]); },
    }, h("label", { for: "result-file" }, say("Open or drop results (JSON): ", "結果の JSON を開くか、ここにドロップ: ")), input, note);
    const box = h("div");
    host.append(drop, box);
    let picture = null, gone = false;

    async function open(files) {
      note.textContent = "";
      for (const file of files) {
        try {
          const { name, result } = await data.read(file);
          if (!result) throw new Error(say(`${name} is a model; open it in the view Stretch`, `${name} はモデルです。「伸長」の画面で開いてください`));
          if (!KNOWN.includes(kind({ result }))) throw new Error(say(`${name} holds ${result.schema}, which has no curves that are shown here`, `${name} は ${result.schema} で、ここで描ける曲線がありません`));
          results = [{ name, result }, ...(results ?? []).filter((r) => r.name !== name)];
          shared.result = kind({ result }) === "train" ? "train" : name;
          settle();
        } catch (error) {
          replace(note, marked(error.message));
        }
      }
    }

    /** Names in the address that are not there give way to the first that is. */
    function settle() {
      const options = choices().map(([key]) => key);
      if (!options.includes(shared.result)) shared.result = options[0] ?? "";
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

    if (results) {
      queueMicrotask(settle); // when this view is the one that is shown
    } else {
      data.get("results").then((found) => {
        results = found;
        if (gone) return;
        settle();
      }, (error) => { replace(note, marked(error.message)); });
    }
    return {
      update({ result, try: name }) {
        if (!results) return say("Looking for results…", "結果を探しています…");
        const one = chosen(result), runs = results.filter((r) => kind(r) === "train");
        if (!one && !runs.length) return say("Nothing to show yet. `ropewalk extend MODEL --json > result.json` makes such a file.", "まだ表示するものがありません。`ropewalk extend MODEL --json > result.json` で作れます。");
        if (one && kind(one) === "extend.needle") {
          const { lengths, depths, tries } = one.result, tried = tries.find((t) => t.try === name) ?? tries[0];
          const cells = depths.flatMap((d) => lengths.map((l) => tried.cells.find((c) => c.length === l && c.depth === d)?.share ?? NaN));
          show(HeatMap).draw({ name: "needle", title: say(`Finding a key in a long text: ${tried.try}`, `長いテキストから鍵を探す：${tried.try}`), rows: depths.length, cols: lengths.length, values: cells, low: 0, high: 1, square: false,
            x: { label: say("length, in tokens", "長さ（トークン数）"), names: lengths, ticks: lengths.map((l, n) => [n, l]) }, y: { label: say("depth", "深さ"), names: depths, ticks: depths.map((d, n) => [n, d]) } });
          seen.pictures.lab = { cells };
          return say(`The right key's share of the probability, by length and depth, with ${tried.try}.`, `${tried.try} のとき、正しい鍵の確率の割合を、長さと深さごとに示す。`);
        }
        const spec = one ? extended(one) : trained(runs);
        show(Chart).draw({ name: "lab", ...spec });
        seen.pictures.lab = spec;
        const last = spec.series.map((s) => `${s.label} ${number([...s.ys].reverse().find((v) => v != null) ?? NaN)}`).join(say("; ", "、"));
        return say(`At the end of the curves: ${last}.`, `曲線の終わりの値：${last}。`);
      },
      destroy: () => { gone = true; picture?.destroy(); },
    };
  },
};
