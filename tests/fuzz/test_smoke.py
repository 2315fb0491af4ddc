"""The coverage-guided driver runs, finds what is planted, and finds nothing else in a second for each target."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]

pytest.importorskip("atheris", reason="atheris has no wheel for this Python")


def fuzz(*arguments, **environment):
    command = [sys.executable, "-m", "fuzz", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=500
    )


def test_a_second_of_fuzzing_finds_nothing(tmp_path):
    ended = fuzz("all", "--seconds", "1", "--found", str(tmp_path))
    assert ended.returncode == 0, ended.stdout
    assert [line.split(":")[0] for line in ended.stdout.splitlines() if "faults in" in line] == list(TARGETS)


def test_a_planted_fault_is_found_and_kept(tmp_path):
    """`FUZZ_PLANT` makes one reader raise what it does not declare."""
    ended = fuzz("model-uri", "--seconds", "2", "--found", str(tmp_path), FUZZ_PLANT="model-uri")
    assert ended.returncode == 1, ended.stderr
    assert "1 faults" in ended.stdout
    assert any(
        path.read_bytes().startswith(b"models:") for path in (tmp_path / "model-uri").glob("ZeroDivisionError-*")
    )
