"""Documents that somebody gives through a pipe, or as something that never ends."""

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import validator.disk
from validator.attest.keys import load_public_key
from validator.disk import read_given
from validator.errors import GoldenError, GuardConfigError, KeyFileError, PolicyError, ValidatorError
from validator.golden.output_spec import read_outputs
from validator.guard.config import read_protection
from validator.inputs import load_policy

READERS: dict[str, tuple[Callable[[Path], object], type[ValidatorError]]] = {
    "policy": (lambda path: load_policy(str(path)), PolicyError),
    "outputs": (read_outputs, GoldenError),
    "guard": (read_protection, GuardConfigError),
    "public key": (load_public_key, KeyFileError),
}


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(validator.disk, "PIPE_WAIT_S", 0.2)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("content", [b"batch_size = 16\n", b"# " + b"x" * 200_000 + b"\nbatch_size = 16\n"])
def test_a_policy_may_come_through_a_pipe(content: bytes) -> None:
    """As a shell's `<(...)` gives it: with a writer who is done before, or is not done yet."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as stream:
            stream.write(content)

    thread = threading.Thread(target=write)
    thread.start()
    if len(content) < 4_096:
        thread.join()
    try:
        assert load_policy(f"/dev/fd/{reader}").batch_size == 16
    finally:
        thread.join()
        os.close(reader)


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_that_nobody_writes_to_is_given_up(name: str, pipe: Path) -> None:
    read, error = READERS[name]
    with pytest.raises(error, match=r"(?i)the pipe is not written to"):
        read(pipe)


def test_a_pipe_that_is_not_closed_is_given_up(pipe: Path) -> None:
    keeper = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(keeper, b"batch_size = 16\n")
    try:
        with pytest.raises(TimeoutError, match="not closed"):
            read_given(pipe, limit_bytes=100)
    finally:
        os.close(keeper)


def test_a_pipe_that_is_closed_without_a_word_is_no_empty_policy(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that failed in the place of a policy does not mean the defaults."""
    monkeypatch.setattr(validator.disk, "PIPE_WAIT_S", 30.0)
    thread = threading.Thread(target=lambda: pipe.open("wb").close())
    thread.start()
    with pytest.raises(PolicyError, match="Nothing came through the pipe"):
        load_policy(str(pipe))
    thread.join()


def test_more_than_a_policy_can_have_is_not_read(pipe: Path) -> None:
    keeper = os.open(pipe, os.O_RDWR)
    os.write(keeper, b"#" * 50_001)
    try:
        with pytest.raises(OSError, match=re.escape("More than 50,000 bytes")):
            read_given(pipe, limit_bytes=50_000)
    finally:
        os.close(keeper)


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "/"])
def test_what_is_neither_a_file_nor_a_pipe_is_not_read(place: str) -> None:
    with pytest.raises(PolicyError, match="Neither a file nor a pipe"):
        load_policy(place)
