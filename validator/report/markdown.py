"""Markdown from foreign names: nothing in a name becomes a link, a mention, markup or HTML."""

import re
from urllib.parse import quote

from validator.report.text import clean

_MARKUP = re.compile(r"([\\`*_{}\[\]()<>+!|~&$])")
_REFERENCE = re.compile(r"(?i)([@#]|(?<![^\W_])GH(?=-\d))")
"""How GitHub's mentions and references to issues begin: a backslash before them does not stop it."""
_BARE_LINK = re.compile(r"(?i)(https?|ftp|mailto|www)([:.])")


def escape(text: str, *, limit: int = 200) -> str:
    """Return one cleaned line in which no character is markup; no address, mention or reference becomes a link."""
    escaped = _MARKUP.sub(r"\\\1", clean(text, limit=limit))
    # GitHub links those without any markup; a zero-width entity within breaks that and cannot be seen.
    return _BARE_LINK.sub(r"\1&#8203;\2", _REFERENCE.sub(r"\1&#8203;", escaped))


def code(text: str, *, limit: int = 200) -> str:
    """Return a code span. A backtick inside would end it, so it becomes an apostrophe."""
    return "`" + (clean(text, limit=limit).replace("`", "'").strip() or " ") + "`"


def link(label: str, uri: str) -> str:
    """Return a link where a browser can follow it, else the address as code: `runs:/...` leads nowhere."""
    if not re.match(r"https?://", uri):
        return f"{escape(label)} {code(uri)}"
    return f"[{escape(label)}]({quote(uri, safe=':/?#@&=+,;%~.-_')})"
