"""Kubeflow Pipelines v2: check, then promote, as container components.

python pipelines/kubeflow.py pipelines/kubeflow.yaml     # needs kfp 2; the compiled file lies beside this one

The steps call the same recipes as every other pipeline, in an image made from pipelines/Dockerfile. Secrets are bound
where the pipeline is submitted (`kfp.kubernetes.use_secret_as_env`, `use_secret_as_volume`), one set for each step.
"""

import os
import sys

from kfp import compiler, dsl

IMAGE = os.environ.get("VALIDATOR_IMAGE", "validator:0.1.0")

# kfp knows where an artifact lies only when the step runs, and only in command and arguments. The shell gets that as $0
# and the parameters as $1 and so on, so none of them is pasted into a script.
CHECK = 'REPORT_FOLDER="$0" exec check.sh "$1" --tracking-uri "$2" --policy "$3" ${4:+--golden "$4"}'
PROMOTE = 'REPORT_FOLDER="$0" EXPECT_URI="$1" exec promote.sh "$2" --tracking-uri "$3" --key "$4" --policy-digest "$5"'


@dsl.container_component
def check(
    uri: str,
    tracking_uri: str,
    policy: str,
    golden: str,
    report: dsl.Output[dsl.Artifact],
):
    """Fail unless the model is cleared; the report is the folder with verdict.json and clearance.json."""
    return dsl.ContainerSpec(
        image=IMAGE, command=["sh", "-c", CHECK], args=[report.path, uri, tracking_uri, policy, golden]
    )


@dsl.container_component
def promote(
    report: dsl.Input[dsl.Artifact], uri: str, tracking_uri: str, alias: str, public_key: str, policy_digest: str
):
    """Move the alias to the version that the report's clearance is about. `public_key` is a file in the container."""
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["sh", "-c", PROMOTE],
        args=[report.path, uri, alias, tracking_uri, public_key, policy_digest],
    )


@dsl.pipeline(name="validator", description="Check a registered model, then promote it")
def gate(
    uri: str,
    tracking_uri: str,
    alias: str,
    policy_digest: str,
    public_key: str = "/keys/gate.key.pub",
    policy: str = "default",
    golden: str = "",
):
    """Promote what was cleared; a step that ends with another exit code than 0 stops the pipeline."""
    checked = check(uri=uri, tracking_uri=tracking_uri, policy=policy, golden=golden)
    checked.set_caching_options(enable_caching=False)  # yesterday's verdict is not today's
    checked.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
    promoted = promote(
        report=checked.outputs["report"], uri=uri, tracking_uri=tracking_uri, alias=alias, public_key=public_key,
        policy_digest=policy_digest,
    )  # fmt: skip
    promoted.set_caching_options(enable_caching=False)


if __name__ == "__main__":
    compiler.Compiler().compile(gate, sys.argv[1])
