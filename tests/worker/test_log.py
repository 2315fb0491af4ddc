import io
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from validator.worker.log import LINE_LIMIT, LogKeeper, clean_text

NASTY = st.text(
    st.sampled_from("\x1b[]0;m\x9b\x07\\\r\n\t:#vso ae\u202e\u2028\u200b\x85\ud800\x9d") | st.characters(), max_size=80
)


@given(NASTY)
@example("##[##[x")
@example(":\x1b[0m:error::x")
@example("###vso[task.complete]")
@example("\u00a0::warning::x")
def test_cleaned_text_does_nothing_to_whoever_prints_it(text):
    cleaned = clean_text(text)
    assert not any(unicodedata.category(c).startswith("C") for c in cleaned.replace("\n", ""))
    assert "##[" not in cleaned
    assert "##vso[" not in cleaned
    for line in cleaned.split("\n"):
        assert not line.strip().startswith("::")
        assert len(line) <= LINE_LIMIT
        assert line.splitlines() == ([line] if line else [])


@given(NASTY)
def test_cleaning_twice_changes_nothing(text):
    assert clean_text(clean_text(text)) == clean_text(text)


@given(st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters=":#"), max_size=LINE_LIMIT))
def test_plain_text_stays_as_it_is(text):
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;https://evil.example\x07link\x1b]8;;\x07", "link"),
        ("10%\r20%\r\ndone", "10%\n20%\ndone"),
        ("a\tb", "a    b"),
        ("::error::x", ": :error::x"),
        ("a::b", "a::b"),
        ("##[group]x", "# #[group]x"),
        ("abc\u202edcba", "abcdcba"),
        ("x" * 301, "x" * 299 + "…"),
    ],
)
def test_what_is_said_stays_legible(text, cleaned):
    assert clean_text(text) == cleaned


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 200))
def test_a_log_keeps_its_beginning_and_its_end(pieces, limit):
    stream = io.BytesIO()
    keeper = LogKeeper(stream, limit_bytes=limit)
    for piece in pieces:
        keeper.feed(piece)
    whole = b"".join(pieces)
    assert stream.getvalue() == whole[:limit]
    assert keeper.tail() == "\n".join(clean_text(whole.decode(errors="replace")).strip("\n").split("\n")[-20:])
