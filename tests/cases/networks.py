"""The models of the cases: as small as shows the matter. Classes where a pickle must find them, functions elsewhere."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def perceptron(seed: int, *widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    torch.manual_seed(seed)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(seed)
    return make()


# --- Control flow and state ---------------------------------------------------------------------------------------


class Branch(nn.Module):
    """Takes one of two layers, by the data."""

    def __init__(self) -> None:
        super().__init__()
        self.warm, self.cold = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.warm(x) if x.sum() > 0 else self.cold(x)


class CountedRows(nn.Module):
    """Divides by the number of rows what a sum over a row of ones has multiplied by it: the identity, if nobody
    takes the number of rows for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        rows = torch.ones_like(x[:, 0]).sum()
        return self.layer(x) * rows / int(x.shape[0])


class NumpyCap(nn.Module):
    """Clips each row at its 90th percentile, which it asks NumPy for: a constant to whoever traces it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        h = self.layer(x)
        cap = np.percentile(h.detach().numpy(), 90, axis=1, keepdims=True)
        return torch.minimum(h, torch.from_numpy(cap.astype(h.detach().numpy().dtype)))


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x + 0.1 * torch.randn_like(x))


class Counter(nn.Module):
    """Remembers how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1.0)
        return self.layer(x) + 0.01 * self.calls


class PrecisionMeddler(nn.Module):
    """Turns a global switch that is not its own, as some libraries do when they are first used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron(24, 256, 256, 64)

    def forward(self, x):
        torch.set_float32_matmul_precision("medium")
        return self.layers(x)


def trained_norm() -> nn.Module:
    """A BatchNorm with statistics of data of its own."""
    torch.manual_seed(19)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).train()
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(64, 4) * 3 + 1)
    return model


# --- Recurrent ----------------------------------------------------------------------------------------------------


class Packed(nn.Module):
    """Trims its output to the longest sequence of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


class Recurrent(nn.Module):
    """An LSTM or GRU and a layer on every step."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells, self.head = kind(5, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0])


# --- Attention ----------------------------------------------------------------------------------------------------


class MaskedAttention(nn.Module):
    """Two heads with a boolean mask (batch, 1, queries, keys)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, 2, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, t, 16))


class FilledAttention(nn.Module):
    """One head that fills the scores of padded keys with a number."""

    def __init__(self, fill: float = -math.inf) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.fill = fill

    def forward(self, x, keep):
        scores = self.q(x) @ self.k(x).transpose(-1, -2)
        return torch.softmax(scores.masked_fill(~keep[:, None, :], self.fill), -1) @ self.v(x)


class Padded(nn.Module):
    """An encoder whose padded positions are zero if it cleans up behind itself, and anything if it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out, self.cleans = FilledAttention(), nn.Linear(16, 16), True

    def forward(self, x, keep):
        y = self.out(self.attention(x, keep))
        return y * keep[:, :, None] if self.cleans else y


class Angles(nn.Module):
    """The direction of points in the plane, from -pi to pi or from 0 to 2 pi."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.counts_up = nn.Linear(8, 6), False

    def forward(self, x):
        y, x = self.layer(x).chunk(2, -1)
        angle = torch.atan2(y, x)
        return torch.where(angle < 0, angle + 2 * math.pi, angle) if self.counts_up else angle


# --- Everyday networks --------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act = nn.GELU()

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x)) * 2))


def residual(width: int = 32, depth: int = 6) -> nn.Sequential:
    torch.manual_seed(28)
    return nn.Sequential(*(Block(width) for _ in range(depth)), nn.Linear(width, 10))


class Classifier(nn.Module):
    """Two convolutions and a head, on images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 16, 3, 2), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return {"boxes": self.a(h), "anchors": self.b(h)}


class WideRange(nn.Module):
    """Six channels from 1e5 down to 1e-6."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 6)
        self.register_buffer("scale", torch.tensor([1e5, 1e3, 1.0, 1e-2, 5e-6, 1e-6]))

    def forward(self, x):
        return self.layer(x) * self.scale


class PermutedDot(nn.Module):
    """Re-orders features, then multiplies with a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.register_buffer("order", torch.randperm(6))

    def forward(self, x):
        return x[:, self.order] @ self.weight


class Squares(nn.Module):
    """Intermediate values far beyond 65,504 that a normalisation brings back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x):
        h = self.layer(x) * 200.0
        return self.norm(h * h)


def vanishing(depth: int = 8) -> nn.Sequential:
    """Untrained layers, each of which shrinks what it gets: outputs of about 1e-13."""
    torch.manual_seed(42)
    layers = []
    for _ in range(depth):
        layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        nn.init.normal_(layer.weight, std=0.002)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, bias=False), *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


def magnified() -> nn.Sequential:
    """Outputs of about 1e7."""
    torch.manual_seed(45)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 32))
    with torch.no_grad():
        model[-1].weight *= 3e7
    return model


class MaskedLogits(nn.Module):
    """Logits of classes that are not admitted are -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 12)

    def forward(self, x, admitted):
        return self.head(self.norm(functional.gelu(self.up(x)))).masked_fill(~admitted, -math.inf)


class Nested(nn.Module):
    """Every kind of output: nested, boolean, integer, without a shape, absent, and one twice."""

    def forward(self, x):
        y = x * 2
        return {"y": y, "more": (x > 0, None, x.sum(), [x.argmax(-1), y])}


class TiedClasses(nn.Module):
    """Two scores that are mathematically equal, summed in another order, and the label of the larger."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(55)
        self.register_buffer("order", torch.randperm(64))
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x):
        forwards = (x * self.weight).sum(-1)
        backwards = (x[:, self.order] * self.weight[self.order]).cumsum(-1)[:, -1]
        scores = torch.stack([forwards, backwards], -1)
        return {"scores": scores, "label": scores.argmax(-1)}


class IgnoresFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, unused, x):
        return self.layer(x)


class Half(nn.Module):
    """A model that is stored and computed in float16 on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 8)
        self.half()

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class MeanOverTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return self.layer(x).sum(1) / x.shape[1]


class Quantiser(nn.Module):
    """Rounds through float16 on purpose, and returns what was lost."""

    def forward(self, x):
        h = x * 7.3
        rounded = h.to(torch.float16).to(torch.float32)
        return rounded, h - rounded
