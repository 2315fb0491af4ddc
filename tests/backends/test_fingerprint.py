import platform
import sys

import torch

from validator.backends.fingerprint import fingerprint


def test_every_part_has_a_text():
    found = fingerprint()
    assert set(found) == {
        *("python", "platform", "cpu", "cpu_capability", "numpy", "torch"),
        *("onnxruntime", "cuda", "cudnn", "driver", "gpu"),
    }
    assert all(isinstance(text, str) and text for text in found.values())
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__


def test_what_is_not_loaded_is_not_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert fingerprint()["onnxruntime"] == "none"
    assert "onnxruntime" not in sys.modules
