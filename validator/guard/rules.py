"""Which changes to a registry are refused, and in which words. Pure: facts and the time are arguments.

Every rule returns what it read or raises `GuardRefused`. A rule says what must be there; what is missing is refused.
The message goes to whoever asked, through MLflow, so its hint says what to do.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from validator.attest.judgement import Identity, judge_identity, judge_inputs, judge_statement, short
from validator.attest.statement import Predicate
from validator.errors import GuardRefused
from validator.guard.config import Protection
from validator.guard.moves import Move
from validator.judge import Verdict
from validator.registry.interface import (
    CHECK_TAG,
    CLEARANCE_TAG,
    EXPECT_TAG,
    NOBODY,
    PREVIOUS_TAG,
    VERDICT_TAG,
)
from validator.verify import open_clearance

BLOCKING_VERDICTS = frozenset(verdict for verdict in Verdict if verdict is not Verdict.PASS)
"""Anybody may write these: they only block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A registered version as the registry has it."""

    name: str
    number: int
    creation_time: int
    """In ms."""
    location: str
    """Where its files are read from."""
    tags: Mapping[str, str]

    @property
    def title(self) -> str:
        """Name and number."""
        return f"{self.name} version {self.number}"

    @property
    def uri(self) -> str:
        """The pinned URI."""
        return f"models:/{self.name}/{self.number}"


@dataclass(frozen=True, slots=True)
class Measured:
    """The digest of a version's files, and the version as it was when they were hashed."""

    version: Version
    digest: str


def sha256_of(text: str) -> str:
    """Return the sha256 of a clearance as 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


# --- The clearance ------------------------------------------------------------------------------------------------


def require_clearance(
    text: str | None, version: Version, protection: Protection, moves: list[Move], now: datetime
) -> Predicate:
    """Require a clearance for exactly this version.

    One by which the version came to hold an alias before is judged at the time when it did: an alias can go back to it
    after it has expired. Keys and accepted digests are those of today in either case.

    Args:
        text: the envelope; None: the version carries none.
        version: what it must be about; a republished one carries that of its origin, and is tied to it by its bytes.
        protection: whose signature counts, and what was accepted.
        moves: those that may be repeated, as the guard recorded them: of the alias that is to move.
        now: the time.
    """
    hint = f"run validator check {version.uri} with --sign-key, by a key that this registry accepts"
    if text is None:
        raise GuardRefused(f"{version.title} carries no clearance", hint=hint)
    statement, claims = open_clearance(text.encode(), protection.keys)
    if statement is not None:
        predicate = statement.predicate
        claims += judge_statement(statement, accepted_at(text, version, moves) or now)
        claims += judge_identity(predicate, _identity(predicate, version, protection))
        claims += judge_inputs(predicate, protection.allowed)
    wrong = [claim for claim in claims if not claim.holds]
    if statement is None or wrong or not claims:
        said = "; ".join(f"{claim.name}: {claim.message}" for claim in wrong)
        raise GuardRefused(f"the clearance of {version.title} does not hold: {said}", hint=hint)
    return statement.predicate


def accepted_at(text: str, version: Version, moves: list[Move]) -> datetime | None:
    """Return when an alias came to this very version by this very clearance; None: never."""
    found = [
        move.moved_at_ms
        for move in moves
        if (move.version, move.creation_time) == (version.number, version.creation_time)
        and move.clearance_sha256 == sha256_of(text)
    ]
    return datetime.fromtimestamp(found[0] / 1_000, UTC) if found else None


def require_bytes(predicate: Predicate, measured: Measured | None, version: Version) -> None:
    """Require that the files of this very version were hashed, and are those that were cleared.

    None: they were not hashed, because all was done already, and is no longer.
    """
    if measured is None:
        raise GuardRefused(
            f"{version.title} was changed by somebody else just now", hint="look at it and its alias, then try again"
        )
    hashed, digest = measured.version, measured.digest
    if (hashed.creation_time, hashed.location) != (version.creation_time, version.location):
        raise GuardRefused(
            f"{version.title} is not the one whose files were hashed: another took its name meanwhile",
            hint="look at that version, then try again",
        )
    if digest != predicate.model.digest:
        raise GuardRefused(
            f"the files of {version.title} are not those that were cleared: {short(predicate.model.digest)} was, they "
            f"are {short(digest)} now",
            hint="find out who wrote to them; then register the model again and check that version",
        )


def _identity(predicate: Predicate, version: Version, protection: Protection) -> Identity:
    """Return what a clearance must be about. Of a republished version only the origin's name is known here."""
    uris, cleared = protection.config.registry_uris, predicate.model
    registry_uri = cleared.registry_uri if cleared.registry_uri in uris else uris[0]
    if (origin := protection.origin_of(version.name)) is not None and cleared.name != version.name:
        return Identity(
            registry_uri=registry_uri,
            name=origin,
            version=cleared.version,
            creation_timestamp_ms=cleared.creation_timestamp_ms,
        )
    return Identity(
        registry_uri=registry_uri,
        name=version.name,
        version=version.number,
        creation_timestamp_ms=version.creation_time,
    )


# --- Aliases ------------------------------------------------------------------------------------------------------


def require_move(
    alias: str, version: Version, holder: int | None, protection: Protection, moves: list[Move], now: datetime
) -> Predicate:
    """Require that a protected alias may come to a version from its present holder; return what it was cleared by."""
    try:
        predicate = require_clearance(version.tags.get(CLEARANCE_TAG), version, protection, moves, now)
    except GuardRefused as error:
        raise GuardRefused(
            f"alias {alias} of {version.name} stays {_where(holder)}: {error.message}",
            hint=f"{error.hint}; then validator promote {version.uri} --alias {alias} --key PUBLIC_KEY",
        ) from error
    require_expected(version.tags.get(EXPECT_TAG + alias), alias, version, holder, protection)
    return predicate


def require_expected(
    expected: str | None, alias: str, version: Version, holder: int | None, protection: Protection
) -> None:
    """Require that the alias is where whoever moves it believes it to be."""
    if expected is None:
        if protection.config.require_expect:
            raise GuardRefused(
                f"alias {alias} of {version.name} stays {_where(holder)}: nobody said who holds it now",
                hint=f"validator promote {version.uri} --alias {alias} says so, by the tag {EXPECT_TAG}{alias}",
            )
        return
    if expected != (NOBODY if holder is None else str(holder)):
        believed = "nowhere" if expected == NOBODY else f"on version {expected}"
        raise GuardRefused(
            f"alias {alias} of {version.name} is {_where(holder)}, not {believed} as expected: somebody was faster",
            hint=f"look at it, then validator promote {version.uri} --alias {alias} --key PUBLIC_KEY again",
        )


def refuse_removal(alias: str, name: str, holder: int | None) -> GuardRefused:
    """Say that a protected alias is not taken away."""
    return GuardRefused(
        f"alias {alias} of {name} stays {_where(holder)}: it is protected",
        hint="move it to another cleared version with validator promote, or ask the administrator",
    )


def _where(holder: int | None) -> str:
    return "nowhere" if holder is None else f"on version {holder}"


# --- Tags ---------------------------------------------------------------------------------------------------------


def require_version_tag(
    key: str, value: str, version: Version, protection: Protection, moves: list[Move], now: datetime
) -> None:
    """Require that a tag may be written to a version: what says pass must be signed, and agree with what was signed."""
    if key == CLEARANCE_TAG:
        require_clearance(value, version, protection, moves, now)
    elif key == VERDICT_TAG:
        _require_verdict(value, version, protection, moves, now)
    elif key.startswith(EXPECT_TAG):
        if re.fullmatch(rf"{NOBODY}|[1-9][0-9]{{0,17}}", value) is None:
            raise GuardRefused(f"{key} is a version number or {NOBODY}", hint="validator promote writes it")
    elif version.tags.get(VERDICT_TAG) == Verdict.PASS:
        _require_agreement(key, value, version, protection)


def require_new_tags(tags: Mapping[str, str], name: str) -> None:
    """Require that a version that is only made now carries nothing that says pass: a copy would bring it along."""
    if CLEARANCE_TAG in tags or tags.get(VERDICT_TAG, "fail") not in BLOCKING_VERDICTS:
        raise GuardRefused(
            f"a new version of {name} cannot say that it was cleared: no check has seen it",
            hint=f"leave out the tags {VERDICT_TAG} and {CLEARANCE_TAG}; register the bytes, then check that version",
        )


def require_model_tag(key: str, value: str, name: str, holders: Mapping[str, int], moves: list[Move]) -> None:
    """Require that a registered model's record of a former holder names one: a rollback goes there."""
    if not key.startswith(PREVIOUS_TAG):
        return
    alias = key.removeprefix(PREVIOUS_TAG)
    seen: set[int | None] = {None, holders.get(alias)}
    seen |= {number for move in moves if move.alias == alias for number in (move.version, move.previous)}
    if value not in {NOBODY if number is None else str(number) for number in seen}:
        raise GuardRefused(
            f"alias {alias} of {name} was never on version {value}", hint="validator promote writes this tag"
        )


def _require_verdict(value: str, version: Version, protection: Protection, moves: list[Move], now: datetime) -> None:
    if value in BLOCKING_VERDICTS:
        return
    if value != Verdict.PASS:
        raise GuardRefused(
            f"{value[:40]!r} is no verdict", hint=f"a verdict is {Verdict.PASS}, {', '.join(sorted(BLOCKING_VERDICTS))}"
        )
    predicate = require_clearance(version.tags.get(CLEARANCE_TAG), version, protection, moves, now)
    for key, found in version.tags.items():
        _require_said(key, found, predicate, version)


def _require_agreement(key: str, value: str, version: Version, protection: Protection) -> None:
    """Require that what stands beside a pass is what its clearance says."""
    statement, _ = open_clearance(version.tags.get(CLEARANCE_TAG, "").encode(), protection.keys)
    if statement is None:
        raise GuardRefused(
            f"{version.title} says {Verdict.PASS} without a clearance that can be read",
            hint=f"take the tag {VERDICT_TAG} off, then check it again",
        )
    _require_said(key, value, statement.predicate, version)


def _require_said(key: str, value: str, predicate: Predicate, version: Version) -> None:
    said = said_by(predicate).get(key)
    # Policy and golden dataset stand there with their name before the digest; the name is for people.
    if said is not None and value.rpartition(" ")[2] != said:
        raise GuardRefused(
            f"the tag {key} of {version.title} cannot be {value[:80]!r} beside a pass: the clearance says {said[:80]}",
            hint="only the check that was cleared writes these tags",
        )


def said_by(predicate: Predicate) -> dict[str, str]:
    """Return what a clearance says about the tags of its check: the last word of each."""
    said = {
        CHECK_TAG: predicate.check_id,
        "validator.version": predicate.tool.version,
        "validator.digest": predicate.model.digest,
        "validator.weights_digest": predicate.model.weights_digest,
        "validator.golden": predicate.golden.digest,
        "validator.policy": predicate.policy.digest,
        "validator.verdict_sha256": predicate.verdict_sha256,
    }
    return said if predicate.onnx is None else said | {"validator.onnx_digest": predicate.onnx.digest}
