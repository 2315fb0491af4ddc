"""The parent's end of the pipe: bytes in whatever pieces they come, checked before anything is believed.

A frame's tensors go to the spool as they arrive, so memory does not grow with a frame.
"""

from collections.abc import Generator
from typing import BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from validator.backends.interface import ExportFacts, ModelFacts, SurveyFacts, WeightsFacts
from validator.worker.coverage import Coverage
from validator.worker.frames import LENGTH, check_frame, prefix_bytes
from validator.worker.protocol import (
    CLOSING,
    EXPORTED,
    FACTS,
    FRAME,
    HEADER,
    SURVEYED,
    WEIGHTS,
    Closing,
    ExportJob,
    Job,
    ProbeJob,
    ProtocolError,
    Refusal,
    RunJob,
    SurveyJob,
    WeightsJob,
    parse_header,
)
from validator.worker.spool import SpooledFrame

Record = TypeVar("Record", bound=BaseModel)


class Intake:
    """What one worker has said so far."""

    def __init__(self, job: Job, spool: BinaryIO, *, spool_limit_bytes: int) -> None:
        self.frames: list[SpooledFrame] = []
        self.facts: ModelFacts | None = None
        self.survey: SurveyFacts | None = None
        self.export: ExportFacts | None = None
        self.weights: WeightsFacts | None = None
        self.last: Closing | Refusal | None = None
        self._is_within_message = False
        self._job = job
        self._coverage = Coverage(job.passes if isinstance(job, RunJob) else ())
        self._spool = spool
        self._spool_bytes = 0
        self._spool_limit_bytes = spool_limit_bytes
        self._data = memoryview(b"")
        self._parser = self._parse()

    @property
    def samples(self) -> int:
        """How many samples' frames have begun to arrive."""
        return self._coverage.samples

    def feed(self, data: bytes) -> None:
        """Take the next bytes, of any length. After an error nothing more may be fed.

        Raises:
            ProtocolError: the worker broke the protocol.
            OSError: the spool cannot be written.
        """
        self._data = memoryview(data)
        next(self._parser)

    def check_end(self) -> None:
        """Require that the stream did not end inside a message.

        Raises:
            ProtocolError: it did.
        """
        if self._is_within_message:
            raise ProtocolError("the last message is cut short")

    # The parser is a generator that stops wherever the bytes do, so that it can be written as if they never did.

    def _parse(self) -> Generator[None]:
        while self.last is None:
            header = yield from self._exactly(HEADER.size)
            kind, length = parse_header(header)
            if kind == FRAME:
                yield from self._take_frame(length)
            else:
                self._take_record(kind, (yield from self._exactly(length)))
            self._is_within_message = False
        while not self._data:
            yield
        raise ProtocolError("something follows the last message")

    def _exactly(self, length: int) -> Generator[None, None, bytes]:
        taken = bytearray()
        while len(taken) < length:
            if not self._data:
                yield
                continue
            taken += self._next_piece(length - len(taken))
        return bytes(taken)

    def _next_piece(self, length: int) -> memoryview:
        self._is_within_message = True
        piece, self._data = self._data[:length], self._data[length:]
        return piece

    def _take_frame(self, length: int) -> Generator[None]:
        if not isinstance(self._job, RunJob):
            raise ProtocolError("a frame from a job that runs nothing")
        offset = self._spool_bytes
        if offset + length > self._spool_limit_bytes:
            raise ProtocolError(f"more than {self._spool_limit_bytes} bytes of outputs")
        prefix = yield from self._exactly(min(LENGTH.size, length))
        prefix += yield from self._exactly(prefix_bytes(prefix, length) - LENGTH.size)
        header = check_frame(prefix, length)
        self._coverage.add(header.pass_name, header.start, header.stop)
        self._spool.write(prefix)
        left = length - len(prefix)
        while left:
            if not self._data:
                yield
                continue
            left -= self._spool.write(self._next_piece(left))
        self._spool_bytes += length
        self.frames.append(SpooledFrame(header=header, offset=offset, length=length))

    def _take_record(self, kind: bytes, payload: bytes) -> None:
        if kind == FACTS:
            self._take_facts(_read(ModelFacts, payload))
        elif kind == SURVEYED:
            self._take_survey(_read(SurveyFacts, payload))
        elif kind == EXPORTED:
            self._take_export(_read(ExportFacts, payload))
        elif kind == WEIGHTS:
            self._take_weights(_read(WeightsFacts, payload))
        elif kind == CLOSING:
            self._take_closing(_read(Closing, payload))
        else:
            refusal = _read(Refusal, payload)
            self._check_sender(refusal)
            self.last = refusal

    def _take_facts(self, facts: ModelFacts) -> None:
        if not isinstance(self._job, ProbeJob) or self.facts is not None:
            raise ProtocolError("facts about the model that nobody asked for, or for the second time")
        self.facts = facts

    def _take_survey(self, survey: SurveyFacts) -> None:
        if not isinstance(self._job, SurveyJob) or self.survey is not None:
            raise ProtocolError("a survey that nobody asked for, or for the second time")
        if not survey.samples <= frozenset(range(self._job.samples)):
            raise ProtocolError(f"a survey that names samples beyond the {self._job.samples} of the dataset")
        self.survey = survey

    def _take_export(self, export: ExportFacts) -> None:
        if not isinstance(self._job, ExportJob) or self.export is not None:
            raise ProtocolError("an export that nobody asked for, or for the second time")
        if export.path not in (None, self._job.export_path):
            raise ProtocolError("an export at another place than was asked for")
        self.export = export

    def _take_weights(self, weights: WeightsFacts) -> None:
        if not self._owes_weights or self.weights is not None:
            raise ProtocolError("facts about an ONNX file that nobody asked for, or for the second time")
        self.weights = weights

    @property
    def _owes_weights(self) -> bool:
        """Whether there is an ONNX file to say something about: a given one, or one that was exported."""
        exported = self.export is not None and self.export.path is not None
        return isinstance(self._job, WeightsJob) or exported

    def _take_closing(self, closing: Closing) -> None:
        self._check_sender(closing)
        self._coverage.check_complete()
        if closing.frames != self._coverage.frames:
            raise ProtocolError(f"the closing record counts {closing.frames}, {self._coverage.frames} arrived")
        if isinstance(self._job, ProbeJob) and self.facts is None:
            raise ProtocolError("a probe that closes without any facts")
        if isinstance(self._job, SurveyJob) and self.survey is None:
            raise ProtocolError("a survey that closes without saying what it found")
        if isinstance(self._job, ExportJob) and self.export is None:
            raise ProtocolError("an export that closes without saying what became of it")
        if self._owes_weights and self.weights is None:
            raise ProtocolError("an ONNX file whose weights are not accounted for")
        self.last = closing

    def _check_sender(self, record: Closing | Refusal) -> None:
        if (record.job_id, record.nonce) != (self._job.job_id, self._job.nonce):
            raise ProtocolError("a record of another job, or with a wrong nonce")


def _read(record: type[Record], payload: bytes) -> Record:
    try:
        return record.model_validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ProtocolError(f"a malformed {record.__name__} record: {first['loc']}: {first['msg']}") from error
