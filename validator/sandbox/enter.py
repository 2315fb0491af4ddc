"""From inside: the process puts on what is left of its confinement, before it imports anything foreign."""

import ctypes
import os

from validator.sandbox.confinement import VARIABLE, Confinement
from validator.sandbox.landlock import restrict_files
from validator.sandbox.level import Level
from validator.sandbox.limits import limit_resources
from validator.sandbox.seccomp import refuse_calls

_CAPABILITY_VERSION_3 = 0x20080522


def take_confinement() -> Confinement:
    """Return the confinement that this process was started with, and forget it.

    Raises:
        KeyError: there is none; then nobody knows what may run here.
    """
    return Confinement.from_json(os.environ.pop(VARIABLE))


def enter(confinement: Confinement) -> None:
    """Put on rlimits, Landlock and seccomp, as the confinement says; for good.

    Raises:
        OSError, RuntimeError: something cannot be put on. The process must not go on then.
    """
    limit_resources(confinement.limits, memory=not confinement.profile.gpu)
    if confinement.level is Level.NONE:
        return
    import pyseccomp  # noqa: F401 - it asks a program where the library lies: now, while it can still start one

    if confinement.has_landlock:
        restrict_files(confinement)
    _drop_capabilities()
    refuse_calls(confinement)


def _drop_capabilities() -> None:
    """Give up what root may do beyond its own files. With no new privileges, nothing brings it back.

    Raises:
        OSError: the kernel does not do it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.capset(ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
