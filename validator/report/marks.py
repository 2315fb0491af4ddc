"""The signs of verdicts and findings. They repeat what the word beside them says; none ever stands alone."""

from collections.abc import Mapping
from types import MappingProxyType

from validator.judge import Status, Verdict

VERDICT_MARKS: Mapping[Verdict, str] = MappingProxyType(
    {Verdict.PASS: "✓", Verdict.FAIL: "✗", Verdict.INCONCLUSIVE: "?", Verdict.REFUSED: "⊘"}
)
STATUS_MARKS: Mapping[Status, str] = MappingProxyType(
    {
        Status.WITHIN: "✓",
        Status.WAIVED: "~",
        Status.EXCEEDED: "✗",
        Status.NOT_MEASURED: "?",
        Status.REFUSED: "⊘",
    }
)
