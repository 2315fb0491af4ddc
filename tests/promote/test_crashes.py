"""Killed at any step, the alias is the old or the new one, the record says which, and the same command finishes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.promote.world import NOW, Interrupted, Team
from validator.faults import CRASH_AT
from validator.promotion import INTENT_TAG

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("level", ["alias", "republish"])
def test_a_promotion_killed_at_any_write_is_finished_by_the_same_command(
    level: str, blank_database: Path, tmp_path: Path
) -> None:
    """Real processes, killed by SIGKILL, over a real database."""
    shutil.copyfile(blank_database, tmp_path / "mlflow.db")
    done = subprocess.run(
        [sys.executable, "-m", "tests.promote.crasher", str(tmp_path), level],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    attempts = json.loads(done.stdout)
    killed = [attempt for attempt in attempts if attempt["ended"] == signal.SIGKILL]
    whole = attempts[-1]["finished"]
    assert (whole["holder"], whole["recorded"], whole["previous"], whole["intended"]) == (2, 2, 1, None)
    if level == "alias":
        assert len(killed) >= 10
        assert attempts[-1]["ended"] == 0
        assert attempts[-1]["left"] == whole
        assert {attempt["left"]["holder"] for attempt in killed} == {1, 2}
    else:
        assert [word for a in killed for word in ("uploading the bytes", "creating a version") if word in a["point"]]
    for attempt in attempts:
        left = attempt["left"]
        assert left["holder"] in (1, 2), attempt["point"]
        assert left["recorded"] in (1, 2), attempt["point"]
        if left["recorded"] != left["holder"]:
            assert left["intended"] == 2, attempt["point"]
        assert attempt["finished"] == whole, attempt["point"]


class Killed(BaseException):
    """The process ends here."""


WRITES = ("tag_model", "tag_version", "point_alias", "note_alias")


@pytest.mark.parametrize("deed", ["promote", "rollback"])
def test_what_was_begun_is_finished_whoever_began_it(deed: str, tmp_path: Path) -> None:
    from tests.registry.conftest import FakeWorld

    def start(folder: Path) -> Team:
        team = Team(world=FakeWorld(folder=folder / "fake"), name="net", folder=folder)
        folder.mkdir()
        for data in (b"one", b"two", b"three"):
            team.cleared(data)
        team.promote(1)
        team.promote(2)
        return team

    def act(team: Team, registry: object = None) -> None:
        if deed == "promote":
            team.promote(3, registry=registry)  # type: ignore[arg-type]
        else:
            team.rollback(registry=registry)  # type: ignore[arg-type]

    whole = start(tmp_path / "whole")
    act(whole)
    target = whole.holder()
    number = 0
    while True:
        number += 1
        team, writes = start(tmp_path / str(number)), 0

        def before(name: str, last: int = number) -> None:
            nonlocal writes
            writes += name in WRITES
            if name in WRITES and writes == last:
                raise Killed

        try:
            act(team, Interrupted(team.registry, before))
        except Killed:
            assert team.holder() in (2, target)
            act(team)
            assert team.holder() == target
            assert team.record() == whole.record()
            assert INTENT_TAG + "champion" not in team.tags()
            assert team.snapshot()["aliases"] == whole.snapshot()["aliases"]
            continue
        break
    assert number >= 9


def test_a_promotion_that_was_not_finished_can_be_overtaken(team: Team) -> None:
    """Its intent says what it meant; whoever comes next moves the alias from where it really is."""
    for data in (b"one", b"two", b"three"):
        team.cleared(data)
    team.promote(1)

    def kill_after_the_move(name: str) -> None:
        if name == "note_alias" or (name == "tag_model" and team.holder() == 2):
            raise Killed

    with pytest.raises(Killed):
        team.promote(2, registry=Interrupted(team.registry, kill_after_the_move))  # type: ignore[arg-type]
    team.promote(3, now=NOW)
    record = team.record()
    assert record is not None
    assert (record.version, record.previous) == (3, 2)
    assert INTENT_TAG + "champion" not in team.tags()


def test_without_the_variable_no_point_kills() -> None:
    script = "from validator.faults import crash_point; crash_point('here'); print('alive')"
    environment = {k: v for k, v in os.environ.items() if k != CRASH_AT} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "alive\n"
    environment[CRASH_AT] = "1"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "", "crash point 1: here\n")
