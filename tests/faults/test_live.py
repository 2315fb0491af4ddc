"""The gate is killed while its workers work: none outlives it, and the same command again finishes."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.check.conftest import POLICY, example, golden, net, program
from tests.registry.conftest import MlflowWorld

__all__ = ["example", "golden", "net", "program"]

ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 30
MOMENTS = (" resolve ", " run      reference completed")
"""Lines of progress at which it is killed: workers that wait for their first job, and such as run one."""


@pytest.fixture
def orphanage() -> Iterator[None]:
    """Inherit what a killed child leaves behind, so that it can be counted."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def children_of(pid: int) -> set[int]:
    """Return the processes below one that are alive or were not waited for."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | (children_of(child) if Path(f"/proc/{child}").exists() else set())
    return found


def reap(pids: set[int]) -> None:
    """Wait for those that have ended."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue  # the child of a child: whoever is above waits for it


def survivors(before: set[int]) -> set[int]:
    """Return who is still there after a while, of those that were not there before."""
    deadline_s = time.monotonic() + GRACE_S
    while (left := children_of(os.getpid()) - before) and time.monotonic() < deadline_s:
        reap(left)
        time.sleep(0.05)
    return left


def test_killed_while_workers_live_it_leaves_no_process_and_the_same_command_finishes(
    blank_database: Path, program: Path, golden: Path, tmp_path: Path, orphanage: None
) -> None:
    database, scratch, report = tmp_path / "mlflow.db", tmp_path / "scratch", tmp_path / "report"
    shutil.copyfile(blank_database, database)
    scratch.mkdir()
    (tmp_path / "policy.toml").write_text(POLICY)
    world = MlflowWorld(uri=f"sqlite:///{database}", folder=tmp_path)
    files = {str(p.relative_to(program)): p.read_bytes() for p in program.rglob("*") if p.is_file()}
    world.register("net", files)
    command = [
        sys.executable, "-W", "ignore", "-m", "validator", "check", "models:/net/1", "--tracking-uri", world.uri,
        "--golden", str(golden), "--policy", str(tmp_path / "policy.toml"), "--output", str(report), "--no-cache",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    before = children_of(os.getpid())
    for moment in MOMENTS:
        gate = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
        assert gate.stderr is not None
        with gate.stderr as lines:
            told = next((line for line in lines if moment in line), None)
            assert told is not None, f"it never said {moment!r}"
            # Stopped first: what is counted here is what is there when it is killed.
            gate.send_signal(signal.SIGSTOP)
            assert children_of(gate.pid), moment
            gate.kill()
            gate.wait()
        assert survivors(before) == set(), moment
        assert not (report / "verdict.json").exists(), moment
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((report / "verdict.json").read_text())["verdict"] == "pass"
    assert list(scratch.iterdir()) == []
    assert survivors(before) == set()
    assert world.tags("net", 1)["validator.verdict"] == "pass"
