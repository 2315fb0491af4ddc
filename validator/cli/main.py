"""The group of commands. A command's module is imported when the command is named, or when help lists it."""

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import click

import validator
from validator.cli.exits import exit_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a command lies, and the line that lists it."""

    place: str
    """`module:name`, imported when the command is named."""
    summary: str


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "check": Entry(place="validator.cli.check:check", summary="Say whether a registered model may be promoted."),
        "verify": Entry(place="validator.cli.verify:verify", summary="Say whether a clearance is good for a model."),
        "promote": Entry(
            place="validator.cli.promote:promote", summary="Move an alias to a version that a clearance is good for."
        ),
        "rollback": Entry(
            place="validator.cli.rollback:rollback", summary="Let an alias point to the version before again."
        ),
        "guard": Entry(place="validator.cli.guard:guard", summary="Look at the configuration of a registry's guard."),
        "key": Entry(place="validator.cli.key:key", summary="Make keys that clearances are signed with."),
        "golden": Entry(place="validator.cli.golden:golden", summary="Make, look at and verify golden datasets."),
        "calibrate": Entry(place="validator.cli.calibrate:calibrate", summary="Measure budgets on a healthy model."),
        "budget": Entry(place="validator.cli.budget:budget", summary="Show, lint and compare policies."),
        "cache": Entry(place="validator.cli.cache:cache", summary="Show or clear what checks keep to reuse."),
        "backends": Entry(place="validator.cli.backends:backends", summary="List the backends, or one's knobs."),
        "demo": Entry(place="validator.cli.demo:demo", summary="See a pass and a block in a minute or two, on a CPU."),
        "report": Entry(place="validator.cli.report:report", summary="Print the report of a verdict.json again."),
        "schema": Entry(place="validator.cli.schema:schema", summary="Print the JSON schema of verdict.json."),
    }
)


class LazyGroup(click.Group):
    """Imports commands on demand, and gives each of them the table of its exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        del ctx
        if (entry := COMMANDS.get(cmd_name)) is None:
            return None
        module, _, name = entry.place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        command.short_help = entry.summary
        add_exit_codes(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was named.

        Raises:
            click.UsageError: there is none; the message names the nearest.
        """
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
            guess = f": did you mean {near[0]}?" if near else f": there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {name}{guess}", ctx)
        return super().resolve_command(ctx, args)


def add_exit_codes(command: click.Command, path: str) -> None:
    """Put the table of its exit codes at the end of a command's help, and of its subcommands'."""
    command.epilog = command.epilog or exit_table(path)
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            add_exit_codes(subcommand, f"{path} {name}")


@click.command(
    cls=LazyGroup,
    epilog=exit_table(""),
    # No environment variable sets an option that decides a verdict: those stand on the command line or in the policy.
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None, "max_content_width": 80},
)
@click.version_option(validator.__version__, prog_name="validator", message="%(prog)s %(version)s")
def app() -> None:
    """Check, before a model is promoted, that it computes the same function on every backend it will be served from.

    \b
    validator check models:/alexnet/3 --golden golden/
    """  # noqa: D301 -- click reads \b as "keep these lines"
