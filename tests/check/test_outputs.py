"""What the golden dataset declares about outputs decides a real check."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.check.conftest import Checker, save_onnx, save_program
from validator.errors import GoldenError
from validator.golden.output_spec import OutputSpec
from validator.golden.writer import Sample, write_golden
from validator.judge import Verdict


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


DECLARED = {"rows": {"unordered": "rows"}, "best": {"tie_break": "any", "scores": "twice"}}


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
    run: Checker, tmp_path: Path, declared: dict, verdict: Verdict | None
) -> None:
    example = (torch.randn(2, 5, generator=torch.Generator().manual_seed(1)),)
    model = save_program(Tied(last=False), example, tmp_path / "model")
    onnx = save_onnx(Tied(last=True), example, tmp_path / "o/m.onnx")
    rng = np.random.default_rng(0)
    samples = [Sample(inputs={"x": rng.normal(size=5).astype(np.float32)}) for _ in range(9)]
    specs = {name: OutputSpec.model_validate(keys) for name, keys in declared.items()}
    write_golden(tmp_path / "declared", samples, name="tied", source="tests", outputs=specs or None)
    if verdict is None:
        with pytest.raises(GoldenError, match="no row") as caught:
            run(model, onnx=str(onnx), golden=str(tmp_path / "declared"))
        assert "there is rows" in caught.value.hint
        return
    result = run(model, onnx=str(onnx), golden=str(tmp_path / "declared"))
    assert result.verdict is verdict, [f for f in result.document.findings if f.status != "within"]
