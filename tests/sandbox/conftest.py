"""Real children, held at each level that this machine has. `--require-sandbox` turns what it lacks into a failure."""

import sys
from pathlib import Path

import pytest

import validator
from validator.sandbox.confinement import Confinement
from validator.sandbox.level import PLAIN, Level, Profile
from validator.sandbox.machine import Machine, look_at_machine
from validator.sandbox.paths import interpreter_paths
from validator.worker.environment import import_roots, worker_environment
from validator.worker.warm import Kit, WarmSpec

PROGRAM = interpreter_paths(tuple(import_roots()), str(Path(validator.__file__).parent))


def environment(home: Path) -> dict[str, str]:
    return worker_environment(WarmSpec(kit=Kit.PROBE, threads=1), home=home)


def confinement_of(level: Level, profile: Profile = PLAIN, *, home: Path = Path("/nowhere"), **other) -> Confinement:
    has_landlock = level is not Level.NONE and look_at_machine().has_landlock(profile)
    fields = {"program": PROGRAM, "has_landlock": has_landlock} | other
    return Confinement(level=level, profile=profile, home=str(home), **fields)


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Machine:
    """This machine, if it has what the test's level needs."""
    found = look_at_machine()
    wanted = request.node.callspec.params.get("level", Level.STRICT) if hasattr(request.node, "callspec") else None
    for level in (Level.STRICT,) if wanted is None else (wanted,):
        if (lack := found.missing(level, PLAIN)) is not None:
            pytest.skip(f"{level}: {lack}")
    return found


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    assert sys.platform == "linux"
    return tmp_path
