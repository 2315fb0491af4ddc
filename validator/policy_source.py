"""Where a policy comes from: a file, a built-in one, a version in the registry, or a commit.

Whoever may change the policy that his change is judged by needs no other way past the gate. So a policy can be taken
from where that change cannot reach: a registered model that the gate alone may edit, or a protected git ref. What was
read is pinned and recorded: the version's number, or the commit.
"""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from validator.errors import PolicyError, UsageError
from validator.inputs import load_policy
from validator.policy import BUILT_IN, Policy, parse_policy
from validator.registry.interface import Registry, resolve_text
from validator.scratch import scratch_folder

POLICY_FILE = "policy.toml"
"""What a version of a budget holds."""
BUDGET_PREFIX = "validator.budget."
CURRENT = "current"
POLICY_LIMIT_BYTES = 1 << 20
GIT_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedPolicy:
    """A policy, and where it was read."""

    policy: Policy
    origin: str
    """A path, the name of a built-in policy, `models:/NAME/3`, or `git:REF:PATH@COMMIT`."""


def find_policy(name: str, *, ref: str | None = None, open_registry: Callable[[], Registry]) -> SourcedPolicy:
    """Read a policy from where its name says.

    Args:
        name: a path, a built-in name or a model URI.
        ref: a git ref that a path is read from, instead of the folder's own file.
        open_registry: called for a model URI only.

    Raises:
        PolicyError: nothing there, or a policy that cannot be used.
        UriError: no such version.
        UsageError: a ref for something that is no path.
    """
    is_uri = name.startswith("models:/")
    if ref is not None:
        if is_uri or name in BUILT_IN:
            raise UsageError(
                f"{name} is not read from a git ref", hint="name a file with --policy, or leave out --policy-ref"
            )
        return read_at_ref(ref, name)
    if is_uri:
        return fetch_policy(name, open_registry())
    return SourcedPolicy(policy=load_policy(name), origin=name)


# --- The registry -------------------------------------------------------------------------------------------------


def fetch_policy(uri: str, registry: Registry) -> SourcedPolicy:
    """Read the policy that a registered version holds.

    Raises:
        PolicyError: it holds none, or one that cannot be used.
        UriError: no such version.
    """
    text, origin = fetch_text(uri, registry)
    return SourcedPolicy(policy=parse_policy(text, origin=origin), origin=origin)


def fetch_text(uri: str, registry: Registry) -> tuple[str, str]:
    """Return a registered policy as it was written, and the pinned URI of its version.

    Raises:
        PolicyError: the version holds none.
        UriError: no such version.
    """
    with scratch_folder() as scratch:
        subject = resolve_text(registry, uri)
        folder = registry.stage(subject, scratch / "policy").folder
        path = folder / POLICY_FILE
        if not path.is_file():
            raise PolicyError(f"{subject.title} holds no {POLICY_FILE}", hint="put one there: validator budget push")
        return _decode(path.read_bytes(), origin=subject.pinned_uri), subject.pinned_uri


# --- Git ----------------------------------------------------------------------------------------------------------


def read_at_ref(ref: str, name: str) -> SourcedPolicy:
    """Read a policy as it is at a git ref, whatever lies in the working tree.

    Raises:
        PolicyError: no repository, no such ref, or no such file in it.
    """
    path = Path(name)
    if path.is_absolute():
        raise UsageError(f"{name} is an absolute path", hint="name the file as seen from the current directory")
    what = f"policy {name} cannot be read at {ref}"
    commit = _git(what, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}").decode().strip()
    prefix = _git(what, "rev-parse", "--show-prefix").decode().rstrip("\n")
    inside = os.path.normpath(f"{prefix}{name}")
    # The blob itself: `git show` would run the repository's own converters.
    data = _git(what, "cat-file", "blob", f"{commit}:{inside}")
    origin = f"git:{ref}:{inside}@{commit}"
    return SourcedPolicy(policy=parse_policy(_decode(data, origin=origin), origin=origin), origin=origin)


def _git(what: str, *arguments: str) -> bytes:
    """Run git in the current directory; return what it prints.

    Raises:
        PolicyError: it failed; says why.
    """
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False, timeout=GIT_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "git is not installed" if isinstance(error, FileNotFoundError) else str(error)
        raise PolicyError(f"{what}: {reason}", hint="leave out --policy-ref, or install git") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise PolicyError(f"{what}: {lines[0] if lines else 'there is no such ref'}", hint="fetch it first")
    return done.stdout


def _decode(data: bytes, *, origin: str) -> str:
    """Return the text of a policy.

    Raises:
        PolicyError: too large, or no UTF-8.
    """
    if len(data) > POLICY_LIMIT_BYTES:
        raise PolicyError(f"policy {origin} has more than {POLICY_LIMIT_BYTES:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyError(f"policy {origin} cannot be read: it is not UTF-8 text") from error
