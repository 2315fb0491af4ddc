"""Says which fields of a manifest are none of its kind: python manifest.py FILE. Exits 1 if there is one.

Kinds of Kubernetes are held against the models of its Python client, Argo's against those of hera. Neither refuses an
unknown field by itself: the first is walked, and the second writes out what it understood.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def walk(value: Any, kind: str, where: str) -> Iterator[str]:
    """Yield the fields that a type of the Kubernetes client does not have, and those that it lacks."""
    from kubernetes.client import models

    if item := re.fullmatch(r"list\[(.+)]", kind):
        for number, entry in enumerate(value):
            yield from walk(entry, item[1], f"{where}[{number}]")
    elif hasattr(models, kind):
        model = getattr(models, kind)
        known = {field: (name, model.openapi_types[name]) for name, field in model.attribute_map.items()}
        for field, entry in value.items():
            if field not in known:
                yield f"{where}.{field} is no field of {kind}"
            else:
                yield from walk(entry, known[field][1], f"{where}.{field}")
        try:  # the constructor refuses what is required and missing, and values of another choice
            model(**{known[field][0]: entry for field, entry in value.items() if field in known})
        except ValueError as error:
            yield f"{where}: {error}"


def differ(given: Any, understood: Any, where: str) -> Iterator[str]:
    """Yield what was given and not understood."""
    if isinstance(given, dict) and isinstance(understood, dict):
        for field, entry in given.items():
            if field not in understood:
                yield f"{where}.{field} is not understood"
            else:
                yield from differ(entry, understood[field], f"{where}.{field}")
    elif isinstance(given, list) and isinstance(understood, list):
        for number, (entry, other) in enumerate(zip(given, understood, strict=True)):
            yield from differ(entry, other, f"{where}[{number}]")


def find_faults(document: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each fault of a manifest."""
    match document["apiVersion"], document["kind"]:
        case "batch/v1", "Job":
            yield from walk(document, "V1Job", "")
        case "argoproj.io/v1alpha1", "WorkflowTemplate":
            from hera.workflows.models import WorkflowTemplate

            understood = WorkflowTemplate.model_validate(document)
            yield from differ(document, understood.model_dump(by_alias=True, exclude_none=True, mode="json"), "")
        case version, kind:
            yield f"no model of {kind} in {version}"


if __name__ == "__main__":
    found = list(find_faults(yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))))
    sys.stdout.write("".join(f"{fault}\n" for fault in found))
    sys.exit(1 if found else 0)
