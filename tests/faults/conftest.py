"""Registries of the registry's tests."""

from pathlib import Path

import pytest

from tests.registry.conftest import MLFLOW_WARNINGS, blank_database, clean_environment

__all__ = ["blank_database", "clean_environment"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for line in MLFLOW_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line), append=False)
