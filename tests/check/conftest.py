"""Subjects that are checked for real: exported programs, ONNX files and golden datasets, in a registry of folders."""

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import Share
from tests.fakes import FakeRegistry
from validator.check import CheckRequest, CheckResult, check
from validator.golden.writer import Sample, write_golden
from validator.report.progress import SilentProgress

POLICY = """
required = ["eager-cpu", "onnxruntime-cpu"]
batch_size = 4
[checks]
fresh_process = false
[worker]
deadline_s = 120
threads = 1
"""
"""Without fresh processes, which have tests of their own: every check would start two more."""


class Net(nn.Module):
    """Small, and yet it has a convolution, a normalisation and a contraction to get wrong."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(128, 10)
        for _ in range(3):
            self.features(torch.randn(16, 3, 12, 12))

    def forward(self, x):
        return self.head(self.dropout(self.features(x).flatten(1)))


def dynamic(example: tuple[torch.Tensor, ...]) -> tuple[dict[int, torch.export.Dim], ...]:
    """Let the first dimension of every input vary."""
    batch = torch.export.Dim("batch", min=1, max=1024)
    return tuple({0: batch} for _ in example)


def save_program(model: nn.Module, example: tuple[torch.Tensor, ...], folder: Path, *, static: bool = False) -> Path:
    """Write a model folder as MLflow lays it out."""
    (folder / "data").mkdir(parents=True)
    program = torch.export.export(model, example, dynamic_shapes=None if static else dynamic(example))
    torch.export.save(program, folder / "data" / "model.pt2")
    (folder / "MLmodel").write_text("flavors:\n  pytorch:\n    model_data: data\n")
    return folder


def save_onnx(model: nn.Module, example: tuple[torch.Tensor, ...], path: Path) -> Path:
    """Export to one ONNX file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, different in every version of torch
        torch.onnx.export(
            model, example, path, dynamo=True, dynamic_shapes=dynamic(example), external_data=False, verbose=False
        )
    return path


@pytest.fixture(scope="session")
def net() -> nn.Module:
    return Net().eval()


@pytest.fixture(scope="session")
def example() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1)),)


@pytest.fixture(scope="session")
def program(net: nn.Module, example: tuple[torch.Tensor, ...], share: Share) -> Path:
    """The healthy program."""
    return share("subject", lambda path: save_program(net, example, path / "model")) / "model"


@pytest.fixture(scope="session")
def onnx(net: nn.Module, example: tuple[torch.Tensor, ...], share: Share) -> Path:
    """The healthy ONNX file."""
    return share("onnx", lambda path: save_onnx(net, example, path / "model.onnx")) / "model.onnx"


@pytest.fixture(scope="session")
def stale_onnx(example: tuple[torch.Tensor, ...], share: Share) -> Path:
    """An ONNX file of the same network with one row of the last layer one percent larger."""
    model = Net().eval()
    with torch.no_grad():
        model.head.weight[7] *= 1.01
    return share("stale", lambda path: save_onnx(model, example, path / "model.onnx")) / "model.onnx"


@pytest.fixture(scope="session")
def golden(share: Share) -> Path:
    """Twelve images: three batches of four."""
    return share("golden", lambda path: make_golden(path, np.random.default_rng(5).normal(size=(12, 3, 12, 12))))


def make_golden(folder: Path, values: np.ndarray, dtype: str = "float32") -> Path:
    """Write a golden dataset of one input."""
    samples = [Sample(inputs={"x": value.astype(dtype)}) for value in values]
    return write_golden(folder, samples, name="golden", source="tests").folder


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the gate makes its scratch folders; must be empty again afterwards."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.glob("validator-*")) == []  # torch may leave a cache of its own, from the test's exports


Checker = Callable[..., CheckResult]


@pytest.fixture
def run(registry: FakeRegistry, tmp_path: Path, scratch: Path, golden: Path) -> Checker:
    """Register a folder as models:/net/1 and check it."""

    def checker(
        folder: Path | None, *, policy: str = POLICY, files: Mapping[str, Path] | None = None, **changes: object
    ) -> CheckResult:
        """Without a folder, what is registered already is checked again."""
        if folder is not None:
            subject = Path(shutil.copytree(folder, tmp_path / "registered"))
            for name, source in (files or {}).items():
                shutil.copyfile(source, subject / name)
            registry.add_version("net", subject)
        (tmp_path / "policy.toml").write_text(policy)
        asked: dict[str, object] = {
            "uri": "models:/net/1",
            "output": tmp_path / "report",
            "policy": str(tmp_path / "policy.toml"),
            "golden": str(golden),
        }
        return check(CheckRequest(**(asked | changes)), registry, SilentProgress())  # type: ignore[arg-type]

    return checker
