"""Putting the evidence on disk: whole or not at all."""

import contextlib
import os
import secrets
from pathlib import Path

from validator.errors import ReportFailed
from validator.report.model import VerdictDocument


def write_document(document: VerdictDocument, path: Path) -> Path:
    """Write the canonical text of a document; return its path.

    Raises:
        ReportFailed: it could not be written; what stood there before still stands, and nothing half-written stays.
    """
    return write_text(document.to_json(), path)


def write_text(text: str, path: Path) -> Path:
    """Write UTF-8. See `write_bytes`."""
    return write_bytes(text.encode(), path)


def write_bytes(content: bytes, path: Path) -> Path:
    """Write a file beside its place, force it to disk and rename it. Missing folders are made.

    Raises:
        ReportFailed: it could not be written.
    """
    # In the same folder, because a rename is only atomic within one file system.
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}.draft"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        with draft.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        reason = (error.strerror or str(error)).lower()
        raise ReportFailed(
            f"{path} cannot be written: {reason}", hint="name a folder that can be written to with --output"
        ) from error
    return path


def _flush_folder(folder: Path) -> None:
    """Force the new name to disk: without it a power cut could bring the old file back."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
