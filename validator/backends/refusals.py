"""From a foreign exception to a `BackendRefusal`: whose fault it is, and one clean line about it."""

import re

import torch

from validator.backends.catalog import Backend
from validator.backends.interface import BackendRefusal, RefusalKind

MESSAGE_LIMIT = 500
"""Characters of a foreign message that are kept."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a1-\u024f\u2010-\u2027]+")

# Names of failures, of CUDA most of them, that say something about the machine and nothing about the model.
_MACHINE = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA driver version is insufficient",
    "Found no NVIDIA driver",
    "no CUDA-capable device is detected",
    "no kernel image is available",
    "Torch not compiled with CUDA enabled",
    "Failed to allocate memory for requested buffer",
    "BFCArena",
    "DefaultCPUAllocator",
    "bad_alloc",
    "bad allocation",
    "Cannot allocate memory",
)

_LAYOUT = "view size is not compatible with input tensor's size and stride"
_LAYOUT_MEANING = (
    "the program was exported for the memory layout of another device: export it on the one that serves it"
)


def clean_line(text: str) -> str:
    """Return the first non-empty line of a message: no escapes, no control characters, bounded."""
    lines = (_UNPRINTABLE.sub(" ", _ESCAPES.sub("", line)).strip() for line in text.splitlines())
    line = next((line for line in lines if line), "no message")
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 3] + "..."


def refusal_from(error: BaseException, stage: str) -> BackendRefusal:
    """Say whose fault a foreign exception is: the machine's where it ran out of something, else the model's."""
    if isinstance(error, BackendRefusal):
        return error
    text = str(error)
    line = f"{type(error).__name__}: {clean_line(text)}"
    if _LAYOUT in text:
        line = f"{line} ({_LAYOUT_MEANING})"
    out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if out_of_memory or any(name in text for name in _MACHINE):
        return BackendRefusal(RefusalKind.UNAVAILABLE, "device", line)
    return BackendRefusal(RefusalKind.MODEL, stage, line)


def require_device(row: Backend) -> None:
    """Make sure that the row's device is there.

    Raises:
        BackendRefusal: unavailable.
    """
    if row.device_type == "cpu":
        return
    if row.device_type != "cuda":
        raise BackendRefusal(
            RefusalKind.UNAVAILABLE, "device", f"{row.name} asks for {row.device}: only cpu and cuda are known"
        )
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"built for CUDA {built}, no usable GPU or driver" if built else "this torch is built without CUDA"
        raise BackendRefusal(RefusalKind.UNAVAILABLE, "device", f"{row.name} asks for {row.device}: {why}")
    count = torch.cuda.device_count()
    if row.device_index >= count:
        raise BackendRefusal(
            RefusalKind.UNAVAILABLE, "device", f"{row.name} asks for {row.device}: there are {count} CUDA devices"
        )


def model_refusal(stage: str, message: str) -> BackendRefusal:
    """Return a refusal that is the model's fault."""
    return BackendRefusal(RefusalKind.MODEL, stage, clean_line(message))


def format_refusal(message: str) -> BackendRefusal:
    """Return a refusal that is the file's fault."""
    return BackendRefusal(RefusalKind.FORMAT, "vet", clean_line(message))
