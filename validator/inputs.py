"""What is checked and with what: policy, subject, golden dataset, ONNX file, all admitted before anything runs."""

from dataclasses import dataclass
from pathlib import Path

from validator.contents import Kind, identify
from validator.disk import read_given
from validator.documents import TOML_LIMIT_BYTES
from validator.errors import DigestChanged, FormatRefused, GoldenError, PolicyError, SandboxTooWeak
from validator.golden.dataset import GoldenDataset, open_golden
from validator.manifest import measure_folder
from validator.policy import BUILT_IN, Policy, parse_policy
from validator.registry.interface import ONNX_TAG, Registry
from validator.report.progress import Progress
from validator.sandbox.choice import UNCONFINED, Sandbox
from validator.sandbox.level import Level
from validator.scan import scan_program
from validator.subject import (
    OnnxFile,
    OnnxOrigin,
    Program,
    ProgramFormat,
    StagedModel,
    Subject,
    copy_apart,
    copy_onnx,
    describe_onnx,
    find_onnx,
    find_program,
)
from validator.worker.stage import GOLDEN, ONNX, SUBJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything that the workers work on, private copies of it."""

    policy: Policy
    staged: StagedModel
    program: Program
    golden_uri: str
    golden: GoldenDataset
    onnx: OnnxFile | None
    """None: export one where a backend needs it."""
    scratch: Path
    strange: tuple[str, ...] = ()
    """Files of the subject of which nobody can say what they are."""


def open_inputs(
    policy: Policy,
    subject: Subject,
    registry: Registry,
    scratch: Path,
    progress: Progress,
    *,
    golden: str | None,
    onnx: str | None,
    sandbox: Sandbox = UNCONFINED,
) -> Inputs:
    """Stage a subject and open what it is checked with.

    Args:
        policy: says what is admitted, and which golden dataset counts where none is named.
        subject: which bytes.
        registry: to fetch from.
        scratch: folder for copies.
        progress: told of every stage.
        golden: folder or URI; None: the policy's.
        onnx: file, folder or URI; None: tag, artifact or export.
        sandbox: what is put around the workers that will open it.

    Raises:
        FormatRefused: a format that the policy does not allow, or no single ONNX file where one was named.
        SandboxTooWeak: a format that runs its author's code, and workers that are not held strictly.
        GoldenError: no golden dataset, or one that cannot be used.
        UriError: something is not in the registry.
    """
    staged = registry.stage(subject, scratch / SUBJECT)
    program = admit_program(staged, policy, held=sandbox.weakest)
    if program.format is not ProgramFormat.EXPORTED:
        scan_program(program.path, policy.formats.scan, sandbox, scratch)
    strange = admit_contents(staged, program, policy, held=sandbox.weakest)
    progress.stage("stage", f"{staged.manifest.size_bytes / 1e6:,.0f} MB, {staged.manifest.digest[:15]}")
    golden_uri, dataset = open_golden_uri(golden or policy.golden, registry, scratch / GOLDEN)
    progress.stage("golden", f"{dataset.manifest.name}, {dataset.samples} samples, {dataset.digest[:15]}")
    found = find_onnx_file(onnx, staged, registry, scratch / "given")
    return Inputs(
        policy=policy,
        staged=staged,
        program=program,
        golden_uri=golden_uri,
        golden=dataset,
        onnx=None if found is None else copy_apart(found, _make(scratch / ONNX)),
        scratch=scratch,
        strange=strange,
    )


def _make(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def load_policy(name: str) -> Policy:
    """Read a policy file, or take a built-in one by name.

    Raises:
        PolicyError: no such file, or one that cannot be used.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    return parse_policy(read_policy(name), origin=name)


def read_policy(name: str) -> str:
    """Return the text of a policy file, or of a pipe.

    Raises:
        PolicyError: it cannot be read; says why.
    """
    try:
        return read_given(Path(name), limit_bytes=TOML_LIMIT_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PolicyError(
            f"policy {name} cannot be read: {reason}",
            hint=f"name a TOML file or a built-in policy: {', '.join(BUILT_IN)}",
        ) from error


def admit_program(staged: StagedModel, policy: Policy, *, held: Level) -> Program:
    """Find the subject's program and require that the policy allows its format.

    Args:
        staged: the subject.
        policy: says what is admitted.
        held: how strongly the workers are held that will open it.

    Raises:
        FormatRefused: no program, or a format that runs code when it is loaded and that the policy does not allow.
        SandboxTooWeak: such a format, and workers that are not held strictly.
    """
    program = find_program(staged)
    if program.format is ProgramFormat.EXPORTED:
        return program
    relative = program.path.relative_to(staged.folder)
    if not policy.formats.pickle:
        raise FormatRefused(
            f"{relative} is a {program.format.value} file; this policy allows none",
            hint="log it again as torch.export (MLflow's default), or set formats.pickle = true in the policy",
        )
    if not held.is_at_least(Level.STRICT):
        raise SandboxTooWeak(
            f"{relative} is a {program.format.value} file, which runs its author's code: that needs the sandbox "
            f"strict, and workers are held by {held}",
            hint="install bubblewrap, and leave --sandbox out; docs/sandbox.md says why a sandbox may not be reached",
        )
    return program


def admit_contents(staged: StagedModel, program: Program, policy: Policy, *, held: Level) -> tuple[str, ...]:
    """Require that nothing beside the program runs code, unless the policy admits that; and never native code.

    The gate loads none of it. But whoever serves the model may.

    Args:
        staged: the subject.
        program: its program, which is admitted already.
        policy: says what is admitted.
        held: how strongly the workers are held.

    Returns:
        The files of which nobody can say what they are.

    Raises:
        FormatRefused: native code, or code that the policy does not admit.
        SandboxTooWeak: code that it admits, and workers that are not held strictly.
    """
    kinds = {
        entry.path: identify(staged.folder / entry.path)
        for entry in staged.manifest.entries
        if staged.folder / entry.path != program.path
    }
    for name, kind in kinds.items():
        if kind is Kind.NATIVE:
            raise FormatRefused(
                f"{name} of {staged.subject.title} is native code",
                hint="register the model without it: no policy admits libraries and custom operators",
            )
        if kind.runs_code and not policy.formats.pickle:
            raise FormatRefused(
                f"{name} of {staged.subject.title} is {kind}; this policy allows none",
                hint="whoever serves it may run that: register it without, or set formats.pickle = true in the policy",
            )
        if kind.runs_code and not held.is_at_least(Level.STRICT):
            raise SandboxTooWeak(
                f"{name} of {staged.subject.title} is {kind}: that needs the sandbox strict, not {held}",
                hint="install bubblewrap, and leave --sandbox out",
            )
    beside_onnx = {Path(name).parent for name, kind in kinds.items() if name.endswith(".onnx")}
    return tuple(
        name
        for name, kind in kinds.items()
        # What lies beside an ONNX file may be its data, which are bytes without a form.
        if kind.is_strange and not (kind is Kind.UNKNOWN and Path(name).parent in beside_onnx)
    )


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
        return describe_onnx(fetched, origin, source)
    own = find_onnx(staged)
    if own is None:
        return None
    return describe_onnx(own, OnnxOrigin.ARTIFACT, own.relative_to(staged.folder).as_posix())


def verify_unchanged(staged: StagedModel, onnx: OnnxFile | None, golden: GoldenDataset) -> None:
    """Hash what was tested once more: the workers ran somebody else's code beside it.

    Raises:
        DigestChanged: the bytes are not those that were staged.
    """
    pairs = [(staged.folder, staged.manifest)]
    if onnx is not None:
        pairs.append((onnx.path.parent, onnx.manifest))
        if onnx.copy is not None:
            names = frozenset(entry.path for entry in measure_folder(onnx.copy.parent).entries)
            pairs.append((onnx.copy.parent, onnx.manifest.select(names)))
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
