// The page: one view at a time, its controls, its picture, and a sentence that reads the picture out.

import * as controls from "ropewalk/controls.js";
import * as data from "ropewalk/data.js";
import { h, marked, replace } from "ropewalk/dom.js";
import * as state from "ropewalk/state.js";
import { current, say, setLanguage } from "ropewalk/words.js";
import turn from "ropewalk/views/turn.js";
import distance from "ropewalk/views/distance.js";
import waves from "ropewalk/views/waves.js";
import order from "ropewalk/views/order.js";
import stretch from "ropewalk/views/stretch.js";
import precision from "ropewalk/views/precision.js";
import axes from "ropewalk/views/axes.js";
import bias from "ropewalk/views/bias.js";
import lab from "ropewalk/views/lab.js";
import glossary from "ropewalk/views/glossary.js";
import quiz from "ropewalk/views/quiz.js";

const VIEWS = [turn, distance, waves, order, stretch, precision, axes, bias, lab, glossary, quiz];
const page = Object.fromEntries(
  ["header", "nav", "main", "footer"].map((name) => [name, document.querySelector(name)]),
);

/** What tests, and anybody at the console, may look at. */
const seen = (globalThis.ropewalk = { view: null, values: null, ms: 0, updates: 0, pictures: {} });

let shown = null; // the view on the page: { view, values, made, form, reading }

function show() {
  const asked = state.read();
  setLanguage(asked.values.get("lang") ?? data.language());
  document.documentElement.lang = current();
  const view = VIEWS.find((v) => v.id === asked.view) ?? VIEWS[0];
  const values = state.valuesOf(view.defaults, asked.values);
  for (const c of view.controls(values))
    if (c.name in values) values[c.name] = controls.sane(c, values[c.name], view.defaults[c.name]);
  Object.assign(values, view.sane?.(values)); // what handles in a picture set, and no control
  shown?.made.destroy?.();
  const form = h("form", {
    class: "controls",
    "aria-label": say("Controls", "操作"),
    onsubmit: (e) => e.preventDefault(),
  });
  const reading = h("p", { class: "reading", role: "status" }),
    pictures = h("div", { class: "pictures" });
  replace(
    page.main,
    h("h2", {}, view.title()),
    h("p", { class: "idea" }, marked(view.idea())),
    form,
    reading,
    pictures,
  );
  shown = { view, values, form, reading };
  Object.assign(seen, { view: view.id, values, pictures: {} });
  shown.made = view.mount(pictures, { set, refill, update, values, seen });
  surroundings(view);
  refill();
  update();
  document.title = `${view.title()} · ropewalk`;
}

/** A control, or a handle in a picture, has a new value. */
function set(changes) {
  Object.assign(shown.values, changes);
  update();
}

function refill() {
  controls.fill(shown.form, shown.view.controls(shown.values), shown.values, (control, value) => {
    set(control.press ? control.press(shown.values) : { [control.name]: value });
    if (!["range", "log", "text"].includes(control.kind)) refill();
  });
}

function update() {
  const { view, values, made, reading } = shown,
    began = performance.now();
  let said;
  try {
    said = made.update(values);
  } catch (error) {
    said = error.message;
    console.error(error);
  }
  // uPlot draws in a microtask of its own, which is over when this one is.
  Promise.resolve()
    .then(() => Promise.resolve())
    .then(() => {
      seen.ms = performance.now() - began;
      seen.updates += 1;
    });
  if (said != null) replace(reading, marked(said));
  state.write(state.address(view.id, values, view.defaults, current()));
  for (const link of page.header.querySelectorAll("[data-lang]"))
    link.href = state.address(view.id, values, view.defaults, link.dataset.lang);
}

/** Heading, navigation and footer, in the reader's language. */
function surroundings(view) {
  document.querySelector(".skip").textContent = say("Skip to the view", "本文へ移動");
  replace(
    page.header.querySelector("h1 span"),
    say("how position enters attention", "位置はどのように注意機構に入るのか"),
  );
  const languages = page.header.querySelector(".languages");
  languages.setAttribute("aria-label", say("Language", "言語"));
  const link = (lang, label) =>
    h(
      "a",
      { "data-lang": lang, lang, hreflang: lang, href: "#", "aria-current": lang === current() ? "true" : null },
      label,
    );
  replace(languages, link("en", "English"), " · ", link("ja", "日本語"));
  page.nav.setAttribute("aria-label", say("Views", "画面"));
  replace(
    page.nav,
    h(
      "ul",
      {},
      VIEWS.map((v) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: state.address(v.id, {}, {}, current()), "aria-current": v === view ? "page" : null },
            v.title(),
          ),
        ),
      ),
    ),
  );
  replace(
    page.footer,
    `ropewalk ${data.version()}. `,
    say(
      "Everything is computed in this page; nothing is fetched from elsewhere. Charts: uPlot (MIT).",
      "すべてこのページの中で計算しています。外部からは何も読み込みません。グラフ：uPlot（MIT）。",
    ),
  );
}

addEventListener("hashchange", () => {
  state.forget();
  const before = shown?.view,
    focused = page.nav.contains(document.activeElement);
  show();
  if (focused && before !== shown.view) page.main.focus();
});
show();
