"""Snapshots: committed texts of every rendering. `VALIDATOR_UPDATE_SNAPSHOTS=1 pytest tests/report` writes them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "snapshots"

MatchSnapshot = Callable[[str, str], None]


@pytest.fixture
def match_snapshot() -> MatchSnapshot:
    """Compare a text with the committed one of that name."""

    def match(name: str, text: str) -> None:
        path = FOLDER / name
        if os.environ.get("VALIDATOR_UPDATE_SNAPSHOTS") == "1":
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return match
