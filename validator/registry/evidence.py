"""Uploading a run's artifacts, and looking whether they arrived."""

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from validator.manifest import walk_files
from validator.registry.connection import TRANSFER_DEADLINE_S, Connection
from validator.scratch import scratch_folder


def upload_artifacts(connection: Connection, run_id: str, artifacts: Mapping[str, Path]) -> None:
    """Upload each local file or folder to its path. The same path again is overwritten.

    Raises:
        IntegrityError: a folder holds links or special files.
        RegistryUnreachable: the registry does not answer.
    """
    client = connection.client
    for path, local in artifacts.items():
        with connection.writing(f"uploading {path}", limit_s=TRANSFER_DEADLINE_S):
            if local.is_dir():
                walk_files(local)
                client.log_artifacts(run_id, str(local), path)
            else:
                _upload_file(connection, run_id, local, PurePosixPath(path))


def missing_artifacts(connection: Connection, run_id: str, artifacts: Mapping[str, Path]) -> list[str]:
    """Return the paths that are not there, or not with the size of the local file."""
    wanted: dict[str, int] = {}
    for path, local in artifacts.items():
        files = walk_files(local) if local.is_dir() else [local]
        for file in files:
            inside = path if file == local else f"{path}/{file.relative_to(local).as_posix()}"
            wanted[str(PurePosixPath(inside))] = file.stat().st_size
    stored: dict[str, int | None] = {}
    with connection.doing("reading the artifacts back"):
        for folder in sorted({str(PurePosixPath(path).parent) for path in wanted}):
            listing = connection.client.list_artifacts(run_id, None if folder == "." else folder)
            stored |= {entry.path: entry.file_size for entry in listing}
    return sorted(path for path, size in wanted.items() if stored.get(path, -1) not in (size, None))


def _upload_file(connection: Connection, run_id: str, local: Path, path: PurePosixPath) -> None:
    """Upload a file; MLflow takes the name from the local one, so another name needs a copy."""
    parent = None if str(path.parent) == "." else str(path.parent)
    if local.name == path.name:
        connection.client.log_artifact(run_id, str(local), parent)
        return
    with scratch_folder() as folder:
        copy = folder / path.name
        shutil.copyfile(local, copy)
        connection.client.log_artifact(run_id, str(copy), parent)
