"""`Embeddings(allowed=)` of each user against full scores with -inf elsewhere; gathered products, batches, errors."""

import pytest
import torch
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics import Interactions

USERS, ITEMS, WIDTH = 40, 60, 8
GENERATOR = torch.Generator().manual_seed(0)
NAMES = ["NDCG", "HR", "AUROC", "MAP"]


def integers(*shape):
    """Return small whole numbers, whose products are exact."""
    return torch.randint(-3, 4, shape, generator=GENERATOR).float()


def pairs(share):
    return Interactions.from_dense(torch.rand(USERS, ITEMS, generator=GENERATOR) < share)


TARGET, EXCLUDE, CANDIDATES = pairs(0.05), pairs(0.1), pairs(0.4)


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_equals_full_scores(batch_size, similarity):
    """Values are those of a score matrix with -inf where an item is no candidate, whatever the batches."""
    bias, embeddings = integers(ITEMS), [integers(USERS, WIDTH), integers(ITEMS, WIDTH)]
    users, items = embeddings
    if similarity == "cosine":  # without ties, which rounding would break
        embeddings = [torch.rand(part.shape, generator=GENERATOR, dtype=torch.float64) - 0.5 for part in embeddings]
        users, items = (torch.nn.functional.normalize(part, dim=1) for part in embeddings)
    mask = torch.zeros(USERS, ITEMS, dtype=torch.bool)
    mask[CANDIDATES.users, CANDIDATES.items] = True
    scores = ((users[:, None] * items).sum(-1) + bias).masked_fill(~mask, -torch.inf)
    options = {"overlap": "miss", "k": [1, 5]}
    given = trm.Embeddings(*embeddings, bias, similarity, CANDIDATES)
    found = trm.evaluate(NAMES, given, target=TARGET, exclude=EXCLUDE, batch_size=batch_size, **options)
    full, ids = trm.RecMetricCollection(NAMES, **options), TARGET.users.unique()
    full.update(scores[ids], TARGET.select(ids), exclude=EXCLUDE.select(ids))
    assert numbers(found) == near(full.compute())
    assert (found.num_users, found.num_unreachable) == (full["HR@1"].num_users, full["HR@1"].num_unreachable)


def test_a_user_without_candidates_finds_nothing():
    """A user without candidates counts as a miss; a bias without vectors can rank the candidates of other users."""
    target = Interactions.from_columns([0, 1], [2, 3], num_users=2, num_items=4)
    allowed = Interactions.from_columns([0, 0], [2, 1], num_users=2, num_items=4)
    nobody = Interactions.from_columns([], [], num_users=2, num_items=4)
    for vectors in ({"users": torch.ones(2, 1), "items": torch.ones(4, 1)}, {"bias": torch.tensor([9, 1, 2, 5])}):
        found = trm.evaluate("HR@5", trm.Embeddings(allowed=allowed, **vectors), target=target)
        assert (found["HR@5"], found.num_users, found.num_unreachable) == (0.5, 2, 1)
        assert trm.evaluate("HR@5", trm.Embeddings(allowed=nobody, **vectors), target=target)["HR@5"] == 0
    allowed = Interactions.from_columns([0, 0, 1, 1], [2, 1, 3, 0], num_users=2, num_items=4)
    assert trm.evaluate("MRR", trm.Embeddings(allowed=allowed, **vectors), target=target)["MRR"] == (1 + 1 / 2) / 2


def test_candidates_are_matched_by_id():
    """Candidates with other vocabularies are matched by id; `recommend` lists each user's own, as many as there are."""
    users, items = torch.eye(2, 3), torch.eye(3)
    own = Interactions.from_columns([0, 1, 1], [1, 2, 0], num_users=2, num_items=3)
    ids, scores = trm.recommend(trm.Embeddings(users, items, allowed=own), k=2)
    assert ids.tolist() == [[1, -1], [0, 2]]
    assert scores.tolist() == [[0, -torch.inf], [0, 0]]
    named = Interactions.from_columns(["al", "bo"], ["y", "z"], user_ids=["bo", "al"], item_ids=["z", "y", "x"])
    had = Interactions.from_columns(["al"], ["x"], user_ids=["al", "bo"], item_ids=["x", "y", "z"])
    embeddings = trm.Embeddings(users, items, allowed=named)
    assert trm.recommend(embeddings, k=1, exclude=had).to_dict()["item"] == ["y", "z"]
    target = Interactions.from_columns(["al", "bo"], ["y", "z"], user_ids=["al", "bo"], item_ids=["x", "y", "z"])
    found = trm.evaluate("HR@1", embeddings, target=target)
    assert (found["HR@1"], found.num_unreachable) == (1, 0)
    with pytest.raises(ValueError, match="allowed is 2 x 3, but there are 4 users and 3 items"):
        trm.recommend(trm.Embeddings(torch.eye(4, 3), torch.eye(3), allowed=own), k=2)


def test_scores_are_exact():
    """Whole numbers that float32 does not hold are exact, and scores keep float32 under autocast."""
    target = Interactions.from_edge_index(torch.tensor([[0], [1]]), 1, 2)
    both = Interactions.from_dense(torch.ones(1, 2, dtype=torch.bool))
    vectors, bias = (torch.zeros(1, 2), torch.zeros(2, 2)), torch.tensor([2**24, 2**24 + 1])
    close = torch.tensor([[1.0, 0]]), torch.tensor([[1.0, 0], [1.0001, 0]])
    for embeddings in (
        trm.Embeddings(bias=bias),
        trm.Embeddings(*vectors, bias),
        trm.Embeddings(*vectors, bias, allowed=both),
        trm.Embeddings(*close, allowed=both),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            assert trm.evaluate("MRR", embeddings, target=target)["MRR"] == 1


TRUTH = Interactions.from_padded(torch.tensor([[0], [1], [-1]]), 3)  # the third user has no item
ALL = Interactions.from_dense(torch.ones(3, 3, dtype=torch.bool))
OPTIONS = [
    {"keep_rows": True},
    {"device": "cpu"},
    {"shard": "users"},
    {"groups": trm.Groups(torch.tensor([0, 1, 1]), ["north", "south"])},
    {"catalogue": trm.Catalogue.from_interactions(ALL), "all_users": True, "metrics": ["HR@1", "Seen@2"]},
    *({"empty_target_action": action, "user_ids": [2, 1]} for action in ("skip", "neg", "pos")),
]


def of_three(allowed, metrics="HR@1", **options):
    return trm.evaluate(metrics, trm.Embeddings(torch.eye(3), torch.eye(3), allowed=allowed), target=TRUTH, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_evaluate(options):
    """With the whole catalogue as candidates, other options of `evaluate` give the same values as without."""
    found, expected = (of_three(allowed, **options) for allowed in (ALL, None))
    assert str(found.to_dict()) == str(expected.to_dict())  # as text, where nan is nan
    assert found.counts() == expected.counts()
    if "keep_rows" in options:
        assert str(found.rows.to_dict()) == str(expected.rows.to_dict())


NAMED = Interactions.from_columns(["a"], ["x"], user_ids=["a", "b", "c"], item_ids=["x", "y", "z"])


@pytest.mark.parametrize(
    ("allowed", "options", "message"),
    [
        (torch.ones(3, 3) > 0, {}, r"allowed must be bool \[3\], got torch.bool \[3, 3\]"),
        (Interactions.from_columns([0], [0], num_users=3, num_items=4), {}, "is 3 x 4"),
        (NAMED, {}, "allowed has user_ids, target has none: row 5 could mean two users"),
        (ALL, {"exclude": NAMED}, "exclude has user_ids, target has none: row 5 could mean two users"),
        (ALL, {"exclude": torch.ones(3).bool()}, r"cannot be combined with exclude of bool \[I\]"),
        (ALL, {"empty_target_action": "error"}, "without a relevant item"),
    ],
)
def test_bad_input(allowed, options, message):
    with pytest.raises(ValueError, match=message):
        of_three(allowed, **options)
