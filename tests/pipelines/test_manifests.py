"""Jenkins, Argo and Kubernetes: no engine is here, so what they would start is started, on what a real check left."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipelines.conftest import HEALTHY, PIPELINES, TRAINING, Ended, Replay, run
from validator.errors import ExitCode

Recorded = Callable[[str], Path]


def digest_of_policy(recording: Path) -> str:
    return str(json.loads((recording / "report" / "verdict.json").read_bytes())["policy"]["digest"])


def jenkins(replay: Replay, recording: Path, folder: Path, number: int, **variables: str) -> Ended:
    """Run the script of a stage as Jenkins does: by sh, parameters and credentials in the environment."""
    scripts = re.findall(r"^\s*sh '([^']+)'", (PIPELINES / "Jenkinsfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(scripts) == 2
    env = replay.environment(recording, REPORT_FOLDER="validator-report", **variables)
    return run(["sh", "-xe", "-c", scripts[number]], cwd=folder, env=env)


def test_jenkins_checks_and_promotes(replay: Replay, recorded: Recorded, tmp_path: Path) -> None:
    variables = {"URI": HEALTHY, "POLICY": "a policy.toml", "GOLDEN": "", "SIGN_KEY": str(replay.world.key)}
    ended = jenkins(replay, recorded(HEALTHY), tmp_path, 0, **variables)
    assert ended.returncode == ExitCode.PASS, ended.stderr
    given = replay.arguments()
    assert given[given.index("--policy") + 1 :][:3] == ["a policy.toml", "--format", "html,junit,md"]
    assert (tmp_path / "validator-report" / "junit.xml").exists()
    variables = {"URI": HEALTHY, "ALIAS": "jenkins", "PUBLIC_KEY": str(replay.world.public_key)}
    digest = digest_of_policy(recorded(HEALTHY))
    ended = jenkins(replay, recorded(HEALTHY), tmp_path, 1, POLICY_DIGEST=digest, **variables)
    assert ended.returncode == ExitCode.PASS, ended.stderr
    assert "jenkins of net points to version 1" in ended.stdout


def test_jenkins_stops_at_a_fail(replay: Replay, recorded: Recorded, tmp_path: Path) -> None:
    variables = {"URI": TRAINING, "POLICY": "cpu", "GOLDEN": "my golden"}
    ended = jenkins(replay, recorded(TRAINING), tmp_path, 0, **variables)
    assert ended.returncode == ExitCode.FAIL, ended.stderr
    assert replay.arguments()[3:5] == ["--golden", "my golden"]


def start(replay: Replay, recording: Path, folder: Path, container: dict[str, Any], places: dict[str, str]) -> Ended:
    """Start a container's command with its variables, its mounts being folders here."""

    def place(text: str) -> str:
        for mount, path in places.items():
            text = text.replace(mount, path)
        return text

    own = {
        entry["name"]: place(entry["value"]) if "value" in entry else digest_of_policy(recording)
        for entry in container["env"]
    }
    words = [
        re.sub(r"\$\((\w+)\)", lambda match: own[match[1]], place(word))
        for word in [*container["command"], *container["args"]]
    ]
    assert not [word for word in words if "{{" in word]
    own.pop("MLFLOW_TRACKING_URI")  # the registry of the tests is another
    return run(words, cwd=folder, env=replay.environment(recording) | own)


def places(replay: Replay, folder: Path) -> dict[str, str]:
    """Say what lies where the pods mount it."""
    return {
        "/report": str(folder / "report"),
        "/secrets": str(replay.world.folder),
        "/keys": str(replay.world.folder),
        "/policy": str(replay.world.folder),
    }


@pytest.mark.parametrize(("uri", "code"), [(HEALTHY, ExitCode.PASS), (TRAINING, ExitCode.FAIL)])
def test_the_pod_of_the_job_ends_with_the_programs_exit_code(
    replay: Replay, recorded: Recorded, tmp_path: Path, uri: str, code: ExitCode
) -> None:
    job = yaml.safe_load((PIPELINES / "kubernetes-job.yaml").read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    ended = start(replay, recorded(uri), tmp_path, container, places(replay, tmp_path))
    assert ended.returncode == code, ended.stderr
    given = replay.arguments()
    assert given[-1] == "models:/alexnet/3"
    assert "--sign-key" in given
    assert (tmp_path / "report" / "verdict.json").exists()


def test_argos_pods_check_and_promote(replay: Replay, recorded: Recorded, tmp_path: Path) -> None:
    text = (PIPELINES / "argo-workflow.yaml").read_text(encoding="utf-8")
    given = {"uri": HEALTHY, "golden": "my golden", "alias": "argo"}
    filled = re.sub(r"\{\{workflow\.parameters\.(\w+)}}", lambda match: given[match[1]], text)
    templates = {entry["name"]: entry for entry in yaml.safe_load(filled)["spec"]["templates"]}
    tasks = {task["name"]: task.get("depends", "") for task in templates["gate"]["dag"]["tasks"]}
    assert tasks == {"check": "", "approve": "check.Succeeded", "promote": "approve.Succeeded"}
    mounts = places(replay, tmp_path)
    ended = start(replay, recorded(HEALTHY), tmp_path, templates["check"]["container"], mounts)
    assert ended.returncode == ExitCode.PASS, ended.stderr
    assert replay.arguments()[-5:-2] == ["my golden", "--output", mounts["/report"]]
    ended = start(replay, recorded(HEALTHY), tmp_path, templates["promote"]["container"], mounts)
    assert ended.returncode == ExitCode.PASS, ended.stderr
    assert "argo of net points to version 1" in ended.stdout
