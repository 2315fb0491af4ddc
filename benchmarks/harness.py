"""The gate's own judgement in one process: the same plan, jobs, frames, comparison and judge, and no worker in between.

`check_files` is `validator check` without a registry, a report and processes, so it takes about a second. Only what a
process is for goes missing: a crash takes this process along, and a model that keeps state outside itself keeps it.
"""

import importlib
import io
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from validator.backends.catalog import Backend, Runtime
from validator.backends.interface import Environment, ModelFacts, ModelFile
from validator.compare import Frame
from validator.evidence import compare_runs, plant_fault, variety_of
from validator.golden.dataset import GoldenDataset
from validator.inputs import Inputs
from validator.judge import Decision, Evidence, judge
from validator.manifest import measure_folder
from validator.metrics import Array
from validator.policy import Policy
from validator.runs import Run
from validator.subject import OnnxFile, OnnxOrigin, Program, ProgramFormat, StagedModel, Subject
from validator.worker.child import RUNTIMES, do_job
from validator.worker.intake import Intake
from validator.worker.launch import Ended, conclude
from validator.worker.outcome import Completed, Outcome
from validator.worker.protocol import ExportJob, FrameHeader, Job, Pass, ProtocolError, RunJob
from validator.worker.warm import WarmSpec

if TYPE_CHECKING:
    from validator.executors.local import LocalExecutor
    from validator.worker.spool import Spool

SPOOL_LIMIT_BYTES = 1 << 33
THREADS = 1


class InProcessExecutor:
    """Does jobs here and now, with everything that a worker and the parent's end of its pipe do to them."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._jobs: list[Job] = []
        self._done = 0

    def prepare(self, specs: Sequence[WarmSpec]) -> None:
        """Nothing is ever started before its turn."""

    def submit(self, job: Job) -> None:
        """Take a job. Exports come first: torch.export does not work beside a session's switches."""
        if isinstance(job, ExportJob):  # there is no worker whose own folder it could lie in
            job = job.model_copy(update={"export_path": str(self._scratch / job.export_path)})
        self._jobs.insert(0 if isinstance(job, ExportJob) else len(self._jobs), job)

    def outcomes(self) -> Iterator[Outcome]:
        """Do one job after another; more may be submitted in between."""
        while self._jobs:
            self._done += 1
            yield do_here(self._jobs.pop(0), self._scratch / f"frames-{self._done}")


def do_here(job: Job, frames: Path) -> Outcome:
    """Do one job and conclude what became of it from what it said, as the parent of a worker would.

    Args:
        job: any job of the gate.
        frames: new file for what it sends.
    """
    stream = io.BytesIO()
    status, tail = 0, ""
    try:
        with restored_switches():
            do_job(job, stream)
    except Exception as error:  # noqa: BLE001 - in a worker it would end the process, and with the same words
        status, tail = 1, f"{type(error).__name__}: {error}"
    with frames.open("xb") as spool:
        intake = Intake(job, spool, spool_limit_bytes=SPOOL_LIMIT_BYTES)
        violation = None
        try:
            if said := stream.getvalue():
                intake.feed(said)
            intake.check_end()
        except ProtocolError as error:
            violation = str(error)
    return conclude(
        job,
        intake,
        Ended(exit_status=status, violation=violation),
        home=frames.parent,
        spool=frames,
        limit_s=0.0,
        log_tail=tail,
    )


def _precision_switches() -> list[tuple[Any, str]]:
    """List the switches that sessions set, as (holder, attribute)."""
    backends: Any = torch.backends
    return [
        (backends.cuda.matmul, "fp32_precision"),
        *((getattr(backends.cudnn, name), "fp32_precision") for name in ("conv", "rnn")),
        *((getattr(backends.mkldnn, name), "fp32_precision") for name in ("matmul", "conv", "rnn")),
        *((backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    ]


@contextmanager
def restored_switches() -> Iterator[None]:
    """Put back whatever a job, or its model, does to torch as a whole: elsewhere each has a process of its own."""
    switches = _precision_switches()
    before = [getattr(holder, name) for holder, name in switches]
    forced, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for (holder, name), value in zip(switches, before, strict=True):
            setattr(holder, name, value)
        torch.use_deterministic_algorithms(forced)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the gate said, and what it said it of."""

    policy: Policy
    evidence: Evidence
    decision: Decision
    onnx: Path | None
    """The file that was validated; exported here where none was given."""


def check_files(
    policy: Policy,
    program: Path,
    golden: GoldenDataset,
    scratch: Path,
    *,
    onnx: Path | None = None,
    model_format: ProgramFormat = ProgramFormat.EXPORTED,
    extra: Sequence[str] = (),
) -> Checked:
    """Check a program, and an ONNX file if there is one, as the gate does.

    Args:
        policy: what is required.
        program: the model file, alone in its folder.
        golden: the inputs.
        scratch: existing, empty folder.
        onnx: alone in its folder, but for its data; None: the gate exports one.
        model_format: of the program.
        extra: backends added to the required ones.
    """
    inputs = Inputs(
        policy=_in_one_process(policy),
        staged=_staged(program),
        program=Program(path=program, format=model_format),
        golden_uri=str(golden.folder),
        golden=golden,
        onnx=None if onnx is None else onnx_file(onnx),
        scratch=scratch,
    )
    run = Run(inputs=inputs, executor=cast("LocalExecutor", InProcessExecutor(scratch)))
    evidence, used = run.gather(extra)
    decision = judge(inputs.policy, evidence)
    return Checked(policy=inputs.policy, evidence=evidence, decision=decision, onnx=used.path if used else None)


def _in_one_process(policy: Policy) -> Policy:
    """Return the policy without what needs a process of its own, and with a number of threads."""
    worker = policy.worker.model_copy(update={"threads": policy.worker.threads or THREADS})
    checks = policy.checks.model_copy(update={"fresh_process": False})
    return policy.model_copy(update={"worker": worker, "checks": checks})


def onnx_file(path: Path) -> OnnxFile:
    """Describe an ONNX file as one that the user named."""
    return OnnxFile(path=path, manifest=measure_folder(path.parent), origin=OnnxOrigin.OPTION, source=str(path))


def _staged(program: Path) -> StagedModel:
    """Describe a model file as one that came from a registry."""
    uri = "models:/case/1"
    subject = Subject(
        registry_uri="none",
        requested_uri=uri,
        name="case",
        version=1,
        creation_timestamp_ms=None,
        source=str(program),
        download_uri=str(program),
        model_id=None,
        run_id=None,
    )
    return StagedModel(subject=subject, folder=program.parent, manifest=measure_folder(program.parent))


# --- One model at a time, for whoever compares many ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one backend gave for all samples, and what it read back."""

    row: Backend
    frames: tuple[Frame, ...]
    environment: Environment

    def values(self, output: str) -> Array:
        """Return one output of all samples."""
        return np.concatenate([frame.outputs[output] for frame in self.frames])

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of its outputs."""
        return tuple(self.frames[0].outputs)


Tensors = Mapping[str, torch.Tensor]
Forward = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def run_row(
    row: Backend,
    path: Path,
    inputs: Tensors,
    *,
    batch: int,
    threads: int = THREADS,
    outputs: tuple[str, ...] | None = None,
) -> Ran:
    """Open a session of the gate on one row and run all samples.

    Args:
        row: of the catalog, or like one.
        path: a `.pt2` or an ONNX file.
        inputs: samples along the first axis.
        batch: samples a call.
        threads: of the CPU.
        outputs: the program's, for an ONNX file that calls them otherwise.
    """
    file = ModelFile(
        path=path,
        format="onnx" if row.runtime is Runtime.ONNXRUNTIME else "torch.export",
        input_names=tuple(inputs),
        output_names=outputs,
    )
    with restored_switches():
        torch.set_num_threads(threads)
        session = importlib.import_module(RUNTIMES[row.runtime]).open_session(row, file)
        frames = run_batches(session.run, inputs, batch)
        return Ran(row=row, frames=frames, environment=session.environment())


def run_batches(forward: Forward, inputs: Tensors, batch: int) -> tuple[Frame, ...]:
    """Run all samples through anything that takes and gives named tensors."""
    count = len(next(iter(inputs.values())))
    frames = []
    for start in range(0, count, batch):
        stop = min(start + batch, count)
        outputs = forward({name: tensor[start:stop] for name, tensor in inputs.items()})
        dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in outputs.items()}
        arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
        frames.append(Frame(start=start, stop=stop, outputs=arrays, dtypes=dtypes))
    return tuple(frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpool:
    """A spool's frames, in memory; whichever pass is asked for is the one run that there was."""

    frames: tuple[Frame, ...]

    def read_pass(self, name: str) -> Iterator[tuple[FrameHeader, Mapping[str, Array]]]:
        """Yield the frames."""
        for frame in self.frames:
            header = FrameHeader(pass_name=name, start=frame.start, stop=frame.stop, dtypes=dict(frame.dtypes))
            yield header, frame.outputs


def judge_runs(policy: Policy, reference: Ran, baseline: Ran, candidate: Ran) -> Decision:
    """Let the gate decide on one candidate, with its negative control, on outputs that are already there.

    Nothing was run twice or at another batch size, so the policy must ask for no other batch size.
    """
    runs = {ran.row.name: ran for ran in (reference, baseline, candidate)}
    samples = reference.frames[-1].stop
    rows = [ran.row for ran in runs.values()]
    compared = compare_runs(rows, [_completed(ran, samples) for ran in runs.values()])
    evidence = Evidence(
        samples=samples,
        golden_digest="none",
        weights_digest="none",
        facts=ModelFacts(inputs=(), static_batch=None, training=(), parameter_dtypes={}),
        probe=None,
        onnx_required=False,
        has_onnx=True,
        backends=tuple(compared.values()),
        variety=variety_of(compared),
    )
    return judge(policy, replace(evidence, control=plant_fault(policy, evidence)))


def _completed(ran: Ran, samples: int) -> Completed:
    passes = tuple(Pass(kind=kind, batch_size=samples, ranges=((0, samples),)) for kind in ("main", "repeat"))
    job = RunJob(
        job_id=ran.row.name,
        nonce="",
        backend=ran.row,
        model_path="",
        model_format="",
        golden_path="",
        golden_digest="",
        passes=passes,
        input_names=(),
        threads=THREADS,
    )
    return Completed(job=job, environment=ran.environment, spool=cast("Spool", MemorySpool(frames=ran.frames)))
