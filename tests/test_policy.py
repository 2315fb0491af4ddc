"""A policy is understood to the last key, or it is an error."""

import math
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from validator.backends.catalog import CATALOG, Precision
from validator.errors import BackendError, PolicyError
from validator.policy import BUILT_IN, Budget, Limits, Policy, Waiver, parse_policy

REQUIRED = 'required = ["eager-cpu", "onnxruntime-cpu"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("required = [", "not TOML"),
        ('requierd = ["eager-cpu"]', "unknown key requierd"),
        ("required = []", "required is empty"),
        ('required = ["eager-cpu"]', "only eager-cpu"),
        ('required = ["reference", "eager-cpu"]', "not a candidate"),
        (REQUIRED + '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = inf', "is not a limit that can fail"),
        (REQUIRED + '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = nan', "is not a limit that can fail"),
        (REQUIRED + '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = -3', "is not a limit that can fail"),
        (REQUIRED + '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = 0', "is not a limit that can fail"),
        (REQUIRED + '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = "3"', "budget.0.error_ratio = 3 is not"),
        (REQUIRED + '[[budget]]\nbackend = "onnxruntime-cpu"', "budget.0.error_ratio: Field required"),
        (
            REQUIRED + '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = 3\n' * 2,
            "two budgets for onnxruntime-cpu",
        ),
        (REQUIRED + '[[budget]]\nbackend = "eager-cpu"\nerror_ratio = 3', "has no budget"),
        (REQUIRED + "batch_size = 0", "batch_size"),
        (REQUIRED + '[backends.eager-cpu]\nlike = "eager-cuda"', "would redefine"),
        (REQUIRED + '[backends.mine]\nlike = "eager-cuda"\ntf23 = true', "unknown key tf23"),
        (REQUIRED + '[backends.mine]\nlike = "eager-cuda"\nmatmul_precision = "fast"', "matmul_precision"),
        (REQUIRED + '[backends.mine]\ndevice = "cpu"', "runtime: Field required"),
        (REQUIRED + "[formats]\npickles = true", "unknown key formats.pickles"),
        (REQUIRED + '[backends.mine]\nlike = "onnxruntime-cpu"\nuse_tf32 = true', "use_tf32 has no effect"),
        (REQUIRED + '[backends.mine]\nlike = "onnxruntime-cpu"\nautocast = "bfloat16"', "autocast has no effect"),
        (REQUIRED + '[backends.mine]\nlike = "eager-cpu"\nconv_precision = "tf32"', "conv_precision has no effect"),
        (REQUIRED + '[backends.mine]\nlike = "eager-cuda"\nonednn = false', "onednn has no effect"),
        (REQUIRED + '[backends.mine]\nlike = "onnxruntime-cpu"\nonednn = false', "onednn has no effect"),
        (REQUIRED + '[backends.mine]\nlike = "onnxruntime-cpu"\ncompile = "inductor"', "compile has no effect"),
        (
            REQUIRED + '[backends.mine]\nlike = "onnxruntime-gpu"\nmemory_format = "channels_last"',
            "memory_format has no",
        ),
        (
            REQUIRED + '[backends.mine]\nlike = "eager-cuda-tf32"\ncompile = "inductor"',
            "compile needs matmul_precision",
        ),
        (REQUIRED + '[backends.mine]\nlike = "eager-cuda"\nbaseline = "cudnn-off"', "cudnn-off is no baseline"),
        (
            REQUIRED + '[backends.mine]\nlike = "eager-cuda"\nbaseline = "eager-cuda-bf16"',
            "is ieee, its baseline eager-cuda-bf16 only bf16",
        ),
        (REQUIRED + "[calibration]", "binds the budgets to nothing"),
        (REQUIRED + "[worker]\ndeadline_s = -1", "deadline_s"),
    ],
)
def test_a_policy_that_cannot_be_used_says_why(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=r"policy\.toml|backends") as caught:
        parse_policy(text, origin="policy.toml")
    assert words in caught.value.message


@pytest.mark.parametrize(
    "text",
    ['required = ["onnx-gpu"]', REQUIRED + '[[budget]]\nbackend = "onnxruntime-gpuu"\nerror_ratio = 3',
     REQUIRED + '[backends.mine]\nlike = "onnxruntime-gpuu"',
     REQUIRED + '[calibration.environment.onnxruntime-gpuu]\ntorch = "2.14.1"'],
    ids=["required", "budget", "like", "calibration"],
)  # fmt: skip
def test_an_unknown_backend_gets_the_nearest_known_name(text: str) -> None:
    with pytest.raises(BackendError) as caught:
        parse_policy(text, origin="policy.toml")
    assert "did you mean onnxruntime-gpu?" in (caught.value.hint or "")


@pytest.mark.parametrize("baseline", ["mine", "other"])
def test_a_row_cannot_be_measured_against_itself_in_any_number_of_steps(baseline: str) -> None:
    """Its error ratio would be 1 whatever it computes."""
    text = REQUIRED + f'[backends.mine]\nlike = "onnxruntime-cpu"\nbaseline = "{baseline}"\n'
    text += '[backends.other]\nlike = "onnxruntime-cpu"\nbaseline = "mine"\n'
    with pytest.raises(BackendError, match=r"policy\.toml: no backend"):
        parse_policy(text, origin="policy.toml")


def test_all_faults_are_named_together() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy("batch_size = 0\nsamples_min = 0\nfoo = 1", origin="policy.toml")
    assert all(word in caught.value.message for word in ("batch_size", "samples_min", "foo"))


def test_the_default_policy_requires_the_four_backends_of_a_gpu_deployment() -> None:
    assert set(BUILT_IN["default"].required) == {"eager-cpu", "eager-cuda", "cudnn-deterministic", "onnxruntime-gpu"}


def test_what_a_policy_does_not_say_is_this() -> None:
    """Defaults decide verdicts: a change of one is a change of every policy that leaves it out."""
    assert Policy().model_dump(mode="json") == {
        "schema_version": 1,
        "required": ["eager-cpu", "eager-cuda", "cudnn-deterministic", "onnxruntime-gpu"],
        "golden": None,
        "golden_digest": None,
        "samples_min": 8,
        "batch_size": 32,
        "formats": {"pickle": False, "scan": []},
        "checks": {
            "repeat_samples": 32,
            "fresh_process": True,
            "batch_sizes": [1, 2, 7],
            "batch_samples": 8,
            "batch_invariance": "required",
            "reference": "fp64-or-perturbation",
        },
        "decisions": {"flip_rate": None, "accuracy_drop": None},
        "worker": {"deadline_s": 1800.0, "threads": None, "jobs_per_gpu": 4},
        "sandbox": {
            "minimum": "none",
            "memory_bytes": None,
            "file_bytes": 128 * 2**30,
            "open_files": 4096,
            "processes": 4096,
        },
        "backends": {},
        "budget": [],
        "waiver": [],
        "calibration": None,
    }
    assert {name: policy.required for name, policy in BUILT_IN.items()} == {
        "default": Policy().required,
        "cpu": ("eager-cpu", "onnxruntime-cpu"),
    }


def test_no_policy_can_be_changed_or_say_two_things_at_once() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Policy().samples_min = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="samples_min"):
        Policy.model_validate({"samples_min": "9"})
    with pytest.raises(ValidationError, match="finite"):
        Policy.model_validate({"worker": {"deadline_s": math.inf}})


def test_a_users_row_starts_from_another_and_may_name_any_device() -> None:
    policy = parse_policy(
        REQUIRED + '[backends.second-gpu]\nlike = "eager-cuda"\ndevice = "cuda:1"\n', origin="policy.toml"
    )
    row = policy.rows["second-gpu"]
    assert row.device == "cuda:1"
    assert row.device_index == 1
    assert row.model_dump(exclude={"name", "device", "summary"}) == CATALOG["eager-cuda"].model_dump(
        exclude={"name", "device", "summary"}
    )


def test_a_row_is_judged_as_what_it_runs() -> None:
    policy = parse_policy(
        REQUIRED + '[backends.loose]\nlike = "onnxruntime-gpu"\nuse_tf32 = true\n'
        '[backends.half]\nlike = "eager-cpu"\nautocast = "bfloat16"\n',
        origin="policy.toml",
    )
    assert policy.rows["loose"].precision is Precision.TF32
    assert policy.rows["half"].precision is Precision.BF16


@pytest.mark.parametrize(
    ("backend", "output", "limit"),
    [("onnxruntime-cpu", "logits", 2.0), ("onnxruntime-cpu", "boxes", 3.0), ("eager-cuda", "logits", 10.0)],
)
def test_the_most_particular_budget_counts(backend: str, output: str, limit: float) -> None:
    policy = parse_policy(
        REQUIRED + '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = 3\n'
        '[[budget]]\nbackend = "onnxruntime-cpu"\noutput = "logits"\nerror_ratio = 2\n',
        origin="policy.toml",
    )
    assert policy.limits_for(CATALOG[backend], output).error_ratio == limit


@given(st.floats(1e-3, 1e6))
def test_limits_that_are_not_given_follow_from_the_pooled_one(ratio: float) -> None:
    limits = Limits.from_ratio(ratio)
    assert limits.error_ratio <= limits.error_ratio_p99 <= limits.error_ratio_max <= limits.error_ratio_element


def test_the_digest_sees_every_value_and_no_comment() -> None:
    plain = parse_policy(REQUIRED, origin="a")
    commented = parse_policy("# why\n" + REQUIRED, origin="b")
    tightened = parse_policy(REQUIRED + "samples_min = 9", origin="c")
    assert plain.digest == commented.digest
    assert plain.digest != tightened.digest
    assert Policy().digest != plain.digest


def test_limits_that_are_not_given_are_these_multiples() -> None:
    assert Limits.from_ratio(10.0).model_dump() == {
        "error_ratio": 10.0,
        "error_ratio_p99": 15.0,
        "error_ratio_max": 15.0,
        "error_ratio_element": 20.0,
        "error_ratio_channel": 30.0,
        "error_ratio_own_sample": 30.0,
    }


def test_a_limit_that_is_given_stands_beside_those_that_are_not() -> None:
    budget = Budget(backend="onnxruntime-cpu", error_ratio=2.0, error_ratio_max=2.5)
    assert budget.limits.error_ratio_max == 2.5
    assert budget.limits.error_ratio_element == 4.0


def with_ratio(ratio: str) -> str:
    return REQUIRED + f'[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = {ratio}\n'


def test_the_largest_budget_is_one_whose_limits_are_all_finite() -> None:
    policy = parse_policy(with_ratio("5.9e307"), origin="a")
    assert math.isfinite(policy.budget[0].limits.error_ratio_channel)
    for ratio in ("6e307", "1e308"):
        with pytest.raises(PolicyError, match="limits derived from it are infinite"):
            parse_policy(with_ratio(ratio), origin="a")


@pytest.mark.parametrize(
    ("backend", "precision", "limit"),
    [
        ("onnxruntime-cpu", None, 10.0),
        ("onnxruntime-cpu", Precision.TF32, 2.0),
        ("onnxruntime-cpu", Precision.BF16, 2.0),
        ("onnxruntime-cpu", Precision.FP16, 2.0),
        ("onnxruntime-cpu", Precision.FP64, 10.0),
        ("onnxruntime-gpu-defaults", None, 2.0),
        ("eager-cuda-bf16", None, 10.0),
        ("eager-cuda-bf16", Precision.BF16, 10.0),
    ],
)
def test_a_row_without_a_budget_has_the_limits_of_its_class_or_of_the_unit_roundoff(
    backend: str, precision: Precision | None, limit: float
) -> None:
    assert Policy().limits_for(CATALOG[backend], "logits", precision).error_ratio == limit


def test_where_budgets_come_from_does_not_count_for_the_digest_and_waivers_do() -> None:
    bound = REQUIRED + '[calibration]\nweights = "sha256:1"\n'
    made = bound + '[calibration.provenance]\ntool = "a"\ncreated_utc = "b"\n'
    assert parse_policy(bound, origin="a").digest == parse_policy(made, origin="a").digest
    waiver = '[[waiver]]\ncheck = "exact"\nbackend = "onnxruntime-cpu"\nowner = "a"\nreason = "b"\nexpires = '
    digests = {parse_policy(REQUIRED + waiver + day, origin="a").digest for day in ("2026-12-30", "2026-12-31")}
    assert len(digests) == 2


def test_a_row_that_starts_from_another_says_so_and_no_more() -> None:
    text = REQUIRED + '[backends.mine]\nlike = "eager-cuda"\n[backends.own]\nlike = "mine"\nsummary = "my own"\n'
    rows = parse_policy(text, origin="a").rows
    assert (rows["mine"].summary, rows["own"].summary) == ("like eager-cuda", "my own")


def test_too_small_a_number_is_no_limit_either() -> None:
    with pytest.raises(PolicyError, match="samples_min = 0 is not a limit that can fail: input should be greater"):
        parse_policy(REQUIRED + "samples_min = 0", origin="a")


@pytest.mark.parametrize(("output", "title"), [(None, "exact of a"), ("y", "exact of a, output y")])
def test_a_waiver_says_what_it_is_about(output: str | None, title: str) -> None:
    waiver = Waiver(check="exact", backend="a", output=output, owner="o", reason="r", expires=date(2026, 12, 31))
    assert waiver.title == title
