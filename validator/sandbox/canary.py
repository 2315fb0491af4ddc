"""`python -P -m validator.sandbox.canary < attempts.json`: confined like a worker, tries to get out, and tells.

Started by `selftest`, which believes its own ears before what is told here.
"""

import contextlib
import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from validator.sandbox.confinement import Confinement
from validator.sandbox.enter import enter, take_confinement

_TIMEOUT_S = 2.0
_READ_BYTES = 4096


def main() -> None:
    """Put the confinement on, try everything, print one JSON object."""
    attempts = json.loads(sys.stdin.buffer.read())
    confinement = take_confinement()
    enter(confinement)
    print(json.dumps(try_everything(attempts, confinement)), flush=True)  # noqa: T201 - that is how it tells
    os._exit(0)


def try_everything(attempts: dict[str, Any], confinement: Confinement) -> dict[str, Any]:
    """Return what came of each attempt; texts that it got hold of are given back as they are."""
    return {
        "input": _read(attempts["input"]),
        "home": _write(attempts["home"]),
        "files": {path: _read(path) for path in attempts["files"]},
        "written": {path: _write(path) for path in attempts["written"]},
        "tcp": _connect(attempts["tcp"]),
        "udp": _send(attempts["udp"], attempts["word"]),
        "program": None if confinement.profile.compiles else _execute(),
        "device": _count_devices() if confinement.profile.gpu else None,
    }


def _read(path: str) -> str | None:
    with contextlib.suppress(OSError):
        return read_text(Path(path))
    return None


def read_text(path: Path) -> str:
    """Return the beginning of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        return stream.read(_READ_BYTES).decode(errors="replace")


def _write(path: str) -> bool:
    with contextlib.suppress(OSError):
        Path(path).write_text("written", encoding="utf-8")
        return True
    return False


def _connect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S):
        return True
    return False


def _send(port: int, word: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(word.encode(), ("127.0.0.1", port))
        return True
    return False


def _execute() -> bool:
    """Try to become another program, in a child where there may be one."""
    with contextlib.suppress(OSError):
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status) == 0
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, "-c", ""])  # noqa: S606 - it must not start
        os._exit(1)
    return False


def _count_devices() -> int | None:
    """Ask the CUDA driver itself; negative: its error; None: it cannot be loaded."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(0)
    error = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return -int(error) if error else count.value


if __name__ == "__main__":
    main()
