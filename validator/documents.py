"""Reading TOML, YAML and JSON that somebody else wrote: bounded in time and memory, and with one kind of error.

The parsers behind are correct on what people write, and on other bytes raise what they like, or take for ever: a dotted
key of 50,000 parts costs `tomllib` minutes and gigabytes, and a merge key in YAML doubles with every line.
"""

import json
import tomllib
from typing import Any

TOML_LIMIT_BYTES = 1 << 20
"""A real policy has a few thousand bytes, a calibrated one some ten thousand."""
YAML_LIMIT_BYTES = 1 << 18
"""A real MLmodel has a thousand bytes, and PyYAML takes ten seconds for this much of the worst."""
DOTS_LIMIT = 100
"""On one line of TOML: a key cannot be longer than its line, and the time for one grows with its square."""


DEPTH_LIMIT = 100
"""Of YAML: the time for a thousand brackets grows with their square."""


def read_toml(text: str) -> dict[str, Any]:
    """Read TOML.

    Raises:
        ValueError: not TOML, too large, or too deep.
    """
    _check_size(len(text), TOML_LIMIT_BYTES)
    if any(line.count(".") > DOTS_LIMIT for line in text.split("\n")):
        raise ValueError(f"a line has more than {DOTS_LIMIT} dots")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_yaml(data: bytes) -> Any:
    """Read YAML of plain values.

    Raises:
        ValueError: not YAML, too large, too deep, a key given twice, or a merge key.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Of bounded depth, and without merge keys, which grow without bound; a mapping says everything once."""

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            if self.depth > DEPTH_LIMIT:
                raise ValueError("it is nested too deeply")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def flatten_mapping(self, node: Any) -> None:
            keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(keys)) < len(keys) or any(tag == "tag:yaml.org,2002:merge" for tag, _ in keys):
                raise ValueError("a mapping with a key given twice, or merged from another")

    _check_size(len(data), YAML_LIMIT_BYTES)
    try:
        return yaml.load(data, Loader=Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, AttributeError, TypeError, OverflowError, LookupError) as error:
        raise ValueError(f"it is not YAML of plain values: {type(error).__name__}") from error


def read_json(data: str | bytes) -> Any:
    """Read JSON of any size.

    Raises:
        ValueError: not JSON, or too deep.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"it is longer than {limit:,} bytes")
