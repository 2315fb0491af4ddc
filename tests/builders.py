"""Documents for tests: real comparisons and real judging over synthetic frames, so that no number is made up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tests.frames import weights_facts
from validator.backends.catalog import CATALOG, REFERENCE, Backend, expected_settings
from validator.backends.interface import (
    DifferenceKind,
    Environment,
    ModelFacts,
    RefusalKind,
    TensorDifference,
    TensorFacts,
    WeightsFacts,
)
from validator.compare import Comparison, Frame, compare, measure_variety
from validator.golden.dataset import GoldenDataset
from validator.golden.format import GoldenManifest, Group, InputSpec, ShardFile
from validator.judge import BackendEvidence, Control, Decision, Evidence, FreshRun, judge
from validator.manifest import Manifest, ManifestEntry
from validator.policy import Policy
from validator.report.build import RunInfo, build_document
from validator.report.model import ConfinementRecord, SandboxRecord, VerdictDocument
from validator.sandbox.level import Level, Request
from validator.subject import OnnxFile, OnnxOrigin, Program, ProgramFormat, StagedModel, Subject
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, Violated
from validator.worker.protocol import Refusal, RunJob

SAMPLES = 64
CLASSES = 12
GPU_ROWS = (REFERENCE, "eager-cpu", "eager-cuda", "cudnn-deterministic", "onnxruntime-gpu", "onnxruntime-cpu")
CPU_ROWS = (REFERENCE, "eager-cpu", "onnxruntime-cpu")
NOISE = 2e-7
"""Relative noise of an honest fp32 run."""

Outputs = Mapping[str, np.ndarray]


def reference_outputs(*, seed: int = 7) -> dict[str, np.ndarray]:
    """Logits and probabilities in fp64."""
    logits = np.random.default_rng(seed).normal(0, 3, (SAMPLES, CLASSES))
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return {"logits": logits, "probabilities": shifted / shifted.sum(axis=1, keepdims=True)}


def noisy(outputs: Outputs, *, seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """The same outputs as an honest fp32 backend returns them."""
    rng = np.random.default_rng(seed)
    return {name: (y * (1 + rng.normal(0, NOISE * scale, y.shape))).astype(np.float32) for name, y in outputs.items()}


def frames(outputs: Outputs, *, size: int = 16, samples: int | None = None) -> tuple[Frame, ...]:
    total = samples or len(next(iter(outputs.values())))
    return tuple(
        Frame(
            start=start,
            stop=min(start + size, total),
            outputs={name: y[start : min(start + size, total)] for name, y in outputs.items()},
            dtypes={name: str(y.dtype) for name, y in outputs.items()},
        )
        for start in range(0, total, size)
    )


def run_job(row: Backend) -> RunJob:
    return RunJob(
        job_id=row.name,
        nonce="0" * 32,
        backend=row,
        model_path="/model.pt2",
        model_format="torch.export",
        golden_path="/golden",
        golden_digest="sha256:" + "5" * 64,
        passes=(),
        input_names=("image",),
        threads=2,
    )


def completed(row: Backend) -> Completed:
    return Completed(
        job=run_job(row),
        environment=Environment(
            settings=expected_settings(row),
            fingerprint={"torch": "2.14.1", "gpu": "NVIDIA H200"} if row.device == "cuda" else {"torch": "2.14.1"},
        ),
        spool=None,
        seconds={"load": 0.5, "main": 2.25},
        peak_memory_bytes=512_000_000,
    )


def crashed(row: Backend, *, log_tail: str = "loading\nKilled\n", exit_status: int = -9) -> Crashed:
    return Crashed(job=run_job(row), exit_status=exit_status, samples=32, log_tail=log_tail)


def no_gpu(row: Backend) -> Declined:
    refusal = Refusal(
        job_id=row.name,
        nonce="0" * 32,
        kind=RefusalKind.UNAVAILABLE,
        stage="device",
        message="there is no CUDA device here",
    )
    return Declined(job=run_job(row), refusal=refusal)


def no_kernel(row: Backend, message: str) -> Declined:
    refusal = Refusal(job_id=row.name, nonce="0" * 32, kind=RefusalKind.MODEL, stage="run", message=message)
    return Declined(job=run_job(row), refusal=refusal)


def violated(row: Backend) -> Violated:
    return Violated(job=run_job(row), what="sample 17 of pass main came twice", log_tail="")


def stale_weights(y: Outputs) -> dict[str, np.ndarray]:
    """What an ONNX file with one row of other weights computes: nearly the same."""
    moved = noisy(y, seed=31)
    moved["logits"] = moved["logits"].copy()
    moved["logits"][:, 7] *= np.float32(1.0001)
    return moved


def stale_facts() -> WeightsFacts:
    """What is said of that ONNX file's initialisers."""
    row = TensorDifference(
        name="head.weight",
        stands_for="head.weight",
        elements=1_280,
        unequal=128,
        largest_absolute=1.25e-5,
        largest_relative=1e-4,
        kind=DifferenceKind.OTHER,
    )
    return weights_facts(equal=23, differing=1, differences=(row,))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What happens in a check. Rows that are not named ran honestly."""

    rows: tuple[str, ...] = CPU_ROWS
    required: tuple[str, ...] = ("eager-cpu", "onnxruntime-cpu")
    outputs: Mapping[str, Outputs] = field(default_factory=dict)
    """By backend, in the place of honest ones."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    """By backend, in the place of completed ones; nothing is compared then."""
    facts: ModelFacts | None = None
    golden_name: str = "alexnet-golden"
    model_name: str = "alexnet"
    version: int = 3
    retries: tuple[str, ...] = ()
    onnx_origin: OnnxOrigin = OnnxOrigin.ARTIFACT
    weights: WeightsFacts = field(default_factory=weights_facts)
    no_fp64: str | None = None
    """Why fp64 could not run: the baseline stands in for it."""


GPU = Situation(rows=GPU_ROWS, required=("eager-cpu", "eager-cuda", "cudnn-deterministic", "onnxruntime-gpu"))


def facts(*, training: tuple[str, ...] = ()) -> ModelFacts:
    return ModelFacts(
        inputs=(TensorFacts(name="image", dtype="float32", shape=(None, 3, 8, 8)),),
        outputs=("logits", "probabilities"),
        static_batch=None,
        training=training,
        parameter_dtypes={"float32": 61_100_840},
    )


def _fresh(row: Backend, comparison: Comparison) -> FreshRun:
    return FreshRun(outcome=completed(row), comparison=comparison)


def evidence_of(situation: Situation) -> Evidence:
    y = reference_outputs() if situation.no_fp64 is None else noisy(reference_outputs(), seed=1)
    backends: list[BackendEvidence] = []
    for number, name in enumerate(situation.rows):
        row = CATALOG[name]
        if name in situation.outcomes:
            backends.append(BackendEvidence(row=row, outcome=situation.outcomes[name]))
            continue
        own = y if name == REFERENCE else situation.outputs.get(name, noisy(y, seed=number, scale=1 + number / 10))
        main = None if name == REFERENCE else compare(frames(y), frames(own))
        if name == REFERENCE and situation.no_fp64 is not None:
            backends.append(BackendEvidence(row=row, outcome=no_kernel(row, situation.no_fp64)))
            continue
        backends.append(
            BackendEvidence(
                row=row,
                outcome=completed(row),
                main=main,
                perturbed=completed(row) if situation.no_fp64 is not None and name == "eager-cpu" else None,
                repeat=compare(frames(own), frames(own, samples=32)),
                fresh=None if name == REFERENCE else _fresh(row, compare(frames(own), frames(own, samples=32))),
                batches=tuple((size, compare(frames(own), frames(own, size=size, samples=14))) for size in (1, 2, 7)),
            )
        )
    return Evidence(
        samples=SAMPLES,
        golden_digest="sha256:" + "5" * 64,
        weights_digest="sha256:" + "6" * 64,
        facts=situation.facts or facts(),
        probe=completed(CATALOG["eager-cpu"]),
        weights=replace(completed(CATALOG["eager-cpu"]), weights=situation.weights),
        onnx_required=True,
        has_onnx=True,
        backends=tuple(backends),
        variety=measure_variety(frames(y)),
        control=Control(
            backend="onnxruntime-cpu",
            output="logits",
            planted="moved to 1.01 times its limit",
            moved_to=10.1,
            limit=10.0,
            caught=True,
        ),
    )


def golden_dataset(name: str = "alexnet-golden") -> GoldenDataset:
    manifest = GoldenManifest(
        name=name,
        inputs=[InputSpec(name="image", dtype="float32")],
        samples=SAMPLES,
        groups=[Group(shard="shard-0.safetensors", start=0, stop=SAMPLES, shapes={"image": [3, 8, 8]})],
        source="photos",
        files=[ShardFile(path="shard-0.safetensors", size_bytes=1_000, sha256="5" * 64)],
    )
    return GoldenDataset(folder=Path("/golden"), manifest=manifest, digest="sha256:51aa07c2" + "5" * 52 + "90fd")


def staged_model(situation: Situation) -> StagedModel:
    subject = Subject(
        registry_uri="sqlite:///mlflow.db",
        requested_uri=f"models:/{situation.model_name}@candidate",
        name=situation.model_name,
        version=situation.version,
        creation_timestamp_ms=1_764_321_240_000,
        source="models:/m-0123",
        download_uri="mlflow-artifacts:/1/models/m-0123/artifacts",
        model_id="m-0123",
        run_id="f" * 32,
    )
    entries = (
        ManifestEntry(path="MLmodel", size_bytes=1_000, sha256="a" * 64),
        ManifestEntry(path="data/model.pt2", size_bytes=244_000_000, sha256="b" * 64),
    )
    return StagedModel(subject=subject, folder=Path("/staged"), manifest=Manifest(entries=entries))


def decide_on(situation: Situation) -> tuple[Policy, Evidence, Decision]:
    policy = Policy(required=situation.required, batch_size=16)
    evidence = evidence_of(situation)
    return policy, evidence, judge(policy, evidence)


HELD = SandboxRecord(
    level=Level.STRICT,
    requested=Request.AUTO,
    minimum=Level.NONE,
    bubblewrap="0.8.0",
    landlock_abi=7,
    weaker_because=(),
    workers=(
        ConfinementRecord(
            job="probe", level=Level.STRICT, profile="CPU", mechanisms=("bubblewrap", "rlimits", "landlock", "seccomp")
        ),
    ),
)


def document_of(situation: Situation, *, created_utc: str = "2026-11-30T15:02:00Z") -> VerdictDocument:
    policy, evidence, decision = decide_on(situation)
    onnx = OnnxFile(
        path=Path("/staged/model.onnx"),
        manifest=Manifest(entries=(ManifestEntry(path="model.onnx", size_bytes=244_100_000, sha256="c" * 64),)),
        origin=situation.onnx_origin,
        source="model.onnx",
    )
    document = build_document(
        run=RunInfo(
            check_id="0123456789abcdef",
            created_utc=created_utc,
            duration_s=38.2,
            command=("validator", "check", f"models:/{situation.model_name}@candidate", "--golden", "golden/"),
            policy_origin="default",
            sandbox=HELD,
            retries=situation.retries,
        ),
        staged=staged_model(situation),
        program=Program(path=Path("/staged/data/model.pt2"), format=ProgramFormat.EXPORTED),
        onnx=onnx,
        golden=golden_dataset(situation.golden_name),
        golden_uri="models:/alexnet-golden/4",
        policy=policy,
        evidence=evidence,
        decision=decision,
    )
    # Snapshots do not change with our version, nor with a default of the policy.
    return document.model_copy(
        update={
            "tool": document.tool.model_copy(update={"version": "0.1.0"}),
            "policy": document.policy.model_copy(update={"digest": "sha256:51aa07c2" + "0" * 52 + "90fd"}),
        }
    )


def passing() -> VerdictDocument:
    return document_of(GPU)


def failing() -> VerdictDocument:
    y = reference_outputs()
    return document_of(
        replace(
            GPU,
            version=2,
            outputs={n: stale_weights(y) for n in ("onnxruntime-gpu", "onnxruntime-cpu")},
            weights=stale_facts(),
        )
    )


def passing_without_fp64() -> VerdictDocument:
    return document_of(Situation(no_fp64="RuntimeError: expected scalar type Float but found Double"))


def failing_on_cpu() -> VerdictDocument:
    outputs = {"onnxruntime-cpu": stale_weights(reference_outputs())}
    return document_of(Situation(version=2, outputs=outputs, weights=stale_facts()))


def inconclusive_crash() -> VerdictDocument:
    row = CATALOG["onnxruntime-cpu"]
    tail = "starting\n::error::owned\nRuntimeError: \x1b[31mout of memory\n"
    return document_of(Situation(outcomes={row.name: crashed(row, log_tail=tail)}))


def inconclusive_no_gpu() -> VerdictDocument:
    names = ("eager-cuda", "cudnn-deterministic", "onnxruntime-gpu")
    return document_of(replace(GPU, outcomes={name: no_gpu(CATALOG[name]) for name in names}))


def refused() -> VerdictDocument:
    row = CATALOG["onnxruntime-cpu"]
    return document_of(Situation(outcomes={row.name: violated(row)}))


def situations() -> Sequence[tuple[str, VerdictDocument]]:
    """Every situation that has a snapshot."""
    return (
        ("pass", passing()),
        ("pass-without-fp64", passing_without_fp64()),
        ("fail", failing()),
        ("fail-on-cpu", failing_on_cpu()),
        ("inconclusive-crash", inconclusive_crash()),
        ("inconclusive-no-gpu", inconclusive_no_gpu()),
        ("refused", refused()),
    )
