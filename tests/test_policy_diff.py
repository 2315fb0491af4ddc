"""What a change to a policy does: never called harmless when it loosens, and no key is forgotten."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.frames import evidence, noisy, scores
from validator.judge import Verdict, judge
from validator.policy import BUILT_IN, Budget, Limits, Policy, Waiver, parse_policy
from validator.policy_diff import RULES, Change, Direction, changes_model, diff_policies, lint_policy, loosens

TODAY = date(2026, 11, 30)
ORT = "onnxruntime-cpu"
REQUIRED = ("eager-cpu", ORT)
HEAD = 'required = ["eager-cpu", "onnxruntime-cpu"]\n'
BUDGET = f'[[budget]]\nbackend = "{ORT}"\n'
WAIVER = f'[[waiver]]\ncheck = "exact"\nbackend = "{ORT}"\nowner = "Ada"\nreason = "x"\nexpires = '


def policy(text: str) -> Policy:
    return parse_policy(HEAD + text, origin="p")


def directions(old: Policy, new: Policy) -> dict[str, str]:
    return {change.key: change.direction.value for change in diff_policies(old, new)}


@pytest.mark.parametrize(
    ("old", "new", "key", "forth", "back"),
    [
        ("samples_min = 9", "samples_min = 10", "samples_min", "tightened", "loosened"),
        ("batch_size = 4", "batch_size = 8", "batch_size", "loosened", "loosened"),
        ("", "[formats]\npickle = true", "formats.pickle", "loosened", "tightened"),
        ("", "[checks]\nrepeat_samples = 64", "checks.repeat_samples", "tightened", "loosened"),
        ("", "[checks]\nbatch_samples = 64", "checks.batch_samples", "tightened", "loosened"),
        ("", "[checks]\nbatch_sizes = [1, 2, 5, 7]", "checks.batch_sizes", "tightened", "loosened"),
        ("", '[checks]\nbatch_invariance = "if-dynamic"', "checks.batch_invariance", "loosened", "tightened"),
        ("", '[checks]\nreference = "fp64"', "checks.reference", "tightened", "loosened"),
        ("", "[worker]\nthreads = 3", "worker.threads", "neutral", "neutral"),
        ("", "[worker]\ndeadline_s = 3", "worker.deadline_s", "neutral", "neutral"),
        ("", "[worker]\njobs_per_gpu = 1", "worker.jobs_per_gpu", "neutral", "neutral"),
        ("", 'golden = "a"', "golden", "new", "loosened"),
        ('golden = "b"', 'golden = "a"', "golden", "loosened", "loosened"),
        ("", 'golden_digest = "sha256:a"', "golden_digest", "tightened", "loosened"),
        ('golden_digest = "sha256:b"', 'golden_digest = "sha256:a"', "golden_digest", "loosened", "loosened"),
        ("", '[backends.mine]\nlike = "eager-cuda"', "backends.mine", "new", "removed"),
        (
            '[backends.mine]\nlike = "onnxruntime-gpu"',
            '[backends.mine]\nlike = "onnxruntime-gpu"\nuse_tf32 = true',
            "backends.mine", "loosened", "loosened",
        ),
        (
            '[backends.mine]\nlike = "onnxruntime-gpu"',
            '[backends.mine]\nlike = "onnxruntime-gpu"\nsummary = "x"',
            "backends.mine", "neutral", "neutral",
        ),
        ("", BUDGET + "error_ratio = 3", f"budget.{ORT}.error_ratio", "tightened", "loosened"),
        ("", BUDGET + "error_ratio = 30", f"budget.{ORT}.error_ratio", "loosened", "tightened"),
        (
            BUDGET + "error_ratio = 3",
            BUDGET + "error_ratio = 3\n" + BUDGET + 'output = "x"\nerror_ratio = 4',
            f"budget.{ORT}.x.error_ratio", "loosened", "tightened",
        ),
        ("", WAIVER + "2026-12-31", f"waiver.exact.{ORT}", "loosened", "tightened"),
        (WAIVER + "2026-12-30", WAIVER + "2026-12-31", f"waiver.exact.{ORT}.expires", "loosened", "tightened"),
        (
            WAIVER + "2026-12-31", (WAIVER + "2026-12-31").replace("Ada", "Bob"),
            f"waiver.exact.{ORT}.owner", "neutral", "neutral",
        ),
        ("", '[calibration]\nweights = "a"', "calibration", "tightened", "loosened"),
        ('[calibration]\nweights = "a"', '[calibration]\nweights = "b"', "calibration.weights", "neutral", "neutral"),
        (
            '[calibration]\nweights = "a"', '[calibration]\nweights = "a"\nreference = "fp64"',
            "calibration.reference", "tightened", "loosened",
        ),
        (
            '[calibration]\nweights = "a"', '[calibration]\nweights = "a"\ngolden = "g"',
            "calibration.golden", "tightened", "loosened",
        ),
        (
            '[calibration]\ngolden = "h"', '[calibration]\ngolden = "g"',
            "calibration.golden", "loosened", "loosened",
        ),
        (
            '[calibration]\ngolden = "g"', '[calibration]\ngolden = "g"\nenvironment.eager-cpu.torch = "2"',
            "calibration.environment.eager-cpu.torch", "tightened", "loosened",
        ),
        (
            '[calibration.environment.eager-cpu]\ntorch = "3"', '[calibration.environment.eager-cpu]\ntorch = "2"',
            "calibration.environment.eager-cpu.torch", "loosened", "loosened",
        ),
    ],
)  # fmt: skip
def test_every_change_has_its_direction_both_ways(old: str, new: str, key: str, forth: str, back: str) -> None:
    assert directions(policy(old), policy(new))[key] == forth
    assert directions(policy(new), policy(old))[key] == back


def test_a_required_backend_that_goes_is_loosened_and_one_that_comes_tightened() -> None:
    changes = diff_policies(BUILT_IN["default"], BUILT_IN["cpu"])
    found = {(c.direction, c.old or c.new) for c in changes if c.key == "required"}
    assert (Direction.LOOSENED, "eager-cuda") in found
    assert (Direction.TIGHTENED, ORT) in found


def test_a_pinned_dataset_may_move() -> None:
    pin = 'golden_digest = "sha256:a"\n'
    assert directions(policy(pin + 'golden = "a"'), policy(pin + 'golden = "b"')) == {"golden": "neutral"}


def test_a_budget_that_says_what_the_default_says_changes_nothing() -> None:
    assert not loosens(diff_policies(policy(""), policy(BUDGET + "error_ratio = 10")))
    assert not loosens(diff_policies(policy(BUDGET + "error_ratio = 10"), policy("")))


def test_another_model_is_seen() -> None:
    old, new = policy('[calibration]\nweights = "a"'), policy('[calibration]\nweights = "b"')
    assert changes_model(diff_policies(old, new))
    assert not changes_model(diff_policies(old, old))


# --- No key is forgotten ------------------------------------------------------------------------------------------


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the dotted keys of a model and of the tables in it, up to those that have a rule as a whole."""
    for name, field in model.model_fields.items():
        # A list of tables has one rule, which the next test is about.
        kinds = [] if get_origin(field.annotation) is tuple else [field.annotation, *get_args(field.annotation)]
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        key = ".".join((*path, name))
        if not tables or key == "calibration.provenance":
            yield key
        for table in tables if key != "calibration.provenance" else ():
            yield from leaves(table, (*path, name))


def test_every_key_of_the_policy_has_a_rule_and_every_rule_a_key() -> None:
    assert set(leaves(Policy)) | {"calibration"} == set(RULES)


def test_every_key_of_a_budget_and_a_waiver_is_compared() -> None:
    assert set(Budget.model_fields) == {"backend", "output", *Limits.model_fields}
    known = {"check", "backend", "output", "owner", "reason", "ticket", "expires"}
    assert set(Waiver.model_fields) == known


def test_a_key_that_nobody_knows_is_loosened_by_any_change() -> None:
    class Later(Policy):
        sandbox: str = "strict"

    old, new = Later(required=REQUIRED), Later(required=REQUIRED, sandbox="none")
    assert directions(old, new) == directions(new, old) == {"sandbox": "loosened"}


# --- Laws ---------------------------------------------------------------------------------------------------------

RATIOS = st.floats(0.5, 200)


@st.composite
def budgets(draw: st.DrawFn) -> tuple[Budget, ...]:
    made: list[Budget] = []
    for output in draw(st.lists(st.sampled_from([None, "output", "boxes"]), unique=True)):
        more = {name: draw(st.none() | RATIOS) for name in Limits.model_fields if name != "error_ratio"}
        made.append(Budget(backend=ORT, output=output, error_ratio=draw(RATIOS), **more))
    return tuple(made)


@st.composite
def waivers(draw: st.DrawFn) -> tuple[Waiver, ...]:
    checks = draw(st.lists(st.sampled_from(["error-ratio", "batch-invariance", "exact"]), unique=True))
    return tuple(
        Waiver(
            check=check,  # type: ignore[arg-type]
            backend=ORT,
            output=draw(st.none() | st.just("output")),
            owner="Ada",
            reason=draw(st.sampled_from(["a", "b"])),
            expires=TODAY + timedelta(days=draw(st.integers(-3, 170))),
        )
        for check in checks
    )


DIGESTS = st.none() | st.sampled_from(["sha256:" + "1" * 64, "sha256:" + "2" * 64])


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    bindings = {"weights": draw(DIGESTS), "golden": draw(DIGESTS)}
    return Policy.model_validate(
        {
            "required": draw(st.sampled_from([REQUIRED, (*REQUIRED, "eager-cuda"), (ORT,)])),
            "golden": draw(st.none() | st.sampled_from(["a", "b"])),
            "golden_digest": draw(DIGESTS),
            "samples_min": draw(st.integers(1, 20)),
            "formats": {"pickle": draw(st.booleans())},
            "checks": {
                "repeat_samples": draw(st.integers(1, 9)),
                "batch_sizes": draw(st.lists(st.integers(1, 4), unique=True).map(tuple)),
                "batch_invariance": draw(st.sampled_from(["required", "if-dynamic"])),
            },
            "worker": {"threads": draw(st.none() | st.integers(1, 4))},
            "backends": draw(
                st.sampled_from([{}, {"mine": {"like": ORT}}, {"mine": {"like": ORT, "graph_optimization": "basic"}}])
            ),
            "budget": draw(budgets()),
            "waiver": draw(waivers()),
            "calibration": bindings if any(bindings.values()) else None,
        }
    )


@settings(deadline=None)
@given(policies())
def test_equal_policies_have_no_difference(one: Policy) -> None:
    assert diff_policies(one, one.model_copy(deep=True)) == ()
    assert diff_policies(one, Policy.model_validate(one.model_dump())) == ()


MIRRORED = {
    Direction.TIGHTENED: {Direction.LOOSENED},
    Direction.LOOSENED: {Direction.LOOSENED, Direction.TIGHTENED, Direction.NEW},
    Direction.NEW: {Direction.REMOVED, Direction.LOOSENED},
    Direction.REMOVED: {Direction.NEW},
    Direction.NEUTRAL: {Direction.NEUTRAL},
}


@settings(deadline=None)
@given(policies(), policies())
def test_the_way_back_is_the_opposite(old: Policy, new: Policy) -> None:
    def by_place(changes: tuple[Change, ...]) -> dict[tuple[Any, ...], Direction]:
        return {(c.key, c.old, c.new): c.direction for c in changes}

    forth, back = by_place(diff_policies(old, new)), by_place(diff_policies(new, old))
    assert {(key, after, before) for key, before, after in forth} == set(back)
    for (key, before, after), direction in forth.items():
        assert back[key, after, before] in MIRRORED[direction]


@settings(deadline=None)
@given(policies(), policies())
def test_policies_that_differ_in_a_value_have_a_difference(old: Policy, new: Policy) -> None:
    for name in ("samples_min", "golden", "golden_digest", "formats", "worker", "backends", "calibration"):
        if getattr(old, name) != getattr(new, name):
            assert any(c.key.partition(".")[0] == name for c in diff_policies(old, new))


@given(budgets().filter(bool), st.data())
def test_a_smaller_limit_is_never_loosened_and_a_larger_one_never_tightened(
    given_budgets: tuple[Budget, ...], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(given_budgets) - 1))
    chosen = data.draw(st.sampled_from(list(Limits.model_fields)))
    before = getattr(given_budgets[place].limits, chosen)
    # All four spelt out, so that one of them alone moves.
    full = [Budget(backend=b.backend, output=b.output, **b.limits.model_dump()) for b in given_budgets]
    moved = list(full)
    moved[place] = full[place].model_copy(update={chosen: before * data.draw(st.floats(0.01, 0.99))})
    loose, tight = (Policy(required=REQUIRED, budget=tuple(b)) for b in (full, moved))
    assert {c.direction for c in diff_policies(loose, tight)} == {Direction.TIGHTENED}
    assert {c.direction for c in diff_policies(tight, loose)} == {Direction.LOOSENED}


@settings(deadline=None)
@given(policies(), policies(), st.floats(1e-7, 1e-4), st.integers(4, 16))
def test_what_passes_under_a_policy_that_loosened_nothing_passed_before(
    old: Policy, new: Policy, noise: float, samples: int
) -> None:
    # One batch size was measured, and rows on the CPU.
    fixed = {"required": REQUIRED, "checks": old.checks.model_copy(update={"batch_sizes": (1,)})}
    old, new = old.model_copy(update=fixed), new.model_copy(update=fixed)
    tried = replace(evidence(noisy(scores(), noise, seed=3)), samples=samples)
    if not loosens(diff_policies(old, new)) and judge(new, tried, TODAY).verdict is Verdict.PASS:
        # A binding that was there before and is another now is called out by itself.
        rebound = changes_model(diff_policies(old, new))
        assert rebound or judge(old, tried, TODAY).verdict is Verdict.PASS


# --- One policy by itself -----------------------------------------------------------------------------------------


def bound(text: str) -> Policy:
    return policy(text + '\n[calibration]\nweights = "sha256:a"')


@pytest.mark.parametrize(
    ("linted", "words"),
    [
        (policy(""), "no calibration: no budget was measured"),
        (policy(BUDGET + "error_ratio = 3"), "no calibration: nothing says what the budgets were measured on"),
        (policy(BUDGET + 'error_ratio = 3\n[calibration]\ngolden = "g"'), "names no weights"),
        (bound(BUDGET + "error_ratio = 30"), "error_ratio = 30 is looser than the default 10"),
        (bound(BUDGET + "error_ratio = 3\nerror_ratio_element = 60"), "error_ratio_element = 60 is looser"),
        (bound(WAIVER + "2026-11-29"), "by Ada expired on 2026-11-29"),
        (bound(WAIVER + "2026-12-14"), "expires on 2026-12-14, in 14 days"),
        (bound(WAIVER + "2027-12-14"), "more than 180 days"),
        (bound("[formats]\npickle = true"), "runs its author's code"),
    ],
)
def test_a_weak_spot_is_warned_about(linted: Policy, words: str) -> None:
    assert any(words in warning for warning in lint_policy(linted, TODAY))


@pytest.mark.parametrize("text", [BUDGET + "error_ratio = 3", WAIVER + "2026-12-15", BUDGET + "error_ratio = 10"])
def test_what_is_as_it_should_be_is_not_warned_about(text: str) -> None:
    assert lint_policy(bound(text), TODAY) == ()
