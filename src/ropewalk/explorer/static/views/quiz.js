// A small quiz. No answer is written down: each statement is put to the page's own mathematics.

import { h, replace } from "ropewalk/dom.js";
import { apart, attend } from "ropewalk/math/attention.js";
import { curve, draw, sinusoid, vectors } from "ropewalk/math/panel.js";
import { geometric } from "ropewalk/math/spectra.js";
import { current, fixed, number, say, whole } from "ropewalk/words.js";

const size = (x) => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0));
const away = (a, b) => size(a.map((v, c) => v - b[c]));
const score = (name, distance, dim = 64) =>
  curve(name, { dim, base: 10000, length: 101 }, vectors("ones", dim), 0, [distance]).mean[0];

/** The product of a query at m and a key at n under RoPE, of two vectors that are not alike. */
function product(m, n) {
  return Array.from(geometric(8)).reduce(
    (sum, f, i) => sum + Math.cos(m * f + i) * Math.cos(n * f) + Math.sin(m * f + i) * Math.sin(n * f),
    0,
  );
}

/** Question, statements with their proofs, explanation, and a view that shows it. */
export const questions = () => [
  {
    text: say(
      "Learned position vectors did about as well. Why did the authors of “Attention Is All You Need” take sinusoids?",
      "学習した位置ベクトルでも結果はほぼ同じだった。“Attention Is All You Need” の著者が正弦波を選んだのはなぜ？",
    ),
    statements: [
      [
        say(
          "They give a vector to any position, so they may carry over to texts longer than in training.",
          "どの位置にもベクトルがあるので、学習より長いテキストにも使えるかもしれないから。",
        ),
        () => sinusoid(1e6, 64).every((v) => Math.abs(v) <= 1) && away(sinusoid(1e6, 64), sinusoid(1e6 - 1, 64)) > 0.1,
      ],
      [
        say(
          "Their length grows with the position, so far words weigh more.",
          "位置が進むほどベクトルが長くなり、遠い単語が重くなるから。",
        ),
        () => size(sinusoid(1000, 64)) > 1.01 * size(sinusoid(1, 64)),
      ],
      [
        say(
          "Learned vectors of two positions are the same before training, and stay so.",
          "学習する位置ベクトルは、はじめはどの位置も同じで、そのままだから。",
        ),
        () => {
          const { learned } = draw({ dim: 64, length: 16, seed: 42 });
          return away(learned.subarray(0, 64), learned.subarray(64, 128)) < 0.01;
        },
      ],
    ],
    explain: () =>
      say(
        `A table of 512 rows ends at 512; the formula has a row for position 1,000,000, as long as every other (${fixed(size(sinusoid(1e6, 64)), 4)}). Whether a model makes use of it is another question.`,
        `512 行の表は 512 で終わるが、式なら位置 1,000,000 の行もあり、長さもほかの行と同じ（${fixed(size(sinusoid(1e6, 64)), 4)}）。モデルがそれを活かせるかどうかは別の問題。`,
      ),
    view: "waves?pos=300&k=100",
  },
  {
    text: say("What is true of the sinusoidal formula?", "正弦波の式について正しいのは？"),
    statements: [
      [
        say("Every channel has the same frequency.", "どのチャネルも同じ周波数である。"),
        () => new Set(geometric(64)).size === 1,
      ],
      [
        say(
          "The value depends on position and channel; the frequency differs from pair to pair, and the vector is added to the embedding.",
          "値は位置とチャネルで決まる。周波数はペアごとに違い、ベクトルは埋め込みに足す。",
        ),
        () => new Set(geometric(64)).size === 32 && sinusoid(3, 64)[0] !== sinusoid(4, 64)[0],
      ],
      [
        say(
          "“Even” and “odd” mean tokens at even and odd positions.",
          "「偶数」「奇数」は、偶数番目と奇数番目のトークンを指す。",
        ),
        () => sinusoid(3, 64)[0] === Math.cos(3) && sinusoid(4, 64)[0] === Math.sin(4),
      ],
    ],
    explain: () =>
      say(
        `With 64 channels there are ${new Set(geometric(64)).size} frequencies, from 1 to ${number(geometric(64).at(-1), 3)} radians a token. Channel 0 is a sine at position 3 and at position 4 alike: even and odd count channels.`,
        `64 チャネルなら周波数は ${new Set(geometric(64)).size} 種類で、1 トークンあたり 1 から ${number(geometric(64).at(-1), 3)} ラジアン。チャネル 0 は位置 3 でも 4 でも sin であり、偶数・奇数はチャネルを数えている。`,
      ),
    view: "waves?dim=8",
  },
  {
    text: say(
      "With RoPE a query stands at 5 and a key at 9. Both move on by 100. The score …",
      "RoPE で、クエリが位置 5、キーが位置 9 にある。両方を 100 だけ後ろへ動かすと、スコアは……",
    ),
    statements: [
      [say("grows", "大きくなる"), () => product(105, 109) > product(5, 9) + 1e-9],
      [say("stays the same", "変わらない"), () => Math.abs(product(105, 109) - product(5, 9)) < 1e-9],
      [say("shrinks", "小さくなる"), () => product(105, 109) < product(5, 9) - 1e-9],
    ],
    explain: () =>
      say(
        `${fixed(product(5, 9), 6)} before, ${fixed(product(105, 109), 6)} after: only the difference of the positions counts.`,
        `動かす前は ${fixed(product(5, 9), 6)}、後は ${fixed(product(105, 109), 6)}。効くのは位置の差だけ。`,
      ),
    view: "turn?m=5&n=9&shift=100",
  },
  {
    text: say(
      "“dog bites man” and “man bites dog”, without any encoding and without a mask: the average output of attention …",
      "「dog bites man」と「man bites dog」。位置符号化もマスクもないとき、注意機構の出力の平均は……",
    ),
    statements: [
      [say("is the same", "同じ"), () => mixed("nope") < 1e-12],
      [say("differs", "違う"), () => mixed("nope") > 1e-12],
    ],
    explain: () =>
      say(
        `They differ by ${number(mixed("nope"), 2)}, which is rounding; with RoPE by ${number(100 * mixed("rope"), 2)} %.`,
        `差は ${number(mixed("nope"), 2)} で、丸めの範囲。RoPE なら ${number(100 * mixed("rope"), 2)}% 違う。`,
      ),
    view: "order?text=dog+bites+man&seed=-1",
  },
  {
    text: say(
      "RoPE, 64 channels, vectors of ones: is the score at distance 100 below that at 96?",
      "RoPE、64 チャネル、すべて 1 のベクトル。距離 100 のスコアは距離 96 より低い？",
    ),
    statements: [
      [say("Yes, it decays.", "低い。減衰するから。"), () => score("rope", 100) < score("rope", 96)],
      [say("No, it is higher.", "いいえ、高い。"), () => score("rope", 100) > score("rope", 96)],
    ],
    explain: () =>
      say(
        `${fixed(score("rope", 96), 1)} at 96, ${fixed(score("rope", 100), 1)} at 100: the curve falls on the whole, and comes back on the way.`,
        `96 で ${fixed(score("rope", 96), 1)}、100 で ${fixed(score("rope", 100), 1)}。全体としては下がるが、途中で戻ってくる。`,
      ),
    view: "distance",
  },
  {
    text: say(
      "The paper says that wavelengths run from 2π to 10000·2π. With 512 channels the longest is …",
      "論文によれば波長は 2π から 10000·2π まで。512 チャネルのとき、最長の波長は……",
    ),
    statements: [
      [say("exactly 10000·2π", "ちょうど 10000·2π"), () => Math.abs(longest() / (2e4 * Math.PI) - 1) < 1e-9],
      [say("a little shorter", "それより少し短い"), () => longest() < 2e4 * Math.PI * (1 - 1e-9)],
      [say("a little longer", "それより少し長い"), () => longest() > 2e4 * Math.PI * (1 + 1e-9)],
    ],
    explain: () =>
      say(
        `${whole(longest())} tokens against ${whole(2e4 * Math.PI)}: the last pair has base^(−(d−2)/d), and the limit is approached, not reached.`,
        `${whole(longest())} トークンで、${whole(2e4 * Math.PI)} には届かない。最後のペアは base^(−(d−2)/d) で、極限には近づくだけ。`,
      ),
    view: "waves?dim=128",
  },
];

const longest = () => (2 * Math.PI) / geometric(512).at(-1);
const mixed = (encoding) =>
  apart(...["dog bites man", "man bites dog"].map((s) => attend(s.split(" "), encoding).pooled));

export default {
  id: "quiz",
  title: () => say("Quiz", "クイズ"),
  idea: () =>
    say(
      "Six questions, among them those of the lecture on §3.5. What is right is not written down here: the page computes it, and says how.",
      "§3.5 の講義の練習問題を含む六問。正解は書き込まれておらず、このページが計算して、その根拠を示す。",
    ),
  defaults: {},
  controls: () => [],
  mount(host) {
    const all = questions();
    host.append(
      h(
        "form",
        { class: "quiz", onsubmit: (e) => e.preventDefault() },
        all.map((q, n) => {
          const said = h("p", { role: "status" });
          const choose = (chosen) => {
            const right = q.statements[chosen][1]();
            replace(
              said,
              h(
                "span",
                { class: right ? "right" : "wrong" },
                right ? say("Right. ", "正解。") : say("No. ", "不正解。"),
              ),
              q.explain(),
              " ",
              h(
                "a",
                { href: `#${q.view}${q.view.includes("?") ? "&" : "?"}lang=${current()}` },
                say("See it", "画面で見る"),
              ),
              say(".", "。"),
            );
          };
          return h(
            "fieldset",
            {},
            h("legend", {}, `${n + 1}. ${q.text}`),
            q.statements.map(([words], s) =>
              h(
                "label",
                {},
                h("input", { type: "radio", name: `q${n}`, value: s, onchange: () => choose(s) }),
                " ",
                words,
              ),
            ),
            said,
          );
        }),
      ),
    );
    return { update: () => "" };
  },
};
