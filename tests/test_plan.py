"""Jobs cover every sample of every required backend, and misfits are told before anything runs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.frames import facts
from validator.backends.catalog import CATALOG, REFERENCE
from validator.backends.interface import TensorFacts
from validator.errors import BackendError, GoldenError
from validator.golden.dataset import GoldenDataset
from validator.golden.writer import Sample, write_golden
from validator.manifest import Manifest
from validator.plan import Target, check_fit, choose_rows, plan_passes, plan_perturbation, plan_runs, spread
from validator.policy import BUILT_IN, Policy
from validator.subject import OnnxFile, OnnxOrigin, Program, ProgramFormat
from validator.worker.protocol import Pass, PassKind


def make_golden(folder: Path, shapes: list[tuple[int, ...]], name: str = "input") -> GoldenDataset:
    rng = np.random.default_rng(0)
    samples = [Sample(inputs={name: rng.normal(size=shape).astype(np.float32)}) for shape in shapes]
    return write_golden(folder, samples, name="golden", source="tests")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenDataset:
    """Fifty samples of two shapes."""
    return make_golden(tmp_path_factory.mktemp("plan") / "golden", [(3,)] * 30 + [(5,)] * 20)


def target(golden: GoldenDataset, *, onnx: bool = True, **changes: object) -> Target:
    file = OnnxFile(path=Path("m.onnx"), manifest=Manifest(entries=()), origin=OnnxOrigin.EXPORT, source="x")
    return Target(
        program=Program(path=Path("m.pt2"), format=ProgramFormat.EXPORTED),
        onnx=file if onnx else None,
        golden=golden,
        facts=facts(**changes),
    )


def test_the_reference_comes_first_and_brings_every_baseline_with_it() -> None:
    policy = Policy(required=("onnxruntime-gpu-defaults", "eager-cuda"))
    names = [row.name for row in choose_rows(policy, [], reference_device="cuda")]
    assert names == [REFERENCE, "eager-cuda-tf32", "eager-cpu", "onnxruntime-gpu-defaults", "eager-cuda"]


def test_backends_can_be_added_and_never_taken_away() -> None:
    rows = choose_rows(BUILT_IN["cpu"], ["cudnn-off", "onnxruntime-cpu"], reference_device="cpu")
    assert [row.name for row in rows] == [REFERENCE, "eager-cpu", "onnxruntime-cpu", "cudnn-off"]
    with pytest.raises(BackendError, match="no backend"):
        choose_rows(BUILT_IN["cpu"], ["nonsense"], reference_device="cpu")


def test_the_reference_runs_where_it_is_told() -> None:
    (reference, *_) = choose_rows(BUILT_IN["cpu"], [], reference_device="cuda")
    assert reference.device == "cuda"


def test_a_row_without_an_onnx_file_gets_no_job(golden: GoldenDataset) -> None:
    rows = choose_rows(BUILT_IN["cpu"], [], reference_device="cpu")
    jobs = plan_runs(BUILT_IN["cpu"], rows, target(golden, onnx=False), threads=1)
    assert [job.job_id for job in jobs] == [REFERENCE, "eager-cpu", "eager-cpu, fresh process"]


def test_every_job_has_a_nonce_of_its_own(golden: GoldenDataset) -> None:
    rows = choose_rows(BUILT_IN["cpu"], [], reference_device="cpu")
    jobs = [j for _ in range(5) for j in plan_runs(BUILT_IN["cpu"], rows, target(golden), threads=1)]
    assert len({job.nonce for job in jobs}) == len(jobs)


@given(st.integers(1, 64), st.integers(1, 64), st.lists(st.integers(1, 9), max_size=3), st.integers(1, 64))
def test_the_main_pass_covers_everything_and_the_others_a_part(
    golden: GoldenDataset, batch: int, repeat: int, sizes: list[int], samples: int
) -> None:
    policy = Policy.model_validate(
        {
            "required": BUILT_IN["cpu"].required,
            "batch_size": batch,
            "checks": {"repeat_samples": repeat, "batch_sizes": sizes, "batch_samples": samples},
        }
    )
    main, again, *others = plan_passes(policy, CATALOG["eager-cpu"], target(golden))
    assert main.ranges == ((0, golden.samples),)
    ((start, stop),) = again.ranges
    assert start == 0
    assert min(repeat, golden.samples) <= stop <= golden.samples
    main_batches = list(golden.batches(0, golden.samples, batch))
    assert list(golden.batches(0, stop, batch)) == main_batches[: len(list(golden.batches(0, stop, batch)))]
    assert {p.batch_size for p in others} == set(sizes) - {batch}
    assert len({p.name for p in (main, again, *others)}) == 2 + len(others)


@given(st.integers(1, 60), st.integers(1, 200))
def test_spread_ranges_are_disjoint_in_order_and_within_a_group(golden: GoldenDataset, size: int, wanted: int) -> None:
    ranges = spread(golden, size, wanted)
    assert ranges
    at = 0
    for start, stop in ranges:
        assert at <= start < stop <= golden.samples
        assert not start < 30 < stop
        at = stop


def test_the_perturbation_runs_every_sample_of_the_baseline_once_per_seed(golden: GoldenDataset) -> None:
    rows = choose_rows(BUILT_IN["cpu"], [], reference_device="cpu")
    job = plan_perturbation(BUILT_IN["cpu"], rows, target(golden), threads=1)
    assert job is not None
    assert (job.is_perturbed, job.job_id, job.backend.name) == (True, "eager-cpu, perturbed", "eager-cpu")
    assert [p.name for p in job.passes] == [f"perturbed-{seed}" for seed in (1, 2, 3, 4)]
    assert {(p.ranges, p.batch_size) for p in job.passes} == {(((0, golden.samples),), 32)}
    assert plan_perturbation(BUILT_IN["cpu"], rows[2:], target(golden), threads=1) is None


def test_only_a_perturbed_pass_has_a_seed() -> None:
    for kind, seed in ((PassKind.PERTURBED, None), (PassKind.MAIN, 1)):
        with pytest.raises(ValidationError, match="a perturbed pass has a seed"):
            Pass(kind=kind, batch_size=1, ranges=((0, 1),), seed=seed)


def test_a_static_batch_leaves_no_batch_passes(golden: GoldenDataset) -> None:
    passes = plan_passes(BUILT_IN["cpu"], CATALOG["eager-cpu"], target(golden, static_batch=2))
    assert [(p.name, p.batch_size) for p in passes] == [("main", 2), ("repeat", 2)]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((TensorFacts(name="input", dtype="float16", shape=(None, 3)),), "is float32, the model takes float16"),
        ((TensorFacts(name="input", dtype="float32", shape=(None, 4)),), r"shape \(3,\), the model takes \(4,\)"),
        ((TensorFacts(name="input", dtype="float32", shape=(None, 3, 3)),), r"the model takes \(3, 3\)"),
        ((), "the model takes 0"),
        (
            (
                TensorFacts(name="a", dtype="float32", shape=(None, 3)),
                TensorFacts(name="b", dtype="float32", shape=(None, 3)),
            ),
            "has 1 inputs",
        ),
    ],
    ids=["dtype", "shape", "rank", "none", "two"],
)
def test_a_golden_set_that_does_not_fit_says_how(tmp_path: Path, inputs: tuple[TensorFacts, ...], words: str) -> None:
    with pytest.raises(GoldenError, match=words):
        check_fit(make_golden(tmp_path / "g", [(3,)] * 8), facts(inputs=inputs))


def test_inputs_are_bound_by_name_where_names_agree_and_by_position_elsewhere(tmp_path: Path) -> None:
    golden = make_golden(tmp_path / "g", [(3,)] * 8, name="pixels")
    check_fit(golden, facts(inputs=(TensorFacts(name="x", dtype="float32", shape=(None, 3)),)))
    check_fit(golden, facts(inputs=(TensorFacts(name="x", dtype="float32", shape=None),)))
    check_fit(golden, facts(inputs=(TensorFacts(name="pixels", dtype="float32", shape=(None, None)),)))


def test_a_dimension_that_may_vary_admits_every_size(golden: GoldenDataset) -> None:
    with pytest.raises(GoldenError):
        check_fit(golden, facts(inputs=(TensorFacts(name="input", dtype="float32", shape=(None, 3)),)))
    check_fit(golden, facts(inputs=(TensorFacts(name="input", dtype="float32", shape=(None, None)),)))
