"""The attempts at the level `standard`, where the gate would open no pickle: a worker is handed one all the same."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.hostile import artifacts
from tests.hostile.world import Run, World, find_escapes, open_world
from tests.worker.jobs import run_job_of
from validator.golden.dataset import open_golden
from validator.inputs import load_policy
from validator.report.progress import SilentProgress
from validator.runs import make_stage, open_sandbox
from validator.sandbox.level import Request
from validator.worker.launch import Limits, run_job
from validator.worker.outcome import Crashed, Outcome


def try_at_standard(folder: Path) -> tuple[Mapping[int, str], tuple[str, ...]]:
    """Return number of an attempt -> how it was stopped, and what got out."""
    with open_world(folder) as world:
        policy = world.write_policy(required="eager-cpu plain-cpu", pickle=True, deadline_s=240)
        before = world.fingerprint()
        outcome = _run(world, policy)
        if not isinstance(outcome, Crashed):
            raise TypeError(f"the model was to end its worker: {outcome}")
        tried = {int(number): how for number, how in re.findall(r"\b(\d+)=(\w+)", outcome.log_tail)}
        ended = Run(exit_code=3, said=outcome.log_tail.encode())
        return tried, tuple(find_escapes(world, before, ended, None))


def _run(world: World, policy: Path) -> Outcome:
    scratch = world.folder / "scratch"
    for folder in (
        scratch,
        world.folder / "report",
        world.folder / "cache" / "validator",
        world.folder / "data" / "validator",
    ):
        folder.mkdir(parents=True)
    Path(str(world.places()["cache_key"])).write_text("a key")
    rules = load_policy(str(policy))
    stage = make_stage(scratch, str(world.folder / "golden"))
    for name, content in artifacts.pickled("Tries", world.places() | {"other": str(scratch / "probe-other")}).items():
        path = stage.subject / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (scratch / "probe-other" / "home").mkdir(parents=True)
    (scratch / "probe-other" / "worker.log").write_text("another's")
    return run_job(
        run_job_of(
            model_path=str(stage.subject / artifacts.PICKLE),
            model_format="pickle",
            golden_path=str(world.folder / "golden"),
            golden_digest=open_golden(world.folder / "golden").digest,
        ),
        scratch=scratch,
        limits=Limits(deadline_s=240),
        sandbox=open_sandbox(rules, Request.STANDARD, list(rules.rows.values()), scratch, SilentProgress()),
        stage=stage,
    )
