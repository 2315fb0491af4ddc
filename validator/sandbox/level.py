"""How strongly workers are held, and how strongly somebody wants it."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """What was proven by a self-test. Ordered by `is_at_least`."""

    NONE = "none"
    """A worker has the rights of whoever started the gate."""
    STANDARD = "standard"
    """Landlock hides files, seccomp refuses the network."""
    STRICT = "strict"
    """bubblewrap: a file system of its own, no network, no other processes; seccomp, and Landlock on CPU rows."""

    @property
    def rank(self) -> int:
        """0, 1 or 2."""
        return (Level.NONE, Level.STANDARD, Level.STRICT).index(self)

    def is_at_least(self, other: "Level") -> bool:
        """Whether it is as strong as another, or stronger."""
        return self.rank >= other.rank


class Request(StrEnum):
    """What whoever starts the gate asks for."""

    AUTO = "auto"
    """The strongest that the self-test proves."""
    STRICT = "strict"
    STANDARD = "standard"
    NONE = "none"

    @property
    def level(self) -> Level | None:
        """The level that is named; None: whatever can be reached."""
        return None if self is Request.AUTO else Level(self.value)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Profile:
    """What a worker needs that others do not get."""

    gpu: bool = False
    """The GPU's device nodes. CUDA does not start under Landlock, so there is none then."""
    compiles: bool = False
    """A compiler is started: programs may be."""

    @property
    def title(self) -> str:
        """How reports call it."""
        return f"{'CUDA' if self.gpu else 'CPU'}{' with a compiler' if self.compiles else ''}"


PLAIN = Profile()
"""Neither."""
