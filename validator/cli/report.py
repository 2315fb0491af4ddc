"""`validator report`: look at a verdict again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from validator.cli.options import FormatList
from validator.cli.style import ColorChoice, text_width, use_color
from validator.errors import ExitCode, UsageError


@click.command()
@click.argument("verdict", type=click.Path(path_type=Path))
@click.option(
    "--format", "formats", type=FormatList(), metavar="LIST", help="Write files instead: "
    "html, terminal, md, junit, sarif, github, gitlab, csv, parquet; several with commas.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where they go; by default beside VERDICT."
)
@click.option("--report-url", metavar="URL", help="Where comment and summary link to.")
@click.option("--verbose", "-v", is_flag=True, help="Print every backend and what it ran with.")
@click.option("--quiet", "-q", is_flag=True, help="Print the last line only.")
@click.option(
    "--color", type=click.Choice([c.value for c in ColorChoice]), default="auto", show_default=True, help="When to "
    "colour; NO_COLOR and FORCE_COLOR count too.",
)  # fmt: skip
def report(
    *,
    verdict: Path,
    formats: tuple[str, ...] | None,
    output: Path | None,
    report_url: str | None,
    verbose: bool,
    quiet: bool,
    color: str,
) -> ExitCode:
    """Print the report of VERDICT, a verdict.json or the folder that holds it, or write it in other formats.

    Exits 0 whatever the verdict in the file: it reads, it does not check.

    \b
    Examples:
      validator report validator-report/
      validator report verdict.json --verbose
      validator report validator-report/ --format md,junit --output ci/
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.report.formats import Format, Material, write_reports
    from validator.report.model import read_document
    from validator.report.read import DOCUMENT_LIMIT_BYTES, read_bytes
    from validator.report.terminal import render_last_line, render_terminal

    path = verdict / "verdict.json" if verdict.is_dir() else verdict
    try:
        text = read_bytes(path, limit_bytes=DOCUMENT_LIMIT_BYTES)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}",
            hint="name the verdict.json that validator check wrote",
        ) from error
    document = read_document(text, origin=str(path))
    if formats is not None:
        material = Material(document=document, folder=path.parent, report_url=report_url)
        with _as_usage_errors(path):
            files = write_reports(map(Format, formats), material, output or path.parent)
        for written in files:
            click.echo(str(written))
        return ExitCode.PASS
    is_colored = use_color(ColorChoice(color), sys.stdout)
    width = text_width(sys.stdout)
    with _as_usage_errors(path):
        shown = (
            render_last_line(document, color=is_colored)
            if quiet
            else render_terminal(document, color=is_colored, width=width, verbose=verbose)
        )
    click.echo(shown, file=sys.stdout, color=True)
    return ExitCode.PASS


@contextmanager
def _as_usage_errors(path: Path) -> Iterator[None]:
    """Numbers and tables that no check writes are the fault of whoever filled the folder, not a crash of ours."""
    from validator.report.samples import SAMPLES_NAME, TableError
    from validator.report.text import clean

    try:
        yield
    except TableError as error:
        raise UsageError(
            f"{path.parent / SAMPLES_NAME} cannot be read as the table of samples: {clean(str(error))}",
            hint="take the file that the check wrote, or check again",
        ) from error
    except (ValueError, IndexError, ArithmeticError) as error:
        raise UsageError(
            f"{path} cannot be shown, it holds numbers that no check writes: {clean(str(error))}",
            hint="name the verdict.json that validator check wrote",
        ) from error
