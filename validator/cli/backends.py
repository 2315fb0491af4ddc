"""`validator backends`: the catalog, and what its knobs are."""

from typing import TYPE_CHECKING

import click

from validator.errors import ExitCode

if TYPE_CHECKING:
    from validator.backends.catalog import Backend


@click.command()
@click.argument("name", required=False)
@click.option("--policy", metavar="FILE|NAME", help="Show the rows that this policy adds, too.")
def backends(*, name: str | None, policy: str | None) -> ExitCode:
    """List the built-in backends, or every knob of the one called NAME.

    A policy file may add rows of its own: [backends.mine] with like = "eager-cuda" and the knobs to change.

    \b
    Examples:
      validator backends
      validator backends onnxruntime-gpu
      validator backends mine --policy policy.toml
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.backends.catalog import CATALOG, find_backend
    from validator.inputs import load_policy
    from validator.report.text import clean

    rows = {} if policy is None else load_policy(policy).rows
    lines = list_rows([*CATALOG.values(), *rows.values()]) if name is None else list_knobs(find_backend(name, rows))
    click.echo("\n".join(clean(line, limit=400) if line else "" for line in lines))
    return ExitCode.PASS


def list_rows(rows: "list[Backend]") -> list[str]:
    """Lay out the catalog, one row a line."""
    cells = [("backend", "runs on", "precision", "what"), *((r.name, r.device, r.precision, r.summary) for r in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]).rstrip()
        for row in cells
    ]


def list_knobs(row: "Backend") -> list[str]:
    """Lay out what a row asks for, and what a worker must read back for it."""
    from validator.backends.catalog import expected_settings

    knobs = {**row.model_dump(mode="json", exclude={"name", "summary"}), "precision (follows)": row.precision.value}
    settings = expected_settings(row)
    width = max(map(len, [*knobs, *settings]))
    lines = [f"{row.name}  {row.summary}", "", "asks for"]
    lines += [f"  {knob:<{width}}  {_show(value)}" for knob, value in knobs.items()]
    lines += ["", "must be read back from the libraries after the run"]
    lines += [f"  {setting:<{width}}  {_show(value)}" for setting, value in settings.items()]
    return lines


def _show(value: object) -> str:
    """Write a value as a policy file would; absent ones as a dash."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "-"
    return "-" if value is None else str(value)
