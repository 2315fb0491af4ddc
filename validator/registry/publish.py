"""A folder becomes a version of a registered model: the home of golden datasets."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from validator.errors import CouldNotRun, GuardRefused, ValidatorError
from validator.manifest import measure_folder
from validator.registry.connection import TRANSFER_DEADLINE_S, Connection, database_path
from validator.registry.interface import DIGEST_TAG, PublishedVersion
from validator.registry.resolve import list_versions

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

EXPERIMENT = "validator"
READY_WITHIN_S = 60


def publish_folder(
    connection: Connection, name: str, folder: Path, *, model_type: str, alias: str, tags: Mapping[str, str]
) -> PublishedVersion:
    """See Registry.publish."""
    digest = measure_folder(folder).digest
    ensure_model(connection, name)
    version = _newest_with(connection, name, digest)
    is_new = version is None
    if version is None:
        model = upload_folder(connection, name, folder, model_type=model_type)
        version = create_version(connection, name, model.model_id, {**tags, DIGEST_TAG: digest})
    number = int(version.version)
    with connection.writing(f"pointing alias {alias} of {name} to version {number}"):
        connection.client.set_registered_model_alias(name, alias, str(number))
    return PublishedVersion(name=name, version=number, digest=digest, created=is_new)


def ensure_model(connection: Connection, name: str) -> None:
    """Make a registered model unless it exists."""
    from mlflow.exceptions import MlflowException

    client = connection.client

    def is_there() -> bool:
        return connection.look_up(f"looking for {name}", lambda: client.get_registered_model(name)) is not None

    if not is_there():
        with connection.writing(f"registering {name}"):
            try:
                client.create_registered_model(name)
            except MlflowException:
                if not is_there():  # made by somebody else just now, or by a request that was sent twice
                    raise


def upload_folder(
    connection: Connection,
    name: str,
    folder: Path,
    *,
    model_type: str,
    experiment: str = EXPERIMENT,
    tags: Mapping[str, str] | None = None,
    run_id: str | None = None,
) -> "LoggedModel":
    """Make a logged model out of a folder. One that was uploaded in part is marked as failed."""
    client = connection.client
    experiment_id = ensure_experiment(connection, experiment)
    # Logged model names allow neither of the first five, registered ones neither of the first two.
    logged_name = re.sub(r"[/:.%\"']", "-", name)
    with connection.writing(f"making a logged model for {name}"):
        model = client.create_logged_model(
            experiment_id, name=logged_name, model_type=model_type, tags=dict(tags or {}), source_run_id=run_id
        )
    try:
        with connection.writing(f"uploading {folder} as {name}", limit_s=TRANSFER_DEADLINE_S):
            client.log_model_artifacts(model.model_id, str(folder))
    except ValidatorError:
        with suppress(ValidatorError), connection.writing(f"saying that the upload of {name} failed"):
            client.finalize_logged_model(model.model_id, "FAILED")
        raise
    with connection.writing(f"saying that {name} is uploaded"):
        client.finalize_logged_model(model.model_id, "READY")
    return model


def ensure_experiment(connection: Connection, name: str = EXPERIMENT) -> str:
    """Return the id of an experiment of the gate's, made on first use.

    Raises:
        CouldNotRun: it was deleted.
    """
    from mlflow.exceptions import MlflowException

    client = connection.client
    with connection.doing(f"looking for experiment {name}"):
        found = client.get_experiment_by_name(name)
    if found is None:
        with connection.writing(f"making the experiment {name}"):
            try:
                return str(
                    client.create_experiment(
                        name,
                        artifact_location=_artifact_location(connection, name),
                        # Without it the UI may list the runs as GenAI evaluations.
                        tags={"mlflow.experimentKind": "custom_model_development"},
                    )
                )
            except MlflowException as error:
                found = client.get_experiment_by_name(name)  # made by another check just now
                if found is None:
                    raise error from None
    if found.lifecycle_stage != "active":
        raise CouldNotRun(
            f"experiment {name} is deleted",
            hint=f"mlflow experiments restore --experiment-id {found.experiment_id}",
        )
    return str(found.experiment_id)


def _artifact_location(connection: Connection, name: str) -> str | None:
    """Beside an embedded database; its own default would be the current directory of whoever comes first."""
    path = database_path(connection.tracking_uri)
    return None if path is None else (path.parent / "mlartifacts" / name).as_uri()


def _newest_with(connection: Connection, name: str, digest: str) -> "ModelVersion | None":
    """Return the newest version if it holds these bytes and can be used."""
    versions = list_versions(connection, name)
    if versions and versions[-1].status == "READY" and versions[-1].tags.get(DIGEST_TAG) == digest:
        return versions[-1]
    return None


def create_version(
    connection: Connection, name: str, model_id: str, tags: Mapping[str, str], *, description: str | None = None
) -> "ModelVersion":
    """Make a version of a registered model out of a logged one: one, also where MLflow sends its request twice."""
    source = f"models:/{model_id}"
    with connection.writing(f"creating a version of {name}", limit_s=READY_WITHIN_S), _global_uri(connection):
        made = connection.client.create_model_version(
            name,
            source,
            tags=dict(tags),
            description=description,
            model_id=model_id,
            await_creation_for=READY_WITHIN_S,
        )
    twins = [version for version in list_versions(connection, name) if version.source == source]
    for twin in twins[1:]:
        # A guard lets nobody delete a protected model's versions. A twin of the same bytes does no harm there.
        with suppress(GuardRefused), connection.writing(f"deleting a second version of {name} with the same bytes"):
            connection.client.delete_model_version(name, twin.version)
    return twins[0] if twins else made


@contextmanager
def _global_uri(connection: Connection) -> Iterator[None]:
    """Point MLflow's process-wide URI to this registry: its SQL store resolves `source` there, not with our client."""
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None  # type: ignore[no-untyped-call]
    mlflow.set_tracking_uri(connection.tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)  # type: ignore[arg-type]  # None unsets it
