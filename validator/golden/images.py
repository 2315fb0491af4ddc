"""A folder of images as a source. One level of subfolders, if there is one, gives the labels."""

import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from validator.errors import GoldenError, UsageError
from validator.golden.sample import Sample

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
"""By content, whatever the suffix: pillow knows others, and hands one of them, EPS, to another program."""


def read_images(folder: Path, *, input_name: str, transforms: str | None) -> Iterator[Sample]:
    """Yield one sample per image, sorted by relative path, which is its id.

    Images are decoded as torchvision's ImageFolder does: RGB, no EXIF rotation. Without transforms a sample is
    uint8 of shape (3, height, width). Files that are no images are passed over.

    With subfolders the label is the position of the folder among their sorted names; whether that is the
    model's class index is for the user to know.

    Args:
        folder: images, or folders of images.
        input_name: of the one input.
        transforms: a torchvision weights enum; its preprocessing is applied, its weights are not downloaded.

    Raises:
        GoldenError: no image, one that cannot be read, or a mixture of images and class folders.
        UsageError: no such weights enum.
    """
    prepare = _stack_channels if transforms is None else load_transforms(transforms)
    for path, label in _find_images(folder):
        name = path.relative_to(folder).as_posix()
        yield Sample(id=name, inputs={input_name: prepare(_decode(path, name))}, label=label)


def load_transforms(name: str) -> Callable[[Any], Any]:
    """Return the preprocessing of a torchvision weights enum, such as `AlexNet_Weights.IMAGENET1K_V1`.

    Raises:
        UsageError: there is none of this name.
    """
    from torchvision.models import get_weight

    try:
        transforms: Callable[[Any], Any] = get_weight(name).transforms()
    except (ValueError, KeyError, AttributeError) as error:
        raise UsageError(
            f"torchvision has no weights {name}", hint="name an enum, such as AlexNet_Weights.IMAGENET1K_V1"
        ) from error
    return transforms


def describe_image_stack(transforms: str | None) -> str:
    """Say what turns these files into numbers: another decoder or resize gives other samples."""
    stack = f"pillow {version('pillow')}"
    if transforms is None:
        return f"no transforms, {stack}"
    return f"transforms {transforms}, torchvision {version('torchvision')}, {stack}"


def _find_images(folder: Path) -> list[tuple[Path, int | None]]:
    loose = _list_images(folder)
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not loose and not classes:
        raise GoldenError(f"{folder} holds no image", hint=f"looked for {', '.join(sorted(IMAGE_SUFFIXES))}")
    if not classes:
        return [(path, None) for path in loose]
    if loose:
        raise GoldenError(
            f"{folder} holds both images and folders: {loose[0].name}, {classes[0].name}",
            hint="put every image into the folder of its class, or all into one folder",
        )
    found: list[tuple[Path, int | None]] = []
    for label, inner in enumerate(classes):
        images = _list_images(inner)
        # To pass over an empty folder would shift the labels of those after it.
        if not images:
            raise GoldenError(f"the class folder {inner.name} of {folder} holds no image")
        if deeper := sorted(p.name for p in inner.iterdir() if p.is_dir() and not p.name.startswith(".")):
            raise GoldenError(f"{inner.name}/{deeper[0]} of {folder} is a folder within a class folder")
        found += [(path, label) for path in images]
    return found


def _list_images(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and not path.name.startswith(".")
    )


def _decode(path: Path, name: str) -> "Image.Image":
    from PIL import Image

    try:
        # What cannot be decoded is an error; what a decoder has to say besides concerns metadata.
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=IMAGE_FORMATS) as image:
            return image.convert("RGB")
    except Exception as error:  # on broken bytes decoders raise whatever comes up
        reason = str(error) or type(error).__name__
        raise GoldenError(f"the image {name} cannot be read: {reason}", hint="repair or remove it") from error


def _stack_channels(image: "Image.Image") -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1)
