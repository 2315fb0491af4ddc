"""Strategies that start from a valid document and break it: as bytes, and as what it means."""

import io
import json
import tomllib
import zipfile
from collections.abc import Callable
from typing import Any

import tomli_w
import yaml
from hypothesis import strategies as st

Tree = Any

ODD_TEXT = (
    "",
    " ",
    "\0",
    "\n",
    "../x",
    "/etc/passwd",
    "\x1b[31m",
    "::error::x",
    "é\u202e",
    "x" * 300,
    "1e999",
    "NaN",
    "a/b@c",
)
ODD_NUMBERS = (0, -1, 1, 2, 2**31, 2**63, 2**64, 10**30, 0.0, -0.0, 1.5, 1e-320, 1e308, float("inf"), float("nan"))

leaves = st.one_of(
    st.sampled_from([*ODD_TEXT, *ODD_NUMBERS, None, True, False]), st.integers(), st.floats(), st.text(max_size=8)
)
odd_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def broken_bytes(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with a few edits."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 9))
        match draw(st.sampled_from(("flip", "set", "insert", "cut", "repeat", "end", "splice"))):
            case "flip" if at < len(data):
                data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
            case "set":
                data = (
                    data[:at]
                    + draw(st.sampled_from((b"\0", b"\xff", b"\x80", b"9", b'"', b"\\"))) * size
                    + data[at + size :]
                )
            case "insert":
                data = data[:at] + draw(st.binary(max_size=9)) + data[at:]
            case "cut":
                data = data[:at] + data[at + size :]
            case "repeat":
                data = data[:at] + data[at : at + size] * draw(st.integers(2, 50)) + data[at + size :]
            case "end":
                data = data[:at]
            case "splice":
                other = draw(st.sampled_from(seeds))
                data = data[:at] + other[draw(st.integers(0, len(other))) :]
    return data


@st.composite
def broken_tree(draw: st.DrawFn, tree: Tree) -> Tree:
    """A document with a few of its values replaced, taken out, doubled or put elsewhere."""
    tree = json.loads(json.dumps(tree)) if is_json(tree) else tree
    for _ in range(draw(st.integers(1, 3))):
        tree = edit(tree, draw)
    return tree


def is_json(tree: Tree) -> bool:
    try:
        json.dumps(tree)
    except TypeError:
        return False
    return True


def edit(tree: Tree, draw: st.DrawFn) -> Tree:
    """Change one value somewhere below."""
    if not isinstance(tree, dict | list) or not tree or draw(st.integers(0, 9)) == 0:
        return draw(odd_values)
    if isinstance(tree, list):
        at = draw(st.integers(0, len(tree) - 1))
        match draw(st.sampled_from(("below", "below", "below", "out", "twice"))):
            case "below":
                return [*tree[:at], edit(tree[at], draw), *tree[at + 1 :]]
            case "out":
                return [*tree[:at], *tree[at + 1 :]]
        return [*tree[: at + 1], *tree[at:]]
    key = draw(st.sampled_from(sorted(tree)))
    match draw(st.sampled_from(("below", "below", "below", "below", "out", "new", "rename"))):
        case "below":
            return {**tree, key: edit(tree[key], draw)}
        case "out":
            return {name: value for name, value in tree.items() if name != key}
        case "new":
            return {**tree, draw(st.sampled_from(ODD_TEXT)): draw(odd_values)}
    return {(draw(st.sampled_from(ODD_TEXT)) if name == key else name): value for name, value in tree.items()}


def broken_document(
    seeds: list[bytes], load: Callable[[bytes], Tree], dump: Callable[[Tree], bytes]
) -> st.SearchStrategy[bytes]:
    """Documents that are still well-formed, or nearly so."""
    trees = [load(seed) for seed in seeds]
    return st.sampled_from(trees).flatmap(broken_tree).map(dump)


def dump_json(tree: Tree) -> bytes:
    """Write JSON the way it is signed; NaN as Python does."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def dump_yaml(tree: Tree) -> bytes:
    return yaml.safe_dump(tree, allow_unicode=True).encode()


def load_toml(data: bytes) -> Tree:
    return tomllib.loads(data.decode())


def dump_toml(tree: Tree) -> bytes:
    """Write TOML; what TOML cannot say is written as Python says it, which is none."""
    try:
        return tomli_w.dumps(tree).encode()
    except (TypeError, AttributeError, ValueError):
        return f"required = {tree!r}\n".encode(errors="replace")


@st.composite
def broken_archive(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A zip archive whose records are sound as such: checksums hold, contents and names do not."""
    with zipfile.ZipFile(io.BytesIO(draw(st.sampled_from(seeds)))) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = draw(st.integers(0, len(records) - 1))
    name, content = records[at]
    match draw(st.sampled_from(("content", "content", "content", "name", "out", "add"))):
        case "content":
            records[at] = (name, draw(broken_bytes([content])))
        case "name":
            records[at] = (draw(st.sampled_from([text for text in ODD_TEXT if text and "\0" not in text])), content)
        case "out":
            records.pop(at)
        case "add":
            records.append((f"{name}.more", content))
    stream = io.BytesIO()
    method = draw(st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)))
    with zipfile.ZipFile(stream, "w", method) as archive:
        for path, record in dict(records).items():
            archive.writestr(path, record)
    return stream.getvalue()
