"""What a worker ran on: libraries, driver, GPU, CPU. Compared with what a budget was calibrated on."""

import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

UNKNOWN = "unreadable"
NONE = "none"
_backends: Any = torch.backends  # partly untyped


PRESENT = "present"
"""A GPU that nobody has started, and whose name is not known therefore."""


def bare_fingerprint() -> dict[str, str]:
    """Return what can be told without starting a GPU or importing another library."""
    has_gpu = torch.cuda.device_count() > 0
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or NONE,
        "cudnn": str(_backends.cudnn.version() or NONE) if has_gpu else NONE,
        "driver": _driver_version(),
        "gpu": PRESENT if has_gpu else NONE,
    }


def fingerprint(*, device_index: int = 0) -> dict[str, str]:
    """Return versions and hardware, each a short text; `none` where there is no such thing."""
    found = bare_fingerprint() | {"onnxruntime": _onnxruntime_version(), "cudnn": NONE, "gpu": NONE}
    if torch.cuda.is_available() and device_index < torch.cuda.device_count():
        properties = torch.cuda.get_device_properties(device_index)
        found["gpu"] = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
        found["cudnn"] = str(_backends.cudnn.version() or NONE)
    return found


def _onnxruntime_version() -> str:
    """Name the version only where it is loaded: importing it here would change what is measured."""
    module = sys.modules.get("onnxruntime")
    return str(getattr(module, "__version__", UNKNOWN)) if module is not None else NONE


def _cpu_model() -> str:
    """Read the processor's name from Linux; elsewhere what Python knows."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or UNKNOWN
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or UNKNOWN


def _driver_version() -> str:
    """Read the kernel module's version; a sandbox may hide it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return UNKNOWN if torch.cuda.is_available() else NONE
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return match[1] if match else UNKNOWN
