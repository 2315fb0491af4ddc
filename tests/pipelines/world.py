"""Makes what pipelines are run on: an embedded registry with three versions of a network, a dataset, a policy, keys.

python tests/pipelines/world.py FOLDER

Version 1 is healthy, version 2 was logged in training mode, version 3 is a pickle. The policy asks for
the baseline twice, so that a check of version 1 exports nothing, and one of version 2 is over after the probe.
"""

import logging
import sys
import warnings
from pathlib import Path

import mlflow
import numpy as np
import torch
from torch import nn

from validator.attest.keys import KeyType, create_key_files

POLICY = """
required = ["eager-cpu", "again"]
batch_size = 4
[checks]
fresh_process = false
[worker]
threads = 1
[backends.again]
like = "eager-cpu"
"""


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(3)
    example = np.random.default_rng(5).normal(size=(12, 6)).astype(np.float32)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    mlflow.create_experiment("net", artifact_location=(folder / "artifacts").as_uri())
    mlflow.create_experiment("validator", artifact_location=(folder / "artifacts").as_uri())
    mlflow.set_experiment("net")
    for training, serialization in ((False, "pt2"), (True, "pt2"), (False, "pickle")):
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)).train(training)
        mlflow.pytorch.log_model(
            model, name="model", registered_model_name="net", input_example=example[:2],
            serialization_format=serialization, pip_requirements=["torch"],
        )  # fmt: skip
    np.savez(folder / "samples.npz", x=example)
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    create_key_files(folder / "gate.key", KeyType.ED25519)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
