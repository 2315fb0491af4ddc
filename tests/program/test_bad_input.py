"""What cannot be meant, given to the program itself: a sentence says what, where and what to do, and nothing passes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import validator.registry.mlflow_registry
from tests.check.conftest import POLICY
from tests.check.conftest import example as example  # noqa: PLC0414 - a fixture
from tests.check.conftest import golden as golden  # noqa: PLC0414
from tests.check.conftest import net as net  # noqa: PLC0414
from tests.check.conftest import onnx as onnx  # noqa: PLC0414
from tests.check.conftest import program as program  # noqa: PLC0414
from tests.fakes import FakeRegistry
from validator.boundary import run
from validator.cli.main import app
from validator.golden.output_spec import OutputSpec
from validator.golden.writer import Sample, write_golden

BUDGET = '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = {}\n'

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(
    program: Path,
    onnx: Path,
    golden: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Check:
    """Run `validator check` on a healthy model; returns the exit code, and all that was said on standard error."""
    registry = FakeRegistry()
    registry.add_version("net", program)
    monkeypatch.setattr(validator.registry.mlflow_registry, "open_registry", lambda *_args, **_named: registry)

    def checker(more: str = "", *options: str, dataset: Path = golden) -> tuple[int, str]:
        (tmp_path / "policy.toml").write_text(POLICY + more)
        words = [
            "check", "models:/net/1", "--policy", str(tmp_path / "policy.toml"), "--golden", str(dataset),
            "--onnx", str(onnx), "--output", str(tmp_path / "report"), *options,
        ]  # fmt: skip
        code = int(run(lambda: app, words, debug=False))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, " ".join((out + err).split())

    return checker


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (BUDGET.format("nan"), "budget.0.error_ratio = nan is not a limit that can fail"),
        (BUDGET.format("inf"), "budget.0.error_ratio = inf is not a limit that can fail"),
        (BUDGET.format("-inf"), "budget.0.error_ratio = -inf is not a limit that can fail"),
        (BUDGET.format("-3"), "budget.0.error_ratio = -3 is not a limit that can fail"),
        (BUDGET.format("0"), "budget.0.error_ratio = 0 is not a limit that can fail"),
        (BUDGET.format("3\nerror_ratio_channel = nan"), "budget.0.error_ratio_channel = nan is not a limit"),
        (BUDGET.format("3") * 2, "two budgets for onnxruntime-cpu, output any"),
        (BUDGET.format('3\noutput = "a"') * 2, "two budgets for onnxruntime-cpu, output a"),
    ],
)
def test_a_limit_that_cannot_be_meant_exits_2_before_anything_is_read(check: Check, more: str, words: str) -> None:
    code, said = check(more, dataset=Path("/nowhere"))
    assert code == 2
    assert said.startswith("error[policy]: ")
    assert words in said
    assert "policy.toml" in said
    assert said.endswith("every key is listed in docs/policy.md")


def test_a_declared_output_that_the_model_does_not_have_exits_2(check: Check, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "set", variation=1.0, outputs={"boxes": OutputSpec(period=6.0)})
    code, said = check(dataset=dataset)
    assert code == 2
    assert "error[golden]: the golden dataset declares what output boxes means, but the model has no boxes" in said
    assert "there is output; make the dataset again with other --outputs" in said


def test_a_budget_for_an_output_that_does_not_exist_exits_3(check: Check) -> None:
    code, said = check(BUDGET.format('3\noutput = "logits"'))
    assert code == 3
    assert "inconclusive[budget]" in said
    assert "the policy has a budget for output logits of onnxruntime-cpu, which does not exist" in said
    assert "the outputs are output" in said


def test_a_dataset_on_which_the_model_always_says_the_same_exits_3(check: Check, tmp_path: Path) -> None:
    code, said = check(dataset=dataset_of(tmp_path / "set", variation=0.0))
    assert code == 3
    assert "inconclusive[evidence]" in said
    assert "the reference gives no evidence: output output" in said
    assert "use golden samples on which the model's answers differ" in said


def dataset_of(folder: Path, *, variation: float, outputs: dict[str, OutputSpec] | None = None) -> Path:
    """Write twelve samples that differ by so much."""
    values = 1 + variation * np.random.default_rng(5).normal(size=(12, 3, 12, 12))
    samples = [Sample(inputs={"x": value.astype(np.float32)}) for value in values]
    return write_golden(folder, samples, name="golden", source="tests", outputs=outputs).folder
