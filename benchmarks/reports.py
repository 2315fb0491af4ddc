"""What it costs to write every format of a large check: 10,000 samples on 8 backends.

The check is a real one up to its workers: outputs are drawn at random, compared, judged and written as a check writes
them; then a fresh process renders every format, and its CPU time and peak memory are read from the kernel.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CPU_LIMIT_S = 3.0
MEMORY_LIMIT_MIB = 300
PAGE_LIMIT_BYTES = 2_000_000
SAMPLES, BACKENDS = 10_000, 8

RENDER = """
import json, sys, time
from pathlib import Path
from validator.report.formats import FILES, Format, Material, render
from validator.report.model import read_document
folder = Path(sys.argv[1])
times = {}
document = read_document((folder / "verdict.json").read_bytes(), origin="verdict.json")
material = Material(document=document, folder=folder)
for chosen in Format:
    started = time.process_time()
    contents = render(chosen, material)
    times[chosen] = (time.process_time() - started, sum(map(len, contents)))
    for name, content in zip(FILES[chosen], contents, strict=True):
        (folder / "out" / name).write_bytes(content)
# Not the kernel's ru_maxrss: a process begins with that of its parent.
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps({"times": times, "peak_kib": int(peak.split()[1])}))
"""


def run() -> int:
    """Print CPU time and size of every format, and the whole process's time and memory. Returns 1 over a limit."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "out").mkdir()
        started = time.process_time()
        make_check(folder)
        seconds = time.process_time() - started
        print(f"made a check of {SAMPLES:,} samples on {BACKENDS} backends in {seconds:.1f} s of CPU")
        for path in sorted(folder.glob("*.*")):
            print(f"  {path.name:24} {path.stat().st_size / 1e6:8.2f} MB")
        child = subprocess.Popen([sys.executable, "-c", RENDER, str(folder)], stdout=subprocess.PIPE, text=True)
        output = child.stdout.read() if child.stdout is not None else ""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise SystemExit(f"rendering ended with {child.returncode}")
        measured = json.loads(output)
        times = measured["times"]
        for name, (seconds, size) in times.items():
            print(f"  {name:10} {seconds:6.2f} s of CPU {size / 1e6:8.2f} MB")
        cpu_s = usage.ru_utime + usage.ru_stime
        return _report(cpu_s, memory_mib=measured["peak_kib"] / 1024, page_bytes=times["html"][1])


def _report(cpu_s: float, *, memory_mib: float, page_bytes: int) -> int:
    print(f"all formats, imports included: {cpu_s:.2f} s of CPU, limit {CPU_LIMIT_S}")
    print(f"peak memory: {memory_mib:.0f} MiB, limit {MEMORY_LIMIT_MIB}")
    print(f"report.html: {page_bytes / 1e6:.2f} MB, limit {PAGE_LIMIT_BYTES / 1e6}")
    within = cpu_s <= CPU_LIMIT_S and memory_mib <= MEMORY_LIMIT_MIB and page_bytes <= PAGE_LIMIT_BYTES
    return 0 if within else 1


def make_check(folder: Path) -> None:
    """Write verdict.json, samples.csv and previews.json of a check with drawn outputs."""
    from tests import builders
    from tests.report.pages import previews_of
    from validator.policy import Policy
    from validator.report.samples import samples_table

    builders.SAMPLES, builders.CLASSES = SAMPLES, 100
    y = {"logits": builders.reference_outputs()["logits"]}
    builders.reference_outputs = lambda **_: y
    names = ("eager-cpu", "eager-cuda", "cudnn-deterministic", "cudnn-off", "compiled-cuda", "compiled-cpu")
    rows = ("reference", *names, "onnxruntime-gpu", "onnxruntime-cpu")
    outputs = {name: builders.noisy(y, seed=seed) for seed, name in enumerate(rows[1:])}
    outputs["onnxruntime-gpu"] = builders.stale_weights(y)
    situation = builders.Situation(rows=rows, required=rows[1:], outputs=outputs)
    evidence = builders.evidence_of(situation)
    document = builders.document_of(situation)
    table = samples_table(Policy(required=rows[1:], batch_size=16), evidence, builders.golden_dataset())
    (folder / "verdict.json").write_text(document.to_json(), encoding="utf-8")
    (folder / "samples.csv").write_text(table, encoding="utf-8")
    (folder / "previews.json").write_text(previews_of(document).to_json(), encoding="utf-8")
