"""A real `mlflow server` of the tests' own: how it is started, waited for and ended."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

STARTUP_LIMIT_S = 180


@dataclass
class Server:
    uri: str
    process: subprocess.Popen
    folder: Path

    @classmethod
    def launch(cls, folder: Path, port: int, *options: str, environment: Mapping[str, str] = os.environ) -> Self:
        """Start a server in its own session, so that its workers end with it. It is not ready yet."""
        where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        where += ["--artifacts-destination", str(folder / "store")]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *where, *options],
                cwd=folder,
                env={**environment, **quiet},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(uri=f"http://127.0.0.1:{port}", process=process, folder=folder)

    def wait_until_ready(self) -> Self:
        """Wait until it answers; if it does not, end it and say what it logged."""
        deadline = time.monotonic() + STARTUP_LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2):  # noqa: S310  http
                return self
            time.sleep(0.2)
        self.kill()
        raise RuntimeError(self.log)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
