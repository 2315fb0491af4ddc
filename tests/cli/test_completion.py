"""Completion as docs/ci.md sets it up: in real shells, where they are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from tests.docs.test_docs import ROOT, table, words_of
from validator.cli.main import app

PAGE = ROOT / "docs/ci.md"
LINES = {row[0].split(",")[0]: words_of([row[1]])[0].replace("\\|", "|") for row in table(PAGE, "shell", "line")}

ASK = {
    # What the shell itself would offer after `validator pro`, by what the line has set up.
    "bash": 'COMP_WORDS=(validator pro) COMP_CWORD=1; _validator_completion validator; echo "${COMPREPLY[@]}"',
    # Outside of its line editor zsh has no `_describe`; click's function gives it -V, a group and the name of the list.
    "zsh": "_describe() { print -l -- ${(P)3} }; words=(validator pro); CURRENT=2; _validator_completion",
    "fish": 'complete --do-complete "validator pro"',
}


def environment() -> dict[str, str]:
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def test_the_page_names_three_shells() -> None:
    assert set(LINES) == set(ASK)


@pytest.mark.parametrize("shell", ASK)
def test_the_line_of_the_page_completes_commands(request: pytest.FixtureRequest, shell: str) -> None:
    if shutil.which(shell) is None:
        reason = f"{shell} is not installed"
        pytest.fail(reason) if request.config.getoption("--require-tools") else pytest.skip(reason)
    before = "compdef() { :; }; " if shell == "zsh" else ""
    words = [shell, "--norc" if shell == "bash" else "--no-config" if shell == "fish" else "--no-rcs", "-c"]
    ended = subprocess.run(
        [*words, f"{before}{LINES[shell]}\n{ASK[shell]}"], env=environment(), capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert "promote" in ended.stdout, ended.stderr
    assert "calibrate" not in ended.stdout


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        (["check", "--policy"], "c", ["cpu"]),
        (["check", "--policy"], "policies/a", ["file policies/a"]),
        (["check", "--golden"], "gol", ["file gol"]),
        (["check", "--backend"], "onnxruntime-c", ["onnxruntime-cpu"]),
        (["check", "--format"], "md,ju", ["md,junit"]),
        (["check", "--format"], "html,md,html,m", []),
        (["report", "--format"], "parq", ["parquet"]),
        (["calibrate", "--sandbox"], "str", ["strict"]),
    ],
)
def test_values_are_completed_with_what_is_built_in_else_with_files(
    words: list[str], incomplete: str, offered: list[str]
) -> None:
    found = ShellComplete(app, {}, "validator", "_VALIDATOR_COMPLETE").get_completions(words, incomplete)
    assert [item.value if item.type == "plain" else f"{item.type} {item.value}" for item in found] == offered
