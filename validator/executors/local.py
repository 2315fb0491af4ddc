"""Jobs on this machine, each in a process of its own; `schedule` says in which order."""

import dataclasses
import os
import queue
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, assert_never

from validator.disk import FULL
from validator.errors import CouldNotRun
from validator.executors.schedule import Schedule, Seat
from validator.sandbox.choice import UNCONFINED, Sandbox
from validator.sandbox.confinement import Confinement
from validator.worker.launch import COMMAND, JobCancelled, Limits, Worker, start_worker
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, TimedOut, Violated
from validator.worker.protocol import Job, RunJob
from validator.worker.stage import Stage
from validator.worker.warm import WarmSpec

_CUDA_FAULT = re.compile(
    r"CUDA (error|failure|out of memory)|(CUDNN|CUBLAS)_STATUS_|Failed to allocate memory|BFCArena"
)
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
    """What it is called: its row's name, and what it looks for where that has several jobs; else its task."""
    kind: JobEventKind
    samples: int
    """Arrived so far, over all passes; starts anew with a retry."""
    total: int
    """0 where nothing is run."""
    detail: str = ""
    """Why it was retried; how it finished."""


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


_Message = JobEvent | Completed | Declined | Crashed | TimedOut | Violated | _Failed


def _ignore(_event: JobEvent) -> None: ...


class LocalExecutor:
    """Runs jobs, each in a fresh process, and yields exactly one outcome for each.

    A context manager: leaving it, for whatever reason (Ctrl-C as well), kills every worker that is left and joins
    the threads. One thread starts a worker and stays with it, because a worker dies with its thread.
    """

    def __init__(
        self,
        *,
        scratch: Path,
        limits: Limits,
        jobs_per_gpu: int = 4,
        on_event: Callable[[JobEvent], None] = _ignore,
        command: Sequence[str] = COMMAND,
        warm_limit: int | None = None,
        sandbox: Sandbox = UNCONFINED,
        stage: Stage | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            scratch: existing folder, where each worker gets one.
            limits: of each single attempt.
            jobs_per_gpu: how many run jobs share a GPU.
            on_event: called in the consumer's thread, while it waits for the next outcome.
            command: see `start_worker`.
            warm_limit: how many workers may be started before their turn; None: half as many as there are CPUs, or two.
            sandbox: what is put around every worker.
            stage: the folders that jobs' inputs will lie in: a confined worker sees nothing else.
        """
        cpus = len(os.sched_getaffinity(0))
        self._scratch = scratch
        self._limits = limits
        self._command = tuple(command)
        self._sandbox = sandbox
        self._stage = stage
        self._confined: dict[str, Confinement] = {}
        self._on_event = on_event
        self._schedule = Schedule(
            warm_limit=max(2, cpus // 2) if warm_limit is None else warm_limit, jobs_per_gpu=jobs_per_gpu
        )
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._outstanding = 0

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what still runs or waits."""
        self._schedule.cancel()
        for thread in self._threads:
            thread.join()

    @property
    def confined(self) -> Mapping[str, Confinement]:
        """Job id -> what held the worker that was given it; the weakest one, where it had several."""
        return MappingProxyType(self._confined)

    def prepare(self, specs: Iterable[WarmSpec]) -> None:
        """Start workers for jobs that will come, in this order, a few at a time. Only speeds things up."""
        for spec in specs:
            self._open(Seat(spec=spec))

    def dismiss(self, job: Job) -> None:
        """Let go of a worker that was prepared for the likes of a job that need not be done after all."""
        self._schedule.dismiss(WarmSpec.of_job(job))

    def submit(self, job: Job) -> None:
        """Give a job, with a nonce of its own, to a worker that was prepared for its like, or else to a new one."""
        self._outstanding += 1
        if not self._schedule.assign(job):
            self._open(Seat(spec=WarmSpec.of_job(job), job=job))

    def outcomes(self) -> Iterator[Outcome]:
        """Yield outcomes as they come, until no job is outstanding. More may be submitted in between.

        Raises:
            OSError: no worker can be started, or its folder cannot be written.
            CouldNotRun: the disk is full.
        """
        while self._outstanding:
            match self._messages.get():
                case JobEvent() as event:
                    self._on_event(event)
                case _Failed(error=OSError() as error) if error.errno in FULL:
                    # Without a name of a file, it would be told as a standard output that is full.
                    raise CouldNotRun(
                        f"what the workers answer cannot be kept: {(error.strerror or str(error)).lower()}",
                        hint="free some space, or set TMPDIR to a place with more: all outputs go there",
                    ) from error
                case _Failed(error=error):
                    raise error
                case outcome:
                    self._outstanding -= 1
                    yield outcome

    def _open(self, seat: Seat) -> None:
        self._schedule.foresee(seat)
        thread = threading.Thread(target=self._serve, args=(seat,), name=f"worker-{seat.spec.kit}")
        self._threads.append(thread)
        thread.start()

    # --- In a worker's thread -----------------------------------------------------------------------------------

    def _serve(self, seat: Seat) -> None:
        """Start a worker, give it its job, and tell what became of it."""
        try:
            outcome = self._retry_if_cuda_failed(self._attempt(seat))
        except JobCancelled:
            return
        except BaseException as error:  # noqa: BLE001 - nothing is lost: the consumer raises it
            self._messages.put(_Failed(error))
            return
        samples = _total(outcome.job) if isinstance(outcome, Completed) else 0
        detail = type(outcome).__name__.lower()
        self._tell(outcome.job, JobEventKind.FINISHED, samples=samples, detail=detail)
        self._messages.put(outcome)

    def _attempt(self, seat: Seat) -> Outcome:
        self._schedule.wait_to_start(seat)
        with (
            self._start(seat.spec) as worker,
            self._schedule.turn(seat) as job,
        ):
            if not seat.is_alone:
                self._tell(job, JobEventKind.STARTED)
            return self._do(worker, job)

    def _do(self, worker: Worker, job: Job) -> Outcome:
        """Do a job in a worker that waits for it; if it did not live to get it, in another one."""

        def progress(samples: int) -> None:
            self._tell(job, JobEventKind.PROGRESS, samples=samples)

        cancel = self._schedule.cancelled
        if worker.is_there:
            self._note(job, worker)
            return worker.do(job, on_progress=progress, cancel=cancel)
        with self._start(WarmSpec.of_job(job)) as other:
            self._note(job, other)
            return other.do(job, on_progress=progress, cancel=cancel)

    def _start(self, spec: WarmSpec) -> AbstractContextManager[Worker]:
        return start_worker(
            spec,
            scratch=self._scratch,
            limits=self._limits,
            command=self._command,
            sandbox=self._sandbox,
            stage=self._stage,
        )

    def _note(self, job: Job, worker: Worker) -> None:
        """Remember what holds a worker, from before it has seen a byte of the model."""
        held = self._confined.setdefault(job.job_id, worker.confinement)
        if not worker.confinement.level.is_at_least(held.level):
            self._confined[job.job_id] = worker.confinement

    def _retry_if_cuda_failed(self, outcome: Outcome) -> Outcome:
        """Run a job once more, in a fresh process that has the device to itself, if CUDA failed it.

        A CUDA fault can come from what ran on the device before or beside it, and poisons its process. Nothing else
        is retried: a result is never, whatever it is.
        """
        failure = cuda_failure(outcome)
        if failure is None:
            return outcome
        self._tell(outcome.job, JobEventKind.RETRIED, detail=failure)
        job = outcome.job.model_copy(update={"nonce": secrets.token_hex(16)})
        seat = Seat(spec=WarmSpec.of_job(job), job=job, is_alone=True)
        self._schedule.foresee(seat)
        return dataclasses.replace(self._attempt(seat), first_failure=failure)

    def _tell(self, job: Job, kind: JobEventKind, *, samples: int = 0, detail: str = "") -> None:
        event = JobEvent(
            job_id=job.job_id,
            kind=kind,
            samples=samples,
            total=_total(job),
            detail=detail,
        )
        self._messages.put(event)


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


def _total(job: Job) -> int:
    return sum(p.samples for p in job.passes) if isinstance(job, RunJob) else 0
