"""A sigstore bundle around a DSSE envelope: the form of a clearance that is signed keyless.

Only its form is read here, and who the certificate says has signed; nothing in it is believed before
`validator.attest.keyless` has verified it. Closed, and canonical like everything that is signed here: keys sorted, no
blanks, one spelling of base64 and of numbers. Source: sigstore's protobuf-specs, bundle v0.3, and Fulcio's list of
certificate extensions.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cryptography import x509
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from validator.attest.canonical import SIZE_LIMIT_BYTES, read_canonical, write_canonical
from validator.attest.envelope import PAYLOAD_TYPE
from validator.errors import ClearanceRefused

BUNDLE_TYPE: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = "application/vnd.dev.sigstore.bundle.v0.3+json"
ISSUER_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
"""Of a certificate: who vouched for the identity. DER, UTF8String."""
OLD_ISSUER_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
"""The same as bare bytes; deprecated."""

_UTF8_STRING = 0x0C


# --- The form -----------------------------------------------------------------------------------------------------


def _require_base64(text: str) -> str:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("no base64") from error
    if base64.b64encode(data).decode() != text:
        raise ValueError("base64 with stray bits")
    return text


Base64 = Annotated[str, AfterValidator(_require_base64)]
Number = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,18})$")]
"""Protobuf writes 64 bits as text."""


class Part(BaseModel):
    """Closed and immutable. What a bundle does not have is left out, not null."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True)

    @model_serializer(mode="wrap")
    def _leave_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in write(self).items() if value is not None}


class Certificate(Part):
    """Of the signer, in DER. Bundles of version 0.3 have no other."""

    raw_bytes: Base64


class LogId(Part):
    """Which log."""

    key_id: Base64


class KindVersion(Part):
    """What kind of entry."""

    kind: str
    version: str


class InclusionPromise(Part):
    """The log's signature over the entry and its time."""

    signed_entry_timestamp: Base64


class Checkpoint(Part):
    """A signed note: size and root hash of the log."""

    envelope: str


class InclusionProof(Part):
    """That the entry is in the log of that size."""

    log_index: Number
    root_hash: Base64
    tree_size: Number
    hashes: tuple[Base64, ...]
    checkpoint: Checkpoint


class LogEntry(Part):
    """What the log holds about the envelope."""

    log_index: Number
    log_id: LogId
    kind_version: KindVersion
    integrated_time: Number | None = None
    inclusion_promise: InclusionPromise | None = None
    inclusion_proof: InclusionProof
    canonicalized_body: Base64


class Timestamp(Part):
    """Of a timestamp authority, RFC 3161."""

    signed_timestamp: Base64


class TimestampData(Part):
    """All of them."""

    rfc3161_timestamps: tuple[Timestamp, ...] = ()


class Material(Part):
    """What the signature is verified with."""

    certificate: Certificate
    tlog_entries: tuple[LogEntry, ...]
    timestamp_verification_data: TimestampData | None = None


class BundleSignature(Part):
    """The signature over the envelope's type and payload."""

    sig: Base64
    keyid: Literal[""] | None = None


class BundleEnvelope(Part):
    """The DSSE envelope."""

    payload: Base64
    payload_type: Literal["application/vnd.in-toto+json"] = PAYLOAD_TYPE
    signatures: tuple[BundleSignature, ...]


class Bundle(Part):
    """A sigstore bundle of version 0.3 around one envelope."""

    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = BUNDLE_TYPE
    verification_material: Material
    dsse_envelope: BundleEnvelope

    @property
    def payload(self) -> bytes:
        """What it says was signed."""
        return base64.b64decode(self.dsse_envelope.payload)

    @property
    def certificate(self) -> bytes:
        """The signer's certificate in DER, as the bundle has it."""
        return base64.b64decode(self.verification_material.certificate.raw_bytes)


def read_bundle(data: bytes) -> Bundle:
    """Read a bundle. Nothing in it is believed yet.

    Raises:
        ClearanceRefused: not a bundle of version 0.3 around an envelope with one signature and one entry of a log, or
            not in canonical form.
    """
    bundle = read_canonical(Bundle, data, what="the bundle")
    signatures, entries = bundle.dsse_envelope.signatures, bundle.verification_material.tlog_entries
    if len(signatures) != 1:
        raise ClearanceRefused(f"the envelope has {len(signatures)} signatures, not one")
    if len(entries) != 1:
        raise ClearanceRefused(f"the bundle has {len(entries)} entries of a log, not one")
    return bundle


def write_bundle(text: str) -> bytes:
    """Return the canonical text of a bundle that sigstore wrote.

    Raises:
        ClearanceRefused: it holds what a clearance may not.
    """
    try:
        bundle = Bundle.model_validate_json(text)
    except ValueError as error:
        raise ClearanceRefused(f"sigstore wrote a bundle of another form: {error}") from error
    return write_canonical(bundle)


def is_bundle(data: bytes) -> bool:
    """Whether a text calls itself a bundle: it has a media type, which a plain envelope has not."""
    if len(data) > SIZE_LIMIT_BYTES:
        return False
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "mediaType" in document


# --- Who signed ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatory:
    """Who signs keyless. One is nothing without the other: anyone may run an issuer that vouches for any name."""

    identity: str
    """The certificate's one subject alternative name: an address, or the URI of a workflow."""
    issuer: str
    """URL of whoever vouched for it."""

    def __str__(self) -> str:
        """Name both."""
        return f"{self.identity} of {self.issuer}"


def read_signatory(bundle: Bundle) -> Signatory:
    """Say whom the certificate names. Not believed before the bundle is verified.

    Raises:
        ClearanceRefused: not a certificate that names one identity and one issuer.
    """
    try:
        certificate = x509.load_der_x509_certificate(bundle.certificate)
    except (ValueError, x509.InvalidVersion) as error:
        raise ClearanceRefused(f"the certificate cannot be read: {error}") from error
    return signatory_of(certificate)


def signatory_of(certificate: x509.Certificate) -> Signatory:
    """Say whom a certificate names: exactly one identity, exactly one issuer.

    Raises:
        ClearanceRefused: none or several.
    """
    try:
        extensions = certificate.extensions
        names = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        issuer = _read_utf8(_raw_value(extensions, ISSUER_EXTENSION))
        old = [extension for extension in extensions if extension.oid == OLD_ISSUER_EXTENSION]
        is_told_twice = bool(old) and _raw_value(extensions, OLD_ISSUER_EXTENSION) != issuer.encode()
    except (
        ValueError,
        TypeError,
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise ClearanceRefused(f"the certificate names no signer: {error}") from error
    if is_told_twice:
        raise ClearanceRefused("the certificate names two issuers")
    if len(names) != 1 or not isinstance(name := names[0], x509.RFC822Name | x509.UniformResourceIdentifier):
        raise ClearanceRefused("the certificate does not name one signer by an address or a URI")
    if not name.value or not issuer:
        raise ClearanceRefused("the certificate names a signer or an issuer without a name")
    return Signatory(identity=name.value, issuer=issuer)


def _raw_value(extensions: x509.Extensions, oid: x509.ObjectIdentifier) -> bytes:
    value = extensions.get_extension_for_oid(oid).value
    if not isinstance(value, x509.UnrecognizedExtension):
        raise TypeError(f"extension {oid.dotted_string} is of another kind")
    return value.value


def _read_utf8(der: bytes) -> str:
    """Read a DER UTF8String of up to 65,535 bytes, and nothing else.

    Raises:
        ValueError: it is none.
    """
    text = der[2:]
    if len(der) > 2 and der[1] in (0x81, 0x82):
        text = der[2 + der[1] - 0x80 :]
    if der != _write_utf8(text):
        raise ValueError("the issuer is no DER UTF8String")
    return text.decode()


def _write_utf8(text: bytes) -> bytes:
    size = len(text)
    if size < 0x80:
        length = bytes([size])
    else:
        digits = size.to_bytes(1 if size < 0x100 else 2, "big") if size < 0x10000 else b""
        length = bytes([0x80 + len(digits)]) + digits
    return bytes([_UTF8_STRING]) + length + text
