"""What a model tries to do to its surroundings. Its source travels in a pickle and runs in a worker; see `models`.

Every attempt raises if it was stopped, and returns if it was not. `PLACES` is put among its globals: what there is to
find, and where.
"""

import ctypes
import errno
import os
import resource
import socket
import subprocess
import sysconfig
import threading
from pathlib import Path

PLACES: dict = globals().get("PLACES", {})
OWN = Path.cwd().parent
SCRATCH = OWN.parent
SUBJECT = SCRATCH / "subject"
GIB = 1 << 30
NOTHING_THERE = FileNotFoundError(errno.ENOENT, "nothing is there")


def others():
    """Folders of other workers."""
    found = [Path(PLACES["other"])] if "other" in PLACES else [path for path in SCRATCH.glob("*-*") if path != OWN]
    if not found:
        raise NOTHING_THERE
    return found


def call(name, *arguments):
    """Call a function of the C library that returns -1 when it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


def plant(folder):
    (folder / "planted").write_text("planted")


def send(kind, family, address):
    with socket.socket(family, kind) as ours:
        ours.settimeout(2)
        ours.connect(address)
        ours.send(b"here")


def read_environments():
    error = NOTHING_THERE
    listed = [path.name for path in Path("/proc").glob("[0-9]*")]
    for process in (PLACES["gate"], PLACES["sibling"], os.getppid(), *listed):
        try:
            if PLACES["token"].encode() in Path(f"/proc/{process}/environ").read_bytes():
                return
        except OSError as stopped:
            error = stopped
    raise error


def read_through_link():
    Path("link").symlink_to(PLACES["secret"])
    Path("link").read_text()


def leave_a_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            threading.Event().wait(600)
        os._exit(0)


def open_many_files():
    held = []
    try:
        while len(held) < 100_000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for descriptor in held:
            os.close(descriptor)


def start_many_threads():
    end = threading.Event()
    try:
        for _ in range(10_000):
            threading.Thread(target=end.wait, daemon=True).start()
    finally:
        end.set()


def write_a_large_file():
    with Path("large").open("wb") as stream:
        try:
            for _ in range(1 << 10):
                stream.write(bytes(1 << 20))
                stream.flush()
        finally:
            stream.truncate(0)


ATTEMPTS = {
    "read a file in the user's home": lambda: Path(PLACES["secret"]).read_text(),
    "list the user's home": lambda: list(Path(PLACES["user"]).iterdir()),
    "read that file through a symbolic link": read_through_link,
    "make a hard link to that file": lambda: os.link(PLACES["secret"], "hard"),
    "read the signing key": lambda: Path(PLACES["key"]).read_text(),
    "read the policy": lambda: Path(PLACES["policy"]).read_text(),
    "list the output folder": lambda: list(Path(PLACES["output"]).iterdir()),
    "read another worker's log": lambda: [(folder / "worker.log").read_bytes() for folder in others()],
    "read a token in another process's environment": read_environments,
    "read the gate's memory": lambda: Path(f"/proc/{PLACES['gate']}/mem").open("rb").close(),
    "trace the gate": lambda: call("ptrace", 16, PLACES["gate"], 0, 0),
    "kill the gate": lambda: os.kill(PLACES["gate"], 9),
    "kill a sibling": lambda: os.kill(PLACES["sibling"], 9),
    "lower the gate's limits": lambda: resource.prlimit(PLACES["gate"], resource.RLIMIT_NOFILE, (3, 3)),
    "connect over TCP": lambda: send(socket.SOCK_STREAM, socket.AF_INET, ("127.0.0.1", PLACES["tcp"])),
    "send over UDP": lambda: send(socket.SOCK_DGRAM, socket.AF_INET, ("127.0.0.1", PLACES["udp"])),
    "connect to a unix socket": lambda: send(socket.SOCK_STREAM, socket.AF_UNIX, PLACES["unix"]),
    "connect to an abstract socket": lambda: send(socket.SOCK_STREAM, socket.AF_UNIX, "\0" + PLACES["abstract"]),
    "write to the user's home": lambda: plant(Path(PLACES["user"])),
    "write to the policy": lambda: Path(PLACES["policy"]).open("a").close(),
    "write to the golden dataset": lambda: plant(Path(PLACES["golden"])),
    "write to the output folder": lambda: plant(Path(PLACES["output"])),
    "write beside the staged model": lambda: plant(SUBJECT),
    "write to the staged model": lambda: next(SUBJECT.rglob("*.p*")).open("ab").close(),
    "remove the staged model": lambda: next(SUBJECT.rglob("*.p*")).unlink(),
    "make the staged model writable": lambda: SUBJECT.chmod(0o777),
    "write beside the ONNX file": lambda: plant(SCRATCH / "onnx"),
    "write into another worker's folder": lambda: [plant(folder / "home") for folder in others()],
    "plant a sitecustomize.py": lambda: (Path(sysconfig.get_path("purelib")) / "sitecustomize.py").open("a").close(),
    "plant a .pth file": lambda: (Path(sysconfig.get_path("purelib")) / "planted.pth").open("a").close(),
    "change the gate's code": lambda: Path(PLACES["package"]).open("a").close(),
    "read the key of the gate's cache": lambda: Path(PLACES["cache_key"]).read_text(),
    "write to the gate's cache": lambda: plant(Path(PLACES["cache"])),
    "fork": leave_a_daemon,
    "start a program": lambda: subprocess.run(["/bin/true"], check=True),
    "make a namespace": lambda: call("unshare", 0x10000000),
    "mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "take 10 GB of memory": lambda: bytearray(10 * GIB),
    "open 100,000 files": open_many_files,
    "start 10,000 threads": start_many_threads,
    "write a file of 1 GB": write_a_large_file,
}


def try_all():
    """Print what became of every attempt, a few on a line."""
    told = []
    for number, attempt in enumerate(ATTEMPTS.values()):
        try:
            attempt()
            told.append(f"{number}=done")
        except OSError as error:
            told.append(f"{number}={errno.errorcode.get(error.errno, error.errno)}")
        except (MemoryError, RuntimeError, StopIteration) as error:
            told.append(f"{number}={type(error).__name__}")
    for start in range(0, len(told), 8):
        print("tried", *told[start : start + 8], flush=True)
