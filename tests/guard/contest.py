"""Many promotions at once, over HTTP: every version is cleared, and every one expects the same holder."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from tests.guard.server import GuardedServer, User
from tests.guard.world import clear, seal
from validator.manifest import measure_folder
from validator.registry.interface import CLEARANCE_TAG, EXPECT_TAG

CONTESTANTS = 24


def require(answer: tuple[int, Any]) -> Any:
    status, body = answer
    assert status == 200, body
    return body


def make_logged_model(server: GuardedServer, experiment: str, user: User | None, content: bytes) -> str:
    """Upload a model into an experiment; return its id."""
    created = require(server.post("logged-models", {"experiment_id": experiment, "name": "model"}, user))
    model, location = (created["model"]["info"][key] for key in ("model_id", "artifact_uri"))
    require(server.put_file(f"{location.removeprefix('mlflow-artifacts:/')}/MLmodel", content, user))
    body = {"model_id": model, "status": "LOGGED_MODEL_READY"}
    require(server.post(f"logged-models/{model}", body, user, method="PATCH"))
    return str(model)


def digest_of(server: GuardedServer, model: str) -> str:
    (folder,) = server.folder.glob(f"store/**/models/{model}/artifacts")
    return measure_folder(folder).digest


def create_version(
    server: GuardedServer, name: str, model: str, user: User | None, tags: dict[str, str] | None = None
) -> tuple[int, Any]:
    pairs = [{"key": key, "value": value} for key, value in (tags or {}).items()]
    body = {"name": name, "source": f"models:/{model}", "model_id": model, "tags": pairs}
    return server.post("model-versions/create", body, user)


def clearance_for(server: GuardedServer, version: dict[str, Any], digest: str) -> str:
    """What the gate would sign."""
    return seal(
        clear(
            name=version["name"],
            version=int(version["version"]),
            created=int(version["creation_timestamp"]),
            digest=digest,
            now=datetime.now(UTC),
            registry_uri=server.uri,
        )
    )


def tag(server: GuardedServer, version: dict[str, Any], key: str, value: str, user: User | None) -> tuple[int, Any]:
    body = {"name": version["name"], "version": version["version"], "key": key, "value": value}
    return server.post("model-versions/set-tag", body, user)


def move(server: GuardedServer, version: dict[str, Any], user: User | None, alias: str = "champion") -> tuple[int, Any]:
    body = {"name": version["name"], "alias": alias, "version": version["version"]}
    return server.post("registered-models/alias", body, user)


def holder(server: GuardedServer, name: str, user: User | None, alias: str = "champion") -> str | None:
    status, body = server.send(f"api/2.0/mlflow/registered-models/alias?name={name}&alias={alias}", b"", user, "GET")
    return str(body["model_version"]["version"]) if status == 200 else None


def contest(server: GuardedServer, name: str, experiment: str, user: User | None) -> None:
    """Let one version hold the alias, then let all the others take it at the same time: exactly one may."""
    model = make_logged_model(server, experiment, user, b"flavors: {}\n")
    digest = digest_of(server, model)
    versions = [require(create_version(server, name, model, user))["model_version"] for _ in range(CONTESTANTS + 1)]
    for version in versions:
        expected = "none" if version is versions[0] else versions[0]["version"]
        require(tag(server, version, CLEARANCE_TAG, clearance_for(server, version, digest), user))
        require(tag(server, version, EXPECT_TAG + "champion", expected, user))
    require(move(server, versions[0], user))
    with ThreadPoolExecutor(CONTESTANTS) as pool:
        answers = list(pool.map(lambda version: move(server, version, user), versions[1:]))
    winners = [v["version"] for v, (status, _) in zip(versions[1:], answers, strict=True) if status == 200]
    assert len(winners) == 1
    assert holder(server, name, user) == winners[0]
    losers = [body for status, body in answers if status != 200]
    assert {body["error_code"] for body in losers} == {"PERMISSION_DENIED"}
    assert all(f"is on version {winners[0]}, not on version 1 as expected" in body["message"] for body in losers)
