"""Knobs that choose other kernels do so, and are read back as what really ran."""

import pytest
import torch
from torch import nn

from tests.backends import networks
from validator.backends.catalog import CATALOG, Backend, Runtime, expected_settings
from validator.backends.compiler import Compilation
from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.torch_eager import formats_of, open_session

CPU = CATALOG["eager-cpu"]
LAST = Backend(name="last", runtime=Runtime.TORCH, memory_format="channels_last")
IMAGE = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
VECTOR = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))


# --- Memory format and oneDNN -------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [LAST, Backend(name="off", runtime=Runtime.TORCH, onednn=False)], ids=lambda r: r.name)
def test_another_layout_and_another_family_compute_the_same_in_other_bits(row, save_program, model_file):
    file = model_file(save_program(networks.resnet18(), IMAGE), "x")
    usual = open_session(CPU, file).run({"x": IMAGE})["output"]
    session = open_session(row, file)
    other = session.run({"x": IMAGE})["output"]
    assert session.environment().settings == expected_settings(row)
    torch.testing.assert_close(other, usual, rtol=1e-3, atol=1e-4)
    assert not torch.equal(other, usual)


def test_a_layout_of_a_model_without_images_is_not_what_ran(save_program, model_file):
    session = open_session(LAST, model_file(save_program(networks.Tuple(), VECTOR), "x"))
    session.run({"x": VECTOR})
    assert session.environment().settings["memory_format"] == "contiguous"


def test_weights_that_go_back_to_another_layout_are_noticed(save_program, model_file):
    session = open_session(LAST, model_file(save_program(networks.resnet18(), IMAGE), "x"))
    session.run({"x": IMAGE})
    weight = next(t for t in session._program.tensors() if t.ndim == 4)
    weight.data = weight.data.contiguous()
    assert session.environment().settings["memory_format"] == "channels_last+contiguous"


def test_tensors_that_lie_alike_in_both_formats_say_none():
    assert formats_of([VECTOR, torch.ones(2, 1, 4, 4), torch.ones(2, 3, 1, 1)]) == set()
    assert formats_of([IMAGE[:, :, ::2], IMAGE]) == {"strided", "contiguous"}


def test_onednn_turned_on_behind_our_back_is_noticed(save_program, model_file):
    row = Backend(name="off", runtime=Runtime.TORCH, onednn=False)
    session = open_session(row, model_file(save_program(networks.Tuple(), VECTOR), "x"))
    session.run({"x": VECTOR})
    torch.backends.mkldnn.enabled = True
    assert session.environment().settings["onednn"] is True


# --- torch.compile ------------------------------------------------------------------------------------------------


class Wave(nn.Module):
    def forward(self, x):
        return x.sin() * 2


class Uncompiled(nn.Module):
    @torch._dynamo.disable
    def forward(self, x):
        return x + 1


class Broken(nn.Module):
    def forward(self, x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1


def call(module: nn.Module, *inputs: torch.Tensor) -> Compilation:
    compilation = Compilation.of(module.eval())
    for x in inputs:
        with torch.inference_mode(), compilation.watching():
            module(x)
    return compilation


def test_every_shape_has_a_graph_of_its_own_whatever_ran_before():
    compilation = call(Wave(), VECTOR, VECTOR[:1], torch.cat([VECTOR, VECTOR]), VECTOR)
    assert (compilation.graphs, compilation.runs, compilation.calls) == (3, 4, 4)
    assert compilation.setting == "inductor"
    assert compilation.notes()["graph breaks"] == "none"


def test_a_fallback_to_eager_is_not_what_was_asked_for():
    assert call(Uncompiled(), VECTOR).setting == "eager in 1 of 1 calls"


def test_graph_breaks_are_recorded():
    compilation = call(Broken(), VECTOR)
    assert compilation.setting == "inductor"
    assert compilation.graphs == 2
    assert compilation.notes()["graph breaks"].startswith("1: ")


def test_before_the_first_call_nothing_is_claimed():
    assert Compilation.of(nn.Identity()).setting == "unreadable"


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_cannot_be_compiled_again():
    script = torch.jit.trace(Wave(), VECTOR)
    with pytest.raises(BackendRefusal, match="log the model as") as refusal:
        Compilation.of(script)
    assert refusal.value.kind is RefusalKind.MODEL
