"""Scanners of pickles, asked for by the policy: what they find blocks, what they do not find grants nothing.

They parse what somebody else wrote, so each runs in the sandbox, too. Whatever is not clearly "nothing found" counts as
found: a scanner that cannot parse a file says nothing about it.
"""

import contextlib
import importlib.util
import pickletools
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from validator.errors import CouldNotRun, FormatRefused
from validator.sandbox.bubblewrap import wrap
from validator.sandbox.choice import Sandbox
from validator.sandbox.confinement import VARIABLE
from validator.sandbox.level import PLAIN, Level
from validator.worker.environment import worker_environment
from validator.worker.log import clean_text
from validator.worker.warm import Kit, WarmSpec

PICKLE_LIMIT_BYTES = 1 << 30
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanner:
    """A program that looks at one pickle, and exits with 0 if it finds nothing."""

    package: str
    arguments: tuple[str, ...]
    """Module and options; the file's path is appended."""


SCANNERS = MappingProxyType(
    {
        # Not `-m picklescan`: that exits with 0 whatever it finds.
        "picklescan": Scanner(package="picklescan", arguments=("picklescan.cli", "--strict", "--path")),
        "fickling": Scanner(package="fickling", arguments=("fickling", "--check-safety")),
    }
)


def scan_program(program: Path, names: Sequence[str], sandbox: Sandbox, scratch: Path) -> None:
    """Ask scanners about every pickle in a program's file.

    Args:
        program: a pickle, or a zip archive that holds some.
        names: of the scanners; empty: nothing is done.
        sandbox: what is put around them.
        scratch: existing folder for copies.

    Raises:
        CouldNotRun: one of them is not installed.
        FormatRefused: one of them found something, or could not tell.
    """
    if not names:
        return
    folder, home = scratch / "scan", scratch / "scan-home"
    for place in (folder, home):
        place.mkdir(mode=0o700)
    pickles = list(_unpack(program, folder))
    for name in names:
        if importlib.util.find_spec(SCANNERS[name].package) is None:
            raise CouldNotRun(
                f"the policy asks for the scanner {name}, which is not installed",
                hint="pip install 'mlflow-export-validator[scan]'",
            )
        for path in pickles:
            if (found := _scan(SCANNERS[name], path, folder, home, sandbox)) is not None:
                raise FormatRefused(
                    f"{name} does not clear {program.name}: {found}",
                    hint="log the model as torch.export; a policy that admits pickles need not ask for scanners",
                )


def _unpack(program: Path, folder: Path) -> Iterator[Path]:
    """Copy the pickles of a program into a folder, under names of our own.

    Raises:
        FormatRefused: they cannot be read, or are too large.
    """
    if not zipfile.is_zipfile(program):
        raise FormatRefused(f"{program.name} is no archive, so nobody can say where its pickles begin")
    try:
        with zipfile.ZipFile(program) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".pkl")]
            if not infos or sum(info.file_size for info in infos) > PICKLE_LIMIT_BYTES:
                raise FormatRefused(f"{program.name} holds no pickle, or more than {PICKLE_LIMIT_BYTES} bytes of them")
            for number, info in enumerate(infos):
                path, content = folder / f"{number}.pkl", archive.read(info)
                _require_whole(content, f"{info.filename} of {program.name}")
                path.write_bytes(content)
                yield path
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError) as error:
        raise FormatRefused(f"{program.name} cannot be scanned: {type(error).__name__}") from error


def _require_whole(content: bytes, what: str) -> None:
    """Require one pickle from the first byte to the last: of half a one, a scanner may say that it found nothing.

    Raises:
        FormatRefused: it is none.
    """
    end = None
    with contextlib.suppress(Exception):  # whatever comes up: then it is no pickle
        for operation, _, position in pickletools.genops(content):
            end = position if operation.name == "STOP" else None
    if end != len(content) - 1:
        raise FormatRefused(f"{what} is not one whole pickle")


def _scan(scanner: Scanner, path: Path, folder: Path, home: Path, sandbox: Sandbox) -> str | None:
    """Return what a scanner says of a pickle, or why it says nothing; None: it found nothing."""
    held = sandbox.confine(PLAIN, home=home, inputs=(folder,))
    outside = wrap(held, sandbox.machine) if held.level is Level.STRICT else []
    try:
        done = subprocess.run(
            [*outside, sys.executable, "-P", "-m", "validator.sandbox.run", *scanner.arguments, str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=worker_environment(WarmSpec(kit=Kit.PROBE, threads=1), home=home) | {VARIABLE: held.to_json()},
            cwd=home,
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it did not come to an end: {type(error).__name__}"
    if done.returncode == 0:
        return None
    words = [line for line in clean_text((done.stdout + done.stderr).decode(errors="replace")).splitlines() if line]
    return words[0] if words else f"exit status {done.returncode}"
