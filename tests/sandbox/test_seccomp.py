"""What the filter refuses by itself, without the mechanisms around it that would refuse it as well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import confinement_of, environment
from validator.sandbox.confinement import VARIABLE
from validator.sandbox.level import Level
from validator.sandbox.machine import Machine

OWNS = """
import ctypes, os, sys
from validator.sandbox.enter import enter, take_confinement
enter(take_confinement())
libc, parent, (end, _) = ctypes.CDLL(None, use_errno=True), int(sys.argv[1]), os.pipe()
owner = (ctypes.c_int * 2)(1, parent)
upper = 1 << 32
for command, value in ((8, parent), (upper | 8, parent), (15, ctypes.byref(owner))):
    print(libc.fcntl(end, ctypes.c_long(command), value))
print(libc.ioctl(end, ctypes.c_long(0x8901), ctypes.byref(ctypes.c_int(parent))))
print(libc.fcntl(end, 1, 0))
"""


@pytest.mark.parametrize("level", [Level.STANDARD])
def test_no_signal_is_sent_by_way_of_the_owner_of_a_pipe(machine: Machine, tmp_path: Path, level: Level) -> None:
    """Landlock knows of it since Linux 6.12 only."""
    held = confinement_of(level, home=tmp_path, has_landlock=False)
    said = subprocess.run(
        [sys.executable, "-P", "-c", OWNS, str(os.getpid())],
        env=environment(tmp_path) | {VARIABLE: held.to_json()}, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.split() == ["-1", "-1", "-1", "-1", "1"]
