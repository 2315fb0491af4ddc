"""Runs are compared in whatever order they end, and a planted fault of known size is always noticed."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import completed, evidence, frames, noisy, run_job, scores
from validator.backends.catalog import CATALOG, REFERENCE
from validator.backends.interface import RefusalKind
from validator.compare import compare, pool_runs
from validator.evidence import (
    Meaning,
    MovedOutput,
    SpoolPass,
    compare_runs,
    movable,
    plant_fault,
    plant_fault_into,
    variety_of,
)
from validator.golden.dataset import GoldenDataset
from validator.golden.output_spec import OutputSpec
from validator.golden.writer import Sample, write_golden
from validator.judge import Check, Evidence, Reference, Status, Verdict, judge
from validator.policy import BUILT_IN, Calibration, Checks, Policy
from validator.worker.child import pack_frame
from validator.worker.outcome import Completed, Crashed, Declined, Outcome
from validator.worker.protocol import FrameHeader, Pass, PassKind, Refusal, RunJob
from validator.worker.spool import Spool, SpooledFrame

CPU = BUILT_IN["cpu"]
ONE_PROCESS = CPU.model_copy(update={"checks": Checks(fresh_process=False, batch_sizes=(1,))})
ROWS = (CATALOG[REFERENCE], CATALOG["eager-cpu"], CATALOG["onnxruntime-cpu"])


def spooled(folder: Path, name: str, outputs: Mapping[str, np.ndarray], size: int = 8) -> Completed:
    """Return a completed run whose frames lie on disk, main pass, repetition and batch 1 alike."""
    path, frames, content = folder / name, [], b""
    samples = len(next(iter(outputs.values())))
    plan = [(PassKind.MAIN, size), (PassKind.REPEAT, size), (PassKind.BATCH, 1)]
    passes = [Pass(kind=kind, batch_size=b, ranges=((0, samples),)) for kind, b in plan]
    for p in passes:
        for start in range(0, samples, p.batch_size):
            stop = min(start + p.batch_size, samples)
            tensors = {n: torch.from_numpy(v[start:stop].copy()) for n, v in outputs.items()}
            blob = pack_frame(p.name, start, stop, tensors)
            dtypes = {n: str(v.dtype) for n, v in outputs.items()}
            header = FrameHeader(pass_name=p.name, start=start, stop=stop, dtypes=dtypes)
            frames.append(SpooledFrame(header=header, offset=len(content), length=len(blob)))
            content += blob
    path.write_bytes(content)
    job = run_job(CATALOG[name]).model_copy(update={"passes": tuple(passes)})
    return replace(completed(CATALOG[name]), job=job, spool=Spool(path=path, frames=tuple(frames)))


def healthy(folder: Path) -> list[Outcome]:
    y = scores()
    return [
        spooled(folder, REFERENCE, {"output": y}),
        spooled(folder, "eager-cpu", {"output": noisy(y, 1e-6, seed=2).astype(np.float32)}),
        spooled(folder, "onnxruntime-cpu", {"output": noisy(y, 1e-6, seed=3).astype(np.float32)}),
    ]


def test_every_order_of_ending_gives_the_same_comparisons(tmp_path: Path) -> None:
    outcomes = healthy(tmp_path)
    errors = set()
    for order in itertools.permutations(outcomes):
        found = compare_runs(ROWS, order)
        assert found[REFERENCE].main is None
        for name in ("eager-cpu", "onnxruntime-cpu"):
            assert found[name].main is not None
            assert found[name].repeat is not None
            assert [size for size, _ in found[name].batches] == [1]
        errors.add(found["onnxruntime-cpu"].main.outputs["output"].summary)  # type: ignore[union-attr]
    assert len(errors) == 1


def test_without_a_reference_nothing_is_compared_and_nothing_passes(tmp_path: Path) -> None:
    reference, *others = healthy(tmp_path)
    lost = Crashed(job=reference.job, exit_status=-9, samples=0, log_tail="")
    found = compare_runs(ROWS, [lost, *others])
    assert found["onnxruntime-cpu"].main is None
    assert variety_of(found) == {}
    gathered = evidence(backends=tuple(found.values()), variety={}, control=None)
    assert plant_fault(CPU, gathered) is None
    assert judge(CPU, gathered).verdict is Verdict.INCONCLUSIVE


# --- Without fp64 -------------------------------------------------------------------------------------------------

SEEDS = (1, 2, 3, 4)


def declined(name: str, message: str, *, kind: RefusalKind = RefusalKind.MODEL) -> Declined:
    job = run_job(CATALOG[name])
    refusal = Refusal(job_id=name, nonce=job.nonce, kind=kind, stage="run", message=message)
    return Declined(job=job, refusal=refusal)


def perturbed_job(job: RunJob) -> RunJob:
    (main,) = (p for p in job.passes if p.kind is PassKind.MAIN)
    passes = tuple(main.model_copy(update={"kind": PassKind.PERTURBED, "seed": seed}) for seed in SEEDS)
    return job.model_copy(update={"job_id": "perturbed", "passes": passes})


def without_fp64(folder: Path, candidate: np.ndarray | None = None) -> list[Outcome]:
    """Return a reference that declined, a baseline, a candidate, and the baseline moved by one ulp."""
    b = scores().astype(np.float32)
    baseline = spooled(folder, "eager-cpu", {"output": b})
    other = noisy(b, 1e-7, seed=3).astype(np.float32) if candidate is None else candidate
    moved = [noisy(b, 1e-7, seed=20 + seed).astype(np.float32) for seed in SEEDS]
    path, frames, content = folder / "perturbed", [], b""
    job = perturbed_job(baseline.job)  # type: ignore[arg-type]
    for p, values in zip(job.passes, moved, strict=True):
        for start in range(0, len(b), p.batch_size):
            stop = min(start + p.batch_size, len(b))
            blob = pack_frame(p.name, start, stop, {"output": torch.from_numpy(values[start:stop].copy())})
            header = FrameHeader(pass_name=p.name, start=start, stop=stop, dtypes={"output": "float32"})
            frames.append(SpooledFrame(header=header, offset=len(content), length=len(blob)))
            content += blob
    path.write_bytes(content)
    perturbed = replace(baseline, job=job, spool=Spool(path=path, frames=tuple(frames)))
    return [
        declined(REFERENCE, "no kernel for Double"),
        baseline,
        spooled(folder, "onnxruntime-cpu", {"output": other}),
        perturbed,
    ]


def gathered_of(outcomes: Sequence[Outcome]) -> Evidence:
    found = compare_runs(ROWS, outcomes)
    gathered = evidence(backends=tuple(found.values()), variety=variety_of(found), control=None)
    return replace(gathered, control=plant_fault(ONE_PROCESS, gathered))


def test_the_baseline_stands_in_whatever_ends_first(tmp_path: Path) -> None:
    outcomes = without_fp64(tmp_path)
    seen = set()
    for order in itertools.permutations(outcomes):
        gathered = gathered_of(order)
        assert gathered.reference is Reference.PERTURBATION
        found = {b.row.name: b for b in gathered.backends}
        assert found[REFERENCE].main is None
        seen.add(
            (found["eager-cpu"].main.outputs["output"].summary, found["onnxruntime-cpu"].main.outputs["output"].summary)
        )  # type: ignore[union-attr]
    assert len(seen) == 1
    floor, own = seen.pop()
    assert floor.rms == pytest.approx(1e-7, rel=0.1)
    assert own.rms == pytest.approx(1e-7, rel=0.1)


def test_the_floor_of_several_seeds_is_their_mean_and_its_maxima_are_the_largest(tmp_path: Path) -> None:
    b = scores()
    runs = [compare(frames({"output": b}), frames({"output": noisy(b, 1e-6 * k, seed=k)})) for k in SEEDS]
    pooled = pool_runs(runs).outputs["output"]
    each = [run.outputs["output"] for run in runs]
    assert pooled.summary.rms == pytest.approx(np.sqrt(np.mean([o.summary.rms**2 for o in each])))
    assert pooled.summary.element_max == max(o.summary.element_max for o in each)
    assert (pooled.channels[0].error == np.max([o.channels[0].error for o in each], axis=0)).all()
    assert pooled.elements == each[0].elements
    assert pool_runs(runs[:1]).outputs["output"].summary == each[0].summary


def test_over_the_perturbation_floor_a_healthy_file_passes_and_says_so(tmp_path: Path) -> None:
    decision = judge(ONE_PROCESS, gathered_of(without_fp64(tmp_path)))
    assert decision.verdict is Verdict.PASS, [f for f in decision.findings if f.status is not Status.WITHIN]
    told = [c.message for c in decision.warnings if c.code == "perturbation-floor"]
    assert len(told) == 1
    assert "no kernel for Double" in told[0]


def test_over_the_perturbation_floor_a_fault_of_one_percent_in_a_channel_fails(tmp_path: Path) -> None:
    wrong = scores().astype(np.float32)
    wrong[:, 3] *= 1.01
    assert judge(ONE_PROCESS, gathered_of(without_fp64(tmp_path, wrong))).verdict is Verdict.FAIL


def test_a_policy_that_asks_for_fp64_does_not_believe_in_another_floor(tmp_path: Path) -> None:
    strict = ONE_PROCESS.model_copy(update={"checks": ONE_PROCESS.checks.model_copy(update={"reference": "fp64"})})
    assert judge(strict, gathered_of(without_fp64(tmp_path))).verdict is Verdict.INCONCLUSIVE


def test_without_the_baseline_either_both_reasons_are_told(tmp_path: Path) -> None:
    reference, _, candidate, perturbed = without_fp64(tmp_path)
    lost = declined("eager-cpu", "no kernel for Float")
    again = replace(lost, job=perturbed.job)
    gathered = gathered_of([reference, lost, candidate, again])
    assert gathered.reference is Reference.FP64
    decision = judge(ONE_PROCESS, gathered)
    assert decision.verdict is Verdict.INCONCLUSIVE
    told = [f.message for f in decision.findings if f.check is Check.WORKER and f.status is Status.NOT_MEASURED]
    assert any("no kernel for Double" in message for message in told)
    assert any("no kernel for Float" in message for message in told)


def test_a_perturbation_that_crashed_measures_nothing(tmp_path: Path) -> None:
    *others, perturbed = without_fp64(tmp_path)
    crashed = Crashed(job=perturbed.job, exit_status=-11, samples=3, log_tail="")
    decision = judge(ONE_PROCESS, gathered_of([*others, crashed]))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert any("eager-cpu, perturbed was ended by signal 11" in f.message for f in decision.findings)


def test_budgets_measured_over_another_floor_are_stale(tmp_path: Path) -> None:
    bound = ONE_PROCESS.model_copy(update={"calibration": Calibration(weights="sha256:" + "2" * 64, reference="fp64")})
    decision = judge(bound, gathered_of(without_fp64(tmp_path)))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert any("reference: measured for fp64, this is perturbation" in f.message for f in decision.findings)


def test_a_row_without_a_job_is_there_with_no_outcome(tmp_path: Path) -> None:
    found = compare_runs(ROWS, healthy(tmp_path)[:2])
    assert found["onnxruntime-cpu"].outcome is None


@pytest.mark.parametrize("ratio", [0.5, 3.0, 10.0, 1e5])
def test_a_fault_just_over_any_budget_is_caught(tmp_path: Path, ratio: float) -> None:
    policy = Policy.model_validate(
        {"required": CPU.required, "budget": [{"backend": "onnxruntime-cpu", "error_ratio": ratio}]}
    )
    control = plant_fault(policy, evidence(backends=tuple(compare_runs(ROWS, healthy(tmp_path)).values())))
    assert control is not None
    assert control.caught
    assert control.moved_to == pytest.approx(1.01 * ratio)


def test_outputs_that_must_be_equal_get_a_fault_of_one_step(tmp_path: Path) -> None:
    labels = {"y": np.arange(16).reshape(16, 1)}
    outcomes = [spooled(tmp_path, row.name, labels) for row in ROWS]
    control = plant_fault(CPU, evidence(backends=tuple(compare_runs(ROWS, outcomes).values())))
    assert control is not None
    assert control.caught
    assert control.planted == "moved by one"


def test_half_precision_and_bool_outputs_survive_the_spool(tmp_path: Path) -> None:
    y = {"h": scores().astype(np.float16), "b": scores() > 0}
    outcomes = [spooled(tmp_path, row.name, y) for row in ROWS]
    found = compare_runs(ROWS, outcomes)
    main = found["onnxruntime-cpu"].main
    assert main is not None
    assert main.structure == ()
    assert {o.kind for o in main.outputs.values()} == {"float", "bool"}


@given(st.floats(1e-9, 1e9), st.integers(1, 5))
def test_a_moved_output_is_moved_by_exactly_the_distance(distance: float, size: int) -> None:
    from tests.frames import frames
    from validator.compare import compare

    source = frames({"output": scores(), "other": scores(seed=1)}, size)
    moved = compare(source, MovedOutput(source=source, output="output", distance=distance))
    assert moved.outputs["output"].summary.rms == pytest.approx(distance, rel=1e-6)
    assert moved.outputs["other"].summary.rms == 0


# --- What the golden dataset declares -----------------------------------------------------------------------------


def declare(folder: Path, dtype: str = "float32", **outputs: dict[str, object]) -> GoldenDataset:
    """Return a golden dataset of sixteen samples with a mask of shape (10,) and an input of any dtype."""
    pixels = torch.ones(3).to(getattr(torch, dtype))
    samples = [Sample(inputs={"x": pixels, "mask": MASK[i]}) for i in range(16)]
    specs = {name: OutputSpec.model_validate(keys) for name, keys in outputs.items()}
    return write_golden(folder / "golden", samples, name="golden", source="tests", outputs=specs or None)


MASK = (np.arange(160).reshape(16, 10) * 7) % 3 > 0
ROWS_TURNED = scores(classes=24).reshape(16, 6, 4)
LOGITS = np.round(scores() * 2)


def differ_as_declared(kind: str) -> tuple[dict[str, dict[str, object]], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a declaration, the reference's outputs, and outputs that are the same answer to it."""
    y, rng = scores(), np.random.default_rng(5)
    best = LOGITS.argmax(axis=1)
    last = 9 - LOGITS[:, ::-1].argmax(axis=1)
    match kind:
        case "period":
            return {"v": {"period": 360.0}}, {"v": y}, {"v": noisy(y, 1e-7) + 360.0 * rng.integers(-2, 3, y.shape)}
        case "one_lsb":
            levels = rng.integers(0, 256, size=(16, 10)).astype(np.uint8)
            near = np.where(levels < 255, levels + 1, levels).astype(np.uint8)
            return {"v": {"one_lsb": True}}, {"v": levels}, {"v": near}
        case "masked by an input":
            return {"v": {"valid_mask": "mask"}}, {"v": np.where(MASK, y, 1e9)}, {"v": np.where(MASK, y, np.nan)}
        case "masked by an output":
            specs: dict[str, dict[str, object]] = {"v": {"valid_mask": "m"}}
            return specs, {"v": y, "m": MASK}, {"v": np.where(MASK, noisy(y, 1e-7), -3.0), "m": MASK}
        case "masked integers":
            whole = np.arange(160).reshape(16, 10)
            return {"v": {"valid_mask": "mask"}}, {"v": whole}, {"v": np.where(MASK, whole, 0)}
        case "unordered":
            return {"v": {"unordered": "rows"}}, {"v": ROWS_TURNED}, {"v": noisy(ROWS_TURNED, 1e-7)[:, ::-1]}
        case "unordered twins":
            twins = np.repeat(ROWS_TURNED[:, :3], 2, axis=1)
            return {"v": {"unordered": "rows"}}, {"v": twins}, {"v": noisy(twins, 1e-7)[:, ::-1]}
        case "in a group":
            labels = np.tile(np.arange(6), (16, 1))
            specs = {"w": {"unordered": "rows", "with": ["v"]}}
            return (
                specs,
                {"w": labels, "v": ROWS_TURNED},
                {"w": labels[:, ::-1], "v": noisy(ROWS_TURNED, 1e-7)[:, ::-1]},
            )
        case _:
            return {"v": {"tie_break": "any", "scores": "s"}}, {"v": best, "s": LOGITS}, {"v": last, "s": LOGITS}


KINDS = [
    "period", "one_lsb", "masked by an input", "masked by an output", "masked integers", "unordered", "unordered twins",
    "in a group", "tie_break",
]  # fmt: skip


def run_all(folder: Path, y: Mapping[str, np.ndarray], c: Mapping[str, np.ndarray]) -> list[Outcome]:
    """Return the outcomes of a reference, a baseline whose error is the noise floor, and a candidate."""
    near = {n: noisy(v, 1e-7, seed=2) if v.dtype.kind == "f" and n != "s" else v for n, v in y.items()}
    return [spooled(folder, row.name, outputs) for row, outputs in zip(ROWS, (y, near, c), strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_declared_difference_is_none_and_an_undeclared_one_fails(tmp_path: Path, kind: str) -> None:
    specs, y, c = differ_as_declared(kind)
    outcomes = run_all(tmp_path, y, c)
    for golden, verdict in ((declare(tmp_path, **specs), Verdict.PASS), (None, Verdict.FAIL)):
        found = compare_runs(ROWS, outcomes, golden)
        gathered = evidence(backends=tuple(found.values()), variety=variety_of(found, golden), control=None)
        gathered = replace(gathered, control=plant_fault(CPU, gathered, golden))
        decision = judge(ONE_PROCESS, gathered)
        assert decision.verdict is verdict, [f for f in decision.findings if f.status is not Status.WITHIN]
        assert found["onnxruntime-cpu"].main is not None
        assert found["onnxruntime-cpu"].main.misdeclared == ()


@pytest.mark.parametrize("kind", KINDS)
def test_the_planted_fault_is_one_that_no_declaration_permits(tmp_path: Path, kind: str) -> None:
    specs, y, c = differ_as_declared(kind)
    golden = declare(tmp_path, **specs)
    gathered = evidence(backends=tuple(compare_runs(ROWS, run_all(tmp_path, y, c), golden).values()))
    for row, output in movable(gathered):
        control = plant_fault_into(CPU, gathered, row, output, golden)
        assert control.caught, (row.name, output.name, control)


def test_a_level_is_moved_by_two_where_one_is_permitted(tmp_path: Path) -> None:
    specs, y, c = differ_as_declared("one_lsb")
    golden = declare(tmp_path, **specs)
    control = plant_fault(
        CPU, evidence(backends=tuple(compare_runs(ROWS, run_all(tmp_path, y, c), golden).values())), golden
    )
    assert control is not None
    assert (control.planted, control.moved_to, control.caught) == ("moved by two", 2.0, True)


def test_a_fault_beside_the_mask_fails(tmp_path: Path) -> None:
    specs, y, c = differ_as_declared("masked by an input")
    c["v"][MASK.nonzero()[0][5], MASK.nonzero()[1][5]] += 1e-2
    found = compare_runs(ROWS, run_all(tmp_path, y, c), declare(tmp_path, **specs))
    assert judge(CPU, evidence(backends=tuple(found.values()))).verdict is Verdict.FAIL


def test_masks_are_read_beside_inputs_that_numpy_lacks(tmp_path: Path) -> None:
    golden = declare(tmp_path, "bfloat16", v={"valid_mask": "mask"})
    read = Meaning(golden=golden).read_inputs(3, 5)
    assert list(read) == ["mask"]
    assert np.array_equal(read["mask"], MASK[3:5])


def test_inputs_are_read_only_for_masks(tmp_path: Path) -> None:
    golden = declare(tmp_path, v={"valid_mask": "other"})
    assert Meaning(golden=golden).read_inputs(0, 1) == {}
    assert Meaning(golden=None).read_inputs(0, 1) == {}


def test_a_reference_that_varies_only_where_nothing_counts_proves_nothing(tmp_path: Path) -> None:
    y = {"v": np.where(MASK, 1.0, scores())}
    constant = np.broadcast_to(MASK[:1], MASK.shape)
    golden = declare(tmp_path, v={"valid_mask": "m"})
    found = compare_runs(ROWS, run_all(tmp_path, {"v": np.where(constant, 1.0, y["v"]), "m": constant}, y), golden)
    assert variety_of(found, golden)["v"].weakness == "is the same for every sample"
    assert variety_of(found)["v"].weakness is None


def test_a_spool_pass_can_be_read_again(tmp_path: Path) -> None:
    spool = spooled(tmp_path, REFERENCE, {"output": scores()}).spool
    assert spool is not None
    frames = SpoolPass(spool=spool, name="main")
    assert [f.start for f in frames] == [0, 8]
    assert [f.start for f in frames] == [0, 8]
