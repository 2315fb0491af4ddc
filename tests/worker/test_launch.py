"""Real child processes, most of which lie. `liar.py` says what each mode does."""

import ctypes
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.worker.jobs import CUDA, SAMPLES, export_job, liar, probe_job, run_job_of, wait_for, workers_in
from validator.worker.launch import JobCancelled, Limits, run_job, start_worker
from validator.worker.outcome import Completed, Crashed, Declined, TimedOut, Violated
from validator.worker.protocol import Pass, PassKind
from validator.worker.warm import WarmSpec

GENEROUS = Limits(deadline_s=60, grace_s=1)
HASTY = Limits(deadline_s=1.5, grace_s=0.3)

HONEST = ["honest", "honest_and_loud", "honest_out_of_order", "honest_in_drops", "leaves_a_child", "leaves_a_runaway"]
LIARS = [
    ("killed", Crashed),
    ("segfaults", Crashed),
    ("fails_after_closing", Crashed),
    ("killed_after_closing", Crashed),
    ("ends_without_closing", Crashed),
    ("ends_at_once", Crashed),
    ("killed_in_a_frame", Crashed),
    ("dies_and_leaves_a_child", Crashed),
    ("truncated_frame", Violated),
    ("truncated_header", Violated),
    ("truncated_closing", Violated),
    ("wrong_nonce", Violated),
    ("wrong_job", Violated),
    ("wrong_nonce_in_refusal", Violated),
    ("sample_twice", Violated),
    ("sample_missing", Violated),
    ("pass_missing", Violated),
    ("sample_beyond", Violated),
    ("sample_before", Violated),
    ("empty_range", Violated),
    ("sample_of_another_pass", Violated),
    ("unknown_pass", Violated),
    ("counts_wrong", Violated),
    ("counts_missing", Violated),
    ("huge_frame", Violated),
    ("huge_record", Violated),
    ("huge_frame_header", Violated),
    ("garbage", Violated),
    ("not_safetensors", Violated),
    ("tiny_frame", Violated),
    ("empty_frame", Violated),
    ("empty_record", Violated),
    ("pickled_frame", Violated),
    ("pickled_closing", Violated),
    ("plain_safetensors", Violated),
    ("other_dtype", Violated),
    ("other_names", Violated),
    ("shape_too_big", Violated),
    ("offsets_too_big", Violated),
    ("dtype_unknown", Violated),
    ("message_after_closing", Violated),
    ("message_after_refusal", Violated),
    ("closing_twice", Violated),
    ("unasked_facts", Violated),
    ("unasked_export", Violated),
    ("infinite_seconds", Violated),
    ("unknown_field", Violated),
    ("refuses", Declined),
    ("refuses_and_dies", Declined),
]


@pytest.mark.parametrize(("mode", "kind"), LIARS, ids=[mode for mode, _ in LIARS])
def test_a_liar_never_completes(tmp_path, mode, kind):
    outcome = run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar(mode))
    assert type(outcome) is kind, outcome


@pytest.mark.parametrize("mode", ["hangs", "hangs_after_closing", "ignores_sigterm"])
def test_a_worker_that_does_not_end_is_killed_at_its_deadline(tmp_path, mode):
    began = time.monotonic()
    outcome = run_job(run_job_of(), scratch=tmp_path, limits=HASTY, command=liar(mode))
    assert isinstance(outcome, TimedOut)
    assert outcome.limit_s == 1.5
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("mode", HONEST)
def test_an_honest_worker_completes_and_its_bytes_come_back_exactly(tmp_path, mode):
    """Noise on stdout, the cuts between frames and orphans left behind change nothing."""
    began = time.monotonic()
    outcome = run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar(mode))
    assert isinstance(outcome, Completed), outcome
    assert time.monotonic() - began < 30, "waited for somebody else's child"
    assert outcome.environment.settings == {"device": "cpu"}
    assert outcome.seconds == {"main": 0.5}
    assert outcome.spool is not None
    assert set(outcome.spool.passes()) == {"main", "repeat"}
    frames = sorted(outcome.spool.read_pass("main"), key=lambda frame: frame[0].start)
    reference = np.sin(np.arange(SAMPLES, dtype=np.float64)[:, None] + np.arange(3)).astype(np.float32)
    assert np.concatenate([outputs["y"] for _, outputs in frames]).tobytes() == reference.tobytes()


def test_a_probe_brings_facts_and_no_spool(tmp_path):
    outcome = run_job(probe_job(), scratch=tmp_path, limits=GENEROUS, command=liar("probes"))
    assert isinstance(outcome, Completed)
    assert outcome.spool is None
    assert outcome.facts is not None
    assert outcome.facts.parameter_dtypes == {"float32": 10}


@pytest.mark.parametrize("mode", ["probes_twice", "probes_without_facts", "exports", "unknown_pass", "empty_frame"])
def test_a_probe_says_one_thing_only(tmp_path, mode):
    outcome = run_job(probe_job(), scratch=tmp_path, limits=GENEROUS, command=liar(mode))
    assert isinstance(outcome, Violated), outcome


def test_an_export_says_where_it_wrote(tmp_path):
    outcome = run_job(export_job(tmp_path / "m.onnx"), scratch=tmp_path, limits=GENEROUS, command=liar("exports"))
    assert isinstance(outcome, Completed), outcome
    assert outcome.export is not None
    assert outcome.export.path == str(tmp_path / "m.onnx")
    assert outcome.spool is None


@pytest.mark.parametrize(
    "mode",
    ["exports_twice", "exports_without_weights", "exports_elsewhere", "probes", "probes_without_facts", "empty_frame"],
)
def test_an_export_says_one_thing_only(tmp_path, mode):
    outcome = run_job(export_job(tmp_path / "m.onnx"), scratch=tmp_path, limits=GENEROUS, command=liar(mode))
    assert isinstance(outcome, Violated), outcome


def test_a_job_longer_than_a_pipe_arrives_whole(tmp_path):
    p = Pass(kind=PassKind.MAIN, batch_size=1, ranges=tuple((n, n + 1) for n in range(0, 20_000, 2)))
    job = run_job_of(passes=(p,))
    assert len(job.model_dump_json()) > 1 << 16, "what a pipe holds"
    outcome = run_job(job, scratch=tmp_path, limits=GENEROUS, command=liar("honest"))
    assert isinstance(outcome, Completed), outcome
    started = time.monotonic()
    outcome = run_job(job, scratch=tmp_path, limits=HASTY, command=liar("never_reads"))
    assert isinstance(outcome, TimedOut)
    assert time.monotonic() - started < 10


def test_a_worker_does_no_job_that_needs_another_worker(tmp_path):
    spec = WarmSpec.of_job(run_job_of())
    with start_worker(spec, scratch=tmp_path, limits=GENEROUS, command=liar("honest")) as worker:
        for job in (
            run_job_of(threads=2),
            probe_job(),
            run_job_of(CUDA.model_copy(update={"environment": {"A": "1"}})),
        ):
            with pytest.raises(ValueError, match="cannot do"):
                worker.do(job)
    assert not workers_in(tmp_path)


def test_a_crash_tells_signal_and_samples_that_arrived(tmp_path):
    outcome = run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar("killed"))
    assert isinstance(outcome, Crashed)
    assert (outcome.exit_status, outcome.samples) == (-signal.SIGKILL, 4)


def test_frames_of_a_failed_attempt_are_not_kept(tmp_path):
    run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar("killed"))
    assert not list(tmp_path.glob("*/frames"))


def test_more_output_than_allowed_stops_the_worker(tmp_path):
    limits = Limits(deadline_s=60, spool_bytes=400)
    outcome = run_job(run_job_of(), scratch=tmp_path, limits=limits, command=liar("honest"))
    assert isinstance(outcome, Violated)
    assert outcome.what == "more than 400 bytes of outputs"


def test_a_refusal_comes_with_the_workers_words_cleaned(tmp_path):
    outcome = run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar("refuses"))
    assert isinstance(outcome, Declined)
    assert outcome.refusal.message == "cannot load it"


def test_progress_counts_samples_over_all_passes(tmp_path):
    seen = []
    run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar("slow"), on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 14


def test_a_flood_of_log_is_kept_small(tmp_path):
    limits = Limits(deadline_s=60, log_bytes=10_000)
    outcome = run_job(run_job_of(), scratch=tmp_path, limits=limits, command=liar("floods_its_log"))
    assert isinstance(outcome, Crashed)
    assert outcome.exit_status == 1
    (log,) = tmp_path.glob("*/worker.log")
    assert log.stat().st_size == 10_000
    lines = outcome.log_tail.split("\n")
    assert len(lines) == 20
    assert all(line.startswith(": :error::xx") and len(line) == 300 for line in lines)


def test_a_log_reaches_no_terminal_uncleaned(tmp_path, capfd):
    outcome = run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar("colours_its_log"))
    assert isinstance(outcome, Crashed)
    assert outcome.log_tail.startswith("red\n  : :error file=a::boo\n# #[error]x\ngnol\nxxx")
    assert capfd.readouterr() == ("", "")


def test_a_worker_sees_no_secret_and_nothing_else_of_its_parents_environment(tmp_path, monkeypatch):
    secrets = (
        "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "GITHUB_TOKEN",
        "HF_TOKEN",
        "NVIDIA_TF32_OVERRIDE",
        "LD_PRELOAD_NOT",
    )
    for name in secrets:
        monkeypatch.setenv(name, "canary-in-the-environment")
    monkeypatch.setenv("LANG", "C.UTF-8")
    row = CUDA.model_copy(update={"environment": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HOME": "/root"}})
    outcome = run_job(run_job_of(row, threads=3), scratch=tmp_path, limits=GENEROUS, command=liar("dumps_environment"))
    assert isinstance(outcome, Completed), outcome
    (path,) = tmp_path.glob("*/home/environment.json")
    text = path.read_text()
    assert "canary" not in text
    dump = json.loads(text)
    environment = dump["env"]
    assert not set(secrets) & environment.keys()
    assert environment["LANG"] == "C.UTF-8"
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["HOME"] == environment["TMPDIR"] == dump["cwd"] == str(path.parent)
    assert environment["MLFLOW_ALLOW_MODEL_CODE_EXECUTION"] == "false"
    assert len(dump["fds"]) == 5, "stdin, stdout, stderr, the result pipe and the listing itself"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o077 == 0


def test_a_command_that_cannot_start_is_no_outcome_and_leaks_nothing(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=("/no/such/program",))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_cancelled_job_raises_and_its_worker_is_gone(tmp_path):
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    with pytest.raises(JobCancelled):
        run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar("ignores_sigterm"), cancel=cancel)
    assert not workers_in(tmp_path)


def test_an_error_of_the_listener_kills_the_worker(tmp_path):
    def fail(_samples):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar("hangs"), on_progress=fail)
    assert not workers_in(tmp_path)


def test_the_gate_closes_its_own_proc_entries(tmp_path):
    run_job(run_job_of(), scratch=tmp_path, limits=GENEROUS, command=liar("ends_at_once"))
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0, "PR_GET_DUMPABLE"


GATE = """
import sys, pathlib
from tests.worker.jobs import run_job_of
from validator.worker.launch import Limits, run_job
command = (sys.executable, "-c", sys.argv[2])
run_job(run_job_of(), scratch=pathlib.Path(sys.argv[1]), limits=Limits(deadline_s=60), command=command)
"""
WORKER = """
import sys, pathlib, time
from validator.worker.process import die_with_parent
die_with_parent(int(sys.argv[3]))
pathlib.Path("ready").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_worker_does_not_outlive_a_killed_gate(tmp_path, number):
    gate = subprocess.Popen(
        [sys.executable, "-c", GATE, str(tmp_path), WORKER],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: list(tmp_path.glob("*/home/ready")))
    assert workers_in(tmp_path)
    gate.send_signal(number)
    gate.wait(60)
    wait_for(lambda: not workers_in(tmp_path))
