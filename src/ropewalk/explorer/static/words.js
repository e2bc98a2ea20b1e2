// Two languages side by side: say("distance", "距離") is the one that the reader has chosen.

let language = "en";

export const current = () => language;
export const setLanguage = (wanted) => {
  language = wanted === "ja" ? "ja" : "en";
};
export const say = (en, ja) => (language === "ja" ? ja : en);

/** A whole number with separators. */
export const whole = (x) => Math.round(x).toLocaleString(language);

/** A number to so many digits, with a true minus sign. */
export function number(x, digits = 4) {
  if (!Number.isFinite(x)) return x > 0 ? "∞" : x < 0 ? "−∞" : "—";
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) {
    const [mantissa, exponent] = x.toExponential(2).split("e");
    return `${minus(mantissa)}·10${superscript(+exponent)}`;
  }
  const decimals = Math.max(0, digits - Math.max(1, Math.floor(Math.log10(size || 1)) + 1));
  return minus(x.toLocaleString(language, { minimumFractionDigits: 0, maximumFractionDigits: decimals }));
}

/** With a fixed number of decimals, so that a number does not jump about while it changes. */
export const fixed = (x, decimals) => minus(x.toFixed(decimals));

const minus = (text) => text.replace("-", "−");
export const superscript = (n) => String(n).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);

/** A tick of an axis: short. */
export function tick(x, powers = false) {
  if (x === 0) return "0";
  if (powers && x >= 1e4) return `10${superscript(Math.round(Math.log10(x)))}`;
  const size = Math.abs(x),
    power = Math.log10(size);
  if (size >= 1e5 || size < 1e-3) {
    if (Math.abs(power - Math.round(power)) < 1e-9) return `${x < 0 ? "−" : ""}10${superscript(Math.round(power))}`;
    return number(x, 2);
  }
  return minus(String(+x.toPrecision(4)));
}
