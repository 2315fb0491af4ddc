"""From a verdict to a clearance: only of a pass, complete, and with everything that it is bound to."""

import hashlib
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.attest.world import GATE, NOW
from tests.builders import GPU, Situation, document_of, failing, inconclusive_crash, passing, refused
from tests.fakes import FakeRegistry
from validator.attest.envelope import read_envelope, read_statement, verify_signature
from validator.attest.keys import public_key_of
from validator.attest.statement import Statement
from validator.check import (
    CheckRequest,
    CheckResult,
    annotate,
    discard_old_verdict,
    write_clearance,
)
from validator.clearance import make_clearance, parse_lifetime, reported_checks, required_checks
from validator.errors import ClearanceRefused, UsageError
from validator.judge import Check, Status, Verdict
from validator.report.model import VerdictDocument, WaiverRecord
from validator.report.progress import SilentProgress

PASSING = passing()
WEEK = timedelta(days=7)


def clear(document: VerdictDocument, lifetime: timedelta = WEEK) -> Statement:
    data = make_clearance(document, signer=GATE, now=NOW, lifetime=lifetime, nonce="0" * 32)
    return read_statement(verify_signature(read_envelope(data), (public_key_of(GATE),)))


def waived_until(day: str) -> VerdictDocument:
    """The first finding of a pass is waived."""
    first, *rest = PASSING.findings
    waiver = WaiverRecord(owner="ml-platform", reason="known", ticket=None, expires=day)
    return PASSING.model_copy(
        update={"findings": (first.model_copy(update={"status": Status.WAIVED, "waiver": waiver}), *rest)}
    )


def without(document: VerdictDocument, check: Check, backend: str | None = "onnxruntime-gpu") -> VerdictDocument:
    kept = tuple(f for f in document.findings if (f.check, f.backend) != (check, backend))
    assert len(kept) < len(document.findings)
    return document.model_copy(update={"findings": kept})


def test_a_pass_is_bound_to_everything_that_its_document_names() -> None:
    predicate = clear(PASSING).predicate
    subject, onnx = PASSING.subject, PASSING.onnx
    assert onnx is not None
    assert predicate.model.model_dump() == {
        "registry_uri": subject.registry_uri,
        "name": "alexnet",
        "version": 3,
        "creation_timestamp_ms": subject.creation_timestamp_ms,
        "digest": subject.digest,
        "weights_digest": subject.weights_digest,
    }
    assert predicate.onnx is not None
    assert (predicate.onnx.digest, predicate.golden.digest) == (onnx.digest, PASSING.golden.digest)
    assert predicate.policy.digest == PASSING.policy.digest
    assert predicate.verdict_sha256 == hashlib.sha256(PASSING.to_json().encode()).hexdigest()
    assert {b.name: b.fingerprint for b in predicate.backends} == {b.name: b.fingerprint for b in PASSING.backends}
    assert [(w.code, w.message) for w in predicate.warnings] == [(w.code, w.message) for w in PASSING.warnings]
    assert (predicate.created, predicate.expires) == ("2026-12-01T12:00:00Z", "2026-12-08T12:00:00Z")
    assert (predicate.sandbox, predicate.check_id) == ("strict", PASSING.check_id)


def test_the_same_check_is_cleared_in_the_same_bytes() -> None:
    first, second = (make_clearance(passing(), signer=GATE, now=NOW, lifetime=WEEK, nonce="0" * 32) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("document", [failing(), inconclusive_crash(), refused()], ids=lambda d: d.verdict.value)
def test_only_a_pass_is_cleared(document: VerdictDocument) -> None:
    with pytest.raises(ClearanceRefused, match="no clearance is given: verdict"):
        clear(document)


@pytest.mark.parametrize("document", [failing(), inconclusive_crash()], ids=lambda d: d.verdict.value)
def test_a_document_that_was_made_a_pass_is_not_complete(document: VerdictDocument) -> None:
    """Required and reported come from different places: the policy and the backends, and the findings."""
    with pytest.raises(ClearanceRefused, match=r"no clearance is given: checks: .* is missing"):
        clear(document.model_copy(update={"verdict": Verdict.PASS}))


def test_a_pass_without_findings_or_backends_is_not_cleared() -> None:
    for update in ({"findings": ()}, {"backends": ()}):
        with pytest.raises(ClearanceRefused, match="checks"):
            clear(PASSING.model_copy(update=update))
    policy = PASSING.policy.model_copy(update={"required": ()})
    reference_only = tuple(b for b in PASSING.backends if b.name in ("reference", "eager-cpu"))
    with pytest.raises(ClearanceRefused, match="nothing was required"):
        clear(PASSING.model_copy(update={"policy": policy, "backends": reference_only}))


@pytest.mark.parametrize("check", [Check.WORKER, Check.COVERAGE, Check.BATCH, Check.ERROR_RATIO])
def test_one_finding_less_is_not_cleared(check: Check) -> None:
    with pytest.raises(ClearanceRefused, match="is missing"):
        clear(without(PASSING, check))


def test_without_the_planted_fault_nothing_is_cleared() -> None:
    with pytest.raises(ClearanceRefused, match="power is missing"):
        clear(without(PASSING, Check.POWER, None))


def test_findings_of_a_backend_that_nobody_required_are_not_cleared() -> None:
    kept = tuple(b for b in PASSING.backends if b.name != "onnxruntime-cpu")
    with pytest.raises(ClearanceRefused, match="was not required"):
        clear(PASSING.model_copy(update={"backends": kept}))


def test_a_required_backend_that_did_not_run_is_missing() -> None:
    document = document_of(Situation())
    assert required_checks(document) == reported_checks(document)
    policy = document.policy.model_copy(update={"required": (*document.policy.required, "eager-cuda")})
    with pytest.raises(ClearanceRefused, match="eager-cuda/batch-invariance is missing"):
        clear(document.model_copy(update={"policy": policy}))


def test_a_waiver_that_ends_earlier_ends_the_clearance() -> None:
    assert clear(waived_until("2026-12-03")).predicate.expires == "2026-12-04T00:00:00Z"
    assert clear(waived_until("2027-01-31")).predicate.expires == "2026-12-08T12:00:00Z"
    assert clear(waived_until("2026-12-03")).predicate.waivers[0].owner == "ml-platform"
    with pytest.raises(ClearanceRefused, match="expires"):
        clear(waived_until("2026-11-30"))


def test_a_clearance_that_nobody_could_read_is_not_given() -> None:
    policy = PASSING.policy.model_copy(update={"origin": "x" * (1 << 20)})
    with pytest.raises(ClearanceRefused, match="more than 1,048,576"):
        clear(PASSING.model_copy(update={"policy": policy}))


@pytest.mark.parametrize("missing", ["name", "version", "creation_timestamp_ms"])
def test_what_is_no_registered_version_is_not_cleared(missing: str) -> None:
    subject = PASSING.subject.model_copy(update={missing: None})
    with pytest.raises(ClearanceRefused, match="no registered version"):
        clear(PASSING.model_copy(update={"subject": subject}))


@pytest.mark.parametrize(("text", "hours"), [("7d", 168), ("12h", 12), ("90m", 1.5), ("365d", 8760)])
def test_a_lifetime_is_read(text: str, hours: float) -> None:
    assert parse_lifetime(text) == timedelta(hours=hours)


@pytest.mark.parametrize("text", ["", "7", "d", "0d", "-1d", "366d", "999999d", "7D", "1.5h", "7d ", "\u0667d"])
def test_a_lifetime_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="cannot expire"):
        parse_lifetime(text)


# --- What check does with it --------------------------------------------------------------------------------------


def test_an_earlier_clearance_is_removed_before_a_check_begins(tmp_path: Path) -> None:
    (tmp_path / "clearance.json").write_text("{}")
    discard_old_verdict(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_clearance_is_an_artifact_of_the_run(tmp_path: Path) -> None:
    document = document_of(replace(GPU, version=1))
    for name in ("verdict.json", "samples.csv"):
        (tmp_path / name).write_text("")
    request = CheckRequest(uri="models:/alexnet/1", output=tmp_path)
    path = write_clearance(document, GATE, request)
    registry = FakeRegistry()
    registry.add_version("alexnet", tmp_path)
    subject = registry.resolve(*_parsed("models:/alexnet/1"))
    result = CheckResult(document=document, verdict=document.verdict, path=tmp_path / "verdict.json")
    annotate(replace(result, clearance=path), subject, registry, tmp_path, SilentProgress())
    (annotation,) = registry.annotations.values()
    assert annotation.artifacts["clearance.json"] == tmp_path / "clearance.json"
    annotate(result, subject, registry, tmp_path, SilentProgress())
    (annotation,) = registry.annotations.values()
    assert "clearance.json" not in annotation.artifacts


def _parsed(text: str):
    from validator.subject import parse_model_uri

    return parse_model_uri(text), text
