"""A sigstore instance of the tests: a CA, a log of certificates and a log of signatures, each with a key of its own.

It makes what a real one makes, and whatever an attacker might make. `serve` lets sigstore's own client sign with it
over HTTP.
"""

import base64
import hashlib
import json
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from validator.attest.bundle import ISSUER_EXTENSION, OLD_ISSUER_EXTENSION, Signatory
from validator.attest.envelope import PAYLOAD_TYPE, encode_for_signing
from validator.attest.keyless import TrustConfigFile, TrustedSignatory, TrustRootFile
from validator.manifest import canonical_json

SIGNED = datetime(2026, 11, 30, 15, 3, 0, tzinfo=UTC)
"""When bundles of the tests were signed: soon after `world.CREATED`."""
CI = Signatory(
    identity="https://github.com/team/model/.github/workflows/check.yml@refs/heads/main",
    issuer="https://token.actions.githubusercontent.com",
)
REQUEST_TOKEN = "what a job asks for identity tokens with"
WORKFLOW_CLAIM = "workflow"
"""Of a test's token: what the CA writes into the certificate, as Fulcio takes it from GitHub's claims."""

CLOCK_CONFIGURATION = """
[tsa]
default_tsa = clock
[clock]
serial = serial
signer_cert = clock.pem
signer_key = key.pem
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
ess_cert_id_alg = sha256
"""
EPOCH = "2020-01-01T00:00:00Z"
_SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(der(key)).digest()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def utf8_string(text: str) -> bytes:
    data = text.encode()
    return b"\x0c" + (bytes([len(data)]) if len(data) < 0x80 else b"\x81" + bytes([len(data)])) + data


@dataclass
class Log:
    """A log of signatures, of Rekor's first kind."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    leaves: list[bytes] = field(default_factory=lambda: [b"somebody's", b"entries", b"before"])

    def add(self, body: bytes, at: datetime, *, checkpoint_key: ec.EllipticCurvePrivateKey | None = None) -> dict:
        """Log a body and return the entry, as a bundle has it."""
        self.leaves.append(body)
        return self.prove(len(self.leaves) - 1, at, checkpoint_key=checkpoint_key)

    def prove(self, index: int, at: datetime, *, checkpoint_key: ec.EllipticCurvePrivateKey | None = None) -> dict:
        """Return an entry with a proof that it is in the log as it is now."""
        body, size = self.leaves[index], len(self.leaves)
        root = subtree_hash(self.leaves)
        note = f"log.example.com - 1\n{size}\n{b64(root)}\n"
        signature = key_id(self.key)[:4] + sign(checkpoint_key or self.key, note.encode())
        return {
            "canonicalizedBody": b64(body),
            "inclusionPromise": {"signedEntryTimestamp": b64(self.promise(body, index, at))},
            "inclusionProof": {
                "checkpoint": {"envelope": f"{note}\n\u2014 log.example.com {b64(signature)}\n"},
                "hashes": [b64(each) for each in audit_path(index, self.leaves)],
                "logIndex": str(index),
                "rootHash": b64(root),
                "treeSize": str(size),
            },
            "integratedTime": str(int(at.timestamp())),
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "logId": {"keyId": b64(key_id(self.key))},
            "logIndex": str(index),
        }

    def promise(self, body: bytes, index: int, at: datetime) -> bytes:
        entry = {
            "body": b64(body),
            "integratedTime": int(at.timestamp()),
            "logID": key_id(self.key).hex(),
            "logIndex": index,
        }
        return sign(self.key, canonical_json(entry).encode())


def leaf_hash(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\0" + leaf).digest()


def split_of(leaves: list[bytes]) -> int:
    """The largest power of two below their number: RFC 6962, 2.1."""
    return 1 << (len(leaves) - 1).bit_length() - 1


def subtree_hash(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaf_hash(leaves[0])
    k = split_of(leaves)
    return hashlib.sha256(b"\1" + subtree_hash(leaves[:k]) + subtree_hash(leaves[k:])).digest()


def audit_path(index: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = split_of(leaves)
    if index < k:
        return [*audit_path(index, leaves[:k]), subtree_hash(leaves[k:])]
    return [*audit_path(index - k, leaves[k:]), subtree_hash(leaves[:k])]


@dataclass
class Instance:
    """What an instance holds."""

    folder: Path
    ca_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log: Log = field(default_factory=Log)
    clock_key: ec.EllipticCurvePrivateKey | None = None
    """Of a timestamp authority, if the instance has one; needs the program `openssl`."""
    url: str = "http://127.0.0.1:9"
    asked: list[str] = field(default_factory=list)
    """Paths that clients asked for."""

    def __post_init__(self) -> None:
        self.ca = self._make_ca()

    # --- Trust

    @property
    def trust(self) -> TrustRootFile:
        path = self.folder / "trusted_root.json"
        path.write_text(json.dumps(self.trusted_root()), encoding="utf-8")
        return TrustRootFile(path=path)

    @property
    def trust_config(self) -> TrustConfigFile:
        path = self.folder / "trust_config.json"
        service = {"url": self.url, "majorApiVersion": 1, "operator": "tests", "validFor": {"start": EPOCH}}
        config = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service],
            "rekorTlogUrls": [service],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaUrls": [] if self.clock_key is None else [service | {"url": f"{self.url}/timestamp"}],
            "tsaConfig": {"selector": "ANY"},
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": self.trusted_root(),
            "signingConfig": config,
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return TrustConfigFile(path=path)

    def accept(self, signatory: Signatory = CI) -> TrustedSignatory:
        return TrustedSignatory(signatory=signatory, trust=self.trust)

    def trusted_root(self) -> dict[str, Any]:
        chain = {"certificates": [{"rawBytes": b64(self.ca.public_bytes(Encoding.DER))}]}
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self._describe_log(self.log.key)],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "tests", "commonName": "tests"},
                    "uri": self.url,
                    "certChain": chain,
                    "validFor": {"start": EPOCH},
                }
            ],
            "ctlogs": [self._describe_log(self.certificate_log)],
            "timestampAuthorities": [] if self.clock_key is None else [self._describe_clock(self.clock_key)],
        }

    def _describe_clock(self, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        chain = [self.certify_clock(key), self.ca]
        return {
            "subject": {"organization": "tests", "commonName": "clock"},
            "certChain": {"certificates": [{"rawBytes": b64(each.public_bytes(Encoding.DER))} for each in chain]},
            "validFor": {"start": EPOCH},
        }

    def _describe_log(self, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        return {
            "baseUrl": self.url,
            "hashAlgorithm": "SHA2_256",
            "publicKey": {
                "rawBytes": b64(der(key)),
                "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                "validFor": {"start": EPOCH},
            },
            "logId": {"keyId": b64(key_id(key))},
        }

    # --- Certificates

    def _make_ca(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.ca_key.public_key())
            .serial_number(1)
            .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
            .not_valid_after(datetime(2040, 1, 1, tzinfo=UTC))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage(key_cert_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.ca_key.public_key()), critical=False)
            .sign(self.ca_key, hashes.SHA256())
        )

    def certify(
        self,
        key: ec.EllipticCurvePublicKey,
        signatory: Signatory = CI,
        *,
        start: datetime = SIGNED - timedelta(minutes=1),
        names: list[x509.GeneralName] | None = None,
        old_issuer: str | None = None,
        has_issuer: bool = True,
        is_logged: bool = True,
    ) -> x509.Certificate:
        """Give a certificate of ten minutes, as Fulcio does."""
        name = (
            x509.UniformResourceIdentifier(signatory.identity)
            if "://" in signatory.identity
            else x509.RFC822Name(signatory.identity)
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.ca.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(minutes=10))
            .add_extension(key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.ca_key.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName(names or [name]), critical=True)
            .add_extension(
                x509.UnrecognizedExtension(OLD_ISSUER_EXTENSION, (old_issuer or signatory.issuer).encode()),
                critical=False,
            )
        )
        if has_issuer:
            value = utf8_string(signatory.issuer)
            builder = builder.add_extension(x509.UnrecognizedExtension(ISSUER_EXTENSION, value), critical=False)
        if not is_logged:
            return builder.sign(self.ca_key, hashes.SHA256())
        logged = self._log_certificate(builder.sign(self.ca_key, hashes.SHA256()), start)
        return builder.add_extension(x509.UnrecognizedExtension(_SCT_LIST, logged), critical=False).sign(
            self.ca_key, hashes.SHA256()
        )

    def certify_clock(self, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "clock")]))
            .issuer_name(self.ca.subject)
            .public_key(key.public_key())
            .serial_number(2)
            .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
            .not_valid_after(datetime(2040, 1, 1, tzinfo=UTC))
            .add_extension(key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.TIME_STAMPING]), critical=True)
            .sign(self.ca_key, hashes.SHA256())
        )

    def _log_certificate(self, precertificate: x509.Certificate, at: datetime) -> bytes:
        """Return the extension's value with one signed certificate timestamp: RFC 6962, 3.2 and 3.3."""
        time_ms = int(at.timestamp() * 1_000)
        body = precertificate.tbs_certificate_bytes
        entry = hashlib.sha256(der(self.ca_key)).digest() + len(body).to_bytes(3, "big") + body
        signed = struct.pack("!BBQH", 0, 0, time_ms, 1) + entry + struct.pack("!H", 0)
        signature = sign(self.certificate_log, signed)
        stamp = (
            struct.pack("!B32sQH", 0, key_id(self.certificate_log), time_ms, 0)
            + struct.pack("!BBH", 4, 3, len(signature))
            + signature
        )
        stamps = struct.pack("!H", len(stamp)) + stamp
        stamps = struct.pack("!H", len(stamps)) + stamps
        return b"\x04" + (bytes([len(stamps)]) if len(stamps) < 0x80 else b"\x81" + bytes([len(stamps)])) + stamps

    # --- Bundles

    def sign(
        self,
        payload: bytes,
        signatory: Signatory = CI,
        *,
        at: datetime = SIGNED,
        payload_type: str = PAYLOAD_TYPE,
        key: ec.EllipticCurvePrivateKey | None = None,
        checkpoint_key: ec.EllipticCurvePrivateKey | None = None,
        **certificate: Any,
    ) -> bytes:
        """Sign any bytes keyless: what a signer, or this instance in other hands, can do. In canonical form."""
        key = key or new_key()
        leaf = self.certify(key.public_key(), signatory, **certificate)
        signature = sign(key, encode_for_signing(payload, payload_type))
        entry = self.log.add(entry_body(payload, signature, leaf), at, checkpoint_key=checkpoint_key)
        return canonical_json(
            {
                "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
                "dsseEnvelope": {
                    "payload": b64(payload),
                    "payloadType": payload_type,
                    "signatures": [{"sig": b64(signature)}],
                },
                "verificationMaterial": {
                    "certificate": {"rawBytes": b64(leaf.public_bytes(Encoding.DER))},
                    "timestampVerificationData": {"rfc3161Timestamps": []},
                    "tlogEntries": [entry],
                },
            }
        ).encode()

    # --- Services

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Answer sigstore's client: `/api/v2/signingCert` as Fulcio, `/api/v1/log/entries` as Rekor."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer_fulcio(self, token: str, document: dict[str, Any]) -> dict[str, Any]:
        claims = jwt.decode(token, options={"verify_signature": False})
        request = x509.load_pem_x509_csr(base64.b64decode(document["certificateSigningRequest"]))
        signatory = Signatory(identity=claims[WORKFLOW_CLAIM], issuer=claims["iss"])
        leaf = self.certify(request.public_key(), signatory, start=datetime.now(UTC).replace(microsecond=0))
        chain = [each.public_bytes(Encoding.PEM).decode() for each in (leaf, self.ca)]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def answer_rekor(self, document: dict[str, Any]) -> dict[str, Any]:
        content = document["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        leaf = x509.load_pem_x509_certificate(base64.b64decode(content["verifiers"][0]))
        payload, signature = (
            base64.b64decode(text) for text in (envelope["payload"], envelope["signatures"][0]["sig"])
        )
        body = entry_body(payload, signature, leaf)
        entry = self.log.add(body, datetime.now(UTC))
        proof = entry["inclusionProof"]
        return {
            "0" * 64: {
                "body": entry["canonicalizedBody"],
                "integratedTime": int(entry["integratedTime"]),
                "logID": key_id(self.log.key).hex(),
                "logIndex": int(entry["logIndex"]),
                "verification": {
                    "inclusionProof": {
                        "checkpoint": proof["checkpoint"]["envelope"],
                        "hashes": [base64.b64decode(each).hex() for each in proof["hashes"]],
                        "logIndex": int(proof["logIndex"]),
                        "rootHash": base64.b64decode(proof["rootHash"]).hex(),
                        "treeSize": int(proof["treeSize"]),
                    },
                    "signedEntryTimestamp": entry["inclusionPromise"]["signedEntryTimestamp"],
                },
            }
        }

    def answer_clock(self, query: bytes) -> bytes:
        """Stamp the time: RFC 3161."""
        assert self.clock_key is not None
        folder = self.folder / "clock"
        folder.mkdir(exist_ok=True)
        private = self.clock_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "key.pem").write_bytes(private)
        (folder / "clock.pem").write_bytes(self.certify_clock(self.clock_key).public_bytes(Encoding.PEM))
        (folder / "query").write_bytes(query)
        (folder / "openssl.cnf").write_text(CLOCK_CONFIGURATION, encoding="ascii")
        subprocess.run(
            ["openssl", "ts", "-reply", "-config", "openssl.cnf", "-queryfile", "query", "-out", "answer"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        return (folder / "answer").read_bytes()


def entry_body(payload: bytes, signature: bytes, leaf: x509.Certificate) -> bytes:
    """What the log holds of an envelope: `dsse` 0.0.1."""
    envelope = {"payload": b64(payload), "payloadType": PAYLOAD_TYPE, "signatures": [{"sig": b64(signature)}]}
    return canonical_json(
        {
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": {
                    "algorithm": "sha256",
                    "value": hashlib.sha256(canonical_json(envelope).encode()).hexdigest(),
                },
                "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
                "signatures": [{"signature": b64(signature), "verifier": b64(leaf.public_bytes(Encoding.PEM))}],
            },
        }
    ).encode()


def key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def identity_token(signatory: Signatory = CI, **claims: Any) -> str:
    """A token as an issuer gives it; the CA of the tests believes every signature."""
    now = int(datetime.now(UTC).timestamp())
    known = {
        "iss": signatory.issuer,
        "sub": "repo:team/model:ref:refs/heads/main",
        "aud": "sigstore",
        "iat": now,
        "exp": now + 300,
        WORKFLOW_CLAIM: signatory.identity,
    }
    return jwt.encode(known | claims, "the issuer's key, which nobody looks at", algorithm="HS256")


def handler_of(instance: Instance) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            instance.asked.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/timestamp":
                self.reply(instance.answer_clock(body), "application/timestamp-reply")
                return
            document = json.loads(body)
            match self.path:
                case "/api/v2/signingCert":
                    answer = instance.answer_fulcio(self.headers["Authorization"].removeprefix("Bearer "), document)
                case "/api/v1/log/entries":
                    answer = instance.answer_rekor(document)
                case _:
                    self.send_error(404)
                    return
            self.reply(json.dumps(answer).encode(), "application/json")

        def do_GET(self) -> None:
            """As GitHub gives identity tokens to jobs."""
            instance.asked.append(self.path)
            if self.headers["Authorization"] != f"bearer {REQUEST_TOKEN}":
                self.send_error(403)
                return
            self.reply(json.dumps({"value": identity_token()}).encode(), "application/json", status=200)

        def reply(self, data: bytes, kind: str, *, status: int = 201) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
