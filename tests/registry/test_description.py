"""Description merging: the user's text is never lost, and twice is once."""

from hypothesis import given
from hypothesis import strategies as st

from validator.registry.description import (
    BEGIN,
    BLOCK_LIMIT,
    END,
    alias_notes,
    block_of,
    merge_description,
    note_alias,
    split_description,
)

# Texts that are likely to trip over markers: whole ones, broken ones, nested ones.
pieces = st.sampled_from([BEGIN, END, "<!--", "-->", "\n", "user text", "**bold**", "é", "\r\n", " "]) | st.text(
    max_size=20
)
texts = st.lists(pieces, max_size=12).map("".join)
limits = st.integers(min_value=0, max_value=600) | st.just(5000)


def users_part(text: str) -> str:
    before, after, _ = split_description(text)
    return before + after


def test_an_empty_description_becomes_the_block_alone():
    assert merge_description(None, "**pass**") == (f"{BEGIN}\n**pass**\n{END}", None)


def test_the_block_stands_above_the_users_text():
    text, warning = merge_description("My notes.", "**pass**")
    assert text == f"{BEGIN}\n**pass**\n{END}\n\nMy notes."
    assert warning is None


def test_a_new_block_takes_the_place_of_the_old_one():
    old = f"above {BEGIN}\nold\n{END}\n below"
    assert merge_description(old, "new") == (f"above {BEGIN}\nnew\n{END}\n below", None)


def test_a_marker_without_its_partner_is_the_users_text():
    for old in (f"notes {BEGIN} more", f"{END} notes", f"a {END} b {BEGIN} c"):
        text, _ = merge_description(old, "block")
        assert text is not None
        assert text.endswith(old)
        assert merge_description(text, "block")[0] == text


def test_a_text_without_room_gets_heading_and_link_only():
    block = "**fail** heading\n- finding\n- finding\n\n[report](x)"
    old = "u" * (5000 - len(f"{BEGIN}\n**fail** heading\n\n[report](x)\n{END}\n\n") - 1)
    text, warning = merge_description(old, block)
    assert text is not None
    assert len(text) == 4999
    assert "finding" not in text
    assert "**fail** heading\n\n[report](x)" in text
    assert warning is not None
    assert "heading and link only" in warning


def test_a_full_text_is_left_alone_with_a_warning():
    text, warning = merge_description("u" * 4990, "**fail**\n[report](x)")
    assert text is None
    assert warning is not None


def test_a_stale_block_that_cannot_be_replaced_is_taken_out():
    """A pass of last week above a version that fails today would be worse than no block."""
    old = f"{BEGIN}\n**pass**\n{END}" + "u" * 4940
    text, warning = merge_description(old, "**fail** " + "x" * 400 + "\n[report](x)")
    assert text == "u" * 4940
    assert warning is not None


def test_a_block_over_its_limit_is_shortened_although_the_text_has_room():
    text, warning = merge_description(None, "heading\n" + "x" * BLOCK_LIMIT + "\nlink")
    assert text == f"{BEGIN}\nheading\n\nlink\n{END}"
    assert warning is not None


def test_a_block_cannot_close_itself_early():
    text, _ = merge_description("notes", f"a {END} b {BEGIN} c")
    assert text is not None
    assert users_part(text) == "\n\nnotes"


@given(old=st.none() | texts, block=texts, limit=limits)
def test_users_text_is_never_lost(old, block, limit):
    text, _ = merge_description(old, block, limit)
    if text is not None:
        kept = users_part(text)
        before, after, had_block = split_description(old or "")
        assert kept == before + after or (not had_block and kept.removeprefix("\n\n") == old)


@given(old=st.none() | texts, block=texts, limit=limits)
def test_applying_twice_is_applying_once(old, block, limit):
    once, _ = merge_description(old, block, limit)
    now = old if once is None else once
    again, _ = merge_description(now, block, limit)
    assert again is None or again == now


@given(old=st.none() | texts, block=texts, limit=limits)
def test_the_text_stays_below_the_limit_or_untouched(old, block, limit):
    text, warning = merge_description(old, block, limit)
    if text is None:
        assert warning is not None
    else:
        assert len(text) < limit or len(text) < len(old or "")


@given(old=st.none() | texts, first=texts, second=texts)
def test_there_is_never_a_second_block_of_ours(old, first, second):
    once, _ = merge_description(old, first)
    twice, _ = merge_description(once, second)
    assert (twice or "").count(BEGIN) == (once or "").count(BEGIN)


# --- Notes on aliases ---------------------------------------------------------------------------------------------

NOTE = "- \u25b2 `champion` since 2026-12-01 12:00 UTC"
LOSS = "- \u25bd `champion` until 2026-12-02 12:00 UTC"


@given(texts, limits)
def test_a_note_leaves_the_users_text_alone_and_twice_is_once(old: str, limit: int):
    text, warning = note_alias(old, "champion", NOTE, limit)
    if text is None:
        assert warning is not None
        return
    assert len(text) < limit
    assert warning is None
    assert users_part(text).strip() == users_part(old).strip()
    assert alias_notes(block_of(text))["champion"] == NOTE
    assert note_alias(text, "champion", NOTE, limit) == (text, None)


def test_a_note_stands_below_the_heading_and_takes_the_place_of_the_last_one():
    text, _ = note_alias(f"{BEGIN}\n**pass** heading\n- within\n{END}\n\nMine.", "champion", NOTE)
    assert text == f"{BEGIN}\n**pass** heading\n{NOTE}\n- within\n{END}\n\nMine."
    text, _ = note_alias(text, "champion", LOSS)
    assert text == f"{BEGIN}\n**pass** heading\n{LOSS}\n- within\n{END}\n\nMine."


def test_a_later_check_keeps_what_became_of_the_aliases():
    noted, _ = note_alias(f"{BEGIN}\n**pass** heading\n{END}", "champion", NOTE)
    text, warning = merge_description(noted, "**fail** heading\n- exceeded\n\nreport")
    assert warning is None
    assert block_of(text or "") == f"**fail** heading\n{NOTE}\n- exceeded\n\nreport"


def test_a_verdict_comes_before_what_became_of_the_aliases_where_there_is_room_for_one():
    noted, _ = note_alias(None, "champion", NOTE)
    block = "**pass** heading\n\nreport"
    limit = len(f"{BEGIN}\n{block}\n{END}") + 1
    assert merge_description(noted, block, limit) == (
        f"{BEGIN}\n{block}\n{END}",
        "the description had no room for what became of the aliases",
    )
