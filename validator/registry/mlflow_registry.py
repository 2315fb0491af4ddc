"""The registry that is MLflow: embedded SQLite, or a server. Each step of it has its own module."""

from collections.abc import Callable, Mapping
from pathlib import Path

from validator.registry.aliases import note_version, point_alias, read_model, tag_model, tag_version
from validator.registry.annotate import withdraw_verdict, write_annotation
from validator.registry.connection import Connection, connect
from validator.registry.interface import Annotation, AnnotationReceipt, ModelState, PublishedVersion, Republication
from validator.registry.publish import publish_folder
from validator.registry.republish import republish_version
from validator.registry.resolve import describe_model, resolve_uri
from validator.registry.stage import fetch_artifacts, stage_subject
from validator.subject import ModelUri, StagedModel, Subject

Warn = Callable[[str], None]


def _ignore(_message: str) -> None:
    """Drop a warning."""


class MlflowRegistry:
    """A Registry over MLflow. Every call first asks whether the server is there at all."""

    def __init__(self, connection: Connection, *, warn: Warn = _ignore) -> None:
        self._connection = connection
        self._warn = warn

    @property
    def uri(self) -> str:
        """The registry, without credentials."""
        return self._connection.shown

    def resolve(self, uri: ModelUri, requested: str) -> Subject:
        """See Registry.resolve. Stages and versions that are not ready are warned about."""
        self._connection.probe()
        return resolve_uri(self._connection, uri, requested=requested, warn=self._warn)

    def stage(self, subject: Subject, folder: Path) -> StagedModel:
        """See Registry.stage."""
        self._connection.probe()
        return stage_subject(self._connection, subject, folder)

    def fetch(self, uri: str, folder: Path) -> Path:
        """See Registry.fetch."""
        self._connection.probe()
        return fetch_artifacts(self._connection, uri, folder, warn=self._warn)

    def publish(
        self, name: str, folder: Path, *, model_type: str, alias: str, tags: Mapping[str, str]
    ) -> PublishedVersion:
        """See Registry.publish."""
        self._connection.probe()
        return publish_folder(self._connection, name, folder, model_type=model_type, alias=alias, tags=tags)

    def republish(self, republication: Republication) -> PublishedVersion:
        """See Registry.republish."""
        self._connection.probe()
        return republish_version(self._connection, republication)

    def annotate(self, annotation: Annotation) -> AnnotationReceipt:
        """See Registry.annotate."""
        return write_annotation(self._connection, annotation)

    def withdraw(self, subject: Subject) -> None:
        """See Registry.withdraw."""
        withdraw_verdict(self._connection, subject)

    def read_model(self, name: str) -> ModelState:
        """See Registry.read_model."""
        self._connection.probe()
        return read_model(self._connection, name)

    def point_alias(self, name: str, alias: str, version: int | None) -> None:
        """See Registry.point_alias."""
        self._connection.probe()
        point_alias(self._connection, name, alias, version)

    def tag_model(self, name: str, key: str, value: str | None) -> None:
        """See Registry.tag_model."""
        self._connection.probe()
        tag_model(self._connection, name, key, value)

    def tag_version(self, name: str, version: int, key: str, value: str | None) -> None:
        """See Registry.tag_version."""
        self._connection.probe()
        tag_version(self._connection, name, version, key, value)

    def note_alias(self, name: str, version: int, alias: str, line: str) -> str | None:
        """See Registry.note_alias."""
        self._connection.probe()
        return note_version(self._connection, name, version, alias, line)

    def hint_for(self, name: str) -> str:
        """See Registry.hint_for."""
        self._connection.probe()
        return describe_model(self._connection, name)


def open_registry(
    tracking_uri: str | None = None, registry_uri: str | None = None, *, cwd: Path, warn: Warn = _ignore
) -> MlflowRegistry:
    """Open the registry that the arguments, MLflow's variables or `./mlflow.db` name. Nothing is asked of it yet.

    Args:
        tracking_uri: wins over MLFLOW_TRACKING_URI.
        registry_uri: wins over MLFLOW_REGISTRY_URI; without either, models are where runs are.
        cwd: the folder where `mlflow.db` is looked for.
        warn: is told what people should know about a resolved URI: a stage, a version that is not ready.

    Raises:
        RegistryUnset: none of them names a registry.
    """
    connection = connect(tracking_uri=tracking_uri, registry_uri=registry_uri, cwd=cwd)
    return MlflowRegistry(connection, warn=warn)
