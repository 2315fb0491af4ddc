"""What was asked for makes no sense, or cannot be done: a sentence, what to do next, and the right exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.promote.world import Team
from tests.registry.conftest import FakeWorld
from validator.boundary import _load_app, run
from validator.errors import ExitCode, ValidatorError

USAGE, INCONCLUSIVE, REFUSED = ExitCode.USAGE, ExitCode.INCONCLUSIVE, ExitCode.REFUSED


def nothing(_team: Team) -> None:
    """All is well but for what is asked."""


def take_the_server_down(team: Team) -> None:
    assert isinstance(team.world, FakeWorld)
    team.world.registry.is_down = True


def deny_writes(team: Team) -> None:
    assert isinstance(team.world, FakeWorld)
    team.world.registry.denies_writes = True


def leave_it_pending(team: Team) -> None:
    assert isinstance(team.world, FakeWorld)
    team.world.registry.version("net", 1).status = "PENDING_REGISTRATION"


@pytest.mark.parametrize(
    ("arrange", "options", "code", "words"),
    [
        (nothing, {"alias": "latest"}, USAGE, "word of MLflow's own"),
        (nothing, {"alias": "LATEST"}, USAGE, "word of MLflow's own"),
        (nothing, {"alias": "v3"}, USAGE, "word of MLflow's own"),
        (nothing, {"alias": "a.b"}, USAGE, "letters, digits"),
        (nothing, {"alias": ""}, USAGE, "letters, digits"),
        (nothing, {"alias": "a" * 231}, USAGE, "231 characters, 230 are possible"),
        (nothing, {"uri": "models:/m-0123"}, USAGE, "no registered version"),
        (nothing, {"uri": "runs:/0123/model"}, USAGE, "no registered version"),
        (nothing, {"uri": "folder"}, USAGE, "files have no aliases"),
        (nothing, {"uri": "models:/net"}, USAGE, "names no version"),
        (nothing, {"uri": "models:/net/7"}, USAGE, "has no version 7"),
        (nothing, {"uri": "models:/net@gone"}, USAGE, "has no alias gone"),
        (nothing, {"keys": ()}, USAGE, "no key is given"),
        (leave_it_pending, {}, USAGE, "PENDING_REGISTRATION, not READY"),
        (nothing, {"clearance": Path("gone.json")}, REFUSED, "gone.json cannot be read"),
        (nothing, {"clearance": Path("tests")}, REFUSED, "is a directory"),
        (take_the_server_down, {}, INCONCLUSIVE, "does not answer"),
        (deny_writes, {}, INCONCLUSIVE, "denies access"),
    ],
)
def test_a_promotion_that_cannot_be_is_said_in_a_sentence(
    team: Team, arrange: Callable[[Team], None], options: dict[str, Any], code: ExitCode, words: str
) -> None:
    number = team.cleared()
    arrange(team)
    with pytest.raises(ValidatorError) as caught:
        team.promote(number, **options)
    assert caught.value.exit_code is code
    assert words in caught.value.message


def test_a_clearance_that_no_tag_can_hold_is_refused_before_anything_is_written(team: Team) -> None:
    from validator.attest.statement import WarningBinding

    number = team.cleared(warnings=(WarningBinding(code="batch", message="x" * 50_000),))
    before = team.snapshot()
    with pytest.raises(ValidatorError, match="a tag of the registry holds 60,000") as caught:
        team.promote(number)
    assert caught.value.exit_code is REFUSED
    assert team.snapshot() == before


def test_a_description_that_cannot_be_written_changes_no_promotion(team: Team) -> None:
    number = team.cleared()
    assert isinstance(team.world, FakeWorld)
    team.world.registry.refuses_annotations = True
    outcome = team.promote(number).outcome
    assert outcome is not None
    assert outcome.unnoted is not None
    assert outcome.unnoted.exit_code is INCONCLUSIVE
    assert team.holder() == number
    team.world.registry.refuses_annotations = False
    again = team.promote(number).outcome
    assert again is not None
    assert again.unnoted is None
    assert "`champion` since" in (team.world.description("net", number) or "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("promote models:/net/1 --key k", "missing option '--alias'"),
        ("promote models:/net/1 --alias a", "no key is given"),
        ("promote models:/net/1 --alias a --key gone.pub", "error[key]: gone.pub cannot be read"),
        ("promote models:/net/1 --alias a --key {key} --from-run --clearance c", "two places for the clearance"),
        ("promote models:/net/1 --alias a --key {key} --expect-none --expect-current 2", "contradict each other"),
        ("promote models:/net/1 --alias a --key {key} --expect-current 0", "invalid value for '--expect-current'"),
        ("promote models:/net/1 --alias a --key {key} --to b", "are for --level republish"),
        ("promote models:/net/1 --alias a --key {key} --policy-digest sha256:3547c215", "is no digest"),
        ("promote models:/net/1 --alias a --key {key} --level guard", "invalid value for '--level'"),
        ("rollback models:/net/1 --alias a --key {key}", "is not a registered model"),
        ("rollback models:/net --key {key}", "missing option '--alias'"),
    ],
)
def test_options_that_contradict_each_other_are_usage(
    line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.attest.world import GATE
    from validator.attest.keys import public_key_of

    key = tmp_path / "gate.key.pub"
    key.write_bytes(public_key_of(GATE).pem)
    assert run(_load_app, line.format(key=key).split(), debug=False) is USAGE
    assert words in capsys.readouterr().err
