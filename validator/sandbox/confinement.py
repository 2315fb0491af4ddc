"""What one process may see and do. Pure; crosses to the process as JSON."""

import json
from dataclasses import asdict, dataclass

from validator.sandbox.level import Level, Profile

MECHANISMS = ("bubblewrap", "rlimits", "landlock", "seccomp", "no-exec", "no-fork")
"""In the order in which they are put on. The last two are seccomp's, where nothing has to be compiled."""

VARIABLE = "VALIDATOR_CONFINEMENT"
"""Environment variable that carries a confinement to the process that puts it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """The most that a worker may take, by rlimits; None: no limit."""

    memory_bytes: int | None = None
    """Of memory that it writes to; not on the GPU's rows, because CUDA reserves more than there is."""
    file_bytes: int | None = None
    """Of any one file."""
    open_files: int | None = None
    processes: int | None = None
    """With threads; the kernel counts those of one user together, and does not count root's."""


UNLIMITED = ResourceLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What one process may see and do; whatever is not named it may not."""

    level: Level
    profile: Profile
    home: str
    """The only folder that it may write to."""
    program: tuple[str, ...] = ()
    """Files and folders that an interpreter reads: code, libraries, system files."""
    inputs: tuple[str, ...] = ()
    """Files and folders of the job, read-only. They need not hold anything yet."""
    limits: ResourceLimits = UNLIMITED
    has_landlock: bool = False

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """What enforces it, by name, in the order in which it is put on."""
        is_held = self.level is not Level.NONE
        is_on = (
            self.level is Level.STRICT,
            True,
            self.has_landlock,
            is_held,
            is_held and not self.profile.compiles,
            self.forbids_forks,
        )
        return tuple(name for name, on in zip(MECHANISMS, is_on, strict=True) if on)

    @property
    def forbids_forks(self) -> bool:
        """Whether it may start threads only."""
        return self.level is not Level.NONE and not (self.profile.compiles or self.profile.gpu)

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Confinement":
        """Read it back; the gate wrote it."""
        document = json.loads(text)
        return cls(
            level=Level(document["level"]),
            profile=Profile(**document["profile"]),
            home=document["home"],
            program=tuple(document["program"]),
            inputs=tuple(document["inputs"]),
            limits=ResourceLimits(**document["limits"]),
            has_landlock=document["has_landlock"],
        )
