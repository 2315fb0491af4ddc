"""The use case behind `validator golden create --strata`: a dataset whose samples were chosen and made on purpose.

The source is read once. Its first samples are the representative ones; the rest waits in a scratch dataset, and
a worker looks at what the model does on it. No model is opened in this process.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from validator.backends.interface import RefusalKind, SurveyFacts
from validator.errors import CouldNotRun, DigestChanged, FormatRefused, GoldenError, UsageError
from validator.executors.local import LocalExecutor
from validator.golden.dataset import GoldenDataset, open_golden
from validator.golden.format import Stratum
from validator.golden.output_spec import OutputSpec
from validator.golden.place import check_place
from validator.golden.sample import Sample
from validator.golden.sources import Source
from validator.golden.strata import (
    EXTREME_SAMPLES,
    MARGIN_SAMPLES,
    NEED_MODEL,
    PEAKS_PER_LAYER,
    REPRESENTATIVE_SAMPLES,
    SAMPLES_MIN,
    SCALED_SAMPLES,
    SEARCHED,
    SHAPED_SAMPLES,
    as_stratum,
    choose_extremes,
    choose_low_margin,
    make_scales,
    make_shapes,
    make_specials,
    plan_shapes,
    spread_evenly,
    without_repeats,
)
from validator.golden.writer import write_golden
from validator.inputs import admit_program, load_policy
from validator.manifest import measure_folder
from validator.plan import check_fit, plan_survey, survey_worker
from validator.registry.interface import Registry, resolve_text
from validator.report.progress import Progress
from validator.runs import open_executor, open_sandbox, threads_of
from validator.sandbox.choice import UNCONFINED
from validator.sandbox.level import Request
from validator.scratch import scratch_folder
from validator.subject import Program, StagedModel, Subject
from validator.worker.outcome import Completed, Crashed, Declined, Outcome, TimedOut, Violated
from validator.worker.stage import GOLDEN, SUBJECT

_ID_DIGITS = 4
_READ_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StrataRequest:
    """What the user asked for."""

    source: Source
    output: Path
    """The new dataset's folder."""
    strata: frozenset[Stratum]
    name: str
    model: str | None = None
    """URI of a registered model, or a local folder with an `MLmodel` file."""
    policy: str | None = None
    """Says which formats may be opened, and how long a worker may take; None: the default one."""
    limit: int | None = None
    """Representative samples; None: 64."""
    extremes: int | None = None
    """At most so many activation extremes; None: 16."""
    largest_shape: int | None = None
    """No dimension is made larger; None: twice the largest in the source."""
    non_finite: bool = False
    """Whether the model's contract admits NaN and infinity."""
    outputs: Mapping[str, OutputSpec] | None = None
    replace: bool = False
    sandbox: Request = Request.AUTO
    """How strongly the worker is held; the policy may ask for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrataResult:
    """What came of it."""

    dataset: GoldenDataset
    warnings: tuple[str, ...]
    """What was asked for and could not be had, and why."""


def create_strata(request: StrataRequest, open_registry: Callable[[], Registry], progress: Progress) -> StrataResult:
    """Make a golden dataset of strata.

    Args:
        request: what to make.
        open_registry: called if the model is named by a URI.
        progress: told of every stage.

    Raises:
        UsageError: options that have no meaning together.
        GoldenError: a source that cannot be used, is too small, or does not fit the model.
        FormatRefused: a model of a format that the policy does not allow.
        CouldNotRun: a worker did not do its work.
    """
    check_request(request)
    policy = load_policy(request.policy or "default")
    check_place(request.output, replace=request.replace)
    with scratch_folder() as scratch, ExitStack() as stack:
        sandbox = UNCONFINED if request.model is None else open_sandbox(policy, request.sandbox, (), scratch, progress)
        executor = stack.enter_context(open_executor(policy, scratch, progress, sandbox=sandbox))
        threads = threads_of(policy)
        if request.model is not None:
            executor.prepare([survey_worker(threads)])
        material = read_source(request, scratch)
        progress.stage("golden", f"{material.head.samples} representative, {material.pool_samples} more in the source")
        search = Search(request=request, material=material, chosen=[], warnings=[])
        described = request.source.description
        if request.model is not None:
            staged = stage_model(request.model, open_registry, scratch)
            program = admit_program(staged, policy, held=sandbox.weakest)
            progress.stage("stage", f"{staged.subject.title}, {staged.manifest.digest[:15]}")
            extremes = request.extremes or EXTREME_SAMPLES
            search.run(Surveyor(executor=executor, program=program, threads=threads, extremes=extremes), scratch)
            described += f", chosen with {staged.subject.title}, {staged.weights_digest[:15]}"
        dataset = write_golden(
            request.output,
            without_repeats(chain(material.representative(), search.chosen, make_up(request, material))),
            name=request.name,
            source=f"{described}, strata {', '.join(s for s in Stratum if s in request.strata)}",
            outputs=request.outputs,
            replace=request.replace,
        )
    return StrataResult(dataset=dataset, warnings=tuple(search.warnings))


def check_request(request: StrataRequest) -> None:
    """Refuse what has no meaning: an option that is silently without effect would be believed.

    Raises:
        UsageError: a stratum without its model, an option without its stratum, or too few samples.
    """
    asking = [stratum for stratum in Stratum if stratum in request.strata & NEED_MODEL]
    if asking and request.model is None:
        raise UsageError(
            f"the stratum {asking[0]} has to ask the model, and none is named",
            hint="name one with --model: models:/NAME/3, or a folder with an MLmodel file",
        )
    if request.limit is not None and request.limit < SAMPLES_MIN:
        raise UsageError(f"--limit {request.limit} is less than the {SAMPLES_MIN} samples that strata need")
    for option, is_given, stratum in (
        ("--extremes", request.extremes is not None, Stratum.ACTIVATION_EXTREMES),
        ("--largest-shape", request.largest_shape is not None, Stratum.SHAPES),
        ("--non-finite", request.non_finite, Stratum.SPECIALS),
    ):
        if is_given and stratum not in request.strata:
            raise UsageError(f"{option} has no meaning without the stratum {stratum}", hint=f"leave out {option}")
    if request.model is not None and not asking:
        raise UsageError("no stratum that was asked for looks into the model", hint="leave out --model")
    if request.policy is not None and request.model is None:
        raise UsageError("--policy has no meaning without --model", hint="leave out --policy")


# --- The source -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The source's samples in scratch datasets."""

    head: GoldenDataset
    """The representative samples."""
    pool: GoldenDataset | None
    """All others; None where there are none, or nobody asks for them."""

    @property
    def pool_samples(self) -> int:
        """How many others there are."""
        return 0 if self.pool is None else self.pool.samples

    @property
    def datasets(self) -> tuple[GoldenDataset, ...]:
        """All that there is."""
        return (self.head,) if self.pool is None else (self.head, self.pool)

    def representative(self) -> Iterator[Sample]:
        """Yield the representative samples."""
        return (as_stratum(sample, Stratum.REPRESENTATIVE) for sample in read_samples(self.head))

    def largest_sizes(self) -> dict[str, list[int]]:
        """Return of each input the largest size of each dimension, where all samples have as many dimensions."""
        found: dict[str, list[int]] = {}
        for group in chain.from_iterable(dataset.manifest.groups for dataset in self.datasets):
            for name, shape in group.shapes.items():
                found[name] = [max(pair) for pair in zip(found.get(name, shape), shape, strict=False)]
        return found

    def largest_integers(self) -> dict[str, int]:
        """Return of each integer input the largest value; booleans are no integers."""
        names = {spec.name for spec in self.head.inputs if "int" in spec.dtype}
        found: dict[str, int] = {}
        for dataset in self.datasets if names else ():
            for start, stop in dataset.batches(0, dataset.samples, _READ_SAMPLES):
                for name, tensor in dataset.read_torch(start, stop).items():
                    if name in names and tensor.numel():
                        largest = int(np.max(tensor.numpy()))
                        found[name] = max(found.get(name, largest), largest)
        return found


def read_source(request: StrataRequest, scratch: Path) -> Material:
    """Read the source once, as far as the strata need it.

    Raises:
        GoldenError: the source cannot be used, or has too few samples.
    """
    samples = _name_samples(request.source.samples)
    head = write_golden(
        scratch / GOLDEN / "head",
        islice(samples, request.limit or REPRESENTATIVE_SAMPLES),
        name="head",
        source="scratch",
    )
    if head.samples < SAMPLES_MIN:
        raise GoldenError(
            f"{request.source.description} has {head.samples} samples; strata need at least {SAMPLES_MIN} "
            "representative ones",
            hint="give more samples: what is rare shows in many only",
        )
    others = samples if request.strata - {Stratum.REPRESENTATIVE, Stratum.SCALES} else iter(())
    first = next(others, None)
    pool = None if first is None else write_golden(
        scratch / GOLDEN / "pool", chain([first], others), name="pool", source="scratch"
    )  # fmt: skip
    material = Material(head=head, pool=pool)
    searched = [stratum for stratum in Stratum if stratum in request.strata & SEARCHED]
    if searched and material.pool_samples < SAMPLES_MIN:
        left = "none is" if material.pool_samples == 0 else f"{material.pool_samples} are"
        raise GoldenError(
            f"{head.samples} samples of {request.source.description} are representative and {left} left to search for "
            f"{' and '.join(searched)}, which takes at least {SAMPLES_MIN}",
            hint="give more samples, or leave more of them with a smaller --limit",
        )
    return material


def _name_samples(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Name the samples of the source, by their position where they have no id."""
    for index, sample in enumerate(samples):
        name = f"{index:0{_ID_DIGITS}}" if sample.id is None else sample.id
        yield Sample(id=name, inputs=sample.inputs, label=sample.label)


def read_samples(dataset: GoldenDataset) -> Iterator[Sample]:
    """Yield the samples of a dataset in its own order."""
    for index in range(dataset.samples):
        yield read_sample(dataset, index)


def read_sample(dataset: GoldenDataset, index: int) -> Sample:
    """Read one sample."""
    labels = dataset.labels(index, index + 1)
    return Sample(
        id=dataset.sample_id(index),
        inputs={name: tensor[0] for name, tensor in dataset.read_torch(index, index + 1).items()},
        label=None if labels is None else int(labels[0]),
        stratum=dataset.strata[index],
    )


def make_up(request: StrataRequest, material: Material) -> Iterator[Sample]:
    """Yield the samples of the strata that need no model."""
    head = list(read_samples(material.head))
    if Stratum.SCALES in request.strata:
        yield from make_scales(spread_evenly(head, SCALED_SAMPLES))
    if Stratum.SPECIALS in request.strata:
        yield from make_specials(head[0], material.largest_integers(), non_finite=request.non_finite)


# --- The model ------------------------------------------------------------------------------------------------------


def stage_model(text: str, open_registry: Callable[[], Registry], scratch: Path) -> StagedModel:
    """Copy a registered model, or a local folder, into the scratch folder.

    Raises:
        UsageError: a folder that is no model.
        UriError: nothing in the registry.
        FormatRefused: a folder that cannot be copied.
    """
    folder = scratch / SUBJECT
    if ":/" in text:
        registry = open_registry()
        return registry.stage(resolve_text(registry, text), folder)
    source = Path(text)
    if not (source / "MLmodel").is_file():
        raise UsageError(
            f"--model {text} is no folder with an MLmodel file",
            hint="name a registered model, models:/NAME/3, or a downloaded MLflow model",
        )
    try:
        shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise FormatRefused(f"the model {text} cannot be copied: {error}") from error
    title = source.resolve().name
    subject = Subject(
        registry_uri="none",
        requested_uri=title,
        name=None,
        version=None,
        creation_timestamp_ms=None,
        source=title,
        download_uri=title,
        model_id=None,
        run_id=None,
    )
    return StagedModel(subject=subject, folder=folder, manifest=measure_folder(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyor:
    """Has workers look at one program."""

    executor: LocalExecutor
    program: Program
    threads: int
    extremes: int
    """How many activation extremes are chosen at most."""

    def survey(self, dataset: GoldenDataset, *, job_id: str) -> SurveyFacts:
        """Run the program on every sample of a dataset.

        Raises:
            GoldenError: the dataset does not fit the program, or the program runs on none of it.
            FormatRefused: the file is not safe to open.
            CouldNotRun: the worker did not do its work.
            DigestChanged: the samples changed meanwhile.
        """
        job = plan_survey(
            self.program,
            dataset,
            job_id=job_id,
            peaks_per_layer=PEAKS_PER_LAYER,
            # Those that are activation extremes, too, are taken once.
            margins_per_output=MARGIN_SAMPLES + self.extremes,
            threads=self.threads,
        )
        self.executor.submit(job)
        (outcome,) = self.executor.outcomes()
        facts = _facts_of(outcome)
        if open_golden(dataset.folder).digest != dataset.digest:
            raise DigestChanged("the samples changed while the model ran on them", hint="do not trust this model")
        check_fit(dataset, facts.model)
        return facts


def _facts_of(outcome: Outcome) -> SurveyFacts:
    """Return what a survey found, or raise what it means that there is nothing."""
    match outcome:
        case Completed(survey=SurveyFacts() as facts):
            return facts
        case Declined(refusal=refusal) if refusal.kind is RefusalKind.MODEL:
            raise GoldenError(
                f"the model does not run on the source's samples: {refusal.message}",
                hint="give one array per input of the model, named like it, in its dtypes and shapes",
            )
        case Declined(refusal=refusal) if refusal.kind is RefusalKind.FORMAT:
            raise FormatRefused(f"the model is not safe to open: {refusal.message}")
        case Declined(refusal=refusal):
            raise CouldNotRun(f"the model could not be run: {refusal.message}")
        case Crashed(exit_status=status, log_tail=tail):
            raise CouldNotRun(f"the worker that ran the model ended with status {status}: {tail or 'no words'}")
        case TimedOut(limit_s=limit_s):
            raise CouldNotRun(
                f"the worker that ran the model was stopped after {limit_s:g} s",
                hint="give fewer samples, or a policy with a longer worker.deadline_s",
            )
        case Violated(what=what):
            raise FormatRefused(f"the worker that ran the model broke the protocol: {what}")
        case Completed():
            raise CouldNotRun("the worker that ran the model found nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The strata that need the model, filled in survey by survey."""

    request: StrataRequest
    material: Material
    chosen: list[Sample]
    warnings: list[str]

    def run(self, surveyor: Surveyor, scratch: Path) -> None:
        """Choose samples of the pool, and make those of other shapes that the model accepts."""
        strata = self.request.strata
        pool = self.material.pool if strata & SEARCHED else None
        facts = surveyor.survey(self.material.head if pool is None else pool, job_id="survey")
        check_fit(self.material.head, facts.model)
        if pool is not None:
            self._choose(pool, facts)
        if Stratum.SHAPES in strata:
            self._make_shapes(surveyor, facts, scratch)

    def _choose(self, pool: GoldenDataset, facts: SurveyFacts) -> None:
        """Take the activation extremes, then the low margins that are not among them."""
        if facts.refused:
            _, why = facts.refused[0]
            if len(facts.refused) == pool.samples:
                raise GoldenError(f"the model runs on none of the {pool.samples} samples to search: {why}")
            self.warnings.append(f"the model refuses {len(facts.refused)} of {pool.samples} samples to search: {why}")
        taken: tuple[int, ...] = ()
        if Stratum.ACTIVATION_EXTREMES in self.request.strata:
            taken = choose_extremes(facts.layers, self.request.extremes or EXTREME_SAMPLES)
            self._take(pool, taken, Stratum.ACTIVATION_EXTREMES, lacking="the model has no layer to look at")
        if Stratum.LOW_MARGIN in self.request.strata:
            narrow = choose_low_margin(facts.margins, MARGIN_SAMPLES, taken)
            lacking = "the model has no output of shape (samples, classes)"
            self._take(pool, narrow, Stratum.LOW_MARGIN, lacking=lacking)

    def _take(self, pool: GoldenDataset, indices: tuple[int, ...], stratum: Stratum, *, lacking: str) -> None:
        if not indices:
            self.warnings.append(f"the stratum {stratum} is left out: {lacking}")
        self.chosen.extend(as_stratum(read_sample(pool, index), stratum) for index in indices)

    def _make_shapes(self, surveyor: Surveyor, facts: SurveyFacts, scratch: Path) -> None:
        """Make samples of other shapes, try them, and keep those that the model accepts."""
        if not facts.sizes:
            self.warnings.append("the stratum shapes is left out: only an exported program says which sizes vary")
            return
        shapings = plan_shapes(facts.sizes, self.material.largest_sizes(), largest=self.request.largest_shape)
        if not shapings:
            self.warnings.append("the stratum shapes is left out: nothing but the batch may vary as far as allowed")
            return
        samples = spread_evenly(list(read_samples(self.material.head)), SHAPED_SAMPLES)
        tried = write_golden(
            scratch / GOLDEN / "shapes", make_shapes(samples, shapings), name="shapes", source="scratch"
        )
        refused = dict(surveyor.survey(tried, job_id="survey-shapes").refused)
        for shaping in shapings:
            own = [i for i in range(tried.samples) if tried.sample_id(i).startswith(f"shape-{shaping.title}/")]
            if reasons := [refused[i] for i in own if i in refused]:
                self.warnings.append(f"the model refuses a shape, so it is left out, {shaping}: {reasons[0]}")
            self.chosen.extend(read_sample(tried, i) for i in own if i not in refused)
