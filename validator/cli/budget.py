"""`validator budget`: look at policies, at what changed between two, and keep them in the registry."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from validator.cli.options import tracking_uri_option
from validator.errors import ExitCode, UriError, UsageError, ValidatorError

if TYPE_CHECKING:
    from validator.policy import Policy
    from validator.policy_diff import Change
    from validator.registry.mlflow_registry import MlflowRegistry


@click.group()
def budget() -> None:
    """Look at the limits of a policy, at its weak spots, and at what a change to it loosens; keep it in the registry.

    A POLICY is a TOML file, a built-in name, or a version in the registry:
    models:/validator.budget.alexnet@current.
    """


@budget.command(short_help="Print the limits in force.")
@click.argument("policy", metavar="POLICY")
@tracking_uri_option
def show(*, policy: str, tracking_uri: str | None) -> ExitCode:
    """Print the limits that POLICY sets for every backend that it requires.

    \b
    Examples:
      validator budget show policy.toml
      validator budget show cpu
      validator budget show models:/validator.budget.alexnet@current
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.report.text import clean

    click.echo("\n".join(clean(line, limit=1_000) for line in list_limits(read_policy(policy, tracking_uri))))
    return ExitCode.PASS


@budget.command(short_help="Warn of what is weak in policies.")
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True)
@tracking_uri_option
def lint(*, policies: tuple[str, ...], tracking_uri: str | None) -> ExitCode:
    """Read every POLICY, and warn about loose limits, missing bindings and waivers that end.

    Warnings exit 0; a policy that cannot be used exits 2, after all of them were read.

    \b
    Examples:
      validator budget lint policy.toml
      validator budget lint policies/alexnet.toml policies/resnet.toml
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.policy_diff import lint_policy
    from validator.report.text import clean

    code, today = ExitCode.PASS, datetime.now(UTC).date()
    for name in policies:
        try:
            warnings = lint_policy(read_policy(name, tracking_uri), today)
        except ValidatorError as error:
            click.echo(f"{error.word}[{error.code}]: {clean(error.message, limit=2_000)}", err=True)
            click.echo(f"  {clean(error.hint, limit=2_000)}" if error.hint else "", err=True, nl=bool(error.hint))
            code = ExitCode.USAGE
            continue
        for warning in warnings:
            click.echo(f"warning[policy]: {clean(name)}: {clean(warning, limit=400)}")
        click.echo(f"{clean(name)}: can be used, {len(warnings)} warnings")
    return code


@budget.command(short_help="Say what a change to a policy loosens.")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--model-changed", is_flag=True, help="The change under review touches a model, too.")
@tracking_uri_option
def diff(*, old: str, new: str, model_changed: bool, tracking_uri: str | None) -> ExitCode:
    """Say of every change from the policy OLD to NEW whether it tightens or loosens; exit 1 if anything loosens.

    What cannot be ordered counts as loosened. One change may touch a model or loosen a budget, not both.

    \b
    Examples:
      validator budget diff policy.toml proposed.toml
      validator budget diff cpu policy.toml --model-changed
      validator budget diff models:/validator.budget.alexnet@current policy.toml
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.policy_diff import Direction, changes_model, diff_policies, loosens
    from validator.report.text import clean

    changes = diff_policies(read_policy(old, tracking_uri), read_policy(new, tracking_uri))
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


@budget.command(short_help="Put a policy into the registry.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("model", metavar="MODEL")
@tracking_uri_option
def push(*, file: Path, model: str, tracking_uri: str | None) -> ExitCode:
    """Register the policy FILE as the budget of MODEL, and point the alias `current` to it.

    It becomes the newest version of the registered model `validator.budget.MODEL`. Pushing the same bytes again changes
    nothing.

    \b
    Example:
      validator budget push policy.toml alexnet
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.inputs import read_policy
    from validator.policy import BUILT_IN, parse_policy
    from validator.policy_source import BUDGET_PREFIX, CURRENT, POLICY_FILE

    if str(file) in BUILT_IN:
        raise UsageError(f"{file} is built in, and needs no version", hint=f"name it: --policy {file}")
    # Once: a pipe gives what it has only once.
    text = read_policy(str(file))
    policy = parse_policy(text, origin=str(file))
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        (Path(scratch) / POLICY_FILE).write_text(text, encoding="utf-8")
        registered = _open_registry(tracking_uri).publish(
            f"{BUDGET_PREFIX}{model}",
            Path(scratch),
            model_type=BUDGET_PREFIX.rstrip("."),
            alias=CURRENT,
            tags={"validator.policy_digest": policy.digest},
        )
    did = "registered" if registered.created else "already registered"
    click.echo(f"{did} as {registered.uri}, also models:/{registered.name}@{CURRENT}, {policy.digest}")
    return ExitCode.PASS


@budget.command(short_help="Write a policy of the registry to a file.")
@click.argument("model", metavar="MODEL|URI")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Overwrite FILE.")
@tracking_uri_option
def pull(*, model: str, file: Path, replace: bool, tracking_uri: str | None) -> ExitCode:
    """Write the current budget of MODEL, or the one at a model URI, to FILE, as it was pushed.

    \b
    Examples:
      validator budget pull alexnet policy.toml
      validator budget pull models:/validator.budget.alexnet/2 policy.toml
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.policy import parse_policy
    from validator.policy_source import BUDGET_PREFIX, CURRENT, fetch_text
    from validator.report.write import write_text

    if file.exists() and not replace:
        raise UsageError(f"{file} exists", hint="name another file, or overwrite it with --replace")
    uri = model if ":/" in model else f"models:/{BUDGET_PREFIX}{model}@{CURRENT}"
    try:
        text, origin = fetch_text(uri, _open_registry(tracking_uri))
    except UriError as error:
        if uri == model:
            raise
        hint = f"if it has none yet: validator budget push FILE {model}; {error.hint}"
        raise UriError(error.message, hint=hint) from error
    digest = parse_policy(text, origin=origin).digest
    write_text(text, file)
    click.echo(f"{origin} in {file}, {digest}")
    return ExitCode.PASS


def read_policy(name: str, tracking_uri: str | None) -> "Policy":
    """Read a policy from a file, a built-in name or the registry.

    Raises:
        PolicyError: nothing there, or a policy that cannot be used.
    """
    from validator.policy_source import find_policy

    return find_policy(name, open_registry=lambda: _open_registry(tracking_uri)).policy


def _open_registry(tracking_uri: str | None) -> "MlflowRegistry":
    from validator.registry.mlflow_registry import open_registry

    return open_registry(tracking_uri, cwd=Path.cwd())


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
