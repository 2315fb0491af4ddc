"""Models without an fp64 reference of the usual kind: half precision, and operators that exist in float32 only."""

import copy
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.harness import Checked, check_files
from tests.check.conftest import Checker, make_golden, save_onnx, save_program
from validator.golden.dataset import GoldenDataset
from validator.golden.writer import Sample, write_golden
from validator.judge import Check, Control, Finding, Reference, Status, Verdict
from validator.policy import Policy
from validator.report.annotation import description_block
from validator.report.terminal import render_terminal

ONNX = "onnxruntime-cpu"
AGAIN = "eager-again"
"""Eager once more, at another batch size: where ONNX Runtime cannot follow."""

EAGER_TWICE = Policy.model_validate(
    {
        "required": ["eager-cpu", AGAIN],
        "batch_size": 4,
        "backends": {AGAIN: {"like": "eager-cpu", "baseline": "eager-cpu", "batch_size": 3}},
    }
)
WITH_ONNX = Policy(required=("eager-cpu", ONNX), batch_size=4)


# --- Half precision -----------------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64)), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(functional.relu(self.hidden(x)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.layers(x).mean(1))


SHAPES: Mapping[type[nn.Module], tuple[int, ...]] = {
    Perceptron: (16,),
    Convolutions: (3, 10, 10),
    Encoder: (6, 32),
}


def train(kind: type[nn.Module], steps: int = 12) -> nn.Module:
    """Return a network after a few steps towards nothing in particular: its weights are not those of the start."""
    torch.manual_seed(5)
    model = kind().train()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(steps):
        x = torch.randn(16, *SHAPES[kind])
        target = x.flatten(1).abs().sum(1).long() % 10
        optimizer.zero_grad()
        functional.cross_entropy(model(x), target).backward()
        optimizer.step()
    return model.eval()


def larger_channel(model: nn.Module, share: float) -> nn.Module:
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.head.weight[3] *= 1 + share
    return changed


def golden_of(folder: Path, values: torch.Tensor) -> GoldenDataset:
    samples = [Sample(inputs={"x": value}) for value in values]
    return write_golden(folder, samples, name="golden", source="tests")


def inputs_of(kind: type[nn.Module], dtype: torch.dtype, samples: int = 16) -> torch.Tensor:
    return torch.randn(samples, *SHAPES[kind], generator=torch.Generator().manual_seed(8)).to(dtype)


def check(
    folder: Path, policy: Policy, model: nn.Module, values: torch.Tensor, *, served: nn.Module | None = None
) -> Checked:
    """Check a program in this process, beside the ONNX file of another model if one is given."""
    example = (values[:2],)
    program = save_program(model, example, folder / "model") / "data" / "model.pt2"
    onnx = None if served is None else save_onnx(served, example, folder / "onnx" / "model.onnx")
    (folder / "scratch").mkdir()
    return check_files(policy, program, golden_of(folder / "golden", values), folder / "scratch", onnx=onnx)


def wrong(checked: Checked) -> list[Finding]:
    return [f for f in checked.decision.findings if f.status is not Status.WITHIN]


@pytest.mark.parametrize("kind", [Perceptron, Convolutions, Encoder])
def test_a_model_in_float16_is_held_against_its_own_weights_in_fp64(kind: type[nn.Module], tmp_path: Path) -> None:
    model = train(kind).half()
    checked = check(tmp_path, WITH_ONNX, model, inputs_of(kind, torch.float16))
    assert checked.decision.verdict is Verdict.PASS, wrong(checked)
    assert checked.evidence.reference is Reference.FP64
    assert checked.evidence.facts is not None
    assert checked.evidence.facts.working_dtype == "float16"
    ratios = [f for f in checked.decision.findings if f.backend == ONNX and f.metric == "error ratio"]
    assert [(f.limit, "(fp16)" in f.message) for f in ratios] == [(2.0, True)]


@pytest.mark.parametrize("kind", SHAPES)
def test_a_model_in_bfloat16_passes_in_batches_of_another_size(kind: type[nn.Module], tmp_path: Path) -> None:
    checked = check(tmp_path, EAGER_TWICE, train(kind).bfloat16(), inputs_of(kind, torch.bfloat16))
    assert checked.decision.verdict is Verdict.PASS, wrong(checked)
    assert {w.code for w in checked.decision.warnings} <= {"headroom"}
    assert checked.evidence.variety["output"].weakness is None


class InFloat32(nn.Module):
    """A file that computes in float32 with the weights and inputs of a model in half precision."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).float()

    def forward(self, x):
        return self.model(x.float())


FAULTS = {
    "one channel five percent larger": lambda kind: larger_channel(train(kind), 0.05),
    "weights of another step": lambda kind: train(kind, 13),
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_fault_beyond_half_precision_is_found(dtype: torch.dtype, fault: str | None, tmp_path: Path) -> None:
    kind = Convolutions if dtype is torch.float16 else Encoder
    served = InFloat32((FAULTS[fault](kind) if fault else train(kind)).to(dtype))
    checked = check(tmp_path, WITH_ONNX, train(kind).to(dtype), inputs_of(kind, dtype), served=served)
    if fault is None:
        assert checked.decision.verdict is Verdict.PASS, wrong(checked)
    else:
        assert checked.decision.verdict is Verdict.FAIL
        assert (Check.ERROR_RATIO, ONNX) in {(f.check, f.backend) for f in wrong(checked)}
        assert {f.backend for f in wrong(checked)} <= {ONNX, None}


@pytest.mark.parametrize(("kind", "operator"), [(Perceptron, "Gemm"), (Convolutions, "Conv")])
def test_a_runtime_without_a_kernel_is_not_the_authors_fault(
    kind: type[nn.Module], operator: str, tmp_path: Path
) -> None:
    checked = check(tmp_path, WITH_ONNX, train(kind).bfloat16(), inputs_of(kind, torch.bfloat16))
    assert checked.decision.verdict is Verdict.INCONCLUSIVE
    (finding,) = [f for f in wrong(checked) if f.check is Check.WORKER]
    assert (finding.status, finding.backend) == (Status.NOT_MEASURED, ONNX)
    assert f"no {operator} in bfloat16 on CPUExecutionProvider" in finding.message
    assert "says nothing about the model" in finding.message


# --- No fp64 ------------------------------------------------------------------------------------------------------


class InverseRoot(nn.Module):
    """Normalises by an inverse square root that is guessed from the bits of a float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 10)

    def forward(self, x):
        h = self.first(x).tanh()
        square = (h * h).mean(-1, keepdim=True) + 1e-3
        guess = (0x5F3759DF - (square.view(torch.int32) >> 1)).view(torch.float32)
        return self.last(h * guess * (1.5 - 0.5 * square * guess * guess))


class Int8Weights(nn.Module):
    """Linear layers with weights of eight bits: a kernel that exists for float32 and not for float64."""

    def __init__(self, *, centred: bool = False, loud: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.centred, self.loud = centred, loud
        for name, shape in (("first", (32, 16)), ("last", (16, 32))):
            weight = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
            self.register_buffer(f"{name}_weight", weight)
            self.register_buffer(f"{name}_scale", torch.rand(shape[0], generator=generator) / 200 + 1e-3)

    def multiply(self, x, weight, scale):
        return torch.ops.aten._weight_int8pack_mm(x, weight, scale)

    def forward(self, x):
        if self.centred:
            x = x - 0.01 * x.mean(0, keepdim=True)
        h = self.multiply(x * self.loud, self.first_weight, self.first_scale).sin()
        return self.multiply(h, self.last_weight, self.last_scale)


class Dequantised(Int8Weights):
    """The same in operators that ONNX has."""

    def __init__(self, stale: float = 0.0) -> None:
        super().__init__()
        self.last_scale[4] *= 1 + stale

    def multiply(self, x, weight, scale):
        return (x @ weight.float().T) * scale


class RoundsItsOutput(nn.Module):
    """Computes in float32 and answers in float16: widened to fp64 it would be another function."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.layers(x).half()


VECTORS = torch.randn(16, 16, generator=torch.Generator().manual_seed(6))


def stands_on_perturbation(checked: Checked, reason: str) -> bool:
    """Whether a check stands on the perturbation floor, and says so and why."""
    cautions = [c.message for c in checked.decision.warnings if c.code == "perturbation-floor"]
    return checked.evidence.reference is Reference.PERTURBATION and len(cautions) == 1 and reason in cautions[0]


@pytest.mark.parametrize(
    ("make", "reason"), [(InverseRoot, "reinterprets the bits"), (Int8Weights, "_weight_int8pack_mm")]
)
def test_what_has_no_fp64_is_judged_over_the_perturbation_floor(
    make: type[nn.Module], reason: str, tmp_path: Path
) -> None:
    checked = check(tmp_path, EAGER_TWICE, make().eval(), VECTORS)
    assert checked.decision.verdict is Verdict.PASS, wrong(checked)
    assert stands_on_perturbation(checked, reason)
    batches = [f for f in checked.decision.findings if f.check is Check.BATCH and f.backend == "eager-cpu"]
    assert {f.status for f in batches} == {Status.WITHIN}
    assert all("perturbation floor" in f.message for f in batches)
    control = checked.evidence.control
    assert isinstance(control, Control)
    assert (control.backend, control.limit, control.caught) == (AGAIN, 10.0, True)


@pytest.mark.parametrize(("stale", "verdict"), [(0.0, Verdict.PASS), (0.01, Verdict.FAIL)])
def test_a_stale_file_is_found_over_the_perturbation_floor(stale: float, verdict: Verdict, tmp_path: Path) -> None:
    checked = check(tmp_path, WITH_ONNX, Int8Weights(), VECTORS, served=Dequantised(stale))
    assert checked.decision.verdict is verdict, wrong(checked)
    assert stands_on_perturbation(checked, "_weight_int8pack_mm")
    assert {f.check for f in wrong(checked)} <= {Check.ERROR_RATIO, Check.DECISIONS, Check.WEIGHTS}


def test_without_fp64_the_baseline_shows_who_looks_at_batch_mates(tmp_path: Path) -> None:
    checked = check(tmp_path, EAGER_TWICE, Int8Weights(centred=True), VECTORS)
    assert checked.decision.verdict is Verdict.FAIL
    (finding,) = [f for f in wrong(checked) if f.check is Check.BATCH and f.backend == "eager-cpu"][:1]
    assert finding.hint is not None
    assert "batch mates" in finding.hint


def test_a_model_that_one_ulp_moves_far_has_no_noise_floor(tmp_path: Path) -> None:
    checked = check(tmp_path, EAGER_TWICE, Int8Weights(loud=1e4), VECTORS)
    found = [f for f in wrong(checked) if f.check is Check.EVIDENCE and f.backend == "eager-cpu"]
    assert [f.status for f in found] == [Status.NOT_MEASURED]
    assert "moves output output by" in found[0].message
    assert checked.decision.verdict is Verdict.INCONCLUSIVE, wrong(checked)


def test_a_policy_may_insist_on_fp64(tmp_path: Path) -> None:
    strict = EAGER_TWICE.model_copy(update={"checks": EAGER_TWICE.checks.model_copy(update={"reference": "fp64"})})
    checked = check(tmp_path, strict, InverseRoot(), VECTORS)
    assert checked.decision.verdict is Verdict.INCONCLUSIVE
    assert checked.evidence.reference is Reference.FP64
    (finding,) = [f for f in wrong(checked) if f.backend == "reference"]
    assert "reinterprets the bits" in finding.message
    assert "checks.reference" in (finding.hint or "")


def test_every_report_says_that_it_was_no_fp64(run: Checker, tmp_path: Path) -> None:
    folder = save_program(RoundsItsOutput().eval(), (VECTORS[:2],), tmp_path / "model")
    golden = make_golden(tmp_path / "golden", VECTORS.numpy())
    result = run(folder, golden=str(golden))
    document = result.document
    assert document.verdict is Verdict.PASS, [f for f in document.findings if f.status is not Status.WITHIN]
    assert (document.reference.kind, document.reference.perturbed.kind) == (Reference.PERTURBATION, "completed")
    assert "float16" in (document.reference.reason or "")
    assert "perturbation floor" in document.headline
    assert "perturbation-floor" in {w.code for w in document.warnings}
    assert "perturbation floor" in description_block(document, report_uri="x")
    shown = render_terminal(document, color=False, width=100, verbose=False)
    assert re.search(r"reference +not fp64", shown)
    assert "warning[perturbation-floor]" in shown
