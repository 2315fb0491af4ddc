"""What `validator --help` costs, and what it imports."""

import os
import statistics
import subprocess
import sys

HEAVY = ("torch", "onnxruntime", "mlflow", "numpy", "pydantic")
RUNS = 10


def run() -> None:
    """Print the median CPU time of `validator --help` and the heavy packages that it imported."""
    times = [cpu_time_s([sys.executable, "-m", "validator", "--help"]) for _ in range(RUNS)]
    code = (
        "import sys, contextlib, io\n"
        "from validator.boundary import main\n"
        "sys.argv = ['validator', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main()\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    imported = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    print(f"validator --help: {statistics.median(times) * 1000:.0f} ms of CPU time (median of {RUNS}), limit 200 ms")
    print(f"heavy imports: {imported}")


def cpu_time_s(command: list[str]) -> float:
    """Run a command and return the user and system time that it took."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{command} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime
