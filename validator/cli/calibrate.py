"""`validator calibrate`: measure the budgets of a healthy model."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from validator.cli.options import Asked, debug_option, open_gate, quiet_option, recorded_command, run_options
from validator.errors import ExitCode

if TYPE_CHECKING:
    from validator.calibrate import Measured


@click.command()
@run_options(deed="measure", policy_is="The policy to measure budgets for")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where the measured policy goes.",
)  # fmt: skip
@quiet_option
@debug_option
def calibrate(
    *,
    tracking_uri: str | None,
    output: Path,
    quiet: bool,
    debug: bool,
    **asked: Unpack[Asked],
) -> ExitCode:
    """Measure budgets on URI, a registered model that is known to be healthy, and write a policy with them.

    Every candidate backend runs with other kernels and batch sizes; K becomes max(3, 2 x the largest error ratio). Runs
    that are not healthy measure no noise: nothing is written then.

    \b
    Examples:
      validator calibrate models:/alexnet/3 --golden golden/ --output policy.toml
      validator budget diff default policy.toml
    """  # noqa: D301 -- click reads \b as "keep these lines"
    del debug  # read by the boundary, before anything is parsed
    from validator.calibrate import CalibrationRequest
    from validator.calibrate import calibrate as calibrate_model
    from validator.report.text import clean

    request = CalibrationRequest(**asked, output=output, command=recorded_command())
    with open_gate(tracking_uri, quiet=quiet) as (registry, progress):
        result = calibrate_model(request, registry, progress)
    if not quiet:
        click.echo("\n".join(list_budgets(result.measured)))
    for variant in result.left_out:
        click.echo(f"left out: {clean(variant, limit=400)}", err=True)
    for caution in result.cautions:
        click.echo(f"warning[{caution.code}]: {clean(caution.message, limit=400)}", err=True)
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
