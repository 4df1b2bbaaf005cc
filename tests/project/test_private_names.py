"""Private names of PyTorch, torchmetrics and Lightning that the library reads: a release that moves one fails here."""

import ast
import importlib
from pathlib import Path

import pytest
import torchmetrics

import torchrecmetrics as trm

OF_METRICS = {
    *("_apply", "_cache", "_computed", "_defaults", "_device", "_filter_kwargs", "_forward_cache", "_is_synced"),
    *("_load_from_state_dict", "_modules", "_persistent", "_plot", "_reductions", "_save_to_state_dict"),
    *("_sync_dist", "_update_count", "_wrap_compute", "_wrap_update"),
}
OF_COLLECTIONS = {"_apply", "_groups", "_load_from_state_dict", "_modules", "_save_to_state_dict", "_set_name"}
OF_TORCH = {
    *("torch._compile._disable_dynamo", "torch._guards.detect_fake_mode", "torch._C._len_torch_dispatch_stack"),
    *("torch._C._functorch.is_functorch_wrapped_tensor", "torch._C._functorch.peek_interpreter_stack"),
}
OF_LIGHTNING = {"_combined_loader", "_mode", "_every_n_epochs"}
"""Attributes of its loops for evaluation, its CombinedLoader and its ModelCheckpoint."""
OF_PYTHON = {"_C", "_asdict", "_fields", "_getframe", "_option_string_actions", "_replace"}
"""Names of the standard library, and the module `torch._C`, whose contents are above."""

PATHS = sorted(Path(trm.__file__).parent.rglob("*.py"))
NODES = [node for path in PATHS for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def read():
    """Return the private attributes that the library reads or assigns, and the private names that it defines."""
    attributes = {node.attr for node in NODES if isinstance(node, ast.Attribute) and is_private(node.attr)}
    assigned = {node.attr for node in NODES if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    defined = {
        node.name for node in NODES if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and is_private(node.name)
    }
    variables = {node.id for node in NODES if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return attributes, {name for name in defined | assigned | variables if is_private(name)}


def imported():
    """Return the dotted names of private parts of other packages that the library imports."""
    names = {
        f"{node.module}.{alias.name}" for node in NODES if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    names |= {alias.name for node in NODES if isinstance(node, ast.Import) for alias in node.names}
    names = {name for name in names if not name.startswith(("torchrecmetrics.", "__future__"))}
    return {name for name in names if any(map(is_private, name.split(".")))}


def test_every_private_name_of_others_is_listed():
    """Each private name that the library reads or overrides is in the tables above: a new one is a decision."""
    attributes, defined = read()
    listed = OF_METRICS | OF_COLLECTIONS | OF_LIGHTNING | OF_PYTHON | {name.rpartition(".")[2] for name in OF_TORCH}
    assert attributes - defined <= listed
    metric = torchmetrics.MeanMetric()
    collection = torchmetrics.MetricCollection([metric])
    assert {name for name in attributes | defined if hasattr(metric, name)} == OF_METRICS
    assert {name for name in attributes | defined if hasattr(collection, name)} == OF_COLLECTIONS
    assert imported() <= OF_TORCH


@pytest.mark.parametrize("name", sorted(OF_TORCH))
def test_torch_has(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_lightning_has():
    pl = pytest.importorskip("pytorch_lightning")
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    assert "_combined_loader" in vars(trainer.validate_loop)
    assert pl.utilities.combined_loader.CombinedLoader([], "sequential")._mode == "sequential"
    assert "_every_n_epochs" in vars(pl.callbacks.ModelCheckpoint())
