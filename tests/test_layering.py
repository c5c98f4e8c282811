"""The house has floors: a module imports only from floors below, and in its own folder what stands before it."""

import ast
import graphlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "transformer_jax"

# From the ground up. Names on one line are rooms side by side, which do not know each other.
FLOORS = [
    ["errors", "version", "shipped"],
    ["paths", "table3", "record"],
    ["schema"],
    ["extension", "model_config"],
    ["custom_code", "config"],
    ["decoding.course", "decoding.largest", "decoding.penalties", "decoding.rules"],
    ["model", "data", "decoding.search", "page", "attention_page"],
    ["plots"],
    ["training"],
    ["decoding"],
    ["interop", "evaluation", "evaluation_record"],
    ["tryout", "usage"],
    ["runs"],
    ["streams"],
    ["sweeps"],
    ["commands"],
    ["cli", "__init__"],
    ["__main__"],
]
# Inside a folder the same rule, file by file; files that are not named stand side by side after those that are.
ORDER = {
    "model": [
        "masks",
        "precision",
        "linear",
        "norm",
        "softmax",
        "dropout",
        "sinusoid",
        "positions",
        "fused",
        "attention",
        "parts",
        "layers",
        "stacks",
        "transformer",
        "size",
    ],
    "data": [
        "disk",
        "progress",
        "lines",
        "chunks",
        "file_corpus",
        "tfds_corpus",
        "own_corpus",
        "grammar",
        "tasks",
        "samples",
        "corpora",
        "cleaning",
        "tokenizer",
        "arrays",
        "prepared",
        "recipe",
        "scan",
        "prepare",
        "assembly",
        "buckets",
        "packing",
        "batching",
        "prefetch",
    ],
    "training": [
        "compilation",
        "loss",
        "cost",
        "data_sheets",
        "cluster",
        "optimizer",
        "sharding",
        "reduction",
        "step",
        "digest",
        "checkpoint",
        "foreign",
        "kept_code",
        "run_folder",
        "best",
        "hardware",
        "metrics",
        "throughput",
        "header",
        "export",
        "watch",
        "distributed",
        "signals",
        "course",
        "journal",
        "programs",
        "probes",
        "compiled",
        "loop",
        "together",
    ],
    "decoding": ["stepper", "shapes", "translate", "scoring", "run"],
    "sweeps": [
        "cost",
        "spec",
        "folder",
        "provenance",
        "measure",
        "worker",
        "process",
        "status",
        "plan",
        "local",
        "slurm",
        "launch",
        "statistics",
        "results",
        "findings",
        "size_view",
        "report_plots",
        "report_table",
        "report_csv",
        "report_curves",
        "report_analyses",
        "report_samples",
        "report_content",
        "report_style",
        "report_page",
        "report_text",
        "report",
    ],
    "interop": ["fields", "tensors", "marian_config", "marian_weights", "marian_vocabulary", "marian"],
    "commands": ["parser", "configuration", "model_choice", "text_input"],
}


def place(module: str) -> tuple[str, tuple[int, int]]:
    """The room a module belongs to, and where it stands: (floor, place inside the room's folder)."""
    for depth in (2, 1):
        room = ".".join(module.split(".")[:depth])
        for floor, rooms in enumerate(FLOORS):
            if room in rooms:
                inside = ORDER.get(room, [])
                name = module.removeprefix(f"{room}.").split(".")[0]
                return room, (floor, inside.index(name) if name in inside else len(inside))
    raise AssertionError(f"{module} has no place in FLOORS")


def imports(file: Path) -> set[str]:
    """Every module of the package that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {module if is_module(module) else str(node.module) for module in modules}
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError(f"{file}: relative import")
    return {name.removeprefix("transformer_jax.") for name in found if name.startswith("transformer_jax.")}


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def upward(file: Path, imported: set[str]) -> list[str]:
    """The imports of a file that do not point down."""
    module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__") or "__init__"
    room, here = place(module)
    wrong = []
    for name in sorted(imported):
        its_room, there = place(name)
        # A folder inside a room (data/grammar) is one place; that its files run in no circle is tested below.
        inside = its_room == room and (there < here or subfolder(module) == subfolder(name) != "")
        if not (there[0] < here[0] or inside):
            wrong.append(f"{module} imports {name}")
    return wrong


def subfolder(module: str) -> str:
    return ".".join(module.split(".")[:2]) if (PACKAGE / "/".join(module.split(".")[:2])).is_dir() else ""


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_no_file_imports_itself_by_way_of_others():
    graph = {}
    for file in files():
        module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        graph[module] = {
            f"{name}.__init__" if (PACKAGE / name.replace(".", "/")).is_dir() else name for name in imports(file)
        }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_imports_point_down():
    assert [line for file in files() for line in upward(file, imports(file))] == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("config.py", "model.attention"),
        ("model/layers.py", "data.batching"),
        ("data/batching.py", "training.step"),
        ("decoding/search.py", "model.transformer"),
        ("commands/configuration.py", "commands.inspect"),
    ],
)
def test_an_upward_or_sideways_import_is_found(module, imported):
    assert upward(PACKAGE / module, {imported}) == [f"{module[:-3].replace('/', '.')} imports {imported}"]


def test_the_package_never_imports_configs_or_experiments():
    for file in files():
        text = file.read_text()
        assert "import configs" not in text
        assert "from configs" not in text
        assert "from experiments" not in text


def test_files_and_functions_stay_short_enough_to_be_read():
    """Where one does not, a noun is missing: what is too long is named here."""
    long = []
    for file in files():
        text = file.read_text()
        lines, most = text.count("\n"), 220 if file.parent.name == "model" else 400
        long += [f"{file.name}: {lines} lines"] if lines > most else []
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        sizes = [(function.name, (function.end_lineno or 0) - function.lineno + 1) for function in functions]
        long += [f"{file.name}: {name} has {size} lines" for name, size in sizes if size > 60]
    assert long == []
