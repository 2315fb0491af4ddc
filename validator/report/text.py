"""Text from models, datasets and workers, made safe to print.

Names of models, tags, tensors and operators are written by whoever registered the model. In a terminal a control
character is an instruction, in a CI log a line that begins with `::` or holds `##[` is a command to the runner, and
a bidi control turns one name into another. All of them are shown, none of them works.
"""

import re

NAME_LIMIT = 200
"""Characters of one name; longer ones are cut in the middle, so that both ends can be recognised."""

_RUNNER_COMMAND = re.compile(r"(?<!\S):{2,}|#{2,}(?=\w*\[)")
"""GitHub reads `::` after leading blanks as a command, `##[` anywhere; Azure reads `##vso[`, TeamCity `##teamcity[`."""


def clean(text: str, *, limit: int = NAME_LIMIT) -> str:
    r"""Return one printable line: controls, ANSI, bidi and line separators become visible escapes like `\x1b`.

    Cleaning twice changes nothing.
    """
    # Nearly every text is printable, and looking at it as a whole is a hundred times faster.
    visible = text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)
    return _shorten(_RUNNER_COMMAND.sub(_defuse, visible), limit)


def clean_lines(text: str, *, lines: int) -> list[str]:
    """Return the last lines of a worker's output, each cleaned."""
    kept = [line for line in text.splitlines() if line.strip()]
    return [clean(line) for line in kept[-lines:]]


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _defuse(match: re.Match[str]) -> str:
    return " ".join(match[0])


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = (limit - 2) * 2 // 3
    return text[:head] + ".." + text[len(text) - (limit - 2 - head) :]


def short_digest(digest: str) -> str:
    """Return `sha256:9f2c41d0..b7e3`: enough to compare by eye; whole digests are in the document."""
    algorithm, separator, value = clean(digest).rpartition(":")
    return f"{algorithm}{separator}{value[:8]}..{value[-4:]}" if len(value) > 14 else clean(digest)


def enumerate_names(names: list[str], *, most: int = 4) -> str:
    """Join cleaned names with commas, the tail as a count."""
    shown = [clean(name) for name in names[:most]]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
