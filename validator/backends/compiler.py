"""torch.compile with inductor: proof that it can compile here, and that every call ran what it compiled.

torch.compile falls back to eager without an error where it cannot follow a frame, so the graphs are counted where they
are compiled and where they run.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from validator.backends.catalog import Backend, Setting
from validator.backends.interface import BackendRefusal, RefusalKind
from validator.backends.knobs import UNREADABLE
from validator.backends.refusals import clean_line, model_refusal
from validator.backends.torch_program import quiet_libraries

SHAPES_MAX = 64
"""Shapes of one frame that may be compiled; one more is an error, where torch would run it eagerly."""

BREAKS_NAMED = 3

_TOOLS = {"cpu": "a C++ compiler", "cuda": "Triton and a C compiler"}


def require_compiler(row: Backend) -> None:
    """Make sure that inductor can compile for the row's device, by compiling one addition.

    Only that finds a compiler without headers or without OpenMP, and half of its time the model's graph saves again.

    Raises:
        BackendRefusal: unavailable.
    """
    try:
        with quiet_libraries():
            add = torch.compile(_add_one, backend="inductor", fullgraph=True, dynamic=False)
            add(torch.ones(8, device=row.device))
    # Compilers, linkers and loaders fail in ways of their own; none of them has seen the model yet.
    except Exception as error:
        tools = _TOOLS.get(row.device_type, "a compiler")
        why = f"{type(error).__name__}: {clean_line(str(error))}"
        raise BackendRefusal(
            RefusalKind.UNAVAILABLE,
            "device",
            f"{row.name} asks for torch.compile, which needs {tools}; one addition could not be compiled: {why}",
        ) from error


def _add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@dataclass(slots=True, kw_only=True)
class Compilation:
    """What inductor made of a module, counted while it runs."""

    graphs: int = 0
    """Compiled, over all shapes."""
    runs: int = 0
    """Of compiled graphs."""
    calls: int = 0
    """Of the module."""
    eager_calls: int = 0
    """Calls in which no compiled graph ran."""
    _breaks_before: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, module: torch.nn.Module) -> Self:
        """Have a module compiled when it is called.

        Every shape gets a graph of its own. torch's default compiles the first shape for itself and a second one for
        all others, so that what a batch is computed by depends on what ran before, and a repetition may differ.

        Raises:
            BackendRefusal: TorchScript, which torch.compile leaves alone.
        """
        if isinstance(module, torch.jit.ScriptModule):
            raise model_refusal("compile", "torch.compile does not take TorchScript: log the model as torch.export")
        dynamo = _dynamo()
        dynamo.config.recompile_limit = SHAPES_MAX
        dynamo.config.fail_on_recompile_limit_hit = True
        compilation = cls(_breaks_before=_graph_breaks())
        module.compile(backend=compilation.compile_graph, dynamic=False)
        return compilation

    def compile_graph(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., object]:
        """Compile one graph with inductor; dynamo calls this."""
        from torch._inductor.compile_fx import compile_fx

        compiled: Any = compile_fx(graph, inputs)
        self.graphs += 1

        def run(*arguments: object) -> object:
            self.runs += 1
            return compiled(*arguments)

        return run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note whether a call ran anything compiled; around one call."""
        before = self.runs
        with quiet_libraries():
            yield
        self.calls += 1
        self.eager_calls += self.runs == before

    @property
    def setting(self) -> Setting:
        """`inductor` if every call ran a compiled graph."""
        if self.calls == 0:
            return UNREADABLE
        return f"eager in {self.eager_calls} of {self.calls} calls" if self.eager_calls else "inductor"

    def notes(self) -> dict[str, str]:
        """Return the number of graphs, and where a frame fell into several."""
        breaks = _graph_breaks() - self._breaks_before
        named = "; ".join(clean_line(reason) for reason in list(breaks)[:BREAKS_NAMED])
        return {
            "compiled graphs": f"{self.graphs}, run {self.runs} times in {self.calls} calls",
            "graph breaks": clean_line(f"{breaks.total()}: {named}") if breaks else "none",
        }


def _dynamo() -> Any:
    """Import torch's tracer, which is large and has no types."""
    import torch._dynamo

    return torch._dynamo  # noqa: SLF001 - its only name


def _graph_breaks() -> Counter[str]:
    """Count the graph breaks of this process by reason."""
    return Counter(_dynamo().utils.counters["graph_break"])
