"""A registry with versions that are cleared, and what may happen to it while one of them is promoted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.attest.world import GATE, NOW, predicate
from tests.registry.conftest import World
from validator.attest.envelope import seal_statement
from validator.attest.keys import Signer, public_key_of
from validator.attest.statement import ModelBinding, OnnxBinding, Predicate, make_statement
from validator.manifest import measure_folder
from validator.promote import Holder, PromoteRequest, Promotion, promote
from validator.promotion import PROMOTION_TAG, Record, read_record
from validator.registry.interface import Annotation, Registry, resolve_text
from validator.rollback import RollbackRequest, rollback
from validator.subject import OnnxOrigin

FILES = {"MLmodel": b"flavors: {}\n", "data/model.pt2": b"weights"}
KEYS = (public_key_of(GATE),)


@dataclass
class Team:
    """A model of a team, whose gate clears versions and promotes them."""

    world: World
    name: str
    folder: Path
    _checks: int = field(default=0)

    @property
    def registry(self) -> Registry:
        return self.world.registry

    def uri(self, number: int) -> str:
        return f"models:/{self.name}/{number}"

    def register(self, data: bytes = b"weights", *, description: str | None = None) -> int:
        return self.world.register(self.name, FILES | {"data/model.pt2": data}, description=description)

    def predicate(self, number: int, **changes: Any) -> Predicate:
        """Say of a version what an honest check would say."""
        self._checks += 1
        subject = resolve_text(self.registry, self.uri(number))
        staged = self.registry.stage(subject, self.folder / f"staged-{self._checks}")
        assert subject.creation_timestamp_ms is not None
        model = ModelBinding(
            registry_uri=subject.registry_uri,
            name=self.name,
            version=number,
            creation_timestamp_ms=subject.creation_timestamp_ms,
            digest=staged.manifest.digest,
            weights_digest=staged.weights_digest,
        )
        return predicate(**({"model": model, "onnx": None} | changes))

    def clear(self, number: int, *, signer: Signer = GATE, onnx: bytes | None = None, **changes: Any) -> Path:
        """Check a version: clearance and exported ONNX file lie in the run that its tag names."""
        folder = self.folder / f"report-{number}-{self._checks}"
        artifacts = {"clearance.json": folder / "clearance.json"}
        folder.mkdir()
        if onnx is not None:
            (folder / "onnx").mkdir()
            (folder / "onnx/model.onnx").write_bytes(onnx)
            artifacts["onnx/model.onnx"] = folder / "onnx/model.onnx"
            digest = measure_folder(folder / "onnx").digest
            changes["onnx"] = OnnxBinding(digest=digest, origin=OnnxOrigin.EXPORT.value, source="exported")
        statement = make_statement(self.predicate(number, **changes))
        return self.attach(number, seal_statement(statement, signer), artifacts)

    def attach(self, number: int, envelope: bytes, artifacts: Mapping[str, Path]) -> Path:
        """Annotate a version with a clearance."""
        path = artifacts["clearance.json"]
        path.write_bytes(envelope)
        self.registry.annotate(
            Annotation(
                subject=resolve_text(self.registry, self.uri(number)),
                check_id=f"check-{self.name}-{number}-{self._checks}",
                verdict="pass",
                run_name="pass",
                description_block="**\u2713 pass** heading\n- within\n\n[report](x)",
                artifacts=artifacts,
            )
        )
        return path

    def cleared(self, data: bytes = b"weights", **changes: Any) -> int:
        """Register a version and clear it."""
        number = self.register(data)
        self.clear(number, **changes)
        return number

    def promote(
        self, number: int, *, now: datetime = NOW, registry: Registry | None = None, **options: Any
    ) -> Promotion:
        request = PromoteRequest(**({"uri": self.uri(number), "alias": "champion", "keys": KEYS} | options))
        return promote(request, registry or self.registry, now)

    def rollback(self, *, now: datetime = NOW, registry: Registry | None = None, **options: Any) -> Promotion:
        request = RollbackRequest(**({"name": self.name, "alias": "champion", "keys": KEYS} | options))
        return rollback(request, registry or self.registry, now)

    def holder(self, alias: str = "champion", name: str | None = None) -> int | None:
        return self.registry.read_model(name or self.name).aliases.get(alias)

    def tags(self, name: str | None = None) -> Mapping[str, str]:
        return self.registry.read_model(name or self.name).tags

    def record(self, alias: str = "champion", name: str | None = None) -> Record | None:
        return read_record(self.tags(name).get(PROMOTION_TAG + alias))

    def snapshot(self) -> dict[str, Any]:
        """Everything that a promotion may write."""
        versions = [resolve_text(self.registry, self.uri(n)) for n in range(1, self.newest() + 1)]
        return {
            "aliases": dict(self.registry.read_model(self.name).aliases),
            "tags": dict(self.tags()),
            "versions": [dict(v.tags) for v in versions],
            "descriptions": [self.world.description(self.name, n) for n in range(1, self.newest() + 1)],
        }

    def newest(self, name: str | None = None) -> int:
        return int(resolve_text(self.registry, f"models:/{name or self.name}/latest").version or 0)


class Interrupted:
    """A registry between whose calls others do something: `before` is called with each method's name."""

    def __init__(self, registry: Registry, before: Callable[[str], None]) -> None:
        self._registry = registry
        self._before = before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._registry, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self._before(name)
            return found(*arguments, **options)

        return call


def before_nth(method: str, number: int, deed: Callable[[], object]) -> Callable[[str], None]:
    """Return what does a deed once, before the n-th call of a method."""
    seen = 0

    def before(name: str) -> None:
        nonlocal seen
        seen += name == method
        if name == method and seen == number:
            deed()

    return before


__all__ = ["FILES", "GATE", "KEYS", "NOW", "Holder", "Interrupted", "Team", "before_nth"]
