"""What is under test: a model URI, the version that it was pinned to, and its bytes on disk."""

import contextlib
import os
import re
import shutil
import stat
import zipfile
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import assert_never

from validator.contents import Kind, identify
from validator.documents import read_yaml
from validator.errors import FormatRefused, UriError
from validator.manifest import Manifest, measure_folder

# --- URIs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionUri:
    """`models:/alexnet/3`."""

    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasUri:
    """`models:/alexnet@champion`. The alias begins after the *last* `@`."""

    name: str
    alias: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUri:
    """`models:/alexnet/Production`, or `latest`, which is the newest version over all stages."""

    name: str
    stage: str

    @property
    def is_latest(self) -> bool:
        """`latest` is a keyword in any case, not a stage."""
        return self.stage.lower() == "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedModelUri:
    """`models:/m-<id>`: a logged model without a registered version. Can be checked, not promoted."""

    model_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUri:
    """`runs:/<run id>/model`: a model among a run's artifacts. Can be checked, not promoted."""

    run_id: str
    path: str


ModelUri = VersionUri | AliasUri | StageUri | LoggedModelUri | RunUri

VERSION_DIGITS_MAX = 18
"""A longer number is no version of any registry, and Python refuses to read some."""

_FORMS = "models:/NAME/3, models:/NAME@ALIAS, models:/NAME/latest, models:/m-ID or runs:/RUN/PATH"


def parse_model_uri(text: str) -> ModelUri:
    """Read a model URI.

    Raises:
        UriError: none of the known forms.
    """
    if (match := re.fullmatch(r"runs:/([^/]+)/(.+)", text)) and (path := match[2].strip("/")):
        return RunUri(run_id=match[1], path=path)
    match = re.fullmatch(r"models:/+([^/].*)", text)
    if match is None:
        raise UriError(f"{text!r} is not a model URI", hint=f"write {_FORMS}")
    rest = match[1].rstrip("/")
    if "/" not in rest and "@" not in rest:
        if rest.startswith("m-"):
            return LoggedModelUri(model_id=rest)
        raise UriError(
            f"models:/{rest} names no version",
            hint=f"write models:/{rest}/<number> or models:/{rest}@<alias>",
        )
    if "/" not in rest:
        name, _, alias = rest.rpartition("@")
        if name and alias:
            return AliasUri(name=name, alias=alias)
    elif rest.count("/") == 1:
        name, _, suffix = rest.partition("/")
        if name and suffix:
            is_number = suffix.isascii() and suffix.isdigit() and len(suffix) <= VERSION_DIGITS_MAX
            return VersionUri(name=name, version=int(suffix)) if is_number else StageUri(name=name, stage=suffix)
    raise UriError(f"{text!r} is not a model URI", hint=f"write {_FORMS}")


def format_model_uri(uri: ModelUri) -> str:
    """Return the canonical text of a URI."""
    match uri:
        case VersionUri(name=name, version=version):
            return f"models:/{name}/{version}"
        case AliasUri(name=name, alias=alias):
            return f"models:/{name}@{alias}"
        case StageUri(name=name, stage=stage):
            return f"models:/{name}/{stage}"
        case LoggedModelUri(model_id=model_id):
            return f"models:/{model_id}"
        case RunUri(run_id=run_id, path=path):
            return f"runs:/{run_id}/{path}"
        case _:
            assert_never(uri)


# --- The pinned version ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model version under test, pinned: nothing here is looked up again by alias or stage."""

    registry_uri: str
    """Without credentials."""
    requested_uri: str
    """What the user typed."""
    name: str | None
    """Registered name; None for a logged model or a run artifact."""
    version: int | None
    creation_timestamp_ms: int | None
    """Tells a version from that of a model that was deleted and made again under the same name."""
    source: str
    """Where MLflow says the bytes came from."""
    download_uri: str
    """Where they are read from: fixed when the version was created."""
    model_id: str | None
    run_id: str | None
    """The training run."""
    tags: tuple[tuple[str, str], ...] = ()
    status: str = "READY"
    """MLflow's word for a version; only one that is ready can be promoted."""

    @property
    def title(self) -> str:
        """How reports call it."""
        if self.name is not None:
            return f"{self.name} version {self.version}"
        return self.model_id or self.requested_uri

    @property
    def pinned_uri(self) -> str:
        """A URI that always means these bytes' version."""
        if self.name is not None:
            return f"models:/{self.name}/{self.version}"
        return f"models:/{self.model_id}" if self.model_id else self.requested_uri


# --- Its bytes ------------------------------------------------------------------------------------------------


class ProgramFormat(StrEnum):
    """How the PyTorch side of the subject is stored."""

    EXPORTED = "torch.export"
    PICKLE = "pickle"
    TORCHSCRIPT = "torchscript"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The PyTorch side of the subject."""

    path: Path
    format: ProgramFormat


class OnnxOrigin(StrEnum):
    """Where the ONNX file under test came from, in the order in which it is looked for."""

    OPTION = "the --onnx option"
    TAG = "the tag validator.onnx on the version"
    ARTIFACT = "the subject's own artifacts"
    EXPORT = "torch.onnx.export(dynamo=True) by this check"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFile:
    """The ONNX side of the subject: one model file, its external data beside it."""

    path: Path
    manifest: Manifest
    """Of its folder, so external data is covered."""
    origin: OnnxOrigin
    source: str
    """The URI or relative path that it was read from."""
    copy: Path | None = None
    """Another copy of it, which lies apart from everything else."""

    @property
    def shown(self) -> Path:
        """What workers are given: apart from the program, if there is such a copy."""
        return self.copy or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedModel:
    """The subject's bytes in a private, read-only folder, hashed once."""

    subject: Subject
    folder: Path
    manifest: Manifest

    @property
    def weights_digest(self) -> str:
        """Digest of the files that decide the function; a rewritten requirements file does not change it."""
        decisive = (".pt2", ".pth", ".pt", ".onnx", ".data", ".safetensors", ".bin")
        names = frozenset(
            e.path for e in self.manifest.entries if e.path.endswith(decisive) or e.path.startswith("code/")
        )
        return self.manifest.select(names).digest


def read_model_data(folder: Path) -> str | None:
    """Return where MLmodel says that the PyTorch model lies: what is served is what must be checked.

    Raises:
        FormatRefused: MLmodel cannot be read, or points out of the model.
    """
    path = folder / "MLmodel"
    if not path.is_file():
        return None
    try:
        document = read_yaml(path.read_bytes())
        flavors = document.get("flavors") or {}
        data = flavors["pytorch"].get("model_data") if "pytorch" in flavors else None
    except (ValueError, AttributeError, TypeError) as error:
        why = str(error) if isinstance(error, ValueError) else "it does not say what a model consists of"
        raise FormatRefused(f"MLmodel cannot be read: {why}", hint="register the model again") from error
    if data is None:
        return None
    if not isinstance(data, str) or PurePosixPath(data).is_absolute() or ".." in PurePosixPath(data).parts:
        raise FormatRefused(f"MLmodel says that the model lies at {data!r}, which is not within it")
    return PurePosixPath(data).as_posix()


def find_program(staged: StagedModel) -> Program:
    """Find the PyTorch model in the staged folder, by content, not by what MLmodel says.

    Raises:
        FormatRefused: none, several, or a format that this program does not read.
    """
    data = read_model_data(staged.folder)
    names = [e.path for e in staged.manifest.entries if data is None or e.path == data or e.path.startswith(f"{data}/")]
    found = [n for n in names if n.endswith((".pt2", ".pth", ".pt"))]
    if len(found) != 1:
        what = "no PyTorch model" if not found else "several PyTorch models: " + ", ".join(found)
        raise FormatRefused(
            f"{staged.subject.title} holds {what}",
            hint="log it with mlflow.pytorch.log_model(..., input_example=...), which stores a torch.export program",
        )
    path = staged.folder / found[0]
    if not zipfile.is_zipfile(path):
        raise FormatRefused(
            f"{found[0]} is not a readable archive ({path.stat().st_size} bytes): corrupt or cut short",
            hint="register the model again; nothing of it was loaded",
        )
    if found[0].endswith(".pt2"):
        return Program(path=path, format=ProgramFormat.EXPORTED)
    with zipfile.ZipFile(path) as archive:
        scripted = any(n.endswith("/constants.pkl") for n in archive.namelist())
    return Program(path=path, format=ProgramFormat.TORCHSCRIPT if scripted else ProgramFormat.PICKLE)


def find_onnx(staged: StagedModel) -> Path | None:
    """Find the ONNX file among the subject's own artifacts.

    Raises:
        FormatRefused: more than one.
    """
    found = [e.path for e in staged.manifest.entries if e.path.endswith(".onnx")]
    if len(found) > 1:
        raise FormatRefused(
            f"{staged.subject.title} holds {len(found)} ONNX files: " + ", ".join(found),
            hint="say which one with --onnx",
        )
    return staged.folder / found[0] if found else None


def copy_onnx(source: Path, folder: Path) -> Path:
    """Copy an ONNX file and the data files beside it, or a folder, so that nobody changes it under the check.

    Raises:
        FormatRefused: it does not exist or cannot be read.
    """
    try:
        if source.is_dir():
            return Path(shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True))
        folder.mkdir(exist_ok=True)
        for path in [source, *sorted(source.parent.glob("*.data"))]:
            shutil.copy2(path, folder / path.name, follow_symlinks=False)
    except OSError as error:
        raise FormatRefused(f"{source} cannot be read: {error.strerror}") from error
    return folder / source.name


EXPORTED_NAMES = ("model.onnx", "model.onnx.data")
"""Files that an export by the gate consists of; the second one only for models too large for one."""


def take_export(source: Path, folder: Path) -> Path:
    """Move an exported file, and its data, out of the folder of the worker that wrote them.

    Args:
        source: where the ONNX file should be.
        folder: existing, empty folder on the same file system.

    Raises:
        FormatRefused: what lies there is no regular file of one link.
    """
    try:
        here = os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise FormatRefused(f"the export cannot be taken: {error.strerror}", hint=_EXPORT_HINT) from error
    try:
        for name in EXPORTED_NAMES:
            with contextlib.suppress(FileNotFoundError):
                os.rename(name, folder / name, src_dir_fd=here)
                status = (folder / name).lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                    raise FormatRefused(f"the export's {name} is no regular file of one link", hint=_EXPORT_HINT)
                (folder / name).chmod(0o444)
    finally:
        os.close(here)
    return folder / source.name


_EXPORT_HINT = "do not trust this model: its export wrote something else than a file"


def copy_apart(file: OnnxFile, folder: Path) -> OnnxFile:
    """Copy an ONNX file, and what may be its data, into a folder that holds nothing else.

    Args:
        file: as it was found.
        folder: existing, empty folder.

    Raises:
        FormatRefused: it cannot be copied.
    """
    place = file.path.parent
    try:
        for entry in file.manifest.entries:
            source, target = place / entry.path, folder / entry.path
            if source == file.path or (not (kind := identify(source)).runs_code and kind is not Kind.PROGRAM):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target, follow_symlinks=False)
                target.chmod(0o444)
    except OSError as error:
        raise FormatRefused(f"{file.source} cannot be copied: {error.strerror}") from error
    return replace(file, copy=folder / file.path.relative_to(place))


def describe_onnx(path: Path, origin: OnnxOrigin, source: str) -> OnnxFile:
    """Describe the one ONNX file at a path.

    Raises:
        FormatRefused: none, or several.
    """
    found = sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
    if len(found) != 1 or not found[0].is_file():
        raise FormatRefused(f"{source} holds {len(found) if path.is_dir() else 'no'} ONNX files, one is needed")
    return OnnxFile(path=found[0], manifest=measure_folder(found[0].parent), origin=origin, source=source)
