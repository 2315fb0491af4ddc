"""What a worker does with its job. Runs somebody else's code, so it starts nothing that the parent has to believe."""

import importlib
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO

from safetensors.torch import save

from validator.backends.catalog import Runtime
from validator.backends.interface import BackendRefusal, Environment, ModelFile, Perturbable, RefusalKind, Session
from validator.golden.dataset import GoldenDataset, open_golden
from validator.worker.frames import PAIRED, STORED_AS
from validator.worker.protocol import (
    CLOSING,
    EXPORTED,
    FACTS,
    FRAME,
    FRAME_LIMIT_BYTES,
    REFUSAL,
    SURVEYED,
    WEIGHTS,
    Closing,
    ExportJob,
    FrameHeader,
    Job,
    Pass,
    PassKind,
    ProbeJob,
    Refusal,
    RunJob,
    SurveyJob,
    WeightsJob,
    write_message,
)

if TYPE_CHECKING:
    import torch

RUNTIMES: Mapping[Runtime, str] = MappingProxyType(
    {
        Runtime.TORCH: "validator.backends.torch_eager",
        Runtime.ONNXRUNTIME: "validator.backends.onnx_runtime",
    }
)
"""Modules with `open_session(row, file) -> Session`."""

COMPARISON = "validator.backends.weights"
"""Module with `compare_files(path, format, onnx) -> WeightsFacts`."""

PROBE = "validator.backends.probe"
"""Module with `probe(path, format, golden) -> ModelFacts` and `export(...) -> (ExportFacts, WeightsFacts | None)`."""

SURVEY = "validator.backends.survey"
"""Module with `survey(path, format, golden, ...) -> SurveyFacts`."""


def do_job(job: Job, stream: BinaryIO) -> None:
    """Do a job and say how it went: in a closing record, or in a refusal. Anything unforeseen is raised."""
    import torch

    torch.set_num_threads(job.threads)
    try:
        match job:
            case RunJob():
                _run(job, stream)
            case ProbeJob():
                _probe(job, stream)
            case SurveyJob():
                _survey(job, stream)
            case ExportJob():
                _export(job, stream)
            case WeightsJob():
                _compare_weights(job, stream)
    except BackendRefusal as refusal:
        record = Refusal(
            job_id=job.job_id,
            nonce=job.nonce,
            kind=refusal.kind,
            stage=refusal.stage,
            message=refusal.message,
        )
        write_message(stream, REFUSAL, record.model_dump_json().encode())


def _run(job: RunJob, stream: BinaryIO) -> None:
    seconds: dict[str, float] = {}
    frames: Counter[str] = Counter({p.name: 0 for p in job.passes})
    with _timed(seconds, "load"):
        golden = _open_golden(job)
        session = _open_session(job)
    for p in job.passes:
        with _timed(seconds, p.name):
            if p.seed is not None:
                _perturb(session, p.seed)
            size = job.static_batch or (p.batch_size if p.kind is PassKind.BATCH else None)
            for start, stop in _cut(golden, p, job.static_batch):
                outputs = run_batch(session, golden.read_torch(start, stop), size)
                filled = 0 if size is None else size - (stop - start)
                write_message(stream, FRAME, pack_frame(p.name, start, stop, outputs, filled=filled))
                frames[p.name] += 1
    _close(job, stream, session.environment(), seconds=seconds, frames=dict(frames))


def _perturb(session: Session, seed: int) -> None:
    if not isinstance(session, Perturbable):
        raise BackendRefusal(RefusalKind.UNAVAILABLE, "perturb", "this runtime cannot move a model's parameters")
    session.perturb(seed)


def _probe(job: ProbeJob, stream: BinaryIO) -> None:
    seconds: dict[str, float] = {}
    with _timed(seconds, "probe"):
        golden = _open_golden(job)
        facts = importlib.import_module(PROBE).probe(Path(job.model_path), job.model_format, golden)
    write_message(stream, FACTS, facts.model_dump_json().encode())
    _close(job, stream, _bare_environment(), seconds=seconds, frames={})


def _survey(job: SurveyJob, stream: BinaryIO) -> None:
    seconds: dict[str, float] = {}
    with _timed(seconds, "survey"):
        golden = _open_golden(job)
        facts = importlib.import_module(SURVEY).survey(
            Path(job.model_path),
            job.model_format,
            golden,
            samples=job.samples,
            peaks_per_layer=job.peaks_per_layer,
            margins_per_output=job.margins_per_output,
        )
    write_message(stream, SURVEYED, facts.model_dump_json().encode())
    _close(job, stream, _bare_environment(), seconds=seconds, frames={})


def _export(job: ExportJob, stream: BinaryIO) -> None:
    seconds: dict[str, float] = {}
    with _timed(seconds, "export"):
        golden = _open_golden(job)
        Path(job.export_path).parent.mkdir(parents=True, exist_ok=True)
        facts, weights = importlib.import_module(PROBE).export(
            Path(job.model_path),
            job.model_format,
            golden,
            static_batch=job.static_batch,
            destination=Path(job.export_path),
        )
    write_message(stream, EXPORTED, facts.model_dump_json().encode())
    if weights is not None:
        write_message(stream, WEIGHTS, weights.model_dump_json().encode())
    _close(job, stream, _bare_environment(), seconds=seconds, frames={})


def _compare_weights(job: WeightsJob, stream: BinaryIO) -> None:
    seconds: dict[str, float] = {}
    with _timed(seconds, "weights"):
        comparison = importlib.import_module(COMPARISON)
        weights = comparison.compare_files(Path(job.model_path), job.model_format, Path(job.onnx_path))
    write_message(stream, WEIGHTS, weights.model_dump_json().encode())
    _close(job, stream, _bare_environment(), seconds=seconds, frames={})


def _bare_environment() -> Environment:
    """Say what this machine is, where there is no row to compare settings with. Starts nothing on its GPU."""
    from validator.backends.fingerprint import bare_fingerprint

    return Environment(settings={}, fingerprint=bare_fingerprint())


def _open_golden(job: RunJob | ProbeJob | SurveyJob | ExportJob) -> GoldenDataset:
    """Open the dataset without hashing it again: the parent did, and the digest binds both to one manifest."""
    golden = open_golden(Path(job.golden_path), verify=False)
    if golden.digest != job.golden_digest:
        raise BackendRefusal(RefusalKind.FORMAT, "load", "the golden dataset has changed since the check began")
    return golden


def _open_session(job: RunJob) -> Session:
    file = ModelFile(
        path=Path(job.model_path),
        format=job.model_format,
        input_names=job.input_names,
        output_names=job.output_names,
    )
    session: Session = importlib.import_module(RUNTIMES[job.backend.runtime]).open_session(job.backend, file)
    return session


def _cut(golden: GoldenDataset, p: Pass, static_batch: int | None) -> Iterator[tuple[int, int]]:
    size = p.batch_size if static_batch is None else min(p.batch_size, static_batch)
    for start, stop in p.ranges:
        yield from golden.batches(start, stop, size)


def run_batch(session: Session, inputs: "dict[str, torch.Tensor]", size: int | None) -> "dict[str, torch.Tensor]":
    """Run one batch, filled up to a size with copies of its own samples, whose outputs are cut off again.

    An output whose first dimension is not the batch cannot be cut and stays whole: the comparison will see it.

    Args:
        session: the model.
        inputs: at most `size` samples.
        size: None: as many as there are.
    """
    samples = len(next(iter(inputs.values())))
    if size is None or samples == size:
        return session.run(inputs)
    outputs = session.run({name: _fill(tensor, size) for name, tensor in inputs.items()})
    return {
        name: tensor[:samples] if tensor.ndim > 0 and len(tensor) == size else tensor
        for name, tensor in outputs.items()
    }


def _fill(tensor: "torch.Tensor", size: int) -> "torch.Tensor":
    import torch

    # In turn and not the last one again: what depends on its batch mates shall have different ones where there are any.
    return tensor[torch.arange(size) % len(tensor)]


def pack_frame(
    pass_name: str, start: int, stop: int, outputs: "Mapping[str, torch.Tensor]", *, filled: int = 0
) -> bytes:
    """Return the frame of some samples' outputs (see `frames`).

    Raises:
        BackendRefusal: an output of a dtype that a frame cannot hold, or too much of it.
    """
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in outputs.items()}
    header = FrameHeader(pass_name=pass_name, start=start, stop=stop, dtypes=dtypes, filled=filled)
    tensors = {name: _storable(name, tensor, dtypes[name]) for name, tensor in outputs.items()}
    frame: bytes = save(tensors, metadata={"frame": header.model_dump_json()})
    if len(frame) > FRAME_LIMIT_BYTES:
        raise BackendRefusal(RefusalKind.MODEL, "run", f"{len(frame)} bytes of outputs for {stop - start} samples")
    return frame


def _storable(name: str, tensor: "torch.Tensor", dtype: str) -> "torch.Tensor":
    """Return a tensor with memory of its own: safetensors refuses those that share it."""
    import torch

    if dtype not in STORED_AS:
        raise BackendRefusal(RefusalKind.MODEL, "run", f"output {name} is {dtype}, which cannot be compared")
    if dtype in PAIRED:
        return torch.view_as_real(tensor.resolve_conj()).clone(memory_format=torch.contiguous_format)
    widened = {"F32": torch.float32, "C64": torch.complex64}.get(STORED_AS[dtype], tensor.dtype)
    return tensor.to(widened).clone(memory_format=torch.contiguous_format)


def _close(
    job: Job,
    stream: BinaryIO,
    environment: Environment,
    *,
    seconds: dict[str, float],
    frames: dict[str, int],
) -> None:
    closing = Closing(
        job_id=job.job_id,
        nonce=job.nonce,
        frames=frames,
        environment=environment,
        seconds=seconds,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    write_message(stream, CLOSING, closing.model_dump_json().encode())


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - start, 6)
