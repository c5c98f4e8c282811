"""Nothing that was only given to read is run: no pickle, no shell. SECURITY.md says what is code."""

import ast
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.support.translating_runs import made_run
from transformer_jax import load_run
from transformer_jax.errors import BadInput
from transformer_jax.sweeps.slurm import Slurm

PACKAGE = ROOT / "transformer_jax"
# What would run what it reads; `exec_module` is how config files and experiments, which are code, are run.
RUNS_WHAT_IT_READS = {"eval", "exec", "compile", "__import__", "system", "popen", "getoutput", "getstatusoutput"}
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "torch"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def names(tree):
    """What is imported, and the names of the functions that are called, with the call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", None
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            is_method_of_ours = isinstance(function, ast.Attribute) and name in ("compile", "exec", "eval")
            if not is_method_of_ours:  # re.compile, a compiled program
                yield name, node


def unsafe(source):
    for name, call in names(ast.parse(source)):
        if call is None:
            is_unsafe = name.partition(".")[0] in UNSAFE_MODULES
        else:
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            unpickles = ast.unparse(call.func) == "np.load" and given.get("allow_pickle") != "False"
            is_unsafe = name in RUNS_WHAT_IT_READS or given.get("shell", "False") != "False" or unpickles
        if is_unsafe:
            yield name


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_source_runs_nothing_that_it_reads(source):
    assert list(unsafe(source.read_text())) == []


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from torch import load", "np.load(path)", "np.load(path, allow_pickle=True)", "eval(text)",
     "os.system(line)", "subprocess.run(line, shell=True)", "exec(code)"],
)  # fmt: skip
def test_the_test_sees_what_it_looks_for(source):
    assert len(list(unsafe(source))) == 1


unpickled: list[tuple] = []
watching = False


def _watch(event, arguments):
    if watching and event == "pickle.find_class":
        unpickled.append(arguments)


def test_loading_a_model_and_a_checkpoint_unpickles_nothing(tmp_path):
    """Also none of the libraries below does: Python itself tells of every class that a pickle asks for."""
    import pickle

    from tests.runs.test_checkpoint import plan_of, restored, saved, state_of

    run = made_run()
    global watching
    sys.addaudithook(_watch)  # it stays, but hears nothing once we are done
    watching = True
    try:
        pickle.loads(pickle.dumps(Path))
        assert len(unpickled) == 1  # it can hear
        unpickled.clear()
        load_run(run, "averaged")
        saved(tmp_path / "checkpoints", [1])
        assert restored(tmp_path / "checkpoints", plan_of(state_of(1))).step == 1
    finally:
        watching = False
    assert unpickled == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"comment": "a\nrm -rf x"},
        {"comment": "a\rb"},
        {"a\nrm x": "1"},
        {"$(rm x)": "1"},
    ],
)
def test_no_option_of_slurm_becomes_a_line_of_the_script(parameters, tmp_path):
    with pytest.raises(BadInput, match="sbatch"):
        Slurm(parameters, 10).executor(tmp_path)
