"""Cards: read off the class, complete for every encoding in both languages, with citations that LaTeX reads."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re

import pytest
import torch

from ropewalk.cards import MEANINGS, PLACE_NAMES, bibtex, card, cards, citations, latex
from ropewalk.encodings import ENCODINGS, build
from ropewalk.protocol import PLACES, Paper

NAMES = [cls.name for cls in ENCODINGS]
JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


def paper(**changes: object) -> Paper:
    plain = Paper(key="k", title="T", authors=("A B",), year=2020, venue="Proceedings of X")
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def test_there_is_a_card_for_each_encoding() -> None:
    assert [c.name for c in cards()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_its_class_says(name: str) -> None:
    found = card(name)
    (cls,) = [cls for cls in ENCODINGS if cls.name == name]
    assert (found.label, found.formula, found.places, found.paper) == (cls.label, cls.formula, cls.places(), cls.paper)
    assert [p.name for p in found.parameters] == list(cls.parameters_of_constructor())
    for parameter in found.parameters:
        asked = inspect.signature(cls).parameters[parameter.name]
        assert parameter.required == (asked.default is asked.empty)
        assert parameter.default == (None if parameter.required else asked.default)
    made = build(name, dim=64, heads=8, head_dim=64)
    assert found.claims.shift_invariant == made.shift_invariant
    assert found.claims.causal_only == made.causal_only
    assert found.claims.max_length == made.max_length
    assert found.claims.distance_only == (made.distance_only if "score" in cls.places() else None)
    assert json.loads(json.dumps(found.json()))["schema"] == "ropewalk.show/1"


@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_whole_in_both_languages(name: str) -> None:
    found = card(name)
    assert not JAPANESE.search(found.idea["en"])
    assert JAPANESE.search(found.idea["ja"])
    for parameter in found.parameters:
        assert parameter.meaning["en"], f"say in cards.MEANINGS what {parameter.name} means"
        assert not JAPANESE.search(parameter.meaning["en"])
        assert JAPANESE.search(parameter.meaning["ja"])


def test_no_meaning_is_left_over() -> None:
    used = {p.name for c in cards() for p in c.parameters}
    assert sorted(MEANINGS) == sorted(used)
    assert list(PLACE_NAMES) == list(PLACES)


def test_choices_are_read_off_the_annotation() -> None:
    (layout,) = [p for p in card("rope").parameters if p.name == "layout"]
    assert layout.choices == ("half", "interleaved")
    assert layout.default == "half"
    (kernel,) = [p for p in card("kerple").parameters if p.name == "kernel"]
    assert kernel.choices == ("log", "power")


def test_claims_are_those_of_the_default_options() -> None:
    assert card("learned").claims.max_length == 512
    assert card("fire").claims.causal_only
    assert not card("t5").claims.causal_only
    assert card("rope").claims.distance_only is None  # nothing is added to the score
    assert card("shaw").claims.distance_only is False


def test_where_implementations_differ_is_read_off_the_docstring() -> None:
    for cls in ENCODINGS:
        found = card(cls.name).differences
        assert (found is not None) == bool(re.search(r"Where (implementations|they) differ:", cls.__doc__ or ""))
        if found is not None:
            assert "\n" not in found
            assert "Args:" not in found
    assert card("alibi").differences == (
        "for a head count that is not a power of two the authors take the slopes of the next lower power, then every "
        "other slope of the next higher (so here; some libraries use 2^(-8(h+1)/heads) for any count). Fast causal "
        "kernels add slope·j in place of -slope·(i - j), which differs by a constant in each row and so gives the same "
        "softmax, but only under a causal mask."
    )


def test_a_card_draws_no_random_number() -> None:
    state = torch.get_rng_state()
    cards()
    assert torch.equal(torch.get_rng_state(), state)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'rope'"):
        card("rop")
    with pytest.raises(ValueError, match="no encoding is called 'x'"):
        citations(["rope", "x"])


def test_each_paper_is_cited_once() -> None:
    assert list(citations(["t5", "rope", "relative_bias", "rope"])) == ["raffel2020t5", "su2021roformer"]
    by_key = {cls.paper.key: cls.paper for cls in ENCODINGS}
    for cls in ENCODINGS:  # one key never means two papers; where in it an encoding is defined may differ
        assert dataclasses.replace(cls.paper, where="") == dataclasses.replace(by_key[cls.paper.key], where="")


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_well_formed(name: str) -> None:
    entry = card(name).bibtex
    assert entry.isascii()
    assert entry.count("{") == entry.count("}")
    kind, key = re.match(r"@(\w+)\{([\w:-]+),\n", entry).groups()  # type: ignore[union-attr]
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE))
    assert len(fields) == entry.count("\n") - 1
    assert key == card(name).paper.key
    assert {"title", "author", "year"} <= set(fields)
    assert {"article": "journal", "inproceedings": "booktitle", "misc": "eprint"}[kind] in fields
    assert fields["author"].count(" and ") == len(card(name).paper.authors) - 1
    arxiv = card(name).paper.arxiv
    assert (fields.get("eprint"), fields.get("archivePrefix")) == (arxiv, "arXiv" if arxiv else None)


def test_the_kind_of_an_entry_follows_the_venue() -> None:
    assert bibtex(paper(venue="Journal of Y 21(140)", arxiv="1.2")) == (
        "@article{k,\n  title = {{T}},\n  author = {B, A},\n  journal = {Journal of Y},\n  volume = {21},\n"
        "  number = {140},\n  year = {2020},\n  eprint = {1.2},\n  archivePrefix = {arXiv},\n}"
    )
    assert bibtex(paper()).startswith("@inproceedings{k,\n  title = {{T}},\n  author = {B, A},\n  booktitle = {Proceed")
    assert "eprint" not in bibtex(paper())
    assert bibtex(paper(venue="arXiv preprint", arxiv="1.2")).startswith("@misc{k,")
    assert "author = {Plato}" in bibtex(paper(authors=("Plato",)))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Łukasz Kaiser", r"{\L}ukasz Kaiser"),
        ("José Müller", r"Jos{\'e} M{\"u}ller"),
        ("Françoise Čapek", r"Fran{\c c}oise {\v C}apek"),
        ("Søren Straße", r"S{\o}ren Stra{\ss}e"),
        ("50 % of A & B_1 #2 $3", r"50 \% of A \& B\_1 \#2 \$3"),
        ("{x} ~ y^2 \\z", r"\{x\} \textasciitilde{} y\textasciicircum{}2 \textbackslash{}z"),
        ("What’s – this", "What's -- this"),
        ("e\u0301", r"{\'e}"),
        ("漢", "漢"),
    ],
)
def test_latex_escapes(text: str, written: str) -> None:
    assert latex(text) == written
