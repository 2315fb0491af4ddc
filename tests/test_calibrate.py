"""Budgets are measured on healthy runs, or not at all; what is written reads back the same."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.check.conftest import POLICY, make_golden
from tests.check.conftest import example as example  # noqa: PLC0414 - a fixture
from tests.check.conftest import golden as golden  # noqa: PLC0414
from tests.check.conftest import net as net  # noqa: PLC0414
from tests.check.conftest import onnx as onnx  # noqa: PLC0414
from tests.check.conftest import program as program  # noqa: PLC0414
from tests.check.conftest import stale_onnx as stale_onnx  # noqa: PLC0414
from tests.fakes import FakeRegistry
from tests.frames import SAMPLES, backend_evidence, completed, evidence, frames, noisy, run_job, scores
from validator.backends.catalog import CATALOG, REFERENCE, Backend, Precision
from validator.backends.interface import RefusalKind
from validator.calibrate import (
    TELLING_RATIO,
    CalibrationRefused,
    CalibrationRequest,
    Measured,
    Variant,
    calibrate,
    environment_of,
    fresh_name,
    has_images,
    leave_out_missing,
    list_ratios,
    measure,
    measuring_policy,
    plan_variants,
    policy_text,
    possible_sizes,
    ratio_limit,
    require_health,
    with_budgets,
    with_ratio,
)
from validator.check import CheckRequest, check
from validator.compare import compare, measure_variety
from validator.errors import GoldenError, PolicyError
from validator.golden.dataset import open_golden
from validator.judge import BackendEvidence, Decision, Evidence, Verdict, judge
from validator.plan import choose_rows
from validator.policy import BUILT_IN, Budget, Policy, Provenance, VariantRatio, Waiver, parse_policy
from validator.report.progress import SilentProgress
from validator.worker.outcome import Crashed, Declined
from validator.worker.protocol import Refusal

CPU = BUILT_IN["cpu"]
ORT = CATALOG["onnxruntime-cpu"]
VARIANTS = plan_variants([ORT], threads=2, has_images=True)
MEASURING = measuring_policy(CPU, [ORT], VARIANTS)
LOUD = VARIANTS[0].row

# --- Variants -----------------------------------------------------------------------------------------------------


def knobs_of(name: str, *, has_images: bool = False) -> list[dict[str, object]]:
    return [dict(v.knobs) for v in plan_variants([CATALOG[name]], threads=4, has_images=has_images)]


def titles_of(name: str, *, threads: int = 4, has_images: bool = False) -> list[str]:
    return [v.title for v in plan_variants([CATALOG[name]], threads=threads, has_images=has_images)]


def test_every_runtime_and_device_has_another_kernel_family() -> None:
    levels = [{"graph_optimization": level} for level in ("disable", "basic", "extended")]
    assert knobs_of("onnxruntime-gpu") == levels
    assert knobs_of("onnxruntime-cpu") == [*levels, {}]
    cublas = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert knobs_of("eager-cuda") == [
        {"cudnn": False, "cudnn_benchmark": False},
        {"cudnn_benchmark": True},
        {"deterministic": True, "environment": cublas},
    ]
    assert knobs_of("cudnn-deterministic") == [{"cudnn": False, "cudnn_benchmark": False}]
    assert titles_of("eager-cpu") == ["onednn off", "1 threads"]
    assert titles_of("eager-cpu", threads=1) == ["onednn off", "2 threads"]
    assert titles_of("compiled-cpu") == ["compile off", "onednn off", "1 threads"]


def test_only_models_of_images_are_laid_out_in_another_way() -> None:
    assert titles_of("eager-cpu", has_images=True) == ["memory_format = channels_last", "onednn off", "1 threads"]
    assert {"memory_format": "channels_last"} in knobs_of("cudnn-deterministic", has_images=True)
    assert titles_of("onnxruntime-cpu", has_images=True) == titles_of("onnxruntime-cpu")


def test_the_largest_batch_is_what_the_dataset_fills_of_twice_the_deployed_one(golden: Path) -> None:
    dataset = open_golden(golden)
    assert has_images(dataset)
    assert [possible_sizes(Policy(batch_size=size), [ORT], dataset) for size in (1, 4, 12, 32)] == [
        (2, 7),
        (1, 7, 8),
        (1, 7),
        (1, 7),
    ]


@pytest.mark.parametrize("name", [name for name in CATALOG if name not in (REFERENCE, "eager-cpu")])
def test_the_variants_of_every_backend_are_rows_that_a_check_can_run(name: str) -> None:
    row = CATALOG[name]
    variants = plan_variants([row], threads=2, has_images=True)
    source = Policy(required=("eager-cpu", name))
    policy = measuring_policy(source, [row], variants)
    rows = choose_rows(policy, [v.row for v in variants], reference_device="cpu")
    planned = [r for r in rows if r.name in {v.row for v in variants}]
    assert len(planned) == len(variants) > 0
    assert {r.baseline for r in planned} == {row.baseline}
    assert {r.precision for r in planned} == {row.precision}
    assert {1, 7} <= set(policy.checks.batch_sizes)


@given(st.from_regex(r"[a-z0-9][a-z0-9-]{0,63}", fullmatch=True), st.sets(st.integers(1, 9)))
def test_names_of_variants_are_valid_and_not_taken(name: str, numbers: set[int]) -> None:
    taken = {name} | {fresh_name(name, "basic", set())} if numbers else {name}
    made = fresh_name(name, "basic", taken)
    assert made not in taken
    assert Backend.model_validate(ORT.model_dump() | {"name": made}).name == made


def test_old_budgets_waivers_and_bindings_say_nothing_about_what_is_measured_anew() -> None:
    waiver = Waiver(check="exact", backend=ORT.name, owner="Ada", reason="x", expires=date(2026, 12, 1))
    source = Policy(required=CPU.required, budget=(Budget(backend=ORT.name, error_ratio=1e-3),), waiver=(waiver,))
    policy = measuring_policy(source, [ORT], VARIANTS)
    assert policy.waiver == ()
    assert {b.error_ratio for b in policy.budget} == {100.0}


# --- From evidence to budgets -------------------------------------------------------------------------------------


def measured_evidence(*, own: float = 1e-6, loud: float = 1e-6, **changes: object) -> Evidence:
    """Healthy evidence of the candidate and its variants, one of which is as loud as is asked for."""
    y = scores()
    reference = frames({"output": y})
    healthy = evidence(noisy(y, own, seed=3))
    more: list[BackendEvidence] = []
    for number, variant in enumerate(VARIANTS):
        tried = frames({"output": noisy(y, loud if variant.row == LOUD else 1e-6, seed=10 + number)})
        row = MEASURING.rows[variant.row]
        given = {"row": row, "outcome": completed(row), "main": compare(reference, tried)}
        own_changes = changes if variant.row == LOUD else {}
        more.append(backend_evidence(ORT.name, reference, tried, **(given | own_changes)))
    same = {size: compare(reference, frames({"output": y}, size=size)) for size in MEASURING.checks.batch_sizes}
    quiet = tuple(replace(b, batches=tuple(same.items())) for b in (*healthy.backends, *more))
    return replace(healthy, backends=quiet)


def decided(tried: Evidence) -> Decision:
    return judge(MEASURING, tried)


def told(tried: Evidence) -> Decision:
    return judge(with_ratio(MEASURING, TELLING_RATIO), tried)


def k_of(tried: Evidence) -> Measured:
    (found,) = measure(tried, told(tried), [ORT], VARIANTS)
    return found


def test_quiet_variants_give_the_least_budget() -> None:
    found = k_of(measured_evidence())
    assert (found.backend, found.output, found.error_ratio) == (ORT.name, "output", 3.0)
    assert found.families == len(VARIANTS) == 4
    assert decided(measured_evidence()).verdict is Verdict.PASS


def test_the_loudest_variant_decides_and_is_named() -> None:
    found = k_of(measured_evidence(loud=4e-6))
    assert found.variant == "graph_optimization = disable"
    assert found.largest == pytest.approx(4, rel=0.5)
    assert 2 * found.largest <= found.error_ratio < 2 * found.largest + 0.01


def test_other_batch_sizes_count() -> None:
    tried = measured_evidence()
    y = scores()
    apart = compare(frames({"output": noisy(y, 1e-6, seed=3)}), frames({"output": noisy(y, 5e-6, seed=4)}, size=7))
    backends = tuple(
        replace(b, batches=((1, b.batches[0][1]), (7, apart))) if b.row == ORT else b for b in tried.backends
    )
    found = k_of(replace(tried, backends=backends))
    assert found.variant == "as it is, batch 7"
    assert found.error_ratio > 8


@settings(deadline=None)
@given(st.floats(1e-7, 4e-5), st.floats(1e-7, 4e-5))
def test_under_its_own_budget_a_healthy_model_uses_at_most_half_of_every_limit(own: float, loud: float) -> None:
    tried = measured_evidence(own=own, loud=loud)
    found = k_of(tried)
    decision = judge(with_ratio(MEASURING, found.error_ratio), tried)
    for finding in decision.findings:
        if finding.measured is not None and finding.limit and "error ratio" in (finding.metric or ""):
            assert finding.measured <= finding.limit / 2


def declined(row: Backend, kind: RefusalKind = RefusalKind.UNAVAILABLE) -> Declined:
    job = run_job(row)
    refusal = Refusal(job_id=job.job_id, nonce=job.nonce, kind=kind, stage="device", message="no such thing")
    return Declined(job=job, refusal=refusal)


def test_where_no_other_kernel_family_can_run_the_budget_is_10() -> None:
    tried = measured_evidence()
    names = {v.row for v in VARIANTS}
    backends = tuple(
        BackendEvidence(row=b.row, outcome=declined(b.row)) if b.row.name in names else b for b in tried.backends
    )
    left, left_out = leave_out_missing(replace(tried, backends=backends), VARIANTS)
    assert left_out[0] == "onnxruntime-cpu (graph_optimization = disable): no such thing"
    assert len(left_out) == len(VARIANTS)
    assert [b.row.name for b in left.backends] == [REFERENCE, "eager-cpu", ORT.name]
    require_health(decided(left), VARIANTS)
    found = k_of(left)
    assert (found.families, found.error_ratio) == (0, 10.0)


@pytest.mark.parametrize(
    ("knobs", "kind", "is_left_out"),
    [
        ({"memory_format": "channels_last"}, RefusalKind.MODEL, True),
        ({"memory_format": "channels_last"}, RefusalKind.FORMAT, False),
        ({"onednn": False}, RefusalKind.MODEL, False),
        ({"onednn": False}, RefusalKind.UNAVAILABLE, True),
    ],
)
def test_a_program_written_for_one_layout_is_no_fault_and_any_other_refusal_of_a_model_is(
    knobs: dict[str, object], kind: RefusalKind, *, is_left_out: bool
) -> None:
    row = CATALOG["eager-cuda"]
    variant = Variant(row=row.name, candidate="mine", title="other", knobs=knobs)
    tried = replace(measured_evidence(), backends=(BackendEvidence(row=row, outcome=declined(row, kind)),))
    left, left_out = leave_out_missing(tried, [variant])
    assert (left.backends == (), left_out != ()) == (is_left_out, is_left_out)


@pytest.mark.parametrize(("largest", "k"), [(0.0, 3.0), (1.5, 3.0), (1.501, 3.01), (40.0, 80.0)])
def test_k_is_twice_the_largest_ratio_and_at_least_3(largest: float, k: float) -> None:
    assert ratio_limit(ORT, ORT.precision, largest, families=1) == k
    assert ratio_limit(ORT, ORT.precision, largest, families=0) == max(10.0, k)


def test_an_output_of_reduced_precision_with_a_baseline_of_its_own_keeps_its_k() -> None:
    tf32, bf16 = CATALOG["onnxruntime-gpu-defaults"], CATALOG["eager-cuda-bf16"]
    assert ratio_limit(tf32, tf32.precision, 40.0, families=2) == 2.0
    assert ratio_limit(bf16, bf16.precision, 4.0, families=2) == 8.0
    assert ratio_limit(ORT, Precision.FP16, 40.0, families=2) == 2.0


# --- What is no noise ---------------------------------------------------------------------------------------------


def unhealthy() -> dict[str, tuple[Evidence, str]]:
    """Return every way in which a calibration can be wrong, and a word of the reason."""
    job = run_job(MEASURING.rows[LOUD])
    nan = noisy(scores(), 1e-6)
    nan[3, 4] = np.nan
    y = frames({"output": scores()})
    again = compare(frames({"output": noisy(scores(), 1e-6)}), frames({"output": noisy(scores(), 1e-6, seed=8)}))
    healthy = measured_evidence()
    constant = replace(healthy, variety=measure_variety(frames({"output": np.ones((SAMPLES, 10))})))
    return {
        "crashed": (
            measured_evidence(outcome=Crashed(job=job, exit_status=-9, samples=3, log_tail=""), main=None, repeat=None),
            "signal 9",
        ),
        "never ran": (measured_evidence(outcome=None, main=None, repeat=None), "did not run"),
        "not repeatable": (measured_evidence(repeat=again), "the second time"),
        "not finite": (measured_evidence(main=compare(y, frames({"output": nan}))), "NaN or infinite"),
        "another shape": (measured_evidence(main=compare(y, frames({"output": scores(classes=9)}))), "contract"),
        "a fault": (measured_evidence(loud=3e-4), "error ratio"),
        "another provider": (
            measured_evidence(outcome=completed(MEASURING.rows[LOUD], provider="CUDAExecutionProvider")),
            "did not run as asked",
        ),
        "constant": (constant, "gives no evidence"),
        "few samples": (replace(healthy, samples=4), "golden samples"),
        "no power": (replace(healthy, control=None), "negative control"),
    }


@pytest.mark.parametrize(("tried", "words"), unhealthy().values(), ids=unhealthy())
def test_a_run_that_is_not_healthy_measures_nothing(tried: Evidence, words: str) -> None:
    with pytest.raises(CalibrationRefused, match="no budget can be measured") as caught:
        require_health(decided(tried), VARIANTS)
    assert words in caught.value.message
    assert caught.value.exit_code == 3


def test_a_refusal_names_the_variant_by_what_is_another() -> None:
    with pytest.raises(CalibrationRefused, match=r"onnxruntime-cpu \(graph_optimization = disable\)"):
        require_health(decided(measured_evidence(loud=3e-4)), VARIANTS)


# --- The policy file ----------------------------------------------------------------------------------------------


def calibrated(source: Policy, tried: Evidence) -> Policy:
    decision = told(tried)
    provenance = Provenance(
        tool="1", created_utc="2026-11-30T00:00:00Z", variant=tuple(list_ratios(decision, [ORT], VARIANTS))
    )
    return with_budgets(source, tried, measure(tried, decision, [ORT], VARIANTS), provenance)


SOURCE = parse_policy(
    """
required = ["eager-cpu", "onnxruntime-cpu"]
samples_min = 9
[checks]
batch_sizes = [1, 3]
[[budget]]
backend = "onnxruntime-cpu"
error_ratio = 99
[[budget]]
backend = "eager-cuda"
error_ratio = 4
[[waiver]]
check = "exact"
backend = "onnxruntime-cpu"
owner = 'Ada "the first"'
reason = "known"
expires = 2026-12-31
[backends.mine]
like = "onnxruntime-gpu"
use_tf32 = true
[calibration]
weights = "sha256:old"
""",
    origin="source",
)


def test_the_written_policy_is_the_source_with_measured_budgets_and_what_they_rest_on() -> None:
    tried = measured_evidence()
    policy = calibrated(SOURCE, tried)
    assert [(b.backend, b.output, b.error_ratio) for b in policy.budget] == [
        ("eager-cuda", None, 4.0),
        (ORT.name, "output", 3.0),
    ]
    assert policy.model_dump(exclude={"budget", "calibration"}) == SOURCE.model_dump(exclude={"budget", "calibration"})
    assert policy.calibration is not None
    assert policy.calibration.weights == tried.weights_digest
    assert policy.calibration.golden == tried.golden_digest
    assert policy.calibration.environment == {"eager-cpu": {"torch": "2.14.1"}}


@settings(deadline=None)
@given(st.floats(1e-7, 4e-5))
def test_what_is_written_reads_back_the_same_and_is_canonical(loud: float) -> None:
    policy = calibrated(SOURCE, measured_evidence(loud=loud))
    text = policy_text(policy)
    again = parse_policy(text, origin="written")
    assert again == policy
    assert policy_text(again) == text
    assert again.digest == policy.digest


def test_provenance_does_not_count_for_the_digest_and_is_as_strict_as_the_rest() -> None:
    policy = calibrated(SOURCE, measured_evidence())
    text = policy_text(policy)
    assert parse_policy(text.replace("2026-11-30T00", "2027-11-30T00"), origin="p").digest == policy.digest
    with pytest.raises(PolicyError, match=r"unknown key calibration\.provenance\.tol"):
        parse_policy(text.replace("tool =", "tol ="), origin="p")
    with pytest.raises(PolicyError, match=r"calibration\.provenance\.variant\.\d\.error_ratio"):
        parse_policy(text.replace("error_ratio = 0.", "error_ratio = -0."), origin="p")


def test_budgets_are_bound_to_what_decides_which_kernels_run() -> None:
    outcome = completed(ORT)
    keys = {"onnxruntime": "1.31.0", "cpu_capability": "AVX512", "cpu": "Xeon", "gpu": "none", "torch": "2.14.1"}
    outcome = replace(outcome, environment=outcome.environment.model_copy(update={"fingerprint": keys}))
    assert environment_of(BackendEvidence(row=ORT, outcome=outcome)) == {
        "onnxruntime": "1.31.0",
        "cpu_capability": "AVX512",
    }
    assert environment_of(BackendEvidence(row=ORT, outcome=None)) == {}


def test_ratios_of_the_measures_themselves_are_no_variants() -> None:
    found = list(list_ratios(told(measured_evidence()), [ORT], VARIANTS))
    assert {r.backend for r in found} == {ORT.name}
    assert all(isinstance(r, VariantRatio) for r in found)


# --- For real -----------------------------------------------------------------------------------------------------

Calibrator = Callable[..., Policy]


@pytest.fixture
def calibrator(tmp_path: Path, golden: Path) -> tuple[FakeRegistry, Calibrator]:
    """Register folders as models:/net/1 and measure their budgets."""
    registry = FakeRegistry()

    def run(folder: Path, model: Path, **changes: object) -> Policy:
        subject = Path(shutil.copytree(folder, tmp_path / "registered"))
        shutil.copyfile(model, subject / "model.onnx")
        registry.add_version("net", subject)
        (tmp_path / "source.toml").write_text(POLICY)
        asked: dict[str, object] = {
            "uri": "models:/net/1",
            "output": tmp_path / "out" / "policy.toml",
            "policy": str(tmp_path / "source.toml"),
            "golden": str(golden),
        }
        return calibrate(CalibrationRequest(**(asked | changes)), registry, SilentProgress()).policy  # type: ignore[arg-type]

    return registry, run


def test_a_measured_policy_passes_the_very_model_and_finds_a_stale_file(
    calibrator: tuple[FakeRegistry, Calibrator],
    program: Path,
    onnx: Path,
    stale_onnx: Path,
    golden: Path,
    tmp_path: Path,
) -> None:
    registry, run = calibrator
    policy = run(program, onnx)
    path = tmp_path / "out" / "policy.toml"
    assert parse_policy(path.read_text(), origin="written") == policy
    assert [(b.backend, b.output) for b in policy.budget] == [("onnxruntime-cpu", "output")]
    assert policy.budget[0].error_ratio < 10
    assert policy.calibration is not None
    assert policy.calibration.provenance is not None
    titles = {v.variant for v in policy.calibration.provenance.variant}
    assert {"as it is", "graph_optimization = disable", "as it is, batch 1", "as it is, batch 7"} <= titles
    assert {"graph_optimization = extended", "2 threads", "as it is, batch 8"} <= titles
    assert policy.calibration.provenance.left_out == ()
    assert set(policy.calibration.environment) == {"eager-cpu", "onnxruntime-cpu"}

    def verdict(**changes: object) -> Verdict:
        request = CheckRequest(
            uri="models:/net/1",
            output=tmp_path / "report",
            policy=str(path),
            golden=str(golden),
            **changes,  # type: ignore[arg-type]
        )
        return check(request, registry, SilentProgress()).verdict

    assert verdict() is Verdict.PASS
    assert verdict(onnx=str(stale_onnx)) is Verdict.FAIL


def test_a_stale_file_is_a_fault_and_no_noise(
    calibrator: tuple[FakeRegistry, Calibrator], program: Path, stale_onnx: Path, tmp_path: Path
) -> None:
    _, run = calibrator
    with pytest.raises(CalibrationRefused, match="error-ratio: onnxruntime-cpu"):
        run(program, stale_onnx)
    assert not (tmp_path / "out").exists()


def test_a_dataset_on_which_the_reference_is_constant_measures_nothing(
    calibrator: tuple[FakeRegistry, Calibrator], program: Path, onnx: Path, tmp_path: Path
) -> None:
    _, run = calibrator
    same = make_golden(tmp_path / "same", np.ones((12, 3, 12, 12)))
    with pytest.raises(CalibrationRefused, match="the reference gives no evidence"):
        run(program, onnx, golden=str(same))
    assert not (tmp_path / "out").exists()


def test_without_a_dataset_nothing_runs(calibrator: tuple[FakeRegistry, Calibrator], program: Path, onnx: Path) -> None:
    _, run = calibrator
    with pytest.raises(GoldenError):
        run(program, onnx, golden=None)
