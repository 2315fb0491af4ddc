"""Options that several commands share, and what every command that runs a model begins with."""

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click
from click.shell_completion import CompletionItem

from validator.cli.completion import complete_backends, complete_formats, complete_paths, complete_policies
from validator.cli.style import ColorChoice, is_live, use_color
from validator.errors import UsageError
from validator.sandbox.level import Request

if TYPE_CHECKING:
    from validator.attest.sealing import Accepted
    from validator.registry.mlflow_registry import MlflowRegistry
    from validator.report.progress import Progress

Decorator = Callable[[Callable[..., object]], Callable[..., object]]

tracking_uri_option = click.option(
    "--tracking-uri", metavar="URI", help="MLflow server or database; by default as MLflow finds it."
)
sandbox_option = click.option(
    "--sandbox", type=click.Choice(Request, case_sensitive=False), default=Request.AUTO, show_default="auto",
    help="How strongly workers are held; auto takes the strongest that is proven here. The policy may ask for more.",
)  # fmt: skip
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print the last line only.")
debug_option = click.option("--debug", is_flag=True, help="Print tracebacks.")


class FormatList(click.ParamType[tuple[str, ...]]):
    """Some formats of reports: `junit,md`."""

    name = "format list"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split the list; the names are checked here, so that nothing runs for hours before a misspelt one is found."""
        from validator.report.formats import Format

        words = [word.strip() for word in str(value).split(",") if word.strip()]
        for word in words:
            if word not in list(Format):
                near = difflib.get_close_matches(word, Format, n=1, cutoff=0.5)
                guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(Format)}"
                self.fail(f"no format {word}: {guess}", param, ctx)
        if not words:
            self.fail("it names no format", param, ctx)
        return tuple(words)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the formats that go on with the list."""
        del ctx, param
        return complete_formats(incomplete)


class Asked(TypedDict):
    """What to run, and by which policy; the options of `run_options` but the registry."""

    uri: str
    policy: str
    golden: str | None
    onnx: str | None
    backends: tuple[str, ...]
    sandbox: Request


def decorate(command: Callable[..., object], decorators: Sequence[Decorator]) -> Callable[..., object]:
    """Give a command several options, in the order in which its help shows them."""
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def acceptance_options(command: Callable[..., object]) -> Callable[..., object]:
    """Give a command that verifies a clearance the options that say which are accepted, and where to look."""
    decorators = (
        click.option(
            "--policy-digest", "policies", multiple=True, metavar="DIGEST", help="Accept this policy only. Repeatable."
        ),
        click.option(
            "--policy-origin", "origins", multiple=True, metavar="PATTERN",
            help="Accept a policy read there only: models:/validator.budget.* or git:origin/main:*. Repeatable.",
        ),
        click.option(
            "--golden-digest", "goldens", multiple=True, metavar="DIGEST",
            help="Accept this golden dataset only. Repeatable.",
        ),
        click.option("--onnx", metavar="FILE|URI", help="Where the ONNX file is, if the clearance cannot say."),
        tracking_uri_option,
        click.option(
            "--cleared-in", metavar="URI",
            help="What the registry was called where the model was checked, if not as here.",
        ),
    )  # fmt: skip
    return decorate(command, decorators)


class SignerOptions(TypedDict):
    """Whose signature is good; the options of `signer_options`."""

    keys: tuple[Path, ...]
    identity: str | None
    issuer: str | None
    trust_root: Path | None
    offline: bool


def signer_options(command: Callable[..., object]) -> Callable[..., object]:
    """Give a command that verifies a clearance the options that say whose signature is good."""
    decorators = (
        click.option(
            "--key", "keys", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
            help="Public key whose signature is good. Repeatable.",
        ),
        click.option(
            "--identity", metavar="NAME", help="Identity whose keyless signature is good, in full: an address, or "
            "the URI of a workflow. With --issuer.",
        ),
        click.option("--issuer", metavar="URL", help="Who must have vouched for that identity, in full."),
        click.option(
            "--trust-root", type=click.Path(path_type=Path), metavar="FILE",
            help="Keys of the sigstore instance; by default those of the public one.",
        ),
        click.option("--offline", is_flag=True, help="Take the keys that sigstore ships, unrefreshed."),
    )  # fmt: skip
    return decorate(command, decorators)


def read_signers(options: SignerOptions, *, required: bool = True) -> "tuple[Accepted, ...]":
    """Return whose signature is good, as the options name them.

    Raises:
        KeyFileError: a public key cannot be used.
        KeylessError: an identity is named, and sigstore is not installed.
        UsageError: nobody is named and somebody is required; an identity without an issuer, or the other way round; or
            what is only for identities.
    """
    from validator.attest.keyless import (
        PublicGood,
        TrustedSignatory,
        TrustRootFile,
        require_signatory,
        require_sigstore,
    )
    from validator.attest.keys import load_public_key

    identity, issuer, trust_root = options["identity"], options["issuer"], options["trust_root"]
    keys = tuple(load_public_key(path) for path in options["keys"])
    if identity is None and issuer is None:
        if trust_root is not None or options["offline"]:
            raise UsageError("--trust-root and --offline are for --identity", hint="add that, or leave them out")
        if required and not keys:
            raise UsageError(
                "no key is given, and no identity",
                hint="name a public key with --key, or write --identity X --issuer URL",
            )
        return keys
    signatory = require_signatory(identity or "", issuer or "")
    require_sigstore()
    trust = PublicGood(offline=options["offline"]) if trust_root is None else TrustRootFile(path=trust_root)
    return (*keys, TrustedSignatory(signatory=signatory, trust=trust))


def run_options(*, deed: str, policy_is: str) -> Decorator:
    """Give a command that runs a model its argument and the options that say what is run.

    Args:
        deed: what it does with an ONNX file and a backend: `check`.
        policy_is: what the policy is to it: `Budgets and required backends`.
    """
    policy_help = (
        f"{policy_is}: a TOML file, a version in the registry, or a built-in policy: default (CPU and GPU) or cpu."
    )
    decorators = (
        click.argument("uri", metavar="URI"),
        click.option(
            "--policy", default="default", show_default=True, metavar="FILE|URI|NAME", help=policy_help,
            shell_complete=complete_policies,
        ),
        click.option(
            "--golden", metavar="FOLDER|URI", help="Inputs to run on; by default what the policy names.",
            shell_complete=complete_paths,
        ),
        click.option(
            "--onnx", metavar="FILE|URI", help=f"ONNX file to {deed}; by default the model's own, else an export.",
            shell_complete=complete_paths,
        ),
        click.option(
            "--backend", "backends", multiple=True, metavar="NAME", help=f"{deed.capitalize()} this backend too. "
            "Repeatable.", shell_complete=complete_backends,
        ),
        sandbox_option,
        tracking_uri_option,
    )  # fmt: skip
    return lambda command: decorate(command, decorators)


@contextmanager
def open_gate(
    tracking_uri: str | None, *, quiet: bool, color: ColorChoice = ColorChoice.AUTO
) -> "Iterator[tuple[MlflowRegistry, Progress]]":
    """Open the registry, and show progress on standard error while the block runs."""
    from validator.registry.mlflow_registry import open_registry
    from validator.report.progress import open_progress

    painted = use_color(color, sys.stderr)
    with open_progress(sys.stderr, quiet=quiet, is_live=is_live(sys.stderr), color=painted) as progress:
        registry = open_registry(tracking_uri, cwd=Path.cwd(), warn=lambda text: progress.stage("warning", text))
        yield registry, progress


def recorded_command() -> tuple[str, ...]:
    """Return the command line as it may be recorded."""
    return ("validator", *(hide_credentials(word) for word in sys.argv[1:]))


def hide_credentials(word: str) -> str:
    """Take user and password out of an address: the command line is recorded in the verdict, which many may read."""
    return re.sub(r"(\w://)[^/@\s]+@", r"\1***@", word)
