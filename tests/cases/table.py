"""The cases: kinds of fault that public reports tell of, and healthy models that naive rules block."""

import math

import torch
import torchvision
from torch import nn
from torch.nn import functional

from tests.cases import networks
from tests.cases.case import Batch, Case, Want
from tests.cases.makers import (
    by_hand_with_unit_factors,
    edited,
    in_float16,
    in_int8,
    legacy,
    modern,
    of_another,
    set_attribute,
    swap_lstm_gates,
)
from tests.cases.networks import Apply, perceptron, seeded
from validator.judge import Check

BLOCK, PASS, WARN = Want.BLOCK, Want.PASS, Want.WARN
NAN, INF = math.nan, math.inf


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def uniform(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def one(*batches: Batch | torch.Tensor) -> list[Batch]:
    """Put batches of one shape after another into one group."""
    tuples = [batch if isinstance(batch, tuple) else (batch,) for batch in batches]
    return [tuple(torch.cat(parts) for parts in zip(*tuples, strict=True))]


# --- Golden samples that show something ----------------------------------------------------------------------------


def rows_with_nan() -> list[Batch]:
    rows = normal(0, 8, 5)
    rows[5, 1] = rows[6, 4] = NAN
    return [(rows,)]


def images_with_a_dead_pixel() -> list[Batch]:
    images = normal(1, 8, 3, 8, 8)
    images[5, 0, 0, 0] = images[6, 1, 2, 3] = images[7, 2, 7, 7] = NAN
    return [(images,)]


def scattered(seed: int) -> list[Batch]:
    """Rows to be put at indices: unique ones first, as an example has them, then some that occur twice."""
    indices = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i)) for i in range(8)])
    indices[4:, 1] = indices[4:, 0]
    return [(indices, normal(seed, 8, 5, 3), normal(seed + 1, 8, 5, 3))]


def ragged_masks() -> list[Batch]:
    """Every key admitted in the first half; one query of each later sample may look at none."""
    masks = torch.ones(8, 1, 4, 4, dtype=torch.bool)
    masks[4:, 0, 1] = False
    return [(normal(21, 8, 4, 16), masks)]


def padded(seed: int, *scales: float) -> list[Batch]:
    keep = torch.arange(6)[None, :] < (1 + torch.arange(8) % 6)[:, None]
    return one(*((normal(seed, 8, 6, 16) * scale, keep) for scale in scales))


def grey_then_coloured() -> list[Batch]:
    return one(uniform(30, 4, 1, 32, 32).expand(4, 3, 32, 32), uniform(31, 8, 3, 32, 32))


def boxes(seed: int, images: int = 8, count: int = 20) -> list[Batch]:
    corners = uniform(seed, images, count, 2) * 80
    sizes = uniform(seed + 1, images, count, 2) * 40 + 4
    return [(torch.cat([corners, corners + sizes], -1), uniform(seed + 2, images, count))]


def detections_and_none() -> list[Batch]:
    scores = uniform(54, 8, 6)
    scores[3] = scores[6] = 0.1
    return [(normal(54, 8, 6, 4), scores)]


def tied_rows() -> list[Batch]:
    rows = torch.randint(0, 3, (8, 6), generator=torch.Generator().manual_seed(3)).float()
    rows[0], rows[1] = torch.tensor([1.0, 5, 5, 3, 5, 5]), 0.0
    return [(rows,)]


# --- What is done to models and files ------------------------------------------------------------------------------


def clamp_through_view(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.unsqueeze(0).relu_()
    return y


def add_rows(indices: torch.Tensor, base: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    sample = torch.arange(base.shape[0])[:, None].expand_as(indices)
    return base.index_put((sample, indices), rows, accumulate=True)


def use_tanh_gelu(model: nn.Sequential) -> None:
    for block in list(model)[:-1]:
        block.act = nn.GELU(approximate="tanh")


def swap_red_and_blue(model: networks.Classifier) -> None:
    model.first.weight.copy_(model.first.weight.flip(1))


def train_a_step_less(model: nn.Sequential) -> None:
    torch.manual_seed(99)
    for parameter in model[-1].parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.02 * float(parameter.std()))


def swap_heads(model: networks.TwoHeads) -> None:
    model.a, model.b = model.b, model.a


def kill_small_channels(model: networks.WideRange) -> None:
    model.layer.weight[4:], model.layer.bias[4:] = 0, 0


def shift_one_bias(model: nn.Sequential) -> None:
    model[-1].bias[3] += 4e-3


def fill_with_a_number(model: networks.FilledAttention) -> None:
    model.fill = -30.0


def leave_padding_dirty(model: networks.Padded) -> None:
    model.cleans = False


def best_three(x: torch.Tensor) -> dict[str, torch.Tensor]:
    values, indices = torch.topk(x, 3)
    return {"scores": x * 1, "values": values, "indices": indices}


def count_angles_up(model: networks.Angles) -> None:
    model.counts_up = True


class Reversed(nn.Module):
    """Another model's rows, last first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model(*inputs).flip(0)


OPERATORS = (
    Case(
        id="nan-lost-by-max-and-argmax",
        kind="non-finite",
        about="max and argmax of a row with a NaN: PyTorch returns it and its place, ONNX Runtime ignores it",
        want=BLOCK,
        by=Check.NON_FINITE,
        model=lambda: Apply(lambda x: (x.amax(-1), x.argmax(-1))),
        golden=rows_with_nan,
    ),
    Case(
        id="nan-lost-by-max-pooling",
        kind="non-finite",
        about="a NaN in a pooling window: PyTorch returns it, ONNX Runtime the largest finite value",
        want=BLOCK,
        by=Check.NON_FINITE,
        model=lambda: seeded(3, lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 4, 1), nn.ReLU())),
        golden=images_with_a_dead_pixel,
    ),
    Case(
        id="log-sigmoid-of-confident-logits",
        kind="tails",
        about="ONNX Runtime's sigmoid is 0 below about -18, so that its logarithm is -inf where PyTorch says -20",
        want=BLOCK,
        by=Check.NON_FINITE,
        model=lambda: seeded(4, lambda: nn.Sequential(nn.Linear(16, 8), nn.LogSigmoid())),
        golden=lambda: one(normal(2, 4, 16) * 0.5, normal(5, 8, 16) * 40),
    ),
    Case(
        id="remainder-of-large-phases",
        kind="operator",
        about="remainder of floats becomes x - floor(x / y) * y in ONNX: large phases lose all their digits",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(lambda x: torch.remainder(x, 6.2831854820251465)),
        golden=lambda: one(torch.tensor([0.5, 7, -3, 20]), torch.tensor([1e5, 1e6, -1e6, 1e8])),
    ),
    Case(
        id="floor-division-of-negative-integers",
        kind="integers",
        about="the tracing exporter turns // of integers into a division that truncates: -7 // 3 becomes -2",
        want=BLOCK,
        by=Check.EXACT,
        model=lambda: Apply(lambda x: x // 3),
        golden=lambda: [(torch.tensor([1, 2, 3, 7, -7, -1, 0, 8]),)],
        onnx=legacy(),
    ),
    Case(
        id="sum-of-large-integers",
        kind="integers",
        about="a sum beyond 2^63 wraps in PyTorch and saturates in ONNX Runtime on the CPU",
        want=BLOCK,
        by=Check.EXACT,
        model=lambda: Apply(lambda x: x.sum(-1) % 1024),
        golden=lambda: one(torch.arange(21).reshape(7, 3), torch.tensor([[2**62, 2**62, 2**62 + 5]])),
    ),
    Case(
        id="nearest-resize-26-to-64",
        kind="resize",
        about="nearest-neighbour resizing picks the next pixel at a few places, for particular sizes only",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(lambda x: functional.interpolate(x, size=(64, 64), mode="nearest")),
        golden=lambda: [(normal(6, 8, 3, 26, 26),)],
    ),
    Case(
        id="bicubic-coefficient",
        kind="resize",
        about="a bicubic downscaling with antialiasing and the other cubic coefficient, -0.75 for -0.5",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(lambda x: functional.interpolate(x, size=(7, 9), mode="bicubic", antialias=True)),
        golden=lambda: [(normal(35, 8, 3, 17, 23),)],
        onnx=edited(set_attribute("Resize", cubic_coeff_a=-0.75)),
    ),
    Case(
        id="corners-aligned",
        kind="resize",
        about="a bilinear upscaling with the other align_corners: smooth images agree, textured ones do not",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(lambda x: functional.interpolate(x, size=(20, 20), mode="bilinear")),
        golden=lambda: one(torch.full((4, 2, 8, 8), 0.3), normal(36, 4, 2, 8, 8)),
        onnx=edited(set_attribute("Resize", coordinate_transformation_mode="align_corners")),
    ),
    Case(
        id="border-of-an-antialiased-resize",
        kind="resize",
        about="exclude_outside=0: only the outermost rows and columns differ",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(lambda x: functional.interpolate(x, size=(16, 16), mode="bilinear", antialias=True)),
        golden=lambda: [(normal(36, 8, 3, 40, 40),)],
        onnx=edited(set_attribute("Resize", exclude_outside=0)),
    ),
    Case(
        id="divisor-of-average-pooling",
        kind="operator",
        about="both exporters drop divisor_override without a word",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(lambda x: functional.avg_pool2d(x, 3, 2, 1, divisor_override=4)),
        golden=lambda: [(normal(7, 8, 2, 9, 9),)],
    ),
    Case(
        id="accumulating-at-repeated-indices",
        kind="scatter",
        about="index_put(accumulate=True) keeps the last of repeated indices once traced; unique ones agree",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(add_rows),
        golden=lambda: scattered(8),
        onnx=legacy(),
    ),
    Case(
        id="mean-at-repeated-indices",
        kind="scatter",
        about="scatter_reduce(mean) is exported as a plain scatter: the last write wins",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(lambda i, a, b: a.scatter_reduce(1, i[:, :, None].expand(-1, -1, 3), b, "mean")),
        golden=lambda: scattered(3),
    ),
    Case(
        id="in-place-through-a-view",
        kind="aliasing",
        about="the tracing exporter drops an in-place operation on a view: the base comes back unchanged",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        model=lambda: Apply(clamp_through_view),
        golden=lambda: [(normal(10, 8, 4),)],
        onnx=legacy(),
    ),
)

FLOW = (
    Case(
        id="branch-of-the-example",
        kind="control flow",
        about="a branch on the data is frozen to the one that the example took",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        exported=False,
        model=lambda: seeded(11, networks.Branch),
        golden=lambda: one(normal(11, 4, 4).abs(), -normal(12, 4, 4).abs()),
        onnx=legacy(),
    ),
    Case(
        id="batch-of-the-example",
        kind="control flow",
        about="int(x.shape[0]) is frozen: right at the batch size of the example and wrong at any other",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        exported=False,
        model=lambda: seeded(12, networks.CountedRows),
        golden=lambda: [(normal(12, 8, 6),)],
        onnx=legacy(),
    ),
    Case(
        id="threshold-of-the-example",
        kind="control flow",
        about="what NumPy computes inside forward is frozen to the example's value",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        exported=False,
        batch=2,
        others=(1,),  # what is frozen has two rows: any batch beyond that is an error, and hides the wrong values
        model=lambda: seeded(15, networks.NumpyCap),
        golden=lambda: one(normal(15, 2, 8), normal(16, 6, 8) * 2),
        onnx=legacy(),
    ),
    Case(
        id="batch-refused",
        kind="control flow",
        about="the file was exported without a free batch: every other batch size is an error",
        want=BLOCK,
        planted=True,
        by=Check.WORKER,
        model=lambda: perceptron(10, 16, 16, 4),
        golden=lambda: [(normal(10, 8, 16),)],
        onnx=modern(static=True),
    ),
    Case(
        id="random-numbers-in-forward",
        kind="repeatability",
        about="forward draws random numbers: every call gives another output, on every backend",
        want=BLOCK,
        by=Check.REPEATABILITY,
        model=lambda: seeded(17, networks.Noise),
        golden=lambda: [(normal(17, 8, 6),)],
    ),
    Case(
        id="state-in-a-buffer",
        kind="repeatability",
        about="forward counts its calls in a buffer, which no export keeps",
        want=BLOCK,
        by=Check.REPEATABILITY,
        model=lambda: seeded(18, networks.Counter),
        golden=lambda: [(normal(18, 8, 6),)],
    ),
    Case(
        id="exported-in-training-mode",
        kind="training mode",
        about="the file's BatchNorm uses the statistics of the batch",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=networks.trained_norm,
        golden=lambda: [(normal(19, 8, 4),)],
        onnx=legacy(training=True),
    ),
    Case(
        id="norm-without-running-statistics",
        kind="batch mates",
        about="the export is faithful, but what a sample gets depends on who shares its batch",
        want=WARN,
        by=Check.BATCH,
        warning="batch",
        model=lambda: seeded(
            20,
            lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()),
        ),
        golden=lambda: [(normal(20, 8, 3, 8, 8),)],
    ),
    Case(
        id="precision-switched-by-the-model",
        kind="precision switches",
        about="the model turns torch.set_float32_matmul_precision: what runs is not what was asked for",
        want=BLOCK,
        by=Check.IDENTITY,
        exported=False,
        model=networks.PrecisionMeddler,
        golden=lambda: [(normal(24, 8, 256),)],
        onnx=legacy(),
    ),
    Case(
        id="compiler-drops-a-rounding",
        kind="compiler",
        about="torch.compile removes the rounding of x.half().float() on the CPU",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        required=("eager-cpu", "onnxruntime-cpu", "compiled-cpu"),
        model=networks.Quantiser,
        golden=lambda: [(normal(25, 8, 16),)],
    ),
    Case(
        id="optimiser-breaks-a-valid-graph",
        kind="graph optimiser",
        about="a valid file that loads with optimisation off and not at the default level",
        want=BLOCK,
        by=Check.WORKER,
        model=lambda: Apply(lambda x: x * 1.0 + 0.0),
        golden=lambda: [(normal(26, 8, 8),)],
        onnx=by_hand_with_unit_factors,
    ),
    Case(
        id="optimiser-fuses-a-product-with-a-vector",
        kind="graph optimiser",
        about="a transposition before a product with a vector is fused into a wrong product",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        model=lambda: seeded(57, networks.PermutedDot),
        golden=lambda: [(normal(57, 8, 6),)],
    ),
    Case(
        id="packed-sequences-all-short",
        kind="recurrent",
        about="where no sequence is as long as the padding PyTorch trims the output, the traced file does not",
        want=BLOCK,
        by=Check.CONTRACT,
        exported=False,
        model=lambda: seeded(27, networks.Packed),
        golden=lambda: [(normal(27, 8, 6, 4), torch.tensor([6, 6, 6, 6, 5, 4, 3, 2]))],
        onnx=legacy(),
    ),
)

WRONG_FILES = (
    Case(
        id="query-that-may-look-at-nothing",
        kind="attention",
        about="a query whose keys are all masked: PyTorch gives 0, the export the plain average of the values",
        want=BLOCK,
        by=Check.ERROR_RATIO,
        model=lambda: seeded(21, networks.MaskedAttention),
        golden=ragged_masks,
    ),
    Case(
        id="mask-filled-with-a-number",
        kind="attention",
        about="masked scores are -30 and not -inf: flat scores agree, peaked ones let the padding in",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: seeded(1041, networks.FilledAttention),
        golden=lambda: padded(41, 0.3, 12.0),
        onnx=of_another(fill_with_a_number),
    ),
    Case(
        id="half-precision-overflows",
        kind="low precision",
        about="a file converted to float16: small inputs agree, large ones overflow inside and end in NaN",
        want=BLOCK,
        planted=True,
        by=Check.NON_FINITE,
        model=lambda: seeded(22, networks.Squares),
        golden=lambda: one(normal(22, 4, 32) * 0.05, normal(23, 4, 32) * 4),
        onnx=in_float16,
    ),
    Case(
        id="int8-filed-as-fp32",
        kind="low precision",
        about="a dynamically quantised file beside the fp32 version",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: perceptron(34, 256, 256, 64),
        golden=lambda: [(normal(34, 8, 256),)],
        onnx=in_int8,
    ),
    Case(
        id="gelu-by-tanh",
        kind="approximation",
        about="tanh-GELU for erf-GELU: a small error in every block, and hardly a label that changes",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=networks.residual,
        golden=lambda: [(normal(28, 16, 32),)],
        onnx=of_another(use_tanh_gelu),
    ),
    Case(
        id="red-and-blue-exchanged",
        kind="preprocessing",
        about="the file expects BGR: grey images agree, coloured ones do not",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: seeded(30, networks.Classifier),
        golden=grey_then_coloured,
        onnx=of_another(swap_red_and_blue),
    ),
    Case(
        id="weights-of-the-step-before",
        kind="weights",
        about="the file was exported before the last step of training: 2 % in the last layer",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: perceptron(32, 64, 64, 64, 10),
        golden=lambda: [(normal(32, 16, 64),)],
        onnx=of_another(train_a_step_less),
    ),
    Case(
        id="one-bias-shifted",
        kind="weights",
        about="one class's bias is 0.004 off: every logit within a budget of 0.01, labels flip near the boundary",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: perceptron(42, 32, 64, 5),
        golden=lambda: [(normal(42, 16, 32),)],
        onnx=of_another(shift_one_bias),
    ),
    Case(
        id="small-channels-dead",
        kind="weights",
        about="channels from 1e5 to 1e-6: the two smallest are dead in the file, below any common tolerance",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: seeded(37, networks.WideRange),
        golden=lambda: [(normal(38, 16, 16),)],
        onnx=of_another(kill_small_channels),
    ),
    Case(
        id="heads-exchanged",
        kind="names",
        about="two outputs of one shape come back in each other's place",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: seeded(33, networks.TwoHeads),
        golden=lambda: [(normal(33, 8, 8),)],
        onnx=of_another(swap_heads),
    ),
    Case(
        id="lstm-gates-exchanged",
        kind="recurrent",
        about="two gates of an LSTM exchanged in the file: the first step is close, later ones are not",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: seeded(39, lambda: networks.Recurrent(nn.LSTM)),
        golden=lambda: [(normal(39, 8, 12, 5),)],
        onnx=edited(swap_lstm_gates, legacy()),
    ),
    Case(
        id="gru-reset-before",
        kind="recurrent",
        about="linear_before_reset=0, ONNX's default, where PyTorch's GRU needs 1",
        want=BLOCK,
        planted=True,
        by=Check.ERROR_RATIO,
        model=lambda: seeded(40, lambda: networks.Recurrent(nn.GRU)),
        golden=lambda: [(normal(40, 8, 12, 5),)],
        onnx=edited(set_attribute("GRU", linear_before_reset=0), legacy()),
    ),
)

ILL_CONDITIONED = (
    Case(
        id="layer-norm-far-from-zero",
        kind="ill-conditioned",
        about="LayerNorm of values around 1e6: eager fp32 is as far from fp64 as the file is",
        want=WARN,
        warning="ill-conditioned",
        by=None,
        model=lambda: nn.LayerNorm(4096),
        golden=lambda: [(normal(41, 8, 4096) + 1e6,)],
    ),
    Case(
        id="distances-far-from-zero",
        kind="ill-conditioned",
        about="pairwise distances of points far from the origin: both sides cancel, at different pairs",
        want=WARN,
        warning="ill-conditioned",
        by=None,
        model=lambda: Apply(lambda x: torch.cdist(x, x)),
        golden=lambda: [(normal(46, 8, 40, 4) + 100,)],
    ),
)

HEALTHY = (
    Case(
        id="logits-near-zero",
        kind="scale",
        about="an untrained network with outputs of 1e-13: enormous relative differences of nothing",
        want=PASS,
        model=networks.vanishing,
        golden=lambda: [(normal(42, 8, 3, 16, 16),)],
    ),
    Case(
        id="outputs-of-ten-million",
        kind="scale",
        about="absolute errors above 0.5 on outputs of 1e7",
        want=PASS,
        model=networks.magnified,
        golden=lambda: [(normal(45, 16, 256),)],
    ),
    Case(
        id="probabilities-that-underflow",
        kind="tails",
        about="probabilities of 2e-9 come back as 0: all of their value, and nothing of anybody's decision",
        want=PASS,
        model=lambda: seeded(43, confident_sigmoid),
        golden=lambda: [(normal(43, 16, 16),)],
    ),
    Case(
        id="infinities-in-the-same-places",
        kind="non-finite",
        about="masked classes have logits of -inf on both sides, and inf - inf is NaN",
        want=PASS,
        model=lambda: seeded(46, networks.MaskedLogits),
        golden=lambda: [(normal(46, 8, 64), normal(47, 8, 12) > 0)],
    ),
    Case(
        id="outputs-of-every-kind",
        kind="names",
        about="nested outputs with booleans, integers, a number without a shape, None, and one tensor twice",
        want=PASS,
        static=True,
        model=networks.Nested,
        golden=lambda: [(normal(48, 8, 5),)],
    ),
    Case(
        id="last-bits-by-batch",
        kind="batch mates",
        about="a sample alone and in a batch differs in the last bits, because another kernel adds up",
        want=PASS,
        batch=32,
        model=lambda: perceptron(49, 256, 256, 64),
        golden=lambda: [(normal(49, 40, 256),)],
    ),
    Case(
        id="ragged-lengths",
        kind="shapes",
        about="a file with free batch and length, over sequences of several lengths",
        want=PASS,
        free_axes={1: "length"},
        model=lambda: seeded(61, networks.MeanOverTime),
        golden=lambda: [(normal(70 + t, n, t, 6),) for n, t in ((3, 5), (1, 1), (9, 17), (4, 2))],
    ),
    Case(
        id="unused-input",
        kind="names",
        about="the exporter drops an input that the model ignores: bound by position the rest would shift",
        want=PASS,
        model=lambda: seeded(54, networks.IgnoresFirst),
        golden=lambda: [(normal(54, 8, 6), normal(55, 8, 6))],
        onnx=legacy(),
    ),
    Case(
        id="float16-on-purpose",
        kind="low precision",
        about="a model in float16: PyTorch rounds after every operator, ONNX Runtime less often",
        want=PASS,
        model=lambda: seeded(57, networks.Half),
        golden=lambda: [(normal(57, 16, 64).half(),)],
    ),
    Case(
        id="no-detections",
        kind="shapes",
        about="images without a box above the threshold: outputs of no rows",
        want=PASS,
        static=True,
        model=lambda: Apply(lambda b, s: b[0][s[0] > 0.5]),
        golden=detections_and_none,
    ),
    Case(
        id="boxes-in-another-order",
        kind="declared meaning",
        about="the same boxes are kept, and come in another order",
        want=PASS,
        static=True,
        meaning={"output": {"unordered": "rows", "batched": False}},
        model=lambda: Apply(lambda b, s: b[0][torchvision.ops.nms(b[0], s[0], 0.45)]),
        golden=lambda: boxes(44),
        onnx=lambda model, example: modern(static=True)(Reversed(model), example),
    ),
    Case(
        id="ties-among-the-best",
        kind="declared meaning",
        about="the best three of equal scores: the scores agree, their places need not",
        want=PASS,
        meaning={"indices": {"tie_break": "any", "scores": "scores"}},
        model=lambda: Apply(best_three),
        golden=tied_rows,
    ),
    Case(
        id="label-between-equal-scores",
        kind="declared meaning",
        about="two scores are mathematically equal, so that rounding chooses the label",
        want=PASS,
        meaning={"label": {"tie_break": "any", "scores": "scores"}},
        model=networks.TiedClasses,
        golden=lambda: [(normal(56, 64, 64),)],
    ),
    Case(
        id="padding-left-dirty",
        kind="declared meaning",
        about="padded positions are 0 on one side and anything on the other; nobody reads them",
        want=PASS,
        meaning={"output": {"valid_mask": "x1"}},
        model=lambda: seeded(52, networks.Padded),
        golden=lambda: padded(52, 1.0),
        onnx=of_another(leave_padding_dirty),
    ),
    Case(
        id="angles-at-the-seam",
        kind="declared meaning",
        about="one side gives angles from -pi to pi, the other from 0 to 2 pi",
        want=PASS,
        meaning={"output": {"period": 2 * math.pi}},
        model=lambda: seeded(58, networks.Angles),
        golden=lambda: [(normal(58, 16, 8),)],
        onnx=of_another(count_angles_up),
    ),
    Case(
        id="one-grey-level",
        kind="declared meaning",
        about="a bilinear resize of 8-bit images rounds some pixels to the next grey level",
        want=PASS,
        meaning={"output": {"one_lsb": True}},
        model=lambda: Apply(lambda x: functional.interpolate(x, size=(17, 19), mode="bilinear")),
        golden=lambda: [((uniform(53, 8, 3, 12, 12) * 255).to(torch.uint8),)],
    ),
)


def confident_sigmoid() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(16, 32), nn.Sigmoid())
    nn.init.normal_(model[0].weight, std=3.0)
    return model


CASES = (*OPERATORS, *FLOW, *WRONG_FILES, *ILL_CONDITIONED, *HEALTHY)
