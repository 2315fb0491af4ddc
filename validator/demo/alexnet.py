"""Registers AlexNet three times, the way a team would. `validator demo` copies this file into its folder and runs it.

    version 1   as trained
    version 2   fine-tuned; the ONNX file beside it was exported *before* the last fine-tuning step: a stale export
    version 3   fine-tuned; no ONNX file, so the gate exports one itself

Nothing here belongs to `validator`: it is plain PyTorch and MLflow. No weights are downloaded: the network is drawn at
random, and "fine-tuning" is one real optimiser step on its last layer.
"""

import logging
import warnings
from pathlib import Path

import mlflow
import numpy as np
import torch
from torchvision.models import alexnet

SAMPLES = 16


def make_photographs(count: int) -> torch.Tensor:
    """Draw smooth random images, normalised like photographs: shape (count, 3, 224, 224)."""
    generator = torch.Generator().manual_seed(7)
    coarse = torch.randn(count, 3, 14, 14, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(224, 224), mode="bicubic")


def fine_tune(model: torch.nn.Module, photographs: torch.Tensor) -> None:
    """Take one optimiser step on the last layer."""
    optimiser = torch.optim.SGD(model.classifier[6].parameters(), lr=1e-3)  # type: ignore[union-attr, index]
    targets = torch.arange(len(photographs)) % 1000
    loss = torch.nn.functional.cross_entropy(model(photographs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    model.zero_grad()


def export_onnx(model: torch.nn.Module, example: torch.Tensor, path: Path) -> None:
    """Export to one ONNX file with a dynamic batch."""
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        model, (example,), path, dynamo=True, dynamic_shapes=({0: batch},), external_data=False, verbose=False
    )


def register(model: torch.nn.Module, example: torch.Tensor, files: list[str]) -> str:
    """Register a version of alexnet; MLflow stores it as a torch.export program."""
    info = mlflow.pytorch.log_model(
        model,
        name="model",
        registered_model_name="alexnet",
        input_example=example.numpy(),
        extra_files=files or None,
        pip_requirements=["torch", "torchvision"],  # named: guessing them can take a minute
    )
    return str(info.registered_model_version)


def main() -> None:
    """Register the three versions, and save the golden inputs beside this file."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(2012)
    model = alexnet(weights=None).eval()
    photographs = make_photographs(SAMPLES)
    np.savez("golden.npz", input=photographs.numpy())
    example = photographs[:2]
    mlflow.set_experiment("alexnet")
    print("registered version", register(model, example, []), "as trained")  # noqa: T201
    stale = Path("model.onnx")
    export_onnx(model, example, stale)
    fine_tune(model, photographs)
    print("registered version", register(model, example, [str(stale)]), "with a stale ONNX file")  # noqa: T201
    print("registered version", register(model, example, []), "without an ONNX file")  # noqa: T201


if __name__ == "__main__":
    main()
