import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import (
    GPU,
    Situation,
    document_of,
    failing,
    no_gpu,
    noisy,
    passing,
    reference_outputs,
    situations,
    stale_weights,
)
from tests.report.conftest import MatchSnapshot
from validator.backends.catalog import CATALOG
from validator.judge import Check, Status, Verdict
from validator.report.groups import repeat_command
from validator.report.model import CrashedRecord, FindingRecord, VerdictDocument, WarningRecord
from validator.report.terminal import render_last_line, render_terminal
from validator.subject import OnnxOrigin

DOCUMENTS = dict(situations())


def rendered(document: VerdictDocument, *, color: bool = False, width: int = 120, verbose: bool = False) -> str:
    return render_terminal(document, color=color, width=width, verbose=verbose)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_reports_are_as_committed(name: str, match_snapshot: MatchSnapshot) -> None:
    match_snapshot(f"{name}.txt", rendered(DOCUMENTS[name]) + "\n")


@pytest.mark.parametrize(
    ("name", "file", "options"),
    [
        ("pass", "pass-60-columns.txt", {"width": 60}),
        ("fail", "fail-verbose.txt", {"verbose": True}),
        ("fail", "fail-color.txt", {"color": True, "verbose": True}),
    ],
    ids=["narrow", "verbose", "color"],
)
def test_other_ways_to_see_it_are_as_committed(
    name: str, file: str, options: dict[str, Any], match_snapshot: MatchSnapshot
) -> None:
    match_snapshot(file, rendered(DOCUMENTS[name], **options) + "\n")


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("width", [20, 60, 80, 120])
def test_the_last_line_begins_with_the_verdict_and_is_whole(name: str, width: int) -> None:
    document = DOCUMENTS[name]
    last = rendered(document, width=width).splitlines()[-1]
    assert last == f"{document.verdict.value}: {document.headline}"


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_lines_fit_the_width_but_commands_and_the_last_line(name: str, width: int) -> None:
    lines = rendered(DOCUMENTS[name], width=width).splitlines()[:-1]
    assert all(len(line) <= width for line in lines if "validator check" not in line)


def test_a_failure_says_what_where_how_much_which_sample_and_what_next() -> None:
    text = rendered(failing())
    for fact in (
        "fail[error-ratio]  onnxruntime-gpu, onnxruntime-cpu: output logits",
        "error ratio 130 of 10.0",
        "worst element 187 of 20.0",
        "sample 0008, element 7: reference ",
        "unseen      by top-1 (0 flips of 64) and by cosine (0.9999999996)",
        "reading     both ONNX Runtime backends are out alike and the eager ones are within (1.27)",
        "validator check models:/alexnet/2 --golden golden/ --onnx model.onnx",
    ):
        assert fact in text


def test_four_metrics_of_two_backends_are_one_group() -> None:
    assert sum(line.startswith("fail[error-ratio]") for line in rendered(failing()).splitlines()) == 1


def test_a_pass_lists_no_group_and_a_failure_no_table() -> None:
    assert "eager-cuda " in rendered(passing())
    assert "[error-ratio]" not in rendered(passing())
    assert "eager-cuda " not in rendered(failing())
    assert "eager-cuda " in rendered(failing(), verbose=True)


def test_in_the_table_only_the_output_that_is_out_is_exceeded() -> None:
    lines = rendered(failing(), verbose=True).splitlines()
    assert [line.endswith("exceeded") for line in lines if line.startswith("  onnxruntime-gpu")] == [True, False]


def test_a_single_bad_backend_gives_no_reading_about_the_file() -> None:
    """Only ONNX Runtime on CUDA is out: the same file is within on the CPU, so the file is not to blame."""
    document = document_of(replace(GPU, outputs={"onnxruntime-gpu": stale_weights(reference_outputs())}))
    assert document.verdict is Verdict.FAIL
    assert "reading" not in rendered(document)


def test_onnx_backends_that_are_out_differently_give_no_reading() -> None:
    y = reference_outputs()
    worse = stale_weights(y)
    worse["logits"][:, 7] *= 1.5
    document = document_of(replace(GPU, outputs={"onnxruntime-gpu": stale_weights(y), "onnxruntime-cpu": worse}))
    assert "reading" not in rendered(document)


def test_all_cuda_backends_out_read_as_the_device() -> None:
    y = reference_outputs()
    names = ("eager-cuda", "cudnn-deterministic", "onnxruntime-gpu")
    document = document_of(replace(GPU, outputs={name: noisy(y, seed=5, scale=300) for name in names}))
    assert "every CUDA backend is out" in rendered(document)
    assert "--backend cudnn-off" in rendered(document)


def test_flips_are_not_called_unseen_where_there_are_some() -> None:
    y = reference_outputs()
    flipped = {**noisy(y, seed=4), "logits": y["logits"][:, ::-1].copy()}
    text = rendered(document_of(Situation(outputs={"onnxruntime-cpu": flipped})))
    assert "by top-1" not in text


def test_an_export_of_this_check_is_not_blamed_on_the_author() -> None:
    situation = Situation(
        outputs={"onnxruntime-cpu": stale_weights(reference_outputs())}, onnx_origin=OnnxOrigin.EXPORT
    )
    assert "this check exported alexnet version 3 itself" in rendered(document_of(situation))


def test_where_some_backends_are_missing_the_others_are_shown() -> None:
    lines = rendered(DOCUMENTS["inconclusive-no-gpu"]).splitlines()
    assert ["floor" in line for line in lines if line.startswith("  eager-cpu ")] == [True, True]
    assert [line.split()[-2:] for line in lines if line.startswith("  eager-cuda ")] == [["not", "measured"]]


def test_one_missing_gpu_is_one_group() -> None:
    text = rendered(DOCUMENTS["inconclusive-no-gpu"])
    assert "inconclusive[worker]  eager-cuda, cudnn-deterministic, onnxruntime-gpu: there is no CUDA" in text


def test_worker_output_is_quoted_behind_a_bar() -> None:
    text = rendered(DOCUMENTS["inconclusive-crash"])
    assert "| : :error::owned" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("verbose", "kept"), [(False, 5), (True, 20)], ids=["quiet", "verbose"])
def test_at_most_so_many_lines_of_worker_output_are_quoted(*, verbose: bool, kept: int) -> None:
    document = DOCUMENTS["inconclusive-crash"]
    tail = "\n".join(f"line {i}" for i in range(200))
    outcome = CrashedRecord(exit_status=1, samples=0, log_tail=tail)
    backends = (*document.backends[:-1], document.backends[-1].model_copy(update={"outcome": outcome}))
    text = rendered(document.model_copy(update={"backends": backends}), verbose=verbose)
    assert text.count("| line ") == kept


def test_more_than_five_groups_end_in_a_count() -> None:
    findings = tuple(
        FindingRecord(
            id=f"{i:016x}", check=Check.CONTRACT, status=Status.EXCEEDED, backend="onnxruntime-cpu", output=f"out{i}",
            metric=None, measured=None, limit=None, sample=None, sample_id=None, message=f"output out{i}: missing",
            hint=None,
        )
        for i in range(8)
    )  # fmt: skip
    document = failing().model_copy(update={"findings": findings})
    text = rendered(document)
    assert text.count("fail[contract]") == 5
    assert "and 3 more: --verbose shows them, verdict.json holds all" in text
    assert rendered(document, verbose=True).count("fail[contract]") == 8


def test_warnings_and_retries_stand_above_the_last_line() -> None:
    document = document_of(replace(GPU, retries=("eager-cuda: CUDA error 700",)))
    document = document.model_copy(update={"warnings": (WarningRecord(code="headroom", message="54% is used"),)})
    assert rendered(document).splitlines()[-4:-1] == [
        "warning[headroom]: 54% is used",
        "warning[retry]: eager-cuda: CUDA error 700",
        "",
    ]


def test_colour_only_repeats_what_the_words_say() -> None:
    for document in DOCUMENTS.values():
        colored = rendered(document, color=True, verbose=True)
        assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == rendered(document, verbose=True)


def test_many_outputs_show_one_row_per_backend() -> None:
    document = passing()
    backend = document.backends[2]
    many = tuple(backend.outputs[0].model_copy(update={"name": f"out{i}"}) for i in range(40))
    backends = (*document.backends[:2], backend.model_copy(update={"outputs": many}), *document.backends[3:])
    document = document.model_copy(update={"backends": backends})
    assert sum(line.startswith("  eager-cuda ") for line in rendered(document).splitlines()) == 1
    assert sum(line.startswith("  eager-cuda ") for line in rendered(document, verbose=True).splitlines()) == 40


def test_columns_go_in_their_order_where_it_is_narrow() -> None:
    headings = [
        next(line for line in rendered(passing(), width=width).splitlines() if line.startswith("  backend"))
        for width in (120, 100, 85, 70, 60)
    ]
    assert "used" in headings[0]
    assert "used" not in headings[1]
    for wide, narrow in itertools.pairwise(headings):
        assert set(narrow.split()) <= set(wide.split())


@pytest.mark.parametrize(
    ("command", "options", "again"),
    [
        (("validator", "check", "models:/a/1"), ("--onnx", "m.onnx"), "validator check models:/a/1 --onnx m.onnx"),
        (("validator", "check", "a", "--onnx", "old"), ("--onnx", "m"), "validator check a --onnx m"),
        (("validator", "check", "--onnx=old", "a"), ("--onnx", "m"), "validator check a --onnx m"),
        (
            ("validator", "check", "a", "--backend", "x"),
            ("--backend", "y"),
            "validator check a --backend x --backend y",
        ),
        (("validator", "check", "--verbose", "a"), ("--verbose",), "validator check a --verbose"),
        (("validator", "check", "a; rm b"), ("--onnx", "m"), "validator check 'a; rm b' --onnx m"),
        (("python", "demo.py"), ("--onnx", "m"), "validator check models:/alexnet/3 --onnx m"),
    ],
)
def test_the_next_command_repeats_the_check_with_what_is_new(
    command: tuple[str, ...], options: tuple[str, ...], again: str
) -> None:
    assert repeat_command(passing().model_copy(update={"command": command}), options) == again


def test_a_worker_that_names_itself_twice_is_named_once() -> None:
    row = CATALOG["eager-cuda"]
    outcome = no_gpu(row)
    refusal = outcome.refusal.model_copy(update={"message": "eager-cuda asks for cuda: no driver"})
    document = document_of(replace(GPU, outcomes={row.name: replace(outcome, refusal=refusal)}))
    assert "inconclusive[worker]  eager-cuda: asks for cuda: no driver" in rendered(document)


def test_verbose_says_what_every_backend_ran_with() -> None:
    assert "eager-cuda: gpu NVIDIA H200, torch 2.14.1, 2.8 s, 512 MB" in rendered(passing(), verbose=True)


# --- Whatever the document holds ----------------------------------------------------------------------------------

HOSTILE = st.text(max_size=30) | st.sampled_from(
    ["::error::x", "\n::set-output name=a::b", "##[error]x", "\x1b[2Jx", "\u202ex", "a\rb", "\ud800", "", " ", "-->"]
)
NUMBER = st.none() | st.floats() | st.just(0.0)
FINDINGS = st.lists(
    st.builds(
        FindingRecord,
        id=st.just("0" * 16),
        check=st.sampled_from(Check),
        status=st.sampled_from(Status),
        backend=st.none()
        | st.sampled_from(["eager-cpu", "onnxruntime-cpu", "eager-cuda", "onnxruntime-gpu"])
        | HOSTILE,
        output=st.none() | st.sampled_from(["logits", "probabilities"]) | HOSTILE,
        metric=st.none() | st.sampled_from(["error ratio", "error ratio p99"]) | HOSTILE,
        measured=NUMBER,
        limit=NUMBER,
        sample=st.none() | st.integers(0, 99),
        sample_id=st.none() | HOSTILE,
        message=HOSTILE,
        hint=st.none() | HOSTILE,
    ),
    max_size=12,
)


@st.composite
def hostile_documents(draw: st.DrawFn) -> VerdictDocument:
    document = DOCUMENTS[draw(st.sampled_from(sorted(DOCUMENTS)))]
    subject = document.subject.model_copy(update={"title": draw(HOSTILE), "pinned_uri": draw(HOSTILE)})
    golden = document.golden.model_copy(update={"name": draw(HOSTILE)})
    policy = document.policy.model_copy(update={"origin": draw(HOSTILE)})
    return document.model_copy(
        update={
            "verdict": draw(st.sampled_from(Verdict)),
            "headline": draw(HOSTILE),
            "subject": subject,
            "golden": golden,
            "policy": policy,
            "findings": tuple(draw(FINDINGS)),
            "warnings": tuple(draw(st.lists(st.builds(WarningRecord, code=HOSTILE, message=HOSTILE), max_size=3))),
            "retries": tuple(draw(st.lists(HOSTILE, max_size=2))),
        }
    )


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(document=hostile_documents(), width=st.sampled_from([20, 60, 100, 120]), verbose=st.booleans())
def test_any_document_renders_to_lines_that_are_safe_to_print(
    *, document: VerdictDocument, width: int, verbose: bool
) -> None:
    lines = rendered(document, width=width, verbose=verbose).split("\n")
    for line in lines:
        assert line.isprintable()
        assert not line.lstrip().startswith("::")
        assert "##[" not in line
    assert lines[-1].startswith(f"{document.verdict.value}: ")
    assert lines[-1] == render_last_line(document, color=False)
