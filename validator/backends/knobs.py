"""PyTorch's global switches: each set on purpose, each read back.

Only the new precision switches are used (`fp32_precision`): mixing them with `allow_tf32` raises in torch, and reading
one kind after setting the other says nothing.
"""

import os
import random
from typing import Any

import numpy as np
import torch

from validator.backends.catalog import SEED, Backend, Setting

UNREADABLE = "unreadable"
_cuda: Any = torch.cuda
_backends: Any = torch.backends  # its modules replace themselves at import, which type checkers cannot follow


def set_knobs(row: Backend) -> None:
    """Set each switch that moves a number, whatever it was."""
    on_cpu = row.device_type == "cpu"
    _backends.cuda.matmul.fp32_precision = "ieee" if on_cpu else row.matmul_precision
    _backends.cudnn.conv.fp32_precision = "ieee" if on_cpu else row.conv_precision
    _backends.cudnn.rnn.fp32_precision = "ieee" if on_cpu else row.conv_precision
    _backends.mkldnn.matmul.fp32_precision = row.matmul_precision if on_cpu else "ieee"
    _backends.mkldnn.conv.fp32_precision = row.conv_precision if on_cpu else "ieee"
    _backends.mkldnn.rnn.fp32_precision = row.conv_precision if on_cpu else "ieee"
    _backends.cudnn.enabled = row.cudnn
    _backends.cudnn.benchmark = row.cudnn_benchmark
    _backends.cudnn.deterministic = row.deterministic
    _backends.mkldnn.enabled = row.onednn
    torch.use_deterministic_algorithms(row.deterministic)
    seed_everything()


def seed_everything() -> None:
    """Seed once per process: a model that draws numbers must differ when it is run again."""
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - the generator that models use
    torch.manual_seed(SEED)  # CUDA's generators, too


def read_knobs(row: Backend) -> dict[str, Setting]:
    """Read the switches back, and the environment's variables."""
    matmul, conv, rnn = _precisions(row)
    cudnn_is_on = bool(_backends.cudnn.enabled)
    if row.device_type == "cuda":
        cudnn_is_on = cudnn_is_on and _backends.cudnn.is_available()
    settings: dict[str, Setting] = {
        "matmul_precision": matmul,
        "conv_precision": conv if conv == rnn else f"conv {conv}, rnn {rnn}",
        "cudnn": cudnn_is_on,
        "cudnn_benchmark": bool(_backends.cudnn.benchmark),
        "deterministic": _read_deterministic(),
        "onednn": bool(_backends.mkldnn.enabled),
        "seed": read_seed(row),
    }
    return settings | read_variables(row)


def _precisions(row: Backend) -> tuple[str, str, str]:
    """Return the precision of matmul, convolution and RNN that holds on the row's device."""
    if row.device_type == "cuda":
        found = (
            _backends.cuda.matmul.fp32_precision,
            _backends.cudnn.conv.fp32_precision,
            _backends.cudnn.rnn.fp32_precision,
        )
    else:
        found = (
            _backends.mkldnn.matmul.fp32_precision,
            _backends.mkldnn.conv.fp32_precision,
            _backends.mkldnn.rnn.fp32_precision,
        )
    return found


def _read_deterministic() -> Setting:
    """Return True or False only where torch's two switches agree and neither merely warns."""
    forced = torch.are_deterministic_algorithms_enabled()
    if torch.is_deterministic_algorithms_warn_only_enabled():
        return "warns only"
    if forced != bool(_backends.cudnn.deterministic):
        return f"torch {forced}, cudnn {_backends.cudnn.deterministic}"
    return forced


def read_seed(row: Backend) -> Setting:
    """Return torch's seed; the device's own generator must have the same."""
    seed = torch.initial_seed()
    if row.device_type == "cuda" and _cuda.is_initialized():  # before that there is no generator to ask
        on_device = torch.cuda.default_generators[row.device_index].initial_seed()
        if on_device != seed:
            return f"cpu {seed}, cuda {on_device}"
    return seed


def read_variables(row: Backend) -> dict[str, Setting]:
    """Return the environment's variables that the row asks for."""
    return {f"env:{key}": os.environ.get(key, "unset") for key in row.environment}


def read_autocast(device_type: str) -> Setting:
    """Return the dtype that operators are cast to right now, or `off`."""
    if not torch.is_autocast_enabled(device_type):
        return "off"
    return str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")


def more_notes() -> dict[str, str]:
    """Return what else may move a number and is not a row's to choose."""
    found: tuple[tuple[str, object], ...] = (
        ("oneDNN available", _backends.mkldnn.is_available()),
        ("fp16 reduced-precision reduction", _backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        ("bf16 reduced-precision reduction", _backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        ("flash attention", _backends.cuda.flash_sdp_enabled()),
        ("memory-efficient attention", _backends.cuda.mem_efficient_sdp_enabled()),
    )
    return {name: str(value) for name, value in found}
