"""GGUF, the file format of llama.cpp → `RotaryPlan`.

The header is read here and not by the `gguf` package, which makes several objects of every entry of the vocabulary
(seconds, and hundreds of megabytes) and believes whatever counts a file claims. Here arrays that nobody needs are
stepped over, and everything is checked against what is left of the file. Tests compare with the package.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ropewalk.extensions import Extension, Linear, LongRoPE, PerPair, Product, YaRN
from ropewalk.plans import Advice, LayerPlan, RotaryPlan
from ropewalk.readers import advice
from ropewalk.readers.keys import MOST_LAYERS, WIDEST, Keys
from ropewalk.rotation import Layout, Place
from ropewalk.temperature import Temperature

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_STRING = 1 << 20
_MOST_ENTRIES = 1 << 20
_KEPT_ARRAY = 1 << 16
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The kinds of rotation by architecture: llama_model_rope_type in llama.cpp, 2026.
_NEIGHBOURS = _names(
    "llama llada deci baichuan starcoder internlm2 minicpm xverse command-r olmo arctic deepseek deepseek2 plm"
    " chatglm granite granitemoe chameleon bailingmoe neo-bert arcee ernie4_5 ernie4_5-moe mistral3 llama-embed"
)
_HALVES = _names(
    "falcon falcon-h1 grok dbrx jina-bert-v3 nomic-bert nomic-bert-moe eurobert stablelm bitnet qwen qwen2 dream"
    " qwen2moe qwen3 qwen3moe llada-moe rnd1 olmo2 olmoe phi2 phi3 phimoe plamo gemma gemma2 gemma-embedding"
    " starcoder2 openelm gptneox codeshell orion nemotron exaone minicpm3 bailingmoe2 dots1 hunyuan-moe jais2"
    " gpt-oss hunyuan-dense hy-v3 seed_oss grovemoe apertus minimax-m2 pangu-embedded gemma3 glm4moe"
)
_NEIGHBOURS_UNPERMUTED = frozenset(
    {"command-r", "glm4", "chatglm", "deepseek", "deepseek2", "ernie4_5", "ernie4_5-moe"}
)
_MLA = frozenset({"deepseek2", "minicpm3"})
_ALIBI = frozenset({"bloom", "mpt", "refact"})
_LEARNED = frozenset({"gpt2"})
_LOCAL_BASE = {"gemma3": (6, 10_000.0)}
"""One of so many layers is full; the others have this base."""


@dataclass
class Header:
    """What a GGUF file says of itself, without its vocabulary and weights."""

    values: dict[str, Any]
    factors: dict[str, tuple[float, ...]]


class _File:
    """A file read forwards, every step checked against its end."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self.size = os.fstat(file.fileno()).st_size
        self.at = 0
        self.order = "<"

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self.path} is not a whole GGUF file: {what}")

    def bytes(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise self.fail(f"it ends at byte {self.size}, in the middle of its header")
        data = self.file.read(count)
        if len(data) != count:
            raise self.fail("it ends in the middle of its header")
        self.at += count
        return data

    def skip(self, count: int) -> None:
        if count > self.size - self.at:
            raise self.fail(f"it ends at byte {self.size}, in the middle of its header")
        self.at += count
        self.file.seek(self.at)

    def number(self, code: str) -> Any:
        return struct.unpack(self.order + code, self.bytes(struct.calcsize("<" + code)))[0]

    def string(self, keep: bool = True) -> str:
        length = self.number("Q")
        if not keep:
            self.skip(length)
            return ""
        if length > _LONGEST_STRING:
            raise self.fail(f"a name or text of {length} bytes")
        try:
            return self.bytes(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail("a text that is not UTF-8") from None

    def value(self, kind: int, keep: bool) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string(keep)
        if kind != _ARRAY:
            raise self.fail(f"a value of kind {kind}, which there is not")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[inner])
            if count > (self.size - self.at) // width:
                raise self.fail(f"an array of {count} values, more than the file has room for")
            if not keep or count > _KEPT_ARRAY:
                self.skip(count * width)
                return None
            return list(struct.unpack(f"{self.order}{count}{_SCALARS[inner]}", self.bytes(count * width)))
        if inner != _STRING:
            raise self.fail(f"an array of kind {inner}, which there is not")
        if count > (self.size - self.at) // 8:
            raise self.fail(f"an array of {count} texts, more than the file has room for")
        for _ in range(count):
            self.string(keep=False)
        return None


def read_header(path: Path) -> Header:
    """The scalars and short arrays of a GGUF file's header, and the tensors of rotary factors.

    Raises:
        ValueError: not GGUF, an unknown version, or a file that ends early or claims more than it holds.
    """
    try:
        with path.open("rb") as raw:
            file = _File(raw, path)
            if file.size < 24 or file.bytes(4) != b"GGUF":
                raise ValueError(f"{path} is not a GGUF file: it does not begin with GGUF")
            version = file.number("I")
            if version & 0xFFFF == 0:
                file.order = ">"
                version = struct.unpack(">I", struct.pack("<I", version))[0]
            if version not in (2, 3):
                raise ValueError(f"{path} is GGUF of version {version}; 2 and 3 are read")
            tensors, entries = file.number("Q"), file.number("Q")
            for what, count in (("tensors", tensors), ("entries", entries)):
                if count > _MOST_ENTRIES:
                    raise file.fail(f"it claims {count} {what}")
            values: dict[str, Any] = {}
            for _ in range(entries):
                key = file.string()
                if key in values:
                    raise file.fail(f"the key {key[:100]!r} is there twice")
                kind = file.number("I")
                values[key] = file.value(kind, keep=not key.startswith("tokenizer."))
            return Header(values, _factor_tensors(file, tensors, values))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None


def _factor_tensors(file: _File, count: int, values: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    found: dict[str, tuple[int, int, int]] = {}
    for _ in range(count):
        name = file.string()
        dims = file.number("I")
        if dims > 8:
            raise file.fail(f"a tensor of {dims} dimensions")
        shape = [file.number("Q") for _ in range(dims)]
        kind, offset = file.number("I"), file.number("Q")
        if name in _FACTORS:
            if len(shape) != 1 or not 0 < shape[0] <= _KEPT_ARRAY:
                raise file.fail(f"{name} has the shape {shape}")
            found[name] = (kind, shape[0], offset)
    align = values.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1 or align & (align - 1):
        raise file.fail(f"general.alignment = {align!r:.40}")
    start = -(-file.at // align) * align
    out = {}
    for name, (kind, length, offset) in found.items():
        code = {0: "f", 1: "e"}.get(kind)
        if code is None:
            raise file.fail(f"{name} is quantised (kind {kind}); float32 and float16 are read")
        if offset > file.size or start + offset > file.size:
            raise file.fail(f"it ends before {name}")
        file.at = start + offset
        file.file.seek(file.at)
        width = struct.calcsize("<" + code)
        out[name] = struct.unpack(f"{file.order}{length}{code}", file.bytes(length * width))
    return out


def read_gguf(path: Path) -> RotaryPlan:
    """Read a GGUF file.

    The layout is that of llama.cpp, whose converters permute the weights of some models. A tensor `rope_freqs` divides
    the frequencies of each pair.

    Raises:
        ValueError: not a whole GGUF file, an architecture whose positions are not known here, or parameters out of
            range.
    """
    header = read_header(path)
    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ValueError(f"{path} does not say its architecture (general.architecture)")
    prefix = f"{architecture}."
    keys = Keys({k.removeprefix(prefix): v for k, v in header.values.items() if k.startswith(prefix)}, architecture)
    keys.path = architecture
    layers = keys.whole("block_count", high=MOST_LAYERS)
    heads, kv_heads = _heads(keys, "attention.head_count"), _heads(keys, "attention.head_count_kv")
    length = keys.whole("context_length")
    told: list[Advice] = []
    plans = _layers(keys, architecture, header, layers or 1, heads, length, told)
    keys.ignore("rope.scaling.finetuned")
    for key in keys.leftovers():
        if key.startswith("rope."):
            raise ValueError(f"{keys.full(key)} is not read by this reader of GGUF files")
    trained = next(
        (e.original_length for p in plans if (e := p.extension) is not None and hasattr(e, "original_length")), length
    )
    turning = next((p for p in plans if p.kind == "rope"), None)
    if turning is not None:
        told.extend(advice.slow_pairs(turning, trained))
        told.extend(advice.float32_reach(length or 0, turning))
    plan = RotaryPlan(
        architecture,
        plans,
        counted=layers is not None,
        max_length=length,
        original_length=trained,
        heads=heads,
        kv_heads=kv_heads,
        warnings=tuple(dict.fromkeys(told)),
        source="GGUF",
    )
    return replace(plan, read_keys=tuple(sorted(keys.used)))


def _heads(keys: Keys, name: str) -> int | None:
    """The number of heads, which some models state layer by layer; the largest then."""
    if isinstance(keys.values.get(name), list):
        counts = keys.items(name, of=int) or [0]
        return max(counts) or None
    return keys.whole(name, low=0, high=1 << 20) or None


def _layers(
    keys: Keys, architecture: str, header: Header, count: int, heads: int | None, length: int | None, told: list[Advice]
) -> tuple[LayerPlan, ...]:
    if architecture in _ALIBI:
        if heads is None:
            raise ValueError(f"{architecture}.attention.head_count is missing")
        return (LayerPlan("encoding", encoding="alibi", options=(("heads", heads),)),) * count
    if architecture in _LEARNED:
        width = keys.whole("embedding_length")
        if width is None or length is None:
            raise ValueError(f"{architecture} needs embedding_length and context_length")
        return (LayerPlan("encoding", encoding="learned", options=(("dim", width), ("length", length))),) * count
    if architecture not in _NEIGHBOURS | _HALVES:
        raise ValueError(
            f"the GGUF architecture {architecture[:60]!r} is not one whose positions this reader knows; read the "
            "config.json of the original model"
        )
    layout: Layout = "interleaved" if architecture in _NEIGHBOURS else "half"
    if architecture in _NEIGHBOURS - _NEIGHBOURS_UNPERMUTED:
        told.append(advice.gguf_layout(architecture))
    head, width, place = _widths(keys, architecture, heads)
    base = keys.number("rope.freq_base", above=1)
    if base is None:
        base = 10_000.0
        told.append(advice.base_assumed(base, "llama.cpp"))
    extension = _extension(keys, architecture, header, width, length, told)
    depends = extension is not None and extension.depends_on_length
    original = getattr(extension, "original_length", None)
    layer = LayerPlan(
        "rope",
        "",
        head,
        width,
        place,
        layout,
        base,
        extension,
        temperature=_temperature(keys, architecture, original),
        default_length=original if depends else None,
    )
    try:
        layer.spectrum()
    except ArithmeticError as error:
        raise ValueError(f"these rotary parameters cannot be computed with: {str(error)[:100]}") from None
    if architecture not in _LOCAL_BASE:
        if keys.has("rope.freq_base_swa", "rope.dimension_count_swa"):
            raise ValueError(
                f"{architecture} states other bases for some of its layers, which this reader does not know"
            )
        return (layer,) * count
    every, default = _LOCAL_BASE[architecture]
    local = keys.number("rope.freq_base_swa", above=1) or default
    near = replace(layer, label="sliding_attention", base=local, extension=None, default_length=None)
    far = replace(layer, label="full_attention")
    keys.ignore("attention.sliding_window_pattern")
    return tuple(far if (i + 1) % every == 0 else near for i in range(count))


def _temperature(keys: Keys, architecture: str, original: int | None) -> Temperature | None:
    """Ministral 3's query temperature, a step every trained length."""
    scale = keys.number("attention.temperature_scale", low=0)
    if not scale:
        return None
    if architecture != "mistral3" or original is None or keys.has("attention.temperature_length"):
        raise ValueError(f"{architecture}.attention.temperature_scale = {scale:g} is read for mistral3 with yarn only")
    return Temperature(scale, original)


def _widths(keys: Keys, architecture: str, heads: int | None) -> tuple[int, int, Place]:
    stated = keys.whole("attention.key_length_mla") or keys.whole("attention.key_length")
    keys.whole("attention.key_length")
    embedding = keys.whole("embedding_length")
    if stated is None:
        if embedding is None or not heads or embedding % heads:
            raise ValueError(f"{architecture} states neither attention.key_length nor what it would follow from")
        stated = embedding // heads
    width = keys.whole("rope.dimension_count") or stated
    if width % 2 or width > stated or width > WIDEST:
        raise ValueError(f"{architecture}.rope.dimension_count is even and at most {min(stated, WIDEST)}, got {width}")
    return stated, width, "trailing" if architecture in _MLA else "leading"


def _extension(
    keys: Keys, architecture: str, header: Header, width: int, length: int | None, told: list[Advice]
) -> Extension | None:
    kind = keys.text("rope.scaling.type") or (
        "linear" if keys.has("rope.scaling.factor", "rope.scale_linear") else "none"
    )
    factor = keys.number("rope.scaling.factor", "rope.scale_linear", low=0)
    attention = keys.number("rope.scaling.attn_factor", above=0)
    original = keys.whole("rope.scaling.original_context_length")
    long, short = header.factors.get(_FACTORS[1]), header.factors.get(_FACTORS[2])
    found: Extension | None = None
    if long or short:
        if long is None or short is None or original is None:
            raise ValueError(
                f"{architecture} has one list of LongRoPE factors without the other, or no original length"
            )
        found = LongRoPE(short, long, original, attention_factor=attention, factor=(length or original) / original)
        told.extend(advice.longrope())
    elif kind == "yarn":
        found = _yarn(keys, architecture, factor, original or length, attention, told)
    elif kind == "linear":
        found = Linear(factor) if factor not in (None, 0, 1) and factor is not None else None
    elif kind == "longrope":
        raise ValueError(f"{architecture}.rope.scaling.type is longrope, but the tensors of its factors are missing")
    elif kind != "none":
        raise ValueError(f"{architecture}.rope.scaling.type is none, linear, yarn or longrope, got {kind!r:.60}")
    if attention not in (None, 1) and not isinstance(found, (YaRN, LongRoPE)):
        raise ValueError(f"{architecture}.rope.scaling.attn_factor = {attention:g} is read for yarn and longrope only")
    freqs = header.factors.get(_FACTORS[0])
    if freqs is None:
        return found
    if len(freqs) != width // 2:
        raise ValueError(f"rope_freqs has {len(freqs)} factors for the {width // 2} pairs of a width of {width}")
    if not all(0 < f < math.inf for f in freqs):
        wrong = next(f for f in freqs if not 0 < f < math.inf)
        raise ValueError(f"rope_freqs is a list of finite numbers above 0, it holds {wrong:g}")
    told.append(advice.gguf_freqs())
    each = PerPair(freqs)
    return each if found is None else Product((found, each))


def _yarn(
    keys: Keys,
    architecture: str,
    factor: float | None,
    original: int | None,
    attention: float | None,
    told: list[Advice],
) -> Extension:
    if factor is None or original is None:
        raise ValueError(f"{architecture}.rope.scaling.factor or the original length is missing, which yarn needs")
    fast = keys.number("rope.scaling.yarn_beta_fast", above=0) or 32.0
    slow = keys.number("rope.scaling.yarn_beta_slow", above=0) or 1.0
    if keys.number("rope.scaling.yarn_ext_factor") not in (None, 1):
        raise ValueError(f"{architecture}.rope.scaling.yarn_ext_factor is 1 in every model; others are not read")
    log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", low=0)
    given = keys.number("rope.scaling.yarn_attn_factor", above=0)
    plain = YaRN(factor, original, fast, slow)
    if log_multiplier and architecture in _MLA:  # 0.1 · mscale_all_dim: on the softmax, and not on cos and sin
        found = replace(plain, attention_factor=1.0, softmax_mscale=log_multiplier / 0.1)
    elif log_multiplier:  # elsewhere it is mscale_all_dim itself, with an mscale of 1
        if attention or given:
            raise ValueError(f"{architecture} has an attention factor and a yarn_log_multiplier, which both set it")
        found = replace(plain, mscale=1.0, mscale_all_dim=log_multiplier)
    elif attention or given:  # llama.cpp multiplies it onto its own 0.1 · ln(factor) + 1
        found = replace(plain, attention_factor=(attention or 1.0) * (given or 1.0) * plain.table_factor(0))
    else:
        found = plain
    told.extend(advice.yarn(found, nested=False, one_mscale=False))
    return found
