"""Aliases, and the tags that say who moved them. Every write is one that may be repeated."""

from validator.registry.connection import Connection
from validator.registry.description import note_alias
from validator.registry.interface import ModelState
from validator.registry.resolve import aliases_of, require_model
from validator.registry.targets import VersionTarget, replace_description


def read_model(connection: Connection, name: str) -> ModelState:
    """See Registry.read_model."""
    model = require_model(connection, name)
    return ModelState(aliases=aliases_of(model), tags=dict(model.tags or {}))


def point_alias(connection: Connection, name: str, alias: str, version: int | None) -> None:
    """See Registry.point_alias."""
    client = connection.client
    if version is None:
        with connection.writing(f"taking alias {alias} off {name}"):
            client.delete_registered_model_alias(name, alias)
    else:
        with connection.writing(f"pointing alias {alias} of {name} to version {version}"):
            client.set_registered_model_alias(name, alias, str(version))


def tag_model(connection: Connection, name: str, key: str, value: str | None) -> None:
    """See Registry.tag_model."""
    client = connection.client
    present = read_model(connection, name).tags.get(key)
    if value is not None and present != value:
        with connection.writing(f"writing the tag {key} of {name}"):
            client.set_registered_model_tag(name, key, value)
    elif value is None and present is not None:
        with connection.writing(f"taking the tag {key} off {name}"):
            client.delete_registered_model_tag(name, key)


def tag_version(connection: Connection, name: str, version: int, key: str, value: str | None) -> None:
    """See Registry.tag_version."""
    target = VersionTarget(connection=connection, name=name, version=str(version))
    present = target.tags().get(key)
    if value is not None and present != value:
        target.set_tag(key, value)
    elif value is None and present is not None:
        target.delete_tag(key)


def note_version(connection: Connection, name: str, version: int, alias: str, line: str) -> str | None:
    """See Registry.note_alias."""
    target = VersionTarget(connection=connection, name=name, version=str(version))
    return replace_description(target, lambda old: note_alias(old, alias, line))
