"""What the judgement says of many situations, word for word: every finding that a healthy check does not have.

`VALIDATOR_UPDATE_SNAPSHOTS=1 pytest tests/test_findings.py` writes findings/ again; read what changed.
"""

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from tests.frames import (
    SAMPLES,
    backend_evidence,
    completed,
    cut,
    evidence,
    facts,
    frames,
    noisy,
    run_job,
    scores,
    weighed,
)
from validator.backends.catalog import CATALOG, REFERENCE, expected_settings
from validator.backends.interface import DifferenceKind, ExportFacts, RefusalKind, TensorDifference
from validator.compare import Frame, StructureDifference, compare, measure_variety
from validator.golden.format import Stratum
from validator.judge import Evidence, Finding, FreshRun, Status, judge
from validator.policy import BUILT_IN, Checks, DecisionLimits, Policy, Waiver
from validator.worker.outcome import Crashed, Declined, Outcome, TimedOut, Violated
from validator.worker.protocol import Refusal

APPROVED = Path(__file__).with_name("findings")
TODAY = date(2026, 1, 1)
CPU = BUILT_IN["cpu"].model_copy(update={"batch_size": 8})
ORT = CATALOG["onnxruntime-cpu"]
ROWS = (REFERENCE, "eager-cpu", "onnxruntime-cpu")
Y = scores()

Situation = tuple[str, Policy, Evidence]


@functools.cache
def healthy() -> Evidence:
    return evidence()


def policy(**changes: object) -> Policy:
    return CPU.model_copy(update=changes)


def changed(name: str = "onnxruntime-cpu", **changes: object) -> Evidence:
    """Return healthy evidence in which one backend's is changed."""
    backends = (replace(b, **changes) if b.row.name == name else b for b in healthy().backends)  # type: ignore[arg-type]
    return replace(healthy(), backends=tuple(backends))


def of_rows(
    reference: dict[str, np.ndarray],
    baseline: dict[str, np.ndarray] | None = None,
    candidate: dict[str, np.ndarray] | None = None,
    **changes: object,
) -> Evidence:
    """Return evidence of three rows that returned these outputs; without them the reference's own."""
    y = frames(reference)
    rows = (reference, baseline or reference, candidate or reference)
    backends = tuple(backend_evidence(name, y, frames(given)) for name, given in zip(ROWS, rows, strict=True))
    return evidence(backends=backends, variety=measure_variety(y), **changes)


def at_batch(size: int, main: np.ndarray, other: np.ndarray, name: str = "onnxruntime-cpu") -> Evidence:
    """Return healthy evidence in which a backend answers otherwise at a batch size."""
    found = compare(frames({"output": main}), frames({"output": other}, size))
    return changed(name, batches=tuple((s, found if s == size else c) for s, c in healthy().backends[2].batches))


def declined(name: str, kind: RefusalKind, **changes: object) -> Declined:
    job = run_job(CATALOG[name])
    refusal = Refusal(job_id=name, nonce=job.nonce, kind=kind, stage="load", message="no such operator")
    return Declined(job=job, refusal=refusal, **changes)  # type: ignore[arg-type]


def without_fp64(moved: float = 1e-7, **baseline: object) -> Evidence:
    """Return evidence in which the baseline, perturbed, stands in for a reference that declined."""
    y, row = frames({"output": Y}), CATALOG["eager-cpu"]
    floor = compare(y, frames({"output": noisy(Y, moved, seed=4)}))
    rows = (
        replace(healthy().backends[0], outcome=declined(REFERENCE, RefusalKind.MODEL), repeat=None, batches=()),
        replace(backend_evidence("eager-cpu", y, y), **({"main": floor, "perturbed": completed(row)} | baseline)),  # type: ignore[arg-type]
        backend_evidence("onnxruntime-cpu", y, frames({"output": noisy(Y, 1e-7, seed=3)})),
    )
    return replace(healthy(), backends=rows)


def swapped(*samples: int, places: tuple[int, int] = (-1, -2)) -> np.ndarray:
    """Return scores in which two classes of some samples changed places."""
    other = noisy(Y, 1e-6, seed=3)
    for sample in samples:
        at = Y[sample].argsort()[list(places)]
        other[sample, at] = Y[sample, at[::-1]]
    return other


def near(*samples: int) -> np.ndarray:
    """Return scores whose two best classes are next to each other in some samples."""
    y = Y.copy()
    for sample in samples:
        order = y[sample].argsort()
        y[sample, order[-2]] = y[sample, order[-1]] - 5e-6
    return y


def deaths() -> Iterator[tuple[str, Outcome | None]]:
    """Yield every way in which a worker ends without a result."""
    job = run_job(ORT)
    yield "never ran", None
    for kind in RefusalKind:
        yield f"declined, {kind.value}", declined(ORT.name, kind)
    yield (
        "failed on the device twice",
        declined(ORT.name, RefusalKind.MODEL, first_failure="CUDA error: launch failure"),
    )
    for status in (-9, -11, 0, 1):
        yield (
            f"crashed, status {status}",
            Crashed(job=job, exit_status=status, samples=8, log_tail="loading\nlast words\n"),
        )
    yield "crashed without a word", Crashed(job=job, exit_status=1, samples=0, log_tail=" \n")
    yield "ran out of memory", Crashed(job=job, exit_status=1, samples=8, log_tail="MemoryError", is_out_of_memory=True)
    yield "timed out", TimedOut(job=job, limit_s=1.5, samples=3, log_tail="")
    yield "broke the protocol", Violated(job=job, what="wrong nonce", log_tail="")


def worker_situations() -> Iterator[Situation]:
    nothing: dict[str, object] = {"main": None, "repeat": None, "fresh": None, "batches": ()}
    for title, outcome in deaths():
        yield f"the candidate {title}", CPU, changed(outcome=outcome, **nothing)
    for title in ("declined, model", "crashed, status -11"):
        yield f"the probe {title}", CPU, replace(healthy(), facts=None, probe=dict(deaths())[title])
    for name in (REFERENCE, "eager-cpu"):
        yield f"{name} declined", CPU, changed(name, outcome=declined(name, RefusalKind.MODEL), **nothing)
    yield "the export crashed", CPU, replace(healthy(), export=dict(deaths())["crashed, status -11"], has_onnx=False)
    said = replace(completed(ORT), export=ExportFacts(path=None, message="no ONNX function for aten.frobnicate"))
    yield "the export said why", CPU, replace(healthy(), export=said, has_onnx=False)
    yield "there was no export", CPU, replace(healthy(), export=None, has_onnx=False)
    yield "no ONNX file is needed", CPU, replace(healthy(), onnx_required=False, has_onnx=False)
    settings = expected_settings(CATALOG["eager-cpu"])
    for title, ran in (
        ("in float64", settings | {"dtype": "float64"}),
        ("on another device", settings | {"device": "meta"}),
        ("with a setting unread", {k: v for k, v in settings.items() if k != "dtype"}),
    ):
        outcome = completed(CATALOG["eager-cpu"])
        outcome = replace(outcome, environment=outcome.environment.model_copy(update={"settings": ran}))
        yield f"the baseline ran {title}", CPU, changed("eager-cpu", outcome=outcome)


def repetition_situations() -> Iterator[Situation]:
    other = compare(frames({"output": Y}), frames({"output": noisy(Y, 1e-9)}))
    short = compare(frames({"output": Y}), frames({"output": Y[:, :5]}))
    cuda = CATALOG["eager-cuda"]
    assert not cuda.is_repeatable_by_contract
    yield "not repeated", CPU, changed(repeat=None)
    yield "repeated over nothing", CPU, changed(repeat=compare(frames({"output": Y}), []))
    one = compare(frames({"output": Y}), frames({"output": Y}, 1)[:1])
    yield "repeated over one sample", CPU, changed(repeat=one)
    yield "other values the second time", CPU, changed(repeat=other)
    yield "another shape the second time", CPU, changed(repeat=short)
    fresh = healthy().backends[2].fresh
    assert fresh is not None
    yield "other values in a fresh process", CPU, changed(fresh=replace(fresh, comparison=other))
    yield "no fresh process", CPU, changed(fresh=None)
    died = FreshRun(outcome=dict(deaths())["crashed, status -9"], comparison=None)  # type: ignore[arg-type]
    yield "a fresh process that died", CPU, changed(fresh=died)
    elsewhere = replace(fresh, outcome=completed(ORT, graph_optimization="disable"))
    yield "a fresh process that ran otherwise", CPU, changed(fresh=elsewhere)
    row = backend_evidence(
        "eager-cuda", frames({"output": Y}), frames({"output": noisy(Y, 1e-6, seed=3)}), repeat=other
    )
    yield "a row that promises nothing", CPU, replace(healthy(), backends=(*healthy().backends, row))


def batch_situations() -> Iterator[Situation]:
    alone = policy(checks=Checks(batch_sizes=(1,)))
    static = replace(healthy(), facts=facts(static_batch=4))
    yield "one batch size", CPU, static
    yield "one batch size, admitted", policy(checks=Checks(batch_invariance="if-dynamic")), static
    yield "no other batch size", CPU, changed(batches=())
    yield "the policy names no other batch size", policy(checks=Checks(batch_sizes=(8,))), changed(batches=())
    two = frames({"output": Y}, 2)
    main = healthy().backends[2].main
    assert main is not None
    paired = changed(main=replace(main, largest_batch=2), batches=())
    yield "the only other batch size is the main one", policy(checks=Checks(batch_sizes=(2,))), paired
    halves = tuple((size, compare(two, cut(two, min(size, 2)))) for size in (1, 2, 7))
    yield "a batch that never really ran", CPU, changed(batches=halves)
    yield "no two samples of one shape", alone, changed(main=replace(main, largest_batch=1))
    one, none = frames({"output": Y}, 1), compare([], frames({"output": Y}, 1))
    yield "one sample at batch 1", alone, changed(batches=((1, compare(frames({"output": Y}), one[:1])),))
    yield "other samples at batch 1", alone, changed(batches=((1, none),))
    yield "another shape at batch 1", alone, at_batch(1, Y, Y[:, :5])
    nan = Y.copy()
    nan[4, 2] = np.nan
    yield "NaN at batch 1", alone, at_batch(1, Y, nan)
    for name in ROWS:
        yield f"noise at batch 1, {name}", alone, at_batch(1, Y, noisy(Y, 1e-4), name)
        yield f"little noise at batch 1, {name}", alone, at_batch(1, Y, noisy(Y, 1e-14), name)
    whole = np.arange(SAMPLES * 3).reshape(SAMPLES, 3)
    wrong = whole.copy()
    wrong[9, 1] += 1
    empty = np.zeros((SAMPLES, 0))
    for title, values, other in (
        ("integers", whole, whole),
        ("other integers", whole, wrong),
        ("nothing", empty, empty),
    ):
        found = of_rows({"output": values})
        batches = ((1, compare(frames({"output": values}), frames({"output": other}, 1))),)
        rows = (*found.backends[:2], replace(found.backends[2], batches=batches))
        yield f"{title} at batch 1", alone, replace(found, backends=rows)
    yield "NaN everywhere", alone, of_rows({"output": np.full((SAMPLES, 3), np.nan)})
    turned, ones = with_columns(8), with_columns(1)
    yield "an output of no single sample at batch 1", alone, changed(batches=((1, compare(turned, ones)),))
    moved = compare(frames({"output": Y}), frames({"output": Y * (1 + 1e-7)}, 1))
    ruled = of_rows({"output": Y}, {"output": noisy(Y, 0.2, seed=2)}, {"output": noisy(Y, 0.2, seed=3)})
    rows = (replace(ruled.backends[0], batches=((1, moved),)), *ruled.backends[1:])
    yield "rounding rules", alone, replace(ruled, backends=rows)


def with_columns(size: int) -> list[Frame]:
    """Return frames with a second output whose batch dimension is the last one."""
    return [
        replace(f, outputs={**f.outputs, "t": f.outputs["output"].T}, dtypes={**f.dtypes, "t": "float64"})
        for f in frames({"output": Y}, size)
    ]


def perturbation_situations() -> Iterator[Situation]:
    yield "without fp64", CPU, without_fp64()
    noise = ((1, compare(frames({"output": Y}), frames({"output": noisy(Y, 1e-3)}, 1))),)
    yield "without fp64, noise at batch 1", policy(checks=Checks(batch_sizes=(1,))), without_fp64(batches=noise)
    yield "without fp64, not admitted", policy(checks=Checks(reference="fp64")), without_fp64()
    yield "without fp64, the perturbation died", CPU, without_fp64(perturbed=dict(deaths())["crashed, status -11"])
    yield (
        "without fp64, the perturbation ran otherwise",
        CPU,
        without_fp64(perturbed=completed(CATALOG["eager-cpu"], device="meta")),
    )
    for title, outcome in (
        ("for want of a device", declined(REFERENCE, RefusalKind.UNAVAILABLE)),
        ("after two failures", declined(REFERENCE, RefusalKind.MODEL, first_failure="CUDA error: launch failure")),
    ):
        gathered = without_fp64()
        rows = (replace(gathered.backends[0], outcome=outcome), *gathered.backends[1:])
        yield f"without fp64 {title}", CPU, replace(gathered, backends=rows)
    yield "without fp64, one ulp moves it far", CPU, without_fp64(1e-3)
    main = compare(frames({"output": Y}), frames({"output": Y}))
    different = (
        StructureDifference(output="", what="missing", sample=0, count=1),
        StructureDifference(output="o", what="gone", sample=1, count=1),
    )
    misdeclared = (StructureDifference(output="output", what="is no angle", sample=2, count=1),)
    bent = replace(main, structure=different, misdeclared=misdeclared, samples=12)
    yield "without fp64, one ulp changes what comes back", CPU, without_fp64(main=bent)
    nan, counts = Y.copy(), np.arange(SAMPLES)[:, None]
    nan[2, 3:5] = np.nan
    outputs = {"a": counts, "b": np.zeros((SAMPLES, 0)), "output": Y}
    floor = compare(frames(outputs), frames(outputs | {"output": nan}))
    yield "without fp64, one ulp makes NaN", CPU, without_fp64(main=floor)
    stored = replace(without_fp64(3e-4), facts=facts(working_dtype="bfloat16"))
    yield "without fp64, in half precision", CPU, stored


def value_situations() -> Iterator[Situation]:
    yield "nothing to compare with", CPU, changed(main=None)
    yield "none of the samples", CPU, changed(main=compare(frames({"output": Y}), []))
    half = compare(frames({"output": Y}), frames({"output": noisy(Y, 1e-6, seed=3)[:8]}))
    yield "half of the samples", CPU, changed(main=half)
    yield "outputs of other names", CPU, of_rows({"a": Y, "b": Y}, None, {"a": Y, "c": Y})
    yield "another shape", CPU, of_rows({"output": Y}, None, {"output": Y[:, :5]})
    yield "an output of no single sample", CPU, changed(main=compare(with_columns(8), with_columns(4)))
    main = healthy().backends[2].main
    assert main is not None
    wrong = (StructureDifference(output="output", what="is no angle", sample=2, count=1),)
    yield "a wrong declaration", CPU, changed(main=replace(main, misdeclared=wrong))
    nan = noisy(Y, 1e-6, seed=3)
    nan[5, :2], nan[3, 1] = np.nan, np.inf
    two = {"output": noisy(Y, 1e-6, seed=3), "other": nan}
    yield "NaN in one of two outputs", CPU, of_rows({"output": Y, "other": Y}, {n: noisy(Y, 1e-6) for n in two}, two)
    whole = np.arange(SAMPLES * 3).reshape(SAMPLES, 3)
    other = whole.copy()
    other[9:, 1] += 1
    for title, values in (("integers", whole), ("other integers", other)):
        yield title, CPU, of_rows({"output": whole}, None, {"output": values})
    yield "an output without elements", CPU, of_rows({"output": np.zeros((SAMPLES, 0))})
    few = Y.copy()
    few[3:] = np.nan
    yield "numbers in few samples", CPU, of_rows({"output": few})
    yield "too loud", CPU, evidence(noisy(Y, 1e-4))
    yield "just loud", CPU, evidence(noisy(Y, 7e-6))
    dead = noisy(Y, 1e-6, seed=3)
    dead[:, 7] += 1e-4
    yield "one channel", CPU, evidence(dead)
    yield (
        "scalars",
        CPU,
        of_rows({"output": Y[:, 0]}, {"output": noisy(Y[:, 0], 1e-6)}, {"output": noisy(Y[:, 0], 1e-6)}),
    )
    deep = {"output": noisy(Y, 1.0, seed=2)}
    yield "a budget as large as the output", CPU, of_rows({"output": Y}, deep, {"output": np.zeros_like(Y)})
    ill = {"output": noisy(Y, 0.05, seed=2)}
    yield "ill-conditioned", CPU, of_rows({"output": Y}, ill, ill)
    coarse = of_rows({"output": Y}, ill, ill, facts=facts(working_dtype="float16"))
    yield "ill-conditioned in half precision", CPU, coarse
    lost = tuple(b for b in healthy().backends if b.row.name != "eager-cpu")
    yield "no baseline", CPU, replace(healthy(), backends=lost)
    yield "no backends", CPU, replace(healthy(), backends=())


def decision_situations() -> Iterator[Situation]:
    labels = tuple(int(label) for label in Y.argmax(axis=1))
    yield "a flip that nothing explains", CPU, evidence(swapped(3))
    yield "another set of five", CPU, evidence(swapped(6, places=(-5, -6)))
    y = near(3, 4)
    flipped = noisy(y, 1e-6, seed=3)
    for sample in (3, 4):
        at = y[sample].argsort()[-2:]
        flipped[sample, at] = y[sample, at[::-1]]
    rounded = of_rows({"output": y}, {"output": noisy(y, 1e-6, seed=2)}, {"output": flipped})
    yield "flips that rounding explains", CPU, rounded
    for rate in (0.3, 0.125, 0.01):
        yield f"a rate of {rate}", policy(decisions=DecisionLimits(flip_rate=rate)), rounded
    yield (
        "a rate, and labels of another output",
        policy(decisions=DecisionLimits(flip_rate=0.3)),
        replace(rounded, labelled="boxes", labels=labels),
    )
    yield (
        "a rate of another output, and no labels",
        policy(decisions=DecisionLimits(flip_rate=0.3)),
        replace(healthy(), labelled="boxes"),
    )
    drop = policy(decisions=DecisionLimits(accuracy_drop=0.1))
    for title, given in (("right", labels), ("wrong", tuple((label + 1) % 10 for label in labels)), ("absent", None)):
        yield f"labels that are {title}", drop, replace(rounded, labels=given)
    yield "a drop", policy(decisions=DecisionLimits(accuracy_drop=0.05)), replace(rounded, labels=labels)
    yield "labels beyond the classes", CPU, replace(healthy(), labels=(*labels[:-2], 10, -1))
    two = of_rows({"output": Y, "features": Y})
    yield "labels of one of two outputs", drop, replace(two, labels=labels)
    beside = of_rows({"boxes": Y.reshape(SAMPLES, 2, 5), "output": Y}, labels=labels)
    yield "labels beside an output that is no vector of scores", drop, beside
    beyond = replace(two, labels=tuple((label + 1) % 10 for label in labels), labelled="output")
    yield "wrong labels of the second output", CPU, beyond
    yield "labels of no vector of scores", drop, replace(two, labels=labels, labelled="boxes")
    maps = {"output": Y.reshape(SAMPLES, 2, 5)}
    limits = policy(decisions=DecisionLimits(flip_rate=0.3, accuracy_drop=0.1))
    yield "no scores", limits, replace(of_rows(maps), labels=labels, labelled="output")
    few = {"output": Y[:, :4]}
    other = {"output": Y[:, [1, 0, 2, 3]]}
    yield "fewer than five classes", CPU, of_rows(few, None, other)


def model_situations() -> Iterator[Situation]:
    yield "training mode", CPU, replace(healthy(), facts=facts(training=("aten.dropout: d1",)))
    yield "training mode twice", CPU, replace(healthy(), facts=facts(training=("aten.dropout: d1", "x")))
    yield "a buffer", CPU, replace(healthy(), facts=facts(mutated_buffers=("n",)))
    yield "two buffers", CPU, replace(healthy(), facts=facts(mutated_buffers=("n", "m")))
    yield "another golden dataset", policy(golden_digest="sha256:" + "9" * 64), healthy()
    measured = {
        "weights": "sha256:" + "2" * 64,
        "golden": "sha256:" + "8" * 64,
        "reference": "perturbation",
        "environment": {ORT.name: {"torch": "2.11.0", "gpu": "H200"}, "eager-cpu": {"torch": "2.14.1"}},
    }
    stale = Policy.model_validate({"required": CPU.required, "batch_size": 8, "calibration": measured})
    yield "a stale budget", stale, healthy()
    other = Policy.model_validate(
        {"required": CPU.required, "batch_size": 8, "calibration": {"weights": "sha256:" + "7" * 64}}
    )
    yield "a budget of other weights", other, healthy()
    fresh = {"weights": "sha256:" + "2" * 64, "reference": "fp64", "environment": {ORT.name: {"torch": "2.14.1"}}}
    calibrated = Policy.model_validate({"required": CPU.required, "batch_size": 8, "calibration": fresh})
    yield "a budget that was measured on this", calibrated, healthy()
    yield "a budget, and the candidate died", calibrated, changed(outcome=dict(deaths())["timed out"])
    budgets = [{"backend": ORT.name, "output": o, "error_ratio": 10.0} for o in ("outptu", "output")]
    misspelt = Policy.model_validate(
        {"required": CPU.required, "batch_size": 8, "budget": [*budgets, {"backend": ORT.name, "error_ratio": 9.0}]}
    )
    yield "a budget for no output", misspelt, replace(healthy(), variety=measure_variety(frames({"output": Y, "b": Y})))
    strata = (*[Stratum.REPRESENTATIVE] * 7, *[Stratum.SCALES] * 9)
    yield "few representative samples", CPU, replace(healthy(), strata=strata)
    yield "few samples", CPU, replace(healthy(), samples=7)
    same = measure_variety(frames({"a": np.ones((16, 3)), "b": np.zeros((16, 3))}))
    yield "outputs that never vary", CPU, replace(healthy(), variety=same)
    one = measure_variety(frames({"a": np.ones((16, 3)), "output": Y}))
    yield "an output that never varies", CPU, replace(healthy(), variety=one)
    yield "no control", CPU, replace(healthy(), control=None)
    assert healthy().control is not None
    yield "a control that was missed", CPU, replace(healthy(), control=replace(healthy().control, caught=False))
    yield "strange files", CPU, replace(healthy(), strange=("a", "b", "c", "d", "e"))
    yield "three strange files", CPU, replace(healthy(), strange=("a", "b", "c"))
    yield "pickles", policy(formats=CPU.formats.model_copy(update={"pickle": True})), healthy()
    yield "a larger batch than there are samples", policy(batch_size=32), healthy()
    yield "a backend that was never planned", policy(required=(*CPU.required, "eager-cuda")), healthy()


def weight_situations() -> Iterator[Situation]:
    one = TensorDifference(
        name="w", stands_for="w with n folded in", elements=1_280, unequal=128, largest_absolute=0.0125,
        largest_relative=0.01, kind=DifferenceKind.OTHER,
    )  # fmt: skip
    plain = one.model_copy(update={"name": "w with n folded in", "largest_relative": None})
    bare = one.model_copy(update={"largest_absolute": None, "largest_relative": None})
    for title, weights in (
        ("none", None),
        ("of nothing", weighed(equal=0, folded=0, tensors=0)),
        ("unexplained alone", weighed(equal=0, folded=0, unexplained=2, unexplained_names=("v", "w"))),
        ("of every kind", weighed(rearranged=1_000, converted=4, unexplained=1, unexplained_names=("v",))),
        ("one missing", weighed(missing=1, missing_names=("n",))),
        ("one differs", weighed(differing=1, differences=(one,))),
        ("three differ", weighed(differing=3, differences=(one, plain, bare))),
        ("four differ", weighed(differing=4, differences=(one, plain, bare, one))),
        (
            "one differs, one is unexplained",
            weighed(differing=1, differences=(one,), unexplained=1, unexplained_names=("v",)),
        ),
        ("many differ", weighed(differing=1_005, differences=(one, plain, bare, one))),
        ("unsaid", completed(CATALOG[REFERENCE])),
        ("and a comparison that died", dict(deaths())["crashed, status -11"]),
    ):
        yield f"initialisers, {title}", CPU, replace(healthy(), weights=weights)


def waiver_situations() -> Iterator[Situation]:
    loud = evidence(noisy(Y, 1e-4))

    def waiving(**changes: object) -> Policy:
        given = {"check": "error-ratio", "backend": ORT.name, "owner": "Ada", "reason": "known", "expires": TODAY}
        return policy(waiver=(Waiver.model_validate(given | changes),))

    yield "waived to the last day", waiving(), loud
    yield "waived for two weeks", waiving(expires=date(2026, 1, 15)), loud
    yield "waived for longer", waiving(expires=date(2026, 1, 16)), loud
    yield "waived too late", waiving(expires=date(2025, 12, 31)), loud
    yield "waived too long", waiving(expires=date(2027, 1, 1)), loud
    yield "waived in another output", waiving(output="boxes"), loud
    yield "waived, and nothing to waive", waiving(), healthy()


def say(title: str, policy: Policy, gathered: Evidence) -> str:
    """Write down what is said of a situation and of no healthy check, and what is not said of it."""
    decision = judge(policy, gathered, TODAY)
    usual = () if gathered is healthy() and policy is CPU else judge(CPU, healthy()).findings
    lines = [f"## {title}: {decision.verdict}"]
    for f in decision.findings:
        if f in usual:
            continue
        place = "".join(f" {word}" for word in (f.backend, f.output) if word)
        numbers = "" if f.measured is None else f" [{f.metric}: {f.measured:.4g} of {f.limit}]"
        sample = "" if f.sample is None else f" sample {f.sample}"
        hint = "" if f.hint is None else f"\n    -> {f.hint}"
        lines.append(f"{f.status} {f.check}{place}{sample}{numbers}\n    {f.message}{hint}")
    said = {(f.check, f.backend) for f in decision.findings}
    if silent := sorted({f"{f.backend or 'the model'} {f.check}" for f in usual if (f.check, f.backend) not in said}):
        lines.append("nothing about " + ", ".join(silent))
    lines += [f"warning {w.code}\n    {w.message}" for w in decision.warnings]
    return "\n".join(lines)


def all_is_well() -> Iterator[Situation]:
    yield "a healthy check", CPU, healthy()


GROUPS: dict[str, Callable[[], Iterator[Situation]]] = {
    "batches": batch_situations,
    "decisions": decision_situations,
    "healthy": all_is_well,
    "model": model_situations,
    "perturbation": perturbation_situations,
    "repetition": repetition_situations,
    "values": value_situations,
    "waivers": waiver_situations,
    "weights": weight_situations,
    "workers": worker_situations,
}


@pytest.mark.parametrize("group", GROUPS)
def test_of_every_situation_is_said_what_was_approved(group: str) -> None:
    said = "\n\n".join(say(*situation) for situation in GROUPS[group]()) + "\n"
    approved = APPROVED / f"{group}.txt"
    if os.environ.get("VALIDATOR_UPDATE_SNAPSHOTS") == "1":
        approved.write_text(said, encoding="utf-8")
    assert said == approved.read_text(encoding="utf-8")


def test_what_one_ulp_moves_by_exactly_the_limit_is_within(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = without_fp64()

    def perturbation() -> Finding:
        return next(f for f in judge(CPU, gathered).findings if f.metric == "perturbation over RMS")

    measured = perturbation().measured
    assert measured is not None
    monkeypatch.setattr("validator.judge.perturbation.FLOOR_LIMIT_ROUNDOFFS", 0)
    for limit, status in ((measured, Status.WITHIN), (float(np.nextafter(measured, 0)), Status.NOT_MEASURED)):
        monkeypatch.setattr("validator.judge.perturbation.FLOOR_LIMIT", limit)
        assert perturbation().status is status
