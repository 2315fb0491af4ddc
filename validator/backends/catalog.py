"""The catalog of backends: one row holds every knob that moves a number.

A row states what is *asked for*. `expected_settings` says what the worker must then read back from the libraries; any
difference means that another backend ran than the one whose name is on the report.
"""

import difflib
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Literal, Self, assert_never

from pydantic import BaseModel, ConfigDict, Field, model_validator

from validator.errors import BackendError

SEED = 20_161_125
"""Python's, NumPy's and torch's random seed in every worker."""

Setting = str | int | bool


class Runtime(StrEnum):
    """What runs the model."""

    TORCH = "torch-eager"
    ONNXRUNTIME = "onnxruntime"


class Precision(StrEnum):
    """Precision class: decides the unit roundoff, the baseline and the budget."""

    FP64 = "fp64"
    IEEE = "ieee"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"


UNIT_ROUNDOFF = MappingProxyType(
    {
        Precision.FP64: 2.0**-53,
        Precision.IEEE: 2.0**-24,
        Precision.TF32: 2.0**-11,
        Precision.FP16: 2.0**-11,
        Precision.BF16: 2.0**-8,
    }
)
"""Half the distance from 1 to the next number of the format's significand (24, 11, 11 and 8 bits)."""


REDUCED_CLASSES = MappingProxyType({"float16": Precision.FP16, "bfloat16": Precision.BF16})
"""Dtype -> the class of what is stored in it."""


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariableValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class Backend(BaseModel):
    """One row: runtime x device x precision x algorithm settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    summary: str = ""
    runtime: Runtime = Field(strict=False)
    device: Annotated[str, Field(pattern=r"^(cpu|cuda|[a-z]+(:[0-9]+)?)$")] = "cpu"
    """Any torch device string."""
    baseline: str | None = "eager-cpu"
    """Row whose own error is the noise floor; None: the unit roundoff of the row's precision alone."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """None: the deployed batch size of the policy."""
    environment: dict[VariableName, VariableValue] = {}
    """Variables that must be set before the libraries are imported."""

    # torch
    dtype: Literal["float32", "float64"] = "float32"
    autocast: Literal["float16", "bfloat16"] | None = None
    matmul_precision: Literal["ieee", "tf32"] = "ieee"
    conv_precision: Literal["ieee", "tf32"] = "ieee"
    cudnn: bool = True
    cudnn_benchmark: bool = False
    deterministic: bool = False
    onednn: bool = True
    """False: the convolutions and RNNs of the CPU without oneDNN, another kernel family."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """Of the 4-D inputs; `channels_last` converts the 4-D parameters and buffers, too."""
    compile: Literal["inductor"] | None = None
    """`torch.compile` of the loaded program; None: eager."""

    # onnxruntime
    use_tf32: bool = False
    cudnn_conv_algo_search: Literal["DEFAULT", "HEURISTIC", "EXHAUSTIVE"] = "DEFAULT"
    graph_optimization: Literal["disable", "basic", "extended", "all"] = "all"

    @model_validator(mode="after")
    def _have_only_knobs_that_turn(self) -> Self:
        """Refuse knobs that move nothing on this runtime and device: they would change the budget and not the run."""
        idle = [name for name in _knobs_without_effect(self) if getattr(self, name) != _DEFAULTS[name]]
        if idle:
            raise ValueError(f"{', '.join(idle)} has no effect on {self.runtime} on {self.device_type}")
        if self.compile is not None and self.matmul_precision == "tf32":
            # torch.compile asks torch's old switch, which raises once the new one says TF32.
            raise ValueError("compile needs matmul_precision = ieee: torch.compile cannot trace beside TF32 matmul")
        return self

    @property
    def device_type(self) -> str:
        """`cpu`, `cuda`, ... without the index."""
        return self.device.partition(":")[0]

    @property
    def device_index(self) -> int:
        """0 where the device string has none."""
        return int(self.device.partition(":")[2] or 0)

    @property
    def precision(self) -> Precision:
        """Class that follows from the knobs. Cannot be overridden: a row is judged as what it runs."""
        if self.dtype == "float64":
            return Precision.FP64
        match self.autocast:
            case "float16":
                return Precision.FP16
            case "bfloat16":
                return Precision.BF16
            case None:
                pass
            case _:
                assert_never(self.autocast)
        reduced = (
            self.use_tf32
            if self.runtime is Runtime.ONNXRUNTIME
            else "tf32" in (self.matmul_precision, self.conv_precision)
        )
        return Precision.TF32 if reduced else Precision.IEEE

    @property
    def is_repeatable_by_contract(self) -> bool:
        """Whether the row promises the same bits for the same shapes."""
        return self.deterministic or self.device_type == "cpu"


_DEFAULTS = {name: field.default for name, field in Backend.model_fields.items()}
_TORCH_ONLY = (
    "dtype",
    "autocast",
    "matmul_precision",
    "conv_precision",
    "cudnn",
    "cudnn_benchmark",
    "onednn",
    "memory_format",
    "compile",
)
_ONNXRUNTIME_ONLY = ("use_tf32", "cudnn_conv_algo_search", "graph_optimization")
_CUDA_ONLY = (
    "matmul_precision",
    "conv_precision",
    "cudnn",
    "cudnn_benchmark",
    "use_tf32",
    "cudnn_conv_algo_search",
)
_CPU_ONLY = ("onednn",)


def _knobs_without_effect(row: Backend) -> tuple[str, ...]:
    """Name the knobs that mean nothing for a row's runtime and device."""
    foreign = _TORCH_ONLY if row.runtime is Runtime.ONNXRUNTIME else _ONNXRUNTIME_ONLY
    elsewhere = _CPU_ONLY if row.device_type == "cuda" else _CUDA_ONLY
    return (*foreign, *(knob for knob in elsewhere if knob not in foreign))


REFERENCE = "reference"
BASELINE = "eager-cpu"

_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

_BUILT_IN = (
    Backend(
        name=REFERENCE,
        summary="eager fp64, on CUDA where there is one: what everything is measured against",
        runtime=Runtime.TORCH,
        dtype="float64",
        baseline=None,
    ),
    Backend(
        name=BASELINE,
        summary="eager fp32 on the CPU: its own error against the reference is the noise floor",
        runtime=Runtime.TORCH,
        baseline=None,
    ),
    Backend(name="eager-cuda", summary="IEEE fp32, cuDNN on", runtime=Runtime.TORCH, device="cuda"),
    Backend(
        name="cudnn-deterministic",
        summary="as eager-cuda with deterministic algorithms forced, benchmark off",
        runtime=Runtime.TORCH,
        device="cuda",
        deterministic=True,
        environment=_CUBLAS,
    ),
    Backend(
        name="cudnn-off",
        summary="eager CUDA without cuDNN",
        runtime=Runtime.TORCH,
        device="cuda",
        cudnn=False,
    ),
    Backend(
        name="eager-cuda-defaults",
        summary="what PyTorch does out of the box: convolutions in TF32, matmul in IEEE fp32",
        runtime=Runtime.TORCH,
        device="cuda",
        conv_precision="tf32",
        baseline=None,
    ),
    Backend(
        name="eager-cuda-tf32",
        summary="convolutions and matmul in TF32: the baseline of other TF32 rows",
        runtime=Runtime.TORCH,
        device="cuda",
        matmul_precision="tf32",
        conv_precision="tf32",
        baseline=None,
    ),
    Backend(
        name="eager-cuda-bf16",
        summary="autocast to bfloat16",
        runtime=Runtime.TORCH,
        device="cuda",
        autocast="bfloat16",
        baseline=None,
    ),
    Backend(
        name="eager-cuda-fp16",
        summary="autocast to float16",
        runtime=Runtime.TORCH,
        device="cuda",
        autocast="float16",
        baseline=None,
    ),
    Backend(
        name="compiled-cuda",
        summary="IEEE fp32 through torch.compile (inductor): Triton kernels",
        runtime=Runtime.TORCH,
        device="cuda",
        compile="inductor",
    ),
    Backend(
        name="compiled-cpu",
        summary="fp32 on the CPU through torch.compile (inductor): C++ kernels",
        runtime=Runtime.TORCH,
        compile="inductor",
    ),
    Backend(
        name="onnxruntime-gpu",
        summary="ONNX Runtime, CUDA execution provider, use_tf32=0",
        runtime=Runtime.ONNXRUNTIME,
        device="cuda",
    ),
    Backend(
        name="onnxruntime-gpu-defaults",
        summary="ONNX Runtime as it comes: TF32 on, exhaustive convolution search",
        runtime=Runtime.ONNXRUNTIME,
        device="cuda",
        use_tf32=True,
        cudnn_conv_algo_search="EXHAUSTIVE",
        baseline="eager-cuda-tf32",
    ),
    Backend(
        name="onnxruntime-cpu",
        summary="ONNX Runtime, CPU execution provider: what a laptop or a CPU runner can always run",
        runtime=Runtime.ONNXRUNTIME,
    ),
)

CATALOG = MappingProxyType({row.name: row for row in _BUILT_IN})


def find_backend(name: str, rows: dict[str, Backend]) -> Backend:
    """Return the row of that name, from the user's rows and the built-in ones.

    Raises:
        BackendError: no such row; the hint names the nearest.
    """
    known = {**CATALOG, **rows}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    guess = f"did you mean {near[0]}? " if near else ""
    raise BackendError(f"no backend {name}", hint=f"{guess}`validator backends` lists {len(known)}")


def expected_settings(row: Backend) -> dict[str, Setting]:
    """Return what a worker must read back for this row, setting by setting."""
    match row.runtime:
        case Runtime.TORCH:
            settings: dict[str, Setting] = {
                "device": f"{row.device_type}:{row.device_index}" if row.device_type != "cpu" else "cpu",
                "dtype": row.dtype,
                "autocast": row.autocast or "off",
                "matmul_precision": row.matmul_precision,
                "conv_precision": row.conv_precision,
                "cudnn": row.cudnn,
                "cudnn_benchmark": row.cudnn_benchmark,
                "deterministic": row.deterministic,
                "onednn": row.onednn,
                "memory_format": row.memory_format,
                "compile": row.compile or "off",
                "seed": SEED,
            }
        case Runtime.ONNXRUNTIME:
            settings = {
                "device": f"{row.device_type}:{row.device_index}" if row.device_type != "cpu" else "cpu",
                "provider": "CUDAExecutionProvider" if row.device_type == "cuda" else "CPUExecutionProvider",
                "nodes_elsewhere": 0,
                "graph_optimization": row.graph_optimization,
                "deterministic": row.deterministic,
                "seed": SEED,
            }
            if row.device_type == "cuda":
                settings |= {
                    "use_tf32": row.use_tf32,
                    "cudnn_conv_algo_search": row.cudnn_conv_algo_search,
                }
        case _:
            assert_never(row.runtime)
    return settings | {f"env:{key}": value for key, value in row.environment.items()}
