"""A file system, a network and a process namespace of its own, by bubblewrap."""

import os
from pathlib import Path

from validator.sandbox.confinement import Confinement
from validator.sandbox.machine import Machine
from validator.sandbox.paths import HARDWARE

INNER_PARENT = 1
"""Process id, as seen from inside, of what starts the confined process."""

_NOBODY = "65534"


def wrap(confinement: Confinement, machine: Machine) -> list[str]:
    """Return the command that a confined command is to be appended to.

    The environment must be scrubbed by whoever starts it: bubblewrap itself stays, visible from inside, with the
    environment that it was started with. What is started does not get a session of its own, so that it can be
    signalled as a group; who starts it must have given it one.

    Raises:
        ValueError: there is no bubblewrap.
    """
    if machine.bubblewrap is None:
        raise ValueError("bubblewrap is not installed")
    return [
        machine.bubblewrap,
        *("--unshare-all", "--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY),
        *("--die-with-parent", "--cap-drop", "ALL"),
        *("--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"),  # noqa: S108 - it is private
        *_devices(confinement, machine),
        *(word for path in confinement.program for word in _show(path)),
        *("--bind", confinement.home, confinement.home),
        *(word for path in confinement.inputs for word in ("--ro-bind", os.path.realpath(path), path)),
        *("--remount-ro", "/"),
        *("--chdir", confinement.home, "--"),
    ]


def _show(path: str) -> tuple[str, ...]:
    """Show a file or folder under its own name; a link of the root folder stays one."""
    place = Path(path)
    if place.is_symlink() and place.parent == Path("/"):
        return ("--symlink", str(place.readlink()), path)
    return ("--ro-bind-try", os.path.realpath(path), path)


def _devices(confinement: Confinement, machine: Machine) -> list[str]:
    """Show what is known about the processor, or the whole of /sys and the GPU's nodes: CUDA needs both."""
    if not confinement.profile.gpu:
        return [word for path in HARDWARE for word in ("--ro-bind-try", path, path)]
    return [
        *("--ro-bind", "/sys", "/sys"),
        *(word for node in machine.gpu_nodes for word in ("--dev-bind", node, node)),
    ]
