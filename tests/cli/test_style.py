import io

import pytest

from validator.cli.style import ColorChoice, is_live, text_width, use_color


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_has_colour_and_animation_and_a_pipe_neither() -> None:
    assert use_color(ColorChoice.AUTO, Terminal())
    assert is_live(Terminal())
    assert not use_color(ColorChoice.AUTO, io.StringIO())
    assert not is_live(io.StringIO())


def test_a_dumb_terminal_has_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not use_color(ColorChoice.AUTO, Terminal())
    assert not is_live(Terminal())


def test_force_color_turns_on_colour_but_no_animation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert use_color(ColorChoice.AUTO, io.StringIO())
    assert not is_live(io.StringIO())


def test_no_color_wins_over_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_color(ColorChoice.AUTO, Terminal())
    assert use_color(ColorChoice.ALWAYS, Terminal())


def test_the_width_is_the_terminals_up_to_120(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text_width(io.StringIO()) == 120
    for columns, width in (("80", 80), ("300", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert text_width(Terminal()) == width
