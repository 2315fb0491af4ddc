"""Which URIs are understood, and what a staged folder holds."""

import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator.errors import FormatRefused, IntegrityError, UriError
from validator.manifest import measure_folder
from validator.subject import (
    AliasUri,
    LoggedModelUri,
    ProgramFormat,
    RunUri,
    StagedModel,
    StageUri,
    Subject,
    VersionUri,
    find_onnx,
    find_program,
    format_model_uri,
    parse_model_uri,
)


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("models:/alexnet/3", VersionUri(name="alexnet", version=3)),
        ("models:/alexnet/03", VersionUri(name="alexnet", version=3)),
        ("models:/alexnet@champion", AliasUri(name="alexnet", alias="champion")),
        ("models:/a@b@c", AliasUri(name="a@b", alias="c")),
        ("models:/alexnet/latest", StageUri(name="alexnet", stage="latest")),
        ("models:/alexnet/Production", StageUri(name="alexnet", stage="Production")),
        ("models:/m-0123abc", LoggedModelUri(model_id="m-0123abc")),
        ("runs:/abc/model", RunUri(run_id="abc", path="model")),
        ("runs:/abc/a/b", RunUri(run_id="abc", path="a/b")),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_every_form_of_uri_is_understood(text: str, uri: object) -> None:
    assert parse_model_uri(text) == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "models:/a/" + "9" * 5000 + "/x",
        "alexnet",
        "models:/",
        "models:/alexnet",
        "models:/@x",
        "models:/alexnet@",
        "models:/a/3/sub",
        "runs:/x",
    ],
)
def test_what_is_no_model_uri_says_which_forms_there_are(text: str) -> None:
    with pytest.raises(UriError) as caught:
        parse_model_uri(text)
    assert "models:/" in (caught.value.hint or "")


NAMES = st.from_regex(r"[A-Za-z][\w.-]{0,20}", fullmatch=True).filter(lambda n: not n.startswith("m-"))


@given(
    st.one_of(
        st.builds(VersionUri, name=NAMES, version=st.integers(1, 10**6)),
        st.builds(AliasUri, name=NAMES, alias=NAMES),
        st.builds(StageUri, name=NAMES, stage=NAMES),
    )
)
def test_a_uri_survives_being_written_and_read(uri: VersionUri | AliasUri | StageUri) -> None:
    assert parse_model_uri(format_model_uri(uri)) == uri


def staged(folder: Path) -> StagedModel:
    subject = Subject(
        registry_uri="sqlite:///x", requested_uri="models:/a/1", name="a", version=1, creation_timestamp_ms=1,
        source="s", download_uri="d", model_id=None, run_id=None,
    )  # fmt: skip
    return StagedModel(subject=subject, folder=folder, manifest=measure_folder(folder))


def archive(path: Path, *names: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as out:
        for name in names:
            out.writestr(name, b"x")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("data/model.pt2", "archive/version", ProgramFormat.EXPORTED),
        ("data/model.pth", "archive/data.pkl", ProgramFormat.PICKLE),
        ("data/model.pth", "archive/constants.pkl", ProgramFormat.TORCHSCRIPT),
    ],
    ids=["pt2", "pickle", "torchscript"],
)
def test_the_kind_of_a_program_is_read_off_its_content(
    tmp_path: Path, name: str, content: str, expected: ProgramFormat
) -> None:
    archive(tmp_path / name, content)
    assert find_program(staged(tmp_path)).format is expected


def test_a_truncated_archive_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    archive(tmp_path / "data/model.pt2", "a", "b")
    path = tmp_path / "data/model.pt2"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FormatRefused, match="corrupt or cut short"):
        find_program(staged(tmp_path))


def test_a_subject_without_a_program_or_with_two_is_refused(tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors: {}\n")
    with pytest.raises(FormatRefused, match="no PyTorch model"):
        find_program(staged(tmp_path))
    archive(tmp_path / "a.pt2", "x")
    archive(tmp_path / "b.pt2", "x")
    with pytest.raises(FormatRefused, match="several"):
        find_program(staged(tmp_path))


def test_what_is_checked_is_what_mlmodel_serves(tmp_path: Path) -> None:
    """A clean program elsewhere in the folder must not stand in for the pickle that is served."""
    (tmp_path / "MLmodel").write_text("flavors:\n  pytorch:\n    model_data: data\n")
    archive(tmp_path / "extra_files/clean.pt2", "x")
    archive(tmp_path / "data/model.pth", "archive/data.pkl")
    program = find_program(staged(tmp_path))
    assert program.format is ProgramFormat.PICKLE
    archive(tmp_path / "data/model.pt2", "x")
    with pytest.raises(FormatRefused, match="several"):
        find_program(staged(tmp_path))


@pytest.mark.parametrize("text", ["x", "flavors: [", "flavors:\n  pytorch:\n    model_data: ../elsewhere\n"])
def test_an_mlmodel_that_cannot_be_followed_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "MLmodel").write_text(text)
    archive(tmp_path / "data/model.pt2", "x")
    with pytest.raises(FormatRefused, match="MLmodel"):
        find_program(staged(tmp_path))


def test_an_onnx_file_among_the_artifacts_is_found_and_two_are_refused(tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors: {}\n")
    assert find_onnx(staged(tmp_path)) is None
    (tmp_path / "model.onnx").write_bytes(b"x")
    assert find_onnx(staged(tmp_path)) == tmp_path / "model.onnx"
    (tmp_path / "other.onnx").write_bytes(b"x")
    with pytest.raises(FormatRefused, match="2 ONNX files"):
        find_onnx(staged(tmp_path))


def test_a_rewritten_requirements_file_changes_the_digest_but_not_that_of_the_weights(tmp_path: Path) -> None:
    archive(tmp_path / "data/model.pt2", "x")
    (tmp_path / "requirements.txt").write_text("torch")
    before = staged(tmp_path)
    (tmp_path / "requirements.txt").write_text("torch==2.14.1")
    after = staged(tmp_path)
    assert before.manifest.digest != after.manifest.digest
    assert before.weights_digest == after.weights_digest


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?", fullmatch=True), st.binary(max_size=20), max_size=5))
def test_a_manifest_digest_depends_on_names_and_bytes_alone(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    def write() -> Path:
        folder = tmp_path_factory.mktemp("m")
        for name, content in files.items():
            path = folder / f"_{name.replace('/', '_/')}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder

    assert measure_folder(write()).digest == measure_folder(write()).digest


@pytest.mark.parametrize("kind", ["symlink", "hard link", "empty folder", "case", "pipe"])
def test_what_has_no_portable_meaning_is_refused(tmp_path: Path, kind: str) -> None:
    import os

    (tmp_path / "a").write_text("x")
    match kind:
        case "symlink":
            (tmp_path / "b").symlink_to("a")
        case "hard link":
            os.link(tmp_path / "a", tmp_path / "b")
        case "empty folder":
            (tmp_path / "d").mkdir()
        case "case":
            (tmp_path / "A").write_text("x")
        case _:
            os.mkfifo(tmp_path / "p")
    with pytest.raises(IntegrityError):
        measure_folder(tmp_path)
