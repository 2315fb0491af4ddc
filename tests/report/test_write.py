import errno
import os
from pathlib import Path

import pytest

from tests.builders import passing
from validator.errors import ExitCode, ReportFailed
from validator.report.write import write_document, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_document_is_written_with_the_folders_that_are_missing(tmp_path: Path) -> None:
    document = passing()
    path = write_document(document, tmp_path / "a" / "b" / "verdict.json")
    assert path.read_text(encoding="utf-8") == document.to_json()
    assert names(path.parent) == ["verdict.json"]


def test_an_older_document_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text("old", encoding="utf-8")
    assert write_text("new", path).read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "no space left on device"),
        (errno.EIO, "input/output error"),
        (errno.EDQUOT, "quota exceeded"),
        (errno.EACCES, "permission denied"),
    ],
    ids=["full", "broken", "quota", "permission"],
)
def test_a_failing_disk_leaves_the_old_document_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    path = tmp_path / "verdict.json"
    path.write_text("old", encoding="utf-8")

    def fail(_handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("validator.disk.os.fsync", fail)
    with pytest.raises(ReportFailed, match=reason) as caught:
        write_text("new", path)
    assert str(path) in caught.value.message
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["verdict.json"]


def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").mkdir()
    with pytest.raises(ReportFailed, match="it is a folder"):
        write_text("new", tmp_path / "verdict.json")
    assert names(tmp_path) == ["verdict.json"]


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("", encoding="utf-8")
    with pytest.raises(ReportFailed, match="cannot be written"):
        write_text("new", tmp_path / "report" / "verdict.json")
