import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator.report.text import NAME_LIMIT, clean, clean_lines, enumerate_names, short_digest

HOSTILE = st.text() | st.lists(
    st.sampled_from(
        [
            "\x1b[2J",
            "\r\n",
            "::error::x",
            "##[group]",
            "##vso[x]",
            "\u202e",
            "\u2028",
            "\ud800",
            "a",
            " ",
            "\t",
            "\x9b",
            "::",
        ]
    )
).map("".join)


@given(HOSTILE)
def test_hostile_text_yields_no_control_format_or_surrogate_characters(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert not {unicodedata.category(c) for c in cleaned} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    cleaned.encode("utf-8")


@given(HOSTILE, st.integers(10, 300))
def test_hostile_text_never_holds_a_command_for_a_ci_runner(text: str, limit: int) -> None:
    cleaned = clean(text, limit=limit)
    assert all(not word.startswith("::") for word in cleaned.split())
    assert "##[" not in cleaned
    assert "##vso[" not in cleaned


@given(HOSTILE, st.integers(10, 300))
def test_cleaning_twice_changes_nothing(text: str, limit: int) -> None:
    assert clean(clean(text, limit=limit), limit=limit) == clean(text, limit=limit)


@given(HOSTILE, st.integers(10, 300))
def test_names_stay_within_their_limit(text: str, limit: int) -> None:
    assert len(clean(text, limit=limit)) <= limit


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("alexnet", "alexnet"),
        ("aten::dropout", "aten::dropout"),
        ("modèle 模型", "modèle 模型"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("::error::owned", ": :error::owned"),
        ("x ##[error]y", "x # #[error]y"),
        ("\u202eevil", "\\u202eevil"),
        ("two\nlines", "two\\nlines"),
        ("a\xa0b", "a\\xa0b"),
    ],
    ids=["plain", "operator", "unicode", "ansi", "github", "azure", "bidi", "newline", "no-break space"],
)
def test_names_that_are_honest_stay_and_others_are_shown(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_a_long_name_keeps_both_ends() -> None:
    cleaned = clean("a" * 500 + "z" * 500)
    assert len(cleaned) == NAME_LIMIT
    assert cleaned.startswith("aaa")
    assert cleaned.endswith("zzz")


def test_the_last_lines_of_a_log_are_kept() -> None:
    assert clean_lines("a\n\nb\n::c\n", lines=2) == ["b", ": :c"]


@pytest.mark.parametrize(
    ("digest", "shown"),
    [("sha256:" + "9f2c41d0" + "0" * 52 + "b7e3", "sha256:9f2c41d0..b7e3"), ("sha256:abc", "sha256:abc"), ("", "")],
    ids=["whole", "short", "empty"],
)
def test_digests_are_shown_by_their_ends(digest: str, shown: str) -> None:
    assert short_digest(digest) == shown


def test_many_names_end_in_a_count() -> None:
    assert enumerate_names(list("abcdef"), most=4) == "a, b, c, d and 2 more"
