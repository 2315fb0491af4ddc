"""Progress for people, on stderr. What counts is in the document; nothing here is evidence.

On a terminal one live line per running job, erased at the end. Elsewhere one line per stage and per finished job, and
a heartbeat, because a CI log that is silent for minutes looks dead. Never a carriage return outside a terminal.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from validator.report.text import clean

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

HEARTBEAT_S = 30.0
LINES_SHOWN = 8
"""Jobs with a live line of their own."""

Clock = Callable[[], float]


class JobEvent(Protocol):
    """What an executor tells of a job. Its `JobEvent` satisfies this."""

    @property
    def job_id(self) -> str:
        """What it is called."""

    @property
    def kind(self) -> str:
        """`started`, `progress`, `retried` or `finished`."""

    @property
    def samples(self) -> int:
        """Arrived so far."""

    @property
    def total(self) -> int:
        """0 where it is not counted."""

    @property
    def detail(self) -> str:
        """Why it was retried, how it finished."""


class Progress(Protocol):
    """Who is told how far a check is. Called from any thread."""

    def stage(self, name: str, message: str) -> None:
        """Tell that a stage of the check is done, and what came of it."""

    def job(self, event: JobEvent) -> None:
        """Tell what happened to a job."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and leave nothing on the screen that moves."""


class SilentProgress:
    """Says nothing: `--quiet`, and tests."""

    def stage(self, name: str, message: str) -> None:
        """Say nothing."""

    def job(self, event: JobEvent) -> None:
        """Say nothing."""

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""


class PlainProgress(SilentProgress):
    """Whole lines: `[ 12.2 s] run      eager-cpu done, 320 samples`."""

    def __init__(self, stream: TextIO, *, clock: Clock = time.monotonic, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._spoke = self._started
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()
        self._running: dict[str, JobEvent] = {}
        self._finished = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def stage(self, name: str, message: str) -> None:
        """Write one line."""
        with self._lock:
            self._say(name, message)

    def job(self, event: JobEvent) -> None:
        """Write one line for a job that was retried or has ended; remember the others for the heartbeat."""
        with self._lock:
            self._running[event.job_id] = event
            if event.kind == "retried":
                self._say("run", f"{event.job_id} again: {event.detail}")
            elif event.kind == "finished":
                del self._running[event.job_id]
                self._finished += 1
                self._say("run", describe_end(event))

    def __enter__(self) -> Self:
        """Start the heartbeat."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the heartbeat."""
        self._ended.set()
        self._thread.join()

    def beat(self) -> None:
        """Say which jobs run, unless something was said a moment ago."""
        with self._lock:
            if self._running and self._clock() - self._spoke >= self._heartbeat_s:
                waiting = ", ".join(describe_state(event) for event in list(self._running.values())[:LINES_SHOWN])
                self._say("run", f"{self._finished} jobs done; waiting for {waiting}")

    def _beat(self) -> None:
        while not self._ended.wait(min(1.0, self._heartbeat_s)):
            self.beat()

    def _say(self, name: str, message: str) -> None:
        self._spoke = self._clock()
        elapsed = self._spoke - self._started
        self._write(f"[{elapsed:6.1f} s] {clean(name):<8} {clean(message, limit=400)}\n")

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            # Nobody reads stderr any more: that must not end a check whose verdict goes to stdout and to disk.
            self._ended.set()


class LiveProgress(SilentProgress):
    """One live line per running job, erased at the end."""

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        from rich.console import Console

        self._console = Console(file=stream, no_color=not color, highlight=False, markup=False, emoji=False)
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._bars = self._make_bars()

    def _make_bars(self) -> "RichProgress":
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        return RichProgress(
            TextColumn("  {task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )

    def stage(self, name: str, message: str) -> None:
        """Write one line above the bars."""
        elapsed = time.monotonic() - self._started
        line = f"[{elapsed:6.1f} s] {clean(name):<8} {clean(message, limit=400)}"
        self._bars.print(line, markup=False, highlight=False, soft_wrap=True)

    def job(self, event: JobEvent) -> None:
        """Move the job's bar."""
        with self._lock:
            if event.job_id not in self._tasks:
                self._tasks[event.job_id] = self._bars.add_task(clean(event.job_id), total=event.total or None)
            task = self._tasks[event.job_id]
            if event.kind == "finished":
                self._bars.remove_task(self._tasks.pop(event.job_id))
                # What is printed next is followed by the bars as they were last drawn.
                self._bars.refresh()
                self.stage("run", describe_end(event))
                return
            self._bars.update(task, completed=event.samples, visible=len(self._tasks) <= LINES_SHOWN)
            if event.kind == "retried":
                self.stage("run", f"{event.job_id} again: {event.detail}")

    def __enter__(self) -> Self:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Erase the bars."""
        self._bars.stop()


def describe_end(event: JobEvent) -> str:
    """Say how a job ended."""
    count = f", {event.samples:,} samples" if event.total else ""
    return f"{event.job_id} {event.detail or 'done'}{count}"


def describe_state(event: JobEvent) -> str:
    """Say how far a job is: `eager-cpu 160 of 320`."""
    return f"{clean(event.job_id)} {event.samples:,} of {event.total:,}" if event.total else clean(event.job_id)


def open_progress(stream: TextIO, *, quiet: bool, is_live: bool, color: bool) -> Progress:
    """Choose how progress is shown."""
    if quiet:
        return SilentProgress()
    return LiveProgress(stream, color=color) if is_live else PlainProgress(stream)
