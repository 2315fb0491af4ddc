"""Kill a use case at every crash point; say what it left, and what the same call made of that.

A program of its own: it imports MLflow once and forks a process for every attempt, so that each begins without an open
database, and none pays for the imports. Prints one JSON document.
"""

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from mlflow.store.model_registry import sqlalchemy_store as _registry_store  # noqa: F401 - imported before the forks
from mlflow.store.tracking import sqlalchemy_store as _tracking_store  # noqa: F401 - likewise

import validator.check
import validator.disk
from tests.attest.world import GATE
from tests.builders import SAMPLES, Situation, evidence_of
from tests.fakes import FakeRegistry
from tests.promote.crasher import in_fork
from tests.registry.conftest import MlflowWorld
from tests.registry.test_contract import BLOCK, FILES, make_annotation
from validator.attest.keys import (
    KeyType,
    create_key_files,
    load_public_key,
    load_signer,
    public_key_of,
)
from validator.cache.secret import load_secret
from validator.check import CheckRequest
from validator.errors import GoldenError, KeyFileError
from validator.faults import CRASH_AT
from validator.golden.dataset import open_golden
from validator.golden.writer import Sample, write_golden
from validator.registry.interface import VERDICT_TAG, resolve_text
from validator.report.model import read_document
from validator.report.progress import SilentProgress
from validator.runs import Run
from validator.sandbox.level import Request
from validator.subject import OnnxOrigin, describe_onnx
from validator.verify import VerifyRequest, verify

POINTS_MAX = 200

Facts = dict[str, Any]


class Scenario(Protocol):
    """A use case in a folder of its own, called in a new process each time."""

    def prepare(self) -> None:
        """Make the world, with what an earlier call wrote."""

    def act(self) -> None:
        """Do it."""

    def faults(self) -> list[str]:
        """Say what is half-written or contradicts itself, at any moment."""

    def snapshot(self) -> Facts:
        """Tell all that counts when it is done, without ids and times."""


# --- validator check ----------------------------------------------------------------------------------------------


class Check:
    """A signed check with an export of its own, with recorded evidence in the place of workers.

    Its registry is in memory: what is looked at is the disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "report"
        self.registry = FakeRegistry()
        validator.check.foresee = lambda *_: []  # type: ignore[assignment]
        validator.check.load_signer = lambda _: GATE  # type: ignore[assignment]
        Run.gather = gather  # type: ignore[method-assign]
        model = folder.parent / "model"
        (model / "data").mkdir(parents=True)
        (model / "MLmodel").write_text("flavors: {}\n")
        with zipfile.ZipFile(model / "data" / "model.pt2", "w") as program:
            program.writestr("model/version", "1")
        self.registry.add_version("net", model)

    def prepare(self) -> None:
        images = np.random.default_rng(1).normal(size=(SAMPLES, 4)).astype(np.float32)
        samples = [Sample(inputs={"image": image}) for image in images]
        write_golden(self.folder / "golden", samples, name="golden", source="tests")
        (self.folder / "policy.toml").write_text('required = ["eager-cpu", "onnxruntime-cpu"]\nbatch_size = 16\n')
        self.act()

    def act(self) -> None:
        request = CheckRequest(
            uri="models:/net/1",
            policy=str(self.folder / "policy.toml"),
            sandbox=Request.NONE,
            output=self.output,
            golden=str(self.folder / "golden"),
            sign_key=self.folder / "gate.key",
        )
        validator.check.check(request, self.registry, SilentProgress())

    def faults(self) -> list[str]:
        found = []
        verdict, clearance = self.output / "verdict.json", self.output / "clearance.json"
        if verdict.exists():
            document = read_document(verdict.read_bytes(), origin="verdict.json")
            needed = [self.output / "samples.csv", self.output / "onnx/model.onnx"]
            found += [f"verdict.json without {path.name}" for path in needed if not path.exists()]
            found += ["verdict.json is no pass"] if document.verdict != "pass" else []
        if clearance.exists():
            found += [] if verdict.exists() else ["clearance.json without verdict.json"]
            found += self.unverified(clearance)
        return found

    def unverified(self, clearance: Path) -> list[str]:
        onnx = str(self.output / "onnx" / "model.onnx")
        request = VerifyRequest(uri="models:/net/1", keys=(public_key_of(GATE),), clearance=clearance, onnx=onnx)
        verification = verify(request, self.registry, datetime.now(UTC))
        return [f"{claim.name}: {claim.message}" for claim in verification.claims if not claim.holds]

    def snapshot(self) -> Facts:
        return {
            "files": sorted(str(path.relative_to(self.output)) for path in self.output.rglob("*")),
            "verdict": read_document((self.output / "verdict.json").read_bytes(), origin="x").verdict,
            "faults": self.faults(),
        }


def gather(run: Run, _extra: object) -> tuple[Any, Any]:
    """What the workers would have brought: an export of the gate's own, and evidence of a pass."""
    exported = run.inputs.scratch / "export" / "model.onnx"
    exported.parent.mkdir()
    exported.write_bytes(b"graph")
    evidence = evidence_of(Situation())
    bound = replace(evidence, golden_digest=run.inputs.golden.digest, weights_digest=run.inputs.staged.weights_digest)
    return bound, describe_onnx(exported, OnnxOrigin.EXPORT, "exported")


class Annotate:
    """What a check writes to MLflow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def world(self) -> MlflowWorld:
        return MlflowWorld(uri=f"sqlite:///{self.folder}/mlflow.db", folder=self.folder)

    def prepare(self) -> None:
        self.world().register("net", FILES)

    def act(self) -> None:
        registry = self.world().registry
        registry.annotate(make_annotation(resolve_text(registry, "models:/net/1"), self.folder))

    def faults(self) -> list[str]:
        """A verdict stands only where all that it speaks about does."""
        world = self.world()
        if VERDICT_TAG not in world.tags("net", 1):
            return []
        runs = world.find_runs("check-net")
        described = (world.description("net", 1) or "").count(BLOCK)
        found = [f"{len(runs)} runs"] if len(runs) != 1 else []
        found += [f"{described} blocks"] if described != 1 else []
        numbers = [world.history_length(run.info.run_id, "error_ratio") for run in runs]
        return found + ([f"numbers {numbers}"] if numbers != [1] else [])

    def snapshot(self) -> Facts:
        world = self.world()
        return {
            "verdict": world.tags("net", 1)[VERDICT_TAG],
            "runs": [run.info.status for run in world.find_runs("check-net")],
            "faults": self.faults(),
        }


# --- validator golden ---------------------------------------------------------------------------------------------


class Create:
    """A golden dataset in the place of another, whose policy stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "place"
        self.golden = self.folder / "golden"

    def prepare(self) -> None:
        self.write(1)
        (self.golden / "policy.toml").write_text("# mine")

    def act(self) -> None:
        self.write(2)

    def write(self, seed: int) -> None:
        images = np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)
        samples = [Sample(inputs={"x": image}) for image in images]
        write_golden(self.golden, samples, name=f"golden-{seed}", source="tests", replace=True)

    def faults(self) -> list[str]:
        try:
            open_golden(self.golden)
        except GoldenError as error:
            is_aside = validator.disk.aside_of(self.golden).is_dir()
            return [] if is_aside and not self.golden.exists() else [error.message]
        return [] if (self.golden / "policy.toml").read_text() == "# mine" else ["the policy is gone"]

    def snapshot(self) -> Facts:
        return {
            "digest": open_golden(self.golden).digest,
            "policy": (self.golden / "policy.toml").read_text(),
            "files": sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*")),
        }


class CreateWithoutExchange(Create):
    """The same where two folders cannot change places in one step."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        validator.disk._exchange = lambda *_: False  # type: ignore[assignment]


class Push:
    """The first golden dataset of a model goes to the registry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.golden = folder / "golden"

    def world(self) -> MlflowWorld:
        return MlflowWorld(uri=f"sqlite:///{self.folder}/mlflow.db", folder=self.folder)

    def prepare(self) -> None:
        samples = [Sample(inputs={"x": np.arange(3, dtype=np.float32)})]
        write_golden(self.golden, samples, name="golden", source="tests")

    def act(self) -> None:
        digest = {"validator.golden_digest": open_golden(self.golden).digest}
        self.world().registry.publish(
            "validator.golden.net", self.golden, model_type="validator.golden", alias="current", tags=digest
        )

    def faults(self) -> list[str]:
        client = self.world().client
        if not client.search_registered_models("name = 'validator.golden.net'"):
            return []
        found = []
        for version in client.search_model_versions("name = 'validator.golden.net'"):
            fetched = self.folder / f"fetched-{os.getpid()}-{version.version}"
            self.world().registry.fetch(f"models:/validator.golden.net/{version.version}", fetched)
            if open_golden(fetched).digest != open_golden(self.golden).digest:
                found.append(f"version {version.version} is another dataset")
        return found

    def snapshot(self) -> Facts:
        client = self.world().client
        subject = resolve_text(self.world().registry, "models:/validator.golden.net@current")
        versions = client.search_model_versions("name = 'validator.golden.net'")
        return {
            "alias": subject.version,
            "versions": {v.version: [v.status, sorted(v.tags)] for v in versions},
            "aliases": client.get_registered_model("validator.golden.net").aliases,
        }


# --- validator key ------------------------------------------------------------------------------------------------


class Key:
    """A new key: two files."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys" / "gate.key"

    def prepare(self) -> None:
        self.path.parent.mkdir()

    def act(self) -> None:
        is_done = self.path.exists() and self.path.with_name("gate.key.pub").exists()
        with suppress(KeyFileError) if is_done else nullcontext():
            create_key_files(self.path, KeyType.ED25519, {})

    def faults(self) -> list[str]:
        if self.path.exists():
            load_signer(self.path, {})
        elif self.path.with_name("gate.key.pub").exists():
            return ["a public half of no key"]
        return []

    def snapshot(self) -> Facts:
        public = load_public_key(self.path.with_name("gate.key.pub"))
        return {
            "pair": public.key_id == public_key_of(load_signer(self.path, {})).key_id,
            "files": sorted(path.name for path in self.path.parent.iterdir()),
        }


class CacheKey:
    """The key that entries of a cache are sealed with."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys" / "cache.key"

    def prepare(self) -> None:
        self.path.parent.mkdir()

    def act(self) -> None:
        load_secret(self.path)

    def faults(self) -> list[str]:
        if self.path.exists():
            load_secret(self.path)
        return []

    def snapshot(self) -> Facts:
        return {
            "bytes": len(load_secret(self.path)),
            "files": sorted(path.name for path in self.path.parent.iterdir()),
        }


SCENARIOS: dict[str, Callable[[Path], Scenario]] = {
    "check": Check,
    "annotation": Annotate,
    "golden create": Create,
    "golden create, no exchange": CreateWithoutExchange,
    "golden push": Push,
    "key create": Key,
    "cache key": CacheKey,
}


def main(folder: Path, name: str) -> None:
    """Kill it at every point until none is left."""
    world, before, scratch = folder / "world", folder / "before", folder / "scratch"
    scratch.mkdir()
    os.environ["TMPDIR"] = str(scratch)
    scenario = SCENARIOS[name](world)

    def finish(deed: Callable[[], Any], after: str = "nothing") -> Any:
        status, found, words = in_fork(deed)
        if status:
            raise SystemExit(f"after {after}: {words}")
        return found

    def act_again() -> Facts:
        scenario.act()
        return scenario.snapshot() | {"scratch": sorted(path.name for path in scratch.glob("validator-*"))}

    finish(scenario.prepare)
    shutil.copytree(world, before)
    undisturbed = finish(act_again)
    attempts = []
    for point in range(1, POINTS_MAX):
        shutil.rmtree(world)
        shutil.copytree(before, world)
        os.environ[CRASH_AT] = str(point)
        ended, _, words = in_fork(scenario.act)
        del os.environ[CRASH_AT]
        faults, finished = finish(lambda: [scenario.faults(), act_again()], words)
        attempts.append({"point": words.strip(), "ended": ended, "faults": faults, "finished": finished})
        sys.stderr.write(f"{words}{faults or ''}{'' if finished == undisturbed else finished}\n")
        if not os.WIFSIGNALED(ended):
            break
    json.dump({"undisturbed": undisturbed, "attempts": attempts}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
