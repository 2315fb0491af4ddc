import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.postgres import create_database, run_postgres
from tests.registry.conftest import MLFLOW_WARNINGS

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for line in MLFLOW_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line), append=False)


@pytest.fixture(scope="session")
def blank_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: its migrations take seconds, so tests copy this one."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    path = tmp_path_factory.mktemp("blank") / "registry.db"
    SqlAlchemyStore(f"sqlite:///{path}")._dispose_engine()
    return path


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A server with an empty store in the database `blank`, which tests copy."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    with run_postgres() as uri:
        SqlAlchemyStore(create_database(uri, "blank"))._dispose_engine()
        yield uri


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which database; a test that needs only one says so."""
    return request.param


@pytest.fixture
def database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of the test's own."""
    if kind == "sqlite":
        copy = tmp_path / "registry.db"
        shutil.copyfile(request.getfixturevalue("blank_sqlite"), copy)
        return f"sqlite:///{copy}"
    return create_database(request.getfixturevalue("postgres"), f"test_{next(_numbers)}", "blank")


@pytest.fixture
def world(database: str, tmp_path: Path) -> Iterator["GuardWorld"]:  # noqa: F821  imported late: it imports mlflow
    from tests.guard.world import GuardWorld

    made = GuardWorld(folder=tmp_path / "models", uri=database, name="net")
    yield made
    made.store._dispose_engine()
