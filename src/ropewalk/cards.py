"""A card for each encoding, read off its class: idea, formula, places, claims, parameters, paper, citation."""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from ropewalk.encodings import ENCODINGS, build, find
from ropewalk.protocol import Paper, PositionalEncoding

PLACE_NAMES: dict[str, dict[str, str]] = {
    "embedding": {"en": "embedding", "ja": "埋め込み"},
    "query/key": {"en": "query/key", "ja": "クエリとキー"},
    "score": {"en": "score", "ja": "スコア"},
    "value": {"en": "value", "ja": "バリュー"},
}
"""The four places, as people read them."""

MEANINGS: dict[str, tuple[str, str]] = {
    "at_length": (
        "length of the text, for an extension that depends on it",
        "全体の長さ。長さで変わる拡張に使う",
    ),
    "bands": ("which axis of the positions each pair follows", "各組が位置のどの軸に従うか。軸が複数のときに使う"),
    "base": ("of the frequencies; above 1", "周波数を決める底。1 より大きい数"),
    "bidirectional": ("also for keys after the query", "クエリより後ろのキーにも使うか"),
    "buckets": ("how many buckets of distances", "距離を分けるバケットの数"),
    "clip": ("distances beyond ±clip count as ±clip", "±clip を超える距離は ±clip として扱う"),
    "dim": ("width of the embeddings", "埋め込みの次元"),
    "embedding_scale": ("multiplies the embeddings; None: √dim", "埋め込みに掛ける数。None なら √dim"),
    "extension": ("a context extension, such as YaRN", "文脈長を延ばす拡張。YaRN など"),
    "head_dim": ("channels of a head", "ヘッドのチャネル数"),
    "heads": ("number of heads", "ヘッドの数"),
    "impl": ("which rotation: eager PyTorch or C++", "どの回転を使うか。PyTorch の演算か C++ か"),
    "kernel": ("how the penalty grows with distance", "距離に対する罰則の増え方"),
    "ladder": ("where the frequencies end", "周波数の並びの終わり方"),
    "layout": ("which channels turn as a pair", "どのチャネルを組にして回転するか"),
    "length": ("how many positions the table holds", "表が持つ位置の数"),
    "max_distance": ("from here on distances share a bucket", "この距離から先は同じバケットになる"),
    "offset": ("rows of the table before position 0", "位置 0 より前にある表の行数"),
    "order": ("of the sine and cosine channels", "正弦と余弦のチャネルの並べ方"),
    "place": ("whether turned channels lead or trail", "回転するチャネルを前に置くか後ろに置くか"),
    "precision": ("of the angles", "角度の計算精度"),
    "reference": ("position at which the damping is 1", "減衰の係数が 1 になる位置"),
    "rotary_dim": ("how many channels turn; None: all", "回転するチャネル数。None ならすべて"),
    "scale_base": ("tokens over which a pair is damped", "組が減衰する長さ（トークン数）"),
    "std": ("of the initial table's normal distribution", "表の初期値の標準偏差"),
    "threshold": ("least length that distances are measured by", "距離を割合で測るときの最小の長さ"),
    "width": ("of the hidden layer", "隠れ層の幅"),
}
"""What each constructor keyword means, in a line; the class's docstring says more."""


@dataclass(frozen=True)
class Parameter:
    """One keyword of a constructor; `default` means nothing where `required`."""

    name: str
    required: bool
    default: Any
    choices: tuple[str, ...]
    meaning: dict[str, str]


@dataclass(frozen=True)
class Claims:
    """What the encoding promises, with default options. `distance_only` is None where nothing is added to the score."""

    shift_invariant: bool
    distance_only: bool | None
    causal_only: bool
    max_length: int | None


@dataclass(frozen=True)
class Card:
    """All that `ropewalk show` prints."""

    name: str
    label: str
    python: str
    idea: dict[str, str]
    formula: str
    places: tuple[str, ...]
    claims: Claims
    parameters: tuple[Parameter, ...]
    differences: str | None
    """Where implementations differ, from the docstring (English)."""
    paper: Paper
    bibtex: str

    def json(self) -> dict[str, Any]:
        """What `ropewalk show --json` prints."""
        return {"schema": "ropewalk.show/1", **asdict(self)}


def card(name: str) -> Card:
    """The card of one encoding.

    >>> card("rope").places, card("rope").claims.shift_invariant
    (('query/key',), True)

    Raises:
        ValueError: an unknown name.
    """
    cls = find(name)
    with torch.device("meta"):  # claims may depend on options, so an instance is asked; nothing is drawn or allocated
        one = build(cls.name, dim=64, heads=8, head_dim=64)
    return Card(
        name=cls.name,
        label=cls.label,
        python="NoPE" if cls is PositionalEncoding else cls.__name__,
        idea=cls.idea,
        formula=cls.formula,
        places=cls.places(),
        claims=Claims(
            shift_invariant=one.shift_invariant,
            distance_only=one.distance_only if "score" in cls.places() else None,
            causal_only=one.causal_only,
            max_length=one.max_length,
        ),
        parameters=_parameters(cls),
        differences=_differences(cls.__doc__),
        paper=cls.paper,
        bibtex=bibtex(cls.paper),
    )


def cards() -> tuple[Card, ...]:
    """All cards, in teaching order."""
    return tuple(card(cls.name) for cls in ENCODINGS)


def _parameters(cls: type[PositionalEncoding]) -> tuple[Parameter, ...]:
    hints = get_type_hints(cls.__init__)
    found = []
    for name, asked in cls.parameters_of_constructor().items():
        required = asked.default is asked.empty
        en, ja = MEANINGS.get(name, ("", ""))
        choices = get_args(hints[name]) if get_origin(hints[name]) is Literal else ()
        found.append(Parameter(name, required, None if required else asked.default, choices, {"en": en, "ja": ja}))
    return tuple(found)


def _differences(docstring: str | None) -> str | None:
    """The paragraph that begins "Where implementations differ" (or "Where they differ"), on one line."""
    for paragraph in inspect.cleandoc(docstring or "").split("\n\n"):  # no docstring under `python -OO`
        start = re.match(r"Where (implementations|they) differ:\s*", paragraph)
        if start:
            return " ".join(paragraph[start.end() :].split())
    return None


def citations(names: Sequence[str]) -> dict[str, Paper]:
    """The papers of some encodings by BibTeX key, each once, in the order given.

    Raises:
        ValueError: an unknown name.
    """
    papers = [find(name).paper for name in names]
    return {paper.key: paper for paper in papers}


def bibtex(paper: Paper) -> str:
    """A BibTeX entry that any LaTeX reads: plain ASCII, capitals of the title kept.

    >>> print(bibtex(find("rope").paper))  # doctest: +ELLIPSIS
    @misc{su2021roformer,
      title = {{RoFormer: Enhanced Transformer with Rotary Position Embedding}},
      author = {Su, Jianlin and Lu, Yu and ...},
      year = {2021},
      eprint = {2104.09864},
      archivePrefix = {arXiv},
    }
    """
    journal = re.fullmatch(r"(.+) (\d+)\((\d+)\)", paper.venue)
    fields = {"title": f"{{{latex(paper.title)}}}", "author": " and ".join(_family_first(a) for a in paper.authors)}
    if journal:
        kind = "article"
        fields |= {"journal": latex(journal[1]), "volume": journal[2], "number": journal[3]}
    elif paper.venue.lower().startswith("arxiv"):
        kind = "misc"
    else:
        kind = "inproceedings"
        fields["booktitle"] = latex(paper.venue)
    fields["year"] = str(paper.year)
    if paper.arxiv:
        fields |= {"eprint": paper.arxiv, "archivePrefix": "arXiv"}
    return "\n".join([f"@{kind}{{{paper.key},", *(f"  {name} = {{{value}}}," for name, value in fields.items()), "}"])


def _family_first(author: str) -> str:
    given, _, family = author.rpartition(" ")
    return latex(f"{family}, {given}" if given else family)


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {c: f"\\{c}" for c in "&%$#_{}"}
_LETTERS = {"Ł": r"{\L}", "ł": r"{\l}", "Ø": r"{\O}", "ø": r"{\o}", "ß": r"{\ss}", "ı": r"{\i}", "Æ": r"{\AE}"}
_LETTERS |= {"æ": r"{\ae}", "Å": r"{\AA}", "å": r"{\aa}", "–": "--", "—": "---", "’": "'", "Đ": r"{\DJ}", "đ": r"{\dj}"}
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c", "`'^~=u." + '"' + "rHv", strict=True)
)
_ACCENTS |= {"\u0323": "d", "\u0327": "c", "\u0328": "k"}


def latex(text: str) -> str:
    r"""Text as LaTeX writes it, in ASCII where LaTeX has a name for the letter.

    >>> print(latex("Łukasz Gómez & Čapek, 50 %"))
    {\L}ukasz G{\'o}mez \& {\v C}apek, 50 \%
    """
    out = []
    for letter in unicodedata.normalize("NFC", text):
        base, *marks = list(unicodedata.normalize("NFD", letter))
        if letter in _LETTERS or letter in _SPECIAL:
            out.append(_LETTERS.get(letter) or _SPECIAL[letter])
        elif len(marks) == 1 and marks[0] in _ACCENTS:
            command = _ACCENTS[marks[0]]
            gap = " " if command.isalpha() else ""
            out.append(f"{{\\{command}{gap}{base}}}")
        else:
            out.append(letter)
    return "".join(out)
