"""From what is to be checked to the jobs that check it: one job per backend, its passes and samples spelt out."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from validator.backends.catalog import BASELINE, REFERENCE, Backend, Runtime, find_backend
from validator.backends.interface import ModelFacts
from validator.errors import GoldenError
from validator.golden.dataset import GoldenDataset
from validator.judge import deployed_batch
from validator.policy import Policy
from validator.subject import OnnxFile, Program
from validator.worker.protocol import ExportJob, Pass, PassKind, ProbeJob, RunJob, SurveyJob, WeightsJob
from validator.worker.warm import PROBE_PROFILE, Kit, WarmSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the jobs run: the subject's program, its ONNX file and the golden dataset."""

    program: Program
    onnx: OnnxFile | None
    golden: GoldenDataset
    facts: ModelFacts


def choose_rows(policy: Policy, extra: Sequence[str], *, reference_device: str) -> tuple[Backend, ...]:
    """List the rows of a check: reference first, then every baseline that is needed, then the candidates.

    Args:
        policy: names the required backends.
        extra: backends that the user adds; none can be taken away.
        reference_device: where fp64 runs.

    Raises:
        BackendError: an unknown backend.
    """
    rows = policy.rows
    reference = find_backend(REFERENCE, rows).model_copy(update={"device": reference_device})
    wanted = [find_backend(name, rows) for name in (*policy.required, *extra)]
    baselines = [find_backend(row.baseline, rows) for row in wanted if row.baseline is not None]
    return tuple({row.name: row for row in (reference, *baselines, *wanted)}.values())


def needs_onnx(rows: Sequence[Backend]) -> bool:
    """Whether any of the rows runs the ONNX file."""
    return any(row.runtime is Runtime.ONNXRUNTIME for row in rows)


THREADS_BESIDE = 4
"""CPU threads of a worker whose work is not the CPU's: more would only get in the way of those that compute there."""


def threads_for(row: Backend | None, threads: int) -> int:
    """Return the CPU threads of a row's worker, or of one that only looks at a file.

    Args:
        row: None for a probe or an export.
        threads: what rows on the CPU get.
    """
    return threads if row is not None and row.device_type == "cpu" else min(THREADS_BESIDE, threads)


def export_worker(threads: int) -> WarmSpec:
    """Describe the worker that exports, or looks at an ONNX file that is there already."""
    return WarmSpec(kit=Kit.EXPORT, threads=threads_for(None, threads))


def survey_worker(threads: int) -> WarmSpec:
    """Describe the worker that surveys: it looks at a file, and then computes on the CPU."""
    return WarmSpec(kit=Kit.PROBE, threads=threads, profile=PROBE_PROFILE)


def foresee_workers(rows: Sequence[Backend], *, threads: int, has_gpu: bool, fresh_process: bool) -> list[WarmSpec]:
    """List the workers that a check will need as far as its rows tell, in the order in which it will need them.

    Args:
        rows: of the check.
        threads: CPU threads of rows on the CPU.
        has_gpu: without one, rows on CUDA need nobody who waits to say so.
        fresh_process: whether every row but the reference is repeated in another worker.
    """
    here = [row for row in rows if row.device_type == "cpu" or has_gpu]
    torch_rows = [row for row in here if row.runtime is not Runtime.ONNXRUNTIME]
    onnx_rows = [row for row in here if row.runtime is Runtime.ONNXRUNTIME]
    again = [row for row in (*torch_rows, *onnx_rows) if fresh_process and row.name != REFERENCE]
    return [
        WarmSpec(kit=Kit.PROBE, threads=threads_for(None, threads), profile=PROBE_PROFILE),
        *(WarmSpec.of_row(row, threads=threads_for(row, threads)) for row in torch_rows),
        *([export_worker(threads)] if needs_onnx(rows) else []),
        *(WarmSpec.of_row(row, threads=threads_for(row, threads)) for row in (*onnx_rows, *again)),
    ]


def plan_probe(program: Program, golden: GoldenDataset, *, threads: int) -> ProbeJob:
    """Plan the look at the model file that comes before everything else."""
    return ProbeJob(
        job_id="probe",
        nonce=secrets.token_hex(16),
        model_path=str(program.path),
        model_format=program.format.value,
        golden_path=str(golden.folder),
        golden_digest=golden.digest,
        threads=threads_for(None, threads),
    )


def plan_survey(
    program: Program, golden: GoldenDataset, *, job_id: str, peaks_per_layer: int, margins_per_output: int, threads: int
) -> SurveyJob:
    """Plan the run of a program on every sample of a dataset, to choose among them."""
    return SurveyJob(
        job_id=job_id,
        nonce=secrets.token_hex(16),
        model_path=str(program.path),
        model_format=program.format.value,
        golden_path=str(golden.folder),
        golden_digest=golden.digest,
        samples=golden.samples,
        peaks_per_layer=peaks_per_layer,
        margins_per_output=margins_per_output,
        threads=threads,
    )


EXPORT_PATH = "export/model.onnx"
"""In the folder of the worker that exports."""


def plan_export(target: Target, *, threads: int) -> ExportJob:
    """Plan the ONNX export of the program to a file."""
    return ExportJob(
        job_id="export",
        nonce=secrets.token_hex(16),
        model_path=str(target.program.path),
        model_format=target.program.format.value,
        golden_path=str(target.golden.folder),
        golden_digest=target.golden.digest,
        export_path=EXPORT_PATH,
        static_batch=target.facts.static_batch,
        threads=threads_for(None, threads),
    )


def plan_weights(target: Target, onnx: OnnxFile, *, threads: int) -> WeightsJob:
    """Plan the comparison of a given ONNX file's initialisers with the program's tensors."""
    return WeightsJob(
        job_id="weights",
        nonce=secrets.token_hex(16),
        model_path=str(target.program.path),
        model_format=target.program.format.value,
        onnx_path=str(onnx.shown),
        threads=threads_for(None, threads),
    )


def plan_runs(policy: Policy, rows: Sequence[Backend], target: Target, *, threads: int) -> list[RunJob]:
    """Plan one job per row, and behind all of them one per row that repeats in a fresh process.

    Rows that need an ONNX file get none where there is none: judged as not measured. The reference is not repeated in a
    fresh process: in fp64 nobody would see it.
    """
    runnable = [row for row in rows if target.onnx is not None or not needs_onnx([row])]
    jobs = [_run_job(row, target, row.name, plan_passes(policy, row, target), threads=threads) for row in runnable]
    if policy.checks.fresh_process:
        jobs += [
            _run_job(row, target, f"{row.name}, fresh process", (plan_fresh(policy, row, target),), threads=threads)
            for row in runnable
            if row.name != REFERENCE
        ]
    return jobs


def _run_job(row: Backend, target: Target, job_id: str, passes: tuple[Pass, ...], *, threads: int) -> RunJob:
    uses_onnx = row.runtime is Runtime.ONNXRUNTIME
    path = target.onnx.shown if uses_onnx and target.onnx is not None else target.program.path
    return RunJob(
        job_id=job_id,
        nonce=secrets.token_hex(16),
        backend=row,
        model_path=str(path),
        model_format="onnx" if uses_onnx else target.program.format.value,
        golden_path=str(target.golden.folder),
        golden_digest=target.golden.digest,
        passes=passes,
        static_batch=target.facts.static_batch,
        input_names=tuple(spec.name for spec in target.golden.inputs),
        output_names=target.facts.outputs,
        threads=threads_for(row, threads),
    )


PERTURBATION_SEEDS = (1, 2, 3, 4)
"""One pass each: one alone may happen to leave a sample or a channel where it was."""


def plan_perturbation(policy: Policy, rows: Sequence[Backend], target: Target, *, threads: int) -> RunJob | None:
    """Plan the baseline's run on perturbed inputs and parameters; None where the baseline is no row of this check."""
    baseline = next((row for row in rows if row.name == BASELINE), None)
    if baseline is None:
        return None
    main = next(p for p in plan_passes(policy, baseline, target) if p.kind is PassKind.MAIN)
    passes = tuple(main.model_copy(update={"kind": PassKind.PERTURBED, "seed": seed}) for seed in PERTURBATION_SEEDS)
    return _run_job(baseline, target, f"{baseline.name}, perturbed", passes, threads=threads)


def plan_passes(policy: Policy, row: Backend, target: Target) -> tuple[Pass, ...]:
    """Plan the passes of one row: everything once, some of it again, some of it at other batch sizes."""
    golden = target.golden
    size = _main_batch(policy, row, target)
    passes = [
        Pass(kind=PassKind.MAIN, batch_size=size, ranges=((0, golden.samples),)),
        Pass(kind=PassKind.REPEAT, batch_size=size, ranges=((0, _repeat_stop(policy, golden, size)),)),
    ]
    if target.facts.static_batch is None:
        passes += [
            Pass(kind=PassKind.BATCH, batch_size=other, ranges=spread(golden, other, policy.checks.batch_samples))
            for other in sorted(set(policy.checks.batch_sizes) - {size})
        ]
    return tuple(passes)


def plan_fresh(policy: Policy, row: Backend, target: Target) -> Pass:
    """Plan the one pass of a row's second process: what the first one ran twice."""
    size = _main_batch(policy, row, target)
    return Pass(kind=PassKind.FRESH, batch_size=size, ranges=((0, _repeat_stop(policy, target.golden, size)),))


def _main_batch(policy: Policy, row: Backend, target: Target) -> int:
    return target.facts.static_batch or deployed_batch(policy, row)


def _repeat_stop(policy: Policy, golden: GoldenDataset, size: int) -> int:
    """Return the end of the first batches that hold enough samples: whole batches, so that shapes are the same."""
    stop = 0
    for _, stop in golden.batches(0, golden.samples, size):
        if stop >= policy.checks.repeat_samples:
            break
    return stop


def spread(golden: GoldenDataset, size: int, wanted: int) -> tuple[tuple[int, int], ...]:
    """Choose about `wanted` samples as batches of one size, evenly over the dataset.

    Returns:
        Disjoint ranges in order, each within one group. A dataset with fewer samples is used whole.
    """
    batches = list(golden.batches(0, golden.samples, size))
    # Full ones where there are any: copies are poor batch mates.
    batches = [b for b in batches if b[1] - b[0] == size] or batches
    count = min(len(batches), max(1, -(-wanted // size)))
    return tuple(batches[i * len(batches) // count] for i in range(count))


def check_fit(golden: GoldenDataset, facts: ModelFacts) -> None:
    """Require that the golden dataset fits the program's inputs and outputs, before anything runs.

    Raises:
        GoldenError: another number of inputs, other names where names can be told, dtypes or shapes; a meaning of an
            output that the program does not have.
    """
    _check_declared_outputs(golden, facts)
    declared = {spec.name: spec for spec in facts.inputs}
    if len(declared) != len(golden.inputs):
        raise GoldenError(
            f"the golden dataset has {len(golden.inputs)} inputs ({', '.join(s.name for s in golden.inputs)}), "
            f"the model takes {len(declared)} ({', '.join(declared) or 'none'})",
            hint="make the dataset again with one array per input, named like the model's inputs",
        )
    by_name = declared.keys() == {spec.name for spec in golden.inputs}
    for spec, position in zip(golden.inputs, facts.inputs, strict=True):
        wanted = declared[spec.name] if by_name else position
        if wanted.dtype != spec.dtype:
            raise GoldenError(
                f"golden input {spec.name} is {spec.dtype}, the model takes {wanted.dtype}",
                hint=f"make the dataset again with {wanted.dtype} values",
            )
        if wanted.shape is None:
            continue
        for group in golden.manifest.groups:
            shape = group.shapes[spec.name]
            if len(shape) != len(wanted.shape) - 1 or any(
                fixed is not None and fixed != given for fixed, given in zip(wanted.shape[1:], shape, strict=True)
            ):
                raise GoldenError(
                    f"golden input {spec.name} has samples of shape {tuple(shape)}, "
                    f"the model takes {describe_shape(wanted.shape[1:])}",
                    hint="make the dataset again with samples of the model's shape",
                )


def _check_declared_outputs(golden: GoldenDataset, facts: ModelFacts) -> None:
    """Require that all that the dataset says about outputs is about this program's, where those are known."""
    specs = golden.manifest.outputs
    if specs is None or facts.outputs is None:
        return
    inputs = {spec.name: spec.dtype for spec in golden.inputs}
    for name, spec in specs.items():
        _require_output(name, facts.outputs, f"declares what output {name} means")
        for other in (*([spec.scores] if spec.scores is not None else []), *spec.with_):
            _require_output(other, facts.outputs, f"declares output {name} with the help of {other}")
        mask = spec.valid_mask
        if mask is None or mask in facts.outputs:
            continue
        _require_output(mask, (*facts.outputs, *inputs), f"declares output {name} to be masked by {mask}")
        if inputs[mask] != "bool" and "int" not in inputs[mask]:
            raise GoldenError(
                f"the golden dataset declares output {name} to be masked by its input {mask}, which is {inputs[mask]}",
                hint="name a bool or integer input or output as valid_mask",
            )


def _require_output(name: str, known: Iterable[str], declares: str) -> None:
    names = list(known)
    if name in names:
        return
    near = get_close_matches(name, names, n=3, cutoff=0.5) or names
    raise GoldenError(
        f"the golden dataset {declares}, but the model has no {name}",
        hint=f"there is {', '.join(near)}; make the dataset again with other --outputs",
    )


def describe_shape(shape: Sequence[int | None]) -> str:
    """Write a shape with `any` for the dimensions that may vary."""
    return "(" + ", ".join("any" if d is None else str(d) for d in shape) + ("," if len(shape) == 1 else "") + ")"
