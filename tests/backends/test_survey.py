import sys

import pytest
import torch
from torch import nn

from tests.backends import networks
from validator.backends.interface import BackendRefusal
from validator.backends.survey import survey
from validator.golden.strata import VaryingSize

DYNAMIC = torch.export.Dim.DYNAMIC


class Layers(nn.Module):
    """Two layers on scales of their own, and scores."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(2) * 100)
            self.second.weight.copy_(torch.eye(2) / 100)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


X = torch.tensor([[1.0, 0.5], [-9.0, -9.5], [2.0, 1.9], [0.5, 3.0]])


def pickled(module, folder):
    torch.save(module.eval(), folder / "model.pth")
    return folder / "model.pth"


def scripted(module, folder):
    torch.jit.trace(module.eval(), X[:2]).save(folder / "model.pt")
    return folder / "model.pt"


def look(path, model_format, golden, samples=4):
    return survey(path, model_format, golden, samples=samples, peaks_per_layer=2, margins_per_output=2)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # deprecated, and still registered by people
@pytest.mark.parametrize("model_format", ["torch.export", "pickle", "torchscript"])
def test_layers_are_the_same_however_the_model_is_stored(model_format, save_program, fake_golden, tmp_path):
    """Samples 1 and 3 drive the first layer furthest; behind the ReLU nothing is left of sample 1."""
    path = {
        "torch.export": lambda: save_program(Layers(), X[:2]),
        "pickle": lambda: pickled(Layers(), tmp_path),
        "torchscript": lambda: scripted(Layers(), tmp_path),
    }[model_format]()
    facts = look(path, model_format, fake_golden(x=X))
    first, relu, second = facts.layers
    assert (first.peaks, first.median) == (((1, 950.0), (3, 300.0)), 200.0)
    assert [sample for sample, _ in relu.peaks] == [3, 2]
    assert second.peaks == ((3, pytest.approx(3.0)), (2, pytest.approx(2.0)))
    assert [sample for sample, _ in facts.margins[0].margins] == [1, 2]
    assert facts.refused == ()


def test_what_is_not_finite_counts_as_the_largest_float_and_has_no_margin(save_program, fake_golden):
    x = torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [torch.inf, 0.0]])
    facts = look(save_program(Layers(), X[:2]), "torch.export", fake_golden(x=x), samples=3)
    assert facts.layers[0].peaks == ((1, sys.float_info.max), (2, sys.float_info.max))
    assert [sample for sample, _ in facts.margins[0].margins] == [0]


def test_normalisations_recurrences_and_attention_are_layers(save_program, fake_golden):
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
    facts = look(save_program(networks.Sequence(), x[:2]), "torch.export", fake_golden(x=x), samples=3)
    kinds = {layer.layer.partition(" ")[0] for layer in facts.layers}
    assert any("norm" in kind for kind in kinds)
    assert any("rnn" in kind or "lstm" in kind or "sigmoid" in kind for kind in kinds)
    assert any("attention" in kind or "softmax" in kind for kind in kinds)
    assert facts.margins == ()  # no output of shape (samples, classes)


def test_a_program_of_one_batch_size_is_filled_with_the_one_sample(save_program, fake_golden):
    facts = look(save_program(Layers(), X[:3], static=True), "torch.export", fake_golden(x=X))
    assert facts.model.static_batch == 3
    assert facts.layers[0].peaks[0] == (1, 950.0)


def test_a_program_says_which_sizes_vary_and_how_far(save_program, fake_golden):
    class Image(nn.Module):
        def forward(self, x, mask):
            return (x * mask).mean((1, 2, 3))

    batch, height = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("height", min=4, max=100)
    width = torch.export.Dim("width", min=2, max=32)
    shapes = {0: batch, 2: height, 3: 8 * width}
    x, mask = torch.randn(2, 3, 8, 16), torch.ones(2, 1, 8, 16)
    path = save_program(Image(), x, mask, shapes=(shapes, shapes))
    sizes = look(path, "torch.export", fake_golden(x=x, mask=mask), samples=2).sizes
    assert sizes["x"][1] is None
    assert sizes["x"][2:] == sizes["mask"][2:]
    assert [(size.factor, size.offset, size.least, size.most) for size in sizes["x"][2:]] == [
        (1, 0, 4, 100),
        (8, 0, 2, 32),
    ]
    assert isinstance(sizes["x"][0], VaryingSize)


def test_a_module_does_not_say_which_sizes_vary(fake_golden, tmp_path):
    assert look(pickled(Layers(), tmp_path), "pickle", fake_golden(x=X)).sizes == {}


def test_samples_that_the_model_refuses_are_named_and_the_others_go_on(fake_golden, tmp_path):
    class Picky(nn.Module):
        def forward(self, x):
            if bool((x < 0).any()):
                raise ValueError("negative\nand more")
            return x

    Picky.__qualname__ = "Picky"
    sys.modules[__name__].Picky = Picky
    facts = look(pickled(Picky(), tmp_path), "pickle", fake_golden(x=X))
    assert facts.refused == ((1, "ValueError: negative"),)
    assert facts.samples == {1, 2, 0} | {sample for sample, _ in facts.margins[0].margins}


def test_other_inputs_than_the_models_are_refused_at_once(save_program, fake_golden):
    path = save_program(Layers(), X[:2])
    with pytest.raises(BackendRefusal, match=r"the program has 1 inputs .* the dataset 2"):
        look(path, "torch.export", fake_golden(a=X, b=X))
