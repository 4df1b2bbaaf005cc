"""Rules of the structure: layers without import cycles, short files and functions, a test file for each module."""

import ast
import functools
import io
import tokenize
from pathlib import Path

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
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS = {
    "evaluation/recommend.py: recommend": 53,
}
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


def functions():
    """Yield the path and the node of each function."""
    for path in CHECKED:
        yield from ((path, node) for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef))


def test_files_are_short():
    """No file but those listed has more than 450 lines of code; those that shrink leave the list."""
    sizes = {named(path): len(lines_of_code(path)) for path in CHECKED}
    assert {name: size for name, size in sizes.items() if size > 450} == LONG_FILES


def test_functions_are_short():
    """No function but those listed has more than 50 lines of code."""
    sizes = {}
    for path, node in functions():
        size = len(lines_of_code(path) & {*range(node.body[0].lineno, node.end_lineno + 1)})
        sizes |= {f"{named(path)}: {node.name}": size} if size > 50 else {}
    assert sizes == LONG_FUNCTIONS


def test_no_public_function_has_many_parameters():
    """Further options live with what they describe: an input, an accumulator, a metric."""
    numbers = {}
    for path, node in functions():
        if not node.name.startswith("_") or node.name == "__init__":
            number = len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
            numbers |= {f"{named(path)}: {node.name}": number} if number > 14 else {}
    assert numbers == MANY_PARAMETERS


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


def test_there_is_no_import_cycle():
    """Modules can be put in an order in which each imports earlier ones alone, for types too."""
    waiting, ordered = imports_of_modules(with_types=True), set()
    while ready := [module for module, others in waiting.items() if others <= ordered]:
        ordered |= {*ready}
        waiting = {module: others for module, others in waiting.items() if module not in ordered}
    assert not {module: others & waiting.keys() for module, others in waiting.items()}


def layer_of(module):
    return LAYERS.index(module.split(".")[0])


def test_layers_import_downwards():
    """No module imports one of a later layer, for types neither; core and tables stand alone, inputs import few."""
    imports, for_types = imports_of_modules(), imports_of_modules(with_types=True)
    upwards = [(m, o) for m, others in for_types.items() for o in others if layer_of(o) > layer_of(m)]
    assert not upwards
    shared = {"batch_input", "targets", "exclusion", "from_counts", "scores", "jagged"}
    for module, others in imports.items():
        packages = {other.split(".")[0] for other in others}
        if module.startswith(("core", "tables")):
            assert packages <= {"core", module.split(".")[0]}, module
        if module.startswith("inputs."):
            assert packages <= {"core", "kernels", "inputs"}, module
            siblings = {other.split(".")[1] for other in others if other.startswith("inputs.")}
            assert siblings <= shared | ({"ranks"} if module == "inputs.as_input" else set()), module
    frameworks = {"pandas", "polars", "pyarrow", "matplotlib", "lightning", "pytorch_lightning", "torch_geometric"}
    for module in imports:
        if module.split(".")[0] in OF_COLLECTIONS and module != "results.plots":
            assert not {name.split(".")[0] for name in imported(MODULES[module])} & frameworks, module


def test_only_readers_of_tables_load_them():
    """Metrics, interactions, callbacks, `pyg` and comparisons load no table when they are imported."""
    for module in imports_of_modules().keys() - {"data.log", "data.audit"}:
        if module.split(".")[0] in WITHOUT_TABLES:
            assert not {other for other in loaded_with(module) if other.split(".")[0] == "tables"}, module


def test_collections_load_no_tables_data_or_evaluation():
    loaded = loaded_with("collection.collect_sessions")

    assert {module.split(".")[0] for module in loaded} == OF_COLLECTIONS


def test_no_module_asks_for_the_class_of_an_accumulator():
    """What differs between accumulators is a method of theirs; only the package of collections names their classes."""
    for module in (module for module in MODULES if not module.startswith(("metrics.", "collection."))):
        for node in ast.walk(parsed(MODULES[module])):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                assert ast.unparse(node.args[1]) not in ("ByGroup", "Window", "KeptRows"), (module, ast.unparse(node))


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
    "inputs/test_modes",
    "evaluation/test_embeddings",  # a source among those of scorers
    "evaluation/test_few_matches",
    "metrics/test_doors",
    "metrics/test_list_metric",
    "metrics/test_list_peers",
    "metrics/test_relevant_from",
    "lightning/test_cli",
    "lightning/test_module",
    "lightning/test_without_lightning",
    "tables/test_cures",
    "metrics/test_states",  # of metrics and collections
    "test_conformance",
    "test_engines",  # tallies in engines for data
    "test_matrix",
    "test_peers",
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
