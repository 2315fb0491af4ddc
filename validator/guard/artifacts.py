"""Where the server finds a version's bytes, and their digest."""

import os
import posixpath
from pathlib import Path
from urllib.parse import urlsplit

from validator.errors import CouldNotRun, GuardRefused, IntegrityError
from validator.manifest import measure_folder
from validator.registry.stage import REGISTERED_META, find_local_folder, is_registered_meta
from validator.scratch import scratch_folder

DESTINATION_VARIABLE = "_MLFLOW_SERVER_ARTIFACT_DESTINATION"
"""Set by `mlflow server` for its own processes: `--artifacts-destination`."""


def measure_location(location: str) -> str:
    """Return the digest of every file at an artifact location, as a check measures it.

    Files on this machine are hashed where they lie; others are downloaded first and removed afterwards.

    Raises:
        GuardRefused: the server cannot read them, or they hold what cannot be hashed.
    """
    uri = resolve_location(location)
    try:
        if (folder := find_local_folder(uri)) is not None:
            return _measure(folder)
        with scratch_folder() as scratch:
            return _measure(_download(uri, str(scratch)))
    except (OSError, IntegrityError, CouldNotRun) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else error.message
        raise GuardRefused(
            f"the bytes at {location} cannot be hashed: {reason}", hint="restore them, or register the version again"
        ) from error


def resolve_location(location: str) -> str:
    """Return where the server itself finds what clients reach through it.

    Raises:
        GuardRefused: clients would reach something else, or the server does not know where it lies.
    """
    parts = urlsplit(location)
    if parts.scheme != "mlflow-artifacts":
        return location
    if parts.netloc or set("%?#") & set(location):
        # A host sends clients to another server; what is escaped is decoded once more on the way than here.
        raise GuardRefused(
            f"{location} names a host, or holds one of % ? #: clients may be served other bytes than those hashed here",
            hint="register the version by mlflow-artifacts:/PATH, with a path of plain characters",
        )
    root = os.environ.get(DESTINATION_VARIABLE)
    if not root:
        raise GuardRefused(
            f"{location} is served by a server that this one does not know",
            hint="the administrator may set verify_bytes = false in guard.toml",
        )
    return posixpath.join(root, parts.path.lstrip("/"))


def _measure(folder: Path) -> str:
    """Hash a folder without MLflow's own note, which a check leaves out, too.

    Raises:
        OSError: it is not there.
    """
    if not folder.is_dir():
        raise FileNotFoundError(2, "no such folder", str(folder))
    is_noted = is_registered_meta(folder / REGISTERED_META)
    return measure_folder(folder, leave_out=frozenset({REGISTERED_META}) if is_noted else frozenset()).digest


def _download(uri: str, scratch: str) -> Path:
    """Fetch what another store holds.

    Raises:
        GuardRefused: it cannot be read from here.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    try:
        found = get_artifact_repository(uri).download_artifacts("", scratch)
    except Exception as error:  # every store raises its own, and all of them mean that nothing is known of the bytes
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise GuardRefused(
            f"the bytes at {uri} cannot be read by the server: {reason}",
            hint="give the server access, or let the administrator set verify_bytes = false in guard.toml",
        ) from error
    return Path(str(found))
