"""Everything that somebody might do to make a clearance say more than it does. Each row stands in docs/clearance.md."""

import base64
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.attest.world import (
    GATE,
    NOW,
    STRANGER,
    World,
    digest,
    edit_envelope,
    edit_payload,
    hours,
    refused,
    seal_payload,
)
from validator.attest.canonical import SIZE_LIMIT_BYTES, write_canonical
from validator.attest.envelope import seal_statement
from validator.attest.judgement import Allowed
from validator.attest.keys import public_key_of
from validator.errors import ClearanceRefused, ExitCode, IntegrityError, UriError
from validator.registry.interface import RUN_TAG

PAGE = Path(__file__).parents[2] / "docs" / "clearance.md"


def rows_of(page: Path) -> set[str]:
    """The first cells of the page's tables of two columns."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return {line.split(" | ")[0].removeprefix("| ") for line in lines if re.match(r"\| .* \| .* \|$", line)}


def test_the_honest_clearance_holds(world: World) -> None:
    """Else none of the attacks would prove anything."""
    verification = world.verify()
    assert verification.holds
    assert [claim.name for claim in verification.claims] == [
        "envelope", "signature", "verdict", "checks", "statement", "created", "expires",
        "registry", "version", "made", "bytes", "weights", "onnx",
    ]  # fmt: skip
    assert world.verify(from_run=True).holds


# --- The envelope and its signature -------------------------------------------------------------------------------


def set_payload(world: World) -> None:
    def edit(document):
        payload = edit_payload(world.statement, lambda d: d["predicate"].update(verdict="fail"))
        document["payload"] = base64.b64encode(payload).decode()

    world.put(edit_envelope(world.path.read_bytes(), edit))


def strip_signature(world: World) -> None:
    world.put(edit_envelope(world.path.read_bytes(), lambda d: d.update(signatures=[])))


def empty_signature(world: World) -> None:
    world.put(edit_envelope(world.path.read_bytes(), lambda d: d["signatures"][0].update(sig="")))


def sign_as_stranger(world: World) -> None:
    world.put(seal_statement(world.statement, STRANGER))


def sign_as_stranger_under_the_gates_id(world: World) -> None:
    world.put(seal_payload(write_canonical(world.statement), STRANGER, key_id=public_key_of(GATE).key_id))


def add_signature(world: World) -> None:
    other = json.loads(seal_statement(world.statement, STRANGER))["signatures"]
    world.put(edit_envelope(world.path.read_bytes(), lambda d: d.update(signatures=d["signatures"] + other)))


def garble_payload(world: World) -> None:
    world.put(edit_envelope(world.path.read_bytes(), lambda d: d.update(payload="*not base64*")))


def change_payload_type(world: World) -> None:
    world.put(edit_envelope(world.path.read_bytes(), lambda d: d.update(payloadType="text/plain")))


def sign_another_payload_type(world: World) -> None:
    world.put(seal_payload(write_canonical(world.statement), payload_type="application/json"))


def add_key_to_envelope(world: World) -> None:
    world.put(edit_envelope(world.path.read_bytes(), lambda d: d.update(note="trust me")))


def double_key_in_envelope(world: World) -> None:
    data = world.path.read_bytes()
    world.put(data[:-1] + b"," + data[1:])


def make_giant(world: World) -> None:
    world.path.write_bytes(b" " * (SIZE_LIMIT_BYTES + 1))


def empty_file(world: World) -> None:
    world.put(b"")


def nest_deeply(world: World) -> None:
    world.put(b"[" * 100_000)


ENVELOPE_ATTACKS: dict[str, tuple[Callable[[World], None], str]] = {
    "payload edited": (set_payload, "signature"),
    "signature stripped": (strip_signature, "envelope"),
    "signature emptied": (empty_signature, "signature"),
    "signed by another key": (sign_as_stranger, "signature"),
    "signed by another key under the gate's key id": (sign_as_stranger_under_the_gates_id, "signature"),
    "several signatures, one of them valid": (add_signature, "envelope"),
    "payload that is no base64": (garble_payload, "signature"),
    "payload type changed": (change_payload_type, "envelope"),
    "another payload type, signed by the gate": (sign_another_payload_type, "envelope"),
    "unknown key in the envelope": (add_key_to_envelope, "envelope"),
    "duplicate keys in the envelope": (double_key_in_envelope, "envelope"),
    "empty file": (empty_file, "envelope"),
    "brackets nested without end": (nest_deeply, "envelope"),
}


@pytest.mark.parametrize("name", ENVELOPE_ATTACKS)
def test_an_envelope_that_was_tampered_with_is_refused_unread(world: World, name: str) -> None:
    attack, claim = ENVELOPE_ATTACKS[name]
    attack(world)
    for from_run in (False, True):
        verification = world.verify(from_run=from_run)
        assert refused(verification) == [claim]
        assert verification.statement is None


def link_file(world: World) -> None:
    real = world.path.rename(world.path.with_name("real.json"))
    world.path.symlink_to(real)


def remove_file(world: World) -> None:
    world.path.unlink()


def make_folder(world: World) -> None:
    world.path.unlink()
    world.path.mkdir()


def make_pipe(world: World) -> None:
    world.path.unlink()
    os.mkfifo(world.path)


FILE_ATTACKS: dict[str, Callable[[World], None]] = {
    "giant file": make_giant,
    "symbolic link instead of the file": link_file,
    "no file": remove_file,
    "folder instead of the file": make_folder,
    "named pipe instead of the file": make_pipe,
}


@pytest.mark.parametrize("name", FILE_ATTACKS)
def test_a_file_that_cannot_be_a_clearance_is_refused(world: World, name: str) -> None:
    FILE_ATTACKS[name](world)
    with pytest.raises(ClearanceRefused) as caught:
        world.verify()
    assert caught.value.exit_code is ExitCode.REFUSED


# --- What is signed -----------------------------------------------------------------------------------------------


def test_a_payload_that_cannot_be_parsed_is_refused_although_it_is_signed(world: World) -> None:
    for payload in (b"", b"{", b"null", b"\xff", b'{"_type": NaN}', b"1" * 10_000, b"[" * 100_000):
        world.put(seal_payload(payload))
        assert refused(world.verify()) == ["statement"]


STATEMENT_ATTACKS: dict[str, Callable[[dict], object]] = {
    "wrong statement type": lambda d: d.update(_type="https://in-toto.io/Statement/v0.1"),
    "wrong predicate type": lambda d: d.update(predicateType="https://slsa.dev/verification_summary/v1"),
    "unknown key in the statement": lambda d: d["predicate"].update(note="x"),
    "number instead of a digest": lambda d: d["predicate"]["model"].update(digest=1),
    "whole number written as text": lambda d: d["predicate"]["model"].update(version="1"),
    "fraction instead of a whole number": lambda d: d["predicate"]["model"].update(version=1.0),
    "time with an offset": lambda d: d["predicate"].update(created="2026-11-30T15:02:40+00:00"),
    "key left out": lambda d: d["predicate"].pop("required"),
}


@pytest.mark.parametrize("name", STATEMENT_ATTACKS)
def test_a_statement_of_another_form_is_refused(world: World, name: str) -> None:
    world.edit(STATEMENT_ATTACKS[name])
    verification = world.verify()
    assert refused(verification) == ["statement"]
    assert verification.statement is None


def test_duplicate_keys_in_the_payload_are_refused_although_they_are_signed(world: World) -> None:
    payload = write_canonical(world.statement)
    doubled = payload.replace(b'"verdict":"pass"', b'"verdict":"fail","verdict":"pass"')
    assert doubled != payload
    world.put(seal_payload(doubled))
    verification = world.verify()
    assert refused(verification) == ["statement"]
    assert "twice" in verification.claims[-1].message


def test_another_spelling_of_the_payload_is_refused(world: World) -> None:
    world.put(seal_payload(json.dumps(json.loads(write_canonical(world.statement)), indent=1).encode()))
    assert refused(world.verify()) == ["statement"]


SAID_ATTACKS: dict[str, tuple[Callable[[dict], object], str]] = {
    "verdict fail smuggled in": (lambda d: d["predicate"].update(verdict="fail"), "verdict"),
    "summary that says failed": (lambda d: d["predicate"]["summary"].update(verificationResult="FAILED"), "verdict"),
    "no checks at all": (lambda d: d["predicate"].update(required=[], reported=[]), "checks"),
    "no backends": (lambda d: d["predicate"].update(backends=[]), "checks"),
    "a required check is missing": (lambda d: d["predicate"]["reported"].pop(), "checks"),
    "a check that was not required": (lambda d: d["predicate"]["required"].pop(), "checks"),
    "a check listed twice": (lambda d: d["predicate"]["reported"].append("power"), "checks"),
    "checks without a name": (lambda d: d["predicate"].update(required=[""], reported=[""]), "checks"),
    "subject of another digest": (lambda d: d["subject"][0]["digest"].update(sha256="0" * 64), "statement"),
    "no subject": (lambda d: d.update(subject=[]), "statement"),
    "summary of another model": (lambda d: d["predicate"]["summary"].update(resourceUri="models:/x/1"), "statement"),
    "summary of another policy": (
        lambda d: d["predicate"]["summary"]["policy"]["digest"].update(sha256="0" * 64),
        "statement",
    ),
    "summary of another time": (
        lambda d: d["predicate"]["summary"].update(timeVerified="2026-11-30T15:02:41Z"),
        "statement",
    ),
    "expired before it was made": (lambda d: d["predicate"].update(expires="2026-11-30T15:02:40Z"), "expires"),
    "longer than a waiver lasts": (lambda d: d["predicate"]["waivers"][0].update(expires="2026-12-06"), "expires"),
    "waiver that lasts until no day": (lambda d: d["predicate"]["waivers"][0].update(expires="2026-13-99"), "expires"),
}


@pytest.mark.parametrize("name", SAID_ATTACKS)
def test_what_a_signed_statement_says_is_judged(world: World, name: str) -> None:
    edit, claim = SAID_ATTACKS[name]
    world.edit(edit)
    assert claim in refused(world.verify())


def test_expired(world: World) -> None:
    assert world.verify(now=NOW + hours(6 * 24)).holds
    assert refused(world.verify(now=NOW + hours(7 * 24))) == ["expires"]


def test_expires_before_it_is_made_although_neither_is_past(world: World) -> None:
    """Within the minute by which clocks may differ."""
    world.bind(created="2026-12-01T12:00:30Z", expires="2026-12-01T12:00:10Z")
    assert refused(world.verify()) == ["expires"]


def test_created_in_the_future(world: World) -> None:
    """A clock that was turned back would make every clearance last for ever."""
    assert refused(world.verify(now=NOW - hours(24))) == ["created"]


# --- What it is about ---------------------------------------------------------------------------------------------


def test_other_bytes(world: World) -> None:
    (world.source / "data/model.pt2").write_bytes(b"WEIGHTS")
    assert refused(world.verify()) == ["bytes", "weights"]
    assert refused(world.verify(str(world.source))) == ["bytes", "weights"]


@pytest.mark.parametrize("path", ["extra.py", "data/extra.pt2", "code/hook.py"])
def test_one_more_file(world: World, path: str) -> None:
    world.write("source", {path: b"import os"})
    assert "bytes" in refused(world.verify())


def test_a_file_less(world: World) -> None:
    (world.source / "MLmodel").unlink()
    assert refused(world.verify()) == ["bytes"]


def test_a_file_of_another_name(world: World) -> None:
    (world.source / "MLmodel").rename(world.source / "MLmodel2")
    assert refused(world.verify()) == ["bytes"]


def test_a_link_among_the_files(world: World) -> None:
    (world.source / "MLmodel").unlink()
    (world.source / "MLmodel").symlink_to(world.path)
    with pytest.raises(IntegrityError, match="symbolic link"):
        world.verify(str(world.source))


def test_a_copy_under_another_name(world: World) -> None:
    """The bytes are the same, and were not cleared under this name."""
    world.copy_as("other")
    assert refused(world.verify("models:/other/1")) == ["version", "made"]


def test_a_copy_as_another_version(world: World) -> None:
    world.copy_as("net")
    assert refused(world.verify("models:/net/2")) == ["version", "made"]


def test_a_version_that_was_deleted_and_made_again(world: World) -> None:
    world.registry.delete_model("net")
    world.registry.add_version("net", world.source)
    assert refused(world.verify()) == ["made"]


def test_a_version_that_is_made_again_while_its_bytes_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = world.registry.stage

    def stage_and_swap(subject, folder):
        staged = stage(subject, folder)
        world.registry.delete_model("net")
        world.registry.add_version("net", world.source)
        return staged

    monkeypatch.setattr(world.registry, "stage", stage_and_swap)
    with pytest.raises(ClearanceRefused, match="made again"):
        world.verify()


def test_replay_on_another_model(world: World) -> None:
    world.registry.add_version("other", world.write("other", {"data/model.pt2": b"backdoor"}))
    assert refused(world.verify("models:/other/1")) == ["version", "made", "bytes", "weights", "onnx"]


def test_the_run_of_another_model(world: World) -> None:
    """Whoever may edit a version writes its tags, and can point to any run."""
    world.registry.add_version("other", world.write("other", {"data/model.pt2": b"backdoor"}))
    world.registry.version("other", 1).tags.update(world.registry.version("net", 1).tags)
    assert "bytes" in refused(world.verify("models:/other/1", from_run=True))


def test_a_version_without_a_check(world: World) -> None:
    del world.registry.version("net", 1).tags[RUN_TAG]
    with pytest.raises(ClearanceRefused, match="no check of it is known"):
        world.verify(from_run=True)


def test_a_run_without_a_clearance(world: World) -> None:
    world.registry.version("net", 1).tags[RUN_TAG] = "fake-elsewhere"
    with pytest.raises(ClearanceRefused, match="holds no clearance"):
        world.verify(from_run=True)


def test_another_registry(world: World) -> None:
    world.registry.uri = "https://copy.example.com"
    assert refused(world.verify()) == ["registry"]
    assert world.verify(cleared_in="fake://registry").holds


def test_another_onnx_file(world: World, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"other graph")
    assert refused(world.verify(onnx=str(tmp_path / "other.onnx"))) == ["onnx"]


def test_an_onnx_file_that_is_nowhere(world: World) -> None:
    """What was cleared and cannot be found is not skipped."""
    world.bind(onnx=world.predicate().onnx.model_copy(update={"origin": "the --onnx option"}))
    assert refused(world.verify()) == ["onnx"]
    assert world.verify(onnx=str(world.source / "extra/model.onnx")).holds


def test_another_policy_or_golden_dataset(world: World) -> None:
    assert world.verify(allowed=Allowed(policies=frozenset({digest("e")}), goldens=frozenset({digest("d")}))).holds
    assert refused(world.verify(allowed=Allowed(policies=frozenset({digest("0")})))) == ["policy"]
    assert refused(world.verify(allowed=Allowed(goldens=frozenset({digest("0")})))) == ["golden"]
    assert refused(world.verify(allowed=Allowed(policies=frozenset()))) == ["policy"]


def test_a_policy_that_was_read_elsewhere(world: World) -> None:
    world.bind(policy=world.predicate().policy.model_copy(update={"origin": "git:origin/main:policy.toml@" + "0" * 40}))
    assert world.verify(allowed=Allowed(origins=("models:/validator.budget.*", "git:origin/main:*"))).holds
    assert refused(world.verify(allowed=Allowed(origins=("git:origin/release:*",)))) == ["policy"]
    assert refused(world.verify(allowed=Allowed(origins=()))) == ["policy"]


def test_an_alias_that_points_elsewhere(world: World) -> None:
    world.registry.set_alias("net", "champion", 1)
    assert world.verify(alias="champion").holds
    assert world.verify("models:/net@champion").holds
    world.copy_as("net")
    world.registry.set_alias("net", "champion", 2)
    assert refused(world.verify(alias="champion")) == ["alias"]
    assert refused(world.verify("models:/net@champion")) == ["version", "made"]
    assert refused(world.verify(alias="gone")) == ["alias"]


def test_an_alias_of_a_model_that_was_made_again(world: World) -> None:
    world.registry.delete_model("net")
    world.registry.add_version("net", world.source)
    world.registry.set_alias("net", "champion", 1)
    assert refused(world.verify(alias="champion")) == ["made", "alias"]


def test_a_version_that_is_gone(world: World) -> None:
    world.registry.delete_model("net")
    with pytest.raises(UriError):
        world.verify()


def test_no_key_at_all_is_an_error(world: World) -> None:
    with pytest.raises(Exception, match="no key is given"):
        world.verify(keys=())


def test_a_verification_without_claims_does_not_hold(world: World) -> None:
    assert not replace(world.verify(), claims=()).holds


# --- The page -----------------------------------------------------------------------------------------------------


def test_every_attack_of_the_tables_here_stands_on_the_page() -> None:
    tables = (ENVELOPE_ATTACKS, FILE_ATTACKS, STATEMENT_ATTACKS, SAID_ATTACKS)
    assert {name for table in tables for name in table} <= rows_of(PAGE)
