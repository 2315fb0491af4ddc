"""The cache's options, and `validator cache`: show what lies in it, clear it."""

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from validator.cli.options import debug_option
from validator.errors import CouldNotRun, ExitCode

if TYPE_CHECKING:
    from validator.cache.store import CachePlace, EntryFolder

Command = Callable[..., object]

_PLACE = (
    click.option(
        "--cache", "cache_folder", type=click.Path(path_type=Path), envvar="VALIDATOR_CACHE", metavar="FOLDER",
        help="Where results lie that can be reused; by default among the user's caches. Also VALIDATOR_CACHE.",
    ),
    click.option(
        "--cache-domain", envvar="VALIDATOR_CACHE_DOMAIN", default="local", show_default=True, metavar="NAME",
        help="Trust domain: results of others are not reused. Also VALIDATOR_CACHE_DOMAIN.",
    ),
)  # fmt: skip
_USE = (
    click.option(
        "--cache-key", type=click.Path(path_type=Path), envvar="VALIDATOR_CACHE_KEY", metavar="FILE",
        help="Key that results are sealed with; by default one that is made. Also VALIDATOR_CACHE_KEY.",
    ),
    click.option(
        "--cache-size", envvar="VALIDATOR_CACHE_SIZE", default="10GiB", show_default=True, metavar="SIZE",
        help="How large the cache may get. Also VALIDATOR_CACHE_SIZE.",
    ),
    click.option(
        "--no-cache", is_flag=True, envvar="VALIDATOR_NO_CACHE",
        help="Compute everything, and keep nothing. Also VALIDATOR_NO_CACHE=1.",
    ),
)  # fmt: skip


def cache_options(command: Command) -> Command:
    """Give a command the cache's options, and hand them over as one: `cache`, None where there is to be none."""

    @functools.wraps(command)
    def with_cache(
        *,
        cache_folder: Path | None,
        cache_domain: str,
        cache_key: Path | None,
        cache_size: str,
        no_cache: bool,
        **others: object,
    ) -> object:
        from validator.cache.store import parse_size

        place = place_of(cache_folder, cache_domain, key_file=cache_key, size_bytes=parse_size(cache_size))
        return command(cache=None if no_cache else place, **others)

    return _decorate(with_cache, *_PLACE, *_USE)


def place_options(command: Command) -> Command:
    """Give a command the options that say where the cache lies."""
    return _decorate(command, *_PLACE)


def _decorate(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def place_of(folder: Path | None, domain: str, *, key_file: Path | None = None, size_bytes: int = 0) -> "CachePlace":
    """Return the place that the options name.

    Raises:
        UsageError: the domain is none.
    """
    from validator.cache.store import CachePlace

    return CachePlace(folder=folder, domain=domain, key_file=key_file, size_bytes=size_bytes)


@click.group()
def cache() -> None:
    """Show or clear what checks have kept to reuse: fp64 references and ONNX exports."""


@cache.command(short_help="List what is kept.")
@place_options
@debug_option
def show(*, cache_folder: Path | None, cache_domain: str, debug: bool) -> ExitCode:
    """List the entries of a trust domain: key, size, and when it was made or last reused."""
    del debug  # read by the boundary, before anything is parsed
    store = _open(cache_folder, cache_domain)
    entries = store.entries()
    for entry in entries:
        used = datetime.fromtimestamp(entry.used_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        click.echo(f"{entry.key}  {entry.size_bytes:>15,} bytes  {used}")
    total = sum(entry.size_bytes for entry in entries)
    click.echo(f"{store.folder}: {len(entries)} entries, {total:,} bytes")
    return ExitCode.PASS


@cache.command(short_help="Remove what is kept.")
@place_options
@debug_option
def clear(*, cache_folder: Path | None, cache_domain: str, debug: bool) -> ExitCode:
    """Remove the entries of a trust domain, but those that a check is using."""
    del debug  # read by the boundary, before anything is parsed
    store = _open(cache_folder, cache_domain)
    removed = store.make_room(0)
    click.echo(f"{store.folder}: {removed} entries removed, {len(store.entries())} left")
    return ExitCode.PASS


def _open(folder: Path | None, domain: str) -> "EntryFolder":
    """Open a domain's folder without its key: nothing of an entry is read.

    Raises:
        CouldNotRun: it cannot be used.
    """
    from validator.cache.secret import CacheUnusable
    from validator.cache.store import open_folder

    try:
        return open_folder(place_of(folder, domain))
    except CacheUnusable as unusable:
        raise CouldNotRun(f"there is no cache to look at: {unusable}", hint="name another with --cache") from unusable
