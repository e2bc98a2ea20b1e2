// What extensions do to the pairs of a real model: their frequencies before and after, and what has become of each.

import { h } from "ropewalk/dom.js";
import { SHADES } from "ropewalk/looks.js";
import { TURN, fates, geometric, spectrum } from "ropewalk/math/spectra.js";
import { fixed, number, say, whole } from "ropewalk/words.js";

export const FATES = {
  kept: () => say("kept", "保持"),
  blended: () => say("blended", "混合"),
  divided: () => say("divided", "除算"),
  raised: () => say("base raised", "base 引き上げ"),
  stopped: () => say("stopped", "停止"),
};

export const turning = ({ plan }) => plan.layers.filter((l) => l.kind === "rope" && l.inv_freq.length);
const trainedLength = (plan, layer) => layer.extension?.original_length ?? plan.original_length ?? plan.max_length;

/** The frequencies of a model's layer without extension, and under each one that is asked for. */
export function compute(found, { layer: which, ext, factor }) {
  const kinds = turning(found),
    layer = kinds[Math.min(+which || 0, kinds.length - 1)];
  if (!layer) return { layer: null };
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
  return { layer, before, trained, shown };
}

export const label = (s) =>
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

/** Neighbouring pairs of one fate, as a shade behind them. */
export function zones({ fates: all }) {
  const out = [];
  all.forEach((fate, i) => {
    if (out.length && out.at(-1).fate === fate) out.at(-1).to = i + 0.5;
    else out.push({ fate, from: i - 0.5, to: i + 0.5, color: SHADES[fate], label: FATES[fate]() });
  });
  return out;
}

/** What happened to how many pairs, and to which. */
export function table({ before, trained, shown }) {
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
