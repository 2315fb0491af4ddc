"""`python -m fuzz TARGET --seconds N`: look for faults, guided by coverage (atheris, which is libFuzzer for Python).

Each target is fuzzed in a forked child, because libFuzzer ends the process that it runs in, and because a fault in
native code would, too. Faults are kept in a folder, one input for each place in the program, and fuzzing goes on.
Exits 1 if there are any. An input that shows a fault belongs in `corpus/TARGET` when the fault is mended.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from fuzz.targets import Target

MEMORY_LIMIT_BYTES = 6 << 30
"""Of address space: a bomb is a MemoryError, which no target declares."""
INPUT_LIMIT_BYTES = 1 << 16
INPUT_LIMIT_S = 60
"""By the clock, and a machine may be busy."""
LIBRARIES = ("validator", "yaml", "tomllib", "zipfile", "numpy.lib.format", "numpy.lib._format_impl", "PIL", "json")
"""What is instrumented: our own code, and readers that are written in Python."""
RESTARTS_MAX = 20


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Look for faults in a reader.")
    parser.add_argument("targets", nargs="*", help="their names; none: list the names; all: one after another")
    parser.add_argument("--seconds", type=int, default=60, help="how long, each (default: 60)")
    parser.add_argument("--found", type=Path, help="folder for inputs that show a fault (default: a temporary one)")
    given = parser.parse_args()
    targets = load_targets()
    if not given.targets:
        print("\n".join(targets))
        return 0
    names = list(targets) if given.targets == ["all"] else given.targets
    if unknown := [name for name in names if name not in targets]:
        parser.error(f"no target is called {', '.join(unknown)}")
    found = given.found or Path(tempfile.mkdtemp(prefix="fuzz-found-"))
    faults = [supervise(targets[name], given.seconds, found / name) for name in names]
    return 1 if any(faults) else 0


def load_targets() -> "dict[str, Target]":
    """Import the program, instrumented."""
    import atheris

    with atheris.instrument_imports(include=list(LIBRARIES), enable_loader_override=False):
        from fuzz.targets import TARGETS
    return TARGETS


def supervise(target: "Target", seconds: int, found: Path) -> int:
    """Fuzz until the time is up, again if native code ended the child, and return how many faults were found."""
    found.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    processes, status = 0, 0
    with tempfile.TemporaryDirectory(prefix="fuzz-corpus-") as corpus:
        for name, data in target.seeds().items():
            Path(corpus, name).write_bytes(data)
        while processes < RESTARTS_MAX and (left := round(end - time.monotonic())) > 0:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                fuzz(target, left, Path(corpus), found)
            processes, status = processes + 1, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    inputs = sorted(path for path in found.iterdir() if path.suffix != ".txt")
    for path in inputs:
        why = path.with_name(f"{path.name}.txt")
        said = why.read_text(encoding="utf-8").strip().splitlines()[-1] if why.exists() else "ended the process"
        print(f"{path}: {said[:200]}")
    is_lost = status != 0 and not inputs
    print(f"{target.name}: {len(inputs)} faults in {seconds} s" + (f", ended with {status}" if is_lost else ""))
    return len(inputs) + is_lost


def fuzz(target: "Target", seconds: int, corpus: Path, found: Path) -> NoReturn:
    """Fuzz in this process, which libFuzzer ends."""
    import atheris

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    seen = {path.name for path in found.iterdir()}

    is_planted = os.environ.get("FUZZ_PLANT") == target.name

    def look(data: bytes) -> None:
        try:
            # Tests plant a fault, to see that it is found.
            _ = 1 // (0 if target.run(data) and is_planted else 1)
        except Exception as error:
            place = place_of(error)
            if place not in seen:
                seen.add(place)
                keep(found / place, data, error)

    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_LIMIT_BYTES}",
        f"-timeout={INPUT_LIMIT_S}",
        "-rss_limit_mb=4096",
        "-len_control=0",
        "-verbosity=0",
        "-print_final_stats=1",
        f"-artifact_prefix={found}/",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *arguments], look)
    atheris.Fuzz()
    sys.exit("libFuzzer returned")


def place_of(error: BaseException) -> str:
    """Name a fault by its kind and by the innermost line of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/validator/" in frame.filename or "/fuzz/" in frame.filename]
    where = f"{Path(own[-1].filename).stem}-{own[-1].lineno}" if own else "nowhere"
    return f"{type(error).__name__}-{where}"


def keep(path: Path, data: bytes, error: BaseException) -> None:
    """Write an input and what came of it."""
    path.write_bytes(data)
    path.with_name(f"{path.name}.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    print(f"FAULT {path.name}: {str(error)[:200]!r}", file=sys.stderr)


if __name__ == "__main__":
    # What a target writes to disk is small and gone at once.
    if "TMPDIR" not in os.environ and os.access("/dev/shm", os.W_OK):  # noqa: S108
        os.environ["TMPDIR"] = "/dev/shm"  # noqa: S108
    sys.exit(main())
