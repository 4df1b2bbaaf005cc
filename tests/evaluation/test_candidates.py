"""`evaluate(candidates=)` against full scores with -inf elsewhere; gathered products, batches, errors."""

import pytest
import torch

import torchrecmetrics as trm

USERS, ITEMS, WIDTH = 40, 60, 8
GENERATOR = torch.Generator().manual_seed(0)
NAMES = ["NDCG", "HR", "AUROC", "MAP"]


def integers(*shape):
    """Return small whole numbers, whose products are exact."""
    return torch.randint(-3, 4, shape, generator=GENERATOR).float()


EMBEDDINGS = integers(USERS, WIDTH), integers(ITEMS, WIDTH)


def pairs(share):
    return trm.Interactions.from_dense(torch.rand(USERS, ITEMS, generator=GENERATOR) < share)


TARGET, EXCLUDE, CANDIDATES = pairs(0.05), pairs(0.1), pairs(0.4)


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"memory_budget": 5000}])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_equals_full_scores(options, similarity):
    """Values are those of a score matrix with -inf where an item is no candidate, whatever the batches."""
    bias = integers(ITEMS)
    embeddings = users, items = EMBEDDINGS
    if similarity == "cosine":  # without ties, which rounding would break
        embeddings = [torch.rand(part.shape, generator=GENERATOR, dtype=torch.float64) - 0.5 for part in EMBEDDINGS]
        users, items = (torch.nn.functional.normalize(part, dim=1) for part in embeddings)
    scores = (users[:, None] * items).sum(-1) + bias
    mask = torch.zeros(USERS, ITEMS, dtype=torch.bool)
    mask[CANDIDATES.users, CANDIDATES.items] = True
    found = trm.evaluate(
        NAMES,
        *embeddings,
        target=TARGET,
        exclude=EXCLUDE,
        candidates=CANDIDATES,
        item_bias=bias,
        similarity=similarity,
        overlap="miss",
        k=[1, 5],
        **options,
    )
    full = trm.RecMetricCollection(NAMES, k=[1, 5], overlap="miss")
    ids = TARGET.users.unique()
    full.update(scores.masked_fill(~mask, -torch.inf)[ids], TARGET.select(ids), exclude=EXCLUDE.select(ids))
    for key, value in full.compute().items():
        assert found[key].item() == pytest.approx(value.item(), abs=1e-12), key
    assert (found.num_users, found.num_unreachable) == (full["HR@1"].num_users, full["HR@1"].num_unreachable)


def test_a_user_without_candidates_finds_nothing():
    """A user without candidates counts as a miss."""
    target = trm.Interactions.from_columns([0, 1], [2, 3], num_users=2, num_items=4)
    candidates = trm.Interactions.from_columns([0, 0], [2, 1], num_users=2, num_items=4)
    found = trm.evaluate("HR@5", torch.ones(2, 1), torch.ones(4, 1), target=target, candidates=candidates)
    assert (found["HR@5"], found.num_users, found.num_unreachable) == (0.5, 2, 1)
    nobody = trm.Interactions.from_columns([], [], num_users=2, num_items=4)
    assert trm.evaluate("HR@5", torch.ones(2, 1), torch.ones(4, 1), target=target, candidates=nobody)["HR@5"] == 0


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"users": lambda ids: ids}, TypeError, "candidates= reads embeddings of users and items"),
        ({"items": torch.ones(ITEMS, 3)}, ValueError, r"must be \[U, d\] and \[I, d\] on one device"),
        ({"candidates": torch.ones(2, 2)}, TypeError, "candidates beside candidates= must be Interactions"),
        ({"candidates": trm.Interactions.from_columns([0], [0], num_users=3, num_items=4)}, ValueError, "is 3 x 4"),
        ({"shard": "users"}, ValueError, "evaluate does not take shard together with candidates="),
        ({"target": {"a": TARGET}}, ValueError, "evaluate does not take a dict target together with candidates="),
    ],
)
def test_bad_input(changed, error, message):
    """Each error names the argument that is wrong."""
    given = {"users": EMBEDDINGS[0], "items": EMBEDDINGS[1], "target": TARGET, "candidates": CANDIDATES} | changed
    with pytest.raises(error, match=message):
        trm.evaluate("HR@5", given.pop("users"), given.pop("items"), **given)
