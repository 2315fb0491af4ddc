"""`.pt2` archives that say one thing to whoever vets them and another to torch."""

import io
import json
import struct
import zipfile
from collections.abc import Mapping

from tests.hostile import artifacts
from tests.hostile.artifacts import PROGRAM, Files

CONFIG = "data/weights/model_weights_config.json"
_END = struct.Struct("<4s4H2LH")


def _config_of(program: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(CONFIG)))


def _with_pickled_weights(program: bytes, places: Mapping[str, object], more: Files) -> Files:
    """Replace the weight by a pickle that writes to the user's home, declared as one."""
    document = json.loads(_config_of(program))
    for entry in document["config"].values():
        entry["use_pickle"] = True
    replaced = {CONFIG: json.dumps(document).encode(), "data/weights/weight_0": artifacts.payload(places)}
    return artifacts.rewritten(program, replaced=replaced, added=more.items())


def decoy_declaration(program: bytes, places: Mapping[str, object]) -> Files:
    """Beside the declaration that torch reads, a second one that says that no weight is pickled."""
    return _with_pickled_weights(program, places, {"data/weights/decoy_weights_config.json": _config_of(program)})


def two_directories(program: bytes, places: Mapping[str, object]) -> Files:
    """An honest directory lies before the end, where zipfile looks; the end points to another, where torch looks."""
    hostile = _with_pickled_weights(program, places, {})[PROGRAM]
    honest = artifacts.rewritten(program)[PROGRAM]
    end = hostile[-_END.size :]
    return artifacts.healthy(hostile[: -_END.size] + honest[: -_END.size] + end)


def name_code(document: dict[str, object], places: Mapping[str, object]) -> None:
    """Let a weight's name leave the quotation marks between which torch writes it."""
    name = f'w", open({places["secret"] + ".owned"!r}, "w").close() or "'  # type: ignore[operator]
    specs = document["graph_module"]["signature"]["input_specs"]  # type: ignore[index]
    specs[0] = {"parameter": {"arg": {"name": "p_weight"}, "parameter_name": name}}


def open_a_file(document: dict[str, object], places: Mapping[str, object]) -> None:
    """Let the first node read a file of the user's."""
    node = document["graph_module"]["graph"]["nodes"][0]  # type: ignore[index]
    node["target"] = "torch.ops.aten.from_file.default"
    node["inputs"] = [{"name": "filename", "arg": {"as_string": places["secret"]}, "kind": 1}]


def guard_with_comment(document: dict[str, object], places: Mapping[str, object]) -> None:
    """Add a guard too long to be unparsed, which torch then writes into a text with its comment."""
    code = f"open({places['secret'] + '.owned'!r}, 'w').close()"  # type: ignore[operator]
    document["guards_code"].append(" + ".join(["1"] * 600) + f' >= 1 # ", {code}) #\n')  # type: ignore[attr-defined]
