"""What is said about a model, and what it rests on. Plain data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from validator.backends.catalog import BASELINE, REFERENCE, Backend
from validator.backends.interface import ModelFacts
from validator.compare import Comparison, OutputVariety
from validator.golden.format import Stratum
from validator.policy import Waiver
from validator.worker.outcome import Completed, Outcome

EXACT_KINDS = frozenset({"integer", "bool"})
"""Kinds of output that must be equal, element by element."""


class Verdict(StrEnum):
    """What the gate says."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    REFUSED = "refused"


class Status(StrEnum):
    """What one finding says. Three marks, never mixed, and a fourth for what must not be touched at all.

    `waived` is exceeded, and does not block because somebody answers for it until a date.
    """

    WITHIN = "within"
    WAIVED = "waived"
    EXCEEDED = "exceeded"
    NOT_MEASURED = "not measured"
    REFUSED = "refused"


class Reference(StrEnum):
    """What errors are measured against, and over what."""

    FP64 = "fp64"
    """The same function in fp64; the noise floor is the baseline's own error."""
    PERTURBATION = "perturbation"
    """The baseline; the noise floor is how far it moves when inputs and parameters are moved by one ulp."""


class Check(StrEnum):
    """What was looked at. The words are an interface: stable, documented, the same in every report."""

    TRAINING_MODE = "training-mode"
    STATE = "state"
    EXPORT = "export"
    WEIGHTS = "weights"
    WORKER = "worker"
    IDENTITY = "identity"
    COVERAGE = "coverage"
    CONTRACT = "contract"
    NON_FINITE = "non-finite"
    EXACT = "exact"
    ERROR_RATIO = "error-ratio"
    DECISIONS = "decisions"
    FLIP_RATE = "flip-rate"
    ACCURACY = "accuracy"
    REPEATABILITY = "repeatability"
    BATCH = "batch-invariance"
    EVIDENCE = "evidence"
    BUDGET = "budget"
    WAIVER = "waiver"
    POWER = "power"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at, and how it stands."""

    check: Check
    status: Status
    message: str
    """What and how much, for people; lower case, no full stop."""
    backend: str | None = None
    output: str | None = None
    metric: str | None = None
    measured: float | None = None
    limit: float | None = None
    sample: int | None = None
    """The worst sample, or the first one where it shows."""
    hint: str | None = None
    waiver: Waiver | None = None
    """Who answers for a finding, and until when; of one about a waiver, that waiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """Something that a reader should know and that changes no verdict."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRun:
    """What a second process made of some of the samples."""

    outcome: Outcome
    comparison: Comparison | None
    """With the first process; None: one of the two is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEvidence:
    """What is known about one planned row."""

    row: Backend
    outcome: Outcome | None
    """None: never ran."""
    main: Comparison | None = None
    """Against the reference, over the whole golden dataset."""
    repeat: Comparison | None = None
    """Its first run against its second, in the same process."""
    fresh: FreshRun | None = None
    """Its first run against one in a fresh process; None: there was none."""
    batches: tuple[tuple[int, Comparison], ...] = ()
    """Other batch sizes against its own main run."""
    perturbed: Outcome | None = None
    """Of the baseline, where fp64 could not run: the job that moved inputs and parameters by one ulp. If that and the
    baseline ended well, `main` is how far the outputs moved, and every other row is compared with the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The negative control: an output moved to just over its budget, measured and judged like any other."""

    backend: str
    output: str
    planted: str
    """What was done to it, for people."""
    moved_to: float
    """Error ratio that was planted; 1, the smallest step, for outputs that must be equal."""
    limit: float
    caught: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a verdict rests on."""

    samples: int
    """Of the golden dataset."""
    golden_digest: str
    weights_digest: str
    facts: ModelFacts | None
    probe: Outcome | None
    export: Outcome | None = None
    """None: there was an ONNX file, none was needed, or the export was never tried."""
    weights: Outcome | None = None
    """Of the job that compared the ONNX file's initialisers with the program: the export's, where the gate made it."""
    onnx_required: bool
    has_onnx: bool
    backends: tuple[BackendEvidence, ...]
    variety: Mapping[str, OutputVariety] = field(default_factory=dict)
    strata: tuple[Stratum, ...] = ()
    """Why each golden sample is there; empty: all are representative."""
    labels: tuple[int, ...] | None = None
    """Right class of each golden sample; None: not known."""
    labelled: str | None = None
    """Output that the golden dataset declares the labels to be about."""
    strange: tuple[str, ...] = ()
    """Files of the model of which nobody can say what they are."""
    control: Control | None = None

    @property
    def reference(self) -> Reference:
        """What the rows were compared with."""
        return find_reference(self.backends)[0]

    def find(self, name: str) -> BackendEvidence | None:
        """Return what is known about a row; None where the check has no such row."""
        return next((b for b in self.backends if b.row.name == name), None)


def find_reference(backends: Iterable[BackendEvidence]) -> tuple[Reference, Outcome | None]:
    """Return what rows were compared with, and what became of the run that did it; None where there is no such row."""
    found = {b.row.name: b for b in backends}
    baseline, reference = found.get(BASELINE), found.get(REFERENCE)
    if baseline is not None and baseline.main is not None and isinstance(baseline.perturbed, Completed):
        return Reference.PERTURBATION, baseline.outcome
    return Reference.FP64, reference.outcome if reference is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict and what it rests on."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    warnings: tuple[Caution, ...] = ()


def not_measured(check: Check, backend: str | None, message: str, *, hint: str | None = None) -> Finding:
    """Return the finding that something was not measured, and why."""
    return Finding(check=check, status=Status.NOT_MEASURED, message=message, backend=backend, hint=hint)
