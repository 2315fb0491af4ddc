"""Models that want something else than to be checked: none passes, nothing gets out. docs/hostile.md has the table."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hostile.attempts import ATTEMPTS
from tests.hostile.cases import CASES, LYING, RUNNING, TRYING, Case
from tests.hostile.corpus import Corpus
from tests.hostile.page import PAGE, row_of
from tests.hostile.standard import try_at_standard
from validator.sandbox.level import PLAIN, Level
from validator.sandbox.machine import look_at_machine

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("hostile"))


def require(level: Level) -> None:
    if (lack := look_at_machine().missing(level, PLAIN)) is not None:
        pytest.skip(f"{level}: {lack}")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow.*")
@pytest.mark.parametrize("case", CASES, ids=lambda case: re.sub(r"\W+", "-", case.title).strip("-"))
def test_no_hostile_model_passes_and_nothing_gets_out(case: Case, corpus: Corpus) -> None:
    if case.pickle:
        require(Level.STRICT)
    ended = corpus.check(case)
    assert ended.escapes == (), ended.terminal.decode(errors="replace")
    assert (ended.exit_code == 0) == case.may_pass, ended.terminal.decode(errors="replace")
    assert said_of(row_of(case, ended)) in [said_of(line) for line in TEXT.splitlines()]
    if case is TRYING:
        assert_all_were_stopped(ended.tried)


def said_of(row: str) -> str:
    """Return a row without the wording of the reason, which is the libraries' here and there."""
    return row.partition("`: ")[0]


def assert_all_were_stopped(tried: Mapping[int, str]) -> None:
    assert sorted(tried) == list(range(len(ATTEMPTS)))
    assert "done" not in tried.values()


def test_what_a_model_tries_is_stopped_at_standard_too(tmp_path: Path) -> None:
    require(Level.STANDARD)
    tried, escapes = try_at_standard(tmp_path / "world")
    assert escapes == ()
    assert_all_were_stopped(tried)


def test_the_page_tells_of_every_attempt() -> None:
    rows = [line.split(" | ") for line in TEXT.splitlines() if line.startswith("|")]
    told = {cells[0].removeprefix("| "): cells[1:] for cells in rows if len(cells) == 3}
    assert list(told) == ["attempt", *ATTEMPTS]
    assert not [title for title, cells in told.items() if {"done", "not tried"} & {cell.strip(" |") for cell in cells}]


def test_the_page_tells_of_every_model_and_no_other() -> None:
    titles = {f"| {case.title}" for case in CASES}
    assert len(titles) == len(CASES) == len(RUNNING) + 1 + len(LYING)
    rows = [line.split(" | ") for line in TEXT.splitlines() if line.startswith("|")]
    assert {cells[0] for cells in rows if len(cells) == 4} == titles | {"| model"}
    assert f"**{len(CASES)} models and {len(ATTEMPTS)} attempts at two levels: 0 wrong passes, 0 escapes.**" in TEXT
