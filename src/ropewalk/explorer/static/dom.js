// Elements in one call: h("p", { class: "quiet" }, "text", child).

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Words in which `code` stands between backticks. */
export const marked = (text) => text.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));

/** Put new children in place of all there are. */
export const replace = (node, ...children) => {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
};
