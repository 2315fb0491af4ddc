"""From a job to its outcome: start a fresh worker, listen with a deadline, believe it only with proof."""

import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from validator.worker.environment import worker_environment
from validator.worker.intake import Intake
from validator.worker.log import LogKeeper, clean_text
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, TimedOut, Violated
from validator.worker.process import WorkerProcess, hide_from_workers
from validator.worker.protocol import Closing, Job, ProtocolError, Refusal, RunJob
from validator.worker.spool import Spool

COMMAND = (sys.executable, "-P", "-m", "validator.worker")
_TICK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a worker may take."""

    deadline_s: float
    """Wall time of the whole job, from start to exit."""
    grace_s: float = 5.0
    """Time between the request to end and the kill."""
    log_bytes: int = 1 << 22
    """How much of its own output is kept on disk; what exceeds it is read and dropped."""
    spool_bytes: int = 1 << 37
    """All of its frames."""


class JobCancelled(Exception):
    """The job was called off while it ran; its worker is gone."""


def _ignore(_samples: int) -> None: ...


def run_job(
    job: Job,
    *,
    scratch: Path,
    limits: Limits,
    on_progress: Callable[[int], None] = _ignore,
    command: Sequence[str] = COMMAND,
    cancel: threading.Event | None = None,
) -> Outcome:
    """Do a job in a fresh process. However this returns or raises, no process of the worker's group is left.

    Args:
        job: with a nonce that was never used before.
        scratch: existing folder; gets a new one per call that holds job.json, worker.log, frames and the
            worker's own folder `home`.
        limits: what the worker may take.
        on_progress: called in this thread with the number of samples that arrived, over all passes.
        command: program and arguments to start instead of our own worker.
        cancel: when set, the worker is killed and JobCancelled raised.

    Raises:
        JobCancelled: `cancel` was set.
        OSError: the scratch folder cannot be written, or no process can be started.
    """
    hide_from_workers()
    folder = Path(tempfile.mkdtemp(prefix=re.sub(r"[^\w.-]+", "-", job.job_id)[:64] + "-", dir=scratch))
    home = folder / "home"
    home.mkdir(mode=0o700)
    document = folder / "job.json"
    document.write_text(job.model_dump_json())
    spool = folder / "frames"
    with spool.open("xb") as frames, (folder / "worker.log").open("xb", buffering=0) as log_file:
        intake = Intake(job, frames, spool_limit_bytes=limits.spool_bytes)
        log = LogKeeper(log_file, limit_bytes=limits.log_bytes)
        worker = WorkerProcess(
            command,
            document=document,
            home=home,
            environment=worker_environment(job, home=home),
            results=_listener(intake, on_progress),
            log=log.feed,
        )
        with worker:
            ended = _attend(worker, intake, limits, cancel or threading.Event())
    outcome = conclude(job, intake, ended, spool=spool, limit_s=limits.deadline_s, log_tail=log.tail())
    if not isinstance(outcome, Completed):
        spool.unlink()  # nothing of it will be judged
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a worker's life ended, as seen from outside."""

    exit_status: int
    is_timed_out: bool = False
    violation: str | None = None


def _listener(intake: Intake, on_progress: Callable[[int], None]) -> Callable[[bytes], None]:
    def listen(data: bytes) -> None:
        before = intake.samples
        intake.feed(data)
        if intake.samples != before:
            on_progress(intake.samples)

    return listen


def _attend(worker: WorkerProcess, intake: Intake, limits: Limits, cancel: threading.Event) -> Ended:
    try:
        if not _listen(worker, intake, limits.deadline_s, cancel):
            _ask_to_end(worker, limits.grace_s)
            return Ended(exit_status=worker.reap(), is_timed_out=True)
        exit_status = worker.reap()
        if exit_status == 0:
            intake.check_end()
    except ProtocolError as error:
        return Ended(exit_status=worker.reap(), violation=clean_text(str(error)))
    return Ended(exit_status=exit_status)


def _listen(worker: WorkerProcess, intake: Intake, limit_s: float, cancel: threading.Event) -> bool:
    """Listen until the worker has ended and all that it wrote was heard; False: that takes too long."""
    deadline = time.monotonic() + limit_s
    has_exited = False
    while (left_s := deadline - time.monotonic()) > 0:
        if cancel.is_set():
            raise JobCancelled(f"called off after {intake.samples} samples")
        # In this order: what it wrote before it exited is in the pipes by the time that the exit is seen.
        if not has_exited and worker.has_exited():
            has_exited = True
            worker.kill()  # its children, who would hold the pipes open
        if not worker.pump(0 if has_exited else min(_TICK_S, left_s)) and has_exited:
            return True
    return False


def _ask_to_end(worker: WorkerProcess, grace_s: float) -> None:
    worker.terminate()
    end = time.monotonic() + grace_s
    while not worker.has_exited() and time.monotonic() < end:
        time.sleep(min(_TICK_S, grace_s))


def conclude(job: Job, intake: Intake, ended: Ended, *, spool: Path, limit_s: float, log_tail: str) -> Outcome:
    """Name what became of a job. The one place that says `Completed`; the intake has checked all but the exit."""
    if ended.violation is not None:
        return Violated(job=job, what=ended.violation, log_tail=log_tail)
    if ended.is_timed_out:
        return TimedOut(job=job, limit_s=limit_s, samples=intake.samples, log_tail=log_tail)
    match intake.last:
        case Refusal() as refusal:
            message = clean_text(refusal.message)
            return Declined(job=job, refusal=refusal.model_copy(update={"message": message}))
        case Closing() as closing if ended.exit_status == 0:
            return Completed(
                job=job,
                environment=closing.environment,
                spool=Spool(path=spool, frames=tuple(intake.frames)) if isinstance(job, RunJob) else None,
                facts=intake.facts,
                seconds=closing.seconds,
                peak_memory_bytes=closing.peak_memory_bytes,
            )
        case Closing() | None:
            return Crashed(job=job, exit_status=ended.exit_status, samples=intake.samples, log_tail=log_tail)
