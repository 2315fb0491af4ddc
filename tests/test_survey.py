"""`golden create --strata` with real models in real workers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.fakes import FakeRegistry
from validator.errors import FormatRefused, GoldenError, UsageError
from validator.golden.dataset import open_golden
from validator.golden.format import Stratum
from validator.golden.sources import open_source
from validator.report.progress import SilentProgress
from validator.survey import StrataRequest, StrataResult, create_strata

POSITIONS = 20
LENGTH = 16
SAMPLES = 40
HEAD = 8
MODEL_FILE = "flavors:\n  pytorch:\n    model_data: data\n"
ALL = frozenset(Stratum)


class Words(nn.Module):
    """A classifier of masked sequences, which export believes to take any length: its table of positions does not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.words, self.positions = nn.Embedding(50, 8), nn.Embedding(POSITIONS, 8)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    def forward(self, ids, mask):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head((x * mask.unsqueeze(-1)).sum(1) / (1 + mask.sum(1, keepdim=True)))


def save_model(model: nn.Module, folder: Path, *example: torch.Tensor, dims: tuple[int, ...] = (0,)) -> Path:
    """Write a model folder as MLflow lays it out, with dimensions of every input that vary."""
    (folder / "data").mkdir(parents=True)
    named = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=500)}
    shapes = tuple({dim: named[dim] for dim in dims} for _ in example)
    torch.export.save(torch.export.export(model.eval(), example, dynamic_shapes=shapes), folder / "data" / "model.pt2")
    (folder / "MLmodel").write_text(MODEL_FILE)
    return folder


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    example = torch.zeros(2, LENGTH, dtype=torch.int64), torch.ones(2, LENGTH)
    return save_model(Words(), tmp_path_factory.mktemp("words") / "model", *example, dims=(0, 1))


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled sequences with masks that end in padding."""
    random = np.random.default_rng(2)
    lengths = random.integers(3, LENGTH + 1, SAMPLES)
    path = tmp_path_factory.mktemp("sentences") / "sentences.npz"
    np.savez(
        path,
        ids=random.integers(1, 47, (SAMPLES, LENGTH)),
        mask=(np.arange(LENGTH) < lengths[:, None]).astype(np.float32),
        labels=random.integers(0, 4, SAMPLES),
    )
    return path


def create(source: Path, output: Path, *, registry: FakeRegistry | None = None, **asked: object) -> StrataResult:
    """Make a dataset; without a registry none may be opened."""
    given: dict[str, object] = {"source": open_source(str(source)), "output": output, "name": "set", "limit": HEAD}

    def open_registry() -> FakeRegistry:
        assert registry is not None
        return registry

    return create_strata(StrataRequest(**(given | asked)), open_registry, SilentProgress())  # type: ignore[arg-type]


def test_a_registered_model_chooses_samples_and_says_which_shapes_it_refuses(
    words: Path, sentences: Path, tmp_path: Path
) -> None:
    registry = FakeRegistry()
    registry.add_version("words", words)
    result = create(sentences, tmp_path / "set", registry=registry, strata=ALL, model="models:/words/1")
    (warning,) = result.warnings
    assert warning.startswith("the model refuses a shape, so it is left out, largest: ids [32], mask [32]: IndexError")
    dataset = open_golden(tmp_path / "set")
    ids = [dataset.sample_id(i) for i in range(dataset.samples)]
    kinds = {"representative", "activation-extremes", "low-margin", "shape-smallest", "shape-odd"}
    kinds |= {f"special-{name}" for name in ("zero", "constant", "denormal", "largest")}
    kinds |= {f"scale-{name}" for name in ("0", "2^-20", "0.5", "2", "4", "16")}
    assert {i.partition("/")[0] for i in ids} == kinds
    assert [str(s) for s in dataset.strata[:HEAD]] == ["representative"] * HEAD
    assert "chosen with words version 1" in dataset.manifest.source
    samples = {name: dataset.read(i, i + 1) for i, name in enumerate(ids)}
    labels = {name: int(dataset.labels(i, i + 1)[0]) for i, name in enumerate(ids)}
    source = np.load(sentences)
    for name, inputs in samples.items():
        kind, _, number = name.partition("/")
        if kind in ("representative", "activation-extremes", "low-margin"):
            assert inputs["ids"][0].tolist() == source["ids"][int(number)].tolist()
            assert labels[name] == source["labels"][int(number)]
            assert (int(number) < HEAD) == (kind == "representative")
        else:
            assert labels[name] == -1
    assert samples["shape-odd/0000"]["mask"][0].tolist() == source["mask"][0][:15].tolist()
    assert samples["shape-smallest/0000"]["ids"][0].tolist() == source["ids"][0][:2].tolist()
    assert samples["special-largest/0000"]["ids"].max() == source["ids"].max()


def test_a_local_folder_is_a_model_and_what_the_model_cannot_tell_is_a_warning(tmp_path: Path) -> None:
    """A pickle names no sizes; its only output is no vector of scores."""
    values = np.random.default_rng(1).normal(size=(24, 3, 12, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), folder / "data" / "model.pth")
    (folder / "MLmodel").write_text(MODEL_FILE)
    with pytest.raises(FormatRefused, match="this policy allows none"):
        create(tmp_path / "x.npy", tmp_path / "set", strata=ALL, model=str(folder))
    assert not (tmp_path / "set").exists()
    (tmp_path / "policy.toml").write_text('required = ["onnxruntime-cpu"]\n[formats]\npickle = true\n')
    asked = {"strata": ALL, "model": str(folder), "policy": str(tmp_path / "policy.toml"), "extremes": 3}
    result = create(tmp_path / "x.npy", tmp_path / "set", **asked)
    assert result.warnings == (
        "the stratum low-margin is left out: the model has no output of shape (samples, classes)",
        "the stratum shapes is left out: only an exported program says which sizes vary",
    )
    assert 1 <= result.dataset.strata.count(Stratum.ACTIVATION_EXTREMES) <= 3, "one sample may be the extreme of two"


def test_a_source_that_does_not_fit_the_model_says_how(words: Path, tmp_path: Path) -> None:
    asked = {"strata": frozenset({Stratum.LOW_MARGIN}), "model": str(words)}
    np.savez(tmp_path / "wide.npz", ids=np.zeros((20, LENGTH), np.int32), mask=np.ones((20, LENGTH), np.float32))
    with pytest.raises(GoldenError, match="golden input ids is int32, the model takes int64"):
        create(tmp_path / "wide.npz", tmp_path / "set", **asked)
    np.savez(tmp_path / "alone.npz", ids=np.zeros((20, LENGTH), np.int64))
    with pytest.raises(GoldenError, match=r"the model does not run on the source's samples: the program has 2 inputs"):
        create(tmp_path / "alone.npz", tmp_path / "set", **asked)


def test_a_folder_without_a_model_file_is_no_model(sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder with an MLmodel file"):
        create(sentences, tmp_path / "set", strata=ALL, model=str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strata": ALL}, "the stratum activation-extremes has to ask the model, and none is named"),
        ({"limit": 7}, "--limit 7 is less than the 8 samples"),
        ({"extremes": 3}, "--extremes has no meaning without the stratum activation-extremes"),
        ({"largest_shape": 3}, "--largest-shape has no meaning without the stratum shapes"),
        ({"strata": frozenset({Stratum.SCALES}), "non_finite": True}, "--non-finite has no meaning"),
        ({"model": "models:/words/1"}, "no stratum that was asked for looks into the model"),
        ({"policy": "cpu"}, "--policy has no meaning without --model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_options_that_have_no_meaning_together_are_refused(
    sentences: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        create(sentences, tmp_path / "set", **({"strata": frozenset({Stratum.SPECIALS})} | changes))


@pytest.mark.parametrize(
    ("samples", "limit", "said"),
    [
        (HEAD - 1, HEAD, "has 7 samples; strata need at least 8 representative ones"),
        (HEAD, None, "8 samples of file x.npy are representative and none is left to search for low-margin"),
        (HEAD + 7, HEAD, "are representative and 7 are left to search"),
    ],
    ids=["too few", "empty pool", "small pool"],
)
def test_a_source_that_is_too_small_says_what_is_left(
    words: Path, tmp_path: Path, samples: int, limit: int | None, said: str
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((samples, 3), np.float32))
    with pytest.raises(GoldenError, match=said):
        create(
            tmp_path / "x.npy",
            tmp_path / "set",
            strata=frozenset({Stratum.LOW_MARGIN}),
            model=str(words),
            limit=limit,
        )


def test_strata_that_need_no_model_are_made_without_one(sentences: Path, tmp_path: Path) -> None:
    strata = frozenset({Stratum.SCALES, Stratum.SPECIALS})
    result = create(sentences, tmp_path / "set", strata=strata, non_finite=True)
    assert result.warnings == ()
    assert {str(s) for s in result.dataset.strata} == {"representative", "scales", "specials"}
    shutil.rmtree(tmp_path / "set")
    again = create(sentences, tmp_path / "set", strata=strata, non_finite=True)
    assert again.dataset.digest == result.dataset.digest
