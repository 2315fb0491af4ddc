"""The runs of a check: probe, then every backend beside the export, then the evidence."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import validator
from validator.backends.catalog import REFERENCE, Backend
from validator.backends.interface import ModelFacts, RefusalKind
from validator.cache.reuse import Circumstances, Reuse
from validator.evidence import compare_runs, plant_fault, variety_of
from validator.executors.local import LocalExecutor
from validator.inputs import Inputs, verify_unchanged
from validator.judge import BackendEvidence, Evidence
from validator.plan import (
    Target,
    check_fit,
    choose_rows,
    needs_onnx,
    plan_export,
    plan_perturbation,
    plan_probe,
    plan_runs,
    plan_weights,
)
from validator.policy import Policy
from validator.report.progress import Progress
from validator.sandbox.choice import Reached, Sandbox, describe_levels, reach, require
from validator.sandbox.confinement import ResourceLimits
from validator.sandbox.level import Level, Profile, Request
from validator.sandbox.machine import look_at_machine, machine_memory
from validator.sandbox.paths import interpreter_paths
from validator.sandbox.selftest import prove_held
from validator.subject import OnnxFile, OnnxOrigin, describe_onnx, take_export
from validator.worker.environment import import_roots, worker_environment
from validator.worker.launch import Limits
from validator.worker.outcome import Completed, Declined, Outcome
from validator.worker.protocol import ExportJob, Job, WeightsJob
from validator.worker.stage import ONNX, Stage
from validator.worker.warm import PROBE_PROFILE, Kit, WarmSpec

LARGE_MACHINE_CORES = 8


def threads_of(policy: Policy) -> int:
    """Return the CPU threads of rows on the CPU.

    On a large machine two cores are left to the other workers: a parallel loop is as slow as its slowest thread, and
    one shared core would halve the speed of all of them.
    """
    cores = len(os.sched_getaffinity(0))
    return policy.worker.threads or (cores if cores < LARGE_MACHINE_CORES else cores - 2)


def open_executor(
    policy: Policy, scratch: Path, progress: Progress, *, sandbox: Sandbox, golden: str | None = None
) -> LocalExecutor:
    """Make what runs the workers, with the policy's limits. To be closed before the scratch folder is removed.

    Args:
        policy: says how long they may run, and how many at once.
        scratch: existing folder.
        progress: told of every job.
        sandbox: what is put around them.
        golden: the dataset, a folder or URI, if it is known.
    """
    return LocalExecutor(
        scratch=scratch,
        limits=Limits(deadline_s=policy.worker.deadline_s),
        jobs_per_gpu=policy.worker.jobs_per_gpu,
        on_event=progress.job,
        sandbox=sandbox,
        stage=make_stage(scratch, golden),
    )


def make_stage(scratch: Path, golden: str | None) -> Stage:
    """Make the folders that workers will be shown."""
    return Stage.make(scratch, golden=None if golden is None or ":/" in golden else Path(golden))


def open_sandbox(
    policy: Policy, request: Request, rows: Sequence[Backend], scratch: Path, progress: Progress
) -> Sandbox:
    """Prove the strongest sandbox that this machine has, or the one that is asked for.

    Args:
        policy: says the least that is admitted, and what workers may take.
        request: what the user asks for.
        rows: that will run, or that others will be made from.
        scratch: existing folder, for the self-test.
        progress: told what was reached.

    Raises:
        SandboxTooWeak: less than the policy or the user asks for.
    """
    machine = look_at_machine()
    wanted = {Profile(), PROBE_PROFILE} | {
        Profile(gpu=row.device_type == "cuda", compiles=compiles)
        for row in rows
        for compiles in {False, row.compile is not None}
    }
    sandbox = Sandbox(
        requested=request,
        machine=machine,
        program=interpreter_paths(tuple(import_roots()), str(Path(validator.__file__).parent)),
        limits=resource_limits(policy),
    )

    def prove(profile: Profile) -> Reached:
        def find(level: Level) -> str | None:
            trial = replace(sandbox, reached={profile: Reached(level=level)}).confine(profile, home=scratch)
            return prove_held(trial, machine, scratch, _canary_environment)

        return reach(request, profile, machine, find)

    profiles = sorted({machine.narrow(profile) for profile in wanted})
    with ThreadPoolExecutor(max_workers=len(profiles)) as pool:
        sandbox = replace(sandbox, reached=dict(zip(profiles, pool.map(prove, profiles), strict=True)))
    require(sandbox.reached, request.level or Level.NONE, by="--sandbox")
    require(sandbox.reached, Level(policy.sandbox.minimum), by="the policy")
    progress.stage("sandbox", describe_levels(sandbox))
    return sandbox


def _canary_environment(home: Path) -> dict[str, str]:
    return worker_environment(WarmSpec(kit=Kit.PROBE, threads=1), home=home)


def resource_limits(policy: Policy) -> ResourceLimits:
    """Return what a worker may take, by the policy, or else as much memory as there is."""
    rules = policy.sandbox
    return ResourceLimits(
        memory_bytes=rules.memory_bytes or machine_memory(),
        file_bytes=rules.file_bytes,
        open_files=rules.open_files,
        processes=rules.processes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The workers' work on some inputs."""

    inputs: Inputs
    executor: LocalExecutor
    reuse: Reuse | None = None
    """What earlier checks computed; None: everything is computed."""

    def gather(self, extra: Sequence[str]) -> tuple[Evidence, OnnxFile | None]:
        """Probe, run, compare. Returns the evidence and the ONNX file, which may have been exported here."""
        inputs = self.inputs
        self.executor.submit(plan_probe(inputs.program, inputs.golden, threads=self.threads))
        (probe,) = self.executor.outcomes()
        facts = probe.facts if isinstance(probe, Completed) else None
        if facts is not None:
            check_fit(inputs.golden, facts)
        rows = choose_rows(inputs.policy, extra, reference_device=_reference_device(probe))
        made = Made(onnx=inputs.onnx)
        runs: dict[str, BackendEvidence] | None = None
        if isinstance(probe, Completed) and facts is not None and not facts.training:
            target = Target(program=inputs.program, onnx=made.onnx, golden=inputs.golden, facts=facts)
            known = Circumstances(
                model=inputs.staged.manifest.digest,
                program=inputs.program.path.relative_to(inputs.staged.folder).as_posix(),
                fingerprint=probe.environment.fingerprint,
            )
            runs = compare_runs(rows, self._run(rows, target, made, known), inputs.golden)
        return self._evidence(rows, probe=probe, facts=facts, made=made, runs=runs), made.onnx

    @property
    def threads(self) -> int:
        """CPU threads of rows on the CPU."""
        return threads_of(self.inputs.policy)

    def _run(self, rows: Sequence[Backend], target: Target, made: "Made", known: Circumstances) -> Iterator[Outcome]:
        """Run the program's rows beside the export, and the ONNX file's rows as soon as there is one."""
        jobs: list[Job] = [*plan_runs(self.inputs.policy, rows, target, threads=self.threads)]
        if made.onnx is not None and needs_onnx(rows):
            jobs.append(plan_weights(target, made.onnx, threads=self.threads))
        elif needs_onnx(rows):
            jobs.append(plan_export(target, threads=self.threads))
        reused = self._submit(jobs, known)
        for outcome in chain(reused, self.executor.outcomes()):
            if isinstance(outcome.job, WeightsJob):
                made.weights = outcome
                continue
            if self._needs_perturbation(outcome) and (
                perturbed := plan_perturbation(self.inputs.policy, rows, target, threads=self.threads)
            ):
                self.executor.submit(perturbed)
            if not isinstance(outcome.job, ExportJob):
                self._keep(outcome, known)
                yield outcome
                continue
            made.take_export(outcome, self.inputs.scratch / ONNX)
            onnx_rows = [row for row in rows if needs_onnx([row])]
            for job in plan_runs(self.inputs.policy, onnx_rows, replace(target, onnx=made.onnx), threads=self.threads):
                self.executor.submit(job)
            self._keep(outcome, known, exported=made.onnx)

    def _submit(self, jobs: Sequence[Job], known: Circumstances) -> list[Outcome]:
        """Submit jobs, but those that an earlier check did, whose outcomes are returned.

        One after another and in order: who waits for another check while it computes something itself is not waited
        for by that one, because both begin with the reference.
        """
        reused: list[Outcome] = []
        for job in jobs:
            found = None if self.reuse is None else self.reuse.find(job, known)
            if found is None:
                self.executor.submit(job)
            else:
                self.executor.dismiss(job)
                reused.append(found)
        return reused

    def _keep(self, outcome: Outcome, known: Circumstances, *, exported: OnnxFile | None = None) -> None:
        """Keep an outcome for later checks, if it is still known what it was computed from."""
        if self.reuse is None or not self.reuse.claims(outcome.job):
            return
        verify_unchanged(self.inputs.staged, None, self.inputs.golden)
        if isinstance(outcome, Completed) and exported is not None:
            outcome = replace(outcome, exported=exported.path)  # it was taken from where its worker had left it
        self.reuse.keep(outcome, known.fingerprint, files=None if exported is None else exported.manifest)

    def _needs_perturbation(self, outcome: Outcome) -> bool:
        """Whether this is the reference saying that the model has no fp64, and the policy admits another measure."""
        return (
            self.inputs.policy.checks.reference != "fp64"
            and outcome.job.job_id == REFERENCE
            and isinstance(outcome, Declined)
            and outcome.refusal.kind is RefusalKind.MODEL
            and outcome.first_failure is None  # else the device is as likely to blame
        )

    def _evidence(
        self,
        rows: Sequence[Backend],
        *,
        probe: Outcome,
        facts: ModelFacts | None,
        made: "Made",
        runs: dict[str, BackendEvidence] | None,
    ) -> Evidence:
        """Put the evidence together, with the negative control last: it judges with everything else in place."""
        backends = runs or {row.name: BackendEvidence(row=row, outcome=None) for row in rows}
        evidence = Evidence(
            samples=self.inputs.golden.samples,
            golden_digest=self.inputs.golden.digest,
            weights_digest=self.inputs.staged.weights_digest,
            facts=facts,
            probe=probe,
            export=made.export,
            weights=made.weights,
            onnx_required=needs_onnx(rows),
            has_onnx=made.onnx is not None,
            backends=tuple(backends[row.name] for row in rows),
            variety=variety_of(backends, self.inputs.golden),
            strata=self.inputs.golden.strata,
            labels=self.inputs.golden.read_labels(),
            strange=self.inputs.strange,
            labelled=self.inputs.golden.labelled_output,
        )
        return replace(evidence, control=plant_fault(self.inputs.policy, evidence, self.inputs.golden))


@dataclass(slots=True, kw_only=True)
class Made:
    """The ONNX file of a check, the export that made it, and what compared it. Filled in while the runs go on."""

    onnx: OnnxFile | None
    export: Outcome | None = None
    weights: Outcome | None = None

    def take_export(self, outcome: Outcome, folder: Path) -> None:
        """Note what became of the export, and take the file to where the others may see it.

        Raises:
            FormatRefused: it is no regular file.
        """
        self.export = self.weights = outcome
        if isinstance(outcome, Completed) and outcome.exported is not None:
            folder.mkdir(mode=0o700, exist_ok=True)
            file = describe_onnx(take_export(outcome.exported, folder), OnnxOrigin.EXPORT, "the staged program")
            self.onnx = replace(file, source="exported")


def _reference_device(probe: Outcome) -> str:
    """Return `cuda` where the probe's process saw a GPU: fp64 there is 60 times faster, and equal to 4e-15."""
    found = probe.environment.fingerprint.get("gpu", "none") if isinstance(probe, Completed) else "none"
    return "cpu" if found in ("none", "unreadable") else "cuda"


def retries(evidence: Evidence) -> tuple[str, ...]:
    """Say which jobs needed a second process."""
    return tuple(
        f"{outcome.job.job_id}: {outcome.first_failure}"
        for b in evidence.backends
        for outcome in (b.outcome, b.fresh.outcome if b.fresh is not None else None)
        if outcome is not None and outcome.first_failure is not None
    )
