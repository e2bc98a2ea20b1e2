// What learners ask most, each with a link into a view that shows it.

import { h } from "ropewalk/dom.js";
import { current, say } from "ropewalk/words.js";

/** Question, answer, view, and what the link says; the view's values follow "?". */
const ENTRIES = () => [
  [
    say(
      "Is it a bug when sines and cosines are concatenated instead of interleaved?",
      "sin と cos を交互ではなく連結して並べるのは誤り？",
    ),
    say(
      "No. The channels are the same, in another order, and the projection that follows can learn either. The paper interleaves, its own code concatenates. It matters only when weights are loaded that were trained with the other order.",
      "誤りではない。同じチャネルを別の順に並べただけで、そのあとの射影はどちらでも学習できる。論文の式は交互、著者のコードは連結である。問題になるのは、別の順で学習した重みを読み込むときだけ。",
    ),
    "waves?dim=16",
    say("The table, channel by channel", "チャネルごとの表"),
  ],
  [
    say("Why does RoPE pair halves instead of neighbours?", "RoPE が隣どうしでなく前半と後半を組にするのはなぜ？"),
    say(
      "Because it is convenient: two slices in place of a shuffle. RoFormer and Meta's Llama pair x[2i] with x[2i+1], most libraries x[i] with x[i + d/2]. Scores are the same if the weights are permuted to match; weights of one layout with code of the other give nonsense without an error.",
      "実装の都合である。並べ替えの代わりに二つに切るだけで済む。RoFormer と Meta の Llama は x[2i] と x[2i+1]、多くのライブラリは x[i] と x[i + d/2] を組にする。重みを合わせて並べ替えればスコアは同じ。重みとコードで組が食い違うと、エラーも出ずに出力がでたらめになる。",
    ),
    "turn?pair=0",
    say("A pair is a pair, wherever its channels lie", "チャネルがどこにあっても、ペアはペア"),
  ],
  [
    say("Why 10000?", "なぜ 10000？"),
    say(
      "It is a choice. The base sets the longest wavelength, 2π·base^((d−2)/d): it should exceed the longest text, so that the slowest pair never repeats itself. Models for long texts take 500,000 and more. There is nothing special about the number.",
      "選んだ値にすぎない。base は最長の波長 2π·base^((d−2)/d) を決める。最も遅いペアが一回転してしまわないよう、いちばん長いテキストより長くしておく。長いテキスト向けのモデルでは 500,000 以上にする。数そのものに特別な意味はない。",
    ),
    "waves?base=100",
    say("The same table with base 100", "base を 100 にした表"),
  ],
  [
    say("Why both sine and cosine?", "なぜ sin と cos の両方？"),
    say(
      "Together they are a point on a circle, and going k positions on is turning it: a linear map that does not know where it started. A sine alone meets every value twice a turn, and no linear map shifts it.",
      "二つ合わせると円の上の点になり、k だけ先へ進むことは点を回すことになる。それは出発点によらない線形写像である。sin だけでは一回転のうちに同じ値が二度現れ、ずらす線形写像もない。",
    ),
    "waves?pos=40&k=25",
    say("Turned by k, the row is the row k further on", "k だけ回すと、k だけ先の行になる"),
  ],
  [
    say("Why add the position to the word, does that not mix them up?", "なぜ単語に足す？ 混ざってしまわない？"),
    say(
      "In hundreds of dimensions two random directions hardly overlap, so the model can keep them apart, and adding costs no width. The price: (x + p)·(y + q) has four terms, and only p·q, mixed by what is learned, can tell the distance. Relative encodings and RoPE act on the score or on query and key for that reason.",
      "数百次元では、ランダムな二つの方向はほとんど重ならないので、モデルは区別できる。足すだけなら幅も増えない。代わりに、内積 (x + p)·(y + q) は四つの項になり、距離が分かるのは p·q だけで、それも学習した射影で混ざる。相対位置符号化や RoPE がスコアやクエリ・キーに働くのはそのため。",
    ),
    "distance?enc=sinusoidal%2Clearned%2Crope",
    say("Scores of added vectors against RoPE's", "足すだけの方法と RoPE のスコア"),
  ],
  [
    say("What does factor do?", "factor は何をする？"),
    say(
      "It says by how much the text shall be longer than in training. Linear interpolation divides every frequency by it; other extensions only those that need it.",
      "学習時の何倍の長さにするかを表す。線形補間はすべての周波数をこの値で割る。ほかの拡張は、必要なペアだけを割る。",
    ),
    "stretch?model=Llama+2+7B&ext=linear%2Cyarn&factor=4",
    say("Linear and YaRN at factor 4", "factor 4 の linear と YaRN"),
  ],
  [
    say("What do low_freq_factor and high_freq_factor do?", "low_freq_factor と high_freq_factor は何をする？"),
    say(
      "They are Llama 3.1's bounds, in turns within the trained length: a pair that turns more often than high_freq_factor is kept, one that turns less often than low_freq_factor is divided by the factor, and those between are blended.",
      "Llama 3.1 の境界で、学習時の長さの中で何回転するかを表す。high_freq_factor より多く回るペアはそのまま、low_freq_factor より少ないペアは factor で割り、その間は混ぜる。",
    ),
    "stretch?ext=own",
    say("Llama 3.1: 29 kept, 6 blended, 29 divided", "Llama 3.1：保持 29、混合 6、除算 29"),
  ],
  [
    say("What do beta_fast and beta_slow do?", "beta_fast と beta_slow は何をする？"),
    say(
      "The same for YaRN: more than beta_fast turns (32) within the trained length, and a pair is kept; fewer than beta_slow (1), and it is divided. Between them the code of YaRN blends by the number of the pair, its paper by turns.",
      "YaRN での同じもの。学習時の長さの中で beta_fast（32）回より多く回るペアはそのまま、beta_slow（1）回より少ないペアは割る。その間は、YaRN のコードではペアの番号、論文では回転数に応じて混ぜる。",
    ),
    "stretch?model=Qwen2.5+72B%2C+long+texts&ext=own%2Cntk-by-parts&factor=4",
    say("Blended by pair and by turns", "番号で混ぜる場合と回転数で混ぜる場合"),
  ],
  [
    say("What is the attention factor?", "attention factor とは？"),
    say(
      "YaRN multiplies cosines and sines by 0.1·ln(factor) + 1, and so every score by its square: longer texts spread attention thinner, and this sharpens it again. It is not the softmax scale; who applies it in both places squares it once more.",
      "YaRN は cos と sin に 0.1·ln(factor) + 1 を掛ける。スコアにはその二乗が掛かる。長いテキストでは注意が薄く広がるので、それを引き締める。softmax のスケールとは別物で、両方に掛けると余分に二乗される。",
    ),
    "stretch?ext=yarn&factor=16&pos=1",
    say("cos with the factor: above 1", "1 を超える cos"),
  ],
  [
    say("Does RoPE extrapolate?", "RoPE は学習より長いテキストでも働く？"),
    say(
      "Not by itself. It is defined at every position, but beyond the trained length slow pairs reach angles that the model has never seen, and quality breaks down. Extensions slow those pairs down; most want a little fine-tuning.",
      "そのままでは働かない。どの位置でも計算はできるが、学習時の長さを超えると、遅いペアがモデルの知らない角度になり、品質が崩れる。拡張はそうしたペアを遅くする。たいていは少しの追加学習も要る。",
    ),
    "stretch?model=Llama+2+7B&ext=dynamic",
    say("Pairs above the line never turned once in training", "線より上のペアは、学習中に一回転していない"),
  ],
  [
    say("Does RoPE's score decay with distance?", "RoPE のスコアは距離とともに減衰する？"),
    say(
      "For vectors of ones, mostly: at distance 96 it stands at 21.5, at 100 again at 35.7. For random vectors the mean is flat. What holds is a bound; the decay of a trained model is what it has learned to put into queries and keys.",
      "すべて 1 のベクトルなら、おおむね減衰する（距離 96 で 21.5、100 で 35.7 に戻る）。ランダムなベクトルでは平均は平らなまま。成り立つのは上界だけで、学習済みモデルの減衰は、モデルがクエリとキーに学習したものである。",
    ),
    "distance?vectors=random",
    say("Random vectors: flat", "ランダムなベクトル：平ら"),
  ],
  [
    say("Does left padding matter?", "左パディングで結果は変わる？"),
    say(
      "Not with RoPE and biases of distance, if the padding is masked: all positions move by the same amount, and scores see differences only. With added positions (sinusoidal, learned) and with FIRE it does: count from the first real token.",
      "RoPE や距離だけのバイアスでは、パディングをマスクしていれば変わらない。位置がみな同じだけずれ、スコアに効くのは差だけだからである。足す方式（正弦波、学習）と FIRE では変わるので、最初の本物のトークンから数える。",
    ),
    "turn?shift=500",
    say("Both moved by 500: the same product", "両方を 500 ずらしても内積は同じ"),
  ],
];

export default {
  id: "glossary",
  title: () => say("Questions", "よくある質問"),
  idea: () =>
    say(
      "What learners ask most, answered in a few lines; each link opens a view that is set to show it.",
      "学ぶ人がよく尋ねることに短く答える。リンクを開くと、それを確かめられる画面になる。",
    ),
  defaults: {},
  controls: () => [],
  mount(host) {
    host.append(
      h(
        "dl",
        {},
        ENTRIES().map(([question, answer, view, link]) => [
          h("dt", {}, question),
          h(
            "dd",
            {},
            h(
              "p",
              {},
              answer,
              " ",
              h("a", { href: `#${view}${view.includes("?") ? "&" : "?"}lang=${current()}` }, link),
              say(".", "。"),
            ),
          ),
        ]),
      ),
    );
    return { update: () => "" };
  },
};
