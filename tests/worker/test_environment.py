import os
import subprocess
import sys
from pathlib import Path

from tests.worker.jobs import CPU, probe_job, run_job_of
from validator.worker.environment import INHERITED, import_roots, worker_environment
from validator.worker.warm import WarmSpec


def test_only_the_allow_list_is_inherited(tmp_path):
    inherited = dict.fromkeys(INHERITED, "kept") | {"PYTHONPATH": "/evil", "GITHUB_TOKEN": "secret"}
    built = worker_environment(WarmSpec.of_job(probe_job()), home=tmp_path, inherited=inherited)
    bare = worker_environment(WarmSpec.of_job(probe_job()), home=tmp_path, inherited={})
    assert {name: value for name, value in built.items() if name not in bare} == dict.fromkeys(INHERITED, "kept")
    assert not {"secret", "/evil"} & set(built.values())


def test_a_row_sets_variables_but_cannot_open_what_is_closed(tmp_path):
    row = CPU.model_copy(update={"environment": {"A": "1", "OMP_NUM_THREADS": "7", "PYTHONPATH": "/evil"}})
    built = worker_environment(WarmSpec.of_job(run_job_of(row)), home=tmp_path, inherited={})
    assert (built["A"], built["OMP_NUM_THREADS"]) == ("1", "7")
    assert built["PYTHONPATH"] == os.pathsep.join(import_roots())


def test_what_compilers_write_goes_to_the_workers_own_folder(tmp_path):
    built = worker_environment(WarmSpec.of_job(run_job_of()), home=tmp_path, inherited={"TRITON_CACHE_DIR": "/shared"})
    folders = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    assert all(Path(built[name]).is_relative_to(tmp_path) for name in folders)


def test_a_worker_imports_the_same_code_as_the_gate(tmp_path):
    """From any folder, without the folder itself."""
    (tmp_path / "torch.py").write_text("raise SystemExit('planted')")
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import validator, torch; print(validator.__file__, torch.__file__)"],
        cwd=tmp_path,
        env=worker_environment(WarmSpec.of_job(run_job_of()), home=tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    import torch

    import validator

    assert done.stdout.split() == [validator.__file__, torch.__file__]


def test_a_package_that_is_not_there_has_no_root():
    assert import_roots(["no_such_package_at_all"]) == []
