"""What a runtime takes and gives: the contract between the worker and whatever runs a model.

`Session` is a Protocol and not a base class: the runtimes share no code and no state, and a new one needs to satisfy
two methods, not to inherit from anything. Widen it only when every runtime can answer.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from validator.backends.catalog import Setting
from validator.golden.strata import LayerPeaks, OutputMargins, Sizes

if TYPE_CHECKING:
    from pathlib import Path

    import torch


class Document(BaseModel):
    """A message that crosses the worker boundary: closed, immutable, finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TensorFacts(Document):
    """A declared input of a program."""

    name: str
    dtype: str
    """`float32`, `int64`, ... without the library's prefix."""
    shape: tuple[int | None, ...] | None = Field(strict=False)
    """Batch dimension first; None where a dimension may vary, None altogether where it is not known."""


class ExportFacts(Document):
    """What became of the ONNX export."""

    path: str | None
    """None: the exporter refused."""
    message: str
    """The exporter's words, cleaned; or opset and node count."""


NAMES_LIMIT = 20
"""How many names of tensors a record lists; the count beside it says how many there are."""

Name = Annotated[str, Field(max_length=200)]
"""Of a tensor, cleaned and perhaps cut: whoever made the file chose it."""


class DifferenceKind(StrEnum):
    """What a tensor that is not the model's looks like."""

    FLOAT16 = "rounded through float16"
    BFLOAT16 = "rounded through bfloat16"
    SIGN = "of the opposite sign"
    TRANSPOSED = "transposed"
    EXCHANGED = "another tensor's values"
    OTHER = "other values"


class TensorDifference(Document):
    """An initialiser that stands in the place of a tensor of the model and is not that tensor."""

    name: Name
    stands_for: Name
    """What it should be: a name in the state dict, and what is folded into it."""
    elements: Annotated[int, Field(ge=1)]
    unequal: Annotated[int, Field(ge=1)]
    largest_absolute: float | None
    """None where it is not finite."""
    largest_relative: float | None
    """Of single elements whose value in the model is not zero; None where it is not finite."""
    kind: DifferenceKind = Field(strict=False)


class WeightsFacts(Document):
    """The initialisers of an ONNX file against the tensors of the program.

    Initialisers that are accounted for are those that are equal, rearranged, folded or converted. Not counted at all
    are single numbers, tensors of one repeated number, and integers that bear no name of the program's.
    """

    equal: Annotated[int, Field(ge=0)]
    """Bit for bit a tensor of the program, perhaps of another shape."""
    rearranged: Annotated[int, Field(ge=0)]
    """Bit for bit, in another order: transposed, gates reordered, joined, sliced, gathered."""
    folded: Annotated[int, Field(ge=0)]
    """Computed from the program's tensors and equal but for rounding, such as a batch norm in a convolution."""
    converted: Annotated[int, Field(ge=0)]
    """The program's values in another element type."""
    differing: Annotated[int, Field(ge=0)]
    differences: tuple[TensorDifference, ...] = Field(strict=False, max_length=NAMES_LIMIT)
    unexplained: Annotated[int, Field(ge=0)]
    """Initialisers that stand for nothing that is known."""
    unexplained_names: tuple[Name, ...] = Field(strict=False, max_length=NAMES_LIMIT)
    tensors: Annotated[int, Field(ge=0)]
    """Floating tensors of more than one element that the program uses, shared ones once."""
    missing: Annotated[int, Field(ge=0)]
    """Those of them that no initialiser stands for."""
    missing_names: tuple[Name, ...] = Field(strict=False, max_length=NAMES_LIMIT)

    @property
    def accounted(self) -> int:
        """How many initialisers are the program's."""
        return self.equal + self.rearranged + self.folded + self.converted


class ModelFacts(Document):
    """What can be read off a model file without judging it."""

    inputs: tuple[TensorFacts, ...] = Field(strict=False)
    outputs: tuple[str, ...] | None = Field(default=None, strict=False)
    """Flattened output names, in the program's order; None where only running tells."""
    static_batch: int | None
    """The only batch size that the program accepts; None if it varies."""
    training: tuple[str, ...] = Field(strict=False)
    """Operators or modules that are in training mode."""
    parameter_dtypes: dict[str, int]
    """dtype -> number of elements, over parameters and buffers."""
    working_dtype: str | None = None
    """The dtype of most weights; None where there is no floating tensor. Decides how finely the model can round."""
    mutated_buffers: tuple[str, ...] = Field(default=(), strict=False)
    """Buffers that forward writes to."""


class SurveyFacts(Document):
    """What a model did on the samples of a dataset."""

    model: ModelFacts
    sizes: dict[str, Sizes]
    """Golden input name -> its dimensions as an exported program declares them, batch first; empty for others."""
    layers: tuple[LayerPeaks, ...] = Field(strict=False)
    margins: tuple[OutputMargins, ...] = Field(strict=False)
    """One per output of shape (samples, classes)."""
    refused: tuple[tuple[int, str], ...] = Field(strict=False)
    """The samples that the model did not run on, and why."""

    @property
    def samples(self) -> frozenset[int]:
        """Every sample that is named."""
        return frozenset(
            [
                *(sample for layer in self.layers for sample, _ in layer.peaks),
                *(sample for output in self.margins for sample, _ in output.margins),
                *(sample for sample, _ in self.refused),
            ]
        )


class Environment(Document):
    """What a worker really ran with, read back from the libraries after the run."""

    settings: dict[str, Setting]
    """Compared with `catalog.expected_settings`: any difference is another backend."""
    fingerprint: dict[str, str]
    """Libraries, driver, GPU, CPU instruction set: compared with those a budget was calibrated on."""
    notes: dict[str, str] = {}
    """Recorded only: node placement, thread count, what the fp64 rewrite changed."""


class RefusalKind(StrEnum):
    """Whose fault it is that a job cannot be done."""

    UNAVAILABLE = "unavailable"
    """The machine's: no such device, provider or library. Says nothing about the model."""
    MODEL = "model"
    """The model's: it cannot be loaded or run on this backend."""
    FORMAT = "format"
    """The file's: not safe to open, or not what it claims to be."""


class BackendRefusal(Exception):
    """Raised inside a worker when the job cannot be done; becomes a `Refusal` message."""

    def __init__(self, kind: RefusalKind, stage: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.stage = stage
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model on disk and how its tensors are bound to the golden dataset's."""

    path: "Path"
    format: str
    """`torch.export`, `pickle`, `torchscript` or `onnx`."""
    input_names: tuple[str, ...]
    """The golden dataset's inputs, in the dataset's order."""
    output_names: tuple[str, ...] | None = None
    """The program's outputs in its order; an ONNX file whose names differ is bound to them by position."""


class Session(Protocol):
    """A model loaded on one backend."""

    def run(self, inputs: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """Run one batch.

        Args:
            inputs: golden input name -> CPU tensor, shape (batch, *sample), in the golden dataset's dtype.

        Returns:
            Flattened output name -> contiguous CPU tensor in the dtype that the backend returned. None outputs are
            left out.

        Raises:
            BackendRefusal: the model cannot be run on this backend.
        """
        ...

    def environment(self) -> Environment:
        """Read every setting back from the libraries, now."""
        ...


@runtime_checkable
class Perturbable(Session, Protocol):
    """A session whose numbers can be moved: a baseline's."""

    def perturb(self, seed: int) -> None:
        """Move parameters, buffers and the floating inputs of every run that follows by one unit in the last place.

        Always from where the file has them: a second call does not add to the first. The same seed and the same runs
        give the same numbers.
        """
        ...
