"""The use case behind `validator promote`: an alias moves to a version that a clearance is good for, and to no other.

Imports no runtime and opens no model: bytes are hashed, and that is all. What may not be changed lightly: the order of
writes. Whatever step a promotion is killed at, the alias points to the old or to the new version, the record of the
last finished promotion stands until the next one is finished, and the same command again finishes what was begun.
MLflow retries requests, so every write here may happen twice.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import assert_never

from validator.attest.bundle import Signatory
from validator.attest.judgement import Allowed
from validator.attest.sealing import Accepted, read_sealed, signed_by
from validator.attest.statement import write_time
from validator.errors import (
    AnnotationFailed,
    ClearanceRefused,
    GuardRefused,
    PromotionRefused,
    RegistryUnreachable,
    UriError,
    UsageError,
    ValidatorError,
)
from validator.promotion import (
    CLEARANCE_LIMIT_BYTES,
    INTENT_TAG,
    PROMOTION_TAG,
    Level,
    Record,
    check_alias,
    describe_gain,
    describe_holder,
    describe_loss,
    read_record,
)
from validator.registry.interface import (
    CLEARANCE_TAG,
    EXPECT_TAG,
    NOBODY,
    PREVIOUS_TAG,
    ModelState,
    Registry,
)
from validator.republish import Destination, republish
from validator.scratch import scratch_folder
from validator.subject import (
    AliasUri,
    LoggedModelUri,
    RunUri,
    StageUri,
    Subject,
    VersionUri,
    parse_model_uri,
)
from validator.verify import Examination, Verification, VerifyRequest, examine


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who must hold an alias before it is moved."""

    version: int | None
    """None: nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteRequest:
    """What the user asked for."""

    uri: str
    alias: str
    keys: tuple[Accepted, ...]
    """Whose signature is good: of which keys, and of which identities."""
    clearance: Path | None = None
    """None: the artifact of the run that the version's tag names."""
    expect: Holder | None = None
    """None: whoever holds the alias now."""
    republish: Destination | None = None
    """None: the alias of the cleared model itself moves."""
    onnx: str | None = None
    """Where the ONNX file is, if neither the clearance nor the model says."""
    cleared_in: str | None = None
    """The registry's address in the clearance, if it is another than here."""
    allowed: Allowed = field(default_factory=Allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An alias that points where it was asked to."""

    name: str
    alias: str
    record: Record
    is_moved: bool
    """False: it pointed there before, and what was missing around it was written."""
    warnings: tuple[str, ...] = ()
    unnoted: AnnotationFailed | None = None
    """The descriptions do not say it; everything else does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What came of it."""

    verification: Verification | None
    """None: a rollback without a clearance."""
    outcome: Outcome | None
    """None: the clearance does not hold, so nothing was written."""


def promote(request: PromoteRequest, registry: Registry, now: datetime) -> Promotion:
    """Point an alias to a version that is cleared.

    Raises:
        ClearanceRefused: there is no clearance, or none that can be taken in.
        PromotionRefused: the alias has another holder, or the version is no longer the one that was cleared.
        GuardRefused: the registry's guard said no.
        UsageError: no such version, or an alias that cannot be.
    """
    check_alias(request.alias)
    require_version_uri(request.uri)
    with scratch_folder() as scratch:
        verification = verification_of(request)
        examination = examine(verification, registry, now, scratch / "before")
        if not examination.verification.holds:
            if request.republish is None and is_other(examination.verification):
                take_back(registry, examination.subject, request.alias, now)
            return Promotion(verification=examination.verification, outcome=None)
        require_promotable(examination)
        if request.republish is None:
            move = move_to(request, examination.subject, examination, now, level=Level.ALIAS)
            recheck = bytes_recheck(registry, examination, scratch / "after")
        else:
            subject = republish(request.republish, verification, examination, registry, now, scratch)
            move = move_to(request, subject, examination, now, level=Level.REPUBLISH)
            # Hashed only now, in a place where nobody else writes.
            recheck = identity_recheck(registry, subject)
        return Promotion(verification=examination.verification, outcome=carry_out(registry, move, recheck))


def move_to(
    request: PromoteRequest, subject: Subject, examination: Examination, now: datetime, *, level: Level
) -> "Move":
    """Return the move of an alias to a version."""
    return Move(
        subject=subject,
        alias=request.alias,
        level=level,
        expect=request.expect,
        envelope=examination.envelope,
        signer=signer_of(examination),
        now=now,
        origin=None if level is Level.ALIAS else examination.subject.pinned_uri,
    )


def verification_of(request: PromoteRequest) -> VerifyRequest:
    """Return what has to be verified before a promotion."""
    return VerifyRequest(
        uri=request.uri,
        keys=request.keys,
        clearance=request.clearance,
        onnx=request.onnx,
        cleared_in=request.cleared_in,
        allowed=request.allowed,
    )


def require_version_uri(text: str) -> None:
    """Require a URI of a registered version.

    Raises:
        UsageError: a logged model or a run's artifact, which have no aliases; or no URI at all.
    """
    if ":/" not in text:
        raise UsageError(f"{text} is no model URI, and files have no aliases", hint="write models:/NAME/3")
    try:
        uri = parse_model_uri(text)
    except UriError:
        return  # resolving it says which versions exist
    match uri:
        case VersionUri() | AliasUri() | StageUri():
            return
        case LoggedModelUri() | RunUri():
            raise UsageError(
                f"{text} is no registered version, so no alias can point to it", hint="register it, and check that"
            )
        case _:
            assert_never(uri)


def require_promotable(examination: Examination) -> None:
    """Require a version that is ready, and a clearance that the registry has room for.

    Raises:
        UsageError: the version is not ready.
        ClearanceRefused: the clearance is too large for a tag.
    """
    subject, size = examination.subject, len(examination.envelope)
    if subject.status != "READY":
        raise UsageError(f"{subject.title} is {subject.status}, not READY", hint="register it again")
    if size > CLEARANCE_LIMIT_BYTES:
        raise ClearanceRefused(
            f"the clearance has {size:,} bytes, and a tag of the registry holds {CLEARANCE_LIMIT_BYTES:,}",
            hint="require fewer backends, or shorten the waivers of the policy",
        )


def signer_of(examination: Examination) -> str | Signatory:
    """Return who signed a verified clearance: the id of a key, or an identity."""
    return signed_by(read_sealed(examination.envelope))


# --- The move -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where an alias shall point, and why it may."""

    subject: Subject
    """The version, as it was verified."""
    alias: str
    level: Level
    expect: Holder | None
    envelope: bytes | None
    """The clearance's text; None: a rollback without one."""
    signer: str | Signatory | None
    """The id of the key that signed it, or the identity; None: a rollback without one."""
    now: datetime
    origin: str | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        """The registered model."""
        return str(self.subject.name)

    @property
    def version(self) -> int:
        """Where the alias shall point."""
        return int(self.subject.version or 0)

    @property
    def clearance(self) -> str | None:
        """Digest of the clearance's text."""
        return None if self.envelope is None else f"sha256:{hashlib.sha256(self.envelope).hexdigest()}"


BINDING = frozenset({"version", "made", "bytes", "weights", "onnx"})
"""Claims about what a version is."""

Recheck = Callable[[], str | None]
"""Look once more at what the alias points to now; says what is wrong with it."""


def carry_out(registry: Registry, move: Move, recheck: Recheck) -> Outcome:
    """Move an alias and write down that it was moved; finish what an earlier call began.

    Raises:
        PromotionRefused: the alias has another holder, or the version is no longer the one that was verified.
        GuardRefused: the registry's guard said no.
        RegistryUnreachable: the registry does not answer. Calling again is safe.
    """
    state = registry.read_model(move.name)
    holder = state.aliases.get(move.alias)
    record, warnings = choose_record(move, state)
    if holder != move.version:
        require_expected(move, holder)
        shift(registry, move, record, recheck)
    unnoted = settle(registry, move, record, warnings)
    return Outcome(
        name=move.name,
        alias=move.alias,
        record=record,
        is_moved=holder != move.version,
        warnings=tuple(warnings),
        unnoted=unnoted,
    )


def choose_record(move: Move, state: ModelState) -> tuple[Record, list[str]]:
    """Return what shall be written down: what an earlier call began or finished, where it was the same, else anew.

    Returns:
        The record, and warnings.
    """
    holder = state.aliases.get(move.alias)
    last = read_record(state.tags.get(PROMOTION_TAG + move.alias))
    intent = read_record(state.tags.get(INTENT_TAG + move.alias))
    fresh = Record(
        level=move.level,
        version=move.version,
        previous=holder,
        time=write_time(move.now),
        clearance=move.clearance,
        key=move.signer if isinstance(move.signer, str) else None,
        identity=move.signer.identity if isinstance(move.signer, Signatory) else None,
        issuer=move.signer.issuer if isinstance(move.signer, Signatory) else None,
        origin=move.origin,
        reason=move.reason,
    )
    if holder != move.version:
        is_same = intent is not None and intent.model_copy(update={"time": fresh.time}) == fresh
        return (intent if is_same and intent is not None else fresh), []
    for known in (intent, last):
        if known is not None and known.version == holder:
            if known.clearance == move.clearance or known.level is Level.ROLLBACK:
                return known, []
            return fresh.model_copy(update={"previous": known.previous, "time": known.time}), []
    before = None if last is None else last.version
    warning = (
        f"{move.alias} pointed to version {holder} already, and no promotion says who let it; "
        f"before, as far as is known: {describe_holder(before)}"
    )
    return fresh.model_copy(update={"previous": before}), [warning]


def require_expected(move: Move, holder: int | None) -> None:
    """Compare the holder of the alias with the expected one.

    Raises:
        PromotionRefused: it is another one.
    """
    if move.expect is not None and move.expect.version != holder:
        raise PromotionRefused(
            f"{move.alias} of {move.name} is held by {describe_holder(holder)}, "
            f"expected was {describe_holder(move.expect.version)}",
            hint="somebody else moved it: look at what it points to now, then say what you expect",
        )


def shift(registry: Registry, move: Move, record: Record, recheck: Recheck) -> None:
    """Say what is meant, move the alias, and look whether it points to what was verified."""
    name, alias, version = move.name, move.alias, move.version
    registry.tag_model(name, INTENT_TAG + alias, record.to_text())
    try:
        if move.envelope is not None:
            registry.tag_version(name, version, CLEARANCE_TAG, move.envelope.decode())
        expected = NOBODY if record.previous is None else str(record.previous)
        registry.tag_version(name, version, EXPECT_TAG + alias, expected)
        require_still_held(registry, move, record.previous)
        registry.point_alias(name, alias, version)
    except GuardRefused:
        # A request that MLflow sent twice is refused the second time, since the first one did it.
        if holder_of(registry, name, alias) != version:
            withdraw(registry, move)
            raise
    except RegistryUnreachable:
        if holder_of(registry, name, alias) != version:
            raise
    require_still_held(registry, move, version)
    if (fault := find_fault(recheck)) is not None:
        restore(registry, move, record, fault)


def require_still_held(registry: Registry, move: Move, version: int | None) -> None:
    """Look at the holder right before the move, and right after it. Only a guard can look and move at once.

    Raises:
        PromotionRefused: somebody moved the alias meanwhile.
    """
    if (found := holder_of(registry, move.name, move.alias)) != version:
        withdraw(registry, move)
        raise PromotionRefused(
            f"{move.alias} of {move.name} was moved by somebody else at the same time: it points to "
            f"{describe_holder(found)}, and was left so",
            hint="look at what it points to now, then promote again with --expect-current",
        )


def find_fault(recheck: Recheck) -> str | None:
    """Say what is wrong with what the alias points to now. What cannot be looked at is a fault, too."""
    try:
        return recheck()
    except ValidatorError as error:
        return error.message


def is_other(verification: Verification) -> bool:
    """Whether a version is not, or no longer, what was cleared; a wrong key or an expiry says nothing about it."""
    return any(claim.name in BINDING and not claim.holds for claim in verification.claims)


def take_back(registry: Registry, subject: Subject, alias: str, now: datetime) -> None:
    """Give an alias back that an earlier call let point to a version, and died before it looked at it again.

    Raises:
        PromotionRefused: it did; says where the alias points to now.
    """
    if subject.name is None or subject.version is None:
        return
    state = registry.read_model(subject.name)
    intent = read_record(state.tags.get(INTENT_TAG + alias))
    if intent is None or not (intent.version == subject.version == state.aliases.get(alias)):
        return
    move = Move(subject=subject, alias=alias, level=intent.level, expect=None, envelope=None, signer=None, now=now)
    restore(registry, move, intent, f"{subject.title} was promoted by a call that did not end, and is another now")


def restore(registry: Registry, move: Move, record: Record, fault: str) -> None:
    """Give the alias back to its former holder, unless somebody else moved it on.

    Raises:
        PromotionRefused: always; says where the alias points to now.
    """
    name, alias, previous = move.name, move.alias, record.previous
    found = holder_of(registry, name, alias)
    if found != move.version:
        withdraw(registry, move)
        raise PromotionRefused(
            f"{fault}; {alias} of {name} was moved on to {describe_holder(found)} by somebody else, and was left so"
        )
    try:
        if previous is not None:
            registry.tag_version(name, previous, EXPECT_TAG + alias, str(move.version))
        registry.point_alias(name, alias, previous)
        if previous is not None:
            registry.tag_version(name, previous, EXPECT_TAG + alias, None)
        found = holder_of(registry, name, alias)
    except ValidatorError as error:
        raise PromotionRefused(
            f"{fault}; and {alias} of {name} still points to version {move.version}: {error.message}",
            hint=f"take it away: validator rollback models:/{name} --alias {alias}",
        ) from error
    withdraw(registry, move)
    raise PromotionRefused(
        f"{fault}; {alias} of {name} points to {describe_holder(found)} again",
        hint="find out who wrote to it before anything else, then check the version again",
    )


def withdraw(registry: Registry, move: Move) -> None:
    """Take away what was said of a move that did not come about. What cannot be taken away does no harm."""
    with suppress(ValidatorError):
        registry.tag_version(move.name, move.version, EXPECT_TAG + move.alias, None)
        registry.tag_model(move.name, INTENT_TAG + move.alias, None)


def settle(registry: Registry, move: Move, record: Record, warnings: list[str]) -> AnnotationFailed | None:
    """Write down a move that came about; descriptions last, since they are for people only."""
    name, alias, previous = move.name, move.alias, record.previous
    registry.tag_model(name, PREVIOUS_TAG + alias, NOBODY if previous is None else str(previous))
    registry.tag_model(name, PROMOTION_TAG + alias, record.to_text())
    if move.envelope is not None:
        registry.tag_version(name, move.version, CLEARANCE_TAG, move.envelope.decode())
    registry.tag_version(name, move.version, EXPECT_TAG + alias, None)
    registry.tag_model(name, INTENT_TAG + alias, None)
    notes = [(move.version, describe_gain(alias, record))]
    if previous is not None:
        notes.append((previous, describe_loss(alias, record)))
    try:
        for version, line in notes:
            if (warning := note(registry, name, version, alias, line)) is not None:
                warnings.append(warning)
    except ValidatorError as error:
        return AnnotationFailed(
            f"{alias} of {name} points to version {move.version}, and a description does not say so: {error.message}",
            hint="the promotion stands; the same command again writes it",
        )
    return None


def note(registry: Registry, name: str, version: int, alias: str, line: str) -> str | None:
    """Note on a version what became of an alias; one that was deleted since needs no note."""
    try:
        return registry.note_alias(name, version, alias, line)
    except UriError:
        return f"{name} version {version} is gone, so nothing was noted on it"


def holder_of(registry: Registry, name: str, alias: str) -> int | None:
    """Look up who holds an alias now."""
    return registry.read_model(name).aliases.get(alias)


# --- Looking again ------------------------------------------------------------------------------------------------


def bytes_recheck(registry: Registry, examination: Examination, folder: Path) -> Recheck:
    """Return a recheck of identity and bytes."""

    def recheck() -> str | None:
        subject, staged = examination.subject, examination.staged
        if (fault := identity_fault(registry, subject)) is not None:
            return fault
        again = registry.stage(subject, folder).manifest.digest
        is_same = staged is not None and again == staged.manifest.digest
        return None if is_same else f"the bytes of {subject.title} changed after they were verified"

    return recheck


def identity_recheck(registry: Registry, subject: Subject) -> Recheck:
    """Return a recheck of the version's identity alone."""
    return lambda: identity_fault(registry, subject)


def identity_fault(registry: Registry, subject: Subject) -> str | None:
    """Say whether a version is no longer the one that was verified."""
    uri = VersionUri(name=str(subject.name), version=int(subject.version or 0))
    again = registry.resolve(uri, subject.requested_uri)
    is_same = (again.creation_timestamp_ms, again.download_uri) == (subject.creation_timestamp_ms, subject.download_uri)
    return None if is_same else f"{subject.title} was made again after it was verified"
