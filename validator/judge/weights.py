"""Judging the initialisers of the ONNX file: are they the program's tensors?"""

from collections.abc import Iterator
from dataclasses import replace

from validator.backends.interface import TensorDifference, WeightsFacts
from validator.judge.findings import Caution, Check, Evidence, Finding, Status, not_measured
from validator.judge.outcomes import judge_outcome
from validator.worker.outcome import Completed

NAMED = 3
"""How many initialisers a finding describes."""
HINT = (
    "export the ONNX file again from the registered program, check that file, and register a version with it: "
    "docs/troubleshooting.md has the lines"
)


def judge_weights(evidence: Evidence) -> Finding:
    """Require that no initialiser is another than the tensor that it stands for.

    Initialisers that stand for nothing do not block: an exporter may compute ahead what it likes, and the outputs are
    measured. `warn_of_weights` says how many there are.
    """
    match evidence.weights:
        case Completed(weights=WeightsFacts() as facts):
            return _judge_facts(facts)
        case None | Completed():
            message = "the ONNX file's initialisers were not compared with the model's tensors"
            return not_measured(Check.WEIGHTS, None, message)
        case outcome:
            found = judge_outcome(outcome, backend=None, what="the comparison of the ONNX file's initialisers")
            return replace(found, check=Check.WEIGHTS)


def _judge_facts(facts: WeightsFacts) -> Finding:
    more = facts.differing - NAMED
    told = [_describe(difference) for difference in facts.differences[:NAMED]]
    is_within = facts.differing == 0
    return Finding(
        check=Check.WEIGHTS,
        status=Status.WITHIN if is_within else Status.EXCEEDED,
        message=_account_for(facts) if is_within else "; ".join([*told, *([f"and {more:,} more"] if more > 0 else [])]),
        metric="initialisers that differ",
        measured=facts.differing,
        limit=0.0,
        hint=None if is_within else HINT,
    )


def _account_for(facts: WeightsFacts) -> str:
    """Say how many initialisers are the program's, and how."""
    total = facts.accounted + facts.unexplained
    if total == 0:
        return "the ONNX file holds no initialiser that could differ from the model"
    how = ", ".join(
        f"{getattr(facts, word):,} {word}"
        for word in ("equal", "rearranged", "folded", "converted")
        if getattr(facts, word)
    )
    found = f"{facts.accounted:,} of {total:,} initialisers are the model's"
    return f"{found}: {how}" if how else f"{found}, and none differs"


def _describe(difference: TensorDifference) -> str:
    """Say which initialiser differs, where and by how much."""
    sizes = [
        *([f"{difference.largest_absolute:.3g}"] if difference.largest_absolute is not None else []),
        *([f"{difference.largest_relative:.2g} times its value"] if difference.largest_relative is not None else []),
    ]
    largest = f", at most by {' and '.join(sizes)}" if sizes else ""
    stands_for = "" if difference.stands_for == difference.name else f" ({difference.stands_for})"
    return (
        f"initialiser {difference.name}{stands_for} differs in {difference.unequal:,} of {difference.elements:,} "
        f"elements{largest}: {difference.kind}"
    )


def warn_of_weights(evidence: Evidence) -> Iterator[Caution]:
    """Say how much of the ONNX file could not be traced to the model."""
    facts = evidence.weights.weights if isinstance(evidence.weights, Completed) else None
    if facts is None:
        return
    total = facts.accounted + facts.unexplained + facts.differing
    said = [
        f"{count:,} of {of:,} {what}, first {names[0]}"
        for count, of, what, names in (
            (facts.unexplained, total, "initialisers stand for nothing in the model", facts.unexplained_names),
            (facts.missing, facts.tensors, "tensors of the model are not in the ONNX file", facts.missing_names),
        )
        if count and names
    ]
    if facts.converted:
        said.append(f"{facts.converted:,} of {total:,} initialisers hold the model's values in another element type")
    if said:
        yield Caution(code="weights", message="; ".join(said))
