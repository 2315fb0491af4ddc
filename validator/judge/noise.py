"""The noise floor that errors are divided by, and the batch sizes that really ran."""

from validator.backends.catalog import BASELINE, REDUCED_CLASSES, UNIT_ROUNDOFF, Backend, Precision
from validator.compare import OutputComparison
from validator.judge.findings import BackendEvidence, Evidence
from validator.metrics import ErrorSummary, Rows
from validator.policy import Limits, Policy


def largest_batch(backend: BackendEvidence) -> int | None:
    """Return the largest batch that the main run of a row really had; None where that is not known."""
    for comparison in (backend.main, backend.repeat):
        if comparison is not None:
            return comparison.largest_batch
    return None


def deployed_batch(policy: Policy, row: Backend) -> int:
    """Batch size of the main run of a row."""
    return row.batch_size or policy.batch_size


def precision_of(evidence: Evidence, row: Backend, output: str) -> Precision:
    """Return the class that an output is judged in: the coarsest of three.

    The row's own; that of the dtype which the model's numbers are stored in; and that of the dtype in which the
    reference itself returned the output. What the candidate returned has no say: nobody rounds a way to a wider floor.
    """
    found = own_output(evidence, row.name, output)
    stored = _reduced_class(evidence.facts.working_dtype if evidence.facts is not None else None)
    returned = _reduced_class(found.reference_dtype if found is not None else None)
    coarser = [returned] if returned is not None else []
    if stored is not None and _shows(evidence, stored, output):
        coarser.append(stored)
    return max((row.precision, *coarser), key=lambda precision: UNIT_ROUNDOFF[precision])


def _reduced_class(dtype: str | None) -> Precision | None:
    return None if dtype is None else REDUCED_CLASSES.get(dtype)


SHOWN = 1 / 64
"""Share of u times the output's RMS that the error of a baseline which computes in that precision is above."""


def _shows(evidence: Evidence, precision: Precision, output: str) -> bool:
    """Whether the baseline's own error is that of a precision in which the model is said to be stored.

    A few parameters in half precision make no model of it: what eager fp32 has right, a candidate can have right.
    Without a baseline the model is believed.
    """
    baseline = own_summary(evidence, BASELINE, output)
    return baseline is None or not (baseline.rms < SHOWN * UNIT_ROUNDOFF[precision] * baseline.rms_reference)


def roundoff_of(evidence: Evidence, row: Backend, output: str) -> float:
    """Return u of the class that an output is judged in."""
    return UNIT_ROUNDOFF[precision_of(evidence, row, output)]


def limits_of(policy: Policy, evidence: Evidence, row: Backend, output: str) -> Limits:
    """Return the limits that an output is judged by: a budget's, or the default of its class."""
    return policy.limits_for(row, output, precision_of(evidence, row, output))


def noise_floors(evidence: Evidence, row: Backend, output: str) -> list[float] | None:
    """Return the floors that an RMS error of this row is divided by, or None where the baseline is missing."""
    own = own_summary(evidence, row.name, output)
    # The baseline is the noise floor: its own batch sizes are held against its own error.
    baseline = own if row.name == BASELINE else own_summary(evidence, row.baseline, output)
    if own is None or (row.baseline is not None and baseline is None):
        return None
    return [roundoff_of(evidence, row, output) * own.rms_reference, *([baseline.rms] if baseline else [])]


def baseline_rows(evidence: Evidence, row: Backend, output: str) -> Rows | None:
    """Return the errors of a row's baseline sample by sample; the baseline's own floor is itself."""
    found = own_output(evidence, row.name if row.name == BASELINE else row.baseline, output)
    return None if found is None else found.rows


def own_output(evidence: Evidence, name: str | None, output: str) -> OutputComparison | None:
    """Return a backend's comparison with the reference for one output; None for no backend."""
    for backend in evidence.backends:
        if backend.row.name == name and backend.main is not None:
            return backend.main.outputs.get(output)
    return None


def own_summary(evidence: Evidence, name: str | None, output: str) -> ErrorSummary | None:
    """Return a backend's errors against the reference for one output; None for no backend."""
    found = own_output(evidence, name, output)
    return None if found is None else found.summary
