"""What a release is built with: the workflows, the Dockerfile and the extras of the Makefile."""

import re
import shlex
import tomllib

import pytest
import yaml

from tests.support.places import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_reads_only_and_runs_pinned_actions_and_what_is_there(file):
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", f"actions/x@{'0' * 40}"))
    commands = [step["run"] for step in steps if "run" in step]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for program, *arguments in map(shlex.split, commands):
        assert program in (".ci/run", "grep") or (program == "make" and set(arguments) <= set(targets))


def test_every_python_is_tested_by_the_workflow_and_named_in_pyproject():
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert matrix["python"] == named and project["requires-python"] == f">={named[0]}"


def test_the_dockerfile_copies_what_is_there_and_dockerignore_lets_through():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists() and f"!{name}" in ignored, name
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*needed["packages"], *needed["force-include"]} <= set(" ".join(copied).split())


def test_the_extras_that_are_installed_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = [ROOT / "Makefile", ROOT / "Dockerfile", *ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")]
    for file in files:
        text = file.read_text()
        used = re.findall(r"(?:transformer_jax|'\.)\[([a-z,]+)\]|EXTRAS=([a-z,]+)|extras = ([a-z,]+)", text)
        assert {name for found in used for name in "".join(found).split(",")} <= set(extras), file
