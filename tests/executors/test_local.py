import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.worker.jobs import CPU, CUDA, liar, probe_job, run_job_of, wait_for, workers_in
from validator.executors.local import JobEventKind, run_jobs
from validator.worker.launch import Limits
from validator.worker.outcome import Completed, Crashed, Declined, TimedOut, Violated

GENEROUS = Limits(deadline_s=60, grace_s=1)
SECOND_GPU = CUDA.model_copy(update={"device": "cuda:1"})


def test_every_job_has_exactly_one_outcome_and_the_cpu_keeps_the_order(tmp_path):
    jobs = [run_job_of(job_id=f"job-{n}") for n in range(4)]
    outcomes = list(run_jobs(jobs, scratch=tmp_path, limits=GENEROUS, command=liar("honest")))
    assert [o.job for o in outcomes] == jobs
    assert all(isinstance(o, Completed) for o in outcomes)
    assert not threading_lanes()


def test_no_jobs_have_no_outcomes(tmp_path):
    assert list(run_jobs([], scratch=tmp_path, limits=GENEROUS)) == []


def test_lanes_run_side_by_side_and_jobs_of_a_lane_one_after_another(tmp_path):
    jobs = [run_job_of(row, job_id=f"{row.device}-{n}") for row in (CPU, CUDA, SECOND_GPU) for n in range(2)]
    running, together, most = set(), set(), 0

    def watch(event):
        nonlocal most
        device = event.job_id.rpartition("-")[0]
        if event.kind is JobEventKind.STARTED:
            assert device not in running
            running.add(device)
            most = max(most, len(running))
            together.add(frozenset(running))
        elif event.kind is JobEventKind.FINISHED:
            running.remove(device)

    outcomes = list(run_jobs(jobs, scratch=tmp_path, limits=GENEROUS, on_event=watch, command=liar("slow")))
    assert len(outcomes) == len(jobs)
    assert most == 3, together


def test_events_tell_the_story_in_the_consumers_thread(tmp_path):
    events, threads = [], set()

    def note(event):
        events.append(event)
        threads.add(threading.current_thread())

    list(run_jobs([run_job_of()], scratch=tmp_path, limits=GENEROUS, on_event=note, command=liar("slow")))
    assert threads == {threading.current_thread()}
    assert events[0].kind is JobEventKind.STARTED
    assert {e.kind for e in events[1:-1]} == {JobEventKind.PROGRESS}
    assert events[-1].kind is JobEventKind.FINISHED
    assert (events[-1].samples, events[-1].total, events[-1].detail) == (14, 14, "completed")
    assert {(e.job_id, e.backend) for e in events} == {("eager-cpu-main", "eager-cpu")}


@pytest.mark.parametrize("mode", ["crashes_once", "cuda_error_once"])
def test_a_cuda_fault_gets_one_fresh_process(tmp_path, mode):
    job = run_job_of(CUDA)
    events = []
    (outcome,) = run_jobs([job], scratch=tmp_path, limits=GENEROUS, on_event=events.append, command=liar(mode))
    assert isinstance(outcome, Completed)
    assert outcome.job.nonce != job.nonce
    assert outcome.job == job.model_copy(update={"nonce": outcome.job.nonce})
    assert outcome.first_failure
    assert [e.detail for e in events if e.kind is JobEventKind.RETRIED] == [outcome.first_failure]
    assert len(list(tmp_path.glob("*/frames"))) == 1, "frames of the first attempt are gone"


@pytest.mark.parametrize(("mode", "kind"), [("killed", Crashed), ("cuda_error", Declined)])
def test_a_second_fault_is_final(tmp_path, mode, kind):
    (outcome,) = run_jobs([run_job_of(CUDA)], scratch=tmp_path, limits=GENEROUS, command=liar(mode))
    assert isinstance(outcome, kind)
    assert outcome.first_failure
    assert attempts(tmp_path) == 2


@pytest.mark.parametrize(
    ("row", "mode", "kind"),
    [
        (CUDA, "honest", Completed),
        (CUDA, "ends_without_closing", Crashed),
        (CUDA, "wrong_nonce", Violated),
        (CUDA, "refuses", Declined),
        (CUDA, "hangs", TimedOut),
        (CPU, "killed", Crashed),
        (CPU, "cuda_error", Declined),
    ],
)
def test_nothing_else_is_tried_again(tmp_path, row, mode, kind):
    limits = Limits(deadline_s=1 if mode == "hangs" else 60, grace_s=0.2)
    (outcome,) = run_jobs([run_job_of(row)], scratch=tmp_path, limits=limits, command=liar(mode))
    assert isinstance(outcome, kind)
    assert outcome.first_failure is None
    assert attempts(tmp_path) == 1


def test_a_probe_runs_on_the_cpu_lane(tmp_path):
    (outcome,) = run_jobs([probe_job()], scratch=tmp_path, limits=GENEROUS, command=liar("probes"))
    assert isinstance(outcome, Completed)


def test_closing_the_iterator_kills_what_runs_and_joins_the_lanes(tmp_path):
    jobs = [run_job_of(CPU), run_job_of(CUDA), run_job_of(SECOND_GPU, job_id="second")]
    seen = []

    def stop(event):
        seen.append(event)
        if sum(e.kind is JobEventKind.PROGRESS for e in seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_jobs(jobs, scratch=tmp_path, limits=GENEROUS, on_event=stop, command=liar("hangs")))
    assert not threading_lanes()
    assert not workers_in(tmp_path)


def test_an_abandoned_iterator_leaves_nothing(tmp_path):
    jobs = [run_job_of(CPU, job_id="a"), run_job_of(CPU, job_id="b")]
    outcomes = run_jobs(jobs, scratch=tmp_path, limits=GENEROUS, command=liar("honest"))
    next(outcomes)
    outcomes.close()
    assert not threading_lanes()
    assert not workers_in(tmp_path)


def test_an_error_in_a_lane_is_raised_and_stops_the_others(tmp_path):
    """A full disk, or a program that is not there: the gate could not do its work, and says so."""
    with pytest.raises(FileNotFoundError):
        list(run_jobs([run_job_of()], scratch=tmp_path, limits=GENEROUS, command=("/no/such/program",)))
    with pytest.raises(FileNotFoundError):
        list(run_jobs([run_job_of()], scratch=tmp_path / "absent", limits=GENEROUS, command=liar("hangs")))
    assert not threading_lanes()


GATE = """
import sys, pathlib
from tests.worker.jobs import CUDA, liar, run_job_of
from validator.executors.local import run_jobs
from validator.worker.launch import Limits
jobs = [run_job_of(), run_job_of(CUDA)]
list(run_jobs(jobs, scratch=pathlib.Path(sys.argv[1]), limits=Limits(deadline_s=60), command=liar("hangs")))
"""


def test_ctrl_c_ends_the_gate_and_its_workers(tmp_path):
    gate = subprocess.Popen(
        [sys.executable, "-c", GATE, str(tmp_path)], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE
    )
    wait_for(lambda: len(workers_in(tmp_path)) == 2)
    gate.send_signal(signal.SIGINT)
    _, said = gate.communicate(timeout=60)
    assert gate.returncode == -signal.SIGINT
    assert b"KeyboardInterrupt" in said
    assert not workers_in(tmp_path)


def attempts(scratch):
    return len(list(scratch.glob("*/job.json")))


def threading_lanes():
    return [thread for thread in threading.enumerate() if thread.name.startswith("lane-")]
