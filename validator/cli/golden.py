"""`validator golden`: make, look at and verify golden datasets."""

import json
import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validator.golden.dataset import GoldenDataset
    from validator.golden.describe import GoldenFacts
    from validator.registry.mlflow_registry import MlflowRegistry

GOLDEN_PREFIX = "validator.golden."
CURRENT = "current"


@click.group()
def golden() -> None:
    """Make, look at and verify golden datasets: the inputs that every backend is run on."""


@golden.command()
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--name", help="What to call the dataset; by default after the source.")
@click.option("--input", "input_name", metavar="NAME", help="What to call an input that the source does not name.")
@click.option("--transforms", metavar="WEIGHTS", help="Preprocess images as these torchvision weights want it.")
@click.option(
    "--outputs",
    "declared",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Say what the model's outputs mean: a TOML file with one table per output.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N samples only.")
@click.option("--replace", is_flag=True, help="Put it in the place of the dataset that is there.")
def create(
    source: str,
    out: Path,
    name: str | None,
    input_name: str | None,
    transforms: str | None,
    declared: Path | None,
    limit: int | None,
    replace: bool,
) -> None:
    """Make the dataset OUT, a new folder, from SOURCE.

    SOURCE is a .npz, .npy or .safetensors file whose arrays have one row per sample, a folder of images, a
    downloaded MLflow model with an input example, or module:function, a function of yours that yields samples
    (it runs in this process).

    \b
    Examples:
      validator golden create samples.npz golden/
      validator golden create photos/ golden/ --transforms AlexNet_Weights.IMAGENET1K_V1
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.golden import sources
    from validator.golden.describe import describe
    from validator.golden.output_spec import read_outputs
    from validator.golden.writer import write_golden

    outputs = None if declared is None else read_outputs(declared)
    with local_copy(source) as local:
        opened = sources.open_source(local, input_name=input_name, transforms=transforms)
        described = opened.description if limit is None else f"{opened.description}, first {limit}"
        dataset = write_golden(
            out,
            islice(opened.samples, limit),
            name=name or opened.default_name,
            source=described,
            outputs=outputs,
            replace=replace,
        )
    for warning in describe(dataset).warnings:
        click.echo(f"warning[golden]: {warning}", err=True)
    click.echo(f"{dataset.manifest.name}: {dataset.samples} samples in {out}, {dataset.digest}")


@golden.command()
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(path: str, as_json: bool) -> None:
    """Tell what the dataset PATH holds, and what makes it weak evidence.

    \b
    Example:
      validator golden show golden/
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.golden.describe import describe

    with local_copy(path) as local:
        facts = describe(open_source(local))
    click.echo(_format_json(facts) if as_json else _format_text(facts))


@golden.command()
@click.argument("path")
def verify(path: str) -> None:
    """Hash the shards of the dataset PATH again and compare them with its manifest.

    \b
    Example:
      validator golden verify golden/
    """  # noqa: D301 -- click reads \b as "keep these lines"
    with local_copy(path) as local:
        dataset = open_source(local)
    click.echo(f"{dataset.manifest.name}: {dataset.samples} samples as they were made, {dataset.digest}")


@golden.command()
@click.argument("path")
@click.argument("model")
def push(path: str, model: str) -> None:
    """Register the dataset PATH as the golden dataset of MODEL, and point the alias `current` to it.

    It becomes the newest version of the registered model `validator.golden.MODEL`. Pushing the same bytes again
    changes nothing.

    \b
    Example:
      validator golden push golden/ alexnet
    """  # noqa: D301 -- click reads \b as "keep these lines"
    dataset = open_source(path)
    registered = _open_registry().publish(
        f"{GOLDEN_PREFIX}{model}",
        dataset.folder,
        model_type=GOLDEN_PREFIX.rstrip("."),
        alias=CURRENT,
        tags={"validator.golden_digest": dataset.digest},
    )
    did = "registered" if registered.created else "already registered"
    click.echo(f"{did} as {registered.uri}, also models:/{registered.name}@{CURRENT}, {dataset.digest}")


@contextmanager
def local_copy(path: str) -> "Iterator[str]":
    """Give a local path for a local path, and a download, removed afterwards, for a URI."""
    if ":/" not in path:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        yield str(_open_registry().fetch(path, Path(scratch) / "fetched"))


def _open_registry() -> "MlflowRegistry":
    """Open the registry that the environment names."""
    from validator.registry.mlflow_registry import open_registry

    return open_registry(cwd=Path.cwd())


def open_source(path: str) -> "GoldenDataset":
    """Open the dataset that an argument names, every shard hashed."""
    from validator.golden.dataset import open_golden

    return open_golden(Path(path))


def _format_json(facts: "GoldenFacts") -> str:
    return json.dumps({**asdict(facts), "warnings": facts.warnings}, indent=2, sort_keys=True)


def _format_text(facts: "GoldenFacts") -> str:
    lines = [
        f"{facts.name}  {facts.digest}",
        f"  source      {facts.source}",
        f"  samples     {facts.samples:,}, {facts.size_bytes:,} bytes of shards",
        f"  repeated    {facts.duplicate_samples:,} of {facts.samples:,}",
        f"  constant    {facts.constant_samples:,} of {facts.samples:,}",
        f"  labels      {'none' if facts.classes is None else f'{facts.classes:,} different'}",
    ]
    lines += [
        f"  input       {i.name}, {i.dtype}, {i.non_finite:,} of {i.elements:,} elements not finite"
        for i in facts.inputs
    ]
    lines += [
        f"  shape       {', '.join(f'{name} {list(shape)}' for name, shape in g.shapes)}: {g.samples:,} samples"
        for g in facts.groups
    ]
    lines += [f"  output      {name}: {_format_meaning(said)}" for name, said in facts.outputs.items()]
    return "\n".join([*lines, *(f"warning[golden]: {warning}" for warning in facts.warnings)])


def _format_meaning(said: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in said.items())
