"""What a registry does for the gate, and the records that go in and out.

A Protocol, so that tests hand in an in-memory registry. All failures are ValidatorErrors: a UriError for what does not
exist, a RegistryUnreachable for a registry that does not answer, an AnnotationFailed for a verdict not written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from validator.errors import UriError
from validator.subject import ModelUri, StagedModel, Subject, parse_model_uri

VERDICT_TAG = "validator.verdict"
RUN_TAG = "validator.run_id"
CHECK_TAG = "validator.check_id"
SUBJECT_TAG = "validator.subject"
"""On a run: what was checked, so that a later check finds runs that were never closed."""
DIGEST_TAG = "validator.content_digest"
CLEARANCE_TAG = "validator.clearance"
"""On a version: the signed clearance itself, for a guard in front of the registry."""
EXPECT_TAG = "validator.expect."
"""On a version, with an alias: which version holds that alias, as whoever is about to move it believes."""
PREVIOUS_TAG = "validator.previous."
"""On a registered model, with an alias: which version held it before."""
GUARD_SAYS = "validator guard:"
"""How every refusal of the guard begins: MLflow's own refusals have the same status."""
NOBODY = "none"
"""In such tags: no version holds the alias."""
ONNX_TAG = "validator.onnx"
"""On a version: where its ONNX file is."""
ORIGIN_TAG = "validator.origin"
"""On a republished version: the version that was cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """What is written to the registry about one check."""

    subject: Subject
    check_id: str
    """Identifies the check, and with it the MLflow run: annotating again under the same id changes nothing."""
    verdict: str
    run_name: str
    """What lists of runs show: a few words."""
    description_block: str
    """Markdown without the markers, at most 1,500 characters; its first line is the heading, its last the link."""
    version_tags: Mapping[str, str] = field(default_factory=dict)
    """Without `validator.verdict` and `validator.run_id`, which are added."""
    run_tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Finite; a value that is not is left out, with a warning."""
    artifacts: Mapping[str, Path] = field(default_factory=dict)
    """Path among the run's artifacts, to a local file or folder."""
    dataset: tuple[str, str] | None = None
    """Name and digest of the golden dataset."""
    clearance: str | None = None
    """The signed clearance, for a registry whose guard asks for it before a version may say `pass`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationReceipt:
    """What was written and read back."""

    run_id: str
    run_uri: str
    """For people."""
    version_tags: Mapping[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """A folder that is now a version of a registered model."""

    name: str
    version: int
    digest: str
    """Of the folder's manifest."""
    created: bool
    """False when the newest version already held these bytes."""

    @property
    def uri(self) -> str:
        """The pinned URI."""
        return f"models:/{self.name}/{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """What a registered model says at one moment."""

    aliases: Mapping[str, int] = field(default_factory=dict)
    """Alias to version."""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Republication:
    """Cleared bytes that shall be a version of another model."""

    name: str
    """Of that model."""
    experiment: str
    """Where they are uploaded; nobody but the gate should write there."""
    origin: str
    """The cleared version's pinned URI."""
    folder: Path
    digest: str
    """Of the folder's manifest."""
    clearance: Path
    clearance_sha256: str
    onnx: Path | None
    """Folder of the cleared ONNX file; None: there is none, or it is among the bytes."""
    description: str
    """Of the version, when it is made."""


class Registry(Protocol):
    """Where models live."""

    @property
    def uri(self) -> str:
        """Shown to people: without credentials."""

    def resolve(self, uri: ModelUri, requested: str) -> Subject:
        """Pin a URI to one version, at once.

        Args:
            uri: what to look for.
            requested: what the user typed.

        Raises:
            UriError: it does not exist; the hint says what does.
            RegistryUnreachable: the registry does not answer.
        """

    def stage(self, subject: Subject, folder: Path) -> StagedModel:
        """Download a subject once into a new or empty folder, hash it, and make it read-only.

        Raises:
            IntegrityError: links, special files or names without a portable meaning.
            RegistryUnreachable: the registry does not answer.
            CouldNotRun: the bytes are gone, or the disk is full. Nothing half-written stays.
        """

    def fetch(self, uri: str, folder: Path) -> Path:
        """Download any artifact file or folder into a new or empty folder; return its path. It is read-only then.

        Args:
            uri: `models:/NAME/VERSION`, `models:/NAME@ALIAS` or `runs:/RUN`, each with `/SUB/PATH`; or an artifact URI.
            folder: where to put it.

        Raises:
            UriError: it does not exist.
            RegistryUnreachable: the registry does not answer.
            CouldNotRun: the disk is full.
        """

    def publish(
        self, name: str, folder: Path, *, model_type: str, alias: str, tags: Mapping[str, str]
    ) -> PublishedVersion:
        """Make a folder the newest version of a registered model, and point an alias to it.

        Nothing is uploaded when the newest version already holds these bytes.

        Raises:
            IntegrityError: the folder holds links or special files.
            RegistryUnreachable: the registry does not answer.
        """

    def republish(self, republication: Republication) -> PublishedVersion:
        """Make cleared bytes a version of another model, unless it has one; no alias is moved.

        What is found there is not believed: the caller has to stage the version and compare its digest.

        Raises:
            GuardRefused: the registry has a guard, and it refused.
            RegistryUnreachable: the registry does not answer. Calling again is safe.
        """

    def annotate(self, annotation: Annotation) -> AnnotationReceipt:
        """Write a verdict and its evidence: artifacts first, the verdict tag last, all of it read back.

        Raises:
            AnnotationFailed: something was not written, or reads back otherwise. Annotating again is safe.
        """

    def withdraw(self, subject: Subject) -> None:
        """Take the verdict of an earlier check off a subject that was refused since.

        Raises:
            AnnotationFailed: it may still be there.
        """

    def read_model(self, name: str) -> ModelState:
        """Read aliases and tags of a registered model.

        Raises:
            UriError: there is no such model.
            RegistryUnreachable: the registry does not answer.
        """

    def point_alias(self, name: str, alias: str, version: int | None) -> None:
        """Let an alias point to a version, whatever it pointed to before; None takes it away.

        Raises:
            GuardRefused: the registry has a guard, and it refused.
            RegistryUnreachable: the registry does not answer, or denies access. The alias may have moved.
        """

    def tag_model(self, name: str, key: str, value: str | None) -> None:
        """Write one tag of a registered model; None takes it away. One that is already so is not written again.

        Raises:
            GuardRefused: the registry has a guard, and it refused.
            RegistryUnreachable: the registry does not answer, or denies access.
        """

    def tag_version(self, name: str, version: int, key: str, value: str | None) -> None:
        """Write one tag of a version; None takes it away. One that is already so is not written again.

        Raises:
            GuardRefused: the registry has a guard, and it refused.
            RegistryUnreachable: the registry does not answer, or denies access.
        """

    def note_alias(self, name: str, version: int, alias: str, line: str) -> str | None:
        """Say in the block of a version's description what became of an alias, in the place of an earlier line.

        Returns:
            A warning, if there was no room.

        Raises:
            AnnotationFailed: it reads back otherwise.
            RegistryUnreachable: the registry does not answer, or denies access.
        """

    def hint_for(self, name: str) -> str:
        """Say which URIs of a model exist: the hint for `models:/NAME`.

        Raises:
            UriError: there is no such model.
            RegistryUnreachable: the registry does not answer.
        """


def resolve_text(registry: Registry, text: str) -> Subject:
    """Parse and resolve; for `models:/NAME` the hint names versions and aliases that exist.

    Raises:
        UriError: not a URI, or nothing there.
        RegistryUnreachable: the registry does not answer.
    """
    try:
        uri = parse_model_uri(text)
    except UriError as error:
        bare = re.fullmatch(r"models:/+([^/@]+)/*", text)
        if bare is None:
            raise
        raise UriError(error.message, hint=registry.hint_for(bare[1])) from error
    return registry.resolve(uri, text)
