"""The bytes of a clearance: pinned, and good for nothing once one of them is another."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attest.world import GATE, STRANGER, edit_envelope, predicate, seal_payload
from validator.attest.canonical import read_canonical, write_canonical
from validator.attest.envelope import (
    Envelope,
    encode_for_signing,
    read_envelope,
    read_statement,
    seal_statement,
    verify_signature,
)
from validator.attest.keys import KeyType, Signer, generate_key, public_key_of
from validator.attest.statement import Statement, make_statement, read_time
from validator.errors import ClearanceRefused, ValidatorError

PINNED = Path(__file__).parent / "clearance.pinned.json"
STATEMENT = make_statement(predicate())
SEALED = seal_statement(STATEMENT, GATE)
P256 = generate_key(KeyType.P256)
SEALED_P256 = seal_statement(STATEMENT, P256)


def open_sealed(data: bytes, signer: Signer = GATE) -> Statement:
    return read_statement(verify_signature(read_envelope(data), (public_key_of(signer),)))


def test_the_encoding_is_that_of_the_specification() -> None:
    """The example of DSSE's protocol page."""
    encoded = encode_for_signing(b"hello world", "http://example.com/HelloWorld")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_lengths_are_counted_in_bytes() -> None:
    assert encode_for_signing("ü".encode(), "ü") == "DSSEv1 2 ü 2 ü".encode()


def test_the_bytes_of_a_clearance_are_pinned() -> None:
    """Ed25519 has no randomness, so the same statement under the same key is the same file for ever.

    `VALIDATOR_UPDATE_SNAPSHOTS=1` writes it again; then the predicate's version must change.
    """
    if os.environ.get("VALIDATOR_UPDATE_SNAPSHOTS") == "1":
        PINNED.write_bytes(SEALED)
    assert PINNED.read_bytes() == SEALED
    assert open_sealed(PINNED.read_bytes()) == STATEMENT


def test_a_statement_comes_back_as_it_was() -> None:
    assert open_sealed(SEALED_P256, P256) == STATEMENT
    without = make_statement(predicate(onnx=None, waivers=(), warnings=()))
    assert open_sealed(seal_statement(without, GATE)) == without


@given(at=st.integers(0, len(SEALED) - 1), byte=st.integers(0, 255))
def test_no_byte_can_be_changed(at: int, byte: int) -> None:
    """Whatever becomes of a changed envelope, it is refused; only the same bytes are the same clearance."""
    changed = SEALED[:at] + bytes([byte]) + SEALED[at + 1 :]
    if changed == SEALED:
        return
    with pytest.raises(ClearanceRefused):
        open_sealed(changed)


@given(at=st.integers(0, len(SEALED_P256) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_never_verifies_as_something_else_under_p256(at: int, byte: int) -> None:
    """ECDSA has second signatures of one message; what they sign is the same."""
    try:
        opened = open_sealed(SEALED_P256[:at] + bytes([byte]) + SEALED_P256[at + 1 :], P256)
    except ClearanceRefused:
        return
    assert opened == STATEMENT


@given(at=st.integers(0, len(SEALED)), inserted=st.binary(max_size=4), removed=st.integers(0, 4))
def test_no_bytes_can_be_put_in_or_taken_out(at: int, inserted: bytes, removed: int) -> None:
    changed = SEALED[:at] + inserted + SEALED[at + removed :]
    if changed == SEALED:
        return
    with pytest.raises(ClearanceRefused):
        open_sealed(changed)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_anything_may_be_read_and_nothing_of_it_is_believed(data: bytes) -> None:
    for read in (read_envelope, read_statement):
        with pytest.raises(ClearanceRefused):
            read(data)


@given(st.binary(max_size=60))
def test_any_payload_may_be_signed_and_is_refused_unless_it_is_a_statement(payload: bytes) -> None:
    with pytest.raises(ClearanceRefused):
        open_sealed(seal_payload(payload))


def test_a_second_spelling_of_base64_is_refused() -> None:
    def edit(document: dict) -> None:
        sig = document["signatures"][0]["sig"]
        assert sig.endswith("==")
        stray = {"A": "B", "Q": "R", "g": "h", "w": "x"}[sig[-3]]
        document["signatures"][0]["sig"] = sig[:-3] + stray + "=="

    with pytest.raises(ClearanceRefused, match="stray bits"):
        open_sealed(edit_envelope(SEALED, edit))


def test_a_signature_is_only_tried_with_the_key_that_it_names() -> None:
    renamed = edit_envelope(SEALED, lambda d: d["signatures"][0].update(keyid=public_key_of(STRANGER).key_id))
    keys = (public_key_of(GATE), public_key_of(STRANGER))
    assert verify_signature(read_envelope(SEALED), keys)
    with pytest.raises(ClearanceRefused, match="not that of key"):
        verify_signature(read_envelope(renamed), keys)


def test_reading_checks_the_model_that_was_asked_for() -> None:
    with pytest.raises(ClearanceRefused):
        read_canonical(Statement, SEALED, what="it")
    with pytest.raises(ClearanceRefused):
        read_canonical(Envelope, write_canonical(STATEMENT), what="it")


@pytest.mark.parametrize(
    "text", ["2026-11-30T15:02:00", "2026-11-30 15:02:00Z", "2026-02-30T00:00:00Z", "2026-1-1T0:0:0Z", ""]
)
def test_a_time_has_one_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_time(text)


def test_refusals_exit_4() -> None:
    assert issubclass(ClearanceRefused, ValidatorError)
    assert ClearanceRefused.exit_code == 4
