"""Jobs on this machine: one lane per device, one job at a time in each.

Two jobs on one device would fight for its memory, and two on the CPU for its cores: the times would mean nothing, and
on CUDA neither would an out-of-memory. So lanes run side by side, and jobs of a lane in the order given.
"""

import dataclasses
import queue
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from validator.worker.launch import COMMAND, Limits, run_job
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, TimedOut, Violated
from validator.worker.protocol import Job, RunJob

_CUDA_FAULT = re.compile(r"CUDA (error|failure)|(CUDNN|CUBLAS)_STATUS_")
"""How torch and ONNX Runtime report a failed call; a missing device or provider reads differently."""


class JobEventKind(StrEnum):
    """What can be told of a job while it runs."""

    STARTED = "started"
    PROGRESS = "progress"
    RETRIED = "retried"
    """The first attempt ended in a CUDA fault; a fresh process begins anew."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job. For people: what counts is in the outcome."""

    job_id: str
    backend: str
    """Its row's name; `probe` for a probe."""
    kind: JobEventKind
    samples: int
    """Arrived so far, over all passes; starts anew with a retry."""
    total: int
    """0 for a probe."""
    detail: str = ""
    """Why it was retried; how it finished."""


@dataclass(frozen=True, slots=True)
class _LaneEnded:
    error: BaseException | None


_Message = JobEvent | Completed | Declined | Crashed | TimedOut | Violated | _LaneEnded


def _ignore(_event: JobEvent) -> None: ...


def run_jobs(
    jobs: Sequence[Job],
    *,
    scratch: Path,
    limits: Limits,
    on_event: Callable[[JobEvent], None] = _ignore,
    command: Sequence[str] = COMMAND,
) -> Iterator[Outcome]:
    """Run jobs, each in a fresh process, and yield exactly one outcome per job as they end.

    Closing the iterator, or an exception in whoever consumes it (Ctrl-C as well), kills the workers that run and
    joins the lanes. An error in a lane stops the others, and is raised here.

    Args:
        jobs: each with a nonce of its own.
        scratch: existing folder, where each job gets one.
        limits: of each single attempt.
        on_event: called in the consumer's thread, while it waits for the next outcome.
        command: see `run_job`.

    Raises:
        OSError: see `run_job`.
    """
    messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
    cancel = threading.Event()
    attempt = _Attempt(scratch=scratch, limits=limits, command=tuple(command), cancel=cancel, tell=messages.put)
    threads = [
        threading.Thread(target=_run_lane, args=(lane, attempt), name=f"lane-{device}")
        for device, lane in _lanes(jobs).items()
    ]
    try:
        for thread in threads:
            thread.start()
        yield from _collect(messages, len(threads), on_event)
    finally:
        cancel.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _collect(
    messages: "queue.SimpleQueue[_Message]", lanes: int, on_event: Callable[[JobEvent], None]
) -> Iterator[Outcome]:
    while lanes:
        match messages.get():
            case JobEvent() as event:
                on_event(event)
            case _LaneEnded(error=error):
                if error is not None:
                    raise error
                lanes -= 1
            case outcome:
                yield outcome


def _lanes(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    lanes: dict[str, list[Job]] = {}
    for job in jobs:
        lanes.setdefault(_device(job), []).append(job)
    return lanes


def _device(job: Job) -> str:
    if not isinstance(job, RunJob) or job.backend.device_type == "cpu":
        return "cpu"
    return f"{job.backend.device_type}:{job.backend.device_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """What all attempts of a run share."""

    scratch: Path
    limits: Limits
    command: tuple[str, ...]
    cancel: threading.Event
    tell: Callable[[_Message], None]

    def run(self, job: Job) -> Outcome:
        return run_job(
            job,
            scratch=self.scratch,
            limits=self.limits,
            command=self.command,
            cancel=self.cancel,
            on_progress=lambda samples: self.tell(_event(job, JobEventKind.PROGRESS, samples=samples)),
        )


def _run_lane(jobs: Sequence[Job], attempt: _Attempt) -> None:
    """Run the jobs of one device. Whatever happens, the last message says that the lane has ended."""
    try:
        for job in jobs:
            attempt.tell(_event(job, JobEventKind.STARTED))
            outcome = _run_with_retry(job, attempt)
            samples = _total(job) if isinstance(outcome, Completed) else 0
            detail = type(outcome).__name__.lower()
            attempt.tell(_event(job, JobEventKind.FINISHED, samples=samples, detail=detail))
            attempt.tell(outcome)
    except BaseException as error:  # noqa: BLE001 - nothing is lost: the consumer raises it
        attempt.tell(_LaneEnded(error))
    else:
        attempt.tell(_LaneEnded(None))


def _run_with_retry(job: Job, attempt: _Attempt) -> Outcome:
    """Run a job, and once more in a fresh process if CUDA failed it.

    A CUDA fault can come from what ran on the device before, and poisons its process. Nothing else is retried: a
    result is never, whatever it is.
    """
    outcome = attempt.run(job)
    failure = cuda_failure(outcome)
    if failure is None:
        return outcome
    attempt.tell(_event(job, JobEventKind.RETRIED, detail=failure))
    again = attempt.run(job.model_copy(update={"nonce": secrets.token_hex(16)}))
    return dataclasses.replace(again, first_failure=failure)


def cuda_failure(outcome: Outcome) -> str | None:
    """Say what failed if it may have been the device, and a fresh process is worth a try; else None."""
    if not isinstance(outcome.job, RunJob) or outcome.job.backend.device_type != "cuda":
        return None
    match outcome:
        case Crashed(exit_status=0):
            return None  # it chose to end without a result
        case Crashed(exit_status=status):
            return f"the worker ended with status {status}"
        case Declined(refusal=refusal) if _CUDA_FAULT.search(refusal.message):
            return refusal.message
        case Declined() | Completed() | TimedOut() | Violated():
            return None
        case _:
            assert_never(outcome)


def _event(job: Job, kind: JobEventKind, *, samples: int = 0, detail: str = "") -> JobEvent:
    return JobEvent(
        job_id=job.job_id,
        backend=job.backend.name if isinstance(job, RunJob) else "probe",
        kind=kind,
        samples=samples,
        total=_total(job),
        detail=detail,
    )


def _total(job: Job) -> int:
    return sum(p.samples for p in job.passes) if isinstance(job, RunJob) else 0
