"""Workers, held: what they see, what they can do, what is left of them."""

import json
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import PROGRAM
from tests.worker.jobs import liar, run_job_of, wait_for
from validator.judge.outcomes import judge_outcome
from validator.sandbox.choice import Reached, Sandbox
from validator.sandbox.confinement import ResourceLimits
from validator.sandbox.level import PLAIN, Level, Profile, Request
from validator.sandbox.machine import Machine
from validator.worker.launch import Limits, run_job
from validator.worker.outcome import Completed, Crashed
from validator.worker.stage import Stage

LIMITS = Limits(deadline_s=120, grace_s=1)
LEVELS = [Level.STRICT, Level.STANDARD]
TESTS = Path(__file__).parents[1]


def sandbox_of(machine: Machine, level: Level, limits: ResourceLimits = ResourceLimits()) -> Sandbox:  # noqa: B008
    return Sandbox(
        requested=Request.AUTO,
        machine=machine,
        program=PROGRAM,
        reached={PLAIN: Reached(level=level), Profile(gpu=True): Reached(level=level)},
        limits=limits,
    )


SPY = """
import json, os, sys
from pathlib import Path
from validator.sandbox.enter import enter, take_confinement

def readable(path):
    try:
        return os.listdir(path) if os.path.isdir(path) else open(path).read()
    except OSError:
        return None

held = take_confinement()
enter(held)
scratch, out = Path(sys.argv[1]), Path(held.home) / "told.json"
told = {
    "subject": readable(scratch / "subject" / "weights"),
    "onnx": readable(scratch / "onnx" / "model.onnx"),
    "golden": readable(scratch / "golden" / "manifest.json"),
    "scratch": readable(scratch),
    "user": readable(os.environ.get("SPIED", "/root/.bashrc")),
    "environment": sorted(os.environ),
    "processes": [name for name in (readable("/proc") or []) if name.isdigit()],
    "uid": os.getuid(),
}
for name in ("subject", "onnx", "golden"):
    try:
        (scratch / name / "planted").write_text("x")
        told[f"wrote {name}"] = True
    except OSError:
        told[f"wrote {name}"] = False
out.write_text(json.dumps(told))
"""


def spy(tmp_path: Path, machine: Machine, level: Level, kit_job) -> dict[str, object]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    stage = Stage.make(scratch)
    (stage.subject / "weights").write_text("weights")
    (stage.onnx / "model.onnx").write_text("onnx")
    (stage.golden / "manifest.json").write_text("golden")
    outcome = run_job(
        kit_job,
        scratch=scratch,
        limits=LIMITS,
        command=(sys.executable, "-P", "-c", SPY, str(scratch)),
        sandbox=sandbox_of(machine, level),
        stage=stage,
    )
    told = list(scratch.glob("*/home/told.json"))
    assert told, outcome
    return json.loads(told[0].read_text())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_a_worker_sees_its_own_inputs_and_nothing_else(
    tmp_path: Path, machine: Machine, level: Level, runtime: str
) -> None:
    job = run_job_of()
    if runtime == "onnxruntime":
        from validator.backends.catalog import Runtime

        job = run_job_of(job.backend.model_copy(update={"runtime": Runtime.ONNXRUNTIME}))
    told = spy(tmp_path, machine, level, job)
    assert told["golden"] == "golden"
    assert (told["subject"], told["onnx"]) == (("weights", None) if runtime == "torch" else (None, "onnx"))
    assert told["user"] is None
    assert not any(told[f"wrote {name}"] for name in ("subject", "onnx", "golden"))
    assert "VALIDATOR_CONFINEMENT" not in told["environment"]
    if level is Level.STRICT:
        assert told["uid"] == 65534
        assert len(told["processes"]) == 2 or told["processes"] == []
        assert f"{job.backend.runtime}-" not in str(told["scratch"]) or len(told["scratch"]) <= 3
    else:
        assert told["scratch"] is None


@pytest.mark.parametrize("mode", ["honest", "leaves_a_runaway"])
def test_of_a_namespace_nothing_is_left(tmp_path: Path, machine: Machine, mode: str) -> None:
    """Not even a process that has left its group and its session."""
    sandbox = sandbox_of(machine, Level.STRICT)
    sandbox = Sandbox(
        requested=sandbox.requested,
        machine=machine,
        program=(*PROGRAM, str(TESTS)),
        reached=sandbox.reached,
    )
    outcome = run_job(
        run_job_of(), scratch=tmp_path, limits=LIMITS, command=liar(mode), sandbox=sandbox, stage=Stage.make(tmp_path)
    )
    assert isinstance(outcome, Completed), outcome
    wait_for(lambda: not processes_that_mention(str(tmp_path)))


def processes_that_mention(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("mode", "status"), [("segfaults", -11), ("killed", -9)])
def test_how_a_held_worker_ended_is_told_as_of_any_other(
    tmp_path: Path, machine: Machine, mode: str, status: int
) -> None:
    sandbox = Sandbox(
        requested=Request.AUTO,
        machine=machine,
        program=(*PROGRAM, str(TESTS)),
        reached={PLAIN: Reached(level=Level.STRICT)},
    )
    outcome = run_job(
        run_job_of(), scratch=tmp_path, limits=LIMITS, command=liar(mode), sandbox=sandbox, stage=Stage.make(tmp_path)
    )
    assert isinstance(outcome, Crashed)
    assert outcome.exit_status == status


STARVED = """
from validator.sandbox import enter
from validator.worker import __main__ as worker
from validator.worker.warm import Kit
import os, sys

def starve(_kit):
    bytearray(3 << 30)

worker.warm_up = starve
worker.leave(worker.main(Kit.TORCH, int(sys.argv[2]), int(sys.argv[3])))
"""


def test_a_worker_whose_memory_ends_says_so(tmp_path: Path, machine: Machine) -> None:
    outcome = run_job(
        run_job_of(),
        scratch=tmp_path,
        limits=LIMITS,
        command=(sys.executable, "-P", "-c", STARVED),
        sandbox=sandbox_of(machine, Level.STRICT, ResourceLimits(memory_bytes=1 << 30)),
        stage=Stage.make(tmp_path),
    )
    assert isinstance(outcome, Crashed)
    assert outcome.is_out_of_memory
    finding = judge_outcome(outcome, backend="eager-cpu", what="eager-cpu")
    assert "ran out of memory" in finding.message
    assert "sandbox.memory_bytes" in (finding.hint or "")


GREEDY = """
from validator.sandbox.enter import enter, take_confinement
enter(take_confinement())
try:
    block = bytearray(3 << 30)
except MemoryError:
    print("refused")
else:
    print("granted")
"""


@pytest.mark.parametrize("level", [*LEVELS, Level.NONE])
def test_memory_is_bounded_at_every_level(tmp_path: Path, machine: Machine, level: Level) -> None:
    outcome = run_job(
        run_job_of(),
        scratch=tmp_path,
        limits=LIMITS,
        command=(sys.executable, "-P", "-c", GREEDY),
        sandbox=sandbox_of(machine, level, ResourceLimits(memory_bytes=1 << 30)),
        stage=Stage.make(tmp_path),
    )
    assert isinstance(outcome, Crashed)
    assert outcome.log_tail == "refused"
