"""The use case behind `validator rollback`: an alias goes back to the version that held it before.

For whoever is on call: one command, no number to look up, bytes downloaded once. The version gone back to needs a
clearance that holds in everything but its time, because a bad version must not stay since a good one was cleared too
long ago. Without one it takes a reason, which is recorded.
"""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from validator.attest.bundle import Signatory
from validator.attest.judgement import Allowed
from validator.attest.sealing import Accepted
from validator.errors import ClearanceRefused, PromotionRefused, UriError, UsageError
from validator.promote import (
    Holder,
    Move,
    Promotion,
    carry_out,
    identity_recheck,
    require_promotable,
    signer_of,
)
from validator.promotion import (
    INTENT_TAG,
    PROMOTION_TAG,
    REASON_LIMIT,
    Level,
    Record,
    check_alias,
    describe_holder,
    read_record,
)
from validator.registry.interface import CLEARANCE_TAG, ORIGIN_TAG, ModelState, Registry
from validator.scratch import scratch_folder
from validator.subject import Subject, VersionUri
from validator.verify import VerifyRequest, examine


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """What the user asked for."""

    name: str
    """The registered model."""
    alias: str
    keys: tuple[Accepted, ...]
    """Whose signature is good, of which keys and identities; none only with a reason."""
    to: int | None = None
    """None: the version that held the alias before, as the last promotion recorded it."""
    expect: Holder | None = None
    """None: whoever holds the alias now."""
    clearance: Path | None = None
    """None: the version's tag `validator.clearance`, else the artifact of the run that its tag names."""
    reason: str | None = None
    """Why it goes without a clearance; None: it does not."""
    republished: str | None = None
    """The model that was cleared, if this one holds copies of its bytes."""
    onnx: str | None = None
    cleared_in: str | None = None
    allowed: Allowed = field(default_factory=Allowed)


def rollback(request: RollbackRequest, registry: Registry, now: datetime) -> Promotion:
    """Let an alias point to an earlier version again.

    Raises:
        ClearanceRefused: that version has no clearance, or none that can be taken in.
        PromotionRefused: somebody else moved the alias since, or it has another holder than expected.
        GuardRefused: the registry's guard said no.
        UsageError: no such alias, or nobody recorded who held it before.
    """
    check_alias(request.alias)
    check_reason(request)
    state = registry.read_model(request.name)
    if request.alias not in state.aliases:
        # Resolving says it, and which aliases there are.
        aliases = ", ".join(f"{alias} (version {number})" for alias, number in sorted(state.aliases.items()))
        raise UriError(f"{request.name} has no alias {request.alias}", hint=f"its aliases: {aliases or 'none'}")
    target = request.to or choose_target(request, state)
    uri = f"models:/{request.name}/{target}"
    subject = registry.resolve(VersionUri(name=request.name, version=target), uri)
    if request.reason is not None:
        move = move_to(request, subject, now)
        return Promotion(verification=None, outcome=carry_out(registry, move, identity_recheck(registry, subject)))
    with scratch_folder() as scratch:
        examination = examine(verification_of(request, subject), registry, now, scratch)
        if not examination.verification.holds:
            return Promotion(verification=examination.verification, outcome=None)
        require_promotable(examination)
        move = move_to(request, subject, now, envelope=examination.envelope, signer=signer_of(examination))
        outcome = carry_out(registry, move, identity_recheck(registry, subject))
        return Promotion(verification=examination.verification, outcome=outcome)


def move_to(
    request: RollbackRequest,
    subject: Subject,
    now: datetime,
    *,
    envelope: bytes | None = None,
    signer: str | Signatory | None = None,
) -> Move:
    """Return the move that a rollback is."""
    return Move(
        subject=subject,
        alias=request.alias,
        level=Level.ROLLBACK,
        expect=request.expect,
        envelope=envelope,
        signer=signer,
        now=now,
        origin=None if request.republished is None else dict(subject.tags).get(ORIGIN_TAG),
        reason=request.reason,
    )


def check_reason(request: RollbackRequest) -> None:
    """Require a key or an identity, or a reason to go without.

    Raises:
        UsageError: neither, both, or a reason that says nothing or too much.
    """
    if request.reason is None:
        if not request.keys:
            raise UsageError(
                "no key is given and no identity, so no clearance can be verified",
                hint='name a public key with --key or an --identity, or write --without-clearance "why"',
            )
        return
    if request.keys or request.clearance is not None or request.allowed != Allowed():
        raise UsageError(
            "with --without-clearance none is verified",
            hint="leave out that, or the key, the identity and what a clearance must say",
        )
    if not 0 < len(request.reason.strip()) <= REASON_LIMIT:
        raise UsageError(f"the reason is empty, or longer than {REASON_LIMIT} characters", hint="say why, for others")


def choose_target(request: RollbackRequest, state: ModelState) -> int:
    """Return the version to go back to: what an earlier call began, else what held the alias before its holder.

    Raises:
        UsageError: it is not recorded.
        PromotionRefused: the alias is not where the last promotion moved it to.
    """
    alias, holder = request.alias, state.aliases[request.alias]
    name_it = f"name it: --to VERSION; the tag validator.promotion.{alias} has the last one"
    record = last_record(state, alias)
    if record is None:
        raise UsageError(f"no promotion recorded who held {alias} of {request.name} before", hint=name_it)
    if record.level is Level.ROLLBACK and holder in (record.version, record.previous):
        return record.version  # done, or begun
    if record.version != holder:
        raise PromotionRefused(
            f"{alias} of {request.name} is held by {describe_holder(holder)}, and the last promotion was of version "
            f"{record.version}: somebody else moved it since",
            hint=name_it,
        )
    if record.previous is None:
        raise UsageError(
            f"nobody held {alias} of {request.name} before version {holder}, which still holds it",
            hint="promote another version, name one with --to VERSION, or delete the alias in MLflow, "
            "which a guarded registry leaves to its administrator",
        )
    return record.previous


def last_record(state: ModelState, alias: str) -> Record | None:
    """Return the last finished record, or that of a move that was begun and came about or is a rollback."""
    intent = read_record(state.tags.get(INTENT_TAG + alias))
    came_about = intent is not None and (intent.version == state.aliases.get(alias) or intent.level is Level.ROLLBACK)
    return intent if came_about else read_record(state.tags.get(PROMOTION_TAG + alias))


def verification_of(request: RollbackRequest, subject: Subject) -> VerifyRequest:
    """Return what has to be verified: everything but the time.

    Raises:
        ClearanceRefused: a copy of another model's version, and it was not said that this is meant.
    """
    tags = dict(subject.tags)
    if request.republished is None and ORIGIN_TAG in tags:
        origin = tags[ORIGIN_TAG]
        raise ClearanceRefused(
            f"{subject.title} says that it holds the bytes of {origin}",
            hint=f"add --republished {origin.removeprefix('models:/').partition('/')[0]}",
        )
    carried = tags.get(CLEARANCE_TAG) if request.clearance is None else None
    return VerifyRequest(
        uri=subject.pinned_uri,
        keys=request.keys,
        clearance=request.clearance,
        envelope=None if carried is None else carried.encode(),
        onnx=request.onnx,
        cleared_in=request.cleared_in,
        republished=request.republished,
        allowed=request.allowed,
        may_be_past=True,
    )
