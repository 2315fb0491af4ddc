"""`validator check`: measure, judge, write the evidence, annotate MLflow."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from validator.cli.cache import cache_options
from validator.cli.options import (
    Asked,
    FormatList,
    debug_option,
    open_gate,
    quiet_option,
    recorded_command,
    run_options,
)
from validator.cli.style import ColorChoice, text_width, use_color
from validator.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from validator.attest.keyless import KeylessSigner
    from validator.cache.store import CachePlace
    from validator.check import CheckResult

DEFAULT_OUTPUT = "validator-report"


@click.command()
@run_options(deed="check", policy_is="Budgets and required backends")
@click.option(
    "--policy-ref", metavar="REF", help="Read the policy's file at this git ref, like origin/main: whatever the change "
    "under review does to it counts for nothing.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(path_type=Path), default=DEFAULT_OUTPUT, show_default=True, metavar="FOLDER",
    help="Where verdict.json goes, and an ONNX file that this check exports.",
)  # fmt: skip
@click.option(
    "--format", "formats", type=FormatList(), default="html", show_default=True, metavar="LIST", help="Formats of the "
    "report there: html, terminal, md, junit, sarif, github, gitlab, parquet; several with commas.",
)  # fmt: skip
@click.option("--no-previews", is_flag=True, help="Show no inputs of the worst samples in the report.")
@click.option(
    "--sign-key", type=click.Path(path_type=Path), envvar="VALIDATOR_SIGN_KEY", metavar="FILE",
    help="Sign a pass with this private key: clearance.json beside verdict.json. Also VALIDATOR_SIGN_KEY.",
)  # fmt: skip
@click.option(
    "--sign-keyless",
    is_flag=True,
    help="Sign a pass through sigstore with this job's identity, without a key.",
)
@click.option(
    "--identity-token-file",
    "token_file",
    type=click.Path(path_type=Path),
    envvar="VALIDATOR_IDENTITY_TOKEN_FILE",
    metavar="FILE",
    help="Where that identity's token is, if neither SIGSTORE_ID_TOKEN holds it nor the CI gives one.",
)
@click.option(
    "--trust-config", type=click.Path(path_type=Path), metavar="FILE",
    help="The sigstore instance to sign with: its keys and addresses; by default the public one.",
)  # fmt: skip
@click.option("--expires-in", default="7d", show_default=True, metavar="TIME", help="How long a clearance is good for.")
@cache_options
@click.option("--no-annotate", is_flag=True, help="Write nothing to MLflow.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json on standard output.")
@quiet_option
@click.option("--verbose", "-v", is_flag=True, help="Print every backend and what it ran with.")
@click.option(
    "--color", type=click.Choice([c.value for c in ColorChoice]), default="auto", show_default=True, help="When to "
    "colour; NO_COLOR and FORCE_COLOR count too.",
)  # fmt: skip
@debug_option
def check(
    *,
    tracking_uri: str | None,
    policy_ref: str | None,
    output: Path,
    formats: tuple[str, ...],
    no_previews: bool,
    sign_key: Path | None,
    sign_keyless: bool,
    token_file: Path | None,
    trust_config: Path | None,
    expires_in: str,
    no_annotate: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    color: str,
    debug: bool,
    cache: "CachePlace | None",
    **asked: Unpack[Asked],
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
    from validator.clearance import parse_lifetime
    from validator.report.formats import Format

    request = CheckRequest(
        **asked,
        policy_ref=policy_ref,
        output=output,
        formats=tuple(map(Format, formats)),
        previews=not no_previews,
        annotate=not no_annotate,
        command=recorded_command(),
        sign_key=sign_key,
        sign_keyless=read_keyless(token_file, trust_config, asked_for=sign_keyless),
        lifetime=parse_lifetime(expires_in),
        cache=cache,
    )
    choice = ColorChoice(color)
    with open_gate(tracking_uri, quiet=quiet, color=choice) as (registry, progress):
        result = check_model(request, registry, progress)
    show(result, Showing(as_json=as_json, quiet=quiet, verbose=verbose, color=choice))
    code = exit_code_of(result.verdict)
    if result.annotation_error is not None and code is ExitCode.PASS:
        # Whoever looks into MLflow sees no verdict: what was asked for was not done.
        return result.annotation_error.exit_code
    return code


def read_keyless(token_file: Path | None, trust_config: Path | None, *, asked_for: bool) -> "KeylessSigner | None":
    """Return what signs keyless; None: it was not asked for. A variable that names the token's file asks for nothing.

    Raises:
        UsageError: a trust config for what is not asked for.
        KeylessError: sigstore is not installed.
    """
    from validator.attest.keyless import KeylessSigner, PublicGood, TrustConfigFile, require_sigstore

    if not asked_for:
        if trust_config is not None:
            raise UsageError("--trust-config is for --sign-keyless", hint="add that, or leave it out")
        return None
    require_sigstore()
    trust = PublicGood() if trust_config is None else TrustConfigFile(path=trust_config)
    return KeylessSigner(trust=trust, token_file=token_file)


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
