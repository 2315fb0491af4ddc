"""What all tests share: the `gpu` lane, a browser, and one run spread over several processes.

Without a CUDA device the tests of the `gpu` lane are deselected and counted; with `--require-gpu` none may skip. A
skipped test looks green. On the machine that exists to run these tests, a skip means that they did not run. The
same goes for `--require-sandbox`, which CI gives: there bubblewrap is installed, and no test in tests/sandbox and
tests/hostile may skip; and for `--require-browser`: without it tests of the `browser` lane skip where there is no
Chromium.

`./dev test` runs under pytest-xdist, in which every process is a `worker` that collects and deselects for itself.
Plain `pytest`, without that plugin, runs the same tests in one.
"""

import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import settings

_DESELECTED = pytest.StashKey[int]()
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
"""0: this is no worker of xdist's."""

if _WORKERS:
    # Before torch is there to read it: more threads than cores only get in each other's way.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, str(max(1, len(os.sched_getaffinity(0)) // _WORKERS)))


# What one test computes is none of another's business, nor of whoever runs the tests.
os.environ["VALIDATOR_NO_CACHE"] = "1"


# No timing in tests: a loaded machine is no reason to fail.
settings.register_profile("validator", deadline=None)
settings.load_profile("validator")


def pytest_configure() -> None:
    """Take Ctrl-C again where the shell started us in the background: it has it ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="run gpu tests whether or not there is a CUDA device, and turn each of their skips into a failure",
    )
    parser.addoption(
        "--require-sandbox",
        action="store_true",
        help="turn each skip in tests/sandbox and tests/hostile into a failure",
    )
    parser.addoption(
        "--require-browser", action="store_true", help="turn each skip of a test in a browser into a failure"
    )
    parser.addoption(
        "--require-tools",
        action="store_true",
        help="fail where a tool that pipelines are linted or run with is missing, instead of skipping; see ./dev tools",
    )


def has_gpu() -> bool:
    """Whether a driver is there. Asking torch would cost its import in every run of the other lane."""
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    may_run = config.getoption("--require-gpu") or has_gpu()
    deselected = [] if may_run else [item for item in items if item.get_closest_marker("gpu")]
    if deselected:
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=deselected)
    config.stash[_DESELECTED] = len(deselected)
    if _WORKERS:
        config.workeroutput["gpu"] = len(deselected)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Let a worker tell what it left out, which xdist does not."""
    if _WORKERS and items:
        items[0].config.workeroutput.setdefault("deselected", []).extend(item.nodeid for item in items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Count what the workers left out. All collect the same, so the first that ends is enough."""
    config, output = node.config, getattr(node, "workeroutput", {})
    if _DESELECTED not in config.stash and "gpu" in output:
        config.stash[_DESELECTED] = output["gpu"]
        left_out = [SimpleNamespace(nodeid=nodeid) for nodeid in output.get("deselected", [])]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(_DESELECTED, 0)
    if count:
        terminalreporter.write_line(f"{count} gpu tests deselected: no CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_skip = report.skipped and not hasattr(report, "wasxfail")  # an xfail is reported as a skip, but it ran
    lanes = {lane for lane in ("gpu", "browser") if item.get_closest_marker(lane)}
    lanes |= {"sandbox"} if {"sandbox", "hostile"} & set(item.path.parts) else set()
    for lane in sorted(lanes) if is_skip else ():
        if item.config.getoption(f"--require-{lane}"):
            _fail(report, f"{item.nodeid} was skipped under --require-{lane}: {report.longrepr}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips itself (`importorskip`) has no markers yet, so under --require-gpu none may."""
    report = yield
    if report.skipped and collector.config.getoption("--require-gpu"):
        _fail(report, f"{collector.nodeid} skipped itself under --require-gpu: {report.longrepr}")
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport, why: str) -> None:
    report.outcome = "failed"
    report.longrepr = why


# --- A browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The Chromium of this machine, driven by Playwright, which brings none of its own here."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        # Its sandbox does not work for root, as whom containers run; what it shows is our own.
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


# --- Made once ----------------------------------------------------------------------------------------------------

Share = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def share(tmp_path_factory: pytest.TempPathFactory) -> Share:
    """Make a file or folder once in a run, in whichever process needs it first; nobody may change it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if _WORKERS else base) / "shared"
    folder.mkdir(exist_ok=True)

    def once(name: str, make: Callable[[Path], object]) -> Path:
        """Return the path of what `make` makes at the path that it is given."""
        path = folder / name
        with FileLock(folder / f"{name}.lock"):
            if not path.exists():
                draft = folder / f"{name}.draft" / path.name
                shutil.rmtree(draft.parent, ignore_errors=True)
                draft.parent.mkdir()
                make(draft)
                draft.rename(path)
        return path

    return once
