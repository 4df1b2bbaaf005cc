"""Names of other libraries: none is ours, and what their messages name is there."""

import inspect
import re

import pytest
import torchmetrics.retrieval

import torchrecmetrics as trm
from torchrecmetrics.core import other_names
from torchrecmetrics.metrics import names
from torchrecmetrics.metrics.signature import METRIC_OPTIONS


def test_no_name_is_ours():
    """A name of the tables is no metric, alias, argument of `update` or option here, and stands in one table alone."""
    arguments = inspect.signature(trm.RankingMetric.update).parameters.keys()
    assert not other_names.METRICS.keys() & names._BY_NAME.keys()
    assert not (other_names.ARGUMENTS.keys() | other_names.CALLS.keys()) & arguments
    assert not other_names.CUTOFFS & {*METRIC_OPTIONS, *arguments, "k"}
    assert not other_names.ARGUMENTS.keys() & other_names.CALLS.keys()
    assert set(other_names.ARGUMENTS.values()) <= arguments
    assert all(name == names._key(name) for name in other_names.METRICS)


def test_what_messages_name_is_there():
    """Metrics and classes that the texts name exist."""
    texts = " ".join([*other_names.METRICS.values(), *other_names.CALLS.values()])
    for name in re.findall(r"\b(?<!\.)([A-Z][a-z]*[A-Z]\w+)\b", texts):
        assert hasattr(trm, name) or name in ("AUC", "AWRF", "DIN", "EE", "FuxiCTR", "RecBole"), name
    assert hasattr(torchmetrics.retrieval, "RetrievalFallOut")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        *((name, None) for name in torchmetrics.retrieval.__all__),
        ("RetrievalNormalizedDCG", "it is NDCG"),
        ("RetrievalHitRate", "it is HitRate"),
        ("RetrievalMAP", "it is MAP"),
        ("LinkPredMRR", "it is MRR"),
        ("ReciprocalRank", "it is MRR"),
        ("AdjustedHR", "it is AdjustedHitRate"),
        ("RetrievalFallOut", "torchmetrics.retrieval.RetrievalFallOut"),
        ("RBP", "docs/how-to/own-metric.md has its code"),
    ],
)
def test_classes_of_other_libraries_are_named(name, ours):
    """Each metric class of torchmetrics, and others of PyG and torcheval, is an attribute error that names ours."""
    with pytest.raises(AttributeError, match=ours or r"no attribute '\w+': ."):
        getattr(trm, name)


def test_other_attributes_are_plain_errors():
    """An unknown name is the error of any module."""
    with pytest.raises(AttributeError, match=r"^module 'torchrecmetrics' has no attribute 'Foo'$"):
        trm.Foo  # noqa: B018
    assert not hasattr(trm, "__path_of__")
