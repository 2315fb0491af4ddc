"""Which samples of which pass have arrived: each has to, exactly once."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from validator.worker.protocol import Pass, ProtocolError

Range = tuple[int, int]


class Coverage:
    """The samples of a job's passes. Frames may cut a pass anywhere within its ranges, in any order."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = {p.name: p for p in passes}
        self._seen: dict[str, list[Range]] = {name: [] for name in self._passes}
        self._samples: Counter[str] = Counter()
        self._frames: Counter[str] = Counter()

    @property
    def samples(self) -> int:
        """How many samples have arrived, over all passes."""
        return self._samples.total()

    @property
    def frames(self) -> dict[str, int]:
        """Pass name -> frames, for every pass."""
        return {name: self._frames[name] for name in self._passes}

    def add(self, name: str, start: int, stop: int) -> None:
        """Note a frame.

        Raises:
            ProtocolError: no such pass, samples outside of its ranges, or some of them for the second time.
        """
        if name not in self._passes:
            raise ProtocolError(f"a frame of an unknown pass {name!r}")
        if not any(low <= start < stop <= high for low, high in self._passes[name].ranges):
            raise ProtocolError(f"samples {start}..{stop} do not belong to pass {name}")
        seen = self._seen[name]
        at = bisect_left(seen, (start, stop))
        if (at > 0 and seen[at - 1][1] > start) or (at < len(seen) and seen[at][0] < stop):
            raise ProtocolError(f"samples among {start}..{stop} of pass {name} came twice")
        seen.insert(at, (start, stop))
        self._samples[name] += stop - start
        self._frames[name] += 1

    def check_complete(self) -> None:
        """Require every sample of every pass. Counting is enough: none is foreign and none came twice.

        Raises:
            ProtocolError: some are missing.
        """
        for name, p in self._passes.items():
            if self._samples[name] != p.samples:
                raise ProtocolError(f"{self._samples[name]} of {p.samples} samples of pass {name} arrived")
