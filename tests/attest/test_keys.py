"""Key files: what is written, and which are used."""

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from validator.attest.keys import (
    PASSPHRASE,
    PASSPHRASE_FILE,
    KeyType,
    create_key_files,
    load_public_key,
    load_signer,
    public_key_of,
    sign,
)
from validator.errors import ExitCode, KeyFileError
from validator.worker.environment import worker_environment

SECRET = {PASSPHRASE: "correct horse"}
KINDS = pytest.mark.parametrize("kind", list(KeyType))


@KINDS
@pytest.mark.parametrize("environment", [{}, SECRET], ids=["plain", "encrypted"])
def test_a_key_is_written_and_read_back(tmp_path: Path, kind: KeyType, environment: dict[str, str]) -> None:
    path = tmp_path / "gate.key"
    created = create_key_files(path, kind, environment)
    signer, public = load_signer(path, environment), load_public_key(tmp_path / "gate.key.pub")
    assert public.has_signed(b"message", sign(signer, b"message"))
    assert not public.has_signed(b"other", sign(signer, b"message"))
    assert not public.has_signed(b"message", b"")
    assert created.key_id == public.key_id == public_key_of(signer).key_id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_is_readable_by_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "gate.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["gate.key", "gate.key.pub"])
def test_nothing_is_overwritten_and_nothing_half_written_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(KeyFileError, match="exists"):
        create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"mine")]


def test_a_key_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "gate.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError):
        create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o601, 0o777])
def test_a_key_that_others_may_touch_is_not_used(tmp_path: Path, mode: int) -> None:
    create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    (tmp_path / "gate.key").chmod(mode)
    with pytest.raises(KeyFileError, match="can be read by others") as caught:
        load_signer(tmp_path / "gate.key", {})
    assert caught.value.exit_code is ExitCode.USAGE
    assert "chmod 600" in str(caught.value.hint)


def test_a_link_to_a_key_is_not_used(tmp_path: Path) -> None:
    create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    (tmp_path / "link").symlink_to(tmp_path / "gate.key")
    with pytest.raises(KeyFileError, match="symbolic link"):
        load_signer(tmp_path / "link", {})


def test_a_public_key_may_be_a_link(tmp_path: Path) -> None:
    public = create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    (tmp_path / "link").symlink_to(tmp_path / "gate.key.pub")
    assert load_public_key(tmp_path / "link").key_id == public.key_id


def test_what_is_no_key_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA\n")
    (tmp_path / "garbage").chmod(0o600)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("garbage", "pipe", "gone", "."):
        with pytest.raises(KeyFileError):
            load_signer(tmp_path / name, {})
    for name in ("garbage", "gone", "."):
        with pytest.raises(KeyFileError):
            load_public_key(tmp_path / name)


def test_the_private_key_is_no_public_key_and_the_other_way_round(tmp_path: Path) -> None:
    create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    with pytest.raises(KeyFileError, match="no public key"):
        load_public_key(tmp_path / "gate.key")
    (tmp_path / "gate.key.pub").chmod(0o600)
    with pytest.raises(KeyFileError, match="no private key"):
        load_signer(tmp_path / "gate.key.pub", {})


@pytest.mark.parametrize("key", [rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())])
def test_other_kinds_of_keys_are_not_used(tmp_path: Path, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key").write_bytes(pem)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(KeyFileError, match="neither"):
        load_signer(tmp_path / "key", {})
    with pytest.raises(KeyFileError, match="neither"):
        load_public_key(tmp_path / "pub")


# --- Passphrases --------------------------------------------------------------------------------------------------


def test_the_passphrase_may_lie_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse\nsecond line\n")
    secret.chmod(0o600)
    create_key_files(tmp_path / "gate.key", KeyType.ED25519, SECRET)
    assert load_signer(tmp_path / "gate.key", {PASSPHRASE_FILE: str(secret)})
    secret.chmod(0o644)
    with pytest.raises(KeyFileError, match="can be read by others"):
        load_signer(tmp_path / "gate.key", {PASSPHRASE_FILE: str(secret)})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "is encrypted"),
        ({PASSPHRASE: "wrong"}, "another one"),
        ({PASSPHRASE: ""}, "is empty"),
        ({PASSPHRASE: "x", PASSPHRASE_FILE: "y"}, "both set"),
    ],
)
def test_an_encrypted_key_needs_its_passphrase(tmp_path: Path, environment: dict[str, str], message: str) -> None:
    create_key_files(tmp_path / "gate.key", KeyType.P256, SECRET)
    with pytest.raises(KeyFileError, match=message):
        load_signer(tmp_path / "gate.key", environment)


def test_a_passphrase_for_a_key_that_is_not_encrypted_is_an_error(tmp_path: Path) -> None:
    """Whoever set it believes the key to be protected."""
    create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    with pytest.raises(KeyFileError, match="is not encrypted"):
        load_signer(tmp_path / "gate.key", SECRET)


def test_no_message_tells_a_secret(tmp_path: Path) -> None:
    create_key_files(tmp_path / "gate.key", KeyType.ED25519, SECRET)
    with pytest.raises(KeyFileError) as caught:
        load_signer(tmp_path / "gate.key", {PASSPHRASE: "wrong horse"})
    assert "horse" not in f"{caught.value.message} {caught.value.hint}"


def test_neither_key_nor_passphrase_nor_identity_token_reaches_a_worker(tmp_path: Path) -> None:
    from validator.worker.warm import Kit, WarmSpec

    ours = {"VALIDATOR_SIGN_KEY": "/keys/gate.key", PASSPHRASE_FILE: "/keys/secret", **SECRET}
    ours |= {"SIGSTORE_ID_TOKEN": "e30.e30.e30", "VALIDATOR_IDENTITY_TOKEN_FILE": "/run/token"}
    ours |= {"ACTIONS_ID_TOKEN_REQUEST_TOKEN": "bearer", "ACTIONS_ID_TOKEN_REQUEST_URL": "https://actions.example.com"}
    spec = WarmSpec(kit=next(iter(Kit)), threads=1, variables=())
    built = worker_environment(spec, home=tmp_path, inherited=ours)
    assert not set(ours) & set(built)
    assert not set(ours.values()) & set(built.values())
