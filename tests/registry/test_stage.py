"""Staging and fetching: the same bytes whatever the way, and no trace left in the live store."""

import errno
import os
import shutil

import numpy as np
import pytest

from tests.registry.conftest import MlflowWorld, write_files
from validator.disk import remove_tree
from validator.errors import CouldNotRun, IntegrityError, UriError
from validator.manifest import measure_folder
from validator.registry.stage import is_registered_meta
from validator.subject import find_program, parse_model_uri

FILES = {"MLmodel": b"flavors: {}\n", "data/model.pt2": b"\x00weights"}
META = b"model_name: alexnet\nmodel_version: '1'\n"


def stage(store, uri, folder):
    return store.registry.stage(store.registry.resolve(parse_model_uri(uri), uri), folder)


def live_folder(embedded, name):
    uri = embedded.registry.resolve(parse_model_uri(f"models:/{name}/1"), "").download_uri
    return embedded.folder / uri.removeprefix(f"file://{embedded.folder}/")


def test_the_digest_is_the_same_behind_a_server(embedded, server, name, tmp_path):
    remote = MlflowWorld(uri=server.uri, folder=tmp_path / "client")
    embedded.register(name, FILES)
    remote.register(name, FILES)
    here = stage(embedded, f"models:/{name}/1", tmp_path / "here")
    there = stage(remote, f"models:/{name}/1", tmp_path / "there")
    assert here.manifest == there.manifest


def test_the_note_of_other_downloads_is_not_content(embedded, name, tmp_path):
    embedded.register(name, FILES | {"registered_model_meta": META})
    staged = stage(embedded, f"models:/{name}/1", tmp_path / "stage")
    assert [entry.path for entry in staged.manifest.entries] == sorted(FILES)
    assert measure_folder(tmp_path / "stage") == staged.manifest


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"registered_model_meta": META + b"loader: evil\n"}, id="a third key"),
        pytest.param({"registered_model_meta": b"\x80\x04pickle"}, id="other bytes"),
        pytest.param({"registered_model_meta": META + b" " * 5000}, id="too long"),
        pytest.param({"data/registered_model_meta": META}, id="not at the root"),
    ],
)
def test_a_file_that_only_bears_its_name_is_content(embedded, name, tmp_path, extra):
    embedded.register(name, FILES | extra)
    staged = stage(embedded, f"models:/{name}/1", tmp_path / "stage")
    assert set(extra) < {entry.path for entry in staged.manifest.entries}


def test_a_link_with_that_name_is_no_note(tmp_path):
    (tmp_path / "meta").write_bytes(META)
    (tmp_path / "registered_model_meta").symlink_to(tmp_path / "meta")
    assert is_registered_meta(tmp_path / "meta")
    assert not is_registered_meta(tmp_path / "registered_model_meta")


def test_the_live_store_is_left_untouched(embedded, name, tmp_path):
    embedded.register(name, FILES)
    live = live_folder(embedded, name)
    before = {path: path.stat().st_mtime_ns for path in (live, *live.rglob("*"))}
    stage(embedded, f"models:/{name}/1", tmp_path / "one")
    embedded.registry.fetch(f"models:/{name}/1", tmp_path / "two")
    assert {path: path.stat().st_mtime_ns for path in (live, *live.rglob("*"))} == before


def test_staged_files_are_copies(embedded, name, tmp_path):
    """A write to the live store after staging must not reach the bytes under test."""
    embedded.register(name, FILES)
    staged = stage(embedded, f"models:/{name}/1", tmp_path / "stage")
    (live_folder(embedded, name) / "data/model.pt2").write_bytes(b"other")
    assert measure_folder(staged.folder) == staged.manifest


@pytest.mark.parametrize("target", ["/etc/hostname", "MLmodel"])
def test_a_link_in_the_live_store_is_refused(embedded, name, tmp_path, target):
    embedded.register(name, FILES)
    (live_folder(embedded, name) / "link").symlink_to(target)
    with pytest.raises(IntegrityError, match=r"link of .* is a symbolic link"):
        stage(embedded, f"models:/{name}/1", tmp_path / "stage")
    assert not (tmp_path / "stage").exists()


def test_a_file_of_two_names_in_the_live_store_is_refused(embedded, name, tmp_path):
    embedded.register(name, FILES)
    (tmp_path / "secret").write_text("of another user")
    (live_folder(embedded, name) / "link").hardlink_to(tmp_path / "secret")
    with pytest.raises(IntegrityError, match=r"link of .* a hard link"):
        stage(embedded, f"models:/{name}/1", tmp_path / "stage")
    assert not (tmp_path / "stage").exists()


def test_the_current_directory_is_never_staged_into(embedded, name, tmp_path, monkeypatch):
    embedded.register(name, FILES)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(CouldNotRun, match="current directory"):
        stage(embedded, f"models:/{name}/1", tmp_path / "here")


def test_bytes_that_are_gone_could_not_be_checked(embedded, name, tmp_path):
    embedded.register(name, FILES)
    shutil.rmtree(live_folder(embedded, name))
    with pytest.raises(CouldNotRun, match="holds no files"):
        stage(embedded, f"models:/{name}/1", tmp_path / "stage")
    assert not (tmp_path / "stage").exists()


def test_a_full_disk_leaves_nothing_behind(embedded, name, tmp_path, monkeypatch):
    embedded.register(name, FILES)

    def copy_to_full_disk(source, target, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    monkeypatch.setattr("shutil.copy2", copy_to_full_disk)
    with pytest.raises(CouldNotRun, match="the disk is full"):
        stage(embedded, f"models:/{name}/1", tmp_path / "stage")
    assert not (tmp_path / "stage").exists()


def test_names_that_clash_on_some_file_systems_are_refused(embedded, name, tmp_path):
    embedded.register(name, FILES | {"mlmodel": b""})
    with pytest.raises(IntegrityError):
        stage(embedded, f"models:/{name}/1", tmp_path / "stage")
    assert not (tmp_path / "stage").exists()


def test_a_staged_folder_can_be_discarded(embedded, name, tmp_path):
    embedded.register(name, FILES)
    remove_tree(stage(embedded, f"models:/{name}/1", tmp_path / "stage").folder)
    assert not (tmp_path / "stage").exists()


# --- fetch ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", "server"])
def store(request, tmp_path) -> MlflowWorld:
    if request.param == "embedded":
        return request.getfixturevalue("embedded")
    return MlflowWorld(uri=request.getfixturevalue("server").uri, folder=tmp_path / "client")


def test_every_form_of_uri_fetches_the_same_bytes(store, name, tmp_path):
    store.set_alias(name, "current", store.register(name, FILES))
    subject = store.registry.resolve(parse_model_uri(f"models:/{name}/1"), "")
    model = store.client.get_logged_model(subject.model_id)
    store.client.log_artifacts(subject.run_id, str(write_files(tmp_path / "plain", FILES)), "plain")
    forms = [
        f"models:/{name}/1",
        f"models:/{name}@current",
        f"models:/{name}/latest",
        f"models:/{subject.model_id}",
        f"runs:/{subject.run_id}/{model.name}",
        f"runs:/{subject.run_id}/plain",
        model.artifact_location,
    ]
    for number, uri in enumerate(forms):
        fetched = store.registry.fetch(uri, tmp_path / str(number))
        assert {p: (fetched / p).read_bytes() for p in FILES} == FILES, uri
        assert len(measure_folder(fetched).entries) == len(FILES), uri
        one = store.registry.fetch(f"{uri}/data/model.pt2", tmp_path / f"{number}-file")
        assert one.read_bytes() == FILES["data/model.pt2"], uri


def test_fetched_files_are_read_only(store, name, tmp_path):
    store.register(name, FILES)
    fetched = store.registry.fetch(f"models:/{name}/1", tmp_path / "fetched")
    assert {path.stat().st_mode & 0o222 for path in fetched.rglob("*")} == {0}


@pytest.mark.parametrize(
    "form",
    [
        "models:/{0}/7",
        "models:/{0}@nobody",
        "models:/{0}",
        "runs:/0123/x",
        "models:/",
        "golden",
        "models:/{0}/1/../2",
        "/etc/hostname",
    ],
)
def test_what_does_not_exist_is_a_uri_error(store, name, tmp_path, form):
    store.register(name, FILES)
    with pytest.raises(UriError):
        store.registry.fetch(form.format(name), tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


# --- A real model ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_model_logged_by_mlflow_stages_with_its_program(embedded, server, tmp_path, monkeypatch):
    """What `mlflow.pytorch.log_model` writes by default, and the same files behind a server."""
    import mlflow
    import torch

    monkeypatch.chdir(tmp_path)
    embedded.log_model(FILES)  # makes the experiment, with its artifacts below tmp_path
    mlflow.set_tracking_uri(embedded.uri)
    mlflow.set_experiment("training")
    example = np.zeros((2, 3), dtype=np.float32)
    mlflow.pytorch.log_model(
        torch.nn.Linear(3, 2).eval(),
        name="net",
        registered_model_name="net",
        input_example=example,
        pip_requirements=["torch"],
    )
    staged = stage(embedded, "models:/net/1", tmp_path / "stage")
    assert find_program(staged).path.name == "model.pt2"
    assert staged.subject.model_id is not None

    remote = MlflowWorld(uri=server.uri, folder=tmp_path / "client")
    remote.register("net", {e.path: (staged.folder / e.path).read_bytes() for e in staged.manifest.entries})
    assert stage(remote, "models:/net/1", tmp_path / "remote").manifest == staged.manifest
