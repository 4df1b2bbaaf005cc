"""The core: rankings, row values, metrics and accumulators; imports torch and torchmetrics alone."""
