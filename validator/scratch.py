"""Private folders for copies."""

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from validator.disk import held_folder, remove_abandoned
from validator.errors import CouldNotRun

PREFIX = "validator-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a private folder outside the working directory, and remove it with all that is in it.

    First those go that killed processes of the same user left.

    Raises:
        CouldNotRun: there is no place for one.
    """
    with contextlib.ExitStack() as stack:
        try:
            sweep_scratch(Path(tempfile.gettempdir()))
            folder = stack.enter_context(held_folder(lambda: Path(tempfile.mkdtemp(prefix=PREFIX))))
        except OSError as error:
            raise CouldNotRun(f"no scratch folder can be made: {error.strerror}", hint="set TMPDIR") from error
        yield folder


def sweep_scratch(place: Path) -> None:
    """Remove scratch folders whose process is gone. What cannot be removed does no harm."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            remove_abandoned(folder)
