"""One check and the cache: what can be reused, who computes what cannot, and what is kept."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import BaseFileLock

from validator.backends.catalog import expected_settings
from validator.cache.entry import EntryDamaged, pack_entry, read_entry
from validator.cache.recipe import Recipe, is_dear, write_recipe
from validator.cache.secret import CacheUnusable, reason_of
from validator.cache.store import CachePlace, Store, open_store
from validator.judge import Caution
from validator.manifest import Manifest
from validator.worker.outcome import Completed, Outcome, Reused
from validator.worker.protocol import ExportJob, Job, RunJob

NO_SANDBOX = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a check knows when its first worker has looked at the model."""

    model: str
    """Digest of every file of the version."""
    program: str
    """Path of the program among them."""
    fingerprint: Mapping[str, str]
    """What the probe read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    recipe: Recipe
    lock: BaseFileLock


@dataclass(slots=True, kw_only=True)
class Reuse:
    """A check's use of the cache. A context manager: leaving it, for whatever reason, releases every lock.

    Whatever goes wrong with the cache is said once, in `cautions`, and the check goes on without.
    """

    store: Store | None
    """None: it cannot be used, or no longer."""
    domain: str
    made_by: Reused
    """This check: what is kept will name it."""
    sandbox: str
    """Level of confinement that this check's workers have."""
    scratch: Path
    wait_s: float
    """How long another check may take for what this one needs as well."""
    say: Callable[[str], None]
    """Told what is reused or waited for."""
    cautions: list[Caution] = field(default_factory=list)
    _claims: dict[str, _Claim] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let others compute what this check did not."""
        for job_id in list(self._claims):
            self._release(job_id)

    def find(self, job: Job, circumstances: Circumstances) -> Completed | None:
        """Return what an earlier check made of the same job.

        If there is nothing, and nobody else is making it, this check is to run the job and to `keep` its outcome; until
        then, others who need the same wait.
        """
        if self.store is None or not is_dear(job) or not isinstance(job, RunJob | ExportJob):
            return None
        try:
            return self._find(self.store, job, circumstances)
        except OSError as error:
            self._give_up(f"{self.store.folder} cannot be used: {reason_of(error)}")
        return None

    def _find(self, store: Store, job: RunJob | ExportJob, circumstances: Circumstances) -> Completed | None:
        recipe = write_recipe(
            job,
            domain=self.domain,
            model=circumstances.model,
            program=circumstances.program,
            fingerprint=circumstances.fingerprint,
            sandbox=self.sandbox,
        )
        if _runs_on_unknown_gpu(job, recipe):
            return None
        lock = store.take(recipe.key, wait_s=0)
        if lock is None:
            self.say(f"{job.job_id} is being computed by another check: waiting for it")
            lock = store.take(recipe.key, wait_s=self.wait_s)
        if lock is None:
            return None
        self._claims[job.job_id] = _Claim(recipe=recipe, lock=lock)
        found = self._load(store, recipe, job)
        if found is not None:
            self._release(job.job_id)
            if found.reused is not None:
                self.say(f"{job.job_id} of check {found.reused.check_id}, {found.reused.created_utc}")
        return found

    def _load(self, store: Store, recipe: Recipe, job: RunJob | ExportJob) -> Completed | None:
        folder = Path(tempfile.mkdtemp(prefix="reused-", dir=self.scratch))
        copy = folder / "entry"
        try:
            if not store.load(recipe.key, copy):
                return None
            return read_entry(copy, recipe, job, spool=folder / "frames")
        except EntryDamaged as damage:
            store.discard(recipe.key)
            self._caution(
                code="cache-entry", message=f"what was kept of {job.job_id} is not used, but removed: {damage}"
            )
        finally:
            copy.unlink(missing_ok=True)
        return None

    def keep(self, outcome: Outcome, fingerprint: Mapping[str, str], *, files: Manifest | None = None) -> None:
        """Keep an outcome for later checks, if this one had claimed its job, and let others go on.

        Only what is proven, of a first attempt, with the settings that were asked for, and on the machine that the
        recipe names. The caller has made sure that the model and the golden dataset are still what they were.

        Args:
            outcome: of any job.
            fingerprint: what the probe read.
            files: what an export left, as it was measured before anybody else could touch it.
        """
        claim = self._claims.get(outcome.job.job_id)
        if claim is None:
            return
        try:
            if self.store is not None and isinstance(outcome, Completed) and is_sound(outcome, fingerprint):
                self._save(self.store, outcome, claim.recipe, files)
        except (EntryDamaged, EOFError) as error:
            self._caution(code="cache", message=f"{outcome.job.job_id} is not kept: {error}")
        except OSError as error:
            self._give_up(f"{outcome.job.job_id} cannot be kept: {reason_of(error)}")
        finally:
            self._release(outcome.job.job_id)

    def _save(self, store: Store, outcome: Completed, recipe: Recipe, files: Manifest | None) -> None:
        if not store.save(recipe.key, pack_entry(outcome, recipe, self.made_by, exported=files)):
            self._caution(
                code="cache", message=f"{outcome.job.job_id} is larger than the cache may be, and is not kept"
            )

    def claims(self, job: Job) -> bool:
        """Whether this check is to run a job for others as well."""
        return job.job_id in self._claims

    def _release(self, job_id: str) -> None:
        self._claims.pop(job_id).lock.release()

    def _give_up(self, why: str) -> None:
        self.store = None
        self._caution(code="cache", message=f"the cache is not used: {why}")

    def _caution(self, *, code: str, message: str) -> None:
        self.cautions.append(Caution(code=code, message=message))


def open_reuse(
    place: CachePlace,
    *,
    made_by: Reused,
    sandbox: str,
    scratch: Path,
    wait_s: float,
    say: Callable[[str], None],
) -> Reuse:
    """Open a cache for one check. One that cannot be opened is said to be so, and not used.

    Where nothing confines the workers it stays closed: code that a model got to run there, whatever its format, could
    read the key and write an entry.
    """
    reuse = Reuse(
        store=None,
        domain=place.domain,
        made_by=made_by,
        sandbox=sandbox,
        scratch=scratch,
        wait_s=wait_s,
        say=say,
    )
    if sandbox == NO_SANDBOX:
        say("nothing: no sandbox holds the workers")
        return reuse
    try:
        reuse.store = open_store(place)
    except CacheUnusable as unusable:
        reuse.cautions.append(Caution(code="cache", message=f"the cache is not used: {unusable}"))
    return reuse


def is_sound(outcome: Completed, fingerprint: Mapping[str, str]) -> bool:
    """Whether an outcome may stand for another check's: no second attempt, the asked settings, the same machine."""
    job, ran = outcome.job, outcome.environment
    asked = expected_settings(job.backend) if isinstance(job, RunJob) else {}
    is_whole = outcome.export is None or outcome.export.path is not None
    same_settings = all(ran.settings.get(name) == value for name, value in asked.items())
    same_machine = all(ran.fingerprint.get(name) == value for name, value in fingerprint.items() if name != "gpu")
    return outcome.first_failure is None and is_whole and same_settings and same_machine


def _runs_on_unknown_gpu(job: RunJob | ExportJob, recipe: Recipe) -> bool:
    return isinstance(job, RunJob) and job.backend.device_type != "cpu" and not recipe.machine["gpus"]
