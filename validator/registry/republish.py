"""Cleared bytes become a version of a model of the gate's own, in an experiment where nobody else may write.

Every step looks first whether it was done: a request that MLflow sent twice, or a process that was killed, leaves at
most an upload that no version names. Nothing found here is believed: the caller downloads the version and hashes it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from validator.errors import CouldNotRun
from validator.registry.connection import TRANSFER_DEADLINE_S, Connection
from validator.registry.evidence import missing_artifacts, upload_artifacts
from validator.registry.interface import (
    CLEARANCE_TAG,
    DIGEST_TAG,
    ONNX_TAG,
    ORIGIN_TAG,
    RUN_TAG,
    PublishedVersion,
    Republication,
)
from validator.registry.publish import create_version, ensure_experiment, ensure_model, upload_folder
from validator.registry.resolve import list_versions
from validator.registry.targets import VersionTarget

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CLEARANCE_SHA_TAG = "validator.clearance_sha256"
"""On the run: which clearance it holds."""
MODEL_TYPE = "validator.promoted"
CLEARANCE_NAME = "clearance.json"
ONNX_FOLDER = "onnx"


def republish_version(connection: Connection, republication: Republication) -> PublishedVersion:
    """See Registry.republish."""
    experiment_id = ensure_experiment(connection, republication.experiment)
    run_id = _ensure_run(connection, republication, experiment_id)
    ensure_model(connection, republication.name)
    version = _find_version(connection, republication)
    is_new = version is None
    if is_new:
        model_id = _ensure_upload(connection, republication, experiment_id, run_id)
        create_version(
            connection,
            republication.name,
            model_id,
            _version_tags(republication, run_id),
            description=republication.description,
        )
        version = _find_version(connection, republication)
    if version is None:
        raise CouldNotRun(f"the version of {republication.name} was created and is not found again")
    number = int(version.version)
    _point_to_run(connection, republication, number, run_id)
    return PublishedVersion(name=republication.name, version=number, digest=republication.digest, created=is_new)


def _ensure_run(connection: Connection, republication: Republication, experiment_id: str) -> str:
    """Return the run that holds the clearance, and the ONNX file if one was cleared."""
    client, sha256 = connection.client, republication.clearance_sha256
    with connection.doing("looking for the run of this clearance"):
        found = client.search_runs([experiment_id], f"tags.`{CLEARANCE_SHA_TAG}` = '{sha256}'")
    runs = sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))
    if runs:
        run_id = str(runs[0].info.run_id)
    else:
        with connection.writing("creating the run of this clearance"):
            run = client.create_run(
                experiment_id, tags={CLEARANCE_SHA_TAG: sha256}, run_name=f"{republication.origin} promoted"
            )
        run_id = str(run.info.run_id)
    artifacts = _artifacts(republication)
    missing = missing_artifacts(connection, run_id, artifacts)
    if missing:
        upload_artifacts(connection, run_id, artifacts)
        with connection.writing("closing the run of this clearance"):
            client.set_terminated(run_id, "FINISHED")
    return run_id


def _artifacts(republication: Republication) -> Mapping[str, Path]:
    artifacts = {CLEARANCE_NAME: republication.clearance}
    return artifacts if republication.onnx is None else artifacts | {ONNX_FOLDER: republication.onnx}


def _ensure_upload(connection: Connection, republication: Republication, experiment_id: str, run_id: str) -> str:
    """Return the logged model with these bytes: one that an earlier call uploaded, or a new one."""
    with connection.doing("looking for an upload of these bytes"):
        found = connection.client.search_logged_models(
            experiment_ids=[experiment_id],
            filter_string=f"tags.`{DIGEST_TAG}` = '{republication.digest}'",
        )
    ready = sorted(
        (model for model in found if str(model.status) == "READY"),
        key=lambda model: (model.creation_timestamp, model.model_id),
    )
    if ready:
        return str(ready[0].model_id)
    with connection.writing(f"uploading the bytes of {republication.origin}", limit_s=TRANSFER_DEADLINE_S):
        model = upload_folder(
            connection,
            republication.name,
            republication.folder,
            model_type=MODEL_TYPE,
            experiment=republication.experiment,
            tags={DIGEST_TAG: republication.digest, ORIGIN_TAG: republication.origin},
            run_id=run_id,
        )
    return str(model.model_id)


def _find_version(connection: Connection, republication: Republication) -> "ModelVersion | None":
    """Return the oldest version that says it holds these bytes of this origin."""
    wanted = {DIGEST_TAG: republication.digest, ORIGIN_TAG: republication.origin}
    for version in list_versions(connection, republication.name):
        tags = version.tags or {}
        if version.status == "READY" and all(tags.get(key) == value for key, value in wanted.items()):
            return version
    return None


def _version_tags(republication: Republication, run_id: str) -> dict[str, str]:
    tags = {
        DIGEST_TAG: republication.digest,
        ORIGIN_TAG: republication.origin,
        CLEARANCE_TAG: republication.clearance.read_text(encoding="utf-8"),
        RUN_TAG: run_id,
    }
    return tags if republication.onnx is None else tags | {ONNX_TAG: f"runs:/{run_id}/{ONNX_FOLDER}"}


def _point_to_run(connection: Connection, republication: Republication, number: int, run_id: str) -> None:
    """Name the run of this clearance: the same bytes may have been cleared anew."""
    target = VersionTarget(connection=connection, name=republication.name, version=str(number))
    present = target.tags()
    for key, value in _version_tags(republication, run_id).items():
        if present.get(key) != value:
            target.set_tag(key, value)
