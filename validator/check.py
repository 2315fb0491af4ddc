"""The use case behind `validator check`: from a URI to a verdict on disk, then to MLflow.

Writing and annotating are separate steps after judging, in that order: a failed annotation cannot lose the report.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from validator.backends.catalog import Backend, find_backend
from validator.backends.interface import ModelFacts
from validator.errors import (
    AnnotationFailed,
    CouldNotRun,
    DigestChanged,
    FormatRefused,
    GoldenError,
    IntegrityError,
    PolicyError,
    ReportFailed,
)
from validator.evidence import compare_runs, plant_fault, variety_of
from validator.executors.local import LocalExecutor, machine_has_gpu
from validator.golden.dataset import GoldenDataset, open_golden
from validator.judge import BackendEvidence, Evidence, Verdict, judge
from validator.manifest import measure_folder
from validator.plan import (
    Target,
    check_fit,
    choose_rows,
    export_worker,
    foresee_workers,
    needs_onnx,
    plan_export,
    plan_probe,
    plan_runs,
)
from validator.policy import BUILT_IN, Policy, parse_policy
from validator.registry.interface import Annotation, AnnotationReceipt, Registry, resolve_text
from validator.report.annotation import annotation_metrics, description_block, version_tags
from validator.report.build import RunInfo, build_document
from validator.report.model import VerdictDocument
from validator.report.progress import Progress
from validator.report.write import write_document
from validator.subject import (
    OnnxFile,
    OnnxOrigin,
    Program,
    ProgramFormat,
    StagedModel,
    Subject,
    find_onnx,
    find_program,
)
from validator.worker.launch import Limits
from validator.worker.outcome import Completed, Outcome
from validator.worker.protocol import ExportJob
from validator.worker.warm import WarmSpec

ONNX_TAG = "validator.onnx"
VERDICT_NAME = "verdict.json"
ONNX_FOLDER = "onnx"
EXPORTED_NAMES = ("model.onnx", "model.onnx.data")
"""Files that an export by the gate consists of; the second one only for models too large for one."""
LARGE_MACHINE_CORES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What the user asked for."""

    uri: str
    output: Path
    """Folder for verdict.json and the exported ONNX file."""
    policy: str = "default"
    """Path of a TOML file, or the name of a built-in policy."""
    golden: str | None = None
    """Folder or URI; None: the policy's."""
    onnx: str | None = None
    """File, folder or URI; None: tag, artifact or export."""
    backends: tuple[str, ...] = ()
    """Added to the required ones."""
    annotate: bool = True
    command: tuple[str, ...] = ()
    """To repeat the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What came of it."""

    document: VerdictDocument
    verdict: Verdict
    path: Path
    """Of verdict.json."""
    receipt: AnnotationReceipt | None = None
    annotation_error: AnnotationFailed | None = None
    """The verdict stands; MLflow does not show it."""


def check(request: CheckRequest, registry: Registry, progress: Progress) -> CheckResult:
    """Check a registered model and write its verdict.

    Raises:
        ValidatorError: the gate could not do its work; no verdict is written then.
    """
    started = datetime.now(UTC)
    policy = load_policy(request.policy)
    for name in request.backends:
        find_backend(name, policy.rows)
    discard_old_verdict(request.output)
    with (
        scratch_folder() as scratch,
        open_executor(policy, scratch, progress) as executor,
        ExitStack() as refusal,
    ):
        executor.prepare(foresee(policy, request))
        subject = resolve_text(registry, request.uri)
        progress.stage("resolve", f"{request.uri} is {subject.title}, registry {registry.uri}")
        if request.annotate:
            refusal.enter_context(withdrawing_if_refused(registry, subject))
        staged = registry.stage(subject, scratch / "subject")
        program = admit_program(staged, policy)
        progress.stage("stage", f"{staged.manifest.size_bytes / 1e6:,.0f} MB, {staged.manifest.digest[:15]}")
        golden_uri, golden = open_golden_uri(request.golden or policy.golden, registry, scratch / "golden")
        progress.stage("golden", f"{golden.manifest.name}, {golden.samples} samples, {golden.digest[:15]}")
        onnx = find_onnx_file(request.onnx, staged, registry, scratch / "onnx")
        run = Run(policy=policy, staged=staged, program=program, golden=golden, scratch=scratch, executor=executor)
        evidence, onnx = run.gather(request.backends, onnx)
        verify_unchanged(staged, onnx, golden)
        progress.stage("judge", f"{len(evidence.backends)} backends")
        decision = judge(policy, evidence, started.date())
        info = RunInfo(
            check_id=secrets.token_hex(8),
            created_utc=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            duration_s=round((datetime.now(UTC) - started).total_seconds(), 3),
            command=request.command,
            policy_origin=request.policy,
            sandbox="none",
            retries=retries(evidence),
        )
        document = build_document(
            run=info,
            staged=staged,
            program=program,
            onnx=onnx,
            golden=golden,
            golden_uri=golden_uri,
            policy=policy,
            evidence=evidence,
            decision=decision,
        )
        path = write_evidence(document, onnx, request.output)
        progress.stage("write", str(path))
        result = CheckResult(document=document, verdict=decision.verdict, path=path)
        return annotate(result, subject, registry, request.output, progress) if request.annotate else result


# --- What is needed before anything runs ----------------------------------------------------------------------


def load_policy(name: str) -> Policy:
    """Read a policy file, or take a built-in one by name.

    Raises:
        PolicyError: no such file, or one that cannot be used.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PolicyError(
            f"policy {name} cannot be read: {reason}",
            hint=f"name a TOML file or a built-in policy: {', '.join(BUILT_IN)}",
        ) from error
    return parse_policy(text, origin=name)


def discard_old_verdict(output: Path) -> None:
    """Remove an earlier verdict and export: if this check ends without, the old ones must not be taken for its result.

    Raises:
        ReportFailed: it cannot be removed.
    """
    try:
        for name in (VERDICT_NAME, *(f"{ONNX_FOLDER}/{name}" for name in EXPORTED_NAMES)):
            (output / name).unlink(missing_ok=True)
    except OSError as error:
        raise ReportFailed(
            f"{output} cannot be used: {error.strerror}", hint="name another folder with --output"
        ) from error


@contextmanager
def withdrawing_if_refused(registry: Registry, subject: Subject) -> Iterator[None]:
    """Take an earlier verdict off the version when this check ends in a refusal: there is no document to replace it."""
    try:
        yield
    except IntegrityError as error:
        try:
            registry.withdraw(subject)
        except AnnotationFailed as failure:
            raise type(error)(
                f"{error.message}; and {subject.title} may still carry an earlier verdict: {failure.message}",
                hint=error.hint,
            ) from error
        raise


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a private folder outside the working directory, and remove it with all that is in it.

    Raises:
        CouldNotRun: there is no place for one.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="validator-")
    except OSError as error:
        raise CouldNotRun(f"no scratch folder can be made: {error.strerror}", hint="set TMPDIR") from error
    with folder as name:
        yield Path(name)


def admit_program(staged: StagedModel, policy: Policy) -> Program:
    """Find the subject's program and require that the policy allows its format.

    Raises:
        FormatRefused: no program, or a format that runs code when it is loaded.
    """
    program = find_program(staged)
    if program.format is not ProgramFormat.EXPORTED and not policy.formats.pickle:
        relative = program.path.relative_to(staged.folder)
        raise FormatRefused(
            f"{relative} is a {program.format.value} file; this policy allows none",
            hint="log it again as torch.export (MLflow's default), or set formats.pickle = true in the policy",
        )
    return program


def open_golden_uri(uri: str | None, registry: Registry, folder: Path) -> tuple[str, GoldenDataset]:
    """Open a golden dataset from a local folder or from the registry.

    Raises:
        GoldenError: none was named, or it cannot be used.
        UriError: it is not in the registry.
    """
    if uri is None:
        raise GoldenError(
            "no golden dataset is named",
            hint="name one with --golden FOLDER, or with `golden` in the policy; make one: validator golden create",
        )
    path = registry.fetch(uri, folder) if ":/" in uri else Path(uri)
    return uri, open_golden(path)


def find_onnx_file(option: str | None, staged: StagedModel, registry: Registry, folder: Path) -> OnnxFile | None:
    """Find the ONNX file to validate: the option, the version's tag, the subject's artifacts. None: export one.

    Raises:
        FormatRefused: what was named holds no ONNX file, or several.
    """
    tagged = dict(staged.subject.tags).get(ONNX_TAG)
    if option is None and tagged is not None and not tagged.startswith(("models:/", "runs:/")):
        # Whoever may edit the version writes its tags; only the registry's own bytes may be named there.
        raise FormatRefused(
            f"the tag {ONNX_TAG} of {staged.subject.title} is {tagged!r}, which is no models:/ or runs:/ URI",
            hint="register the ONNX file and name its version, or use --onnx",
        )
    for source, origin in ((option, OnnxOrigin.OPTION), (tagged, OnnxOrigin.TAG)):
        if source is None:
            continue
        local = Path(source)
        fetched = registry.fetch(source, folder) if ":/" in source else copy_onnx(local, folder)
        return _onnx_file(fetched, origin, source)
    own = find_onnx(staged)
    if own is None:
        return None
    return _onnx_file(own, OnnxOrigin.ARTIFACT, own.relative_to(staged.folder).as_posix())


def copy_onnx(source: Path, folder: Path) -> Path:
    """Copy an ONNX file and the data files beside it, or a folder, so that nobody changes it under the check.

    Raises:
        FormatRefused: it does not exist or cannot be read.
    """
    try:
        if source.is_dir():
            return Path(shutil.copytree(source, folder, symlinks=True))
        folder.mkdir()
        for path in [source, *sorted(source.parent.glob("*.data"))]:
            shutil.copy2(path, folder / path.name, follow_symlinks=False)
    except OSError as error:
        raise FormatRefused(f"{source} cannot be read: {error.strerror}") from error
    return folder / source.name


def _onnx_file(path: Path, origin: OnnxOrigin, source: str) -> OnnxFile:
    """Describe the one ONNX file at a path.

    Raises:
        FormatRefused: none, or several.
    """
    found = sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
    if len(found) != 1 or not found[0].is_file():
        raise FormatRefused(f"{source} holds {len(found) if path.is_dir() else 'no'} ONNX files, one is needed")
    return OnnxFile(path=found[0], manifest=measure_folder(found[0].parent), origin=origin, source=source)


# --- The workers ----------------------------------------------------------------------------------------------


def threads_of(policy: Policy) -> int:
    """Return the CPU threads of rows on the CPU.

    On a large machine two cores are left to the other workers: a parallel loop is as slow as its slowest thread, and
    one shared core would halve the speed of all of them.
    """
    cores = len(os.sched_getaffinity(0))
    return policy.worker.threads or (cores if cores < LARGE_MACHINE_CORES else cores - 2)


def open_executor(policy: Policy, scratch: Path, progress: Progress) -> LocalExecutor:
    """Make what runs the workers, with the policy's limits. To be closed before the scratch folder is removed."""
    return LocalExecutor(
        scratch=scratch,
        limits=Limits(deadline_s=policy.worker.deadline_s),
        jobs_per_gpu=policy.worker.jobs_per_gpu,
        on_event=progress.job,
    )


def foresee(policy: Policy, request: CheckRequest) -> list[WarmSpec]:
    """List the workers that can get ready while the model is resolved and staged.

    Whether there is a GPU is guessed here: a wrong guess leaves a worker without a job, and a job without a worker.
    """
    has_gpu = machine_has_gpu()
    return foresee_workers(
        choose_rows(policy, request.backends, reference_device="cuda" if has_gpu else "cpu"),
        threads=threads_of(policy),
        has_gpu=has_gpu,
        may_export=request.onnx is None,
    )


# --- The runs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that the workers work on."""

    policy: Policy
    staged: StagedModel
    program: Program
    golden: GoldenDataset
    scratch: Path
    executor: LocalExecutor

    def gather(self, extra: Sequence[str], onnx: OnnxFile | None) -> tuple[Evidence, OnnxFile | None]:
        """Probe, run, compare. Returns the evidence and the ONNX file, which may have been exported here."""
        if onnx is not None:
            self.executor.dismiss(export_worker(self.threads))
        self.executor.submit(plan_probe(self.program, self.golden, threads=self.threads))
        (probe,) = self.executor.outcomes()
        facts = probe.facts if isinstance(probe, Completed) else None
        if facts is not None:
            check_fit(self.golden, facts)
        rows = choose_rows(self.policy, extra, reference_device=_reference_device(probe))
        made = Made(onnx=onnx)
        runs = (
            None if facts is None or facts.training else compare_runs(rows, self._run(rows, facts, made), self.golden)
        )
        return self._evidence(rows, probe=probe, facts=facts, made=made, runs=runs), made.onnx

    @property
    def threads(self) -> int:
        """CPU threads of rows on the CPU."""
        return threads_of(self.policy)

    def _run(self, rows: Sequence[Backend], facts: ModelFacts, made: "Made") -> Iterator[Outcome]:
        """Run the program's rows beside the export, and the ONNX file's rows as soon as there is one."""
        target = Target(program=self.program, onnx=made.onnx, golden=self.golden, facts=facts)
        for job in plan_runs(self.policy, rows, target, threads=self.threads):
            self.executor.submit(job)
        if made.onnx is None and needs_onnx(rows):
            destination = self.scratch / "export" / "model.onnx"
            destination.parent.mkdir()
            self.executor.submit(plan_export(target, destination, threads=self.threads))
        for outcome in self.executor.outcomes():
            if not isinstance(outcome.job, ExportJob):
                yield outcome
                continue
            made.take_export(outcome)
            onnx_rows = [row for row in rows if needs_onnx([row])]
            for job in plan_runs(self.policy, onnx_rows, replace(target, onnx=made.onnx), threads=self.threads):
                self.executor.submit(job)

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
            samples=self.golden.samples,
            golden_digest=self.golden.digest,
            weights_digest=self.staged.weights_digest,
            facts=facts,
            probe=probe,
            export=made.export,
            onnx_required=needs_onnx(rows),
            has_onnx=made.onnx is not None,
            backends=tuple(backends[row.name] for row in rows),
            variety=variety_of(backends, self.golden),
        )
        return replace(evidence, control=plant_fault(self.policy, evidence, self.golden))


@dataclass(slots=True, kw_only=True)
class Made:
    """The ONNX file of a check, and the export that made it. Filled in while the runs go on."""

    onnx: OnnxFile | None
    export: Outcome | None = None

    def take_export(self, outcome: Outcome) -> None:
        """Note what became of the export."""
        self.export = outcome
        facts = outcome.export if isinstance(outcome, Completed) else None
        if facts is not None and facts.path is not None:
            file = _onnx_file(Path(facts.path), OnnxOrigin.EXPORT, "the staged program")
            self.onnx = replace(file, source="exported")


def _reference_device(probe: Outcome) -> str:
    """Return `cuda` where the probe's process saw a GPU: fp64 there is 60 times faster, and equal to 4e-15."""
    found = probe.environment.fingerprint.get("gpu", "none") if isinstance(probe, Completed) else "none"
    return "cpu" if found in ("none", "unreadable") else "cuda"


def retries(evidence: Evidence) -> tuple[str, ...]:
    """Say which jobs needed a second process."""
    return tuple(
        f"{b.row.name}: {b.outcome.first_failure}"
        for b in evidence.backends
        if b.outcome is not None and b.outcome.first_failure is not None
    )


def verify_unchanged(staged: StagedModel, onnx: OnnxFile | None, golden: GoldenDataset) -> None:
    """Hash what was tested once more: the workers ran somebody else's code beside it.

    Raises:
        DigestChanged: the bytes are not those that were staged.
    """
    pairs = [(staged.folder, staged.manifest)]
    if onnx is not None:
        pairs.append((onnx.path.parent, onnx.manifest))
    for folder, before in pairs:
        after = measure_folder(folder)
        if after.digest != before.digest:
            raise DigestChanged(
                f"{staged.subject.title} changed while it was checked: {before.digest[:15]} became {after.digest[:15]}",
                hint="a worker wrote to what it was given: do not trust this model",
            )
    try:
        reopened = open_golden(golden.folder).digest
    except GoldenError as error:
        reopened = error.message
    if reopened != golden.digest:
        raise DigestChanged(
            f"the golden dataset {golden.folder} changed while {staged.subject.title} was checked",
            hint="find out who wrote to it, then check again",
        )


# --- The evidence on disk and in MLflow -----------------------------------------------------------------------


def write_evidence(document: VerdictDocument, onnx: OnnxFile | None, output: Path) -> Path:
    """Write verdict.json, and beside it the ONNX file if the gate made it, so that what was tested can be served.

    Raises:
        ReportFailed: it could not be written; nothing half-written stays.
    """
    if onnx is not None and onnx.origin is OnnxOrigin.EXPORT:
        copy_files(onnx.path.parent, output / ONNX_FOLDER)
    return write_document(document, output / VERDICT_NAME)


def copy_files(source: Path, target: Path) -> None:
    """Copy a flat folder's files, each whole or not at all.

    Raises:
        ReportFailed: the target cannot be written.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.iterdir()):
            draft = target / f".{path.name}.{secrets.token_hex(4)}.draft"
            try:
                shutil.copyfile(path, draft)
                draft.replace(target / path.name)
            finally:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise ReportFailed(f"{target} cannot be written: {error.strerror}", hint="name another --output") from error


def annotate(
    result: CheckResult, subject: Subject, registry: Registry, output: Path, progress: Progress
) -> CheckResult:
    """Write the verdict to MLflow. A failure is kept in the result and changes no verdict."""
    document = result.document
    artifacts = {VERDICT_NAME: result.path}
    if document.onnx is not None and document.onnx.origin == OnnxOrigin.EXPORT:
        for name in EXPORTED_NAMES:
            if (output / ONNX_FOLDER / name).is_file():
                artifacts[f"{ONNX_FOLDER}/{name}"] = output / ONNX_FOLDER / name
    annotation = Annotation(
        subject=subject,
        check_id=document.check_id,
        verdict=document.verdict,
        headline=document.headline,
        description_block=description_block(document, report_uri=VERDICT_NAME),
        version_tags=version_tags(document),
        metrics=annotation_metrics(document),
        artifacts=artifacts,
        dataset=(document.golden.name, document.golden.digest),
    )
    try:
        receipt = registry.annotate(annotation)
    except AnnotationFailed as error:
        return replace(result, annotation_error=error)
    progress.stage("annotate", receipt.run_uri)
    return replace(result, receipt=receipt)
