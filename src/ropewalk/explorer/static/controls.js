// A row of labelled controls, made from a list. Each is { name, kind, label, … }; kinds: range, log, select, check,
// several, text, button.

import { h, replace } from "ropewalk/dom.js";
import { whole } from "ropewalk/words.js";

const STEPS = 400;

/** A slider whose steps grow with its value, for lengths and positions. */
const toLog = (x, { min, max }) => Math.round((STEPS * Math.log(x / min)) / Math.log(max / min));
const fromLog = (n, { min, max }) => Math.round(min * (max / min) ** (n / STEPS));

function slider(control, value, change) {
  const log = control.kind === "log",
    show = control.show ?? ((x) => whole(x));
  const out = h("output", { for: `c-${control.name}` }, show(value));
  const input = h("input", {
    type: "range",
    id: `c-${control.name}`,
    min: log ? 0 : control.min,
    max: log ? STEPS : control.max,
    step: log ? 1 : (control.step ?? 1),
    "aria-valuetext": show(value),
    oninput: () => {
      const x = log ? fromLog(+input.value, control) : +input.value;
      out.textContent = show(x);
      input.setAttribute("aria-valuetext", show(x));
      change(x);
    },
  });
  input.value = log ? toLog(value, control) : value;
  return h("div", { class: "control" }, h("label", { for: input.id }, control.label, " ", out), input);
}

function select(control, value, change) {
  const input = h(
    "select",
    { id: `c-${control.name}`, onchange: () => change(input.value) },
    control.options.map(([key, label]) => h("option", { value: key }, label)),
  );
  input.value = value;
  const kind = control.wide ? "control wide" : "control";
  return h("div", { class: kind }, h("label", { for: input.id }, control.label), input);
}

function check(control, value, change) {
  const input = h("input", { type: "checkbox", id: `c-${control.name}`, onchange: () => change(input.checked) });
  input.checked = value;
  return h("div", { class: "control check" }, input, h("label", { for: input.id }, control.label));
}

/** Some of many, kept as names with commas. */
function several(control, value, change) {
  const chosen = new Set(value.split(",").filter(Boolean));
  const boxes = control.options.map(([key, label, look]) => {
    const box = h("input", {
      type: "checkbox",
      id: `c-${control.name}-${key}`,
      onchange: () => {
        if (box.checked) chosen.add(key);
        else chosen.delete(key);
        change(
          control.options
            .map(([k]) => k)
            .filter((k) => chosen.has(k))
            .join(","),
        );
      },
    });
    box.checked = chosen.has(key);
    return h(
      "span",
      { class: "check" },
      box,
      h("label", { for: box.id }, look ? h("i", { class: "swatch", "data-color": look }) : null, label),
    );
  });
  for (const box of boxes) {
    const swatch = box.querySelector(".swatch");
    if (swatch) swatch.style.background = swatch.dataset.color;
  }
  return h("fieldset", { class: "control several" }, h("legend", {}, control.label), boxes);
}

function text(control, value, change) {
  const input = h("input", {
    type: "text",
    id: `c-${control.name}`,
    autocomplete: "off",
    spellcheck: "false",
    maxlength: control.longest ?? 400,
    placeholder: control.placeholder,
    oninput: () => change(input.value),
  });
  input.value = value;
  return h("div", { class: "control wide" }, h("label", { for: input.id }, control.label), input);
}

function button(control, _, change) {
  return h(
    "div",
    { class: "control press" },
    h("button", { type: "button", id: `c-${control.name}`, onclick: () => change(null) }, control.label),
  );
}

const KINDS = { range: slider, log: slider, select, check, several, text, button };

/** A number within the slider's range, a word among the options; what an address says may be anything. */
export function sane(control, value, fallback) {
  if (control.kind === "range" || control.kind === "log") {
    if (!Number.isFinite(value)) return fallback;
    const step = control.kind === "range" ? (control.step ?? 1) : 1;
    const near = control.min + Math.round((value - control.min) / step) * step;
    return Math.min(Math.max(+near.toFixed(9), control.min), control.max);
  }
  if (control.kind === "select") return control.options.some(([key]) => key === value) ? value : fallback;
  if (control.kind === "several") {
    const known = value.split(",").filter((key) => control.options.some(([k]) => k === key));
    return known.length || value === "" ? known.join(",") : fallback;
  }
  if (control.kind === "text") return value.slice(0, control.longest ?? 400);
  return value;
}

/** Fill the form; `change(name, value)` is called at every step. The control that has the focus keeps it. */
export function fill(form, controls, values, change) {
  const focused = form.contains(document.activeElement) ? document.activeElement.id : null;
  replace(
    form,
    controls.map((c) => KINDS[c.kind](c, values[c.name], (value) => change(c, value))),
  );
  if (focused) form.querySelector(`#${CSS.escape(focused)}`)?.focus();
}
