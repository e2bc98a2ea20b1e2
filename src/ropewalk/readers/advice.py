"""What the owner of a configuration should know, one small function a warning, in English and Japanese.

Facts about other programs carry the version in which they were seen.
"""

from __future__ import annotations

import math

from ropewalk.extensions import Extension, YaRN
from ropewalk.extensions.yarn import sharpness
from ropewalk.plans import Advice, LayerPlan
from ropewalk.spectra import geometric

FLOAT32_REACH = 1 << 16
"""Tokens at which a float32 angle can be wrong by 2⁻⁸ radians, about the precision of bfloat16 activations."""


def base_assumed(base: float, family: str) -> Advice:
    """No base is stated."""
    return Advice(
        "base-assumed",
        f"The configuration states no base; {base:g} is taken, the default of {family}.",
        f"設定に base がありません。{family} の既定値 {base:g} を使います。",
    )


def block_assumed(family: str) -> Advice:
    """No rotary parameters are stated, and the family's default has an extension."""
    return Advice(
        "parameters-assumed",
        f"The configuration states no rotary parameters; those that {family} has by default are taken.",
        f"設定に回転位置符号化のパラメータがありません。{family} の既定値を使います。",
    )


def layout_assumed() -> Advice:
    """The configuration does not say what model it is."""
    return Advice(
        "layout-assumed",
        "The configuration does not say which model it is (model_type), so pairs are assumed to be halves (x[i] with "
        "x[i + d/2]), as in Llama in transformers. Weights fit one layout only: check it.",
        "設定にモデルの種類 (model_type) がないため、ペアの組み方は transformers の Llama と同じ half "
        "（x[i] と x[i + d/2]）と仮定しました。重みは一方の組み方でしか正しく動きません。確認してください。",
    )


def layers_assumed(count: int, family: str) -> Advice:
    """Layers differ, and the configuration does not count them."""
    return Advice(
        "layers-assumed",
        f"The configuration does not count its layers, which differ; {count} are taken, the default of {family}.",
        f"層ごとに位置符号化が異なるモデルですが、設定に層の数がありません。{family} の既定値 {count} を使います。",
    )


def part_read(name: str) -> Advice:
    """Only the text part of a model with several is read."""
    return Advice(
        "part-read",
        f"This model has several parts; its text part, {name}, is read.",
        f"このモデルは複数の部分からなります。テキスト部分 {name} を読みました。",
    )


def outer_ignored(keys: list[str], name: str) -> Advice:
    """Rotary parameters stand beside the text part too, and differ."""
    listed = ", ".join(keys)
    return Advice(
        "outer-keys-ignored",
        f"{listed} outside {name} differ from those in it; what stands in {name} counts, as in transformers.",
        f"{name} の外側にある {listed} は内側の値と異なります。transformers と同じく {name} の内側の値を使います。",
    )


def original_assumed(kind: str, length: int) -> Advice:
    """No original length is stated for an extension that counts from it."""
    return Advice(
        "original-length-assumed",
        f"{kind} counts from the trained length, which the configuration does not state "
        f"(original_max_position_embeddings); max_position_embeddings = {length} is taken for it, as transformers "
        "does.",
        f"{kind} は学習時の長さを基準にしますが、設定にありません (original_max_position_embeddings)。"
        f"transformers と同じく max_position_embeddings = {length} を学習時の長さとみなします。",
    )


def ratio(extension: YaRN, stated: int | None) -> list[Advice]:
    """The factor is not the ratio of the two lengths."""
    factor, original = extension.factor, extension.original_length
    if stated is None or stated == original or math.isclose(stated / original, factor, rel_tol=1e-6):
        return []
    return [
        Advice(
            "factor-against-ratio",
            f"factor = {factor:g}, but max_position_embeddings / original length = {stated} / {original} = "
            f"{stated / original:g}. The factor counts: the extended length is {round(original * factor)}. Programs "
            "that take the ratio, or multiply max_position_embeddings by the factor once more, compute another "
            "model.",
            f"factor = {factor:g} ですが、max_position_embeddings ÷ 元の長さ = {stated} ÷ {original} = "
            f"{stated / original:g} です。factor を採用し、拡張後の長さは {round(original * factor)} です。比を使うプ"
            "ログラムや、max_position_embeddings にもう一度 factor を掛けるプログラムでは別のモデルになります。",
        )
    ]


def ntk_unknown(key: str) -> Advice:
    """A type that transformers does not have."""
    return Advice(
        "ntk-unknown",
        f"{key} = 'ntk' is read as a change of the base, base · factor^(d/(d-2)). transformers 5.24 does not know this "
        "type, and vLLM 0.33 means another formula by it (it also divides frequencies by factor^(2/d)).",
        f"{key} = 'ntk' は base の変更 base · factor^(d/(d-2)) と読みます。transformers 5.24 はこの種類を知らず、"
        "vLLM 0.33 では同じ名前が別の式（周波数をさらに factor^(2/d) で割る）を指します。",
    )


def dynamic_differs() -> Advice:
    """Dynamic NTK, which no two programs compute alike."""
    return Advice(
        "dynamic-differs",
        "Dynamic NTK is computed differently by every program: transformers 5.24 goes by the longest row of the "
        "batch and keeps keys of earlier lengths, vLLM 0.33 does not scale at all unless max_trained_positions is "
        "set, SGLang 0.5.23 uses the constant factor² - factor + 1. Here the length is an argument.",
        "動的 NTK の計算はプログラムごとに異なります。transformers 5.24 はバッチ内の最長の行に従い、以前の長さで計算"
        "したキーを使い続けます。vLLM 0.33 は max_trained_positions がなければまったくスケーリングしません。SGLang "
        "0.5.23 は定数 factor² − factor + 1 を使います。ここでは長さを引数で渡します。",
    )


def proportional_factor(factor: float) -> Advice:
    """p-RoPE with a factor."""
    return Advice(
        "proportional-factor",
        f"proportional with factor = {factor:g}: the frequencies of all turning pairs are divided by it, as in "
        "transformers 5.24; vLLM 0.33 and SGLang 0.5.23 leave the factor out.",
        f"proportional で factor = {factor:g} です。transformers 5.24 と同じく、回転するすべてのペアの周波数をこの値"
        "で割ります。vLLM 0.33 と SGLang 0.5.23 はこの factor を無視します。",
    )


def output_turned_back() -> Advice:
    """DeepSeek-V4, whose values carry the rotation too."""
    return Advice(
        "output-turned-back",
        "In deepseek_v4 keys and values are the same rotated vectors, so the output of attention is turned back by the "
        "position of the query (RoPE.inverse). Encoding query and key alone is not the whole of it.",
        "deepseek_v4 ではキーとバリューが同じ回転済みのベクトルなので、注意機構の出力をクエリの位置だけ逆に回転します "
        "(RoPE.inverse)。クエリとキーを符号化するだけでは足りません。",
    )


def llama3_step() -> Advice:
    """low_freq_factor = high_freq_factor, as in Llama 4 Scout."""
    return Advice(
        "llama3-step",
        "low_freq_factor = high_freq_factor: nothing is blended, pairs are kept or divided. transformers 5.24 "
        "divides by zero there and hides it; vLLM 0.33 treats the case by itself. All give the same frequencies.",
        "low_freq_factor = high_freq_factor なので、混合されるペアはなく、各ペアは保持されるか除算されます。"
        "transformers 5.24 では 0 による除算が起きますが結果は隠され、vLLM 0.33 は特別に扱います。周波数はいずれも同"
        "じです。",
    )


def yarn(extension: YaRN, *, nested: bool, one_mscale: bool) -> list[Advice]:
    """Everything that can be said of a YaRN block."""
    found = [yarn_short_texts(extension)] if extension.factor > 1 else []
    if not extension.truncate:
        found.append(yarn_truncate(nested))
    if extension.attention_factor is not None and not math.isclose(
        extension.attention_factor, sharpness(extension.factor), rel_tol=1e-6
    ):
        found.append(yarn_attention_factor(extension))
    elif extension.attention_factor is None and extension.mscale and extension.mscale_all_dim:
        found.append(yarn_mscale(extension))
    if one_mscale:
        found.append(yarn_half_mscale(extension))
    return found


def yarn_short_texts(extension: YaRN) -> Advice:
    """Static YaRN changes short texts too."""
    return Advice(
        "yarn-short-texts",
        f"YaRN is static: texts within the original {extension.original_length} tokens are changed too, and may lose "
        "quality. Qwen's documentation advises to switch it on only where long texts are needed.",
        f"YaRN は静的に適用されるため、元の長さ {extension.original_length} トークン以内のテキストも変化し、品質が下"
        "がることがあります。Qwen の説明書は、長いテキストが必要なときだけ有効にするよう勧めています。",
    )


def yarn_truncate(nested: bool) -> Advice:
    """Bounds that are not rounded."""
    more_en = " In parameters nested by layer type, transformers 5.24 ignores it too." if nested else ""
    more_ja = "層の種類ごとに入れ子になった設定では transformers 5.24 も無視します。" if nested else ""
    return Advice(
        "yarn-truncate",
        "truncate = false: the bounds of the ramp are not rounded. mlx-lm 0.32 ignores this, as vLLM did before "
        "November "
        "2025; frequencies then differ by up to 1.8 times." + more_en,
        "truncate = false のため、傾斜の境界は丸められません。mlx-lm 0.32 と 2025 年 11 月以前の vLLM はこれを無視し、"
        "周波数が最大 1.8 倍ずれます。" + more_ja,
    )


def yarn_attention_factor(extension: YaRN) -> Advice:
    """An attention factor of its own."""
    return Advice(
        "yarn-attention-factor",
        f"attention_factor = {extension.attention_factor:g}. SGLang 0.5.23 does not know it under this name and uses "
        f"0.1 · ln(factor) + 1 = {sharpness(extension.factor):.6g}; mlx-lm 0.32 ignores it; vLLM reads it since "
        "September 2026.",
        f"attention_factor = {extension.attention_factor:g} です。SGLang 0.5.23 はこの名前を知らず 0.1 · ln(factor) "
        f"+ 1 = {sharpness(extension.factor):.6g} を使います。mlx-lm 0.32 は無視し、vLLM は 2026 年 9 月から読みま"
        "す。",
    )


def yarn_mscale(extension: YaRN) -> Advice:
    """The pair mscale, mscale_all_dim."""
    return Advice(
        "yarn-mscale",
        f"mscale and mscale_all_dim make cos and sin be multiplied by {extension.table_factor(0):.6g}; vLLM ignored "
        f"the pair before September 2026 and used {sharpness(extension.factor):.6g}.",
        f"mscale と mscale_all_dim により cos と sin に {extension.table_factor(0):.6g} が掛かります。2026 年 9 月以"
        f"前の vLLM はこの組を無視し、{sharpness(extension.factor):.6g} を使いました。",
    )


def yarn_half_mscale(extension: YaRN) -> Advice:
    """One of the pair without the other."""
    return Advice(
        "yarn-half-mscale",
        "Only one of mscale and mscale_all_dim is set (not 0), so for cos and sin neither counts, as in "
        f"transformers 5.24: they are multiplied by {extension.table_factor(0):.6g}.",
        "mscale と mscale_all_dim の一方だけが設定されている（0 でない）ため、cos と sin についてはどちらも効きません"
        f"（transformers 5.24 と同じ）。掛かる数は {extension.table_factor(0):.6g} です。",
    )


def longrope() -> list[Advice]:
    """LongRoPE, which programs switch at different lengths."""
    return [
        Advice(
            "longrope-switch",
            "LongRoPE has two lists of factors. transformers 5.24 chooses by the longest row of the batch, vLLM "
            "0.33 and llama.cpp once, by the capacity they were started with, so that short texts get the long "
            "list; mlx-lm 0.32 never uses the short one. vLLM reads short_mscale and long_mscale and neither factor "
            "nor attention_factor.",
            "LongRoPE には係数のリストが二つあります。transformers 5.24 はバッチ内の最長の行で選び、vLLM 0.33 と "
            "llama.cpp は起動時の容量で一度だけ選ぶため、短いテキストにも長い方のリストが使われます。mlx-lm 0.32 は"
            "短い方を使いません。vLLM は short_mscale と long_mscale を読み、factor と attention_factor を読みませ"
            "ん。",
        )
    ]


def phimoe_short() -> Advice:
    """A family whose own code never takes the long list."""
    return Advice(
        "phimoe-short",
        "transformers 5.24 rotates phimoe by the short factors at every length, and changes only the multiplier. "
        "Here a long text gets the long factors, as the authors' code does.",
        "transformers 5.24 の phimoe はどの長さでも短い方の係数で回転し、乗数だけを切り替えます。ここでは作者のコードと"
        "同じく、長いテキストには長い方の係数を使います。",
    )


def float32_reach(length: int, layer: LayerPlan) -> list[Advice]:
    """Positions at which float32 angles are wrong."""
    if layer.kind != "rope" or length <= FLOAT32_REACH:
        return []
    worst = length * 2.0**-24
    return [
        Advice(
            "float32-reach",
            f"At {length} tokens an angle computed in float32, as transformers and most others do, is off by up to "
            f"about {worst:.2g} radians in the fastest pair. The tables of this library are exact.",
            f"{length} トークンでは、transformers など多くの実装のように float32 で計算した角度は、最も速いペアで最大"
            f"約 {worst:.2g} ラジアンずれます。このライブラリの表は正確です。",
        )
    ]


def bfloat16(dtype: str | None, layer: LayerPlan, length: int | None) -> list[Advice]:
    """Frequencies and positions must not be in the dtype of the weights."""
    if layer.kind != "rope" or dtype not in ("bfloat16", "float16") or layer.base is None:
        return []
    exact = 256 if dtype == "bfloat16" else 2048
    slowest = geometric(layer.rotary_dim, layer.base).radians[-1]
    return [
        Advice(
            "half-precision",
            f"The weights are in {dtype}. Frequencies and positions must not be: positions above {exact} are no "
            f"longer told apart, and a frequency of {slowest:.3g} keeps {'8' if exact == 256 else '11'} bits. "
            "Casting a whole model (.to, DeepSpeed, autocast) does it silently where frequencies are a buffer.",
            f"重みは {dtype} です。周波数と位置を同じ型にしてはいけません。{exact} を超える位置は区別できなくなり、周"
            f"波数 {slowest:.3g} は {'8' if exact == 256 else '11'} ビットの精度しか保てません。周波数がバッファにあ"
            "る実装では、モデル全体の型変換（.to、DeepSpeed、autocast）で気づかないうちに起こります。",
        )
    ]


def slow_pairs(layer: LayerPlan, length: int | None) -> list[Advice]:
    """Pairs that never turn once within the trained length."""
    if layer.kind != "rope" or not length:
        return []
    unextended = LayerPlan("rope", rotary_dim=layer.rotary_dim, base=layer.base).spectrum()
    if unextended is None:
        return []
    slow = sum(1 for w in unextended.radians if w * length < 2 * math.pi)
    pairs = len(unextended.radians)
    if 2 * slow <= pairs:
        return []
    return [
        Advice(
            "slow-pairs",
            f"{slow} of {pairs} pairs never complete a turn within the trained {length} tokens: more than half. "
            "Beyond that length they reach angles that the model has not seen.",
            f"{pairs} ペアのうち {slow} ペアは、学習時の長さ {length} トークンの間に一回転もしません（半分を超えてい"
            "ます）。その長さを超えると、モデルが見たことのない角度になります。",
        )
    ]


def local_scaled(extension: Extension, label: str) -> Advice:
    """One flat block for a family whose layers differ: it is for the full layers."""
    return Advice(
        "one-block-for-full-layers",
        f"One block of parameters stands for all layers; {extension.name} is applied to layers of type {label} only, "
        "as transformers does. Programs that apply it to every layer compute another model.",
        f"パラメータの組が一つだけあります。transformers と同じく、{extension.name} は {label} の層だけに適用します。"
        "すべての層に適用するプログラムでは別のモデルになります。",
    )


def meta_factor() -> Advice:
    """params.json says only that there is scaling."""
    return Advice(
        "scaling-factor-assumed",
        "params.json says use_scaled_rope and not by how much: factor 8 is taken, as for Llama 3.1. Llama 3.2's 1B "
        "and 3B were trained with 32, which their params.json does not say.",
        "params.json には use_scaled_rope とだけあり、倍率がありません。Llama 3.1 の 8 を使います。Llama 3.2 の 1B "
        "と 3B は 32 で学習されていますが、params.json には書かれていません。",
    )


def gguf_layout(architecture: str) -> Advice:
    """Weights that were permuted for llama.cpp."""
    return Advice(
        "gguf-permuted",
        f"In a GGUF file of {architecture}, query and key weights are permuted so that neighbours make a pair "
        "(interleaved); the same model in transformers pairs halves. Frequencies are the same.",
        f"{architecture} の GGUF ファイルでは、クエリとキーの重みが隣どうしで組になるよう並べ替えられています "
        "(interleaved)。同じモデルでも transformers では half です。周波数は同じです。",
    )


def gguf_freqs() -> Advice:
    """The tensor rope_freqs."""
    return Advice(
        "gguf-rope-freqs",
        "The factors of the tensor rope_freqs divide the frequencies of each pair (this is how llama.cpp stores llama3 "
        "scaling). transformers 5.24 does not read this tensor when it loads a GGUF file.",
        "テンソル rope_freqs の係数が各ペアの周波数を割ります（llama.cpp は llama3 のスケーリングをこの形で保存しま"
        "す）。transformers 5.24 は GGUF の読み込み時にこのテンソルを読みません。",
    )
