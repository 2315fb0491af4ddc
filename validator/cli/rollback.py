"""`validator rollback`: let an alias point to the version before again."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

import click

from validator.cli.options import (
    SignerOptions,
    acceptance_options,
    debug_option,
    quiet_option,
    read_signers,
    signer_options,
)
from validator.cli.promote import read_expectation, show
from validator.cli.verify import read_allowed, tell_warning
from validator.errors import ExitCode, UsageError


@click.command()
@click.argument("uri", metavar="MODEL")
@click.option("--alias", required=True, metavar="NAME", help="The alias that goes back.")
@signer_options
@click.option("--to", type=click.IntRange(min=1), metavar="VERSION", help="Go to this version, not to the one before.")
@click.option("--expect-current", type=click.IntRange(min=1), metavar="VERSION", help="Move it only from this version.")
@click.option(
    "--clearance", type=click.Path(path_type=Path), metavar="FILE",
    help="The clearance of that version; by default the one that it was promoted with.",
)  # fmt: skip
@click.option(
    "--without-clearance", "reason", metavar="REASON", help="Verify nothing; the reason is recorded on the model."
)
@click.option(
    "--republished", metavar="NAME", help="Accept another version with the same bytes as the cleared one of this model."
)
@acceptance_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@quiet_option
@debug_option
def rollback(
    *,
    uri: str,
    alias: str,
    to: int | None,
    expect_current: int | None,
    clearance: Path | None,
    reason: str | None,
    republished: str | None,
    policies: tuple[str, ...],
    origins: tuple[str, ...],
    goldens: tuple[str, ...],
    onnx: str | None,
    tracking_uri: str | None,
    cleared_in: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **signers: Unpack[SignerOptions],
) -> ExitCode:
    """Let an alias of the registered MODEL point to the version that held it before the last promotion.

    That version's clearance must hold in everything but its time: one that has expired is good enough to go back to.
    The same command again changes nothing.

    \b
    Examples:
      validator rollback models:/alexnet --alias champion --key gate.key.pub
      validator rollback models:/alexnet --alias champion --to 1 \\
        --key gate.key.pub
      validator rollback models:/alexnet --alias champion \\
        --without-clearance "3 answers nonsense, 2 was never checked"
    """  # noqa: D301 -- click reads \b as "keep these lines"
    del debug  # read by the boundary, before anything is parsed
    from validator.registry.mlflow_registry import open_registry
    from validator.rollback import RollbackRequest
    from validator.rollback import rollback as roll_back

    request = RollbackRequest(
        name=read_name(uri),
        alias=alias,
        keys=read_signers(signers, required=False),
        to=to,
        expect=read_expectation(expect_current, expect_none=False),
        clearance=clearance,
        reason=reason,
        republished=republished,
        onnx=onnx,
        cleared_in=cleared_in,
        allowed=read_allowed(policies, origins, goldens),
    )
    registry = open_registry(tracking_uri, cwd=Path.cwd(), warn=tell_warning)
    return show(roll_back(request, registry, datetime.now(UTC)), uri, as_json=as_json, quiet=quiet)


def read_name(uri: str) -> str:
    """Return the name in `models:/NAME`.

    Raises:
        UsageError: it names a version or an alias, or is no such URI.
    """
    match = re.fullmatch(r"models:/+([^/@]+)/*", uri)
    if match is None:
        raise UsageError(
            f"{uri!r} is not a registered model", hint="write models:/NAME; the version is found, or named with --to"
        )
    return match[1]
