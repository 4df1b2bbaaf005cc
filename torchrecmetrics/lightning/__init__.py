"""Lightning callbacks: metrics of the steps' output, and evaluation of a whole catalogue after an epoch.

The callbacks work with `lightning` and with `pytorch_lightning`, whichever is installed.
"""

from torchrecmetrics.lightning.catalogue_callback import CatalogueEvaluationCallback
from torchrecmetrics.lightning.steps_callback import RecMetricsCallback

__all__ = ["CatalogueEvaluationCallback", "RecMetricsCallback"]
