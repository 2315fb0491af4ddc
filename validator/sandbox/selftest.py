"""Is a confinement one? A child under the very same tries to get out, and must fail.

It must fail to read files beside its own and in the user's home, to write anywhere else, to reach a TCP and a UDP port
of this machine, and to start a program; and it must be able to read its input, to write to its home, and on GPU rows to
see the device. Whatever cannot be shown counts as an escape.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validator.disk import held_folder, remove_abandoned
from validator.sandbox.bubblewrap import wrap
from validator.sandbox.canary import read_text
from validator.sandbox.confinement import VARIABLE, Confinement
from validator.sandbox.level import Level
from validator.sandbox.machine import Machine

_TIMEOUT_S = 60.0
_CANARY = (sys.executable, "-P", "-m", "validator.sandbox.canary")
_TEXT_LIMIT = 300
_AT_HOME = ".validator-canary-"

Environment = Callable[[Path], Mapping[str, str]]
"""Home -> the whole environment of a confined process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bait:
    """What the child tries to get hold of."""

    input: Path
    """It may read this one."""
    files: Mapping[Path, str]
    """What it may not read -> what stands there."""
    written: tuple[Path, ...]
    secret: str
    known: str
    """Stands in the file that it may read."""
    tcp: socket.socket
    udp: socket.socket


def find_escape(confinement: Confinement, machine: Machine, scratch: Path, environment: Environment) -> str | None:
    """Start a child that is confined alike, and say how it got out or what it could not do; None: it is held.

    Args:
        confinement: to be proven; its home and inputs are replaced by folders of the child's own.
        machine: what this machine has.
        scratch: existing folder that the confinement does not show; canaries are put into it.
        environment: what the child gets.

    Raises:
        OSError: the canaries cannot be put out.
    """
    with tempfile.TemporaryDirectory(prefix="canary-", dir=scratch) as name, _put_out(Path(name)) as bait:
        home = Path(name) / "home"
        home.mkdir(mode=0o700)
        trial = replace(confinement, home=str(home), inputs=(str(bait.input.parent),))
        told = _start(trial, machine, bait, environment(home))
        if isinstance(told, str):
            return told
        return _judge(trial, bait, told)


_HELD: set[tuple[Confinement, Machine]] = set()


def prove_held(confinement: Confinement, machine: Machine, scratch: Path, environment: Environment) -> str | None:
    """Do the same as `find_escape`, once in a process: what was held is held."""
    key = (replace(confinement, home="", inputs=()), machine)
    if key in _HELD:
        return None
    if (escape := find_escape(confinement, machine, scratch, environment)) is None:
        _HELD.add(key)
    return escape


@contextmanager
def _put_out(folder: Path) -> Iterator[_Bait]:
    """Lay out files and listen on ports, for as long as the block runs."""
    secret, known = secrets.token_hex(16), secrets.token_hex(16)
    with ExitStack() as stack:
        shown = folder / "input"
        shown.mkdir()
        (shown / "file").write_text(known, encoding="utf-8")
        beside = folder / "canary"
        beside.write_text(secret, encoding="utf-8")
        files = {beside: secret}
        with contextlib.suppress(OSError):  # a home that cannot be written to holds no canary
            file = stack.enter_context(held_folder(_make_folder_at_home)) / "canary"
            file.write_text(secret, encoding="utf-8")
            files[file] = secret
        with contextlib.suppress(OSError):  # not even this process may read it where it is hidden from its like
            files[Path(f"/proc/{os.getpid()}/environ")] = read_text(Path("/proc/self/environ"))
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        tcp.settimeout(0)
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0)
        yield _Bait(
            input=shown / "file",
            files=files,
            written=(folder / "written", Path.home() / f".validator-written-{secrets.token_hex(8)}"),
            secret=secret,
            known=known,
            tcp=tcp,
            udp=udp,
        )


def _make_folder_at_home() -> Path:
    """Make a folder in the user's home, and remove those that killed processes left there."""
    for folder in Path.home().glob(f"{_AT_HOME}*"):
        with contextlib.suppress(OSError):
            remove_abandoned(folder)
    return Path(tempfile.mkdtemp(prefix=_AT_HOME, dir=Path.home()))


def _start(trial: Confinement, machine: Machine, bait: _Bait, environment: Mapping[str, str]) -> dict[str, Any] | str:
    """Return what the child tells; a text: it did not get that far."""
    outside = wrap(trial, machine) if trial.level is Level.STRICT else []
    attempts = {
        "input": str(bait.input),
        "home": str(Path(trial.home) / "own"),
        "files": [str(path) for path in bait.files],
        "written": [str(path) for path in bait.written],
        "tcp": bait.tcp.getsockname()[1],
        "udp": bait.udp.getsockname()[1],
        "word": bait.secret,
    }
    try:
        done = subprocess.run(
            [*outside, *_CANARY],
            input=json.dumps(attempts).encode(),
            capture_output=True,
            env={**environment, VARIABLE: trial.to_json()},
            cwd=trial.home,
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it did not start: {type(error).__name__}"
    try:
        told = json.loads(done.stdout)
    except ValueError:
        told = None
    if done.returncode != 0 or not isinstance(told, dict):
        words = done.stderr.decode(errors="replace").strip().splitlines()
        return f"it did not start: {words[-1][:_TEXT_LIMIT] if words else f'status {done.returncode}'}"
    return told


def _judge(trial: Confinement, bait: _Bait, told: dict[str, Any]) -> str | None:
    """Compare what happened here, and what was told, with what may be."""
    if _was_connected(bait.tcp) or told.get("tcp") is not False:
        return "it reached a TCP port of this machine"
    if _was_sent(bait.udp) or told.get("udp") is not False:
        return "it sent to a UDP port of this machine"
    for path, text in bait.files.items():
        # Something else may lie there under the same name: process ids, for one, are others inside.
        if told.get("files", {}).get(str(path), text) == text:
            return f"it read {_place(path)}"
    for path in bait.written:
        # What it says counts for nothing: inside bubblewrap it may write to memory of its own under the same name.
        if path.exists():
            path.unlink(missing_ok=True)
            return f"it wrote {_place(path)}"
    if not trial.profile.compiles and told.get("program") is not False:
        return "it started a program"
    if told.get("input") != bait.known:
        return "it cannot read its input"
    if told.get("home") is not True or not (Path(trial.home) / "own").is_file():
        return "it cannot write to its own folder"
    if trial.profile.gpu and (why := _why_no_device(told.get("device"))) is not None:
        return f"it does not see the GPU: {why}"
    return None


def _why_no_device(count: object) -> str | None:
    if not isinstance(count, int):
        return "libcuda.so.1 cannot be loaded"
    if count > 0:
        return None
    return f"CUDA error {-count}" if count < 0 else "CUDA counts none"


def _place(path: Path) -> str:
    if path.parts[1] == "proc":
        return "the environment of the process that started it"
    return (
        "the user's home"
        if path.parent == Path.home() or path.parent.name.startswith(_AT_HOME)
        else "the folder beside its own"
    )


def _was_connected(server: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        connection.close()
        return True
    return False


def _was_sent(receiver: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        receiver.recv(1)
        return True
    return False
