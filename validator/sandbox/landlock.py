"""Landlock: files that are not named cannot be opened."""

from pathlib import Path

from validator.sandbox.confinement import Confinement
from validator.sandbox.level import Level
from validator.sandbox.paths import HARDWARE

_OWN = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/filesystems")
"""What of /proc a program reads about itself and the machine; no other process is among it."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def restrict_files(confinement: Confinement) -> None:
    """Confine this process, and all that it will start, to what is named; for good.

    TCP, signals to processes outside and abstract sockets are refused, too, where the kernel knows how.

    Raises:
        py_landlock.LandlockError: the kernel does not do it.
        OSError: likewise.
    """
    from py_landlock import AccessFs, Landlock

    reading = AccessFs.READ_FILE | AccessFs.READ_DIR
    code = reading | AccessFs.EXECUTE if confinement.profile.compiles else reading
    writing = (
        reading | AccessFs.WRITE_FILE | AccessFs.TRUNCATE | AccessFs.REFER
        | AccessFs.MAKE_REG | AccessFs.MAKE_DIR | AccessFs.MAKE_SYM | AccessFs.MAKE_FIFO
        | AccessFs.REMOVE_FILE | AccessFs.REMOVE_DIR
    )  # fmt: skip
    rules = Landlock(strict=False)

    def allow(path: str, access: AccessFs) -> None:
        # A rule about a file may name nothing that only folders have.
        place = Path(path)
        only_file = AccessFs.READ_FILE | AccessFs.WRITE_FILE | AccessFs.TRUNCATE | AccessFs.EXECUTE
        if place.exists():
            rules.add_path_rule(place, access=access if place.is_dir() else access & only_file)

    for path in (*confinement.program, *HARDWARE):
        allow(path, code)
    for path in (*confinement.inputs, *_OWN):
        allow(path, reading)
    for path in _DEVICES:
        allow(path, AccessFs.READ_FILE | AccessFs.WRITE_FILE)
    if confinement.level is Level.STRICT:  # there they are private
        for path in ("/tmp", "/dev/shm"):  # noqa: S108
            allow(path, writing)
    allow(confinement.home, writing | AccessFs.EXECUTE if confinement.profile.compiles else writing)
    rules.apply()
