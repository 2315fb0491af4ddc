"""rlimits: what a process may take."""

import resource

from validator.sandbox.confinement import ResourceLimits

MAPPED_BYTES = 1 << 35
"""Address space beside the memory: libraries are mapped into it, and memory allocators reserve more than they use."""


def limit_resources(limits: ResourceLimits, *, memory: bool) -> None:
    """Lower this process's limits, for good. What is lower already stays.

    Args:
        limits: of each kind.
        memory: whether memory is limited, too; CUDA reserves more address space than any machine has.
    """
    _lower(resource.RLIMIT_CORE, 0)  # it would hold the model, and fill the disk
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_NPROC, limits.processes)
    if memory and limits.memory_bytes is not None:
        _lower(resource.RLIMIT_DATA, limits.memory_bytes)
        # Shared memory does not count as data, and must not be a way round it.
        _lower(resource.RLIMIT_AS, limits.memory_bytes + MAPPED_BYTES)


def _lower(kind: int, wanted: int | None) -> None:
    if wanted is None:
        return
    _, hard = resource.getrlimit(kind)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (limit, limit))
