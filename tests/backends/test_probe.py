import hashlib

import onnx
import pytest
import torch

from tests.backends import networks
from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.probe import export, probe

IMAGE = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
VECTOR = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))


def pickled(module, folder):
    torch.save(module, folder / "model.pth")
    return folder / "model.pth"


def test_a_program_gives_its_facts(save_program, fake_golden, tmp_path):
    image, features = torch.randn(2, 3, 8, 8), torch.randn(2, 5)
    path = save_program(networks.TwoInThreeOut(), image, features)
    facts = probe(path, "torch.export", fake_golden(image=image, features=features))
    assert [(i.name, i.dtype, i.shape) for i in facts.inputs] == [
        ("image", "float32", (None, 3, 8, 8)),
        ("features", "float32", (None, 5)),
    ]
    assert facts.outputs == ("logits", "nested.0", "nested.2")
    assert facts.static_batch is None
    assert facts.training == ()
    assert facts.mutated_buffers == ()
    assert facts.parameter_dtypes == {"float32": 3 * 4 * 9 + 4 + 4 * 4 + 9 * 6 + 6, "int64": 1}
    destination = tmp_path / "out" / "model.onnx"
    exported, weights = export(
        path,
        "torch.export",
        fake_golden(image=image, features=features),
        static_batch=facts.static_batch,
        destination=destination,
    )
    assert exported.path == str(destination)
    assert "opset" in exported.message
    assert weights.differing == weights.unexplained == weights.missing == 0


def test_a_dataset_of_another_number_of_inputs_is_left_to_the_gate(save_program, fake_golden, tmp_path):
    """What is declared is told without it; a pickled module declares nothing, so there nothing is left to tell."""
    image, features = torch.randn(2, 3, 8, 8), torch.randn(2, 5)
    path = save_program(networks.TwoInThreeOut(), image, features)
    facts = probe(path, "torch.export", fake_golden(image=image))
    assert [i.name for i in facts.inputs] == ["image", "features"]
    assert facts.static_batch is None
    with pytest.raises(BackendRefusal, match=r"the program has 2 inputs .* the dataset 1") as caught:
        probe(pickled(networks.TwoInThreeOut(), tmp_path), "pickle", fake_golden(image=image))
    assert caught.value.kind is RefusalKind.MODEL


def test_a_batch_of_one_at_export_is_static(save_program, fake_golden):
    """torch.export bakes it in without a word, whatever the signature says."""
    path = save_program(networks.resnet18(), IMAGE[:1], static=True)
    assert probe(path, "torch.export", fake_golden(x=IMAGE)).static_batch == 1


def test_a_static_batch_beyond_those_tried_is_found(save_program, fake_golden):
    path = save_program(networks.resnet18(), torch.randn(7, 3, 32, 32), static=True)
    assert probe(path, "torch.export", fake_golden(x=IMAGE)).static_batch == 7


def test_a_range_from_two_runs_a_batch_of_one(save_program, fake_golden):
    path = save_program(networks.small(), IMAGE[:2])
    assert str(torch.export.load(path).range_constraints) != "{}"
    assert probe(path, "torch.export", fake_golden(x=IMAGE)).static_batch is None


def test_a_module_that_says_nothing_is_tried(fake_golden, tmp_path):
    facts = probe(pickled(networks.Baked(), tmp_path), "pickle", fake_golden(x=VECTOR))
    assert facts.inputs[0].shape is None
    assert facts.static_batch == 2
    facts = probe(pickled(networks.small(), tmp_path), "pickle", fake_golden(x=IMAGE))
    assert facts.static_batch is None


def test_training_operators_are_found_in_the_graph(save_program, fake_golden):
    """`.training` is True for whatever was exported, so it says nothing."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5))
    facts = probe(save_program(module, IMAGE[:2], train=True), "torch.export", fake_golden(x=IMAGE))
    assert [name.partition(":")[2] for name in facts.training] == [" aten.batch_norm.default", " aten.dropout.default"]
    assert facts.mutated_buffers == ("1.num_batches_tracked", "1.running_mean", "1.running_var")


@pytest.mark.parametrize("train", [True, False])
def test_recurrent_dropout_counts_only_in_training(train, save_program, fake_golden):
    path = save_program(networks.Sequence(), torch.randn(2, 5, 4), train=train)
    facts = probe(path, "torch.export", fake_golden(x=torch.randn(2, 5, 4)))
    assert bool(facts.training) is train
    assert any("lstm" in name for name in facts.training) is train


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.InstanceNorm2d(4)),
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4, track_running_stats=False)),
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Dropout(0.0)),
        torch.nn.TransformerEncoderLayer(32, 2, 16, batch_first=True),
    ],
    ids=["instance norm", "batch norm without statistics", "dropout of nothing", "attention"],
)
def test_what_only_looks_like_training_is_let_through(module, save_program, fake_golden):
    example = torch.randn(2, 5, 32) if isinstance(module, torch.nn.TransformerEncoderLayer) else IMAGE[:2]
    assert probe(save_program(module, example), "torch.export", fake_golden(x=example)).training == ()


def test_a_pickle_in_training_mode_is_told_by_its_modules(fake_golden, tmp_path):
    module = networks.mobilenet().eval()
    module.classifier[2].train()
    facts = probe(pickled(module, tmp_path), "pickle", fake_golden(x=IMAGE))
    assert facts.training == ("classifier.2",)


def test_buffers_that_forward_writes_to_are_named(save_program, fake_golden, tmp_path):
    path = save_program(networks.Counter(), VECTOR)
    assert probe(path, "torch.export", fake_golden(x=VECTOR)).mutated_buffers == ("calls",)
    path = pickled(networks.Counter(), tmp_path)
    assert probe(path, "pickle", fake_golden(x=VECTOR)).mutated_buffers == ("calls",)


def test_a_model_that_runs_on_nothing_is_refused(fake_golden, tmp_path):
    with pytest.raises(BackendRefusal, match="no such") as refusal:
        probe(pickled(networks.Raises(), tmp_path), "pickle", fake_golden(x=VECTOR))
    assert refusal.value.kind is RefusalKind.MODEL


def test_an_unsafe_archive_is_refused_before_loading(fake_golden, tmp_path):
    (tmp_path / "model.pt2").write_bytes(b"PK")
    with pytest.raises(BackendRefusal) as refusal:
        probe(tmp_path / "model.pt2", "torch.export", fake_golden(x=VECTOR))
    assert refusal.value.kind is RefusalKind.FORMAT


def test_a_failed_export_is_a_fact_with_the_exporters_reason(save_program, fake_golden, tmp_path):
    """The exporter of torch 2.14 stumbles over a plain number among the outputs."""
    path = save_program(networks.Number(), VECTOR)
    assert probe(path, "torch.export", fake_golden(x=VECTOR)).outputs == ("output.0", "output.1")
    destination = tmp_path / "out" / "model.onnx"
    exported, weights = export(path, "torch.export", fake_golden(x=VECTOR), static_batch=None, destination=destination)
    assert exported.path is None
    assert weights is None
    assert "'int' object has no attribute 'name'" in exported.message
    assert "\x1b" not in exported.message


@pytest.mark.parametrize("stored_as", ["torch.export", "pickle"])
def test_two_exports_are_the_same_bytes(stored_as, save_program, fake_golden, tmp_path):
    module = networks.small().eval()
    path = save_program(module, IMAGE[:2]) if stored_as == "torch.export" else pickled(module, tmp_path)
    digests = set()
    for name in ("one", "two"):
        exported = tmp_path / name / "model.onnx"
        told, _ = export(path, stored_as, fake_golden(x=IMAGE), static_batch=None, destination=exported)
        assert told.path == str(exported)
        digests.add(hashlib.sha256(exported.read_bytes()).hexdigest())
        assert b"site-packages" not in exported.read_bytes()
        assert b"networks.py" not in exported.read_bytes()
    assert len(digests) == 1


def test_the_batch_stays_symbolic_in_the_export(save_program, fake_golden, tmp_path):
    exported = tmp_path / "out" / "model.onnx"
    path = save_program(networks.resnet18(), IMAGE[:2])
    export(path, "torch.export", fake_golden(x=IMAGE), static_batch=None, destination=exported)
    dims = onnx.load(exported).graph.input[0].type.tensor_type.shape.dim
    assert dims[0].dim_param
    assert [dim.dim_value for dim in dims[1:]] == [3, 32, 32]


def test_large_weights_go_beside_the_model(save_program, fake_golden, tmp_path, monkeypatch):
    monkeypatch.setattr("validator.backends.onnx_export.ONE_FILE_LIMIT_BYTES", 1 << 10)
    exported = tmp_path / "out" / "model.onnx"
    path = save_program(networks.small(), IMAGE[:2])
    told, _ = export(path, "torch.export", fake_golden(x=IMAGE), static_batch=None, destination=exported)
    assert told.path == str(exported)
    assert sorted(path.name for path in exported.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
