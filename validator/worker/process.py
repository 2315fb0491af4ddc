"""A worker as an operating system sees it: a process, its group, three pipes. Linux.

Every process that the worker starts is in its group, unless it leaves it on purpose; then only a sandbox with a
process namespace of its own can find it.
"""

import contextlib
import ctypes
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from validator.sandbox.bubblewrap import INNER_PARENT

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_READ_BYTES = 1 << 20
_REAP_LIMIT_S = 30.0
_SHELL_SIGNAL = 128

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


def count_memory_kills() -> int:
    """Return how often the kernel killed a process of this control group for want of memory; 0: it does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
        events = (Path("/sys/fs/cgroup") / group.lstrip("/") / "memory.events").read_text().split()
        return int(events[events.index("oom_kill") + 1])
    return 0


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class WorkerProcess:
    """A running worker. Leaving the `with` block kills whatever is left of its group.

    Its standard input is open until it is sent its document. The result pipe's descriptor and its parent's id are
    appended to the command. Must be started and left in one thread: a worker dies with the thread that started it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        outside: Sequence[str] = (),
        home: Path,
        environment: Mapping[str, str],
        log: Sink,
    ) -> None:
        """Start it.

        Args:
            command: program and arguments.
            outside: program and arguments that give it a process namespace, and end in `--`; empty: it has none.
            home: its current folder.
            environment: all of it.
            log: takes what it writes to its standard output and error.
        """
        with contextlib.ExitStack() as undo:
            job_end, job_start = _pipe(undo)
            result_end, result_start = _pipe(undo)
            log_end, log_start = _pipe(undo)
            alive_end, alive_start = _pipe(undo)
            selector = undo.enter_context(selectors.DefaultSelector())
            for ours in (job_start, result_end, log_end, alive_end):
                os.set_blocking(ours, False)
            selector.register(log_end, selectors.EVENT_READ, log)
            self._process = subprocess.Popen(
                [
                    *_keep_open(outside, alive_start),
                    *command,
                    str(result_start),
                    str(INNER_PARENT if outside else os.getpid()),
                ],
                stdin=job_end,
                stdout=log_start,
                stderr=log_start,
                pass_fds=(result_start, alive_start) if outside else (result_start,),
                cwd=home,
                env=dict(environment),
                start_new_session=True,
                umask=0o077,
            )
            # Only the worker may hold these, or the pipes would never end.
            for theirs in (job_end, result_start, log_start, alive_start):
                os.close(theirs)
            undo.pop_all()
        self._selector = selector
        self._open = {job_start, result_end, log_end, alive_end}
        self._job_start, self._result_end, self._alive_end = job_start, result_end, alive_end
        self._is_wrapped = bool(outside)
        self._unsent = memoryview(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reap()
        self._selector.close()
        for end in self._open:
            os.close(end)

    def has_exited(self) -> bool:
        """Whether it has; it stays a zombie, so that its id, and its group's, cannot become another's."""
        if self._process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def send(self, document: bytes, results: Sink) -> None:
        """Give it its document, once. It goes out while `pump` is called, and standard input ends behind it.

        Args:
            document: not empty.
            results: takes what it writes to the result pipe, also what it has written already.
        """
        self._unsent = memoryview(document)
        self._selector.register(self._job_start, selectors.EVENT_WRITE)
        self._selector.register(self._result_end, selectors.EVENT_READ, results)

    def pump(self, timeout_s: float) -> bool:
        """Move what can be moved through the pipes, waiting no longer than that; False: nothing could."""
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return False
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if key.fd == self._job_start:
                self._write_on()
            elif data := os.read(key.fd, _READ_BYTES):
                key.data(data)
            else:
                self._close(key.fd)
        return bool(ready)

    def _write_on(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._job_start, self._unsent) :]
        except BrokenPipeError:  # it has closed its input or is gone: its outcome will tell
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._close(self._job_start)

    def _close(self, end: int) -> None:
        self._selector.unregister(end)
        self._open.remove(end)
        os.close(end)

    def terminate(self) -> None:
        """Ask the group to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the group."""
        self._signal(signal.SIGKILL)

    def reap(self) -> int:
        """Kill the group and return the worker's exit status; negative: the signal that ended it.

        Of a namespace every process is gone then, also one that has left the group.
        """
        self.kill()
        try:
            status = self._process.wait(_REAP_LIMIT_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL  # stuck in the kernel, in a driver most likely: it cannot run on, only hang
        if self._is_wrapped:
            # Its first process holds the other end, and the kernel lets that go last.
            gone = select.poll()
            gone.register(self._alive_end, select.POLLHUP)
            gone.poll(_REAP_LIMIT_S * 1_000)
            if _SHELL_SIGNAL < status <= _SHELL_SIGNAL + signal.NSIG:
                return _SHELL_SIGNAL - status  # it tells of a signal as a shell does
        return status

    def _signal(self, number: signal.Signals) -> None:
        # Once reaped, the id may belong to somebody else.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def _keep_open(outside: Sequence[str], end: int) -> list[str]:
    """Let what makes the namespace keep a descriptor open as long as that lives."""
    return [outside[0], "--sync-fd", str(end), *outside[1:]] if outside else []


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends
