"""A registry that neither answers nor hangs up is given up in time."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ASK = """
import sys
from pathlib import Path
import validator.registry.connection as connection
import validator.registry.stage as stage
from validator.registry.mlflow_registry import open_registry
connection.DEADLINE_S = stage.TRANSFER_DEADLINE_S = 2.0
registry = open_registry(sys.argv[1], cwd=Path.cwd())
"""
READ = "registry.read_model('net')"
FETCH = "registry.fetch('mlflow-artifacts:/m/a.bin', Path('x'))"
RUN = """
import click
import validator.boundary as boundary

@click.command()
def app(): ask()

boundary._load_app = lambda: app
boundary.main([])
"""
EMPTY = b'{"files": []}'
LISTING = b'{"files": [{"path": "a.bin", "is_dir": false, "file_size": 9999}]}'


def drip(listener: socket.socket) -> None:
    """Answer whether it is there and what files there are, and everything else a byte at a time, for ever."""
    with suppress(OSError):
        while True:
            line, _ = listener.accept()
            threading.Thread(target=serve, args=(line,), daemon=True).start()


def serve(line: socket.socket) -> None:
    with line, suppress(OSError):
        asked = line.recv(65_536).partition(b"\r\n")[0]
        if b"/health" in asked or b"?path=" in asked:
            answer = LISTING if asked.endswith(b"?path=m HTTP/1.1") else EMPTY
            line.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            return
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
        while True:
            line.sendall(b" ")
            time.sleep(0.1)


@pytest.mark.parametrize("call", [READ, FETCH], ids=["a question", "a download"])
def test_a_server_that_drips_its_answer_is_given_up(call: str, tmp_path: Path) -> None:
    """Also by Python, which would wait for the threads that MLflow downloads in."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        done = subprocess.run(
            [
                sys.executable, "-W", "ignore", "-c", f"{ASK}\ndef ask(): {call}\n{RUN}",
                f"http://127.0.0.1:{listener.getsockname()[1]}",
            ],
            capture_output=True, text=True, check=False, timeout=200, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("inconclusive[registry]: registry http://127.0.0.1:")
    assert "did not finish in time while" in done.stderr
