"""What a model does inside on many samples: how far each drives its layers, and how sure it is of its answer.

Layers are the operators that contract, normalise or activate, in the order in which they run. They are seen where torch
dispatches them, which is the same for exported programs, TorchScript and modules. Samples run one at a time, because
only so does every number inside belong to one sample.
"""

import math
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from validator.backends.binding import flatten_outputs
from validator.backends.interface import RefusalKind, SurveyFacts
from validator.backends.probe import Golden, declared_inputs, probe, repeated
from validator.backends.refusals import refusal_from
from validator.backends.torch_program import TorchProgram, load_program
from validator.golden.strata import LayerPeaks, OutputMargins, Sizes, VaryingSize

_CPU = torch.device("cpu")
_MESSAGE_LIMIT = 200
"""Characters of why a sample was refused."""

_LAYER = re.compile(
    r"aten::(convolution|_convolution|addmm|mm|addmv|mv|bmm|baddbmm|dot|linear|"  # contractions
    r".*attention.*|_transformer_encoder_layer_fwd|.*rnn_layer|.*lstm.*|.*gru.*|"
    r".*batch_norm.*|.*layer_norm.*|.*group_norm.*|.*rms_norm.*|"  # normalisations
    r"relu|relu6|leaky_relu|_prelu_kernel|elu|selu|celu|gelu|silu|mish|softplus|hardtanh|hardswish|hardsigmoid|sigmoid|"
    r"tanh|clamp|clamp_min|clamp_max|_softmax|_log_softmax)_?"
)
"""The operators that count as layers; those that work in place too."""


def survey(
    path: Path, model_format: str, golden: Golden, *, samples: int, peaks_per_layer: int, margins_per_output: int
) -> SurveyFacts:
    """Run a model on every sample of a dataset, one at a time, on the CPU.

    Args:
        path: the model file.
        model_format: `torch.export`, `pickle` or `torchscript`.
        golden: where the inputs come from.
        samples: how many it has.
        peaks_per_layer: how many samples are named for each layer.
        margins_per_output: how many samples are named for each output of scores.

    Raises:
        BackendRefusal: format or model: unsafe, does not load, or takes other inputs; unavailable: out of memory.
    """
    facts = probe(path, model_format, golden)
    program = load_program(path, model_format, _CPU)
    feeds, _ = program.bind([spec.name for spec in golden.inputs])
    layers: dict[str, list[tuple[int, float]]] = defaultdict(list)
    margins: dict[str, list[tuple[int, float]]] = defaultdict(list)
    refused: list[tuple[int, str]] = []
    for sample in range(samples):
        read = golden.read_torch(sample, sample + 1)
        batch = [repeated(read[name], facts.static_batch or 1) for name in feeds]
        try:
            peaks, outputs = _run(program, batch)
        # Running a model runs its code: anything may come out of it.
        except Exception as error:  # noqa: BLE001
            refused.append((sample, _reason(error)))
            continue
        for layer, peak in peaks.items():
            layers[layer].append((sample, peak))
        for name, margin in _margins(outputs, len(batch[0])).items():
            margins[name].append((sample, margin))
    return SurveyFacts(
        model=facts,
        sizes=dict(zip(feeds, _sizes(program), strict=True)) if program.exported is not None else {},
        layers=tuple(
            LayerPeaks(
                layer=layer, median=statistics.median_low(v for _, v in found), peaks=_largest(found, peaks_per_layer)
            )
            for layer, found in layers.items()
        ),
        margins=tuple(
            OutputMargins(output=name, margins=tuple(sorted(found, key=lambda m: (m[1], m[0]))[:margins_per_output]))
            for name, found in margins.items()
        ),
        refused=tuple(refused),
    )


def _reason(error: Exception) -> str:
    """Say why a sample was refused.

    Raises:
        BackendRefusal: it was the machine.
    """
    refusal = refusal_from(error, "run")
    if refusal.kind is RefusalKind.UNAVAILABLE:
        raise refusal
    return refusal.message[:_MESSAGE_LIMIT]


def _run(program: TorchProgram, batch: list[torch.Tensor]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    watch = _LayerWatch()
    with torch.no_grad(), watch:
        returned = program.call(batch)
    return watch.peaks, flatten_outputs(returned)


class _LayerWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest absolute value of each layer's floating outputs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peaks: dict[str, float] = {}
        """By operator and how many of its kind ran before it."""
        self._ran: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        operator = func._schema.name  # noqa: SLF001 - the only place where the name is
        if _LAYER.fullmatch(operator):
            # Of those that return several, the first is the layer's output; the others are statistics.
            output = result[0] if isinstance(result, tuple | list) else result
            if isinstance(output, torch.Tensor) and output.is_floating_point() and output.numel():
                self.peaks[f"{operator.removeprefix('aten::')} {self._ran[operator]}"] = _peak(output)
                self._ran[operator] += 1
        return result


def _peak(tensor: torch.Tensor) -> float:
    """Return the largest absolute value; the largest float where one is NaN or infinite."""
    value = float(tensor.detach().abs().amax())
    return value if math.isfinite(value) else sys.float_info.max


def _largest(found: list[tuple[int, float]], count: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(found, key=lambda peak: (-peak[1], peak[0]))[:count])


def _margins(outputs: dict[str, torch.Tensor], batch: int) -> dict[str, float]:
    """Return best minus second best score of each output of shape (samples, classes) whose scores are finite."""
    margins: dict[str, float] = {}
    for name, output in outputs.items():
        if output.ndim == 2 and len(output) == batch and output.shape[1] > 1 and output.is_floating_point():
            best = output[0].double().topk(2).values
            if bool(best.isfinite().all()):
                margins[name] = float(best[0] - best[1])
    return margins


# --- Sizes ---------------------------------------------------------------------------------------------------------


def _sizes(program: TorchProgram) -> list[Sizes]:
    """Return the dimensions of each declared input of an exported program, batch first."""
    ranges = {} if program.exported is None else program.exported.range_constraints
    return [tuple(_varying(size, ranges) for size in value.shape) for value in declared_inputs(program) or ()]


def _varying(size: Any, ranges: Mapping[Any, Any]) -> VaryingSize | None:
    """Read a symbolic size as factor x symbol + offset; None for a fixed one, and for one of another form."""
    if isinstance(size, int):
        return None
    expression = size.node.expr
    if len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    factor, offset = expression.coeff(symbol, 1), expression.subs(symbol, 0)
    if symbol not in ranges or expression != factor * symbol + offset or not (factor.is_Integer and factor > 0):
        return None
    lower, upper = ranges[symbol].lower, ranges[symbol].upper
    return VaryingSize(
        symbol=str(symbol),
        factor=int(factor),
        offset=int(offset),
        least=int(lower) if getattr(lower, "is_Integer", False) else 0,
        most=int(upper) if getattr(upper, "is_Integer", False) and upper < sys.maxsize - 1 else None,
    )
