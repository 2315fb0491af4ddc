import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from validator.boundary import exit_code_of, run
from validator.errors import (
    AnnotationFailed,
    DigestChanged,
    ExitCode,
    PolicyError,
    ReportFailed,
    UriError,
    ValidatorError,
)
from validator.judge import Verdict


def command_that(do: Callable[[], object]) -> Callable[[], click.Command]:
    return lambda: click.Command("validator", callback=do)


def raising(error: BaseException) -> Callable[[], object]:
    def do() -> None:
        raise error

    return do


@pytest.mark.parametrize("code", ExitCode)
def test_what_a_command_returns_is_the_exit_code(code: ExitCode) -> None:
    """click alone would drop it and exit 0."""
    assert run(command_that(lambda: code), [], debug=False) is code


@pytest.mark.parametrize(("returned", "code"), [(None, ExitCode.PASS), (7, ExitCode.INCONCLUSIVE), ("x", 3), (True, 1)])
def test_a_return_value_that_is_no_exit_code_never_passes(returned: object, code: int) -> None:
    assert run(command_that(lambda: returned), [], debug=False) == code


@pytest.mark.parametrize(
    ("error", "code", "head"),
    [
        (UriError("models:/alexnet names no version", hint="write models:/alexnet/3"), 2, "error[uri]: "),
        (PolicyError("policy.toml is not TOML"), 2, "error[policy]: "),
        (ReportFailed("no space"), 3, "inconclusive[report]: "),
        (AnnotationFailed("no answer"), 3, "inconclusive[annotate]: "),
        (DigestChanged("other bytes"), 4, "refused[digest]: "),
        (ValidatorError("what"), 3, "inconclusive[internal]: "),
        (click.BadParameter("Not a number."), 2, "error[usage]: "),
        (click.FileError("x", "Gone."), 2, "error[usage]: "),
        (click.ClickException("No."), 2, "error[usage]: no"),
        (click.Abort(), 130, "interrupted"),
        (KeyboardInterrupt(), 130, ""),
        (EOFError(), 130, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 3, "inconclusive[report]: standard output"),
        (OSError(errno.ENOSPC, "Disk full", "/tmp/x"), 3, "inconclusive[internal]: OSError"),
        (KeyError("x"), 3, "inconclusive[internal]: KeyError in boundary.py:"),
        (RecursionError(), 3, "inconclusive[internal]: RecursionError"),
        (MemoryError(), 3, "inconclusive[internal]: MemoryError"),
        (SystemExit(0), 0, ""),
        (SystemExit(1), 3, ""),
        (SystemExit("text"), 3, ""),
        (click.exceptions.Exit(2), 2, ""),
        (BrokenPipeError(), 3, ""),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) else "",
)
def test_every_way_out_has_its_exit_code_and_message(
    error: BaseException, code: int, head: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validator.boundary._keep_traceback", lambda text: None)
    assert run(command_that(raising(error)), [], debug=False) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.lstrip("\n").startswith(head)
    assert "Traceback" not in err


def test_the_hint_stands_under_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    run(command_that(raising(UriError("a\x1b[31m", hint="write b\n::error::c"))), [], debug=False)
    assert capsys.readouterr().err == "error[uri]: a\\x1b[31m\n  write b\\n::error::c\n"


def test_a_fault_of_our_own_keeps_its_traceback_in_a_private_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(command_that(raising(KeyError("secret"))), [], debug=False) is ExitCode.INCONCLUSIVE
    (log,) = tmp_path.iterdir()
    err = capsys.readouterr().err
    assert "this is a fault of validator, not of the model" in err
    assert str(log) in err
    assert "secret" not in err
    assert "KeyError: 'secret'" in log.read_text(encoding="utf-8")
    assert log.stat().st_mode & 0o077 == 0


def test_without_a_place_for_the_log_the_message_still_comes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert run(command_that(raising(KeyError("x"))), [], debug=False) is ExitCode.INCONCLUSIVE
    assert "run again with --debug" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyError("x"), UriError("y")], ids=["unforeseen", "foreseen"])
def test_debug_prints_the_traceback(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validator.boundary._keep_traceback", lambda text: None)
    run(command_that(raising(error)), [], debug=True)
    assert "Traceback" in capsys.readouterr().err


def test_a_command_that_cannot_be_imported_is_inconclusive(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python alone would exit 1, which reads as a failed check."""
    monkeypatch.setattr("validator.boundary._keep_traceback", lambda text: None)

    def load() -> click.Command:
        raise ImportError("no torch")

    assert run(load, [], debug=False) is ExitCode.INCONCLUSIVE
    assert "inconclusive[internal]: ImportError" in capsys.readouterr().err


def test_a_closed_standard_output_never_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr("validator.boundary._drop", lambda number: None)
    assert run(command_that(lambda: ExitCode.PASS), [], debug=False) is ExitCode.INCONCLUSIVE


def test_sigterm_is_an_interruption_and_the_handler_goes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run(command_that(lambda: os.kill(os.getpid(), signal.SIGTERM)), [], debug=False) is ExitCode.INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_that_interrupts_no_call_is_not_lost(number: signal.Signals) -> None:
    """As one that comes just before a blocking call: here another thread takes it, and the call goes on."""
    pipe, writer = os.pipe()
    is_over = threading.Event()
    in_time = []

    def take() -> None:
        time.sleep(0.1)  # until the main thread reads
        signal.pthread_kill(threading.get_ident(), number)
        in_time.append(is_over.wait(30))
        os.close(writer)

    thread = threading.Thread(target=take)

    def read() -> None:
        thread.start()
        os.read(pipe, 1)

    assert run(command_that(read), [], debug=False) is ExitCode.INTERRUPTED
    is_over.set()
    thread.join()
    os.close(pipe)
    assert in_time == [True]


def test_what_wakes_the_main_thread_is_put_away() -> None:
    before = signal.getsignal(signal.SIGURG)
    assert run(command_that(lambda: signal.raise_signal(signal.SIGTERM)), [], debug=False) is ExitCode.INTERRUPTED
    assert signal.getsignal(signal.SIGURG) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert not [t for t in threading.enumerate() if t.name == "signals"]


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(Verdict.PASS, 0), (Verdict.FAIL, 1), (Verdict.INCONCLUSIVE, 3), (Verdict.REFUSED, 4)],
)
def test_verdicts_have_their_exit_codes(verdict: Verdict, code: int) -> None:
    assert exit_code_of(verdict) == code


def test_only_a_pass_exits_0() -> None:
    assert [v for v in Verdict if exit_code_of(v) == 0] == [Verdict.PASS]
