"""Folders with a report.html of every kind, as a check leaves them."""

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from tests.builders import (
    GPU,
    decide_on,
    failing,
    golden_dataset,
    inconclusive_no_gpu,
    passing,
    reference_outputs,
    refused,
    stale_facts,
    stale_weights,
)
from tests.report.hostile import NASTY, poison
from validator.golden.format import Stratum
from validator.judge import Evidence
from validator.policy import Policy
from validator.report.formats import Format, Material, write_reports
from validator.report.model import VerdictDocument
from validator.report.previews import (
    PREVIEWS_NAME,
    ImagePreview,
    PreviewsDocument,
    SamplePreviews,
    TokensPreview,
    ValuesPreview,
    worst_samples,
)
from validator.report.samples import SAMPLES_NAME, samples_table

FAILING = replace(
    GPU,
    version=2,
    outputs={name: stale_weights(reference_outputs()) for name in ("onnxruntime-gpu", "onnxruntime-cpu")},
    weights=stale_facts(),
)


def previews_of(
    document: VerdictDocument, *, names: tuple[str, ...] = ("image", "tokens", "vector")
) -> PreviewsDocument:
    """Pictures, tokens and numbers for the worst samples."""
    image, tokens, vector = names
    return PreviewsDocument(
        check_id=document.check_id,
        samples=tuple(
            SamplePreviews(
                sample=sample,
                inputs=(
                    ImagePreview(name=image, width=224, height=224, png=_png(sample), stretched=True),
                    TokensPreview(name=tokens, length=90, tokens=tuple(range(sample, sample + 12))),
                    ValuesPreview(name=vector, dtype="float32", shape=(128,), least=-1.5, largest=float("nan")),
                ),
            )
            for sample in worst_samples(document)
        ),
    )


def _png(seed: int) -> str:
    down, across = np.mgrid[0:96, 0:96]
    wave = np.sin(across / (5 + seed % 7)) + np.cos(down / (4 + seed % 5))
    pixels = np.stack([wave * 60 + 120, across * 2, down * 2 + seed], axis=-1).clip(0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def samples_of(policy: Policy, evidence: Evidence) -> str:
    """The table of samples, with strata and labels."""
    strata = (Stratum.SCALES, *[Stratum.REPRESENTATIVE] * (evidence.samples - 1))
    return samples_table(policy, replace(evidence, strata=strata), golden_dataset())


def write_folder(folder: Path, document: VerdictDocument, *, table: str | None = None, previews: bool = True) -> Path:
    """Lay a folder out as a check does, and return the page in it."""
    folder.mkdir(parents=True)
    (folder / "verdict.json").write_text(document.to_json(), encoding="utf-8")
    if table is not None:
        (folder / SAMPLES_NAME).write_text(table, encoding="utf-8")
    if previews:
        (folder / PREVIEWS_NAME).write_text(previews_of(document).to_json(), encoding="utf-8")
    (page,) = write_reports([Format.HTML], Material(document=document, folder=folder), folder)
    return page


def write_pages(folder: Path) -> None:
    """Write a page for every verdict, and one in which every name is hostile."""
    for name, document, situation in (("pass", passing(), GPU), ("fail", failing(), FAILING)):
        policy, evidence, _ = decide_on(situation)
        write_folder(folder / name, document, table=samples_of(policy, evidence))
    write_folder(folder / "inconclusive", inconclusive_no_gpu())
    write_folder(folder / "refused", refused(), previews=False)
    for number in range(3):
        # Rotated, so that every nasty name stands in several places.
        names = [*NASTY[number * 9 :], *NASTY[: number * 9]]
        write_folder(folder / f"hostile-{number}", poison(failing(), names))
