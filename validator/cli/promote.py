"""`validator promote`: move an alias to a version that a clearance is good for, and to no other."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from validator.cli.options import (
    SignerOptions,
    acceptance_options,
    debug_option,
    quiet_option,
    read_signers,
    signer_options,
)
from validator.cli.verify import read_allowed, render_claims, tell_warning, to_document
from validator.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from validator.promote import Holder, Promotion
    from validator.republish import Destination


@click.command()
@click.argument("uri", metavar="URI")
@click.option("--alias", required=True, metavar="NAME", help="The alias that is moved.")
@signer_options
@click.option(
    "--clearance", type=click.Path(path_type=Path), metavar="FILE",
    help="The clearance; by default the one in the run that the version's tag names.",
)  # fmt: skip
@click.option("--from-run", is_flag=True, help="Take the clearance from that run: the default, said aloud.")
@click.option("--expect-current", type=click.IntRange(min=1), metavar="VERSION", help="Move it only from this version.")
@click.option("--expect-none", is_flag=True, help="Move it only if no version holds it.")
@click.option(
    "--level", type=click.Choice(["alias", "republish"]), default="alias", show_default=True,
    help="Move the alias of this model, or upload the cleared bytes as a version of another and move its alias.",
)  # fmt: skip
@click.option("--to", metavar="NAME", help="Model that is republished to; by default this one's name and -prod.")
@click.option(
    "--experiment", metavar="NAME", help="Experiment that is republished into; by default validator.promoted."
)
@acceptance_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@quiet_option
@debug_option
def promote(
    *,
    uri: str,
    alias: str,
    clearance: Path | None,
    from_run: bool,
    expect_current: int | None,
    expect_none: bool,
    level: str,
    to: str | None,
    experiment: str | None,
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
    """Let an alias point to the registered version URI, if a signed clearance is good for its bytes.

    Hashes the bytes and opens none of them. The same command again finishes what was interrupted, and changes nothing
    where nothing is missing.

    \b
    Examples:
      validator promote models:/alexnet/3 --alias champion --key gate.key.pub
      validator promote models:/alexnet/3 --alias champion --key gate.key.pub \\
        --expect-current 2 --policy-digest "$POLICY_DIGEST"
      validator promote models:/alexnet/3 --alias champion --key gate.key.pub \\
        --level republish --to alexnet-prod
    """  # noqa: D301 -- click reads \b as "keep these lines"
    del debug  # read by the boundary, before anything is parsed
    from validator.promote import PromoteRequest
    from validator.promote import promote as promote_version
    from validator.registry.mlflow_registry import open_registry

    if from_run and clearance is not None:
        raise UsageError("there are two places for the clearance", hint="write either --clearance FILE or --from-run")
    request = PromoteRequest(
        uri=uri,
        alias=alias,
        keys=read_signers(signers),
        clearance=clearance,
        expect=read_expectation(expect_current, expect_none=expect_none),
        republish=read_destination(level, to, experiment),
        onnx=onnx,
        cleared_in=cleared_in,
        allowed=read_allowed(policies, origins, goldens),
    )
    registry = open_registry(tracking_uri, cwd=Path.cwd(), warn=tell_warning)
    return show(promote_version(request, registry, datetime.now(UTC)), uri, as_json=as_json, quiet=quiet)


def read_expectation(current: int | None, *, expect_none: bool) -> "Holder | None":
    """Return who must hold the alias.

    Raises:
        UsageError: two are named.
    """
    from validator.promote import Holder

    if current is not None and expect_none:
        raise UsageError("--expect-current and --expect-none contradict each other", hint="write one of them")
    return Holder(version=current) if current is not None or expect_none else None


def read_destination(level: str, name: str | None, experiment: str | None) -> "Destination | None":
    """Return where the bytes are republished; None at the level where they are not.

    Raises:
        UsageError: a destination for what goes nowhere.
    """
    from validator.republish import Destination

    if level == "alias":
        if name is not None or experiment is not None:
            raise UsageError("--to and --experiment are for --level republish", hint="add that, or leave them out")
        return None
    return Destination(name=name) if experiment is None else Destination(name=name, experiment=experiment)


def show(promotion: "Promotion", uri: str, *, as_json: bool, quiet: bool) -> ExitCode:
    """Print what came of it, and return the exit code."""
    from validator.report.text import clean

    outcome = promotion.outcome
    for warning in warnings_of(promotion):
        click.echo(f"warning[promotion]: {clean(warning, limit=2_000)}", err=True)
    lines = list(render(promotion, uri))
    click.echo(to_json(promotion, lines[-1]) if as_json else "\n".join(lines[-1:] if quiet else lines))
    if outcome is None:
        return ExitCode.REFUSED
    if (failed := outcome.unnoted) is not None:
        click.echo(f"{failed.word}[{failed.code}]: {clean(failed.message, limit=2_000)}", err=True)
        click.echo(f"  {clean(failed.hint or 'the promotion stands', limit=2_000)}", err=True)
        return failed.exit_code
    return ExitCode.PASS


def warnings_of(promotion: "Promotion") -> Iterator[str]:
    """Yield what people should know although the alias was moved."""
    outcome, verification = promotion.outcome, promotion.verification
    if outcome is None:
        return
    yield from outcome.warnings
    if outcome.record.reason is not None:
        yield f"without a clearance: {outcome.record.reason}"
    if verification is not None:
        for claim in verification.claims:
            if claim.name == "expires" and claim.message.endswith(" is past"):
                yield f"the clearance has expired: {claim.message}; check the version again"


def render(promotion: "Promotion", uri: str) -> Iterator[str]:
    """Yield one line per claim, and a last one that decides."""
    from validator.report.text import clean

    if promotion.verification is not None:
        yield from render_claims(promotion.verification)
    yield clean(headline(promotion, uri), limit=400)


def headline(promotion: "Promotion", uri: str) -> str:
    """Return the last line."""
    from validator.promotion import Level, describe_holder

    verification, outcome = promotion.verification, promotion.outcome
    if outcome is None:
        names = [claim.name for claim in verification.claims if not claim.holds] if verification else []
        return f"refused: {uri} is not cleared: {', '.join(names)}; no alias was moved"
    record = outcome.record
    word = "rolled back" if record.level is Level.ROLLBACK else "promoted"
    again = "" if outcome.is_moved else " already, since " + record.time
    where = f"{outcome.alias} of {outcome.name} points to version {record.version}{again}"
    return f"{word}: {where}, before: {describe_holder(record.previous)}"


def to_json(promotion: "Promotion", headline: str) -> str:
    """Return everything as one document."""
    outcome, verification = promotion.outcome, promotion.verification
    return json.dumps(
        {
            "headline": headline,
            "moved": outcome is not None and outcome.is_moved,
            "promoted": outcome is not None,
            "record": None if outcome is None else outcome.record.model_dump(mode="json"),
            "verification": None if verification is None else to_document(verification),
            "warnings": list(warnings_of(promotion)),
        },
        indent=2,
        sort_keys=True,
    )
