"""All that decides a result. Two results with the same recipe are the same bytes, so its digest is their key."""

import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

import validator
from validator.backends.catalog import REFERENCE
from validator.backends.interface import Document
from validator.manifest import digest_of, hash_file
from validator.worker.environment import INHERITED
from validator.worker.protocol import ExportJob, Job, RunJob

FORMAT = 1
"""Of an entry's bytes and of this recipe."""

EXPORT_NAME = "model.onnx"

_CPU_INFO = Path("/proc/cpuinfo")
_GPU_INFO = Path("/proc/driver/nvidia")
_VARYING = ("processor", "cpu mhz", "bogomips", "apicid", "initial apicid", "physical id", "core id")
"""Lines of a processor that differ between equal ones, or from one moment to the next."""


class Recipe(Document):
    """What was computed, from what, by what, on what and for whom."""

    format: int = FORMAT
    domain: str
    """Trust domain: results of one are never those of another."""
    tool: str
    """Version of this program."""
    source: str
    """Digest of its own files: whoever edits them gets nothing that was made before."""
    packages: str
    """Digest of every installed distribution's list of files and hashes."""
    interpreter: str
    machine: dict[str, str]
    """As the gate sees it: processor, number of CPUs, C library, GPUs and their driver."""
    fingerprint: dict[str, str]
    """As another worker of the same check reads it back from the libraries."""
    variables: dict[str, str]
    """What workers inherit of the gate's environment."""
    sandbox: str
    """Level of the worker's confinement."""
    model: str
    """Digest of every file of the model version."""
    job: Annotated[RunJob | ExportJob, Field(discriminator="task")]
    """The whole document, but paths and nonce: row with every knob, passes, threads, digest of the golden dataset."""

    @property
    def key(self) -> str:
        """64 hex digits."""
        return digest_of(self.model_dump(mode="json")).removeprefix("sha256:")


def write_recipe(
    job: RunJob | ExportJob, *, domain: str, model: str, program: str, fingerprint: Mapping[str, str], sandbox: str
) -> Recipe:
    """Describe what a job computes here and now.

    Args:
        job: as it is planned.
        domain: trust domain.
        model: digest of the model version's files.
        program: the program's path among them.
        fingerprint: what the probe of the same check read.
        sandbox: level of confinement that the job's worker gets.
    """
    return Recipe(
        domain=domain,
        tool=validator.__version__,
        source=source_digest(),
        packages=packages_digest(tuple(sys.path)),
        interpreter=f"{platform.python_implementation()} {sys.version}",
        machine=describe_machine(),
        fingerprint=dict(fingerprint),
        variables={name: os.environ[name] for name in INHERITED if name in os.environ},
        sandbox=sandbox,
        model=model,
        job=without_place(job, program),
    )


def is_dear(job: Job) -> bool:
    """Whether a job is dear, and a function of its inputs: the fp64 reference and the export.

    Candidates are what a check is about, so each is run; the baseline is one where the policy requires it, and the
    noise floor of this machine where not.
    """
    return isinstance(job, ExportJob) or (isinstance(job, RunJob) and job.backend.name == REFERENCE)


def without_place(job: RunJob | ExportJob, program: str) -> RunJob | ExportJob:
    """Return a job without what is another in every check: nonce and places of files."""
    blank = {"nonce": "", "model_path": program, "golden_path": ""}
    match job:
        case RunJob():
            return job.model_copy(update=blank)
        case ExportJob():
            return job.model_copy(update=blank | {"export_path": EXPORT_NAME})


# --- What computes ------------------------------------------------------------------------------------------------


@functools.cache
def source_digest(root: Path = Path(validator.__file__).parent) -> str:
    """Return the digest of this program's own source files, those of the worker among them."""
    return digest_of([[p.relative_to(root).as_posix(), hash_file(p)] for p in sorted(root.rglob("*.py"))])


@functools.cache
def packages_digest(places: tuple[str, ...]) -> str:
    """Return the digest of what is installed: name, version and list of files of every distribution.

    A list of files holds their hashes, so another build of the same version is seen as well. Packages that are
    installed for editing are known by their version alone.

    Args:
        places: folders that Python imports from.
    """
    found = [path for place in dict.fromkeys(places) for path in sorted(Path(place or ".").glob("*.dist-info"))]
    lists = [(path.name, path / "RECORD") for path in found]
    return digest_of([[name, hash_file(record) if record.is_file() else ""] for name, record in lists])


# --- Where --------------------------------------------------------------------------------------------------------


def describe_machine(cpu_info: Path = _CPU_INFO, gpu_info: Path = _GPU_INFO) -> dict[str, str]:
    """Return what the gate itself can see of the machine, without any library.

    Args:
        cpu_info: Linux's list of processors.
        gpu_info: folder of NVIDIA's kernel module.
    """
    first = _read(cpu_info).partition("\n\n")[0]
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip().lower() not in _VARYING]
    return {
        "processor": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "driver": _read(gpu_info / "version"),
        "gpus": "; ".join(_describe_gpu(path) for path in sorted(gpu_info.glob("gpus/*/information"))),
    }


def _describe_gpu(path: Path) -> str:
    facts = re.findall(r"^(Model|GPU UUID|Video BIOS|GPU Firmware):\s*(.*)$", _read(path), re.MULTILINE)
    return ", ".join(value.strip() for _, value in facts)


def _read(path: Path) -> str:
    """Return a file's text; nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
