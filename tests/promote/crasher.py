"""Kill a promotion at every crash point, and say what it left behind and what the same command made of that.

A program of its own: it imports MLflow once and forks a process for every attempt, so that each begins without an open
database, and none pays for the imports. Prints one JSON document.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow.store.model_registry import sqlalchemy_store as _registry_store  # noqa: F401 - imported before the forks
from mlflow.store.tracking import sqlalchemy_store as _tracking_store  # noqa: F401 - likewise

from tests.promote.world import Team
from tests.registry.conftest import MlflowWorld
from validator.faults import CRASH_AT
from validator.promotion import INTENT_TAG, read_record
from validator.republish import Destination

POINTS_MAX = 40


def in_fork(deed: Callable[[], Any]) -> tuple[int, Any, str]:
    """Run a deed in a process of its own; return its wait status, what it returned, and its standard error."""
    reader, writer = os.pipe()
    errors, error_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(error_writer, 2)
        code = 1
        try:
            os.write(writer, json.dumps(deed()).encode())
            code = 0
        except BaseException as error:  # noqa: BLE001 - the parent says it
            os.write(2, repr(error).encode())
        finally:
            os._exit(code)
    os.close(writer)
    os.close(error_writer)
    with os.fdopen(reader, "rb") as answer, os.fdopen(errors, "rb") as said:
        data, words = answer.read(), said.read().decode()
    _, status = os.waitpid(child, 0)
    return status, json.loads(data) if data else None, words


def main(folder: Path, level: str) -> None:
    destination = Destination() if level == "republish" else None
    name = "net" if destination is None else "net-prod"

    def open_team() -> Team:
        return Team(world=MlflowWorld(uri=f"sqlite:///{folder}/mlflow.db", folder=folder), name="net", folder=folder)

    def promote(number: int) -> None:
        open_team().promote(number, republish=destination)

    def prepare() -> None:
        team = open_team()
        for data in (b"one", b"two"):
            team.cleared(data, onnx=b"graph" + data)
        promote(1)

    def look() -> dict[str, Any]:
        team = open_team()
        state = team.registry.read_model(name)
        record = team.record(name=name)
        intent = read_record(state.tags.get(INTENT_TAG + "champion"))
        versions = team.world.client.search_model_versions(f"name='{name}'")
        return {
            "holder": state.aliases.get("champion"),
            "recorded": None if record is None else record.version,
            "previous": None if record is None else record.previous,
            "intended": None if intent is None else intent.version,
            "tags": sorted(state.tags),
            "versions": {v.version: sorted(v.tags) for v in versions},
            "notes": {v.version: (v.description or "").count("`champion`") for v in versions},
        }

    def look_and_promote_again() -> list[dict[str, Any]]:
        found = look()
        promote(2)
        return [found, look()]

    status, _, words = in_fork(prepare)
    if status:
        raise SystemExit(words)
    before = folder / "before.db"
    shutil.copyfile(folder / "mlflow.db", before)
    attempts = []
    for point in range(1, POINTS_MAX):
        shutil.copyfile(before, folder / "mlflow.db")
        os.environ[CRASH_AT] = str(point)
        ended, _, words = in_fork(lambda: promote(2))
        del os.environ[CRASH_AT]
        status, looks, later = in_fork(look_and_promote_again)
        if status:
            raise SystemExit(f"after {words}: {later}")
        attempts.append({"point": words.strip(), "ended": ended, "left": looks[0], "finished": looks[1]})
        # From its intent on, republishing is the same as moving the alias of any model.
        if not os.WIFSIGNALED(ended) or (destination is not None and INTENT_TAG in words):
            break
    json.dump(attempts, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
