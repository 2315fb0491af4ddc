"""A Python function as a source. It is the user's own code and runs in this process, with all its rights."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from validator.errors import GoldenError
from validator.golden.sample import Sample

_FORMS = "yield arrays, dicts of arrays, (inputs, label) tuples, or validator.golden.sample.Sample"


def call_function(module: str, function: str, *, input_name: str) -> Iterator[Sample]:
    """Import a module from the current directory or `sys.path`, call its function without arguments, yield samples.

    The function yields, or returns an iterable of, single samples without a batch dimension: an array or tensor, a
    dict of them, or a tuple of one of these and an integer label. To name the samples, it yields `Sample` objects.

    Args:
        module: dotted name.
        function: its name in the module.
        input_name: of an array that comes without a dict.

    Raises:
        GoldenError: no such module or function, the user's code raised, or it yielded something else.
    """
    title = f"{module}:{function}"
    source = _find_function(module, function)
    for index, item in enumerate(_run(source, title)):
        yield _to_sample(item, input_name, title=f"{title}, sample {index}")


def _find_function(module: str, function: str) -> Callable[[], Any]:
    here = str(Path.cwd())
    if here not in sys.path:  # an installed command does not have it
        sys.path.insert(0, here)
    try:
        found = getattr(import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise GoldenError(
            f"the module {module} cannot be imported: {error}", hint="run from the folder that holds it, or install it"
        ) from error
    except Exception as error:  # the user's code: whatever it raises is its own fault, not the program's
        raise GoldenError(f"importing {module} raised {_format(error)}") from error
    if not callable(found):
        raise GoldenError(f"the module {module} has no function {function}")
    return found  # type: ignore[no-any-return]


def _run(source: Callable[[], Any], title: str) -> Iterator[Any]:
    try:
        yield from _check_series(source(), title)
    except GoldenError:
        raise
    except Exception as error:  # the user's code, as above
        raise GoldenError(f"{title} raised {_format(error)}") from error


def _check_series(items: Any, title: str) -> Iterable[Any]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise GoldenError(f"{title} returned a {type(items).__name__}, no series of samples", hint=_FORMS)
    return items


def _to_sample(item: Any, input_name: str, *, title: str) -> Sample:
    if isinstance(item, Sample):
        return item
    label = None
    if isinstance(item, tuple):
        if len(item) != 2:
            raise GoldenError(f"{title} is a tuple of {len(item)}, not (inputs, label)", hint=_FORMS)
        item, label = item
    if isinstance(item, Mapping):
        return Sample(inputs=item, label=label)
    if not hasattr(item, "dtype") or not hasattr(item, "shape"):
        raise GoldenError(f"{title} is a {type(item).__name__}, not an array", hint=_FORMS)
    return Sample(inputs={input_name: item}, label=label)


def _format(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
