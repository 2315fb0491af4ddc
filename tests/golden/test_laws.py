"""Laws of the format, for any dtype, shape and raggedness."""

import hashlib
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from validator.errors import DigestChanged
from validator.golden.dataset import GoldenDataset, open_golden
from validator.golden.format import MANIFEST_NAME, SHARD_DTYPES
from validator.golden.writer import Sample, write_golden

golden = settings(deadline=None, max_examples=40)

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def draw_samples(draw):
    """A few samples with two inputs, of at most three shapes, in any order; any bits, so also NaN and infinity."""
    dtypes = {"x": draw(st.sampled_from(sorted(SHARD_DTYPES))), "y": draw(st.sampled_from(sorted(SHARD_DTYPES)))}
    known = draw(st.lists(st.fixed_dictionaries({"x": shapes, "y": shapes}), min_size=1, max_size=3))
    chosen = draw(st.lists(st.sampled_from(known), min_size=1, max_size=9))
    has_ids, has_labels = draw(st.booleans()), draw(st.booleans())
    bits = np.random.default_rng(draw(st.integers(0, 99)))
    return [
        Sample(
            id=f"sample {index}" if has_ids else None,
            inputs={name: draw_tensor(bits, dtypes[name], shape) for name, shape in sample_shapes.items()},
            label=int(bits.integers(-5, 5)) if has_labels else None,
        )
        for index, sample_shapes in enumerate(chosen)
    ]


def draw_tensor(bits, dtype, shape):
    torch_dtype = getattr(torch, dtype)
    width = torch.empty((), dtype=torch_dtype).element_size()
    raw = bytearray(bits.integers(0, 2 if dtype == "bool" else 256, size=math.prod(shape) * width, dtype=np.uint8))
    return torch.frombuffer(raw, dtype=torch_dtype).reshape(shape) if raw else torch.empty(shape, dtype=torch_dtype)


def to_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def in_order(samples):
    """The order that `writer` documents: by first appearance of the shapes, stable within."""
    keys = [tuple(tuple(sample.inputs[name].shape) for name in "xy") for sample in samples]
    return [samples[i] for i in sorted(range(len(samples)), key=lambda i: keys.index(keys[i]))]


def write(folder, samples, **options) -> GoldenDataset:
    return write_golden(folder, samples, name="law", source="hypothesis", **options)


@given(samples=draw_samples(), shard_bytes=st.integers(1, 200))
@settings(golden)
def test_what_is_written_is_read_back_bit_for_bit(samples, shard_bytes):
    with tempfile.TemporaryDirectory() as temporary:
        dataset = write(Path(temporary, "set"), samples, shard_bytes=shard_bytes)
        assert dataset == open_golden(dataset.folder)
        for index, sample in enumerate(in_order(samples)):
            found = dataset.read_torch(index, index + 1)
            assert list(found) == [spec.name for spec in dataset.inputs] == list(samples[0].inputs)
            for name, tensor in sample.inputs.items():
                assert found[name].dtype == tensor.dtype
                assert found[name].shape == (1, *tensor.shape)
                assert to_bytes(found[name]) == to_bytes(tensor)
            assert dataset.sample_id(index) == (sample.id or f"{index:04}")
            labels = dataset.labels(index, index + 1)
            assert (None if labels is None else labels.tolist()) == (None if sample.label is None else [sample.label])


@given(samples=draw_samples())
@settings(golden, max_examples=20)
def test_numpy_reads_the_same_bytes_as_torch(samples):
    with tempfile.TemporaryDirectory() as temporary:
        dataset = write(Path(temporary, "set"), samples)
        for start, stop in dataset.batches(0, dataset.samples, 3):
            tensors = dataset.read_torch(start, stop)
            if any(spec.dtype == "bfloat16" for spec in dataset.inputs):
                with pytest.raises(ValueError, match="use read_torch"):
                    dataset.read(start, stop)
                continue
            for name, array in dataset.read(start, stop).items():
                assert array.dtype.name == str(tensors[name].dtype).removeprefix("torch.")
                assert array.tobytes() == to_bytes(tensors[name])


@given(samples=draw_samples(), size=st.integers(1, 4), bounds=st.tuples(st.integers(0, 9), st.integers(0, 9)))
@settings(golden)
def test_batches_cover_each_sample_exactly_once_in_order(samples, size, bounds):
    with tempfile.TemporaryDirectory() as temporary:
        dataset = write(Path(temporary, "set"), samples, shard_bytes=40)
        start, stop = sorted(min(bound, dataset.samples) for bound in bounds)
        cuts = list(dataset.batches(start, stop, size))
        assert [i for low, high in cuts for i in range(low, high)] == list(range(start, stop))
        assert all(1 <= high - low <= size for low, high in cuts)
        for low, high in cuts:  # each within one group, or it could not be read
            assert len(next(iter(dataset.read_torch(low, high).values()))) == high - low


@given(samples=draw_samples(), shard_bytes=st.integers(1, 200))
@settings(golden, max_examples=20)
def test_the_same_samples_give_the_same_bytes_and_digest(samples, shard_bytes):
    with tempfile.TemporaryDirectory() as temporary:
        first = write(Path(temporary, "a"), samples, shard_bytes=shard_bytes)
        second = write(Path(temporary, "b"), iter(samples), shard_bytes=shard_bytes)
        assert first.digest == second.digest
        assert read_all(first.folder) == read_all(second.folder)
        manifest = (first.folder / MANIFEST_NAME).read_bytes()
        assert manifest.endswith(b"}\n")
        assert first.digest == "sha256:" + hashlib.sha256(manifest[:-1]).hexdigest()


@given(samples=draw_samples(), data=st.data())
@settings(golden)
def test_flipping_any_bit_of_a_shard_is_detected(samples, data):
    with tempfile.TemporaryDirectory() as temporary:
        dataset = write(Path(temporary, "set"), samples, shard_bytes=60)
        path = dataset.folder / data.draw(st.sampled_from([file.path for file in dataset.manifest.files]))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(DigestChanged, match=path.name):
            open_golden(dataset.folder)


def read_all(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}
