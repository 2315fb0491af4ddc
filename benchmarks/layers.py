"""Layers that more than one benchmark builds networks of."""

import math

import torch
from torch import nn
from torch.nn import functional


class EncoderLayer(nn.Module):
    """Attention with a mask, then two linear layers, each with a norm behind it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-5) for _ in range(2))

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Take (batch, tokens, width) and which tokens are none of the padding."""
        b, t, w = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads)
        shares = torch.softmax(scores.masked_fill(~keep[:, None, None, :], -math.inf), -1)
        x = self.norms[0](x + self.out((shares @ v).transpose(1, 2).reshape(b, t, w)))
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))
