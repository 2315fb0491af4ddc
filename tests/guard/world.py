"""A guarded registry on a database, and what a gate and an attacker do to it.

MLflow is imported where it is used: its store warns when it is imported, which only a test may ignore.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.attest.world import GATE, predicate
from validator.attest.envelope import seal_statement
from validator.attest.keys import Signer, public_key_of
from validator.attest.statement import ModelBinding, Predicate, make_statement, write_time
from validator.guard.config import GuardConfig, Protection
from validator.manifest import measure_folder
from validator.registry.interface import CLEARANCE_TAG, EXPECT_TAG

if TYPE_CHECKING:
    from validator.guard.store import GuardedStore

REGISTRY = "https://mlflow.example.com"


def protection(**changes: Any) -> Protection:
    known: dict[str, Any] = {"keys": ["gate.key.pub"], "registry_uris": [REGISTRY]}
    return Protection(config=GuardConfig.model_validate(known | changes), keys=(public_key_of(GATE),))


def clear(
    *,
    name: str,
    version: int,
    created: int,
    digest: str,
    now: datetime,
    weights: str = "sha256:" + "b" * 64,
    registry_uri: str = REGISTRY,
    **changes: Any,
) -> Predicate:
    """What an honest check of a version would say."""
    model = ModelBinding(
        registry_uri=registry_uri,
        name=name,
        version=version,
        creation_timestamp_ms=created,
        digest=digest,
        weights_digest=weights,
    )
    known: dict[str, Any] = {
        "model": model,
        "waivers": (),
        "created": write_time(now - timedelta(hours=1)),
        "expires": write_time(now + timedelta(hours=1)),
    }
    return predicate(**(known | changes))


def seal(cleared: Predicate, signer: Signer = GATE) -> str:
    return seal_statement(make_statement(cleared), signer).decode()


@dataclass
class GuardWorld:
    """The store itself, without a server: what every client ends in."""

    folder: Path
    uri: str
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    store: "GuardedStore" = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.open(**self.changes)

    def open(self, **changes: Any) -> "GuardedStore":
        """Start the server anew, with another configuration."""
        from validator.guard.store import GuardedStore

        self.store = GuardedStore(self.uri, protection(**changes), lambda: self.now)
        return self.store

    def register(self, name: str | None = None, *, content: str | None = None, tags: Mapping[str, str] = {}) -> int:
        """Register a version of its own bytes."""
        name = name or self.name
        if not self.store.search_registered_models(f"name = '{name}'"):
            self.store.create_registered_model(name)
        number = len(list(self.folder.glob(f"{name}-*")))
        source = self.folder / f"{name}-{number}"
        source.mkdir(parents=True)
        (source / "MLmodel").write_text(content or f"{name} {number}")
        return self.create(name, source, tags)

    def create(self, name: str, source: Path, tags: Mapping[str, str] = {}) -> int:
        from mlflow.entities.model_registry import ModelVersionTag

        pairs = [ModelVersionTag(key, value) for key, value in tags.items()]
        return int(self.store.create_model_version(name, source.as_uri(), tags=pairs).version)

    def files(self, number: int, name: str | None = None) -> Path:
        uri = self.store.get_model_version_download_uri(name or self.name, number)
        return Path(str(uri).removeprefix("file://"))

    def predicate(self, number: int, name: str | None = None, **changes: Any) -> Predicate:
        name = name or self.name
        known: dict[str, Any] = {
            "name": name,
            "version": number,
            "created": int(self.store.get_model_version(name, number).creation_timestamp),
            "digest": measure_folder(self.files(number, name)).digest,
            "now": self.now,
        }
        return clear(**known, **changes)

    def clearance(self, number: int, name: str | None = None, signer: Signer = GATE, **changes: Any) -> str:
        return seal(self.predicate(number, name, **changes), signer)

    def tag(self, number: int, key: str, value: str, name: str | None = None) -> None:
        from mlflow.entities.model_registry import ModelVersionTag

        self.store.set_model_version_tag(name or self.name, number, ModelVersionTag(key, value))

    def tag_model(self, key: str, value: str) -> None:
        from mlflow.entities.model_registry import RegisteredModelTag

        self.store.set_registered_model_tag(self.name, RegisteredModelTag(key, value))

    def tags(self, number: int) -> dict[str, str]:
        return dict(self.store.get_model_version(self.name, number).tags)

    def promote(self, number: int, expect: str = "none", *, alias: str = "champion", name: str | None = None) -> None:
        """What `validator promote` sends: the clearance, the expected holder, the move."""
        if CLEARANCE_TAG not in dict(self.store.get_model_version(name or self.name, number).tags):
            self.tag(number, CLEARANCE_TAG, self.clearance(number, name), name)
        self.tag(number, EXPECT_TAG + alias, expect, name)
        self.store.set_registered_model_alias(name or self.name, alias, str(number))

    def holder(self, alias: str = "champion", name: str | None = None) -> int | None:
        found = self.store.get_registered_model(name or self.name).aliases.get(alias)
        return None if found is None else int(found)

    def wait(self, time: timedelta) -> None:
        self.now += time


@contextmanager
def refusal() -> Iterator[list[str]]:
    """Require that the guard refuses what is done inside; yields what the client gets to see, once it has."""
    from mlflow.exceptions import MlflowException

    said: list[str] = []
    with pytest.raises(MlflowException) as caught:
        yield said
    answer = json.loads(caught.value.serialize_as_json())
    assert answer["message"].startswith("validator guard: "), answer
    assert (caught.value.get_http_status_code(), answer["error_code"]) == (403, "PERMISSION_DENIED")
    said.append(answer["message"])
