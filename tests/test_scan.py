"""Scanners: what they find or cannot read blocks, and a clean scan grants nothing. Real scanners, held."""

import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from tests.sandbox.conftest import PROGRAM
from validator import scan
from validator.errors import CouldNotRun, FormatRefused
from validator.sandbox.choice import Reached, Sandbox
from validator.sandbox.level import PLAIN, Level, Request
from validator.sandbox.machine import look_at_machine
from validator.scan import SCANNERS, Scanner, scan_program


@pytest.fixture
def sandbox() -> Sandbox:
    machine = look_at_machine()
    level = Level.STRICT if machine.missing(Level.STRICT, PLAIN) is None else Level.NONE
    return Sandbox(requested=Request.AUTO, machine=machine, program=PROGRAM, reached={PLAIN: Reached(level=level)})


class Payload:
    def __reduce__(self):
        import os

        return os.system, ("true",)


class Foreign:
    """A function that no scanner knows."""

    def __reduce__(self):
        return __import__("plistlib").loads, (b"",)


def saved(value: object, path: Path) -> Path:
    torch.save(value, path)
    return path


def test_without_a_scanner_nothing_is_scanned(tmp_path: Path, sandbox: Sandbox) -> None:
    scan_program(saved(Payload(), tmp_path / "model.pth"), (), sandbox, tmp_path)
    assert not (tmp_path / "scan").exists()


def test_tensors_alone_are_let_through(tmp_path: Path, sandbox: Sandbox) -> None:
    scan_program(saved({"a": torch.zeros(2)}, tmp_path / "model.pth"), ("picklescan",), sandbox, tmp_path)


@pytest.mark.parametrize("name", list(SCANNERS))
def test_what_a_scanner_finds_is_refused(tmp_path: Path, sandbox: Sandbox, name: str) -> None:
    with pytest.raises(FormatRefused, match=rf"{name} does not clear model\.pth"):
        scan_program(saved(Payload(), tmp_path / "model.pth"), (name,), sandbox, tmp_path)


def test_a_function_that_nobody_knows_is_refused(tmp_path: Path, sandbox: Sandbox) -> None:
    with pytest.raises(FormatRefused, match="promoted by --strict"):
        scan_program(saved(Foreign(), tmp_path / "model.pth"), ("picklescan",), sandbox, tmp_path)


WHOLE = pickle.dumps({"a": 1})


@pytest.mark.parametrize("content", [WHOLE[:-4], WHOLE + b"more", WHOLE + WHOLE, b"", b"text"])
def test_a_pickle_that_is_not_one_whole_pickle_is_refused(tmp_path: Path, sandbox: Sandbox, content: bytes) -> None:
    """picklescan finds nothing in half a pickle, and exits with 0."""
    path = tmp_path / "model.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", content)
    with pytest.raises(FormatRefused, match="is not one whole pickle"):
        scan_program(path, ("picklescan",), sandbox, tmp_path)


@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04"])
def test_what_holds_no_pickle_is_refused(tmp_path: Path, sandbox: Sandbox, content: bytes) -> None:
    path = tmp_path / "model.pth"
    path.write_bytes(content)
    with pytest.raises(FormatRefused):
        scan_program(path, ("picklescan",), sandbox, tmp_path)


def test_a_scanner_that_is_not_there_is_no_clean_scan(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SCANNERS", {"picklescan": Scanner(package="no_such_package", arguments=("x",))})
    with pytest.raises(CouldNotRun, match="not installed"):
        scan_program(saved({}, tmp_path / "model.pth"), ("picklescan",), sandbox, tmp_path)
