"""What an output means, where equal numbers are not the only right answer: angles, ties, padding, sets of rows.

A declaration says which answers are the *same*. It is no tolerance: everything that it does not name stays compared as
before. Contradictions are errors here; what the model's outputs contradict is found when they are there.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from validator.disk import read_given
from validator.documents import TOML_LIMIT_BYTES, read_toml
from validator.errors import GoldenError


def _check_text(value: str) -> str:
    """Names are printed in terminals and CI logs, where a control character is an instruction."""
    if not value or not value.isprintable():
        raise ValueError(f"{value!r} is empty or not printable")
    return value


Text = Annotated[str, AfterValidator(_check_text)]


class OutputSpec(BaseModel):
    """What one output means."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    period: Annotated[float, Field(gt=0)] | None = None
    """Floating angles: values that differ by a multiple of it are the same."""
    one_lsb: bool = False
    """Integers that differ by one are the same."""
    valid_mask: Text | None = None
    """A bool or integer output, else a golden input, of the same leading shape: where it is false, nothing counts."""
    unordered: Literal["rows"] | None = None
    """Rows in another order are the same."""
    with_: list[Text] = Field(default=[], alias="with")
    """Outputs whose rows move together with this one's."""
    batched: bool = True
    """Whether the first dimension counts samples; rows are the first dimension after it."""
    tie_break: Literal["any"] | None = None
    """Another index is the same where the reference's scores are equal there."""
    scores: Text | None = None
    """The output into whose last dimension the indices point."""
    labelled: bool = False
    """Scores of classes, which the dataset's labels are about."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if faults := list(_find_own_contradictions(self)):
            raise ValueError("; ".join(faults))
        return self

    @model_serializer
    def _write(self) -> dict[str, Any]:
        """Leave out what is not said, so that a later key does not change the digest of a dataset without it."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields}
        return {fields[n].alias or n: v for n, v in values.items() if v != fields[n].default}


def _find_own_contradictions(spec: OutputSpec) -> Iterator[str]:
    kinds = {
        "period": spec.period is not None,
        "one_lsb": spec.one_lsb,
        "tie_break": spec.tie_break is not None,
        "labelled": spec.labelled,
    }
    meant = [name for name, is_set in kinds.items() if is_set]
    if len(meant) > 1:
        yield f"{' and '.join(meant)} contradict each other: an output is an angle, a level, an index or scores"
    if spec.tie_break is not None and spec.scores is None:
        yield 'tie_break needs scores = "...", the output that the indices point into'
    if spec.scores is not None and spec.tie_break is None:
        yield 'scores means nothing without tie_break = "any"'
    if spec.with_ and spec.unordered is None:
        yield 'with means nothing without unordered = "rows"'
    if spec.unordered is not None and spec.tie_break is not None:
        yield "unordered and tie_break contradict each other: an index has its place"
    if twin := next((name for name, count in Counter(spec.with_).items() if count > 1), None):
        yield f"with names {twin!r} twice"
    if spec == _nothing_said():
        yield "it declares nothing"


def _nothing_said() -> OutputSpec:
    return OutputSpec.model_construct()


def find_contradictions(outputs: Mapping[str, OutputSpec]) -> Iterator[str]:
    """Say how declarations contradict each other, one clause each."""
    leaders: dict[str, str] = {name: name for name, spec in outputs.items() if spec.unordered is not None}
    masks = {spec.valid_mask for spec in outputs.values()}
    for name, spec in outputs.items():
        for key, target in (("valid_mask", spec.valid_mask), ("scores", spec.scores)):
            if target == name:
                yield f"output {name!r}: {key} names the output itself"
        if name in masks and spec != OutputSpec.model_construct(batched=spec.batched):
            yield f"output {name!r} is a mask, which is compared exactly: it can have no other meaning"
        for other in spec.with_:
            if other == name:
                yield f"output {name!r}: with names the output itself"
            elif other in leaders:
                yield f"output {other!r} moves with {name!r} and with {leaders[other]!r}: it can be in one group"
            leaders.setdefault(other, name)
    labelled = [name for name, spec in outputs.items() if spec.labelled]
    if len(labelled) > 1:
        yield f"outputs {' and '.join(map(repr, labelled))} are both labelled: a sample has one label"
    for name, leader in leaders.items():
        yield from _find_group_contradictions(outputs, name, leader)
    for name, spec in outputs.items():
        if spec.scores in leaders or (spec.tie_break is not None and name in leaders):
            yield f"output {name!r}: its indices and {spec.scores!r} cannot be unordered, for an index has its place"


def _find_group_contradictions(outputs: Mapping[str, OutputSpec], name: str, leader: str) -> Iterator[str]:
    """Compare a member of a group with the output that declares the group."""
    first, own = outputs[leader], outputs.get(name)
    if first.valid_mask == name:
        yield f"output {name!r} is the mask of {leader!r}: a mask cannot move with what it masks"
    if own is None or name == leader:
        return
    if own.batched != first.batched:
        yield f"outputs {leader!r} and {name!r} move together, but only one of them is batched"
    if own.valid_mask not in {None, first.valid_mask}:
        yield f"outputs {leader!r} and {name!r} move together, but have different masks"


def unbatched(outputs: Mapping[str, OutputSpec]) -> frozenset[str]:
    """Return the outputs that are declared to have no batch dimension."""
    return frozenset(n for name, spec in outputs.items() if not spec.batched for n in (name, *spec.with_))


def unordered(outputs: Mapping[str, OutputSpec]) -> frozenset[str]:
    """Return the outputs whose rows may be in another order, those that move with others included."""
    return frozenset(n for name, spec in outputs.items() if spec.unordered is not None for n in (name, *spec.with_))


def names_meant(spec: OutputSpec) -> tuple[str, ...]:
    """Return the names of other outputs, or inputs, that a declaration speaks of."""
    return tuple(name for name in (spec.valid_mask, spec.scores, *spec.with_) if name is not None)


_OUTPUTS = TypeAdapter(dict[Text, OutputSpec])


def read_outputs(path: Path) -> dict[str, OutputSpec]:
    """Read a TOML file in which each table is named like an output and says what it means.

    Raises:
        GoldenError: no such file, no TOML, no table in it, an unknown key, or a contradiction.
    """
    try:
        outputs = _OUTPUTS.validate_python(read_toml(read_given(path, limit_bytes=TOML_LIMIT_BYTES).decode("utf-8")))
    except OSError as error:
        raise GoldenError(f"the declaration of outputs {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        faults = "; ".join(format_fault(fault["loc"], fault["msg"]) for fault in error.errors(include_url=False))
        raise GoldenError(
            f"the declaration of outputs {path} cannot be used: {faults}",
            hint='write one table per output, a name with a dot in quotes: ["output.0"]',
        ) from error
    except ValueError as error:
        raise GoldenError(f"the declaration of outputs {path} is no TOML: {error}") from error
    if not outputs:
        raise GoldenError(f"the declaration of outputs {path} declares no output", hint="leave out --outputs")
    if faults := "; ".join(find_contradictions(outputs)):
        raise GoldenError(f"the declaration of outputs {path} cannot be used: {faults}")
    return outputs


def format_fault(place: Sequence[int | str], message: str) -> str:
    """Say on one line where and what one fault of a document is, without quoting the value itself."""
    text = message.removeprefix("Value error, ")
    if not place:
        return text
    return f"{'.'.join(str(step) for step in place)}: {text[:1].lower()}{text[1:]}"
