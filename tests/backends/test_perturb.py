"""One ulp and no more, the same for the same seed, and never further away with every seed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.backends import networks
from validator.backends.catalog import CATALOG
from validator.backends.interface import Perturbable
from validator.backends.perturb import Perturbation, move_one_ulp
from validator.backends.torch_eager import open_session

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@given(arrays.arrays(np.float32, 12, elements=st.floats(width=32)), st.integers(0, 9))
def test_every_number_becomes_one_of_its_neighbours(values, seed):
    before = torch.from_numpy(values)
    after = move_one_ulp(before, seeded(seed)).numpy()
    with np.errstate(over="ignore", under="ignore"):
        up, down = np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(-np.inf))
    stays = ~np.isfinite(values) | (values == 0)
    edge = np.isinf(up) | np.isinf(down) | (up == 0) | (down == 0)
    moved = (after == up) | (after == down)
    same = (after == values) | np.isnan(values)
    assert np.where(stays, same, moved | (edge & same)).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_of_every_format_move_both_ways_and_by_one(dtype):
    ones = torch.full((1000,), 1.5, dtype=dtype)
    moved = (move_one_ulp(ones, seeded()).double() - 1.5) / torch.finfo(dtype).eps
    assert moved.unique().tolist() == [-1.0, 1.0]
    assert 400 < (moved > 0).sum() < 600


def test_complex_numbers_move_in_both_parts():
    before = torch.full((50,), 1.5 + 1.5j, dtype=torch.complex64)
    moved = move_one_ulp(before, seeded())
    assert moved.dtype is torch.complex64
    assert ((moved.real != 1.5) & (moved.imag != 1.5)).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_what_has_no_neighbours_stays(dtype):
    before = torch.ones(4).to(dtype)
    assert move_one_ulp(before, seeded()) is before


def test_a_second_perturbation_begins_where_the_first_did():
    module = torch.nn.BatchNorm1d(64)
    torch.nn.init.normal_(module.weight)
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    perturbation = Perturbation([*module.parameters(), *module.buffers()])
    seen = []
    for seed in (1, 2, 1):
        perturbation.apply(seeded(seed))
        seen.append(module.weight.detach().clone())
        off = (module.weight.double() - start["weight"].double()).abs()
        assert (off <= 2.0**-22 * start["weight"].abs()).all()
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(module.bias, start["bias"])  # zeros
    assert torch.equal(module.num_batches_tracked, start["num_batches_tracked"])


def test_an_expanded_tensor_is_left_alone():
    one = torch.ones(1)
    Perturbation([one.expand(8)]).apply(seeded())
    assert one.item() == 1


def test_a_session_moves_its_inputs_and_its_parameters(save_program, model_file):
    module, x = networks.small().eval(), torch.randn(2, 3, 32, 32)
    path = save_program(module, x)
    session = open_session(CATALOG["eager-cpu"], model_file(path, "x"))
    assert isinstance(session, Perturbable)
    plain = session.run({"x": x})["output"]
    answers = []
    for seed in (1, 2, 1):
        session.perturb(seed)
        answers.append(session.run({"x": x})["output"])
    assert torch.equal(answers[0], answers[2])
    for answer in answers[:2]:
        error = (answer - plain).double().square().mean().sqrt() / plain.double().square().mean().sqrt()
        assert 2.0**-26 < error < 2.0**-19
    assert not torch.equal(answers[0], answers[1])
