"""What became of a job: a closed union, matched exhaustively."""

from dataclasses import dataclass, field

from validator.backends.interface import Environment, ModelFacts
from validator.worker.protocol import Job, Refusal
from validator.worker.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Proven: exit status 0, closing record, nonce, every sample of every pass exactly once."""

    job: Job
    environment: Environment
    spool: Spool | None
    """The frames of a run job, on disk; None for a probe."""
    facts: ModelFacts | None = None
    """What a probe found."""
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """The worker said itself why it cannot do the job."""

    job: Job
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The worker ended without proof of success."""

    job: Job
    exit_status: int
    """Negative: ended by that signal. 0: ended well and yet without a closing record, which is suspicious."""
    samples: int
    """Frames' samples that arrived before; none of them is judged."""
    log_tail: str
    """Last lines of its own output, cleaned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The worker was killed, with its whole group, at its deadline."""

    job: Job
    limit_s: float
    samples: int
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Violated:
    """The worker broke the protocol: wrong nonce, a sample twice, missing or out of range, a forged record."""

    job: Job
    what: str
    log_tail: str


Outcome = Completed | Declined | Crashed | TimedOut | Violated
