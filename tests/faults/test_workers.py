"""Workers that die or hang, of every kind: what becomes of the job, of the verdict, and of the exit code."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import CPU_ROWS, Situation, decide_on, evidence_of
from tests.worker.jobs import CPU, CUDA, export_job, liar, probe_job, run_job_of, survey_job, weights_job, workers_in
from validator.backends.catalog import CATALOG
from validator.boundary import exit_code_of
from validator.errors import ExitCode
from validator.executors.local import LocalExecutor
from validator.judge import Evidence, Verdict, judge
from validator.worker.launch import Limits
from validator.worker.outcome import Crashed, Declined, Outcome, TimedOut
from validator.worker.protocol import Job

DEEDS = {
    "kill -9": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV)",
    "out of memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); bytearray(1 << 30)",
    "hang": "time.sleep(600)",
}
ENDS: dict[str, tuple[type[Outcome], int | None]] = {
    "kill -9": (Crashed, -9),
    "SIGSEGV": (Crashed, -11),
    "out of memory": (Crashed, 1),
    "hang": (TimedOut, None),
}


def jobs(folder: Path) -> dict[str, Job]:
    return {
        "torch": run_job_of(CPU),
        "onnxruntime": run_job_of(CATALOG["onnxruntime-cpu"]),
        "probe": probe_job(),
        "export": export_job(folder / "model.onnx"),
        "weights": weights_job(),
        "survey": survey_job(),
    }


def end_badly(job: Job, deed: str, scratch: Path) -> Outcome:
    script = f"import os, resource, signal, sys, time; sys.stdin.read(); {DEEDS[deed]}"
    limits = Limits(deadline_s=1 if deed == "hang" else 60, grace_s=0.2)
    with LocalExecutor(scratch=scratch, limits=limits, command=(sys.executable, "-S", "-c", script)) as executor:
        executor.submit(job)
        (outcome,) = executor.outcomes()
    assert not workers_in(scratch)
    return outcome


def evidence_with(kind: str, outcome: Outcome) -> Evidence:
    """The evidence of a pass, but for one job."""
    if kind == "torch":
        return evidence_of(Situation(outcomes={"eager-cpu": outcome}))
    if kind == "onnxruntime":
        return evidence_of(Situation(outcomes={"onnxruntime-cpu": outcome}))
    whole = evidence_of(Situation())
    if kind == "probe":
        return replace(whole, probe=outcome, facts=None)
    if kind == "export":
        return replace(whole, export=outcome, weights=outcome, has_onnx=False)
    return replace(whole, weights=outcome)


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("kind", ["torch", "onnxruntime", "probe", "export", "weights", "survey"])
def test_a_worker_that_ends_badly_is_inconclusive_and_exits_3(kind: str, deed: str, tmp_path: Path) -> None:
    outcome = end_badly(jobs(tmp_path)[kind], deed, tmp_path)
    expected, status = ENDS[deed]
    assert isinstance(outcome, expected), outcome
    if isinstance(outcome, Crashed):
        assert outcome.exit_status == status
    if kind == "survey":
        return  # no part of a check: it makes golden datasets, which are then not made
    policy, _, decision = decide_on(Situation())
    assert decision.verdict is Verdict.PASS
    verdict = judge(policy, evidence_with(kind, outcome)).verdict
    assert verdict is Verdict.INCONCLUSIVE
    assert exit_code_of(verdict) is ExitCode.INCONCLUSIVE


def test_a_cuda_error_twice_is_inconclusive_and_nothing_of_either_attempt_is_judged(tmp_path: Path) -> None:
    limits = Limits(deadline_s=60, grace_s=0.2)
    with LocalExecutor(scratch=tmp_path, limits=limits, command=liar("cuda_error")) as executor:
        executor.submit(run_job_of(CUDA))
        (outcome,) = executor.outcomes()
    assert isinstance(outcome, Declined)
    assert "illegal memory access" in (outcome.first_failure or "")
    assert not list(tmp_path.glob("*/frames"))
    situation = Situation(
        rows=(*CPU_ROWS, "eager-cuda"), required=("eager-cpu", "eager-cuda"), outcomes={"eager-cuda": outcome}
    )
    assert decide_on(situation)[2].verdict is Verdict.INCONCLUSIVE
