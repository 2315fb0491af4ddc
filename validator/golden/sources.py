"""Where samples come from: array files, a folder of images, a model's own input example, a Python function.

What a source is shows in its name: a suffix, a folder with or without an `MLmodel`, or `module:function`.
Adding one means a function that yields samples and a line in a table below.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from validator.errors import GoldenError, UsageError
from validator.golden.arrays import read_npy, read_npz, read_safetensors
from validator.golden.function import call_function
from validator.golden.images import describe_image_stack, read_images
from validator.golden.input_example import MLMODEL_NAME, read_input_example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from validator.golden.sample import Sample

DEFAULT_INPUT = "input"

NAMED_ARRAYS: dict[str, "Callable[[Path], Iterator[Sample]]"] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
}
"""Files that name their inputs themselves."""

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_FORMS = "a .npz, .npy or .safetensors file, a folder of images, a model folder, or module:function"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Samples, not yet read, and one line on where they are from."""

    samples: "Iterator[Sample]"
    description: str
    """Goes into the manifest: no absolute path, no time."""
    default_name: str
    """What to call the dataset if nobody says."""


def open_source(text: str, *, input_name: str | None = None, transforms: str | None = None) -> Source:
    """Find out what a source is and prepare to read it. Faults inside it show when its samples are read.

    Args:
        text: a path, or `module:function`, whose code runs in this process.
        input_name: what to call the input where the source does not name it; `input` by default.
        transforms: a torchvision weights enum such as `AlexNet_Weights.IMAGENET1K_V1`, for images only.

    Raises:
        GoldenError: nothing there, or nothing that can be read.
        UsageError: an option that has no meaning for this source.
    """
    path = Path(text)
    name = input_name or DEFAULT_INPUT
    if not path.exists() and _FUNCTION.fullmatch(text):
        _refuse_option("--transforms", transforms, text)
        module, _, function = text.partition(":")
        samples = call_function(module, function, input_name=name)
        return Source(samples=samples, description=f"function {text}", default_name=function)
    if not path.exists():
        raise GoldenError(f"the source {text} does not exist", hint=f"name {_FORMS}")
    if path.is_dir() and not (path / MLMODEL_NAME).exists():
        described = f"images {path.resolve().name}, {describe_image_stack(transforms)}"
        samples = read_images(path, input_name=name, transforms=transforms)
        return Source(samples=samples, description=described, default_name=path.resolve().name)
    _refuse_option("--transforms", transforms, text)
    if path.is_dir():
        samples = read_input_example(path, input_name=name)
        return Source(samples=samples, description="input example of the model", default_name="input-example")
    if path.suffix == ".npy":
        samples = read_npy(path, input_name=name)
    elif path.suffix in NAMED_ARRAYS:
        _refuse_option("--input", input_name, text)
        samples = NAMED_ARRAYS[path.suffix](path)
    else:
        raise GoldenError(f"{text} is no source of samples", hint=f"name {_FORMS}")
    return Source(samples=samples, description=f"file {path.name}", default_name=path.stem)


def _refuse_option(option: str, value: str | None, source: str) -> None:
    # An option that is silently without effect would be believed.
    if value is not None:
        raise UsageError(f"{option} has no meaning for {source}", hint=f"leave out {option}")
