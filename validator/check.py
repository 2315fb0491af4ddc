"""The use case behind `validator check`: from a URI to a verdict on disk, then to MLflow.

Writing and annotating are separate steps after judging, in that order: a failed annotation cannot lose the report.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from validator.attest.keyless import KeylessSigner, find_token
from validator.attest.keys import load_signer
from validator.attest.sealing import AnySigner, describe_signer, read_sealed, signed_by
from validator.backends.catalog import find_backend
from validator.cache.reuse import Reuse, open_reuse
from validator.cache.store import CachePlace
from validator.clearance import CLEARANCE_NAME, make_clearance
from validator.disk import copy_whole, remove, sweep_drafts
from validator.errors import AnnotationFailed, IntegrityError, ReportFailed, UsageError
from validator.inputs import open_inputs, verify_unchanged
from validator.judge import Verdict, judge
from validator.plan import choose_rows, foresee_workers
from validator.policy import Policy
from validator.policy_source import find_policy
from validator.registry.interface import Annotation, AnnotationReceipt, Registry, resolve_text
from validator.report.annotation import annotation_metrics, description_block, run_name, version_tags
from validator.report.build import RunInfo, build_document, describe_sandbox
from validator.report.formats import RENDERED, REPORT_NAME, Format, Material, write_reports
from validator.report.model import VerdictDocument
from validator.report.previews import PREVIEWS_NAME, make_previews
from validator.report.progress import Progress
from validator.report.samples import SAMPLES_NAME, samples_table
from validator.report.write import write_document, write_text
from validator.runs import Run, open_executor, open_sandbox, retries, threads_of
from validator.sandbox.level import Level, Request
from validator.sandbox.machine import machine_has_gpu
from validator.scratch import scratch_folder
from validator.subject import EXPORTED_NAMES, OnnxFile, OnnxOrigin, Subject
from validator.worker.outcome import Reused
from validator.worker.warm import WarmSpec

VERDICT_NAME = "verdict.json"
ONNX_FOLDER = "onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What the user asked for."""

    uri: str
    output: Path
    """Folder for verdict.json, the exported ONNX file and reports."""
    formats: tuple[Format, ...] = (Format.HTML,)
    """In which the report is written there, beside verdict.json."""
    previews: bool = True
    """Whether what the worst samples look like is kept there, and shown by the report."""
    policy: str = "default"
    """Path of a TOML file, the name of a built-in policy, or a model URI."""
    policy_ref: str | None = None
    """Git ref that the file is read from; None: the file itself."""
    golden: str | None = None
    """Folder or URI; None: the policy's."""
    onnx: str | None = None
    """File, folder or URI; None: tag, artifact or export."""
    backends: tuple[str, ...] = ()
    """Added to the required ones."""
    annotate: bool = True
    command: tuple[str, ...] = ()
    """To repeat the check."""
    sandbox: Request = Request.AUTO
    """How strongly workers are held; the policy may ask for more."""
    sign_key: Path | None = None
    """Private key that a pass is signed with; None: no clearance is written, unless it is signed keyless."""
    sign_keyless: KeylessSigner | None = None
    """Signs a pass with this process's identity."""
    lifetime: timedelta = timedelta(days=7)
    """How long the clearance is good for."""
    cache: CachePlace | None = None
    """Where results of earlier checks lie; None: everything is computed, and nothing is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What came of it."""

    document: VerdictDocument
    verdict: Verdict
    path: Path
    """Of verdict.json."""
    clearance: Path | None = None
    """Of clearance.json; only a pass has one, and only if it was to be signed."""
    receipt: AnnotationReceipt | None = None
    annotation_error: AnnotationFailed | None = None
    """The verdict stands; MLflow does not show it."""


def check(request: CheckRequest, registry: Registry, progress: Progress) -> CheckResult:
    """Check a registered model and write its verdict.

    Raises:
        ValidatorError: the gate could not do its work; no verdict is written then.
    """
    started, began_s = datetime.now(UTC), time.monotonic()
    made_by = Reused(check_id=secrets.token_hex(8), created_utc=started.strftime("%Y-%m-%dT%H:%M:%SZ"))
    source = find_policy(request.policy, ref=request.policy_ref, open_registry=lambda: registry)
    policy = source.policy
    # Before anything else: a key that cannot be used is found now, and no worker runs beside it unread.
    signer = open_signer(request)
    for name in request.backends:
        find_backend(name, policy.rows)
    discard_old_verdict(request.output)
    golden = request.golden or policy.golden
    with scratch_folder() as scratch, ExitStack() as exits:
        rows = choose_rows(policy, request.backends, reference_device="cpu")
        sandbox = open_sandbox(policy, request.sandbox, rows, scratch, progress)
        executor = exits.enter_context(open_executor(policy, scratch, progress, sandbox=sandbox, golden=golden))
        executor.prepare(foresee(policy, request))
        subject = resolve_text(registry, request.uri)
        progress.stage("resolve", f"{request.uri} is {subject.title}, registry {registry.uri}")
        if signer is not None and subject.name is None:
            raise UsageError(
                f"{subject.title} is no registered version, and a clearance is about one",
                hint="name one, like models:/NAME/3, or leave out --sign-key and --sign-keyless",
            )
        if request.annotate:
            exits.enter_context(withdrawing_if_refused(registry, subject))
        inputs = open_inputs(
            policy,
            subject,
            registry,
            scratch,
            progress,
            golden=request.golden,
            onnx=request.onnx,
            sandbox=sandbox,
        )
        reuse = (
            None
            if request.cache is None
            else open_cache(request.cache, made_by, policy, sandbox.weakest, scratch, progress)
        )
        if reuse is not None:
            exits.enter_context(reuse)
        evidence, onnx = Run(inputs=inputs, executor=executor, reuse=reuse).gather(request.backends)
        verify_unchanged(inputs.staged, onnx, inputs.golden)
        progress.stage("judge", f"{len(evidence.backends)} backends")
        decision = judge(policy, evidence, started.date())
        info = RunInfo(
            check_id=made_by.check_id,
            created_utc=made_by.created_utc,
            # Not by the clock of the wall, which may be set back meanwhile.
            duration_s=round(time.monotonic() - began_s, 3),
            command=request.command,
            policy_origin=source.origin,
            sandbox=describe_sandbox(sandbox, policy, executor.confined),
            retries=retries(evidence),
            cautions=() if reuse is None else tuple(reuse.cautions),
        )
        document = build_document(
            run=info,
            staged=inputs.staged,
            program=inputs.program,
            onnx=onnx,
            golden=inputs.golden,
            golden_uri=inputs.golden_uri,
            policy=policy,
            evidence=evidence,
            decision=decision,
        )
        if request.previews:
            write_text(make_previews(document, inputs.golden).to_json(), request.output / PREVIEWS_NAME)
        path = write_evidence(document, samples_table(policy, evidence, inputs.golden), onnx, request.output)
        progress.stage("write", str(path))
        # After the verdict, which stands whatever becomes of them; before it is signed or shown: they were asked for.
        write_reports(request.formats, Material(document=document, folder=request.output), request.output)
        result = CheckResult(document=document, verdict=decision.verdict, path=path)
        if signer is not None and decision.verdict is Verdict.PASS:
            clearance = write_clearance(document, signer, request)
            result = replace(result, clearance=clearance)
            who = describe_signer(signed_by(read_sealed(clearance.read_bytes())), short=True)
            progress.stage("sign", f"{clearance}, {who}")
        return annotate(result, subject, registry, request.output, progress) if request.annotate else result


# --- Before and after ---------------------------------------------------------------------------------------------


def foresee(policy: Policy, request: CheckRequest) -> list[WarmSpec]:
    """List the workers that can get ready while the model is resolved and staged.

    Whether there is a GPU is guessed here: a wrong guess leaves a worker without a job, and a job without a worker.
    """
    has_gpu = machine_has_gpu()
    return foresee_workers(
        choose_rows(policy, request.backends, reference_device="cuda" if has_gpu else "cpu"),
        threads=threads_of(policy),
        has_gpu=has_gpu,
        fresh_process=policy.checks.fresh_process,
    )


def open_cache(
    place: CachePlace, made_by: Reused, policy: Policy, held: Level, scratch: Path, progress: Progress
) -> Reuse:
    """Open the cache for one check; nobody is waited for longer than a worker may take."""
    return open_reuse(
        place,
        made_by=made_by,
        sandbox=held.value,
        scratch=scratch,
        wait_s=policy.worker.deadline_s,
        say=lambda text: progress.stage("reuse", text),
    )


def discard_old_verdict(output: Path) -> None:
    """Remove an earlier check's files: if this check ends without, the old ones must not be taken for its result.

    The clearance goes first and the verdict next, so that neither ever stands without what it speaks about.

    Raises:
        ReportFailed: it cannot be removed.
    """
    try:
        exported = (f"{ONNX_FOLDER}/{name}" for name in EXPORTED_NAMES)
        for name in (CLEARANCE_NAME, VERDICT_NAME, SAMPLES_NAME, PREVIEWS_NAME, *RENDERED, *exported):
            remove(output / name)
            sweep_drafts((output / name).parent, [Path(name).name])
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


# --- The evidence on disk and in MLflow -----------------------------------------------------------------------


def write_evidence(document: VerdictDocument, samples: str, onnx: OnnxFile | None, output: Path) -> Path:
    """Write the evidence, and last the verdict: where it stands, everything else does.

    That is the per-sample table, and the ONNX file if the gate made it, so that what was tested can be served.

    Raises:
        ReportFailed: it could not be written; nothing half-written stays.
    """
    if onnx is not None and onnx.origin is OnnxOrigin.EXPORT:
        copy_files(onnx.path.parent, output / ONNX_FOLDER)
    write_text(samples, output / SAMPLES_NAME)
    return write_document(document, output / VERDICT_NAME)


def open_signer(request: CheckRequest) -> AnySigner | None:
    """Return what a pass is signed with, once it is known that it can be used.

    Raises:
        KeyFileError: the key cannot be used.
        KeylessError: sigstore is not installed, or there is no identity token.
        UsageError: both ways are asked for.
    """
    if request.sign_key is not None and request.sign_keyless is not None:
        raise UsageError(
            "a clearance is signed by a key or keyless, not both",
            hint="leave out --sign-keyless, or --sign-key and VALIDATOR_SIGN_KEY",
        )
    if request.sign_keyless is not None:
        # Found again when it signs: a token lives for minutes. One that is not there now will not be there then.
        find_token(request.sign_keyless)
        return request.sign_keyless
    return None if request.sign_key is None else load_signer(request.sign_key)


def write_clearance(document: VerdictDocument, signer: AnySigner, request: CheckRequest) -> Path:
    """Sign a pass, and write the clearance after all that it speaks about.

    Raises:
        ClearanceRefused: the document is not one that a clearance can be given for.
        KeylessError: the identity token is gone.
        SigstoreUnreachable: no keyless signature could be had.
        ReportFailed: it could not be written.
    """
    clearance = make_clearance(
        document, signer=signer, now=datetime.now(UTC), lifetime=request.lifetime, nonce=secrets.token_hex(16)
    )
    return write_text(clearance.decode(), request.output / CLEARANCE_NAME)


def copy_files(source: Path, target: Path) -> None:
    """Copy a flat folder's files, each whole or not at all.

    Raises:
        ReportFailed: the target cannot be written.
    """
    try:
        for path in sorted(source.iterdir()):
            copy_whole(path, target / path.name)
    except OSError as error:
        raise ReportFailed(f"{target} cannot be written: {error.strerror}", hint="name another --output") from error


def annotate(
    result: CheckResult, subject: Subject, registry: Registry, output: Path, progress: Progress
) -> CheckResult:
    """Write the verdict to MLflow. A failure is kept in the result and changes no verdict."""
    document = result.document
    artifacts = {VERDICT_NAME: result.path, SAMPLES_NAME: output / SAMPLES_NAME}
    has_page = (output / REPORT_NAME).is_file()
    if has_page:
        artifacts[REPORT_NAME] = output / REPORT_NAME
    if result.clearance is not None:
        artifacts[CLEARANCE_NAME] = result.clearance
    if document.onnx is not None and document.onnx.origin == OnnxOrigin.EXPORT:
        for name in EXPORTED_NAMES:
            if (output / ONNX_FOLDER / name).is_file():
                artifacts[f"{ONNX_FOLDER}/{name}"] = output / ONNX_FOLDER / name
    annotation = Annotation(
        subject=subject,
        check_id=document.check_id,
        verdict=document.verdict,
        run_name=run_name(document),
        description_block=description_block(document, report_uri=REPORT_NAME if has_page else VERDICT_NAME),
        version_tags=version_tags(document),
        metrics=annotation_metrics(document),
        artifacts=artifacts,
        dataset=(document.golden.name, document.golden.digest),
        clearance=None if result.clearance is None else result.clearance.read_text(encoding="utf-8"),
    )
    try:
        receipt = registry.annotate(annotation)
    except AnnotationFailed as error:
        return replace(result, annotation_error=error)
    progress.stage("annotate", receipt.run_uri)
    return replace(result, receipt=receipt)
