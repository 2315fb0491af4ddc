"""The verdict document: `verdict.json`, the one canonical record of a check. Every other format is made from it.

Closed and immutable. The same inputs give the same bytes: keys sorted, two blanks of indent, numbers in their
shortest form. JSON has no NaN and no infinities, and a divergence may well be one: they are written as strings.
"""

import json
import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, PlainSerializer, ValidationError

from validator.backends.catalog import Setting
from validator.backends.interface import ExportFacts, ModelFacts, WeightsFacts
from validator.errors import UsageError
from validator.judge import Check, Reference, Status, Verdict
from validator.sandbox.level import Level, Request

SCHEMA_VERSION: Literal["1.0"] = "1.0"

NonFinite = Literal["NaN", "Infinity", "-Infinity"]


def _read_number(value: object) -> object:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _write_number(value: float) -> float | NonFinite:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


Number = Annotated[
    float,
    BeforeValidator(_read_number, json_schema_input_type=float | NonFinite),
    PlainSerializer(_write_number, return_type=float | NonFinite, when_used="json"),
]
"""A float that survives JSON."""

Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """Closed and immutable; a key that is not known is an error, in both directions of time."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=True, json_schema_serialization_defaults_required=True
    )


class ToolRecord(Part):
    """What made the document."""

    name: str
    version: str


class SubjectRecord(Part):
    """The model version that was checked, and its bytes."""

    title: str
    requested_uri: str
    pinned_uri: str
    registry_uri: str
    name: str | None
    version: int | None
    creation_timestamp_ms: int | None
    source: str
    download_uri: str
    model_id: str | None
    run_id: str | None
    digest: str
    """Of every file."""
    weights_digest: str
    """Of the files that decide the function."""
    size_bytes: Count
    files: Count
    format: str | None
    """`torch.export`, `pickle` or `torchscript`; None where no program was found."""


class ReusedRecord(Part):
    """An earlier check whose worker computed what this one did not compute again."""

    check_id: str
    created_utc: str
    """When that check began."""


class OnnxRecord(Part):
    """The ONNX file that was checked."""

    origin: str
    source: str
    digest: str
    size_bytes: Count
    reused: ReusedRecord | None = None
    """Whose export it is, with its facts and the comparison of its weights; None: nobody else's."""


class GoldenRecord(Part):
    """The inputs."""

    name: str
    digest: str
    samples: Count
    source: str
    """How the dataset was made."""
    uri: str
    """Where this check found it."""


class PolicyRecord(Part):
    """What decided."""

    origin: str
    digest: str
    required: tuple[str, ...]
    batch_size: Count
    document: dict[str, JsonValue]


# --- What became of a worker ------------------------------------------------------------------------------------


class CompletedRecord(Part):
    """Success, proven."""

    kind: Literal["completed"] = "completed"


class DeclinedRecord(Part):
    """The worker said why it cannot do the job."""

    kind: Literal["declined"] = "declined"
    refusal: str
    stage: str
    message: str


class CrashedRecord(Part):
    """The worker ended without proof of success."""

    kind: Literal["crashed"] = "crashed"
    exit_status: int
    """Negative: ended by that signal."""
    samples: Count
    log_tail: str


class TimedOutRecord(Part):
    """The worker was killed at its deadline."""

    kind: Literal["timed-out"] = "timed-out"
    limit_s: float
    samples: Count
    log_tail: str


class ViolatedRecord(Part):
    """The worker broke the protocol."""

    kind: Literal["violated"] = "violated"
    what: str
    log_tail: str


class NeverRanRecord(Part):
    """No worker was started."""

    kind: Literal["never-ran"] = "never-ran"


OutcomeRecord = Annotated[
    CompletedRecord | DeclinedRecord | CrashedRecord | TimedOutRecord | ViolatedRecord | NeverRanRecord,
    Field(discriminator="kind"),
]


class ReferenceRecord(Part):
    """What errors were measured against."""

    kind: Reference
    """`fp64`, or `perturbation`: the baseline, over how far it moves when inputs and parameters move by one ulp."""
    reason: str | None
    """Why fp64 could not run; None where it did."""
    perturbed: OutcomeRecord | None
    """What became of the run that was moved; None where none was planned."""


# --- What was measured --------------------------------------------------------------------------------------------


class RatiosRecord(Part):
    """Four numbers per output: error over the noise floor, or the most that each may be."""

    pooled: Number
    p99: Number
    worst_sample: Number
    element: Number


class QuantilesRecord(Part):
    """Of the absolute errors of single elements."""

    p50: Number
    p99: Number
    p999: Number


class DistributionRecord(Part):
    """How often which absolute error occurs, over all elements that are finite on both sides.

    Two bins per octave: bin i begins at `2**(e // 2) * (1.5 if e % 2 else 1)` with `e = first + i`, and ends where the
    next one begins. Counts are exact.
    """

    zeros: Count
    """Elements without any error, or one below 2**-126."""
    first: Annotated[int, Field(ge=-2200, le=2200)]
    """No float64 lies beyond."""
    counts: Annotated[tuple[Count, ...], Field(max_length=4400)]


class ElementRecord(Part):
    """The element with the largest absolute error."""

    sample: Count
    sample_id: str
    index: Count
    """Flat, within the sample's output."""
    reference: Number
    candidate: Number


class SampleRecord(Part):
    """One of the samples with the largest RMS error."""

    sample: Count
    sample_id: str
    rms: Number
    error_ratio: Number | None
    """Over the same floor as the ratio `worst_sample`."""


class FlipsRecord(Part):
    """Samples with other best classes than the reference's; made-up samples do not count."""

    samples: Count
    """That count."""
    flips: Count
    unexplained: Count
    """Those that the budget does not explain."""


class AccuracyRecord(Part):
    """How many labelled samples are answered rightly."""

    samples: Count
    reference: Number
    candidate: Number


class DecisionsRecord(Part):
    """What a backend decides by an output that is a vector of scores."""

    top1: FlipsRecord
    top5: FlipsRecord | None
    """Of the set of the five best; None where there are no more classes than that."""
    representative: Count
    """Samples that say how often something happens."""
    rate_bound: Number
    """Share of all samples that top-1 flips stay below at 95 %."""
    accuracy: AccuracyRecord | None
    """None without labels, or where it is not known which output they are about."""


class OutputRecord(Part):
    """One output of one backend against the reference, in the output's own unit."""

    name: str
    kind: str
    samples: Count
    elements: Count
    rms: Number
    rms_reference: Number
    sample_p99: Number
    sample_max: Number
    element_max: Number
    """Largest absolute error."""
    element_max_reference: Number
    ratios: RatiosRecord | None
    """None where no budget applies: the baseline, integers, or no noise floor."""
    limits: RatiosRecord | None
    quantiles: QuantilesRecord
    distribution: DistributionRecord | None = None
    """None in documents that older versions wrote."""
    element_limit: Number | None = None
    """Largest absolute error of an element that the budget allows; None where no budget applies."""
    cosine: Number
    flips: Count | None
    """Samples whose largest score is another class; None where the output is no vector of scores."""
    decisions: DecisionsRecord | None
    """None for the baseline, and where the output is no vector of scores."""
    nonfinite_mismatches: Count
    unequal: Count
    worst: ElementRecord | None
    worst_samples: tuple[SampleRecord, ...]


class RepeatRecord(Part):
    """The first run against another one."""

    samples: Count
    elements: Count
    unequal: Count


class BatchOutputRecord(Part):
    """One output at another batch size, against the main run."""

    name: str
    rms: Number
    ratio: Number | None
    """What was judged: the RMS difference over the noise floor, for the reference over the RMS itself."""
    unequal: Count


class BatchRecord(Part):
    """Another batch size."""

    size: Count
    samples: Count
    outputs: tuple[BatchOutputRecord, ...]


class SettingsRecord(Part):
    """What was asked for, and what the worker read back."""

    asked: dict[str, Setting]
    ran: dict[str, Setting]


class BackendRecord(Part):
    """One row of the catalog: what was asked, what ran, what came out."""

    name: str
    summary: str
    runtime: str
    device: str
    precision: str
    baseline: str | None
    row: dict[str, JsonValue]
    """Every knob."""
    outcome: OutcomeRecord
    settings: SettingsRecord
    fingerprint: dict[str, str]
    notes: dict[str, str]
    seconds: dict[str, float]
    peak_memory_bytes: Count
    outputs: tuple[OutputRecord, ...]
    repeat: RepeatRecord | None
    """The second run in the same process."""
    fresh: RepeatRecord | None
    """A run in a fresh process."""
    batches: tuple[BatchRecord, ...]
    reused: ReusedRecord | None = None
    """Where its outputs, settings and times are from; None: from this check."""

    def find_output(self, name: str | None) -> OutputRecord | None:
        """Return what was measured on an output."""
        return next((output for output in self.outputs if output.name == name), None)


class WaiverRecord(Part):
    """Who answers for an exceeded finding, and until when."""

    owner: str
    reason: str
    ticket: str | None
    expires: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    """Its last day, in UTC."""


class FindingRecord(Part):
    """One thing that was looked at, and how it stands."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """Stable: made from check, backend, output and metric, so links survive the next run."""
    check: Check
    status: Status
    backend: str | None
    output: str | None
    metric: str | None
    measured: Number | None
    limit: Number | None
    sample: int | None
    sample_id: str | None
    message: str
    hint: str | None
    waiver: WaiverRecord | None = None


class WarningRecord(Part):
    """Something that a reader should know and that changes no verdict."""

    code: str
    message: str


class ControlRecord(Part):
    """The negative control: whether this run was able to fail."""

    backend: str
    output: str
    planted: str
    """What was done to it."""
    moved_to: Number
    limit: Number
    caught: bool


class ConfinementRecord(Part):
    """What held the worker of one job."""

    job: str
    level: Level
    profile: str
    """`CPU` or `CUDA`, and whether a compiler may be started: what the sandbox had to leave open."""
    mechanisms: tuple[str, ...]
    """In the order in which they were put on."""


class SandboxRecord(Part):
    """What held the workers, as a self-test proved it before the first of them started."""

    level: Level
    """The weakest of all workers."""
    requested: Request
    minimum: Level
    """What the policy asks for."""
    bubblewrap: str | None
    """Its version; None: there is none."""
    landlock_abi: Count
    """0: the kernel has none."""
    weaker_because: tuple[str, ...]
    """Why no stronger level was reached."""
    workers: tuple[ConfinementRecord, ...]


class VerdictDocument(Part):
    """All that is known about one check."""

    schema_version: Literal["1.0"] = SCHEMA_VERSION
    tool: ToolRecord
    check_id: str
    created_utc: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]
    duration_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    command: tuple[str, ...]
    verdict: Verdict
    headline: str
    """One sentence: the last line of the terminal without the verdict."""
    subject: SubjectRecord
    onnx: OnnxRecord | None
    golden: GoldenRecord
    policy: PolicyRecord
    sandbox: SandboxRecord
    facts: ModelFacts | None
    probe: OutcomeRecord
    reference: ReferenceRecord
    export: ExportFacts | None
    """What became of an ONNX export of this check's own; None: there was none, or it did not end well."""
    weights: WeightsFacts | None
    """The ONNX file's initialisers against the model's tensors; None: there was no file, or they were not compared."""
    backends: tuple[BackendRecord, ...]
    findings: tuple[FindingRecord, ...]
    warnings: tuple[WarningRecord, ...]
    control: ControlRecord | None
    retries: tuple[str, ...]
    """Jobs that were run again, and why."""

    def to_json(self) -> str:
        """Return the canonical text of `verdict.json`."""
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, allow_nan=False) + "\n"


def read_document(text: str | bytes, *, origin: str) -> VerdictDocument:
    """Read a verdict document.

    Raises:
        UsageError: not JSON, or not a verdict of this schema.
    """
    try:
        return VerdictDocument.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{origin} is no verdict document of schema {SCHEMA_VERSION}: {where or 'the file'}: {first['msg']}",
            hint="name the verdict.json that validator check wrote",
        ) from error
