"""From a job to its outcome: a fresh worker, heard with a deadline, believed only with proof."""

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from validator.sandbox.bubblewrap import wrap
from validator.sandbox.choice import UNCONFINED, Sandbox
from validator.sandbox.confinement import VARIABLE, Confinement
from validator.sandbox.level import Level
from validator.worker.environment import worker_environment
from validator.worker.intake import Intake
from validator.worker.log import LogKeeper, clean_text
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, TimedOut, Violated
from validator.worker.process import WorkerProcess, count_memory_kills, hide_from_workers
from validator.worker.protocol import OUT_OF_MEMORY, Closing, ExportJob, Job, ProtocolError, Refusal, RunJob
from validator.worker.spool import Spool
from validator.worker.stage import Stage
from validator.worker.warm import WarmSpec

COMMAND = (sys.executable, "-P", "-m", "validator.worker")
_TICK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a worker may take."""

    deadline_s: float
    """Wall time of the whole job, from when the worker is handed it to the worker's exit."""
    grace_s: float = 5.0
    """Time between the request to end and the kill."""
    log_bytes: int = 1 << 22
    """How much of its own output is kept on disk; what exceeds it is read and dropped."""
    spool_bytes: int = 1 << 37
    """All of its frames."""


class JobCancelled(Exception):
    """The job was called off while it ran; its worker is gone."""


def _ignore(_samples: int) -> None: ...


@contextmanager
def start_worker(
    spec: WarmSpec,
    *,
    scratch: Path,
    limits: Limits,
    command: Sequence[str] = COMMAND,
    sandbox: Sandbox = UNCONFINED,
    stage: Stage | None = None,
) -> Iterator["Worker"]:
    """Start a fresh worker that gets ready and waits for its job. Leaving leaves no process of its group.

    To be started, given its job and left in one thread: a worker dies with the thread that started it.

    Args:
        spec: what its job will need.
        scratch: existing folder; gets a new one per call that holds worker.log, frames and the worker's own
            folder `home`.
        limits: what the worker may take.
        command: program and arguments to start instead of our own worker.
        sandbox: what is put around it.
        stage: where its job's inputs will lie; a confined worker sees of it what its kit needs.

    Raises:
        OSError: the scratch folder cannot be written, or no process can be started.
    """
    hide_from_workers()
    folder = Path(tempfile.mkdtemp(prefix=f"{spec.kit}-", dir=scratch))
    home = folder / "home"
    home.mkdir(mode=0o700)
    with (folder / "worker.log").open("xb", buffering=0) as log_file:
        log = LogKeeper(log_file, limit_bytes=limits.log_bytes)
        confinement = sandbox.confine(spec.profile, home=home, inputs=() if stage is None else stage.shown_to(spec.kit))
        environment = worker_environment(spec, home=home) | {VARIABLE: confinement.to_json()}
        outside = wrap(confinement, sandbox.machine) if confinement.level is Level.STRICT else []
        with WorkerProcess(
            [*command, spec.kit], outside=outside, home=home, environment=environment, log=log.feed
        ) as process:
            yield Worker(
                spec=spec,
                confinement=confinement,
                process=process,
                log=log,
                frames=folder / "frames",
                limits=limits,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that waits for its job."""

    spec: WarmSpec
    confinement: Confinement
    """What holds it."""
    process: WorkerProcess
    log: LogKeeper
    frames: Path
    limits: Limits

    @property
    def is_there(self) -> bool:
        """Whether it can still take a job."""
        return not self.process.has_exited()

    def do(
        self, job: Job, *, on_progress: Callable[[int], None] = _ignore, cancel: threading.Event | None = None
    ) -> Outcome:
        """Hand over the one job and attend to it until the worker and its group are gone. The deadline begins now.

        Args:
            job: with a nonce that was never used before.
            on_progress: called in this thread with the number of samples that arrived, over all passes.
            cancel: when set, JobCancelled is raised.

        Raises:
            JobCancelled: `cancel` was set.
            OSError: the spool cannot be written.
            ValueError: the job needs another worker than this.
        """
        if WarmSpec.of_job(job) != self.spec:
            raise ValueError(f"a worker started for {self.spec} cannot do {job.job_id}")
        with self.frames.open("xb") as frames:
            intake = Intake(job, frames, spool_limit_bytes=self.limits.spool_bytes)
            self.process.send(job.model_dump_json().encode(), _listener(intake, on_progress))
            ended = _attend(self.process, intake, self.limits, cancel or threading.Event())
        outcome = conclude(
            job,
            intake,
            ended,
            home=Path(self.confinement.home),
            spool=self.frames,
            limit_s=self.limits.deadline_s,
            log_tail=self.log.tail(),
        )
        if not isinstance(outcome, Completed):
            self.frames.unlink()  # nothing of it will be judged
        return outcome


def run_job(
    job: Job,
    *,
    scratch: Path,
    limits: Limits,
    on_progress: Callable[[int], None] = _ignore,
    command: Sequence[str] = COMMAND,
    cancel: threading.Event | None = None,
    sandbox: Sandbox = UNCONFINED,
    stage: Stage | None = None,
) -> Outcome:
    """Do a job in a fresh process: `start_worker`, then `Worker.do`. However it ends, no process is left."""
    with start_worker(
        WarmSpec.of_job(job), scratch=scratch, limits=limits, command=command, sandbox=sandbox, stage=stage
    ) as worker:
        return worker.do(job, on_progress=on_progress, cancel=cancel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a worker's life ended, as seen from outside."""

    exit_status: int
    is_timed_out: bool = False
    violation: str | None = None
    is_out_of_memory: bool = False


def _listener(intake: Intake, on_progress: Callable[[int], None]) -> Callable[[bytes], None]:
    def listen(data: bytes) -> None:
        before = intake.samples
        intake.feed(data)
        if intake.samples != before:
            on_progress(intake.samples)

    return listen


def _attend(worker: WorkerProcess, intake: Intake, limits: Limits, cancel: threading.Event) -> Ended:
    kills = count_memory_kills()
    try:
        if not _listen(worker, intake, limits.deadline_s, cancel):
            _ask_to_end(worker, limits.grace_s)
            return Ended(exit_status=worker.reap(), is_timed_out=True)
        exit_status = worker.reap()
        if exit_status == 0:
            intake.check_end()
    except ProtocolError as error:
        return Ended(exit_status=worker.reap(), violation=clean_text(str(error)))
    killed = exit_status == -signal.SIGKILL and count_memory_kills() > kills
    return Ended(exit_status=exit_status, is_out_of_memory=killed or exit_status == OUT_OF_MEMORY)


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


def conclude(
    job: Job, intake: Intake, ended: Ended, *, home: Path, spool: Path, limit_s: float, log_tail: str
) -> Outcome:
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
                survey=intake.survey,
                export=intake.export,
                exported=_exported(job, intake, home),
                weights=intake.weights,
                seconds=closing.seconds,
                peak_memory_bytes=closing.peak_memory_bytes,
            )
        case Closing() | None:
            return Crashed(
                job=job,
                exit_status=ended.exit_status,
                samples=intake.samples,
                log_tail=log_tail,
                is_out_of_memory=ended.is_out_of_memory,
            )


def _exported(job: Job, intake: Intake, home: Path) -> Path | None:
    """Return where an export was asked to lie, not where its worker says that it does."""
    has_file = intake.export is not None and intake.export.path is not None
    return home / job.export_path if has_file and isinstance(job, ExportJob) else None
