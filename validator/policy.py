"""The policy: which backends must agree, how closely, on which evidence. Strict parsing, one digest, no I/O.

A policy is read from a protected place, never from the change under review. Anyone may tighten what it says; a file
that cannot be understood to the last key is an error, because a misspelt limit would otherwise be no limit.
"""

import math
from collections.abc import Mapping
from datetime import date, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from validator.backends.catalog import (
    BASELINE,
    CATALOG,
    REFERENCE,
    UNIT_ROUNDOFF,
    Backend,
    Precision,
    Runtime,
    find_backend,
)
from validator.documents import read_toml
from validator.errors import BackendError, PolicyError
from validator.manifest import digest_of

Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Words = Annotated[str, Field(pattern=r"\S")]
"""Text that says something."""


class Strict(BaseModel):
    """Closed, immutable, finite: TOML can spell `limit = inf`, and a budget must be able to fail."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Limits(Strict):
    """The most that each error ratio may reach."""

    error_ratio: Limit
    error_ratio_p99: Limit
    error_ratio_max: Limit
    error_ratio_element: Limit
    error_ratio_channel: Limit
    error_ratio_own_sample: Limit

    @classmethod
    def from_ratio(cls, error_ratio: float) -> Self:
        """Derive the others from the pooled limit K: 1.5 K for the worst samples, 2 K for the worst element.

        The 99th percentile shares the worst sample's limit: below 100 samples they are the same number.
        """
        return cls(
            error_ratio=error_ratio,
            error_ratio_p99=1.5 * error_ratio,
            error_ratio_max=1.5 * error_ratio,
            error_ratio_element=2 * error_ratio,
            error_ratio_channel=3 * error_ratio,
            error_ratio_own_sample=3 * error_ratio,
        )


DEFAULT_RATIO = MappingProxyType(
    {Precision.IEEE: 10.0, Precision.TF32: 2.0, Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP64: 10.0}
)
"""K of a row with a baseline of its own precision, where nothing was calibrated."""

DEFAULT_RATIO_FLOOR = 10.0
"""K of a row without a baseline, which is held against the unit roundoff of its precision alone."""

BATCH_DEPENDENCE_LIMIT = 2.0**-30
"""Largest RMS difference, relative to the output's RMS, that batch sizes may make in fp64. Healthy models stay below
1e-13, because only the order of summation changes; a model that looks at its batch mates is above 1e-6."""


class Budget(Strict):
    """Limits for one backend, or one output of it. What is not given follows from `error_ratio`."""

    backend: str
    output: str | None = None
    """None: every output that has no budget of its own."""
    error_ratio: Limit
    error_ratio_p99: Limit | None = None
    error_ratio_max: Limit | None = None
    error_ratio_element: Limit | None = None
    error_ratio_channel: Limit | None = None
    error_ratio_own_sample: Limit | None = None

    @model_validator(mode="after")
    def _be_finite(self) -> Self:
        if not math.isfinite(3 * self.error_ratio):  # the loosest of `Limits.from_ratio`
            raise ValueError(f"error_ratio = {self.error_ratio:g} is so large that limits derived from it are infinite")
        return self

    @property
    def limits(self) -> Limits:
        """All four limits."""
        given = {k: v for k, v in self.model_dump().items() if k.startswith("error_ratio") and v is not None}
        return Limits(**(Limits.from_ratio(self.error_ratio).model_dump() | given))


WAIVER_DAYS_MAX = 180
"""A waiver that lasts longer is a budget, and has to be one."""

WAIVER_DAYS_WARNED = 14
"""So many days before its end a waiver is warned about."""


class WaiverState(StrEnum):
    """How a waiver stands on a day."""

    VALID = "valid"
    EXPIRED = "expired"
    TOO_LONG = "too long"


class Waiver(Strict):
    """Somebody's word that one check of one backend may be exceeded for a while."""

    check: Literal["error-ratio", "repeatability", "batch-invariance", "exact", "non-finite", "contract", "decisions"]
    """Only what says that outputs differ; what was not measured or is not safe cannot be waived."""
    backend: str
    output: str | None = None
    """None: whatever output it is."""
    owner: Words
    reason: Words
    ticket: Words | None = None
    expires: date
    """Its last day, in UTC."""

    def state(self, today: date) -> WaiverState:
        """Say whether it counts on a day."""
        if today > self.expires:
            return WaiverState.EXPIRED
        return WaiverState.TOO_LONG if self.expires > today + timedelta(days=WAIVER_DAYS_MAX) else WaiverState.VALID

    @property
    def title(self) -> str:
        """Which check of what it is about."""
        return f"{self.check} of {self.backend}" + (f", output {self.output}" if self.output is not None else "")


class Formats(Strict):
    """Which model formats may be opened at all."""

    pickle: bool = False
    """Pickled modules and TorchScript: loading them runs the author's code."""
    scan: tuple[Literal["picklescan", "fickling"], ...] = Field(default=(), strict=False)
    """Scanners that must find nothing in a pickle that is admitted. That they do grants nothing."""


class WorkerLimits(Strict):
    """What workers may take, and how many run at once."""

    deadline_s: Annotated[float, Field(gt=0, le=86_400)] = 1_800.0
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of rows on the CPU; None: what the machine lends this process, or almost."""
    jobs_per_gpu: Annotated[int, Field(ge=1)] = 4
    """Backends that may share a GPU at a time."""


class SandboxRules(Strict):
    """How strongly workers must be held, and what they may take of the machine."""

    minimum: Literal["none", "standard", "strict"] = "none"
    """The weakest sandbox that is admitted; `strict` always, where a model runs code of its author's."""
    memory_bytes: Annotated[int, Field(ge=1 << 30)] | None = None
    """Of each worker on the CPU; None: what the machine has."""
    file_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 37
    """Of any one file that a worker writes."""
    open_files: Annotated[int, Field(ge=64)] = 4_096
    processes: Annotated[int, Field(ge=64)] = 4_096
    """With threads, in the level strict."""


class Checks(Strict):
    """How the optional measurements are taken."""

    repeat_samples: Annotated[int, Field(ge=1)] = 32
    """Samples that every backend runs again: in the same process, and in a fresh one."""
    fresh_process: bool = True
    """Whether every backend runs the repeated samples once more in a fresh process."""
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 2, 7), strict=False)
    """Batch sizes held against the deployed one."""
    batch_samples: Annotated[int, Field(ge=1)] = 8
    """Samples that every other batch size runs, at least."""
    batch_invariance: Literal["required", "if-dynamic"] = "required"
    """`if-dynamic` admits a program that accepts one batch size only; it is then reported, not measured."""
    reference: Literal["fp64", "fp64-or-perturbation"] = "fp64-or-perturbation"
    """Where fp64 cannot compute the model: `fp64` measures nothing, the other takes the baseline as the reference and
    what one unit in the last place does to it as the noise floor, and says so."""


class DecisionLimits(Strict):
    """What is asked of answers, besides that the budget explains every flip."""

    flip_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of samples with another best class that must be ruled out at 95 %; None: not asked."""
    accuracy_drop: Annotated[float, Field(ge=0, lt=1)] | None = None
    """How much less of the labelled samples may be answered rightly than by the reference; None: not asked."""


class VariantRatio(Strict):
    """What one healthy run was measured at."""

    backend: str
    """Whose budget it is about."""
    output: str
    variant: str
    """What was another: `as it is`, a knob with its value, a number of threads."""
    error_ratio: Annotated[float, Field(ge=0)]
    """The K that it needs; see `calibrate`."""


class Provenance(Strict):
    """Where measured budgets come from. For people: it decides nothing and does not count for the digest."""

    tool: str
    created_utc: str
    command: tuple[str, ...] = Field(default=(), strict=False)
    variant: tuple[VariantRatio, ...] = Field(default=(), strict=False)
    left_out: tuple[str, ...] = Field(default=(), strict=False)
    """Variants that could not run, and why."""


class Calibration(Strict):
    """What the budgets were measured on. Anything else than this makes them stale, which blocks."""

    weights: str | None = None
    golden: str | None = None
    reference: Literal["fp64", "perturbation"] | None = None
    """What errors were measured against: budgets over one noise floor mean nothing over another."""
    environment: dict[str, dict[str, str]] = {}
    """Backend -> fingerprint key -> value."""
    provenance: Provenance | None = None

    @model_validator(mode="after")
    def _bind_to_something(self) -> Self:
        if not (self.weights or self.golden or any(self.environment.values())):
            raise ValueError("calibration binds the budgets to nothing")
        return self


class Policy(Strict):
    """Everything that decides a verdict besides the measurements."""

    schema_version: Literal[1] = 1
    required: tuple[str, ...] = Field(
        default=("eager-cpu", "eager-cuda", "cudnn-deterministic", "onnxruntime-gpu"), strict=False
    )
    golden: str | None = None
    """Folder or `models:/...` URI of the golden dataset."""
    golden_digest: str | None = None
    """The only golden dataset that counts."""
    samples_min: Annotated[int, Field(ge=1)] = 8
    batch_size: Annotated[int, Field(ge=1)] = 32
    """Deployed batch size."""
    formats: Formats = Formats()
    checks: Checks = Checks()
    decisions: DecisionLimits = DecisionLimits()
    worker: WorkerLimits = WorkerLimits()
    sandbox: SandboxRules = SandboxRules()
    backends: dict[str, dict[str, Any]] = {}
    """Rows of the user's own: `like` names a row to start from, every other key is a knob."""
    budget: tuple[Budget, ...] = Field(default=(), strict=False)
    waiver: tuple[Waiver, ...] = Field(default=(), strict=False)
    calibration: Calibration | None = None

    @model_validator(mode="after")
    def _be_consistent(self) -> Self:
        """Refuse what would silently mean nothing."""
        if not self.required:
            raise ValueError("required is empty: a check that compares nothing would pass")
        if unusable := {REFERENCE} & set(self.required):
            raise ValueError(f"{', '.join(unusable)} is what candidates are measured against, not a candidate")
        if not set(self.required) - {BASELINE}:
            raise ValueError(f"required names only {BASELINE}, the baseline: there is nothing to compare it with")
        rows = self.rows
        for name in self.required:
            find_backend(name, rows)
        for name in self.calibration.environment if self.calibration else ():
            find_backend(name, rows)
        seen: set[tuple[str, str | None]] = set()
        for budget in self.budget:
            row = find_backend(budget.backend, rows)
            if row.name in (REFERENCE, BASELINE):
                raise ValueError(f"{row.name} has no budget: it is the measure, not a candidate")
            if (key := (budget.backend, budget.output)) in seen:
                raise ValueError(f"two budgets for {budget.backend}, output {budget.output or 'any'}")
            seen.add(key)
        _check_waivers(self.waiver, rows)
        return self

    @property
    def rows(self) -> dict[str, Backend]:
        """The user's own backends.

        Raises:
            PolicyError: a row that starts from an unknown one, or has an unknown or impossible knob.
        """
        rows: dict[str, Backend] = {}
        for name, given in self.backends.items():
            if name in CATALOG:
                raise PolicyError(f"[backends.{name}] would redefine a built-in backend", hint="give it another name")
            knobs = dict(given)
            like = knobs.pop("like", None)
            start = find_backend(like, rows).model_dump(exclude={"summary"}) if isinstance(like, str) else {}
            try:
                rows[name] = Backend.model_validate({"summary": f"like {like}", **start, **knobs, "name": name})
            except ValidationError as error:
                raise PolicyError(f"[backends.{name}]: {describe(error)}") from error
            _check_baseline(rows[name], rows)
        return rows

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of what decides, defaults included; comments, layout and provenance do not count."""
        return digest_of(self.model_dump(mode="json", exclude={"calibration": {"provenance"}}))

    def limits_for(self, row: Backend, output: str, precision: Precision | None = None) -> Limits:
        """Return the limits of one backend's output: its own budget, the backend's, or the class's default.

        Args:
            row: the backend.
            output: its output's flattened name.
            precision: the class that the output is judged in; None: the row's, for where no model is known.
        """
        budgets = {(b.backend, b.output): b.limits for b in self.budget}
        for key in ((row.name, output), (row.name, None)):
            if key in budgets:
                return budgets[key]
        return default_limits(row, precision)


def default_limits(row: Backend, precision: Precision | None = None) -> Limits:
    """Return the limits of a precision class, the row's unless another is given, for where nothing was calibrated."""
    if row.baseline is None:
        return Limits.from_ratio(DEFAULT_RATIO_FLOOR)
    return Limits.from_ratio(DEFAULT_RATIO[precision or row.precision])


def _check_waivers(waivers: tuple[Waiver, ...], rows: dict[str, Backend]) -> None:
    """Require that every waiver is about a candidate, and no two about the same.

    Raises:
        ValueError: about a measure, or twice.
        BackendError: there is no such row.
    """
    seen: set[tuple[str, str, str | None]] = set()
    for waiver in waivers:
        if find_backend(waiver.backend, rows).name in (REFERENCE, BASELINE):
            raise ValueError(f"{waiver.backend} has no waiver: it is the measure, not a candidate")
        if (key := (waiver.check, waiver.backend, waiver.output)) in seen:
            raise ValueError(f"two waivers of {waiver.title}")
        seen.add(key)


def _check_baseline(row: Backend, rows: Mapping[str, Backend]) -> None:
    """Require that a row's noise floor is a measure of its own kind and not the row itself.

    Raises:
        PolicyError: it is measured against itself, a candidate, ONNX Runtime or something less precise.
        BackendError: there is no such row.
    """
    if row.baseline is None:
        return
    baseline = find_backend(row.baseline, {k: v for k, v in rows.items() if k != row.name})
    if baseline.baseline is not None or baseline.runtime is not Runtime.TORCH:
        raise PolicyError(
            f"[backends.{row.name}]: {baseline.name} is no baseline",
            hint="a baseline is an eager row that has none itself, such as eager-cpu or eager-cuda-tf32",
        )
    if UNIT_ROUNDOFF[baseline.precision] > UNIT_ROUNDOFF[row.precision]:
        raise PolicyError(
            f"[backends.{row.name}] is {row.precision}, its baseline {baseline.name} only {baseline.precision}",
            hint="the noise floor of a row must not be coarser than the row",
        )


BUILT_IN: Mapping[str, Policy] = MappingProxyType(
    {
        "default": Policy(),
        "cpu": Policy(required=("eager-cpu", "onnxruntime-cpu")),
    }
)
"""Policies that need no file. `default` asks for all four backends of a GPU deployment and is never weakened by what
the machine happens to lack; `cpu` is for models that are served on CPUs."""


def parse_policy(text: str, *, origin: str) -> Policy:
    """Read a policy from TOML.

    Args:
        text: the file's content.
        origin: how messages call it.

    Raises:
        PolicyError: not TOML, an unknown key, a limit that is not a positive finite number, or a contradiction. All
            faults are named together.
    """
    try:
        document = read_toml(text)
    except ValueError as error:
        raise PolicyError(f"{origin} is not TOML: {error}") from error
    try:
        policy = Policy.model_validate(document)
    except ValidationError as error:
        raise PolicyError(f"{origin}: {describe(error)}", hint="every key is listed in docs/policy.md") from error
    except (BackendError, PolicyError) as error:
        raise type(error)(f"{origin}: {error.message}", hint=error.hint) from error
    return policy


def describe(error: ValidationError) -> str:
    """Say all faults of a document in one line."""
    return "; ".join(_describe_fault(fault) for fault in error.errors())


def _describe_fault(fault: Any) -> str:
    """Say one fault: where, and what is wrong with the value."""
    where = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        return f"unknown key {where}"
    if fault["type"] in ("finite_number", "greater_than", "greater_than_equal", "float_type"):
        return f"{where} = {fault['input']} is not a limit that can fail: {message[0].lower()}{message[1:]}"
    return f"{where}: {message}" if where else message
