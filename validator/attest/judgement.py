"""Whether a statement holds: by itself, and for the bytes at hand. Pure: no I/O, and the clock is an argument.

Every claim is looked at, and what is missing does not hold. Conditions say what must be, never what must not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase

from validator.attest.statement import Predicate, Statement, read_time, subjects_of, to_digest_set

CLOCK_SKEW = timedelta(seconds=60)
"""How far ahead the clock of the machine that checked may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing that must hold."""

    name: str
    holds: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which version of which registry."""

    registry_uri: str
    name: str | None
    version: int | None
    creation_timestamp_ms: int | None

    @property
    def title(self) -> str:
        """Name and number."""
        return "no registered version" if self.name is None else f"{self.name} version {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasHolder:
    """Where an alias points to."""

    alias: str
    identity: Identity | None
    """None: it does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is there."""

    identity: Identity | None
    """None: a local folder, which has no name."""
    republished: str | None = None
    """The model that the cleared version must be of, if this is another version with its bytes."""
    digest: str
    weights_digest: str
    onnx_digest: str | None
    """None: no ONNX file is at hand."""
    alias: AliasHolder | None = None
    """None: it was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What is accepted; None: any."""

    policies: frozenset[str] | None = None
    """Digests."""
    origins: tuple[str, ...] | None = None
    """Where the policy was read: patterns, in which `*` stands for anything."""
    goldens: frozenset[str] | None = None
    """Digests."""


# --- By itself ----------------------------------------------------------------------------------------------------


def judge_statement(statement: Statement, now: datetime, *, may_be_past: bool = False) -> Iterator[Claim]:
    """Say whether a statement is one that may be given, and is good at this time.

    Args:
        statement: what was signed.
        now: the time.
        may_be_past: accept one that has expired, and nothing else: what was cleared once may be gone back to.
    """
    predicate = statement.predicate
    yield _verdict(predicate)
    yield _checks(predicate)
    yield _agreement(statement)
    yield _created(predicate, now)
    yield _expires(predicate, now, may_be_past=may_be_past)


def _verdict(predicate: Predicate) -> Claim:
    result = predicate.summary.verification_result
    return Claim(
        name="verdict",
        holds=predicate.verdict == "pass" and result == "PASSED",
        message=f"{predicate.verdict}, {result}, validator {predicate.tool.version}, check {predicate.check_id}",
    )


def _checks(predicate: Predicate) -> Claim:
    required, reported = set(predicate.required), set(predicate.reported)
    is_list = all(
        names == tuple(sorted(set(names))) and "" not in names for names in (predicate.required, predicate.reported)
    )
    if not required or not predicate.backends:
        message = "nothing was required, so nothing was checked"
    elif not is_list:
        message = "the checks are no sorted list of names"
    elif required != reported:
        differing = [f"{name} is missing" for name in sorted(required - reported)]
        differing += [f"{name} was not required" for name in sorted(reported - required)]
        message = "; ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
    else:
        message = f"{len(reported)} of {len(required)} required on {len(predicate.backends)} backends"
    holds = bool(required) and bool(predicate.backends) and is_list and required == reported
    return Claim(name="checks", holds=holds, message=message)


def _agreement(statement: Statement) -> Claim:
    """Subjects and summary are what others read: they must say what the predicate says."""
    predicate, summary = statement.predicate, statement.predicate.summary
    holds = (
        statement.subject == subjects_of(predicate)
        and summary.resource_uri == predicate.model.uri
        and summary.policy.digest == to_digest_set(predicate.policy.digest)
        and summary.time_verified == predicate.created
    )
    message = "subjects and summary say what the predicate says" if holds else "subjects, summary and predicate differ"
    return Claim(name="statement", holds=holds, message=message)


def _created(predicate: Predicate, now: datetime) -> Claim:
    holds = read_time(predicate.created) <= now + CLOCK_SKEW
    return Claim(name="created", holds=holds, message=predicate.created if holds else f"{predicate.created} is to come")


def _expires(predicate: Predicate, now: datetime, *, may_be_past: bool) -> Claim:
    created, expires = read_time(predicate.created), read_time(predicate.expires)
    is_good = now < expires or may_be_past
    end = end_of_waivers([waiver.expires for waiver in predicate.waivers])
    if not created < expires:
        message = f"{predicate.expires} is not after {predicate.created}"
    elif not (end is None or expires <= end):
        message = f"{predicate.expires} is later than a waiver that it rests on"
    else:
        message = f"{predicate.expires}" if now < expires else f"{predicate.expires} is past"
    return Claim(
        name="expires", holds=created < expires and is_good and (end is None or expires <= end), message=message
    )


def end_of_waivers(days: list[str]) -> datetime | None:
    """Return the end of the earliest last day in UTC; a day that is none ends before all others."""
    return min((_end_of_day(day) for day in days), default=None)


def _end_of_day(day: str) -> datetime:
    try:
        last = date.fromisoformat(day)
        return datetime(last.year, last.month, last.day, tzinfo=UTC) + timedelta(days=1)
    except (ValueError, OverflowError):
        return datetime.min.replace(tzinfo=UTC)


# --- For what is at hand ------------------------------------------------------------------------------------------


def judge_binding(predicate: Predicate, found: Found, allowed: Allowed) -> Iterator[Claim]:
    """Say whether a statement is about what is there."""
    model = predicate.model
    if found.identity is not None:
        if found.republished is None:
            yield from judge_identity(predicate, found.identity)
        else:
            yield _registry(predicate, found.identity)
            yield _origin(predicate, found.identity, found.republished)
    yield _equal("bytes", model.digest, found.digest, of=f"{model.name} version {model.version}")
    yield _equal("weights", model.weights_digest, found.weights_digest, of="the files that decide the function")
    if predicate.onnx is not None:
        yield _equal("onnx", predicate.onnx.digest, found.onnx_digest, of="the ONNX file")
    yield from judge_inputs(predicate, allowed)
    if found.alias is not None:
        served = None if found.republished is None else found.identity
        yield _alias(served or cleared_identity(predicate), found.alias)


def cleared_identity(predicate: Predicate) -> Identity:
    """Return the version that a clearance is about."""
    model = predicate.model
    return Identity(
        registry_uri=model.registry_uri,
        name=model.name,
        version=model.version,
        creation_timestamp_ms=model.creation_timestamp_ms,
    )


def judge_inputs(predicate: Predicate, allowed: Allowed) -> Iterator[Claim]:
    """Say whether the check was by a policy and over a golden dataset that are accepted."""
    for name, digest, digests in (
        ("policy", predicate.policy.digest, allowed.policies),
        ("golden", predicate.golden.digest, allowed.goldens),
    ):
        if digests is not None:
            message = f"{short(digest)} is {'' if digest in digests else 'not '}among the {len(digests)} accepted"
            yield Claim(name=name, holds=digest in digests, message=message)
    if allowed.origins is not None:
        origin = predicate.policy.origin
        holds = any(fnmatchcase(origin, pattern) for pattern in allowed.origins)
        message = f"read at {origin}, which is {'' if holds else 'not '}among the {len(allowed.origins)} accepted"
        yield Claim(name="policy", holds=holds, message=message)


def _registry(predicate: Predicate, identity: Identity) -> Claim:
    cleared = predicate.model.registry_uri
    holds = identity.registry_uri == cleared
    message = cleared if holds else f"cleared in {cleared}, not {identity.registry_uri}"
    return Claim(name="registry", holds=holds, message=message)


def judge_identity(predicate: Predicate, identity: Identity) -> Iterator[Claim]:
    """Say whether a version is the one that was cleared, or one that only has its name."""
    yield _registry(predicate, identity)
    cleared = cleared_identity(predicate)
    is_version = (identity.name, identity.version) == (cleared.name, cleared.version)
    yield Claim(
        name="version",
        holds=is_version,
        message=identity.title if is_version else f"{cleared.title} was cleared, this is {identity.title}",
    )
    is_same = identity.creation_timestamp_ms == cleared.creation_timestamp_ms
    yield Claim(
        name="made",
        holds=is_same,
        message="when the cleared version was made" if is_same else "at another time than the cleared version",
    )


def _origin(predicate: Predicate, identity: Identity, origin: str) -> Claim:
    """Another version may hold the cleared bytes; whether it does is for the digests to say."""
    cleared = cleared_identity(predicate)
    holds = cleared.name == origin
    message = f"{identity.title} instead of {cleared.title}" if holds else f"{cleared.title} was cleared, not {origin}"
    return Claim(name="origin", holds=holds, message=message)


def _equal(name: str, cleared: str, found: str | None, *, of: str) -> Claim:
    if found is None:
        return Claim(name=name, holds=False, message=f"{of} is not at hand: {short(cleared)} was cleared")
    holds = found == cleared
    message = short(found) if holds else f"{of} was cleared as {short(cleared)}, this is {short(found)}"
    return Claim(name=name, holds=holds, message=message)


def _alias(wanted: Identity, alias: AliasHolder) -> Claim:
    if alias.identity is None:
        return Claim(name="alias", holds=False, message=f"{alias.alias} does not exist")
    here = alias.identity
    holds = (here.name, here.version, here.creation_timestamp_ms) == (
        wanted.name,
        wanted.version,
        wanted.creation_timestamp_ms,
    )
    message = f"{alias.alias} points to {here.title}" + ("" if holds else f", {wanted.title} was cleared")
    return Claim(name="alias", holds=holds, message=message)


def short(digest: str) -> str:
    """Return the beginning of a digest."""
    return digest[:15]
