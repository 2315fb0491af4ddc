"""Runs are compared in whatever order they end, and a planted fault of known size is always noticed."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import completed, evidence, noisy, run_job, scores
from validator.backends.catalog import CATALOG, REFERENCE
from validator.evidence import MovedOutput, SpoolPass, compare_runs, plant_fault, variety_of
from validator.judge import Verdict, judge
from validator.policy import BUILT_IN, Policy
from validator.worker.child import pack_frame
from validator.worker.outcome import Completed, Crashed, Outcome
from validator.worker.protocol import FrameHeader, Pass, PassKind
from validator.worker.spool import Spool, SpooledFrame

CPU = BUILT_IN["cpu"]
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


def test_a_spool_pass_can_be_read_again(tmp_path: Path) -> None:
    spool = spooled(tmp_path, REFERENCE, {"output": scores()}).spool
    assert spool is not None
    frames = SpoolPass(spool=spool, name="main")
    assert [f.start for f in frames] == [0, 8]
    assert [f.start for f in frames] == [0, 8]
