"""`python -P -m validator.sandbox.run MODULE ARGUMENTS...`: confine this process, then run a module as a program."""

import runpy
import sys

from validator.sandbox.enter import enter, take_confinement

if __name__ == "__main__":
    enter(take_confinement())
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
