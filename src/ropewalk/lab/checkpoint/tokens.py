"""Text to tokens: the tokenizer of a GGUF file, or a tokenizer.json, through the `tokenizers` package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ropewalk.lab.checkpoint.gguf import GGUFWeights

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPLITS = {
    "gpt-2": None,
    "smollm": "digits",
    "llama-bpe": _LLAMA3 % "1,3",
    "qwen2": _LLAMA3 % "1",
}
"""How text is cut before pairs are merged, by `tokenizer.ggml.pre`: the rule of GPT-2 (None), the same with every digit
apart, or an expression."""
_CONTROL, _USER = 3, 4
"""Kinds of tokens (`tokenizer.ggml.token_type`) that stand for themselves wherever their text occurs."""


@dataclass(frozen=True)
class Tokens:
    """A tokenizer, and the tokens that a text begins with."""

    tokenizer: Tokenizer
    start: tuple[int, ...] = ()
    """What the model wants before any text; often nothing."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without `start`."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def of_file(path: Path) -> Tokens:
    """From a tokenizer.json.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ValueError(f"there is no {path}, which would hold the tokenizer")
    try:
        found = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exceptions
        raise ValueError(f"{path} is not a tokenizer: {' '.join(str(error).split())[:100]}") from None
    bare, dressed = (found.encode("a", add_special_tokens=special).ids for special in (False, True))
    before = next((i for i in range(len(dressed)) if dressed[i : i + len(bare)] == bare), 0)
    return Tokens(found, tuple(dressed[:before]))


def of_gguf(weights: GGUFWeights) -> Tokens:
    """From the header of a GGUF file: byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have.

    Raises:
        ValueError: a tokenizer of another kind, by name.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    def entry(name: str) -> Any:
        return weights.field(f"tokenizer.ggml.{name}")

    model, rule = entry("model"), entry("pre") or "gpt-2"
    hint = "give a tokenizer.json"
    if model != "gpt2":
        raise ValueError(f"{weights.path} has a tokenizer of kind {model!r:.40}, only gpt2 (byte-level BPE) is; {hint}")
    if rule not in _SPLITS:
        known = ", ".join(_SPLITS)
        raise ValueError(f"{weights.path} cuts text by the rule {rule!r:.40}; known are {known}: {hint}")
    names, merges, kinds = entry("tokens"), entry("merges"), entry("token_type") or []
    if not isinstance(names, list) or not isinstance(merges, list):
        raise ValueError(f"{weights.path} has no tokens or no merges for its tokenizer; {hint}")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        made = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=pairs))
    except Exception as error:  # the package raises plain Exceptions
        raise ValueError(f"{weights.path} has tokens and merges that do not fit: {str(error)[:100]}; {hint}") from None
    split = _SPLITS[rule]
    cut: list[Any] = []
    if split == "digits":
        cut = [pre_tokenizers.Digits(individual_digits=True)]
    elif split is not None:
        cut = [pre_tokenizers.Split(Regex(split), "isolated")]
    plain = split is None or split == "digits"
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=bool(entry("add_space_prefix")) and plain, use_regex=plain)
    made.pre_tokenizer = pre_tokenizers.Sequence([*cut, bytes_])
    made.decoder = decoders.ByteLevel()
    special = [name for name, kind in zip(names, kinds, strict=False) if kind in (_CONTROL, _USER)]
    made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    begins = entry("add_bos_token")
    begins = rule == "llama-bpe" if begins is None else begins
    bos = entry("bos_token_id")
    return Tokens(made, (int(bos),) if begins and bos is not None else ())
