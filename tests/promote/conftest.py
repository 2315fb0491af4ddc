"""Registries of the registry's tests, and a team that uses one."""

from pathlib import Path

import pytest

from tests.promote.world import Team
from tests.registry.conftest import (
    MLFLOW_WARNINGS,
    FakeWorld,
    MlflowWorld,
    blank_database,
    clean_environment,
    embedded,
    name,
    server,
)

__all__ = ["blank_database", "clean_environment", "embedded", "name", "server"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for line in MLFLOW_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line), append=False)


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """On the fake registry, which passes the contract of the real one."""
    return Team(world=FakeWorld(folder=tmp_path / "fake"), name="net", folder=tmp_path)


@pytest.fixture
def real_team(embedded: MlflowWorld, tmp_path: Path) -> Team:
    return Team(world=embedded, name="net", folder=tmp_path)
