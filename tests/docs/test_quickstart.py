"""The quickstart is run as it stands: every command, in order, in one folder, against a real server."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.test_docs import ROOT, blocks

PAGE = ROOT / "docs/quickstart.md"
PORT = "127.0.0.1:5000"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: str, folder: Path, env: dict[str, str], address: str) -> Iterator[None]:
    """Run the page's server until the block ends."""
    log = folder / "server.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            shlex.split(command), cwd=folder, env=env, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            until = time.monotonic() + 240
            while not answers(f"http://{address}/health"):
                assert server.poll() is None, log.read_text(errors="replace")
                assert time.monotonic() < until
                time.sleep(0.2)
            yield
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - our own server
            return bool(response.status == 200)
    except OSError:
        return False


def test_the_quickstart_does_what_it_says(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    # The page's port may be in use here; its one worker of many is enough, and starts sooner.
    start, *rest = (text.replace(PORT, address) for text in blocks(PAGE, "sh"))
    start = start.replace("--port 5000", f"--port {address.partition(':')[2]} --workers 1")
    (program,) = blocks(PAGE, "python")
    name = re.match(r"# (\w+\.py)\n", program)
    assert name is not None
    (tmp_path / name[1]).write_text(program, encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "VALIDATOR_"))} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "VALIDATOR_NO_CACHE": "1",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with serving(start, tmp_path, env, address):
        ended = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", "\n".join(rest)], cwd=tmp_path, env=env, check=False,
            capture_output=True, text=True, timeout=500,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "pass: quickstart version 1: " in ended.stdout
    assert "promoted: " in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("verified: models:/quickstart@champion is quickstart version 1")
    written = {path.name for path in (tmp_path / "validator-report").iterdir()}
    assert written >= {"verdict.json", "clearance.json", "report.html", "junit.xml", "comment.md"}
    ran = "\n".join(line for line in ended.stderr.splitlines() if line.startswith("+ "))
    for command in (line for text in rest for line in text.splitlines()):
        assert command.split()[0] in ran
