"""A second process sees what the first one cannot: choices that are made once per process."""

from pathlib import Path

import torch
from torch import nn

from tests.check.conftest import POLICY, Checker
from validator.judge import Check, Status, Verdict

FRESH = POLICY.replace("fresh_process = false", "fresh_process = true")


class PerProcess:
    """Becomes, where it is loaded, a model that answers alike all through one process, and otherwise in the next."""

    def __reduce__(self):
        # A class of this file would not be found in the worker, which sees nothing of the tests.
        model = nn.Sequential(nn.Flatten(), nn.Linear(432, 10)).eval().requires_grad_(requires_grad=False)
        drawn = "int.from_bytes(__import__('os').urandom(3), 'big')"
        return eval, (f"[model[1].weight.mul_(1 + 1e-10 * {drawn}), model][1]", {"model": model})


def test_every_candidate_and_the_baseline_run_again_in_a_fresh_process(run: Checker, program: Path, onnx: Path) -> None:
    result = run(program, onnx=str(onnx), policy=FRESH)
    assert result.verdict is Verdict.PASS
    told = {f.backend for f in result.document.findings if f.metric == "unequal elements in a fresh process"}
    assert told == {"eager-cpu", "onnxruntime-cpu"}
    fresh = {b.name: b.fresh for b in result.document.backends}
    assert fresh["reference"] is None
    assert fresh["onnxruntime-cpu"] is not None
    assert (fresh["onnxruntime-cpu"].samples, fresh["onnxruntime-cpu"].unequal) == (12, 0)
    assert all("fresh" in b.seconds for b in result.document.backends if b.name != "reference")


def test_a_model_that_answers_otherwise_in_every_process_fails(run: Checker, onnx: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    (folder / "data").mkdir(parents=True)
    torch.save(PerProcess(), folder / "data" / "model.pth")
    (folder / "MLmodel").write_text("flavors:\n  pytorch:\n    model_data: data\n")
    result = run(folder, onnx=str(onnx), policy=FRESH + "\n[formats]\npickle = true\n")
    assert result.verdict is Verdict.FAIL
    found = {
        f.metric: f.status
        for f in result.document.findings
        if f.check == Check.REPEATABILITY and f.backend == "eager-cpu"
    }
    assert found == {
        "unequal elements the second time": Status.WITHIN,
        "unequal elements in a fresh process": Status.EXCEEDED,
    }
