"""Jobs in, frames out.

A job is one JSON document on the worker's standard input, which may come late; no document at all means that there
is no job. Results come back over an inherited pipe as messages
of `kind (1 byte) | length (8 bytes, big endian) | payload`:

    F  a frame: a safetensors blob of named outputs for samples start..stop of one pass; its FrameHeader is the
       metadata entry "frame"
    P  the probe's facts about a model file (JSON, ModelFacts)
    S  what a survey of a model's insides found (JSON, SurveyFacts)
    E  what became of an ONNX export (JSON, ExportFacts)
    W  the ONNX file's initialisers against the program's tensors (JSON, WeightsFacts)
    X  why the job cannot be done (JSON, Refusal); the last message
    C  the closing record (JSON, Closing); the last message

Samples of a pass may be cut into frames anywhere and come in any order. `frames` says how tensors are packed.
"""

import struct
from enum import StrEnum
from typing import Annotated, BinaryIO, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from validator.backends.catalog import Backend
from validator.backends.interface import Document, Environment, RefusalKind

FRAME, FACTS, SURVEYED, EXPORTED, WEIGHTS, REFUSAL, CLOSING = b"F", b"P", b"S", b"E", b"W", b"X", b"C"
OUT_OF_MEMORY = 71
"""Exit status of a worker whose memory ended where nothing could be said any more; EX_OSERR of sysexits.h."""
HEADER = struct.Struct(">cQ")
FRAME_LIMIT_BYTES = 1 << 33
RECORD_LIMIT_BYTES = 1 << 24


class PassKind(StrEnum):
    """Why the samples are run."""

    MAIN = "main"
    """Every sample once, at the deployed batch size."""
    REPEAT = "repeat"
    """Some samples again, same shapes, same process."""
    FRESH = "fresh"
    """The repeated samples once more, same shapes, in a process that ran nothing before."""
    BATCH = "batch"
    """Some samples again, at another batch size; where the dataset cannot fill one, copies do."""
    PERTURBED = "perturbed"
    """Every sample once, with inputs and parameters moved by one unit in the last place."""


class Pass(Document):
    """One run over some of the samples."""

    kind: PassKind = Field(strict=False)
    batch_size: Annotated[int, Field(ge=1)]
    ranges: tuple[tuple[int, int], ...] = Field(strict=False)
    """Sample indices start..stop, disjoint, in order."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Of the perturbation; None where nothing is moved."""

    @model_validator(mode="after")
    def _have_a_seed_where_one_is_used(self) -> Self:
        if (self.seed is not None) != (self.kind is PassKind.PERTURBED):
            raise ValueError("a perturbed pass has a seed, and no other has")
        return self

    @property
    def name(self) -> str:
        """Unique within a job: the kind, and what the pass varies."""
        match self.kind:
            case PassKind.BATCH:
                return f"batch-{self.batch_size}"
            case PassKind.PERTURBED:
                return f"perturbed-{self.seed}"
            case PassKind.MAIN | PassKind.REPEAT | PassKind.FRESH:
                return self.kind.value

    @property
    def samples(self) -> int:
        """How many samples the pass covers."""
        return sum(stop - start for start, stop in self.ranges)


class _ModelJob(Document):
    """What every job needs: a model file to work on."""

    job_id: str
    nonce: str
    model_path: str
    model_format: str
    """`torch.export`, `pickle`, `torchscript` or `onnx`."""
    threads: Annotated[int, Field(ge=1)]


class _GoldenJob(_ModelJob):
    """What every job needs that reads samples."""

    golden_path: str
    golden_digest: str


class RunJob(_GoldenJob):
    """Run a model on one backend."""

    task: Literal["run"] = "run"
    backend: Backend
    passes: tuple[Pass, ...] = Field(strict=False)
    static_batch: Annotated[int, Field(ge=1)] | None = None
    """The only batch size that the program accepts: smaller batches are filled with copies of their own samples."""
    input_names: tuple[str, ...] = Field(strict=False)
    """The model's inputs in the golden dataset's order of inputs."""
    output_names: tuple[str, ...] | None = Field(default=None, strict=False)
    """The program's outputs in its order; an ONNX file with other names is bound to them by position."""

    @property
    def is_repetition(self) -> bool:
        """Whether it only repeats, in a fresh process, what another job of the same row runs."""
        return any(p.kind is PassKind.FRESH for p in self.passes)

    @property
    def is_perturbed(self) -> bool:
        """Whether it measures how far rounding moves the backend, and not what the backend answers."""
        return any(p.kind is PassKind.PERTURBED for p in self.passes)


class ProbeJob(_GoldenJob):
    """Look at a model file before anything runs."""

    task: Literal["probe"] = "probe"


class SurveyJob(_GoldenJob):
    """Look at what happens inside a model on the samples of a dataset, to choose among them."""

    task: Literal["survey"] = "survey"
    samples: Annotated[int, Field(ge=1)]
    """How many the dataset has."""
    peaks_per_layer: Annotated[int, Field(ge=1)]
    margins_per_output: Annotated[int, Field(ge=1)]


class ExportJob(_GoldenJob):
    """Export a model file to ONNX, and compare the initialisers of what came out with the program's tensors."""

    task: Literal["export"] = "export"
    export_path: str
    """The ONNX file to write, relative to the worker's own folder; what it lies in holds nothing else."""
    static_batch: Annotated[int, Field(ge=1)] | None = None
    """The only batch size that the program accepts."""


class WeightsJob(_ModelJob):
    """Compare the initialisers of an ONNX file that is there already with the program's tensors."""

    task: Literal["weights"] = "weights"
    onnx_path: str


Job = RunJob | ProbeJob | SurveyJob | ExportJob | WeightsJob


class Refusal(Document):
    """Why a job cannot be done."""

    job_id: str
    nonce: str
    kind: RefusalKind = Field(strict=False)
    stage: str
    """`vet`, `load`, `run`, `export`, `device`."""
    message: str
    fingerprint: dict[str, str] = Field(default_factory=dict)


class Closing(Document):
    """The last word of a job that was done."""

    job_id: str
    nonce: str
    frames: dict[str, int]
    """Pass name -> frames sent."""
    environment: Environment
    seconds: dict[str, float]
    """Stage or pass -> wall time."""
    peak_memory_bytes: int


class FrameHeader(Document):
    """Which samples of which pass a frame holds."""

    pass_name: str
    start: int
    stop: int
    dtypes: dict[str, str]
    """Output name -> its dtype as the backend returned it."""
    filled: Annotated[int, Field(ge=0)] = 0
    """Copies of samples that ran in the same batch, to fill it, and whose outputs were left out."""


class ProtocolError(Exception):
    """A worker broke the protocol: a truncated, oversized, unknown, misplaced or malformed message."""


_JOBS: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="task")])


def parse_job(document: bytes) -> Job:
    """Read a job. The worker trusts it, because only the gate can write to its standard input.

    Raises:
        pydantic.ValidationError: it is no job.
    """
    return _JOBS.validate_json(document)


def write_message(stream: BinaryIO, kind: bytes, payload: bytes) -> None:
    """Write one message and flush it."""
    stream.write(HEADER.pack(kind, len(payload)))
    stream.write(payload)
    stream.flush()


def parse_header(header: bytes) -> tuple[bytes, int]:
    """Read the kind and the length in bytes of the message that follows.

    Raises:
        ProtocolError: no such kind, or more than is allowed.
    """
    kind, length = HEADER.unpack(header)
    if kind not in (FRAME, FACTS, SURVEYED, EXPORTED, WEIGHTS, REFUSAL, CLOSING):
        raise ProtocolError(f"unknown kind of message {kind!r}")
    if length > (FRAME_LIMIT_BYTES if kind == FRAME else RECORD_LIMIT_BYTES):
        raise ProtocolError(f"a message of {length} bytes is over the limit")
    return kind, length
