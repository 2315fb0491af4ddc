"""Crash points: where a test may kill this process, to see what it left behind.

A point stands before each step that others can see: a write to the registry, a file that takes its place. All that an
environment variable can do here is to end the process, which somebody who sets our environment can do anyway.
"""

import itertools
import os
import signal

CRASH_AT = "VALIDATOR_TEST_CRASH_AT"
"""The number, from 1, of the crash point that kills the process."""

_reached = itertools.count(1)


def crash_point(name: str) -> None:
    """End the process by SIGKILL if this is the crash point that the environment asks for.

    Args:
        name: what would happen next; written to standard error before the end, so that a test can say where it was.
    """
    wanted = os.environ.get(CRASH_AT)
    if wanted is not None and next(_reached) == int(wanted):
        os.write(2, f"crash point {wanted}: {name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
