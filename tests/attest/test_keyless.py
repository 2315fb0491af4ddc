"""Clearances that are signed keyless: by sigstore's own client, over HTTP, and by whoever would like to be the gate."""

import base64
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attest.instance import CI, REQUEST_TOKEN, SIGNED, Instance, b64, identity_token, new_key, utf8_string
from tests.attest.test_attacks import PAGE, rows_of
from tests.attest.world import GATE, World, edit_payload, predicate, refused
from validator.attest.bundle import Bundle, Signatory, _read_utf8, read_bundle, read_signatory, write_bundle
from validator.attest.canonical import write_canonical
from validator.attest.envelope import seal_statement
from validator.attest.keyless import (
    TOKEN,
    KeylessSigner,
    PublicGood,
    TrustConfigFile,
    TrustedSignatory,
    TrustRootFile,
    find_token,
)
from validator.attest.keys import public_key_of
from validator.attest.sealing import Accepted, read_sealed, seal, signed_by
from validator.attest.statement import make_statement, write_time
from validator.boundary import _load_app, run
from validator.errors import ClearanceRefused, ExitCode, KeylessError, SigstoreUnreachable
from validator.manifest import canonical_json
from validator.verify import open_clearance

STATEMENT = make_statement(predicate())
PAYLOAD = write_canonical(STATEMENT)
STRANGER = Signatory(identity="mallory@example.com", issuer="https://accounts.example.com")


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Instance:
    return Instance(tmp_path_factory.mktemp("instance"))


@pytest.fixture
def other(tmp_path: Path) -> Instance:
    """Another instance, with keys of its own."""
    folder = tmp_path / "other"
    folder.mkdir()
    return Instance(folder)


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own CI has an identity, too."""
    for name in (TOKEN, "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "GOOGLE_SERVICE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)


def claims_of(data: bytes, *accepted: Accepted) -> dict[str, tuple[bool, str]]:
    statement, claims = open_clearance(data, accepted)
    assert (statement is not None) == all(claim.holds for claim in claims)
    assert statement in (None, STATEMENT)
    return {claim.name: (claim.holds, claim.message) for claim in claims}


def edit_bundle(data: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(data)
    edit(document)
    return canonical_json(document).encode()


def entry_of(document: dict[str, Any]) -> dict[str, Any]:
    return document["verificationMaterial"]["tlogEntries"][0]


# --- What holds ---------------------------------------------------------------------------------------------------


def test_a_bundle_of_the_accepted_identity_verifies(instance: Instance) -> None:
    """Else none of the attacks would prove anything."""
    assert claims_of(instance.sign(PAYLOAD), instance.accept()) == {
        "envelope": (True, "application/vnd.in-toto+json"),
        "signature": (True, f"by identity {CI.identity} of {CI.issuer}"),
    }


@pytest.mark.parametrize("identity", ["ci@example.com", "https://gitlab.com/team/model//ci.yml@refs/heads/main"])
def test_an_identity_is_an_address_or_a_uri(instance: Instance, identity: str) -> None:
    signatory = Signatory(identity=identity, issuer="https://gitlab.com")
    bundle = instance.sign(PAYLOAD, signatory)
    assert claims_of(bundle, instance.accept(signatory))["signature"][0]
    assert signed_by(read_sealed(bundle)) == signatory


def test_key_and_identity_may_be_accepted_beside_each_other(instance: Instance) -> None:
    both = (public_key_of(GATE), instance.accept())
    assert claims_of(instance.sign(PAYLOAD), *both)["signature"][0]
    assert claims_of(seal_statement(STATEMENT, GATE), *both)["signature"][0]


def test_a_world_with_a_keyless_clearance_verifies_and_its_bytes_still_count(world: World, instance: Instance) -> None:
    world.put(instance.sign(write_canonical(world.statement)))
    assert world.verify(keys=(instance.accept(),)).holds
    assert world.verify(keys=(instance.accept(),), from_run=True).holds
    (world.source / "data/model.pt2").write_bytes(b"WEIGHTS")
    assert refused(world.verify(keys=(instance.accept(),))) == ["bytes", "weights"]


# --- Attacks ------------------------------------------------------------------------------------------------------


def of_another_identity(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, Signatory(identity=STRANGER.identity, issuer=CI.issuer))


def of_another_issuer(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, Signatory(identity=CI.identity, issuer=STRANGER.issuer))


def of_an_identity_that_begins_alike(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, Signatory(identity=CI.identity + "-2", issuer=CI.issuer))


def with_two_names(instance: Instance, other: Instance) -> bytes:
    names = [x509.UniformResourceIdentifier(CI.identity), x509.RFC822Name(STRANGER.identity)]
    return instance.sign(PAYLOAD, names=names)


def with_two_issuers(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, old_issuer=STRANGER.issuer)


def without_issuer(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, has_issuer=False)


def of_another_ca(instance: Instance, other: Instance) -> bytes:
    other.certificate_log, other.log = instance.certificate_log, instance.log
    return other.sign(PAYLOAD)


def of_another_instance(instance: Instance, other: Instance) -> bytes:
    return other.sign(PAYLOAD)


def without_certificate_log(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, is_logged=False)


def in_another_certificate_log(instance: Instance, other: Instance) -> bytes:
    other.ca_key, other.ca, other.log = instance.ca_key, instance.ca, instance.log
    return other.sign(PAYLOAD)


def with_a_certificate_that_is_not_a_certificate(instance: Instance, other: Instance) -> bytes:
    def edit(document):
        document["verificationMaterial"]["certificate"]["rawBytes"] = b64(b"certificate")

    return edit_bundle(instance.sign(PAYLOAD), edit)


def with_the_gates_certificate(instance: Instance, other: Instance) -> bytes:
    """What the stranger signed, under the certificate of the gate, which anybody can read in the log."""
    gates = json.loads(instance.sign(PAYLOAD))["verificationMaterial"]["certificate"]
    payload = edit_payload(STATEMENT, lambda d: d["predicate"].update(sandbox="strict"))
    return edit_bundle(instance.sign(payload, STRANGER), lambda d: d["verificationMaterial"].update(certificate=gates))


def with_another_payload(instance: Instance, other: Instance) -> bytes:
    payload = edit_payload(STATEMENT, lambda d: d["predicate"].update(sandbox="strict"))
    return edit_bundle(instance.sign(PAYLOAD), lambda d: d["dsseEnvelope"].update(payload=b64(payload)))


def with_another_signature(instance: Instance, other: Instance) -> bytes:
    theirs = json.loads(instance.sign(b"another payload"))["dsseEnvelope"]["signatures"]
    return edit_bundle(instance.sign(PAYLOAD), lambda d: d["dsseEnvelope"].update(signatures=theirs))


def with_another_envelopes_entry(instance: Instance, other: Instance) -> bytes:
    entry = entry_of(json.loads(instance.sign(b"another payload")))
    return edit_bundle(instance.sign(PAYLOAD), lambda d: d["verificationMaterial"].update(tlogEntries=[entry]))


def with_the_same_payloads_other_entry(instance: Instance, other: Instance) -> bytes:
    entry = entry_of(json.loads(instance.sign(PAYLOAD, STRANGER)))
    return edit_bundle(instance.sign(PAYLOAD), lambda d: d["verificationMaterial"].update(tlogEntries=[entry]))


def not_in_the_log(instance: Instance, other: Instance) -> bytes:
    def edit(document):
        proof = entry_of(document)["inclusionProof"]
        proof["hashes"] = [b64(bytes(32)), *proof["hashes"][1:]]

    instance.log.leaves = instance.log.leaves[:3]
    instance.sign(PAYLOAD)
    return edit_bundle(instance.sign(PAYLOAD), edit)


def with_another_root(instance: Instance, other: Instance) -> bytes:
    """A proof of a tree that the attacker made; the checkpoint is the log's."""

    def edit(document):
        theirs["inclusionProof"]["checkpoint"] = entry_of(document)["inclusionProof"]["checkpoint"]
        theirs["logId"] = entry_of(document)["logId"]
        theirs["inclusionPromise"] = entry_of(document)["inclusionPromise"]
        document["verificationMaterial"]["tlogEntries"] = [theirs]

    bundle = instance.sign(PAYLOAD)
    theirs = other.log.add(base64.b64decode(entry_of(json.loads(bundle))["canonicalizedBody"]), SIGNED)
    return edit_bundle(bundle, edit)


def with_a_checkpoint_by_another_key(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, checkpoint_key=new_key())


def without_checkpoint(instance: Instance, other: Instance) -> bytes:
    return edit_bundle(instance.sign(PAYLOAD), lambda d: entry_of(d)["inclusionProof"].pop("checkpoint"))


def with_another_tree_size(instance: Instance, other: Instance) -> bytes:
    """sigstore alone would not see it: the path from the first leaf is as long in both trees."""
    instance.log.leaves = []
    bundle = instance.sign(PAYLOAD)
    instance.log.leaves += [b"two more", b"entries"]
    entry = instance.log.prove(0, SIGNED)
    entry["inclusionProof"]["treeSize"] = "4"
    return edit_bundle(bundle, lambda d: d["verificationMaterial"].update(tlogEntries=[entry]))


def with_a_promise_by_another_key(instance: Instance, other: Instance) -> bytes:
    promise = json.loads(other.sign(PAYLOAD))["verificationMaterial"]["tlogEntries"][0]["inclusionPromise"]
    return edit_bundle(instance.sign(PAYLOAD), lambda d: entry_of(d).update(inclusionPromise=promise))


def with_a_time_that_was_not_promised(instance: Instance, other: Instance) -> bytes:
    """A stolen key of a certificate that is long past; the log is asked now, and the time is written over."""
    at = SIGNED + timedelta(days=30)
    time = str(int(SIGNED.timestamp()))
    return edit_bundle(instance.sign(PAYLOAD, at=at), lambda d: entry_of(d).update(integratedTime=time))


def without_any_time(instance: Instance, other: Instance) -> bytes:
    return edit_bundle(instance.sign(PAYLOAD), lambda d: entry_of(d).pop("inclusionPromise"))


def logged_after_the_certificate(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, at=SIGNED + timedelta(minutes=10))


def logged_before_the_certificate(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, at=SIGNED - timedelta(minutes=2))


def with_two_signatures(instance: Instance, other: Instance) -> bytes:
    theirs = json.loads(instance.sign(PAYLOAD, STRANGER))["dsseEnvelope"]["signatures"]
    return edit_bundle(
        instance.sign(PAYLOAD), lambda d: d["dsseEnvelope"].update(signatures=d["dsseEnvelope"]["signatures"] + theirs)
    )


def with_two_entries(instance: Instance, other: Instance) -> bytes:
    return edit_bundle(
        instance.sign(PAYLOAD), lambda d: d["verificationMaterial"].update(tlogEntries=[entry_of(d)] * 2)
    )


def of_version_0_1(instance: Instance, other: Instance) -> bytes:
    return in_older_form(instance, "0.1")


def of_version_0_2(instance: Instance, other: Instance) -> bytes:
    return in_older_form(instance, "0.2")


def in_older_form(instance: Instance, version: str) -> bytes:
    def edit(document):
        document["mediaType"] = f"application/vnd.dev.sigstore.bundle+json;version={version}"
        material = document["verificationMaterial"]
        material["x509CertificateChain"] = {"certificates": [material.pop("certificate")]}

    return edit_bundle(instance.sign(PAYLOAD), edit)


def of_another_payload_type(instance: Instance, other: Instance) -> bytes:
    return instance.sign(PAYLOAD, payload_type="application/json")


def of_a_file_in_the_place_of_an_envelope(instance: Instance, other: Instance) -> bytes:
    def edit(document):
        document["messageSignature"] = {"signature": document.pop("dsseEnvelope")["signatures"][0]["sig"]}

    return edit_bundle(instance.sign(PAYLOAD), edit)


def with_an_unknown_key(instance: Instance, other: Instance) -> bytes:
    return edit_bundle(instance.sign(PAYLOAD), lambda d: d.update(note="trust me"))


def in_another_spelling(instance: Instance, other: Instance) -> bytes:
    return json.dumps(json.loads(instance.sign(PAYLOAD)), indent=1).encode()


def with_a_number_in_another_spelling(instance: Instance, other: Instance) -> bytes:
    return edit_bundle(instance.sign(PAYLOAD), lambda d: entry_of(d).update(logIndex=f" {entry_of(d)['logIndex']}"))


def signed_by_a_key(instance: Instance, other: Instance) -> bytes:
    return seal_statement(STATEMENT, GATE)


ATTACKS: dict[str, tuple[Callable[[Instance, Instance], bytes], str, str]] = {
    "keyless, by another identity": (of_another_identity, "signature", "not by an identity that is accepted"),
    "keyless, by another issuer": (of_another_issuer, "signature", "not by an identity that is accepted"),
    "keyless, by an identity that begins alike": (of_an_identity_that_begins_alike, "signature", "not by an identity"),
    "a certificate with two names": (with_two_names, "signature", "one signer"),
    "a certificate with two issuers": (with_two_issuers, "signature", "two issuers"),
    "a certificate without an issuer": (without_issuer, "signature", "names no signer"),
    "a certificate of another CA": (of_another_ca, "signature", "certificate chain"),
    "another instance altogether": (of_another_instance, "signature", "certificate chain"),
    "a certificate that no log knows": (without_certificate_log, "signature", "SCT"),
    "a certificate that another log knows": (in_another_certificate_log, "signature", "SCT"),
    "bytes that are no certificate": (with_a_certificate_that_is_not_a_certificate, "signature", "cannot be read"),
    "the gate's certificate around other bytes": (with_the_gates_certificate, "signature", "invalid signature"),
    "a bundle's payload edited": (with_another_payload, "signature", "invalid signature"),
    "a signature of other bytes": (with_another_signature, "signature", "invalid signature"),
    "the log's entry about another envelope": (with_another_envelopes_entry, "signature", "payload hash"),
    "the log's entry about another signature": (with_the_same_payloads_other_entry, "signature", "signatures"),
    "an entry that is not in the log": (not_in_the_log, "signature", "invalid log entry"),
    "an entry in a tree of one's own": (with_another_root, "signature", "invalid log entry"),
    "a checkpoint by another key": (with_a_checkpoint_by_another_key, "signature", "checkpoint"),
    "no checkpoint": (without_checkpoint, "envelope", "checkpoint"),
    "a tree of another size than the log's": (with_another_tree_size, "signature", "another size"),
    "a promise by another log": (with_a_promise_by_another_key, "signature", "inclusion promise"),
    "a time that the log did not write": (with_a_time_that_was_not_promised, "signature", "inclusion promise"),
    "no time that anybody signed": (without_any_time, "signature", "timestamp"),
    "logged after the certificate had ended": (logged_after_the_certificate, "signature", "certificate"),
    "logged before the certificate was given": (logged_before_the_certificate, "signature", "certificate"),
    "a bundle with two signatures": (with_two_signatures, "envelope", "2 signatures"),
    "a bundle with two entries of a log": (with_two_entries, "envelope", "2 entries"),
    "a bundle of version 0.1": (of_version_0_1, "envelope", "mediaType"),
    "a bundle of version 0.2": (of_version_0_2, "envelope", "mediaType"),
    "a bundle of another payload type": (of_another_payload_type, "envelope", "payloadType"),
    "a bundle about a file": (of_a_file_in_the_place_of_an_envelope, "envelope", "dsseEnvelope"),
    "unknown key in the bundle": (with_an_unknown_key, "envelope", "note"),
    "another spelling of the bundle": (in_another_spelling, "envelope", "another order, spacing or spelling"),
    "another spelling of a number in the bundle": (with_a_number_in_another_spelling, "envelope", "logIndex"),
    "signed by a key where only an identity is accepted": (signed_by_a_key, "signature", "none of the keys"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_bundle_that_is_not_the_gates_is_refused_unread(instance: Instance, other: Instance, name: str) -> None:
    attack, claim, words = ATTACKS[name]
    claims = claims_of(attack(instance, other), instance.accept())
    assert [found for found, (holds, _) in claims.items() if not holds] == [claim]
    assert words in claims[claim][1]


def test_signed_keyless_where_only_keys_are_accepted(instance: Instance) -> None:
    claims = claims_of(instance.sign(PAYLOAD), public_key_of(GATE))
    assert claims["signature"] == (
        False,
        f"it is signed keyless by {CI}, and not by an identity that is accepted",
    )


def test_what_is_no_statement_is_refused_although_it_is_signed(instance: Instance) -> None:
    for payload in (b"", b"null", PAYLOAD + b" "):
        statement, claims = open_clearance(instance.sign(payload), (instance.accept(),))
        assert statement is None
        assert [claim.name for claim in claims if not claim.holds] == ["statement"]


@pytest.fixture(scope="module")
def bundle(instance: Instance) -> bytes:
    return instance.sign(PAYLOAD)


@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_any_changed_byte_is_refused(instance: Instance, bundle: bytes, place: float, byte: int) -> None:
    """Save one word that nobody signs: how the log is called beside its signature, which its key's hash tells."""
    at = int(place * len(bundle))
    word = bundle.index(rb"\u2014 ") + len(rb"\u2014 ")
    changed = bundle[:at] + bytes([byte]) + bundle[at + 1 :]
    if changed == bundle or word <= at < word + len("log.example.com"):
        return
    assert not all(holds for holds, _ in claims_of(changed, instance.accept()).values())


def test_every_attack_stands_on_the_page() -> None:
    assert ATTACKS.keys() <= rows_of(PAGE)


# --- The form -----------------------------------------------------------------------------------------------------


def test_a_bundle_is_written_in_one_way_and_nothing_is_null(instance: Instance) -> None:
    data = instance.sign(PAYLOAD)
    assert write_canonical(read_bundle(data)) == data
    assert write_bundle(json.dumps(json.loads(data), indent=2)) == data
    assert b"null" not in data


def test_what_sigstore_writes_otherwise_is_no_clearance() -> None:
    with pytest.raises(ClearanceRefused, match="another form"):
        write_bundle('{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}')


@given(text=st.text(max_size=400))
def test_an_issuer_is_read_as_it_is_written(text: str) -> None:
    assert len(text.encode()) > 255 or _read_utf8(utf8_string(text)) == text


@pytest.mark.parametrize(
    "value",
    [b"", b"\x0c", b"\x0c\x02a", b"\x0c\x01ab", b"\x16\x01a", b"\x0c\x81\x01a", b"\x0c\x82\x00\x01a", b"\x0c\x80"],
)
def test_an_issuer_in_another_encoding_is_none(value: bytes) -> None:
    with pytest.raises(ValueError, match="UTF8String"):
        _read_utf8(value)


# --- Signing ------------------------------------------------------------------------------------------------------


def test_sigstores_own_client_signs_and_what_it_signed_verifies(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, identity_token())
    instance.asked.clear()
    with instance.serve():
        data = seal(STATEMENT, KeylessSigner(trust=instance.trust_config))
    assert instance.asked == ["/api/v2/signingCert", "/api/v1/log/entries"]
    assert claims_of(data, instance.accept())["signature"][0]
    assert read_signatory(read_bundle(data)) == CI
    assert isinstance(read_sealed(data), Bundle)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="timestamps of the tests are made by openssl")
def test_timestamps_of_the_instance_are_kept_and_verified(other: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public instance has an authority for them."""
    other.clock_key = new_key()
    monkeypatch.setenv(TOKEN, identity_token())
    with other.serve():
        data = seal(STATEMENT, KeylessSigner(trust=other.trust_config))
    assert "/timestamp" in other.asked
    stamps = json.loads(data)["verificationMaterial"]["timestampVerificationData"]["rfc3161Timestamps"]
    assert len(stamps) == 1
    assert claims_of(data, other.accept())["signature"][0]
    other.clock_key = None
    assert "Timestamp Authorities" in claims_of(data, other.accept())["signature"][1]


def test_the_token_is_read_anew_from_its_file_which_comes_before_the_variable(tmp_path: Path) -> None:
    path, signer = tmp_path / "token", KeylessSigner(trust=PublicGood(), token_file=tmp_path / "token")
    for issuer in ("https://one.example.com", "https://two.example.com"):
        path.write_text(identity_token(Signatory(identity="x", issuer=issuer)) + "\n")
        assert find_token(signer, {TOKEN: identity_token()}).issuer == issuer


def test_github_gives_a_job_its_token(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = KeylessSigner(trust=PublicGood())
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for name in ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(KeylessError, match="may have no identity token"):
        find_token(signer, {})
    instance.asked.clear()
    with instance.serve():
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", REQUEST_TOKEN)
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{instance.url}/token?version=1")
        assert find_token(signer, {}).issuer == CI.issuer
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "another")
        with pytest.raises(SigstoreUnreachable, match="gave no identity token"):
            find_token(signer, {})
    assert "audience=sigstore" in instance.asked[0]


def bad_token(**claims: Any) -> dict[str, str]:
    return {TOKEN: identity_token(**claims)}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "there is no identity token"),
        ({TOKEN: " \n"}, "there is no identity token"),
        ({TOKEN: "secret.secret.secret"}, "cannot be used"),
        (bad_token(exp=1), "cannot be used"),
        (bad_token(aud="https://mlflow.example.com"), "cannot be used"),
    ],
    ids=["none", "blank", "garbled", "expired", "audience"],
)
def test_a_token_that_cannot_be_used_is_said_without_it(environment: dict[str, str], words: str) -> None:
    with pytest.raises(KeylessError) as caught:
        find_token(KeylessSigner(trust=PublicGood()), environment)
    assert words in caught.value.message
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"


def test_a_token_file_that_is_not_there_or_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, words in (("gone", "no such file"), ("bytes", "holds no identity token"), (".", "is a directory")):
        with pytest.raises(KeylessError, match=words):
            find_token(KeylessSigner(trust=PublicGood(), token_file=tmp_path / name), {})


def test_services_that_do_not_answer_or_refuse_are_the_gates_trouble_and_no_token_is_told(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = identity_token()
    monkeypatch.setenv(TOKEN, token)
    instance.url = "http://127.0.0.1:9"
    with pytest.raises(SigstoreUnreachable) as caught:
        seal(STATEMENT, KeylessSigner(trust=instance.trust_config))
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE
    monkeypatch.setattr(Instance, "answer_rekor", lambda *_: {"says": token})
    with instance.serve(), pytest.raises(SigstoreUnreachable) as caught:
        seal(STATEMENT, KeylessSigner(trust=instance.trust_config))
    assert token not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    "url", ["http://fulcio.example.com", "HTTP://127.0.0.1.example.com", "ftp://127.0.0.1", "https:"]
)
def test_a_token_is_sent_without_tls_to_this_machine_only(
    instance: Instance, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "url", url)
    signer = KeylessSigner(trust=instance.trust_config)
    for ask in (lambda: find_token(signer, {TOKEN: identity_token()}), lambda: seal(STATEMENT, signer)):
        with pytest.raises(KeylessError, match="without TLS") as caught:
            ask()
        assert caught.value.exit_code is ExitCode.USAGE
    monkeypatch.setattr(instance, "url", "https://fulcio.example.com")
    find_token(KeylessSigner(trust=instance.trust_config), {TOKEN: identity_token()})


def test_a_trust_config_that_cannot_sign_is_said_before_anything_runs(instance: Instance, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text in ("{}", json.dumps(instance.trusted_root())):
        path.write_text(text)
        with pytest.raises(KeylessError, match=r"config\.json"):
            find_token(KeylessSigner(trust=TrustConfigFile(path=path)), {TOKEN: identity_token()})


def test_services_that_never_answer_are_not_waited_for_for_ever(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setenv(TOKEN, identity_token())
    monkeypatch.setattr("validator.attest.keyless.DEADLINE_S", 0.2)
    monkeypatch.setattr(Instance, "answer_fulcio", lambda *_: {"late": released.wait()})
    with instance.serve():
        with pytest.raises(SigstoreUnreachable, match=r"no answer within 0\.2 s"):
            seal(STATEMENT, KeylessSigner(trust=instance.trust_config))
        released.set()


# --- Trust --------------------------------------------------------------------------------------------------------


def test_a_trust_root_that_cannot_be_used_is_said(instance: Instance, tmp_path: Path) -> None:
    path = tmp_path / "root.json"
    bundle = instance.sign(PAYLOAD)
    for text in (None, "", "{}", json.dumps(instance.trusted_root() | {"tlogs": []})):
        if text is not None:
            path.write_text(text)
        for trust in (TrustRootFile(path=path), TrustConfigFile(path=path)):
            with pytest.raises(KeylessError, match=r"root\.json"):
                open_clearance(bundle, (TrustedSignatory(signatory=CI, trust=trust),))


def test_offline_the_public_instances_keys_are_those_that_sigstore_ships(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has certified nobody of these tests, whatever lies where sigstore keeps what it refreshed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    from sigstore.models import ClientTrustConfig

    ClientTrustConfig.production(offline=True)
    (kept,) = (tmp_path / "cache").rglob("trusted_root.json")
    kept.write_text(json.dumps(instance.trusted_root()))
    believed = TrustedSignatory(signatory=CI, trust=TrustRootFile(path=kept))
    assert claims_of(instance.sign(PAYLOAD), believed)["signature"][0]
    public = TrustedSignatory(signatory=CI, trust=PublicGood(offline=True))
    claims = claims_of(instance.sign(PAYLOAD), public)
    assert not claims["signature"][0]
    assert "certificate chain" in claims["signature"][1]


# --- Without the extra --------------------------------------------------------------------------------------------

BLOCKED = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sigstore":
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Blocker())
from validator.boundary import _load_app, run

print([int(run(_load_app, line, debug=False)) for line in json.loads(sys.argv[1])], file=sys.stderr)
"""


def test_without_the_extra_keys_work_and_what_needs_it_says_what_to_install(world: World, instance: Instance) -> None:
    now = datetime.now(UTC)
    world.bind(created=write_time(now), expires=write_time(now + timedelta(hours=1)))
    (world.folder / "gate.pub").write_bytes(public_key_of(GATE).pem)
    (world.folder / "keyless.json").write_bytes(instance.sign(PAYLOAD))
    verify, by_key = ["verify", str(world.source), "--clearance"], ["--key", "gate.pub"]
    identity = ["--identity", "x", "--issuer", "y"]
    lines = {
        (*verify, str(world.path), *by_key): ExitCode.PASS,
        (*verify, "keyless.json", *by_key): ExitCode.REFUSED,
        ("check", "models:/net/1", "--sign-keyless"): ExitCode.USAGE,
        (*verify, str(world.path), *identity): ExitCode.USAGE,
        ("promote", "models:/net/1", "--alias", "champion", *identity): ExitCode.USAGE,
        ("rollback", "models:/net", "--alias", "champion", *identity): ExitCode.USAGE,
    }
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps(list(lines))],
        cwd=world.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == str([int(code) for code in lines.values()])
    assert f"it is signed keyless by {CI}" in done.stdout
    assert done.stderr.count("error[keyless]: keyless signatures need sigstore") == 4
    assert done.stderr.count("pip install 'mlflow-export-validator[keyless]'") == 4


# --- The commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--identity", "x"), "only together with its issuer"),
        (("--identity", "x", "--issuer", ""), "only together with its issuer"),
        (("--issuer", "y"), "only together with its issuer"),
        (("--identity", "", "--issuer", "y"), "only together with its issuer"),
        (("--identity", "x" * 1_001, "--issuer", "y"), "at most 1,000 characters"),
        (("--offline",), "are for --identity"),
        (("--trust-root", "root.json"), "are for --identity"),
        ((), "no key is given"),
    ],
)
def test_an_identity_needs_its_issuer(
    options: tuple[str, ...], words: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ("verify", str(world.source), "--clearance", str(world.path)),
        ("promote", "models:/net/1", "--alias", "champion"),
    ):
        assert run(_load_app, [*command, *options], debug=False) is ExitCode.USAGE
        assert words in capsys.readouterr().err


def test_the_command_verifies_by_identity_and_trust_root(
    world: World, instance: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(UTC)
    world.bind(created=write_time(now), expires=write_time(now + timedelta(hours=1)))
    world.put(instance.sign(write_canonical(world.statement)))
    line = ["verify", str(world.source), "--clearance", str(world.path), "--trust-root", str(instance.trust.path)]
    for identity, code in ((CI.identity, ExitCode.PASS), (CI.identity[:-1], ExitCode.REFUSED)):
        assert run(_load_app, [*line, "--identity", identity, "--issuer", CI.issuer], debug=False) is code
        assert f"identity {CI.identity} of {CI.issuer}" in capsys.readouterr().out or code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--trust-config", "c.json"), "--trust-config is for --sign-keyless"),
        (("--sign-keyless", "--sign-key", "gate.key"), "by a key or keyless, not both"),
        (("--sign-keyless",), "there is no identity token"),
    ],
)
def test_a_check_that_cannot_sign_keyless_ends_before_it_begins(
    options: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["check", "models:/net/1", "--tracking-uri", f"sqlite:///{tmp_path}/m.db", "--output", str(tmp_path / "out")]
    assert run(_load_app, [*line, *options], debug=False) is ExitCode.USAGE
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
