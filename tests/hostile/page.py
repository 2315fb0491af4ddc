"""The page docs/hostile.md: its tables are the corpus's outcomes, and a test holds each row to what happens."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.hostile.attempts import ATTEMPTS
from tests.hostile.cases import LYING, RUNNING, TRYING, Case
from tests.hostile.world import Ended

PAGE = Path(__file__).parents[2] / "docs" / "hostile.md"
HEADING = "| model | exit code | verdict | what stopped it |\n|---|---|---|---|\n"
TRIED_HEADING = "| attempt | `strict` | `standard` |\n|---|---|---|\n"
GENERATED = re.compile(r"(?<=<!-- corpus -->\n).*(?=<!-- end -->)", re.DOTALL)


def row_of(case: Case, ended: Ended) -> str:
    """Return a case's row."""
    return f"| {case.title} | {ended.exit_code} | {ended.verdict} | {ended.stopped_by} |"


def attempt_rows(strict: Mapping[int, str], standard: Mapping[int, str]) -> list[str]:
    """Return the attempts' rows: how each was stopped at each level."""
    return [
        f"| {title} | {strict.get(n, 'not tried')} | {standard.get(n, 'not tried')} |"
        for n, title in enumerate(ATTEMPTS)
    ]


def count(ended: Mapping[Case, Ended]) -> str:
    """Return the line of counts."""
    passes = sum(e.exit_code == 0 for case, e in ended.items() if not case.may_pass)
    harmless = sum(e.exit_code == 0 for case, e in ended.items() if case.may_pass)
    escapes = sum(len(e.escapes) for e in ended.values())
    return (
        f"**{len(ended)} models and {len(ATTEMPTS)} attempts at two levels: {passes} wrong passes, {escapes} "
        f"escapes.** {harmless} of them pass rightly: they compute what they should, because they were kept from "
        f"everything else."
    )


def write_page(ended: Mapping[Case, Ended], standard: Mapping[int, str], path: Path = PAGE) -> None:
    """Write the generated part of the page again."""

    def table(cases: Iterable[Case]) -> str:
        return HEADING + "".join(row_of(case, ended[case]) + "\n" for case in cases)

    rows = "\n".join(attempt_rows(ended[TRYING].tried, standard))
    text = (
        f"{count(ended)}\n\n## Models that run code\n\n{table((*RUNNING, TRYING))}\n"
        f"## What a model tries\n\n{TRIED_HEADING}{rows}\n\n## Files that lie\n\n{table(LYING)}\n"
    )
    page, replaced = GENERATED.subn(lambda _: text, path.read_text(encoding="utf-8"))
    if replaced != 1:
        raise ValueError(f"{path} has {replaced} places for the corpus's tables")
    path.write_text(page, encoding="utf-8")
