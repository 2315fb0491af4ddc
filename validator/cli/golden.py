"""`validator golden`: make, look at and verify golden datasets."""

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from validator.cli.options import tracking_uri_option
from validator.cli.style import ColorChoice, is_live, use_color
from validator.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validator.golden.dataset import GoldenDataset
    from validator.golden.describe import GoldenFacts
    from validator.golden.format import Stratum
    from validator.golden.sources import Source
    from validator.registry.mlflow_registry import MlflowRegistry

GOLDEN_PREFIX = "validator.golden."
CURRENT = "current"


@click.group()
def golden() -> None:
    """Make, look at and verify golden datasets: the inputs that every backend is run on."""


@golden.command(short_help="Make a dataset from a file, a folder, a model or a function.")
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
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N samples only; with --strata, as the "
    "representative ones (64 by default).",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Put it in the place of the dataset that is there.")
@click.option(
    "--strata", "strata_text", metavar="NAMES", help="Add samples that find what is rare: activation-extremes, scales, "
    "low-margin, specials, shapes, with commas between them, or all.",
)  # fmt: skip
@click.option("--model", metavar="URI|FOLDER", help="The model that activation-extremes, low-margin and shapes ask.")
@click.option("--policy", metavar="FILE|NAME", help="Says which model formats may be opened.  [default: default]")
@click.option("--extremes", type=click.IntRange(min=1), metavar="N", help="At most N activation extremes (16).")
@click.option(
    "--largest-shape", type=click.IntRange(min=1), metavar="SIZE", help="No dimension that varies becomes larger; by "
    "default twice the largest in the source.",
)  # fmt: skip
@click.option("--non-finite", is_flag=True, help="The model's contract admits NaN and infinity: try them.")
@tracking_uri_option
def create(
    source: str,
    out: Path,
    name: str | None,
    input_name: str | None,
    transforms: str | None,
    declared: Path | None,
    limit: int | None,
    replace: bool,
    tracking_uri: str | None,
    strata_text: str | None,
    **asked: Any,
) -> None:
    """Make the dataset OUT, a new folder, from SOURCE.

    SOURCE is a .npz, .npy or .safetensors file whose arrays have one row per sample, a folder of images, a
    downloaded MLflow model with an input example, or module:function, a function of yours that yields samples
    (it runs in this process).

    \b
    Examples:
      validator golden create samples.npz golden/
      validator golden create photos/ golden/ --transforms AlexNet_Weights.IMAGENET1K_V1
      validator golden create samples.npz golden/ --strata all --model models:/alexnet/3
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.golden import sources
    from validator.golden.describe import describe
    from validator.golden.output_spec import read_outputs

    strata = read_strata(strata_text, asked)
    outputs = None if declared is None else read_outputs(declared)
    with local_copy(source, tracking_uri) as local:
        opened = sources.open_source(local, input_name=input_name, transforms=transforms)
        common = {"name": name or opened.default_name, "outputs": outputs, "replace": replace}
        dataset, warnings = (
            (write_source(opened, out, limit=limit, **common), ())
            if strata is None
            else write_strata(tracking_uri, source=opened, output=out, strata=strata, limit=limit, **common, **asked)
        )
    for warning in (*warnings, *describe(dataset).warnings):
        click.echo(f"warning[golden]: {warning}", err=True)
    click.echo(f"{dataset.manifest.name}: {dataset.samples} samples in {out}, {dataset.digest}")


def read_strata(text: str | None, asked: dict[str, Any]) -> "frozenset[Stratum] | None":
    """Read the names of strata; None: make the dataset from the source alone, as it is.

    Raises:
        UsageError: an unknown stratum, or options that mean something for strata only.
    """
    from validator.golden.strata import parse_strata

    if text is not None:
        return parse_strata(text)
    for name, value in asked.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no meaning without --strata", hint=f"leave out {option}")
    return None


def write_source(source: "Source", out: Path, *, limit: int | None, **common: Any) -> "GoldenDataset":
    """Write a source as it is, or its first samples."""
    from validator.golden.writer import write_golden

    described = source.description if limit is None else f"{source.description}, first {limit}"
    return write_golden(out, islice(source.samples, limit), source=described, **common)


def write_strata(tracking_uri: str | None, **asked: Any) -> "tuple[GoldenDataset, tuple[str, ...]]":
    """Write a dataset of strata; return it and what could not be had."""
    from validator.report.progress import open_progress
    from validator.survey import StrataRequest, create_strata

    color = use_color(ColorChoice.AUTO, sys.stderr)
    is_quiet = asked["model"] is None
    with open_progress(sys.stderr, quiet=is_quiet, is_live=is_live(sys.stderr), color=color) as progress:
        result = create_strata(StrataRequest(**asked), partial(_open_registry, tracking_uri), progress)
    return result.dataset, result.warnings


@golden.command(short_help="Say what a dataset holds, and what a pass on it can prove.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@tracking_uri_option
def show(path: str, as_json: bool, tracking_uri: str | None) -> None:
    """Tell what the dataset PATH holds, what a pass on it can prove, and what makes it weak evidence.

    \b
    Example:
      validator golden show golden/
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.golden.describe import describe

    with local_copy(path, tracking_uri) as local:
        facts = describe(open_source(local))
    click.echo(_format_json(facts) if as_json else _format_text(facts))


@golden.command(short_help="Hash the files of a dataset again.")
@click.argument("path")
@tracking_uri_option
def verify(path: str, tracking_uri: str | None) -> None:
    """Hash the shards of the dataset PATH again and compare them with its manifest.

    \b
    Example:
      validator golden verify golden/
    """  # noqa: D301 -- click reads \b as "keep these lines"
    with local_copy(path, tracking_uri) as local:
        dataset = open_source(local)
    click.echo(f"{dataset.manifest.name}: {dataset.samples} samples as they were made, {dataset.digest}")


@golden.command(short_help="Put a dataset into the registry.")
@click.argument("path")
@click.argument("model")
@tracking_uri_option
def push(path: str, model: str, tracking_uri: str | None) -> None:
    """Register the dataset PATH as the golden dataset of MODEL, and point the alias `current` to it.

    It becomes the newest version of the registered model `validator.golden.MODEL`. Pushing the same bytes again
    changes nothing.

    \b
    Example:
      validator golden push golden/ alexnet
    """  # noqa: D301 -- click reads \b as "keep these lines"
    dataset = open_source(path)
    registered = _open_registry(tracking_uri).publish(
        f"{GOLDEN_PREFIX}{model}",
        dataset.folder,
        model_type=GOLDEN_PREFIX.rstrip("."),
        alias=CURRENT,
        tags={"validator.golden_digest": dataset.digest},
    )
    did = "registered" if registered.created else "already registered"
    click.echo(f"{did} as {registered.uri}, also models:/{registered.name}@{CURRENT}, {dataset.digest}")


@contextmanager
def local_copy(path: str, tracking_uri: str | None) -> "Iterator[str]":
    """Give a local path for a local path, and a download, removed afterwards, for a URI."""
    if ":/" not in path:
        yield path
        return
    from validator.scratch import scratch_folder

    with scratch_folder() as scratch:
        yield str(_open_registry(tracking_uri).fetch(path, scratch / "fetched"))


def _open_registry(tracking_uri: str | None) -> "MlflowRegistry":
    """Open the registry that the option or, without it, the environment names."""
    from validator.registry.mlflow_registry import open_registry

    return open_registry(tracking_uri, cwd=Path.cwd())


def open_source(path: str) -> "GoldenDataset":
    """Open the dataset that an argument names, every shard hashed."""
    from validator.golden.dataset import open_golden

    return open_golden(Path(path))


def _format_json(facts: "GoldenFacts") -> str:
    from validator.metrics import flip_rate_bound

    power = {
        "counting_samples": facts.counting_samples,
        "flip_rate_bound": flip_rate_bound(0, facts.counting_samples),
        "missing": facts.missing,
        "warnings": facts.warnings,
    }
    return json.dumps({**asdict(facts), **power}, indent=2, sort_keys=True)


def _format_text(facts: "GoldenFacts") -> str:
    lines = [
        f"{facts.name}  {facts.digest}",
        f"  source      {facts.source}",
        f"  samples     {facts.samples:,}, {facts.size_bytes:,} bytes of shards",
        f"  repeated    {facts.duplicate_samples:,} of {facts.samples:,}",
        f"  constant    {facts.constant_samples:,} of {facts.samples:,}",
        f"  labels      {'none' if facts.classes is None else f'{facts.classes:,} different'}",
        f"  strata      {', '.join(f'{count:,} {stratum}' for stratum, count in facts.strata.items() if count)}",
        f"  power       {_format_power(facts)}",
    ]
    lines += [f"  missing     {stratum}: {meaning}" for stratum, meaning in facts.missing.items()]
    lines += [
        f"  input       {i.name}, {i.dtype}, {i.non_finite:,} of {i.elements:,} elements not finite"
        for i in facts.inputs
    ]
    lines += [
        f"  shape       {', '.join(f'{name} {list(shape)}' for name, shape in g.shapes)}: {g.samples:,} samples, "
        f"fills batches of {', '.join(map(str, g.batch_sizes))}"
        for g in facts.groups
    ]
    lines += [f"  output      {name}: {_format_meaning(said)}" for name, said in facts.outputs.items()]
    return "\n".join([*lines, *(f"warning[golden]: {warning}" for warning in facts.warnings)])


def _format_power(facts: "GoldenFacts") -> str:
    """Say what the representative samples can prove about how often something happens."""
    from validator.metrics import flip_rate_bound

    return (
        f"{facts.counting_samples:,} samples count for flips: none in them certifies a rate below "
        f"{flip_rate_bound(0, facts.counting_samples):.2g} at 95 % (299 certify 0.01, 2,995 certify 0.001)"
    )


def _format_meaning(said: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in said.items())
