"""`validator check`: measure, judge, write the evidence, annotate MLflow."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from validator.cli.style import ColorChoice, is_live, text_width, use_color
from validator.errors import ExitCode

if TYPE_CHECKING:
    from validator.check import CheckResult

DEFAULT_OUTPUT = "validator-report"


@click.command()
@click.argument("uri", metavar="URI")
@click.option(
    "--policy", default="default", show_default=True, metavar="FILE|NAME", help="Budgets and required backends: a "
    "TOML file, or a built-in policy: default (CPU and GPU) or cpu.",
)  # fmt: skip
@click.option("--golden", metavar="FOLDER|URI", help="Inputs to run on; by default what the policy names.")
@click.option("--onnx", metavar="FILE|URI", help="ONNX file to check; by default the model's own, else an export.")
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Check this backend too. Repeatable.")
@click.option("--tracking-uri", metavar="URI", help="MLflow server or database; by default as MLflow finds it.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=DEFAULT_OUTPUT, show_default=True, metavar="FOLDER",
    help="Where verdict.json goes, and an ONNX file that this check exports.",
)  # fmt: skip
@click.option("--no-annotate", is_flag=True, help="Write nothing to MLflow.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json on standard output.")
@click.option("--quiet", "-q", is_flag=True, help="Print the last line only.")
@click.option("--verbose", "-v", is_flag=True, help="Print every backend and what it ran with.")
@click.option(
    "--color", type=click.Choice([c.value for c in ColorChoice]), default="auto", show_default=True, help="When to "
    "colour; NO_COLOR and FORCE_COLOR count too.",
)  # fmt: skip
@click.option("--debug", is_flag=True, help="Print tracebacks.")
def check(
    *,
    uri: str,
    policy: str,
    golden: str | None,
    onnx: str | None,
    backends: tuple[str, ...],
    tracking_uri: str | None,
    output: Path,
    no_annotate: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    color: str,
    debug: bool,
) -> ExitCode:
    """Check the registered model URI on every required backend, and say whether it may be promoted.

    \b
    Examples:
      validator check models:/alexnet/3 --golden golden/
      validator check models:/alexnet@candidate --policy cpu --golden golden/
      validator check models:/alexnet/3 --policy policy.toml --json --quiet
    """  # noqa: D301 -- click reads \b as "keep these lines"
    del debug  # read by the boundary, before anything is parsed
    from validator.boundary import exit_code_of
    from validator.check import CheckRequest
    from validator.check import check as check_model
    from validator.registry.mlflow_registry import open_registry
    from validator.report.progress import open_progress

    request = CheckRequest(
        uri=uri,
        output=output,
        policy=policy,
        golden=golden,
        onnx=onnx,
        backends=backends,
        annotate=not no_annotate,
        command=("validator", *(hide_credentials(word) for word in sys.argv[1:])),
    )
    choice = ColorChoice(color)
    progress = open_progress(sys.stderr, quiet=quiet, is_live=is_live(sys.stderr), color=use_color(choice, sys.stderr))
    with progress:
        registry = open_registry(tracking_uri, cwd=Path.cwd(), warn=lambda text: progress.stage("warning", text))
        result = check_model(request, registry, progress)
    show(result, Showing(as_json=as_json, quiet=quiet, verbose=verbose, color=choice))
    code = exit_code_of(result.verdict)
    if result.annotation_error is not None and code is ExitCode.PASS:
        # Whoever looks into MLflow sees no verdict: what was asked for was not done.
        return result.annotation_error.exit_code
    return code


def hide_credentials(word: str) -> str:
    """Take user and password out of an address: the command line is recorded in the verdict, which many may read."""
    return re.sub(r"(\w://)[^/@\s]+@", r"\1***@", word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """How the user wants to see the result."""

    as_json: bool
    quiet: bool
    verbose: bool
    color: ColorChoice


def show(result: "CheckResult", showing: Showing) -> None:
    """Print the result: the report on standard output, or the document there and the report on standard error."""
    from validator.report.terminal import render_last_line, render_terminal
    from validator.report.text import clean

    stream = sys.stderr if showing.as_json else sys.stdout
    color = use_color(showing.color, stream)
    if showing.as_json:
        click.echo(result.document.to_json(), nl=False)
    if (failed := result.annotation_error) is not None:
        click.echo(f"{failed.word}[{failed.code}]: {clean(failed.message, limit=2_000)}", err=True)
        click.echo(f"  {clean(failed.hint or 'the verdict stands', limit=2_000)}", err=True)
    for warning in result.receipt.warnings if result.receipt else ():
        click.echo(f"warning[annotate]: {clean(warning, limit=2_000)}", err=True)
    if showing.quiet:
        text = render_last_line(result.document, color=color)
    else:
        text = render_terminal(result.document, color=color, width=text_width(stream), verbose=showing.verbose)
    # click strips colour by itself where it thinks it knows better; the decision was made above.
    click.echo(text, file=stream, color=True)
