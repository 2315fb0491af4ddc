"""What an interpreter reads that is not a model: itself, its packages, the system's libraries."""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
SETTINGS = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/os-release",
)
"""Settings of the machine that libraries read. No password file, no keys, no host names."""
HARDWARE = ("/sys/devices/system/cpu", "/sys/devices/system/node")

_FORBIDDEN = frozenset({"/", "/home", "/root", "/tmp", "/var", "/etc", "/dev", "/proc", "/sys", "/run", "/mnt"})  # noqa: S108 - not written to


@cache
def interpreter_paths(roots: tuple[str, ...], package: str) -> tuple[str, ...]:
    """List files and folders that this interpreter and its packages are read from, each under every name it has.

    Args:
        roots: further folders that modules are imported from.
        package: this project's own folder; of an editable installation only that is shown, and not what lies beside
            it.
    """
    own_root = str(Path(package).parent)
    found = [
        *_existing(SYSTEM),
        *_existing(SETTINGS),
        *_prefixes(),
        *(root for root in roots if root != own_root),
        package,
        *_linked_packages(),
        *_libraries(),
    ]
    names = dict.fromkeys(name for path in found for name in (path, os.path.realpath(path)))
    wanted = [path for path in names if path not in _FORBIDDEN and path != str(Path.home())]
    # What lies in a folder that is shown comes with it, links and all.
    return tuple(
        path for path in wanted if not any(Path(path).is_relative_to(other) for other in wanted if other != path)
    )


def _existing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]  # noqa: PTH110 - Path.exists raises likewise


def _prefixes() -> list[str]:
    """List where the interpreter lies: its environment, what that was made from, and the links that lead there."""
    scheme = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return _existing([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *scheme, *_hops()])


def _hops() -> Iterator[str]:
    """Yield the executable under every name on the way through its links."""
    path = sys.executable
    for _ in range(40):  # as many as the kernel follows
        yield path
        if not os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises where it may not look
            return
        path = os.path.join(os.path.dirname(path), os.readlink(path))  # noqa: PTH115, PTH118, PTH120


def _linked_packages() -> Iterator[str]:
    """Yield the cache that installed packages are only links into, as some installers leave them."""
    folders = {*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    for folder in sorted(folders):
        for metadata in Path(folder).glob("*.dist-info/METADATA"):
            if metadata.is_symlink():
                # The cache holds one folder for each package; which of them are used, only their files would tell.
                yield str(metadata.resolve().parents[2])


def _libraries() -> Iterator[str]:
    """Yield the folders that the linker was told to look into."""
    for name in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if name and Path(name).is_absolute() and Path(name).is_dir():
            yield name
