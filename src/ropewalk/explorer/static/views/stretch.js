// Stretch: what a context extension does to every pair of a real model.

import { Chart } from "ropewalk/chart.js";
import * as data from "ropewalk/data.js";
import { h, replace } from "ropewalk/dom.js";
import { dropPlace } from "ropewalk/drop.js";
import { LINES, PALE } from "ropewalk/looks.js";
import { TURN } from "ropewalk/math/spectra.js";
import { FATES, compute, label, table, turning, zones } from "ropewalk/stretching.js";
import { current, fixed, number, say, whole } from "ropewalk/words.js";

const TRIES = ["linear", "ntk", "dynamic", "ntk-by-parts", "yarn", "llama3"];
let models = [];

const find = (name) => models.find((m) => m.name === name) ?? models[0];

/** One line without extension, and one for each that is shown. */
const series = (before, shown, of) => [
  { label: say("without extension", "拡張なし"), color: PALE, dash: [2.4, 2.8], ys: of({ inv_freq: before }) },
  ...shown.map((s, n) => ({ ...LINES[n % LINES.length], label: label(s), ys: of(s) })),
];

const across = (before) => ({
  label: say("pair of channels", "チャネルのペア"),
  min: -0.5,
  max: before.length - 0.5,
});

function wavelengths(found, { before, trained, shown }) {
  const wave = ({ inv_freq }) => Array.from(inv_freq, (f) => (f ? TURN / f : null)),
    lines = series(before, shown, wave),
    lengths = [...new Set([trained, ...shown.map((s) => s.reach)].filter(Boolean))];
  const most = Math.max(...lengths, ...lines.flatMap(({ ys }) => ys)),
    shades = shown.length ? say(`; shades: ${label(shown[0])}`, `。濃淡は ${label(shown[0])}`) : "";
  const count = (s, fate) => `${FATES[fate]()} ${s.fates.filter((x) => x === fate).length}`;
  return {
    name: "wavelengths",
    title: say(`${found.name}: wavelength of each pair`, `${found.name}：各ペアの波長`) + shades,
    reading: shown.map((s) => `${label(s)}: ${Object.keys(FATES).map((fate) => count(s, fate)).join(", ")}`).join(". "),
    x: across(before),
    y: { label: say("wavelength, in tokens", "波長（トークン数）"), log: true, min: 1, max: 10 ** Math.ceil(Math.log10(most)) },
    xs: Array.from(before, (_, i) => i),
    series: lines.map((line, n) => (n === 1 ? { ...line, points: true } : line)),
    zones: shown.length ? zones(shown[0]) : [],
    marks: lengths.map((y) => ({
      y,
      label: `${y === trained ? say("trained", "学習時") : say("extended", "拡張後")} ${whole(y)}`,
    })),
  };
}

/** What a query or key is turned by at a position: the cosines, or the sines, of all pairs. */
function turns({ before, shown }, pos, wave) {
  const made = ({ inv_freq, attention_factor = 1 }) =>
    Array.from(inv_freq, (f) => attention_factor * (wave === "sin" ? Math.sin : Math.cos)(pos * f));
  return {
    name: wave,
    title: say(`${wave} at position ${whole(pos)}, before and after`, `位置 ${whole(pos)} での ${wave}、拡張の前と後`),
    x: across(before),
    y: { label: wave, min: -1.5, max: 1.5 },
    xs: Array.from(before, (_, i) => i),
    series: series(before, shown, made),
  };
}

/** The model in a sentence, and one of its pairs at a position. */
function told(found, { layer, before, trained, shown }, pos) {
  const never = trained ? Array.from(before).filter((f) => TURN / f > trained).length : null,
    i = Math.round((before.length - 1) * 0.75),
    at = (f, times = 1) => `cos ${fixed(times * Math.cos(pos * f), 4)}, sin ${fixed(times * Math.sin(pos * f), 4)}`;
  const [first] = shown,
    after = first && at(first.inv_freq[i], first.attention_factor);
  return say(
    `${found.name}: base ${whole(layer.base)}, ${layer.rotary_dim} channels that turn${trained ? `, trained with ${whole(trained)} tokens, within which ${never} of ${before.length} pairs complete no turn` : ""}. Pair ${i} at position ${whole(pos)}: ${at(before[i])}${first ? `; with ${label(first)}: ${after}` : ""}.`,
    `${found.name}：base ${whole(layer.base)}、回転するチャネル ${layer.rotary_dim}${trained ? `、学習時の長さ ${whole(trained)} トークン。その中で ${before.length} ペアのうち ${never} ペアは一回転しない` : ""}。位置 ${whole(pos)} のペア ${i}：${at(before[i])}${first ? `。${label(first)}：${after}` : ""}。`,
  );
}

export default {
  id: "stretch",
  title: () => say("Stretch", "伸長"),
  idea: () =>
    say(
      "A pair whose wavelength exceeds the trained length never turned once in training; an extension slows such pairs, so that a longer text brings no angle that the model does not know. Which other pairs it touches differs from one extension to the next: pick a model, or open its config.json or GGUF file.",
      "波長が学習時の長さを超えるペアは、学習中に一回転したことがない。文脈長の拡張は、長いテキストでも未知の角度が現れないように、そうしたペアを遅くする。どのペアをどう変えるかは方法ごとに違う。モデルを選ぶか、config.json や GGUF を開いてほしい。",
    ),
  defaults: { model: "Llama 3.1 8B", layer: "0", ext: "own,yarn", factor: 8, pos: 8192, wave: "cos" },
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
      { name: "wave", kind: "select", label: say("cosine or sine", "cos か sin か"), options: [["cos", "cos"], ["sin", "sin"]] },
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
        "config.json、params.json、GGUF を開くか、ここにドロップ：",
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
        const found = find(values.model),
          { plan } = found,
          one = compute(found, values),
          { layer, before, trained, shown } = one,
          { pos } = values;
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
        waves.draw(wavelengths(found, one));
        fate.hidden = false;
        replace(fate, table(one));
        const turned = turns(one, pos, values.wave);
        angles.draw(turned);
        seen.pictures.stretch = {
          trained,
          turned: turned.series.map(({ ys }) => ys),
          before: Array.from(before),
          shown: shown.map((s) => ({
            name: s.name,
            own: Boolean(s.own),
            inv_freq: Array.from(s.inv_freq),
            fates: s.fates,
            attention_factor: s.attention_factor,
          })),
        };
        return told(found, one, values.pos);
      },
      destroy: () => {
        gone = true;
        waves.destroy();
        angles.destroy();
      },
    };
  },
};
