"""Where the server finds a version's bytes, and their digest."""

import os
import posixpath
from pathlib import Path
from urllib.parse import urlsplit

from validator.errors import CouldNotRun, GuardRefused, IntegrityError
from validator.manifest import measure_folder
from validator.registry.stage import REGISTERED_META, find_local_folder, is_registered_meta
from validator.scratch import scratch_folder

DEFAULT_WORKSPACE = "default"
"""MLflow's name for where everything lies that belongs to no other workspace."""

DESTINATION_VARIABLE = "_MLFLOW_SERVER_ARTIFACT_DESTINATION"
"""Set by `mlflow server` for its own processes: `--artifacts-destination`."""


def measure_location(location: str, workspace: str | None = None) -> str:
    """Return the digest of every file at an artifact location, as a check measures it.

    Files on this machine are hashed where they lie; others are downloaded first and removed afterwards.

    Args:
        location: where a version's files are read from.
        workspace: whose clients read it; None: the server has no workspaces.

    Raises:
        GuardRefused: the server cannot read them, or they hold what cannot be hashed.
    """
    uri = resolve_location(location, workspace)
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


def resolve_location(location: str, workspace: str | None = None) -> str:
    """Return where the server itself finds what clients reach through it.

    Args:
        location: as the registry has it.
        workspace: whose clients read it; None: the server has no workspaces.

    Raises:
        GuardRefused: clients would reach something else, or the server does not know where it lies.
    """
    parts = urlsplit(location)
    if parts.scheme in ("http", "https"):
        raise GuardRefused(
            f"{location} is a web server's, which may serve clients other bytes than those hashed here",
            hint="upload the files to this registry's own artifact store, and register that",
        )
    if parts.scheme != "mlflow-artifacts":
        return location
    path = parts.path.strip("/")
    if parts.netloc or set("%?#") & set(location) or {"", ".", ".."} & set(path.split("/")):
        # A host sends clients to another server; what is escaped is decoded, and what is no name left out, once more on
        # the way than here.
        raise GuardRefused(
            f"{location} names a host, or holds one of % ? # // . or ..: clients may be served other bytes than those "
            "hashed here",
            hint="register the version by mlflow-artifacts:/PATH, with a path of plain characters",
        )
    if workspace is not None and not _is_own_path(path, workspace):
        raise GuardRefused(
            f"{location} lies outside workspace {workspace}: clients may be served other bytes than those hashed here",
            hint=f"register the version by mlflow-artifacts:/workspaces/{workspace}/PATH",
        )
    root = os.environ.get(DESTINATION_VARIABLE)
    if not root:
        raise GuardRefused(
            f"{location} is served by a server that this one does not know",
            hint="the administrator may set verify_bytes = false in guard.toml",
        )
    return posixpath.join(root, path)


def _is_own_path(path: str, workspace: str) -> bool:
    """Whether the server hands out what lies at a path of its store under the same path in a workspace.

    Elsewhere MLflow looks below the workspace's own folder, but for the default one, which had none once.
    """
    head, _, rest = path.partition("/")
    if head == "workspaces":
        return rest.partition("/")[0] == workspace
    return workspace == DEFAULT_WORKSPACE


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
