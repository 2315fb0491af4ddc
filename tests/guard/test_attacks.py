"""What somebody who may edit a model, and no more, might do. Each row stands in docs/guard.md."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.attest.instance import Instance
from tests.attest.world import STRANGER
from tests.guard.world import GuardWorld, clear, refusal, seal
from validator.attest.canonical import write_canonical
from validator.attest.statement import make_statement
from validator.guard.artifacts import measure_location
from validator.manifest import measure_folder
from validator.registry.interface import CHECK_TAG, CLEARANCE_TAG, EXPECT_TAG, PREVIOUS_TAG, VERDICT_TAG

PAGE = Path(__file__).parents[2] / "docs" / "guard.md"
CHAMPION = "champion"

Attack = Callable[[GuardWorld], object]

# In every world version 1 is cleared and holds champion, version 2 is not cleared.


def move(world: GuardWorld, number: int, expect: str | None = "1", alias: str = CHAMPION) -> None:
    if expect is not None:
        world.tag(number, EXPECT_TAG + alias, expect)
    world.store.set_registered_model_alias(world.name, alias, str(number))


def move_without_clearance(world: GuardWorld) -> None:
    move(world, 2)


def move_another_alias(world: GuardWorld) -> None:
    move(world, 2, expect="none", alias="anything")


def move_under_other_case(world: GuardWorld) -> None:
    move(world, 2, expect="none", alias="CHAMPION")


def take_alias_away(world: GuardWorld) -> None:
    world.store.delete_registered_model_alias(world.name, CHAMPION)


def take_clearance_of_another_version(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.tags(1)[CLEARANCE_TAG])


def take_clearance_of_another_model(world: GuardWorld) -> None:
    world.register("other", content="net 1")
    world.tag(1, CLEARANCE_TAG, world.tags(1)[CLEARANCE_TAG], name="other")


def sign_oneself(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2, signer=STRANGER))


def sign_keyless(world: GuardWorld) -> None:
    """By whomever: the guard accepts keys alone."""
    bundle = Instance(world.folder).sign(write_canonical(make_statement(world.predicate(2))))
    world.tag(2, CLEARANCE_TAG, bundle.decode())


def present_an_expired_one(world: GuardWorld) -> None:
    text = world.clearance(2)
    world.wait(timedelta(hours=2))
    world.tag(2, CLEARANCE_TAG, text)


def write_no_clearance(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, "pass")


def use_laxer_policy(world: GuardWorld) -> None:
    text = world.clearance(2)
    world.open(policy_digests=["sha256:" + "0" * 64])
    world.tag(2, CLEARANCE_TAG, text)


def use_policy_from_elsewhere(world: GuardWorld) -> None:
    text = world.clearance(2)
    world.open(policy_origins=["models:/validator.budget.*"])
    world.tag(2, CLEARANCE_TAG, text)


def use_other_golden_dataset(world: GuardWorld) -> None:
    text = world.clearance(2)
    world.open(golden_digests=["sha256:" + "0" * 64])
    world.tag(2, CLEARANCE_TAG, text)


def come_from_another_registry(world: GuardWorld) -> None:
    predicate = world.predicate(2)
    model = predicate.model.model_copy(update={"registry_uri": "https://staging.example.com"})
    world.tag(2, CLEARANCE_TAG, seal(predicate.model_copy(update={"model": model})))


def leave_checks_out(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2, reported=("power",)))


def check_nothing(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2, required=(), reported=()))


def make_model_again(world: GuardWorld) -> None:
    """A name and a number come back, the time of creation does not."""
    number = world.register("fresh")
    text = world.clearance(number, "fresh")
    world.store.delete_registered_model("fresh")
    world.register("fresh")
    world.tag(number, CLEARANCE_TAG, text, name="fresh")


def overwrite_files(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2))
    (world.files(2) / "MLmodel").write_text("other weights")
    move(world, 2)


def delete_files(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2))
    (world.files(2) / "MLmodel").unlink()
    world.files(2).rmdir()
    move(world, 2)


def link_files(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2))
    (world.files(2) / "link").symlink_to(world.files(1) / "MLmodel")
    move(world, 2)


def expect_somebody_else(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2))
    move(world, 2, expect="7")


def expect_nobody(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2))
    move(world, 2, expect="none")


def expect_nothing(world: GuardWorld) -> None:
    world.tag(2, CLEARANCE_TAG, world.clearance(2))
    move(world, 2, expect=None)


def expect_no_number(world: GuardWorld) -> None:
    move(world, 2, expect="1 or 2")


def go_back_to_a_stranger(world: GuardWorld) -> None:
    """An expired clearance is good for a former holder only."""
    world.tag(2, CLEARANCE_TAG, world.clearance(2))
    world.wait(timedelta(hours=2))
    move(world, 2)


def go_back_to_another_alias(world: GuardWorld) -> None:
    """Version 1 held champion, never `stable`."""
    world.wait(timedelta(hours=2))
    move(world, 1, expect="none", alias="stable")


def forge_pass(world: GuardWorld) -> None:
    world.tag(2, VERDICT_TAG, "pass")


def forge_pass_in_other_words(world: GuardWorld) -> None:
    world.tag(2, VERDICT_TAG, "PASS ")


def forge_pass_at_birth(world: GuardWorld) -> None:
    world.register(tags={VERDICT_TAG: "pass"})


def copy_cleared_version(world: GuardWorld) -> None:
    """What `copy_model_version` and the button in the web page do: tags go along."""
    world.register("copy", tags=world.tags(1))


def pass_beside_evidence_of_another_check(world: GuardWorld) -> None:
    world.tag(1, CHECK_TAG, "ffffffffffffffff")
    world.tag(1, VERDICT_TAG, "pass")


def change_evidence_beside_pass(world: GuardWorld) -> None:
    world.tag(1, VERDICT_TAG, "pass")
    world.tag(1, "validator.digest", "sha256:" + "0" * 64)


def change_policy_beside_pass(world: GuardWorld) -> None:
    world.tag(1, VERDICT_TAG, "pass")
    world.tag(1, "validator.policy", "policy.toml sha256:" + "0" * 64)


def forge_former_holder(world: GuardWorld) -> None:
    world.tag_model(PREVIOUS_TAG + CHAMPION, "2")


def delete_holder(world: GuardWorld) -> None:
    world.store.delete_model_version(world.name, "1")


def delete_model(world: GuardWorld) -> None:
    world.store.delete_registered_model(world.name)


def rename_model(world: GuardWorld) -> None:
    world.store.rename_registered_model(world.name, "elsewhere")


def rename_into_protection(world: GuardWorld) -> None:
    world.open(models=["net"], exempt=[])
    world.register("draft")
    world.store.set_registered_model_alias("draft", CHAMPION, "1")
    world.open(models=["net", "served"], exempt=[])
    world.store.rename_registered_model("draft", "served")


def move_to_stage(world: GuardWorld) -> None:
    world.store.transition_model_version_stage(world.name, "2", "Production", archive_existing_versions=False)


def move_out_of_stage(world: GuardWorld) -> None:
    world.store.transition_model_version_stage(world.name, "1", "Production", archive_existing_versions=False)
    world.store.transition_model_version_stage(world.name, "1", "Archived", archive_existing_versions=False)


def make_version_of_gate_model(world: GuardWorld) -> None:
    world.register("net-prod", content="net 1")


def make_version_of_gate_model_with_other_bytes(world: GuardWorld) -> None:
    world.register("net-prod", content="other weights", tags={CLEARANCE_TAG: world.tags(1)[CLEARANCE_TAG]})


def make_version_of_gate_model_of_another_model(world: GuardWorld) -> None:
    world.register("other-prod", content="net 1", tags={CLEARANCE_TAG: world.tags(1)[CLEARANCE_TAG]})


def overwrite_republished_files(world: GuardWorld) -> None:
    number = world.register("net-prod", content="net 0", tags={CLEARANCE_TAG: world.tags(1)[CLEARANCE_TAG]})
    (world.files(number, "net-prod") / "MLmodel").write_text("other weights")
    world.promote(number, name="net-prod")


def hash_another_folder(world: GuardWorld) -> None:
    """`urlsplit` would cut a plain path at `#` and hash the folder beside it."""
    good, served = world.folder / "good", world.folder / "good#b"
    for folder in (good, served):
        folder.mkdir()
        (folder / "MLmodel").write_text("good")
    number = int(world.store.create_model_version(world.name, str(served)).version)
    digest = measure_folder(served).digest
    created = int(world.store.get_model_version(world.name, number).creation_timestamp)
    text = seal(clear(name=world.name, version=number, created=created, digest=digest, now=world.now))
    world.tag(number, CLEARANCE_TAG, text)
    (served / "MLmodel").write_text("other weights")
    move(world, number)


def name_a_host(world: GuardWorld) -> None:
    make_version_at(world, f"file://elsewhere{world.files(1)}")


def name_another_server(world: GuardWorld) -> None:
    make_version_at(world, "mlflow-artifacts://elsewhere:5000/1/r/artifacts")


def escape_the_path(world: GuardWorld) -> None:
    make_version_at(world, "mlflow-artifacts:/1/r/artifacts/m%2531")


def leave_a_name_out(world: GuardWorld) -> None:
    make_version_at(world, "mlflow-artifacts:/1/./r/artifacts")


def name_a_web_server(world: GuardWorld) -> None:
    make_version_at(world, "https://elsewhere.example.com/net")


def make_version_at(world: GuardWorld, source: str) -> None:
    from mlflow.entities.model_registry import ModelVersionTag

    world.store.create_registered_model("net-prod")
    tag = ModelVersionTag(CLEARANCE_TAG, world.tags(1)[CLEARANCE_TAG])
    world.store.create_model_version("net-prod", source, tags=[tag])


def take_the_name_while_it_is_hashed(world: GuardWorld) -> None:
    text = world.tags(1)[CLEARANCE_TAG]

    def measure_then_replace(*where: str) -> str:
        patch.undo()
        digest = measure_location(*where)
        world.store.delete_registered_model("net-prod")
        number = world.register("net-prod", content="net 0", tags={CLEARANCE_TAG: text})
        world.tag(number, EXPECT_TAG + CHAMPION, "none", "net-prod")
        return digest

    number = world.register("net-prod", content="net 0", tags={CLEARANCE_TAG: text})
    world.tag(number, EXPECT_TAG + CHAMPION, "none", "net-prod")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("validator.guard.store.measure_location", measure_then_replace)
        world.store.set_registered_model_alias("net-prod", CHAMPION, str(number))


def pass_for_other_republished_bytes(world: GuardWorld) -> None:
    """Both versions were cleared: each is what only its own clearance says."""
    world.tag(2, CLEARANCE_TAG, world.clearance(2))
    for number in (1, 2):
        text = world.tags(number)[CLEARANCE_TAG]
        world.register("net-prod", content=f"net {number - 1}", tags={CLEARANCE_TAG: text})
    world.tag(2, CLEARANCE_TAG, world.tags(1)[CLEARANCE_TAG], "net-prod")
    world.tag(2, VERDICT_TAG, "pass", "net-prod")


def republish_what_is_gone(world: GuardWorld) -> None:
    """A version of the same name in another workspace, or of before the model was made again."""
    text = world.clearance(2)
    world.store.delete_model_version(world.name, "2")
    world.register("net-prod", content="net 1", tags={CLEARANCE_TAG: text})


def rename_into_gate_model(world: GuardWorld) -> None:
    world.register("draft")
    world.store.rename_registered_model("draft", "net-prod")


ATTACKS: dict[str, tuple[Attack, str]] = {
    "a plain client moves the alias": (move_without_clearance, "carries no clearance"),
    "an alias that is new": (move_another_alias, "carries no clearance"),
    "the alias in capitals": (move_under_other_case, "carries no clearance"),
    "the alias is taken away": (take_alias_away, "it is protected"),
    "the clearance of another version": (take_clearance_of_another_version, "version: "),
    "the clearance of another model with the same bytes": (take_clearance_of_another_model, "version: "),
    "a clearance by a key of one's own": (sign_oneself, "signature: "),
    "a keyless clearance": (sign_keyless, "signature: it is signed keyless by "),
    "an expired clearance": (present_an_expired_one, "expires: "),
    "any text in the place of a clearance": (write_no_clearance, "envelope: "),
    "a clearance by a laxer policy": (use_laxer_policy, "policy: "),
    "a clearance by a policy from elsewhere": (use_policy_from_elsewhere, "policy: "),
    "a clearance over another golden dataset": (use_other_golden_dataset, "golden: "),
    "a clearance from another registry": (come_from_another_registry, "registry: "),
    "a clearance with a required check missing": (leave_checks_out, "checks: "),
    "a clearance of no checks": (check_nothing, "checks: "),
    "the model is deleted and made again": (make_model_again, "made: "),
    "files overwritten after the check": (overwrite_files, "not those that were cleared"),
    "files deleted after the check": (delete_files, "cannot be hashed"),
    "a link among the files": (link_files, "cannot be hashed"),
    "the alias was moved in between": (expect_somebody_else, "not on version 7 as expected"),
    "the alias is believed to be free": (expect_nobody, "not nowhere as expected"),
    "no expected holder": (expect_nothing, "nobody said who holds it now"),
    "an expected holder that is no number": (expect_no_number, "version number"),
    "an expired clearance of a version that never held the alias": (go_back_to_a_stranger, "expires: "),
    "an expired clearance of a version that held another alias": (go_back_to_another_alias, "expires: "),
    "a forged pass": (forge_pass, "carries no clearance"),
    "a forged pass in other words": (forge_pass_in_other_words, "is no verdict"),
    "a forged pass on a new version": (forge_pass_at_birth, "no check has seen it"),
    "a copy that brings tags along": (copy_cleared_version, "no check has seen it"),
    "a pass beside another check's evidence": (pass_beside_evidence_of_another_check, "the clearance says"),
    "evidence changed beside a pass": (change_evidence_beside_pass, "the clearance says"),
    "policy changed beside a pass": (change_policy_beside_pass, "the clearance says"),
    "a forged former holder": (forge_former_holder, "was never on version 2"),
    "the holder is deleted": (delete_holder, "it is protected"),
    "the model is deleted": (delete_model, "is not deleted"),
    "the model is renamed": (rename_model, "is not renamed"),
    "another model is renamed into protection": (rename_into_protection, "nobody guarded it"),
    "a stage in the place of an alias": (move_to_stage, "carries no clearance"),
    "the version in a stage is archived": (move_out_of_stage, "stays in stage Production"),
    "a version of a model that the gate alone fills": (make_version_of_gate_model, "with a clearance of net alone"),
    "the same with other bytes": (make_version_of_gate_model_with_other_bytes, "not those that were cleared"),
    "the same with a clearance of another model": (make_version_of_gate_model_of_another_model, "version: "),
    "republished files overwritten": (overwrite_republished_files, "not those that were cleared"),
    "a path with # beside the cleared folder": (hash_another_folder, "not those that were cleared"),
    "a file: location with a host": (name_a_host, "names the host"),
    "a proxied location on another server": (name_another_server, "clients may be served other bytes"),
    "a proxied location with an escaped path": (escape_the_path, "clients may be served other bytes"),
    "a proxied location with a dot for a name": (leave_a_name_out, "clients may be served other bytes"),
    "a location on a web server": (name_a_web_server, "may serve clients other bytes"),
    "a republished version takes another's clearance": (
        pass_for_other_republished_bytes,
        "not those that were cleared",
    ),
    "republished by the clearance of a version that is gone": (republish_what_is_gone, "is not in this registry"),
    "another version takes the name during hashing": (take_the_name_while_it_is_hashed, "whose files were hashed"),
    "another model is renamed to one that the gate alone fills": (rename_into_gate_model, "draft cannot become"),
}


ON_BOTH = {
    "a plain client moves the alias",
    "the alias is taken away",
    "the alias was moved in between",
    "files overwritten after the check",
    "a forged pass",
    "a forged former holder",
    "the holder is deleted",
    "the model is deleted",
    "the model is renamed",
    "the version in a stage is archived",
    "republished files overwritten",
}
"""Where the database has a part in the answer; the rest is decided before it."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "sqlite") for name in ATTACKS] + [(name, "postgresql") for name in ATTACKS if name in ON_BOTH],
)
def test_an_attack_is_refused_and_the_alias_stays(world: GuardWorld, name: str) -> None:
    attack, reason = ATTACKS[name]
    world.register()
    world.promote(1)
    world.register()
    with refusal() as said:
        attack(world)
    assert reason in said[0]
    assert world.holder() == 1
    assert json.dumps(said[0]).isascii()


def test_every_attack_stands_on_the_page_with_its_answer() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `([^|]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(rows) == {name: reason.strip() for name, (_, reason) in ATTACKS.items()}
