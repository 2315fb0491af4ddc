"""The use case behind `validator verify`: whether a clearance is good for the bytes that are about to be served.

Imports no runtime and opens no model: bytes are hashed, and that is all. The version is looked up before its bytes are
staged and again afterwards, so that what was hashed is what the name still means.
"""

import os
import stat
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from validator.attest.canonical import SIZE_LIMIT_BYTES
from validator.attest.envelope import PAYLOAD_TYPE, read_statement
from validator.attest.judgement import (
    AliasHolder,
    Allowed,
    Claim,
    Found,
    Identity,
    judge_binding,
    judge_statement,
)
from validator.attest.sealing import Accepted, describe_signer, read_sealed, signed_by, verify_sealed
from validator.attest.statement import OnnxBinding, Statement
from validator.errors import ClearanceRefused, UriError, UsageError
from validator.manifest import measure_folder
from validator.registry.interface import ONNX_TAG, RUN_TAG, Registry, resolve_text
from validator.registry.stage import REGISTERED_META, is_registered_meta
from validator.scratch import scratch_folder
from validator.subject import (
    AliasUri,
    OnnxFile,
    OnnxOrigin,
    StagedModel,
    Subject,
    VersionUri,
    copy_onnx,
    describe_onnx,
    find_onnx,
)

CLEARANCE_ARTIFACT = "clearance.json"
ONNX_FOLDER = "onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What the user asked for."""

    uri: str
    """A model URI, or a folder with a model's files."""
    keys: tuple[Accepted, ...]
    """Whose signature is good: of which keys, and of which identities."""
    clearance: Path | None = None
    """None: the artifact of the run that the version's tag names."""
    envelope: bytes | None = None
    """The clearance's text, where it was read before."""
    alias: str | None = None
    """Must point to the cleared version."""
    onnx: str | None = None
    """Where the ONNX file is, if neither the clearance nor the model says."""
    cleared_in: str | None = None
    """The registry's address in the clearance, if it is another than here."""
    republished: str | None = None
    """The model that was cleared, if this is another version that holds its bytes."""
    may_be_past: bool = False
    """Accept a clearance that has expired, as going back to an earlier version does."""
    allowed: Allowed = field(default_factory=Allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of it."""

    uri: str
    statement: Statement | None
    """None: it could not be read, or was not signed by a given key."""
    claims: tuple[Claim, ...]

    @property
    def holds(self) -> bool:
        """Whether the clearance is good. Nothing that was not looked at is."""
        return self.statement is not None and bool(self.claims) and all(claim.holds for claim in self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A verification, and what was downloaded for it."""

    verification: Verification
    subject: Subject
    envelope: bytes
    """The clearance's text."""
    staged: StagedModel | None
    """None: nothing was signed that bytes could be held against."""
    onnx: OnnxFile | None
    """None: none was cleared, or none is at hand."""


def verify(request: VerifyRequest, registry: Registry | None, now: datetime) -> Verification:
    """Verify a clearance.

    Args:
        request: what and by whose signature.
        registry: where the URI is resolved; None: it is a folder.
        now: the time.

    Raises:
        ClearanceRefused: there is no clearance, or none that can be taken in.
        KeylessError: an identity is accepted, and the trust root cannot be used.
        SigstoreUnreachable: likewise, and it cannot be had.
        IntegrityError: the model holds what cannot be hashed.
        UriError: no such version.
        UsageError: an option that needs a registry.
    """
    with scratch_folder() as scratch:
        return examine(request, registry, now, scratch).verification


def examine(request: VerifyRequest, registry: Registry | None, now: datetime, scratch: Path) -> Examination:
    """Verify a clearance, and keep what was downloaded for it in a new or empty folder. See `verify`."""
    if not request.keys:
        raise UsageError(
            "no key is given, and no identity", hint="name a public key with --key, or write --identity X --issuer URL"
        )
    if registry is None and (request.alias is not None or request.clearance is None):
        raise UsageError("a folder has no alias and no run", hint="name the clearance with --clearance")
    if registry is None and request.republished is not None:
        raise UsageError("a folder has no name, so it is no other version", hint="leave out --republished")
    subject = resolve_text(registry, request.uri) if registry is not None else folder_as_subject(Path(request.uri))
    envelope = request.envelope or find_clearance(request.clearance, subject, registry, scratch)
    statement, claims = open_clearance(envelope, request.keys)
    facts = None
    if statement is not None:
        claims += judge_statement(statement, now, may_be_past=request.may_be_past)
        facts = find_facts(request, subject, statement, registry, scratch)
        claims += judge_binding(statement.predicate, facts.found, request.allowed)
    return Examination(
        verification=Verification(uri=request.uri, statement=statement, claims=tuple(claims)),
        subject=subject,
        envelope=envelope,
        staged=None if facts is None else facts.staged,
        onnx=None if facts is None else facts.onnx,
    )


# --- The clearance ------------------------------------------------------------------------------------------------


def find_clearance(path: Path | None, subject: Subject, registry: Registry | None, scratch: Path) -> bytes:
    """Read the clearance that was named, or that of the run which the version's tag names.

    The tag is anyone's to write; what it leads to is signed.

    Raises:
        ClearanceRefused: there is none.
    """
    if path is not None:
        return read_clearance(path)
    run = dict(subject.tags).get(RUN_TAG)
    if run is None or registry is None:
        raise ClearanceRefused(
            f"{subject.title} has no tag {RUN_TAG}, so no check of it is known",
            hint="check the version with --sign-key, or name a clearance with --clearance",
        )
    try:
        return read_clearance(registry.fetch(f"runs:/{run}/{CLEARANCE_ARTIFACT}", scratch / "clearance"))
    except UriError as error:
        raise ClearanceRefused(
            f"run {run} holds no clearance: {error.message}", hint="check the version with --sign-key"
        ) from error


def read_clearance(path: Path) -> bytes:
    """Read a file of bounded size.

    Raises:
        ClearanceRefused: it cannot be read, is a link or no regular file, or is too large.
    """
    try:
        # Not blocking: a named pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            is_regular = stat.S_ISREG(os.fstat(handle).st_mode)
            data = stream.read(SIZE_LIMIT_BYTES + 1) if is_regular else b""
    except OSError as error:
        reason = "it is a symbolic link" if path.is_symlink() else (error.strerror or str(error)).lower()
        raise ClearanceRefused(f"{path} cannot be read: {reason}", hint="name the clearance.json itself") from error
    if not is_regular:
        raise ClearanceRefused(f"{path} is not a regular file")
    if len(data) > SIZE_LIMIT_BYTES:
        raise ClearanceRefused(f"{path} has more than {SIZE_LIMIT_BYTES:,} bytes")
    return data


def open_clearance(data: bytes, keys: tuple[Accepted, ...]) -> tuple[Statement | None, list[Claim]]:
    """Read the envelope or the bundle, then verify its signature, and only then read what was signed.

    Raises:
        KeylessError, SigstoreUnreachable: a bundle by an identity that is accepted cannot be verified here and now.
    """
    claims: list[Claim] = []
    try:
        sealed = read_sealed(data)
        claims.append(Claim(name="envelope", holds=True, message=PAYLOAD_TYPE))
    except ClearanceRefused as error:
        return None, [Claim(name="envelope", holds=False, message=error.message)]
    try:
        payload = verify_sealed(sealed, keys)
        claims.append(Claim(name="signature", holds=True, message=f"by {describe_signer(signed_by(sealed))}"))
    except ClearanceRefused as error:
        return None, [*claims, Claim(name="signature", holds=False, message=error.message)]
    try:
        return read_statement(payload), claims
    except ClearanceRefused as error:
        return None, [*claims, Claim(name="statement", holds=False, message=error.message)]


# --- What is there ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is there, and the files that say so."""

    found: Found
    staged: StagedModel
    onnx: OnnxFile | None


def find_facts(
    request: VerifyRequest, subject: Subject, statement: Statement, registry: Registry | None, scratch: Path
) -> Facts:
    """Hash the bytes, and say which version they are of."""
    if registry is None:
        staged = measure_as_staged(subject, Path(request.uri))
        identity = None
    else:
        staged = registry.stage(subject, scratch / "subject")
        identity = identify_again(registry, subject, request.cleared_in)
    binding = statement.predicate.onnx
    onnx = None if binding is None else locate_onnx(binding, request, staged, registry, scratch)
    found = Found(
        identity=identity,
        republished=request.republished,
        digest=staged.manifest.digest,
        weights_digest=staged.weights_digest,
        onnx_digest=None if onnx is None else onnx.manifest.digest,
        alias=None if request.alias is None or registry is None else find_alias(registry, request, statement, subject),
    )
    return Facts(found=found, staged=staged, onnx=onnx)


def folder_as_subject(folder: Path) -> Subject:
    """Return a local folder as a subject without a name.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is neither a model URI nor a folder", hint="write models:/NAME/3")
    return Subject(
        registry_uri="",
        requested_uri=str(folder),
        name=None,
        version=None,
        creation_timestamp_ms=None,
        source=str(folder),
        download_uri=str(folder),
        model_id=None,
        run_id=None,
    )


def measure_as_staged(subject: Subject, folder: Path) -> StagedModel:
    """Hash a folder without the one file that staging leaves out: MLflow's own note."""
    is_noted = is_registered_meta(folder / REGISTERED_META)
    manifest = measure_folder(folder, leave_out=frozenset({REGISTERED_META}) if is_noted else frozenset())
    return StagedModel(subject=subject, folder=folder, manifest=manifest)


def identify_again(registry: Registry, subject: Subject, cleared_in: str | None) -> Identity:
    """Look the version up once more, now that its bytes are here.

    Raises:
        ClearanceRefused: it is another one now.
    """
    if subject.name is not None and subject.version is not None:
        again = registry.resolve(VersionUri(name=subject.name, version=subject.version), subject.requested_uri)
        if (again.creation_timestamp_ms, again.download_uri) != (subject.creation_timestamp_ms, subject.download_uri):
            raise ClearanceRefused(f"{subject.title} was made again while its bytes were read", hint="verify it again")
    return _identity_of(subject, cleared_in)


def find_alias(registry: Registry, request: VerifyRequest, statement: Statement, subject: Subject) -> AliasHolder:
    """Look up where an alias points to now: one of the cleared model, or of the one that its bytes are served under."""
    alias = request.alias or ""
    name = subject.name if request.republished is not None and subject.name else statement.predicate.model.name
    try:
        holder = registry.resolve(AliasUri(name=name, alias=alias), f"models:/{name}@{alias}")
    except UriError:
        return AliasHolder(alias=alias, identity=None)
    return AliasHolder(alias=alias, identity=_identity_of(holder, request.cleared_in))


def _identity_of(subject: Subject, cleared_in: str | None) -> Identity:
    return Identity(
        registry_uri=cleared_in or subject.registry_uri,
        name=subject.name,
        version=subject.version,
        creation_timestamp_ms=subject.creation_timestamp_ms,
    )


# --- The ONNX file ------------------------------------------------------------------------------------------------


def locate_onnx(
    onnx: OnnxBinding, request: VerifyRequest, staged: StagedModel, registry: Registry | None, scratch: Path
) -> OnnxFile | None:
    """Return the ONNX file that was named, else the one that the check had; None: not at hand."""
    if request.onnx is None and onnx.origin == OnnxOrigin.ARTIFACT:
        own = find_onnx(staged)
        if own is None:
            return None
        inside = own.parent.relative_to(staged.folder).as_posix()
        manifest = staged.manifest.below(inside)
        return OnnxFile(path=own, manifest=manifest, origin=OnnxOrigin.ARTIFACT, source=inside)
    place = _place_of(onnx, request, staged.subject)
    if place is None:
        return None
    if ":/" not in place:
        return describe_onnx(copy_onnx(Path(place), scratch / "onnx"), OnnxOrigin.OPTION, place)
    if registry is None:
        return None
    try:
        fetched = registry.fetch(place, scratch / "onnx")
    except UriError:
        return None
    return describe_onnx(fetched, OnnxOrigin.OPTION, place)


def _place_of(onnx: OnnxBinding, request: VerifyRequest, subject: Subject) -> str | None:
    """Return where the ONNX file should be: what was named, what the tag said, or where the check exported to."""
    if request.onnx is not None:
        return request.onnx
    if request.republished is not None:
        return dict(subject.tags).get(ONNX_TAG)  # the copy that is served, not the one that was checked
    if onnx.origin == OnnxOrigin.TAG:
        return onnx.source
    if onnx.origin != OnnxOrigin.EXPORT:
        return None
    if request.clearance is None:
        return f"runs:/{dict(subject.tags).get(RUN_TAG)}/{ONNX_FOLDER}"
    beside = request.clearance.parent / ONNX_FOLDER
    return str(beside) if beside.is_dir() else None
