"""What a case is, and how it is put before the gate: a program, perhaps an ONNX file, golden samples and a policy."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import onnx
import torch
from torch import nn

from benchmarks.harness import Checked, check_files
from validator.backends.torch_program import quiet_libraries
from validator.golden.dataset import GoldenDataset
from validator.golden.output_spec import OutputSpec
from validator.golden.writer import Sample, write_golden
from validator.judge import Check, Status, Verdict
from validator.policy import Policy
from validator.subject import ProgramFormat

Batch = tuple[torch.Tensor, ...]
"""One tensor per input, samples along the first axis."""
OnnxMaker = Callable[[nn.Module, Batch], onnx.ModelProto]


class Want(StrEnum):
    """What a good gate says."""

    BLOCK = "block"
    """Must not pass, for the reason that the case names."""
    PASS = "pass"
    """Must pass."""
    WARN = "warn"
    """Passes with a warning that names the matter, or is blocked with that very reason."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that looks right and is not, or looks wrong and is right."""

    id: str
    kind: str
    about: str
    """What happens, for people."""
    want: Want
    model: Callable[[], nn.Module]
    golden: Callable[[], Sequence[Batch]]
    """The samples; each batch of another shape is a group of its own. The first is what exporters get to see."""
    by: Check | None = None
    """Block: the check that must not be within."""
    warning: str | None = None
    """Warn: code of the caution that names the matter."""
    onnx: OnnxMaker | None = None
    """None: the file that the gate exports."""
    planted: bool = False
    """The file was altered on purpose: with the one that the gate exports, the same case passes."""
    exported: bool = True
    """False: torch.export refuses the model, so that it is registered as a pickle."""
    static: bool = False
    """The first axis is no batch: every sample is run alone."""
    free_axes: Mapping[int, str] = field(default_factory=dict)
    """Axes of the inputs that vary, besides the batch."""
    batch: int = 4
    """Deployed batch size."""
    others: tuple[int, ...] | None = None
    """Batch sizes held against it; None: the policy's default."""
    meaning: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Output -> what is declared about it in the golden dataset."""
    required: tuple[str, ...] = ("eager-cpu", "onnxruntime-cpu")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the gate said, in few words."""

    verdict: Verdict
    open: frozenset[Check]
    """Checks that are not within."""
    warnings: frozenset[str]
    text: str
    """Every finding that is not within, and every warning."""

    @classmethod
    def of(cls, checked: Checked) -> "Answer":
        """Sum up a decision."""
        decision = checked.decision
        bad = [f for f in decision.findings if f.status is not Status.WITHIN]
        said = [f"{f.check} {f.backend} {f.output} {f.metric}: {f.message} ({f.measured} of {f.limit})" for f in bad]
        return cls(
            verdict=decision.verdict,
            open=frozenset(f.check for f in bad),
            warnings=frozenset(c.code for c in decision.warnings),
            text="\n".join(
                [str(decision.verdict), *said, *(f"warning {c.code}: {c.message}" for c in decision.warnings)]
            ),
        )

    def satisfies(self, case: Case) -> bool:
        """Whether this is what a good gate says, and for the right reason."""
        passed = self.verdict is Verdict.PASS
        match case.want:
            case Want.PASS:
                return passed
            case Want.BLOCK:
                return not passed and (case.by is None or case.by in self.open)
            case Want.WARN:
                return case.warning in self.warnings if passed else case.by in self.open


def ask(case: Case, folder: Path) -> Answer:
    """Put a case before the gate.

    Args:
        case: one of the table.
        folder: existing and empty.
    """
    torch.manual_seed(0)
    model = case.model().eval()
    groups = case.golden()
    golden = write_samples(folder / "golden", groups, case)
    example = tuple(tensor[: 1 if case.static else 2].clone() for tensor in groups[0])
    made = None
    if case.onnx is not None:
        made = folder / "onnx" / "model.onnx"
        made.parent.mkdir()
        with quiet():
            onnx.save(case.onnx(model, example), made)
    program = save_program(case, model, example, folder / "model")
    (folder / "scratch").mkdir()
    checked = check_files(
        policy_of(case),
        program,
        golden,
        folder / "scratch",
        onnx=made,
        model_format=ProgramFormat.EXPORTED if case.exported else ProgramFormat.PICKLE,
    )
    return Answer.of(checked)


def policy_of(case: Case) -> Policy:
    """The `cpu` policy for this case's batch."""
    given: dict[str, object] = {"required": case.required, "batch_size": case.batch}
    if case.static:
        given["checks"] = {"batch_invariance": "if-dynamic"}
    if case.others is not None:
        given["checks"] = {"batch_sizes": case.others}
    if not case.exported:
        given["formats"] = {"pickle": True}
    return Policy.model_validate(given)


def write_samples(folder: Path, groups: Sequence[Batch], case: Case) -> GoldenDataset:
    """Write the golden dataset."""
    names = input_names(len(groups[0]))
    samples = [
        Sample(inputs=dict(zip(names, tensors, strict=True)))
        for group in groups
        for tensors in zip(*group, strict=True)
    ]
    outputs = {name: OutputSpec.model_validate(spec) for name, spec in case.meaning.items()}
    return write_golden(folder, samples, name=case.id, source="tests", outputs=outputs or None)


def input_names(count: int) -> tuple[str, ...]:
    return tuple(f"x{i}" for i in range(count))


def save_program(case: Case, model: nn.Module, example: Batch, folder: Path) -> Path:
    """Register a model as MLflow would: as a torch.export program, or as a pickle where that is impossible."""
    folder.mkdir()
    if not case.exported:
        path = folder / "model.pth"
        torch.save(model, path)
        return path
    path = folder / "model.pt2"
    with quiet():
        torch.export.save(torch.export.export(model, example, dynamic_shapes=shapes_of(case, model, example)), path)
    return path


def shapes_of(case: Case, model: nn.Module, example: Batch) -> object:
    """Say which axes vary: the batch, unless every sample is run alone."""
    return None if case.static else free_shapes(model, example, case.free_axes)


def free_shapes(model: nn.Module, example: Batch, more: Mapping[int, str] = MappingProxyType({})) -> object:
    """Leave the batch open, and more axes by their names, in the shape that torch.export wants."""
    axes = {axis: torch.export.Dim(name, min=1, max=1024) for axis, name in {0: "batch", **more}.items()}
    each = tuple(axes for _ in example)
    parameters = inspect.signature(model.forward).parameters.values()
    return (each,) if [p.kind for p in parameters] == [inspect.Parameter.VAR_POSITIONAL] else each


class quiet:  # noqa: N801 - a context manager
    """Exporters warn, differently in every version; here warnings are errors."""

    def __enter__(self) -> None:
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")
        self._libraries = quiet_libraries()
        self._libraries.__enter__()

    def __exit__(self, *failure: object) -> None:
        self._libraries.__exit__(*failure)
        self._warnings.__exit__(*failure)
