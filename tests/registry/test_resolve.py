"""URIs that only MLflow has, and what is said when nothing is there."""

import sqlite3

import pytest

from tests.registry.conftest import MlflowWorld, write_files
from validator.errors import UriError
from validator.registry.resolve import name_versions
from validator.subject import parse_model_uri

FILES = {"MLmodel": b"flavors: {}\n", "data/model.pt2": b"\x00weights"}


@pytest.fixture(params=["embedded", "server"])
def store(request, tmp_path) -> MlflowWorld:
    if request.param == "embedded":
        return request.getfixturevalue("embedded")
    return MlflowWorld(uri=request.getfixturevalue("server").uri, folder=tmp_path / "client")


def resolve(store, uri):
    return store.registry.resolve(parse_model_uri(uri), uri)


def test_a_version_knows_its_logged_model_and_its_training_run(store, name):
    store.register(name, FILES)
    subject = resolve(store, f"models:/{name}/1")
    model = store.client.get_logged_model(subject.model_id)
    assert subject.source == f"models:/{subject.model_id}"
    assert subject.download_uri == model.artifact_location
    assert subject.run_id == model.source_run_id
    assert subject.registry_uri == store.uri


def test_a_copy_is_traced_to_the_logged_model_of_the_original(store, name):
    store.register(name, FILES)
    store.client.copy_model_version(f"models:/{name}/1", f"{name}-prod")
    original, copy = resolve(store, f"models:/{name}/1"), resolve(store, f"models:/{name}-prod/1")
    assert copy.source == f"models:/{name}/1"
    assert copy.model_id == original.model_id
    assert copy.download_uri == original.download_uri


def test_a_copy_outlives_the_original(store, name):
    store.register(name, FILES)
    store.client.copy_model_version(f"models:/{name}/1", f"{name}-prod")
    store.delete_model(name)
    assert resolve(store, f"models:/{name}-prod/1").model_id is None


def test_a_deleted_logged_model_is_not_named(store, name):
    store.register(name, FILES)
    store.client.delete_logged_model(resolve(store, f"models:/{name}/1").model_id)
    assert resolve(store, f"models:/{name}/1").model_id is None


@pytest.mark.filterwarnings("ignore:.*transition_model_version_stage.*:FutureWarning")
def test_a_stage_resolves_to_its_newest_version_with_a_warning(store, name):
    for _ in range(3):
        store.register(name, FILES)
    for number in (1, 2):
        store.client.transition_model_version_stage(name, str(number), "Production")
    assert resolve(store, f"models:/{name}/production").version == 2
    assert resolve(store, f"models:/{name}/None").version == 3
    assert store.warnings[0] == f"stages are deprecated in MLflow: write models:/{name}/2, or use an alias"


def test_latest_is_no_stage_and_brings_no_warning(store, name):
    store.register(name, FILES)
    assert resolve(store, f"models:/{name}/latest").version == 1
    assert store.warnings == []


def test_an_empty_stage_is_a_uri_error(store, name):
    store.register(name, FILES)
    with pytest.raises(UriError, match="no version in stage Production") as caught:
        resolve(store, f"models:/{name}/Production")
    assert caught.value.hint == f"only version 1 exists; registry {store.uri}"


def test_an_alias_written_with_a_slash_is_recognised(store, name):
    store.set_alias(name, "champion", store.register(name, FILES))
    with pytest.raises(UriError) as caught:
        resolve(store, f"models:/{name}/champion")
    assert caught.value.hint == f"an alias is written models:/{name}@champion"


def test_a_model_without_versions_has_no_latest(store, name):
    store.client.create_registered_model(name)
    with pytest.raises(UriError, match="has no versions"):
        resolve(store, f"models:/{name}/latest")
    assert "no versions yet" in store.registry.hint_for(name)


def test_a_mistyped_name_gets_the_nearest_one(store, name):
    store.register(name, FILES)
    with pytest.raises(UriError) as caught:
        resolve(store, f"models:/{name}x/1")
    assert name in caught.value.hint


def test_an_empty_registry_says_so(embedded):
    with pytest.raises(UriError) as caught:
        resolve(embedded, "models:/alexnet/1")
    assert caught.value.hint == f"registry {embedded.uri} holds no models"


def test_a_logged_model_resolves_without_a_version(store):
    model_id = store.log_model(FILES)
    subject = resolve(store, f"models:/{model_id}")
    assert (subject.name, subject.version, subject.model_id) == (None, None, model_id)
    assert subject.pinned_uri == f"models:/{model_id}"


def test_an_unknown_logged_model_is_a_uri_error(store):
    with pytest.raises(UriError, match="no logged model m-0 exists"):
        resolve(store, "models:/m-0")


def test_a_run_uri_finds_the_logged_model_of_that_name(store):
    model_id = store.log_model(FILES, name="net")
    run_id = store.client.get_logged_model(model_id).source_run_id
    subject = resolve(store, f"runs:/{run_id}/net")
    assert (subject.model_id, subject.run_id) == (model_id, run_id)
    assert subject.requested_uri == f"runs:/{run_id}/net"


def test_a_run_uri_finds_the_newest_of_two_models_of_one_name(store):
    first = store.log_model(FILES, name="net")
    run_id = store.client.get_logged_model(first).source_run_id
    second = store.log_model(FILES, run_id=run_id, name="net")
    assert resolve(store, f"runs:/{run_id}/net").model_id == second


def test_a_run_uri_finds_a_folder_among_the_artifacts(store, tmp_path):
    model_id = store.log_model(FILES, name="net")
    run_id = store.client.get_logged_model(model_id).source_run_id
    store.client.log_artifacts(run_id, str(write_files(tmp_path / "old", FILES)), "old/model")
    subject = resolve(store, f"runs:/{run_id}/old/model")
    assert subject.model_id is None
    staged = store.registry.stage(subject, tmp_path / "stage")
    assert [entry.path for entry in staged.manifest.entries] == sorted(FILES)


def test_a_run_without_that_model_is_a_uri_error(store, tmp_path):
    run_id = store.client.get_logged_model(store.log_model(FILES)).source_run_id
    store.client.log_artifacts(run_id, str(write_files(tmp_path / "old", FILES)), "plots")
    with pytest.raises(UriError, match=f"run {run_id} has no model nothing") as caught:
        resolve(store, f"runs:/{run_id}/nothing")
    assert "it holds plots" in caught.value.hint


def test_an_unknown_run_is_a_uri_error(store):
    with pytest.raises(UriError, match="no run 0123456789abcdef0123456789abcdef exists"):
        resolve(store, "runs:/0123456789abcdef0123456789abcdef/model")


def test_a_name_that_no_registry_allows_is_a_uri_error(store):
    with pytest.raises(UriError):
        resolve(store, "models:/a:b/1")


def test_a_version_that_is_not_ready_resolves_with_a_warning(embedded, name):
    embedded.register(name, FILES)
    connection = sqlite3.connect(embedded.folder / "mlflow.db")
    connection.execute("UPDATE model_versions SET status = 'PENDING_REGISTRATION'")
    connection.commit()
    connection.close()
    assert resolve(embedded, f"models:/{name}/1").version == 1
    assert embedded.warnings == [
        f"{name} version 1 is PENDING_REGISTRATION, not READY: it can be checked, not promoted"
    ]


def test_names_with_a_quote_are_looked_up(embedded):
    embedded.register("it's", FILES)
    assert resolve(embedded, "models:/it's/latest").version == 1


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        pytest.param([], "it has no versions", id="none"),
        pytest.param([3], "only version 3 exists", id="one"),
        pytest.param([1, 2, 3], "versions 1, 2 and 3 exist", id="few"),
        pytest.param(
            list(range(1, 41)), "40 versions exist, the newest are 33, 34, 35, 36, 37, 38, 39 and 40", id="many"
        ),
    ],
)
def test_existing_versions_are_named(numbers, text):
    assert name_versions(numbers) == text
