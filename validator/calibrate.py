"""The use case behind `validator calibrate`: run healthy variants of every candidate, and set its budgets from them.

Variants are ordinary rows that start from the candidate with one knob turned, so plan, executor, comparison and judge
are those of a check. They are judged first, with limits that only a fault exceeds: what is healthy shows the noise.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w

import validator
from validator.backends.catalog import BASELINE, CATALOG, REFERENCE, Backend, Precision, Runtime
from validator.backends.interface import RefusalKind
from validator.errors import CouldNotRun
from validator.executors.local import LocalExecutor
from validator.golden.dataset import GoldenDataset
from validator.inputs import open_inputs, verify_unchanged
from validator.judge import (
    BackendEvidence,
    Caution,
    Check,
    Decision,
    Evidence,
    Finding,
    Status,
    Verdict,
    deployed_batch,
    judge,
    precision_of,
)
from validator.plan import choose_rows, spread
from validator.policy import (
    Budget,
    Calibration,
    Policy,
    Provenance,
    VariantRatio,
    default_limits,
    parse_policy,
)
from validator.policy_source import find_policy
from validator.registry.interface import Registry, resolve_text
from validator.report.progress import Progress
from validator.report.write import write_text
from validator.runs import Run, make_stage, open_sandbox, threads_of
from validator.sandbox.choice import Sandbox
from validator.sandbox.level import Request
from validator.scratch import scratch_folder
from validator.worker.launch import Limits as WorkerLimits
from validator.worker.outcome import Completed, Declined
from validator.worker.protocol import Job, RunJob

BATCH_SIZES = (1, 7)
"""Held against the deployed batch size, besides those that the policy names and the largest; see `possible_sizes`."""

LARGEST_BATCH = 2
"""Over the deployed batch size: as far as a row may go that must fit into the memory of whoever serves it."""

RATIO_FLOOR = 3.0
"""Least K: what one machine happens not to show is no reason for a budget that the next one breaks."""

MARGIN = 2.0
"""K over the largest healthy error ratio."""

FAULT_RATIO = 100.0
"""K that the runs have to be within: beyond it an error ratio is a fault and no noise."""

TELLING_RATIO = 2.0**-40
"""K that nothing is within, so that the judge tells every number that a limit follows from."""

AS_IT_IS = "as it is"
OTHER_THREADS = "threads"

LEVELS = ("disable", "basic", "extended", "all")
"""Of ONNX Runtime's graph optimisation."""


class CalibrationRefused(CouldNotRun):
    """A run that is not healthy measures no noise: no budget is written."""

    code = "calibration"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest:
    """What the user asked for."""

    uri: str
    output: Path
    """The policy file to write."""
    policy: str = "default"
    golden: str | None = None
    onnx: str | None = None
    backends: tuple[str, ...] = ()
    """Candidates besides the required ones."""
    sandbox: Request = Request.AUTO
    """How strongly workers are held; the policy may ask for more."""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A row that computes a candidate's function in another way."""

    row: str
    """Its own name."""
    candidate: str
    title: str
    """What is another, for people."""
    knobs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The budget of one output of one candidate, and what it rests on."""

    backend: str
    output: str
    error_ratio: float
    """K."""
    largest: float
    """Of the variants' error ratios."""
    variant: str
    """Whose that is."""
    families: int
    """Other kernel families that ran."""
    default: float
    """K without a calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """What came of it."""

    policy: Policy
    measured: tuple[Measured, ...]
    path: Path
    left_out: tuple[str, ...]
    """Variants that could not run here, and why."""
    cautions: tuple[Caution, ...] = ()
    """What whoever uses the budgets should know."""


def calibrate(request: CalibrationRequest, registry: Registry, progress: Progress) -> CalibrationResult:
    """Measure the budgets of a registered model, and write a policy that holds them.

    Raises:
        CalibrationRefused: a run was not healthy.
        ValidatorError: the model, the golden dataset or the policy cannot be used.
    """
    source = find_policy(request.policy, open_registry=lambda: registry).policy
    rows = choose_rows(source, request.backends, reference_device="cpu")
    asked = {*source.required, *request.backends} - {REFERENCE, BASELINE}
    candidates = [row for row in rows if row.name in asked]
    threads = threads_of(source)
    with scratch_folder() as scratch, ExitStack() as stack:
        sandbox = open_sandbox(source, request.sandbox, rows, scratch, progress)
        golden = request.golden or source.golden
        executor = stack.enter_context(_open_executor(source, scratch, progress, sandbox, golden))
        subject = resolve_text(registry, request.uri)
        progress.stage("resolve", f"{request.uri} is {subject.title}, registry {registry.uri}")
        inputs = open_inputs(
            source,
            subject,
            registry,
            scratch,
            progress,
            golden=request.golden,
            onnx=request.onnx,
            sandbox=sandbox,
        )
        variants = plan_variants(candidates, threads=threads, has_images=has_images(inputs.golden))
        executor.other_threads = {v.row: other_threads(threads) for v in variants if not v.knobs}
        sizes = possible_sizes(source, candidates, inputs.golden)
        policy = measuring_policy(source, candidates, variants, sizes=sizes)
        run = Run(inputs=replace(inputs, policy=policy), executor=executor)
        evidence, onnx = run.gather((*request.backends, *(v.row for v in variants)))
        verify_unchanged(inputs.staged, onnx, inputs.golden)
    evidence, left_out = leave_out_missing(evidence, variants)
    require_health(judge(policy, evidence), variants)
    decision = judge(with_ratio(policy, TELLING_RATIO), evidence)
    measured = measure(evidence, decision, candidates, variants)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    provenance = Provenance(
        tool=validator.__version__,
        created_utc=now,
        command=request.command,
        variant=tuple(list_ratios(decision, candidates, variants)),
        left_out=left_out,
    )
    calibrated = with_budgets(source, evidence, measured, provenance)
    path = write_text(policy_text(calibrated), request.output)
    progress.stage("write", str(path))
    cautions = tuple(c for c in decision.warnings if c.code == "perturbation-floor")
    return CalibrationResult(policy=calibrated, measured=measured, path=path, left_out=left_out, cautions=cautions)


# --- Variants -------------------------------------------------------------------------------------------------


def plan_variants(candidates: Sequence[Backend], *, threads: int, has_images: bool) -> list[Variant]:
    """List the variants of all candidates that run other kernels; batch sizes are passes of every row.

    Args:
        candidates: rows that get budgets.
        threads: CPU threads of rows on the CPU.
        has_images: whether the model has 4-D inputs, which can be laid out in another way.
    """
    taken = {row.name for row in candidates}
    variants: list[Variant] = []
    for row in candidates:
        for suffix, title, knobs in other_kernels(row, threads=threads, has_images=has_images):
            name = fresh_name(row.name, suffix, taken)
            taken.add(name)
            variants.append(Variant(row=name, candidate=row.name, title=title, knobs=knobs))
    return variants


def other_kernels(row: Backend, *, threads: int, has_images: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what makes a row run other kernels: (suffix of the name, title, knobs)."""
    if row.runtime is Runtime.ONNXRUNTIME:
        for level in LEVELS:
            if level != row.graph_optimization:
                yield level, f"graph_optimization = {level}", {"graph_optimization": level}
    else:
        yield from _other_torch_kernels(row, has_images=has_images)
    if row.device_type == "cpu":
        # Another number of threads contracts in another order.
        yield OTHER_THREADS, f"{other_threads(threads)} threads", {}


def _other_torch_kernels(row: Backend, *, has_images: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if row.compile is not None:
        yield "eager", "compile off", {"compile": None}
    if has_images:
        layout = "contiguous" if row.memory_format == "channels_last" else "channels_last"
        yield layout.replace("_", "-"), f"memory_format = {layout}", {"memory_format": layout}
    if row.device_type == "cuda":
        flipped = "off" if row.cudnn else "on"
        yield f"cudnn-{flipped}", f"cudnn {flipped}", {"cudnn": not row.cudnn, "cudnn_benchmark": False}
        if row.cudnn and not row.cudnn_benchmark and not row.deterministic:
            yield "benchmark", "cudnn_benchmark on", {"cudnn_benchmark": True}
        if not row.deterministic:
            environment = {**row.environment, **CATALOG["cudnn-deterministic"].environment}
            yield "deterministic", "deterministic", {"deterministic": True, "environment": environment}
    elif row.device_type == "cpu":
        flipped = "off" if row.onednn else "on"
        yield f"onednn-{flipped}", f"onednn {flipped}", {"onednn": not row.onednn}


def has_images(golden: GoldenDataset) -> bool:
    """Whether a batch of any input is 4-D."""
    return any(len(shape) == 3 for group in golden.manifest.groups for shape in group.shapes.values())


def other_threads(threads: int) -> int:
    """Return a number of CPU threads that is not this one."""
    return 1 if threads > 1 else 2


def fresh_name(name: str, suffix: str, taken: set[str]) -> str:
    """Make a row's name of at most 64 characters that is not taken."""
    number = 1
    while True:
        tail = f"-{suffix}" + (f"-{number}" if number > 1 else "")
        if (made := name[: 64 - len(tail)] + tail) not in taken:
            return made
        number += 1


def possible_sizes(policy: Policy, candidates: Sequence[Backend], golden: GoldenDataset) -> tuple[int, ...]:
    """Return the batch sizes that the dataset can fill and that are not those which the candidates run anyway.

    The largest is what the dataset fills of twice the deployed batch.
    """
    deployed = {deployed_batch(policy, row) for row in candidates}
    usual = {largest_range(golden.batches(0, golden.samples, size)) for size in deployed}
    largest = {largest_range(golden.batches(0, golden.samples, LARGEST_BATCH * size)) for size in deployed}
    wanted = policy.checks.batch_samples
    sizes = sorted({*BATCH_SIZES, *largest} - usual)
    return tuple(size for size in sizes if largest_range(spread(golden, size, wanted)) == size)


def largest_range(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the length of the longest of some ranges."""
    return max((stop - start for start, stop in ranges), default=0)


def measuring_policy(
    source: Policy, candidates: Sequence[Backend], variants: Sequence[Variant], *, sizes: Sequence[int] = BATCH_SIZES
) -> Policy:
    """Return the source's policy with the variants as rows of their own, and limits that only a fault exceeds.

    Without waivers and the old calibration: neither says anything about what is measured anew.
    """
    names = [*(row.name for row in candidates), *(v.row for v in variants)]
    document = source.model_dump(exclude={"budget", "waiver", "calibration"})
    document["backends"] = {**source.backends, **{v.row: {"like": v.candidate, **v.knobs} for v in variants}}
    document["checks"]["fresh_process"] = False  # says nothing about how large noise is
    document["checks"]["batch_sizes"] = tuple(sorted({*source.checks.batch_sizes, *sizes}))
    document["budget"] = tuple({"backend": name, "error_ratio": FAULT_RATIO} for name in names)
    return Policy.model_validate(document)


def with_ratio(policy: Policy, error_ratio: float) -> Policy:
    """Return a measuring policy with another K for everything."""
    budgets = tuple(Budget(backend=b.backend, output=b.output, error_ratio=error_ratio) for b in policy.budget)
    return policy.model_copy(update={"budget": budgets})


class _Executor(LocalExecutor):
    """Gives the variants that differ in their threads another number of them: that is no knob of a row."""

    other_threads: Mapping[str, int] = MappingProxyType({})

    def submit(self, job: Job) -> None:
        """Submit a job, with its variant's threads."""
        # By the row: its repetition in a fresh process is a job of its own.
        threads = self.other_threads.get(job.backend.name) if isinstance(job, RunJob) else None
        super().submit(job if threads is None else job.model_copy(update={"threads": threads}))


def _open_executor(
    policy: Policy, scratch: Path, progress: Progress, sandbox: Sandbox, golden: str | None
) -> _Executor:
    return _Executor(
        scratch=scratch,
        limits=WorkerLimits(deadline_s=policy.worker.deadline_s),
        jobs_per_gpu=policy.worker.jobs_per_gpu,
        on_event=progress.job,
        sandbox=sandbox,
        stage=make_stage(scratch, golden),
    )


# --- From evidence to budgets. Pure ---------------------------------------------------------------------------


def leave_out_missing(evidence: Evidence, variants: Sequence[Variant]) -> tuple[Evidence, tuple[str, ...]]:
    """Leave out the variants that cannot run here; a candidate that cannot run stays, and refuses.

    Returns:
        The evidence without them, and which they are and why.
    """
    known = {v.row: v for v in variants}
    kept: list[BackendEvidence] = []
    left_out: list[str] = []
    for backend in evidence.backends:
        variant = known.get(backend.row.name)
        reason = None if variant is None else _why_missing(backend, variant)
        if variant is None or reason is None:
            kept.append(backend)
        else:
            left_out.append(f"{variant.candidate} ({variant.title}): {reason}")
    return replace(evidence, backends=tuple(kept)), tuple(left_out)


def _why_missing(backend: BackendEvidence, variant: Variant) -> str | None:
    """Say why a variant could not run, where that is no fault: of the machine, or because of its layout.

    A program may be written for one layout (`view` asks for it), and nobody asked for another but this calibration.
    """
    outcome = backend.outcome
    if not isinstance(outcome, Declined):
        return None
    of_layout = outcome.refusal.kind is RefusalKind.MODEL and "memory_format" in variant.knobs
    return outcome.refusal.message if outcome.refusal.kind is RefusalKind.UNAVAILABLE or of_layout else None


def require_health(decision: Decision, variants: Sequence[Variant]) -> None:
    """Require that everything ran, repeats, and is noise.

    Raises:
        CalibrationRefused: something is not; it is named.
    """
    if decision.verdict is Verdict.PASS:
        return
    wrong = [f for f in decision.findings if f.status is not Status.WITHIN]
    titles = {v.row: f"{v.candidate} ({v.title})" for v in variants}
    told = list(dict.fromkeys(_tell(f, titles) for f in wrong)) or ["not everything was measured"]
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    raise CalibrationRefused(
        "no budget can be measured on runs that are not healthy: " + "; ".join(told[:3]) + more,
        hint=next((f.hint for f in wrong if f.hint), None) or "see all of it: validator check on the same model",
    )


def _tell(finding: Finding, titles: Mapping[str, str]) -> str:
    where = titles.get(finding.backend or "", finding.backend)
    number = "" if finding.measured is None or finding.limit is None else f" ({finding.measured:.3g})"
    return f"{finding.check}: " + (f"{where}: " if where else "") + finding.message + number


def needed_ratio(finding: Finding) -> float | None:
    """Return the K from which a finding judged at K = TELLING_RATIO would be within; None where K does not limit it.

    For the pooled ratio that is the ratio itself, for the others less, as their limits are wider.
    """
    if finding.measured is None or finding.limit is None or finding.output is None:
        return None
    by_batch = finding.check is Check.BATCH and (finding.metric or "").startswith("error ratio")
    if not by_batch and finding.check is not Check.ERROR_RATIO:
        return None
    return finding.measured / finding.limit * TELLING_RATIO


def list_ratios(
    decision: Decision, candidates: Sequence[Backend], variants: Sequence[Variant]
) -> Iterator[VariantRatio]:
    """Yield the largest needed K of every variant and output that has error ratios, in the order of the findings.

    Args:
        decision: at K = TELLING_RATIO.
        candidates: rows that get budgets.
        variants: of them.
    """
    runs = {row.name: (row.name, AS_IT_IS) for row in candidates} | {v.row: (v.candidate, v.title) for v in variants}
    judged = {(f.backend, f.output) for f in decision.findings if f.check is Check.ERROR_RATIO}
    largest: dict[tuple[str, str, str], float] = {}
    for finding in decision.findings:
        needed = needed_ratio(finding)
        run = runs.get(finding.backend or "")
        if needed is None or run is None or finding.output is None or (finding.backend, finding.output) not in judged:
            continue
        title = (
            run[1] if finding.check is not Check.BATCH else f"{run[1]}, {(finding.metric or '').partition(' at ')[2]}"
        )
        key = (run[0], finding.output, title)
        largest[key] = max(needed, largest.get(key, 0.0))
    for (backend, output, title), ratio in largest.items():
        yield VariantRatio(backend=backend, output=output, variant=title, error_ratio=ratio)


def measure(
    evidence: Evidence, decision: Decision, candidates: Sequence[Backend], variants: Sequence[Variant]
) -> tuple[Measured, ...]:
    """Set K = max(3, 2 x the largest E) for every output of every candidate; without another kernel family at least 10.

    An output of reduced precision with a baseline of its own keeps the K of its class: more would admit anything.
    """
    ran = {f.backend for f in decision.findings if f.check is Check.ERROR_RATIO}
    families = {row.name: sum(v.row in ran for v in variants if v.candidate == row.name) for row in candidates}
    rows = {row.name: row for row in candidates}
    worst: dict[tuple[str, str], VariantRatio] = {}
    for ratio in list_ratios(decision, candidates, variants):
        key = (ratio.backend, ratio.output)
        if key not in worst or ratio.error_ratio > worst[key].error_ratio:
            worst[key] = ratio
    classes = {key: precision_of(evidence, rows[key[0]], key[1]) for key in worst}
    return tuple(
        Measured(
            backend=backend,
            output=output,
            error_ratio=ratio_limit(
                rows[backend], classes[backend, output], ratio.error_ratio, families=families[backend]
            ),
            largest=ratio.error_ratio,
            variant=ratio.variant,
            families=families[backend],
            default=default_limits(rows[backend], classes[backend, output]).error_ratio,
        )
        for (backend, output), ratio in sorted(worst.items())
    )


UNMEASURED_RATIO = 10.0
"""Least K where only one kernel family could run: nothing shows how far healthy ones lie apart."""


def ratio_limit(row: Backend, precision: Precision, largest: float, *, families: int) -> float:
    """Return K for the largest healthy error ratio, rounded up to two places.

    Args:
        row: decides by whether it has a baseline.
        precision: the class that the output is judged in.
        largest: of the healthy variants.
        families: other kernel families that were among them.
    """
    if row.baseline is not None and precision not in (Precision.IEEE, Precision.FP64):
        return default_limits(row, precision).error_ratio
    floor = RATIO_FLOOR if families else UNMEASURED_RATIO
    return max(floor, math.ceil(100 * MARGIN * largest) / 100)


# --- The policy file ------------------------------------------------------------------------------------------

_FINGERPRINT = MappingProxyType(
    {
        (Runtime.TORCH, "cpu"): ("torch", "cpu_capability"),
        (Runtime.TORCH, "cuda"): ("torch", "cuda", "cudnn", "gpu"),
        (Runtime.ONNXRUNTIME, "cpu"): ("onnxruntime", "cpu_capability"),
        (Runtime.ONNXRUNTIME, "cuda"): ("onnxruntime", "cuda", "cudnn", "gpu"),
    }
)
"""What decides which kernels run. Not the processor's name and the driver: machines of one fleet differ in them."""


def environment_of(backend: BackendEvidence) -> dict[str, str]:
    """Return the keys of a run's fingerprint that budgets are bound to."""
    if not isinstance(backend.outcome, Completed):
        return {}
    found = backend.outcome.environment.fingerprint
    keys = _FINGERPRINT.get((backend.row.runtime, backend.row.device_type), ("torch",))
    return {key: found[key] for key in keys if found.get(key, "none") not in ("none", "unreadable")}


def with_budgets(source: Policy, evidence: Evidence, measured: Sequence[Measured], provenance: Provenance) -> Policy:
    """Return the source policy with the measured budgets in the place of the same backends', and what they rest on."""
    calibrated = {m.backend for m in measured}
    named = calibrated | {BASELINE}
    kept = [b for b in source.budget if b.backend not in calibrated]
    fresh = [Budget(backend=m.backend, output=m.output, error_ratio=m.error_ratio) for m in measured]
    environments = {b.row.name: environment_of(b) for b in evidence.backends if b.row.name in named}
    calibration = Calibration(
        weights=evidence.weights_digest,
        golden=evidence.golden_digest,
        reference=evidence.reference.value,
        environment={name: keys for name, keys in environments.items() if keys},
        provenance=provenance,
    )
    document = source.model_dump(exclude={"budget", "calibration"})
    document["budget"] = tuple(b.model_dump() for b in (*kept, *fresh))
    document["calibration"] = calibration.model_dump()
    return Policy.model_validate(document)


def policy_text(policy: Policy) -> str:
    """Write a policy as TOML, defaults spelt out: one that changes later changes nothing that was decided here."""
    document = _without_nothing(policy.model_dump(mode="python"))
    text = "# Written by validator calibrate; see [calibration.provenance]. Comments do not count.\n"
    text += tomli_w.dumps(document)
    if parse_policy(text, origin="the policy just measured") != policy:
        raise CalibrationRefused("the policy cannot be written so that it reads back the same")
    return text


def _without_nothing(value: Any) -> Any:
    """Leave out what TOML cannot say, None, and tables that hold nothing."""
    if isinstance(value, Mapping):
        kept = {key: _without_nothing(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in kept.items() if item != {}}
    if isinstance(value, list | tuple):
        return [_without_nothing(item) for item in value]
    return value
