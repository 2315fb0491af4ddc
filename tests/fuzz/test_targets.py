"""Whatever readers are given, they read it or say no in the words that they declare. `fuzz` says which readers."""

import json
import resource
import struct
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS, Target
from tests.fuzz.documents import (
    broken_archive,
    broken_bytes,
    broken_document,
    dump_json,
    dump_toml,
    dump_yaml,
    load_toml,
)

EXAMPLES = 100
"""Of each target: some 30 s of CPU in all. More with `python -m fuzz`."""

JSON = ("verdict", "verdict-for-reports", "clearance", "keyless-bundle", "signed-statement")
TOML = ("policy", "output-declarations")


@cache
def sound(target: Target) -> list[bytes]:
    return [data for name, data in target.seeds().items() if not name.startswith("fault-")]


@cache
def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Broken bytes of any document, and well-formed documents with broken content where there is a form."""
    seeds = sound(target)
    ways = [broken_bytes(seeds)]
    if target.name in JSON:
        ways.append(broken_document(seeds, json.loads, dump_json))
    if target.name in TOML:
        ways.append(broken_document(seeds, load_toml, dump_toml))
    if archives := [data for data in seeds if data.startswith(b"PK")]:
        ways.append(broken_archive(archives))
    match target.name:
        case "mlmodel":
            ways.append(broken_document(seeds, yaml.safe_load, dump_yaml))
        case "model-input-example":
            ways.append(
                broken_document([s.partition(b"\0")[0] for s in seeds], yaml.safe_load, dump_yaml).map(
                    lambda model: model.replace(b"\0", b"") + b"\0[[0.5, 1.5]]"
                )
            )
        case "golden-dataset":
            manifest, _, shard = seeds[-1].partition(b"\0")
            ways.append(broken_document([manifest], json.loads, dump_json).map(lambda m: m + b"\0" + shard))
        case "two-policies":
            one = broken_document([seeds[0].partition(b"\0")[0]], load_toml, dump_toml)
            ways.append(st.tuples(one, one).map(b"\0".join))
        case "pt2-record":
            program = next(s for s in seeds if s.startswith(b"models/model.json")).partition(b"\n")[2]
            ways.append(broken_document([program], json.loads, dump_json).map(lambda p: b"models/model.json\n" + p))
        case "frame":
            ways.append(
                broken_document([frame_header(seeds[0])], json.loads, dump_json).map(
                    lambda header: struct.pack("<Q", len(header)) + header + seeds[0][-96:]
                )
            )
        case "pt2-expression" | "model-uri":
            ways.append(st.text(max_size=40).map(str.encode))
    return st.one_of(ways)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@given(data=st.data())
@settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_a_reader_raises_only_what_it_declares(target, data):
    target.run(data.draw(inputs(target)))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_documents_that_fuzzing_starts_from_are_sound(target):
    assert sound(target)
    assert all(target.run(data) for data in sound(target)), "has a format changed? python -m fuzz.make_corpus"


def frame_header(frame: bytes) -> bytes:
    (size,) = struct.unpack("<Q", frame[:8])
    return frame[8 : 8 + size]


@pytest.fixture
def little_memory():
    """At most 2 GiB more than now: a bomb is a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


ADMITTED = (
    "fault-flag-undefined.onnx",
    "fault-member-without-a-name.zip",
    "fault-cut-short.zip",
    "fault-damaged-compression.zip",
)
"""Not refused: a training flag that cannot be read counts as set, and the judge says no; of any file can be said what
it is, and broken archives are archives."""

FAULTS = [(t, name) for t in TARGETS.values() for name in t.seeds() if name.startswith("fault-")]


@pytest.mark.parametrize(("target", "name"), FAULTS, ids=[f"{t.name}-{name}" for t, name in FAULTS])
def test_what_was_once_read_wrongly_is_refused(target, name, little_memory):
    assert target.run(target.seeds()[name]) == (name in ADMITTED)
