"""`validator budget`: look at policies, and at what changed between two."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from validator.errors import ExitCode, ValidatorError

if TYPE_CHECKING:
    from validator.policy import Policy
    from validator.policy_diff import Change


@click.group()
def budget() -> None:
    """Look at the limits of a policy, at its weak spots, and at what a change to it loosens."""


@budget.command()
@click.argument("policy", metavar="POLICY")
def show(*, policy: str) -> ExitCode:
    """Print the limits that POLICY, a TOML file or a built-in name, sets for every backend that it requires.

    \b
    Examples:
      validator budget show policy.toml
      validator budget show cpu
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.inputs import load_policy
    from validator.report.text import clean

    click.echo("\n".join(clean(line, limit=1_000) for line in list_limits(load_policy(policy))))
    return ExitCode.PASS


@budget.command()
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True)
def lint(*, policies: tuple[str, ...]) -> ExitCode:
    """Read every POLICY, and warn about loose limits, missing bindings and waivers that end.

    Warnings exit 0; a policy that cannot be used exits 2, after all of them were read.

    \b
    Examples:
      validator budget lint policy.toml
      validator budget lint policies/alexnet.toml policies/resnet.toml
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.inputs import load_policy
    from validator.policy_diff import lint_policy
    from validator.report.text import clean

    code, today = ExitCode.PASS, datetime.now(UTC).date()
    for name in policies:
        try:
            warnings = lint_policy(load_policy(name), today)
        except ValidatorError as error:
            click.echo(f"{error.word}[{error.code}]: {clean(error.message, limit=2_000)}", err=True)
            click.echo(f"  {clean(error.hint, limit=2_000)}" if error.hint else "", err=True, nl=bool(error.hint))
            code = ExitCode.USAGE
            continue
        for warning in warnings:
            click.echo(f"warning[policy]: {clean(name)}: {clean(warning, limit=400)}")
        click.echo(f"{clean(name)}: can be used, {len(warnings)} warnings")
    return code


@budget.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--model-changed", is_flag=True, help="The change under review touches a model, too.")
def diff(*, old: str, new: str, model_changed: bool) -> ExitCode:
    """Say of every change from the policy OLD to NEW whether it tightens or loosens; exit 1 if anything loosens.

    What cannot be ordered counts as loosened. One change may touch a model or loosen a budget, not both.

    \b
    Examples:
      validator budget diff policy.toml proposed.toml
      validator budget diff cpu policy.toml --model-changed
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.inputs import load_policy
    from validator.policy_diff import Direction, changes_model, diff_policies, loosens
    from validator.report.text import clean

    changes = diff_policies(load_policy(old), load_policy(new))
    for change in sorted(changes, key=lambda c: c.direction is not Direction.LOOSENED):
        click.echo(clean(describe(change), limit=400))
    if not loosens(changes):
        click.echo(f"nothing is loosened: {len(changes)} changes")
        return ExitCode.PASS
    if model_changed or changes_model(changes):
        click.echo("error[policy]: one change may touch a model or loosen a policy, not both", err=True)
    count = sum(change.direction is Direction.LOOSENED for change in changes)
    click.echo(f"loosened: {count} of {len(changes)} changes")
    return ExitCode.FAIL


def describe(change: "Change") -> str:
    """Say one change in one line."""
    why = f"  ({change.why})" if change.why else ""
    old, new = (_plain(value) for value in (change.old, change.new))
    return f"{change.direction:<9}  {change.key}: {old} -> {new}{why}"


def _plain(value: object) -> str:
    """Write a value of a policy; a float without the digits that only binary has."""
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def list_limits(policy: "Policy") -> list[str]:
    """Lay out the limits in force, where they come from, and what stands beside them."""
    from validator.backends.catalog import BASELINE, find_backend
    from validator.policy import Limits

    metrics = [name.removeprefix("error_ratio").lstrip("_") or "K" for name in Limits.model_fields]
    cells: list[tuple[str, ...]] = [("backend", "output", *metrics, "from")]
    names = dict.fromkeys((*policy.required, *(b.backend for b in policy.budget)))
    for name in names:
        if name == BASELINE:
            continue
        row = find_backend(name, policy.rows)
        own = sorted(b.output for b in policy.budget if b.backend == name and b.output is not None)
        budgeted = any(b.backend == name and b.output is None for b in policy.budget)
        for output in [*own, None]:
            limits = policy.limits_for(row, output if output is not None else "")
            source = "budget" if output is not None or budgeted else f"default of {row.precision}"
            numbers = (f"{value:g}" for value in limits.model_dump().values())
            cells.append((name, output if output is not None else "any other" if own else "any", *numbers, source))
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in (0, 1, len(widths) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    calibration = policy.calibration
    lines.append("measured on  " + ("nothing that is named" if calibration is None else _bindings(policy)))
    asked = policy.decisions
    if asked.flip_rate is not None:
        lines.append(f"flip rate    below {asked.flip_rate:g} at 95 %")
    if asked.accuracy_drop is not None:
        lines.append(f"accuracy     at most {asked.accuracy_drop:g} below the reference's")
    lines += [f"waiver       {w.title}: {w.owner}, until {w.expires}: {w.reason}" for w in policy.waiver]
    return [*lines, f"policy       {policy.digest}"]


def _bindings(policy: "Policy") -> str:
    calibration = policy.calibration
    if calibration is None:
        return ""
    named = [f"weights {calibration.weights}"] if calibration.weights else []
    named += [f"golden {calibration.golden}"] if calibration.golden else []
    for backend, keys in calibration.environment.items():
        named.append(f"{backend} " + " ".join(f"{key}={value}" for key, value in keys.items()))
    return ", ".join(named)
