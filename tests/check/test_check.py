"""The main job on real programs in real workers: what passes, what is blocked, and that nothing half-written stays."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.check.conftest import POLICY, Checker, Net, make_golden, save_onnx, save_program
from tests.conftest import has_gpu
from tests.fakes import FakeRegistry
from validator.errors import AnnotationFailed, FormatRefused, GoldenError, PolicyError, ReportFailed
from validator.inputs import load_policy
from validator.judge import Verdict
from validator.manifest import measure_folder
from validator.report.formats import Format
from validator.report.model import read_document


def messages(result: object, status: str) -> str:
    document = result.document  # type: ignore[attr-defined]
    return "\n".join(f.message for f in document.findings if f.status == status)


def test_a_healthy_model_passes_with_an_export_of_the_gates_own_that_is_kept(
    run: Checker, program: Path, registry: FakeRegistry, tmp_path: Path
) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "comment.md").write_text("of an earlier check")
    result = run(program, formats=(Format.JUNIT, Format.PARQUET))
    assert result.verdict is Verdict.PASS, result.document.headline
    assert (tmp_path / "report" / "junit.xml").read_text().count("<testcase ") == len(result.document.findings)
    assert (tmp_path / "report" / "samples.parquet").stat().st_size > 0
    assert not (tmp_path / "report" / "comment.md").exists()
    kept = tmp_path / "report" / "onnx"
    assert result.document.onnx is not None
    assert measure_folder(kept).digest == result.document.onnx.digest
    assert read_document(result.path.read_bytes(), origin="x") == result.document
    assert result.document.weights is not None
    assert (result.document.weights.differing, result.document.weights.missing) == (0, 0)
    assert result.receipt is not None
    assert registry.version("net", 1).tags["validator.verdict"] == "pass"


def test_the_verdict_says_where_by_how_much_and_on_which_sample(run: Checker, program: Path, stale_onnx: Path) -> None:
    result = run(program, onnx=str(stale_onnx))
    assert result.verdict is Verdict.FAIL
    failed = [f for f in result.document.findings if f.status == "exceeded"]
    assert {f.backend for f in failed} == {"onnxruntime-cpu", None}
    (stale,) = (f for f in failed if f.check == "weights")
    assert "initialiser head.weight differs in 128 of 1,280 elements" in stale.message
    assert "; initialiser head.weight differs in 128 of 1,280 elements (" in result.document.headline
    assert result.document.weights is not None
    assert [d.name for d in result.document.weights.differences] == ["head.weight"]
    pooled = next(f for f in failed if f.metric == "error ratio")
    assert pooled.measured is not None
    assert pooled.measured > 100
    (output,) = next(b for b in result.document.backends if b.name == "onnxruntime-cpu").outputs
    assert output.worst is not None
    assert output.worst.index == 7
    assert output.flips == 0


def test_an_onnx_file_comes_from_the_option_then_the_tag_then_the_artifacts(
    run: Checker, program: Path, onnx: Path, stale_onnx: Path, registry: FakeRegistry, tmp_path: Path
) -> None:
    result = run(program, files={"model.onnx": stale_onnx})
    assert result.document.onnx is not None
    assert result.document.onnx.origin == "the subject's own artifacts"
    assert result.verdict is Verdict.FAIL
    registry.add_version("net-onnx", onnx.parent)
    registry.version("net", 1).tags["validator.onnx"] = "models:/net-onnx/1"
    again = run(None)
    assert again.document.onnx is not None
    assert again.document.onnx.origin == "the tag validator.onnx on the version"
    assert again.verdict is Verdict.PASS
    optional = run(None, onnx=str(stale_onnx))
    assert optional.document.onnx is not None
    assert optional.document.onnx.origin == "the --onnx option"
    assert optional.verdict is Verdict.FAIL


def test_a_tag_cannot_name_a_file_of_this_machine(
    run: Checker, program: Path, onnx: Path, registry: FakeRegistry
) -> None:
    registry.add_version("net", program)
    registry.version("net", 1).tags["validator.onnx"] = f"file://{onnx}"
    with pytest.raises(FormatRefused, match="no models:/ or runs:/ URI"):
        run(None)


def test_a_model_in_training_mode_is_blocked_before_anything_runs(
    run: Checker, example: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    result = run(save_program(Net().train(), example, tmp_path / "model"))
    assert result.verdict is Verdict.FAIL
    assert "training mode" in messages(result, "exceeded")
    assert all(b.outcome.kind == "never-ran" for b in result.document.backends)


def test_a_static_batch_is_said_to_be_not_measurable(run: Checker, net: nn.Module, onnx: Path, tmp_path: Path) -> None:
    static = save_program(net, (torch.randn(1, 3, 12, 12),), tmp_path / "model", static=True)
    result = run(static, onnx=str(onnx))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "the program accepts batch 1 only" in messages(result, "not measured")
    assert result.document.facts is not None
    assert result.document.facts.static_batch == 1


def test_a_model_that_answers_nan_everywhere_never_passes(
    run: Checker, example: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    class Broken(nn.Module):
        def forward(self, x):
            return torch.log(-torch.abs(x).mean((1, 2)) - 1)

    model = Broken().eval()
    result = run(
        save_program(model, example, tmp_path / "model"), onnx=str(save_onnx(model, example, tmp_path / "o/m.onnx"))
    )
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.FAIL)
    assert "holds no finite number" in messages(result, "not measured")


def test_a_nan_on_one_side_only_fails(
    run: Checker, program: Path, example: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    model = Net().eval()
    with torch.no_grad():
        model.head.bias[2] = float("nan")
    result = run(program, onnx=str(save_onnx(model, example, tmp_path / "o/m.onnx")))
    assert result.verdict is Verdict.FAIL
    assert "NaN or infinite on one side only" in messages(result, "exceeded")


def test_an_onnx_file_with_another_output_fails(
    run: Checker, program: Path, example: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    class Two(Net):
        def forward(self, x):
            y = super().forward(x)
            return y, y.argmax(1)

    result = run(program, onnx=str(save_onnx(Two().eval(), example, tmp_path / "o/m.onnx")))
    assert result.verdict is Verdict.FAIL


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_a_missing_gpu_is_inconclusive_and_never_left_out(run: Checker, program: Path, onnx: Path) -> None:
    policy = POLICY.replace('"onnxruntime-cpu"', '"eager-cuda", "onnxruntime-gpu"')
    result = run(program, onnx=str(onnx), policy=policy)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "CUDA" in messages(result, "not measured")


# --- Bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "dtype", "words"),
    [
        (np.zeros((12, 3, 12, 12)), "float64", "golden input x is float64, the model takes float32"),
        (np.zeros((12, 1, 12, 12)), "float32", "the model takes (3, 12, 12)"),
        (np.zeros((12, 3)), "float32", "the model takes (3, 12, 12)"),
    ],
    ids=["dtype", "shape", "rank"],
)
def test_a_golden_set_that_does_not_fit_is_told_before_anything_runs(
    run: Checker, program: Path, onnx: Path, tmp_path: Path, values: np.ndarray, dtype: str, words: str
) -> None:
    with pytest.raises(GoldenError) as caught:
        run(program, onnx=str(onnx), golden=str(make_golden(tmp_path / "g", values, dtype)))
    assert words in caught.value.message
    assert not (tmp_path / "report").exists()


def test_a_refusal_takes_an_earlier_pass_off_the_version(
    run: Checker, program: Path, registry: FakeRegistry, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    (cut / "data").mkdir(parents=True)
    (cut / "data" / "model.pt2").write_bytes((program / "data" / "model.pt2").read_bytes()[:500])
    registry.add_version("net", cut)
    registry.version("net", 1).tags["validator.verdict"] = "pass"
    with pytest.raises(FormatRefused):
        run(None)
    assert "validator.verdict" not in registry.version("net", 1).tags
    registry.version("net", 1).tags["validator.verdict"] = "pass"
    registry.refuses_annotations = True
    with pytest.raises(FormatRefused, match="may still carry an earlier verdict"):
        run(None)


def test_no_golden_dataset_is_told_with_the_way_to_make_one(run: Checker, program: Path) -> None:
    with pytest.raises(GoldenError, match="no golden dataset is named") as caught:
        run(program, golden=None)
    assert "validator golden create" in (caught.value.hint or "")


def test_a_missing_golden_folder_or_policy_is_told(run: Checker, program: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="does not exist"):
        run(program, golden=str(tmp_path / "nowhere"))
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(str(tmp_path / "nowhere.toml"))


def test_too_few_samples_are_inconclusive(run: Checker, program: Path, onnx: Path, tmp_path: Path) -> None:
    few = make_golden(tmp_path / "g", np.random.default_rng(1).normal(size=(4, 3, 12, 12)))
    result = run(program, onnx=str(onnx), golden=str(few))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "4 golden samples, at least 8" in messages(result, "not measured")


def test_a_truncated_program_is_refused(run: Checker, program: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    (cut / "data").mkdir(parents=True)
    whole = (program / "data" / "model.pt2").read_bytes()
    (cut / "data" / "model.pt2").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "verdict.json").write_text('{"verdict": "pass"}')
    with pytest.raises(FormatRefused, match="corrupt or cut short"):
        run(cut)
    assert not (tmp_path / "report" / "verdict.json").exists(), "an old verdict must not be read as this one's"


def test_a_program_with_a_damaged_byte_is_refused(run: Checker, program: Path, onnx: Path, tmp_path: Path) -> None:
    """Torch itself would load it and compute with other weights."""
    bad = tmp_path / "bad"
    (bad / "data").mkdir(parents=True)
    content = bytearray((program / "data" / "model.pt2").read_bytes())
    with zipfile.ZipFile(program / "data" / "model.pt2") as archive:
        weights = max(archive.infolist(), key=lambda info: info.file_size * ("weight_" in info.filename))
    content[weights.header_offset + 400] ^= 1
    (bad / "data" / "model.pt2").write_bytes(content)
    result = run(bad, onnx=str(onnx))
    assert result.verdict is Verdict.REFUSED
    assert "does not match its checksum" in messages(result, "refused")


def test_a_truncated_onnx_file_is_refused(run: Checker, program: Path, onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(onnx.read_bytes()[:500])
    result = run(program, onnx=str(tmp_path / "cut.onnx"))
    assert result.verdict is Verdict.REFUSED


def test_an_output_that_cannot_be_written_is_told(run: Checker, program: Path, onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportFailed):
        run(program, onnx=str(onnx), output=tmp_path / "file" / "report")


def test_a_failed_annotation_keeps_the_verdict_and_is_told(
    run: Checker, program: Path, onnx: Path, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise AnnotationFailed("no permission")

    monkeypatch.setattr(registry, "annotate", refuse)
    result = run(program, onnx=str(onnx))
    assert result.verdict is Verdict.PASS
    assert result.annotation_error is not None
    assert json.loads(result.path.read_bytes())["verdict"] == "pass"


# --- Models that do harm: pickles, which a policy must admit --------------------------------------------------

PICKLE_POLICY = POLICY + "\n[formats]\npickle = true\n"


class ExitAtLoad:
    """Ends the process as if all were well."""

    def __reduce__(self):
        import os

        return os._exit, (0,)


class KillAtLoad:
    def __reduce__(self):
        import os
        import signal

        return os.kill, (0, signal.SIGKILL)


class SleepAtLoad:
    def __reduce__(self):
        import time

        return time.sleep, (3600,)


def save_pickle(value: object, folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    torch.save(value, folder / "data" / "model.pth")
    return folder


def test_a_pickle_is_refused_unless_the_policy_admits_it(run: Checker, onnx: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatRefused, match="is a pickle file; this policy allows none"):
        run(save_pickle(ExitAtLoad(), tmp_path / "model"), onnx=str(onnx))


@pytest.mark.parametrize("value", [ExitAtLoad(), KillAtLoad()], ids=["exits with 0", "kills itself and its group"])
def test_a_worker_that_ends_without_proof_is_inconclusive(
    run: Checker, onnx: Path, tmp_path: Path, value: object
) -> None:
    result = run(save_pickle(value, tmp_path / "model"), onnx=str(onnx), policy=PICKLE_POLICY)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.document.facts is None


def test_a_worker_that_hangs_is_stopped_at_its_deadline(run: Checker, onnx: Path, tmp_path: Path) -> None:
    policy = PICKLE_POLICY.replace("deadline_s = 120", "deadline_s = 8")
    result = run(save_pickle(SleepAtLoad(), tmp_path / "model"), onnx=str(onnx), policy=policy)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "stopped after 8 s" in messages(result, "not measured")


class Tamper:
    """Writes to the file that it was loaded from."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return exec, (
            f"import os,glob\nfor p in glob.glob({self.path!r}):\n os.chmod(p,0o644)\n open(p,'ab').write(b'x')",
        )


def test_a_model_cannot_rewrite_what_was_staged(run: Checker, onnx: Path, tmp_path: Path, scratch: Path) -> None:
    pattern = f"{scratch}/validator-*/subject/MLmodel"
    folder = save_pickle(Tamper(pattern), tmp_path / "model")
    (folder / "MLmodel").write_text("flavors: {}\n")
    result = run(folder, onnx=str(onnx), policy=PICKLE_POLICY)  # hashes what was staged again, and finds it unchanged
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "Operation not permitted" in messages(result, "not measured")
