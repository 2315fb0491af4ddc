"""What became of a job: a closed union, matched exhaustively."""

from dataclasses import dataclass, field
from pathlib import Path

from validator.backends.interface import Environment, ExportFacts, ModelFacts, SurveyFacts, WeightsFacts
from validator.worker.protocol import Job, Refusal
from validator.worker.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    job: Job
    """As it was launched: after a retry its nonce is another than in the plan."""
    first_failure: str | None = None
    """What became of a first attempt, if this is the second and last one; nothing of the first is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reused:
    """Where an outcome is from that no worker of this check produced."""

    check_id: str
    """Of the check whose worker did."""
    created_utc: str
    """When that check began: ISO 8601, ends in Z."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(_Ended):
    """Proven: exit status 0, closing record, nonce, every sample of every pass exactly once."""

    environment: Environment
    spool: Spool | None
    """The frames of a run job, on disk; None for any other job."""
    facts: ModelFacts | None = None
    """What a probe found; None for any other job."""
    survey: SurveyFacts | None = None
    """What a survey found; None for any other job."""
    export: ExportFacts | None = None
    """What became of an export; None for any other job."""
    exported: Path | None = None
    """Where the ONNX file lies if there is one: in the folder of a worker that is gone, and as untrusted as that."""
    weights: WeightsFacts | None = None
    """The initialisers of the ONNX file that was exported or given; None for any other job."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Stage or pass -> wall time, by the worker's own clock."""
    peak_memory_bytes: int = 0
    reused: Reused | None = None
    """The earlier check that proved it, with the nonce that stands in `job`; None: this one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined(_Ended):
    """The worker said itself why it cannot do the job."""

    refusal: Refusal
    """Its message is the worker's own text, cleaned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed(_Ended):
    """The worker ended without proof of success."""

    exit_status: int
    """Negative: ended by that signal. 0: ended well, yet without a closing record, which is suspicious."""
    samples: int
    """Frames' samples that arrived before; none of them is judged."""
    log_tail: str
    """Last lines of its own output, cleaned."""
    is_out_of_memory: bool = False
    """Whether the kernel killed it for want of memory, or it says itself that it had none left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut(_Ended):
    """The worker was killed, with its whole group, at its deadline."""

    limit_s: float
    samples: int
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Violated(_Ended):
    """The worker broke the protocol: wrong nonce, a sample twice, missing or out of range, a forged record."""

    what: str
    """Which rule, cleaned: it may quote the worker."""
    log_tail: str


Outcome = Completed | Declined | Crashed | TimedOut | Violated
