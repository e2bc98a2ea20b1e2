// Stretch: what a context extension does to every pair of a real model.

import { Chart } from "ropewalk/chart.js";
import * as data from "ropewalk/data.js";
import { h, replace } from "ropewalk/dom.js";
import { dropPlace } from "ropewalk/drop.js";
import { LINES, PALE, SHADES } from "ropewalk/looks.js";
import { TURN, fates, geometric, spectrum } from "ropewalk/math/spectra.js";
import { current, fixed, number, say, whole } from "ropewalk/words.js";

const TRIES = ["linear", "ntk", "dynamic", "ntk-by-parts", "yarn", "llama3"];
let models = [];

const FATES = {
  kept: () => say("kept", "保持"),
  blended: () => say("blended", "混合"),
  divided: () => say("divided", "除算"),
  raised: () => say("base raised", "base 引き上げ"),
  stopped: () => say("stopped", "停止"),
};

const find = (name) => models.find((m) => m.name === name) ?? models[0];
const turning = ({ plan }) => plan.layers.filter((l) => l.kind === "rope" && l.inv_freq.length);
const trainedLength = (plan, layer) => layer.extension?.original_length ?? plan.original_length ?? plan.max_length;

/** The frequencies without extension, and under each one that is asked for. */
export function compute({ model, layer: which, ext, factor }) {
  const found = find(model),
    kinds = turning(found),
    layer = kinds[Math.min(+which || 0, kinds.length - 1)];
  if (!layer) return { found, layer: null };
  const { rotary_dim: width, base } = layer,
    trained = trainedLength(found.plan, layer);
  const before = layer.extension ? geometric(width, base) : Float64Array.from(layer.inv_freq);
  const shown = ext
    .split(",")
    .filter(Boolean)
    .flatMap((name) => {
      if (name === "own") {
        if (!layer.extension) return [];
        const reach = Math.max(found.plan.extended_length ?? 0, found.plan.max_length ?? 0, trained ?? 0);
        const own =
          layer.length == null
            ? { inv_freq: Float64Array.from(layer.inv_freq), attention_factor: layer.attention_factor }
            : spectrum(width, base, layer.extension, reach);
        return [{ name: layer.extension.name, own: true, extension: layer.extension, reach, ...own }];
      }
      if (!trained && name !== "linear" && name !== "ntk") return [];
      const extension = { name, factor, original_length: trained };
      return [
        {
          name,
          extension,
          reach: trained ? Math.round(trained * factor) : null,
          ...spectrum(width, base, extension, trained * factor),
        },
      ];
    });
  for (const s of shown) s.fates = fates(before, s.inv_freq, s.extension);
  return { found, layer, before, trained, shown };
}

const label = (s) =>
  s.own ? say(`${s.name}, as configured`, `${s.name}（設定どおり）`) : `${s.name}:${number(s.extension.factor)}`;

/** 0–28, 35 and so on. */
function runs(list) {
  const out = [];
  for (const n of list) {
    if (out.length && out.at(-1)[1] === n - 1) out.at(-1)[1] = n;
    else out.push([n, n]);
  }
  return out.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ");
}

function zones({ fates: all }) {
  const out = [];
  all.forEach((fate, i) => {
    if (out.length && out.at(-1).fate === fate) out.at(-1).to = i + 0.5;
    else out.push({ fate, from: i - 0.5, to: i + 0.5, color: SHADES[fate] });
  });
  return out;
}

function table({ before, trained, shown }) {
  const slow = (f, length) => Array.from(f).filter((w) => length && TURN / w > length).length;
  const row = (name, f, all, reach, attention) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      Object.keys(FATES).map((fate) => {
        const pairs = (all ?? []).flatMap((x, i) => (x === fate ? [i] : []));
        return h("td", {}, pairs.length ? `${pairs.length} (${runs(pairs)})` : "—");
      }),
      h("td", {}, reach ? whole(reach) : "—"),
      h("td", {}, reach ? slow(f, reach) : "—"),
      h("td", {}, fixed(attention, 4)),
    );
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        [
          say("extension", "拡張"),
          ...Object.values(FATES).map((f) => f()),
          say("reaches", "届く長さ"),
          say("no full turn", "一回転しないペア"),
          say("cos and sin times", "cos・sin の倍率"),
        ].map((w) => h("th", { scope: "col" }, w)),
      ),
    ),
    h(
      "tbody",
      {},
      row(say("none", "なし"), before, before && Array(before.length).fill("kept"), trained, 1),
      shown.map((s) => row(label(s), s.inv_freq, s.fates, s.reach, s.attention_factor)),
    ),
  );
}

export default {
  id: "stretch",
  title: () => say("Stretch", "伸長"),
  idea: () =>
    say(
      "A pair whose wavelength exceeds the trained length has never been seen to turn once; an extension slows such pairs so that a longer text shows them no angle they do not know. Each does it to other pairs: pick a model, or open its config.json or GGUF file.",
      "波長が学習時の長さを超えるペアは、学習中に一回転したことがない。文脈長の拡張は、長いテキストでも未知の角度が現れないように、そうしたペアを遅くする。どのペアをどう変えるかは方法ごとに違う。モデルを選ぶか、config.json や GGUF を開いてほしい。",
    ),
  defaults: { model: "Llama 3.1 8B", layer: "0", ext: "own,yarn", factor: 8, pos: 8192 },
  controls: (values) => {
    const found = models.length ? find(values.model) : null,
      kinds = found ? turning(found) : [];
    return [
      {
        name: "model",
        kind: "select",
        label: say("model", "モデル"),
        options: models.length ? models.map((m) => [m.name, m.name]) : [[values.model, values.model]],
      },
      ...(kinds.length > 1
        ? [
            {
              name: "layer",
              kind: "select",
              label: say("layers", "層"),
              options: kinds.map((k, n) => [String(n), `${k.label || n} (${k.layers.length})`]),
            },
          ]
        : []),
      {
        name: "factor",
        kind: "range",
        min: 1,
        max: 64,
        step: 0.5,
        show: (x) => number(x),
        label: say("factor to try", "試す倍率"),
      },
      { name: "pos", kind: "log", min: 1, max: 1048576, label: say("position", "位置") },
      {
        name: "ext",
        kind: "several",
        label: say("extensions", "拡張"),
        options: [["own", say("as configured", "設定どおり")], ...TRIES.map((t) => [t, t])],
      },
    ];
  },
  mount(host, { refill, update, set, values: shared, seen }) {
    const drop = dropPlace({
      id: "model-file",
      accept: ".json,.gguf",
      label: say(
        "Open or drop a config.json, params.json or GGUF file: ",
        "config.json、params.json、GGUF を開くか、ここにドロップ: ",
      ),
      async open(file) {
        const { name, plan, result } = await data.read(file);
        if (result) {
          throw new Error(
            say(
              "this is a result of the lab; open it in the view Lab",
              "これは実験の結果です。「実験」の画面で開いてください",
            ),
          );
        }
        models = [{ name, plan }, ...models.filter((m) => m.name !== name)];
        set({ model: name, layer: "0" });
        refill();
      },
    });
    host.append(drop.node);
    const waves = new Chart(host, { height: 360 });
    const fate = h("div", {
      class: "card scroll",
      tabindex: 0,
      role: "region",
      "aria-label": say("pairs by extension", "拡張ごとのペア"),
    });
    fate.hidden = true;
    host.append(fate);
    const angles = new Chart(host, { height: 260 }),
      warnings = h("div");
    host.append(warnings);
    let gone = false;

    async function load() {
      try {
        const found = await data.get("models");
        models = [...models, ...found]; // a file may have been opened meanwhile
        if (gone) return;
        if (!models.some((m) => m.name === shared.model)) shared.model = models[0].name;
        refill();
        update();
      } catch (error) {
        drop.say(error);
      }
    }
    if (!models.length) load();

    return {
      update(values) {
        if (!models.length) return say("Reading the models…", "モデルを読み込んでいます…");
        const { found, layer, before, trained, shown } = compute(values),
          { plan } = found;
        replace(
          warnings,
          h("h3", {}, say("What to know of this configuration", "この設定について知っておくこと")),
          plan.warnings.length
            ? h(
                "ul",
                {},
                plan.warnings.map((w) => h("li", {}, w[current()])),
              )
            : h("p", {}, say("Nothing in particular.", "特にありません。")),
        );
        if (!layer) {
          waves.hide();
          angles.hide();
          fate.hidden = true;
          return say(
            `No layer of ${found.name} rotates queries and keys.`,
            `${found.name} には、クエリとキーを回転する層がありません。`,
          );
        }
        const pairs = Array.from(before, (_, i) => i),
          wave = (f) => Array.from(f, (w) => (w ? TURN / w : null)),
          last = pairs.length - 1;
        const lengths = [...new Set([trained, ...shown.map((s) => s.reach)].filter(Boolean))];
        const top =
          10 ** Math.ceil(Math.log10(Math.max(...lengths, ...wave(before), ...shown.flatMap((s) => wave(s.inv_freq)))));
        waves.draw({
          name: "wavelengths",
          title: say(`${found.name}: wavelength of each pair`, `${found.name}：各ペアの波長`),
          reading: shown
            .map(
              (s) =>
                `${label(s)}: ${Object.keys(FATES)
                  .map((k) => `${FATES[k]()} ${s.fates.filter((x) => x === k).length}`)
                  .join(", ")}`,
            )
            .join(". "),
          x: { label: say("pair of channels", "チャネルのペア"), min: -0.5, max: last + 0.5 },
          y: { label: say("wavelength, in tokens", "波長（トークン数）"), log: true, min: 1, max: top },
          xs: pairs,
          series: [
            { label: say("without extension", "拡張なし"), color: PALE, dash: [2.4, 2.8], ys: wave(before) },
            ...shown.map((s, n) => ({
              ...LINES[n % LINES.length],
              label: label(s),
              points: n === 0,
              ys: wave(s.inv_freq),
            })),
          ],
          zones: shown.length ? zones(shown[0]) : [],
          marks: lengths.map((y) => ({
            y,
            label: `${y === trained ? say("trained", "学習時") : say("extended", "拡張後")} ${whole(y)}`,
          })),
        });
        fate.hidden = false;
        replace(fate, table({ before, trained, shown }));
        const { pos } = values;
        angles.draw({
          name: "cosines",
          title: say(`cos at position ${whole(pos)}, before and after`, `位置 ${whole(pos)} での cos、拡張の前と後`),
          x: { label: say("pair of channels", "チャネルのペア"), min: -0.5, max: last + 0.5 },
          y: { label: "cos", min: -1.5, max: 1.5 },
          xs: pairs,
          series: [
            {
              label: say("without extension", "拡張なし"),
              color: PALE,
              dash: [2.4, 2.8],
              ys: Array.from(before, (f) => Math.cos(pos * f)),
            },
            ...shown.map((s, n) => ({
              ...LINES[n % LINES.length],
              label: label(s),
              ys: Array.from(s.inv_freq, (f) => s.attention_factor * Math.cos(pos * f)),
            })),
          ],
        });
        seen.pictures.stretch = {
          trained,
          cos: Array.from(before, (f) => Math.cos(pos * f)),
          before: Array.from(before),
          shown: shown.map((s) => ({
            name: s.name,
            own: Boolean(s.own),
            inv_freq: Array.from(s.inv_freq),
            fates: s.fates,
            attention_factor: s.attention_factor,
          })),
        };
        const never = trained ? Array.from(before).filter((f) => TURN / f > trained).length : null;
        const i = Math.min(last, Math.round(last * 0.75)),
          at = (f) => `cos ${fixed(Math.cos(pos * f), 4)}, sin ${fixed(Math.sin(pos * f), 4)}`;
        return say(
          `${found.name}: base ${whole(layer.base)}, ${layer.rotary_dim} channels that turn${trained ? `, trained with ${whole(trained)} tokens, within which ${never} of ${pairs.length} pairs complete no turn` : ""}. Pair ${i} at position ${whole(pos)}: ${at(before[i])}${shown[0] ? `; with ${label(shown[0])}: ${at(shown[0].inv_freq[i])}` : ""}.`,
          `${found.name}：base ${whole(layer.base)}、回転するチャネル ${layer.rotary_dim}${trained ? `、学習時の長さ ${whole(trained)} トークン。その中で ${pairs.length} ペアのうち ${never} ペアは一回転しない` : ""}。位置 ${whole(pos)} のペア ${i}：${at(before[i])}${shown[0] ? `。${label(shown[0])} では ${at(shown[0].inv_freq[i])}` : ""}。`,
        );
      },
      destroy: () => {
        gone = true;
        waves.destroy();
        angles.destroy();
      },
    };
  },
};
