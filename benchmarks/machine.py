"""The machine that numbers come from."""

import os
import platform
from pathlib import Path

import onnxruntime
import torch
from pydantic import BaseModel, ConfigDict


class Machine(BaseModel):
    """What a reader needs to know of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processor: str
    cores: int
    gpu: str | None
    torch: str
    onnxruntime: str
    python: str

    def __str__(self) -> str:
        """Write it as a phrase."""
        gpu = self.gpu or "no GPU"
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        versions = f"torch {self.torch}, ONNX Runtime {self.onnxruntime}, Python {self.python}"
        return f"{self.processor}, {cores}, {gpu}; {versions}"


def this_machine() -> Machine:
    """Describe this one."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        torch=torch.__version__,
        onnxruntime=onnxruntime.__version__,
        python=platform.python_version(),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
