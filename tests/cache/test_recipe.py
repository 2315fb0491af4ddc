"""What decides a result is in its recipe, and nothing else: whatever is another there is another key."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import validator
from tests.cache.conftest import (
    FINGERPRINT,
    MODEL,
    PROGRAM,
    completed_export,
    completed_run,
    export_job,
    recipe_of,
    run_job,
)
from validator.backends.catalog import CATALOG, Backend, Runtime, find_backend
from validator.cache.recipe import Recipe, describe_machine, is_dear, packages_digest, source_digest, write_recipe
from validator.worker.protocol import ExportJob, Pass, PassKind, RunJob, WeightsJob

OTHERS: dict[str, Any] = {
    "format": 2,
    "domain": "proposed",
    "tool": "9.9.9",
    "source": "sha256:" + "0" * 64,
    "packages": "sha256:" + "0" * 64,
    "interpreter": "CPython 3.99",
    "machine": {"processor": "another"},
    "fingerprint": FINGERPRINT | {"torch": "2.11.0"},
    "variables": {"CUDA_VISIBLE_DEVICES": "1"},
    "sandbox": "standard",
    "model": "sha256:" + "0" * 64,
    "job": export_job(Path("/elsewhere")),
}
JOB_OTHERS: dict[str, Any] = {
    "job_id": "another",
    "model_path": "data/other.pt2",
    "model_format": "pickle",
    "threads": 2,
    "golden_digest": "sha256:" + "0" * 64,
    "backend": CATALOG["eager-cpu"],
    "passes": (Pass(kind=PassKind.MAIN, batch_size=1, ranges=((0, 4),)),),
    "static_batch": 8,
    "input_names": ("y",),
    "output_names": ("z",),
}
KNOBS: dict[str, Any] = {
    "name": "another",
    "summary": "another",
    "runtime": Runtime.ONNXRUNTIME,
    "device": "cuda",
    "baseline": "eager-cpu",
    "batch_size": 3,
    "environment": {"ATEN_CPU_CAPABILITY": "default"},
    "dtype": "float32",
    "autocast": "bfloat16",
    "matmul_precision": "tf32",
    "conv_precision": "tf32",
    "cudnn": False,
    "cudnn_benchmark": True,
    "deterministic": True,
    "onednn": False,
    "memory_format": "channels_last",
    "compile": "inductor",
    "use_tf32": True,
    "cudnn_conv_algo_search": "EXHAUSTIVE",
    "graph_optimization": "basic",
}
PLACELESS = {"nonce", "golden_path", "export_path", "task"}
"""Another in every check, or implied by the class."""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return recipe_of(completed_run(tmp_path / "scratch"))


@pytest.mark.parametrize("name", list(Recipe.model_fields))
def test_every_field_of_a_recipe_decides_its_key(recipe: Recipe, name: str) -> None:
    other = recipe.model_copy(update={name: OTHERS[name]})
    assert getattr(other, name) != getattr(recipe, name)
    assert other.key != recipe.key


@pytest.mark.parametrize("name", sorted((set(RunJob.model_fields) | set(ExportJob.model_fields)) - PLACELESS))
def test_every_field_of_a_job_decides_the_key(recipe: Recipe, name: str) -> None:
    job = recipe.job if name in RunJob.model_fields else export_job(Path("/scratch"))
    before = recipe.model_copy(update={"job": job})
    other = recipe.model_copy(update={"job": job.model_copy(update={name: JOB_OTHERS[name]})})
    assert other.key != before.key


@pytest.mark.parametrize("knob", list(Backend.model_fields))
def test_every_knob_of_the_row_decides_the_key(recipe: Recipe, knob: str) -> None:
    assert isinstance(recipe.job, RunJob)
    row = recipe.job.backend
    assert getattr(row, knob) != KNOBS[knob]
    other = recipe.job.model_copy(update={"backend": row.model_copy(update={knob: KNOBS[knob]})})
    assert recipe.model_copy(update={"job": other}).key != recipe.key


def test_where_files_lie_and_the_nonce_decide_nothing(tmp_path: Path) -> None:
    keys = {
        write_recipe(job, domain="local", model=MODEL, program=PROGRAM, fingerprint=FINGERPRINT, sandbox="strict").key
        for job in (run_job(tmp_path / "a", nonce="1" * 32), run_job(tmp_path / "b", nonce="2" * 32))
    }
    assert len(keys) == 1


def test_a_recipe_survives_its_own_text(tmp_path: Path) -> None:
    for outcome in (completed_run(tmp_path / "run"), completed_export(tmp_path / "scratch")):
        recipe = recipe_of(outcome)
        assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_whoever_edits_the_program_has_another_source(tmp_path: Path) -> None:
    copy = tmp_path / "validator"
    shutil.copytree(Path(validator.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert source_digest(copy) == source_digest()
    with (copy / "backends" / "double.py").open("a") as stream:
        stream.write("# edited\n")
    source_digest.cache_clear()
    assert source_digest(copy) != source_digest()


def test_another_version_or_build_of_any_package_is_another(tmp_path: Path) -> None:
    folder = tmp_path / "torch-2.14.1.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text("torch/lib/libtorch_cpu.so,sha256=abc,1\n")
    seen = [packages_digest((str(tmp_path),))]
    (folder / "RECORD").write_text("torch/lib/libtorch_cpu.so,sha256=abd,1\n")
    packages_digest.cache_clear()
    seen.append(packages_digest((str(tmp_path),)))
    folder.rename(tmp_path / "torch-2.14.2.dist-info")
    packages_digest.cache_clear()
    seen.append(packages_digest((str(tmp_path),)))
    assert len(set(seen)) == 3


CPU = "processor\t: {n}\nmodel name\t: {name}\ncpu MHz\t\t: {mhz}\nflags\t\t: fpu {flags}\n\n"


def test_another_processor_is_another_machine_and_its_clock_is_not(tmp_path: Path) -> None:
    def machine(**facts: object) -> dict[str, str]:
        text = "".join(CPU.format_map({"name": "X", "mhz": 2_000, "flags": "avx2"} | facts | {"n": n}) for n in (0, 1))
        (tmp_path / "cpuinfo").write_text(text)
        return describe_machine(tmp_path / "cpuinfo", tmp_path)

    assert machine() == machine(mhz=3_500)
    assert machine() != machine(flags="avx2 avx512f")
    assert machine() != machine(name="Y")


def test_another_gpu_or_driver_is_another_machine(tmp_path: Path) -> None:
    gpu = tmp_path / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (tmp_path / "version").write_text("NVRM version: 570.1\n")
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\nGPU UUID: \t GPU-1\n")
    before = describe_machine(gpu_info=tmp_path)
    assert before["gpus"] == "NVIDIA H200, GPU-1"
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 13\nGPU UUID: \t GPU-2\n")
    assert describe_machine(gpu_info=tmp_path)["gpus"] != before["gpus"]
    (tmp_path / "version").write_text("NVRM version: 580.1\n")
    assert describe_machine(gpu_info=tmp_path)["driver"] != before["driver"]


def test_only_the_reference_and_the_export_are_kept(tmp_path: Path) -> None:
    reference, export = run_job(tmp_path), export_job(tmp_path)
    assert is_dear(reference)
    assert is_dear(export)
    for name in CATALOG.keys() - {"reference"}:
        assert not is_dear(reference.model_copy(update={"job_id": name, "backend": find_backend(name, {})}))
    weights = WeightsJob(job_id="weights", nonce="1", model_path="m", model_format="onnx", threads=1, onnx_path="o")
    assert not is_dear(weights)
