"""AlexNet through the whole command: wall time against the bare forward loop, and the parent's peak memory."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# Runs the real command line, then tells the highest memory that this process, without its workers, ever held.
PARENT = """
import atexit, pathlib, re, sys
from validator.boundary import main
def tell():
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path(sys.argv[-1]).write_text(re.search(r"VmHWM:\\s+(\\d+)", status)[1])
atexit.register(tell)
argv, sys.argv = sys.argv, sys.argv[:-1]
code = None
try:
    main()
finally:
    sys.argv = argv
"""

BARE = """
import sys, time, torch
from safetensors import safe_open
from pathlib import Path
program, golden, batch, device = sys.argv[1:5]
module = torch.export.load(program).module()
if device != "cpu":
    from torch.export.passes import move_to_device_pass
    module = move_to_device_pass(torch.export.load(program), device).module()
started, samples = time.perf_counter(), 0
with torch.inference_mode():
    for shard in sorted(Path(golden).glob("*.safetensors")):
        with safe_open(shard, framework="pt") as tensors:
            values = tensors.get_slice("input")
            for at in range(0, values.get_shape()[0], int(batch)):
                samples += len(module(values[at:at + int(batch)].to(device)).cpu())
print(samples, time.perf_counter() - started)
"""

REGISTER = """
import sys, warnings, logging, mlflow, torch
from torchvision.models import alexnet
warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
torch.manual_seed(2012)
mlflow.pytorch.log_model(alexnet(weights=None).eval(), name="model", registered_model_name="alexnet",
                         input_example=torch.randn(2, 3, 224, 224).numpy(), pip_requirements=["torch"])
"""

START_S = 15.0
FACTOR = 1.3


def run(*, samples: int, batch: int, policy: str) -> None:
    """Print wall time, the slowest bare loop, and the parent's memory at `samples` and at a quarter of them."""
    with tempfile.TemporaryDirectory(prefix="validator-benchmark-") as name:
        folder = Path(name)
        environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
        subprocess.run([sys.executable, "-c", REGISTER], cwd=folder, env=environment, check=True, capture_output=True)
        memory = {}
        for count in (samples // 4, samples):
            golden = make_golden(folder / f"golden-{count}", count)
            wall_s, memory[count], verdict = check(folder, golden, batch=batch, policy=policy, environment=environment)
        print(f"AlexNet, {samples} samples, batch {batch}, policy {policy}: verdict {verdict['verdict']}")
        for backend in verdict["backends"]:
            print(f"  {backend['name']:<24} {backend['device']:<8} {json.dumps(backend['seconds'])}")
        program = next(folder.rglob("model.pt2"))
        loops = {}
        for device in sorted({b["device"].replace("cuda:0", "cuda") for b in verdict["backends"]}):
            command = [sys.executable, "-c", BARE, str(program), str(golden), str(batch), device]
            done = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            loops[device] = float(done[1])
            print(f"  bare forward loop, {device}: {loops[device]:.1f} s for {done[0]} samples")
        slowest = max(loops.values())
        allowed = f"{FACTOR} x {slowest:.1f} + {START_S:.0f} = {FACTOR * slowest + START_S:.1f} s"
        print(f"wall time {wall_s:.1f} s; allowed {allowed}")
        print("parent's peak memory: " + ", ".join(f"{v / 1024:.0f} MiB at {k} samples" for k, v in memory.items()))


def make_golden(folder: Path, samples: int) -> Path:
    """Write a golden dataset of random images, holding one at a time."""
    from validator.golden.writer import Sample, write_golden

    rng = np.random.default_rng(0)
    images = (Sample(inputs={"input": rng.standard_normal((3, 224, 224), dtype=np.float32)}) for _ in range(samples))
    return write_golden(folder, images, name="random", source="benchmark").folder


def check(
    folder: Path, golden: Path, *, batch: int, policy: str, environment: dict[str, str]
) -> tuple[float, int, dict[str, object]]:
    """Run the command; return its wall time, its parent's peak memory in KiB and the verdict."""
    (folder / "policy.toml").write_text(policy_text(policy, batch))
    memory, report = folder / "memory", folder / "report"
    arguments = [
        "validator",
        "check",
        "models:/alexnet/1",
        "--golden",
        str(golden),
        "--policy",
        str(folder / "policy.toml"),
    ]
    arguments += ["--output", str(report), "--quiet", str(memory)]
    code = f"import sys\nsys.argv = {arguments!r}\n{PARENT}"
    started = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=False)
    wall_s = time.perf_counter() - started
    if not (report / "verdict.json").exists():
        raise SystemExit(f"the check ended with {ended.returncode} and without a verdict")
    return wall_s, int(memory.read_text()), json.loads((report / "verdict.json").read_bytes())


def policy_text(name: str, batch: int) -> str:
    """Return a built-in policy with a batch size."""
    from validator.policy import BUILT_IN

    return f"required = {json.dumps(list(BUILT_IN[name].required))}\nbatch_size = {batch}\n"
