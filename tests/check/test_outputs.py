"""What the golden dataset declares about outputs decides a check."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.harness import check_files
from tests.check.conftest import save_onnx, save_program
from validator.errors import GoldenError
from validator.golden.output_spec import OutputSpec
from validator.golden.writer import Sample, write_golden
from validator.judge import Status, Verdict
from validator.policy import Policy


class Tied(nn.Module):
    """The ONNX file lists the rows in another order and breaks ties the other way; nothing else differs."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last

    def forward(self, x):
        twice = torch.cat([x, x], 1)
        if not self.last:
            return {"rows": x * 2, "best": twice.argmax(1), "twice": twice}
        return {"rows": (x * 2).flip(1), "best": twice.argmax(1) + x.shape[1], "twice": twice}


POLICY = Policy(required=("eager-cpu", "onnxruntime-cpu"), batch_size=4)
DECLARED = {"rows": {"unordered": "rows"}, "best": {"tie_break": "any", "scores": "twice"}}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and the ONNX file that answers otherwise."""
    folder = tmp_path_factory.mktemp("tied")
    example = (torch.randn(2, 5, generator=torch.Generator().manual_seed(1)),)
    model = save_program(Tied(last=False), example, folder / "model") / "data" / "model.pt2"
    return model, save_onnx(Tied(last=True), example, folder / "o/m.onnx")


@pytest.mark.parametrize(
    ("declared", "verdict"),
    [
        ({}, Verdict.FAIL),
        ({"rows": DECLARED["rows"]}, Verdict.FAIL),
        (DECLARED, Verdict.PASS),
        ({**DECLARED, "twice": {"one_lsb": True}}, Verdict.INCONCLUSIVE),
        ({**DECLARED, "row": {"one_lsb": True}}, None),
    ],
    ids=["nothing", "some", "all", "wrong dtype", "wrong name"],
)
def test_a_check_goes_by_what_is_declared(
    files: tuple[Path, Path], tmp_path: Path, declared: dict, verdict: Verdict | None
) -> None:
    model, onnx = files
    rng = np.random.default_rng(0)
    samples = [Sample(inputs={"x": rng.normal(size=5).astype(np.float32)}) for _ in range(9)]
    specs = {name: OutputSpec.model_validate(keys) for name, keys in declared.items()}
    golden = write_golden(tmp_path / "declared", samples, name="tied", source="tests", outputs=specs or None)
    (tmp_path / "scratch").mkdir()
    if verdict is None:
        with pytest.raises(GoldenError, match="no row") as caught:
            check_files(POLICY, model, golden, tmp_path / "scratch", onnx=onnx)
        assert "there is rows" in caught.value.hint
        return
    decision = check_files(POLICY, model, golden, tmp_path / "scratch", onnx=onnx).decision
    assert decision.verdict is verdict, [f for f in decision.findings if f.status is not Status.WITHIN]
