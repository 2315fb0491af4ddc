"""What the guard lets happen, on both databases."""

from datetime import timedelta

import pytest

from tests.guard.world import GuardWorld, refusal
from validator.registry.interface import CLEARANCE_TAG, EXPECT_TAG, VERDICT_TAG


def test_an_alias_moves_with_a_clearance_from_where_it_is_expected(world: GuardWorld) -> None:
    first, second = world.register(), world.register()
    world.promote(first)
    assert world.holder() == first
    assert EXPECT_TAG + "champion" not in world.tags(first)
    world.promote(second, expect=str(first))
    assert world.holder() == second


def test_a_request_that_was_sent_twice_changes_nothing(world: GuardWorld) -> None:
    number = world.register()
    world.promote(number)
    world.store.set_registered_model_alias(world.name, "champion", str(number))
    assert world.holder() == number


def test_a_plain_client_is_refused_and_told_what_to_do(world: GuardWorld) -> None:
    number = world.register()
    with refusal() as said:
        world.store.set_registered_model_alias(world.name, "champion", str(number))
    assert "alias champion of net stays nowhere: net version 1 carries no clearance" in said[0]
    assert "validator check models:/net/1" in said[0]
    assert "validator promote models:/net/1 --alias champion" in said[0]
    assert world.holder() is None


def test_an_alias_goes_back_to_a_former_holder_after_its_clearance_has_expired(world: GuardWorld) -> None:
    first, second = world.register(), world.register()
    world.promote(first)
    world.promote(second, expect=str(first))
    world.wait(timedelta(hours=2))
    world.promote(first, expect=str(second))
    assert world.holder() == first


def test_an_alias_does_not_go_to_a_version_whose_clearance_expired_unused(world: GuardWorld) -> None:
    first, second = world.register(), world.register()
    world.promote(first)
    world.tag(second, CLEARANCE_TAG, world.clearance(second))
    world.wait(timedelta(hours=2))
    with refusal() as said:
        world.promote(second, expect=str(first))
    assert "expires" in said[0]
    assert world.holder() == first


def test_what_is_not_protected_is_as_free_as_it_was(world: GuardWorld) -> None:
    world.open(models=["other-*"])
    number = world.register()
    world.store.set_registered_model_alias(world.name, "champion", str(number))
    world.tag(number, VERDICT_TAG, "pass")
    world.store.delete_registered_model_alias(world.name, "champion")
    world.store.rename_registered_model(world.name, "renamed")
    world.store.delete_model_version("renamed", number)
    world.store.delete_registered_model("renamed")


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_model_that_is_not_there_cannot_be_held(world: GuardWorld) -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match="name=nobody not found") as caught, world.store._alone("nobody"):
        raise AssertionError("nothing is held")
    assert caught.value.error_code == "RESOURCE_DOES_NOT_EXIST"
