"""The self-test holds where the confinement does, and notices every way in which one can be broken."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox.conftest import confinement_of, environment
from validator.sandbox import selftest
from validator.sandbox.level import Level, Profile
from validator.sandbox.machine import Machine
from validator.sandbox.selftest import find_escape, prove_held

LEVELS = [Level.STRICT, Level.STANDARD]
PROFILES = [Profile(), Profile(compiles=True)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.title)
def test_a_child_does_not_get_out_of_a_level(machine: Machine, scratch: Path, level: Level, profile: Profile) -> None:
    assert find_escape(confinement_of(level, profile), machine, scratch, environment) is None


def test_a_child_that_nothing_holds_gets_out(scratch: Path, machine: Machine) -> None:
    assert find_escape(confinement_of(Level.NONE), machine, scratch, environment) == (
        "it reached a TCP port of this machine"
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_folder_too_many_is_noticed(machine: Machine, scratch: Path, level: Level) -> None:
    held = confinement_of(level)
    broken = replace(held, program=(*held.program, str(scratch)))
    assert find_escape(broken, machine, scratch, environment) == "it read the folder beside its own"


@pytest.mark.parametrize("level", [Level.STANDARD])
def test_the_users_home_is_noticed(
    machine: Machine, scratch: Path, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = scratch / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    held = confinement_of(level)
    broken = replace(held, program=(*held.program, str(home)))
    assert find_escape(broken, machine, scratch, environment) == "it read the user's home"


@pytest.mark.parametrize("level", [Level.STANDARD])
def test_a_standard_level_without_landlock_is_noticed(machine: Machine, scratch: Path, level: Level) -> None:
    broken = confinement_of(level, has_landlock=False)
    assert find_escape(broken, machine, scratch, environment) == "it read the folder beside its own"


def test_a_bubblewrap_that_wraps_nothing_is_noticed(machine: Machine, scratch: Path) -> None:
    program = scratch / "bwrap"
    program.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nshift\nexec "$@"\n')
    program.chmod(0o755)
    broken = confinement_of(Level.STRICT, has_landlock=False)
    escape = find_escape(broken, replace(machine, bubblewrap=str(program)), scratch, environment)
    assert escape == "it read the folder beside its own"


def test_a_bubblewrap_that_keeps_the_network_is_noticed_where_the_filter_lets_it(
    machine: Machine, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would have to fail: the namespace by itself is put to the test with a filter that does not load."""
    whole = selftest.wrap

    def leaky(confinement, machine):
        return [word if word != "--unshare-all" else "--unshare-pid" for word in whole(confinement, machine)]

    monkeypatch.setattr(selftest, "wrap", leaky)
    monkeypatch.setattr(selftest, "_CANARY", (*selftest._CANARY[:2], "-c", UNFILTERED))
    escape = find_escape(confinement_of(Level.STRICT, has_landlock=False), machine, scratch, environment)
    assert escape == "it reached a TCP port of this machine"


def test_without_the_filter_the_namespace_still_holds_tcp(
    machine: Machine, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "_CANARY", (*selftest._CANARY[:2], "-c", UNFILTERED))
    escape = find_escape(confinement_of(Level.STRICT, has_landlock=False), machine, scratch, environment)
    assert escape == "it sent to a UDP port of this machine"  # of its own network: it cannot tell, so it does not count


UNFILTERED = """
from validator.sandbox import canary, enter
enter.refuse_calls = lambda confinement: None
canary.main()
"""


def test_a_child_that_dies_or_lies_holds_nothing(
    machine: Machine, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script, said in (
        ("raise SystemExit(3)", "it did not start"),
        ("print('{}')", "it reached a TCP port"),
        ("print('[]')", "it did not start"),
        ("import os; os._exit(0)", "it did not start"),
    ):
        monkeypatch.setattr(selftest, "_CANARY", (*selftest._CANARY[:1], "-c", script))
        escape = find_escape(confinement_of(Level.STRICT), machine, scratch, environment)
        assert escape is not None
        assert escape.startswith(said), script


def test_what_was_held_is_tried_once_and_what_was_not_is_tried_again(
    machine: Machine, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Level] = []
    answers = iter(["it read the folder beside its own", None])

    def told(confinement, *_others):
        calls.append(confinement.level)
        return next(answers)

    monkeypatch.setattr(selftest, "find_escape", told)
    monkeypatch.setattr(selftest, "_HELD", set())
    found = [prove_held(confinement_of(Level.STRICT), machine, scratch, environment) for _ in range(4)]
    assert found == ["it read the folder beside its own", None, None, None]
    assert len(calls) == 2


def test_nothing_is_left_in_the_users_home(machine: Machine, scratch: Path) -> None:
    before = {entry.name for entry in os.scandir(Path.home())}
    find_escape(confinement_of(Level.STRICT), machine, scratch, environment)
    left = {entry.name for entry in os.scandir(Path.home()) if "canary" in entry.name or "written" in entry.name}
    assert left <= before
    assert all(stat.S_ISDIR(path.lstat().st_mode) for path in scratch.iterdir())


def test_a_canary_that_a_killed_process_left_in_the_home_is_swept(
    machine: Machine, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = scratch / "user"
    left = home / ".validator-canary-killed"
    left.mkdir(parents=True)
    (left / "canary").write_text("secret")
    monkeypatch.setenv("HOME", str(home))
    find_escape(confinement_of(Level.NONE), machine, scratch, environment)
    assert not list(home.glob(".validator-canary-*"))
