"""Who signs and who is accepted, by key or keyless: one way to sign, to read and to verify either form.

A clearance is a DSSE envelope signed by a key, or a sigstore bundle around one; its media type tells which.
"""

from typing import assert_never

from validator.attest.bundle import Bundle, Signatory, is_bundle, read_bundle, read_signatory
from validator.attest.envelope import Envelope, read_envelope, seal_statement, verify_signature
from validator.attest.keyless import KeylessSigner, TrustedSignatory, sign_keyless, verify_bundle
from validator.attest.keys import Ed25519Signer, P256Signer, PublicKey, Signer, public_key_of
from validator.attest.statement import Statement
from validator.errors import ClearanceRefused

AnySigner = Signer | KeylessSigner
"""Closed: what signs a clearance."""
Accepted = PublicKey | TrustedSignatory
"""Closed: by what a clearance may be signed."""
Sealed = Envelope | Bundle
"""Closed: the forms of a clearance."""


def seal(statement: Statement, signer: AnySigner) -> bytes:
    """Sign a statement and return the clearance's text.

    Raises:
        KeylessError, SigstoreUnreachable, ClearanceRefused: see `sign_keyless`.
    """
    match signer:
        case Ed25519Signer() | P256Signer():
            return seal_statement(statement, signer)
        case KeylessSigner():
            return sign_keyless(statement, signer)
        case _:
            assert_never(signer)


def read_sealed(data: bytes) -> Sealed:
    """Read a clearance of either form. Nothing in it is believed yet.

    Raises:
        ClearanceRefused: neither form, or not written the way it was made.
    """
    return read_bundle(data) if is_bundle(data) else read_envelope(data)


def verify_sealed(sealed: Sealed, accepted: tuple[Accepted, ...]) -> bytes:
    """Return the payload if one of those who are accepted signed it.

    Raises:
        ClearanceRefused: none did.
        KeylessError, SigstoreUnreachable: see `verify_bundle`.
    """
    match sealed:
        case Envelope():
            return verify_signature(sealed, tuple(each for each in accepted if isinstance(each, PublicKey)))
        case Bundle():
            return verify_bundle(sealed, tuple(each for each in accepted if isinstance(each, TrustedSignatory)))
        case _:
            assert_never(sealed)


def signed_by(sealed: Sealed) -> str | Signatory:
    """Return the id of the key, or the identity with its issuer. To be believed only of what was verified.

    Raises:
        ClearanceRefused: the certificate names nobody.
    """
    match sealed:
        case Envelope():
            return sealed.signatures[0].keyid
        case Bundle():
            return read_signatory(sealed)
        case _:
            assert_never(sealed)


def acceptance_of(signer: AnySigner, sealed: Sealed) -> Accepted:
    """Return by what those accept a signer's clearance who trust this signer: its own output is verified with that.

    Raises:
        ClearanceRefused: the certificate names nobody.
    """
    match signer:
        case Ed25519Signer() | P256Signer():
            return public_key_of(signer)
        case KeylessSigner():
            if not isinstance(sealed, Bundle):
                raise ClearanceRefused("a keyless signature comes in a bundle, and this is none")
            return TrustedSignatory(signatory=read_signatory(sealed), trust=signer.trust)
        case _:
            assert_never(signer)


def describe_signer(signer: str | Signatory, *, short: bool = False) -> str:
    """Say who signed: `key sha256:…`, or `identity … of …`; short: as much of a key's id as tells keys apart."""
    if isinstance(signer, Signatory):
        return f"identity {signer}"
    return f"key {signer[:15] if short else signer}"
