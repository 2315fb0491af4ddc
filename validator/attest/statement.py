"""What is signed: an in-toto Statement v1 with the project's own predicate.

Closed and immutable. Names follow in-toto (lowerCamelCase), times are UTC in whole seconds, there is no float anywhere.
Sources: in-toto attestation spec v1, SLSA verification summary v1 (the shape of `Summary`).
"""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["urn:mlflow-export-validator:export-validation:v0.2"] = (
    "urn:mlflow-export-validator:export-validation:v0.2"
)
"""A name, not an address: nothing has to be there."""
VERIFIER_ID: Literal["urn:mlflow-export-validator"] = "urn:mlflow-export-validator"
ONNX_SUBJECT = "onnx"

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def read_time(text: str) -> datetime:
    """Read a time of a statement.

    Raises:
        ValueError: it is none, or not the way it is written here.
    """
    time = datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC)
    if write_time(time) != text:
        raise ValueError("not of the form 2026-11-30T15:02:00Z")
    return time


def write_time(time: datetime) -> str:
    """Write a time, cut to whole seconds."""
    return time.astimezone(UTC).strftime(TIME_FORMAT)


def _require_time(text: str) -> str:
    read_time(text)
    return text


Time = Annotated[str, AfterValidator(_require_time)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]


class Part(BaseModel):
    """Closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True)


class DigestSet(Part):
    """in-toto's form of a digest."""

    sha256: Hex


class Resource(Part):
    """in-toto's subject: a name and the digest of a manifest, see `validator.manifest`."""

    name: str
    digest: DigestSet


class ModelBinding(Part):
    """The version and its bytes."""

    registry_uri: str
    """Without credentials."""
    name: str
    version: int
    creation_timestamp_ms: int
    """Tells a version from that of a model that was deleted and made again."""
    digest: Digest
    """Of every file."""
    weights_digest: Digest

    @property
    def uri(self) -> str:
        """The pinned URI."""
        return f"models:/{self.name}/{self.version}"


class OnnxBinding(Part):
    """The ONNX file and where the check found it."""

    digest: Digest
    origin: str
    source: str


class GoldenBinding(Part):
    """The inputs."""

    name: str
    digest: Digest


class PolicyBinding(Part):
    """What decided."""

    origin: str
    digest: Digest


class ToolBinding(Part):
    """What checked."""

    name: str
    version: str


class BackendBinding(Part):
    """What ran: libraries and hardware, as the worker read them."""

    name: str
    fingerprint: dict[str, str]


class ReusedBinding(Part):
    """What the check did not compute itself: an earlier one had, on the same bytes and the same machine."""

    what: str
    """A backend, or `export`."""
    check_id: str
    created: Time
    """When that check began."""


class WarningBinding(Part):
    """What a reader should know."""

    code: str
    message: str


class WaiverBinding(Part):
    """An exceeded finding that somebody answers for."""

    check: str
    backend: str | None
    output: str | None
    owner: str
    reason: str
    ticket: str | None
    expires: Day
    """Its last day, in UTC."""


class SummaryVerifier(Part):
    """Who verified."""

    id: Literal["urn:mlflow-export-validator"] = VERIFIER_ID


class SummaryPolicy(Part):
    """By what."""

    digest: DigestSet


class Summary(Part):
    """The same in the shape of a SLSA verification summary, for policy engines that read those."""

    verifier: SummaryVerifier
    time_verified: Time
    resource_uri: str
    policy: SummaryPolicy
    verification_result: str


class Predicate(Part):
    """Everything that a clearance is bound to."""

    check_id: str
    model: ModelBinding
    onnx: OnnxBinding | None
    golden: GoldenBinding
    policy: PolicyBinding
    tool: ToolBinding
    backends: tuple[BackendBinding, ...]
    reused: tuple[ReusedBinding, ...]
    required: tuple[str, ...]
    """What had to be found out: `BACKEND/CHECK`, or `CHECK` of the whole run. Sorted."""
    reported: tuple[str, ...]
    """Which of such were found within or waived. Sorted."""
    verdict: str
    warnings: tuple[WarningBinding, ...]
    waivers: tuple[WaiverBinding, ...]
    sandbox: str
    verdict_sha256: Hex
    """Of verdict.json."""
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    created: Time
    expires: Time
    summary: Summary


class Statement(Part):
    """in-toto Statement v1."""

    statement_type: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[Resource, ...]
    predicate_type: Literal["urn:mlflow-export-validator:export-validation:v0.2"] = PREDICATE_TYPE
    predicate: Predicate


def make_statement(predicate: Predicate) -> Statement:
    """Put a predicate under the subjects that it speaks about."""
    return Statement(subject=subjects_of(predicate), predicate=predicate)


def subjects_of(predicate: Predicate) -> tuple[Resource, ...]:
    """Return the subjects that a predicate speaks about: the version, and its ONNX file if there was one."""
    model = Resource(name=predicate.model.uri, digest=to_digest_set(predicate.model.digest))
    if predicate.onnx is None:
        return (model,)
    return model, Resource(name=ONNX_SUBJECT, digest=to_digest_set(predicate.onnx.digest))


def to_digest_set(digest: str) -> DigestSet:
    """Return in-toto's form of `sha256:<hex>`."""
    return DigestSet(sha256=digest.removeprefix("sha256:"))
