"""A server that dies, lies or drops the line between any two requests: the same call again ends where it should."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.network import KILLS, Fault, Proxy, Server, running
from tests.registry.conftest import MlflowWorld
from tests.registry.test_contract import BLOCK, FILES, make_annotation
from validator.errors import AnnotationFailed, CouldNotRun, ExitCode, ValidatorError
from validator.registry.interface import VERDICT_TAG, resolve_text

ONCE = [fault for fault in Fault if fault not in KILLS]
IS_COMPLETE = "VALIDATOR_TEST_ALL_FAULTS" in os.environ
"""Every fault at every request takes many minutes; without it each request meets one, in turn."""


def faults_at(request: int) -> list[Fault]:
    """Every second request meets a server that is killed, before it or after it; the others something else."""
    if IS_COMPLETE:
        return list(Fault)
    turn = request // 2
    return [KILLS[turn % len(KILLS)] if request % 2 else ONCE[turn % len(ONCE)]]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, blank_database: Path) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("zygote")
    (folder / "mlflow.db").write_bytes(blank_database.read_bytes())
    server = Server(folder)
    server.start()
    with running(Proxy(server)) as proxy:
        yield proxy
    server.close()


@pytest.fixture
def world(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowWorld:
    """Without pauses between retries, so that a dead server is given up at once."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setattr("validator.registry.connection.PROBE_PAUSE_S", 0.0)
    proxy.arm(0, None)
    return MlflowWorld(uri=proxy.uri, folder=tmp_path / "client")


def meet(proxy: Proxy, deed: Callable[[], Any], at: int, fault: Fault) -> ValidatorError | None:
    """Do it with a fault at the n-th request, then again without; return what was said the first time."""
    proxy.arm(at, fault)
    said = None
    try:
        deed()
    except ValidatorError as error:
        said = error
    proxy.server.start()
    proxy.arm(0, None)
    deed()
    return said


def count(proxy: Proxy, deed: Callable[[], Any]) -> int:
    proxy.arm(0, None)
    deed()
    return proxy.requests


def test_an_annotation_that_met_a_fault_at_any_request_is_whole_after_the_next(
    world: MlflowWorld, proxy: Proxy, tmp_path: Path
) -> None:
    world.register("count", FILES)
    total = count(proxy, lambda: annotate(world, "count", tmp_path))
    assert total > 20
    for at in range(1, total + 1):
        for fault in faults_at(at):
            name = f"net-{at}-{fault.name.lower()}"
            world.register(name, FILES)
            said = meet(proxy, lambda name=name: annotate(world, name, tmp_path), at, fault)
            assert said is None or (isinstance(said, AnnotationFailed) and said.exit_code is ExitCode.INCONCLUSIVE)
            assert world.tags(name, 1)[VERDICT_TAG] == "pass", (at, fault)
            description = world.description(name, 1) or ""
            assert description.count(BLOCK) == 1, (at, fault)
            (run,) = world.find_runs(f"check-{name}")
            assert run.info.status == "FINISHED", (at, fault)
            assert world.history_length(run.info.run_id, "error") == 3, (at, fault)


def annotate(world: MlflowWorld, name: str, tmp_path: Path) -> None:
    try:
        subject = resolve_text(world.registry, f"models:/{name}/1")
    except ValidatorError as error:
        raise AnnotationFailed(error.message) from error
    world.registry.annotate(make_annotation(subject, tmp_path))


def test_a_push_that_met_a_fault_at_any_request_makes_one_version(
    world: MlflowWorld, proxy: Proxy, tmp_path: Path
) -> None:
    folder = tmp_path / "golden"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")

    def push(name: str) -> Any:
        return world.registry.publish(name, folder, model_type="validator.golden", alias="current", tags={"t": "1"})

    total = count(proxy, lambda: push("golden.count"))
    assert total >= 8
    for at in range(1, total + 1):
        for fault in faults_at(at):
            name = f"golden.{at}.{fault.name.lower()}"
            said = meet(proxy, lambda name=name: push(name), at, fault)
            assert said is None or (isinstance(said, CouldNotRun) and said.exit_code is ExitCode.INCONCLUSIVE)
            versions = world.client.search_model_versions(f"name = '{name}'")
            assert [(v.version, v.status) for v in versions] == [("1", "READY")], (at, fault)
            assert world.client.get_model_version_by_alias(name, "current").version == "1", (at, fault)
