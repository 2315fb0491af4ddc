import numpy as np
import pytest
import torch

from validator.golden.describe import describe
from validator.golden.writer import Sample, write_golden


@pytest.fixture
def facts_of(tmp_path):
    def make(arrays, labels=None):
        samples = [
            Sample(inputs={"x": array}, label=None if labels is None else labels[i]) for i, array in enumerate(arrays)
        ]
        return describe(write_golden(tmp_path / "set", samples, name="set", source="a test", shard_bytes=64))

    return make


def make_rows(count, width=4):
    return list(np.random.default_rng(0).normal(size=(count, width)).astype(np.float32))


def test_a_sound_dataset_has_no_warnings(facts_of):
    facts = facts_of(make_rows(8), labels=[0, 1, 2, 0, 1, 2, 0, 1])
    assert facts.warnings == ()
    assert (facts.samples, facts.classes, facts.shards) == (8, 3, 2)
    assert facts.inputs[0].elements == 32


def test_shards_of_one_shape_are_one_group(facts_of):
    facts = facts_of([*make_rows(9), *make_rows(3, 5)])
    assert [(group.samples, group.shapes) for group in facts.groups] == [(9, (("x", (4,)),)), (3, (("x", (5,)),))]
    assert facts.classes is None


def test_few_samples_are_weak_evidence(facts_of):
    assert facts_of(make_rows(7)).warnings == ("7 of at least 8 samples: rare divergence is likely to stay unseen",)


def test_identical_samples_are_evidence_of_one(facts_of):
    facts = facts_of(make_rows(1) * 9)
    assert facts.duplicate_samples == 8
    assert facts.warnings == ("all 9 samples are identical: they are evidence of one",)


def test_some_repeated_samples_are_counted(facts_of):
    assert "2 of 11 samples repeat an earlier one" in facts_of([*make_rows(9), *make_rows(2)]).warnings


def test_the_same_bytes_in_another_shape_are_no_repetition(facts_of):
    flat = np.arange(4, dtype=np.float32)
    assert facts_of([flat, flat.reshape(2, 2)]).duplicate_samples == 0


def test_constant_samples_are_counted_bitwise(facts_of):
    facts = facts_of([np.zeros(3), np.full(3, np.nan), np.array([0.0, -0.0, 0.0]), np.arange(3.0)])
    assert facts.constant_samples == 2
    assert "2 of 4 samples are one value repeated" in facts.warnings


def test_one_element_is_not_constant(facts_of):
    assert facts_of([np.float32(i) for i in range(9)]).constant_samples == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_non_finite_elements_are_allowed_and_counted(facts_of, dtype):
    row = torch.tensor([1, float("nan"), float("inf"), -float("inf")]).to(getattr(torch, dtype))
    facts = facts_of([row, torch.zeros(4, dtype=row.dtype)])
    assert facts.inputs[0].non_finite == 3
    assert "input x: 3 of 8 elements are NaN or infinite" in facts.warnings


def test_integers_are_always_finite(facts_of):
    assert facts_of([np.array([1, 2]), np.array([3, 4])]).inputs[0].non_finite == 0


def test_samples_without_elements_are_described(facts_of):
    facts = facts_of([np.zeros((0, 3)), np.zeros((0, 3))])
    assert (facts.inputs[0].elements, facts.constant_samples, facts.duplicate_samples) == (0, 0, 1)
