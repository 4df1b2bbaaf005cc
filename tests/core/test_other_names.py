"""Names of other libraries: none is ours, and what their messages name is there."""

import inspect
import re
from functools import partial

import pytest
import torch
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
    assert not other_names.CUTOFFS.keys() & {*METRIC_OPTIONS, *arguments, "k"}
    assert not other_names.ARGUMENTS.keys() & other_names.CALLS.keys()
    assert set(other_names.ARGUMENTS.values()) <= arguments
    assert all(name == names._key(name) for name in other_names.METRICS)


def test_what_messages_name_is_there():
    """Metrics and classes that the texts name exist."""
    texts = " ".join([*other_names.METRICS.values(), *other_names.CALLS.values()])
    for name in re.findall(r"\b(?<!\.)([A-Z][a-z]*[A-Z]\w+)\b", texts):
        assert hasattr(trm, name) or name in ("AUC", "AWRF", "DIN", "EE", "FuxiCTR", "RecBole"), name
    assert hasattr(torchmetrics.retrieval, "RetrievalFallOut")


SCORES, TARGET = torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2])


@pytest.mark.parametrize("name", other_names.CUTOFFS)
def test_other_names_of_the_cutoff(name):
    """Every metric and `get_topk_ranks` explain the cut-off of another library; metrics without k say that."""
    classes = [getattr(trm, label) for label in trm.__all__ if isinstance(getattr(trm, label), type)]
    metrics = [cls for cls in classes if issubclass(cls, trm.RankingMetric) and hasattr(cls, "formula")]
    assert len(metrics) > 30
    for make in (*metrics, partial(trm.get_topk_ranks, SCORES, TARGET)):
        takes_k = make not in metrics or make._signature.takes_k
        answer = rf"{name}= is called k here: k=10" if takes_k else rf"\w+ has no cut-off, got {name}=5$"
        with pytest.raises(TypeError, match=f"^{answer}"):
            make(**{name: 5})


@pytest.mark.parametrize("name", [name for name, ours in other_names.ARGUMENTS.items() if ours != "weights"])
def test_other_names_of_scores_and_target(name):
    """`get_topk_ranks` and `update` explain the same names with the same words, and the call that they name works."""
    ours = other_names.ARGUMENTS[name]
    given = {"scores": SCORES, "target": TARGET}
    value = given.pop(ours)
    message = rf"^{name}= is called {ours} here: update\(scores, target\), get_topk_ranks\(scores, target, k\), or by"
    with pytest.raises(TypeError, match=message):
        trm.get_topk_ranks(**given, **{name: value}, k=2)
    with pytest.raises(TypeError, match=message):
        trm.HR(2).update(**given, **{name: value})
    assert trm.get_topk_ranks(**given, **{ours: value}, k=2).tolist() == [[2]]


def test_all_other_names_of_a_call_are_explained():
    """One error names each of them; a keyword that no library has is the error of any function."""
    with pytest.raises(TypeError, match=r"^pred_scores= is called scores here: .*; topk= is called k here: k=10"):
        trm.get_topk_ranks(pred_scores=SCORES, target=TARGET, topk=10)
    with pytest.raises(TypeError, match="unexpected keyword argument 'depht'"):
        trm.get_topk_ranks(SCORES, TARGET, 2, depht=3)
    assert list(inspect.signature(trm.get_topk_ranks).parameters)[:3] == ["scores", "target", "k"]
    assert list(inspect.signature(trm.HitRate).parameters) == ["k", "score_threshold", "options"]


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
