"""Private folders for copies."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from validator.errors import CouldNotRun


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a private folder outside the working directory, and remove it with all that is in it.

    Raises:
        CouldNotRun: there is no place for one.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="validator-")
    except OSError as error:
        raise CouldNotRun(f"no scratch folder can be made: {error.strerror}", hint="set TMPDIR") from error
    with folder as name:
        yield Path(name)
