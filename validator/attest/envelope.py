"""DSSE: signed bytes around a statement.

The signature covers the payload's type and its bytes, so nothing has to be parsed before it is verified. An envelope
of ours has exactly one signature: with several, "one of them is valid" would have to be explained to everybody who
reads the others. Source: DSSE v1.0, protocol and envelope.
"""

import base64
import binascii
from typing import Literal

from pydantic import BaseModel, ConfigDict

from validator.attest.canonical import read_canonical, write_canonical
from validator.attest.keys import PublicKey, Signer, find_key, public_key_of, sign
from validator.attest.statement import Statement
from validator.errors import ClearanceRefused

PAYLOAD_TYPE: Literal["application/vnd.in-toto+json"] = "application/vnd.in-toto+json"


class Signature(BaseModel):
    """One signature."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    keyid: str
    """Only tells which of the given keys to try."""
    sig: str


class Envelope(BaseModel):
    """A DSSE envelope; field names are DSSE's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    payload: str
    payloadType: Literal["application/vnd.in-toto+json"] = PAYLOAD_TYPE  # noqa: N815
    signatures: tuple[Signature, ...]


def encode_for_signing(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Return DSSE's PAE: `DSSEv1 LEN(type) type LEN(payload) payload`, lengths in bytes, decimal ASCII."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def seal_statement(statement: Statement, signer: Signer) -> bytes:
    """Sign a statement and return the text of its envelope."""
    payload = write_canonical(statement)
    return write_canonical(
        Envelope(
            payload=base64.b64encode(payload).decode(),
            signatures=(
                Signature(
                    keyid=public_key_of(signer).key_id,
                    sig=base64.b64encode(sign(signer, encode_for_signing(payload))).decode(),
                ),
            ),
        )
    )


def read_envelope(data: bytes) -> Envelope:
    """Read an envelope. Nothing in it is believed yet.

    Raises:
        ClearanceRefused: not an envelope with one signature, or not written the way it was made.
    """
    envelope = read_canonical(Envelope, data, what="the envelope")
    if len(envelope.signatures) != 1:
        raise ClearanceRefused(f"the envelope has {len(envelope.signatures)} signatures, not one")
    return envelope


def verify_signature(envelope: Envelope, keys: tuple[PublicKey, ...]) -> bytes:
    """Return the payload if one of the keys signed it.

    Raises:
        ClearanceRefused: none did.
    """
    (signature,) = envelope.signatures
    payload = _decode(envelope.payload, what="the payload")
    key = find_key(keys, signature.keyid)
    if key is None:
        raise ClearanceRefused(f"it names the key {signature.keyid[:15]}, which is none of the keys that are accepted")
    if not key.has_signed(encode_for_signing(payload), _decode(signature.sig, what="the signature")):
        raise ClearanceRefused(f"the signature is not that of key {signature.keyid[:15]} over these bytes")
    return payload


def read_statement(payload: bytes) -> Statement:
    """Read a payload whose signature was verified.

    Raises:
        ClearanceRefused: not a statement of this project.
    """
    return read_canonical(Statement, payload, what="the statement")


def _decode(text: str, *, what: str) -> bytes:
    """Decode base64 that has one spelling.

    Raises:
        ClearanceRefused: it is none.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ClearanceRefused(f"{what} is no base64") from error
    if base64.b64encode(data).decode() != text:
        raise ClearanceRefused(f"{what} is base64 with stray bits")
    return data
