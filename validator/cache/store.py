"""The folder of one trust domain: entries by key, a lock for each, and never more bytes than was said.

ROOT/DOMAIN/KEY.entry           written beside its place and renamed, by whoever holds the lock
ROOT/DOMAIN/KEY.lock            empty; stays
ROOT/DOMAIN/.KEY.RANDOM.draft   being written, or left by somebody who was killed
"""

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import BaseFileLock, FileLock, Timeout

from validator.cache.entry import SEAL_BYTES, EntryDamaged, Piece, copy_verified, length_of, write_sealed
from validator.cache.secret import CacheUnusable, load_secret, reason_of
from validator.errors import UsageError
from validator.faults import crash_point

DEFAULT_DOMAIN = "local"
DEFAULT_SIZE = "10GiB"
SUFFIX = ".entry"
_POLL_S = 0.1
_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_UNITS["TiB"] = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlace:
    """Where a cache lies, for whom, and how large it may get."""

    folder: Path | None = None
    """None: `validator` in the user's cache folder."""
    domain: str = DEFAULT_DOMAIN
    key_file: Path | None = None
    """None: in the user's data folder, one per domain, made at first use."""
    size_bytes: int = 10 << 30

    def __post_init__(self) -> None:
        """Require a domain that is the name of a folder.

        Raises:
            UsageError: it is none.
        """
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", self.domain):
            raise UsageError(
                f"{self.domain!r} is no cache domain", hint="use up to 64 lower-case letters, digits, - and _"
            )


def parse_size(text: str) -> int:
    """Read `10GiB`, `500MB` or a number of bytes.

    Raises:
        UsageError: it is none of these.
    """
    match = re.fullmatch(r"([0-9]{1,12})\s?([A-Za-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is no size", hint=f"write a whole number and one of {', '.join(_UNITS)[2:]}")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An entry, by what its folder tells; nobody has looked into it."""

    key: str
    path: Path
    size_bytes: int
    used_s: float
    """When it was made or last reused, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFolder:
    """Entries and locks, without the key: they can be listed and removed, and nobody looks into them."""

    folder: Path

    @contextlib.contextmanager
    def locked(self, key: str, *, wait_s: float) -> Iterator[bool]:
        """Hold the lock of a key for a while; False: somebody else did, until the wait was over."""
        lock = self.take(key, wait_s=wait_s)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def take(self, key: str, *, wait_s: float) -> BaseFileLock | None:
        """Take the lock of a key, to be released; None: somebody else held it until the wait was over.

        The kernel takes it from a process that dies, so nobody waits for the dead.

        Raises:
            OSError: locks cannot be made here.
        """
        lock = FileLock(self.folder / f"{key}.lock", timeout=wait_s, mode=0o600)
        try:
            lock.acquire(poll_interval=_POLL_S)
        except Timeout:
            return None
        except NotImplementedError as error:
            raise OSError(None, "this file system has no locks") from error
        return lock

    def entries(self) -> list[Stored]:
        """List the entries, those that were used longest ago first."""
        found: list[Stored] = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                state = path.lstat()
                key = path.name.removesuffix(SUFFIX)
                found.append(Stored(key=key, path=path, size_bytes=state.st_size, used_s=state.st_mtime))
        return sorted(found, key=lambda entry: (entry.used_s, entry.key))

    def make_room(self, size_bytes: int, *, leaving: str = "") -> int:
        """Remove what was used longest ago until no more than so many bytes are left; return how many entries went.

        An entry whose lock somebody holds is in use, and stays. One copies an entry before one uses it, so the others
        are in nobody's hands.

        Args:
            size_bytes: of all entries together.
            leaving: key of an entry that is about to be replaced, whose lock the caller holds.
        """
        entries = [entry for entry in self.entries() if entry.key != leaving]
        excess, removed = sum(entry.size_bytes for entry in entries) - size_bytes, 0
        for entry in entries:
            if excess <= 0:
                break
            with self.locked(entry.key, wait_s=0) as is_free:
                if is_free:
                    self.discard(entry.key)
                    excess -= entry.size_bytes
                    removed += 1
        return removed

    def sweep(self) -> None:
        """Remove what writers left who were killed: drafts whose lock nobody holds."""
        for draft in self.folder.glob(".*.draft"):
            with self.locked(draft.name.split(".")[1], wait_s=0) as is_free:
                if is_free:
                    with contextlib.suppress(OSError):
                        draft.unlink(missing_ok=True)

    def discard(self, key: str) -> None:
        """Remove an entry, as far as that is possible."""
        with contextlib.suppress(OSError):
            self.path_of(key).unlink(missing_ok=True)

    def path_of(self, key: str) -> Path:
        """Return where an entry lies."""
        return self.folder / f"{key}{SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(EntryFolder):
    """A folder and the key that its entries are sealed with."""

    secret: bytes
    size_bytes: int
    """Limit of all entries together."""

    def load(self, key: str, copy: Path) -> bool:
        """Copy an entry without its seal, verified; False: there is none. To be called by whoever holds the lock.

        Raises:
            EntryDamaged: it is not what was written; it is gone then.
            OSError: it cannot be copied.
        """
        path = self.path_of(key)
        try:
            with copy.open("xb") as target, _open_regular(path) as source:
                size = os.fstat(source.fileno()).st_size
                copy_verified(source, target, size_bytes=size, key=key, secret=self.secret)
        except FileNotFoundError:
            return False
        except EntryDamaged:
            self.discard(key)
            raise
        with contextlib.suppress(OSError):  # a folder that can only be read forgets nothing
            os.utime(path)
        return True

    def save(self, key: str, parts: list[bytes | Piece]) -> bool:
        """Write an entry, whole or not at all, and make room for it. To be called by whoever holds the lock.

        Returns:
            False where it is larger than the whole cache may be.

        Raises:
            EntryDamaged, EOFError: a part is not what it was; nothing of the entry stays.
            OSError: it cannot be written, or a part cannot be read; nothing of it stays.
        """
        size = sum(length_of(part) for part in parts) + SEAL_BYTES
        if size > self.size_bytes:
            return False
        self.make_room(self.size_bytes - size, leaving=key)
        draft = self.folder / f".{key}.{secrets.token_hex(8)}.draft"
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as stream:
                crash_point(f"write {draft.name}")
                write_sealed(parts, stream, key=key, secret=self.secret)
                stream.flush()
                crash_point(f"force {draft.name} to disk")
                os.fsync(handle)
            crash_point(f"rename {draft.name}")
            draft.replace(self.path_of(key))
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        crash_point(f"force {self.folder} to disk")
        _flush_folder(self.folder)
        return True


def _open_regular(path: Path) -> BinaryIO:
    """Open an entry. A link is not followed and a named pipe not waited for: entries are files of the gate's own.

    Raises:
        EntryDamaged: it is something else.
        OSError: it cannot be opened; FileNotFoundError: there is none.
    """
    try:
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        if path.is_symlink():
            raise EntryDamaged("it is a symbolic link") from error
        raise
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise EntryDamaged("it is not a regular file")


# --- Opening ------------------------------------------------------------------------------------------------------


def open_store(place: CachePlace, environment: Mapping[str, str] = os.environ) -> Store:
    """Open a cache, which is made if there is none.

    Raises:
        CacheUnusable: there is no place for one, or none that is ours alone.
    """
    key_file = place.key_file or _home(environment, "XDG_DATA_HOME", ".local/share") / f"cache-{place.domain}.key"
    folder = open_folder(place, environment).folder
    return Store(folder=folder, secret=load_secret(key_file), size_bytes=place.size_bytes)


def open_folder(place: CachePlace, environment: Mapping[str, str] = os.environ) -> EntryFolder:
    """Open a cache without its key: whatever lies in it can be listed and removed, and not read.

    Raises:
        CacheUnusable: there is no place for one, or none that is ours alone.
    """
    folder = folder_of(place, environment)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.lstat()
        if not stat.S_ISDIR(state.st_mode):
            raise CacheUnusable(f"{folder} is no folder")
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise CacheUnusable(f"{folder} can be written by others")
        opened = EntryFolder(folder=folder)
        opened.sweep()
    except OSError as error:
        raise CacheUnusable(f"{folder} cannot be used: {reason_of(error)}") from error
    return opened


def folder_of(place: CachePlace, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a place's domain.

    Raises:
        CacheUnusable: the user has none.
    """
    return (place.folder or _home(environment, "XDG_CACHE_HOME", ".cache")) / place.domain


def _home(environment: Mapping[str, str], variable: str, default: str) -> Path:
    """Return our folder among the user's; XDG's variables count only where they are absolute, as XDG says."""
    named = environment.get(variable, "")
    if Path(named).is_absolute():
        return Path(named) / "validator"
    home = environment.get("HOME", "")
    if not Path(home).is_absolute():
        raise CacheUnusable(f"there is no place for it: neither {variable} nor HOME is set")
    return Path(home) / default / "validator"


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
