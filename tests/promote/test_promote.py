"""Promotions, and what may be wrong with them."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.attest.world import STRANGER
from tests.promote.world import NOW, Holder, Interrupted, Team, before_nth
from validator.attest.keys import public_key_of
from validator.errors import CouldNotRun, PromotionRefused, RegistryUnreachable, ValidatorError
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


def files_of(team: Team, number: int) -> Path:
    return Path(resolve_text(team.registry, team.uri(number)).download_uri.removeprefix("file://"))


@pytest.mark.parametrize("error", [CouldNotRun("net version 2 holds no files"), RegistryUnreachable("it drops them")])
def test_files_that_cannot_be_looked_at_again_lose_the_alias(team: Team, error: ValidatorError) -> None:
    """Deleted between the verification and the second look, they could be written anew once nobody looks."""
    first, second = team.cleared(b"one"), team.cleared(b"two")
    team.promote(first)

    def fail() -> None:
        raise error

    with pytest.raises(PromotionRefused, match="points to version 1 again"):
        team.promote(second, registry=Interrupted(team.registry, before_nth("stage", 2, fail)))
    assert team.holder() == first


def test_a_promotion_that_died_before_its_second_look_is_taken_back_if_the_bytes_changed_since(team: Team) -> None:
    first, second = team.cleared(b"one"), team.cleared(b"two")
    team.promote(first)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        team.promote(second, registry=Interrupted(team.registry, before_nth("stage", 2, die)))
    assert team.holder() == second
    assert team.promote(second, keys=(public_key_of(STRANGER),)).outcome is None
    assert team.holder() == second, "a wrong key says nothing about the bytes"
    overwrite(files_of(team, second))
    with pytest.raises(PromotionRefused, match="did not end, and is another now; champion of net points to version 1"):
        team.promote(second)
    assert team.holder() == first
    assert INTENT_TAG + "champion" not in team.tags()


def overwrite(folder: Path) -> None:
    weights = next(path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "MLmodel")
    weights.chmod(0o644)
    weights.write_bytes(b"others")
