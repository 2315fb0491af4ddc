"""What somebody may do so that an alias moves to what was not cleared. Each row stands in docs/promotion.md."""

import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.attest.world import GATE, NOW, STRANGER, digest, edit_payload, seal_payload
from tests.promote.world import Holder, Interrupted, Team, before_nth
from tests.registry.conftest import FakeWorld
from validator.attest.judgement import Allowed
from validator.attest.statement import make_statement
from validator.errors import ClearanceRefused, ExitCode, PromotionRefused, RegistryUnreachable
from validator.promotion import INTENT_TAG, PROMOTION_TAG
from validator.registry.interface import EXPECT_TAG, PREVIOUS_TAG, RUN_TAG, VERDICT_TAG, resolve_text

PAGE = Path(__file__).parents[2] / "docs" / "promotion.md"


def fake(team: Team) -> FakeWorld:
    assert isinstance(team.world, FakeWorld)
    return team.world


def folder_of(team: Team, number: int) -> Path:
    return Path(resolve_text(team.registry, team.uri(number)).download_uri)


def overwrite(team: Team, number: int, data: bytes = b"backdoor") -> None:
    (folder_of(team, number) / "data/model.pt2").write_bytes(data)


def put_tags(team: Team, source: int, target: int) -> None:
    """Copy what a gate said of one version to another, as whoever may edit it can."""
    registry = fake(team).registry
    registry.version(team.name, target).tags.update(registry.version(team.name, source).tags)


# --- Before the promotion -----------------------------------------------------------------------------------------


def verdict_of_other_bytes(team: Team) -> None:
    team.cleared(b"good")
    put_tags(team, 1, team.register(b"backdoor"))
    team.uri = lambda _number: "models:/net/2"  # type: ignore[method-assign]


def copy_of_a_version(team: Team) -> None:
    team.cleared()
    copy = fake(team).registry.add_version("copy", folder_of(team, 1))
    fake(team).registry.version("copy", copy).tags.update(fake(team).registry.version("net", 1).tags)
    team.name = "copy"


def recreate(team: Team) -> None:
    team.cleared()
    tags, folder = dict(fake(team).registry.version("net", 1).tags), folder_of(team, 1)
    team.world.delete_model("net")
    fake(team).registry.add_version("net", folder)
    fake(team).registry.version("net", 1).tags.update(tags)


def overwrite_after_the_check(team: Team) -> None:
    team.cleared()
    overwrite(team, 1)


def sign_as_stranger(team: Team) -> None:
    team.cleared(signer=STRANGER)


def let_it_expire(team: Team) -> None:
    team.cleared(created="2026-11-20T00:00:00Z", expires="2026-11-21T00:00:00Z")


def clear_without_checks(team: Team) -> None:
    team.cleared(required=(), reported=())


def leave_a_check_out(team: Team) -> None:
    team.cleared(reported=("onnxruntime-cpu/worker", "power"))


def replay_on_another_model(team: Team) -> None:
    team.cleared(b"good")
    other = fake(team).register("other", {"data/model.pt2": b"backdoor"})
    fake(team).registry.version("other", other).tags.update(fake(team).registry.version("net", 1).tags)
    team.name = "other"


def garble_the_payload(team: Team) -> None:
    team.cleared()
    attach(team, seal_payload(b"{"))


def say_fail(team: Team) -> None:
    team.cleared()
    statement = make_statement(team.predicate(1))
    attach(team, seal_payload(edit_payload(statement, lambda d: d["predicate"].update(verdict="fail")), GATE))


def attach(team: Team, envelope: bytes) -> None:
    folder = team.folder / "attached"
    folder.mkdir()
    team.attach(1, envelope, {"clearance.json": folder / "clearance.json"})


ATTACKS: dict[str, tuple[Callable[[Team], None], list[str]]] = {
    "the verdict of other bytes": (verdict_of_other_bytes, ["version", "made", "bytes", "weights"]),
    "the verdict of a copy (`copy_model_version`)": (copy_of_a_version, ["version", "made"]),
    "the version deleted and the model made again": (recreate, ["made"]),
    "a file overwritten after the check": (overwrite_after_the_check, ["bytes", "weights"]),
    "a clearance by another key": (sign_as_stranger, ["signature"]),
    "an expired clearance": (let_it_expire, ["expires"]),
    "a clearance of no checks": (clear_without_checks, ["checks"]),
    "a clearance that lacks a required check": (leave_a_check_out, ["checks"]),
    "a payload that cannot be parsed": (garble_the_payload, ["statement"]),
    "a verdict fail smuggled in": (say_fail, ["verdict"]),
    "replay on another model": (replay_on_another_model, ["version", "made", "bytes", "weights"]),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_not_cleared_is_refused_and_nothing_is_written(team: Team, name: str) -> None:
    attack, claims = ATTACKS[name]
    attack(team)
    before = team.registry.read_model(team.name)
    promotion = team.promote(1)
    assert promotion.outcome is None
    assert promotion.verification is not None
    assert [claim.name for claim in promotion.verification.claims if not claim.holds] == claims
    assert team.registry.read_model(team.name) == before


def test_a_budget_loosened_in_the_same_change(team: Team) -> None:
    """The laxer policy has another digest, and the job that promotes names the digests that it accepts."""
    number = team.cleared()
    strict = Allowed(policies=frozenset({digest("0")}))
    assert team.promote(number, allowed=strict).outcome is None
    assert team.holder() is None
    assert team.promote(number, allowed=Allowed(policies=frozenset({digest("0"), digest("e")}))).outcome is not None


def test_forged_tags(team: Team) -> None:
    """They say pass, and who promoted what; but there is no clearance."""
    number = team.register()
    tags = fake(team).registry.version("net", number).tags
    tags |= {VERDICT_TAG: "pass"}
    with pytest.raises(ClearanceRefused, match="no check of it is known"):
        team.promote(number)
    tags |= {RUN_TAG: "fake-elsewhere"}
    with pytest.raises(ClearanceRefused, match="holds no clearance") as caught:
        team.promote(number)
    assert caught.value.exit_code is ExitCode.REFUSED
    assert team.holder() is None


def test_a_forged_record(team: Team) -> None:
    """It says that the version was promoted; the clearance is verified all the same."""
    number = team.register(b"backdoor")
    team.cleared(b"good")
    team.promote(2)
    good = team.tags()[PROMOTION_TAG + "champion"]
    team.registry.tag_model("net", PROMOTION_TAG + "champion", good.replace('"version":2', '"version":1'))
    team.world.set_alias("net", "champion", number)
    put_tags(team, 2, 1)
    assert team.promote(number).outcome is None


def test_a_record_that_cannot_be_read_is_none(team: Team) -> None:
    number = team.cleared()
    for text in ("", "{", '{"version": 7}', "null"):
        team.registry.tag_model("net", PROMOTION_TAG + "champion", text)
        team.registry.tag_model("net", INTENT_TAG + "champion", text)
        assert team.promote(number).outcome is not None
        assert team.record() is not None


# --- While it is promoted -----------------------------------------------------------------------------------------


def promote_while(team: Team, number: int, method: str, nth: int, deed: Callable[[], object]) -> PromotionRefused:
    registry = Interrupted(team.registry, before_nth(method, nth, deed))
    with pytest.raises(PromotionRefused) as caught:
        team.promote(number, registry=registry)  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.REFUSED
    return caught.value


def test_a_file_overwritten_while_it_is_promoted_gives_the_alias_back(team: Team) -> None:
    first, second = team.cleared(b"one"), team.cleared(b"two")
    team.promote(first)
    before = team.snapshot()
    error = promote_while(team, second, "point_alias", 1, lambda: overwrite(team, second))
    assert "changed after they were verified; champion of net points to version 1 again" in error.message
    after = team.snapshot()
    assert (after["aliases"], after["tags"]) == (before["aliases"], before["tags"])
    assert not [tag for tags in after["versions"] for tag in tags if tag.startswith(EXPECT_TAG)]


def test_without_a_former_holder_the_alias_is_taken_away_again(team: Team) -> None:
    number = team.cleared()
    error = promote_while(team, number, "point_alias", 1, lambda: overwrite(team, number))
    assert "champion of net points to nobody again" in error.message
    assert team.holder() is None


def test_an_alias_moved_by_somebody_else_before_ours_is_left(team: Team) -> None:
    first, second, third = team.cleared(b"one"), team.cleared(b"two"), team.cleared(b"three")
    team.promote(first)
    # The second look at the model is the last one before the move.
    error = promote_while(team, second, "read_model", 2, lambda: team.world.set_alias("net", "champion", third))
    assert "points to version 3, and was left so" in error.message
    assert team.holder() == third


def test_an_alias_moved_by_somebody_else_after_ours_is_left(team: Team) -> None:
    first, second, third = team.cleared(b"one"), team.cleared(b"two"), team.cleared(b"three")
    team.promote(first)
    error = promote_while(team, second, "read_model", 3, lambda: team.world.set_alias("net", "champion", third))
    assert "points to version 3, and was left so" in error.message
    assert team.holder() == third
    assert INTENT_TAG + "champion" not in team.tags()
    assert team.tags()[PREVIOUS_TAG + "champion"] == "none"


def test_restoring_does_not_undo_a_newer_move(team: Team) -> None:
    first, second, third = team.cleared(b"one"), team.cleared(b"two"), team.cleared(b"three")
    team.promote(first)

    def both() -> None:
        overwrite(team, second)
        team.world.set_alias("net", "champion", third)

    error = promote_while(team, second, "stage", 2, both)
    assert "moved on to version 3 by somebody else, and was left so" in error.message
    assert team.holder() == third


def test_a_version_made_again_while_it_is_promoted(team: Team) -> None:
    number = team.cleared()

    def make_again() -> None:
        folder = team.folder / "again"
        shutil.copytree(folder_of(team, number), folder)
        tags = dict(team.tags())
        team.world.delete_model("net")
        fake(team).registry.add_version("net", folder)
        fake(team).registry.models["net"].tags |= tags

    error = promote_while(team, number, "point_alias", 1, make_again)
    assert "was made again after it was verified" in error.message
    assert team.holder() is None


def test_a_lost_answer_is_no_lost_move(team: Team) -> None:
    """The request arrived, its answer did not: what the alias points to says which."""
    number = team.cleared()

    class Lossy(Interrupted):
        def point_alias(self, *arguments: object) -> None:
            team.registry.point_alias(*arguments)  # type: ignore[arg-type]
            raise RegistryUnreachable("the connection was reset")

    promotion = team.promote(number, registry=Lossy(team.registry, lambda _name: None), expect=Holder(version=None))  # type: ignore[arg-type]
    assert promotion.outcome is not None
    assert team.holder() == number


def test_time_is_the_jobs(team: Team) -> None:
    number = team.cleared()
    assert team.promote(number, now=NOW + timedelta(days=30)).outcome is None


def test_every_attack_of_the_table_here_stands_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if re.match(r"\| .* \| .* \|$", line)}
    assert set(ATTACKS) <= rows
