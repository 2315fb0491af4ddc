"""Where verdict tags and the description go: the registered version, else the logged model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from validator.errors import AnnotationFailed
from validator.registry.connection import Connection
from validator.registry.description import merge_description
from validator.subject import Subject

NOTE_TAG = "mlflow.note.content"
"""Shown as Markdown on a logged model's page."""


class TagTarget(Protocol):
    """Something with tags and a description."""

    @property
    def title(self) -> str:
        """How messages call it."""

    def tags(self) -> dict[str, str]:
        """Read the tags."""

    def set_tag(self, key: str, value: str) -> None:
        """Write one tag."""

    def delete_tag(self, key: str) -> None:
        """Take one tag away."""

    def description(self) -> str | None:
        """Read the description."""

    def set_description(self, text: str) -> None:
        """Write the description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionTarget:
    """A registered version."""

    connection: Connection
    name: str
    version: str

    @property
    def title(self) -> str:
        """Name and number."""
        return f"{self.name} version {self.version}"

    def tags(self) -> dict[str, str]:
        """Read the tags."""
        with self.connection.doing(f"reading {self.title}"):
            return dict(self.connection.client.get_model_version(self.name, self.version).tags or {})

    def set_tag(self, key: str, value: str) -> None:
        """Write one tag."""
        with self.connection.writing(f"tagging {self.title}"):
            self.connection.client.set_model_version_tag(self.name, self.version, key, value)

    def delete_tag(self, key: str) -> None:
        """Take one tag away."""
        with self.connection.writing(f"taking the tag {key} off {self.title}"):
            self.connection.client.delete_model_version_tag(self.name, self.version, key)

    def description(self) -> str | None:
        """Read the description."""
        with self.connection.doing(f"reading {self.title}"):
            text: str | None = self.connection.client.get_model_version(self.name, self.version).description
            return text

    def set_description(self, text: str) -> None:
        """Write the description."""
        with self.connection.writing(f"describing {self.title}"):
            self.connection.client.update_model_version(self.name, self.version, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedModelTarget:
    """A logged model without a version. Its description is a tag."""

    connection: Connection
    model_id: str

    @property
    def title(self) -> str:
        """Its id."""
        return self.model_id

    def tags(self) -> dict[str, str]:
        """Read the tags."""
        with self.connection.doing(f"reading {self.title}"):
            return dict(self.connection.client.get_logged_model(self.model_id).tags or {})

    def set_tag(self, key: str, value: str) -> None:
        """Write one tag."""
        with self.connection.writing(f"tagging {self.title}"):
            self.connection.client.set_logged_model_tags(self.model_id, {key: value})

    def delete_tag(self, key: str) -> None:
        """Take one tag away."""
        with self.connection.writing(f"taking the tag {key} off {self.title}"):
            self.connection.client.delete_logged_model_tag(self.model_id, key)

    def description(self) -> str | None:
        """Read the note."""
        return self.tags().get(NOTE_TAG)

    def set_description(self, text: str) -> None:
        """Write the note."""
        self.set_tag(NOTE_TAG, text)


def find_target(connection: Connection, subject: Subject) -> TagTarget | None:
    """Return where a subject's verdict is written; None for a plain run artifact.

    Raises:
        AnnotationFailed: the version is no longer the one that was checked.
    """
    if subject.name is None:
        if subject.model_id is None:
            return None
        return LoggedModelTarget(connection=connection, model_id=subject.model_id)
    name, number = subject.name, str(subject.version)
    what = f"looking for {subject.title}"
    found = connection.look_up(what, lambda: connection.client.get_model_version(name, number))
    if found is None or int(found.creation_timestamp) != subject.creation_timestamp_ms:
        raise AnnotationFailed(
            f"{subject.title} was deleted or made again since it was resolved",
            hint="check it again: the verdict is about the former one",
        )
    return VersionTarget(connection=connection, name=name, version=number)


def write_description(target: TagTarget, block: str) -> str | None:
    """Put the block into the description and read it back; return a warning if something had to give.

    Raises:
        AnnotationFailed: it reads back otherwise.
    """
    return replace_description(target, lambda old: merge_description(old, block))


def replace_description(target: TagTarget, edit: Callable[[str | None], tuple[str | None, str | None]]) -> str | None:
    """Write a description anew and read it back; return the warning of the edit.

    Args:
        target: whose.
        edit: from the old description to the new one, or None to leave it; and a warning.

    Raises:
        AnnotationFailed: it reads back otherwise.
    """
    old = target.description()
    text, warning = edit(old)
    if text is not None and text != (old or ""):
        target.set_description(text)
        if (target.description() or "") != text:
            raise AnnotationFailed(f"the description of {target.title} reads back otherwise than written")
    return warning
