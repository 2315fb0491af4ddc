"""What MLflow holds after an annotation, and what it does not hold after a failed one."""

import math
from pathlib import Path

import pytest

from tests.registry.conftest import MlflowWorld
from tests.registry.test_contract import BLOCK, FILES, make_annotation
from validator.errors import AnnotationFailed, ExitCode
from validator.registry.annotate import link_report, short_digest
from validator.registry.targets import VersionTarget
from validator.subject import parse_model_uri


@pytest.fixture(params=["embedded", "server"])
def store(request, tmp_path) -> MlflowWorld:
    if request.param == "embedded":
        return request.getfixturevalue("embedded")
    return MlflowWorld(uri=request.getfixturevalue("server").uri, folder=tmp_path / "client")


def resolve(store, uri):
    return store.registry.resolve(parse_model_uri(uri), uri)


@pytest.fixture
def subject(store, name):
    store.register(name, FILES, description="Notes of the team.")
    return resolve(store, f"models:/{name}/1")


def run_of(store, receipt):
    return store.client.get_run(receipt.run_id)


def test_the_run_holds_everything_and_is_finished(store, subject, tmp_path):
    receipt = store.registry.annotate(make_annotation(subject, tmp_path, run_tags={"gpu": "H200"}))
    run = run_of(store, receipt)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"backends": "eager-cpu"}
    assert run.data.metrics == {"error_ratio": 1.5}
    assert run.data.tags["gpu"] == "H200"
    assert run.data.tags["mlflow.runName"] == "alexnet v1 pass"
    assert run.data.tags["mlflow.note.content"] == BLOCK
    assert [entry.path for entry in store.client.list_artifacts(receipt.run_id, "report")] == ["report/verdict.json"]
    dataset = run.inputs.dataset_inputs[0].dataset
    assert (dataset.name, dataset.digest) == ("alexnet-golden", "sha256-" + "ab" * 14 + "a")
    experiment = store.client.get_experiment_by_name("validator")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_metrics_are_found_on_the_logged_model_once(store, subject, tmp_path):
    annotation = make_annotation(subject, tmp_path)
    store.registry.annotate(annotation)
    store.registry.annotate(annotation)
    metrics = store.client.get_logged_model(subject.model_id).metrics
    assert [(m.value, m.dataset_name) for m in metrics if m.key == "error_ratio"] == [(1.5, "alexnet-golden")]


def test_repeating_changes_nothing_of_the_run(store, subject, tmp_path):
    annotation = make_annotation(subject, tmp_path)
    before = run_of(store, store.registry.annotate(annotation))
    after = run_of(store, store.registry.annotate(annotation))
    assert after.to_dictionary() == before.to_dictionary()
    history = store.client.get_metric_history(after.info.run_id, "error_ratio")
    assert [(m.step, m.timestamp) for m in history] == [(0, after.info.start_time)]


def test_values_that_are_not_finite_are_left_out_with_a_warning(store, subject, tmp_path):
    """MLflow would store infinity as 1.797e308, which looks like a measurement."""
    numbers = {"inf": math.inf, "minus": -math.inf, "nan": math.nan, "fine": 2.0}
    receipt = store.registry.annotate(make_annotation(subject, tmp_path, metrics=numbers))
    assert run_of(store, receipt).data.metrics == {"fine": 2.0}
    assert len(receipt.warnings) == 3
    assert "metric inf is not finite and was left out" in receipt.warnings


def test_more_metrics_than_one_batch_holds_are_written(embedded, name, tmp_path):
    embedded.register(name, FILES)
    numbers = {f"error_{n}": float(n) for n in range(1100)}
    receipt = embedded.registry.annotate(
        make_annotation(resolve(embedded, f"models:/{name}/1"), tmp_path, metrics=numbers)
    )
    assert run_of(embedded, receipt).data.metrics == numbers


def test_the_training_run_points_to_the_check(store, subject, tmp_path):
    receipt = store.registry.annotate(make_annotation(subject, tmp_path))
    tags = store.client.get_run(subject.run_id).data.tags
    assert (tags["validator.verdict"], tags["validator.run_id"]) == ("pass", receipt.run_id)


def test_a_deleted_training_run_is_a_warning(store, subject, tmp_path):
    store.client.delete_run(subject.run_id)
    receipt = store.registry.annotate(make_annotation(subject, tmp_path))
    assert any(subject.run_id in warning for warning in receipt.warnings)
    assert receipt.version_tags["validator.verdict"] == "pass"


def test_files_get_the_name_of_their_artifact_path_and_folders_their_files(store, subject, tmp_path):
    (tmp_path / "temporary-17.html").write_text("<p>")
    (tmp_path / "evidence" / "deep").mkdir(parents=True)
    (tmp_path / "evidence" / "deep" / "a.json").write_text("[]")
    artifacts = {"report.html": tmp_path / "temporary-17.html", "evidence": tmp_path / "evidence"}
    receipt = store.registry.annotate(make_annotation(subject, tmp_path, artifacts=artifacts))
    assert sorted(e.path for e in store.client.list_artifacts(receipt.run_id)) == ["evidence", "report.html"]
    assert [e.path for e in store.client.list_artifacts(receipt.run_id, "evidence/deep")] == ["evidence/deep/a.json"]


def test_the_address_for_people_can_be_opened(store, subject, tmp_path):
    receipt = store.registry.annotate(make_annotation(subject, tmp_path))
    if store.uri.startswith("http"):
        experiment_id = run_of(store, receipt).info.experiment_id
        assert receipt.run_uri == f"{store.uri}/#/experiments/{experiment_id}/runs/{receipt.run_id}"
    else:
        assert receipt.run_uri == f"runs:/{receipt.run_id}"


# --- Subjects without a version -------------------------------------------------------------------------------


def test_a_logged_model_gets_the_tags_and_the_note(store, tmp_path):
    subject = resolve(store, f"models:/{store.log_model(FILES)}")
    annotation = make_annotation(subject, tmp_path, check_id=f"check-{subject.model_id}")
    receipt = store.registry.annotate(annotation)
    tags = store.client.get_logged_model(subject.model_id).tags
    assert receipt.version_tags.items() <= tags.items()
    assert BLOCK in tags["mlflow.note.content"]
    assert store.registry.annotate(annotation) == receipt
    assert store.client.get_logged_model(subject.model_id).tags == tags


def test_a_plain_run_artifact_has_only_the_run(store, subject, tmp_path):
    store.client.log_artifact(
        subject.run_id, str(make_annotation(subject, tmp_path).artifacts["report/verdict.json"]), "p"
    )
    artifact = resolve(store, f"runs:/{subject.run_id}/p")
    receipt = store.registry.annotate(make_annotation(artifact, tmp_path, check_id=f"run-{subject.run_id}"))
    assert receipt.version_tags == {}
    assert "only the run says the verdict" in receipt.warnings[0]


# --- Failures -------------------------------------------------------------------------------------------------


def fail_at(monkeypatch, key):
    """Make setting one version tag fail, as a server would that dies just then."""
    real = VersionTarget.set_tag

    def set_tag(self, name, value):
        if name == key:
            raise AnnotationFailed("the server died")
        real(self, name, value)

    monkeypatch.setattr(VersionTarget, "set_tag", set_tag)


@pytest.mark.parametrize("key", ["validator.digest", "validator.run_id", "validator.verdict"])
def test_the_verdict_tag_is_the_last_thing_written(embedded, name, tmp_path, monkeypatch, key):
    embedded.register(name, FILES)
    annotation = make_annotation(resolve(embedded, f"models:/{name}/1"), tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, key)
        with pytest.raises(AnnotationFailed):
            embedded.registry.annotate(annotation)
    assert "validator.verdict" not in embedded.tags(name, 1)
    assert embedded.registry.annotate(annotation).version_tags["validator.verdict"] == "pass"
    assert embedded.count_runs(annotation.check_id) == 1


def test_a_failed_annotation_does_not_leave_the_verdict_of_an_earlier_check(embedded, name, tmp_path, monkeypatch):
    embedded.register(name, FILES)
    subject = resolve(embedded, f"models:/{name}/1")
    embedded.registry.annotate(make_annotation(subject, tmp_path))
    fail_at(monkeypatch, "validator.digest")
    with pytest.raises(AnnotationFailed):
        embedded.registry.annotate(
            make_annotation(
                subject, tmp_path, check_id="later", verdict="fail", version_tags={"validator.digest": "sha256:11"}
            )
        )
    assert "validator.verdict" not in embedded.tags(name, 1)


def test_a_tag_that_reads_back_otherwise_fails(embedded, name, tmp_path, monkeypatch):
    embedded.register(name, FILES)
    annotation = make_annotation(resolve(embedded, f"models:/{name}/1"), tmp_path)
    monkeypatch.setattr(VersionTarget, "set_tag", lambda self, key, value: None)
    with pytest.raises(AnnotationFailed, match=r"reads back otherwise than written: .*validator\.verdict"):
        embedded.registry.annotate(annotation)


def test_an_artifact_that_did_not_arrive_fails_before_the_version_is_touched(embedded, name, tmp_path, monkeypatch):
    embedded.register(name, FILES)
    annotation = make_annotation(resolve(embedded, f"models:/{name}/1"), tmp_path)
    monkeypatch.setattr("mlflow.MlflowClient.log_artifact", lambda *_, **__: None)
    with pytest.raises(AnnotationFailed, match=r"artifact report/verdict\.json"):
        embedded.registry.annotate(annotation)
    assert embedded.tags(name, 1) == {}
    assert not embedded.description(name, 1)


def test_a_version_made_again_since_is_not_annotated(store, name, subject, tmp_path):
    store.delete_model(name)
    store.register(name, FILES)
    with pytest.raises(AnnotationFailed, match="made again"):
        store.registry.annotate(make_annotation(subject, tmp_path))
    assert store.tags(name, 1) == {}


def test_a_second_run_of_the_same_check_is_deleted(embedded, name, tmp_path):
    """A POST that MLflow retried after a lost answer makes two."""
    embedded.register(name, FILES)
    annotation = make_annotation(resolve(embedded, f"models:/{name}/1"), tmp_path)
    first = embedded.registry.annotate(annotation)
    experiment_id = run_of(embedded, first).info.experiment_id
    embedded.client.create_run(experiment_id, tags={"validator.check_id": annotation.check_id})
    assert embedded.registry.annotate(annotation).run_id == first.run_id
    assert embedded.count_runs(annotation.check_id) == 1


def test_the_run_of_a_check_that_was_killed_is_closed_by_the_next(embedded, name, tmp_path, monkeypatch):
    embedded.register(name, FILES)
    subject = resolve(embedded, f"models:/{name}/1")

    class Killed(BaseException):
        pass

    def kill(*_arguments):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("validator.registry.annotate.upload_artifacts", kill)
        with pytest.raises(Killed):
            embedded.registry.annotate(make_annotation(subject, tmp_path, check_id="killed"))
    assert [run.info.status for run in embedded.find_runs("killed")] == ["RUNNING"]
    embedded.registry.annotate(make_annotation(subject, tmp_path, check_id="next"))
    assert [run.info.status for run in embedded.find_runs("killed")] == ["KILLED"]
    assert [run.info.status for run in embedded.find_runs("next")] == ["FINISHED"]


def test_a_deleted_experiment_is_said_with_the_way_back(embedded, name, tmp_path):
    embedded.register(name, FILES)
    annotation = make_annotation(resolve(embedded, f"models:/{name}/1"), tmp_path)
    receipt = embedded.registry.annotate(annotation)
    embedded.client.delete_experiment(run_of(embedded, receipt).info.experiment_id)
    with pytest.raises(AnnotationFailed, match="experiment validator is deleted"):
        embedded.registry.annotate(annotation)


def test_changed_parameters_under_one_check_id_fail(embedded, name, tmp_path):
    embedded.register(name, FILES)
    subject = resolve(embedded, f"models:/{name}/1")
    embedded.registry.annotate(make_annotation(subject, tmp_path))
    with pytest.raises(AnnotationFailed):
        embedded.registry.annotate(make_annotation(subject, tmp_path, params={"backends": "other"}))


def test_a_description_without_room_is_left_alone_with_a_warning(store, name, tmp_path):
    text = "n" * 4995
    store.register(name, FILES, description=text)
    receipt = store.registry.annotate(make_annotation(resolve(store, f"models:/{name}/1"), tmp_path))
    assert store.description(name, 1) == text
    assert store.tags(name, 1)["validator.verdict"] == "pass"
    assert "no room" in receipt.warnings[0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"check_id": "a' OR '1"}, "check id", id="check id"),
        pytest.param({"version_tags": {"t": "x" * 1001}}, "version tag t: 1001 of 1000", id="version tag"),
        pytest.param({"run_tags": {"t": "x" * 8001}}, "run tag t: 8001 of 8000", id="run tag"),
        pytest.param({"params": {"p": "x" * 6001}}, "parameter p: 6001 of 6000", id="parameter"),
        pytest.param({"params": {"p" * 251: "x"}}, "its name is too long", id="name"),
        pytest.param({"artifacts": {"../x": Path("pyproject.toml")}}, "leaves the run's folder", id="artifact path"),
    ],
)
def test_what_mlflow_would_cut_is_refused_before_anything_is_written(embedded, name, tmp_path, changes, text):
    embedded.register(name, FILES)
    with pytest.raises(AnnotationFailed, match=text) as caught:
        embedded.registry.annotate(make_annotation(resolve(embedded, f"models:/{name}/1"), tmp_path, **changes))
    assert caught.value.exit_code == ExitCode.INCONCLUSIVE
    assert embedded.client.get_experiment_by_name("validator") is None


def test_a_dataset_digest_fits_its_column():
    assert short_digest("sha256:" + "ab" * 32) == "sha256-" + "ab" * 14 + "a"
    assert len(short_digest("sha256:" + "ab" * 32)) == 36


@pytest.mark.parametrize("report", ["report.html", "verdict.json"])
def test_the_block_leads_to_the_report_where_a_browser_can_follow(report):
    block = f"**pass** heading\n\nreport `{report}` \u00b7 a label"
    page = "https://mlflow.example.com/#/experiments/1/runs/2"
    assert link_report(block, page).splitlines()[-1] == f"[report]({page}/artifacts/{report}) \u00b7 a label"
    assert link_report(block, "runs:/2") == block
