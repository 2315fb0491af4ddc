"""The key that entries are sealed with: random bytes in a file that only the gate can read, one per trust domain."""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from validator.disk import sweep_drafts, write_new

SECRET_BYTES = 32
SECRET_LIMIT_BYTES = 4096


class CacheUnusable(Exception):
    """The cache cannot be used; says why. A check goes on without."""


def load_secret(path: Path) -> bytes:
    """Read a key file, which is made if there is none.

    Raises:
        CacheUnusable: it can be read by others, belongs to others, is a link, or cannot be made.
    """
    try:
        sweep_drafts(path.parent, [path.name])
        if not os.path.lexists(path):
            _make_secret(path)
        # Not followed: it must be the file that is looked at. Not waited for: a named pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            found = os.fstat(handle)
            data = stream.read(SECRET_LIMIT_BYTES) if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        raise CacheUnusable(f"the key {path} cannot be used: {reason_of(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise CacheUnusable(f"the key {path} is not a regular file")
    if found.st_uid not in (os.geteuid(), 0):
        raise CacheUnusable(f"the key {path} belongs to another user, who knows it")
    if found.st_mode & 0o077:
        raise CacheUnusable(f"the key {path} can be read by others: its mode is {found.st_mode & 0o777:o}")
    if len(data) < SECRET_BYTES:
        raise CacheUnusable(f"the key {path} has {len(data)} bytes, fewer than {SECRET_BYTES}")
    return data


def _make_secret(path: Path) -> None:
    """Write new random bytes, whole or not at all; another process may be doing the same, and either's will do."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        write_new(path, secrets.token_bytes(SECRET_BYTES), mode=0o600)


def reason_of(error: OSError) -> str:
    """Say what the system said."""
    return (error.strerror or str(error)).lower()
