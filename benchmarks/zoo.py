"""Networks of every kind, small inputs, random weights: what `python -m benchmarks breadth` checks.

Every classifier of torchvision, and a few of each other kind. Weights are drawn under a fixed seed. What torchvision
leaves at zero until it is trained is drawn, too, and norms get the statistics of the data that they see, so that
activations stay in scale through a hundred layers: a network whose output is a constant would prove nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.layers import EncoderLayer

SEED = 7
SIDE = 32
"""Pixels: the strides of most networks multiply to 32. The others' smallest legal side is in `SIDES`."""
SIDES = {"alexnet": 63, "inception_v3": 75, "maxvit_t": 224, "vit_b_32": 64, "vit_l_32": 64, "vit_h_14": 28}
"""Vision transformers: two patches a side, so that there is something to attend to."""
HEAVY = (
    "mvit_v2_s",
    "s3d",
    "vit_h_14",
    "vit_l_16",
    "regnet_y_32gf",
    "efficientnet_v2_l",
    "efficientnet_b7",
    "regnet_y_128gf",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "retinanet_resnet50_fpn",
    "ssdlite320_mobilenet_v3_large",
    "densenet201",
    "vit_l_32",
    "maxvit_t",
    "convnext_large",
    "efficientnet_v2_m",
    "efficientnet_b6",
    "swin_v2_b",
)
"""What takes longest, so that it is begun first; the two largest apart, because both at once need 20 GB of disk."""

LARGE_SAMPLE = 300_000
"""Elements of a sample from which on fewer of them calibrate the norms."""

Array = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[[np.random.Generator, int], dict[str, Array]]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A model and its samples."""

    name: str
    kind: str
    make: Callable[[], nn.Module]
    draw: Draw
    """Takes a generator and the number of the sample; returns its inputs, without a batch dimension."""
    varying: tuple[int, ...] = (0,)
    """Dimensions of every input that are exported as varying; none: the model takes one image at a time."""

    def samples(self, count: int, *, seed: int = SEED) -> list[dict[str, Array]]:
        """Draw samples."""
        rng = np.random.default_rng(seed)
        return [self.draw(rng, k) for k in range(count)]

    def build(self) -> nn.Module:
        """Make the model, in evaluation mode and ready to be compared."""
        torch.manual_seed(SEED)
        model = self.make().eval()
        draw_zeros(model)
        first = self.samples(1)[0]
        # Last layers see one pixel of a small image: with few samples a norm's statistics would be an accident.
        count = 4 if sum(value.size for value in first.values()) > LARGE_SAMPLE else 64
        drawn = [s for s in self.samples(count, seed=SEED + 1) if all(s[n].shape == v.shape for n, v in first.items())]
        half = len(drawn) // 2
        # A detector takes a batch as it takes a list; what is compared gives it one image at a time.
        body = model.detector if isinstance(model, OneImage) else model
        calibrate_norms(body, (stack(part) for part in (drawn[:half], drawn[half:])))
        return model


def stack(samples: list[dict[str, Array]]) -> tuple[torch.Tensor, ...]:
    """Make one batch, as the model's arguments."""
    return tuple(torch.from_numpy(np.stack([s[name] for s in samples])) for name in samples[0])


def draw_zeros(model: nn.Module) -> None:
    """Give values to what is next to nothing before training: zero matrices, layer scales of 1e-6."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("layer_scale"):
                nn.init.uniform_(parameter, 0.1, 0.5)
            elif parameter.ndim > 1 and not parameter.any():
                nn.init.normal_(parameter, std=0.05)


def calibrate_norms(model: nn.Module, batches: Iterable[tuple[torch.Tensor, ...]]) -> None:
    """Draw scales and shifts of every batch norm and give it the statistics of some batches, as training would."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.2)
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in batches if norms else ():
            model(*batch)
    model.eval()


# --- Inputs ----------------------------------------------------------------------------------------------------------


def normal(**shapes: tuple[int, ...]) -> Draw:
    """Draw every named input from a standard normal distribution."""
    return lambda rng, _: {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def sentence(rng: np.random.Generator, index: int) -> dict[str, Array]:
    """Draw token numbers and a mask of those that are none of the padding: half of the sentences 16 long, half 24."""
    length = 16 if index < 4 else 24
    kept = np.arange(length) < rng.integers(5, length + 1)
    return {"ids": rng.integers(1, 500, length) * kept, "mask": kept}


def purchase(rng: np.random.Generator, _index: int) -> dict[str, Array]:
    """Draw numbers and categories."""
    return {"amounts": rng.standard_normal(12, dtype=np.float32), "codes": rng.integers(0, 40, 6)}


# --- Models of our own -----------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Two layers of LSTM, both directions, and a linear layer on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take (batch, steps, 16)."""
        return self.head(self.lstm(x)[0][:, -1])


class Encoder(nn.Module):
    """BERT in small: token numbers of any length and a mask to states and probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(500, 96), nn.Embedding(64, 96)
        self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 10)
        self.layers = nn.ModuleList(EncoderLayer(96, 4) for _ in range(4))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Take (batch, tokens), twice."""
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x, mask)
        return {"states": x, "classes": torch.softmax(self.head(x[:, 0]) * 3, -1)}


class TwoToThree(nn.Module):
    """Numbers and categories to scores, an embedding and the number of the best class."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 8)
        self.body = nn.Sequential(nn.Linear(12 + 6 * 8, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64))
        self.head = nn.Linear(64, 7)

    def forward(self, amounts: torch.Tensor, codes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Take (batch, 12) and (batch, 6)."""
        embedding = self.body(torch.cat([amounts, self.table(codes).flatten(1)], -1))
        scores = self.head(torch.tanh(embedding))
        return {"scores": scores, "embedding": embedding, "best": scores.argmax(-1)}


class LastFlow(nn.Module):
    """The last of the flows that RAFT improves step by step, two steps."""

    def __init__(self, raft: nn.Module) -> None:
        super().__init__()
        self.raft = raft

    def forward(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """Take two batches of images."""
        return self.raft(before, after, num_flow_updates=2)[-1]


class OneImage(nn.Module):
    """A detector of torchvision on a batch of one image: as many boxes as it finds."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Take (1, 3, height, width), and no other batch: the number of boxes is each image's own.

        Raises:
            ValueError: another batch size.
        """
        if len(x) != 1:
            raise ValueError(f"one image at a time, not {len(x)}")
        (found,) = self.detector([x[0]])
        return {name: tensor[None] for name, tensor in found.items()}


# --- The list --------------------------------------------------------------------------------------------------------


def networks() -> tuple[Network, ...]:
    """List all of them, what takes longest first."""
    import torchvision

    classifiers = [classifier(name) for name in torchvision.models.list_models(module=torchvision.models)]
    found = {network.name: network for network in (*classifiers, *_others())}
    first = [found[name] for name in HEAVY if name in found]
    return (*first, *(network for name, network in found.items() if name not in HEAVY))


def classifier(name: str, side: int | None = None) -> Network:
    """Describe a classifier of torchvision.

    Args:
        name: torchvision's.
        side: of its images, in pixels; None: the smallest that it takes.
    """
    side = side or SIDES.get(name, SIDE)
    options: dict[str, object] = {"num_classes": 100}
    if name.startswith("vit_"):
        options["image_size"] = side
    if name in ("googlenet", "inception_v3"):
        options |= {"init_weights": False, "aux_logits": False}
    make = _torchvision(name, **options)
    return Network(name=name, kind="classification", make=make, draw=normal(x=(3, side, side)))


def _torchvision(name: str, **options: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
        return model

    return make


def _others() -> tuple[Network, ...]:
    """List the networks that are no classifiers of images."""
    pictures, clip, long_clip = normal(x=(3, 64, 64)), normal(x=(3, 4, 32, 32)), normal(x=(3, 16, 224, 224))
    segmenters = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
    small = {"min_size": 160, "max_size": 160}
    raft = _torchvision("raft_small")
    return (
        *(_segmenter(name, pictures) for name in segmenters),
        _detector(
            "fasterrcnn_mobilenet_v3_large_320_fpn", 160, box_score_thresh=0.0, box_detections_per_img=10, **small
        ),
        _detector("retinanet_resnet50_fpn", 160, score_thresh=0.0, detections_per_img=10, **small),
        _detector("ssdlite320_mobilenet_v3_large", 320, score_thresh=0.0, detections_per_img=10),
        *(_video(name, clip) for name in ("r3d_18", "mc3_18", "r2plus1d_18", "swin3d_t")),
        *(_video(name, long_clip) for name in ("s3d", "mvit_v2_s")),  # they take no other size
        Network(
            name="raft_small",
            kind="optical flow",
            make=lambda: LastFlow(raft()),
            draw=normal(before=(3, 128, 128), after=(3, 128, 128)),
        ),
        Network(name="lstm", kind="recurrent", make=Recurrent, draw=normal(x=(20, 16))),
        Network(name="encoder", kind="text, any length, mask", make=Encoder, draw=sentence, varying=(0, 1)),
        Network(name="two-to-three", kind="2 inputs, 3 outputs", make=TwoToThree, draw=purchase),
    )


def _segmenter(name: str, draw: Draw) -> Network:
    make = _torchvision(name, weights_backbone=None, num_classes=5)
    return Network(name=name, kind="segmentation", make=make, draw=draw)


def _detector(name: str, side: int, **options: object) -> Network:
    """Describe a detector that finds a few boxes, however unsure: untrained, it would find none."""
    make = _torchvision(name, weights_backbone=None, num_classes=5, **options)
    draw = normal(x=(3, side, side))
    return Network(name=name, kind="detection", make=lambda: OneImage(make()), draw=draw, varying=())


def _video(name: str, draw: Draw) -> Network:
    return Network(name=name, kind="video", make=_torchvision(name, num_classes=50), draw=draw)
