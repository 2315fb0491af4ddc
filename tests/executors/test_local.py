import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.worker.jobs import CPU, CUDA, export_job, liar, probe_job, run_job_of, wait_for, workers_in
from validator.executors.local import JobEventKind, LocalExecutor
from validator.executors.schedule import Schedule, Seat
from validator.worker.launch import Limits
from validator.worker.outcome import Completed, Crashed, Declined, TimedOut, Violated
from validator.worker.warm import WarmSpec

GENEROUS = Limits(deadline_s=60, grace_s=1)


def run_jobs(jobs, **options):
    """Run jobs to their end, one after another submitted."""
    with LocalExecutor(**options) as executor:
        for job in jobs:
            executor.submit(job)
        yield from executor.outcomes()


SECOND_GPU = CUDA.model_copy(update={"device": "cuda:1"})


def test_every_job_has_exactly_one_outcome_and_the_cpu_keeps_the_order(tmp_path):
    jobs = [run_job_of(job_id=f"job-{n}") for n in range(4)]
    outcomes = list(run_jobs(jobs, scratch=tmp_path, limits=GENEROUS, command=liar("honest")))
    assert [o.job for o in outcomes] == jobs
    assert all(isinstance(o, Completed) for o in outcomes)
    assert not worker_threads()


def test_no_jobs_have_no_outcomes(tmp_path):
    assert list(run_jobs([], scratch=tmp_path, limits=GENEROUS)) == []


@pytest.mark.parametrize("per_gpu", [1, 2])
def test_devices_work_side_by_side_and_each_takes_only_so_many_jobs_at_a_time(tmp_path, per_gpu):
    jobs = [run_job_of(row, job_id=f"{row.device}-{n}") for row in (CPU, CUDA, SECOND_GPU) for n in range(3)]
    options = {"scratch": tmp_path, "limits": GENEROUS, "command": liar("counts_company"), "jobs_per_gpu": per_gpu}
    most = Counter()
    for outcome in run_jobs(jobs, **options):
        assert isinstance(outcome, Completed)
        device = outcome.job.backend.device
        most[device] = max(most[device], int((outcome.spool.path.parent / "home" / "company").read_text()))
    assert most == {"cpu": 1, "cuda": per_gpu, "cuda:1": per_gpu}


def test_a_probe_and_an_export_wait_for_nobody(tmp_path):
    with LocalExecutor(scratch=tmp_path, limits=GENEROUS, command=liar("hangs")) as executor:
        for job in (run_job_of(), probe_job(), export_job(tmp_path / "m.onnx")):
            executor.submit(job)
        wait_for(lambda: len(workers_in(tmp_path)) == 3)


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
    assert {e.job_id for e in events} == {"eager-cpu-main"}


@pytest.mark.parametrize("mode", ["crashes_once", "cuda_error_once", "out_of_memory_once"])
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


def test_a_second_attempt_has_its_device_to_itself(tmp_path):
    jobs = [run_job_of(CUDA, job_id=f"job-{n}") for n in range(3)]
    options = {"scratch": tmp_path, "limits": GENEROUS, "command": liar("wants_the_device_alone"), "jobs_per_gpu": 3}
    outcomes = list(run_jobs(jobs, **options))
    assert all(isinstance(o, Completed) for o in outcomes), outcomes
    assert any(o.first_failure and "out of memory" in o.first_failure for o in outcomes)


def test_jobs_may_be_submitted_between_outcomes_and_after_them(tmp_path):
    with LocalExecutor(scratch=tmp_path, limits=GENEROUS, command=liar("honest")) as executor:
        executor.submit(run_job_of(job_id="first"))
        ended = []
        for outcome in executor.outcomes():
            ended.append(outcome.job.job_id)
            if len(ended) == 1:
                executor.submit(run_job_of(job_id="second"))
        executor.submit(run_job_of(job_id="third"))
        ended += [outcome.job.job_id for outcome in executor.outcomes()]
    assert ended == ["first", "second", "third"]


# --- Warm starts ----------------------------------------------------------------------------------------------

SPEC = WarmSpec.of_job(run_job_of())
OTHER_SPEC = WarmSpec.of_job(run_job_of(threads=7))


def test_a_prepared_worker_does_the_job_of_its_kind(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "canary-in-the-environment")
    row = CUDA.model_copy(update={"environment": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}})
    job = run_job_of(row, threads=3)
    with executor_of(tmp_path, "dumps_environment") as executor:
        executor.prepare([SPEC, WarmSpec.of_job(job)])
        wait_for(lambda: len(workers_in(tmp_path)) == 2)
        executor.submit(job)
        (outcome,) = executor.outcomes()
        assert isinstance(outcome, Completed), outcome
        assert attempts(tmp_path) == 2
    text = (outcome.spool.path.parent / "home" / "environment.json").read_text()
    assert "canary" not in text
    environment = json.loads(text)["env"]
    assert (environment["CUBLAS_WORKSPACE_CONFIG"], environment["OMP_NUM_THREADS"]) == (":4096:8", "3")


def test_a_job_that_nobody_prepared_for_gets_a_worker_of_its_own(tmp_path):
    with executor_of(tmp_path, "honest", warm_limit=1) as executor:
        executor.prepare([OTHER_SPEC])
        wait_for(lambda: workers_in(tmp_path))
        executor.submit(run_job_of())
        (outcome,) = executor.outcomes()
        assert isinstance(outcome, Completed)
        assert attempts(tmp_path) == 2


def test_only_so_many_workers_wait_warm_and_the_next_starts_when_one_has_its_job(tmp_path):
    with executor_of(tmp_path, "hangs", warm_limit=2) as executor:
        executor.prepare([OTHER_SPEC, SPEC, SPEC, SPEC])
        wait_for(lambda: len(workers_in(tmp_path)) == 2)
        time.sleep(0.3)
        assert len(workers_in(tmp_path)) == 2
        executor.submit(run_job_of())
        wait_for(lambda: len(workers_in(tmp_path)) == 3)


def test_a_worker_that_is_not_needed_after_all_makes_room_or_never_starts(tmp_path):
    """The last one of its kind goes, so that the next job finds the one that is ready."""
    job, other = run_job_of(), run_job_of(threads=OTHER_SPEC.threads)
    with executor_of(tmp_path, "honest", warm_limit=2) as executor:
        executor.prepare([SPEC, SPEC, SPEC])
        wait_for(lambda: len(workers_in(tmp_path)) == 2)
        for _ in range(2):
            executor.dismiss(job)
        wait_for(lambda: len(workers_in(tmp_path)) == 1)
        executor.dismiss(other)  # nobody was prepared for its like
        executor.submit(job)
        (outcome,) = executor.outcomes()
        assert isinstance(outcome, Completed)
        assert attempts(tmp_path) == 2


def test_jobs_run_in_the_order_foreseen_in_whatever_order_they_come(tmp_path):
    schedule = Schedule(warm_limit=2, jobs_per_gpu=1)
    for spec in (SPEC, OTHER_SPEC):
        schedule.foresee(Seat(spec=spec))
    first, second = schedule._foreseen
    ran = []

    def take(seat):
        with schedule.turn(seat) as job:
            ran.append(job.job_id)

    assert schedule.assign(run_job_of(threads=7, job_id="needed later"))
    assert schedule.assign(run_job_of(job_id="needed first"))
    threads = [threading.Thread(target=take, args=[seat]) for seat in (second, first)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == ["needed first", "needed later"]


def test_a_worker_that_dies_before_its_job_is_replaced(tmp_path):
    with executor_of(tmp_path, "dies_waiting_once") as executor:
        executor.prepare([SPEC])
        wait_for(lambda: (tmp_path / "attempted").exists() and not workers_in(tmp_path))
        executor.submit(run_job_of())
        (outcome,) = executor.outcomes()
    assert isinstance(outcome, Completed), outcome
    assert outcome.first_failure is None
    assert attempts(tmp_path) == 2


def test_workers_that_all_die_before_their_job_are_a_crash(tmp_path):
    command = (sys.executable, "-c", "raise SystemExit(3)")
    with LocalExecutor(scratch=tmp_path, limits=GENEROUS, command=command) as executor:
        executor.prepare([SPEC])
        wait_for(lambda: attempts(tmp_path) and not workers_in(tmp_path))
        executor.submit(run_job_of())
        (outcome,) = executor.outcomes()
    assert isinstance(outcome, Crashed)
    assert outcome.exit_status == 3


def test_the_deadline_counts_from_when_the_job_is_handed_over(tmp_path):
    limits = Limits(deadline_s=2, grace_s=0.2)
    with LocalExecutor(scratch=tmp_path, limits=limits, command=liar("slow"), warm_limit=1) as executor:
        executor.prepare([SPEC])
        wait_for(lambda: workers_in(tmp_path))
        time.sleep(2.5)
        executor.submit(run_job_of())
        (outcome,) = executor.outcomes()
    assert isinstance(outcome, Completed), outcome


def test_leaving_the_executor_kills_the_workers_that_wait(tmp_path):
    with executor_of(tmp_path, "honest") as executor:
        executor.prepare([SPEC, OTHER_SPEC])
        wait_for(lambda: len(workers_in(tmp_path)) == 2)
    assert not workers_in(tmp_path)
    assert not worker_threads()


def executor_of(scratch, mode, warm_limit=2):
    return LocalExecutor(scratch=scratch, limits=GENEROUS, command=liar(mode), warm_limit=warm_limit)


# --- The end --------------------------------------------------------------------------------------------------


def test_closing_the_iterator_kills_what_runs_and_joins_the_lanes(tmp_path):
    jobs = [run_job_of(CPU), run_job_of(CUDA), run_job_of(SECOND_GPU, job_id="second")]
    seen = []

    def stop(event):
        seen.append(event)
        if sum(e.kind is JobEventKind.PROGRESS for e in seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_jobs(jobs, scratch=tmp_path, limits=GENEROUS, on_event=stop, command=liar("hangs")))
    assert not worker_threads()
    assert not workers_in(tmp_path)


def test_an_abandoned_iterator_leaves_nothing(tmp_path):
    jobs = [run_job_of(CPU, job_id="a"), run_job_of(CPU, job_id="b")]
    outcomes = run_jobs(jobs, scratch=tmp_path, limits=GENEROUS, command=liar("honest"))
    next(outcomes)
    outcomes.close()
    assert not worker_threads()
    assert not workers_in(tmp_path)


def test_an_error_in_a_lane_is_raised_and_stops_the_others(tmp_path):
    """A full disk, or a program that is not there: the gate could not do its work, and says so."""
    with pytest.raises(FileNotFoundError):
        list(run_jobs([run_job_of()], scratch=tmp_path, limits=GENEROUS, command=("/no/such/program",)))
    with pytest.raises(FileNotFoundError):
        list(run_jobs([run_job_of()], scratch=tmp_path / "absent", limits=GENEROUS, command=liar("hangs")))
    assert not worker_threads()


GATE = """
import sys, pathlib
from tests.worker.jobs import CUDA, liar, run_job_of
from validator.executors.local import LocalExecutor
from validator.worker.launch import Limits
from validator.worker.warm import WarmSpec
scratch, limits = pathlib.Path(sys.argv[1]), Limits(deadline_s=60)
with LocalExecutor(scratch=scratch, limits=limits, command=liar("hangs"), warm_limit=2) as executor:
    executor.prepare([WarmSpec.of_job(run_job_of(threads=7))])
    for job in (run_job_of(), run_job_of(CUDA)):
        executor.submit(job)
    list(executor.outcomes())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_whatever_ends_the_gate_ends_its_workers_the_waiting_ones_too(tmp_path, number):
    gate = subprocess.Popen(
        [sys.executable, "-c", GATE, str(tmp_path)], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE
    )
    wait_for(lambda: len(workers_in(tmp_path)) == 3)
    gate.send_signal(number)
    _, said = gate.communicate(timeout=60)
    assert gate.returncode == -number
    assert (b"KeyboardInterrupt" in said) is (number is signal.SIGINT)
    wait_for(lambda: not workers_in(tmp_path))


def attempts(scratch):
    return len(list(scratch.glob("*/home")))


def worker_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("worker-")]
