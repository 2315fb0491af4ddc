"""Files on disk: each is written whole or not at all, and what a killed process left is swept by the next.

A draft is written beside its place, forced to disk and renamed; then the folder is forced to disk, too. Drafts and
private folders are held by a lock while their owner lives. The kernel drops it with the process, however that ends, so
no clock and no process id says what is abandoned.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import select
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from validator.faults import crash_point

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, a quota or a limit on the size of files is exhausted."""

PIPE_WAIT_S = 30.0
"""How long one waits for whoever writes to a pipe."""

_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.draft")
_READ_BYTES = 1 << 16
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def read_given(path: Path, *, limit_bytes: int) -> bytes:
    """Read a document that somebody gave: a file, or a pipe such as a shell's `<(...)`.

    Raises:
        OSError: it cannot be read, is neither, has more bytes than the limit, or is a pipe through which nothing comes
            or that does not end in time.
    """
    # Opening a pipe would wait for a writer, who may never come.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISFIFO(mode):
            content = _read_pipe(handle, limit_bytes, time.monotonic() + PIPE_WAIT_S)
        elif stat.S_ISREG(mode):
            content = _read_up_to(handle, limit_bytes + 1)
        else:
            raise OSError(errno.EINVAL, "Neither a file nor a pipe", str(path))
    finally:
        os.close(handle)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"More than {limit_bytes:,} bytes", str(path))
    return content


def _read_up_to(handle: int, limit_bytes: int) -> bytes:
    content = b""
    while (left := limit_bytes - len(content)) and (data := os.read(handle, min(left, _READ_BYTES))):
        content += data
    return content


def _read_pipe(handle: int, limit_bytes: int, end: float) -> bytes:
    """Read until its writers have closed it, or there is more than the limit.

    Raises:
        TimeoutError: nobody writes, or does not end.
        OSError: nothing was written, which a command that failed does, too.
    """
    content = b""
    had_writer = False
    pipe = select.poll()
    pipe.register(handle, select.POLLIN)
    while len(content) <= limit_bytes:
        try:
            data = os.read(handle, _READ_BYTES)
        except BlockingIOError:
            data = None  # there is a writer, who has not written yet
        if data:
            content += data
            continue
        # Before the first writer comes it reads like an end.
        if data is not None and (content or had_writer):
            break
        had_writer = bool(pipe.poll(max(0.0, end - time.monotonic()) * 1_000))
        if not had_writer:
            raise TimeoutError(errno.ETIMEDOUT, "The pipe is not written to, or not closed")
    if not content:
        raise OSError(errno.ENODATA, "Nothing came through the pipe")
    return content


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in the place of whatever file is there. Missing folders are made.

    Raises:
        OSError: it could not be written; what stood there before still stands, and nothing half-written stays.
    """
    _put(path, lambda stream: stream.write(content))


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file's bytes likewise.

    Raises:
        OSError: it could not be read or written.
    """
    with source.open("rb") as bytes_of_source:
        _put(path, lambda stream: shutil.copyfileobj(bytes_of_source, stream, 1 << 20))


def _put(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    sweep_drafts(path.parent, [path.name])
    # In the same folder, because a rename is only atomic within one file system.
    draft = draft_of(path)
    crash_point(f"write a draft of {path.name}")
    try:
        with draft.open("xb") as stream:
            _hold(stream.fileno())
            fill(stream)
            stream.flush()
            crash_point(f"force the draft of {path.name} to disk")
            os.fsync(stream.fileno())
            crash_point(f"rename the draft of {path.name}")
            draft.replace(path)
        force_to_disk(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file that did not exist, with at most these permissions.

    Raises:
        FileExistsError: it exists.
        OSError: it could not be written; nothing half-written stays.
    """
    sweep_drafts(path.parent, [path.name])
    draft = draft_of(path)
    crash_point(f"write a draft of {path.name}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            _hold(handle)
            stream.write(content)
            stream.flush()
            crash_point(f"force the draft of {path.name} to disk")
            os.fsync(handle)
            crash_point(f"link the draft of {path.name}")
            # Unlike a rename, a link takes nobody's place.
            os.link(draft, path, follow_symlinks=False)
            crash_point(f"remove the draft of {path.name}")
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    force_to_disk(path.parent)


def force_to_disk(path: Path) -> None:
    """Force a file, or a folder's names, to disk: without it a power cut could bring the old ones back."""
    crash_point(f"force {path.name} to disk")
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    if path.is_symlink() or path.exists():
        crash_point(f"remove {path.name}")
        path.unlink(missing_ok=True)


def move_folder(draft: Path, folder: Path) -> None:
    """Rename a folder into its place. One that is there changes places with it at once, and is the draft then.

    Raises:
        OSError: it could not be moved; the old one is where it was.
    """
    crash_point(f"rename the draft of {folder.name}")
    if not folder.exists():
        draft.rename(folder)
    elif not _exchange(draft, folder):
        # Without an exchange there is a moment without the folder; `bring_back` mends what is killed there.
        aside = aside_of(folder)
        folder.rename(aside)
        crash_point(f"rename the draft of {folder.name}, the old one being aside")
        try:
            draft.rename(folder)
        except OSError:
            aside.rename(folder)
            raise
        remove_tree(aside)
    force_to_disk(folder.parent)


def bring_back(folder: Path) -> None:
    """Put a folder back that a process moved aside before it was killed."""
    aside = aside_of(folder)
    if aside.is_dir() and not folder.exists():
        aside.rename(folder)
    elif aside.is_dir():
        remove_tree(aside)


def aside_of(folder: Path) -> Path:
    """Return where a folder goes while another takes its place."""
    return folder.parent / f".{folder.name}.old"


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False: this system or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    status: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return status == 0


# --- What a killed process left -----------------------------------------------------------------------------------


def draft_of(path: Path) -> Path:
    """Return a new name for the draft of a file or folder, beside it."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}.draft"


def sweep_drafts(folder: Path, names: Iterable[str]) -> None:
    """Remove drafts of these names that nobody writes any more. What cannot be removed does no harm."""
    wanted = set(names)
    with contextlib.suppress(OSError):
        for path in folder.glob(".*.draft"):
            if _DRAFT.fullmatch(path.name) and path.name[1:-15] in wanted:
                remove_abandoned(path)


def remove_abandoned(path: Path) -> None:
    """Remove a draft or a private folder if it is this user's and the process that held it is gone.

    Raises:
        OSError: it cannot be removed.
    """
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Held while it is removed, so that whoever made it just now sees that it is being taken away.
        with contextlib.suppress(OSError):
            lock(handle)
            if path.is_dir():
                remove_tree(path)
            else:
                path.unlink()
    finally:
        os.close(handle)


def lock(handle: int) -> None:
    """Lock an open file or folder for as long as this process lives.

    Raises:
        BlockingIOError: somebody else holds it.
        OSError: nothing can be locked here.
    """
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_tree(folder: Path) -> None:
    """Delete a folder, also a read-only one.

    Raises:
        OSError: it cannot be.
    """
    if folder.is_dir() and not folder.is_symlink():
        folder.chmod(0o700)
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)


@contextlib.contextmanager
def held_folder(make: Callable[[], Path]) -> Iterator[Path]:
    """Give a new folder that no sweep takes away while this process lives, and remove it if it is still there.

    Args:
        make: makes one, under a new name each time.

    Raises:
        OSError: it cannot be made.
    """
    folder, handle = _make_held(make)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            remove_tree(folder)
        os.close(handle)


def _make_held(make: Callable[[], Path]) -> tuple[Path, int]:
    while True:
        folder = make()
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            if _hold(handle) and folder.exists():
                return folder, handle
            os.close(handle)
        # Swept between two of these steps, as if it were abandoned: another one.


def _hold(handle: int) -> bool:
    """Lock a new draft or folder; False: a sweep has just taken it. Where nothing can be locked, nothing is swept."""
    try:
        lock(handle)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
