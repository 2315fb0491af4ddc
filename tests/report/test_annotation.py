import hashlib
import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import Situation, document_of, failing, passing, reference_outputs, situations
from tests.report.conftest import MatchSnapshot
from tests.report.test_terminal import HOSTILE, hostile_documents
from validator.report.annotation import BLOCK_LIMIT, annotation_metrics, description_block, run_name, version_tags
from validator.report.markdown import code, escape, link
from validator.report.model import VerdictDocument

DOCUMENTS = dict(situations())
REPORT = "https://mlflow.example/run/1"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_descriptions_are_as_committed(name: str, match_snapshot: MatchSnapshot) -> None:
    match_snapshot(f"{name}.md", description_block(DOCUMENTS[name], report_uri=REPORT) + "\n")


def test_the_block_says_the_verdict_first_and_links_last() -> None:
    lines = description_block(failing(), report_uri=REPORT).splitlines()
    assert lines[0].startswith("**✗ fail** · 2026-11-30 15:02 UTC · validator 0.1.0 · subject `sha256:")
    assert lines[-1].startswith(f"[report]({REPORT}) · a label, not a permit")


def test_an_address_that_no_browser_follows_is_no_link() -> None:
    assert description_block(failing(), report_uri="verdict.json").splitlines()[-1].startswith("report `verdict.json`")
    assert link("report", "javascript:alert(1)") == "report `javascript:alert(1)`"
    assert link("a", "https://x/(b) c") == "[a](https://x/%28b%29%20c)"


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(hostile_documents(), HOSTILE)
def test_any_document_makes_a_block_that_fits_and_holds_no_markup_of_others(
    document: VerdictDocument, report_uri: str
) -> None:
    block = description_block(document, report_uri=report_uri)
    assert len(block) <= BLOCK_LIMIT
    assert all(line.isprintable() for line in block.split("\n"))
    assert "<!--" not in re.sub(r"`[^`]*`", "", block)
    assert block.startswith("**")


@given(st.text())
def test_escaped_text_holds_no_bare_markup(text: str) -> None:
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]<>|]", escape(text))
    assert not re.search(r"(?i)(?:@|(?<!&)#|(?<![^\W_])GH(?=-\d))(?!&#8203;)", escape(text))


@pytest.mark.parametrize(
    "text", ["https://evil.example", "www.evil.example", "mailto:a", "see HTTP://x", "_https://x", "1https://x"]
)
def test_addresses_in_names_do_not_become_links(text: str) -> None:
    assert not re.search(r"(?i)(https?://|www\.|mailto:)", escape(text))


def test_mentions_and_references_to_issues_are_broken_where_a_backslash_would_not_do() -> None:
    assert escape("@org/team #12 gh-7 high-res") == "@&#8203;org/team #&#8203;12 gh&#8203;-7 high-res"


@given(st.text())
def test_a_code_span_ends_where_it_should(text: str) -> None:
    assert code(text).count("`") == 2


def test_metrics_are_named_by_backend_and_output() -> None:
    metrics = annotation_metrics(failing())
    assert metrics["error_ratio.onnxruntime-cpu.logits"] == pytest.approx(130, rel=0.01)
    assert metrics["findings.exceeded"] == 13
    assert metrics["top1_flips.onnxruntime-cpu.logits"] == 0
    assert metrics["values_not_finite"] == 0


def test_metrics_that_are_no_numbers_are_counted_and_left_out() -> None:
    y = reference_outputs()
    document = document_of(Situation(outputs={"onnxruntime-cpu": {**y, "logits": y["logits"] * math.nan}}))
    metrics = annotation_metrics(document)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["values_not_finite"] > 0
    assert "error_ratio.onnxruntime-cpu.logits" not in metrics


def test_outputs_whose_names_become_equal_keep_their_own_metric() -> None:
    document = passing()
    backend = document.backends[-1]
    outputs = tuple(backend.outputs[0].model_copy(update={"name": name}) for name in ("a/b", "a:b", "a b"))
    document = document.model_copy(update={"backends": (backend.model_copy(update={"outputs": outputs}),)})
    keys = [key for key in annotation_metrics(document) if key.startswith("error_ratio.")]
    assert keys == [f"error_ratio.onnxruntime-cpu.a_b{suffix}" for suffix in ("", "-2", "-3")]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tags_fit_and_name_the_bytes_of_the_document(name: str) -> None:
    document = DOCUMENTS[name]
    tags = version_tags(document)
    assert all(key.startswith("validator.") and 0 < len(value) < 1_000 for key, value in tags.items())
    assert tags["validator.verdict_sha256"] == hashlib.sha256(document.to_json().encode()).hexdigest()
    assert tags["validator.digest"] == document.subject.digest
    assert "validator.verdict" not in tags


def test_a_run_has_a_short_name_and_one_without_a_version_the_models_own() -> None:
    document = passing()
    assert run_name(document) == f"alexnet v{document.subject.version} pass"
    logged = document.subject.model_copy(update={"name": None, "version": None, "title": "m-0a1b"})
    assert run_name(document.model_copy(update={"subject": logged})) == "m-0a1b pass"
