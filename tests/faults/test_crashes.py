"""Killed at any point, it leaves nothing half-written, and the same call ends where an undisturbed one does."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"


def counted(name: str) -> int:
    """Return how many points the page says that there are."""
    row = re.search(rf"^\| `{re.escape(name)}` \| (\d+) \| 0 \| 0 \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None, f"{PAGE.name} has no row for {name}"
    return int(row[1])


@pytest.mark.parametrize(
    "name",
    ["check", "annotation", "golden create", "golden create, no exchange", "golden push", "key create", "cache key"],
)
def test_killed_at_any_point_it_leaves_nothing_half_written_and_converges(
    name: str, blank_database: Path, tmp_path: Path
) -> None:
    """Real processes, killed by SIGKILL, over a real database."""
    (tmp_path / "world").mkdir()
    shutil.copyfile(blank_database, tmp_path / "world" / "mlflow.db")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.faults.crasher", str(tmp_path), name],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    *killed, last = told["attempts"]
    assert {attempt["ended"] for attempt in killed} == {signal.SIGKILL}
    assert last["ended"] == 0
    assert told["undisturbed"]["scratch"] == []
    for attempt in told["attempts"]:
        assert attempt["faults"] == [], attempt["point"]
        assert attempt["finished"] == told["undisturbed"], attempt["point"]
    assert len(killed) == counted(name)
