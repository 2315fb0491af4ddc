"""On a GPU machine: CUDA works where it is held, and the device is the only thing more that is shown."""

import secrets
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.sandbox.conftest import confinement_of, environment
from validator.backends.catalog import CATALOG
from validator.golden.writer import Sample, write_golden
from validator.policy import Policy
from validator.report.progress import SilentProgress
from validator.runs import make_stage, open_sandbox
from validator.sandbox.level import Level, Profile, Request
from validator.sandbox.machine import look_at_machine
from validator.sandbox.selftest import find_escape
from validator.worker.launch import Limits, run_job
from validator.worker.outcome import Completed
from validator.worker.protocol import Pass, PassKind, ProbeJob, RunJob

pytestmark = pytest.mark.gpu
LIMITS = Limits(deadline_s=300)


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize("compiles", [False, True])
def test_strict_holds_a_child_that_sees_the_gpu(tmp_path: Path, *, compiles: bool) -> None:
    held = confinement_of(Level.STRICT, Profile(gpu=True, compiles=compiles))
    assert find_escape(held, look_at_machine(), tmp_path, environment) is None


def test_a_child_without_the_device_nodes_is_noticed(tmp_path: Path) -> None:
    from dataclasses import replace

    held = confinement_of(Level.STRICT, Profile(gpu=True))
    escape = find_escape(held, replace(look_at_machine(), gpu_nodes=()), tmp_path, environment)
    assert escape is not None
    assert escape.startswith("it does not see the GPU")


def test_rows_on_the_gpu_and_on_the_cpu_complete_under_strict(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    rows = [CATALOG[name] for name in ("eager-cpu", "eager-cuda", "cudnn-deterministic")]
    sandbox = open_sandbox(Policy(), Request.STRICT, rows, scratch, SilentProgress())
    samples = [Sample(inputs={"x": np.full((3, 8, 8), i, np.float32)}) for i in range(4)]
    golden = write_golden(tmp_path / "golden", samples, name="g", source="tests")
    stage = make_stage(scratch, str(golden.folder))
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    program = torch.export.export(Tiny().eval(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=(batch,))
    torch.export.save(program, stage.subject / "model.pt2")
    shared = {
        "model_path": str(stage.subject / "model.pt2"),
        "model_format": "torch.export",
        "golden_path": str(golden.folder),
        "golden_digest": golden.digest,
        "threads": 1,
    }
    probe = ProbeJob(job_id="probe", nonce=secrets.token_hex(16), **shared)
    outcome = run_job(probe, scratch=scratch, limits=LIMITS, sandbox=sandbox, stage=stage)
    assert isinstance(outcome, Completed), outcome
    assert outcome.environment.fingerprint["gpu"] == "present"
    for row in rows:
        job = RunJob(
            job_id=row.name,
            nonce=secrets.token_hex(16),
            backend=row,
            passes=(Pass(kind=PassKind.MAIN, batch_size=2, ranges=((0, 4),)),),
            input_names=("x",),
            **shared,
        )
        outcome = run_job(job, scratch=scratch, limits=LIMITS, sandbox=sandbox, stage=stage)
        assert isinstance(outcome, Completed), (row.name, outcome)
