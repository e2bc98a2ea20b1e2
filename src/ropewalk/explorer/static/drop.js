// A place to open or drop files at, with room to say why one cannot be read.

import { h, marked, replace } from "ropewalk/dom.js";

/**
 * @param {string} label what can be opened.
 * @param {(file: File) => Promise<void>} open called for each file; what it throws is shown.
 */
export function dropPlace({ id, label, accept, open }) {
  const note = h("p", { role: "alert", class: "error" });
  const say = (error) => replace(note, marked(error.message));
  const all = async (files) => {
    replace(note);
    for (const file of files) await open(file).catch(say);
  };
  const input = h("input", { type: "file", id, accept, multiple: true, onchange: () => all([...input.files]) });
  const light = (on) => (event) => {
    event.preventDefault();
    node.classList.toggle("over", on);
  };
  const node = h(
    "div",
    {
      class: "drop",
      ondragover: light(true),
      ondragleave: light(false),
      ondrop: (event) => {
        light(false)(event);
        all([...event.dataTransfer.files]);
      },
    },
    h("label", { for: id }, label),
    input,
    note,
  );
  return { node, say };
}
