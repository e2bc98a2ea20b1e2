"""`ropewalk cite NAME…`: BibTeX."""

from __future__ import annotations

from dataclasses import asdict

import click

from ropewalk.cli.base import Command
from ropewalk.cli.options import json_option, lang_option


@click.command(
    "cite",
    cls=Command,
    text=(
        "BibTeX of the papers behind the encodings named.\nEach paper is printed once.",
        "指定した位置符号化の論文を BibTeX で出力します。\n同じ論文は一度だけ出力します。",
    ),
    examples=("ropewalk cite rope alibi", "ropewalk cite t5 > references.bib"),
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@lang_option
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Print the entries."""
    from ropewalk.cards import bibtex, citations
    from ropewalk.cli import output

    papers = citations([output.encoding(name).name for name in names])
    if as_json:
        entries = [{**asdict(paper), "bibtex": bibtex(paper)} for paper in papers.values()]
        output.print_json({"schema": "ropewalk.cite/1", "entries": entries})
        return
    click.echo("\n\n".join(bibtex(paper) for paper in papers.values()))
