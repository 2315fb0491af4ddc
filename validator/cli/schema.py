"""`validator schema`: the format of verdict.json."""

import click

from validator.errors import ExitCode


@click.command()
def schema() -> ExitCode:
    """Print the JSON schema of verdict.json.

    \b
    Example:
      validator schema > verdict.schema.json
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.report.schema import schema_text

    click.echo(schema_text(), nl=False)
    return ExitCode.PASS
