"""The strongest level that was proven, against what was asked for."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from validator.errors import SandboxTooWeak
from validator.sandbox.confinement import UNLIMITED, Confinement, ResourceLimits
from validator.sandbox.level import Level, Profile, Request
from validator.sandbox.machine import Machine

_STRONGEST_FIRST = (Level.STRICT, Level.STANDARD)

Prove = Callable[[Confinement], str | None]
"""A confinement -> how a child got out of it; None: it is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The level that one profile's workers are held at."""

    level: Level
    weaker_because: tuple[str, ...] = ()
    """Why not a stronger one, strongest first: `strict: bubblewrap is not installed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What is put around the workers of one check."""

    requested: Request
    machine: Machine
    program: tuple[str, ...] = ()
    """See Confinement."""
    reached: Mapping[Profile, Reached] = field(default_factory=lambda: MappingProxyType({}))
    """Of every profile that workers may have here; empty: nothing was tried, and nothing is put around any."""
    limits: ResourceLimits = UNLIMITED

    @property
    def weakest(self) -> Level:
        """The level that every worker is held at, or more strongly."""
        return min((found.level for found in self.reached.values()), key=lambda level: level.rank, default=Level.NONE)

    def confine(self, profile: Profile, *, home: Path, inputs: Iterable[Path] = ()) -> Confinement:
        """Return the confinement of one worker.

        Args:
            profile: what it needs.
            home: its own folder.
            inputs: of its job; they must exist.
        """
        profile = self.machine.narrow(profile)
        level = self.reached[profile].level if self.reached else Level.NONE
        return Confinement(
            level=level,
            profile=profile,
            home=str(home),
            program=self.program,
            inputs=tuple(map(str, inputs)),
            limits=self.limits,
            has_landlock=level is not Level.NONE and self.machine.has_landlock(profile),
        )


def describe_levels(sandbox: Sandbox) -> str:
    """Say in one line what was reached: `strict`, or the level of each profile where they differ."""
    levels = {profile.title: found.level for profile, found in sorted(sandbox.reached.items())}
    same = len(set(levels.values())) <= 1
    text = str(next(iter(levels.values()), Level.NONE)) if same else ", ".join(f"{t} {v}" for t, v in levels.items())
    reasons = dict.fromkeys(r for found in sandbox.reached.values() for r in found.weaker_because)
    return f"{text} ({'; '.join(reasons)})" if reasons else text


NO_MACHINE = Machine(bubblewrap=None, bubblewrap_version=None, landlock_abi=0, seccomp=False)
UNCONFINED = Sandbox(requested=Request.NONE, machine=NO_MACHINE)
"""Processes of their own, and nothing around them."""


def reach(requested: Request, profile: Profile, machine: Machine, prove: Callable[[Level], str | None]) -> Reached:
    """Find the strongest level that can be proven for a profile, or the one that is asked for.

    Args:
        requested: a level that is named is tried alone, and nothing instead of it.
        profile: what the workers need.
        machine: what there is.
        prove: how a child gets out of a level; None: it does not.
    """
    reasons: list[str] = []
    for level in _STRONGEST_FIRST if requested.level is None else (requested.level,):
        if level is Level.NONE:
            break
        reason = machine.missing(level, profile) or prove(level)
        if reason is None:
            return Reached(level=level, weaker_because=tuple(reasons))
        reasons.append(f"{level}: {reason}")
    return Reached(level=Level.NONE, weaker_because=tuple(reasons))


def require(reached: Mapping[Profile, Reached], wanted: Level, *, by: str) -> None:
    """Refuse to go on with workers that are held more weakly than is asked for.

    Args:
        reached: of every profile that will run.
        wanted: the least.
        by: who asks, for people: `the policy`.

    Raises:
        SandboxTooWeak: one of them is.
    """
    for profile, found in sorted(reached.items()):
        if not found.level.is_at_least(wanted):
            why = "; ".join(found.weaker_because) or "that is what --sandbox asks for"
            raise SandboxTooWeak(
                f"{by} wants the sandbox {wanted}, and {profile.title} workers are held by {found.level}: {why}",
                hint=_hint(found),
            )


def _hint(found: Reached) -> str:
    if not found.weaker_because:
        return "leave --sandbox out, or name a stronger one"
    return "install bubblewrap (apt-get install bubblewrap), and see docs/sandbox.md where it is installed and blocked"
