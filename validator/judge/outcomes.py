"""Judging what became of a worker, and whether it was the row that was asked for."""

import signal
from typing import assert_never

from validator.backends.catalog import BASELINE, REFERENCE, Backend, expected_settings
from validator.backends.interface import RefusalKind
from validator.judge.findings import Check, Finding, Status, not_measured
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, TimedOut, Violated

OTHER_DATASET_HINT = "give the golden dataset of this model: validator golden show says what a dataset holds"
OUT_OF_MEMORY_HINT = "use a smaller batch_size in the policy, or raise its sandbox.memory_bytes"


def judge_outcome(outcome: Outcome | None, *, backend: str | None, what: str) -> Finding:
    """Say what became of a worker."""
    check = Check.WORKER
    match outcome:
        case Completed():
            return Finding(check=check, status=Status.WITHIN, message=f"{what} ran to its end", backend=backend)
        case Declined(refusal=refusal, first_failure=str(first)):
            # Twice on CUDA, in two processes: the device is as likely to blame as the model, so nothing is known.
            hint = "look at the GPU first, then check again"
            return not_measured(check, backend, f"{what}: {refusal.message}; before that: {first}", hint=hint)
        case Declined(refusal=refusal):
            return _judge_refusal(refusal.kind, f"{what}: {refusal.message}", backend, refusal.stage)
        case Crashed(exit_status=status, samples=samples, log_tail=tail, is_out_of_memory=is_out_of_memory):
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status} and without proof"
            how = "ran out of memory" if is_out_of_memory else how
            last = f"; its last words: {tail.splitlines()[-1]}" if tail.strip() else ""
            return not_measured(
                check,
                backend,
                f"{what} {how}, {samples} samples had arrived, none of them is judged{last}",
                hint=OUT_OF_MEMORY_HINT if is_out_of_memory else _hint_for_exit(status),
            )
        case TimedOut(limit_s=limit_s, samples=samples):
            return not_measured(
                check,
                backend,
                f"{what} was stopped after {limit_s:g} s, {samples} samples had arrived, none of them is judged",
                hint="raise worker.deadline_s in the policy, or use fewer golden samples",
            )
        case Violated(what=violation):
            return Finding(
                check=check,
                status=Status.REFUSED,
                message=f"{what} broke the protocol: {violation}",
                backend=backend,
                hint="do not trust this model: its worker sent what an honest worker never sends",
            )
        case None:
            return not_measured(check, backend, f"{what} did not run")
        case _:
            assert_never(outcome)


def _hint_for_exit(status: int) -> str:
    """Say what to do about a worker that ended like this."""
    if status == -signal.SIGKILL:
        return (
            "most likely for want of memory: use a smaller batch_size in the policy, or raise its sandbox.memory_bytes"
        )
    if status < 0:
        return "native code crashed: look at the worker log, and try the backend alone on another machine"
    if status == 0:
        return "it left as if all were well: something in the model ends the process, do not trust it"
    return "look at the worker log; if it shows a fault of validator, report it"


def _judge_refusal(kind: RefusalKind, message: str, backend: str | None, stage: str) -> Finding:
    """Say whose fault it is that a worker declined."""
    match kind:
        case RefusalKind.UNAVAILABLE:
            hint = (
                "check on a machine that has it, or with a policy that requires only what the model is served from: "
                "on CPUs alone, --policy cpu"
            )
            return not_measured(Check.WORKER, backend, message, hint=hint)
        case RefusalKind.FORMAT:
            return Finding(check=Check.WORKER, status=Status.REFUSED, message=message, backend=backend)
        case RefusalKind.MODEL:
            measuring = backend in (None, REFERENCE, BASELINE)
            status = Status.NOT_MEASURED if measuring else Status.EXCEEDED
            where = f"{message} (while it should {stage})"
            what_then = OTHER_DATASET_HINT if measuring and stage == "bind" else None
            return Finding(check=Check.WORKER, status=status, message=where, backend=backend, hint=what_then)
        case _:
            assert_never(kind)


def judge_identity(row: Backend, outcome: Completed) -> Finding:
    """Compare what the worker read back from the libraries with what the row asks for."""
    wanted, ran = expected_settings(row), outcome.environment.settings
    wrong = [f"{k} asked {v}, ran {ran.get(k, 'unread')}" for k, v in wanted.items() if ran.get(k) != v]
    if wrong:
        is_double = wanted.get("dtype") == "float32" and "float64" in str(ran.get("dtype"))
        return not_measured(
            Check.IDENTITY, row.name, f"{row.name} did not run as asked: " + "; ".join(wrong),
            hint="the model itself computes in float64, and nothing more exact is there to measure it against: "
            "log it in float32"
            if is_double
            else "another backend ran than the one whose name is on the row; see the worker's environment",
        )  # fmt: skip
    message = f"{len(wanted)} of {len(wanted)} settings read back as asked"
    return Finding(check=Check.IDENTITY, status=Status.WITHIN, message=message, backend=row.name)
