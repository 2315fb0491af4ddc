"""Warm starts: what a worker can get ready before its job is known.

Half of a short job is imports. They depend on the kind of job alone, so a worker imports first and asks for its job
then. Nothing of a model is touched and no switch of a library is set before the job is there.
"""

import contextlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from validator.backends.catalog import Backend, Runtime
from validator.sandbox.level import PLAIN, Profile
from validator.worker.protocol import ExportJob, Job, ProbeJob, RunJob, SurveyJob, WeightsJob


class Kit(StrEnum):
    """What a worker imports ahead of its job."""

    TORCH = Runtime.TORCH.value
    ONNXRUNTIME = Runtime.ONNXRUNTIME.value
    PROBE = "probe"
    EXPORT = "export"


PROBE_PROFILE = Profile(gpu=True)
"""The probe says whether there is a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSpec:
    """All that a worker's process depends on; two jobs with the same need the same process."""

    kit: Kit
    threads: int
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of a row, which libraries read when they are imported."""
    profile: Profile = PLAIN
    """What the sandbox around it must leave open."""

    @classmethod
    def of_row(cls, row: Backend, *, threads: int) -> Self:
        """Return what the worker of a row needs."""
        return cls(
            kit=Kit(row.runtime.value),
            threads=threads,
            variables=tuple(sorted(row.environment.items())),
            profile=Profile(gpu=row.device_type == "cuda", compiles=row.compile is not None),
        )

    @classmethod
    def of_job(cls, job: Job) -> Self:
        """Return what the worker of a job needs."""
        match job:
            case RunJob():
                return cls.of_row(job.backend, threads=job.threads)
            case ProbeJob() | SurveyJob():
                return cls(kit=Kit.PROBE, threads=job.threads, profile=PROBE_PROFILE)
            case ExportJob() | WeightsJob():
                return cls(kit=Kit.EXPORT, threads=job.threads)


# --- In the worker --------------------------------------------------------------------------------------------

_LOADING = (
    "torch._export.serde.serialize",
    "torch.export.pt2_archive._package",
    "torch.export._trace",
    "torch.export._unlift",
)
"""What `torch.export.load` imports when it is first called: most of torch's compiler, and sympy."""

_EXPORTING = (
    "onnxscript.function_libs.torch_lib.ops",
    "onnxscript.optimizer",
    "onnxscript.version_converter",
    "torch.onnx._internal.exporter._core",
)
"""What `torch.onnx.export` imports when it is first called."""

_CHILD = "validator.worker.child"

MODULES: Mapping[Kit, tuple[str, ...]] = MappingProxyType(
    {
        Kit.TORCH: (_CHILD, "validator.backends.torch_eager", *_LOADING),
        Kit.ONNXRUNTIME: (_CHILD, "validator.backends.onnx_runtime"),
        Kit.PROBE: (_CHILD, "validator.backends.probe", *_LOADING),
        Kit.EXPORT: (_CHILD, "validator.backends.probe", *_LOADING, *_EXPORTING),
    }
)
"""Names of other projects' modules may be gone in their next version: then the job imports what it needs, later."""


def warm_up(kit: Kit) -> None:
    """Import what the kit names, and find the GPU if there is one. Whatever fails will fail again for the job."""
    for module in MODULES[kit]:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    with contextlib.suppress(Exception):
        _find_gpu(kit)


def _find_gpu(kit: Kit) -> None:
    """Initialise CUDA: the worker of every row does, at the latest for its fingerprint. Computes nothing."""
    import torch

    if kit in (Kit.PROBE, Kit.EXPORT) or not torch.cuda.is_available():
        return
    torch.cuda.init()  # type: ignore[no-untyped-call]
    if kit is Kit.ONNXRUNTIME:
        import onnxruntime

        onnxruntime.preload_dlls()
