"""GitLab's jobs, run by gitlab-ci-local with the shell executor: a real check, then the promotion by hand."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.pipelines.conftest import (
    HEALTHY,
    PIPELINES,
    TRAINING,
    Ended,
    Replay,
    World,
    find_program,
    run,
)
from validator.errors import ExitCode

GIT = ["git", "-c", "user.name=tests", "-c", "user.email=tests@example.com"]
CHECK, PROMOTE = "validator-check", "validator-promote"


@pytest.fixture
def project(request: pytest.FixtureRequest, node_modules: Path, tmp_path: Path) -> Callable[..., Ended]:
    """Run jobs in a project that includes the pipeline."""
    find_program(request, "rsync")  # gitlab-ci-local copies the working tree with it
    folder = tmp_path / "project"

    def start(env: Mapping[str, str], world: World, *words: str, **inputs: str) -> Ended:
        if not folder.exists():
            (folder / "pipelines").mkdir(parents=True)
            shutil.copy(PIPELINES / "gitlab-ci.yml", folder / "pipelines")
            shutil.copytree(world.folder / "golden", folder / "golden")
            shutil.copy(world.folder / "policy.toml", folder)
        given = {"image": "validator", "policy": "policy.toml", "golden": "golden"} | inputs
        include = {"include": [{"local": "pipelines/gitlab-ci.yml", "inputs": given}]}
        (folder / ".gitlab-ci.yml").write_text(yaml.safe_dump(include), encoding="utf-8")
        for command in (
            ["init", "--quiet"],
            ["add", "--all"],
            ["commit", "--quiet", "--allow-empty", "--message", "a"],
        ):
            subprocess.run([*GIT, *command], cwd=folder, check=True)
        subprocess.run([*GIT, "remote", "add", "origin", "git@example.com:a/b.git"], cwd=folder, check=False)
        program = node_modules / ".bin" / "gitlab-ci-local"
        # A home of its own: gitlab-ci-local reads variables from there.
        local = {**env, "HOME": str(tmp_path), "CI_COMMIT_REF_PROTECTED": "true"}
        variables = [
            f"--variable={name}={env[name]}" for name in ("SIGN_KEY", "PUBLIC_KEY", "POLICY_DIGEST") if name in env
        ]
        options = ["--force-shell-executor", "--variable=CI_COMMIT_REF_PROTECTED=true", *variables]
        return run([program, *options, *words], cwd=folder, env=local)

    return start


def artifacts(tmp_path: Path) -> Path:
    return tmp_path / "project" / ".gitlab-ci-local" / "artifacts" / CHECK / "validator-report"


def test_a_real_check_passes_and_what_it_cleared_is_promoted(
    project: Callable[..., Ended], world: World, tmp_path: Path
) -> None:
    env = world.environment(SIGN_KEY=str(world.key), PUBLIC_KEY=str(world.public_key))
    ended = project(env, world, CHECK, uri=HEALTHY, alias="gitlab")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads((artifacts(tmp_path) / "verdict.json").read_bytes())
    assert document["verdict"] == "pass"
    env |= {"POLICY_DIGEST": document["policy"]["digest"]}
    ended = project(env, world, "--needs=false", PROMOTE, uri=HEALTHY, alias="gitlab")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "gitlab of net points to version 1" in ended.stdout


def test_a_fail_stops_the_pipeline_and_both_reports_are_there(
    project: Callable[..., Ended], replay: Replay, recorded: Callable[[str], Path], tmp_path: Path
) -> None:
    env = replay.environment(recorded(TRAINING))
    ended = project(env, replay.world, CHECK, uri=TRAINING, alias="gitlab-fail")
    assert ended.returncode != 0
    assert f"exit code: {ExitCode.FAIL:d}" in ended.stdout + ended.stderr or "FAIL" in ended.stdout
    suites = ET.parse(artifacts(tmp_path) / "junit.xml").getroot()  # noqa: S314 - written by this very run
    assert int(suites.get("failures", "0")) >= 1
    issues = json.loads((artifacts(tmp_path) / "gl-code-quality-report.json").read_bytes())
    assert {issue["severity"] for issue in issues} >= {"critical"}
    words = replay.arguments()
    assert words[1:7] == ["--policy", "policy.toml", "--golden", "golden", "--format", "html,gitlab,md"]


def test_without_an_alias_there_is_no_promotion(project: Callable[..., Ended], world: World) -> None:
    listed = project(world.environment(), world, "--list-csv", uri=HEALTHY)
    assert CHECK in listed.stdout
    assert PROMOTE not in listed.stdout
    listed = project(world.environment(), world, "--list-csv", uri=HEALTHY, alias="champion")
    assert PROMOTE in listed.stdout
