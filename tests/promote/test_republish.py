"""Cleared bytes under a name of the gate's own, on MLflow itself."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.promote.world import KEYS, NOW, Holder, Team
from validator.errors import ClearanceRefused, PromotionRefused, UsageError
from validator.promotion import Level
from validator.registry.interface import ONNX_TAG, ORIGIN_TAG, resolve_text
from validator.republish import Destination
from validator.verify import VerifyRequest, verify

TO_PROD = {"republish": Destination()}


def uploads(team: Team) -> int:
    client = team.world.client  # type: ignore[attr-defined]
    experiment = client.get_experiment_by_name("validator.promoted")
    return len(client.search_logged_models([experiment.experiment_id]))


def test_the_bytes_are_served_under_another_name_and_verified_by_the_same_clearance(real_team: Team) -> None:
    team, registry = real_team, real_team.registry
    number = team.cleared(onnx=b"graph")
    outcome = team.promote(number, **TO_PROD).outcome
    assert outcome is not None
    assert (outcome.name, outcome.record.level, outcome.record.origin) == ("net-prod", Level.REPUBLISH, "models:/net/1")
    assert team.holder() is None
    assert team.holder(name="net-prod") == 1

    def judge(**options: object) -> list[str]:
        request = VerifyRequest(uri="models:/net-prod@champion", keys=KEYS, **options)  # type: ignore[arg-type]
        return [claim.name for claim in verify(request, registry, NOW).claims if not claim.holds]

    assert judge(republished="net") == []
    assert judge(republished="net", alias="champion") == []
    assert judge(republished="another") == ["origin"]
    assert judge() == ["version", "made"]
    served = resolve_text(registry, "models:/net-prod@champion")
    tags = dict(served.tags)
    assert tags[ORIGIN_TAG] == "models:/net/1"
    assert tags[ONNX_TAG].startswith("runs:/")
    assert "**republished**" in (team.world.description("net-prod", 1) or "")
    assert "- \u25b2 `champion` since" in (team.world.description("net-prod", 1) or "")

    # What happens to the team's own version from now on touches nothing that is served.
    path = Path(unquote(urlsplit(resolve_text(registry, team.uri(number)).download_uri).path))
    (path / "data/model.pt2").write_bytes(b"backdoor")
    assert judge(republished="net") == []
    path = Path(unquote(urlsplit(served.download_uri).path))
    (path / "data/model.pt2").write_bytes(b"backdoor")
    assert judge(republished="net") == ["bytes", "weights"]


def test_the_same_bytes_are_not_uploaded_twice(real_team: Team) -> None:
    team = real_team
    number = team.cleared()
    team.promote(number, **TO_PROD)
    again = team.promote(number, **TO_PROD).outcome
    assert again is not None
    assert not again.is_moved
    team.clear(number)
    team.promote(number, alias="other", **TO_PROD)
    assert team.newest("net-prod") == 1
    assert uploads(team) == 1


def test_a_rollback_asks_which_model_was_cleared(real_team: Team) -> None:
    team = real_team
    for data in (b"one", b"two"):
        team.promote(team.cleared(data), **TO_PROD)
    assert team.holder(name="net-prod") == 2
    with pytest.raises(ClearanceRefused) as caught:
        team.rollback(name="net-prod")
    assert caught.value.hint == "add --republished net"
    team.rollback(name="net-prod", republished="net", expect=Holder(version=2))
    assert team.holder(name="net-prod") == 1


def test_a_version_that_only_says_it_holds_the_bytes_gets_no_alias(real_team: Team) -> None:
    """Somebody else may write to the gate's model: its tags are forged, and found first."""
    team = real_team
    number = team.cleared()
    staged = team.registry.stage(resolve_text(team.registry, team.uri(number)), team.folder / "measured")
    team.world.register("net-prod", {"data/model.pt2": b"backdoor"})
    team.registry.tag_version("net-prod", 1, "validator.content_digest", staged.manifest.digest)
    team.registry.tag_version("net-prod", 1, ORIGIN_TAG, team.uri(number))
    with pytest.raises(PromotionRefused, match="net-prod version 1 does not hold what was cleared: bytes"):
        team.promote(number, **TO_PROD)
    assert team.holder(name="net-prod") is None


def test_a_model_is_not_republished_as_itself(real_team: Team) -> None:
    number = real_team.cleared()
    with pytest.raises(UsageError, match="net is the model that was cleared"):
        real_team.promote(number, republish=Destination(name="net"))
