import io
from dataclasses import dataclass

import pytest

from validator.report.progress import LiveProgress, PlainProgress, Progress, SilentProgress, open_progress


@dataclass(frozen=True, kw_only=True)
class Event:
    job_id: str = "eager-cpu"
    kind: str = "progress"
    samples: int = 0
    total: int = 320
    detail: str = ""


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tell_a_run(progress: Progress) -> None:
    progress.stage("stage", "489 MB in 6 files")
    progress.job(Event(kind="started"))
    progress.job(Event(samples=160))
    progress.job(Event(kind="retried", detail="CUDA error\x1b[31m"))
    progress.job(Event(kind="finished", samples=320, detail="completed"))


def test_without_a_terminal_there_is_one_line_per_stage_and_per_finished_job() -> None:
    stream, clock = io.StringIO(), FakeClock()
    with PlainProgress(stream, clock=clock) as progress:
        clock.now += 12.2
        tell_a_run(progress)
    assert stream.getvalue().splitlines() == [
        "[  12.2 s] stage    489 MB in 6 files",
        "[  12.2 s] run      eager-cpu again: CUDA error\\x1b[31m",
        "[  12.2 s] run      eager-cpu completed, 320 samples",
    ]


def test_a_heartbeat_says_what_is_waited_for_and_only_after_silence() -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, clock=clock, heartbeat_s=30)
    progress.job(Event(kind="started"))
    progress.job(Event(samples=160))
    progress.job(Event(job_id="probe", kind="started", total=0))
    clock.now += 29
    progress.beat()
    assert stream.getvalue() == ""
    clock.now += 1
    progress.beat()
    progress.beat()
    assert stream.getvalue() == "[  30.0 s] run      0 jobs done; waiting for eager-cpu 160 of 320, probe\n"


def test_without_running_jobs_there_is_no_heartbeat() -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, clock=clock)
    clock.now += 1_000
    progress.beat()
    assert stream.getvalue() == ""


def test_the_heartbeat_beats_by_itself() -> None:
    import time

    stream = io.StringIO()
    with PlainProgress(stream, heartbeat_s=0.01) as progress:
        progress.job(Event(kind="started"))
        deadline = time.monotonic() + 10
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "waiting for eager-cpu" in stream.getvalue()


def test_progress_that_nobody_reads_ends_no_check() -> None:
    stream = io.StringIO()
    with PlainProgress(stream) as progress:
        stream.close()
        tell_a_run(progress)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_live_lines_are_erased_at_the_end_and_finished_jobs_stay() -> None:
    stream = Terminal()
    with LiveProgress(stream, color=False) as progress:
        tell_a_run(progress)
        progress.job(Event(job_id="probe", kind="started", total=0))
    text = stream.getvalue()
    assert "eager-cpu completed, 320 samples" in text
    assert "CUDA error\\x1b[31m" in text
    assert text.endswith(("\x1b[2K", "\x1b[?25h"))


@pytest.mark.parametrize(
    ("quiet", "is_live", "kind"),
    [(True, True, SilentProgress), (False, True, LiveProgress), (False, False, PlainProgress)],
    ids=["quiet", "terminal", "log"],
)
def test_progress_fits_the_stream(*, quiet: bool, is_live: bool, kind: type) -> None:
    assert type(open_progress(Terminal(), quiet=quiet, is_live=is_live, color=False)) is kind


def test_silence_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with SilentProgress() as progress:
        tell_a_run(progress)
    assert capsys.readouterr() == ("", "")
