"""`validator demo`."""

import tempfile
from pathlib import Path

import click

from validator.errors import ExitCode


@click.command()
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where; a new folder among the temporary ones if left out."
)
def demo(folder: Path | None) -> ExitCode:
    """Show the main job in a minute or two: no server, no GPU.

    Registers AlexNet three times in an embedded MLflow, makes a golden dataset, checks version 3 (passes) and
    version 2 (blocked: its ONNX file is stale). Every command is printed, so that it can be repeated.
    """
    from validator.demo.demo import run_demo

    run_demo(folder or Path(tempfile.mkdtemp(prefix="validator-demo-")), click.echo)
    return ExitCode.PASS
