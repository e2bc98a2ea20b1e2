// What is shown stands in the address: #view?name=value&… So a view can be shared, and "back" goes back.

/** The view and the values that the address asks for; unknown names are left out, wrong values fall back. */
export function read() {
  const [, view, query] = /^#?([^?]*)\??(.*)$/s.exec(location.hash);
  return { view, values: new URLSearchParams(query) };
}

/** A view's values: its defaults, and what the address says in place of some of them. */
export function valuesOf(defaults, given) {
  const out = { ...defaults };
  for (const [name, value] of Object.entries(defaults)) {
    const text = given.get(name);
    if (text === null) continue;
    if (typeof value === "number") out[name] = text !== "" && Number.isFinite(+text) ? +text : value;
    else if (typeof value === "boolean") out[name] = text === "1";
    else out[name] = text;
  }
  return out;
}

/** The address of a view: values that are the default are left out. */
export function address(view, values, defaults, language) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== defaults[name]) query.set(name, typeof value === "boolean" ? (value ? "1" : "0") : value);
  }
  query.set("lang", language);
  return `#${view}?${query}`;
}

let waiting = 0;

/** Write the address without a new entry in the history; not at every step of a slider, which browsers limit. */
export function write(hash) {
  clearTimeout(waiting);
  const before = location.hash;
  waiting = setTimeout(() => {
    // a link may have been followed meanwhile, of which the event is still to come: then this is the old view's address
    if (location.hash === before) history.replaceState(null, "", hash);
  }, 150);
}

/** Nothing more to write: the address has changed by itself. */
export const forget = () => clearTimeout(waiting);
