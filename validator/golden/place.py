"""Putting a folder in its place on disk: built beside it, flushed, renamed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from safetensors import SafetensorError

from validator.disk import FULL, bring_back, draft_of, force_to_disk, held_folder, move_folder, sweep_drafts
from validator.errors import CouldNotRun, GoldenError
from validator.faults import crash_point
from validator.golden.format import MANIFEST_NAME, POLICY_NAME, SHARD_SUFFIX

FILE_MODE = 0o644
"""safetensors writes 0600: who may read the manifest may read the shards."""


def check_place(folder: Path, *, replace: bool) -> None:
    """Only a golden dataset is ever replaced: a slip of the hand must not delete a home folder.

    One that a killed process moved aside is put back first.
    """
    with naming_errors(folder):
        bring_back(folder)
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

    def make() -> Path:
        draft = draft_of(folder)
        draft.mkdir(parents=True)
        return draft

    with ExitStack() as stack:
        with naming_errors(folder):
            crash_point(f"make a draft of {folder.name}")
            sweep_drafts(folder.parent, [folder.name])
            draft = stack.enter_context(held_folder(make))
        yield draft


def flush(folder: Path) -> None:
    """Force all files and their names to disk, before a rename makes them visible."""
    for path in [*folder.iterdir(), folder]:
        if path.is_file():
            path.chmod(FILE_MODE)
        force_to_disk(path)


def move_into_place(draft: Path, folder: Path) -> None:
    """Rename the draft into place; a dataset that is there changes places with it at once, and goes with the draft."""
    move_folder(draft, folder)


@contextmanager
def naming_errors(folder: Path) -> Iterator[None]:
    """Turn a failure of the disk into an error that says which folder it was.

    Raises:
        GoldenError: it cannot be written.
        CouldNotRun: the disk is full.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        message = f"{folder} cannot be written: {reason}"
        if getattr(error, "errno", None) in FULL or "no space left" in reason:
            raise CouldNotRun(message, hint="free some space, or name another folder") from error
        raise GoldenError(message) from error
