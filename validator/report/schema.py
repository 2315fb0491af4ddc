"""The published JSON schema of `verdict.json`, made from the model. `python -m validator.report.schema` writes it."""

import json
import sys
from pathlib import Path

from validator.report.model import SCHEMA_VERSION, VerdictDocument
from validator.report.write import write_text

SCHEMA_PATH = Path(__file__).with_name("verdict.schema.json")


def schema_text() -> str:
    """Return the schema as canonical JSON."""
    schema = VerdictDocument.model_json_schema(mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"Verdict of validator, schema {SCHEMA_VERSION}"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(f"{write_text(schema_text(), SCHEMA_PATH)}\n")
