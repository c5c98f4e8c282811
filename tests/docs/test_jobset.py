"""docs/clusters/jobset.yaml: its commands are commands, and its parts name one another."""

import pytest
import yaml

from tests.docs.test_examples import problem
from tests.support.places import ROOT
from transformer_jax.errors import EXIT_UNFINISHED

MANIFEST = ROOT / "docs/clusters/jobset.yaml"


@pytest.fixture(scope="module")
def jobset():
    return yaml.safe_load(MANIFEST.read_text())


@pytest.fixture(scope="module")
def job(jobset):
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1, "the processes of a run are the pods of one Job"
    return replicated["template"]["spec"]


@pytest.fixture(scope="module")
def container(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


def test_each_pod_is_a_process_and_the_first_is_the_coordinator(jobset, job, container):
    flags = dict(flag.split("=", 1) for flag in container["args"][1:])
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"] == int(flags["--processes"])
    host = f"{jobset['metadata']['name']}-{jobset['spec']['replicatedJobs'][0]['name']}-0-0"
    assert flags["--coordinator"].partition(":")[0] == f"{host}.{jobset['metadata']['name']}"
    assert flags["--process-id"] == f"$({container['env'][0]['name']})"
    arguments = [word.replace("$(PROCESS)", "1") for word in container["args"]]
    assert problem(["transformer-jax", *arguments], []) is None


def test_the_probes_look_at_the_run(container):
    workdir = next(word for word in container["args"] if word.startswith("--workdir=")).partition("=")[2]
    for name in ("startupProbe", "livenessProbe"):
        command = container[name]["exec"]["command"]
        assert command[:3] == ["transformer-jax", "status", workdir] and problem(command, []) is None
    (mount,) = container["volumeMounts"]
    assert workdir.startswith(mount["mountPath"])


def test_only_bad_input_ends_the_set(jobset, job, container):
    (pods,) = job["podFailurePolicy"]["rules"]
    (jobs,) = jobset["spec"]["failurePolicy"]["rules"]
    assert pods["onExitCodes"]["values"] == [2] and EXIT_UNFINISHED != 2
    assert pods["onExitCodes"]["containerName"] == container["name"]
    assert (pods["action"], jobs["action"], jobs["onJobFailureReasons"]) == (
        "FailJob",
        "FailJobSet",
        ["PodFailurePolicy"],
    )
    assert job["template"]["spec"]["restartPolicy"] == "Never" and job["backoffLimit"] == 0
