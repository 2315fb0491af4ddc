import random
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from validator.backends.interface import ModelFile

DYNAMIC = torch.export.Dim.DYNAMIC


@dataclass
class Input:
    name: str


class FakeGolden:
    """Inputs by name, of any number of samples."""

    def __init__(self, **arrays):
        self.arrays = arrays
        self.inputs = [Input(name) for name in arrays]

    def read_torch(self, start, stop):
        return {name: array[start:stop] for name, array in self.arrays.items()}


@pytest.fixture
def fake_golden():
    return FakeGolden


@pytest.fixture(autouse=True)
def _restore_torch():
    """Sessions set global switches, on purpose: one per process. Tests share a process."""
    backends = torch.backends
    switches = [
        (backends.cuda.matmul, "fp32_precision"),
        *((part, "fp32_precision") for part in (backends.cudnn.conv, backends.cudnn.rnn)),
        *((getattr(backends.mkldnn, name), "fp32_precision") for name in ("matmul", "conv", "rnn")),
        (backends.mkldnn, "enabled"),
        *((backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    ]
    before = [getattr(holder, name) for holder, name in switches]
    is_forced = torch.are_deterministic_algorithms_enabled()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    default = torch.get_default_dtype()
    torch.manual_seed(0)
    yield
    for (holder, name), value in zip(switches, before, strict=True):
        setattr(holder, name, value)
    torch.use_deterministic_algorithms(is_forced)
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
    assert torch.get_default_dtype() is default


@pytest.fixture
def save_program(tmp_path):
    """Export a module with a batch that varies (or the example's) and save it as torch and MLflow do."""

    def save(module, *args, kwargs=None, static=False, train=False, name="model.pt2", shapes=None):
        module.train(train)
        if shapes is None and not static:
            shapes = tuple({0: DYNAMIC} for _ in args)
        path = tmp_path / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, while exporting an LSTM
            torch.export.save(torch.export.export(module, args, kwargs, dynamic_shapes=shapes), path)
        return path

    return save


@pytest.fixture
def model_file():
    def make(path, *names, model_format="torch.export", outputs=None):
        return ModelFile(path=path, format=model_format, input_names=names, output_names=outputs)

    return make
