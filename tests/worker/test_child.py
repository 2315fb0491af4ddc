"""The child's own parts: packing outputs, cutting and padding batches, and what it says when it cannot."""

import io
import json

import numpy as np
import pytest
import torch

from tests.worker.jobs import PASSES, run_job_of
from validator.backends.interface import BackendRefusal, Environment, RefusalKind
from validator.golden.writer import Sample, write_golden
from validator.worker import child
from validator.worker.frames import ITEM_BYTES, STORED_AS
from validator.worker.intake import Intake
from validator.worker.protocol import Closing, Pass, PassKind, Refusal
from validator.worker.spool import Spool


class Echo:
    """A session that gives back what it got, and notes how much that was."""

    def __init__(self):
        self.batches = []

    def run(self, inputs):
        self.batches.append(len(inputs["x"]))
        return {"y": inputs["x"], "total": inputs["x"].sum()}

    def environment(self):
        return Environment(settings={"device": "cpu"}, fingerprint={})


@pytest.fixture
def golden(tmp_path):
    samples = [Sample(inputs={"x": np.full(2, n, np.float32)}) for n in range(10)]
    return write_golden(tmp_path / "golden", samples, name="counting", source="test")


@pytest.fixture
def echo(monkeypatch):
    session = Echo()
    monkeypatch.setattr(child, "_open_session", lambda _job: session)
    return session


def do(job, tmp_path):
    """Do a job in this process and take in what it says, as a parent would."""
    threads = torch.get_num_threads()
    stream = io.BytesIO()
    try:
        child.do_job(job, stream)
    finally:
        torch.set_num_threads(threads)
    path = tmp_path / "frames"
    with path.open("wb") as spool:
        intake = Intake(job, spool, spool_limit_bytes=1 << 20)
        intake.feed(stream.getvalue())
    return intake.last, Spool(path=path, frames=tuple(intake.frames))


def job_on(golden, **other):
    return run_job_of(golden_path=str(golden.folder), golden_digest=golden.digest, **other)


def test_every_pass_is_run_in_its_batches(golden, echo, tmp_path):
    closing, spool = do(job_on(golden), tmp_path)
    assert isinstance(closing, Closing)
    assert echo.batches == [4, 4, 2, 4]
    assert closing.frames == {"main": 3, "repeat": 1}
    assert closing.seconds.keys() == {"load", "main", "repeat"}
    assert closing.peak_memory_bytes > 1 << 20
    got = [outputs["y"][:, 0].tolist() for _, outputs in spool.read_pass("main")]
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("static", "batches", "kept"), [(4, [4] * 4, [4, 4, 2]), (3, [3] * 6, [3, 3, 3, 1]), (8, [8] * 4, [4, 4, 2])]
)
def test_a_program_of_one_batch_size_gets_padding_that_nobody_sees(golden, echo, tmp_path, static, batches, kept):
    _, spool = do(job_on(golden, static_batch=static), tmp_path)
    assert echo.batches == batches
    frames = list(spool.read_pass("main"))
    assert [len(outputs["y"]) for _, outputs in frames] == kept
    assert np.concatenate([outputs["y"][:, 0] for _, outputs in frames]).tolist() == list(range(10))
    assert all(outputs["total"].shape == () for _, outputs in frames)


def test_a_batch_that_samples_do_not_fill_is_filled_with_copies_of_them_in_turn(golden, echo, tmp_path):
    passes = (
        Pass(kind=PassKind.MAIN, batch_size=4, ranges=((0, 10),)),
        Pass(kind=PassKind.BATCH, batch_size=7, ranges=((0, 7), (7, 10))),
    )
    _, spool = do(job_on(golden, passes=passes), tmp_path)
    assert echo.batches == [4, 4, 2, 7, 7]
    frames = list(spool.read_pass("batch-7"))
    assert [(header.start, header.stop, header.filled) for header, _ in frames] == [(0, 7, 0), (7, 10, 4)]
    assert [outputs["y"][:, 0].tolist() for _, outputs in frames] == [list(range(7)), [7, 8, 9]]
    assert float(frames[1][1]["total"]) == 2 * sum([7, 8, 9, 7, 8, 9, 7])


def test_a_golden_dataset_that_changed_is_refused(golden, echo, tmp_path):
    refusal, _ = do(run_job_of(golden_path=str(golden.folder)), tmp_path)
    assert isinstance(refusal, Refusal)
    assert refusal.kind is RefusalKind.FORMAT
    assert echo.batches == []


def test_a_refusal_of_the_backend_is_passed_on(golden, monkeypatch, tmp_path):
    def refuse(_job):
        raise BackendRefusal(RefusalKind.UNAVAILABLE, "device", "no such device")

    monkeypatch.setattr(child, "_open_session", refuse)
    refusal, _ = do(job_on(golden), tmp_path)
    assert isinstance(refusal, Refusal)
    assert (refusal.kind, refusal.stage, refusal.message) == (
        RefusalKind.UNAVAILABLE,
        "device",
        "no such device",
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", sorted(STORED_AS))
def test_every_dtype_comes_back_with_every_bit_of_its_value(dtype, tmp_path):
    kind = getattr(torch, dtype)
    tensor = torch.tensor([[0.0, 1.0, 0.5], [2.0, 8.0, 1.5]]).to(kind)
    if kind.is_complex and kind is not torch.complex32:
        tensor = tensor * (1 + 1j) / 3
    outputs = {"y": tensor}
    packed = child.pack_frame("main", 0, 2, outputs)
    intake = Intake(run_job_of(), io.BytesIO(), spool_limit_bytes=1 << 20)
    intake.feed(b"F" + len(packed).to_bytes(8, "big") + packed)
    assert intake.frames[0].header.dtypes == {"y": dtype}
    path = tmp_path / "frames"
    path.write_bytes(packed)
    ((_, got),) = Spool(path=path, frames=tuple(intake.frames)).read_pass("main")
    wide = torch.complex128 if kind.is_complex else torch.float64
    assert got["y"].shape == (2, 3)
    assert np.array_equal(got["y"].astype(str(wide).removeprefix("torch.")), tensor.to(wide).numpy())


def test_outputs_may_share_memory_be_strided_or_conjugated():
    base = torch.arange(6.0).reshape(2, 3)
    outputs = {"a": base, "b": base, "c": base.T, "d": torch.tensor([1j, 2]).conj(), "e": torch.zeros(0, 3)}
    frame = child.pack_frame("main", 0, 2, outputs)
    header_bytes = int.from_bytes(frame[:8], "little")
    assert json.loads(frame[8 : 8 + header_bytes]).keys() == {"__metadata__", *"abcde"}


def test_a_dtype_that_cannot_be_compared_is_the_models_fault():
    with pytest.raises(BackendRefusal, match="e8m0") as caught:
        child.pack_frame("main", 0, 1, {"y": torch.zeros(1, dtype=torch.float8_e8m0fnu)})
    assert caught.value.kind is RefusalKind.MODEL


def test_frames_hold_only_what_numpy_reads():
    assert set(STORED_AS.values()) <= set(ITEM_BYTES)


def test_the_passes_of_the_test_jobs_cover_the_dataset():
    assert [p.samples for p in PASSES] == [10, 4]
