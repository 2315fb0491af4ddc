"""A registry with a cleared version, and what an attacker may do to it."""

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ed25519

from tests.fakes import FakeRegistry
from validator.attest.canonical import write_canonical
from validator.attest.envelope import PAYLOAD_TYPE, encode_for_signing, seal_statement
from validator.attest.keys import Ed25519Signer, PublicKey, Signer, public_key_of, sign
from validator.attest.statement import (
    BackendBinding,
    GoldenBinding,
    ModelBinding,
    OnnxBinding,
    PolicyBinding,
    Predicate,
    ReusedBinding,
    Statement,
    Summary,
    SummaryPolicy,
    SummaryVerifier,
    ToolBinding,
    WaiverBinding,
    WarningBinding,
    make_statement,
    to_digest_set,
)
from validator.manifest import canonical_json, measure_folder
from validator.registry.interface import Annotation, resolve_text
from validator.subject import OnnxOrigin, StagedModel
from validator.verify import Verification, VerifyRequest, verify

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
CREATED = "2026-11-30T15:02:40Z"
EXPIRES = "2026-12-07T15:02:40Z"
GATE = Ed25519Signer(key=ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
"""The gate's key, the same in every run."""
STRANGER = Ed25519Signer(key=ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)))
CHECKS = ("onnxruntime-cpu/values", "onnxruntime-cpu/worker", "power")

Edit = Callable[[dict[str, Any]], None]


def digest(character: str) -> str:
    return "sha256:" + character * 64


def predicate(**changes: Any) -> Predicate:
    """A predicate with every kind of content."""
    known: dict[str, Any] = {
        "check_id": "0123456789abcdef",
        "model": ModelBinding(
            registry_uri="https://mlflow.example.com",
            name="alexnet",
            version=3,
            creation_timestamp_ms=1_764_321_240_000,
            digest=digest("a"),
            weights_digest=digest("b"),
        ),
        "onnx": OnnxBinding(digest=digest("c"), origin=OnnxOrigin.ARTIFACT.value, source="model.onnx"),
        "golden": GoldenBinding(name="alexnet", digest=digest("d")),
        "policy": PolicyBinding(origin="policy.toml", digest=digest("e")),
        "tool": ToolBinding(name="validator", version="0.1.0"),
        "backends": (
            BackendBinding(name="reference", fingerprint={"torch": "2.14.1"}),
            BackendBinding(name="onnxruntime-cpu", fingerprint={"onnxruntime": "1.31.1", "cpu": "x86_64"}),
        ),
        "reused": (ReusedBinding(what="reference", check_id="fedcba9876543210", created="2026-11-29T08:00:00Z"),),
        "required": CHECKS,
        "reported": CHECKS,
        "verdict": "pass",
        "warnings": (WarningBinding(code="batch", message="batch 32 is deployed and never ran: \u00fc"),),
        "waivers": (
            WaiverBinding(
                check="error-ratio",
                backend="onnxruntime-cpu",
                output="logits",
                owner="ml-platform",
                reason="known",
                ticket=None,
                expires="2026-12-31",
            ),
        ),
        "sandbox": "none",
        "verdict_sha256": "f" * 64,
        "nonce": "0" * 32,
        "created": CREATED,
        "expires": EXPIRES,
    }
    known |= changes
    known.setdefault(
        "summary",
        Summary(
            verifier=SummaryVerifier(),
            time_verified=known["created"],
            resource_uri=known["model"].uri,
            policy=SummaryPolicy(digest=to_digest_set(known["policy"].digest)),
            verification_result="PASSED",
        ),
    )
    return Predicate(**known)


def seal_payload(
    payload: bytes, signer: Signer = GATE, *, key_id: str | None = None, payload_type: str = PAYLOAD_TYPE
) -> bytes:
    """Sign any bytes as an envelope of any type: what somebody with a key can do without our program."""
    signature = {
        "keyid": key_id or public_key_of(signer).key_id,
        "sig": base64.b64encode(sign(signer, encode_for_signing(payload, payload_type))).decode(),
    }
    return canonical_json(
        {"payload": base64.b64encode(payload).decode(), "payloadType": payload_type, "signatures": [signature]}
    ).encode()


def edit_payload(statement: Statement, edit: Edit) -> bytes:
    """Return the payload after an edit, in canonical form."""
    document = json.loads(write_canonical(statement))
    edit(document)
    return canonical_json(document).encode()


def edit_envelope(data: bytes, edit: Edit) -> bytes:
    """Return the envelope after an edit, in canonical form."""
    document = json.loads(data)
    edit(document)
    return canonical_json(document).encode()


@dataclass
class World:
    """`models:/net/1` is cleared, its clearance lies in a file and in the run of its check."""

    folder: Path
    files: Mapping[str, bytes] = field(
        default_factory=lambda: {
            "MLmodel": b"flavors: {}\n",
            "data/model.pt2": b"weights",
            "extra/model.onnx": b"graph",
        }
    )
    registry: FakeRegistry = field(default_factory=FakeRegistry)
    statement: Statement = field(init=False)

    def __post_init__(self) -> None:
        self.source = self.write("source", self.files)
        self.registry.add_version("net", self.source)
        self.statement = make_statement(self.predicate())
        self.put(seal_statement(self.statement, GATE))

    @property
    def path(self) -> Path:
        return self.folder / "report" / "clearance.json"

    def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write a model folder."""
        for path, data in files.items():
            (self.folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name / path).write_bytes(data)
        return self.folder / name

    def predicate(self, uri: str = "models:/net/1", **changes: Any) -> Predicate:
        """Say of a version what an honest check would say."""
        subject = resolve_text(self.registry, uri)
        manifest = measure_folder(Path(subject.download_uri))
        staged = StagedModel(subject=subject, folder=Path(subject.download_uri), manifest=manifest)
        model = ModelBinding(
            registry_uri=subject.registry_uri,
            name=str(subject.name),
            version=int(str(subject.version)),
            creation_timestamp_ms=int(str(subject.creation_timestamp_ms)),
            digest=manifest.digest,
            weights_digest=staged.weights_digest,
        )
        onnx = OnnxBinding(
            digest=measure_folder(self.source / "extra").digest,
            origin=OnnxOrigin.ARTIFACT.value,
            source="extra/model.onnx",
        )
        return predicate(**({"model": model, "onnx": onnx} | changes))

    def put(self, data: bytes) -> None:
        """Write the clearance, and annotate the version with it."""
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_bytes(data)
        self.registry.annotate(
            Annotation(
                subject=resolve_text(self.registry, "models:/net/1"),
                check_id="0123456789abcdef",
                verdict="pass",
                run_name="net v1 pass",
                description_block="",
                artifacts={"clearance.json": self.path},
            )
        )

    def edit(self, edit: Edit) -> None:
        """Sign an edited statement with the gate's own key: only what is said in it can be refused."""
        self.put(seal_payload(edit_payload(self.statement, edit)))

    def bind(self, **changes: Any) -> None:
        """Sign a statement with other content."""
        self.statement = make_statement(self.predicate(**changes))
        self.put(seal_statement(self.statement, GATE))

    def copy_as(self, name: str) -> int:
        """Register the same bytes under another name."""
        return self.registry.add_version(name, Path(shutil.copytree(self.source, self.folder / f"copy-{name}")))

    def verify(
        self,
        uri: str = "models:/net/1",
        *,
        keys: tuple[PublicKey, ...] = (public_key_of(GATE),),
        now: datetime = NOW,
        from_run: bool = False,
        **options: Any,
    ) -> Verification:
        registry = self.registry if ":/" in uri else None
        request = VerifyRequest(uri=uri, keys=keys, clearance=None if from_run else self.path, **options)
        return verify(request, registry, now)


def refused(verification: Verification) -> list[str]:
    """Name what does not hold."""
    assert not verification.holds
    return [claim.name for claim in verification.claims if not claim.holds]


def hours(number: int) -> timedelta:
    return timedelta(hours=number)
