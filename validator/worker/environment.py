"""The environment of a worker: built from nothing, so that no credential can be forgotten in it."""

import importlib.util
import os
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from validator.worker.warm import WarmSpec

INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)
"""All that a worker sees of its parent's environment. Variables that move numbers (NVIDIA_TF32_OVERRIDE and the
like) are not among them on purpose: those belong into a catalog row, where the report shows them."""

_PACKAGES = ("validator", "torch", "onnxruntime", "onnx", "onnxscript", "pydantic", "safetensors", "numpy")


def worker_environment(spec: WarmSpec, *, home: Path, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the whole environment of a worker.

    Args:
        spec: its variables and thread count are set.
        home: the worker's own folder, for all that wants to write somewhere.
        inherited: where the few variables on the allow-list come from.
    """
    threads = str(spec.threads)
    return (
        {name: inherited[name] for name in INHERITED if name in inherited}
        | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        # Threads that have nothing to do sleep, instead of spinning on the cores that another worker computes on.
        | {"OMP_WAIT_POLICY": "PASSIVE"}
        | dict(spec.variables)
        | {
            "HOME": str(home),
            "TMPDIR": str(home),
            "XDG_CACHE_HOME": str(home),
            "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
            "TRITON_CACHE_DIR": str(home / "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": threads,
            # Compilers ask who they are to name their caches; the uid may have no entry in the password file.
            "USER": "validator-worker",
            "PYTHONPATH": os.pathsep.join(import_roots()),
            "PYTHONSAFEPATH": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MLFLOW_ALLOW_MODEL_CODE_EXECUTION": "false",
            "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
            "HF_HUB_OFFLINE": "1",
        }
    )


def import_roots(packages: Iterable[str] = _PACKAGES) -> list[str]:
    """Return the folders from which this process imports what a worker needs and a bare interpreter would not find.

    They are few, and none is the current folder unless the program itself lies there: a worker must import the same
    code as its parent, and nothing else.
    """
    found_anyway = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    roots = (_root(package) for package in packages)
    wanted = (root for root in roots if root is not None and root.resolve() not in found_anyway)
    return list(dict.fromkeys(map(str, wanted)))


def _root(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    # Links are not followed: installers link single files out of a cache, whose folders hold one package each.
    return Path(spec.origin).absolute().parents[1]
