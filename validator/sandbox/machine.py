"""What this machine has to hold a process with."""

import importlib
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from validator.sandbox.level import Level, Profile

LANDLOCK_ABI_MIN = 3
"""Below, a process may cut short a file that it cannot open (Linux before 6.2)."""

_GPU_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps", "nvidia-modeset", "dxg")
_GPU_SIGNS = ("/dev/nvidiactl", "/dev/dxg")
_VERSION_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was found; whether it works, only the self-test tells."""

    bubblewrap: str | None
    """Path of the program; None: not installed."""
    bubblewrap_version: str | None
    landlock_abi: int
    """0: the kernel has none, or it is switched off."""
    seccomp: bool
    """Whether libseccomp can be loaded."""
    gpu_nodes: tuple[str, ...] = ()
    """Device nodes that CUDA needs; empty: there is no GPU, or it is hidden."""

    def narrow(self, profile: Profile) -> Profile:
        """Return a profile without what is not here: a row on CUDA then has nothing to be given."""
        return profile if self.gpu_nodes else replace(profile, gpu=False)

    def has_landlock(self, profile: Profile) -> bool:
        """Whether Landlock can be put on: not where CUDA has to start, which fails under it with error 304."""
        return not profile.gpu and self.landlock_abi >= LANDLOCK_ABI_MIN

    def missing(self, level: Level, profile: Profile) -> str | None:
        """Say what a level lacks here for a profile; None: nothing, so it is worth a try."""
        match level:
            case Level.NONE:
                return None
            case Level.STANDARD if profile.gpu:
                return "CUDA does not start under Landlock"
            case Level.STRICT if self.bubblewrap is None:
                return "bubblewrap is not installed"
            case Level.STANDARD | Level.STRICT:
                pass
        if not self.seccomp:
            return "libseccomp cannot be loaded"
        if level is Level.STANDARD and not self.has_landlock(profile):
            has = f"ABI {self.landlock_abi}" if self.landlock_abi else "none"
            return f"the kernel has no Landlock of ABI {LANDLOCK_ABI_MIN} or newer, but {has}"
        return None


@cache
def look_at_machine() -> Machine:
    """Find bubblewrap, Landlock and libseccomp, once in a process."""
    bubblewrap = shutil.which("bwrap")
    return Machine(
        bubblewrap=bubblewrap,
        bubblewrap_version=None if bubblewrap is None else _read_version(bubblewrap),
        landlock_abi=_landlock_abi(),
        seccomp=_has_seccomp(),
        gpu_nodes=_find_nodes() if machine_has_gpu() else (),
    )


def machine_has_gpu() -> bool:
    """Whether a CUDA device may be here, by the look of it: a guess that costs nothing, and decides nothing."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not is_hidden and any(Path(node).exists() for node in _GPU_SIGNS)


def machine_memory() -> int | None:
    """Return the bytes of memory of this machine; None: it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _find_nodes() -> tuple[str, ...]:
    return tuple(str(node) for pattern in _GPU_NODES for node in sorted(Path("/dev").glob(pattern)))


def _read_version(bubblewrap: str) -> str | None:
    try:
        done = subprocess.run(
            [bubblewrap, "--version"], capture_output=True, text=True, check=True, timeout=_VERSION_TIMEOUT_S, env={}
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().removeprefix("bubblewrap ")[:40] or None


def _landlock_abi() -> int:
    try:
        landlock = importlib.import_module("py_landlock")
    except ImportError:
        return 0
    try:
        return int(landlock.get_abi_version())
    except (landlock.LandlockError, OSError):
        return 0


def _has_seccomp() -> bool:
    try:
        importlib.import_module("pyseccomp")
    except (ImportError, OSError, RuntimeError):  # it looks for the library when it is imported
        return False
    return True
