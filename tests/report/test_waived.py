"""What is waived is shown with its owner and its date in every report."""

from dataclasses import replace
from datetime import date

import pytest

from tests import builders
from tests.builders import Situation, document_of, reference_outputs, stale_weights
from validator.judge import Verdict, judge
from validator.policy import Policy, Waiver
from validator.report.annotation import annotation_metrics, description_block
from validator.report.model import VerdictDocument, read_document
from validator.report.terminal import render_terminal


@pytest.fixture
def waived(monkeypatch: pytest.MonkeyPatch) -> VerdictDocument:
    """A pass that rests on one waiver."""
    waiver = Waiver(
        check="error-ratio",
        backend="onnxruntime-cpu",
        owner="Ada [x](http://evil)",
        reason="known\n::error::",
        expires=date(2026, 12, 31),
    )
    situation = Situation(outputs={"onnxruntime-cpu": stale_weights(reference_outputs())})

    def decide_on(asked: Situation) -> tuple[object, ...]:
        policy = Policy(required=asked.required, batch_size=16, waiver=(waiver,))
        evidence = builders.evidence_of(asked)
        return policy, evidence, judge(policy, evidence, date(2026, 12, 1))

    monkeypatch.setattr(builders, "decide_on", decide_on)
    return document_of(replace(situation))


def test_the_terminal_shows_it_in_the_table_above_the_last_line_and_in_it(waived: VerdictDocument) -> None:
    assert waived.verdict is Verdict.PASS
    text = render_terminal(waived, color=False, width=120, verbose=False)
    lines = text.splitlines()
    assert any(line.startswith("  onnxruntime-cpu") and line.endswith("  waived") for line in lines)
    (warning,) = [line for line in lines if line.startswith("warning[waived]")]
    assert "waived by Ada" in warning
    assert "until 2026-12-31" in warning
    assert " and 6 waived on " in lines[-1] or " and 5 waived on " in lines[-1]
    assert not any(line.startswith("::") for line in lines)


def test_mlflow_shows_it(waived: VerdictDocument) -> None:
    block = description_block(waived, report_uri="verdict.json")
    (line,) = [line for line in block.splitlines() if line.startswith("- ~ waived: ")]
    assert "until 2026" in line
    assert "](http" not in line
    assert annotation_metrics(waived)["findings.waived"] >= 3


def test_the_document_keeps_it(waived: VerdictDocument) -> None:
    again = read_document(waived.to_json(), origin="verdict.json")
    assert again == waived
    assert {f.waiver.expires for f in again.findings if f.waiver} == {"2026-12-31"}
    assert again.policy.document["waiver"][0]["expires"] == "2026-12-31"  # type: ignore[index, call-overload]
