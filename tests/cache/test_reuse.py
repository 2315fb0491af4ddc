"""One check and the cache: who computes, what is kept, and that trouble is said once and stops nobody."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cache.conftest import (
    FINGERPRINT,
    MADE_BY,
    MODEL,
    PROGRAM,
    completed_export,
    completed_run,
    export_job,
    run_job,
)
from validator.cache.reuse import Circumstances, Reuse, open_reuse
from validator.cache.store import CachePlace
from validator.manifest import measure_folder
from validator.worker.outcome import Completed, Crashed, Reused

KNOWN = Circumstances(model=MODEL, program=PROGRAM, fingerprint=FINGERPRINT)


def open_check(
    place: CachePlace, scratch: Path, *, check_id: str = MADE_BY.check_id, sandbox: str = "strict", wait_s: float = 0
) -> Reuse:
    scratch.mkdir(exist_ok=True, parents=True)
    made_by = Reused(check_id=check_id, created_utc=MADE_BY.created_utc)
    return open_reuse(place, made_by=made_by, sandbox=sandbox, scratch=scratch, wait_s=wait_s, say=lambda _: None)


def keep_run(place: CachePlace, folder: Path, change: Callable[[Completed], Completed] = lambda o: o) -> None:
    """Be an earlier check that runs the reference."""
    with open_check(place, folder) as reuse:
        assert reuse.find(run_job(folder), KNOWN) is None
        reuse.keep(change(completed_run(folder)), FINGERPRINT)
        assert reuse.cautions == []


def test_what_one_check_keeps_the_next_one_finds(place: CachePlace, tmp_path: Path) -> None:
    keep_run(place, tmp_path / "first")
    with open_check(place, tmp_path / "second", check_id="f" * 16) as reuse:
        found = reuse.find(run_job(tmp_path / "second", "2" * 32), KNOWN)
        assert found is not None
        assert found.reused == MADE_BY
        assert not reuse.claims(found.job)
        assert reuse.cautions == []


def test_an_export_is_kept_with_its_files(place: CachePlace, tmp_path: Path) -> None:
    with open_check(place, tmp_path / "first") as reuse:
        assert reuse.find(export_job(tmp_path / "first"), KNOWN) is None
        outcome = completed_export(tmp_path / "first")
        reuse.keep(outcome, FINGERPRINT, files=measure_folder(tmp_path / "first" / "export"))
    (tmp_path / "second").mkdir()
    with open_check(place, tmp_path / "second") as reuse:
        found = reuse.find(export_job(tmp_path / "second"), KNOWN)
    assert found is not None
    assert found.exported is not None
    assert measure_folder(found.exported.parent) == measure_folder(tmp_path / "first" / "export")


OTHER_SETTING = {"conv_precision": "tf32"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda o: replace(o, first_failure="CUDA error"), id="a second attempt"),
        pytest.param(
            lambda o: replace(
                o, environment=o.environment.model_copy(update={"settings": o.environment.settings | OTHER_SETTING})
            ),
            id="another setting than was asked for",
        ),
        pytest.param(
            lambda o: replace(
                o, environment=o.environment.model_copy(update={"fingerprint": FINGERPRINT | {"torch": "2.11.0"}})
            ),
            id="another library than the probe read",
        ),
        pytest.param(lambda o: Crashed(job=o.job, exit_status=-9, samples=2, log_tail=""), id="no result"),
    ],
)
def test_what_may_not_stand_for_another_checks_is_not_kept(place: CachePlace, tmp_path: Path, change) -> None:
    keep_run(place, tmp_path / "first", change)
    with open_check(place, tmp_path / "second") as reuse:
        assert reuse.find(run_job(tmp_path / "second"), KNOWN) is None


def test_an_export_that_was_refused_is_tried_again(place: CachePlace, tmp_path: Path) -> None:
    with open_check(place, tmp_path / "first") as reuse:
        assert reuse.find(export_job(tmp_path / "first"), KNOWN) is None
        outcome = completed_export(tmp_path / "first")
        assert outcome.export is not None
        refused = outcome.export.model_copy(update={"path": None})
        reuse.keep(replace(outcome, export=refused, weights=None), FINGERPRINT)
        assert reuse.store is not None
        assert reuse.store.entries() == []


def test_without_a_sandbox_nothing_is_reused_or_kept(place: CachePlace, tmp_path: Path) -> None:
    keep_run(place, tmp_path / "first")
    with open_check(place, tmp_path / "none", sandbox="none") as reuse:
        assert reuse.store is None
        assert reuse.find(run_job(tmp_path / "none"), KNOWN) is None
        assert not reuse.claims(run_job(tmp_path / "none"))
        assert reuse.cautions == []


@pytest.mark.parametrize("field", ["model", "program", "fingerprint"])
def test_other_circumstances_are_a_miss(place: CachePlace, tmp_path: Path, field: str) -> None:
    keep_run(place, tmp_path / "first")
    others = {"model": "sha256:" + "7" * 64, "program": "data/m.pt2", "fingerprint": {"torch": "3.0"}}
    with open_check(place, tmp_path / "second") as reuse:
        assert reuse.find(run_job(tmp_path / "second"), replace(KNOWN, **{field: others[field]})) is None


def test_a_gpu_that_the_gate_cannot_name_is_a_miss(
    place: CachePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run_job(tmp_path)
    job = job.model_copy(update={"backend": job.backend.model_copy(update={"device": "cuda"})})
    for gpus, is_claimed in (("", False), ("NVIDIA H200, GPU-1", True)):
        monkeypatch.setattr("validator.cache.recipe.describe_machine", lambda gpus=gpus: {"gpus": gpus})
        with open_check(place, tmp_path / "scratch") as reuse:
            assert reuse.find(job, KNOWN) is None
            assert reuse.claims(job) is is_claimed


# --- Trouble ----------------------------------------------------------------------------------------------------


def test_a_damaged_entry_is_a_miss_with_a_warning_and_is_made_again(place: CachePlace, tmp_path: Path) -> None:
    keep_run(place, tmp_path / "first")
    assert place.folder is not None
    (path,) = place.folder.rglob("*.entry")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with open_check(place, tmp_path / "second") as reuse:
        assert reuse.find(run_job(tmp_path / "second"), KNOWN) is None
        assert [caution.code for caution in reuse.cautions] == ["cache-entry"]
        assert not path.exists()
        reuse.keep(completed_run(tmp_path / "second"), FINGERPRINT)
    with open_check(place, tmp_path / "third") as reuse:
        assert reuse.find(run_job(tmp_path / "third"), KNOWN) is not None


def test_a_cache_that_cannot_be_opened_is_said_once(place: CachePlace, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with open_check(replace(place, folder=tmp_path / "file"), tmp_path / "scratch") as reuse:
        for job in (run_job(tmp_path), export_job(tmp_path)):
            assert reuse.find(job, KNOWN) is None
        reuse.keep(completed_run(tmp_path / "scratch"), FINGERPRINT)
        assert [caution.code for caution in reuse.cautions] == ["cache"]


def test_a_cache_that_breaks_in_between_is_said_once(place: CachePlace, tmp_path: Path) -> None:
    with open_check(place, tmp_path / "scratch") as reuse:
        assert reuse.store is not None
        assert reuse.find(run_job(tmp_path / "scratch"), KNOWN) is None
        for lock in reuse.store.folder.iterdir():
            lock.unlink()
        reuse.store.folder.rmdir()
        reuse.store.folder.write_text("")
        reuse.keep(completed_run(tmp_path / "scratch"), FINGERPRINT)
        assert reuse.find(export_job(tmp_path / "scratch"), KNOWN) is None
        assert [caution.code for caution in reuse.cautions] == ["cache"]


def test_what_is_too_large_is_said(place: CachePlace, tmp_path: Path) -> None:
    with open_check(replace(place, size_bytes=100), tmp_path / "scratch") as reuse:
        assert reuse.find(run_job(tmp_path / "scratch"), KNOWN) is None
        reuse.keep(completed_run(tmp_path / "scratch"), FINGERPRINT)
        assert "larger than the cache" in reuse.cautions[0].message


# --- Single flight ----------------------------------------------------------------------------------------------

CHECK = """
import sys, time
from pathlib import Path
from tests.cache.conftest import FINGERPRINT, completed_run, run_job
from tests.cache.test_reuse import KNOWN, open_check
from validator.cache.store import CachePlace

root, name = Path(sys.argv[1]), sys.argv[2]
place = CachePlace(folder=root / "cache", key_file=root / "cache.key")
print("ready", flush=True)
sys.stdin.readline()
with open_check(place, root / name, wait_s=300) as reuse:
    if reuse.find(run_job(root / name), KNOWN) is None:
        print("runs", flush=True)
        time.sleep(float(sys.argv[3]))
        reuse.keep(completed_run(root / name), FINGERPRINT)
    else:
        print("reuses", flush=True)
"""


def start_check(root: Path, name: str, seconds: float) -> subprocess.Popen[str]:
    """Start another process that is a check, and let it wait until it is told to begin."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHECK, str(root), name, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("begin\n")
    process.stdin.flush()


def test_of_two_checks_at_once_one_runs_the_job(tmp_path: Path) -> None:
    checks = [start_check(tmp_path, name, 1) for name in ("a", "b")]
    for process in checks:
        tell(process)
    said = sorted(process.communicate(timeout=300)[0] for process in checks)
    assert said == ["reuses\n", "runs\n"]


def test_a_check_that_is_killed_leaves_its_job_to_the_one_that_waits(tmp_path: Path) -> None:
    first, second = start_check(tmp_path, "a", 600), start_check(tmp_path, "b", 0)
    tell(first)
    assert first.stdout is not None
    assert first.stdout.readline() == "runs\n"
    tell(second)
    first.kill()
    first.communicate()
    assert second.communicate(timeout=300)[0] == "runs\n"
