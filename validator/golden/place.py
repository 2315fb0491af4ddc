"""Putting a folder in its place on disk: built beside it, flushed, renamed."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from validator.errors import GoldenError
from validator.golden.format import MANIFEST_NAME, POLICY_NAME, SHARD_SUFFIX

FILE_MODE = 0o644
"""safetensors writes 0600: who may read the manifest may read the shards."""


def check_place(folder: Path, *, replace: bool) -> None:
    """Only a golden dataset is ever replaced: a slip of the hand must not delete a home folder."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not replace:
        raise GoldenError(f"{folder} exists", hint="name another folder, or replace it with --replace")
    if folder.is_symlink() or not (folder / MANIFEST_NAME).is_file():
        raise GoldenError(f"{folder} is no golden dataset, so it is not replaced", hint="name another folder")
    foreign = [p.name for p in sorted(folder.iterdir()) if not _is_ours(p)]
    if foreign:
        raise GoldenError(
            f"{folder} holds what is no part of a golden dataset: {', '.join(foreign[:3])}",
            hint="move it elsewhere, or name another folder",
        )


def _is_ours(path: Path) -> bool:
    named = path.name in {MANIFEST_NAME, POLICY_NAME} or path.suffix == SHARD_SUFFIX
    return named and path.is_file() and not path.is_symlink()


@contextmanager
def draft_beside(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside the place, on the same file system, and remove it unless it was moved."""
    draft = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.draft"
    with naming_errors(folder):
        draft.mkdir(parents=True)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def flush(folder: Path) -> None:
    """Force all files and their names to disk, before a rename makes them visible."""
    for path in [*folder.iterdir(), folder]:
        if path.is_file():
            path.chmod(FILE_MODE)
        _fsync(path)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def move_into_place(draft: Path, folder: Path) -> None:
    """Rename the draft into place; a dataset that is there steps aside first and returns if that fails."""
    if not folder.exists():
        draft.rename(folder)
    else:
        aside = draft.with_suffix(".old")
        folder.rename(aside)
        try:
            draft.rename(folder)
        except OSError:
            aside.rename(folder)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    _fsync(folder.parent)


@contextmanager
def naming_errors(folder: Path) -> Iterator[None]:
    """Turn a failure of the disk into a GoldenError that says which folder it was."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise GoldenError(f"{folder} cannot be written: {reason}") from error
