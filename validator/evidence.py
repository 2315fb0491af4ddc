"""From outcomes to evidence: runs compared with the reference, with themselves, and with a planted fault."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from validator.backends.catalog import BASELINE, REFERENCE, Backend
from validator.compare import (
    Comparison,
    Frame,
    FrameSource,
    OutputComparison,
    OutputVariety,
    compare,
    measure_variety,
    pool_runs,
)
from validator.golden.dataset import GoldenDataset
from validator.golden.output_spec import OutputSpec, unordered
from validator.judge import (
    EXACT_KINDS,
    BackendEvidence,
    Control,
    Evidence,
    FreshRun,
    Status,
    find_reference,
    judge_values,
    limits_of,
    noise_floors,
)
from validator.meaning import Outputs, Specs
from validator.metrics import Array
from validator.policy import Policy
from validator.worker.outcome import Completed, Outcome
from validator.worker.protocol import PassKind, RunJob
from validator.worker.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolPass:
    """One pass of a completed run, as frames in order of their samples."""

    spool: Spool
    name: str

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames, one in memory at a time."""
        for header, outputs in self.spool.read_pass(self.name):
            yield Frame(
                start=header.start, stop=header.stop, outputs=outputs, dtypes=header.dtypes, filled=header.filled
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What the golden dataset declares about the model's outputs."""

    golden: GoldenDataset | None

    @property
    def specs(self) -> Specs:
        """Declarations by output; none where there is no dataset or none in it."""
        return (self.golden.manifest.outputs if self.golden is not None else None) or {}

    def compare(self, reference: FrameSource, candidate: FrameSource) -> Comparison:
        """Compare as declared."""
        return compare(reference, candidate, specs=self.specs, inputs=self.read_inputs)

    def read_inputs(self, start: int, stop: int) -> Outputs:
        """Read the golden inputs that masks name; nothing is read where they name none.

        Raises:
            GoldenError: a shard is gone or damaged since the dataset was opened.
        """
        masks = {spec.valid_mask for spec in self.specs.values()}
        if self.golden is None or masks.isdisjoint(spec.name for spec in self.golden.inputs):
            return {}
        if all(spec.dtype != "bfloat16" for spec in self.golden.inputs):
            return {name: values for name, values in self.golden.read(start, stop).items() if name in masks}
        tensors = self.golden.read_torch(start, stop)
        return {
            name: tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
            for name, tensor in tensors.items()
            if name in masks
        }


def compare_runs(
    rows: Sequence[Backend], outcomes: Iterable[Outcome], golden: GoldenDataset | None = None
) -> dict[str, BackendEvidence]:
    """Compare every completed run as soon as it and the reference are there.

    Args:
        rows: all rows of the check, in the order of the report.
        outcomes: outcomes of run jobs, in any order; consumed lazily. If the baseline's perturbed job is among them,
            the baseline takes the reference's place.
        golden: what the jobs ran on; it declares what outputs mean. None: nothing is declared.

    Returns:
        Evidence by row name, one for every row, with outcome None for rows that had no job.
    """
    meaning = Meaning(golden=golden)
    by_name = {row.name: BackendEvidence(row=row, outcome=None) for row in rows}
    reference: Spool | None = None
    perturbed: Outcome | None = None
    waiting: list[str] = []
    repetitions: dict[str, Outcome] = {}
    for outcome in outcomes:
        if isinstance(outcome.job, RunJob) and outcome.job.is_perturbed:
            perturbed = outcome
            continue
        name, is_repetition = _row_of(outcome)
        if is_repetition:
            repetitions[name] = outcome
            continue
        by_name[name] = _compare_with_itself(by_name[name].row, outcome, meaning)
        spool = spool_of(outcome)
        if name == REFERENCE:
            reference = spool
        elif spool is not None:
            waiting.append(name)
        if reference is not None:
            for ready in waiting:
                by_name[ready] = _compare_with_reference(by_name[ready], reference, meaning)
            waiting = []
    for name, outcome in repetitions.items():
        by_name[name] = _compare_with_fresh(by_name[name], outcome, meaning)
    return by_name if perturbed is None else _compare_with_baseline(by_name, perturbed, meaning)


def _compare_with_baseline(
    by_name: Mapping[str, BackendEvidence], perturbed: Outcome, meaning: Meaning
) -> dict[str, BackendEvidence]:
    """Put the baseline in the place of the reference, and what its perturbation did in the place of its own error."""
    found = {**by_name, BASELINE: replace(by_name[BASELINE], perturbed=perturbed)}
    baseline, moved, job = spool_of(found[BASELINE].outcome), spool_of(perturbed), perturbed.job
    if baseline is None or moved is None or not isinstance(job, RunJob):
        return found
    main = SpoolPass(spool=baseline, name=PassKind.MAIN)
    floor = pool_runs([meaning.compare(main, SpoolPass(spool=moved, name=p.name)) for p in job.passes])
    return {
        name: replace(evidence, main=floor)
        if name == BASELINE
        else _compare_with_reference(evidence, baseline, meaning)
        for name, evidence in found.items()
    }


def _row_of(outcome: Outcome) -> tuple[str, bool]:
    """Return which row a run was of, and whether it only repeated it."""
    job = outcome.job
    return (job.backend.name, job.is_repetition) if isinstance(job, RunJob) else (job.job_id, False)


def _compare_with_fresh(evidence: BackendEvidence, outcome: Outcome, meaning: Meaning) -> BackendEvidence:
    """Compare a run's main pass with what a fresh process made of the same samples."""
    main, fresh = spool_of(evidence.outcome), spool_of(outcome)
    compared = None
    if main is not None and fresh is not None:
        compared = meaning.compare(
            SpoolPass(spool=main, name=PassKind.MAIN), SpoolPass(spool=fresh, name=PassKind.FRESH)
        )
    return replace(evidence, fresh=FreshRun(outcome=outcome, comparison=compared))


def spool_of(outcome: Outcome | None) -> Spool | None:
    """Return the frames of a completed run."""
    return outcome.spool if isinstance(outcome, Completed) else None


def _compare_with_reference(evidence: BackendEvidence, reference: Spool, meaning: Meaning) -> BackendEvidence:
    candidate = spool_of(evidence.outcome)
    if candidate is None:
        return evidence
    main = meaning.compare(
        SpoolPass(spool=reference, name=PassKind.MAIN), SpoolPass(spool=candidate, name=PassKind.MAIN)
    )
    return replace(evidence, main=main)


def _compare_with_itself(row: Backend, outcome: Outcome, meaning: Meaning) -> BackendEvidence:
    """Compare a run's repetition and its other batch sizes with its own main pass."""
    spool, job = spool_of(outcome), outcome.job
    if spool is None or not isinstance(job, RunJob):
        return BackendEvidence(row=row, outcome=outcome)
    main = SpoolPass(spool=spool, name=PassKind.MAIN)
    compared: dict[str, Comparison] = {
        p.name: meaning.compare(main, SpoolPass(spool=spool, name=p.name))
        for p in job.passes
        if p.kind is not PassKind.MAIN
    }
    return BackendEvidence(
        row=row,
        outcome=outcome,
        repeat=compared.get(PassKind.REPEAT),
        batches=tuple((p.batch_size, compared[p.name]) for p in job.passes if p.kind is PassKind.BATCH),
    )


# --- The negative control -------------------------------------------------------------------------------------

JUST_OVER = 1.01
"""Planted error ratio over its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedOutput:
    """The reference's frames with one output moved away from the truth by a known amount."""

    source: FrameSource
    output: str
    distance: float
    """Added to and subtracted from elements in turn, so that the RMS error is exactly this."""
    step: int = 1
    """What integers move by."""
    one_way: bool = False
    """Whether all elements move up. Two rows that move towards each other could pass for one another; but over all
    ways to match rows with themselves moved by one distance, the sum of squares is least in place."""

    def __iter__(self) -> Iterator[Frame]:
        """Yield frames in which only that output differs."""
        for frame in self.source:
            moved = self._move(frame.outputs[self.output])
            yield replace(frame, outputs={**frame.outputs, self.output: moved})

    def _move(self, values: Array) -> Array:
        """Move every element by the distance; integers by the step, booleans to the other value."""
        if values.dtype == np.bool_:
            return np.logical_not(values)
        if np.issubdtype(values.dtype, np.integer):
            return np.add(values, np.full((), self.step, values.dtype))
        signs = np.ones(values.shape)
        if not self.one_way:
            signs -= 2.0 * (np.arange(values.size) % 2).reshape(values.shape)
        distance = complex(self.distance, self.distance) if np.iscomplexobj(values) else self.distance
        moved: Array = np.add(values, signs * distance)
        return moved


def smallest_step(spec: OutputSpec | None) -> int:
    """Return the least difference between two integers of an output that is one."""
    return 2 if spec is not None and spec.one_lsb else 1


def plant_fault(policy: Policy, evidence: Evidence, golden: GoldenDataset | None = None) -> Control | None:
    """Move one output of the reference to just over its budget, and require compare and judge to notice.

    Args:
        policy: has the limits.
        evidence: everything else that the judge sees.
        golden: what the jobs ran on; it declares what outputs mean. None: nothing is declared.

    Returns:
        What was planted and whether it was caught; None where no candidate was compared at all.
    """
    chosen = next(movable(evidence), None)
    return None if chosen is None else plant_fault_into(policy, evidence, *chosen, golden)


def plant_fault_into(
    policy: Policy, evidence: Evidence, row: Backend, output: OutputComparison, golden: GoldenDataset | None = None
) -> Control:
    """Move one output that can be moved, measure it and judge it as if the row had returned it.

    Raises:
        ValueError: there is no reference, whose outputs could be moved.
    """
    meaning = Meaning(golden=golden)
    step = smallest_step(meaning.specs.get(output.name))
    exact = output.kind in EXACT_KINDS
    limit = 0.0 if exact else limits_of(policy, evidence, row, output.name).error_ratio
    floors = noise_floors(evidence, row, output.name) or [0.0]
    _, outcome = find_reference(evidence.backends)
    reference = spool_of(outcome)
    if reference is None:
        raise ValueError("what can be moved is the reference's, and there is none")
    source = SpoolPass(spool=reference, name=PassKind.MAIN)
    moved = MovedOutput(
        source=source,
        output=output.name,
        distance=JUST_OVER * limit * max(floors),
        step=step,
        one_way=output.name in unordered(meaning.specs),
    )
    comparison = meaning.compare(source, moved)
    findings = list(judge_values(policy, evidence, row, comparison.outputs[output.name]))
    return Control(
        backend=row.name,
        output=output.name,
        planted=("moved by two" if step == 2 else "moved by one") if exact else f"moved to {JUST_OVER} times its limit",
        moved_to=float(step) if exact else JUST_OVER * limit,
        limit=limit,
        caught=findings[0].status is Status.EXCEEDED,
    )


def movable(evidence: Evidence) -> Iterator[tuple[Backend, OutputComparison]]:
    """List outputs of candidates that a fault can be planted into, floating ones first; none without a reference."""
    _, reference = find_reference(evidence.backends)
    if spool_of(reference) is None:
        return
    pairs = [
        (b.row, output)
        for b in evidence.backends
        if b.main is not None and b.row.name not in (REFERENCE, BASELINE)
        for output in b.main.outputs.values()
        if output.elements > 0
    ]
    yield from (
        p for p in pairs if p[1].kind not in EXACT_KINDS and max(noise_floors(evidence, p[0], p[1].name) or [0.0]) > 0
    )
    yield from (p for p in pairs if p[1].kind in EXACT_KINDS)


def variety_of(
    outcomes: Mapping[str, BackendEvidence], golden: GoldenDataset | None = None
) -> dict[str, OutputVariety]:
    """Measure whether the reference's outputs differ between samples, as far as the golden dataset says they count."""
    _, reference = find_reference(outcomes.values())
    spool = spool_of(reference)
    if spool is None:
        return {}
    meaning = Meaning(golden=golden)
    frames = SpoolPass(spool=spool, name=PassKind.MAIN)
    return measure_variety(frames, specs=meaning.specs, inputs=meaning.read_inputs)
