"""Kubeflow: the compiled file is what its source compiles to, and its commands are run on what a real check left."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.pipelines.conftest import HEALTHY, PIPELINES, TRAINING, Ended, Replay, run
from validator.errors import ExitCode

SOURCE, COMPILED = PIPELINES / "kubeflow.py", PIPELINES / "kubeflow.yaml"


def load() -> dict[str, Any]:
    document = yaml.safe_load(COMPILED.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def test_the_compiled_file_is_what_the_source_compiles_to(tools_python: Path, tmp_path: Path) -> None:
    path = tmp_path / "kubeflow.yaml"
    ended = run([tools_python, SOURCE, path], cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert ended.returncode == 0, ended.stderr
    assert path.read_text(encoding="utf-8") == COMPILED.read_text(encoding="utf-8")


def test_nothing_is_promoted_before_the_check_succeeded_and_no_verdict_is_cached() -> None:
    tasks = load()["root"]["dag"]["tasks"]
    assert tasks["promote"]["dependentTasks"] == ["check"]
    assert tasks["promote"]["inputs"]["artifacts"]["report"]["taskOutputArtifact"]["producerTask"] == "check"
    assert "triggerPolicy" not in tasks["promote"]
    assert [task["cachingOptions"] for task in tasks.values()] == [{}, {}]


def step(replay: Replay, recording: Path, folder: Path, name: str, report: Path, **parameters: str) -> Ended:
    """Run a step's command as the launcher would, with the placeholders filled in."""
    container = load()["deploymentSpec"]["executors"][f"exec-{name}"]["container"]

    def fill(word: str) -> str:
        word = re.sub(r"\{\{\$\.inputs\.parameters\['(\w+)']}}", lambda match: parameters[match[1]], word)
        return re.sub(r"\{\{\$\.(?:in|out)puts\.artifacts\['report']\.path}}", str(report), word)

    words = [fill(word) for word in [*container["command"], *container["args"]]]
    assert not [word for word in words if "{{" in word]
    return run(words, cwd=folder, env=replay.environment(recording))


def test_the_steps_check_and_promote(replay: Replay, recorded: Callable[[str], Path], tmp_path: Path) -> None:
    report = tmp_path / "out put"
    uri = replay.world.environment()["MLFLOW_TRACKING_URI"]
    asked = {"uri": HEALTHY, "tracking_uri": uri, "policy": "a policy.toml", "golden": ""}
    ended = step(replay, recorded(HEALTHY), tmp_path, "check", report, **asked)
    assert ended.returncode == ExitCode.PASS, ended.stderr
    expected = ["check", "--tracking-uri", uri, "--policy", "a policy.toml", "--output", str(report), "--", HEALTHY]
    assert replay.arguments() == expected
    assert json.loads((report / "verdict.json").read_bytes())["verdict"] == "pass"
    digest = json.loads((report / "verdict.json").read_bytes())["policy"]["digest"]
    asked = {"uri": HEALTHY, "alias": "kubeflow", "tracking_uri": uri, "policy_digest": digest}
    asked |= {"public_key": str(replay.world.public_key)}
    ended = step(replay, recorded(HEALTHY), tmp_path, "promote", report, **asked)
    assert ended.returncode == ExitCode.PASS, ended.stderr
    assert "kubeflow of net points to version 1" in ended.stdout


def test_a_step_fails_with_the_programs_exit_code(
    replay: Replay, recorded: Callable[[str], Path], tmp_path: Path
) -> None:
    asked = {"uri": TRAINING, "tracking_uri": "", "policy": "cpu", "golden": "my golden"}
    ended = step(replay, recorded(TRAINING), tmp_path, "check", tmp_path / "out", **asked)
    assert ended.returncode == ExitCode.FAIL, ended.stderr
    assert replay.arguments()[5:7] == ["--golden", "my golden"]
