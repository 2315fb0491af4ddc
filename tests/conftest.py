"""The `gpu` lane: without a CUDA device its tests are deselected and counted; with `--require-gpu` none may skip.

A skipped test looks green. On the machine that exists to run these tests, a skip means that they did not run.
"""

import shutil
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

_DESELECTED = pytest.StashKey[int]()


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


def has_gpu() -> bool:
    """Whether a driver is there. Asking torch would cost its import in every run of the other lane."""
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--require-gpu") or has_gpu():
        return
    deselected = [item for item in items if item.get_closest_marker("gpu")]
    if deselected:
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=deselected)
    config.stash[_DESELECTED] = len(deselected)


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
    if is_skip and item.get_closest_marker("gpu") and item.config.getoption("--require-gpu"):
        _fail(report, f"{item.nodeid} was skipped under --require-gpu: {report.longrepr}")
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
