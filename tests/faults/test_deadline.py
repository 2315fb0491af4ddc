"""A registry that neither answers nor hangs up is given up in time."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]

ASK = """
import sys
from pathlib import Path
import validator.registry.connection as connection
from validator.errors import RegistryUnreachable
from validator.registry.mlflow_registry import open_registry
connection.DEADLINE_S = 2.0
try:
    open_registry(sys.argv[1], cwd=Path.cwd()).read_model("net")
except RegistryUnreachable as error:
    print(error.exit_code.value, error.message)
"""


def drip(listener: socket.socket) -> None:
    """Answer whether it is there, and everything else a byte at a time, for ever."""
    with suppress(OSError):
        while True:
            line, _ = listener.accept()
            threading.Thread(target=serve, args=(line,), daemon=True).start()


def serve(line: socket.socket) -> None:
    with line, suppress(OSError):
        if b"/health" in line.recv(65_536):
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
        while True:
            line.sendall(b" ")
            time.sleep(0.1)


def test_a_server_that_drips_its_answer_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", ASK, f"http://127.0.0.1:{listener.getsockname()[1]}"],
            capture_output=True, text=True, check=False, timeout=200, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.stdout.startswith("3 registry http://127.0.0.1:"), done.stderr
    assert "did not finish in time while" in done.stdout
