"""`validator key`: keys that clearances are signed with."""

from pathlib import Path

import click

from validator.errors import ExitCode

TYPES = ("ed25519", "p256")
"""In words, because `validator.attest.keys` is imported only when a key is made."""


@click.group()
def key() -> None:
    """Make keys that clearances are signed with."""


@key.command(short_help="Write a new key pair.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--type", "kind", type=click.Choice(TYPES), default="ed25519", show_default=True, help="Kind of key.")
def create(*, file: Path, kind: str) -> ExitCode:
    """Write a new private key to FILE, readable by you alone, its public half to FILE.pub, and print its id.

    Standard output holds the id alone.

    VALIDATOR_KEY_PASSPHRASE, or the first line of the file that VALIDATOR_KEY_PASSPHRASE_FILE names, encrypts it.

    \b
    Example:
      validator key create gate.key
    """  # noqa: D301 -- click reads \b as "keep these lines"
    from validator.attest.keys import KeyType, create_key_files

    public = create_key_files(file, KeyType(kind))
    click.echo(public.key_id)
    click.echo(f"{file} signs: keep it where only the check can read it; {file}.pub is for whoever verifies", err=True)
    return ExitCode.PASS
