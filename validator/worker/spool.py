"""A worker's frames on disk: written as they arrive, read frame by frame, never unpickled.

The spool keeps the parent's memory independent of the number of samples: only one frame is held at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from validator.worker.frames import PAIRED
from validator.worker.protocol import FrameHeader

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledFrame:
    """Where a frame lies in the spool file, in bytes."""

    header: FrameHeader
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """All frames of one completed run job."""

    path: Path
    frames: tuple[SpooledFrame, ...]

    def passes(self) -> tuple[str, ...]:
        """Names of the passes, in order of arrival."""
        return tuple(dict.fromkeys(f.header.pass_name for f in self.frames))

    def read_pass(self, name: str) -> Iterator[tuple[FrameHeader, Outputs]]:
        """Yield the frames of one pass in order of arrival, each as named arrays (see `frames` for dtypes)."""
        with self.path.open("rb") as stream:
            for frame in self.frames:
                if frame.header.pass_name == name:
                    stream.seek(frame.offset)
                    yield frame.header, _unpack(stream.read(frame.length), frame.header)


def _unpack(payload: bytes, header: FrameHeader) -> Outputs:
    outputs: Outputs = load(payload)
    for name, dtype in header.dtypes.items():
        if dtype in PAIRED:
            outputs[name] = np.ascontiguousarray(outputs[name]).view(np.complex128)[..., 0]
    return outputs
