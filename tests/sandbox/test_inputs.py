"""What is admitted, what is taken from a worker, and what is shown to another."""

import os
from pathlib import Path

import pytest
import torch

from validator.errors import FormatRefused, SandboxTooWeak
from validator.inputs import admit_contents, admit_program
from validator.manifest import measure_folder
from validator.policy import Formats, Policy
from validator.sandbox.level import Level
from validator.subject import OnnxFile, OnnxOrigin, StagedModel, Subject, copy_apart, take_export

CLOSED = Policy(required=("eager-cpu", "onnxruntime-cpu"))
OPEN = CLOSED.model_copy(update={"formats": Formats(pickle=True)})
PROGRAM = b"PK\x05\x06" + b"\x00" * 18
ELF = b"\x7fELF" + b"\x00" * 60


def staged(folder: Path, **files: bytes) -> StagedModel:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    subject = Subject(
        registry_uri="sqlite:///x", requested_uri="models:/net/1", name="net", version=1, creation_timestamp_ms=1,
        source="s", download_uri="d", model_id=None, run_id=None,
    )  # fmt: skip
    return StagedModel(subject=subject, folder=folder, manifest=measure_folder(folder))


def pickled(folder: Path) -> StagedModel:
    folder.mkdir()
    torch.save({}, folder / "model.pth")
    return staged(folder)


def test_a_pickle_needs_the_policy_and_the_strictest_sandbox(tmp_path: Path) -> None:
    model = pickled(tmp_path / "model")
    with pytest.raises(FormatRefused, match="this policy allows none"):
        admit_program(model, CLOSED, held=Level.STRICT)
    for level in (Level.NONE, Level.STANDARD):
        with pytest.raises(SandboxTooWeak, match="runs its author's code"):
            admit_program(model, OPEN, held=level)
    assert admit_program(model, OPEN, held=Level.STRICT).path.name == "model.pth"


@pytest.mark.parametrize(
    "files",
    [{"data__code_DOT_py": b"import os"}, {"extra_DOT_bin": b"\x80\x04N."}, {"notes_DOT_txt": b"cos\nsystem\n."}],
    ids=["a Python file", "a pickle", "an old pickle that looks like text"],
)
def test_code_beside_the_program_needs_them_too(tmp_path: Path, files: dict[str, bytes]) -> None:
    model = staged(tmp_path / "model", model_DOT_pt2=PROGRAM, **files)
    program = admit_program(model, CLOSED, held=Level.NONE)
    with pytest.raises(FormatRefused, match="this policy allows none"):
        admit_contents(model, program, CLOSED, held=Level.STRICT)
    with pytest.raises(SandboxTooWeak, match="needs the sandbox strict, not standard"):
        admit_contents(model, program, OPEN, held=Level.STANDARD)
    assert admit_contents(model, program, OPEN, held=Level.STRICT) == ()


def test_native_code_is_refused_whatever_the_policy_says(tmp_path: Path) -> None:
    model = staged(tmp_path / "model", model_DOT_pt2=PROGRAM, weights_DOT_bin=ELF)
    program = admit_program(model, CLOSED, held=Level.NONE)
    with pytest.raises(FormatRefused, match=r"weights\.bin of net version 1 is native code"):
        admit_contents(model, program, OPEN, held=Level.STRICT)


def test_what_nobody_knows_is_told_unless_it_may_be_the_data_of_an_onnx_file(tmp_path: Path) -> None:
    noise = bytes(range(128, 256))
    model = staged(
        tmp_path / "model",
        model_DOT_pt2=PROGRAM,
        MLmodel=b"flavors: {}",
        noise=noise,
        onnx__m_DOT_onnx=b"\x08\x0a\x12\x00",
        onnx__m_DOT_data=noise,
    )
    program = admit_program(model, CLOSED, held=Level.NONE)
    assert admit_contents(model, program, CLOSED, held=Level.NONE) == ("noise",)


# --- From the worker that exports to those that run ---------------------------------------------------------------


def exported(tmp_path: Path) -> tuple[Path, Path]:
    home, target = tmp_path / "home" / "export", tmp_path / "onnx"
    home.mkdir(parents=True)
    target.mkdir()
    return home, target


def test_an_export_is_taken_by_its_names_and_nothing_with_it(tmp_path: Path) -> None:
    home, target = exported(tmp_path)
    for name in ("model.onnx", "model.onnx.data", "planted.so", "verdict.json"):
        (home / name).write_text(name)
    assert take_export(home / "model.onnx", target) == target / "model.onnx"
    assert sorted(path.name for path in target.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert (target / "model.onnx").stat().st_mode & 0o777 == 0o444


def test_an_export_that_is_a_link_is_refused_and_what_it_points_to_stays(tmp_path: Path) -> None:
    home, target = exported(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (home / "model.onnx").symlink_to(secret)
    with pytest.raises(FormatRefused, match="no regular file of one link"):
        take_export(home / "model.onnx", target)
    assert secret.read_text() == "secret"


def test_an_export_with_a_second_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    home, target = exported(tmp_path)
    (home / "model.onnx").write_text("x")
    (home / "other").hardlink_to(home / "model.onnx")
    with pytest.raises(FormatRefused, match="no regular file of one link"):
        take_export(home / "model.onnx", target)
    (target / "model.onnx").unlink()
    os.mkfifo(home / "model.onnx")
    with pytest.raises(FormatRefused, match="no regular file of one link"):
        take_export(home / "model.onnx", target)


def test_a_folder_of_the_export_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    home, target = exported(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.onnx").write_text("somebody's")
    home.rmdir()
    home.symlink_to(other)
    with pytest.raises(FormatRefused, match="cannot be taken"):
        take_export(home / "model.onnx", target)
    assert (other / "model.onnx").is_file()


def test_workers_of_an_onnx_file_get_a_copy_of_it_and_its_data_without_the_program(tmp_path: Path) -> None:
    model = staged(
        tmp_path / "model",
        model_DOT_onnx=b"\x08\x0a\x12\x00",
        model_DOT_onnx_DOT_data=bytes(range(128, 256)),
        data__model_DOT_pth=b"\x80\x04N.",
        code__hook_DOT_py=b"import os",
    )
    file = OnnxFile(
        path=model.folder / "model.onnx", manifest=model.manifest, origin=OnnxOrigin.ARTIFACT, source="model.onnx"
    )
    (tmp_path / "onnx").mkdir()
    apart = copy_apart(file, tmp_path / "onnx")
    assert apart.shown == tmp_path / "onnx" / "model.onnx"
    assert (apart.path, apart.manifest) == (file.path, file.manifest)
    assert sorted(path.name for path in (tmp_path / "onnx").rglob("*")) == ["model.onnx", "model.onnx.data"]
