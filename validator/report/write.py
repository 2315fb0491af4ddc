"""Putting the evidence on disk: whole or not at all."""

from pathlib import Path

from validator.disk import write_whole
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
    try:
        write_whole(path, content)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ReportFailed(
            f"{path} cannot be written: {reason}", hint="name a folder that can be written to with --output"
        ) from error
    return path
