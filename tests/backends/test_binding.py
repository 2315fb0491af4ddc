from collections import OrderedDict

import pytest
import torch

from tests.backends.networks import Answer, Pair
from validator.backends.binding import bind_names, flatten_outputs, output_names
from validator.backends.interface import BackendRefusal, RefusalKind

A, B = torch.zeros(1), torch.ones(2)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (A, ["output"]),
        ((A,), ["output.0"]),
        ([A, B], ["output.0", "output.1"]),
        ({"x": A, "y": B}, ["x", "y"]),
        ({"x": (A, {"z": B})}, ["x.0", "x.1.z"]),
        ((A, {"z": B}), ["output.0", "output.1.z"]),
        (OrderedDict(last=A, first=B), ["last", "first"]),
        ({0: A}, ["0"]),
        (Answer(logits=A), ["logits"]),
        (Answer(logits=A, hidden=B), ["logits", "hidden"]),
        (Pair(left=A, right=B), ["left", "right"]),
        ((A, None, B), ["output.0", "output.2"]),
        ((A, A), ["output.0", "output.1"]),
        (None, []),
    ],
)
def test_outputs_are_named_by_where_they_lie(value, names):
    assert list(flatten_outputs(value)) == names
    assert list(output_names(value)) == names


def test_numbers_become_tensors_without_dimensions():
    flat = flatten_outputs({"i": 3, "f": 0.1, "b": True})
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in flat.items()} == {
        "i": (torch.int64, ()),
        "f": (torch.float64, ()),
        "b": (torch.bool, ()),
    }
    assert flat["f"].item() == 0.1


@pytest.mark.parametrize(
    "value", ["text", {"a": (A,), "a.0": B}, A.to_sparse(), object()], ids=["text", "clash", "sparse", "object"]
)
def test_what_cannot_be_compared_is_refused(value):
    with pytest.raises(BackendRefusal) as refusal:
        flatten_outputs(value)
    assert refusal.value.kind is RefusalKind.MODEL


def test_names_bind_as_sets_in_any_order():
    assert bind_names(["a", "b"], ["b", "a"], what="input") == (("a", "b"), "by name")


def test_positions_bind_only_where_the_counts_agree():
    assert bind_names(["a", "b"], ["x", "a"], what="input") == (("x", "a"), "by position")
    with pytest.raises(BackendRefusal, match=r"2 inputs \(a, b\), the dataset 1 \(a\)"):
        bind_names(["a", "b"], ["a"], what="input")


def test_another_spelling_binds_by_name():
    bound = bind_names(
        ["batch_ids", "batch_mask"], ["b.mask", "b.ids"], what="input", alternatives=[["b.ids", "b.mask"]]
    )
    assert bound == (("b.ids", "b.mask"), "by name")
