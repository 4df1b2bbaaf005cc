"""Rules of the structure: layers without import cycles, short files and functions, a test file for each module."""

import ast
import functools
import io
import tokenize
from pathlib import Path

import pytest

import torchrecmetrics as trm

PACKAGE = Path(trm.__file__).parent
LAYERS = [
    *("core", "kernels", "inputs", "tables", "data", "results", "metrics", "functional", "collection", "testing"),
    *("evaluation", "lightning", "pyg", "arrow", "cli", "__main__"),
]
"""Packages and modules, in an order in which each imports those before it, for types too."""
OF_COLLECTIONS = {"core", "kernels", "inputs", "results", "metrics", "collection"}
"""Packages that a collection loads."""
WITHOUT_TABLES = {*LAYERS[: LAYERS.index("testing") + 1], "lightning", "pyg"} - {"tables"}
"""Packages that load no tables: those of `data`, but logs and audits, import them in functions that read some."""
LONG_FUNCTIONS = {"evaluation/recommend.py: recommend": 53}
MANY_PARAMETERS = {"lightning/catalogue_callback.py: __init__": 15}


def named(path):
    return path.relative_to(PACKAGE).as_posix()


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def lines_of_code(path):
    """Return the numbers of the lines with code: no comments, docstrings or blank lines."""
    text = path.read_text(encoding="utf-8")
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= {*range(node.lineno, node.end_lineno + 1)}
    return lines


PATHS = sorted(PACKAGE.rglob("*.py"))
CHECKED = [path for path in PATHS if path.name != "triton.py"]


FUNCTIONS = [(path, node) for path in CHECKED for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef)]


def test_no_file_has_more_than_450_lines_of_code():
    sizes = {named(path): len(lines_of_code(path)) for path in CHECKED}
    assert {name: size for name, size in sizes.items() if size > 450} == {}


def test_no_function_has_more_than_50_lines_of_code_but_those_listed():
    sizes = {
        f"{named(path)}: {node.name}": len(lines_of_code(path) & {*range(node.body[0].lineno, node.end_lineno + 1)})
        for path, node in FUNCTIONS
    }

    assert {name: size for name, size in sizes.items() if size > 50} == LONG_FUNCTIONS


def test_no_public_function_has_more_than_14_parameters_but_those_listed():
    """Further options live with what they describe: an input, an accumulator, a metric."""
    numbers = {
        f"{named(path)}: {node.name}": len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
        for path, node in FUNCTIONS
        if not node.name.startswith("_") or node.name == "__init__"
    }

    assert {name: number for name, number in numbers.items() if number > 14} == MANY_PARAMETERS


def imported(path, with_types=False, in_functions=True):
    """Return the names, with their modules, that a module imports: when it runs, in functions too; those for types."""
    tree, names, left_out = parsed(path), set(), set()
    for node in ast.walk(tree):
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if (for_types and not with_types) or (isinstance(node, ast.FunctionDef) and not in_functions):
            left_out |= {inner for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


MODULES = {named(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in PATHS}


@functools.cache
def imports_of_modules(with_types=False, in_functions=True):
    """Return the modules of this package that each module but `__init__`, which has what users see, imports."""
    imports = {}
    for module, path in MODULES.items():
        names = {name.removeprefix("torchrecmetrics.") for name in imported(path, with_types, in_functions)}
        targets = {name if name in MODULES else name.rpartition(".")[0] for name in names}
        imports[module] = targets & MODULES.keys() - {module}
    del imports["__init__"]
    return imports


def loaded_with(module):
    """Return the modules that are loaded when a module is imported, itself among them."""
    loaded, waiting = set(), {module}
    while waiting:
        loaded |= waiting
        waiting = {other for name in waiting for other in imports_of_modules(in_functions=False)[name]} - loaded
    return loaded


def test_modules_import_each_other_in_no_cycle():
    """Modules can be put in an order in which each imports earlier ones alone, for types too."""
    waiting, ordered = imports_of_modules(with_types=True), set()
    while ready := [module for module, others in waiting.items() if others <= ordered]:
        ordered |= {*ready}
        waiting = {module: others for module, others in waiting.items() if module not in ordered}
    assert not {module: others & waiting.keys() for module, others in waiting.items()}


IMPORTS = imports_of_modules()


def layer_of(module):
    return LAYERS.index(module.split(".")[0])


def packages_of(modules):
    return {module.split(".")[0] for module in modules}


def imported_by(*packages):
    """Return what each module of these packages imports of this one."""
    return {module: others for module, others in IMPORTS.items() if module.split(".")[0] in packages}


def test_no_module_imports_one_of_a_later_layer_even_for_types():
    imports = imports_of_modules(with_types=True)
    assert not [(m, other) for m, others in imports.items() for other in others if layer_of(other) > layer_of(m)]


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("core", {"core"}), ("tables", {"core", "tables"}), ("inputs", {"core", "kernels", "inputs"})],
)
def test_core_tables_and_inputs_import_few_packages(package, allowed):
    assert not {module for module, others in imported_by(package).items() if packages_of(others) - allowed}


def test_inputs_import_no_other_input_but_those_that_they_share():
    shared = {"batch_input", "targets", "exclusion", "from_counts", "scores", "jagged"}
    siblings = {
        module: {other.split(".")[1] for other in others if other.startswith("inputs.")} - shared
        for module, others in imported_by("inputs").items()
    }

    assert {module: others for module, others in siblings.items() if others} == {"inputs.as_input": {"ranks"}}


def test_what_a_collection_loads_imports_no_framework():
    frameworks = {"pandas", "polars", "pyarrow", "matplotlib", "lightning", "pytorch_lightning", "torch_geometric"}
    names = {module: packages_of(imported(MODULES[module])) for module in imported_by(*OF_COLLECTIONS)}

    assert {module for module in names if names[module] & frameworks} == {"results.plots"}


def test_only_readers_of_tables_load_them():
    """Metrics, interactions, callbacks, `pyg` and comparisons load no table when they are imported."""
    others = imported_by(*WITHOUT_TABLES).keys() - {"data.log", "data.audit"}
    assert not {module for module in others if "tables" in packages_of(loaded_with(module))}


def test_collections_load_no_tables_data_or_evaluation():
    assert packages_of(loaded_with("collection.collect_sessions")) == OF_COLLECTIONS


def test_only_collections_and_metrics_ask_for_the_class_of_an_accumulator():
    """Other modules call methods of accumulators, in which these differ."""
    asked = {
        (module, ast.unparse(node.args[1]))
        for module in MODULES
        if not module.startswith(("metrics.", "collection."))
        for node in ast.walk(parsed(MODULES[module]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
    }

    assert not {(module, name) for module, name in asked if name in ("ByGroup", "Window", "KeptRows")}


ELSEWHERE = {
    "__main__": "test_cli",
    "core/checks": "metrics/test_ranking_metric",
    "core/distributed": "metrics/test_ranking_metric",
    "core/numbers": "data/test_interactions",
    "core/options": "metrics/test_accuracy",
    "core/result": "metrics/test_accuracy",
    "data/edges": "data/test_interactions",
    "evaluation/sides": "evaluation/test_evaluate_lists",
    "inputs/batch_input": "inputs/test_as_input",
    "inputs/targets": "inputs/test_scores",
    "kernels/blocks": "kernels/test_topk_ids",
    "kernels/contract": "kernels/test_eager",
    "metrics/accumulator": "collection/test_by_group",
    "metrics/item_counts": "metrics/test_list_metric",
    "metrics/list_formulas": "metrics/test_of_lists",
    "metrics/names": "collection/test_collection",
    "results/result_table": "results/test_comparison",
}
"""Modules that are tested through another one, and the file that does it."""
OF_SEVERAL_MODULES = {
    *("inputs/test_modes", "metrics/test_doors", "metrics/test_states", "tables/test_cures"),
    *("evaluation/test_embeddings", "evaluation/test_few_matches"),
    *("metrics/test_list_metric", "metrics/test_list_peers", "metrics/test_relevant_from"),
    *("lightning/test_cli", "lightning/test_module", "lightning/test_without_lightning"),
    *("test_conformance", "test_engines", "test_matrix", "test_peers"),
}


def test_tests_mirror_the_package():
    """Each module has a test file with its path, or names one; each test file has its module, or is of several."""
    folder, mirrors, files = Path(__file__).parents[1], {}, set()
    for path in PATHS:
        module = path.relative_to(PACKAGE).with_suffix("")
        if path.name != "__init__.py":
            mirrors[module.as_posix()] = module.with_name(f"test_{module.name}").as_posix()
    for path in folder.rglob("test_*.py"):
        if path.parent.name not in ("gpu", "project"):
            files.add(path.relative_to(folder).with_suffix("").as_posix())

    assert {module for module, file in mirrors.items() if file not in files} == ELSEWHERE.keys()
    assert set(ELSEWHERE.values()) <= files
    assert files - set(mirrors.values()) == OF_SEVERAL_MODULES
