"""Hostile models. Their source travels in a pickle and runs in a worker; the tests only read it.

Each computes what `Honest` computes, and something else besides.
"""

import ctypes
import gc
import json
import os
import pickle
import stat
import struct
import time
from pathlib import Path

import torch

HOSTILE_TEXT = (
    "\x1b[31mred\x1b[0m\n::error file=a.py::owned\n##[error]owned\n\u202egnol"
    "<script>alert(1)</script><img src=x onerror=alert(1)>\x07"
)


class Honest(torch.nn.Module):
    """A small contraction."""

    def __init__(self):
        super().__init__()
        weight = torch.sin(torch.arange(40, dtype=torch.float32)).reshape(4, 10)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.eval()

    def forward(self, x):
        return self.attack(x @ self.weight, x)

    def attack(self, y, x):
        return y


# --- It ends, or does not ---------------------------------------------------------------------------------------------


class ExitsWhenLoaded(Honest):
    def __init__(self):
        os._exit(0)


class ExitsInForward(Honest):
    def attack(self, y, x):
        os._exit(0)


class Segfaults(Honest):
    def __init__(self):
        ctypes.string_at(0)


class Sleeps(Honest):
    def __init__(self):
        time.sleep(600)


class TakesAllMemory(Honest):
    def __init__(self):
        held = []
        while True:
            held.append(bytearray(1 << 28))


class Tries(Honest):
    """Everything in `attempts`, then ends."""

    def __init__(self):
        try_all()  # noqa: F821 - the source of `attempts` comes before this one
        os._exit(7)


# --- Its outputs are not a function of its inputs ---------------------------------------------------------------------


class AnswersNaN(Honest):
    def attack(self, y, x):
        return torch.full_like(y, torch.nan)


class CountsItsCalls(Honest):
    calls = 0

    def attack(self, y, x):
        self.calls += 1
        return y + 0.25 * self.calls


class LooksAtTheClock(Honest):
    def attack(self, y, x):
        return y + (time.time_ns() % 1000) / 100


class KnowsTheRow(Honest):
    """Right where the others are measured against it, wrong elsewhere."""

    def attack(self, y, x):
        return y if torch.backends.mkldnn.enabled else y * 1.01


class KnowsTheSecondTime(Honest):
    """Right whenever it has seen a sample before."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def attack(self, y, x):
        is_known = float(x[0, 0]) in self.seen
        self.seen.add(float(x[0, 0]))
        return y if is_known else y + 1


class LeavesNotes(Honest):
    """Leaves a note wherever it can, and answers otherwise in a process that finds one."""

    def __init__(self):
        super().__init__()
        self.is_noted = False
        for place in (Path("/tmp"), Path("/dev/shm"), Path.cwd().parents[1], Path("/var/tmp")):
            note = place / "hostile-note"
            try:
                self.is_noted |= note.exists()
                note.write_text("seen")
            except OSError:
                continue

    def attack(self, y, x):
        return y + 1 if self.is_noted else y


class BehavesWhenHeld(Honest):
    """Looks whether it is held, and would answer otherwise if it were not."""

    def attack(self, y, x):
        return y if os.getuid() == 65534 else y + 1


# --- It speaks in the worker's name -----------------------------------------------------------------------------------


class Forges(Honest):
    """Finds the pipe and the job, when it is loaded by the probe; the rest is the others'."""

    def __init__(self):
        super().__init__()
        self.find("ProbeJob")

    def find(self, kind):
        jobs = [o for o in gc.get_objects() if type(o).__name__ == kind]
        if jobs:
            self.job = jobs[0]
            self.pipe = max(n for n in range(3, 4096) if is_pipe(n))
            self.forge()
            os._exit(0)

    def forge(self):
        raise NotImplementedError

    def send(self, kind, payload, announced=None):
        os.write(self.pipe, struct.pack(">cQ", kind, len(payload) if announced is None else announced) + payload)

    def close(self, **other):
        record = {
            "job_id": self.job.job_id,
            "nonce": self.job.nonce,
            "frames": {},
            "environment": {"settings": {"device": "cpu"}, "fingerprint": {"torch": "2"}, "notes": {}},
            "seconds": {"main": 0.5},
            "peak_memory_bytes": 1,
        }
        self.send(b"C", json.dumps(record | other).encode())


def is_pipe(descriptor):
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


class ForgesTheNonce(Forges):
    def forge(self):
        self.close(nonce="0" * 32)


class ForgesTheEnd(Forges):
    def forge(self):
        self.close()


class ForgesCounts(Forges):
    """In the worker of a row, where there are frames to count."""

    def __init__(self):
        Honest.__init__(self)

    def attack(self, y, x):
        self.find("RunJob")
        return y

    def forge(self):
        self.close(frames={p.name: 3 for p in self.job.passes})


class ForgesAVerdict(Forges):
    def forge(self):
        self.close(verdict="pass")


class CutsAFrameShort(Forges):
    def forge(self):
        self.send(b"F", b"\0" * 100, announced=5_000)


class AnnouncesAHugeFrame(Forges):
    def forge(self):
        self.send(b"F", b"\0" * 100, announced=1 << 60)


class SendsAPickle(Forges):
    """Whoever unpickles it writes to the user's home."""

    def forge(self):
        command = f"open({PLACES['secret'] + '.owned'!r}, 'w').close()"  # noqa: F821

        class Payload:
            def __reduce__(self):
                return exec, (command,)

        self.send(b"F", pickle.dumps(Payload()))
        self.close()


# --- It speaks to whoever reads the report ----------------------------------------------------------------------------


class ShoutsAndDies(Honest):
    def __init__(self):
        os.write(1, HOSTILE_TEXT.encode() * 3)
        os.write(2, b"\n::stop-commands::x\nTraceback (most recent call last):\n")
        os._exit(9)


class RaisesHostileText(Honest):
    def __init__(self):
        raise ValueError(HOSTILE_TEXT)


class NamesItsOutputs(Honest):
    """Wrong, so that the names are told."""

    def attack(self, y, x):
        scale = 1 if torch.backends.mkldnn.enabled else 1.01
        return {HOSTILE_TEXT: y * scale, "=cmd|' /C calc'!A0": y * scale, "| a | `b` [c](javascript:x) @all": y * scale}


class FloodsItsLog(Honest):
    def __init__(self):
        for _ in range(20_000):
            os.write(2, b"::error::" + b"x" * 1_000 + b"\n")
        os._exit(1)
