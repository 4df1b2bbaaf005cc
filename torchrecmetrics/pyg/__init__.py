"""PyG in and out: evaluate a LightGCN-style model on its graph, and `LinkPredMetric`'s arguments for our collection."""

try:
    import torch_geometric  # noqa: F401
except ImportError as _error:
    raise ImportError("torchrecmetrics.pyg needs PyG: pip install 'torchrecmetrics[pyg]'") from _error

from torchrecmetrics.pyg.graphs import evaluate, message_passing_interactions
from torchrecmetrics.pyg.link_pred import LinkPredCollection
from torchrecmetrics.pyg.triples import evaluate_triples

__all__ = ["LinkPredCollection", "evaluate", "evaluate_triples", "message_passing_interactions"]
