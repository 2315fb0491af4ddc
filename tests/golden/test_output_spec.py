"""A declaration that contradicts itself, another one or the model is an error of the user, told in one sentence."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tests.frames import facts
from validator.backends.interface import TensorFacts
from validator.cli.golden import golden
from validator.errors import ExitCode, GoldenError
from validator.golden.dataset import open_golden
from validator.golden.output_spec import OutputSpec, find_contradictions, read_outputs
from validator.golden.writer import Sample, write_golden
from validator.plan import check_fit


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def make(folder, **outputs):
    specs = {name: OutputSpec.model_validate(keys) for name, keys in outputs.items()}
    inputs = {"input": np.ones(3, np.float32), "mask": np.ones(3, np.bool_)}
    samples = [Sample(inputs=inputs)] * 9
    return write_golden(folder, samples, name="nine", source="a test", outputs=specs or None)


def fit(folder, *, outputs=("boxes", "scores", "labels"), **specs):
    inputs = tuple(
        TensorFacts(name=name, dtype=dtype, shape=(None, 3)) for name, dtype in (("input", "float32"), ("mask", "bool"))
    )
    check_fit(make(folder / "set", **specs), facts(inputs=inputs, outputs=outputs))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]", "a: it declares nothing"),
        ("[a]\nbatched = true", "a: it declares nothing"),
        ("[a]\nperiod = 6.28\none_lsb = true", "a: period and one_lsb contradict each other"),
        ("[a]\nperiod = 6.28\ntie_break = 'any'\nscores = 's'", "period and tie_break contradict each other"),
        ("[a]\none_lsb = true\ntie_break = 'any'\nscores = 's'", "one_lsb and tie_break contradict each other"),
        ("[a]\ntie_break = 'any'", "tie_break needs scores"),
        ("[a]\nscores = 's'", "scores means nothing without tie_break"),
        ("[a]\nwith = ['b']", "with means nothing without unordered"),
        ("[a]\nunordered = 'rows'\nwith = ['b', 'b']", "with names 'b' twice"),
        ("[a]\nunordered = 'rows'\ntie_break = 'any'\nscores = 's'", "unordered and tie_break contradict each other"),
        ("[a]\nperiod = 0.0", "a.period: input should be greater than 0"),
        ("[a]\nperiod = inf", "a.period: input should be a finite number"),
        ("[a]\nperiod = '1'", "a.period: input should be a valid number"),
        ("[a]\none_lsb = 1", "a.one_lsb: input should be a valid boolean"),
        ("[a]\nunordered = 'columns'", "a.unordered: input should be 'rows'"),
        ("[a]\natol = 1.0", "a.atol: extra inputs are not permitted"),
        ("[output.0]\nperiod = 1.0", "output.0: extra inputs are not permitted"),
        ("[a]\nvalid_mask = ''", "'' is empty or not printable"),
        ("a = 1", "a: input should be"),
        ("", "declares no output"),
        ("[a", "is no TOML"),
        ("[a]\nvalid_mask = 'a'", "output 'a': valid_mask names the output itself"),
        ("[a]\ntie_break = 'any'\nscores = 'a'", "output 'a': scores names the output itself"),
        ("[a]\nunordered = 'rows'\nwith = ['a']", "output 'a': with names the output itself"),
        ("[a]\nvalid_mask = 'm'\n[m]\none_lsb = true", "output 'm' is a mask, which is compared exactly"),
        ("[a]\nunordered = 'rows'\nwith = ['b']\n[b]\nunordered = 'rows'", "it can be in one group"),
        ("[a]\nunordered = 'rows'\nwith = ['b']\n[c]\nunordered = 'rows'\nwith = ['b']", "it can be in one group"),
        ("[a]\nunordered = 'rows'\nwith = ['m']\nvalid_mask = 'm'", "a mask cannot move with what it masks"),
        ("[a]\nunordered = 'rows'\nwith = ['b']\nbatched = false\n[b]\none_lsb = true", "only one of them is batched"),
        ("[a]\nunordered = 'rows'\nwith = ['b']\nvalid_mask = 'm'\n[b]\nvalid_mask = 'n'", "have different masks"),
        ("[a]\nunordered = 'rows'\n[i]\ntie_break = 'any'\nscores = 'a'", "an index has its place"),
        (
            "[a]\nunordered = 'rows'\nwith = ['i']\n[i]\ntie_break = 'any'\nscores = 's'",
            "output 'i': its indices and 's' cannot be unordered",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_says_what_is_wrong(tmp_path, text, words):
    with pytest.raises(GoldenError) as caught:
        read_outputs(write(tmp_path / "outputs.toml", text))
    assert words in caught.value.message
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path):
    with pytest.raises(GoldenError, match="cannot be read"):
        read_outputs(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(GoldenError, match="is no TOML"):
        read_outputs(tmp_path / "binary.toml")


def test_names_with_dots_are_written_in_quotes(tmp_path):
    specs = read_outputs(write(tmp_path / "o.toml", '["output.0"]\nperiod = 360\n'))
    assert specs["output.0"].period == 360.0


def test_a_dataset_without_declarations_has_the_digest_that_it_always_had(tmp_path):
    dataset = make(tmp_path / "set")
    assert "outputs" not in json.loads((tmp_path / "set" / "manifest.json").read_text())
    assert dataset.digest == "sha256:0e02fb9d2a1e6ba03485b33105bc7c1851caed3f97bacf746c052829090168b3"


def test_a_declaration_is_part_of_the_digest_and_is_read_back(tmp_path):
    keys = {"unordered": "rows", "with": ["scores"], "valid_mask": "mask"}
    plain, declared = make(tmp_path / "a"), make(tmp_path / "b", boxes=keys)
    assert plain.digest != declared.digest
    found = open_golden(tmp_path / "b")
    assert found == declared
    assert found.manifest.outputs == {"boxes": OutputSpec.model_validate(keys)}
    assert json.loads((tmp_path / "b" / "manifest.json").read_text())["outputs"] == {"boxes": keys}


def test_a_manifest_whose_declarations_contradict_each_other_is_refused(tmp_path):
    with pytest.raises(GoldenError, match="valid_mask names the output itself"):
        make(tmp_path / "a", boxes={"valid_mask": "boxes"})
    make(tmp_path / "b")
    path = tmp_path / "b" / "manifest.json"
    for outputs, words in (({}, "outputs declares none"), ({"a": {"period": -1.0}}, "greater than 0")):
        content = json.loads(path.read_text()) | {"outputs": outputs}
        path.write_text(json.dumps(content))
        with pytest.raises(GoldenError, match=words):
            open_golden(tmp_path / "b")


def test_declarations_of_many_outputs_may_stand_beside_each_other():
    specs = {
        "boxes": {"unordered": "rows", "with": ["labels", "angles"], "valid_mask": "m"},
        "labels": {"one_lsb": True},
        "angles": {"period": 1.0, "valid_mask": "m"},
        "best": {"tie_break": "any", "scores": "logits"},
    }
    assert not list(find_contradictions({n: OutputSpec.model_validate(s) for n, s in specs.items()}))


@pytest.mark.parametrize(
    ("specs", "words", "near"),
    [
        ({"boxs": {"period": 1.0}}, "declares what output boxs means, but the model has no boxs", "there is boxes;"),
        ({"zzz": {"period": 1.0}}, "the model has no zzz", "there is boxes, scores, labels;"),
        ({"labels": {"tie_break": "any", "scores": "score"}}, "with the help of score, .* has no score", "scores"),
        ({"boxes": {"unordered": "rows", "with": ["label"]}}, "with the help of label, .* has no label", "labels"),
        ({"boxes": {"valid_mask": "msk"}}, "to be masked by msk, but the model has no msk", "mask"),
        ({"boxes": {"valid_mask": "input"}}, "to be masked by its input input, which is float32", "bool or integer"),
    ],
)
def test_a_declaration_that_is_about_another_model_ends_the_check_before_anything_runs(tmp_path, specs, words, near):
    with pytest.raises(GoldenError, match=words) as caught:
        fit(tmp_path, **specs)
    assert near in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("mask", ["mask", "labels"])
def test_masks_may_be_inputs_and_outputs(tmp_path, mask):
    fit(tmp_path, boxes={"valid_mask": mask})


def test_where_outputs_are_not_known_before_the_run_nothing_is_said_yet(tmp_path):
    fit(tmp_path, outputs=None, nonsense={"period": 1.0})


def test_create_takes_declarations_and_show_prints_them(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    write(tmp_path / "o.toml", 'boxes = { unordered = "rows", with = ["labels"] }\n["a.0"]\nperiod = 360.0\n')

    def call(*arguments):
        return CliRunner().invoke(golden, [str(a) for a in arguments], catch_exceptions=False)

    call("create", tmp_path / "d.npz", tmp_path / "set", "--outputs", tmp_path / "o.toml")
    shown = call("show", tmp_path / "set").stdout
    assert '  output      boxes: unordered = "rows", with = ["labels"]' in shown
    assert "  output      a.0: period = 360.0" in shown
    document = json.loads(call("show", tmp_path / "set", "--json").stdout)
    assert document["outputs"] == {"boxes": {"unordered": "rows", "with": ["labels"]}, "a.0": {"period": 360.0}}


def test_create_refuses_a_wrong_declaration_before_it_reads_a_sample(tmp_path):
    with pytest.raises(GoldenError, match="is no TOML"):
        CliRunner().invoke(
            golden,
            ["create", "nowhere:samples", str(tmp_path / "set"), "--outputs", str(write(tmp_path / "o.toml", "["))],
            catch_exceptions=False,
        )
    assert not (tmp_path / "set").exists()
