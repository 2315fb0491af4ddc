"""From evidence to a verdict. Pure: no I/O, no clock, no library that measures."""

from validator.judge.decisions import Decisions, Flips, margin_limits, measure_decisions
from validator.judge.findings import (
    EXACT_KINDS,
    BackendEvidence,
    Caution,
    Check,
    Control,
    Decision,
    Evidence,
    Finding,
    FreshRun,
    Reference,
    Status,
    Verdict,
    find_reference,
)
from validator.judge.noise import baseline_rows, deployed_batch, limits_of, noise_floors, precision_of, roundoff_of
from validator.judge.pooling import floors_of, ratios_of
from validator.judge.values import judge_ratios, judge_values
from validator.judge.verdict import MODEL_CHECKS, REQUIRED_CHECKS, decide, judge

__all__ = [
    "EXACT_KINDS",
    "MODEL_CHECKS",
    "REQUIRED_CHECKS",
    "BackendEvidence",
    "Caution",
    "Check",
    "Control",
    "Decision",
    "Decisions",
    "Evidence",
    "Finding",
    "Flips",
    "FreshRun",
    "Reference",
    "Status",
    "Verdict",
    "baseline_rows",
    "decide",
    "deployed_batch",
    "find_reference",
    "floors_of",
    "judge",
    "judge_ratios",
    "judge_values",
    "limits_of",
    "margin_limits",
    "measure_decisions",
    "noise_floors",
    "precision_of",
    "ratios_of",
    "roundoff_of",
]
