"""A server that dies, lies or drops the line between any two requests: the same call again ends where it should."""

import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.network import Fault, Proxy, Server, running
from tests.promote.world import Team
from tests.registry.conftest import MlflowWorld
from tests.registry.test_contract import BLOCK, FILES, make_annotation
from validator.errors import AnnotationFailed, CouldNotRun, ExitCode, ValidatorError
from validator.promotion import INTENT_TAG, PROMOTION_TAG, read_record
from validator.registry.interface import VERDICT_TAG, resolve_text

HOW_MANY = os.environ.get("VALIDATOR_TEST_FAULTS", "sample")
SEED = 6
FAULTS = tuple(Fault)


def encounters(total: int, faults: Sequence[Fault] = FAULTS) -> list[tuple[int, Fault]]:
    """Return which request meets which fault.

    `sample`: each of these faults once, at requests drawn with a fixed seed; `requests`: every request meets one, in
    turn; `all`: every request meets every one.
    """
    requests = range(1, total + 1)
    if HOW_MANY == "all":
        return [(at, fault) for at in requests for fault in Fault]
    if HOW_MANY == "requests":
        return list(zip(requests, itertools.cycle(Fault), strict=False))
    assert HOW_MANY == "sample"
    return sorted(zip(random.Random(SEED).sample(requests, len(faults)), faults, strict=True))


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


def meet(
    proxy: Proxy, deed: Callable[[], Any], at: int, fault: Fault | None, between: Callable[[], None] = lambda: None
) -> ValidatorError | None:
    """Do it with a fault at the n-th request, look, do it again without; return what was said the first time."""
    proxy.arm(at, fault)
    said = None
    try:
        deed()
    except ValidatorError as error:
        said = error
    proxy.server.start()
    proxy.arm(0, None)
    between()
    deed()
    return said


def count(proxy: Proxy, deed: Callable[[], Any]) -> int:
    proxy.arm(0, None)
    deed()
    sys.stdout.write(f"{proxy.requests} requests\n")
    return proxy.requests


def test_an_annotation_that_met_a_fault_at_any_request_is_whole_after_the_next(
    world: MlflowWorld, proxy: Proxy, tmp_path: Path
) -> None:
    world.register("count", FILES)
    total = count(proxy, lambda: annotate(world, "count", tmp_path))
    assert total > 20
    for at, fault in encounters(total):
        name = f"net-{at}-{fault.name.lower()}"
        world.register(name, FILES)
        said = meet(proxy, lambda name=name: annotate(world, name, tmp_path), at, fault)
        assert said is None or (isinstance(said, AnnotationFailed) and said.exit_code is ExitCode.INCONCLUSIVE)
        assert world.tags(name, 1)[VERDICT_TAG] == "pass", (at, fault)
        description = world.description(name, 1) or ""
        assert description.count(BLOCK) == 1, (at, fault)
        (run,) = world.find_runs(f"check-{name}")
        assert run.info.status == "FINISHED", (at, fault)
        assert world.history_length(run.info.run_id, "error_ratio") == 1, (at, fault)


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
    for at, fault in encounters(total):
        name = f"golden.{at}.{fault.name.lower()}"
        said = meet(proxy, lambda name=name: push(name), at, fault)
        assert said is None or (isinstance(said, CouldNotRun) and said.exit_code is ExitCode.INCONCLUSIVE)
        versions = world.client.search_model_versions(f"name = '{name}'")
        assert [(v.version, v.status) for v in versions] == [("1", "READY")], (at, fault)
        assert world.client.get_model_version_by_alias(name, "current").version == "1", (at, fault)


# --- validator promote and rollback -------------------------------------------------------------------------------


@pytest.fixture
def team(world: MlflowWorld, tmp_path: Path, request: pytest.FixtureRequest) -> Team:
    """Version 1 is promoted; version 2 was once."""
    team = Team(world=world, name=request.node.name[:60], folder=tmp_path)
    for data in (b"one", b"two"):
        team.promote(team.cleared(data))
    team.rollback()
    return team


def test_a_promotion_or_rollback_that_met_a_fault_at_any_request_is_finished_by_the_next(
    team: Team, proxy: Proxy
) -> None:
    """In turn: what the one does the other takes back."""

    def promote() -> None:
        assert team.promote(2).outcome is not None

    def go_back() -> None:
        assert team.rollback().outcome is not None

    forth = encounters(count(proxy, promote), FAULTS[::2])
    back = encounters(count(proxy, go_back), FAULTS[1::2])
    for there, again in itertools.zip_longest(forth, back, fillvalue=(0, None)):
        for (at, fault), deed, holder in ((there, promote, 2), (again, go_back, 1)):
            said = meet(proxy, deed, at, fault, between=lambda: assert_the_holder_is_told(team))
            assert said is None or said.exit_code in (ExitCode.INCONCLUSIVE, ExitCode.REFUSED), (at, fault)
            assert_it_is_done(team, holder=holder)


def assert_the_holder_is_told(team: Team) -> None:
    """The alias is at the old version or the new one, and what is written down says of either how it came there."""
    state = team.registry.read_model(team.name)
    records = [read_record(state.tags.get(tag + "champion")) for tag in (PROMOTION_TAG, INTENT_TAG)]
    holder = state.aliases["champion"]
    assert holder in {1, 2}
    assert holder in {record.version for record in records if record is not None}


def assert_it_is_done(team: Team, *, holder: int) -> None:
    other = 3 - holder
    record = team.record()
    assert record is not None
    assert (team.holder(), record.version, record.previous) == (holder, holder, other)
    assert INTENT_TAG + "champion" not in team.tags()
    for version, mark in ((holder, "\u25b2"), (other, "\u25bd")):
        notes = [
            line for line in (team.world.description(team.name, version) or "").splitlines() if "`champion`" in line
        ]
        assert len(notes) == 1, notes
        assert mark in notes[0]
