"""Content identity of a folder: a sorted list of (path, size, sha256), and one digest over it.

The digest covers names and bytes, never modes or times: two folders with the same files have the same digest on
every machine. Links, special files, empty folders and names that differ only in case have no portable meaning and
are refused.
"""

import hashlib
import json
import os
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.errors import IntegrityError

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ManifestEntry:
    """One regular file."""

    path: str
    """Relative, POSIX separators, NFC."""
    size_bytes: int
    sha256: str
    """64 hex digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of a folder, sorted by path."""

    entries: tuple[ManifestEntry, ...]

    @property
    def digest(self) -> str:
        """`sha256:<hex>` over the canonical JSON of all entries."""
        return digest_of([[e.path, e.size_bytes, e.sha256] for e in sorted(self.entries)])

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(e.size_bytes for e in self.entries)

    def select(self, paths: frozenset[str]) -> "Manifest":
        """Return the manifest of some of the files."""
        return Manifest(entries=tuple(e for e in self.entries if e.path in paths))

    def below(self, folder: str) -> "Manifest":
        """Return the manifest that a folder within has by itself; `.` is the whole."""
        prefix = "" if folder == "." else f"{folder}/"
        return Manifest(
            entries=tuple(
                ManifestEntry(path=e.path.removeprefix(prefix), size_bytes=e.size_bytes, sha256=e.sha256)
                for e in self.entries
                if e.path.startswith(prefix)
            )
        )


def digest_of(value: object) -> str:
    """Return `sha256:<hex>` of a JSON value in canonical form."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode()).hexdigest()


def canonical_json(value: object) -> str:
    """Return the one text of a JSON value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's pairs as a dict; to be used as `object_pairs_hook`.

    Raises:
        ValueError: a name is given twice: readers differ in which of the two they believe.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name given twice")
    return found


def hash_file(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def measure_folder(folder: Path, *, leave_out: frozenset[str] = frozenset()) -> Manifest:
    """Hash every file below a folder.

    Args:
        folder: its root.
        leave_out: relative paths that are not part of the content.

    Raises:
        IntegrityError: a link, a special file, a second hard link, an empty folder or a clash of names.
    """
    entries: list[ManifestEntry] = []
    seen: dict[str, str] = {}
    for path in sorted(walk_files(folder)):
        relative = path.relative_to(folder).as_posix()
        if relative in leave_out:
            continue
        if unicodedata.normalize("NFC", relative) != relative:
            raise IntegrityError(f"the name {relative!r} is not in normal form (NFC)")
        if (twin := seen.setdefault(relative.casefold(), relative)) != relative:
            raise IntegrityError(f"{twin!r} and {relative!r} are one name on some file systems")
        entries.append(ManifestEntry(path=relative, size_bytes=path.stat().st_size, sha256=hash_file(path)))
    return Manifest(entries=tuple(entries))


def walk_files(folder: Path) -> list[Path]:
    """List the regular files below a folder, refusing whatever else lies there.

    Raises:
        IntegrityError: a link, a special file, a file with a second hard link, or an empty folder.
    """
    files: list[Path] = []
    for root, folders, names in os.walk(folder, followlinks=False):
        here = Path(root)
        if here != folder and not folders and not names:
            raise IntegrityError(f"{here.relative_to(folder)} is an empty folder")
        for name in [*folders, *names]:
            path = here / name
            mode = path.lstat()
            if stat.S_ISLNK(mode.st_mode):
                raise IntegrityError(f"{path.relative_to(folder)} is a symbolic link")
            if stat.S_ISDIR(mode.st_mode):
                continue
            if not stat.S_ISREG(mode.st_mode):
                raise IntegrityError(f"{path.relative_to(folder)} is not a regular file")
            if mode.st_nlink > 1:
                raise IntegrityError(f"{path.relative_to(folder)} has {mode.st_nlink} hard links")
            files.append(path)
    return files
