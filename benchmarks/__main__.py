"""`python -m benchmarks NAME [OPTIONS]`."""

import argparse
import sys
from pathlib import Path

from benchmarks import breadth, cost, detection, promote, reports, startup, throughput


def main() -> None:
    """Run one benchmark and print its numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    names.add_parser("startup", help="CPU time and imports of `validator --help`")
    names.add_parser("promote", help="CPU time of `validator promote` for a model of 250 MB; limit 3 s")
    names.add_parser("reports", help="every format of 10,000 samples on 8 backends: CPU time, memory and size")
    full = names.add_parser(
        "throughput", help="AlexNet: wall time of a check over the bare forward loop; parent's memory"
    )
    full.add_argument("--samples", type=int, default=2048)
    full.add_argument("--batch", type=int, default=32)
    full.add_argument("--policy", default="cpu", help="`default` on a GPU machine")
    card = names.add_parser("detection", help="planted faults and healthy variants: what this gate and other rules say")
    card.add_argument("--quick", action="store_true", help="two networks, about a minute")
    card.add_argument("--jobs", type=int, default=1, help="networks at a time, one thread each")
    card.add_argument("--device", choices=("cpu", "cuda"), help="cuda where there is a GPU")
    _add_parts(card)
    zoo = names.add_parser("breadth", help="every classifier of torchvision and other kinds of model: false alarms")
    zoo.add_argument("--policy", default="cpu", help="a built-in policy")
    zoo.add_argument("--jobs", type=int, default=1, help="networks at a time; each gets its share of the cores")
    _add_parts(zoo)
    bill = names.add_parser("cost", help="seconds of all passes over those of the plain forward passes; limit 2.5")
    bill.add_argument("--only", nargs="+", default=cost.NETWORKS, metavar="NAME", help="classifiers of torchvision")
    bill.add_argument("--samples", type=int, default=512)
    bill.add_argument("--batch", type=int, default=32)
    bill.add_argument("--policy", nargs="+", default=[], help="built-in policies; cpu, and default where a GPU is")
    bill.add_argument("--out", type=Path, metavar="FILE.json", help="results, rewritten after each check")
    asked = parser.parse_args()
    match asked.name:
        case "startup":
            startup.run()
        case "promote":
            promote.run()
        case "reports":
            sys.exit(reports.run())
        case "detection" if asked.merge:
            sys.exit(detection.merge(asked.merge, out=asked.out, page=asked.page))
        case "detection":
            sys.exit(
                detection.run(
                    quick=asked.quick,
                    only=asked.only,
                    shard=asked.shard,
                    jobs=asked.jobs,
                    seconds=asked.seconds,
                    device=asked.device,
                    out=asked.out,
                    page=asked.page,
                )
            )
        case "breadth" if asked.merge:
            sys.exit(breadth.merge(asked.merge, out=asked.out, page=asked.page))
        case "breadth":
            sys.exit(
                breadth.run(
                    only=asked.only,
                    jobs=asked.jobs,
                    out=asked.out,
                    policy=asked.policy,
                    shard=asked.shard,
                    seconds=asked.seconds,
                    page=asked.page,
                )
            )
        case "cost":
            sys.exit(
                cost.run(
                    names=asked.only,
                    samples=asked.samples,
                    batch=asked.batch,
                    policies=asked.policy,
                    out=asked.out,
                )
            )
        case _:
            throughput.run(samples=asked.samples, batch=asked.batch, policy=asked.policy)


def _add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the options of a benchmark that is run in parts."""
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these networks")
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="every N-th network from the I-th")
    parser.add_argument("--seconds", type=float, default=420.0, help="no network is begun later than this")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="results; what is in it already is not run again")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE.json", help="run nothing: put results together")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the table to this file")


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is not like 1/2")
    return int(index), int(count)


if __name__ == "__main__":
    main()
