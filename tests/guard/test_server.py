"""Real clients against a real server: REST, MLflow's Python client, and our own."""

import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.attest.world import GATE, STRANGER
from tests.guard.contest import (
    clearance_for,
    contest,
    create_version,
    digest_of,
    holder,
    make_logged_model,
    move,
    require,
    tag,
)
from tests.guard.server import GuardedServer, launch, start_guarded, write_config
from tests.guard.world import clear, seal
from tests.registry.conftest import MlflowWorld
from tests.servers import free_port
from validator.attest.keys import Signer, public_key_of
from validator.errors import AnnotationFailed, GuardRefused
from validator.promote import Holder, Outcome, PromoteRequest, promote
from validator.registry.interface import CLEARANCE_TAG, EXPECT_TAG, VERDICT_TAG, Annotation, resolve_text
from validator.republish import Destination
from validator.rollback import RollbackRequest, rollback

KEYS = (public_key_of(GATE),)
FILES = {"MLmodel": b"flavors: {}\n", "data/model.pt2": b"weights"}
MOVE = "POST /api/2.0/mlflow/registered-models/alias"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, blank_sqlite: Path) -> Iterator[GuardedServer]:
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copyfile(blank_sqlite, folder / "server.db")
    running = start_guarded(folder, f"sqlite:///{folder}/server.db")
    yield running
    running.kill()


@pytest.fixture
def world(server: GuardedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowWorld]:
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    yield MlflowWorld(uri=server.uri, folder=tmp_path)
    mlflow.set_tracking_uri(None)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name.replace("[", "-").replace("]", "")[5:60]


def clearance_of(
    world: MlflowWorld, name: str, number: int, folder: Path, signer: Signer = GATE, **changes: object
) -> str:
    """What the gate would sign."""
    subject = resolve_text(world.registry, f"models:/{name}/{number}")
    staged = world.registry.stage(subject, folder / f"staged-{number}")
    return seal(
        clear(
            name=name,
            version=number,
            created=int(subject.creation_timestamp_ms or 0),
            digest=staged.manifest.digest,
            registry_uri=subject.registry_uri,
            **({"now": datetime.now(UTC), "weights": staged.weights_digest, "onnx": None} | changes),
        ),
        signer,
    )


def test_a_plain_client_is_refused_by_rest_and_by_python_at_once(
    server: GuardedServer, world: MlflowWorld, name: str
) -> None:
    from mlflow.exceptions import MlflowException

    number, asked = world.register(name, FILES), server.log.count(MOVE)
    status, answer = server.post("registered-models/alias", {"name": name, "alias": "champion", "version": str(number)})
    assert (status, answer["error_code"]) == (403, "PERMISSION_DENIED")
    assert f"validator promote models:/{name}/{number} --alias champion" in answer["message"]
    with pytest.raises(MlflowException, match=r"validator guard: .* carries no clearance") as error:
        world.client.set_registered_model_alias(name, "champion", str(number))
    assert error.value.error_code == "PERMISSION_DENIED"
    assert server.log.count(MOVE) - asked == 2, "refusals are not retried"


def test_an_alias_moves_over_http_and_the_server_hashes_what_it_serves(
    server: GuardedServer, world: MlflowWorld, name: str, tmp_path: Path
) -> None:
    from mlflow.exceptions import MlflowException

    first, second = world.register(name, FILES), world.register(name, {**FILES, "written-to": b"more"})
    for number, expected in ((first, "none"), (second, str(first))):
        world.client.set_model_version_tag(
            name, str(number), CLEARANCE_TAG, clearance_of(world, name, number, tmp_path)
        )
        world.client.set_model_version_tag(name, str(number), EXPECT_TAG + "champion", expected)
        if number == second:
            (changed,) = server.folder.glob("store/**/written-to")
            changed.write_bytes(b"less")
            with pytest.raises(MlflowException, match="not those that were cleared"):
                world.client.set_registered_model_alias(name, "champion", str(number))
            changed.write_bytes(b"more")
        world.client.set_registered_model_alias(name, "champion", str(number))
    assert world.client.get_model_version_by_alias(name, "champion").version == str(second)


def test_exactly_one_of_24_promotions_wins_on_sqlite(server: GuardedServer) -> None:
    require(server.post("registered-models/create", {"name": "contest"}))
    contest(server, "contest", "0", None)


def test_our_own_promote_brings_what_the_guard_asks_for(world: MlflowWorld, name: str, tmp_path: Path) -> None:
    first, second = world.register(name, FILES), world.register(name, {**FILES, "more": b"more"})

    def ask(number: int, holder: int | None, signer: Signer = GATE) -> Outcome | None:
        path = tmp_path / f"clearance-{number}-{holder}-{signer is GATE}.json"
        path.write_text(clearance_of(world, name, number, tmp_path / path.stem, signer=signer))
        request = PromoteRequest(
            uri=f"models:/{name}/{number}",
            alias="champion",
            keys=(public_key_of(GATE), public_key_of(STRANGER)),
            clearance=path,
            expect=Holder(version=holder),
        )
        return promote(request, world.registry, datetime.now(UTC)).outcome

    for number, before in ((first, None), (second, first), (first, second)):
        outcome = ask(number, before)
        assert outcome is not None
        assert outcome.is_moved
        assert EXPECT_TAG + "champion" not in world.tags(name, number)
    with pytest.raises(GuardRefused, match=r"signature: .* none of the keys") as error:
        ask(second, first, STRANGER)
    assert "validator check" in error.value.message
    assert world.client.get_model_version_by_alias(name, "champion").version == str(first)


def test_our_own_republishing_brings_what_the_guard_asks_for(world: MlflowWorld, name: str, tmp_path: Path) -> None:
    number = world.register(name, FILES)
    (tmp_path / "clearance.json").write_text(clearance_of(world, name, number, tmp_path))
    request = PromoteRequest(
        uri=f"models:/{name}/{number}",
        alias="champion",
        keys=(public_key_of(GATE),),
        clearance=tmp_path / "clearance.json",
        republish=Destination(),
    )
    for is_moved in (True, False):
        outcome = promote(request, world.registry, datetime.now(UTC)).outcome
        assert outcome is not None
        assert (outcome.name, outcome.is_moved, outcome.warnings) == (f"{name}-prod", is_moved, ())
    assert world.client.get_model_version_by_alias(f"{name}-prod", "champion").version == "1"


def promote_to(world: MlflowWorld, name: str, number: int, folder: Path) -> Outcome | None:
    path = folder / f"clearance-{number}.json"
    path.write_text(clearance_of(world, name, number, folder))
    request = PromoteRequest(uri=f"models:/{name}/{number}", alias="champion", keys=KEYS, clearance=path)
    return promote(request, world.registry, datetime.now(UTC)).outcome


def go_back(world: MlflowWorld, name: str, **options: Any) -> Outcome | None:
    request = RollbackRequest(**({"name": name, "alias": "champion", "keys": KEYS} | options))
    return rollback(request, world.registry, datetime.now(UTC)).outcome


def holder_of(world: MlflowWorld, name: str) -> int | None:
    return world.registry.read_model(name).aliases.get("champion")


def test_our_own_rollback_passes_the_guard_and_changes_nothing_the_second_time(
    world: MlflowWorld, name: str, tmp_path: Path
) -> None:
    for number in (1, 2):
        world.register(name, {**FILES, "number": str(number).encode()})
        promote_to(world, name, number, tmp_path)
    assert holder_of(world, name) == 2
    for is_moved in (True, False):
        outcome = go_back(world, name)
        assert outcome is not None
        assert (outcome.is_moved, outcome.record.version, holder_of(world, name)) == (is_moved, 1, 1)
    assert EXPECT_TAG + "champion" not in world.tags(name, 1)


def test_an_expired_clearance_is_good_for_the_way_back_to_what_the_guard_recorded(
    server: GuardedServer, world: MlflowWorld, name: str, tmp_path: Path
) -> None:
    """Version 1 held the alias two hours ago, while its clearance was good; version 2 has one as old, and never did."""
    then = datetime.now(UTC) - timedelta(hours=2)
    paths = {number: tmp_path / f"old-{number}.json" for number in (1, 2)}
    for number, path in paths.items():
        world.register(name, {**FILES, "number": str(number).encode()})
        path.write_text(clearance_of(world, name, number, tmp_path, now=then))
    record_as_the_guard_did(server, world, name, 1, paths[1].read_text(), then)
    promote_to(world, name, world.register(name, FILES), tmp_path)
    with pytest.raises(GuardRefused, match="expires: "):
        go_back(world, name, to=2, clearance=paths[2])
    assert holder_of(world, name) == 3
    assert go_back(world, name, to=1, clearance=paths[1]) is not None
    assert holder_of(world, name) == 1


def record_as_the_guard_did(
    server: GuardedServer, world: MlflowWorld, name: str, number: int, text: str, time: datetime
) -> None:
    """Write into the guard's own table, which no client can reach."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    from validator.guard.moves import Move, record_move

    subject = resolve_text(world.registry, f"models:/{name}/{number}")
    move = Move(
        workspace="default",
        name=name,
        alias="champion",
        version=number,
        creation_time=int(subject.creation_timestamp_ms or 0),
        previous=None,
        digest="sha256:" + "0" * 64,
        clearance_sha256=hashlib.sha256(text.encode()).hexdigest(),
        key_id=public_key_of(GATE).key_id,
        check_id="0123456789abcdef",
        policy_digest="sha256:" + "0" * 64,
        moved_at_ms=int(time.timestamp() * 1_000),
    )
    engine = create_engine(f"sqlite:///{server.folder}/server.db")
    with Session(engine) as session, session.begin():
        record_move(session, move)
    engine.dispose()


def test_going_back_without_a_clearance_is_refused_by_the_guard(world: MlflowWorld, name: str, tmp_path: Path) -> None:
    world.register(name, {**FILES, "number": b"1"})
    promote_to(world, name, world.register(name, FILES), tmp_path)
    with pytest.raises(GuardRefused, match="version 1 carries no clearance"):
        go_back(world, name, to=1, keys=(), reason="champion answers nonsense")
    assert holder_of(world, name) == 2


def test_workspaces_are_guarded_apart(tmp_path: Path, blank_sqlite: Path) -> None:
    """Two teams have a model of the same name, number and bytes: what is cleared for one is not for the other."""
    shutil.copyfile(blank_sqlite, tmp_path / "server.db")
    ours = start_guarded(tmp_path, f"sqlite:///{tmp_path}/server.db", "--enable-workspaces")
    try:
        status, _ = ours.post("3.0/workspaces", {"name": "team-b"})
        assert status == 201
        theirs = replace(ours, workspace="team-b")
        versions, models = [], []
        for place in (ours, theirs):
            experiment = require(place.post("experiments/create", {"name": "training"}))["experiment_id"]
            for name in ("net", "net-prod"):
                require(place.post("registered-models/create", {"name": name}))
            models.append(make_logged_model(place, experiment, None, b"flavors: {}\n"))
            versions.append(require(create_version(place, "net", models[-1], None))["model_version"])
        texts = [
            clearance_for(ours, version, digest_of(ours, model))
            for version, model in zip(versions, models, strict=True)
        ]
        assert digest_of(ours, models[0]) == digest_of(ours, models[1])

        for (place, version), text in zip(((ours, versions[0]), (theirs, versions[1])), texts, strict=True):
            status, answer = move(place, version, None)
            assert (status, "carries no clearance" in answer["message"]) == (403, True)
            require(tag(place, version, CLEARANCE_TAG, text, None))
            require(tag(place, version, EXPECT_TAG + "champion", "none", None))
            require(move(place, version, None))
            if place is ours:
                assert (holder(ours, "net", None), holder(theirs, "net", None)) == ("1", None)
                status, answer = tag(theirs, versions[1], CLEARANCE_TAG, text, None)
                assert (status, "made: " in answer["message"]) == (403, True)
                status, answer = create_version(theirs, "net-prod", models[1], None, {CLEARANCE_TAG: text})
                assert (status, "is not in this registry or workspace" in answer["message"]) == (403, True)
                require(create_version(ours, "net-prod", models[0], None, {CLEARANCE_TAG: text}))
        assert (holder(ours, "net", None), holder(theirs, "net", None)) == ("1", "1")
    finally:
        ours.kill()


def test_copying_a_cleared_version_is_refused(world: MlflowWorld, name: str, tmp_path: Path) -> None:
    from mlflow.exceptions import MlflowException

    number = world.register(name, FILES)
    world.client.set_model_version_tag(name, str(number), CLEARANCE_TAG, clearance_of(world, name, number, tmp_path))
    with pytest.raises(MlflowException, match="no check has seen it"):
        world.client.copy_model_version(f"models:/{name}/{number}", f"{name}-copy")


def annotation(world: MlflowWorld, name: str, number: int, verdict: str, clearance: str | None = None) -> Annotation:
    return Annotation(
        subject=resolve_text(world.registry, f"models:/{name}/{number}"),
        check_id="0123456789abcdef",
        verdict=verdict,
        run_name=f"{name} {verdict}",
        description_block=verdict,
        version_tags={"validator.check_id": "0123456789abcdef"},
        clearance=clearance,
    )


def test_a_check_that_does_not_pass_is_annotated_as_everywhere(world: MlflowWorld, name: str) -> None:
    number = world.register(name, FILES)
    receipt = world.registry.annotate(annotation(world, name, number, "fail"))
    assert receipt.warnings == ()
    assert world.tags(name, number)[VERDICT_TAG] == "fail"


def test_a_pass_without_a_key_is_said_by_the_run_alone(world: MlflowWorld, name: str) -> None:
    number = world.register(name, FILES)
    receipt = world.registry.annotate(annotation(world, name, number, "pass"))
    (warning,) = receipt.warnings
    assert "does not say pass" in warning
    assert "--sign-key" in warning
    assert VERDICT_TAG not in world.tags(name, number)
    assert VERDICT_TAG not in receipt.version_tags
    (run,) = world.find_runs("0123456789abcdef")[-1:]
    assert run.data.tags[VERDICT_TAG] == "pass"


def test_a_signed_pass_brings_its_clearance_before_its_verdict(world: MlflowWorld, name: str, tmp_path: Path) -> None:
    number = world.register(name, FILES)
    text = clearance_of(world, name, number, tmp_path)
    for _ in range(2):  # annotating again is safe
        receipt = world.registry.annotate(annotation(world, name, number, "pass", text))
        assert receipt.warnings == ()
        tags = world.tags(name, number)
        assert (tags[VERDICT_TAG], tags[CLEARANCE_TAG]) == ("pass", text)


def test_a_pass_signed_for_something_else_is_not_annotated(world: MlflowWorld, name: str, tmp_path: Path) -> None:
    number = world.register(name, FILES)
    text = clearance_of(world, name, number, tmp_path, check_id="f" * 16)
    with pytest.raises(AnnotationFailed, match="the clearance says"):
        world.registry.annotate(annotation(world, name, number, "pass", text))
    assert VERDICT_TAG not in world.tags(name, number)


def test_a_server_without_a_usable_configuration_does_not_start(tmp_path: Path, blank_sqlite: Path) -> None:
    shutil.copyfile(blank_sqlite, tmp_path / "server.db")
    config = write_config(tmp_path, "http://127.0.0.1", keys=["missing.pub"])
    failed = launch(tmp_path, f"sqlite:///{tmp_path}/server.db", port=free_port(), config=config)
    try:
        assert failed.process.wait(180) == 1
        assert re.search(r"^error\[guard\]: .*guard.toml: keys: .*missing.pub cannot be read", failed.log, re.MULTILINE)
    finally:
        failed.kill()
