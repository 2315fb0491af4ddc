"""What `validator promote` costs against a server, without the download, and what it imports."""

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.startup import cpu_time_s
from tests.attest.world import GATE
from tests.promote.world import Team
from tests.registry.conftest import MlflowWorld, start_server
from validator.attest.keys import public_key_of
from validator.attest.statement import write_time

SIZE_BYTES = 250 * 10**6
LIMIT_S = 3.0
RUNS = 3
HASHED = 2
"""How often a promotion hashes the bytes: before the alias moves, and after."""
PROGRAM = [sys.executable, "-m", "validator"]


def run() -> None:
    """Print the CPU time of a promotion and what it consists of.

    Besides the download: that of a model of a few bytes, and what hashing 250 MB takes as often as a promotion does it.
    """
    with tempfile.TemporaryDirectory(prefix="validator-benchmark-") as name:
        folder = Path(name)
        server = start_server(folder / "server")
        try:
            measure(folder, server.uri)
        finally:
            server.kill()


def measure(folder: Path, uri: str) -> None:
    """Promote small and large versions of a model of the server's, each from the version before."""
    team = Team(world=MlflowWorld(uri=uri, folder=folder), name="net", folder=folder)
    now = datetime.now(UTC)
    data = os.urandom(SIZE_BYTES)
    for content in (b"one", b"two", data):
        team.cleared(content, created=write_time(now), expires=write_time(now + timedelta(days=1)), waivers=())
    key = folder / "gate.key.pub"
    key.write_bytes(public_key_of(GATE).pem)
    os.environ["MLFLOW_TRACKING_URI"] = uri
    options = ["--alias", "champion", "--key", str(key), "--quiet"]
    imports = cpu_time_s([sys.executable, "-c", "import validator.verify; from mlflow import MlflowClient"])
    small = statistics.median(cpu_time_s(promote(number, options)) for number in (1, 2) * RUNS)
    hashing = HASHED * hash_time_s(data)
    large = statistics.median([cpu_time_s(promote(number, options)) for number in (1, 3) * RUNS][1::2])
    print(f"importing MLflow: {imports:.2f} s of CPU time")
    print(f"promote, a few bytes: {small:.2f} s (median of {2 * RUNS})")
    print(f"hashing {SIZE_BYTES / 1e6:.0f} MB {HASHED} times: {hashing:.2f} s")
    print(f"promote, {SIZE_BYTES / 1e6:.0f} MB, besides the download: {small + hashing:.2f} s, limit {LIMIT_S} s")
    print(f"promote, {SIZE_BYTES / 1e6:.0f} MB, with two downloads over HTTP: {large:.2f} s (median of {RUNS})")
    print(f"packages that open models, imported: {imported_by(promote(1, options))}")


def promote(number: int, options: list[str]) -> list[str]:
    """Return a command line."""
    return [*PROGRAM, "promote", f"models:/net/{number}", *options]


def hash_time_s(data: bytes) -> float:
    """Return the CPU time of sha256 over some bytes."""
    before = time.process_time()
    hashlib.sha256(data).digest()
    return time.process_time() - before


def imported_by(command: list[str]) -> str:
    """Return which packages that could open a model a command imported."""
    code = (
        "import sys; from validator.boundary import _load_app, run; run(_load_app, sys.argv[1:], debug=False); "
        "print([m for m in ('torch', 'onnx', 'onnxruntime') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command[3:]], check=True, capture_output=True, text=True)
    return done.stderr.strip()
