"""`validator report` on folders that somebody else filled: a usage error, never our fault, and no endless wait."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.builders import GPU, decide_on, golden_dataset, passing
from validator.cli.report import report
from validator.errors import ExitCode, UsageError
from validator.report.read import read_bytes
from validator.report.samples import samples_table


def run_report(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(report, [str(folder), *options], standalone_mode=False)


@pytest.fixture(scope="module")
def table() -> str:
    policy, evidence, _ = decide_on(GPU)
    return samples_table(policy, evidence, golden_dataset())


def damage(document: dict[str, Any], what: str) -> None:
    backend = next(b for b in document["backends"] if b["name"] == "onnxruntime-gpu")
    output = backend["outputs"][0]
    match what:
        case "counts":
            document["subject"]["size_bytes"] = 10**400
            output["distribution"]["counts"][0] = 10**400
        case "seconds":
            backend["seconds"] = dict.fromkeys(backend["seconds"], float("nan"))
        case "cosine":
            output["cosine"] = "-Infinity"
        case "first":
            output["distribution"]["first"] = 10**9
        case "limits":
            output["limits"] = dict.fromkeys(output["limits"], 0.0)
            for finding in document["findings"]:
                finding["limit"] = 0.0


@pytest.mark.parametrize("what", ["counts", "seconds", "cosine", "first", "limits"])
@pytest.mark.parametrize("options", [("--verbose",), ("--format", "html,md,junit,sarif,github,gitlab")], ids=" ".join)
def test_numbers_that_no_check_writes_are_shown_or_a_usage_error(
    what: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    document = json.loads(passing().to_json())
    damage(document, what)
    (tmp_path / "verdict.json").write_text(json.dumps(document))
    done = run_report(tmp_path, *options)
    assert done.exception is None or isinstance(done.exception, UsageError), done.exception
    if done.exception is not None:
        assert "verdict.json" in str(done.exception)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"a,b\n",
        b"x" * 200_000 + b"," * 20 + b"\n",
        b"a,b,0,i,,,1," + b"word," * 13 + b"x\n",
        b"\xff" + b"," * 20 + b"\n",
    ],
    ids=["empty", "short", "too long", "words", "bytes"],
)
@pytest.mark.parametrize("chosen", ["html", "csv", "parquet"])
def test_a_table_that_no_check_writes_is_a_usage_error_or_left_out(
    line: bytes, chosen: str, table: str, tmp_path: Path
) -> None:
    (tmp_path / "verdict.json").write_text(passing().to_json())
    (tmp_path / "samples.csv").write_bytes(table.encode() + line)
    done = run_report(tmp_path, "--format", chosen, "--output", str(tmp_path / "out"))
    assert done.exception is None or isinstance(done.exception, UsageError), done.exception
    if done.exception is not None:
        assert "samples.csv cannot be read as the table of samples" in str(done.exception)
        assert not (tmp_path / "out").exists()


def test_pipes_devices_and_files_above_the_limit_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "verdict.json")
    done = run_report(tmp_path)
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code is ExitCode.USAGE
    assert "verdict.json cannot be read: not a regular file" in str(done.exception)
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(bytes(11))
    for name in ("zeros", "large"):
        with pytest.raises(OSError, match=r"Not a regular file|More than"):
            read_bytes(tmp_path / name, limit_bytes=10)
    assert read_bytes(tmp_path / "large", limit_bytes=11) == bytes(11)
