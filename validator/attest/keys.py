"""Keys that clearances are signed and verified with: PEM files, Ed25519 or ECDSA on P-256.

Keys are few and live long, so a key file is looked at hard before it is used. A key's id is the sha256 of its public
half (DER, SubjectPublicKeyInfo), so nobody chooses it.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from validator.disk import read_given, sweep_drafts, write_new
from validator.errors import KeyFileError

PASSPHRASE = "VALIDATOR_KEY_PASSPHRASE"  # noqa: S105 - the name of a variable
PASSPHRASE_FILE = "VALIDATOR_KEY_PASSPHRASE_FILE"  # noqa: S105 - likewise
KEY_FILE_LIMIT_BYTES = 1 << 16
PUBLIC_SUFFIX = ".pub"


class KeyType(StrEnum):
    """`--type`."""

    ED25519 = "ed25519"
    P256 = "p256"


# --- Signing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ed25519Signer:
    """A key file with an Ed25519 key."""

    key: ed25519.Ed25519PrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class P256Signer:
    """A key file with a P-256 key."""

    key: ec.EllipticCurvePrivateKey


Signer = Ed25519Signer | P256Signer
"""Closed: another kind of key is another member, and every `match` on it must then say what it means."""


def sign(signer: Signer, message: bytes) -> bytes:
    """Return a signature: 64 bytes of Ed25519, or a DER sequence of ECDSA with SHA-256."""
    match signer:
        case Ed25519Signer(key=key):
            return key.sign(message)
        case P256Signer(key=curve_key):
            return curve_key.sign(message, ec.ECDSA(hashes.SHA256()))
        case _:
            assert_never(signer)


def public_key_of(signer: Signer) -> "PublicKey":
    """Return the public half."""
    return PublicKey(key=signer.key.public_key())


def generate_key(kind: KeyType) -> Signer:
    """Make a new key."""
    match kind:
        case KeyType.ED25519:
            return Ed25519Signer(key=ed25519.Ed25519PrivateKey.generate())
        case KeyType.P256:
            return P256Signer(key=ec.generate_private_key(ec.SECP256R1()))
        case _:
            assert_never(kind)


# --- Verifying ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A key that signatures are verified with."""

    key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey

    @property
    def key_id(self) -> str:
        """Return `sha256:<hex>` of the DER SubjectPublicKeyInfo."""
        der = self.key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return "sha256:" + hashlib.sha256(der).hexdigest()

    @property
    def pem(self) -> bytes:
        """The public key file."""
        return self.key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Whether this key made the signature."""
        try:
            match self.key:
                case ed25519.Ed25519PublicKey():
                    self.key.verify(signature, message)
                case ec.EllipticCurvePublicKey():
                    self.key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
                case _:
                    assert_never(self.key)
        except InvalidSignature:
            return False
        return True


def find_key(keys: Iterable[PublicKey], key_id: str) -> PublicKey | None:
    """Return the key of that id."""
    return next((key for key in keys if key.key_id == key_id), None)


# --- Files --------------------------------------------------------------------------------------------------------


def load_signer(path: Path, environment: Mapping[str, str] = os.environ) -> Signer:
    """Read a private key.

    Args:
        path: a regular file that only its owner may read; no link, so that it is the file that was looked at.
        environment: may name the passphrase.

    Raises:
        KeyFileError: it cannot be used; says why, never what is in it.
    """
    data = _read_private(path)
    passphrase = read_passphrase(environment)
    try:
        key = serialization.load_pem_private_key(data, password=passphrase)
    except TypeError as error:
        if passphrase is None:
            raise KeyFileError(f"{path} is encrypted", hint=f"put the passphrase into {PASSPHRASE}") from error
        raise KeyFileError(
            f"{path} is not encrypted, but {PASSPHRASE} or {PASSPHRASE_FILE} is set", hint="unset it"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(
            f"{path} is no private key in PEM, or its passphrase is another one", hint="make one: validator key create"
        ) from error
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return Ed25519Signer(key=key)
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return P256Signer(key=key)
    raise KeyFileError(f"{path} is neither an Ed25519 nor a P-256 key", hint="make one: validator key create")


def load_public_key(path: Path) -> PublicKey:
    """Read a public key. A link will do: what is public is handed about, and mounted as links by Kubernetes.

    Raises:
        KeyFileError: it cannot be used.
    """
    try:
        data = read_given(path, limit_bytes=KEY_FILE_LIMIT_BYTES)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {_reason(error)}", hint="name a .pub file") from error
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path} is no public key in PEM", hint="name the .pub file, not the key itself") from error
    if isinstance(key, ed25519.Ed25519PublicKey):
        return PublicKey(key=key)
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return PublicKey(key=key)
    raise KeyFileError(f"{path} is neither an Ed25519 nor a P-256 key")


def create_key_files(path: Path, kind: KeyType, environment: Mapping[str, str] = os.environ) -> PublicKey:
    """Write a new private key, and its public half beside it as `.pub`. Both or none.

    Where an earlier call was killed between the two, its key gets its public half.

    Raises:
        KeyFileError: one of them exists, or cannot be written.
    """
    public_path = path.with_name(path.name + PUBLIC_SUFFIX)
    sweep_drafts(path.parent, [path.name, public_path.name])
    if (begun := _find_begun(path, public_path, kind, environment)) is not None:
        _write_new(public_path, begun.pem, mode=0o644)
        return begun
    signer = generate_key(kind)
    public = public_key_of(signer)
    passphrase = read_passphrase(environment)
    protection = (
        serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
    )
    private = signer.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
    _write_new(path, private, mode=0o600)
    try:
        _write_new(public_path, public.pem, mode=0o644)
    except KeyFileError:
        path.unlink()
        raise
    return public


def _find_begun(path: Path, public: Path, kind: KeyType, environment: Mapping[str, str]) -> PublicKey | None:
    """Return the public half of a private key of this kind that has none beside it."""
    if not path.is_file() or public.exists():
        return None
    with contextlib.suppress(KeyFileError):
        signer = load_signer(path, environment)
        if isinstance(signer, Ed25519Signer) is (kind is KeyType.ED25519):
            return public_key_of(signer)
    return None


def read_passphrase(environment: Mapping[str, str]) -> bytes | None:
    """Return the passphrase that a variable holds, or the first line of the file that another one names.

    Raises:
        KeyFileError: both are set, it is empty, or the file cannot be used.
    """
    if PASSPHRASE in environment and PASSPHRASE_FILE in environment:
        raise KeyFileError(f"{PASSPHRASE} and {PASSPHRASE_FILE} are both set", hint="unset one of them")
    if PASSPHRASE in environment:
        passphrase = environment[PASSPHRASE].encode()
    elif PASSPHRASE_FILE in environment:
        passphrase = _read_private(Path(environment[PASSPHRASE_FILE])).partition(b"\n")[0]
    else:
        return None
    if not passphrase:
        raise KeyFileError("the passphrase is empty", hint=f"unset {PASSPHRASE} and {PASSPHRASE_FILE}, or fill it")
    return passphrase


def _read_private(path: Path) -> bytes:
    """Read a file that only its owner may read.

    Raises:
        KeyFileError: it is a link, no regular file, too large, or open to others.
    """
    try:
        # Not blocking: a named pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            found = os.fstat(handle)
            data = stream.read(KEY_FILE_LIMIT_BYTES) if stat.S_ISREG(found.st_mode) else None
    except OSError as error:
        reason = "it is a symbolic link" if path.is_symlink() else _reason(error)
        raise KeyFileError(f"{path} cannot be used: {reason}", hint="name the file itself") from error
    if data is None:
        raise KeyFileError(f"{path} is not a regular file")
    if found.st_mode & 0o077:
        raise KeyFileError(
            f"{path} can be read by others: its mode is {found.st_mode & 0o777:o}", hint=f"chmod 600 {path}"
        )
    return data


def _write_new(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file that did not exist.

    Raises:
        KeyFileError: it exists, or cannot be written; nothing half-written stays.
    """
    try:
        write_new(path, data, mode=mode)
    except FileExistsError as error:
        raise KeyFileError(f"{path} exists", hint="keys are not overwritten: name another file") from error
    except OSError as error:
        raise KeyFileError(f"{path} cannot be written: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
