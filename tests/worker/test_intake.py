"""The parent's end of the pipe, without a process: whatever comes, in whatever pieces."""

import contextlib
import io
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import save

from tests.frames import facts, weights_facts
from tests.worker.jobs import PASSES, SAMPLES, export_job, probe_job, run_job_of, survey_job, weights_job
from validator.backends.interface import Environment, ExportFacts, SurveyFacts
from validator.golden.strata import LayerPeaks, OutputMargins, VaryingSize
from validator.worker.coverage import Coverage
from validator.worker.frames import check_frame, prefix_bytes
from validator.worker.intake import Intake
from validator.worker.protocol import (
    CLOSING,
    EXPORTED,
    FRAME,
    SURVEYED,
    WEIGHTS,
    Closing,
    FrameHeader,
    Pass,
    PassKind,
    ProtocolError,
    parse_header,
    parse_job,
    write_message,
)

JOB = run_job_of()
SURVEY = survey_job()


def frame(name, start, stop):
    header = FrameHeader(pass_name=name, start=start, stop=stop, dtypes={"y": "float32", "n": "int64"})
    tensors = {"y": np.full((stop - start, 2), 0.1, np.float32), "n": np.arange(start, stop)}
    return save(tensors, metadata={"frame": header.model_dump_json()})


def closing(frames, job=JOB):
    record = Closing(
        job_id=job.job_id,
        nonce=job.nonce,
        frames=frames,
        environment=Environment(settings={}, fingerprint={}),
        seconds={},
        peak_memory_bytes=0,
    )
    return record.model_dump_json().encode()


def honest_stream(cuts):
    stream, counts = io.BytesIO(), Counter()
    for name, start, stop in cuts:
        write_message(stream, FRAME, frame(name, start, stop))
        counts[name] += 1
    write_message(stream, CLOSING, closing(dict(counts)))
    return stream.getvalue()


HONEST = honest_stream([("main", 0, 4), ("main", 4, 10), ("repeat", 0, 4)])


def take(data, pieces=(1 << 20,), job=JOB):
    intake = Intake(job, io.BytesIO(), spool_limit_bytes=1 << 20)
    sizes = iter(pieces)
    while data:
        size = next(sizes, 1 << 20)
        intake.feed(data[:size])
        data = data[size:]
    return intake


@given(st.lists(st.integers(1, 300), max_size=40))
def test_pieces_do_not_matter(pieces):
    intake = take(HONEST, pieces)
    assert isinstance(intake.last, Closing)
    assert [(f.header.start, f.offset) for f in intake.frames] == [
        (f.header.start, f.offset) for f in take(HONEST).frames
    ]
    spooled = intake._spool.getvalue()
    assert spooled == frame("main", 0, 4) + frame("main", 4, 10) + frame("repeat", 0, 4)


@given(st.integers(0, len(HONEST) - 1))
def test_a_stream_cut_anywhere_is_never_a_proof(at):
    intake = take(HONEST[:at])
    assert intake.last is None


@given(st.data())
def test_a_changed_byte_never_raises_anything_but_a_protocol_error(data):
    at = data.draw(st.integers(0, len(HONEST) - 1))
    changed = bytearray(HONEST)
    changed[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ProtocolError):
        take(bytes(changed))


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_a_protocol_error(garbage):
    with contextlib.suppress(ProtocolError):
        assert take(garbage).last is None


@given(st.binary(max_size=64), st.binary(max_size=200))
def test_any_garbage_for_a_frame_is_a_protocol_error(head, rest):
    stream = io.BytesIO()
    write_message(stream, FRAME, head + rest)
    with pytest.raises(ProtocolError):
        take(stream.getvalue())


@given(st.sampled_from(b"FPSXC"), st.binary(max_size=64))
def test_a_message_is_read_as_it_was_written(kind, payload):
    stream = io.BytesIO()
    write_message(stream, bytes([kind]), payload)
    assert parse_header(stream.getvalue()[:9]) == (bytes([kind]), len(payload))
    assert stream.getvalue()[9:] == payload


cuts = st.lists(st.integers(1, SAMPLES - 1), unique=True).map(lambda at: [0, *sorted(at), SAMPLES])


@given(cuts, st.randoms())
def test_any_cut_in_any_order_covers(edges, random):
    ranges = list(itertools.pairwise(edges))
    random.shuffle(ranges)
    coverage = Coverage(PASSES[:1])
    for start, stop in ranges:
        coverage.add("main", start, stop)
    coverage.check_complete()
    assert coverage.samples == SAMPLES
    assert coverage.frames == {"main": len(ranges)}


@given(st.lists(st.tuples(st.integers(-2, 14), st.integers(-2, 14)), max_size=8))
def test_coverage_agrees_with_counting_every_sample(ranges):
    """The slow way: a set of samples."""
    allowed = set(range(2, 6)) | set(range(8, 12))
    seen, is_good = Counter(), True
    for start, stop in ranges:
        inside = any(low <= start and stop <= high for low, high in ((2, 6), (8, 12)))
        is_good &= start < stop and inside
        seen.update(range(start, stop))
    is_good &= set(seen) == allowed and set(seen.values()) == {1}

    coverage = Coverage([Pass(kind=PassKind.MAIN, batch_size=1, ranges=((2, 6), (8, 12)))])
    try:
        for start, stop in ranges:
            coverage.add("main", start, stop)
        coverage.check_complete()
    except ProtocolError:
        assert not is_good
    else:
        assert is_good


def test_a_name_given_twice_is_refused():
    good = frame("main", 0, 4)
    prefix = good[: prefix_bytes(good[:8], len(good))]
    assert check_frame(prefix, len(good)).stop == 4
    doubled = prefix.replace(b'"n":{', b'"y":{')
    with pytest.raises(ProtocolError, match="twice"):
        check_frame(doubled, len(good))


def test_a_deeply_nested_header_is_refused():
    text = b"[" * 100_000
    prefix = len(text).to_bytes(8, "little") + text
    with pytest.raises(ProtocolError):
        check_frame(prefix, len(prefix))


def test_a_job_survives_the_journey():
    assert parse_job(JOB.model_dump_json().encode()) == JOB


@pytest.mark.parametrize(
    ("dtypes", "more", "rule"),
    [
        ({"y": "complex128"}, {}, "not stored in pairs"),
        ({"y": "float64"}, {"note": "hello"}, "unknown metadata"),
    ],
)
def test_a_frame_that_contradicts_itself_is_refused(dtypes, more, rule):
    header = FrameHeader(pass_name=PassKind.MAIN.value, start=0, stop=2, dtypes=dtypes)
    blob = save({"y": np.zeros((2, 3))}, metadata={"frame": header.model_dump_json()} | more)
    with pytest.raises(ProtocolError, match=rule):
        check_frame(blob[: prefix_bytes(blob[:8], len(blob))], len(blob))


# --- Surveys ------------------------------------------------------------------------------------------------------


def survey_stream(*records, job=SURVEY):
    """What a worker says about a survey job: the records, then its closing."""
    stream = io.BytesIO()
    for record in records:
        write_message(stream, SURVEYED, record.model_dump_json().encode())
    write_message(stream, CLOSING, closing({}, job))
    return stream.getvalue()


def survey_facts(sample):
    return SurveyFacts(
        model=facts(),
        sizes={"x": (VaryingSize(symbol="s", least=1, most=None), None)},
        layers=(LayerPeaks(layer="mm 0", median=1.0, peaks=((sample, 2.0),)),),
        margins=(OutputMargins(output="y", margins=((sample, 0.5),)),),
        refused=(),
    )


def test_a_survey_is_taken_once_and_whole():
    intake = take(survey_stream(survey_facts(3)), job=SURVEY)
    assert intake.survey == survey_facts(3)
    assert isinstance(intake.last, Closing)


@pytest.mark.parametrize(
    ("stream", "job", "words"),
    [
        (survey_stream(survey_facts(SAMPLES)), SURVEY, "names samples beyond the 10"),
        (survey_stream(survey_facts(-1)), SURVEY, "names samples beyond the 10"),
        (survey_stream(survey_facts(1), survey_facts(1)), SURVEY, "for the second time"),
        (survey_stream(), SURVEY, "without saying what it found"),
        (survey_stream(survey_facts(1), job=JOB), JOB, "nobody asked for"),
    ],
    ids=["beyond", "negative", "twice", "nothing", "unasked"],
)
def test_a_survey_that_breaks_the_protocol_is_refused(stream, job, words):
    with pytest.raises(ProtocolError, match=words):
        take(stream, job=job)


# --- Weights ------------------------------------------------------------------------------------------------------


def said(job, *records):
    """Feed some records and the closing record of a job."""
    intake, stream = Intake(job, io.BytesIO(), spool_limit_bytes=1), io.BytesIO()
    for kind, record in records:
        write_message(stream, kind, record.model_dump_json().encode())
    write_message(stream, CLOSING, closing({}, job))
    intake.feed(stream.getvalue())
    return intake


MADE = ExportFacts(path="m.onnx", message="made")
REFUSED = ExportFacts(path=None, message="no")
WEIGHED = weights_facts()


def test_an_onnx_file_comes_with_an_account_of_its_weights():
    job = export_job("m.onnx")
    assert said(job, (EXPORTED, MADE), (WEIGHTS, WEIGHED)).weights == WEIGHED
    assert said(job, (EXPORTED, REFUSED)).weights is None
    assert said(weights_job(), (WEIGHTS, WEIGHED)).weights == WEIGHED


@pytest.mark.parametrize(
    ("job", "records"),
    [
        (export_job("m.onnx"), [(EXPORTED, MADE)]),
        (export_job("m.onnx"), [(EXPORTED, REFUSED), (WEIGHTS, WEIGHED)]),
        (export_job("m.onnx"), [(WEIGHTS, WEIGHED), (EXPORTED, MADE)]),
        (weights_job(), []),
        (weights_job(), [(WEIGHTS, WEIGHED), (WEIGHTS, WEIGHED)]),
        (weights_job(), [(EXPORTED, MADE), (WEIGHTS, WEIGHED)]),
        (probe_job(), [(WEIGHTS, WEIGHED)]),
        (JOB, [(WEIGHTS, WEIGHED)]),
    ],
    ids=["owed", "of no file", "before the file", "none", "twice", "an export", "of a probe", "of a run"],
)
def test_an_account_of_weights_that_is_owed_or_that_nobody_asked_for_breaks_the_protocol(job, records):
    with pytest.raises(ProtocolError):
        said(job, *records)


def test_an_account_of_weights_names_so_many_and_no_more():
    with pytest.raises(ValidationError):
        weights_facts(unexplained=21, unexplained_names=tuple(map(str, range(21))))
    with pytest.raises(ValidationError):
        weights_facts(unexplained=1, unexplained_names=("x" * 201,))
