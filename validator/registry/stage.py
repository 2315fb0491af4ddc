"""Bytes from the registry into a private folder: downloaded once, hashed, read-only from then on.

Downloads go through the artifact repository of the URI that MLflow fixed when the version was made. The short way,
`mlflow.artifacts.download_artifacts("models:/...")`, adds a file of its own, without a destination even to the live
store, and its bytes depend on the form of the URI.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from validator.disk import remove_tree
from validator.errors import CouldNotRun, IntegrityError, UriError, ValidatorError
from validator.manifest import measure_folder
from validator.registry.connection import TRANSFER_DEADLINE_S, Connection
from validator.registry.resolve import logged_by_run, require_run, resolve_uri
from validator.subject import StagedModel, Subject, parse_model_uri

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

REGISTERED_META = "registered_model_meta"
"""Left in the live store by earlier downloads of others: the only name that a manifest may leave out."""
_META_KEYS = frozenset({"model_name", "model_version"})
_META_LIMIT_BYTES = 4096


def stage_subject(connection: Connection, subject: Subject, folder: Path) -> StagedModel:
    """See Registry.stage."""
    _refuse_links(subject)
    with _filling(folder):
        download(connection, subject.download_uri, "", folder, what=f"downloading {subject.title}")
        if is_registered_meta(folder / REGISTERED_META):
            (folder / REGISTERED_META).unlink()
        manifest = measure_folder(folder)
        if not manifest.entries:
            raise CouldNotRun(
                f"{subject.title} holds no files",
                hint=f"its bytes were at {subject.download_uri}; they were deleted, or never uploaded",
            )
        freeze_folder(folder)
    return StagedModel(subject=subject, folder=folder, manifest=manifest)


def fetch_artifacts(connection: Connection, uri: str, folder: Path, *, warn: Callable[[str], None]) -> Path:
    """See Registry.fetch."""
    root, inside = locate(connection, uri, warn)
    with _filling(folder):
        found = download(connection, root, inside, folder, what=f"downloading {uri}")
        if not found.exists() or (found.is_dir() and not any(found.iterdir())):
            raise UriError(f"there is nothing at {uri}", hint=f"registry {connection.shown}")
        if found == folder and is_registered_meta(folder / REGISTERED_META):
            (folder / REGISTERED_META).unlink()
        freeze_folder(folder)
    return found


def locate(connection: Connection, uri: str, warn: Callable[[str], None]) -> tuple[str, str]:
    """Return the root of an artifact repository and the path below it that a URI means.

    Raises:
        UriError: it does not exist, or is no URI.
    """
    if not urlsplit(uri).scheme or ".." in uri.split("/"):
        raise UriError(
            f"{uri!r} is not an artifact URI", hint="write models:/NAME/3/PATH, runs:/RUN/PATH or SCHEME://..."
        )
    if match := re.fullmatch(r"(models:/+(?:[^/]+@[^/@]+|m-[^/@]+|[^/@]+/[^/]+))(?:/(.*))?", uri):
        subject = resolve_uri(connection, parse_model_uri(match[1]), requested=uri, warn=warn)
        return subject.download_uri, (match[2] or "").strip("/")
    if match := re.fullmatch(r"runs:/([^/]+)/(.+)", uri):
        return _locate_in_run(connection, match[1], match[2].strip("/"))
    if urlsplit(uri).scheme in ("models", "runs"):
        parse_model_uri(uri)  # raises: every form that it knows is handled above
        raise UriError(f"{uri!r} names no artifact")
    return posixpath.dirname(uri.rstrip("/")), posixpath.basename(uri.rstrip("/"))


def _locate_in_run(connection: Connection, run_id: str, path: str) -> tuple[str, str]:
    run = require_run(connection, run_id)
    name, _, inside = path.partition("/")
    model = logged_by_run(connection, run, name)
    return (run.info.artifact_uri, path) if model is None else (model.artifact_location, inside)


def download(connection: Connection, root: str, inside: str, folder: Path, *, what: str) -> Path:
    """Download what lies at a path of an artifact repository into a folder that exists; return where it is.

    Raises:
        UriError: it does not exist.
        CouldNotRun: the disk is full.
        RegistryUnreachable: the registry does not answer.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    with connection.doing(what):
        repository = get_artifact_repository(
            root, tracking_uri=connection.tracking_uri, registry_uri=connection.registry_uri
        )
    try:
        with connection.doing(what, limit_s=TRANSFER_DEADLINE_S):
            found: str = repository.download_artifacts(inside, str(folder.absolute()))  # type: ignore[no-untyped-call]
            return Path(found)
    except ValidatorError as error:
        # Over HTTP a path that is not there fails like any broken download; only the listing tells them apart.
        if inside and not _is_listed(connection, repository, inside):
            raise UriError(f"there is no {inside} at {root}", hint=f"registry {connection.shown}") from error
        raise


def _is_listed(connection: Connection, repository: "ArtifactRepository", inside: str) -> bool:
    """Whether a path is among its folder's entries; True when that cannot be found out."""
    parent = posixpath.dirname(inside) or None
    try:
        with connection.doing(f"listing {parent or 'the root'}"):
            return inside in {entry.path for entry in repository.list_artifacts(parent)}
    except ValidatorError:
        return True


def _refuse_links(subject: Subject) -> None:
    """Look for links where the store is a local folder: the download would copy what they lead to, whosever it is.

    Raises:
        IntegrityError: a symbolic link, or a file that has another name elsewhere.
    """
    root = find_local_folder(subject.download_uri)
    if root is None:
        return
    for path in (root, *root.rglob("*")):
        if path.is_symlink():
            raise IntegrityError(f"{path.relative_to(root)} of {subject.title} is a symbolic link in the store")
        if path.is_file() and path.stat().st_nlink != 1:
            raise IntegrityError(
                f"{path.relative_to(root)} of {subject.title} is one file with another in the store, a hard link",
                hint="its bytes can change with the other's: register the model again from files of its own",
            )


def find_local_folder(location: str) -> Path | None:
    """Return the folder of this machine that MLflow itself reads at an artifact location; None: it lies elsewhere.

    In a plain path `#` and `?` are characters like others; only a `file:` URI is taken apart.

    Raises:
        IntegrityError: a `file:` URI names a host, which MLflow would ignore.
    """
    from mlflow.utils.file_utils import local_file_uri_to_path

    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    if location.startswith("file:") and parts.netloc:
        raise IntegrityError(f"{location} names the host {parts.netloc}: a file: URI means this machine")
    return Path(local_file_uri_to_path(location))  # type: ignore[no-untyped-call]


def is_registered_meta(path: Path) -> bool:
    """Whether this is MLflow's own note, which holds two keys and nothing else."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _META_LIMIT_BYTES:
        return False
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
    keys = {line.partition(":")[0] for line in lines if line.strip() and not line.startswith(" ")}
    return keys == _META_KEYS


def freeze_folder(folder: Path) -> None:
    """Take every write permission away: files 0444, folders 0555."""
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    folder.chmod(0o555)


@contextmanager
def _filling(folder: Path) -> Iterator[None]:
    """Make a private, empty folder; leave nothing of it behind if filling it fails.

    Raises:
        CouldNotRun: it is the current directory, not empty, or cannot be made.
    """
    if folder.resolve() == Path.cwd():
        raise CouldNotRun(f"{folder} is the current directory: bytes are staged elsewhere")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CouldNotRun(f"{folder} is not empty: bytes are staged into a folder of their own")
        folder.chmod(0o700)
    except OSError as error:
        raise CouldNotRun(f"{folder} cannot be used: {error.strerror}") from error
    is_done = False
    try:
        yield
        is_done = True
    finally:
        if not is_done:
            remove_tree(folder)
