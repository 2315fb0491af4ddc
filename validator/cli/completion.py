"""What a shell offers for the values of options: names that are built in, else files. It asks no registry."""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the built-in policies that begin so, else files."""
    del ctx, param
    from validator.policy import BUILT_IN

    return _begin_so(BUILT_IN, incomplete) or complete_files(incomplete)


def complete_paths(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer files and folders, where a URI may stand, too."""
    del ctx, param
    return complete_files(incomplete)


def complete_backends(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the built-in backends that begin so."""
    del ctx, param
    from validator.backends.catalog import CATALOG

    return _begin_so(CATALOG, incomplete)


def complete_formats(incomplete: str) -> list[CompletionItem]:
    """Offer the formats that go on with a list, whose other words stay."""
    from validator.report.formats import Format

    done, comma, last = incomplete.rpartition(",")
    listed = done.split(",")
    return [CompletionItem(f"{done}{comma}{name}") for name in Format if name.startswith(last) and name not in listed]


def complete_files(incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the names of files."""
    return [CompletionItem(incomplete, type="file")]


def _begin_so(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
