"""Runs the corpus: each model registered in a real MLflow and checked by the program."""

from collections.abc import Mapping
from pathlib import Path

from tests.hostile import artifacts
from tests.hostile.cases import Case
from tests.hostile.world import Ended, World, observe, open_world, run_program
from tests.registry.conftest import MlflowWorld


class Corpus:
    """A registry of hostile models, and a folder for checks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._registry = MlflowWorld(uri=f"sqlite:///{folder / 'mlflow.db'}", folder=folder / "registry")
        self._program = artifacts.exported()
        self._count = 0

    def check(self, case: Case) -> Ended:
        """Register a hostile model and check it, in surroundings of its own."""
        self._count += 1
        with open_world(self._folder / f"world-{self._count}") as world:
            places = world.places()
            version = self._register(case, places)
            world.write_policy(required=case.required, pickle=case.pickle, deadline_s=case.deadline_s)
            before = world.fingerprint()
            ended = run_program(world, f"models:/hostile/{version}", self._registry.uri, is_apart=case.is_apart)
            return observe(world, before, ended)

    def _register(self, case: Case, places: Mapping[str, object]) -> int:
        known = set(self._stored())
        version = self._registry.register("hostile", case.files(places, self._program))
        if case.tamper is not None:
            (stored,) = set(self._stored()) - known
            case.tamper(stored.parent, places)
        return version

    def _stored(self) -> list[Path]:
        return list((self._registry.folder / "artifacts").rglob("MLmodel"))


__all__ = ["Corpus", "World"]
