"""`python -P -m validator.worker KIT RESULT_FD PARENT_PID < job.json`: started by `launch`, not by people."""

import fcntl
import os
import sys
import traceback
from typing import NoReturn

from validator.sandbox.enter import enter, take_confinement
from validator.worker.process import die_with_parent
from validator.worker.protocol import OUT_OF_MEMORY, parse_job
from validator.worker.warm import Kit, warm_up

_FAULT_OF_OURS = 70
"""EX_SOFTWARE of sysexits.h."""


def main(kit: Kit, result_fd: int, parent: int) -> int:
    """Get ready, wait for the job on standard input and do it, if there is one; return the exit status."""
    die_with_parent(parent)
    enter(take_confinement())
    fcntl.fcntl(result_fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # programs that the model starts do not get it
    with os.fdopen(result_fd, "wb") as stream:
        try:
            warm_up(kit)
            if document := sys.stdin.buffer.read():
                from validator.worker.child import do_job

                do_job(parse_job(document), stream)
        except MemoryError:
            traceback.print_exc()
            return OUT_OF_MEMORY
        except Exception:  # noqa: BLE001 - the worker's main: the traceback goes to its log, the status to the gate
            traceback.print_exc()
            return _FAULT_OF_OURS
    return 0


def leave(status: int) -> NoReturn:
    """End at once. All was said: what libraries do when they are torn down tells nothing about the outputs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main(Kit(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
