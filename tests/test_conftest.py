"""The gpu lane, tried on a small suite of its own in a fresh pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = {
    "test_plain.py": "def test_plain():\n    pass\n",
    "test_gpu.py": "import pytest\n\n@pytest.mark.gpu\ndef test_gpu():\n    pytest.skip('no such device')\n",
    "test_module.py": (
        "import pytest\nno_such_module = pytest.importorskip('no_such_module')\n\n"
        "@pytest.mark.gpu\ndef test_never():\n    pass\n"
    ),
    "test_marked_skip.py": (
        "import pytest\n\n@pytest.mark.gpu\n@pytest.mark.skipif(True, reason='because')\ndef test_it():\n    pass\n"
    ),
}

SHARED = """
from pathlib import Path
import pytest

def make(path):
    with Path("made").open("a") as made:
        made.write("once\\n")
    path.write_text("shared")

@pytest.mark.parametrize("number", range(8))
def test_it(share, number):
    assert share("thing", make).read_text() == "shared"
"""


@pytest.fixture
def suite(tmp_path):
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a CUDA device\n")
    return tmp_path


def run_pytest(suite, *arguments):
    # An empty PATH and no device node: a machine without a GPU, wherever this runs.
    hide = "from pathlib import Path; import shutil; shutil.which = lambda _name: None; real = Path.exists; "
    hide += "Path.exists = lambda self, **k: str(self) != '/dev/nvidiactl' and real(self, **k); "
    program = f"{hide}import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "-p", "no:cacheprovider", "-p", "no:randomly", "-q", *arguments],
        cwd=suite,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


SPREADS = [("-p", "no:xdist"), ("-n", "0"), ("-n", "2", "--dist", "worksteal")]


@pytest.mark.parametrize("spread", SPREADS, ids=" ".join)
def test_without_a_device_gpu_tests_are_deselected_and_counted(suite, spread):
    status, said = run_pytest(suite, *spread)
    assert status == 0, said
    assert "2 gpu tests deselected: no CUDA device" in said
    assert "1 passed, 1 skipped, 2 deselected" in said


@pytest.mark.parametrize("spread", SPREADS, ids=" ".join)
def test_what_an_expression_leaves_out_is_counted_and_a_skip_gives_its_reason(suite, spread):
    (suite / "test_other.py").write_text("import pytest\n\ndef test_it():\n    pytest.skip('it rains')\n")
    status, said = run_pytest(suite, *spread, "-ra", "-k", "not plain")
    assert status == 0, said
    assert "it rains" in said
    assert "2 skipped, 3 deselected" in said


@pytest.mark.parametrize("spread", SPREADS, ids=" ".join)
def test_what_tests_share_is_made_once_in_a_run(suite, spread):
    (suite / "test_shared.py").write_text(SHARED)
    status, said = run_pytest(suite, *spread, "test_shared.py")
    assert status == 0, said
    assert (suite / "made").read_text() == "once\n"


def test_a_run_of_gpu_tests_alone_is_not_green_without_a_device(suite):
    status, said = run_pytest(suite, "-m", "gpu", "test_gpu.py")
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, said


@pytest.mark.parametrize("name", ["test_gpu.py", "test_module.py", "test_marked_skip.py"])
def test_a_skip_is_a_failure_where_a_gpu_is_required(suite, name):
    status, said = run_pytest(suite, "-m", "gpu", "--require-gpu", name)
    assert status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), said
    assert "under --require-gpu" in said


def test_other_tests_may_skip_where_a_gpu_is_required(suite):
    (suite / "test_other.py").write_text("import pytest\n\ndef test_it():\n    pytest.skip('fine')\n")
    status, said = run_pytest(suite, "--require-gpu", "test_other.py", "test_plain.py")
    assert status == 0, said
