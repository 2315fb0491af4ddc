"""`validator verify`: whether a clearance is good for the bytes that are about to be served."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from validator.cli.options import SignerOptions, acceptance_options, debug_option, read_signers, signer_options
from validator.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from validator.attest.judgement import Allowed
    from validator.verify import Verification

_DIGEST = r"sha256:[0-9a-f]{64}"


@click.command()
@click.argument("uri", metavar="URI|FOLDER")
@signer_options
@click.option("--clearance", type=click.Path(path_type=Path), metavar="FILE", help="The clearance.")
@click.option("--from-run", is_flag=True, help="Take the clearance from the run that the version's tag names.")
@click.option("--alias", metavar="NAME", help="Require that this alias points to the cleared version.")
@acceptance_options
@click.option(
    "--republished", metavar="NAME", help="Accept another version with the same bytes as the cleared one of this model."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@debug_option
def verify(
    *,
    uri: str,
    clearance: Path | None,
    from_run: bool,
    alias: str | None,
    policies: tuple[str, ...],
    origins: tuple[str, ...],
    goldens: tuple[str, ...],
    onnx: str | None,
    tracking_uri: str | None,
    cleared_in: str | None,
    republished: str | None,
    as_json: bool,
    debug: bool,
    **signers: Unpack[SignerOptions],
) -> ExitCode:
    """Say whether the registered model URI, or the files in FOLDER, are what a signed clearance was given for.

    Hashes the bytes again and opens none of them. Exits 0 if everything holds, 4 if anything does not.

    \b
    Examples:
      validator verify models:/alexnet/3 --from-run --key gate.key.pub
      validator verify models:/alexnet@champion --from-run --key gate.key.pub
      validator verify models:/alexnet-prod@champion --republished alexnet \\
        --from-run --key gate.key.pub
      validator verify models:/alexnet/3 --from-run \\
        --identity ci@example.com --issuer https://accounts.example.com
      validator verify model/ --clearance clearance.json --key gate.key.pub
    """  # noqa: D301 -- click reads \b as "keep these lines"
    del debug  # read by the boundary, before anything is parsed
    from validator.registry.mlflow_registry import open_registry
    from validator.verify import VerifyRequest
    from validator.verify import verify as verify_clearance

    if from_run == (clearance is not None):
        raise UsageError("where is the clearance?", hint="write either --clearance FILE or --from-run")
    request = VerifyRequest(
        uri=uri,
        keys=read_signers(signers),
        clearance=clearance,
        alias=alias,
        onnx=onnx,
        cleared_in=cleared_in,
        republished=republished,
        allowed=read_allowed(policies, origins, goldens),
    )
    registry = open_registry(tracking_uri, cwd=Path.cwd(), warn=tell_warning) if ":/" in uri else None
    verification = verify_clearance(request, registry, datetime.now(UTC))
    click.echo(to_json(verification) if as_json else "\n".join(render(verification)))
    return ExitCode.PASS if verification.holds else ExitCode.REFUSED


def tell_warning(text: str) -> None:
    """Print what people should know about a resolved URI."""
    from validator.report.text import clean

    click.echo(f"warning[registry]: {clean(text, limit=2_000)}", err=True)


def read_allowed(policies: tuple[str, ...], origins: tuple[str, ...], goldens: tuple[str, ...]) -> "Allowed":
    """Return what is accepted, as the options name it; what none of them names is not asked about.

    Raises:
        UsageError: an option that is no digest.
    """
    from validator.attest.judgement import Allowed

    return Allowed(policies=read_digests(policies), origins=origins or None, goldens=read_digests(goldens))


def read_digests(texts: tuple[str, ...]) -> frozenset[str] | None:
    """Return digests that are accepted; None: any, because none was named.

    Raises:
        UsageError: a text is no digest; the short form of a report is none.
    """
    import re

    for text in texts:
        if re.fullmatch(_DIGEST, text) is None:
            raise UsageError(f"{text!r} is no digest", hint="write sha256: and 64 hex digits, as in verdict.json")
    return frozenset(texts) or None


def render(verification: "Verification") -> Iterator[str]:
    """Yield one line per claim, and a last one that decides."""
    from validator.report.text import clean

    yield from render_claims(verification)
    yield clean(headline(verification), limit=400)


def render_claims(verification: "Verification") -> Iterator[str]:
    """Yield one line per claim."""
    from validator.report.text import clean

    for claim in verification.claims:
        yield f"{'holds' if claim.holds else 'refused':<8} {claim.name:<10} {clean(claim.message, limit=400)}"


def headline(verification: "Verification") -> str:
    """Return the last line."""
    statement = verification.statement
    if not verification.holds or statement is None:
        names = [claim.name for claim in verification.claims if not claim.holds]
        return f"refused: {verification.uri} is not cleared: {', '.join(names)}"
    model, expires = statement.predicate.model, statement.predicate.expires
    what = verification.uri if ":/" in verification.uri else f"what lies in {verification.uri}"
    return f"verified: {what} is {model.name} version {model.version} as it was cleared, until {expires}"


def to_json(verification: "Verification") -> str:
    """Return everything as one document."""
    return json.dumps(to_document(verification), indent=2, sort_keys=True)


def to_document(verification: "Verification") -> dict[str, object]:
    """Return everything as a JSON object."""
    statement = verification.statement
    return {
        "verified": verification.holds,
        "uri": verification.uri,
        "claims": [
            {"name": claim.name, "holds": claim.holds, "message": claim.message} for claim in verification.claims
        ],
        "statement": None if statement is None else statement.model_dump(mode="json", by_alias=True),
    }
