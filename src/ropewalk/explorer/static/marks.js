// Where the words of marks and zones stand, on the page and in the saved picture alike.

/** About how wide words are at a size in pixels: Chinese and Japanese letters are square, others half of that. */
export const wide = (words, size) => [...words].reduce((sum, c) => sum + (c > "\u2e80" ? 1 : 0.58) * size, 0);

/**
 * Horizontal marks from the lowest to the highest, each with the end at which its words stand: the left one, or the
 * right one where those of the mark below are too near.
 * @param {(y: number) => number} place the height of a value in pixels, from the top.
 */
export function across(marks, place, near = 13) {
  const level = marks.filter((m) => m.y != null).sort((a, b) => place(b.y) - place(a.y));
  let before = null;
  return level.map((mark) => {
    const close = before && place(before.y) - place(mark.y) < near;
    return (before = { ...mark, right: Boolean(close && !before.right) });
  });
}
