import os

import ml_dtypes
import numpy as np
import pytest
import torch

from validator.errors import GoldenError
from validator.golden.dataset import open_golden
from validator.golden.writer import Sample, write_golden


def make_samples(count=3, **changes):
    return [Sample(inputs={"x": np.full((2, 3), i, np.float32)}, **changes) for i in range(count)]


def write(folder, samples, **options):
    return write_golden(folder, samples, name="numbers", source="a test", **options)


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_big_group_is_cut_into_shards_of_the_asked_size(tmp_path):
    dataset = write(tmp_path / "set", make_samples(10), shard_bytes=2 * 24)
    assert [(g.start, g.stop) for g in dataset.manifest.groups] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    assert dataset.read(7, 8)["x"].tolist() == np.full((1, 2, 3), 7).tolist()


def test_waiting_samples_are_bounded_over_all_shapes_together(tmp_path):
    """However many shapes a source has, it cannot keep one full shard of each in memory."""
    samples = (Sample(inputs={"x": np.zeros((1 + i % 5, 8), np.uint8)}) for i in range(50))
    dataset = write(tmp_path / "set", samples, shard_bytes=100)
    assert all(file.size_bytes < 300 for file in dataset.manifest.files)
    assert [g.shapes["x"][0] for g in dataset.manifest.groups] == sorted(
        g.shapes["x"][0] for g in dataset.manifest.groups
    )


def test_a_source_may_reuse_its_buffer(tmp_path):
    buffer = np.zeros(2)

    def reuse():
        for value in range(3):
            buffer[:] = value
            yield Sample(inputs={"x": buffer})

    assert write(tmp_path / "set", reuse()).read(0, 3)["x"][:, 0].tolist() == [0, 1, 2]


def test_big_endian_and_strided_arrays_keep_their_values(tmp_path):
    values = np.arange(12, dtype=">f4").reshape(3, 4).T
    dataset = write(tmp_path / "set", [Sample(inputs={"x": values})])
    assert dataset.inputs[0].dtype == "float32"
    assert dataset.read(0, 1)["x"][0].tolist() == values.tolist()


def test_conjugate_views_and_gradients_of_torch_are_resolved(tmp_path):
    value = torch.tensor([1 + 2j], dtype=torch.complex64)
    inputs = {"z": value.conj(), "w": torch.ones(2, requires_grad=True)}
    dataset = write(tmp_path / "set", [Sample(inputs=inputs)])
    assert dataset.read(0, 1)["z"].tolist() == [[1 - 2j]]


def test_bfloat16_of_numpy_is_the_same_as_of_torch(tmp_path):
    numpy_set = write(tmp_path / "a", [Sample(inputs={"x": np.array([1.5, -3], ml_dtypes.bfloat16)})])
    torch_set = write(tmp_path / "b", [Sample(inputs={"x": torch.tensor([1.5, -3], dtype=torch.bfloat16)})])
    assert numpy_set.digest == torch_set.digest


def test_another_order_of_the_inputs_is_the_same_shape(tmp_path):
    one, two = np.zeros(1), np.ones(2)
    dataset = write(tmp_path / "set", [Sample(inputs={"a": one, "b": two}), Sample(inputs={"b": two, "a": one})])
    assert len(dataset.manifest.groups) == 1
    assert [spec.name for spec in dataset.inputs] == ["a", "b"]


x = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        pytest.param([], "gave 0 samples", id="none"),
        pytest.param([Sample(inputs={})], "sample 0 has no inputs", id="no inputs"),
        pytest.param([Sample(inputs={"x": x}), Sample(inputs={"y": x})], "sample 1 has the inputs y", id="names"),
        pytest.param(
            [Sample(inputs={"x": x}), Sample(inputs={"x": x.astype(np.float64)})],
            "sample 1, input x: float64, in the first sample float32",
            id="dtype",
        ),
        pytest.param([Sample(inputs={"x": np.array([None])})], "the dtype object cannot be stored", id="object"),
        pytest.param([Sample(inputs={"x": np.array(["a"])})], "the dtype str.* cannot be stored", id="text"),
        pytest.param([Sample(inputs={"x": x.astype(np.complex128)})], "complex128 cannot be stored", id="complex128"),
        pytest.param([Sample(inputs={"x": [1.0]})], "a list is neither an array nor a tensor", id="list"),
        pytest.param([Sample(inputs={"x": torch.eye(2).to_sparse()})], "sparse.* cannot be stored", id="sparse"),
        pytest.param([Sample(inputs={"__labels__": x})], "cannot be the name of an input", id="reserved name"),
        pytest.param([Sample(inputs={"a\nb": x})], "not printable", id="control character"),
        pytest.param(
            [Sample(inputs={"x": x}, label=1), Sample(inputs={"x": x})], "every sample has a label, or none", id="label"
        ),
        pytest.param(
            [Sample(inputs={"x": x}), Sample(inputs={"x": x}, id="b")], "sample b: .* has an id, or none", id="id"
        ),
        pytest.param([Sample(inputs={"x": x}, id="a")] * 2, "sample id 'a' is used twice", id="twin id"),
        pytest.param([Sample(inputs={"x": x}, label=1.5)], "the label is a float, not an integer", id="float label"),
        pytest.param([Sample(inputs={"x": x}, label=1 << 63)], "no 64-bit integer", id="big label"),
    ],
)
def test_samples_that_cannot_be_a_dataset_leave_nothing_behind(tmp_path, samples, message):
    with pytest.raises(GoldenError, match=message):
        write(tmp_path / "set", samples)
    assert listing(tmp_path) == []


def test_a_source_that_fails_half_way_leaves_nothing_behind(tmp_path):
    def fail():
        yield from make_samples()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "set", fail(), shard_bytes=1)
    assert listing(tmp_path) == []


def test_an_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "set").mkdir()
    with pytest.raises(GoldenError, match="exists") as caught:
        write(tmp_path / "set", make_samples())
    assert "--replace" in caught.value.hint


def test_replacing_keeps_the_policy_and_drops_old_shards(tmp_path):
    write(tmp_path / "set", make_samples(9), shard_bytes=1)
    (tmp_path / "set" / "policy.toml").write_text("schema_version = 1\n")
    dataset = write(tmp_path / "set", make_samples(2), replace=True)
    assert dataset.samples == 2
    assert listing(tmp_path / "set") == ["group-0000-0000.safetensors", "manifest.json", "policy.toml"]
    assert listing(tmp_path) == ["set"]


def test_a_failed_replacement_keeps_the_old_dataset(tmp_path):
    old = write(tmp_path / "set", make_samples())
    with pytest.raises(GoldenError):
        write(tmp_path / "set", [], replace=True)
    assert open_golden(tmp_path / "set").digest == old.digest


def test_a_folder_that_is_no_dataset_is_never_replaced(tmp_path):
    """`--replace` with a slip of the hand must not delete a home folder."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(GoldenError, match="no golden dataset"):
        write(tmp_path / "home", make_samples(), replace=True)
    write(tmp_path / "set", make_samples())
    (tmp_path / "set" / "notes.txt").write_text("mine")
    with pytest.raises(GoldenError, match=r"notes\.txt"):
        write(tmp_path / "set", make_samples(), replace=True)


def test_a_place_below_a_file_is_an_error_of_the_user(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GoldenError, match="cannot be written"):
        write(tmp_path / "file" / "set", make_samples())


def test_the_new_folder_is_readable_as_any_other(tmp_path):
    """The draft is no private temporary folder: a worker of another user has to read it."""
    mask = os.umask(0o022)
    try:
        write(tmp_path / "set", make_samples())
    finally:
        os.umask(mask)
    assert (tmp_path / "set").stat().st_mode & 0o777 == 0o755


def test_shards_of_no_bytes_are_a_mistake_of_the_caller(tmp_path):
    with pytest.raises(ValueError, match="shard_bytes is 0"):
        write(tmp_path / "set", make_samples(), shard_bytes=0)
