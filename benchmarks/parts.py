"""Parts of a benchmark, each in a process of its own: one that dies, or never ends, takes no other along."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from pydantic import BaseModel

GRACE_S = 120.0
"""Between the last part that is begun and the end of the call."""


def run_part(
    module: str, arguments: Sequence[str], *, limit_s: float, variables: dict[str, str] | None = None
) -> bytes | str:
    """Run `python -m module *arguments FILE`; return what it wrote to the file, or why there is nothing.

    Args:
        module: its `main` writes the result.
        arguments: before the name of the file.
        limit_s: the process is killed then; workers of the gate die with it.
        variables: of its environment, beside this process's own.
    """
    with tempfile.TemporaryDirectory(prefix="validator-benchmark-", ignore_cleanup_errors=True) as folder:
        result, log = Path(folder) / "result", Path(folder) / "log"
        environment = os.environ | (variables or {}) | {"TMPDIR": folder}
        command = [sys.executable, "-m", module, *arguments, str(result)]
        try:
            with log.open("wb") as stream:
                subprocess.run(command, stdout=stream, stderr=stream, env=environment, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return f"not done within {limit_s:.0f} s"
        if result.exists():
            return result.read_bytes()
        return ": ".join(["it ended without a result", *log.read_text(errors="replace").strip().splitlines()[-1:]])


def run_parts(
    names: Sequence[str], work: Callable[[str, float], None], *, jobs: int, seconds: float, started: float
) -> list[str]:
    """Do some work for every name, a few at a time.

    Args:
        names: of the parts, in this order.
        work: runs one part and keeps its result; takes its name and the seconds that it may take. Called in several
            threads.
        jobs: at a time.
        seconds: nothing is begun later than this after `started`, and everything has ended soon after.
        started: on the clock of `time.perf_counter`.

    Returns:
        The names that were not begun.
    """
    left: list[str] = []
    lock = Lock()

    def begin(name: str) -> None:
        elapsed = time.perf_counter() - started
        if elapsed > seconds:
            with lock:
                left.append(name)
        else:
            work(name, seconds + GRACE_S - elapsed)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(begin, names))
    return left


def write_whole(document: BaseModel, path: Path) -> None:
    """Write a document as JSON, whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def choose_shard(names: Sequence[str], only: Sequence[str], shard: tuple[int, int]) -> list[str]:
    """Select by name, then every n-th from the i-th on.

    Raises:
        SystemExit: no such name.
    """
    if unknown := sorted(set(only) - set(names)):
        raise SystemExit(f"there is no {', '.join(unknown)}; there are {', '.join(names)}")
    return [name for name in names if not only or name in only][shard[0] - 1 :: shard[1]]
