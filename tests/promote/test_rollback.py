"""Going back: quick, and to nothing that was never cleared."""

from datetime import timedelta

import pytest

from tests.attest.world import STRANGER, digest
from tests.promote.world import NOW, Holder, Team
from validator.attest.judgement import Allowed
from validator.errors import ClearanceRefused, ExitCode, PromotionRefused, UriError, UsageError, ValidatorError
from validator.promotion import INTENT_TAG, Level
from validator.registry.interface import CLEARANCE_TAG, PREVIOUS_TAG, RUN_TAG

LATER = NOW + timedelta(days=90)
"""By then every clearance has expired."""


@pytest.fixture
def promoted(team: Team) -> Team:
    """Version 1 was promoted, then version 2."""
    for data in (b"one", b"two"):
        team.promote(team.cleared(data))
    return team


def test_the_alias_goes_back_to_the_version_before(promoted: Team) -> None:
    outcome = promoted.rollback().outcome
    assert outcome is not None
    assert promoted.holder() == 1
    record = promoted.record()
    assert record is not None
    assert (record.level, record.version, record.previous) == (Level.ROLLBACK, 1, 2)
    assert promoted.tags()[PREVIOUS_TAG + "champion"] == "2"
    assert INTENT_TAG + "champion" not in promoted.tags()
    assert "rolled back to" in (promoted.world.description("net", 1) or "")
    assert "\u25bd `champion` until 2026-12-01 12:00 UTC \u00b7 rolled back to version 1" in (
        promoted.world.description("net", 2) or ""
    )


def test_again_it_does_not_go_forth(promoted: Team) -> None:
    """Two people on call, one after the other."""
    promoted.rollback()
    before = promoted.snapshot()
    again = promoted.rollback(now=LATER).outcome
    assert again is not None
    assert not again.is_moved
    assert promoted.snapshot() == before


def test_a_version_that_was_rolled_back_can_be_promoted_again(promoted: Team) -> None:
    promoted.rollback()
    promoted.promote(2)
    assert promoted.holder() == 2
    promoted.rollback()
    assert promoted.holder() == 1


def test_an_expired_clearance_is_good_enough_to_go_back_to(promoted: Team) -> None:
    assert promoted.rollback(now=LATER).outcome is not None
    assert promoted.holder() == 1


def test_any_earlier_version_can_be_named(promoted: Team) -> None:
    promoted.promote(promoted.cleared(b"three"))
    promoted.rollback(to=1, expect=Holder(version=3))
    assert promoted.holder() == 1


def test_another_holder_than_expected_is_refused(promoted: Team) -> None:
    with pytest.raises(PromotionRefused, match="held by version 2, expected was version 3"):
        promoted.rollback(expect=Holder(version=3))
    assert promoted.holder() == 2


def test_bytes_that_were_changed_since_are_not_gone_back_to(promoted: Team) -> None:
    from tests.promote.test_attacks import overwrite

    overwrite(promoted, 1)
    rolled = promoted.rollback()
    assert rolled.outcome is None
    assert promoted.holder() == 2


def test_a_version_that_was_never_cleared_is_not_gone_back_to(team: Team) -> None:
    team.register(b"never checked")
    team.world.set_alias("net", "champion", 1)
    team.promote(team.cleared(b"two"))
    with pytest.raises(ClearanceRefused):
        team.rollback()
    team.rollback(keys=(), reason="2 answers nonsense")
    assert team.holder() == 1
    record = team.record()
    assert record is not None
    assert (record.reason, record.clearance) == ("2 answers nonsense", None)
    assert "without a clearance" in (team.world.description("net", 1) or "")


def test_a_clearance_by_a_stranger_is_none(team: Team) -> None:
    team.clear(team.register(b"one"), signer=STRANGER)
    team.world.set_alias("net", "champion", 1)
    team.promote(team.cleared(b"two"))
    assert team.rollback().outcome is None
    assert team.holder() == 2


def test_a_forged_record_leads_to_nothing_uncleared(promoted: Team) -> None:
    backdoor = promoted.register(b"backdoor")
    registry = promoted.registry
    record = promoted.record()
    assert record is not None
    forged = record.model_copy(update={"previous": backdoor}).to_text()
    registry.tag_model("net", "validator.promotion.champion", forged)
    with pytest.raises(ClearanceRefused):
        promoted.rollback()
    assert promoted.holder() == 2


def test_the_policies_that_a_job_accepts_hold_for_going_back_too(promoted: Team) -> None:
    """A forged record may name any version that was ever cleared, by a laxer policy as well."""
    refused = promoted.rollback(allowed=Allowed(policies=frozenset({digest("0")})))
    assert refused.outcome is None
    assert promoted.holder() == 2
    assert promoted.rollback(allowed=Allowed(policies=frozenset({digest("e")}))).outcome is not None
    assert promoted.holder() == 1


def test_an_alias_that_somebody_else_moved_needs_a_number(promoted: Team) -> None:
    promoted.world.set_alias("net", "champion", promoted.cleared(b"three"))
    with pytest.raises(PromotionRefused, match="somebody else moved it since") as caught:
        promoted.rollback()
    assert "--to VERSION" in (caught.value.hint or "")
    promoted.rollback(to=2)
    assert promoted.holder() == 2


def test_a_promotion_that_was_killed_after_its_move_can_be_taken_back(promoted: Team) -> None:
    third = promoted.cleared(b"three")
    promoted.promote(third)
    record = promoted.record()
    assert record is not None
    promoted.registry.tag_model("net", INTENT_TAG + "champion", record.to_text())
    promoted.registry.tag_model("net", "validator.promotion.champion", None)
    promoted.rollback()
    assert promoted.holder() == 2
    assert INTENT_TAG + "champion" not in promoted.tags()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"alias": "gone"}, UriError, "has no alias gone"),
        ({"alias": "latest"}, UsageError, "word of MLflow's own"),
        ({"name": "other"}, UriError, "no model other"),
        ({"keys": ()}, UsageError, "no key is given"),
        ({"reason": "why"}, UsageError, "none is verified"),
        ({"keys": (), "reason": " "}, UsageError, "the reason is empty"),
        ({"keys": (), "reason": "x" * 501}, UsageError, "longer than 500"),
        ({"to": 9}, UriError, "has no version 9"),
    ],
)
def test_what_makes_no_sense_is_said(promoted: Team, options, error: type[ValidatorError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        promoted.rollback(**options)
    assert caught.value.exit_code is ExitCode.USAGE
    assert promoted.holder() == 2


def test_without_a_former_holder_there_is_nothing_to_go_back_to(team: Team) -> None:
    team.promote(team.cleared())
    with pytest.raises(UsageError, match="nobody held champion of net before version 1"):
        team.rollback()


def test_without_a_record_there_is_nothing_to_go_back_to(team: Team) -> None:
    team.cleared()
    team.world.set_alias("net", "champion", 1)
    with pytest.raises(UsageError, match="no promotion recorded"):
        team.rollback()


def test_the_clearance_of_the_promotion_outlives_the_checks_run(promoted: Team) -> None:
    """A later check that fails takes the run's place in the tags; what the version was promoted with stays."""
    promoted.registry.tag_version("net", 1, RUN_TAG, "fake-gone")
    assert promoted.rollback().outcome is not None
    promoted.promote(2)
    promoted.registry.tag_version("net", 1, CLEARANCE_TAG, None)
    with pytest.raises(ClearanceRefused):
        promoted.rollback()
