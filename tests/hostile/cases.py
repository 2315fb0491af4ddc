"""The hostile corpus: every model, what it is, and whether it may pass at all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.hostile import archives, artifacts, models
from tests.hostile.artifacts import Files

Places = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One hostile model."""

    title: str
    files: Callable[[Places, bytes], Files]
    """(what there is to find, a healthy program) -> its artifacts."""
    tamper: Callable[[Path, Places], None] | None = None
    """Done to its folder in the store."""
    pickle: bool = False
    """Whether the policy admits pickles."""
    required: str = "eager-cpu plain-cpu"
    deadline_s: float = 240.0
    is_apart: bool = False
    """Run in a process of its own."""
    may_pass: bool = False
    """It computes right and was kept from everything else."""


def _runs(model: type, title: str, **other: object) -> Case:
    return Case(title=title, files=lambda places, _: artifacts.pickled(model.__name__, places), pickle=True, **other)  # type: ignore[arg-type]


def _has(title: str, files: Callable[[Places, bytes], Files], **other: object) -> Case:
    return Case(title=title, files=files, **other)  # type: ignore[arg-type]


def _beside(title: str, name: str, content: bytes, **other: object) -> Case:
    return _has(title, lambda _, program: artifacts.healthy(program, {name: content}), **other)


def _onnx(title: str, make: Callable[[Places], bytes]) -> Case:
    return _has(
        title,
        lambda places, program: artifacts.healthy(program, {artifacts.ONNX: make(places)}),
        required="eager-cpu onnxruntime-cpu",
    )


def _edited(title: str, change: Callable[[dict[str, object], Places], None]) -> Case:
    return _has(title, lambda places, program: artifacts.edited(program, lambda document: change(document, places)))


def _link(folder: Path, places: Places) -> None:
    (folder / "data" / "notes.txt").symlink_to(str(places["secret"]))


def _hard_link(folder: Path, places: Places) -> None:
    (folder / "data" / "notes.txt").hardlink_to(str(places["secret"]))


_SITE = b"import os\nos._exit(0)\n"
_SHOUTING = b'flavors:\n  pytorch:\n    model_data: "\\e[31m../\\n::error file=a.py::owned<script>alert(1)"\n'
_NATIVE = b"\x7fELF\x02\x01\x01" + bytes(64)

RUNNING = (
    _runs(models.ExitsWhenLoaded, "ends with `os._exit(0)` when it is loaded"),
    _has(
        "a pickle that names a module of its own `code/`, which ends with `os._exit(0)`",
        lambda places, _: artifacts.pickled_names_code(places),
        pickle=True,
    ),
    _runs(models.ExitsInForward, "ends with `os._exit(0)` when it is run"),
    _runs(models.Segfaults, "segmentation fault"),
    _runs(models.Sleeps, "sleeps for ten minutes", deadline_s=25.0),
    _runs(models.TakesAllMemory, "takes all memory"),
    _runs(models.AnswersNaN, "answers NaN everywhere"),
    _runs(models.CountsItsCalls, "counts its calls"),
    _runs(models.LooksAtTheClock, "looks at the clock"),
    _runs(models.KnowsTheSecondTime, "right only where it has seen the sample before"),
    _runs(models.KnowsTheRow, "right only in the baseline"),
    _runs(models.NamesItsOutputs, "wrong outputs, named with ANSI, HTML and `::error`"),
    _runs(models.ForgesTheNonce, "forges a closing record with a nonce of its own"),
    _runs(models.ForgesTheEnd, "forges a closing record with the job's nonce, without outputs"),
    _runs(models.ForgesCounts, "forges a closing record that counts frames it did not send"),
    _runs(models.ForgesAVerdict, "forges a closing record with a verdict in it"),
    _runs(models.CutsAFrameShort, "cuts a frame short and ends"),
    _runs(models.AnnouncesAHugeFrame, "announces a frame of 10^18 bytes"),
    _runs(models.SendsAPickle, "sends a pickle in the place of a frame"),
    _runs(models.ShoutsAndDies, "writes ANSI, HTML, `::error` and a traceback to its output, and ends"),
    _runs(models.RaisesHostileText, "raises an error whose text is ANSI, HTML and `::error`"),
    _runs(models.FloodsItsLog, "writes 20 MB of `::error` to its output, and ends"),
    _runs(
        models.LeavesNotes, "leaves notes for its other processes, and answers otherwise if it finds one", may_pass=True
    ),
    _runs(models.BehavesWhenHeld, "looks whether it is held, and behaves then", may_pass=True),
)
"""Models that run code: pickles, which the policy admits, so that `strict` holds them."""

TRYING = _runs(models.Tries, "everything in the table below, when it is loaded", is_apart=True)

LYING = (
    _has(
        "a pickle where the policy admits none",
        lambda places, _: artifacts.pickled(models.ExitsWhenLoaded.__name__, places),
    ),
    _has(
        "a `.pt2` with a pickle among its sample inputs",
        lambda places, program: artifacts.rewritten(
            program, replaced={"data/sample_inputs/model.pt": artifacts.payload(places)}
        ),
    ),
    _has(
        "a `.pt2` with 100 MB of zeros, packed",
        lambda _, program: artifacts.rewritten(program, added=[("extra/zeros.txt", bytes(100_000_000))]),
    ),
    _has(
        "a `.pt2` with a record `../../owned`",
        lambda _, program: artifacts.rewritten(program, added=[("../../owned", b"owned")]),
    ),
    _has(
        "a `.pt2` with a record that is a symbolic link",
        lambda places, program: artifacts.rewritten(program, added=[artifacts.link_record(str(places["secret"]))]),
    ),
    _has(
        "a `.pt2` whose graph calls `os.system`",
        lambda _, program: artifacts.edited(program, _call_system),
    ),
    _has(
        "a `.pt2` with a second declaration of its weights, for whoever vets it",
        lambda places, program: archives.decoy_declaration(program, places),
    ),
    _has(
        "a `.pt2` with two directories, one for whoever vets it",
        lambda places, program: archives.two_directories(program, places),
    ),
    _edited("a `.pt2` with code in the name of a weight", archives.name_code),
    _edited("a `.pt2` whose graph calls `aten.from_file` on a file of the user's", archives.open_a_file),
    _edited("a `.pt2` with code in the comment of a guard", archives.guard_with_comment),
    _has("a `.pt2` that was cut short", lambda _, program: artifacts.healthy(program[: len(program) // 2])),
    _onnx("an ONNX file of 300 bytes that asks for 4 TB", lambda _: artifacts.onnx_bomb()),
    _onnx(
        "an ONNX file whose weights are said to lie in the user's home",
        lambda places: artifacts.onnx_external(artifacts.relative_to_stage(str(places["secret"]))),
    ),
    _onnx("an ONNX file with a custom operator", lambda _: artifacts.onnx_custom_operator()),
    _onnx(
        "an ONNX file whose operator and domain are named with ANSI, HTML and `::error`",
        lambda _: artifacts.onnx_custom_operator(models.HOSTILE_TEXT, models.HOSTILE_TEXT),
    ),
    _beside("`sitecustomize.py` beside the program", "sitecustomize.py", _SITE),
    _beside("a `.pth` hook beside the program", "data/hook.pth", b"import os; os._exit(0)\n"),
    _beside("code in `code/`", "code/loader.py", _SITE),
    _beside("a library that is called a picture", "data/logo.png", _NATIVE),
    _has(
        "an `MLmodel` that points out of the model",
        lambda _, program: (
            artifacts.healthy(program) | {"MLmodel": b"flavors:\n  pytorch:\n    model_data: ../../../etc\n"}
        ),
    ),
    _has(
        "an `MLmodel` whose path is ANSI, HTML and `::error`",
        lambda _, program: artifacts.healthy(program) | {"MLmodel": _SHOUTING},
    ),
    _has(
        "two programs, named with ANSI and `::error`",
        lambda _, program: artifacts.healthy(program, {"data/\x1b[31m\n::error file=a.py::owned.pt2": program}),
    ),
    _has("a symbolic link in the store to the user's home", lambda _, p: artifacts.healthy(p), tamper=_link),
    _has("a hard link in the store to a file of the user's", lambda _, p: artifacts.healthy(p), tamper=_hard_link),
)
"""Models that are not what they look like; under the default policy."""


def _call_system(document: dict[str, object]) -> None:
    nodes = document["graph_module"]["graph"]["nodes"]  # type: ignore[index]
    nodes[0]["target"] = "os.system"


CASES = (*RUNNING, TRYING, *LYING)


def find_case(title: str) -> Case:
    """Return a case by its title; those that run code and those that do not may share one no more than others."""
    (found,) = (case for case in CASES if case.title == title)
    return found
