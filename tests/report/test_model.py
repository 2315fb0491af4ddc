import json
import math

import pytest
from pydantic import ValidationError

from tests.builders import GPU, document_of, failing, passing, reference_outputs, situations
from validator.errors import UsageError
from validator.report.model import VerdictDocument, read_document
from validator.report.schema import SCHEMA_PATH, schema_text


@pytest.mark.parametrize(("name", "document"), situations(), ids=[name for name, _ in situations()])
def test_documents_round_trip_to_the_same_bytes(name: str, document: VerdictDocument) -> None:
    text = document.to_json()
    again = read_document(text, origin=name)
    assert again == document
    assert again.to_json() == text


def test_the_same_check_gives_the_same_bytes() -> None:
    assert passing().to_json() == passing().to_json()


def test_nan_and_infinity_survive_json() -> None:
    y = reference_outputs()
    broken = {**y, "logits": y["logits"].copy()}
    broken["logits"][3, 4] = math.inf
    broken["probabilities"] = y["probabilities"] * math.nan
    document = document_of(GPU.__class__(outputs={"onnxruntime-cpu": broken}))
    text = document.to_json()
    json.loads(text, parse_constant=pytest.fail)
    assert '"NaN"' in text
    again = read_document(text, origin="verdict.json")
    assert again.to_json() == text
    output = next(o for b in again.backends if b.name == "onnxruntime-cpu" for o in b.outputs if o.kind == "float")
    assert output.nonfinite_mismatches > 0


def test_a_document_is_closed_and_frozen() -> None:
    document = passing()
    with pytest.raises(ValidationError):
        VerdictDocument.model_validate_json(document.to_json().replace('"check_id"', '"chek_id"'))
    with pytest.raises(ValidationError):
        document.verdict = failing().verdict  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "{}", "[]", "\x00", '{"schema_version": "2.0"}'])
def test_what_is_no_verdict_is_a_usage_error_that_names_the_file(text: str) -> None:
    with pytest.raises(UsageError, match=r"notes\.json is no verdict document"):
        read_document(text, origin="notes.json")


def test_the_published_schema_is_the_one_of_the_model() -> None:
    """`python -m validator.report.schema` writes it again."""
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text()
