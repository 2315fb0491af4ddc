"""Writing a verdict to MLflow: artifacts first, the verdict tag last, all of it read back.

What may not be changed lightly: the order. A reader who sees `validator.verdict` may rely on everything else being
there. And repeating: a check has one run, found by its id; numbers carry the run's own start as their timestamp, so
that a retried POST (MLflow retries all of them up to 3.17) meets the primary key instead of doubling the history.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from validator.errors import AnnotationFailed, GuardRefused, ValidatorError
from validator.registry.connection import MISSING, Connection, strip_credentials
from validator.registry.evidence import missing_artifacts, upload_artifacts
from validator.registry.interface import (
    CHECK_TAG,
    CLEARANCE_TAG,
    RUN_TAG,
    SUBJECT_TAG,
    VERDICT_TAG,
    Annotation,
    AnnotationReceipt,
)
from validator.registry.publish import ensure_experiment
from validator.registry.targets import TagTarget, find_target, write_description

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run

    from validator.subject import Subject

RUN_TAG_LIMIT = 8_000
"""Longer ones MLflow cuts without saying so."""
VERSION_TAG_LIMIT = 1_000
"""Ours; the column takes 5,000 at least."""
PARAM_LIMIT = 6_000
KEY_LIMIT = 250
RUN_NAME_LIMIT = 250
DATASET_DIGEST_LIMIT = 36
REPORT_NAMES = ("report.html", "verdict.json")
"""Among the artifacts; a block calls the report by one of these names: it is written before there is a run."""
AGAIN = "the verdict stands; annotating again is safe"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """One annotation on its way."""

    connection: Connection
    annotation: Annotation
    warnings: list[str] = field(default_factory=list)


def write_annotation(connection: Connection, annotation: Annotation) -> AnnotationReceipt:
    """See Registry.annotate."""
    _check_limits(annotation)
    writing = _Writing(connection=connection, annotation=annotation)
    with _failing_as_annotation():
        connection.probe()
        run = _find_or_create_run(writing)
        run_id = run.info.run_id
        upload_artifacts(connection, run_id, annotation.artifacts)
        _log_numbers(writing, run)
        _tag_run(writing, run_id)
        _tag_training_run(writing, run_id)
        _read_run_back(writing, run_id)
        target = find_target(connection, annotation.subject)
        tags = _tags_for(annotation, run_id)
        if target is None:
            writing.warnings.append("the subject has no version and no logged model: only the run says the verdict")
            tags = {}
        else:
            block = link_report(annotation.description_block, _run_uri(connection, run))
            tags = _annotate_target(writing, target, tags, block)
        if run.info.status != "FINISHED":
            with connection.writing("closing the run"):
                connection.client.set_terminated(run_id, "FINISHED")
        _close_killed(writing, run)
    return AnnotationReceipt(
        run_id=run_id, run_uri=_run_uri(connection, run), version_tags=tags, warnings=tuple(writing.warnings)
    )


def withdraw_verdict(connection: Connection, subject: "Subject") -> None:
    """See Registry.withdraw."""
    with _failing_as_annotation():
        connection.probe()
        target = find_target(connection, subject)
        if target is not None and VERDICT_TAG in target.tags():
            target.delete_tag(VERDICT_TAG)


@contextmanager
def _failing_as_annotation() -> Iterator[None]:
    try:
        yield
    except AnnotationFailed:
        raise
    except ValidatorError as error:
        raise AnnotationFailed(f"MLflow was not annotated: {error.message}", hint=AGAIN) from error


# --- The run --------------------------------------------------------------------------------------------------


def _find_or_create_run(writing: _Writing) -> "Run":
    """Return the check's run. A POST that was retried may have made two: the first is kept."""
    client = writing.connection.client
    experiment_id = ensure_experiment(writing.connection)
    if not (runs := _find_runs(writing, experiment_id)):
        with writing.connection.writing("creating the run"):
            client.create_run(
                experiment_id,
                tags={CHECK_TAG: writing.annotation.check_id, SUBJECT_TAG: _subject_of(writing.annotation)},
                run_name=writing.annotation.run_name[:RUN_NAME_LIMIT],
            )
        runs = _find_runs(writing, experiment_id)
    if not runs:
        raise AnnotationFailed("the run was created and is not found again", hint=AGAIN)
    for twin in runs[1:]:
        with writing.connection.writing("deleting a second run of this check"):
            client.delete_run(twin.info.run_id)
    return runs[0]


def _find_runs(writing: _Writing, experiment_id: str) -> "list[Run]":
    with writing.connection.doing("looking for the run of this check"):
        found = writing.connection.client.search_runs(
            [experiment_id], f"tags.`{CHECK_TAG}` = '{writing.annotation.check_id}'"
        )
    return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))


def _close_killed(writing: _Writing, own: "Run") -> None:
    """Close the runs of earlier checks of this subject that never came to their end.

    A check that is still at it closes its run itself, after this.
    """
    client, subject = writing.connection.client, _subject_of(writing.annotation)
    with writing.connection.doing("looking for runs of checks that were killed"):
        found = client.search_runs(
            [own.info.experiment_id], f"tags.`{SUBJECT_TAG}` = '{subject}' and attributes.status = 'RUNNING'"
        )
    for run in found:
        if run.info.run_id != own.info.run_id:
            with writing.connection.writing("closing the run of a check that was killed"):
                client.set_terminated(run.info.run_id, "KILLED")


def _subject_of(annotation: Annotation) -> str:
    """Name what was checked; a version that was made again under the same number is another subject."""
    subject = annotation.subject
    text = f"{subject.pinned_uri} {subject.creation_timestamp_ms or ''}".strip()
    return text.replace("'", "")


def _log_numbers(writing: _Writing, run: "Run") -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param

    client, annotation = writing.connection.client, writing.annotation
    params = [Param(key, value) for key, value in sorted(annotation.params.items())]
    metrics = _metrics(writing, run.info.start_time)
    if annotation.dataset is not None:
        name, digest = annotation.dataset
        dataset = Dataset(name=name, digest=short_digest(digest), source_type="validator", source="{}")
        tags = [InputTag(key="mlflow.data.context", value="golden")]
        with writing.connection.writing("naming the golden dataset"):
            client.log_inputs(run.info.run_id, datasets=[DatasetInput(dataset=dataset, tags=tags)])
    with writing.connection.writing("writing parameters and metrics"):
        client.log_batch(run.info.run_id, metrics=metrics, params=params, synchronous=True)


def _metrics(writing: _Writing, timestamp_ms: int) -> "list[Metric]":
    """Return the finite ones, with a warning for the rest: MLflow would turn an infinity into 1.8e308."""
    from mlflow.entities import Metric

    annotation = writing.annotation
    name, digest = (None, None)
    if annotation.dataset is not None:
        name, digest = annotation.dataset[0], short_digest(annotation.dataset[1])
    metrics: list[Metric] = []
    for key, value in sorted(annotation.metrics.items()):
        if not math.isfinite(value):
            writing.warnings.append(f"metric {key} is not finite and was left out")
            continue
        metrics.append(
            Metric(
                key,
                float(value),
                timestamp_ms,
                0,
                model_id=annotation.subject.model_id,
                dataset_name=name,
                dataset_digest=digest,
            )
        )
    return metrics


def _run_tags(annotation: Annotation) -> dict[str, str]:
    return {
        **annotation.run_tags,
        VERDICT_TAG: annotation.verdict,
        CHECK_TAG: annotation.check_id,
        "mlflow.note.content": annotation.description_block,
    }


def _tag_run(writing: _Writing, run_id: str) -> None:
    from mlflow.entities import RunTag

    tags = [RunTag(key, value) for key, value in _run_tags(writing.annotation).items()]
    with writing.connection.writing("tagging the run"):
        writing.connection.client.log_batch(run_id, tags=tags, synchronous=True)


def _tag_training_run(writing: _Writing, run_id: str) -> None:
    """Point from the training run to the check. It may be deleted, or another team's: then that is a warning."""
    from mlflow.exceptions import MlflowException

    training_run = writing.annotation.subject.run_id
    if training_run is None:
        return
    for key, value in ((RUN_TAG, run_id), (VERDICT_TAG, writing.annotation.verdict)):
        with writing.connection.writing("tagging the training run"):
            try:
                writing.connection.client.set_tag(training_run, key, value)
            except MlflowException as error:
                if error.error_code not in MISSING | {"PERMISSION_DENIED", "INVALID_PARAMETER_VALUE"}:
                    raise
                writing.warnings.append(f"training run {training_run} was not tagged: {error.error_code}")
                return


# --- The version or the logged model --------------------------------------------------------------------------


def _tags_for(annotation: Annotation, run_id: str) -> dict[str, str]:
    return {**annotation.version_tags, RUN_TAG: run_id, VERDICT_TAG: annotation.verdict}


def _annotate_target(writing: _Writing, target: TagTarget, tags: dict[str, str], block: str) -> dict[str, str]:
    """Write description and tags; return the tags that are there now, without the verdict if a guard keeps it out."""
    present = target.tags()
    if VERDICT_TAG in present and present.get(RUN_TAG) != tags[RUN_TAG]:
        # Another check's: it must not stand beside our evidence, not even for a moment.
        target.delete_tag(VERDICT_TAG)
        del present[VERDICT_TAG]
    if warning := write_description(target, block):
        writing.warnings.append(warning)
    for key in [key for key in tags if key != VERDICT_TAG]:
        if present.get(key) != tags[key]:  # a tag set again fires webhooks again
            target.set_tag(key, tags[key])
    if present.get(VERDICT_TAG) != tags[VERDICT_TAG] and not _write_verdict(writing, target, tags[VERDICT_TAG]):
        del tags[VERDICT_TAG]
    present = target.tags()
    wrong = [f"tag {key} of {target.title}" for key, value in tags.items() if present.get(key) != value]
    if find_target(writing.connection, writing.annotation.subject) != target:
        wrong.append(target.title)
    if wrong and VERDICT_TAG in present:
        # Somebody wrote at the same time: no verdict is better than one beside another check's evidence.
        target.delete_tag(VERDICT_TAG)
    _require_equal(wrong)
    return tags


def _write_verdict(writing: _Writing, target: TagTarget, verdict: str) -> bool:
    """Write the verdict tag, after the clearance if a guard asks for one; say whether it stands there.

    A pass that was not signed is no fault of the check: on a guarded registry it is shown by its run alone.

    Raises:
        GuardRefused: the clearance is none that the guard accepts.
    """
    try:
        target.set_tag(VERDICT_TAG, verdict)
    except GuardRefused as error:
        if writing.annotation.clearance is None:
            writing.warnings.append(
                f"{target.title} does not say {verdict}, only the run does: the registry is guarded, and the check was "
                f"not signed with --sign-key ({error.message})"
            )
            return False
        target.set_tag(CLEARANCE_TAG, writing.annotation.clearance)
        target.set_tag(VERDICT_TAG, verdict)
    return True


# --- Reading back ---------------------------------------------------------------------------------------------


def _read_run_back(writing: _Writing, run_id: str) -> None:
    """Compare what MLflow now says of the run with what was written.

    Raises:
        AnnotationFailed: they differ.
    """
    annotation = writing.annotation
    with writing.connection.doing("reading the run back"):
        data = writing.connection.client.get_run(run_id).data
    wrong = [f"run tag {key}" for key, value in _run_tags(annotation).items() if data.tags.get(key) != value]
    wrong += [f"parameter {key}" for key, value in annotation.params.items() if data.params.get(key) != value]
    wrong += [
        f"metric {key}"
        for key, value in annotation.metrics.items()
        if math.isfinite(value) and data.metrics.get(key) != value
    ]
    wrong += [f"artifact {path}" for path in missing_artifacts(writing.connection, run_id, annotation.artifacts)]
    _require_equal(wrong)


def _require_equal(wrong: list[str]) -> None:
    if wrong:
        raise AnnotationFailed(f"MLflow reads back otherwise than written: {', '.join(wrong)}", hint=AGAIN)


# --- Small things ---------------------------------------------------------------------------------------------


def short_digest(digest: str) -> str:
    """Return a dataset digest in the 36 characters that MLflow has for it: `sha256-` and 29 hex digits."""
    return digest.replace(":", "-", 1)[:DATASET_DIGEST_LIMIT]


def link_report(block: str, run_uri: str) -> str:
    """Let the block's mention of the report lead to it, where the run has a page that a browser can open."""
    if not run_uri.startswith(("http://", "https://")):
        return block
    for name in REPORT_NAMES:
        block = block.replace(f"report `{name}`", f"[report]({run_uri}/artifacts/{name})", 1)
    return block


def _run_uri(connection: Connection, run: "Run") -> str:
    if connection.tracking_uri.startswith(("http://", "https://")):
        base = strip_credentials(connection.tracking_uri)
        return f"{base}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    return f"runs:/{run.info.run_id}"


def _check_limits(annotation: Annotation) -> None:
    """Refuse before anything is written what MLflow would cut or reject halfway.

    Raises:
        AnnotationFailed: a name or value that is too long or of the wrong form, an artifact that is not there.
    """
    faults: list[str] = []
    if not re.fullmatch(r"[\w.:-]{1,200}", annotation.check_id):
        faults.append(f"check id {annotation.check_id!r} may hold letters, digits and . : - _")
    for kind, values, limit in (
        ("version tag", {**annotation.version_tags, VERDICT_TAG: annotation.verdict}, VERSION_TAG_LIMIT),
        ("run tag", _run_tags(annotation), RUN_TAG_LIMIT),
        ("parameter", annotation.params, PARAM_LIMIT),
    ):
        faults += [f"{kind} {k}: {len(v)} of {limit} characters" for k, v in values.items() if len(v) > limit]
        faults += [f"{kind} {k[:40]}...: its name is too long" for k in values if len(k) > KEY_LIMIT]
    for path, local in annotation.artifacts.items():
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            faults.append(f"artifact path {path!r} leaves the run's folder")
        if not local.exists():
            faults.append(f"artifact {path}: {local} does not exist")
    if faults:
        raise AnnotationFailed(f"the annotation cannot be written: {'; '.join(faults)}", hint="nothing was written")
