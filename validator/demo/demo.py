"""Runs the commands of the demo, each printed before it runs, so that a newcomer can repeat them one by one."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from validator.errors import CouldNotRun, ExitCode

SCRIPT = "register_alexnet.py"
GOLDEN_URI = "models:/validator.golden.alexnet@current"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of the demo."""

    why: str
    command: tuple[str, ...]
    """As a user would type it; `validator` and `python` are run with this very interpreter."""
    exit_code: ExitCode = ExitCode.PASS


def steps() -> tuple[Step, ...]:
    """List the commands, in order."""
    check = ("--golden", GOLDEN_URI, "--policy", "cpu")
    return (
        Step(why="register AlexNet as versions 1 to 3; version 2 has a stale ONNX file", command=("python", SCRIPT)),
        Step(
            why="make a golden dataset of the inputs that every backend must agree on",
            command=("validator", "golden", "create", "golden.npz", "golden", "--name", "alexnet"),
        ),
        Step(why="register it", command=("validator", "golden", "push", "golden", "alexnet")),
        Step(
            why="check version 3: the same function on every backend",
            command=("validator", "check", "models:/alexnet/3", *check, "--output", "report-3"),
        ),
        Step(
            why="check version 2: its ONNX file is not the model",
            command=("validator", "check", "models:/alexnet/2", *check, "--output", "report-2"),
            exit_code=ExitCode.FAIL,
        ),
    )


def run_demo(folder: Path, say: Say) -> None:
    """Run the demo in a folder, which is made if it is not there.

    Raises:
        CouldNotRun: the folder is not empty, or a command ended otherwise than it should.
    """
    if folder.exists() and any(folder.iterdir()):
        raise CouldNotRun(f"{folder} is not empty", hint="name another folder with --folder")
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    registry = f"sqlite:///{folder / 'mlflow.db'}"
    shutil.copyfile(Path(__file__).with_name("alexnet.py"), folder / SCRIPT)
    environment = os.environ | {"MLFLOW_TRACKING_URI": registry, "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment["VALIDATOR_NO_CACHE"] = "1"  # the demo leaves nothing outside its folder
    environment.pop("MLFLOW_REGISTRY_URI", None)
    started = time.monotonic()
    say(f"$ cd {shlex.quote(str(folder))}")
    say(f"$ export MLFLOW_TRACKING_URI={shlex.quote(registry)}")
    for step in steps():
        say(f"\n# {step.why}\n$ {shlex.join(step.command)}")
        run_step(step, folder, environment)
        if step.command[:2] == ("validator", "check"):
            say(f"$ echo $?\n{int(step.exit_code)}")
    say(
        f"\nVersion 3 may be promoted, version 2 may not. That took {time.monotonic() - started:.0f} s. Look closer:\n"
        f"  {folder}/report-2/verdict.json\n"
        f"  mlflow ui --backend-store-uri {registry}"
    )


def run_step(step: Step, folder: Path, environment: Mapping[str, str]) -> None:
    """Run one command, its output going where ours goes.

    Raises:
        CouldNotRun: another exit code than the demo promises.
    """
    programs = {"validator": (sys.executable, "-m", "validator"), "python": (sys.executable,)}
    command = (*programs[step.command[0]], *step.command[1:])
    ended = subprocess.run(command, cwd=folder, env=environment, check=False)
    if ended.returncode != step.exit_code:
        raise CouldNotRun(
            f"`{shlex.join(step.command)}` ended with {ended.returncode}, the demo expects {int(step.exit_code)}",
            hint=f"look at what it said above; everything is in {folder}",
        )
