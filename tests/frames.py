"""Builders of frames, comparisons and evidence out of plain arrays, for tests of everything above them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from validator.backends.catalog import CATALOG, REFERENCE, Backend, expected_settings
from validator.backends.interface import Environment, ModelFacts, TensorFacts, WeightsFacts
from validator.compare import Comparison, Frame, compare, measure_variety
from validator.judge import BackendEvidence, Control, Evidence, FreshRun
from validator.worker.outcome import Completed
from validator.worker.protocol import Pass, PassKind, RunJob

SAMPLES = 16


def frames(outputs: Mapping[str, np.ndarray], size: int = 8, dtypes: Mapping[str, str] | None = None) -> list[Frame]:
    """Cut arrays of shape (samples, *output) into frames."""
    count = len(next(iter(outputs.values())))
    names = {name: str(values.dtype) for name, values in outputs.items()} | dict(dtypes or {})
    return [
        Frame(
            start=start,
            stop=min(start + size, count),
            outputs={name: values[start : start + size] for name, values in outputs.items()},
            dtypes=names,
        )
        for start in range(0, count, size)
    ]


def cut(source: list[Frame], size: int) -> list[Frame]:
    """Cut frames into smaller ones, as batches of one size that copies fill where samples do not."""
    return [
        replace(
            f,
            start=s,
            stop=min(s + size, f.stop),
            outputs={n: v[s - f.start : s - f.start + size] for n, v in f.outputs.items()},
            filled=max(0, s + size - f.stop),
        )
        for f in source
        for s in range(f.start, f.stop, size)
    ]


def scores(samples: int = SAMPLES, classes: int = 10, seed: int = 0) -> np.ndarray:
    """Return a plausible fp64 reference."""
    return np.random.default_rng(seed).normal(size=(samples, classes))


def noisy(reference: np.ndarray, noise: float, seed: int = 1) -> np.ndarray:
    """Return a candidate whose RMS error is about `noise`."""
    return reference + np.random.default_rng(seed).normal(size=reference.shape) * noise


def run_job(row: Backend, samples: int = SAMPLES) -> RunJob:
    """Return a job as the planner makes it."""
    return RunJob(
        job_id=row.name,
        nonce="0" * 32,
        backend=row,
        model_path="model.pt2",
        model_format="torch.export",
        golden_path="golden",
        golden_digest="sha256:" + "0" * 64,
        passes=(Pass(kind=PassKind.MAIN, batch_size=8, ranges=((0, samples),)),),
        input_names=("input",),
        threads=1,
    )


def completed(row: Backend, **settings: str | int | bool) -> Completed:
    """Return the outcome of a run that read back what was asked for, but for the settings given."""
    environment = Environment(settings=expected_settings(row) | settings, fingerprint={"torch": "2.14.1"})
    return Completed(job=run_job(row), environment=environment, spool=None)


def facts(**changes: object) -> ModelFacts:
    """Return the facts of a healthy program."""
    healthy = {
        "inputs": (TensorFacts(name="input", dtype="float32", shape=(None, 3)),),
        "outputs": ("output",),
        "static_batch": None,
        "training": (),
        "parameter_dtypes": {"float32": 100},
    }
    return ModelFacts.model_validate(healthy | changes)


def backend_evidence(name: str, reference: list[Frame], candidate: list[Frame], **changes: object) -> BackendEvidence:
    """Return what a healthy run of a catalog row leaves, but for the changes."""
    row = CATALOG[name]
    repeat = compare(candidate, candidate)
    batches = tuple((size, compare(candidate, cut(candidate, size))) for size in (1, 2, 7))
    outcome = completed(row)
    fresh = None if name == REFERENCE else FreshRun(outcome=outcome, comparison=repeat)
    healthy: dict[str, object] = {
        "row": row,
        "outcome": outcome,
        "main": None if name == REFERENCE else compare(reference, candidate),
        "repeat": repeat,
        "fresh": fresh,
        "batches": batches,
    }
    return BackendEvidence(**(healthy | changes))  # type: ignore[arg-type]


def weights_facts(**changes: object) -> WeightsFacts:
    """Return what is said of an ONNX file in which every initialiser is the model's."""
    healthy: dict[str, object] = {
        "equal": 24,
        "rearranged": 0,
        "folded": 2,
        "converted": 0,
        "differing": 0,
        "differences": (),
        "unexplained": 0,
        "unexplained_names": (),
        "tensors": 34,
        "missing": 0,
        "missing_names": (),
    }
    return WeightsFacts(**(healthy | changes))  # type: ignore[arg-type]


def weighed(**changes: object) -> Completed:
    """Return the outcome of a comparison of initialisers."""
    return replace(completed(CATALOG[REFERENCE]), weights=weights_facts(**changes))


def evidence(
    candidate: np.ndarray | None = None,
    *,
    backends: Sequence[BackendEvidence] | None = None,
    **changes: object,
) -> Evidence:
    """Return the evidence of a healthy check on CPU rows, but for the candidate and the changes."""
    y = scores()
    reference = frames({"output": y})
    baseline = frames({"output": noisy(y, 1e-6, seed=2)})
    tried = frames({"output": noisy(y, 1e-6, seed=3) if candidate is None else candidate})
    healthy: dict[str, object] = {
        "samples": SAMPLES,
        "golden_digest": "sha256:" + "1" * 64,
        "weights_digest": "sha256:" + "2" * 64,
        "facts": facts(),
        "probe": completed(CATALOG[REFERENCE]),
        "weights": weighed(),
        "onnx_required": True,
        "has_onnx": True,
        "backends": tuple(backends)
        if backends is not None
        else (
            backend_evidence(REFERENCE, reference, reference),
            backend_evidence("eager-cpu", reference, baseline),
            backend_evidence("onnxruntime-cpu", reference, tried),
        ),
        "variety": measure_variety(reference),
        "control": Control(
            backend="onnxruntime-cpu", output="output", planted="moved", moved_to=10.1, limit=10.0, caught=True
        ),
    }
    return Evidence(**(healthy | changes))  # type: ignore[arg-type]


def comparison_of(reference: np.ndarray, candidate: np.ndarray) -> Comparison:
    """Compare two arrays as the single output of a model."""
    return compare(frames({"output": reference}), frames({"output": candidate}))
