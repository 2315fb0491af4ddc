"""Names: from whatever a model takes and returns to flat, named tensors and back.

The names of outputs decide which tensors are compared with which. Two backends of one model must name them alike, so
there is one flattening rule, used on values (`flatten_outputs`) and on structures (`output_names`) alike.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from validator.backends.refusals import model_refusal

SINGLE_OUTPUT = "output"


def flatten_outputs(value: object) -> dict[str, torch.Tensor]:
    """Flatten what a model returned into named tensors, in its own order.

    A bare tensor is `output`; a tuple `output.0`, `output.1`; a mapping, dataclass or named tuple gives its field
    names; what is nested in them is dotted (`boxes.0`). None is left out, a Python number becomes a 0-d tensor, one
    tensor returned twice is kept under both names.

    Raises:
        BackendRefusal: a leaf that is neither tensor nor number, a sparse or quantized tensor, or two leaves of one
            name.
    """
    flat: dict[str, torch.Tensor] = {}
    for name, leaf in _walk("", value):
        if name in flat:
            raise model_refusal("run", f"two outputs are both called {name!r} once flattened")
        flat[name] = _as_tensor(name, leaf)
    return flat


def tensor_leaves(value: object) -> list[torch.Tensor]:
    """Return the tensors that a model returned, as it returned them."""
    return [leaf for _, leaf in _walk("", value) if isinstance(leaf, torch.Tensor)]


def output_names(value: object) -> tuple[str, ...]:
    """Return the names that `flatten_outputs` would give, for a structure with any objects as leaves."""
    return tuple(name for name, _ in _walk("", value))


def _walk(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (name, leaf) depth first; None is no leaf."""
    if value is None:
        return
    children = _children(value)
    if children is None:
        yield prefix or SINGLE_OUTPUT, value
        return
    for key, child, is_named in children:
        start = prefix or ("" if is_named else SINGLE_OUTPUT)
        yield from _walk(f"{start}.{key}" if start else key, child)


def _children(value: object) -> list[tuple[str, object, bool]] | None:
    """Return (key, child, whether the key is a name of its own) of a container; None for a leaf."""
    if isinstance(value, Mapping):  # also transformers.ModelOutput
        return [(str(key), child, True) for key, child in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name), True) for f in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(str(key), child, True) for key, child in zip(value._fields, value, strict=True)]
    if isinstance(value, tuple | list):
        return [(str(index), child, False) for index, child in enumerate(value)]
    return None


def _as_tensor(name: str, leaf: object) -> torch.Tensor:
    """Return a leaf as a dense tensor."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided or leaf.is_quantized:
            raise model_refusal("run", f"output {name} is a {leaf.layout} {leaf.dtype} tensor, not a dense one")
        return leaf
    if isinstance(leaf, bool | int | float):
        return torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)
    raise model_refusal("run", f"output {name} is a {type(leaf).__name__}, not a tensor")


def structure_of(spec: Any) -> object:
    """Return the structure that a pytree spec describes, its leaves numbered."""
    return pytree.tree_unflatten(list(range(spec.num_leaves)), spec)


def bind_names(
    own: Sequence[str], golden: Sequence[str], *, what: str, alternatives: Sequence[Sequence[str]] = ()
) -> tuple[tuple[str, ...], str]:
    """Match a program's names with the golden dataset's.

    Args:
        own: the program's names, in its order.
        golden: the dataset's names, in its order.
        what: `input` or `output`, for the message.
        alternatives: other spellings of `own`, each in the same order.

    Returns:
        For each own name the golden name that feeds it, and how they were matched: `by name` or `by position`.

    Raises:
        BackendRefusal: neither the sets of names nor the counts agree.
    """
    for names in (own, *alternatives):
        if len(set(names)) == len(names) and set(names) == set(golden) and len(names) == len(golden):
            return tuple(names), "by name"
    if len(own) == len(golden):
        return tuple(golden), "by position"
    raise model_refusal(
        "bind",
        f"the program has {len(own)} {what}s ({', '.join(own)}), the dataset {len(golden)} ({', '.join(golden)})",
    )
