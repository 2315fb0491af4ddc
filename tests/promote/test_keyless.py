"""Promotion and rollback by clearances that no key signed; and once everything, from the check to the rollback."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.attest.instance import CI, Instance, identity_token
from tests.check.conftest import POLICY, example, golden, net, program
from tests.promote.world import KEYS, Team
from tests.registry.conftest import MlflowWorld
from validator.attest.bundle import Signatory
from validator.attest.canonical import write_canonical
from validator.attest.keyless import TOKEN, KeylessSigner, TrustedSignatory
from validator.attest.statement import make_statement
from validator.check import CheckRequest, check
from validator.judge import Verdict
from validator.promote import PromoteRequest, promote
from validator.promotion import PROMOTION_TAG, Level, read_record
from validator.registry.interface import CLEARANCE_TAG
from validator.report.progress import SilentProgress
from validator.republish import Destination
from validator.rollback import RollbackRequest, rollback
from validator.verify import VerifyRequest, verify

__all__ = ["example", "golden", "net", "program"]


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def cleared(team: Team, instance: Instance, data: bytes, signatory: Signatory = CI) -> int:
    """Register a version and clear it keyless."""
    number = team.register(data)
    statement = make_statement(team.predicate(number))
    folder = team.folder / f"keyless-{number}"
    folder.mkdir()
    bundle = instance.sign(write_canonical(statement), signatory)
    team.attach(number, bundle, {"clearance.json": folder / "clearance.json"})
    return number


def test_an_alias_moves_by_an_identity_and_the_record_says_whose(team: Team, instance: Instance) -> None:
    accepted = (*KEYS, instance.accept())
    first, second = team.cleared(b"one"), cleared(team, instance, b"two")
    for number in (first, second):
        assert team.promote(number, keys=accepted).outcome is not None
    record = team.record()
    assert record is not None
    assert (record.version, record.key, record.identity, record.issuer) == (second, None, CI.identity, CI.issuer)
    assert f"cleared by `{CI.identity}`" in (team.world.description("net", second) or "")
    assert team.promote(second, keys=accepted).outcome.is_moved is False
    assert team.rollback(keys=accepted).outcome is not None
    back = team.record()
    assert back is not None
    assert (back.level, back.version, back.key, back.identity) == (Level.ROLLBACK, first, KEYS[0].key_id, None)
    # The version's tag carries the bundle itself, so the way forth needs no run.
    assert team.rollback(keys=accepted, to=second).outcome is not None
    assert team.holder() == second


def test_the_bytes_are_republished_with_their_bundle(real_team: Team, instance: Instance) -> None:
    number = cleared(real_team, instance, b"one")
    assert real_team.promote(number, keys=(instance.accept(),), republish=Destination()).outcome is not None
    record = real_team.record(name="net-prod")
    assert record is not None
    assert (record.level, record.identity) == (Level.REPUBLISH, CI.identity)


def test_nothing_moves_by_another_identity_or_where_only_the_other_kind_is_accepted(
    team: Team, instance: Instance
) -> None:
    by_stranger = cleared(team, instance, b"one", Signatory(identity="mallory@example.com", issuer=CI.issuer))
    by_ci, by_key = cleared(team, instance, b"two"), team.cleared(b"three")
    for number, keys in (
        (by_stranger, (instance.accept(), *KEYS)),
        (by_ci, KEYS),
        (by_key, (instance.accept(),)),
    ):
        promotion = team.promote(number, keys=keys)
        assert promotion.outcome is None
        assert promotion.verification is not None
        assert [claim.name for claim in promotion.verification.claims if not claim.holds] == ["signature"]
    assert team.holder() is None


def test_a_check_is_signed_keyless_verified_promoted_and_rolled_back(
    embedded: MlflowWorld,
    instance: Instance,
    program: Path,
    golden: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real workers, sigstore's own client and verifier, MLflow on SQLite; only the instance is the tests' own."""
    files = {str(p.relative_to(program)): p.read_bytes() for p in program.rglob("*") if p.is_file()}
    embedded.register("net", files)
    embedded.register("net", files)
    embedded.set_alias("net", "champion", 1)
    (tmp_path / "policy.toml").write_text(POLICY)
    monkeypatch.setenv(TOKEN, identity_token())
    registry = embedded.registry
    with instance.serve():
        signer = KeylessSigner(trust=instance.trust_config)
        request = CheckRequest(
            uri="models:/net/2",
            output=tmp_path / "report",
            policy=str(tmp_path / "policy.toml"),
            golden=str(golden),
            sign_keyless=signer,
        )
        result = check(request, registry, SilentProgress())
    assert result.verdict is Verdict.PASS
    assert result.clearance == tmp_path / "report" / "clearance.json"
    # From here on nothing is asked of the instance: its trust root is a file.
    accepted = (TrustedSignatory(signatory=CI, trust=instance.trust),)
    now = datetime.now(UTC)
    for clearance in (None, result.clearance):
        verification = verify(VerifyRequest(uri="models:/net/2", keys=accepted, clearance=clearance), registry, now)
        assert [claim.message for claim in verification.claims if not claim.holds] == []
        assert verification.holds
    promotion = promote(PromoteRequest(uri="models:/net/2", alias="champion", keys=accepted), registry, now)
    assert promotion.outcome is not None
    assert registry.read_model("net").aliases["champion"] == 2
    assert embedded.tags("net", 2)[CLEARANCE_TAG] == result.clearance.read_text()
    # Version 1 holds the same bytes, and was never cleared: back to it goes only who gives a reason.
    asked = RollbackRequest(name="net", alias="champion", keys=(), reason="2 answers nonsense")
    assert rollback(asked, registry, now).outcome is not None
    assert registry.read_model("net").aliases["champion"] == 1
    forth = RollbackRequest(name="net", alias="champion", keys=accepted, to=2)
    assert rollback(forth, registry, now).outcome is not None
    record = read_record(registry.read_model("net").tags[PROMOTION_TAG + "champion"])
    assert record is not None
    assert (record.level, record.version, record.identity) == (Level.ROLLBACK, 2, CI.identity)
