"""Small real networks, and the toy models that hold one trap each."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torchvision
from torch import nn


def resnet18():
    return torchvision.models.resnet18(num_classes=10)


def mobilenet():
    return torchvision.models.mobilenet_v3_small(num_classes=10)


def small():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(1800, 10)
    )


def vit():
    network = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10
    )
    nn.init.normal_(network.heads[0].weight)  # torchvision starts it at zero: a constant output proves nothing
    return network


class Sequence(nn.Module):
    """An LSTM, a GRU and attention."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True, bidirectional=True, dropout=0.3)
        self.gru = nn.GRU(12, 8, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.attention(self.gru(self.lstm(x)[0])[0])


class TwoInThreeOut(nn.Module):
    """Two inputs of different rank, three outputs in a dict with a None and a nested tuple."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(4 + 5, 6)

    def forward(self, image, features):
        joined = torch.cat([self.image(image).mean((2, 3)), features], 1)
        logits = self.head(joined)
        return {"logits": logits, "nested": (joined, None, logits.argmax(1))}


class Tuple(nn.Module):
    def forward(self, x):
        y = x.tanh()
        return y, y, x


class Casts(nn.Module):
    """What a rewrite to fp64 has to find; `wide` is the dtype that the author wrote down."""

    def __init__(self, wide=torch.float32):
        super().__init__()
        self.wide = wide
        self.linear = nn.Linear(8, 8)
        self.lifted = torch.linspace(0.1, 0.9, 8).to(wide)
        self.register_buffer("hidden", torch.linspace(0.3, 0.7, 8), persistent=False)

    def forward(self, x):
        x = self.linear(x.to(self.wide)) * self.lifted + self.hidden
        x = x @ torch.linspace(0.0, 1.0, 64, dtype=self.wide).reshape(8, 8)
        x = x + torch.full((8,), 0.1, dtype=self.wide) + torch.tensor([0.1] * 8, dtype=self.wide)
        return x.softmax(-1, dtype=self.wide)


class Factories(nn.Module):
    """Factories without a dtype: they follow the default, which is float32 for whoever exported."""

    def forward(self, x):
        n = x.shape[1]
        steps = torch.arange(0.0, 0.75, 0.1)
        grid = torch.linspace(0, 1, n) / 3 + torch.full((n,), 0.1) + torch.zeros(n) + torch.ones(n) + steps[:n]
        counted = torch.arange(n)
        return torch.eye(n) @ grid, x * (grid + counted)


class HalfInside(nn.Module):
    """A cast to fp16 is part of the function."""

    def forward(self, x):
        return x.half().float() * 2


class HalfOut(nn.Module):
    def forward(self, x):
        return x.half()


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        return y.float() + x


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        angle = torch.linspace(0, 3, 4)
        self.register_buffer("turn", torch.polar(torch.ones_like(angle), angle))

    def forward(self, x):
        return torch.view_as_real(torch.view_as_complex(x.reshape(-1, 4, 2)) * self.turn)


class Branch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.to(torch.float32) * 0.1, lambda x: x.to(torch.float32) * 0.3, (x,))


class Bits(nn.Module):
    def forward(self, x):
        return x.view(torch.int32).float()


class Baked(nn.Module):
    """Free in its declared batch, not in what it computes."""

    def forward(self, x):
        return x.view(2, 8).sum(1)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return x + self.calls


class Masked(nn.Module):
    """Numbers that JSON has no literal for."""

    def forward(self, x):
        return torch.nan_to_num(x.masked_fill(x < 0, -torch.inf), nan=torch.inf, neginf=torch.nan)


class Number(nn.Module):
    def forward(self, x):
        return x * 2, 7


class Nested(nn.Module):
    def forward(self, batch, *, scale):
        return batch["ids"].float() * scale + batch["mask"][0]


class Optional(nn.Module):
    def forward(self, x, y=None):
        return x if y is None else x + y


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("\x1b[31mno\x1b[0m such \x07thing\nand a second line")


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Greedy(nn.Module):
    """Wants more memory than any GPU has."""

    def forward(self, x):
        return x.expand(1 << 24, *x.shape).repeat(1 << 14, 1, 1)


class Mixed(nn.Module):
    """Matrices in half precision, a norm in float32, and casts back and forth, as large networks are stored.

    `wide` is the twin's dtype: None for the model itself.
    """

    def __init__(self, half, wide=None):
        super().__init__()
        self.half_dtype, self.float_dtype = wide or half, wide or torch.float32
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        for part in (self.up, self.down):
            part.to(self.half_dtype)
        self.norm.to(self.float_dtype)

    def forward(self, x):
        x = self.norm(x.to(self.float_dtype)).to(self.half_dtype)
        x = self.up(x) + torch.full((16,), 0.1, dtype=self.half_dtype)
        x = x.softmax(-1, dtype=self.float_dtype).to(self.half_dtype)
        return self.down(x)
