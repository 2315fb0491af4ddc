"""`validator calibrate`: measure the budgets of a healthy model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from validator.cli.check import hide_credentials
from validator.cli.style import ColorChoice, is_live, use_color
from validator.errors import ExitCode

if TYPE_CHECKING:
    from validator.calibrate import Measured


@click.command()
@click.argument("uri", metavar="URI")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where the measured policy goes.",
)  # fmt: skip
@click.option(
    "--policy", default="default", show_default=True, metavar="FILE|NAME", help="The policy to measure budgets for: a "
    "TOML file, or a built-in policy: default (CPU and GPU) or cpu.",
)  # fmt: skip
@click.option("--golden", metavar="FOLDER|URI", help="Inputs to run on; by default what the policy names.")
@click.option("--onnx", metavar="FILE|URI", help="ONNX file to run; by default the model's own, else an export.")
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Measure this backend too. Repeatable.")
@click.option("--tracking-uri", metavar="URI", help="MLflow server or database; by default as MLflow finds it.")
@click.option("--quiet", "-q", is_flag=True, help="Print the last line only.")
@click.option("--debug", is_flag=True, help="Print tracebacks.")
def calibrate(
    *,
    uri: str,
    output: Path,
    policy: str,
    golden: str | None,
    onnx: str | None,
    backends: tuple[str, ...],
    tracking_uri: str | None,
    quiet: bool,
    debug: bool,
) -> ExitCode:
    """Measure budgets on URI, a registered model that is known to be healthy, and write a policy with them.

    Every candidate backend runs with other kernels and batch sizes; K becomes max(3, 2 x the largest error ratio). Runs
    that are not healthy measure no noise: nothing is written then.

    \b
    Examples:
      validator calibrate models:/alexnet/3 --policy cpu --output policy.toml
      validator budget diff cpu policy.toml
    """  # noqa: D301 -- click reads \b as "keep these lines"
    del debug  # read by the boundary, before anything is parsed
    from validator.calibrate import CalibrationRequest
    from validator.calibrate import calibrate as calibrate_model
    from validator.registry.mlflow_registry import open_registry
    from validator.report.progress import open_progress
    from validator.report.text import clean

    request = CalibrationRequest(
        uri=uri,
        output=output,
        policy=policy,
        golden=golden,
        onnx=onnx,
        backends=backends,
        command=("validator", *(hide_credentials(word) for word in sys.argv[1:])),
    )
    color = use_color(ColorChoice.AUTO, sys.stderr)
    with open_progress(sys.stderr, quiet=quiet, is_live=is_live(sys.stderr), color=color) as progress:
        registry = open_registry(tracking_uri, cwd=Path.cwd(), warn=lambda text: progress.stage("warning", text))
        result = calibrate_model(request, registry, progress)
    if not quiet:
        click.echo("\n".join(list_budgets(result.measured)))
    for variant in result.left_out:
        click.echo(f"left out: {clean(variant, limit=400)}", err=True)
    for measured in result.measured:
        if measured.error_ratio > measured.default:
            what = f"{measured.backend}, output {measured.output}: {measured.error_ratio:g} is looser than the default"
            click.echo(f"warning[budget]: {clean(what, limit=400)} {measured.default:g}", err=True)
    click.echo(f"written: {clean(str(result.path))}, {len(result.measured)} budgets, {result.policy.digest[:15]}")
    return ExitCode.PASS


def list_budgets(measured: "tuple[Measured, ...]") -> list[str]:
    """Lay out every budget, and the variant that it follows from."""
    from validator.report.text import clean

    cells = [("backend", "output", "largest", "K", "of")]
    for m in measured:
        note = clean(m.variant) if m.families else f"{clean(m.variant)}; no other kernel family ran"
        cells.append((clean(m.backend), clean(m.output), f"{m.largest:.3g}", f"{m.error_ratio:g}", note))
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3].rjust(widths[3]), row[4]]
        )
        for row in cells
    ]
