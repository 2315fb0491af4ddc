"""Stand-ins for our own interfaces, written by hand. Each passes the contract suite of the real one."""

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from validator.errors import AnnotationFailed, CouldNotRun, RegistryUnreachable, UriError
from validator.manifest import measure_folder
from validator.registry.description import merge_description, note_alias
from validator.registry.interface import (
    DIGEST_TAG,
    RUN_TAG,
    VERDICT_TAG,
    Annotation,
    AnnotationReceipt,
    ModelState,
    PublishedVersion,
    Republication,
)
from validator.registry.stage import freeze_folder
from validator.subject import (
    AliasUri,
    LoggedModelUri,
    ModelUri,
    RunUri,
    StagedModel,
    StageUri,
    Subject,
    VersionUri,
    parse_model_uri,
)


@dataclass
class FakeVersion:
    """A version: a folder on disk, and what people wrote about it."""

    folder: Path
    created_ms: int
    tags: dict[str, str] = field(default_factory=dict)
    description: str | None = None
    run_id: str | None = None
    status: str = "READY"


@dataclass
class FakeModel:
    """A registered model."""

    versions: dict[int, FakeVersion] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


class FakeRegistry:
    """A Registry in memory, over local folders.

    Set `is_down` to make every call raise RegistryUnreachable, `denies_writes` the calls that move aliases and write
    tags, and `refuses_annotations` to make annotating fail before anything is written.
    """

    def __init__(self, uri: str = "fake://registry") -> None:
        self.uri = uri
        self.is_down = False
        self.refuses_annotations = False
        self.denies_writes = False
        self.models: dict[str, FakeModel] = {}
        self.annotations: dict[str, Annotation] = {}
        """By check id, in the order of first writing."""
        self._clock = itertools.count(1_700_000_000_000)

    # --- What a test arranges ---------------------------------------------------------------------------------

    def add_version(self, name: str, folder: Path, *, description: str | None = None, run_id: str | None = None) -> int:
        model = self.models.setdefault(name, FakeModel())
        number = max(model.versions, default=0) + 1
        model.versions[number] = FakeVersion(
            folder=folder, created_ms=next(self._clock), description=description, run_id=run_id
        )
        return number

    def set_alias(self, name: str, alias: str, version: int) -> None:
        self.models[name].aliases[alias] = version

    def delete_model(self, name: str) -> None:
        del self.models[name]

    def version(self, name: str, version: int) -> FakeVersion:
        return self.models[name].versions[version]

    # --- Registry ---------------------------------------------------------------------------------------------

    def resolve(self, uri: ModelUri, requested: str) -> Subject:
        self._answer()
        match uri:
            case VersionUri(name=name, version=number):
                model = self._model(name)
            case AliasUri(name=name, alias=alias):
                model = self._model(name)
                if alias not in model.aliases:
                    raise UriError(f"{name} has no alias {alias}", hint=f"aliases: {sorted(model.aliases)}")
                number = model.aliases[alias]
            case StageUri(name=name, stage=stage):
                model = self._model(name)
                if not uri.is_latest or not model.versions:
                    raise UriError(f"{name} has no version in stage {stage}", hint=self.hint_for(name))
                number = max(model.versions)
            case LoggedModelUri() | RunUri():
                raise UriError(f"{requested} does not exist", hint=f"registry {self.uri}")
        if number not in model.versions:
            listed = ", ".join(map(str, sorted(model.versions)))
            raise UriError(f"{name} has no version {number}", hint=f"versions {listed} exist; registry {self.uri}")
        version = model.versions[number]
        return Subject(
            registry_uri=self.uri,
            requested_uri=requested,
            name=name,
            version=number,
            creation_timestamp_ms=version.created_ms,
            source=str(version.folder),
            download_uri=str(version.folder),
            model_id=None,
            run_id=version.run_id,
            tags=tuple(sorted(version.tags.items())),
            status=version.status,
        )

    def stage(self, subject: Subject, folder: Path) -> StagedModel:
        self._answer()
        self._copy(Path(subject.download_uri), folder)
        return StagedModel(subject=subject, folder=folder, manifest=measure_folder(folder))

    def fetch(self, uri: str, folder: Path) -> Path:
        self._answer()
        if uri.startswith("runs:/"):
            return self._fetch_from_run(uri, folder)
        parts = uri.removeprefix("models:/").split("/")
        depth = 1 if "@" in parts[0] else 2
        subject = self.resolve(parse_model_uri("models:/" + "/".join(parts[:depth])), uri)
        inside = "/".join(parts[depth:])
        source = Path(subject.download_uri) / inside
        if not source.exists():
            raise UriError(f"there is nothing at {uri}", hint=f"registry {self.uri}")
        self._copy(source, folder)
        return folder / source.name if source.is_file() else folder

    def publish(
        self, name: str, folder: Path, *, model_type: str, alias: str, tags: Mapping[str, str]
    ) -> PublishedVersion:
        self._answer()
        digest = measure_folder(folder).digest
        model = self.models.setdefault(name, FakeModel())
        newest = max(model.versions, default=0)
        is_new = not newest or model.versions[newest].tags.get(DIGEST_TAG) != digest
        if is_new:
            newest = self.add_version(name, folder)
            model.versions[newest].tags.update({**tags, DIGEST_TAG: digest})
        model.aliases[alias] = newest
        return PublishedVersion(name=name, version=newest, digest=digest, created=is_new)

    def republish(self, republication: Republication) -> PublishedVersion:
        """Nothing is kept here that was uploaded: what republishing does is tested on MLflow itself."""
        raise CouldNotRun(f"{self.uri} keeps no uploads, not those of {republication.name} either")

    def annotate(self, annotation: Annotation) -> AnnotationReceipt:
        if self.is_down or self.refuses_annotations:
            raise AnnotationFailed("the registry does not take annotations", hint="annotating again is safe")
        if missing := [str(path) for path in annotation.artifacts.values() if not path.exists()]:
            raise AnnotationFailed(f"no such artifact: {', '.join(missing)}")
        run_id = f"fake-{annotation.check_id}"
        self.annotations[annotation.check_id] = annotation
        tags = {**annotation.version_tags, RUN_TAG: run_id, VERDICT_TAG: annotation.verdict}
        warning = None
        subject = annotation.subject
        if subject.name is not None and subject.version is not None:
            version = self.version(subject.name, subject.version)
            text, warning = merge_description(version.description, annotation.description_block)
            version.description = version.description if text is None else text
            version.tags.update(tags)
        warnings = () if warning is None else (warning,)
        return AnnotationReceipt(run_id=run_id, run_uri=f"runs:/{run_id}", version_tags=tags, warnings=warnings)

    def withdraw(self, subject: Subject) -> None:
        if self.is_down or self.refuses_annotations:
            raise AnnotationFailed("the registry does not take annotations", hint="annotating again is safe")
        if subject.name is not None and subject.version is not None:
            self.version(subject.name, subject.version).tags.pop(VERDICT_TAG, None)

    def read_model(self, name: str) -> ModelState:
        self._answer()
        model = self._model(name)
        return ModelState(aliases=dict(model.aliases), tags=dict(model.tags))

    def point_alias(self, name: str, alias: str, version: int | None) -> None:
        self._write()
        self._model(name).aliases.pop(alias, None)
        if version is not None:
            self._version(name, version)
            self._model(name).aliases[alias] = version

    def tag_model(self, name: str, key: str, value: str | None) -> None:
        self._write()
        _put(self._model(name).tags, key, value)

    def tag_version(self, name: str, version: int, key: str, value: str | None) -> None:
        self._write()
        _put(self._version(name, version).tags, key, value)

    def note_alias(self, name: str, version: int, alias: str, line: str) -> str | None:
        self._write()
        if self.refuses_annotations:
            raise AnnotationFailed("the registry does not take descriptions", hint="annotating again is safe")
        found = self._version(name, version)
        text, warning = note_alias(found.description, alias, line)
        found.description = found.description if text is None else text
        return warning

    def hint_for(self, name: str) -> str:
        self._answer()
        model = self._model(name)
        forms = [f"models:/{name}/{max(model.versions)} (newest)"] if model.versions else []
        forms += [f"models:/{name}@{alias} (version {number})" for alias, number in sorted(model.aliases.items())]
        return "write " + " or ".join(forms)

    # --- Inside -----------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        if self.is_down:
            raise RegistryUnreachable(f"registry {self.uri} does not answer")

    def _write(self) -> None:
        self._answer()
        if self.denies_writes:
            raise RegistryUnreachable(f"registry {self.uri} denies access", hint="ask for the permission")

    def _version(self, name: str, version: int) -> FakeVersion:
        if version not in self._model(name).versions:
            raise UriError(f"{name} has no version {version}")
        return self.version(name, version)

    def _model(self, name: str) -> FakeModel:
        if name not in self.models:
            raise UriError(f"no model {name} is registered", hint=f"registry {self.uri}")
        return self.models[name]

    def _fetch_from_run(self, uri: str, folder: Path) -> Path:
        """Artifacts lie where the annotation had them from, so a test can change them afterwards."""
        run_id, _, path = uri.removeprefix("runs:/").partition("/")
        annotation = self.annotations.get(run_id.removeprefix("fake-"))
        artifacts = {} if annotation is None else annotation.artifacts
        inside = {
            name.removeprefix(f"{path}/"): source for name, source in artifacts.items() if name.startswith(f"{path}/")
        }
        if path in artifacts:
            self._copy(artifacts[path], folder)
            return folder / artifacts[path].name
        if not inside:
            raise UriError(f"there is nothing at {uri}", hint=f"registry {self.uri}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, source in inside.items():
            shutil.copyfile(source, folder / name)
        freeze_folder(folder)
        return folder

    def _copy(self, source: Path, folder: Path) -> None:
        if folder.exists() and any(folder.iterdir()):
            raise CouldNotRun(f"{folder} is not empty")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if source.is_file():
            shutil.copyfile(source, folder / source.name)
        else:
            shutil.copytree(source, folder, dirs_exist_ok=True)
        freeze_folder(folder)


def _put(tags: dict[str, str], key: str, value: str | None) -> None:
    if value is None:
        tags.pop(key, None)
    else:
        tags[key] = value
