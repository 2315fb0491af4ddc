"""The validator's block inside a description that belongs to the user. Pure text."""

import re
from collections.abc import Mapping

BEGIN = "<!-- validator:begin -->"
END = "<!-- validator:end -->"
TEXT_LIMIT = 5_000
"""MLflow's column is VARCHAR(5000); SQLite does not enforce it, other databases do."""
BLOCK_LIMIT = 1_500


def merge_description(old: str | None, block: str, limit: int = TEXT_LIMIT) -> tuple[str | None, str | None]:
    """Put a block into a description; the user's text stays byte for byte, and so do the old block's notes on aliases.

    The block goes where the last one was, else above the text: that is where the page shows it beside the version's
    aliases. If the whole would not stay below the limit, only the block's first and last line are written; if not
    even those fit, an older block is taken out, because a verdict that no longer holds is worse than none.

    Args:
        old: the present description.
        block: Markdown without markers; heading first, link last.
        limit: the text must be shorter than this.

    Returns:
        The new description, or None to leave it as it is; and a warning, if something had to give.
    """
    before, after, is_present = split_description(old or "")
    separator = "\n\n" if after and not is_present else ""
    notes = alias_notes(block_of(old or ""))
    no_room = "the description had no room for what became of the aliases"
    for candidate, warning in ((add_notes(block, notes), None), (block, no_room)):
        text = before + wrap_block(candidate) + separator + after
        if len(block) <= BLOCK_LIMIT and len(text) < limit:
            return text, warning
    text = before + wrap_block(shorten_block(block)) + separator + after
    if len(text) < limit:
        return text, "the description had no room for the whole block: heading and link only"
    warning = "the description has no room for the verdict: only the tags say it"
    return (before + after if is_present else None), warning


def note_alias(old: str | None, alias: str, line: str, limit: int = TEXT_LIMIT) -> tuple[str | None, str | None]:
    """Say below the block's heading what became of an alias, in the place of an earlier note on it.

    Args:
        old: the present description.
        alias: its name.
        line: Markdown without a line break, beginning with the alias as code; see `alias_notes`.
        limit: the text must be shorter than this.

    Returns:
        The new description, or None to leave it as it is; and a warning, if there was no room.
    """
    before, after, is_present = split_description(old or "")
    block = block_of(old or "")
    notes = alias_notes(block) | {alias: line}
    separator = "\n\n" if after and not is_present else ""
    text = before + wrap_block(add_notes(block, notes)) + separator + after
    if len(text) < limit:
        return text, None
    return None, f"the description has no room for what became of alias {alias}: only the tags say it"


def alias_notes(block: str) -> dict[str, str]:
    """Return a block's notes on aliases by alias: lines like "- ▲ `champion` since ..."."""
    return {match[1]: match[0] for match in re.finditer(r"^- [▲▽] `([\w-]+)` .*$", block, re.MULTILINE)}


def add_notes(block: str, notes: Mapping[str, str]) -> str:
    """Return a block with these notes below its heading, in the place of those that it has."""
    kept = [line for line in block.strip().splitlines() if not re.match(r"- [▲▽] `[\w-]+` ", line)]
    return "\n".join([*kept[:1], *notes.values(), *kept[1:]])


def block_of(text: str) -> str:
    """Return what stands between the markers; nothing if there is no block."""
    before, after, is_present = split_description(text)
    return text[len(before) + len(BEGIN) : len(text) - len(after) - len(END)].strip() if is_present else ""


def split_description(text: str) -> tuple[str, str, bool]:
    """Return the user's text before and after the block, and whether there is a block.

    A marker without its partner is the user's text, so a block runs from the *nearest* begin to the first end.
    """
    end = text.find(END)
    while end >= 0:
        begin = text.rfind(BEGIN, 0, end)
        if begin >= 0:
            return text[:begin], text[end + len(END) :], True
        end = text.find(END, end + 1)
    return "", text, False


def wrap_block(block: str) -> str:
    """Return the block between its markers. Comments inside are defused: they could close it early."""
    return f"{BEGIN}\n{block.strip().replace('<!--', '&lt;!--')}\n{END}"


def shorten_block(block: str) -> str:
    """Return heading and link: the first and the last line, cut to a size that always fits a block."""
    lines = [line for line in block.strip().splitlines() if line.strip()] or [""]
    kept = lines if len(lines) == 1 else [lines[0], "", lines[-1]]
    return "\n".join(line[: BLOCK_LIMIT // 3] for line in kept)
