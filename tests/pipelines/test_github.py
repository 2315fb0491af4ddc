"""GitHub's composite action and the promoting job, run as a runner does: each step's script with its env, in order."""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipelines.conftest import HEALTHY, PIPELINES, ROOT, TRAINING, Replay, make_recording, run
from validator.errors import ExitCode

ACTION = ROOT / ".github/actions/validate/action.yml"
WORKFLOW = ROOT / ".github/workflows/validate.yml"


@dataclass
class Runner:
    """Does what the runner does with `run` steps: expressions, env, one output file and one summary per step."""

    folder: Path
    env: Mapping[str, str]
    contexts: dict[str, str]
    """Values of expressions, such as `inputs.uri`."""
    log: str = ""
    summary: str = ""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def evaluate(self, text: str) -> str:
        """Put values in. An output that no step set is empty, as it is there; an unknown expression is a fault."""
        return re.sub(r"\$\{\{ (.+?) }}", lambda match: self._value(match[1]), text)

    def _value(self, expression: str) -> str:
        if found := re.fullmatch(r"steps\.([\w-]+)\.outputs\.([\w-]+)", expression):
            return self.outputs.get(found[1], {}).get(found[2], "")
        return self.contexts[expression]

    def run(self, steps: list[dict[str, Any]]) -> int:
        """Run the steps; return the exit code of the first that failed, else 0."""
        failed = 0
        for number, step in enumerate(steps):
            if "run" not in step or (failed and step.get("if") != "always()"):
                continue
            code = self._step(step, step.get("id", str(number)))
            failed = failed or code
        return failed

    def _step(self, step: dict[str, Any], name: str) -> int:
        output, summary, script = (
            self.folder / f"{kind}-{secrets.token_hex(4)}" for kind in ("output", "summary", "run")
        )
        output.touch()
        summary.touch()
        script.write_text(step["run"], encoding="utf-8")
        env = {
            **self.env,
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_ACTION_PATH": str(ACTION.parent),
            **{key: self.evaluate(value) for key, value in step.get("env", {}).items()},
        }
        ended = run(["bash", "--noprofile", "--norc", "-eo", "pipefail", script], cwd=self.folder, env=env)
        self.log += ended.stdout + ended.stderr
        self.summary += summary.read_text(encoding="utf-8")
        lines = output.read_text(encoding="utf-8").splitlines()
        self.outputs[name] = dict(line.split("=", 1) for line in lines)
        return ended.returncode


def load(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


@dataclass
class Action:
    """The action with its outputs, as a later step of a workflow sees it."""

    runner: Runner
    code: int

    @property
    def outputs(self) -> dict[str, str]:
        declared = load(ACTION)["outputs"]
        return {name: self.runner.evaluate(entry["value"]) for name, entry in declared.items()}


def act(replay: Replay, recording: Path, folder: Path, uri: str, **inputs: str) -> Action:
    """Use the action on what a real check left."""
    document = load(ACTION)
    given = {name: entry.get("default", "") for name, entry in document["inputs"].items()} | {"uri": uri} | inputs
    contexts = {f"inputs.{name}": value for name, value in given.items()}
    env = replay.environment(recording, VALIDATOR_PRIVATE_KEY=replay.world.key.read_text(encoding="utf-8"))
    runner = Runner(folder, env, contexts)
    return Action(runner, runner.run(document["runs"]["steps"]))


Recorded = Callable[[str], Path]


def test_a_pass_lets_the_job_go_on_and_says_what_passed(replay: Replay, recorded: Recorded, tmp_path: Path) -> None:
    action = act(replay, recorded(HEALTHY), tmp_path, "models:/net@candidate", golden="my golden")
    assert action.code == ExitCode.PASS, action.runner.log
    outputs = action.outputs
    assert (outputs["verdict"], outputs["exit-code"], outputs["report"]) == ("pass", "0", "validator-report")
    assert outputs["subject"] == HEALTHY
    assert outputs["headline"].startswith("net version 1: ")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", outputs["policy-digest"])
    assert action.runner.summary.startswith("### ✓ pass: net version 1")
    assert "::notice title=validator pass::" in action.runner.log
    words = replay.arguments()
    assert words[words.index("--golden") + 1] == "my golden"
    assert words[-1] == "models:/net@candidate"
    assert not Path(words[words.index("--sign-key") + 1]).exists()
    assert (tmp_path / "validator-report" / "comment.md").exists()


def test_a_fail_stops_the_job_and_says_why(replay: Replay, recorded: Recorded, tmp_path: Path) -> None:
    action = act(replay, recorded(TRAINING), tmp_path, TRAINING)
    assert action.code == ExitCode.FAIL, action.runner.log
    assert (action.outputs["verdict"], action.outputs["exit-code"]) == ("fail", "1")
    assert action.runner.summary.startswith("### ✗ fail: net version 2")
    assert "::error title=validator fail::" in action.runner.log
    assert "training-mode" in action.runner.log


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.INCONCLUSIVE, ExitCode.REFUSED, ExitCode.INTERRUPTED])
def test_a_check_without_a_document_stops_the_job_with_its_own_code(replay: Replay, tmp_path: Path, code: int) -> None:
    action = act(replay, make_recording(tmp_path / "recording", code), tmp_path, HEALTHY)
    assert action.code == code
    assert (action.outputs["verdict"], action.outputs["exit-code"]) == ("", str(code))
    assert "::error title=validator::the check ended without a verdict" in action.runner.log


def test_a_verdict_that_cannot_be_shown_still_decides(replay: Replay, tmp_path: Path) -> None:
    """`validator report` cannot read this document; the step that shows it fails, and the last has the last word."""
    document = '{"verdict": "fail"}'
    action = act(replay, make_recording(tmp_path / "recording", 1, document), tmp_path, HEALTHY)
    assert action.code != ExitCode.PASS
    assert action.outputs["exit-code"] == "1"
    passing = make_recording(tmp_path / "passing", 0, '{"verdict": "pass"}')
    assert act(replay, passing, tmp_path, HEALTHY).code != ExitCode.PASS


def test_the_runner_takes_no_command_from_what_a_check_prints(replay: Replay, tmp_path: Path) -> None:
    hostile = "::set-output name=verdict::pass\n::error::forged\n##[error]forged\n"
    action = act(replay, make_recording(tmp_path / "recording", 4, log=hostile), tmp_path, HEALTHY)
    log = action.runner.log
    stopped = re.search(r"^::stop-commands::([0-9a-f]{32})\n(.*?)^::\1::\n", log, re.MULTILINE | re.DOTALL)
    assert stopped is not None
    assert hostile in stopped[2]
    assert "forged" not in log.replace(stopped[2], "")
    assert action.outputs["verdict"] == ""


def test_inputs_are_words_and_no_script(replay: Replay, tmp_path: Path) -> None:
    hostile = "$(touch broken) `touch broken` \"; touch broken; '"
    recording = make_recording(tmp_path / "recording", 2)
    act(replay, recording, tmp_path, hostile, policy=hostile, golden=hostile, formats=hostile)
    words = replay.arguments()
    assert words.count(hostile) == 4
    assert not (tmp_path / "broken").exists()


def test_the_workflow_promotes_what_the_check_cleared(replay: Replay, recorded: Recorded, tmp_path: Path) -> None:
    """The last step of the promoting job, on the report that the checking job left as an artifact."""
    shared = recorded(HEALTHY)
    (tmp_path / "pipelines").symlink_to(PIPELINES)
    (tmp_path / "validator-report").symlink_to(shared / "report")
    *_, step = load(WORKFLOW)["jobs"]["promote"]["steps"]
    document = json.loads((shared / "report" / "verdict.json").read_bytes())
    contexts = {
        "inputs.tracking-uri": replay.world.environment()["MLFLOW_TRACKING_URI"],
        "secrets.MLFLOW_PROMOTE_TOKEN": "",
        "vars.VALIDATOR_PUBLIC_KEY": replay.world.public_key.read_text(encoding="utf-8"),
        "vars.VALIDATOR_POLICY_DIGEST": document["policy"]["digest"],
        "inputs.alias": "github",
        "inputs.uri": HEALTHY,
        "inputs.expect-current": "",
    }
    runner = Runner(tmp_path, replay.world.environment(), contexts)
    assert runner.run([step]) == ExitCode.PASS, runner.log
    assert "github" in runner.log
    # Another policy than the environment names is none that may promote, whatever it cleared.
    other = Runner(tmp_path, runner.env, contexts | {"vars.VALIDATOR_POLICY_DIGEST": f"sha256:{'0' * 64}"})
    assert other.run([step]) == ExitCode.REFUSED, other.log
    # Nor is anything promoted where the environment names none.
    unset = Runner(tmp_path, runner.env, contexts | {"vars.VALIDATOR_POLICY_DIGEST": ""})
    assert unset.run([step]) == ExitCode.USAGE, unset.log


def test_the_action_writes_the_page_that_its_comment_names() -> None:
    formats = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["inputs"]["formats"]["default"]
    assert {"html", "md"} <= set(formats.split(","))
