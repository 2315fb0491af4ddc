"""What the streams can do: colour, width, animation."""

import os
import shutil
from enum import StrEnum
from typing import TextIO, assert_never

WIDTH_WITHOUT_TERMINAL = 120
WIDTH_MAX = 120


class ColorChoice(StrEnum):
    """`--color`."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def use_color(choice: ColorChoice, stream: TextIO) -> bool:
    """Decide on colour: the option, then NO_COLOR, then FORCE_COLOR, then what the stream is."""
    match choice:
        case ColorChoice.ALWAYS:
            return True
        case ColorChoice.NEVER:
            return False
        case ColorChoice.AUTO:
            if os.environ.get("NO_COLOR"):
                return False
            return bool(os.environ.get("FORCE_COLOR")) or is_live(stream)
        case _:
            assert_never(choice)


def is_live(stream: TextIO) -> bool:
    """Whether lines can be redrawn. FORCE_COLOR does not count: it asks for colour, not for animation."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def text_width(stream: TextIO) -> int:
    """Return the width for reports: the terminal's, but nothing is cut for a file or a pipe."""
    if not stream.isatty():
        return WIDTH_WITHOUT_TERMINAL
    return min(WIDTH_MAX, shutil.get_terminal_size().columns)
