"""From evidence to a verdict. Pure: no I/O, no clock, no library that measures."""

from validator.judge.decisions import Decisions, Flips, measure_decisions
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
    Status,
    Verdict,
)
from validator.judge.noise import baseline_rows, deployed_batch, noise_floors
from validator.judge.pooling import part_floors, pooled_ratios
from validator.judge.values import judge_ratios, judge_values
from validator.judge.verdict import REQUIRED_CHECKS, decide, judge

__all__ = [
    "EXACT_KINDS",
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
    "Status",
    "Verdict",
    "baseline_rows",
    "decide",
    "deployed_batch",
    "judge",
    "judge_ratios",
    "judge_values",
    "measure_decisions",
    "noise_floors",
    "part_floors",
    "pooled_ratios",
]
