"""The one place where exceptions become messages and exit codes.

What may not be changed lightly: every way out of this module is one of the exit codes of `errors.ExitCode`, and 0 is
said only by a command that returned it and whose output arrived. click alone would drop a command's return value,
exit 1 on Ctrl-C, as a failed check does, and exit 0 although standard output was full.
"""

import contextlib
import errno
import importlib
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO, assert_never

import click

import validator
from validator.errors import ExitCode, ReportFailed, ValidatorError

APP = ("validator.cli.main", "app")
"""By name: the boundary stands below the commands, and a command that cannot be imported is an error like others."""

DEBUG_OPTION = "--debug"

_WAKING = signal.SIGURG
"""Sent to ourselves, to interrupt a call that blocks. Ignored by whoever does not handle it."""
_WAKE_S = 0.2
"""Seconds that the main thread has to see a signal by itself, and between two that wake it."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    code = run(_load_app, given, debug=DEBUG_OPTION in given)
    _leave(code)


def _load_app() -> click.Command:
    module, name = APP
    app: click.Command = getattr(importlib.import_module(module), name)
    return app


def run(load: Callable[[], click.Command], arguments: Sequence[str], *, debug: bool) -> ExitCode:
    """Run a click command and return the exit code of whatever became of it.

    Args:
        load: imports the command; a failure in it is reported like any other.
        arguments: without the program's name.
        debug: print tracebacks as well as keeping them in a file.
    """
    _prepare_streams()
    try:
        with _termination_as_interrupt(), _signals_that_wake():
            returned = load().main(args=list(arguments), prog_name="validator", standalone_mode=False)
        code = _code_of(returned)
        _flush_output()
    except ValidatorError as error:
        code = _tell(error, debug=debug)
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted: nothing is cleared")
        code = ExitCode.INTERRUPTED
    except click.exceptions.Exit as stop:
        code = _code_of(stop.exit_code)
    except click.ClickException as error:
        code = _tell_usage(error)
    except BrokenPipeError:
        code = _leave_pipe()
    except SystemExit as stop:
        # click ends with SystemExit(1) on a closed pipe, and 1 would read as a failed check.
        code = _code_of(stop.code) if stop.code in (None, 0) else ExitCode.INCONCLUSIVE
    except OSError as error:
        code = _tell_output(error) if _is_output_full(error) else _tell_unforeseen(error, debug=debug)
    except Exception as error:  # noqa: BLE001 - the boundary: whatever comes becomes exit code 3
        code = _tell_unforeseen(error, debug=debug)
    return code


def exit_code_of(verdict: str) -> ExitCode:
    """Return what the process says for a verdict. Anything but a pass blocks."""
    from validator.judge import Verdict

    known = Verdict(verdict)
    match known:
        case Verdict.PASS:
            return ExitCode.PASS
        case Verdict.FAIL:
            return ExitCode.FAIL
        case Verdict.INCONCLUSIVE:
            return ExitCode.INCONCLUSIVE
        case Verdict.REFUSED:
            return ExitCode.REFUSED
        case _:
            assert_never(known)


def _code_of(returned: Any) -> ExitCode:
    """Map what a command returned. `--help` and commands without a verdict return nothing, or 0."""
    if returned is None:
        return ExitCode.PASS
    try:
        return ExitCode(returned)
    except ValueError:
        return ExitCode.INCONCLUSIVE


# --- Signals and streams ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that workers are ended and scratch folders removed on the way out."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _signals_that_wake() -> Iterator[None]:
    """Interrupt what the main thread waits for when a signal has come that it has not seen.

    Python acts on a signal between two steps of its own. One that comes after the last of them and before a blocking
    call interrupts neither, and would be seen when that call returns: for a pipe that nobody writes to, never.
    """
    heard, ear = os.pipe()
    os.set_blocking(ear, False)
    main_thread = threading.get_ident()
    is_awake = threading.Event()

    def wake() -> None:
        while number := os.read(heard, 1):
            if number[0] == _WAKING:
                continue
            is_awake.clear()
            while not is_awake.wait(_WAKE_S):
                signal.pthread_kill(main_thread, _WAKING)

    # Python sees lower numbers first: once this handler runs, whatever woke it was seen.
    before = signal.signal(_WAKING, lambda _number, _frame: is_awake.set())
    before_ear = signal.set_wakeup_fd(ear, warn_on_full_buffer=False)
    thread = threading.Thread(target=wake, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before_ear)
        os.close(ear)
        is_awake.set()
        thread.join()
        os.close(heard)
        signal.signal(_WAKING, before)


def _prepare_streams() -> None:
    """Occupy closed standard streams, and let a name that the terminal's encoding lacks be written as an escape."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            # Else the next file that is opened, verdict.json perhaps, becomes the workers' standard output.
            _drop(number)
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop(number: int) -> None:
    """Let a file descriptor lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _flush_output() -> None:
    """Require that what was printed arrived: a full disk shows only now, and a closed stream not at all."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    sys.stdout.flush()


def _is_output_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT) and error.filename is None


def _leave_pipe() -> ExitCode:
    """Nobody reads standard output any more, so nobody read the verdict: it is not 0, and no error to shout about."""
    return ExitCode.INCONCLUSIVE


def _leave(code: ExitCode) -> NoReturn:
    """Exit without Python's own complaint, and exit 120, about a standard output that cannot be flushed."""
    for stream in (sys.stdout, sys.stderr):
        _flush_or_drop(stream)
    if code is ExitCode.INCONCLUSIVE and any(_would_be_waited_for(thread) for thread in threading.enumerate()):
        # MLflow moves files in threads. One that a server holds never ends, and Python would wait for it.
        os._exit(int(code))
    sys.exit(int(code))


def _would_be_waited_for(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread()


def _flush_or_drop(stream: TextIO | None) -> None:
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            # What is still buffered goes nowhere: the interpreter flushes once more when it ends.
            _drop(stream.fileno())


# --- Messages -----------------------------------------------------------------------------------------------------


def _say(*lines: str) -> None:
    """Write to standard error, if anybody listens."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def _tell(error: ValidatorError, *, debug: bool) -> ExitCode:
    from validator.report.text import clean

    lines = [f"{error.word}[{error.code}]: {clean(error.message, limit=2_000)}"]
    if error.hint:
        lines.append(f"  {clean(error.hint, limit=2_000)}")
    if debug:
        lines.append(traceback.format_exc().rstrip())
    _say(*lines)
    return error.exit_code


def _tell_usage(error: click.ClickException) -> ExitCode:
    """Say what click says, in the form of our own messages."""
    from validator.report.text import clean

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        _say(error.format_message())
        return ExitCode.USAGE
    message = error.format_message().strip().rstrip(".")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "validator"
    _say(f"error[usage]: {clean(message, limit=2_000)}", f"  see {path} --help")
    return ExitCode.USAGE


def _tell_output(error: OSError) -> ExitCode:
    reason = (error.strerror or str(error)).lower()
    failed = ReportFailed(f"standard output cannot be written: {reason}", hint="the verdict was not delivered")
    return _tell(failed, debug=False)


def _tell_unforeseen(error: Exception, *, debug: bool) -> ExitCode:
    """Admit a fault of our own: one line, the traceback in a file."""
    log = _keep_traceback(traceback.format_exc())
    what = f"{type(error).__name__} in {_place(error)}"
    lines = [f"inconclusive[internal]: {what}; this is a fault of validator, not of the model"]
    lines.append(f"  the traceback is in {log}; attach it when you report this" if log else "  run again with --debug")
    if debug:
        lines.append(traceback.format_exc().rstrip())
    _say(*lines)
    return ExitCode.INCONCLUSIVE


def _place(error: Exception) -> str:
    """Return file and line of the innermost frame that is ours; the error's text may hold a secret, its place not."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(validator.__file__).parent)
    own = [f for f in frames if f.filename.startswith(package)] or list(frames)
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "an unknown place"


def _keep_traceback(text: str) -> Path | None:
    """Write a private file into the temporary folder; None where even that fails."""
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="validator-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"validator {validator.__version__}, python {sys.version}\n{text}")
        return Path(name)
    return None
