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


def private(names):
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


PATHS = Path(trm.__file__).parent.rglob("*.py")
NODES = [node for path in PATHS for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def nodes(*kinds):
    return [node for node in NODES if isinstance(node, kinds)]


ATTRIBUTES = nodes(ast.Attribute)
READ = private(node.attr for node in ATTRIBUTES)
"""Attributes that the library reads or assigns."""
DEFINED = private(node.name for node in nodes(ast.FunctionDef, ast.ClassDef))
DEFINED |= private(node.attr for node in ATTRIBUTES if isinstance(node.ctx, ast.Store))
DEFINED |= private(node.id for node in nodes(ast.Name) if isinstance(node.ctx, ast.Store))


def test_every_private_name_of_others_is_listed():
    """A new one is a decision."""
    listed = OF_METRICS | OF_COLLECTIONS | OF_LIGHTNING | OF_PYTHON | {name.rpartition(".")[2] for name in OF_TORCH}
    assert not READ - DEFINED - listed


def test_names_that_torchmetrics_has_too_are_listed():
    metric = torchmetrics.MeanMetric()
    names, collection = READ | DEFINED, torchmetrics.MetricCollection([metric])

    assert {name for name in names if hasattr(metric, name)} == OF_METRICS
    assert {name for name in names if hasattr(collection, name)} == OF_COLLECTIONS


def test_every_private_import_is_listed():
    imports = {alias.name for node in nodes(ast.Import) for alias in node.names}
    imports |= {f"{node.module}.{alias.name}" for node in nodes(ast.ImportFrom) for alias in node.names}
    of_others = {name for name in imports if not name.startswith(("torchrecmetrics.", "__future__"))}

    assert {name for name in of_others if private(name.split("."))} <= OF_TORCH


@pytest.mark.parametrize("name", sorted(OF_TORCH))
def test_torch_has_what_is_imported(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_lightning_has_what_callbacks_read():
    pl = pytest.importorskip("pytorch_lightning")
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)

    assert "_combined_loader" in vars(trainer.validate_loop)
    assert pl.utilities.combined_loader.CombinedLoader([], "sequential")._mode == "sequential"
    assert "_every_n_epochs" in vars(pl.callbacks.ModelCheckpoint())
