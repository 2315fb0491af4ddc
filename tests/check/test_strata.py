"""A golden dataset of all strata is one that a healthy model passes, and that a stale one fails."""

from pathlib import Path

import numpy as np
import pytest

from tests.check.conftest import Checker
from tests.fakes import FakeRegistry
from validator.golden.format import Stratum
from validator.golden.sources import open_source
from validator.judge import Verdict
from validator.report.progress import SilentProgress
from validator.survey import StrataRequest, create_strata


@pytest.fixture(scope="module")
def strata(program: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight images and what the healthy program chooses; nothing but its batch varies."""
    folder = tmp_path_factory.mktemp("strata")
    random = np.random.default_rng(8)
    np.savez(
        folder / "images.npz",
        x=random.normal(size=(24, 3, 12, 12)).astype(np.float32),
        labels=random.integers(0, 10, 24),
    )
    source = open_source(str(folder / "images.npz"))
    request = StrataRequest(
        source=source, output=folder / "set", strata=frozenset(Stratum), name="all", model=str(program), limit=8
    )
    result = create_strata(request, FakeRegistry, SilentProgress())
    assert set(result.dataset.strata) == set(Stratum) - {Stratum.SHAPES}
    return str(folder / "set")


def test_a_healthy_model_passes_all_strata(run: Checker, program: Path, onnx: Path, strata: str) -> None:
    result = run(program, golden=strata, onnx=str(onnx))
    assert result.verdict is Verdict.PASS, result.document.headline


def test_a_stale_model_fails_all_strata(run: Checker, program: Path, stale_onnx: Path, strata: str) -> None:
    assert run(program, golden=strata, onnx=str(stale_onnx)).verdict is Verdict.FAIL
