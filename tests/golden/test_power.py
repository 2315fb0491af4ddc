"""What strata are for: a fault that shows in one sample of a hundred."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from validator.backends.catalog import CATALOG
from validator.backends.survey import survey
from validator.golden.sample import Sample
from validator.golden.strata import EXTREME_SAMPLES, PEAKS_PER_LAYER, choose_extremes, make_scales, spread_evenly
from validator.golden.writer import write_golden
from validator.metrics import error_ratios, sample_rows, summarize, worst_own_sample
from validator.policy import default_limits

POOL, HEAD = 500, 64
UNIT_ROUNDOFF = 2.0**-24


class Saturating(nn.Module):
    """An image classifier whose activations behind one of its layers are cut off, as int8 or fp16 would."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList([nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)])
        self.head = nn.Linear(8, 10)
        self.limits = [torch.inf] * 3

    def forward(self, x):
        for layer, limit in zip(self.layers, self.limits, strict=True):
            x = torch.relu(layer(x)).clamp(max=limit)
        return self.head(x.mean((2, 3)))


def photographs():
    """Images of different contrast and texture: (POOL, 3, 16, 16)."""
    random = np.random.default_rng(11)
    contrast = np.exp(0.3 * random.normal(size=(POOL, 1, 1, 1)))
    return torch.from_numpy((random.normal(size=(POOL, 3, 16, 16)) * contrast).astype(np.float32))


@pytest.fixture(scope="module")
def healthy():
    return Saturating().eval()


@pytest.fixture(scope="module")
def images():
    return photographs()


@pytest.fixture(scope="module")
def extremes(healthy, images, tmp_path_factory):
    """What the survey chooses of the pool."""
    folder = tmp_path_factory.mktemp("power")
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    torch.export.save(torch.export.export(healthy, (images[:2],), dynamic_shapes=(batch,)), folder / "model.pt2")
    golden = write_golden(folder / "pool", (Sample(inputs={"x": x}) for x in images), name="pool", source="a test")
    counts = {"samples": POOL, "peaks_per_layer": PEAKS_PER_LAYER, "margins_per_output": 1}
    facts = survey(folder / "model.pt2", "torch.export", golden, **counts)
    return list(choose_extremes(facts.layers, EXTREME_SAMPLES))


def peaks(model, images, depth):
    """The largest activation of each image behind a layer."""
    x = images
    for layer in model.layers[: depth + 1]:
        x = torch.relu(layer(x))
    return x.flatten(1).amax(1)


def is_found(healthy, faulty, x):
    """Whether a fault exceeds the default limits, as the judge has them, on these samples."""
    with torch.no_grad():
        reference = copy.deepcopy(healthy).double()(x.double()).numpy()
        baseline, candidate = (sample_rows(0, reference, model(x).numpy()) for model in (healthy, faulty))
    limits = default_limits(CATALOG["onnxruntime-cpu"])
    ratios = error_ratios(summarize(candidate), summarize(baseline), unit_roundoff=UNIT_ROUNDOFF)
    own, _ = worst_own_sample(candidate, baseline, unit_roundoff=UNIT_ROUNDOFF)
    return ratios.pooled > limits.error_ratio or own > limits.error_ratio_own_sample


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_saturation_in_one_image_of_a_hundred_is_found_by_extremes_and_by_scales(healthy, images, extremes, depth):
    """Random samples find it about half the time: 1 - 0.99^64 is 0.47."""
    with torch.no_grad():
        reached = peaks(healthy, images, depth)
    faulty = copy.deepcopy(healthy)
    faulty.limits[depth] = float(reached.sort().values[-POOL // 100 - 1])
    assert int((reached > faulty.limits[depth]).sum()) == POOL // 100
    random = np.random.default_rng(3)
    draws = [random.choice(POOL, HEAD, replace=False) for _ in range(100)]
    share = np.mean([is_found(healthy, faulty, images[draw]) for draw in draws])
    assert 0.3 < share < 0.65
    assert len(extremes) <= EXTREME_SAMPLES
    assert is_found(healthy, faulty, images[extremes])
    for draw in draws[:20]:
        samples = [Sample(id=str(i), inputs={"x": images[i]}) for i in draw]
        scaled = torch.stack([s.inputs["x"] for s in make_scales(spread_evenly(samples, 4))])
        assert is_found(healthy, faulty, scaled)
        assert not is_found(healthy, healthy, scaled)
