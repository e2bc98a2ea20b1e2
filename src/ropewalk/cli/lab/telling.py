"""What a study found, for people and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.cli.base import language, say

if TYPE_CHECKING:
    from ropewalk.lab.findings import Found, Judged
    from ropewalk.lab.study import Study


def about(study: Study, *, statements: bool = True) -> None:
    """Claim, source, and what is expected."""
    from ropewalk.cli import output

    out = output.console()
    output.paragraph(out, f"{study.name}: {study.claim[language()]}", style="bold")
    output.paragraph(out, say("Source: ", "出典: ") + study.source[language()])
    for statement in study.statements if statements else ():
        output.paragraph(out, "- " + statement.text[language()], indent="  ")
    out.print()


def tell(folder: Path, study: Study, *, as_json: bool) -> None:
    """Values of all arms, and a verdict on each statement."""
    from ropewalk.cli import output
    from ropewalk.lab.findings import WORDS, document, gather, judge

    if as_json:
        output.print_json(document(folder, study))
        return
    found = gather(folder, study)
    judged = judge(study, found)
    about(study, statements=False)
    out = output.console()
    out.print(_values(found))
    for one in judged:
        output.paragraph(
            out, f"- {say(*WORDS[one.verdict])}: {one.statement.text[language()]}{_evidence(one)}", indent="  "
        )


def _evidence(one: Judged) -> str:
    d = one.difference
    if d is None:
        return f" ({one.why})" if language() == "en" else "（値なし）"
    seeds = len(d.seeds)
    return say(
        f" ({' against '.join(f'{v:.3f}' for v in one.values)}; difference {d.mean:+.3f}, 95% between {d.low:+.3f} and "
        f"{d.high:+.3f}, {seeds} {'seed' if seeds == 1 else 'seeds'})",
        f"（{' と '.join(f'{v:.3f}' for v in one.values)}、差 {d.mean:+.3f}、95% 区間 {d.low:+.3f}〜{d.high:+.3f}、"
        f"{seeds} シード）",
    )


def _values(found: list[Found]) -> Any:
    """An arm a row, a length a column: mean over seeds and standard deviation."""
    from statistics import fmean

    from ropewalk.cli import output
    from ropewalk.lab.findings import spread

    measured = [r for f in found for r in f.results]
    rows = output.table()
    rows.add_column("")
    multiples = sorted({e["multiple"] for r in measured for e in r["test"]})
    measure = "bits" if any(r["measure"] == "bits" for r in measured) else "accuracy"
    head = say("bits per byte", "ビット/バイト") if measure == "bits" else say("right", "正答率")
    for n in multiples:
        times = say("trained length", "学習時の長さ") if n == 1 else f"× {n}"
        rows.add_column(f"{head}\n{times}" if n == multiples[0] else times, justify="right")
    rows.add_column(say("seeds", "シード"), justify="right")
    for f in found:
        cells = []
        for n in multiples:
            values = f.values(measure, n)
            deviation = spread(values)
            form = "{:.3f}" if measure == "bits" else "{:.1%}"
            mean = form.format(fmean(values)) if values else "–"
            cells.append(mean + (f" ± {form.format(deviation)}" if deviation else ""))
        rows.add_row(f.arm.label, *cells, str(len(f.results)))
    return rows
