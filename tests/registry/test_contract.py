"""What every Registry does: embedded, behind a server, and the fake that other tests use."""

import stat
from pathlib import Path

import pytest

from validator.errors import AnnotationFailed, CouldNotRun, UriError
from validator.manifest import measure_folder
from validator.registry.interface import Annotation, resolve_text
from validator.subject import parse_model_uri

FILES = {"MLmodel": b"flavors: {}\n", "data/model.pt2": b"\x00weights"}
BLOCK = "**pass** heading\n- within\n\n[report](x)"


def resolve(world, uri):
    return world.registry.resolve(parse_model_uri(uri), uri)


def make_annotation(subject, tmp_path: Path, **changes) -> Annotation:
    report = tmp_path / "verdict.json"
    report.write_text("{}")
    values = {
        "subject": subject,
        "check_id": f"check-{subject.name}",
        "verdict": "pass",
        "run_name": "alexnet v1 pass",
        "description_block": BLOCK,
        "version_tags": {"validator.digest": "sha256:00"},
        "metrics": {"error_ratio": 1.5},
        "params": {"backends": "eager-cpu"},
        "artifacts": {"report/verdict.json": report},
        "dataset": ("alexnet-golden", "sha256:" + "ab" * 32),
    }
    return Annotation(**(values | changes))


# --- resolve --------------------------------------------------------------------------------------------------


def test_number_alias_and_latest_name_the_same_version(world, name):
    world.register(name, FILES)
    number = world.register(name, FILES)
    world.set_alias(name, "champion", number)
    found = [resolve(world, f"models:/{name}{suffix}") for suffix in (f"/{number}", "@champion", "/latest", "/LATEST")]
    assert [subject.version for subject in found] == [2, 2, 2, 2]
    assert {subject.pinned_uri for subject in found} == {f"models:/{name}/2"}
    assert found[1].requested_uri == f"models:/{name}@champion"


def test_a_version_is_an_int_whatever_the_store_says(world, name):
    world.register(name, FILES)
    assert type(resolve(world, f"models:/{name}/1").version) is int


def test_a_recreated_model_has_another_creation_time(world, name):
    world.register(name, FILES)
    before = resolve(world, f"models:/{name}/1")
    world.delete_model(name)
    world.register(name, FILES)
    after = resolve(world, f"models:/{name}/1")
    assert before.creation_timestamp_ms != after.creation_timestamp_ms


def test_an_unknown_model_is_a_uri_error(world, name):
    with pytest.raises(UriError, match=f"no model {name} is registered") as caught:
        resolve(world, f"models:/{name}/1")
    assert world.registry.uri in caught.value.hint


def test_an_unknown_version_names_those_that_exist(world, name):
    world.register(name, FILES)
    world.register(name, FILES)
    with pytest.raises(UriError, match="has no version 7") as caught:
        resolve(world, f"models:/{name}/7")
    assert "1" in caught.value.hint
    assert "2" in caught.value.hint
    assert world.registry.uri in caught.value.hint


def test_an_unknown_alias_lists_the_aliases(world, name):
    world.set_alias(name, "champion", world.register(name, FILES))
    with pytest.raises(UriError, match="has no alias challenger") as caught:
        resolve(world, f"models:/{name}@challenger")
    assert "champion" in caught.value.hint


def test_a_name_alone_is_told_what_could_be_meant(world, name):
    world.register(name, FILES)
    world.register(name, FILES)
    world.set_alias(name, "champion", 1)
    with pytest.raises(UriError, match="names no version") as caught:
        resolve_text(world.registry, f"models:/{name}")
    assert caught.value.hint == f"write models:/{name}/2 (newest) or models:/{name}@champion (version 1)"


def test_an_unknown_name_alone_is_told_that_it_is_unknown(world, name):
    with pytest.raises(UriError, match="is registered"):
        resolve_text(world.registry, f"models:/{name}")


# --- stage ----------------------------------------------------------------------------------------------------


def test_staged_bytes_are_the_registered_ones_and_read_only(world, name, tmp_path):
    world.register(name, FILES)
    folder = tmp_path / "stage"
    staged = world.registry.stage(resolve(world, f"models:/{name}/1"), folder)
    assert {e.path: (folder / e.path).read_bytes() for e in staged.manifest.entries} == FILES
    assert measure_folder(folder) == staged.manifest
    assert not folder.resolve().is_relative_to(Path.cwd())
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o555 if path.is_dir() else 0o444)


def test_digests_are_equal_by_number_and_by_alias(world, name, tmp_path):
    world.set_alias(name, "a", world.register(name, FILES))
    by_number = world.registry.stage(resolve(world, f"models:/{name}/1"), tmp_path / "n")
    by_alias = world.registry.stage(resolve(world, f"models:/{name}@a"), tmp_path / "a")
    assert by_number.manifest.digest == by_alias.manifest.digest


def test_a_folder_in_use_is_refused_and_left_alone(world, name, tmp_path):
    world.register(name, FILES)
    folder = tmp_path / "stage"
    folder.mkdir()
    (folder / "mine").write_text("x")
    with pytest.raises(CouldNotRun, match="not empty"):
        world.registry.stage(resolve(world, f"models:/{name}/1"), folder)
    assert [path.name for path in folder.iterdir()] == ["mine"]


# --- publish and fetch ----------------------------------------------------------------------------------------


@pytest.fixture
def golden(tmp_path):
    folder = tmp_path / "golden"
    (folder / "shards").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "shards" / "0.safetensors").write_bytes(bytes(range(256)))
    return folder


def publish(world, name, folder):
    return world.registry.publish(
        f"validator.golden.{name}", folder, model_type="validator.golden", alias="current", tags={"samples": "3"}
    )


def test_published_bytes_come_back_equal(world, name, golden, tmp_path):
    published = publish(world, name, golden)
    assert (published.version, published.created) == (1, True)
    fetched = world.registry.fetch(f"models:/validator.golden.{name}@current", tmp_path / "fetched")
    assert measure_folder(fetched) == measure_folder(golden)
    assert published.digest == measure_folder(golden).digest
    assert world.tags(published.name, 1)["samples"] == "3"


def test_publishing_the_same_bytes_again_makes_no_version(world, name, golden):
    first = publish(world, name, golden)
    second = publish(world, name, golden)
    assert (second.version, second.created, second.uri) == (1, False, first.uri)


def test_publishing_other_bytes_moves_the_alias(world, name, golden):
    publish(world, name, golden)
    (golden / "manifest.json").write_text('{"samples": 4}')
    assert publish(world, name, golden).version == 2
    assert resolve(world, f"models:/validator.golden.{name}@current").version == 2


def test_one_file_of_a_version_can_be_fetched(world, name, golden, tmp_path):
    publish(world, name, golden)
    for number, form in enumerate(("@current", "/1")):
        uri = f"models:/validator.golden.{name}{form}/shards/0.safetensors"
        assert world.registry.fetch(uri, tmp_path / str(number)).read_bytes() == bytes(range(256))


def test_fetching_what_is_not_there_leaves_no_folder(world, name, golden, tmp_path):
    publish(world, name, golden)
    with pytest.raises(UriError):
        world.registry.fetch(f"models:/validator.golden.{name}/1/policy.toml", tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


# --- annotate -------------------------------------------------------------------------------------------------


def test_annotating_twice_is_annotating_once(world, name, tmp_path):
    world.register(name, FILES, description="Notes of the team.\r\n")
    annotation = make_annotation(resolve(world, f"models:/{name}/1"), tmp_path)
    first = world.registry.annotate(annotation)
    description = world.description(name, 1)
    second = world.registry.annotate(annotation)
    assert first == second
    assert first.warnings == ()
    assert world.count_runs(annotation.check_id) == 1
    assert world.history_length(first.run_id, "error_ratio") == 1
    assert world.description(name, 1) == description
    assert description.count("validator:begin") == 1


def test_the_users_description_stays_and_the_tags_are_set(world, name, tmp_path):
    world.register(name, FILES, description="Notes of the team.\r\n")
    annotation = make_annotation(resolve(world, f"models:/{name}/1"), tmp_path)
    receipt = world.registry.annotate(annotation)
    assert world.description(name, 1).endswith("\n\nNotes of the team.\r\n")
    assert BLOCK in world.description(name, 1)
    expected = {"validator.verdict": "pass", "validator.digest": "sha256:00", "validator.run_id": receipt.run_id}
    assert expected.items() <= dict(world.tags(name, 1)).items()
    assert dict(receipt.version_tags) == expected


def test_a_later_check_replaces_the_verdict(world, name, tmp_path):
    world.register(name, FILES)
    subject = resolve(world, f"models:/{name}/1")
    world.registry.annotate(make_annotation(subject, tmp_path))
    later = {"check_id": f"later-{name}", "verdict": "fail", "description_block": "**fail**\n[report](y)"}
    receipt = world.registry.annotate(make_annotation(subject, tmp_path, **later))
    assert world.tags(name, 1)["validator.verdict"] == "fail"
    assert world.tags(name, 1)["validator.run_id"] == receipt.run_id
    assert "pass" not in world.description(name, 1)


def test_a_missing_artifact_leaves_no_verdict(world, name, tmp_path):
    world.register(name, FILES)
    annotation = make_annotation(
        resolve(world, f"models:/{name}/1"), tmp_path, artifacts={"report.html": tmp_path / "nowhere.html"}
    )
    with pytest.raises(AnnotationFailed):
        world.registry.annotate(annotation)
    assert "validator.verdict" not in world.tags(name, 1)
    assert not world.description(name, 1)


# --- aliases ----------------------------------------------------------------------------------------------------


def test_an_alias_moves_is_read_back_and_taken_away(world, name):
    first, second = world.register(name, FILES), world.register(name, FILES)
    assert world.registry.read_model(name).aliases == {}
    for number in (first, second, second):
        world.registry.point_alias(name, "champion", number)
        assert world.registry.read_model(name).aliases == {"champion": number}
    world.registry.point_alias(name, "champion", None)
    assert world.registry.read_model(name).aliases == {}


def test_an_alias_does_not_point_to_nowhere(world, name):
    world.register(name, FILES)
    with pytest.raises(UriError):
        world.registry.point_alias(name, "champion", 7)
    with pytest.raises(UriError):
        world.registry.read_model(f"{name}-gone")


def test_tags_are_written_and_taken_away_as_often_as_one_likes(world, name):
    number = world.register(name, FILES)
    for value in ("one", "two", "two", None, None):
        world.registry.tag_model(name, "validator.intent.champion", value)
        world.registry.tag_version(name, number, "validator.expect.champion", value)
        assert world.registry.read_model(name).tags.get("validator.intent.champion") == value
        assert world.tags(name, number).get("validator.expect.champion") == value


def test_a_note_on_an_alias_leaves_the_text_alone(world, name):
    number = world.register(name, FILES, description="Mine.")
    for line in ("- \u25b2 `champion` since", "- \u25bd `champion` until"):
        assert world.registry.note_alias(name, number, "champion", line) is None
        text = world.description(name, number)
        assert text.endswith("\n\nMine.")
        assert text.count("`champion`") == 1
        assert line in text
