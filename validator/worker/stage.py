"""The folders that workers read from: there, and known, before anything lies in them.

A sandbox is put around a worker when it starts, and a worker starts before its job is known. What it may see is
therefore a folder that the gate fills later, and each kind of worker sees its own: who runs an ONNX file never sees the
program.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from validator.worker.warm import Kit

SUBJECT, ONNX, GOLDEN = "subject", "onnx", "golden"
"""Names of the folders in the scratch folder of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Existing folders; workers cannot write to them."""

    subject: Path
    """The registered model, as a whole."""
    onnx: Path
    """The ONNX file and its external data, and nothing else."""
    golden: Path
    """The golden dataset."""

    @classmethod
    def make(cls, scratch: Path, *, golden: Path | None = None) -> Self:
        """Make the folders in a scratch folder.

        Args:
            scratch: existing folder.
            golden: the dataset where it lies already; None, or no such folder: it will be fetched.

        Raises:
            OSError: they cannot be made.
        """
        is_there = golden is not None and golden.is_dir()
        stage = cls(
            subject=scratch / SUBJECT,
            onnx=scratch / ONNX,
            golden=golden.absolute() if golden is not None and is_there else scratch / GOLDEN,
        )
        for folder in (stage.subject, stage.onnx, stage.golden):
            folder.mkdir(mode=0o700, exist_ok=True)
        return stage

    def shown_to(self, kit: Kit) -> tuple[Path, ...]:
        """Return what a worker of a kit may read."""
        match kit:
            case Kit.TORCH | Kit.PROBE:
                return (self.subject, self.golden)
            case Kit.EXPORT:
                return (self.subject, self.onnx, self.golden)
            case Kit.ONNXRUNTIME:
                return (self.onnx, self.golden)
