"""Full and read-only disks, limits on the size of files, and what killed processes left."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import validator.disk
from tests.worker.jobs import liar, run_job_of, workers_in
from validator.disk import bring_back, copy_whole, move_folder, remove_abandoned, write_whole
from validator.errors import CouldNotRun, ExitCode, ReportFailed
from validator.executors.local import LocalExecutor
from validator.report.write import write_bytes
from validator.scratch import PREFIX, scratch_folder, sweep_scratch
from validator.worker.launch import Limits

ROOT = Path(__file__).parents[2]


def in_child(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own: limits hold until a process ends."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


LIMITED = """
import resource, sys
from pathlib import Path
from validator.errors import ReportFailed
from validator.report.write import write_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_bytes(b"n" * 10_000, Path(sys.argv[1]))
except ReportFailed as error:
    print(error.exit_code.value, error.message)
"""


def test_a_limit_on_the_size_of_files_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(b"old")
    done = in_child(LIMITED, str(path))
    assert done.stdout == f"3 {path} cannot be written: file too large\n", done.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], check=False, timeout=30)
    if mounted.returncode:
        pytest.skip("this container may not mount")
    try:
        path = place / "verdict.json"
        path.write_bytes(b"old")
        with pytest.raises(ReportFailed, match="no space left on device") as caught:
            write_bytes(b"n" * 1_000_000, path)
        assert caught.value.exit_code is ExitCode.INCONCLUSIVE
        (tmp_path / "model.onnx").write_bytes(b"n" * 1_000_000)
        with pytest.raises(OSError, match="No space left"):
            copy_whole(tmp_path / "model.onnx", place / "model.onnx")
        assert path.read_bytes() == b"old"
        assert list(place.iterdir()) == [path]
        write_bytes(b"new", path)
        assert path.read_bytes() == b"new"
    finally:
        subprocess.run(["umount", place], check=True, timeout=30)


def test_a_disk_that_is_full_of_outputs_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a standard output that is full: an error of a write names no file."""

    class Full:
        def __init__(self, *_arguments: object, **_options: object) -> None:
            self.samples = 0

        def feed(self, _data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("validator.worker.launch.Intake", Full)
    limits = Limits(deadline_s=60)
    with LocalExecutor(scratch=tmp_path, limits=limits, command=liar("honest")) as executor:
        executor.submit(run_job_of())
        with pytest.raises(CouldNotRun, match="cannot be kept: no space left on device") as caught:
            list(executor.outcomes())
    assert "TMPDIR" in str(caught.value.hint)
    assert not workers_in(tmp_path)


def test_no_place_for_scratch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(CouldNotRun, match="no scratch folder"), scratch_folder():
        pass


# --- What killed processes left -----------------------------------------------------------------------------------

SLEEPER = """
import sys, time
from validator.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("x")
    (folder / "sub").chmod(0o555)
    print(folder, flush=True)
    time.sleep(600)
"""


def test_scratch_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with scratch_folder() as own:
            assert sorted(tmp_path.iterdir()) == sorted([left, own])
        process.send_signal(signal.SIGKILL)
    assert left.is_dir()
    with scratch_folder() as own:
        assert list(tmp_path.iterdir()) == [own]
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "validator-demo-x").mkdir()
    sweep_scratch(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file away needs root")
def test_what_another_user_left_is_not_swept(tmp_path: Path) -> None:
    other = tmp_path / f"{PREFIX}other"
    other.mkdir()
    os.chown(other, 12_345, 12_345)
    sweep_scratch(tmp_path)
    assert other.is_dir()


def test_the_next_write_sweeps_abandoned_drafts_of_its_own_name_only(tmp_path: Path) -> None:
    (tmp_path / ".verdict.json.0123abcd.draft").write_text("{")
    kept = [tmp_path / name for name in (".samples.csv.0123abcd.draft", ".verdict.json.draft", ".verdict.json.bak")]
    for path in kept:
        path.write_text("mine")
    write_whole(tmp_path / "verdict.json", b"{}")
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "verdict.json"])


def test_a_draft_that_is_being_written_is_left(tmp_path: Path) -> None:
    draft = tmp_path / ".verdict.json.0123abcd.draft"
    with draft.open("wb") as stream:
        validator.disk.lock(stream.fileno())
        remove_abandoned(draft)
        assert draft.exists()
    remove_abandoned(draft)
    assert not draft.exists()


@pytest.mark.parametrize("exchange", [validator.disk._exchange, lambda *_: False], ids=["exchange", "aside"])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: Callable[..., bool]
) -> None:
    monkeypatch.setattr(validator.disk, "_exchange", exchange)
    for name in ("draft", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("")
    move_folder(tmp_path / "draft", tmp_path / "place")
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["draft"]
    assert not (tmp_path / ".place.old").exists()


def test_a_folder_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    (tmp_path / ".place.old").mkdir()
    bring_back(tmp_path / "place")
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
