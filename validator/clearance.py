"""From a verdict to a clearance: copies, counts and signs; decides nothing that was not decided."""

import hashlib
import re
from datetime import datetime, timedelta

from validator.attest.envelope import read_statement
from validator.attest.judgement import end_of_waivers, judge_statement
from validator.attest.sealing import AnySigner, acceptance_of, read_sealed, seal, verify_sealed
from validator.attest.statement import (
    BackendBinding,
    GoldenBinding,
    ModelBinding,
    OnnxBinding,
    PolicyBinding,
    Predicate,
    ReusedBinding,
    Summary,
    SummaryPolicy,
    SummaryVerifier,
    ToolBinding,
    WaiverBinding,
    WarningBinding,
    make_statement,
    to_digest_set,
    write_time,
)
from validator.backends.catalog import BASELINE, REFERENCE
from validator.errors import ClearanceRefused, UsageError
from validator.judge import REQUIRED_CHECKS, Check, Status, Verdict
from validator.report.model import VerdictDocument

CLEARANCE_NAME = "clearance.json"
LIFETIME_MAX = timedelta(days=365)
VALUES = "values"
"""Stands for `error-ratio` or `exact`: every candidate needs one of them."""

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def parse_lifetime(text: str) -> timedelta:
    """Read `7d`, `12h` or `30m`.

    Raises:
        UsageError: neither, nothing, or more than a year.
    """
    match = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    lifetime = int(match[1]) * _UNITS[match[2]] if match else timedelta(0)
    if not timedelta(0) < lifetime <= LIFETIME_MAX:
        raise UsageError(f"a clearance cannot expire in {text!r}", hint="write 7d, 12h or 30m; at most 365d")
    return lifetime


def make_clearance(
    document: VerdictDocument, *, signer: AnySigner, now: datetime, lifetime: timedelta, nonce: str
) -> bytes:
    """Return the signed clearance of a check that passed.

    Args:
        document: of the check; its own words are what is bound.
        signer: a key, or this process's identity.
        now: when it is signed.
        lifetime: how long it is good for at most; a waiver that ends earlier ends it, too.
        nonce: 32 hex digits that were never used.

    Raises:
        ClearanceRefused: the check did not pass, is not complete, or was not of a registered version.
        KeylessError: there is no identity to sign with.
        SigstoreUnreachable: no keyless signature could be had.
    """
    predicate = _predicate(document, now=now, lifetime=lifetime, nonce=nonce)
    statement = make_statement(predicate)
    for claim in judge_statement(statement, now):
        if not claim.holds:
            raise ClearanceRefused(f"no clearance is given: {claim.name}: {claim.message}")
    clearance = seal(statement, signer)
    # As whoever verifies it will: one that nobody can read must not come to light in a deploy job.
    sealed = read_sealed(clearance)
    if read_statement(verify_sealed(sealed, (acceptance_of(signer, sealed),))) != statement:
        raise ClearanceRefused("what was signed is not what the check said")
    return clearance


def _predicate(document: VerdictDocument, *, now: datetime, lifetime: timedelta, nonce: str) -> Predicate:
    model, waivers = _model(document), _waivers(document)
    created = write_time(now)
    end = end_of_waivers([waiver.expires for waiver in waivers])
    return Predicate(
        check_id=document.check_id,
        model=model,
        onnx=None
        if document.onnx is None
        else OnnxBinding(digest=document.onnx.digest, origin=document.onnx.origin, source=document.onnx.source),
        golden=GoldenBinding(name=document.golden.name, digest=document.golden.digest),
        policy=PolicyBinding(origin=document.policy.origin, digest=document.policy.digest),
        tool=ToolBinding(name=document.tool.name, version=document.tool.version),
        backends=tuple(BackendBinding(name=b.name, fingerprint=dict(b.fingerprint)) for b in document.backends),
        reused=_reused(document),
        required=tuple(sorted(required_checks(document))),
        reported=tuple(sorted(reported_checks(document))),
        verdict=document.verdict.value,
        warnings=tuple(WarningBinding(code=w.code, message=w.message) for w in document.warnings),
        waivers=waivers,
        sandbox=document.sandbox.level.value,
        verdict_sha256=hashlib.sha256(document.to_json().encode()).hexdigest(),
        nonce=nonce,
        created=created,
        expires=write_time(now + lifetime if end is None else min(now + lifetime, end)),
        summary=Summary(
            verifier=SummaryVerifier(),
            time_verified=created,
            resource_uri=model.uri,
            policy=SummaryPolicy(digest=to_digest_set(document.policy.digest)),
            verification_result="PASSED" if document.verdict is Verdict.PASS else "FAILED",
        ),
    )


def _model(document: VerdictDocument) -> ModelBinding:
    subject = document.subject
    if subject.name is None or subject.version is None or subject.creation_timestamp_ms is None:
        raise ClearanceRefused(f"{subject.title} is no registered version, and a clearance is about one")
    return ModelBinding(
        registry_uri=subject.registry_uri,
        name=subject.name,
        version=subject.version,
        creation_timestamp_ms=subject.creation_timestamp_ms,
        digest=subject.digest,
        weights_digest=subject.weights_digest,
    )


def _reused(document: VerdictDocument) -> tuple[ReusedBinding, ...]:
    parts = [(backend.name, backend.reused) for backend in document.backends]
    parts += [] if document.onnx is None else [("export", document.onnx.reused)]
    return tuple(
        ReusedBinding(what=name, check_id=reused.check_id, created=reused.created_utc)
        for name, reused in parts
        if reused is not None
    )


def _waivers(document: VerdictDocument) -> tuple[WaiverBinding, ...]:
    return tuple(
        WaiverBinding(
            check=finding.check.value,
            backend=finding.backend,
            output=finding.output,
            owner=finding.waiver.owner,
            reason=finding.waiver.reason,
            ticket=finding.waiver.ticket,
            expires=finding.waiver.expires,
        )
        for finding in document.findings
        if finding.waiver is not None
    )


def required_checks(document: VerdictDocument) -> set[str]:
    """Name what the gate requires of every backend that the policy asks for or that ran, and of the run."""
    names = {*document.policy.required, *(backend.name for backend in document.backends)} - {REFERENCE, BASELINE}
    checks = {check.value for check in REQUIRED_CHECKS} | {VALUES}
    return {f"{name}/{check}" for name in names for check in checks} | ({Check.POWER.value} if names else set())


def reported_checks(document: VerdictDocument) -> set[str]:
    """Name what was found within or waived, of the kinds that are required; one finding otherwise takes it out."""
    seen: dict[str, bool] = {}
    for finding in document.findings:
        if (name := _name_of(finding.backend, finding.check)) is not None:
            seen[name] = seen.get(name, True) and finding.status in (Status.WITHIN, Status.WAIVED)
    return {name for name, is_admitted in seen.items() if is_admitted}


def _name_of(backend: str | None, check: Check) -> str | None:
    if backend is None:
        return check.value if check is Check.POWER else None
    if backend in (REFERENCE, BASELINE):
        return None
    if check in (Check.ERROR_RATIO, Check.EXACT):
        return f"{backend}/{VALUES}"
    return f"{backend}/{check.value}" if check in REQUIRED_CHECKS else None
