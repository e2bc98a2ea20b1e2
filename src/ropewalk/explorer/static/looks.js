// How each encoding is drawn: the same colours and dashes as the plots of the command line (a test compares them).

const DASHED = [10, 4],
  DOTTED = [2.4, 2.8],
  DASHDOT = [12, 3.6, 2.4, 3.6];

export const ENCODINGS = {
  nope: { label: "NoPE", color: "#757575", dash: DOTTED },
  sinusoidal: { label: "Sinusoidal", color: "#e69f00", dash: [] },
  learned: { label: "Learned", color: "#8c510a", dash: DASHED },
  relative_bias: { label: "Relative bias", color: "#c65fae", dash: DASHED },
  shaw: { label: "Shaw", color: "#7b1e4d", dash: DASHDOT },
  t5: { label: "T5", color: "#df8fa0", dash: DOTTED },
  alibi: { label: "ALiBi", color: "#1b9573", dash: [] },
  kerple: { label: "KERPLE", color: "#2c7a3d", dash: DASHDOT },
  fire: { label: "FIRE", color: "#aab535", dash: DASHED },
  cope: { label: "CoPE", color: "#4b2e91", dash: DOTTED },
  rope: { label: "RoPE", color: "#0b4fa0", dash: [] },
  xpos: { label: "xPos", color: "#56b4e9", dash: DASHDOT },
};

/** Lines that are not encodings, in turn: of an extension and of those it is compared with. */
export const LINES = [
  { color: "#0b4fa0", dash: [] },
  { color: "#d1622b", dash: DASHED },
  { color: "#1b9573", dash: DASHDOT },
  { color: "#7b1e4d", dash: DOTTED },
  { color: "#8c510a", dash: [6, 3] },
  { color: "#e69f00", dash: [] },
  { color: "#56b4e9", dash: DASHED },
  { color: "#333333", dash: DASHDOT },
];

export const INK = "#222222",
  PALE = "#757575",
  GRID = "#e4e4e4";

/** What an extension did to a pair: shades that a grey print keeps apart. */
export const SHADES = {
  kept: "#ffffff",
  blended: "#e6e6e6",
  divided: "#cfcfcf",
  raised: "#dcdcdc",
  stopped: "#b5b5b5",
};

/** Axes of position: time, height, width. */
export const AXES = { T: "#757575", H: "#0b4fa0", W: "#e69f00" };

const CIVIDIS = [
  "00224e",
  "002e6a",
  "1a386f",
  "32436d",
  "434e6c",
  "535a6d",
  "61656f",
  "6f7073",
  "7d7c78",
  "8c8878",
  "9b9476",
  "aba072",
  "bcae6c",
  "cdbb63",
  "dec958",
  "f0d846",
  "fee838",
].map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));

/** The colour map of the plots, from dark (0) to light (1), as [red, green, blue]. */
export function cividis(share) {
  const at = Math.min(Math.max(share, 0), 1) * 16,
    low = Math.min(Math.floor(at), 15),
    rest = at - low;
  return CIVIDIS[low].map((c, n) => Math.round(c + (CIVIDIS[low + 1][n] - c) * rest));
}
