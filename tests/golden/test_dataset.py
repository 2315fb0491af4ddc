import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from validator.errors import DigestChanged, ExitCode, FormatRefused, GoldenError
from validator.golden.dataset import open_golden
from validator.golden.format import Stratum
from validator.golden.writer import Sample, write_golden
from validator.manifest import hash_file


@pytest.fixture
def dataset(tmp_path):
    """Five samples in four groups: 0..2 and 2..3 of shape (2,), 3..4 and 4..5 of shape (3,)."""
    samples = [Sample(inputs={"x": np.full(size, size, np.float32)}, label=size) for size in (2, 3, 2, 3, 2)]
    return write_golden(tmp_path / "set", samples, name="five", source="a test", shard_bytes=16)


def edit_manifest(dataset, **changes):
    path = dataset.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_group(dataset, index, **changes):
    groups = json.loads((dataset.folder / "manifest.json").read_text())["groups"]
    groups[index] |= changes
    edit_manifest(dataset, groups=groups)


def rewrite_shard(dataset, **tensors):
    """Give the first shard other tensors *and* a manifest that knows their hash."""
    files = [file.model_dump() for file in dataset.manifest.files]
    path = dataset.folder / files[0]["path"]
    save_file(tensors, path)
    files[0] |= {"size_bytes": path.stat().st_size, "sha256": hash_file(path)}
    edit_manifest(dataset, files=files)


def first_shard(dataset):
    return dataset.folder / dataset.manifest.files[0].path


def test_ids_are_padded_so_that_they_sort(dataset):
    assert [dataset.sample_id(i) for i in range(5)] == ["0000", "0001", "0002", "0003", "0004"]
    with pytest.raises(IndexError):
        dataset.sample_id(5)


def test_labels_follow_their_samples(dataset):
    found = [dataset.labels(*cut).tolist() for cut in dataset.batches(0, 5, 9)]
    assert [label for part in found for label in part] == [2, 2, 2, 3, 3]


@pytest.mark.parametrize("cut", [(0, 0), (2, 1), (-1, 1), (4, 6)], ids=str)
def test_a_range_outside_is_a_mistake_of_the_caller(dataset, cut):
    for read in (dataset.read, dataset.read_torch, dataset.labels):
        with pytest.raises(ValueError, match="no samples"):
            read(*cut)


def test_a_range_over_two_groups_is_a_mistake_of_the_caller(dataset):
    for read in (dataset.read, dataset.read_torch, dataset.labels):
        with pytest.raises(ValueError, match="cross the end of a group at 3"):
            read(2, 4)


@pytest.mark.parametrize("arguments", [(0, 6, 1), (-1, 2, 1), (3, 2, 1), (0, 5, 0)], ids=str)
def test_batches_outside_are_a_mistake_of_the_caller(dataset, arguments):
    with pytest.raises(ValueError, match="no batches"):
        list(dataset.batches(*arguments))


def test_a_model_that_writes_to_its_input_alters_no_file(dataset):
    dataset.read_torch(0, 1)["x"].zero_()
    dataset.read(0, 1)["x"][:] = 0
    assert dataset.read(0, 1)["x"].tolist() == [[2, 2]]
    open_golden(dataset.folder)


def test_policy_and_other_files_are_no_part_of_the_digest(dataset):
    (dataset.folder / "policy.toml").write_text("schema_version = 1\n")
    (dataset.folder / "README.md").write_text("about these inputs\n")
    assert open_golden(dataset.folder) == dataset


def test_the_digest_does_not_depend_on_layout_of_the_json(dataset):
    path = dataset.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert open_golden(dataset.folder).digest == dataset.digest


def test_the_digest_changes_with_any_fact_in_the_manifest(dataset):
    edit_manifest(dataset, source="elsewhere")
    assert open_golden(dataset.folder).digest != dataset.digest


def test_slices_are_kept(dataset):
    edit_manifest(dataset, slices={"night": [0, 4]})
    assert open_golden(dataset.folder).manifest.slices == {"night": [0, 4]}


def test_a_missing_folder(tmp_path):
    with pytest.raises(GoldenError, match="does not exist") as caught:
        open_golden(tmp_path / "nowhere")
    assert caught.value.exit_code == ExitCode.USAGE
    assert "golden create" in caught.value.hint


def test_a_file_instead_of_a_folder(dataset):
    with pytest.raises(GoldenError, match="is not a folder"):
        open_golden(first_shard(dataset))


def test_a_missing_manifest(tmp_path):
    with pytest.raises(GoldenError, match=r"holds no manifest\.json"):
        open_golden(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema_version": NaN}'], ids=["empty", "cut", "list", "bytes", "nan"]
)
def test_an_unreadable_manifest(dataset, content):
    (dataset.folder / "manifest.json").write_bytes(content)
    with pytest.raises(GoldenError, match=r"manifest\.json cannot be used"):
        open_golden(dataset.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"author": "me"}, "author: extra inputs are not permitted"),
        ({"schema_version": 2}, "schema_version: input should be 1"),
        ({"samples": 0, "groups": [], "files": []}, "it holds 0 samples"),
        ({"samples": "5"}, "samples: input should be a valid integer"),
        ({"samples": 6}, "the groups end at 5 of 6 samples"),
        ({"name": "a\x1b[2Jb"}, "not printable"),
        ({"inputs": []}, "it names no input"),
        ({"inputs": [{"name": "x", "dtype": "float33"}]}, "the dtype 'float33' is none of"),
        ({"inputs": [{"name": "x", "dtype": "float32"}] * 2}, "input 'x' is named twice"),
        ({"inputs": [{"name": "__labels__", "dtype": "int64"}]}, "the name of the labels"),
        ({"sample_ids": ["a"]}, "1 sample ids for 5 samples"),
        ({"sample_ids": ["a", "b", "c", "d", "a"]}, "sample id 'a' is used twice"),
        ({"slices": {"night": [5]}}, "slice 'night' is not a sorted list"),
        ({"slices": {"night": [1, 1]}}, "slice 'night' is not a sorted list"),
        ({"files": []}, "groups and files name different shards"),
    ],
    ids=str,
)
def test_a_manifest_that_does_not_agree_with_itself(dataset, changes, message):
    edit_manifest(dataset, **changes)
    with pytest.raises(GoldenError, match=message):
        open_golden(dataset.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 1}, r"1\.\.3 does not go on from 2"),
        ({"stop": 2}, r"2\.\.2 does not go on from 2"),
        ({"stop": 4}, r"3\.\.4 does not go on from 4"),
        ({"shapes": {"y": [2]}}, "shapes for other inputs"),
        ({"shapes": {"x": [-1]}}, "greater than or equal to 0"),
        ({"shard": "group-0000-0000.safetensors"}, "is named twice"),
        ({"shard": "../outside.safetensors"}, "is not the plain name of a shard"),
        ({"shard": "/etc/passwd"}, "is not the plain name of a shard"),
        ({"shard": "policy.toml"}, "is not the plain name of a shard"),
    ],
    ids=str,
)
def test_groups_that_do_not_cover_every_sample_once(dataset, changes, message):
    edit_group(dataset, 1, **changes)
    with pytest.raises(GoldenError, match=message):
        open_golden(dataset.folder)


def test_all_faults_of_a_manifest_are_told_together(dataset):
    edit_manifest(dataset, samples=6, sample_ids=["a"], slices={"night": []})
    with pytest.raises(GoldenError, match=r"1 sample ids.*end at 5 of 6.*slice 'night'"):
        open_golden(dataset.folder)


def test_a_missing_shard(dataset):
    first_shard(dataset).unlink()
    with pytest.raises(GoldenError, match="is missing"):
        open_golden(dataset.folder, verify=False)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_shard_cut_short_or_grown_is_found_without_hashing(dataset, change):
    path = first_shard(dataset)
    content = path.read_bytes()
    path.write_bytes(content[:-1] if change < 0 else content + b"\0")
    with pytest.raises(GoldenError, match=f"has {len(content) + change} of {len(content)} bytes"):
        open_golden(dataset.folder, verify=False)


def test_other_bytes_are_refused_and_not_a_mistake_of_the_user(dataset):
    path = first_shard(dataset)
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(DigestChanged, match="other bytes than when the dataset was made") as caught:
        open_golden(dataset.folder)
    assert caught.value.exit_code == ExitCode.REFUSED


def test_a_linked_shard_is_refused(dataset, tmp_path):
    path = first_shard(dataset)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatRefused, match="symbolic link"):
        open_golden(dataset.folder)


def test_a_linked_manifest_is_refused(dataset, tmp_path):
    path = dataset.folder / "manifest.json"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatRefused, match="symbolic link"):
        open_golden(dataset.folder)


def test_a_folder_in_the_place_of_a_shard_is_refused(dataset):
    first_shard(dataset).unlink()
    first_shard(dataset).mkdir()
    with pytest.raises(FormatRefused, match="not a regular file"):
        open_golden(dataset.folder)


labels = np.zeros(2, np.int64)
rows = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": rows[:1], "__labels__": labels}, r"'x' as F32 \[1, 2\], in the manifest 'x' as F32 \[2, 2\]"),
        ({"x": rows.astype(np.float64), "__labels__": labels}, "'x' as F64"),
        ({"x": rows}, "holds no '__labels__'"),
        ({"x": rows, "__labels__": labels.astype(np.int32)}, "'__labels__' as I32"),
        ({"y": rows, "x": rows, "__labels__": labels}, r"'y' as F32 \[2, 2\], in the manifest no 'y'"),
    ],
    ids=["fewer samples", "other dtype", "no labels", "narrow labels", "one more"],
)
def test_a_shard_that_is_not_what_the_manifest_says(dataset, tensors, message):
    rewrite_shard(dataset, **tensors)
    with pytest.raises(GoldenError, match=message):
        open_golden(dataset.folder)


def test_a_shard_that_is_no_safetensors_file(dataset):
    first_shard(dataset).write_bytes(b"\xff" * first_shard(dataset).stat().st_size)
    with pytest.raises(GoldenError, match="no readable safetensors file"):
        open_golden(dataset.folder, verify=False)


def test_a_shard_that_vanishes_after_opening(dataset):
    first_shard(dataset).unlink()
    with pytest.raises(GoldenError, match="can no longer be read"):
        dataset.read(0, 1)


# --- Strata ------------------------------------------------------------------------------------------------------


def make_strata(folder, **options):
    """Four samples of two shapes: the writer puts those of one shape together."""
    rows = [(2, "representative"), (3, "scales"), (2, "low-margin"), (3, "representative")]
    samples = [
        Sample(inputs={"x": np.full(size, i, np.float32)}, stratum=Stratum(s)) for i, (size, s) in enumerate(rows)
    ]
    return write_golden(folder, samples, name="strata", source="a test", **options)


@pytest.mark.parametrize("shard_bytes", [8, 1 << 20])
def test_the_stratum_of_a_sample_follows_it_into_its_group(tmp_path, shard_bytes):
    written = make_strata(tmp_path / "set", shard_bytes=shard_bytes)
    opened = open_golden(tmp_path / "set")
    assert opened.digest == written.digest
    assert [str(s) for s in opened.strata] == ["representative", "low-margin", "scales", "representative"]
    assert [s.is_stress for s in opened.strata] == [False, False, True, False]


def test_a_dataset_without_strata_is_representative_and_keeps_its_digest(dataset):
    """The digest of this dataset as it was before there were strata."""
    assert set(dataset.strata) == {Stratum.REPRESENTATIVE}
    assert "strata" not in json.loads((dataset.folder / "manifest.json").read_text())
    assert dataset.digest == "sha256:c354aa9ab358c7fb7bd65f5ad7bd9b82354ad964f1e5fce14627a451213353c0"


@pytest.mark.parametrize(
    ("strata", "words"),
    [
        ({}, "strata names none"),
        ({"representative": [0]}, "every sample that no other stratum lists"),
        ({"scales": [1, 0]}, "not a sorted list"),
        ({"scales": [4]}, "indices below 4"),
        ({"scales": []}, "not a sorted list"),
        ({"scales": [0], "shapes": [0]}, "sample 0 is in two strata"),
        ({"favourites": [0]}, "strata.favourites"),
    ],
    ids=str,
)
def test_strata_that_contradict_the_dataset_are_refused(tmp_path, strata, words):
    edit_manifest(make_strata(tmp_path / "set"), strata=strata)
    with pytest.raises(GoldenError, match=words):
        open_golden(tmp_path / "set")
