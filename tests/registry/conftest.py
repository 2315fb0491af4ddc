"""Registries to test against: embedded SQLite, a real server, and the fake that other tests use."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from tests.conftest import Share
from tests.fakes import FakeRegistry
from tests.servers import Server, free_port
from validator.registry.interface import Registry
from validator.registry.mlflow_registry import MlflowRegistry, open_registry

MLFLOW_WARNINGS = (
    # MLflow's SQL store uses a loader strategy that SQLAlchemy has deprecated.
    "ignore::DeprecationWarning:mlflow.*",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for line in MLFLOW_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line), append=False)


class World(Protocol):
    """A registry, and what a team does to it behind the validator's back."""

    registry: Registry

    def register(self, name: str, files: Mapping[str, bytes], *, description: str | None = None) -> int: ...

    def set_alias(self, name: str, alias: str, version: int) -> None: ...

    def delete_model(self, name: str) -> None: ...

    def tags(self, name: str, version: int) -> Mapping[str, str]: ...

    def description(self, name: str, version: int) -> str | None: ...

    def count_runs(self, check_id: str) -> int: ...

    def history_length(self, run_id: str, metric: str) -> int: ...


@dataclass
class MlflowWorld:
    uri: str
    folder: Path
    warnings: list[str] = field(default_factory=list)
    registry: MlflowRegistry = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.registry = open_registry(self.uri, cwd=self.folder, warn=self.warnings.append)

    @property
    def client(self):
        return self.registry._connection.client

    def log_model(self, files: Mapping[str, bytes], *, run_id: str | None = None, name: str = "model") -> str:
        experiment = self.client.get_experiment_by_name("training")
        if experiment is None:
            location = None if self.uri.startswith("http") else (self.folder / "artifacts").as_uri()
            experiment_id = self.client.create_experiment("training", artifact_location=location)
        else:
            experiment_id = experiment.experiment_id
        if run_id is None:
            run_id = self.client.create_run(experiment_id).info.run_id
        model = self.client.create_logged_model(experiment_id, name=name, source_run_id=run_id)
        self.client.log_model_artifacts(model.model_id, str(write_files(self.folder / model.model_id, files)))
        self.client.finalize_logged_model(model.model_id, "READY")
        return model.model_id

    def register(self, name: str, files: Mapping[str, bytes], *, description: str | None = None) -> int:
        from mlflow.exceptions import MlflowException

        from validator.registry.publish import _global_uri

        model_id = self.log_model(files)
        with suppress(MlflowException):
            self.client.create_registered_model(name)
        run_id = self.client.get_logged_model(model_id).source_run_id
        with _global_uri(self.registry._connection):
            version = self.client.create_model_version(
                name, f"models:/{model_id}", run_id=run_id, model_id=model_id, description=description
            )
        return int(version.version)

    def set_alias(self, name: str, alias: str, version: int) -> None:
        self.client.set_registered_model_alias(name, alias, str(version))

    def delete_model(self, name: str) -> None:
        self.client.delete_registered_model(name)

    def tags(self, name: str, version: int) -> Mapping[str, str]:
        return self.client.get_model_version(name, str(version)).tags

    def description(self, name: str, version: int) -> str | None:
        return self.client.get_model_version(name, str(version)).description

    def find_runs(self, check_id: str) -> list:
        experiment = self.client.get_experiment_by_name("validator")
        if experiment is None:
            return []
        return self.client.search_runs([experiment.experiment_id], f"tags.`validator.check_id` = '{check_id}'")

    def count_runs(self, check_id: str) -> int:
        return len(self.find_runs(check_id))

    def history_length(self, run_id: str, metric: str) -> int:
        return len(self.client.get_metric_history(run_id, metric))


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def start_server(folder: Path) -> Server:
    """Start a server and wait until it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    return Server.launch(folder, free_port(), "--backend-store-uri", f"sqlite:///{folder}/server.db").wait_until_ready()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(tmp_path_factory.mktemp("server"))
    yield running
    running.kill()


@pytest.fixture(scope="session")
def blank_database(share: Share) -> Path:
    """An empty store: its migrations take seconds, so tests copy this one."""

    def migrate(folder: Path) -> None:
        world = MlflowWorld(uri=f"sqlite:///{folder}/mlflow.db", folder=folder)
        world.client.search_registered_models()
        world.client.search_experiments()

    return share("blank", migrate) / "mlflow.db"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test may reach a registry of the person who runs it, or of the test before."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    yield
    if "mlflow" in sys.modules:
        sys.modules["mlflow"].set_tracking_uri(None)


@pytest.fixture
def embedded(tmp_path: Path, blank_database: Path) -> MlflowWorld:
    folder = tmp_path / "embedded"
    folder.mkdir()
    shutil.copyfile(blank_database, folder / "mlflow.db")
    return MlflowWorld(uri=f"sqlite:///{folder}/mlflow.db", folder=folder)


@dataclass
class FakeWorld:
    folder: Path
    registry: FakeRegistry = field(default_factory=FakeRegistry)

    def register(self, name: str, files: Mapping[str, bytes], *, description: str | None = None) -> int:
        folder = write_files(self.folder / f"{name}-{time.monotonic_ns()}", files)
        return self.registry.add_version(name, folder, description=description)

    def set_alias(self, name: str, alias: str, version: int) -> None:
        self.registry.set_alias(name, alias, version)

    def delete_model(self, name: str) -> None:
        self.registry.delete_model(name)

    def tags(self, name: str, version: int) -> Mapping[str, str]:
        return self.registry.version(name, version).tags

    def description(self, name: str, version: int) -> str | None:
        return self.registry.version(name, version).description

    def count_runs(self, check_id: str) -> int:
        return int(check_id in self.registry.annotations)

    def history_length(self, run_id: str, metric: str) -> int:
        annotation = next(a for a in self.registry.annotations.values() if f"fake-{a.check_id}" == run_id)
        return int(metric in annotation.metrics)


@pytest.fixture(params=["embedded", "server", "fake"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "fake":
        return FakeWorld(folder=tmp_path / "fake")
    if request.param == "embedded":
        return request.getfixturevalue("embedded")
    return MlflowWorld(uri=request.getfixturevalue("server").uri, folder=tmp_path / "client")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model name of the test's own: the server is shared."""
    return f"alexnet-{abs(hash(request.node.nodeid)) % 10**9}-{time.monotonic_ns()}"
