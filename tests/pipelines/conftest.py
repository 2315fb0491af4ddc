"""A small real world for pipelines, real checks of it that are made once, and the tools that lint and run them.

A tool that is missing is a skip with its reason, or a failure under `--require-tools`, which CI passes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from tests.conftest import Share

ROOT = Path(__file__).parents[2]
PIPELINES = ROOT / "pipelines"
BIN = Path(sys.executable).parent
TOOLS = Path(os.environ.get("VALIDATOR_TOOLS", ROOT / ".tools"))

Ended = subprocess.CompletedProcess[str]


def run(
    words: list[str | Path], *, cwd: Path, env: Mapping[str, str], timeout: float = 400
) -> subprocess.CompletedProcess[str]:
    """Run a command and return how it ended."""
    return subprocess.run(
        words, cwd=cwd, env=dict(env), check=False, capture_output=True, text=True, timeout=timeout,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


# --- Tools --------------------------------------------------------------------------------------------------------


def lack(request: pytest.FixtureRequest, what: str) -> NoReturn:
    """Skip, or fail where tools are required."""
    reason = f"{what} is not there: ./dev tools installs what the tests of pipelines need"
    if request.config.getoption("--require-tools"):
        pytest.fail(reason)
    pytest.skip(reason)


def find_program(request: pytest.FixtureRequest, name: str) -> Path:
    """Find a program beside Python or on PATH."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    return Path(found) if found else lack(request, name)


@pytest.fixture(scope="session")
def node_modules(request: pytest.FixtureRequest) -> Path:
    find_program(request, "node")
    folder = TOOLS / "node_modules"
    return folder if folder.is_dir() else lack(request, str(folder))


@pytest.fixture(scope="session")
def tools_python(request: pytest.FixtureRequest) -> Path:
    """The Python that has kfp and hera."""
    path = TOOLS / "python" / "bin" / "python"
    return path if path.exists() else lack(request, str(path))


# --- The world ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """What `world.py` makes, with a golden dataset."""

    folder: Path

    @property
    def key(self) -> Path:
        return self.folder / "gate.key"

    @property
    def public_key(self) -> Path:
        return self.folder / "gate.key.pub"

    def environment(self, **more: str) -> dict[str, str]:
        """What a CI would set: the registry, and the recipes and the program on PATH, as in the image."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "VALIDATOR_", "GITHUB_", "CI"))}
        return {
            **kept,
            "PATH": f"{PIPELINES}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder / 'mlflow.db'}",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "VALIDATOR_NO_CACHE": "1",
            **more,
        }

    def options(self) -> list[str]:
        return ["--policy", str(self.folder / "policy.toml"), "--golden", str(self.folder / "golden")]


@pytest.fixture(scope="session")
def world(share: Share, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The registry, made once in a run. Artifacts have absolute places, so `share` moves its name only."""

    def make(path: Path) -> None:
        made = World(tmp_path_factory.mktemp("world"))
        for words in (
            [sys.executable, Path(__file__).with_name("world.py"), made.folder],
            [BIN / "validator", "golden", "create", "samples.npz", "golden", "--name", "net"],
        ):
            ended = run(words, cwd=made.folder, env=made.environment())
            assert ended.returncode == 0, ended.stderr
        path.write_text(str(made.folder), encoding="utf-8")

    return World(Path(share("pipelines-world", make).read_text(encoding="utf-8")))


# --- Real checks --------------------------------------------------------------------------------------------------

FORMATS = "github,gitlab,md"
HEALTHY, TRAINING, PICKLE = "models:/net/1", "models:/net/2", "models:/net/3"


@pytest.fixture(scope="session")
def recorded(share: Share, world: World) -> Callable[[str], Path]:
    """Return the folder of a real check of a version by check.sh, made once; `code` and `log` lie in it."""

    def record(uri: str) -> Path:
        def make(folder: Path) -> None:
            folder.mkdir()
            ended = run(
                [PIPELINES / "check.sh", uri, *world.options(), "--format", FORMATS],
                cwd=world.folder,
                env=world.environment(REPORT_FOLDER=str(folder / "report"), SIGN_KEY=str(world.key)),
            )
            (folder / "code").write_text(str(ended.returncode), encoding="utf-8")
            (folder / "log").write_text(ended.stdout + ended.stderr, encoding="utf-8")

        return share(f"pipelines-{uri.rpartition('/')[2]}", make)

    return record


# --- A stand-in ---------------------------------------------------------------------------------------------------

REPLAY = """#!/bin/sh
# `check` gives the report of a real check again; everything else is the program itself.
[ "$1" = check ] || exec "$REPLAY_PROGRAM" "$@"
printf '%s\\n' "$@" > "$REPLAY_ARGUMENTS"
while [ $# -gt 0 ]; do
  if [ "$1" = --output ]; then output=$2; fi
  shift
done
if [ -d "$REPLAY_FOLDER/report" ]; then mkdir -p "$output" && cp -R "$REPLAY_FOLDER/report/." "$output"; fi
cat "$REPLAY_FOLDER/log"
exit "$(cat "$REPLAY_FOLDER/code")"
"""


@dataclass(frozen=True, slots=True)
class Replay:
    """Puts the stand-in on PATH, before the program."""

    world: World
    folder: Path
    """Where the stand-in lies, and what it was called with."""

    def environment(self, recording: Path, **more: str) -> dict[str, str]:
        base = self.world.environment(
            REPLAY_FOLDER=str(recording),
            REPLAY_PROGRAM=str(BIN / "validator"),
            REPLAY_ARGUMENTS=str(self.folder / "arguments"),
            **more,
        )
        return base | {"PATH": f"{self.folder}{os.pathsep}{base['PATH']}"}

    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def replay(world: World, tmp_path: Path) -> Replay:
    folder = tmp_path / "stand-in"
    folder.mkdir()
    program = folder / "validator"
    program.write_text(REPLAY, encoding="utf-8")
    program.chmod(0o755)
    return Replay(world, folder)


def make_recording(folder: Path, code: int, document: str | None = None, log: str = "") -> Path:
    """Write what the stand-in gives again, without a check."""
    folder.mkdir(parents=True)
    (folder / "code").write_text(str(code), encoding="utf-8")
    (folder / "log").write_text(log, encoding="utf-8")
    if document is not None:
        (folder / "report").mkdir()
        (folder / "report" / "verdict.json").write_text(document, encoding="utf-8")
    return folder
