"""Republishing: the bytes that were cleared become a version of a model that the gate alone fills.

What may not be changed lightly: what is uploaded is what was hashed, never downloaded anew in between; and what arrived
is downloaded and verified again before an alias points to it, because a version's tags are not evidence.
"""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from validator.errors import ClearanceRefused, PromotionRefused, UsageError
from validator.promotion import describe_origin
from validator.registry.description import wrap_block
from validator.registry.interface import Registry, Republication
from validator.subject import OnnxOrigin, Subject
from validator.verify import CLEARANCE_ARTIFACT, Examination, VerifyRequest, examine


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where the cleared bytes are republished."""

    name: str | None = None
    """The registered model; None: the cleared one's name with `-prod` behind it."""
    experiment: str = "validator.promoted"
    """Where they are uploaded. Nobody but the gate should write there."""


def republish(
    destination: Destination,
    request: VerifyRequest,
    examination: Examination,
    registry: Registry,
    now: datetime,
    scratch: Path,
) -> Subject:
    """Upload the bytes that were hashed, register them under the gate's own name, download that and verify it again.

    Args:
        destination: where to.
        request: by whose signature, and what else the clearance must say; as the cleared version was verified.
        examination: what came of that.
        registry: where both versions live.
        now: the time.
        scratch: a folder for downloads.

    Returns:
        The version that holds them now.

    Raises:
        UsageError: they would be republished under their own name.
        PromotionRefused: the version that says it holds these bytes does not.
    """
    cleared, staged, onnx = examination.subject, examination.staged, examination.onnx
    name = destination.name or f"{cleared.name}-prod"
    if name == cleared.name:
        raise UsageError(f"{name} is the model that was cleared", hint="name another one with --to")
    if staged is None:
        raise ClearanceRefused("nothing was signed that bytes could be held against")
    clearance = scratch / CLEARANCE_ARTIFACT
    clearance.write_bytes(examination.envelope)
    published = registry.republish(
        Republication(
            name=name,
            experiment=destination.experiment,
            origin=cleared.pinned_uri,
            folder=staged.folder,
            digest=staged.manifest.digest,
            clearance=clearance,
            clearance_sha256=hashlib.sha256(examination.envelope).hexdigest(),
            onnx=None if onnx is None or onnx.origin is OnnxOrigin.ARTIFACT else onnx.path.parent,
            description=wrap_block(describe_origin(cleared.pinned_uri, staged.manifest.digest)),
        )
    )
    again = examine(
        replace(
            request,
            uri=published.uri,
            clearance=None,
            envelope=examination.envelope,
            onnx=None,
            republished=cleared.name,
        ),
        registry,
        now,
        scratch / "again",
    )
    if not again.verification.holds:
        wrong = "; ".join(f"{c.name}: {c.message}" for c in again.verification.claims if not c.holds)
        raise PromotionRefused(
            f"{again.subject.title} does not hold what was cleared: {wrong}; no alias was moved",
            hint=f"somebody else may write to {name} or to experiment {destination.experiment}: delete that version, "
            "and see to it that only the gate can",
        )
    return again.subject
