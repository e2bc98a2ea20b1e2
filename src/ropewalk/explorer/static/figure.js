// What every picture can do: save itself as SVG or PNG, its numbers as CSV, and show them as a table.

import { h, replace } from "ropewalk/dom.js";
import { number, say } from "ropewalk/words.js";

function download(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Rows of cells as CSV; a spreadsheet must not take a text for a formula. */
export function csv(rows) {
  const cell = (x) => {
    const text =
      typeof x === "number" ? (Number.isFinite(x) ? String(x) : "") : String(x ?? "").replace(/^[=+@\t\r-]/, "'$&");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** An SVG text as a PNG of twice its size. */
async function png(text, width, height) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = h("canvas", { width: 2 * width, height: 2 * height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#ffffff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/**
 * The frame of a picture: a white card, buttons below, the numbers as a table.
 * @param {{name: () => string, svg: () => SVGElement, rows: () => any[][]}} source asked when a button is pressed.
 */
export function frame(picture, source) {
  const save = (label, kind, work) =>
    h(
      "button",
      {
        type: "button",
        class: "small",
        "data-save": kind,
        onclick: async () => download(`ropewalk-${source.name()}.${kind}`, await work()),
      },
      label,
    );
  const text = () => new XMLSerializer().serializeToString(source.svg());
  const table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("numbers", "数値") });
  const details = h(
    "details",
    { ontoggle: () => details.open && replace(table, numbers(source.rows())) },
    h("summary", {}, say("Numbers", "数値")),
    table,
  );
  const node = h(
    "figure",
    { class: "card" },
    picture,
    h(
      "div",
      { class: "actions" },
      save("PNG", "png", () => {
        const made = source.svg();
        return png(text(), +made.getAttribute("width"), +made.getAttribute("height"));
      }),
      save("SVG", "svg", () => new Blob([text()], { type: "image/svg+xml" })),
      save("CSV", "csv", () => new Blob(["\ufeff", csv(source.rows())], { type: "text/csv" })),
      details,
    ),
  );
  return { node, refresh: () => details.open && replace(table, numbers(source.rows())) };
}

const MOST_ROWS = 60;

function numbers([head, ...rows]) {
  const step = Math.max(1, Math.ceil(rows.length / MOST_ROWS));
  const some = rows.filter((_, n) => n % step === 0 || n === rows.length - 1);
  const show = (x) => (typeof x === "number" ? number(x, 6) : (x ?? ""));
  return [
    step > 1
      ? h(
          "p",
          {},
          say(
            `One row in ${step} of ${rows.length}; the CSV has all.`,
            `${rows.length} 行のうち ${step} 行ごとに表示。CSV には全部入ります。`,
          ),
        )
      : null,
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          head.map((c) => h("th", { scope: "col" }, c)),
        ),
      ),
      h(
        "tbody",
        {},
        some.map((row) =>
          h(
            "tr",
            {},
            row.map((c, n) => (n ? h("td", {}, show(c)) : h("th", { scope: "row" }, show(c)))),
          ),
        ),
      ),
    ),
  ];
}
