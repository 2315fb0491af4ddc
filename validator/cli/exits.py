"""What the exit codes of each command mean, as its help says it."""

from collections.abc import Mapping
from types import MappingProxyType

from validator.errors import ExitCode

VERDICTS: Mapping[ExitCode, str] = MappingProxyType(
    {
        ExitCode.PASS: "pass          every required backend is within its budgets",
        ExitCode.FAIL: "fail          at least one finding exceeded its limit",
        ExitCode.USAGE: "usage         what was asked for makes no sense, or does not exist",
        ExitCode.INCONCLUSIVE: "inconclusive  something could not be measured, so nothing is cleared",
        ExitCode.REFUSED: "refused       bytes changed, or a format that is not safe to open",
        ExitCode.INTERRUPTED: "interrupted",
    }
)
"""Of `check`, and in short of the whole program."""

COMMON: Mapping[ExitCode, str] = MappingProxyType(
    {
        ExitCode.PASS: "it is done",
        ExitCode.USAGE: "what was asked for makes no sense, or does not exist",
        ExitCode.INCONCLUSIVE: "it could not be done: no answer, no room, or a fault of validator",
        ExitCode.INTERRUPTED: "interrupted",
    }
)
"""Of a command that says nothing about a model."""

_READS_BYTES = {ExitCode.REFUSED: "bytes changed, or a format that is not safe to open"}

OWN: Mapping[str, Mapping[ExitCode, str]] = MappingProxyType(
    {
        "verify": {
            ExitCode.PASS: "every claim of the clearance holds",
            ExitCode.INCONCLUSIVE: "it could not be found out: the registry does not answer",
            ExitCode.REFUSED: "a claim does not hold, or there is no clearance that can be read",
        },
        "promote": {
            ExitCode.PASS: "the alias points to the cleared version, and the record says so",
            ExitCode.INCONCLUSIVE: "not finished: the same command again finishes it",
            ExitCode.REFUSED: "the clearance does not hold, or another holds the alias",
        },
        "rollback": {
            ExitCode.PASS: "the alias points to the version before, and the record says so",
            ExitCode.INCONCLUSIVE: "not finished: the same command again finishes it",
            ExitCode.REFUSED: "the clearance does not hold, or another holds the alias",
        },
        "golden": _READS_BYTES,
        "golden verify": {
            ExitCode.PASS: "the shards are what the manifest says",
            ExitCode.REFUSED: "they are not",
        },
        "calibrate": {
            ExitCode.PASS: "the policy is written",
            ExitCode.INCONCLUSIVE: "a run was not healthy or could not be made; nothing is written",
            **_READS_BYTES,
        },
        "budget lint": {
            ExitCode.PASS: "every policy can be used",
            ExitCode.USAGE: "one cannot be used, or does not exist",
        },
        "budget diff": {
            ExitCode.PASS: "nothing is loosened",
            ExitCode.FAIL: "something is loosened",
        },
        "demo": {ExitCode.PASS: "every command of it ended as promised"},
        "report": {ExitCode.PASS: "it is shown, whatever the verdict is"},
    }
)
"""Where a command, or its group, differs from the common ones."""


def exit_codes(path: str) -> Mapping[ExitCode, str]:
    """Return the exit codes of a command, named with its group, and what each means."""
    if path in ("", "check"):
        return VERDICTS
    group = path.partition(" ")[0]
    merged = {**COMMON, **OWN.get(group, {}), **OWN.get(path, {})}
    return {code: merged[code] for code in ExitCode if code in merged}


def exit_table(path: str) -> str:
    r"""Return the end of a command's help; click reads the `\b` as "keep these lines"."""
    rows = [f"  {int(code):<3}  {meaning}" for code, meaning in exit_codes(path).items()]
    return "\n".join(["\b", "Exit codes:", *rows])
