"""The installed program against a real server that has a guard; and a server that is killed in between."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.attest.world import GATE, STRANGER
from tests.guard.server import GuardedServer, launch, start_guarded
from tests.promote.world import KEYS, Interrupted, Team, before_nth
from tests.registry.conftest import MlflowWorld
from validator.attest.keys import public_key_of
from validator.attest.statement import write_time
from validator.errors import ExitCode, GuardRefused, RegistryUnreachable
from validator.promotion import INTENT_TAG
from validator.registry.interface import CLEARANCE_TAG, EXPECT_TAG, resolve_text
from validator.republish import Destination
from validator.verify import VerifyRequest, verify

ROOT = Path(__file__).parents[2]
RUNTIMES = ("torch", "onnx", "onnxruntime", "onnxscript", "torchvision")
TAKES_LONG = ("sqlalchemy",)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, blank_database: Path) -> Iterator[GuardedServer]:
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copyfile(blank_database, folder / "server.db")
    running = start_guarded(folder, f"sqlite:///{folder}/server.db")
    yield running
    running.kill()


@dataclass
class LiveTeam(Team):
    """A team of today: the server has a clock of its own."""

    def cleared(self, data: bytes = b"weights", **changes: Any) -> int:
        now = datetime.now(UTC)
        times = {"created": write_time(now - timedelta(hours=1)), "expires": write_time(now + timedelta(days=1))}
        return super().cleared(data, **(times | {"waivers": ()} | changes))


@pytest.fixture
def team(guarded: GuardedServer, name: str, tmp_path: Path) -> LiveTeam:
    return LiveTeam(world=MlflowWorld(uri=guarded.uri, folder=tmp_path), name=name, folder=tmp_path)


def now() -> datetime:
    return datetime.now(UTC)


def test_promoting_going_back_and_republishing_pass_the_guard(team: LiveTeam) -> None:
    for data in (b"one", b"two"):
        team.promote(team.cleared(data, onnx=b"graph" + data), now=now())
    assert team.holder() == 2
    team.rollback(now=now())
    assert team.holder() == 1
    outcome = team.promote(2, now=now(), republish=Destination()).outcome
    assert outcome is not None
    request = VerifyRequest(uri=f"models:/{team.name}-prod@champion", keys=KEYS, republished=team.name)
    assert verify(request, team.registry, now()).holds
    left = [key for n in (1, 2) for key, _ in resolve_text(team.registry, team.uri(n)).tags if EXPECT_TAG in key]
    assert left == []


def test_what_the_guard_refuses_leaves_nothing_behind(team: LiveTeam) -> None:
    """The caller trusts a key that the server does not."""
    number = team.cleared(signer=STRANGER)
    before = team.snapshot()
    with pytest.raises(GuardRefused, match="none of the keys that are accepted") as caught:
        team.promote(number, now=now(), keys=(public_key_of(STRANGER),))
    assert caught.value.exit_code is ExitCode.REFUSED
    assert "PERMISSION_DENIED" not in caught.value.message
    assert team.snapshot() == before
    assert CLEARANCE_TAG not in before["versions"][0]


def test_the_command_promotes_without_a_runtime_and_says_where_the_alias_points(team: LiveTeam) -> None:
    """Neither torch nor onnx is imported: their sight of a model's bytes is what a promotion must not have.

    Nor is what takes long and is for databases alone.
    """
    number = team.cleared()
    key = team.folder / "gate.key.pub"
    key.write_bytes(public_key_of(GATE).pem)
    script = (
        "import sys; from validator.boundary import _load_app, run; "
        "code = run(_load_app, sys.argv[1:], debug=False); "
        f"print(int(code), [name for name in {RUNTIMES + TAKES_LONG!r} if name in sys.modules], file=sys.stderr)"
    )

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *arguments, "--alias", "champion", "--key", str(key)],
            capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": team.world.uri},
        )  # fmt: skip

    done = command("promote", team.uri(number), "--expect-none", "--json")
    assert done.stderr == "0 []\n"
    document = json.loads(done.stdout)
    assert document["moved"]
    assert document["record"]["version"] == number
    assert document["headline"] == f"promoted: champion of {team.name} points to version 1, before: nobody"
    done = command("rollback", f"models:/{team.name}")
    assert done.stderr.startswith(
        f"error[usage]: nobody held champion of {team.name} before version 1, which still holds it\n"
    )
    assert done.stderr.endswith("2 []\n")


def restart(server: GuardedServer) -> None:
    """Start the server again where it was: its address is in the clearances."""
    shutil.rmtree(server.folder / "plugin")
    again = launch(
        server.folder,
        f"sqlite:///{server.folder}/server.db",
        port=int(server.uri.rpartition(":")[2]),
        config=server.folder / "guard.toml",
    )
    server.process = again.wait_until_ready().process


def test_a_server_that_is_killed_right_after_the_move_is_asked_again(guarded: GuardedServer, team: LiveTeam) -> None:
    """The last test here, since the server is started anew: what it had answered is in its database."""
    for data in (b"one", b"two"):
        team.cleared(data)
    team.promote(1, now=now())
    # The third look at the model is the one that reads the alias back.
    registry = Interrupted(team.registry, before_nth("read_model", 3, guarded.kill))
    with pytest.raises(RegistryUnreachable) as caught:
        team.promote(2, now=now(), registry=registry)  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE
    restart(guarded)
    assert team.holder() == 2
    record = team.record()
    assert record is not None
    assert record.version == 1
    assert INTENT_TAG + "champion" in team.tags()
    team.promote(2, now=now())
    record = team.record()
    assert record is not None
    assert (team.holder(), record.version, record.previous) == (2, 2, 1)
    assert INTENT_TAG + "champion" not in team.tags()
