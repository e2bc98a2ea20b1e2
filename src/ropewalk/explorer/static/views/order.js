// Order: the same words, shuffled, with and without an encoding.

import { HeatMap } from "ropewalk/heatmap.js";
import { ENCODINGS } from "ropewalk/looks.js";
import { apart, attend, tokens } from "ropewalk/math/attention.js";
import { Generator } from "ropewalk/math/random.js";
import { number, say } from "ropewalk/words.js";

const MOST = 16;
const sample = () => say("I drink coffee in a café", "私は 喫茶店で コーヒーを 飲みます");

/** The words in an order that a seed decides; 0 is the order as typed. */
export function shuffled(words, seed) {
  if (!seed) return words;
  if (seed < 0) return [...words].reverse();
  const out = [...words],
    random = new Generator(seed);
  for (let n = out.length - 1; n > 0; n--) {
    const other = Math.floor(random.uniform() * (n + 1));
    [out[n], out[other]] = [out[other], out[n]];
  }
  return out;
}

export default {
  id: "order",
  title: () => say("Order", "語順"),
  idea: () =>
    say(
      "Without positions attention sees a bag of words: shuffle them, and the average of what it hands on is the same but for rounding. Each picture shows who looks at whom; only an encoding or a causal mask makes the order change the result.",
      "位置がなければ、注意機構には単語の集まりしか見えない。並べ替えても、出力の平均は丸めを除いて同じになる。図は、どの単語がどの単語を見ているかを示す。位置符号化か因果マスクがあってはじめて、語順で結果が変わる。",
    ),
  defaults: { text: "", enc: "nope", seed: 7, causal: false },
  controls: () => [
    { name: "text", kind: "text", longest: 120, label: say("a sentence", "文"), placeholder: sample() },
    {
      name: "enc",
      kind: "select",
      label: say("encoding", "位置符号化"),
      options: ["nope", "sinusoidal", "alibi", "rope"].map((n) => [n, ENCODINGS[n].label]),
    },
    { name: "causal", kind: "check", label: say("causal mask", "因果マスク") },
    {
      name: "again",
      kind: "button",
      label: say("Shuffle", "並べ替える"),
      press: ({ seed }) => ({ seed: Math.max(0, seed) + 1 }),
    },
    { name: "mirror", kind: "button", label: say("Mirror", "逆順にする"), press: () => ({ seed: -1 }) },
  ],
  mount(host, { seen }) {
    host.classList.add("two");
    const maps = [new HeatMap(host, { most: 460 }), new HeatMap(host, { most: 460 })];
    return {
      update({ text, enc, seed, causal }) {
        const given = tokens(text || sample());
        if (given.length < 2) return say("Write two words or more.", "二つ以上の単語を書いてください。");
        const words = given.slice(0, MOST),
          other = shuffled(words, seed);
        const found = [words, other].map((w) => attend(w, enc, { causal }));
        [words, other].forEach((w, n) =>
          maps[n].draw({
            name: `order-${n + 1}`,
            title: ENCODINGS[enc].label + (n ? say(": shuffled", "：並べ替えた順") : say(": as written", "：書かれた順")),
            reading: w.join(" "),
            rows: w.length,
            cols: w.length,
            values: found[n].weights
              .flat()
              .map((v, at) => (causal && at % w.length > Math.floor(at / w.length) ? NaN : v)),
            low: 0,
            high: 1,
            x: {
              label: say("key", "キー"),
              names: w,
              words: true,
              ticks: w.map((word, at) => [at, word]),
            },
            y: {
              label: say("query", "クエリ"),
              names: w,
              ticks: w.map((word, at) => [at, word]),
            },
          }),
        );
        const distance = apart(found[0].pooled, found[1].pooled),
          same = distance < 1e-12;
        seen.pictures.order = { words, other, distance, same };
        const cut = given.length > MOST ? say(` (The first ${MOST} words.)`, `（先頭の ${MOST} 語）`) : "";
        return (
          (same
            ? say(
                `“${other.join(" ")}”: the average output differs by ${number(distance, 2)}, which is rounding. ${ENCODINGS[enc].label} cannot tell the two apart${causal ? "" : " here"}.`,
                `「${other.join(" ")}」：出力の平均の差は ${number(distance, 2)}、つまり丸めの範囲。${ENCODINGS[enc].label} では、この二つを区別できない。`,
              )
            : say(
                `“${other.join(" ")}”: the average output differs by ${number(100 * distance, 2)} % of its size. ${ENCODINGS[enc].label}${causal ? " with a causal mask" : ""} tells the two apart.`,
                `「${other.join(" ")}」：出力の平均は、その大きさの ${number(100 * distance, 2)}% だけ違う。${causal ? "因果マスクつきの " : ""}${ENCODINGS[enc].label} では、この二つを区別できる。`,
              )) + cut
        );
      },
      destroy: () => maps.forEach((m) => m.destroy()),
    };
  },
};
