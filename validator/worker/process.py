"""A worker as an operating system sees it: a process, its group, two pipes. Linux.

Every process that the worker starts is in its group, unless it leaves it on purpose; then only a sandbox with a
process namespace of its own can find it.
"""

import contextlib
import ctypes
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_READ_BYTES = 1 << 20
_REAP_LIMIT_S = 30.0

Sink = Callable[[bytes], None]


def hide_from_workers() -> None:
    """Close this process's /proc/self/environ and memory to other processes of the same user.

    Holds until the process ends, and for root's workers not at all. The price: no core dumps of the gate, and no
    debugger attaches to it. Does nothing where there is no prctl.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the thread that started it ends. Called first thing in a worker.

    Raises:
        SystemExit: the parent is gone already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the gate that started this worker is gone")


def forbid_core_dumps() -> None:
    """Let no crash write a core file: it would hold the model, and fill the disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class WorkerProcess:
    """A running worker. Leaving the `with` block kills whatever is left of its group.

    The result pipe's descriptor and this process's id are appended to the command. Must be started and left in one
    thread: a worker dies with the thread that started it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        document: Path,
        home: Path,
        environment: Mapping[str, str],
        results: Sink,
        log: Sink,
    ) -> None:
        """Start it.

        Args:
            command: program and arguments.
            document: file that is its standard input.
            home: its current folder.
            environment: all of it.
            results: takes what it writes to the result pipe.
            log: takes what it writes to its standard output and error.
        """
        with contextlib.ExitStack() as undo:
            result_end, result_start = _pipe(undo)
            log_end, log_start = _pipe(undo)
            selector = undo.enter_context(selectors.DefaultSelector())
            for end, sink in ((result_end, results), (log_end, log)):
                os.set_blocking(end, False)
                selector.register(end, selectors.EVENT_READ, sink)
            with document.open("rb") as stdin:
                self._process = subprocess.Popen(
                    [*command, str(result_start), str(os.getpid())],
                    stdin=stdin,
                    stdout=log_start,
                    stderr=log_start,
                    pass_fds=(result_start,),
                    cwd=home,
                    env=dict(environment),
                    start_new_session=True,
                    umask=0o077,
                )
            # Only the worker may hold these, or the pipes would never end.
            os.close(result_start)
            os.close(log_start)
            undo.pop_all()
        self._selector = selector

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_LIMIT_S)

    def has_exited(self) -> bool:
        """Whether it has; it stays a zombie, so that its id, and its group's, cannot become another's."""
        if self._process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def pump(self, timeout_s: float) -> bool:
        """Hand what has arrived to the sinks, waiting for it no longer than that; False: nothing came."""
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return False
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            data = os.read(key.fd, _READ_BYTES)
            if data:
                key.data(data)
            else:
                self._selector.unregister(key.fd)
                os.close(key.fd)
        return bool(ready)

    def terminate(self) -> None:
        """Ask the group to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the group."""
        self._signal(signal.SIGKILL)

    def reap(self) -> int:
        """Kill the group and return the worker's exit status; negative: the signal that ended it."""
        self.kill()
        try:
            return self._process.wait(_REAP_LIMIT_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL  # stuck in the kernel, in a driver most likely: it cannot run on, only hang

    def _signal(self, number: signal.Signals) -> None:
        # Once reaped, the id may belong to somebody else.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends
