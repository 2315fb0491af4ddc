import json
import sys

import mlflow
import numpy as np
import pytest
import torch
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec
from safetensors.torch import save_file

from validator.errors import GoldenError, UsageError
from validator.golden.sources import open_source
from validator.golden.writer import write_golden


def collect(source, **options):
    return list(open_source(str(source), **options).samples)


# MLflow warns about type hints of its own, whenever its pyfunc module is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred")


# --- Array files ----------------------------------------------------------------------------------------------


def test_npz_gives_one_sample_per_row_with_its_label(tmp_path):
    np.savez(tmp_path / "d.npz", b=np.arange(6).reshape(3, 2), a=np.ones(3, np.float32), labels=[5, 6, 7])
    samples = collect(tmp_path / "d.npz")
    assert [list(sample.inputs) for sample in samples] == [["b", "a"]] * 3
    assert [sample.inputs["b"].tolist() for sample in samples] == [[0, 1], [2, 3], [4, 5]]
    assert [int(sample.label) for sample in samples] == [5, 6, 7]


def test_npy_is_one_input_named_by_option(tmp_path):
    np.save(tmp_path / "d.npy", np.ones((2, 3)))
    assert list(collect(tmp_path / "d.npy")[0].inputs) == ["input"]
    assert list(collect(tmp_path / "d.npy", input_name="pixels")[0].inputs) == ["pixels"]


def test_safetensors_may_hold_bfloat16(tmp_path):
    tensors = {"x": torch.ones(2, 3, dtype=torch.bfloat16), "labels": torch.tensor([1, 0])}
    save_file(tensors, tmp_path / "d.safetensors")
    opened = open_source(str(tmp_path / "d.safetensors"))
    dataset = write_golden(tmp_path / "set", opened.samples, name=opened.default_name, source=opened.description)
    assert dataset.inputs[0].dtype == "bfloat16"
    assert dataset.labels(0, 2).tolist() == [1, 0]
    assert dataset.manifest.source == "file d.safetensors"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(3), "b": np.ones(2)}, "differ in their number of samples: a 3, b 2"),
        ({"a": np.ones((0, 3))}, "holds 0 samples"),
        ({"a": np.float32(1)}, "a is a single value"),
        ({"labels": np.arange(3)}, "holds no input array"),
        ({"a": np.ones(3), "labels": np.arange(2)}, "2 labels for 3 samples"),
        ({"a": np.ones(3), "labels": np.ones(3)}, "labels is float64"),
        ({"a": np.ones(3), "labels": np.ones((3, 1), int)}, "not one integer per sample"),
        ({"a": np.array([None, "b"])}, "holds Python objects"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_are_no_samples(tmp_path, arrays, message):
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(GoldenError, match=message):
        collect(tmp_path / "d.npz")


@pytest.mark.parametrize("name", ["d.npz", "d.npy", "d.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no arrays", b"PK\x03\x04 cut short"], ids=["empty", "text", "cut"])
def test_a_file_that_is_not_what_its_suffix_says(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GoldenError, match=name):
        collect(tmp_path / name)


def test_one_array_file_under_the_name_of_the_other_is_refused(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.ones(3))
    np.save(tmp_path / "d.npy", np.ones(3))
    (tmp_path / "d.npz").rename(tmp_path / "many.npy")
    (tmp_path / "d.npy").rename(tmp_path / "one.npz")
    with pytest.raises(GoldenError, match=r"many\.npy is no readable array file"):
        collect(tmp_path / "many.npy")
    with pytest.raises(GoldenError, match=r"one\.npz is a single array"):
        collect(tmp_path / "one.npz")


def test_npy_without_rows_or_with_objects(tmp_path):
    np.save(tmp_path / "none.npy", np.ones((0, 3)))
    np.save(tmp_path / "objects.npy", np.array([None]))
    with pytest.raises(GoldenError, match=r"none\.npy holds 0 samples"):
        collect(tmp_path / "none.npy")
    with pytest.raises(GoldenError, match=r"objects\.npy holds Python objects"):
        collect(tmp_path / "objects.npy")


def test_a_source_that_does_not_exist():
    with pytest.raises(GoldenError, match="does not exist") as caught:
        open_source("nowhere.npz")
    assert "module:function" in caught.value.hint


def test_a_file_of_an_unknown_kind(tmp_path):
    (tmp_path / "d.csv").write_text("1,2\n")
    with pytest.raises(GoldenError, match="is no source of samples"):
        open_source(str(tmp_path / "d.csv"))


def test_an_option_without_effect_is_an_error(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.ones(3))
    with pytest.raises(UsageError, match="--input has no meaning"):
        open_source(str(tmp_path / "d.npz"), input_name="y")
    with pytest.raises(UsageError, match="--transforms has no meaning"):
        open_source(str(tmp_path / "d.npz"), transforms="AlexNet_Weights.IMAGENET1K_V1")


# --- Functions ------------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the current directory; call it `own_data`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(body):
        (tmp_path / "own_data.py").write_text(body)

    yield write
    sys.modules.pop("own_data", None)


@pytest.mark.parametrize(
    ("item", "inputs", "label"),
    [
        ("np.ones(2)", ["input"], None),
        ("torch.ones(2)", ["input"], None),
        ("{'a': np.ones(2), 'b': np.ones(3)}", ["a", "b"], None),
        ("(np.ones(2), 4)", ["input"], 4),
        ("({'a': np.ones(2)}, torch.tensor(4))", ["a"], 4),
        ("Sample(id='one', inputs={'a': np.ones(2)}, label=4)", ["a"], 4),
    ],
)
def test_a_function_may_yield(module, item, inputs, label):
    head = "import numpy as np, torch\nfrom validator.golden.sample import Sample\n"
    module(f"{head}def samples():\n    yield {item}\n")
    (sample,) = collect("own_data:samples")
    assert list(sample.inputs) == inputs
    assert sample.label == label


def test_a_function_may_return_a_list(module):
    module("import numpy as np\ndef samples():\n    return [np.zeros(1), np.ones(1)]\n")
    assert len(collect("own_data:samples")) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the module own_data has no function samples"),
        ("samples = 3", "has no function samples"),
        ("import not_installed", "own_data cannot be imported: No module named 'not_installed'"),
        ("1 / 0", "importing own_data raised ZeroDivisionError"),
        ("def samples(): return 3", "returned a int, no series of samples"),
        ("def samples(): return 'abc'", "returned a str, no series of samples"),
        ("def samples(): yield [1, 2]", "sample 0 is a list, not an array"),
        ("def samples(): yield 1, 2, 3", "sample 0 is a tuple of 3"),
        ("def samples(path): yield 1", "raised TypeError: .*required positional argument"),
        ("def samples():\n    raise OSError('disk gone')\n    yield", "raised OSError: disk gone"),
    ],
)
def test_a_function_that_gives_no_samples(module, body, message):
    module(body)
    with pytest.raises(GoldenError, match=message):
        collect("own_data:samples")


def test_a_module_that_does_not_exist(module):
    with pytest.raises(GoldenError, match="the module own_data cannot be imported"):
        collect("own_data:samples")


def test_a_function_that_yields_nothing_is_no_dataset(module, tmp_path):
    module("def samples():\n    return iter([])\n")
    with pytest.raises(GoldenError, match="gave 0 samples"):
        write_golden(tmp_path / "set", open_source("own_data:samples").samples, name="none", source="a test")


# --- The model's own input example ----------------------------------------------------------------------------


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


@pytest.fixture
def save_model(tmp_path):
    """Let MLflow itself write a model folder, as a plain function model, which is quick."""

    def save(example, inputs):
        signature = ModelSignature(inputs=Schema(inputs)) if inputs else None
        folder = tmp_path / "model"
        model = mlflow.models.Model()
        if signature is not None:
            model.signature = signature
        folder.mkdir()
        if example is not None:
            mlflow.models.utils._Example(example).save(str(folder))
            model.saved_input_example_info = mlflow.models.utils._Example(example).info
        model.save(str(folder / "MLmodel"))
        return folder

    return save


def test_an_ndarray_example_keeps_its_dtype_and_bits(save_model):
    example = np.array([[0.1, 1e-42], [np.nan, -3]], np.float32)
    samples = collect(save_model(example, [TensorSpec(np.dtype(np.float32), (-1, 2))]))
    assert len(samples) == 2
    found = np.stack([sample.inputs["input"] for sample in samples])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, example)


def test_named_tensors_keep_their_names(save_model):
    example = {"ids": np.array([[1, 2]]), "mask": np.array([[True, False]])}
    specs = [TensorSpec(np.dtype(np.int64), (-1, 2), "ids"), TensorSpec(np.dtype(bool), (-1, 2), "mask")]
    (sample,) = collect(save_model(example, specs))
    assert {name: array.dtype.name for name, array in sample.inputs.items()} == {"ids": "int64", "mask": "bool"}


@pytest.mark.filterwarnings("ignore")  # MLflow and torch.export warn about themselves
def test_the_example_of_a_saved_pytorch_model_is_read(tmp_path):
    folder = tmp_path / "model"
    example = np.arange(8, dtype=np.float32).reshape(2, 4)
    mlflow.pytorch.save_model(Double(), folder, input_example=example, pip_requirements=[])
    assert list(folder.rglob("*.pt2"))
    samples = collect(folder, input_name="x")
    np.testing.assert_array_equal(np.stack([sample.inputs["x"] for sample in samples]), example)


def test_an_example_that_only_the_program_holds_is_not_opened(save_model):
    """Reading it would run code of the model, outside the sandbox."""
    folder = save_model(None, [TensorSpec(np.dtype(np.float32), (-1, 2))])
    (folder / "data").mkdir()
    (folder / "data" / "model.pt2").write_bytes(b"never read")
    with pytest.raises(GoldenError, match="inside its exported program") as caught:
        collect(folder)
    assert "numpy input_example" in caught.value.hint


def test_a_model_without_an_example(save_model):
    with pytest.raises(GoldenError, match="without an input example"):
        collect(save_model(None, None))


def test_an_example_without_a_signature_has_no_dtype(save_model):
    with pytest.raises(GoldenError, match="no tensor signature"):
        collect(save_model(np.ones((2, 2)), None))


def test_an_example_that_is_no_tensor(save_model):
    with pytest.raises(GoldenError, match="is a json_object, not a tensor"):
        collect(save_model({"prompt": "hello"}, None))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[1, 2", "cannot be read"),
        ("[[1], [2, 3]]", "is no float32 tensor"),
        ('{"other": [[1]]}', "name different inputs"),
        ("[]", "holds 0 samples"),
        ("3", "is a single value"),
    ],
)
def test_a_damaged_example(save_model, content, message):
    folder = save_model(np.ones((1, 2), np.float32), [TensorSpec(np.dtype(np.float32), (-1, 2))])
    (folder / "input_example.json").write_text(content)
    with pytest.raises(GoldenError, match=message):
        collect(folder)


def test_an_example_outside_the_model_is_not_read(save_model, tmp_path):
    folder = save_model(np.ones((1, 2), np.float32), [TensorSpec(np.dtype(np.float32), (-1, 2))])
    (tmp_path / "secret.json").write_text(json.dumps([[1]]))
    text = (folder / "MLmodel").read_text()
    (folder / "MLmodel").write_text(text.replace("artifact_path: input_example.json", "artifact_path: ../secret.json"))
    with pytest.raises(GoldenError, match="is not the name of an input example file"):
        collect(folder)


def test_an_unreadable_mlmodel_file(tmp_path):
    (tmp_path / "MLmodel").write_text("flavors: [")
    with pytest.raises(GoldenError, match="MLmodel cannot be read"):
        collect(tmp_path)
