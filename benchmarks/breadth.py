"""Healthy networks of every kind through the whole gate: each that does not pass is a false alarm.

Every network of `benchmarks.zoo` is exported with torch.export and an open batch, registered, and checked by the use
case behind `validator check` with real workers: probe, fp64 reference, baseline, an ONNX file that the gate exports,
eight golden samples. Where torch.export refuses an open batch, a program of one batch size is registered, and where it
refuses that, too, the pickled module; what it said stands beside the verdict.
"""

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from benchmarks.machine import Machine, this_machine
from benchmarks.parts import choose_shard, run_part, run_parts, write_whole
from benchmarks.zoo import Network, networks, stack
from validator.backends.onnx_export import exporter_reason
from validator.backends.torch_program import quiet_libraries
from validator.check import CheckRequest, check
from validator.errors import ValidatorError
from validator.golden.writer import Sample, write_golden
from validator.judge import Check, Status
from validator.policy import BUILT_IN
from validator.report.headline import used
from validator.report.model import Number, VerdictDocument
from validator.report.progress import JobEvent, SilentProgress

SAMPLES = 8
BATCH = 4
DEADLINE_S = 420.0
"""Of each of the gate's workers."""


class Form(StrEnum):
    """How a network could be stored."""

    OPEN = "open batch"
    STATIC = "one batch size"
    PICKLE = "pickle"


class Standing(StrEnum):
    """What a verdict means here, where every network is healthy."""

    PASS = "pass"  # noqa: S105 - no password
    NOT_EXPORTED = "not exported"
    """torch.export or the ONNX exporter refused, which is no judgement on the gate."""
    ILL_CONDITIONED = "ill-conditioned"
    """Rounding decides what it answers, and the gate says so: drawn at random, it came out as no healthy network."""
    FALSE_ALARM = "false alarm"
    BROKEN = "broken"
    """The benchmark itself did not get so far."""


class Tried(BaseModel):
    """One network and what became of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    inputs: str
    parameters: int
    form: Form
    standing: Standing
    verdict: str
    """The gate's; `none` where it gave none."""
    reason: str
    """Of everything that is no pass, and of a form other than the first."""
    ratios: dict[str, Number]
    """Candidate -> its largest pooled error ratio."""
    nearest: Number
    """The largest share of its limit that any error ratio of a candidate used."""
    seconds: float
    """The check."""
    export_seconds: float
    """torch.export."""
    onnx_seconds: float
    """The gate's worker that exports to ONNX; 0 where there was none."""


class Survey(BaseModel):
    """Everything that was tried."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Machine
    policy: str
    jobs: int
    tried: tuple[Tried, ...] = ()

    def with_(self, tried: Iterable[Tried]) -> "Survey":
        """Add networks; one of the same name is replaced."""
        known = {t.name: t for t in self.tried} | {t.name: t for t in tried}
        return self.model_copy(update={"tried": tuple(known.values())})


# --- The parent ------------------------------------------------------------------------------------------------------


def run(
    *,
    only: Sequence[str],
    jobs: int,
    out: Path | None,
    policy: str,
    shard: tuple[int, int],
    seconds: float,
    page: Path | None,
) -> int:
    """Try networks, a few at a time, each in a process of its own.

    Args:
        only: names; none: all.
        jobs: networks at a time; each gets its share of the cores.
        out: JSON, rewritten after each network. What is in it is not tried again, unless it was broken.
        policy: a built-in one.
        shard: (i, n): every n-th network, from the i-th on.
        seconds: no network is begun later than this.
        page: Markdown file.

    Returns:
        The exit code: 1 if there was a false alarm, or if something is left to do.
    """
    started = time.perf_counter()
    survey = Survey(machine=this_machine(), policy=policy, jobs=jobs)
    if out is not None and out.exists():
        survey = survey.with_(read(out).tried)
    known = {network.name: network for network in networks()}
    done = {t.name for t in survey.tried if t.standing is not Standing.BROKEN}
    todo = [name for name in choose_shard(list(known), only, shard) if name not in done]
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    lock = Lock()

    def work(name: str, limit_s: float) -> None:
        nonlocal survey
        arguments = (name, policy, str(threads))
        result = run_part("benchmarks.breadth", arguments, limit_s=limit_s)
        tried = _broken(known[name], result) if isinstance(result, str) else Tried.model_validate_json(result)
        with lock:
            survey = survey.with_([tried])
            if out is not None:
                write_whole(survey, out)
            print(line(tried), flush=True)

    left = run_parts(todo, work, jobs=jobs, seconds=seconds, started=started)
    print(f"{summary(survey)}; {time.perf_counter() - started:.0f} s")
    if left:
        print(f"not begun within {seconds:.0f} s: {', '.join(left)}; run the same command again")
    if page is not None:
        page.write_text(render(survey), encoding="utf-8")
    return 1 if left or _is_bad(survey) else 0


def merge(files: Sequence[Path], *, out: Path | None, page: Path | None) -> int:
    """Put the results of several runs together and print the page."""
    surveys = [read(file) for file in files]
    survey = surveys[0].with_(t for s in surveys[1:] for t in s.tried)
    if out is not None:
        write_whole(survey, out)
    if page is not None:
        page.write_text(render(survey), encoding="utf-8")
    print(render(survey))
    return 1 if _is_bad(survey) else 0


def _is_bad(survey: Survey) -> bool:
    return any(t.standing in (Standing.FALSE_ALARM, Standing.BROKEN) for t in survey.tried)


def read(path: Path) -> Survey:
    """Read results."""
    return Survey.model_validate_json(path.read_bytes())


def _broken(network: Network, why: str) -> Tried:
    """Say that a network was not even checked."""
    return Tried(
        name=network.name,
        kind=network.kind,
        inputs=describe_inputs(network),
        parameters=0,
        form=Form.OPEN,
        standing=Standing.BROKEN,
        verdict="none",
        reason=why,
        ratios={},
        nearest=0.0,
        seconds=0.0,
        export_seconds=0.0,
        onnx_seconds=0.0,
    )


# --- The child -------------------------------------------------------------------------------------------------------


class ExportClock(SilentProgress):
    """Notes how long the gate's ONNX export takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def job(self, event: JobEvent) -> None:
        """Start at the export's start, stop at its end."""
        if event.job_id != "export":
            return
        if event.kind == "started":
            self._started = time.perf_counter()
        if event.kind == "finished":
            self.seconds = time.perf_counter() - self._started


def try_network(network: Network, *, policy: str, threads: int, folder: Path) -> Tried:
    """Make, export, register and check one network.

    Args:
        network: of the zoo.
        policy: a built-in one, whose backends are required.
        threads: of the CPU.
        folder: for the model, the golden dataset and the report.
    """
    from tests.fakes import FakeRegistry

    torch.set_num_threads(threads)
    model = network.build()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    started = time.perf_counter()
    form, complaints = store(model, network, folder / "model")
    export_seconds = time.perf_counter() - started
    del model
    golden = write_golden(
        folder / "golden",
        [Sample(inputs=inputs) for inputs in network.samples(SAMPLES)],
        name=network.name,
        source="random numbers",
    )
    (folder / "policy.toml").write_text(policy_text(policy, form, threads), encoding="utf-8")
    registry, clock = FakeRegistry(), ExportClock()
    registry.add_version(network.name, folder / "model")
    request = CheckRequest(
        uri=f"models:/{network.name}/1",
        output=folder / "report",
        policy=str(folder / "policy.toml"),
        golden=str(golden.folder),
        annotate=False,
    )
    started = time.perf_counter()
    document: VerdictDocument | None = None
    try:
        document = check(request, registry, clock).document
        verdict, reasons = document.verdict.value, list(reasons_of(document))
    except ValidatorError as error:
        verdict, reasons = "none", [f"{error.word}[{error.code}]: {error.message}"]
    seconds = time.perf_counter() - started
    return Tried(
        name=network.name,
        kind=network.kind,
        inputs=describe_inputs(network),
        parameters=parameters,
        form=form,
        standing=standing_of(verdict, form, document),
        verdict=verdict,
        reason="; ".join([*complaints, *reasons]),
        ratios={} if document is None else ratios_of(document),
        nearest=0.0 if document is None else nearest_of(document),
        seconds=round(seconds, 1),
        export_seconds=round(export_seconds, 1),
        onnx_seconds=round(clock.seconds, 1),
    )


def store(model: torch.nn.Module, network: Network, folder: Path) -> tuple[Form, list[str]]:
    """Write a model folder as MLflow does, in the first form that works; return what stood against the others."""
    data = folder / "data"
    data.mkdir(parents=True)
    (folder / "MLmodel").write_text("flavors:\n  pytorch:\n    model_data: data\n", encoding="utf-8")
    varying = dict.fromkeys(network.varying, torch.export.Dim.DYNAMIC)
    complaints = []
    for form in (Form.OPEN, Form.STATIC) if varying else (Form.STATIC,):
        example = stack(network.samples(2 if varying else 1))
        shapes: Any = tuple(dict(varying) for _ in example) if form is Form.OPEN else None
        try:
            with quiet_libraries(), warnings.catch_warnings(action="ignore"), torch.no_grad():
                torch.export.save(torch.export.export(model, example, dynamic_shapes=shapes), data / "model.pt2")
        # torch.export runs the model's own code: anything may come out of it.
        except Exception as error:  # noqa: BLE001
            (data / "model.pt2").unlink(missing_ok=True)
            complaints.append(f"torch.export, {form}: {exporter_reason(error)}")
        else:
            return form, complaints
    torch.save(model, data / "model.pth")
    return Form.PICKLE, complaints


def policy_text(name: str, form: Form, threads: int) -> str:
    """Return a built-in policy with a small batch, a share of the cores, and what the form needs."""
    lines = [f"required = {json.dumps(list(BUILT_IN[name].required))}", f"batch_size = {BATCH}"]
    lines += ["[worker]", f"threads = {threads}", f"deadline_s = {DEADLINE_S}"]
    lines += ["[formats]", "pickle = true"] if form is Form.PICKLE else []
    lines += ["[checks]", 'batch_invariance = "if-dynamic"'] if form is not Form.OPEN else []
    return "\n".join(lines) + "\n"


def reasons_of(document: VerdictDocument) -> Iterator[str]:
    """Say what kept a verdict from being a pass: the exporter's words first, then findings, three at most."""
    if document.export is not None and document.export.path is None:
        yield f"ONNX export: {document.export.message}"
    open_findings = [f for f in document.findings if f.status not in (Status.WITHIN, Status.WAIVED)]
    open_findings.sort(key=lambda f: f.status is Status.NOT_MEASURED)
    for finding in open_findings[:3]:
        where = " ".join(word for word in (finding.backend, finding.output) if word)
        yield f"{finding.check.value} {where} {finding.status.value}: {finding.message}"


def standing_of(verdict: str, form: Form, document: VerdictDocument | None) -> Standing:
    """Say what a verdict on a healthy network means."""
    if verdict == "pass":
        return Standing.PASS
    codes = {warning.code for warning in document.warnings} if document is not None else set()
    if verdict == "inconclusive" and "ill-conditioned" in codes:
        return Standing.ILL_CONDITIONED
    no_onnx = document is not None and document.export is not None and document.export.path is None
    return Standing.NOT_EXPORTED if form is Form.PICKLE or no_onnx else Standing.FALSE_ALARM


def ratios_of(document: VerdictDocument) -> dict[str, float]:
    """Return the largest pooled error ratio of each candidate over its outputs."""
    found = {
        backend.name: [output.ratios.pooled for output in backend.outputs if output.ratios is not None]
        for backend in document.backends
    }
    return {name: max(ratios) for name, ratios in found.items() if ratios}


def nearest_of(document: VerdictDocument) -> float:
    """Return the largest share of its limit that any error ratio used."""
    shares = [used(f) for f in document.findings if f.check is Check.ERROR_RATIO and f.measured is not None]
    return max(shares, default=0.0)


# --- What people read ------------------------------------------------------------------------------------------------


def describe_inputs(network: Network) -> str:
    """Write the shapes of a sample."""
    return ", ".join("x".join(map(str, value.shape)) for value in network.samples(1)[0].values())


def line(tried: Tried) -> str:
    """Write one network for the terminal."""
    ratios = ", ".join(f"{name} {ratio:.3g}" for name, ratio in tried.ratios.items())
    text = (
        f"{tried.name:<32} {tried.verdict:<12} {tried.seconds:6.1f} s  export {tried.export_seconds:5.1f} s  {ratios}"
    )
    return f"{text}\n    {tried.form}: {tried.reason}" if tried.reason else text


def summary(survey: Survey) -> str:
    """Count."""
    count = {standing: sum(t.standing is standing for t in survey.tried) for standing in Standing}
    return f"{len(survey.tried)} of {len(networks())} networks: " + ", ".join(
        f"{n} {standing}" for standing, n in count.items() if n
    )


def render(survey: Survey) -> str:
    """Write the page."""
    rows = sorted(survey.tried, key=lambda t: (t.kind != "classification", t.kind, t.name))
    odd = [t for t in rows if t.reason]
    names = sorted({name for t in rows for name in t.ratios})
    head = ["network", "kind", "input", "parameters", "stored as", "verdict", *names]
    head += ["nearest limit", "torch.export", "ONNX", "check"]
    lines = [
        "# What it was tried on",
        "",
        f"`python -m benchmarks breadth --policy {survey.policy} --jobs {survey.jobs}` on {survey.machine}.",
        "",
        *(__doc__ or "").strip().splitlines(),
        "",
        f"**{summary(survey)}.**",
        "",
        *READING.splitlines(),
        "",
        f"| {' | '.join(head)} |",
        "|---|---|---|--:|---|---|" + "--:|" * (len(head) - 6),
        *(_row(t, names) for t in rows),
        "",
        "## What is no pass, or not in the first form",
        "",
        *([f"- {t.name}, {t.form}, {t.verdict} ({t.standing}): {_code(t.reason)}" for t in odd] or ["Nothing."]),
        "",
    ]
    return "\n".join(lines)


READING = """\
`nearest limit` is the largest share of its limit that any of the six error ratios of any output used. The columns
before it are the largest pooled error ratio of each backend, whose limit is 10. Seconds are wall time with other
networks beside; `check` is all of `validator check` but the command line, the ONNX export included. `not exported`
means that torch.export or the ONNX exporter refused, so the gate had nothing to compare; a *false alarm* is any other
verdict than `pass`, but for a network that rounding turned out to rule (`ill-conditioned`).

A part of the list: `--only NAME ...`, or `--shard 1/2` and `--shard 2/2`. With `--out FILE.json` the results are
written after every network, and what is in the file is not tried again; `--seconds` ends a call in time.
`--merge A.json B.json --page docs/breadth.md` makes this page."""


def _row(tried: Tried, names: Sequence[str]) -> str:
    ratios = [f"{tried.ratios[name]:.3g}" if name in tried.ratios else "" for name in names]
    cells = [
        tried.name,
        tried.kind,
        tried.inputs,
        f"{tried.parameters / 1e6:.1f} M",
        tried.form,
        tried.verdict,
        *ratios,
    ]
    cells += [
        f"{tried.nearest:.0%}",
        *(f"{s:.1f} s" for s in (tried.export_seconds, tried.onnx_seconds, tried.seconds)),
    ]
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Make Markdown of what a library said."""
    return "`" + text.replace("`", "'").replace("|", "/") + "`"


def main() -> None:
    """Try one network: the child's end."""
    name, policy, threads, result = sys.argv[1:]
    network = next(network for network in networks() if network.name == name)
    folder = Path(tempfile.mkdtemp())  # in the parent's folder for this process, which goes with it
    tried = try_network(network, policy=policy, threads=int(threads), folder=folder)
    Path(result).write_text(tried.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
