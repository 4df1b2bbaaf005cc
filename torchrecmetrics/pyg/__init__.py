"""PyG models: evaluation on graphs and knowledge graphs, and a collection with the arguments of `LinkPredMetric`."""

from torchrecmetrics.core.checks import extra

try:
    import torch_geometric  # noqa: F401
except ImportError as _error:
    raise ImportError(f"torchrecmetrics.pyg needs PyG: {extra('pyg')}") from _error

from torchrecmetrics.pyg.graphs import evaluate, message_passing_interactions
from torchrecmetrics.pyg.link_pred import LinkPredCollection
from torchrecmetrics.pyg.triples import evaluate_triples

__all__ = ["LinkPredCollection", "evaluate", "evaluate_triples", "message_passing_interactions"]
