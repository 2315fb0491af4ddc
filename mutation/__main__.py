"""`python -m mutation TARGET`: run every mutant of a target against the tests that cover its line.

A mutant within a function is put into the running program as a new code object, in a fork that then runs the tests that
executed this line, quickest first, until one fails. One outside of functions (a constant, a limit of a field) needs a
fork that has imported nothing of ours yet, and runs all tests. Survivors are printed, and all results written to a file
if one is named.
"""

import argparse
import contextlib
import gc
import hashlib
import importlib.abc
import importlib.util
import json
import mmap
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import hypothesis
import pytest

from mutation.operators import Mutant, mutants

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Modules, and the tests that should notice."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    remembered: tuple[str, str] | None = None
    """Module and name of a pure function that no mutant changes, and that the tests call again and again."""


TARGETS = {
    "metrics": Target(
        modules=("validator/metrics.py",),
        tests=("tests/test_metrics.py", "tests/test_compare.py", "tests/test_decisions.py", "tests/test_pooling.py"),
    ),
    "compare": Target(
        modules=("validator/compare.py",),
        tests=("tests/test_compare.py", "tests/test_metrics.py", "tests/test_meaning.py", "tests/test_pooling.py"),
    ),
    "policy": Target(
        modules=("validator/policy.py",),
        tests=("tests/test_policy.py", "tests/test_waiver.py", "tests/test_policy_diff.py"),
    ),
    "judge": Target(
        modules=tuple(sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("validator/judge/*.py"))),
        tests=(
            "tests/test_findings.py",
            "tests/test_judge.py",
            "tests/test_judge_weights.py",
            "tests/test_pooling.py",
            "tests/test_decisions.py",
            "tests/test_waiver.py",
            "tests/test_evidence.py",
        ),
        remembered=("validator.compare", "compare"),
    ),
}
OPTIONS = (
    "-q",
    "-x",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
    "--capture=no",
    "--no-header",
    "--tb=no",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",  # hypothesis is here before pytest,
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a mutant."""

    module: str
    line: int
    column: int
    what: str
    end: str
    """`killed`, `timeout`, `survived`, or `uncovered`: no test executes the line."""


Note = Callable[[str, Mutant, str], None]
"""Takes down what became of a mutant of a module."""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m mutation", description="Count the mutants that no test notices.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--results", type=Path, help="JSON lines of all mutants")
    parser.add_argument("--part", choices=("functions", "constants"), help="only mutants within functions, or outside")
    parser.add_argument("--share", default="0/1", help="I/N: every Nth mutant from the Ith on, for several processes")
    parser.add_argument("--again", type=Path, help="results of an earlier run: only what was not killed then")
    parser.add_argument("--lines", help="FIRST-LAST: only mutants on these lines")
    given = parser.parse_args()
    os.chdir(ROOT)
    first, _, last = (given.lines or "1-1000000").partition("-")
    work = [
        (module, mutant)
        for module in TARGETS[given.target].modules
        for mutant in mutants((ROOT / module).read_text(encoding="utf-8"), str(ROOT / module))
        if int(first) <= mutant.line <= int(last)
    ]
    results: list[Result] = []

    def note(module: str, mutant: Mutant, end: str) -> None:
        results.append(Result(module=module, line=mutant.line, column=mutant.column, what=mutant.what, end=end))
        if given.results:
            with given.results.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(vars(results[-1])) + "\n")

    if given.results:
        given.results.write_text("", encoding="utf-8")
    # In no order: what has been run when somebody stops it is a fair sample.
    random.Random(0).shuffle(work)  # noqa: S311 - no secret
    start, _, step = given.share.partition("/")
    work = work[int(start) :: int(step)]
    if given.again:
        earlier = [json.loads(line) for line in given.again.read_text(encoding="utf-8").splitlines()]
        alive = {(r["module"], r["column"], r["what"]) for r in earlier if r["end"] != "killed"}
        work = [(module, mutant) for module, mutant in work if (module, mutant.column, mutant.what) in alive]
    if given.part != "functions":
        _run_imports(TARGETS[given.target], [item for item in work if not item[1].function], note)
    if given.part != "constants":
        _run_functions(TARGETS[given.target], [item for item in work if item[1].function], note)
    for result in sorted(results, key=lambda r: (r.module, r.line, r.column)):
        if result.end in ("survived", "uncovered"):
            print(f"{result.module}:{result.line}:{result.column}: {result.end}: {result.what}")
    ends = {end: sum(result.end == end for result in results) for end in ("killed", "timeout", "survived", "uncovered")}
    print(f"{given.target}: {len(results)} mutants, " + ", ".join(f"{count} {end}" for end, count in ends.items()))
    return 0


def _in_fork(do: Callable[[], bool], limit_s: float) -> str:
    """Run something in a fork that says whether the tests passed."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.setsid()
            gc.disable()
            status = 0 if do() else 1
        os._exit(status)
    end = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return "survived" if status == 0 else "killed"
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout"
        time.sleep(0.002)


# --- Outside of functions -----------------------------------------------------------------------------------------


class _Loader(importlib.abc.Loader):
    def __init__(self, code: CodeType) -> None:
        self.code = code

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)  # noqa: S102 - the mutant


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, mutant: Mutant) -> None:
        self.path = str(ROOT / module)
        name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.name, self.mutant = name, mutant

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        if name != self.name:
            return None
        locations = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            name, self.path, loader=_Loader(self.mutant.module), submodule_search_locations=locations
        )


def _run_imports(target: Target, work: Sequence[tuple[str, Mutant]], note: Note) -> None:
    """Run mutants in forks that import everything of ours after the change. What others wrote is here already."""
    assert "validator" not in sys.modules

    def run(plugin: object, finder: _Finder | None) -> bool:
        if finder is not None:
            sys.meta_path.insert(0, finder)
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        return pytest.main([*OPTIONS, *target.tests], plugins=[_Quiet(), plugin]) == 0

    if not work:
        return
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seen.json"
        if _in_fork(lambda: run(_Look(path), None), 600) != "survived":
            raise SystemExit("the tests do not pass as it is")
        seen = json.loads(path.read_text(encoding="utf-8"))
    limit_s = 60 + 10 * (time.monotonic() - begin)
    for name in seen["modules"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    order = _QuickestFirst(seen["costs"])
    for module, mutant in work:
        note(module, mutant, _in_fork(lambda: run(order, _Finder(module, mutant)), limit_s))  # noqa: B023


@dataclass(frozen=True)
class _Look:
    """Writes what each test cost and which packages of others it all needs."""

    path: Path
    costs: dict[str, float] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.costs[report.nodeid] = self.costs.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        ours = {name for name, module in sys.modules.items() if str(ROOT) in str(getattr(module, "__file__", ROOT))}
        packages = {name.partition(".")[0] for name in sys.modules.keys() - ours}
        self.path.write_text(json.dumps({"costs": self.costs, "modules": sorted(packages - ours)}), encoding="utf-8")


@dataclass(frozen=True)
class _QuickestFirst:
    costs: dict[str, float]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.costs.get(item.nodeid, 0.0))


EXAMPLES_MAX = 6


class _Quiet:
    """Hypothesis without its memory, with few examples and without making failures small: one is enough."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        hypothesis.settings.register_profile(
            "mutation", deadline=None, derandomize=True, database=None, phases=(hypothesis.Phase.generate,)
        )
        hypothesis.settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            function = getattr(item, "function", None)
            own = getattr(function, "_hypothesis_internal_use_settings", None)
            if own is not None:
                few = min(own.max_examples, EXAMPLES_MAX)
                function._hypothesis_internal_use_settings = hypothesis.settings(
                    own, max_examples=few, phases=(hypothesis.Phase.generate,), derandomize=True, database=None
                )


# --- Within functions ---------------------------------------------------------------------------------------------


def _run_functions(target: Target, work: Sequence[tuple[str, Mutant]], note: Note) -> None:
    """Run mutants in forks of a process that has collected and run all tests once."""
    runner = _Runner(target, work, note)
    if work and pytest.main([*OPTIONS, *target.tests], plugins=[_Quiet(), runner]) not in (0, 5):
        raise SystemExit("the tests do not pass as it is")


class _Runner:
    """A plugin that runs the tests once, notes which lines each executes, and then once more for each mutant."""

    def __init__(self, target: Target, work: Sequence[tuple[str, Mutant]], note: Note) -> None:
        self.target = target
        self.work = work
        self.note = note
        self.paths = {str(ROOT / module): module for module, _ in work}
        self.failed = False
        self.covering: dict[tuple[str, int], list[tuple[float, pytest.Item]]] = defaultdict(list)
        self.kills: dict[tuple[str, ...], Counter[int]] = defaultdict(Counter)
        """Function -> test, by its identity -> how many mutants of that function it has killed; () is all functions."""
        self.killer = mmap.mmap(-1, 8)
        """Shared with the forks: identity of the test that failed, 0 if none did."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self.target.remembered is not None:
            _remember(*self.target.remembered)
        for item in session.items:
            lines = self._trace(item)
            if self.failed:
                return True
            begin = time.perf_counter()
            _protocol(item)
            cost = time.perf_counter() - begin
            for place in lines:
                self.covering[place].append((cost, item))
        _functions()
        gc.freeze()  # or every collection in a fork copies all pages
        self._control(session.items, "the tests do not pass in a fork")
        for tests in self.covering.values():
            tests.sort(key=lambda test: test[0])
        for done, (module, mutant) in enumerate(self.work):
            if done % 50 == 0:
                print(f"{done} of {len(self.work)}", file=sys.stderr, flush=True)
            self.note(module, mutant, self._run(module, mutant))
        self._control(session.items, "a test or a file that tests read was edited meanwhile: these results are void")
        return True

    def _control(self, items: Sequence[pytest.Item], why: str) -> None:
        """Require that without a change every test passes in a fork, too, else all mutants would seem to be killed."""
        if _in_fork(lambda: self._pass(items), 600) != "survived":
            raise SystemExit(why)

    def _trace(self, item: pytest.Item) -> set[tuple[str, int]]:
        lines: set[tuple[str, int]] = set()

        def local(frame: FrameType, event: str, _argument: Any) -> Any:
            if event == "line":
                lines.add((frame.f_code.co_filename, frame.f_lineno))
            return local

        def call(frame: FrameType, _event: str, _argument: Any) -> Any:
            if frame.f_code.co_filename not in self.paths:
                return None
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            return local

        sys.settrace(call)
        try:
            _protocol(item)
        finally:
            sys.settrace(None)
        return lines

    def _run(self, module: str, mutant: Mutant) -> str:
        path = str(ROOT / module)
        lines = range(mutant.line, mutant.line + 1)
        tests = list(
            {id(item): (cost, item) for line in lines for cost, item in self.covering.get((path, line), [])}.values()
        )
        if not tests:
            tests = self._tests_of_function(path, mutant)
        if not tests:
            return "uncovered"
        function, code = _find(path, mutant)
        # What killed a neighbour is likely to kill this one, and what killed many will kill more: kills per second.
        near, all_ = self.kills[(path, *mutant.function)], self.kills[()]
        tests = sorted(tests, key=lambda test: -(0.05 + all_[id(test[1])] + 20 * near[id(test[1])]) / test[0])

        def do() -> bool:
            function.__code__ = code
            return self._pass([item for _, item in tests])

        self.killer[:] = bytes(8)
        end = _in_fork(do, 30 + 20 * sum(cost for cost, _ in tests))
        if killer := int.from_bytes(self.killer[:]):
            near[killer] += 1
            all_[killer] += 1
        return end

    def _pass(self, items: Sequence[pytest.Item]) -> bool:
        """Run tests in a fork until one fails."""
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        for item in items:
            _protocol(item)
            if self.failed:
                self.killer[:] = id(item).to_bytes(8)
                return False
        return True

    def _tests_of_function(self, path: str, mutant: Mutant) -> list[tuple[float, pytest.Item]]:
        """Return the tests of the whole function, for a line in the midst of an expression that has no event."""
        _, code = _find(path, mutant)
        lines = {line for inner in _codes(code) for _, _, line in inner.co_lines() if line}
        begin = max((line for line in lines if line <= mutant.line and (path, line) in self.covering), default=None)
        return [] if begin is None else self.covering[path, begin]


def _remember(module: str, name: str) -> None:
    """Let every module that holds a pure function have its answers of earlier: forks find those of the first pass.

    Three quarters of the time of the tests of the judgement are comparisons, the same ones for every mutant.
    """
    function = getattr(sys.modules[module], name)
    answers: dict[bytes, Any] = {}

    def remembering(*given: Any, **named: Any) -> Any:
        if named or not all(isinstance(value, list) for value in given):  # an iterator is gone once it is read
            return function(*given, **named)
        key = hashlib.sha256(pickle.dumps(given)).digest()
        if key not in answers:
            answers[key] = function(*given, **named)
        return answers[key]

    for holder in list(sys.modules.values()):
        if vars(holder).get(name) is function:
            setattr(holder, name, remembering)


def _protocol(item: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _find(path: str, mutant: Mutant) -> tuple[FunctionType, CodeType]:
    """Return the function that is running and the code that it shall run."""
    code = mutant.module
    for name in mutant.function:
        code = next(
            c
            for c in code.co_consts
            if isinstance(c, CodeType) and c.co_name == name and _last_line(c) >= mutant.line >= c.co_firstlineno
        )
    return _functions()[path, code.co_name, code.co_firstlineno], code


@cache
def _functions() -> dict[tuple[str, str, int], FunctionType]:
    """Return the functions that are loaded, whatever wraps them."""
    functions = [thing for thing in gc.get_objects() if type(thing) is FunctionType]
    return {(f.__code__.co_filename, f.__code__.co_name, f.__code__.co_firstlineno): f for f in functions}


def _last_line(code: CodeType) -> int:
    return max((line for inner in _codes(code) for _, _, line in inner.co_lines() if line), default=0)


if __name__ == "__main__":
    sys.exit(main())
