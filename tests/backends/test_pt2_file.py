import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from pathlib import Path

import pytest
import torch

from tests.backends import networks
from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.pt2_file import vet_pt2

VECTOR = torch.randn(2, 8)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch /tmp/validator-was-here",)


@pytest.fixture
def program(save_program):
    return save_program(networks.Casts(), VECTOR)


def rewrite(path, *, replace=None, add=None, method=zipfile.ZIP_STORED):
    """Write an archive again with records replaced (name -> function of its bytes) and added."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    root = next(iter(records)).partition("/")[0]
    for name, change in (replace or {}).items():
        records[f"{root}/{name}"] = change(records[f"{root}/{name}"])
    records |= {f"{root}/{name}": content for name, content in (add or {}).items()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def edit_program(path, change):
    def apply(content):
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    rewrite(path, replace={"models/model.json": apply})


def refuse(path, match):
    with pytest.raises(BackendRefusal, match=match) as refusal:
        vet_pt2(path)
    assert (refusal.value.kind, refusal.value.stage) == (RefusalKind.FORMAT, "vet")


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (networks.mobilenet, torch.randn(2, 3, 32, 32)),
        (networks.vit, torch.randn(2, 3, 32, 32)),
        (networks.Sequence, torch.randn(2, 5, 4)),
        (networks.Casts, VECTOR),
        (networks.Autocast, VECTOR),
        (networks.Branch, VECTOR),
        (networks.Complex, VECTOR),
        (networks.Number, VECTOR),
        (networks.Masked, VECTOR),
    ],
)
def test_what_torch_writes_is_let_through(make, example, save_program):
    facts = vet_pt2(save_program(make(), example))
    assert facts.torch_version == torch.__version__
    assert facts.operators


def test_sizes_that_depend_on_each_other_are_let_through(save_program):
    class Half(torch.nn.Module):
        def forward(self, x):
            return x[:, : x.shape[1] // 2] + x.shape[0] % 3

    shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    vet_pt2(save_program(Half(), torch.randn(6, 8), shapes=shapes))


def test_what_mlflow_writes_is_let_through(tmp_path):
    module = torch.nn.Linear(8, 2).eval()
    with warnings.catch_warnings(action="ignore"):  # MLflow's own
        import mlflow.models
        import mlflow.pytorch

        signature = mlflow.models.infer_signature(VECTOR.numpy(), module(VECTOR).detach().numpy())
        mlflow.pytorch.save_model(module, tmp_path / "m", input_example=VECTOR.numpy(), signature=signature)
    vet_pt2(tmp_path / "m" / "data" / "model.pt2")


def test_a_rewritten_archive_is_still_sound(program):
    """The control of the tests below: rewriting alone is not what they refuse."""
    rewrite(program)
    vet_pt2(program)


@pytest.mark.parametrize(
    "record",
    ["data/sample_inputs/model.pt", "data/weights/extra.pt", "data/constants/tensor_9", "data/weights/weight_99"],
)
@pytest.mark.parametrize("wrap", ["torch.save", "pickle"])
def test_a_pickle_that_runs_code_is_refused(record, wrap, program, tmp_path):
    stream = io.BytesIO()
    if wrap == "torch.save":
        torch.save(Bomb(), stream)
    else:
        pickle.dump(Bomb(), stream)
    rewrite(program, add={record: stream.getvalue()})
    refuse(program, record)
    assert not Path("/tmp/validator-was-here").exists()


def test_a_weight_declared_as_pickle_is_judged_as_one(program):
    def change(content):
        document = json.loads(content)
        next(iter(document["config"].values()))["use_pickle"] = True
        return json.dumps(document).encode()

    rewrite(program, replace={"data/weights/model_weights_config.json": change})
    refuse(program, "weight_0")


@pytest.mark.parametrize(
    "record",
    [
        "data/aotinductor/model/wrapper.so",
        "data/constants/custom_obj_0",
        "data/constants/opaque_obj_0",
        "data/mtia/x",
        "module.so",
        "data/weights/weight_0.py",
        "../../outside",
    ],
)
def test_records_of_another_kind_are_refused(record, program):
    rewrite(program, add={record: b"\x7fELF"})
    refuse(program, "record")


def test_a_library_among_the_extra_files_is_refused(program):
    rewrite(program, add={"extra/lib": b"\x7fELF\x00\xff"})
    refuse(program, "extra file")


def test_text_among_the_extra_files_is_let_through(program):
    rewrite(program, add={"extra/notes.txt": b"trained on Tuesday"})
    vet_pt2(program)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "exec('1')",
        "L['x'].size.__globals__",
        "(lambda: 1)()",
        "[c for c in ().__class__.__base__.__subclasses__()]",
        "Max('exec(1)', 2)",
        "Symbol('__import__(1)')",
        "L['x'].size()[0] == 2\n  import os",
        "f'{1}'",
        "open('/etc/passwd')",
    ],
)
@pytest.mark.parametrize("place", ["guard", "size", "range"])
def test_expressions_that_torch_would_evaluate_are_arithmetic_only(expression, place, program):
    """torch passes sizes to sympy.sympify, which evaluates, and writes guards into a function that it compiles."""

    def change(document):
        if place == "guard":
            document["guards_code"].append(expression)
        elif place == "range":
            document["range_constraints"][expression] = {"min_val": 1, "max_val": 2}
        else:
            text = json.dumps(document["graph_module"]["graph"])
            assert "expr_str" in text
            sizes = document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
            sizes[0]["as_expr"]["expr_str"] = expression

    edit_program(program, change)
    refuse(program, "expr_str|guards_code|range_constraints")


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.load_library",
        "torch.hub.load",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save.default",
        "torch.ops.prim.PythonOp.default",
        "torch.os.system",
        "torch.load",
        "torch.ops.evil.run.default",
        "torch.ops.higher_order.triton_kernel_wrapper_mutation",
        "_operator.attrgetter",
        "math.os",
        "#extension",
        "os.system",
    ],
)
def test_operators_are_torchs_own(target, program):
    """torch resolves a target by walking attributes from the module `torch`, and calls what it finds."""

    def change(document):
        document["graph_module"]["graph"]["nodes"][0]["target"] = target

    edit_program(program, change)
    refuse(program, "operator")


def test_names_that_go_into_source_code_are_identifiers(program):
    def change(document):
        document["graph_module"]["graph"]["nodes"][0]["name"] = "x = __import__('os')"

    edit_program(program, change)
    refuse(program, "plain name")


def test_a_guard_cannot_leave_the_line_of_code_and_the_text_that_it_is_written_into(program):
    """A sum too long for `ast.unparse` is written into a message as it is, comment and quotation mark included."""
    guard = " + ".join(["1"] * 600) + " >= 1 # \", exec('1')) #\n"
    edit_program(program, lambda document: document["guards_code"].append(guard))
    refuse(program, "guards_code")


@pytest.mark.parametrize("key", ["x, y: [m[0] for m.__class_getitem__ in [n]]", "x=1", "f(x)", "*x", "x:y"])
def test_keys_of_keyword_arguments_are_plain(key, program):
    """They become the head of a function: what stands behind a colon there is evaluated."""

    def change(document):
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        protocol, tree = json.loads(signature["in_spec"])
        tree["children_spec"][1]["context"] = json.dumps([key])
        signature["in_spec"] = json.dumps([protocol, tree])
        signature["forward_arg_names"] = None

    edit_program(program, change)
    refuse(program, "in_spec")


@pytest.mark.parametrize("key", ["from_node", "source_fn_stack", "torch_fn"])
@pytest.mark.parametrize("line_end", ["\n", "\u2028", "\\n"])
def test_metadata_is_one_line(key, line_end, program):
    """Inductor writes names from it into a comment of the code that it generates."""

    def change(document):
        document["graph_module"]["graph"]["nodes"][0]["metadata"][key] = f"a{line_end}exec('1')"

    edit_program(program, change)
    refuse(program, "metadata")


def test_text_in_a_place_that_torch_does_not_write_is_refused(program):
    def change(document):
        document["graph_module"]["loader"] = "os.system"

    edit_program(program, change)
    refuse(program, "does not write")


@pytest.mark.parametrize("place", ["tensor_values", "sym_int_values", "treespec_namedtuple_fields"])
def test_names_that_are_keys_are_names(place, program):
    def change(document):
        module = document["graph_module"]
        module.get(place, module["graph"].get(place))["x = exec('1')"] = {"field_names": []}

    edit_program(program, change)
    refuse(program, "plain name")


@pytest.mark.parametrize("place", ["input", "weight", "module", "mutation"])
def test_names_that_go_into_source_code_another_way_cannot_leave_it(place, program):
    """A size among the inputs becomes a parameter of a function; a weight's name is written between double quotes."""
    code = 'w", exec("1") or "'

    def change(document):
        module = document["graph_module"]
        if place == "input":
            module["graph"]["inputs"].append({"as_sym_int": {"as_name": "a=exec('1')"}})
        elif place == "weight":
            module["signature"]["input_specs"][0] = {"parameter": {"arg": {"name": "p"}, "parameter_name": code}}
        elif place == "module":
            module["module_call_graph"].append({"fqn": code, "signature": None})
        else:
            module["signature"]["output_specs"][0] = {"buffer_mutation": {"arg": {"name": "p"}, "buffer_name": code}}

    edit_program(program, change)
    refuse(program, "the program names")


@pytest.mark.parametrize(
    "context",
    [
        {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []},
        {"__enum__": True, "fqn": "antigravity:x", "name": "A"},
    ],
)
@pytest.mark.parametrize("blank", [" ", "\n"])
def test_a_tree_imports_no_module(blank, context, program):
    def change(document):
        spec = [1, {"type": "collections.defaultdict", "context": context, "children_spec": []}]
        document["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = blank + json.dumps(spec)

    edit_program(program, change)
    refuse(program, "in_spec")


def pickled(path):
    """Let the weights be declared as pickles, and be one that runs code; return the honest declaration."""
    honest = {}

    def change(content):
        honest["config"] = content
        document = json.loads(content)
        for entry in document["config"].values():
            entry["use_pickle"] = True
        return json.dumps(document).encode()

    stream = io.BytesIO()
    torch.save(Bomb(), stream)
    replace = {"data/weights/model_weights_config.json": change, "data/weights/weight_0": lambda _: stream.getvalue()}
    rewrite(path, replace=replace)
    return honest["config"]


@pytest.mark.parametrize(
    "name", ["decoy_weights_config.json", "MODEL_weights_config.json", "model_constants_config.json"]
)
def test_a_second_declaration_of_the_weights_vouches_for_nothing(name, program):
    """torch reads one of them; the others are there for whoever vets the file."""
    honest = pickled(program)
    rewrite(program, add={f"data/weights/{name}": honest})
    refuse(program, "record")


def test_records_that_differ_in_case_only_are_refused(program):
    """torch finds records without regard to case."""
    rewrite(program, add={"extra/notes": b"one", "EXTRA/notes": b"other"})
    refuse(program, "case")


@pytest.mark.parametrize("is_large", [False, True])
def test_a_file_with_two_directories_is_refused(is_large, program):
    """zipfile takes the directory that lies before the end, torch the one that the end, or its locator, points to."""
    rewrite(program)
    honest = program.read_bytes()
    pickled(program)
    (count, size, offset), hostile = struct.unpack("<H2L", program.read_bytes()[-12:-2]), program.read_bytes()[:-22]
    counts = (count, count, size)
    if is_large:
        end64 = struct.Struct("<4sQ2H2L4Q")
        hostile_end = end64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, *counts, offset)
        start = len(hostile) + len(hostile_end)
        content = hostile + hostile_end + honest[:-22]
        content += end64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, *counts, start + len(honest) - 22 - size)
        content += struct.pack("<4sLQL", b"PK\x06\x07", 0, len(hostile), 1)
        content += struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    else:
        content = hostile + honest[:-22] + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, *counts, offset, 0)
    program.write_bytes(content)
    refuse(program, "points elsewhere")


def test_a_bomb_within_a_record_is_refused(program):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(0))
        archive.writestr("archive/data/0", bytes(1 << 25))
    rewrite(program, add={"data/sample_inputs/model.pt": inner.getvalue()})
    refuse(program, "unpacks to 335")


def test_a_bomb_is_refused(program):
    rewrite(program, add={"extra/zeros": b"0" * 40_000_000}, method=zipfile.ZIP_DEFLATED)
    refuse(program, "times its size")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_truncated_archive_is_refused(share, program):
    program.write_bytes(program.read_bytes()[: int(share * program.stat().st_size)])
    refuse(program, "not a readable archive")


def test_a_plain_archive_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("version", "1.2")
        archive.writestr("serialized_state_dict.pt", b"")
    refuse(tmp_path / "model.pt2", "plain file|root folders")


def test_globals_that_others_added_do_not_widen_the_judgement(program):
    stream = io.BytesIO()
    torch.save(networks.Tuple(), stream)
    rewrite(program, add={"data/weights/more.pt": stream.getvalue()})
    with torch.serialization.safe_globals([networks.Tuple]):
        refuse(program, "more.pt")
