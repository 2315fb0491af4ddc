"""Reading files that somebody else laid there: regular ones only, and never more than a limit."""

import errno
import os
import stat
from pathlib import Path

DOCUMENT_LIMIT_BYTES = 64 << 20
"""Of `verdict.json` and of `previews.json`."""
TABLE_LIMIT_BYTES = 1 << 30
"""Of `samples.csv`."""


def read_bytes(path: Path, *, limit_bytes: int) -> bytes:
    """Return the content of a regular file, or of one that a link leads to.

    Raises:
        OSError: it cannot be read, is a pipe, a device or a folder, or has more bytes than the limit.
    """
    # Without O_NONBLOCK a pipe would be waited for.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"More than {limit_bytes >> 20:,} MiB", str(path))
    return content
