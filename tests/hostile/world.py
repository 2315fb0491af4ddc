"""A user's surroundings with canaries in them, a check of a hostile model in their midst, and what came of it.

The claims are the same for every model, and one function judges them: `find_escapes`.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

import validator.check
from validator.attest.keys import KeyType, create_key_files
from validator.boundary import run
from validator.golden.writer import Sample, write_golden

ROOT = Path(__file__).parents[2]
EXIT_CODES = {0: "pass", 1: "fail", 2: "none", 3: "inconclusive", 4: "refused"}
TOKEN = "hostile-canary-token-5b1f"
SECRET = "hostile-canary-secret-93ca"
RAW = re.compile(rb"\x1b|\x9b[0-9;]*m|\xe2\x80\xae|\x07")
TRACEBACK = re.compile(rb"(?m)^Traceback \(most recent call last\)")
"""Of the gate itself: what a worker said is quoted behind something else."""
COMMAND = re.compile(rb"(?m)^[^\S\n]*::error file=a\.py::owned|^[^\S\n]*::stop-commands::x|##\[error\]owned")
CODE_SPAN = re.compile(rb"`[^`\n]*`")
"""Markdown shows what is in it as it is."""
POLICY = """
required = [{required}]
batch_size = 4
[formats]
pickle = {pickle}
[checks]
fresh_process = false
[worker]
deadline_s = {deadline_s}
threads = 1
[sandbox]
memory_bytes = 3221225472
file_bytes = 16777216
processes = 512
[backends.plain-cpu]
runtime = "torch-eager"
onednn = false
"""


class Listener:
    """Listens for whoever should not be able to come, on TCP, UDP, a unix and an abstract socket."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[str] = []
        self.abstract = f"validator-hostile-{secrets.token_hex(8)}"
        self.unix = str(folder / "s")
        self._open = [
            self._listen("tcp", socket.AF_INET, ("127.0.0.1", 0)),
            self._listen("udp", socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM),
            self._listen("unix", socket.AF_UNIX, self.unix),
            self._listen("abstract", socket.AF_UNIX, f"\0{self.abstract}"),
        ]
        self.tcp, self.udp = (ours.getsockname()[1] for ours in self._open[:2])

    def _listen(self, name: str, family: int, address: Any, kind: int = socket.SOCK_STREAM) -> socket.socket:
        ours = socket.socket(family, kind)
        ours.bind(address)
        if kind == socket.SOCK_STREAM:
            ours.listen()
        threading.Thread(target=self._hear, args=(name, ours, kind), daemon=True).start()
        return ours

    def _hear(self, name: str, ours: socket.socket, kind: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                if kind == socket.SOCK_STREAM:
                    ours.accept()[0].close()
                elif not ours.recv(100):
                    return
                self.heard.append(name)

    def close(self) -> None:
        for ours in self._open:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            ours.close()


@dataclass(frozen=True, kw_only=True)
class World:
    """One user's folders, one check long."""

    folder: Path
    listener: Listener
    sibling: subprocess.Popen[bytes]

    @property
    def guarded(self) -> list[Path]:
        """Folders in which nothing may change."""
        return [self.folder / name for name in ("user", "keys", "golden", "work", "neighbour")]

    def places(self) -> dict[str, object]:
        """What a model is told about its surroundings. The gate's id is not known yet: 0."""
        return {
            "secret": str(self.folder / "user" / "secret.txt"),
            "user": str(self.folder / "user"),
            "key": str(self.folder / "keys" / "gate.key"),
            "policy": str(self.folder / "work" / "policy.toml"),
            "golden": str(self.folder / "golden"),
            "output": str(self.folder / "report"),
            "cache": str(self.folder / "cache" / "validator"),
            "cache_key": str(self.folder / "data" / "validator" / "cache-local.key"),
            "package": str(Path(validator.__file__)),
            "token": TOKEN,
            "gate": os.getpid(),
            "sibling": self.sibling.pid,
            "tcp": self.listener.tcp,
            "udp": self.listener.udp,
            "unix": self.listener.unix,
            "abstract": self.listener.abstract,
        }

    def write_policy(self, *, required: str, pickle: bool, deadline_s: float) -> Path:
        path = self.folder / "work" / "policy.toml"
        names = ", ".join(f'"{name}"' for name in required.split())
        path.write_text(POLICY.format(required=names, pickle=str(pickle).lower(), deadline_s=deadline_s))
        return path

    def fingerprint(self) -> dict[str, str]:
        """Everything that must be the same afterwards: names, kinds, modes, contents."""
        found: dict[str, str] = {}
        for path in (p for folder in self.guarded for p in [folder, *folder.rglob("*")]):
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path.relative_to(self.folder))] = f"{status.st_mode:o} {status.st_nlink} {content}"
        return found


@contextlib.contextmanager
def open_world(folder: Path) -> Iterator[World]:
    """Make a user's home with a secret, a signing key, a golden dataset, a neighbour's output, and listeners."""
    for name in ("user", "keys", "work", "neighbour", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "user" / "secret.txt").write_text(SECRET)
    (folder / "neighbour" / "verdict.json").write_text('{"verdict": "fail"}')
    create_key_files(folder / "keys" / "gate.key", KeyType.ED25519)
    values = np.random.default_rng(5).normal(size=(12, 4)).astype(np.float32)
    write_golden(folder / "golden", [Sample(inputs={"x": value}) for value in values], name="golden", source="tests")
    sockets = Path("/tmp") / f"vh-{secrets.token_hex(6)}"
    sockets.mkdir(mode=0o700)
    listener = Listener(sockets)
    sibling = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(900)"], cwd="/", env={"T": TOKEN})
    try:
        yield World(folder=folder, listener=listener, sibling=sibling)
    finally:
        listener.close()
        shutil.rmtree(sockets)
        sibling.kill()
        sibling.wait()


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What came of a check."""

    exit_code: int
    terminal: bytes
    document: Mapping[str, Any] | None
    """verdict.json."""
    escapes: tuple[str, ...]
    log: str = ""
    """What workers said, as far as the verdict tells it."""
    tried: Mapping[int, str] = field(default_factory=dict)
    """Number of an attempt -> how it was stopped."""

    @property
    def verdict(self) -> str:
        return EXIT_CODES.get(self.exit_code, "?")

    @property
    def stopped_by(self) -> str:
        """The first blocking finding, or the message without a verdict; without what differs between runs."""
        if self.document is None:
            match = re.search(r"^(\w+\[\w+\]): (.*)$", self.terminal.decode(errors="replace"), re.MULTILINE)
            assert match is not None, self.terminal
            return f"`{match[1]}`: {_steady(match[2])}"
        blocking = [f for f in self.document["findings"] if f["status"] not in ("within", "waived")]
        if not blocking:
            return "nothing: it had no effect"
        check, message = blocking[0]["check"], blocking[0]["message"]
        return f"`{check}`: {_steady(message if check == 'worker' else re.sub(_NUMBER, 'N', message))}"


_NUMBER = r"\d+(\.\d+)?(e[-+]?\d+)?"


def _steady(message: str) -> str:
    """Leave out what other versions of libraries word otherwise: all behind the second colon or first semicolon."""
    clauses = re.split(r":\s", re.split(r";\s", message, maxsplit=1)[0])
    text = re.sub(r"'(\.\./)+[^']*'", "a path out of its folder", " ".join(": ".join(clauses[:2]).split()))
    return re.sub(r"([|<>`*_\[\]@])", r"\\\1", text)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run of the program said and returned."""

    exit_code: int
    said: bytes
    """On the terminal, both streams."""


def run_program(world: World, uri: str, tracking_uri: str, *, is_apart: bool = False) -> Run:
    """Run `validator check` as a user would.

    Args:
        world: whose folders are used.
        uri: of the model.
        tracking_uri: of a real MLflow.
        is_apart: in a process of its own, with a token in the environment that it was started with; else in this one,
            which spares the imports.
    """
    own = {
        "HOME": str(world.folder / "user"),
        "TMPDIR": str(world.folder / "tmp"),
        "XDG_CACHE_HOME": str(world.folder / "cache"),
        "XDG_DATA_HOME": str(world.folder / "data"),
        "MLFLOW_TRACKING_TOKEN": TOKEN,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TERM": "xterm-256color",
    }
    arguments = [
        "check", uri, "--tracking-uri", tracking_uri, "--golden", str(world.folder / "golden"),
        "--policy", "policy.toml", "--output", str(world.folder / "report"), "--no-annotate",
        "--sign-key", str(world.folder / "keys" / "gate.key"), "--format", "terminal,md,html,junit,sarif,github,gitlab",
    ]  # fmt: skip
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "VALIDATOR_", "GITHUB_"))}
    work = world.folder / "work"
    if not is_apart:
        return _run_here(arguments, work=work, environment=kept | own)
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "validator", *arguments], cwd=work,
        env=kept | own | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=500, check=False,
    )  # fmt: skip
    return Run(exit_code=ended.returncode, said=ended.stdout)


def _run_here(arguments: list[str], *, work: Path, environment: Mapping[str, str]) -> Run:
    foresee = validator.check.foresee
    before, folder, streams, temporary = dict(os.environ), Path.cwd(), (sys.stdout, sys.stderr), tempfile.tempdir
    with tempfile.TemporaryFile("w+b") as heard, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's and SQLAlchemy's; the program itself shows none
        said = sys.stdout = sys.stderr = io.TextIOWrapper(heard, write_through=True)
        try:
            os.environ.clear()
            os.environ.update(environment)
            tempfile.tempdir = None
            os.chdir(work)
            validator.check.foresee = lambda *_: []  # workers that get ready and then no job are most of the cost
            code = run(load_app, arguments, debug=False)
        finally:
            validator.check.foresee = foresee
            sys.stdout, sys.stderr = streams
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)
            tempfile.tempdir = temporary
            said.detach()
        heard.seek(0)
        return Run(exit_code=int(code), said=heard.read())


def load_app() -> click.Command:
    """Import the program's command line."""
    from validator.cli.main import app

    return app


def observe(world: World, before: Mapping[str, str], ended: Run) -> Ended:
    """Read what a check left behind, and look for escapes."""
    path = world.folder / "report" / "verdict.json"
    document = json.loads(path.read_bytes()) if path.exists() else None
    log = "\n".join(_logs(document))
    return Ended(
        exit_code=ended.exit_code,
        terminal=ended.said,
        document=document,
        log=log,
        tried={int(number): how for number, how in re.findall(r"\b(\d+)=(\w+)", log)},
        escapes=tuple(find_escapes(world, before, ended, document)),
    )


def find_escapes(world: World, before: Mapping[str, str], ended: Run, document: Any) -> Iterator[str]:
    """Yield every claim that does not hold."""
    if ended.exit_code not in EXIT_CODES:
        yield f"exit code {ended.exit_code} is not among the declared"
    if document is not None and document["verdict"] != EXIT_CODES.get(ended.exit_code):
        yield f"exit code {ended.exit_code} beside the verdict {document['verdict']}"
    if (world.folder / "report" / "clearance.json").exists() != (ended.exit_code == 0):
        yield "a clearance without a pass, or the other way round"
    if world.listener.heard:
        yield f"a listener was reached: {sorted(set(world.listener.heard))}"
    if world.sibling.poll() is not None:
        yield "a sibling was ended"
    after = world.fingerprint()
    yield from (f"{name} was changed" for name in sorted(before.keys() | after) if before.get(name) != after.get(name))
    yield from (f"{path.name} was left behind" for path in (world.folder / "tmp").glob("validator-*"))
    yield from (f"process {found} was left behind" for found in _processes_of(world.folder))
    yield from _find_harmful_text("the terminal", ended.said)
    for path in sorted(p for p in (world.folder / "report").rglob("*") if p.is_file() and p.suffix != ".onnx"):
        yield from _find_harmful_text(path.name, path.read_bytes())


def _find_harmful_text(where: str, content: bytes) -> Iterator[str]:
    """Yield what somebody's terminal, browser, CI or log would act upon, and canaries that were read."""
    if TRACEBACK.search(content) and where == "the terminal":
        yield f"a traceback in {where}"
    if RAW.search(content):
        yield f"a control character in {where}"
    if where != "verdict.json" and COMMAND.search(content):
        yield f"a command to a CI system in {where}"
    if where.endswith((".html", ".md")) and b"<script>alert" in CODE_SPAN.sub(b"", content):
        yield f"HTML in {where}"
    if SECRET.encode() in content or TOKEN.encode() in content:
        yield f"a canary's content in {where}"


def _logs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            if key == "log_tail":
                yield child
            else:
                yield from _logs(child)
    elif isinstance(value, list):
        for child in value:
            yield from _logs(child)


def _processes_of(folder: Path, limit_s: float = 10.0) -> list[str]:
    """Name processes whose folder, command or environment lies below a folder; they have a moment to be gone."""
    end = time.monotonic() + limit_s
    while (found := list(_find_processes(str(folder)))) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _find_processes(text: str) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        for look in (
            lambda p=process: str((p / "cwd").readlink()),
            lambda p=process: (p / "cmdline").read_bytes().decode(errors="replace"),
            lambda p=process: (p / "environ").read_bytes().decode(errors="replace"),
        ):
            with contextlib.suppress(OSError):
                if text in look():
                    yield process.name
                    break
