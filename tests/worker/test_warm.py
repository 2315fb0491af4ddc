"""What the real worker does before it has a job."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.worker.jobs import CPU, export_job, probe_job, run_job_of
from validator.backends.catalog import Runtime
from validator.sandbox.choice import UNCONFINED
from validator.sandbox.confinement import VARIABLE
from validator.sandbox.level import Profile
from validator.worker.warm import MODULES, Kit, WarmSpec

ORT = CPU.model_copy(update={"name": "ort", "runtime": Runtime.ONNXRUNTIME, "environment": {"B": "2", "A": "1"}})


def test_jobs_of_a_kind_need_the_same_worker(tmp_path):
    assert WarmSpec.of_job(run_job_of()) == WarmSpec(kit=Kit.TORCH, threads=1)
    assert WarmSpec.of_job(run_job_of(ORT)) == WarmSpec(
        kit=Kit.ONNXRUNTIME, threads=1, variables=(("A", "1"), ("B", "2"))
    )
    assert WarmSpec.of_job(probe_job()) == WarmSpec(kit=Kit.PROBE, threads=1, profile=Profile(gpu=True))
    assert WarmSpec.of_job(export_job(tmp_path)) == WarmSpec(kit=Kit.EXPORT, threads=1)


def test_a_row_is_only_given_what_it_runs_on():
    moved = CPU.model_copy(update={"device": "cuda"})
    compiled = CPU.model_copy(update={"compile": "inductor"})
    assert WarmSpec.of_row(CPU, threads=1).profile == Profile()
    assert WarmSpec.of_row(moved, threads=1).profile == Profile(gpu=True)
    assert WarmSpec.of_row(compiled, threads=1).profile == Profile(compiles=True)


@pytest.mark.parametrize("kit", list(Kit))
def test_every_module_of_a_kit_exists_in_the_versions_that_are_tested(kit):
    for module in MODULES[kit]:
        assert importlib.util.find_spec(module) is not None, module


def test_a_worker_without_a_job_ends_quietly(tmp_path):
    """After `warm_up`, which imports what `torch.export.load` would, and without a word."""
    script = (
        "import os, sys\n"
        "from validator.worker.__main__ import main\n"
        "from validator.worker.warm import Kit\n"
        "read, write = os.pipe()\n"
        "status = main(Kit.TORCH, write, os.getppid())\n"
        "print(status, os.read(read, 1), 'torch._dynamo' in sys.modules, 'onnxruntime' in sys.modules)\n"
    )
    held = UNCONFINED.confine(Profile(), home=tmp_path).to_json()
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {VARIABLE: held},
    )
    assert done.stdout.split() == ["0", "b''", "True", "False"]
    assert done.stderr == ""
