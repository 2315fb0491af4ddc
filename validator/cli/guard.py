"""`validator guard`: what an administrator of a guarded registry needs."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from validator.errors import ExitCode

if TYPE_CHECKING:
    from validator.guard.config import Protection


@click.group()
def guard() -> None:
    """Look at the configuration of a guard: a plugin for the MLflow server that lets no alias move uncleared."""


@guard.command("check-config", short_help="Read the configuration as the server will.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
def check_config(*, file: Path) -> ExitCode:
    """Read the guard's configuration FILE and its keys as the server would, and say what is protected.

    \b
    Example:
      validator guard check-config /etc/mlflow/guard.toml
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.guard.config import read_protection
    from validator.report.text import clean

    for line in describe(read_protection(file)):
        click.echo(clean(line, limit=1_000))
    return ExitCode.PASS


def describe(protection: "Protection") -> Iterator[str]:
    """Say what a configuration means, and warn of what it leaves open."""
    config = protection.config
    for key in protection.keys:
        yield f"key          {key.key_id}"
    yield f"registry     {', '.join(config.registry_uris)}"
    yield f"aliases      {', '.join(config.aliases)}"
    yield f"stages       {', '.join(config.stages) or 'none'}"
    yield f"models       {', '.join(config.models)}, but for {', '.join(config.exempt) or 'none'}"
    for target, source in config.republished.items():
        yield f"republished  {target} holds the bytes of {source}"
    yield f"policies     {_accepted(config.policy_digests, config.policy_origins)}"
    yield f"golden       {_accepted(config.golden_digests)}"
    if config.policy_digests is None and config.policy_origins is None:
        yield "warning[guard]: any policy counts: name policy_digests or policy_origins"
    if not config.require_expect:
        yield "warning[guard]: require_expect = false: of two who move an alias at a time, the last one wins"
    if not config.verify_bytes:
        yield "warning[guard]: verify_bytes = false: files that were overwritten after the check are not noticed"


def _accepted(*lists: tuple[str, ...] | None) -> str:
    named = [name for names in lists for name in names or ()]
    return ", ".join(named) or "any"
