"""Who may start, and who may run: the order of the workers of one check.

Two jobs on the CPU would fight for its cores, so they run one at a time, in the order foreseen: the next one's worker
is warm then. A GPU takes several at once. What only looks at a file runs beside them. A second attempt has its device
to itself: whatever ran beside the first one may have been to blame.

A worker may *start* ahead of its turn, to be warm when that comes, as long as no more than a few wait like this. One
whose turn has come never waits for another to start: so nothing can wait for itself.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from validator.worker.launch import JobCancelled
from validator.worker.protocol import Job, RunJob, SurveyJob
from validator.worker.warm import WarmSpec


@dataclass(slots=True, kw_only=True, eq=False)
class Seat:
    """One worker's place in the schedule, from when it is foreseen to when its job is done."""

    spec: WarmSpec
    job: Job | None = None
    """None: not known yet."""
    is_alone: bool = False
    """Nothing else may run on its device."""
    is_started: bool = False
    is_dismissed: bool = False
    """Nobody will give it a job."""

    @property
    def device(self) -> str | None:
        """What its job occupies; None: nothing that others wait for."""
        if isinstance(self.job, SurveyJob):
            return "cpu"
        if not isinstance(self.job, RunJob):
            return None
        row = self.job.backend
        return "cpu" if row.device_type == "cpu" else f"{row.device_type}:{row.device_index}"


class Schedule:
    """Shared by the threads of an executor: each asks for its own seat, and waits."""

    def __init__(self, *, warm_limit: int, jobs_per_gpu: int) -> None:
        self.cancelled = threading.Event()
        self._warm_limit = warm_limit
        self._jobs_per_gpu = jobs_per_gpu
        self._changed = threading.Condition()
        self._foreseen: list[Seat] = []
        """Those that do not run yet, in the order in which they are needed."""
        self._taken: Counter[str] = Counter()
        """Device -> places taken."""

    def foresee(self, seat: Seat) -> None:
        """Add a seat behind all others."""
        with self._changed:
            self._foreseen.append(seat)
            self._changed.notify_all()

    def assign(self, job: Job) -> bool:
        """Give a job to the first seat that was foreseen for its like; False: there is none."""
        spec = WarmSpec.of_job(job)
        with self._changed:
            seat = next((s for s in self._foreseen if s.job is None and s.spec == spec), None)
            if seat is not None:
                seat.job = job
                self._changed.notify_all()
        return seat is not None

    def dismiss(self, spec: WarmSpec) -> None:
        """Send one home of those that were foreseen for a job that will not come, the one that is ready last."""
        with self._changed:
            seat = next((s for s in reversed(self._foreseen) if s.job is None and s.spec == spec), None)
            if seat is not None:
                seat.is_dismissed = True
                self._foreseen.remove(seat)
                self._changed.notify_all()

    def cancel(self) -> None:
        """Send everybody home."""
        with self._changed:
            self.cancelled.set()
            self._changed.notify_all()

    def wait_to_start(self, seat: Seat) -> None:
        """Wait until its worker may start: its turn has come, or it is the next that may wait warm.

        Raises:
            JobCancelled: that will never be.
        """
        with self._changed:
            self._wait(seat, lambda: self._may_run(seat) or self._may_warm(seat))
            seat.is_started = True

    @contextmanager
    def turn(self, seat: Seat) -> Iterator[Job]:
        """Wait for the seat's job and its turn; the device's place is given back on leaving.

        Raises:
            JobCancelled: that will never be.
        """
        with self._changed:
            self._wait(seat, lambda: self._may_run(seat))
            job, device, places = seat.job, seat.device, self._places(seat)
            assert job is not None  # noqa: S101 - for the type checker: without a job nothing may run
            self._foreseen.remove(seat)
            self._take(device, places)
        try:
            yield job
        finally:
            with self._changed:
                self._take(device, -places)

    def _wait(self, seat: Seat, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.cancelled.is_set() or seat.is_dismissed or condition())
        if self.cancelled.is_set() or seat.is_dismissed:
            raise JobCancelled("called off before it ran")

    def _may_warm(self, seat: Seat) -> bool:
        """Whether it is the first that has not started, and not too many wait warm already."""
        waiting = sum(other.is_started for other in self._foreseen)
        first = next(other for other in self._foreseen if not other.is_started)
        return first is seat and waiting < self._warm_limit

    def _may_run(self, seat: Seat) -> bool:
        """Whether it has a job, is the first of those that have one for its device, and finds room there."""
        if seat.job is None:
            return False
        device = seat.device
        if device is None:
            return True
        first = next(other for other in self._foreseen if other.job is not None and other.device == device)
        return first is seat and self._taken[device] + self._places(seat) <= self._capacity(device)

    def _places(self, seat: Seat) -> int:
        """How many places it takes: all of them if it is to be alone."""
        return self._capacity(seat.device) if seat.is_alone else 1

    def _capacity(self, device: str | None) -> int:
        return self._jobs_per_gpu if device is not None and device.startswith("cuda") else 1

    def _take(self, device: str | None, places: int) -> None:
        if device is not None:
            self._taken[device] += places
        self._changed.notify_all()
