"""Promotions, and what may be wrong with them."""

from datetime import timedelta

import pytest

from tests.promote.world import NOW, Holder, Team
from validator.errors import PromotionRefused
from validator.promotion import INTENT_TAG, Level
from validator.registry.interface import CLEARANCE_TAG, EXPECT_TAG, PREVIOUS_TAG, resolve_text


def test_the_alias_moves_and_the_record_says_by_what_right(team: Team) -> None:
    first, second = team.cleared(b"one"), team.cleared(b"two")
    assert team.promote(first).outcome.is_moved
    promotion = team.promote(second, expect=Holder(version=first))
    assert team.holder() == second
    record = team.record()
    assert record == promotion.outcome.record
    assert (record.level, record.version, record.previous) == (Level.ALIAS, second, first)
    tags = team.tags()
    assert tags[PREVIOUS_TAG + "champion"] == str(first)
    assert INTENT_TAG + "champion" not in tags
    version_tags = dict(resolve_text(team.registry, team.uri(second)).tags)
    assert record.clearance is not None
    assert version_tags[CLEARANCE_TAG].startswith('{"payload":')
    assert EXPECT_TAG + "champion" not in version_tags


def test_the_descriptions_say_who_holds_the_alias_and_who_held_it(team: Team) -> None:
    first, second = team.cleared(b"one"), team.cleared(b"two")
    team.promote(first)
    team.promote(second)
    assert "- ▽ `champion` until 2026-12-01 12:00 UTC · then version 2" in team.world.description("net", first)
    assert "- ▲ `champion` since 2026-12-01 12:00 UTC" in team.world.description("net", second)
    assert "before: version 1" in team.world.description("net", second)


def test_again_when_it_is_done_changes_nothing(team: Team) -> None:
    number = team.cleared()
    team.promote(number)
    before = team.snapshot()
    again = team.promote(number, now=NOW + timedelta(hours=1), expect=Holder(version=None))
    assert again.outcome is not None
    assert not again.outcome.is_moved
    assert team.snapshot() == before


@pytest.mark.parametrize(("expected", "words"), [(7, "expected was version 7"), (None, "expected was nobody")])
def test_another_holder_than_expected_is_refused_and_nothing_is_written(team: Team, expected, words) -> None:
    first, second = team.cleared(b"one"), team.cleared(b"two")
    team.promote(first)
    before = team.snapshot()
    with pytest.raises(PromotionRefused, match=f"held by version 1, {words}"):
        team.promote(second, expect=Holder(version=expected))
    assert team.snapshot() == before
