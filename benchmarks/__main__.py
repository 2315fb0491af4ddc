"""`python -m benchmarks NAME [OPTIONS]`."""

import argparse
from pathlib import Path

from benchmarks import detection, startup, throughput


def main() -> None:
    """Run one benchmark and print its numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    names.add_parser("startup", help="CPU time and imports of `validator --help`")
    full = names.add_parser(
        "throughput", help="AlexNet: wall time of a check over the bare forward loop; parent's memory"
    )
    full.add_argument("--samples", type=int, default=2048)
    full.add_argument("--batch", type=int, default=32)
    full.add_argument("--policy", default="cpu", help="`default` on a GPU machine")
    card = names.add_parser("detection", help="planted faults and healthy variants: what this gate and other rules say")
    card.add_argument("--quick", action="store_true", help="two networks, about a minute")
    card.add_argument("--output", type=Path, help="also write the card to this Markdown file")
    asked = parser.parse_args()
    match asked.name:
        case "startup":
            startup.run()
        case "detection":
            detection.run(quick=asked.quick, output=asked.output)
        case _:
            throughput.run(samples=asked.samples, batch=asked.batch, policy=asked.policy)


if __name__ == "__main__":
    main()
