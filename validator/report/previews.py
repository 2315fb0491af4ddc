"""What the worst samples look like: small pictures of images, the tokens of texts, the range of anything else.

They are copies of parts of the golden dataset, kept in `previews.json` beside the verdict: a report is also made where
the dataset is not. They are left out where the samples may not be seen by whoever may see the report.
"""

import base64
import io
import json
import struct
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, ValidationError

from validator.backends.catalog import BASELINE, REFERENCE
from validator.golden.dataset import GoldenDataset
from validator.metrics import Array
from validator.report.model import Count, Number, Part, VerdictDocument
from validator.report.read import DOCUMENT_LIMIT_BYTES, read_bytes

PREVIEWS_NAME = "previews.json"
SAMPLES_MAX = 12
INPUTS_MAX = 3
SIDE = 96
"""Pixels of a picture's longer side."""
TOKENS_MAX = 64
IMAGE_SIDE_MIN = 8
PNG_LIMIT = 64_000
"""Characters of a picture; one of 96 x 96 pixels has less than half of that, encoded."""


def _check_picture(png: str) -> str:
    """Read the header of a PNG: a few bytes may ask a browser for gigabytes of pixels."""
    header = base64.b64decode(png[:32])
    if len(header) < 24 or header[:8] != b"\x89PNG\r\n\x1a\n" or header[12:16] != b"IHDR":
        raise ValueError("no PNG")
    if max(struct.unpack(">II", header[16:24])) > SIDE:
        raise ValueError(f"a picture of more than {SIDE} x {SIDE} pixels")
    return png


class ImagePreview(Part):
    """A picture of an input."""

    kind: Literal["image"] = "image"
    name: str
    width: Count
    """Of the input, not of the picture."""
    height: Count
    png: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=PNG_LIMIT), AfterValidator(_check_picture)]
    """In base64."""
    stretched: bool
    """Whether values that are no bytes were stretched from their least to their largest."""


class TokensPreview(Part):
    """The first tokens of an input of integers."""

    kind: Literal["tokens"] = "tokens"
    name: str
    length: Count
    tokens: Annotated[tuple[int, ...], Field(max_length=TOKENS_MAX)]


class ValuesPreview(Part):
    """The range of an input."""

    kind: Literal["values"] = "values"
    name: str
    dtype: str
    shape: tuple[Count, ...]
    least: Number
    largest: Number


Preview = Annotated[ImagePreview | TokensPreview | ValuesPreview, Field(discriminator="kind")]


class SamplePreviews(Part):
    """The inputs of one sample."""

    sample: Count
    inputs: Annotated[tuple[Preview, ...], Field(max_length=INPUTS_MAX)]


class PreviewsDocument(Part):
    """What is kept beside a verdict."""

    check_id: str
    """Of the verdict that it belongs to."""
    samples: Annotated[tuple[SamplePreviews, ...], Field(max_length=SAMPLES_MAX)]

    def to_json(self) -> str:
        """Return the text of `previews.json`."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, allow_nan=False) + "\n"


def make_previews(document: VerdictDocument, golden: GoldenDataset) -> PreviewsDocument:
    """Read the worst samples of a verdict from the dataset that it was checked on.

    Raises:
        GoldenError: the dataset can no longer be read.
    """
    return PreviewsDocument(
        check_id=document.check_id,
        samples=tuple(SamplePreviews(sample=s, inputs=_inputs(golden, s)) for s in worst_samples(document)),
    )


def worst_samples(document: VerdictDocument) -> list[int]:
    """Return at most 12 samples: the worst of each output of each candidate, the largest ratio first; then the next."""
    rankings = [o.worst_samples for b in document.backends if b.name not in (REFERENCE, BASELINE) for o in b.outputs]
    rankings.sort(key=lambda ranking: -(ranking[0].error_ratio or 0.0) if ranking else 0.0)
    depth = max(map(len, rankings), default=0)
    ordered = [ranking[at].sample for at in range(depth) for ranking in rankings if at < len(ranking)]
    return list(dict.fromkeys(ordered))[:SAMPLES_MAX]


def read_previews(path: Path, check_id: str) -> PreviewsDocument | None:
    """Return the previews of a check; None where there are none, or only those of another one."""
    try:
        found = PreviewsDocument.model_validate_json(read_bytes(path, limit_bytes=DOCUMENT_LIMIT_BYTES))
    except (OSError, ValidationError):
        return None
    return found if found.check_id == check_id else None


def _inputs(golden: GoldenDataset, sample: int) -> tuple[Preview, ...]:
    if any(spec.dtype == "bfloat16" for spec in golden.inputs):
        return ()  # numpy has none, and torch has no place here
    values = golden.read(sample, sample + 1)
    return tuple(_preview(name, value[0]) for name, value in list(values.items())[:INPUTS_MAX])


def _preview(name: str, value: Array) -> Preview:
    if (pixels := _as_pixels(value)) is not None:
        return _picture(name, pixels)
    if value.ndim == 1 and value.dtype.kind in "iu":
        return TokensPreview(name=name, length=len(value), tokens=tuple(value[:TOKENS_MAX].tolist()))
    flat = np.abs(value).ravel() if np.iscomplexobj(value) else value.astype(np.float64).ravel()
    return ValuesPreview(
        name=name,
        dtype=str(value.dtype),
        shape=value.shape,
        least=float(flat.min()) if flat.size else 0.0,
        largest=float(flat.max()) if flat.size else 0.0,
    )


def _as_pixels(value: Array) -> Array | None:
    """Return an array of (height, width, channels) if it can be a picture: grey or coloured, channels at either end."""
    if value.ndim != 3 or value.dtype.kind not in "fu":
        return None
    for axis in (0, 2):
        sides = [n for at, n in enumerate(value.shape) if at != axis]
        if value.shape[axis] in (1, 3) and min(sides) >= IMAGE_SIDE_MIN:
            return np.moveaxis(value, axis, 2)
    return None


def _picture(name: str, pixels: Array) -> ImagePreview:
    from PIL import Image

    stretched = pixels.dtype != np.uint8
    image = Image.fromarray(_stretch(pixels) if stretched else _coloured(pixels))
    image.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return ImagePreview(
        name=name,
        width=pixels.shape[1],
        height=pixels.shape[0],
        png=base64.b64encode(stream.getvalue()).decode("ascii"),
        stretched=stretched,
    )


def _stretch(pixels: Array) -> Array:
    """Return bytes of (height, width, 3): what was normalised has no black and white of its own any more."""
    values = np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    least, span = values.min(), np.ptp(values)
    scaled = (values - least) / span * 255 if span > 0 else np.full(values.shape, 127.0)
    return _coloured(scaled.round().astype(np.uint8))


def _coloured(pixels: Array) -> Array:
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
