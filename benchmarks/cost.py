"""What all checks together cost, in plain forward passes.

A check runs every sample once on every row, and some of them again: in the same process, in a fresh one, at other batch
sizes. The plain forward passes are the same rows in the same workers on the same samples at the same batch size, once.
Load times are no passes. Whatever jobs the plan has for a row are counted for it.
"""

import json
import secrets
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from benchmarks.machine import Machine, this_machine
from benchmarks.zoo import Network, classifier, stack
from validator.backends.catalog import REFERENCE
from validator.backends.torch_program import quiet_libraries
from validator.check import CheckRequest, foresee
from validator.executors.local import LocalExecutor
from validator.golden.writer import Sample, write_golden
from validator.inputs import load_policy, open_inputs
from validator.judge import judge
from validator.policy import BUILT_IN, Policy
from validator.registry.interface import resolve_text
from validator.report.progress import SilentProgress
from validator.runs import Run
from validator.worker.launch import Limits
from validator.worker.outcome import Completed, Outcome
from validator.worker.protocol import PassKind, RunJob

LIMIT = 2.5
"""The most that all passes of all candidates may take, in plain forward passes of the same candidates."""
NETWORKS = ("alexnet", "resnet18")
SIDE = 224
DEADLINE_S = 540.0


class Row(BaseModel):
    """Seconds that a row's passes took."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    jobs: int
    main: float
    """Every sample once, within the check."""
    every: float
    """All passes of all jobs of the check."""
    plain: float
    """Every sample once, and nothing else."""


class Bill(BaseModel):
    """One network under one policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Machine
    network: str
    policy: str
    samples: int
    batch: int
    verdict: str
    wall: float
    """From the first worker to the verdict; no registry, no report."""
    wall_plain: float
    rows: tuple[Row, ...]

    @property
    def candidates(self) -> tuple[Row, ...]:
        """All rows but the reference."""
        return tuple(row for row in self.rows if row.name != REFERENCE)

    @property
    def ratio(self) -> float:
        """All passes over the plain ones, over all candidates."""
        return sum(row.every for row in self.candidates) / sum(row.plain for row in self.candidates)


class Ledger(LocalExecutor):
    """An executor that keeps what the workers' clocks said."""

    def __init__(self, scratch: Path, policy: Policy) -> None:
        super().__init__(scratch=scratch, limits=Limits(deadline_s=DEADLINE_S), jobs_per_gpu=policy.worker.jobs_per_gpu)
        self.runs: list[tuple[RunJob, dict[str, float]]] = []
        """Jobs that completed, with seconds by pass."""

    def outcomes(self) -> Iterator[Outcome]:
        """Yield outcomes as they come."""
        for outcome in super().outcomes():
            if isinstance(outcome.job, RunJob):
                if not isinstance(outcome, Completed):
                    raise SystemExit(f"{outcome.job.job_id} did not complete: {outcome}")
                self.runs.append((outcome.job, outcome.seconds))
            yield outcome


def run(*, names: Sequence[str], samples: int, batch: int, policies: Sequence[str], out: Path | None) -> int:
    """Check each network under each policy, print the bill, and write it after each.

    Args:
        names: classifiers of torchvision.
        samples: golden samples.
        batch: deployed batch size.
        policies: built-in ones; none: `cpu`, and `default` where there is a GPU.
        out: JSON.

    Returns:
        The exit code: 1 if a bill is above the limit, or a healthy network does not pass.
    """
    chosen = policies or (["cpu", "default"] if torch.cuda.is_available() else ["cpu"])
    bills: list[Bill] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="validator-cost-") as folder:
            network = classifier(name, SIDE)
            _store(network, Path(folder), samples)
            for policy in chosen:
                bills.append(_measure(network, Path(folder), policy=policy, samples=samples, batch=batch))
                print(render(bills[-1]), flush=True)
                if out is not None:
                    out.write_text(json.dumps([b.model_dump() for b in bills], indent=1) + "\n", encoding="utf-8")
    return int(any(not bill.ratio <= LIMIT or bill.verdict != "pass" for bill in bills))


def _store(network: Network, folder: Path, samples: int) -> None:
    """Write the model folder and the golden dataset."""
    data = folder / "model" / "data"
    data.mkdir(parents=True)
    (folder / "model" / "MLmodel").write_text("flavors:\n  pytorch:\n    model_data: data\n", encoding="utf-8")
    example = stack(network.samples(2))
    with quiet_libraries(), warnings.catch_warnings(action="ignore"), torch.no_grad():
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        torch.export.save(torch.export.export(network.build(), example, dynamic_shapes=shapes), data / "model.pt2")
    drawn = (Sample(inputs=inputs) for inputs in network.samples(samples))
    write_golden(folder / "golden", drawn, name=network.name, source="random numbers")


def _measure(network: Network, folder: Path, *, policy: str, samples: int, batch: int) -> Bill:
    """Check once, then run the main passes alone."""
    from tests.fakes import FakeRegistry

    text = f"required = {json.dumps(list(BUILT_IN[policy].required))}\nbatch_size = {batch}\n"
    (folder / "policy.toml").write_text(text, encoding="utf-8")
    parsed = load_policy(str(folder / "policy.toml"))
    registry, uri = FakeRegistry(), f"models:/{network.name}/1"
    registry.add_version(network.name, folder / "model")
    request = CheckRequest(uri=uri, output=folder / "report", policy=str(folder / "policy.toml"))
    with tempfile.TemporaryDirectory(prefix="validator-") as name:
        scratch, alone = Path(name) / "check", Path(name) / "plain"
        scratch.mkdir()
        alone.mkdir()
        started = time.perf_counter()
        with Ledger(scratch, parsed) as executor:
            executor.prepare(foresee(parsed, request))
            subject = resolve_text(registry, uri)
            golden = str(folder / "golden")
            inputs = open_inputs(parsed, subject, registry, scratch, SilentProgress(), golden=golden, onnx=None)
            evidence, _ = Run(inputs=inputs, executor=executor).gather(())
            verdict = judge(parsed, evidence).verdict.value
            checked = executor.runs
        wall = time.perf_counter() - started
        started = time.perf_counter()
        with Ledger(alone, parsed) as executor:
            for job in _main_jobs(checked):
                executor.submit(job)
            list(executor.outcomes())
            plain = executor.runs
        wall_plain = time.perf_counter() - started
    return Bill(
        machine=this_machine(),
        network=network.name,
        policy=policy,
        samples=samples,
        batch=batch,
        verdict=verdict,
        wall=wall,
        wall_plain=wall_plain,
        rows=tuple(_rows(checked, plain)),
    )


Runs = Sequence[tuple[RunJob, dict[str, float]]]


def _main_jobs(runs: Runs) -> Iterator[RunJob]:
    """Yield one job for each row that runs every sample once and does nothing else."""
    longest: dict[str, RunJob] = {}
    for job, _ in runs:
        for p in job.passes:
            known = longest.get(job.backend.name)
            if p.kind is PassKind.MAIN and (known is None or known.passes[0].samples < p.samples):
                fresh = {"passes": (p,), "nonce": secrets.token_hex(16), "job_id": f"plain-{job.backend.name}"}
                longest[job.backend.name] = job.model_copy(update=fresh)
    yield from longest.values()


def _rows(checked: Runs, plain: Runs) -> Iterator[Row]:
    """Add up what the workers' clocks said, row by row."""
    for job, seconds in plain:
        own = [(j, s) for j, s in checked if j.backend.name == job.backend.name]
        mains = [s[p.name] for j, s in own for p in j.passes if p.kind is PassKind.MAIN]
        yield Row(
            name=job.backend.name,
            jobs=len(own),
            main=max(mains),
            every=sum(s[p.name] for j, s in own for p in j.passes),
            plain=sum(seconds[p.name] for p in job.passes),
        )


def render(bill: Bill) -> str:
    """Write a bill for people."""
    lines = [
        f"{bill.network}, {bill.samples} samples of 3x{SIDE}x{SIDE}, batch {bill.batch}, policy {bill.policy}",
        f"  {bill.machine}; verdict {bill.verdict}",
        f"  {'row':<22} {'jobs':>4} {'main':>9} {'all passes':>11} {'plain':>9} {'all/main':>9} {'all/plain':>9}",
    ]
    for row in bill.rows:
        note = "  not counted: no candidate" if row.name == REFERENCE else ""
        lines.append(_figures(row.name, str(row.jobs), row) + note)
    every = Row(
        name="candidates",
        jobs=sum(row.jobs for row in bill.candidates),
        main=sum(row.main for row in bill.candidates),
        every=sum(row.every for row in bill.candidates),
        plain=sum(row.plain for row in bill.candidates),
    )
    lines.append(_figures(every.name, str(every.jobs), every))
    judged = "within" if bill.ratio <= LIMIT else "ABOVE"
    lines.append(f"  {bill.ratio:.2f} plain forward passes, {judged} the limit of {LIMIT}")
    lines.append(f"  wall time {bill.wall:.1f} s with all workers' start, plain passes alone {bill.wall_plain:.1f} s")
    return "\n".join(lines)


def _figures(name: str, jobs: str, row: Row) -> str:
    ratios = f"{row.every / row.main:>9.2f} {row.every / row.plain:>9.2f}"
    return f"  {name:<22} {jobs:>4} {row.main:>7.2f} s {row.every:>9.2f} s {row.plain:>7.2f} s {ratios}"
