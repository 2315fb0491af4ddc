"""One unit in the last place, up or down at random: the least that a number in a format can be wrong by.

Where fp64 cannot run, what rounding does to a model is measured by doing it: inputs, parameters and buffers are moved,
and the outputs are watched. Exact zeros stay (rounding makes none of them anything else), and so do NaN, infinities and
numbers at the ends of their format.
"""

from collections.abc import Iterable
from types import MappingProxyType

import torch

_BITS = MappingProxyType(
    {
        torch.float16: torch.int16,
        torch.bfloat16: torch.int16,
        torch.float32: torch.int32,
        torch.float64: torch.int64,
    }
)
"""Integers that hold a format's bits. In all of these one more is the next number away from zero."""


def move_one_ulp(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a copy with every number moved to one of its neighbours, each with probability 1/2.

    Args:
        tensor: of any dtype and device; what is no number of 16 bits and more is returned as it is.
        generator: on the CPU, so that a seed means the same on every device.
    """
    if tensor.is_complex() and tensor.dtype is not torch.complex32:
        return torch.view_as_complex(move_one_ulp(torch.view_as_real(tensor.resolve_conj()), generator))
    if tensor.layout is not torch.strided or tensor.dtype not in _BITS:
        return tensor
    bits = tensor.contiguous().view(_BITS[tensor.dtype])
    away = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.int8).to(tensor.device)
    moved = (bits + (2 * away - 1).to(bits.dtype)).view(tensor.dtype)
    can_move = tensor.isfinite() & (tensor != 0) & moved.isfinite() & (moved != 0)
    return torch.where(can_move, moved, tensor)


def _can_be_written(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds numbers, each in a place of its own: an expanded one has several in one place."""
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_number and tensor.layout is torch.strided and 0 not in tensor.stride()


class Perturbation:
    """Moves a model's own tensors in place, always from where they were at first."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep a copy of every tensor that can be moved."""
        self._originals = [(t, t.detach().clone()) for t in tensors if _can_be_written(t)]

    def apply(self, generator: torch.Generator) -> None:
        """Move every tensor by one ulp from its original."""
        with torch.no_grad():
            for tensor, original in self._originals:
                tensor.copy_(move_one_ulp(original, generator))
