"""A worker's own words: hostile text, kept small, and made fit for a terminal, a CI log and a report."""

import re
import unicodedata
from typing import BinaryIO

LINE_LIMIT = 300
"""Characters."""
TAIL_LINES = 20
_TAIL_BYTES = 1 << 16

_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # OSC and kin: title, links
    r"|\x1b[ -/]*[0-~]"
)
_LINE_BREAK = re.compile(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_COMMAND_AT_START = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
_COMMAND_ANYWHERE = re.compile(r"##(?=\w*\[)")


def clean_text(text: str) -> str:
    """Make foreign text harmless: what it says stays legible, what it does is taken away.

    Escape sequences, control characters but newline and tab, and invisible or direction-changing characters go.
    Workflow commands of CI systems (`::error::` at the start of a line, `##[error]` and `##vso[...]` anywhere)
    are broken by a space. Every exotic line break becomes a newline; lines are cut at 300 characters. Cleaning
    twice changes nothing.
    """
    text = _LINE_BREAK.sub("\n", _ESCAPE_SEQUENCE.sub("", text))
    text = "".join(filter(_is_visible, text.replace("\t", "    ")))
    text = _COMMAND_ANYWHERE.sub("# #", _COMMAND_AT_START.sub(r"\1: ", text))
    return "\n".join(map(_bound, text.split("\n")))


def tail(text: str) -> str:
    """Return the last 20 lines, cleaned."""
    return "\n".join(clean_text(text).strip("\n").split("\n")[-TAIL_LINES:])


def _is_visible(character: str) -> bool:
    # Cc control, Cf invisible and bidi, Cs lone surrogates, Co and Cn without a meaning that anybody could see.
    return character == "\n" or not unicodedata.category(character).startswith("C")


def _bound(line: str) -> str:
    return line if len(line) <= LINE_LIMIT else line[: LINE_LIMIT - 1] + "…"


class LogKeeper:
    """Keeps the beginning of a log on disk, up to a limit in bytes, and its end in memory."""

    def __init__(self, stream: BinaryIO, *, limit_bytes: int) -> None:
        self._stream = stream
        self._left = limit_bytes
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            OSError: the file cannot be written.
        """
        if self._left:
            self._stream.write(data[: self._left])
            self._left -= min(self._left, len(data))
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def tail(self) -> str:
        """Return the last lines, cleaned."""
        return tail(self._tail.decode(errors="replace"))
