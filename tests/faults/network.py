"""What may happen to a request: a proxy in front of a server that can be killed."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Fault(StrEnum):
    """What happens to one request, or from one request on."""

    KILLED_BEFORE = "the server killed before the request"
    KILLED_AFTER = "the server killed after it committed"
    RESET_BEFORE = "the connection reset before the request"
    RESET_AFTER = "the connection reset after it committed"
    TOO_MANY = "429"
    BROKEN = "500"
    BUSY = "503"
    GARBAGE = "an answer that is no JSON"
    CUT = "an answer cut short"


ZYGOTE = Path(__file__).with_name("zygote.py")
ANSWERS = {Fault.TOO_MANY: 429, Fault.BROKEN: 500, Fault.BUSY: 503}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """MLflow's application in a process of its own."""

    folder: Path
    port: int = field(default_factory=free_port)
    is_up: bool = False

    def __post_init__(self) -> None:
        self._zygote = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(ZYGOTE), str(self.folder), str(self.port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}, cwd=self.folder,
        )  # fmt: skip

    def _say(self, word: str) -> None:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(f"{word}\n")
        self._zygote.stdin.flush()
        assert self._zygote.stdout.readline()

    def start(self) -> None:
        if not self.is_up:
            self._say("start")
            self.is_up = True

    def kill(self) -> None:
        if self.is_up:
            self._say("kill")
            self.is_up = False

    def close(self) -> None:
        self.kill()
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.close()
        self._zygote.wait(30)
        self._zygote.stdout.close()


@dataclass
class Proxy:
    """Counts requests and lets one of them meet a fault. One request per connection."""

    server: Server
    port: int = field(default_factory=free_port)
    requests: int = 0
    at: int = 0
    """0: no fault."""
    fault: Fault | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arm(self, at: int, fault: Fault | None) -> None:
        self.requests, self.at, self.fault = 0, at, fault

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        names = dict(line.lower().split(b": ", 1) for line in lines[1:] if b": " in line)
        body = await reader.readexactly(int(names.get(b"content-length", b"0")))
        self.requests += b"/health" not in lines[0]
        fault = self.fault if self.requests == self.at and b"/health" not in lines[0] else None
        if fault is Fault.KILLED_BEFORE:
            self.server.kill()
        if fault is Fault.RESET_BEFORE or not self.server.is_up:
            raise ConnectionResetError
        if fault in ANSWERS:
            writer.write(b"HTTP/1.1 %d no\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % ANSWERS[fault])
            return await writer.drain()
        if fault is Fault.GARBAGE:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")
            return await writer.drain()
        up, down = await asyncio.open_connection("127.0.0.1", self.server.port)
        down.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]) + body)
        answer = await up.read()
        down.close()
        if fault is Fault.KILLED_AFTER:
            self.server.kill()
        if fault in (Fault.KILLED_AFTER, Fault.RESET_AFTER):
            raise ConnectionResetError
        writer.write(answer[: len(answer) - 5] if fault is Fault.CUT else answer)
        return await writer.drain()


@contextmanager
def running(proxy: Proxy) -> Iterator[Proxy]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy")
    thread.start()
    started = asyncio.run_coroutine_threadsafe(asyncio.start_server(proxy.serve, "127.0.0.1", proxy.port), loop)
    listening = started.result(30)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(listening.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
