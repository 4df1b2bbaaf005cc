"""`Embeddings(allowed=)` of each user against full scores with -inf elsewhere; gathered products, batches, errors."""

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


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}])
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
        trm.Embeddings(*embeddings, bias, similarity, CANDIDATES),
        target=TARGET,
        exclude=EXCLUDE,
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
    of_two = torch.ones(2, 1), torch.ones(4, 1)
    found = trm.evaluate("HR@5", trm.Embeddings(*of_two, allowed=candidates), target=target)
    assert (found["HR@5"], found.num_users, found.num_unreachable) == (0.5, 2, 1)
    nobody = trm.Interactions.from_columns([], [], num_users=2, num_items=4)
    assert trm.evaluate("HR@5", trm.Embeddings(*of_two, allowed=nobody), target=target)["HR@5"] == 0


def test_recommended_candidates():
    """`recommend` lists each user's own candidates alone, matched by id with the history, as many as there are."""
    own = trm.Interactions.from_columns([0, 1, 1], [1, 2, 0], num_users=2, num_items=3)
    ids, scores = trm.recommend(trm.Embeddings(torch.eye(2, 3), torch.eye(3), allowed=own), k=2)
    assert ids.tolist() == [[1, -1], [0, 2]]
    assert scores.tolist() == [[0, -torch.inf], [0, 0]]
    named = trm.Interactions.from_columns(["al", "bo"], ["y", "z"], user_ids=["bo", "al"], item_ids=["z", "y", "x"])
    had = trm.Interactions.from_columns(["al"], ["x"], user_ids=["al", "bo"], item_ids=["x", "y", "z"])
    embeddings = trm.Embeddings(torch.eye(2, 3), torch.eye(3), allowed=named)
    assert trm.recommend(embeddings, k=1, exclude=had).to_dict()["item"] == ["y", "z"]
    with pytest.raises(ValueError, match="allowed is 2 x 3, there are 4 users and 3 items"):
        trm.recommend(trm.Embeddings(torch.eye(4, 3), torch.eye(3), allowed=own), k=2)


def test_large_bias_is_exact():
    """Whole numbers that float32 does not hold are exact, alone, beside embeddings and for candidates."""
    bias = torch.tensor([2**24, 2**24 + 1])
    target = trm.Interactions.from_edge_index(torch.tensor([[0], [1]]), 1, 2)
    vectors = torch.zeros(1, 2), torch.zeros(2, 2)
    both = trm.Interactions.from_dense(torch.ones(1, 2, dtype=torch.bool))
    for embeddings in (
        trm.Embeddings(bias=bias),
        trm.Embeddings(*vectors, bias),
        trm.Embeddings(*vectors, bias, allowed=both),
    ):
        assert trm.evaluate("MRR", embeddings, target=target)["MRR"] == 1


def test_popularity_of_candidates():
    """A bias alone ranks each user's candidates."""
    target = trm.Interactions.from_columns([0, 1], [2, 3], num_users=2, num_items=4)
    candidates = trm.Interactions.from_columns([0, 0, 1, 1], [2, 1, 3, 0], num_users=2, num_items=4)
    popular = trm.Embeddings(bias=torch.tensor([9, 1, 2, 5]), allowed=candidates)
    assert trm.evaluate("MRR", popular, target=target)["MRR"] == (1 + 1 / 2) / 2


TRUTH = trm.Interactions.from_padded(torch.tensor([[0], [1], [-1]]), 3)  # the third user has no item
ALL = trm.Interactions.from_dense(torch.ones(3, 3, dtype=torch.bool))


def of_three(metrics="HR@1", allowed=ALL, **options):
    """Return the evaluation of three users, each of whom has every item as a candidate."""
    embeddings = trm.Embeddings(torch.eye(3), torch.eye(3), allowed=allowed)
    return trm.evaluate(metrics, embeddings, **{"target": TRUTH, **options})


@pytest.mark.parametrize("user_ids", [None, [0, 1, 2], [2, 1]])
@pytest.mark.parametrize("action", ["skip", "neg", "pos", "error"])
def test_users_without_ground_truth_count_as_without_candidates(action, user_ids):
    """Users without ground truth count the same way with and without candidates."""
    found = []
    for candidates in (ALL, None):
        options = {"empty_target_action": action, "user_ids": user_ids, "allowed": candidates}
        if action == "error":
            with pytest.raises(ValueError, match="without a relevant item"):
                of_three(**options)
        else:
            evaluation = of_three(**options)
            found.append((evaluation["HR@1"], evaluation.num_users, evaluation.num_skipped))
    assert found[:1] == found[1:]


OPTIONS = [
    {"keep_rows": True},
    {"device": "cpu"},
    {"shard": "users"},
    {"groups": trm.Groups(torch.tensor([0, 1, 1]), ["north", "south"])},
    {"metrics": ["HR@1", "AveragePopularity@2", "Seen@2"], "all_users": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_options_of_evaluate(options):
    """With the whole catalogue as candidates, other options of `evaluate` give the same values as without."""
    catalogue = {"catalogue": trm.Catalogue.from_interactions(ALL)} if "all_users" in options else {}
    found, expected = (of_three(allowed=part, **options, **catalogue) for part in (ALL, None))
    assert str(found.to_dict()) == str(expected.to_dict())  # as text, where nan is nan
    if "keep_rows" in options:
        assert str(found.rows.to_dict()) == str(expected.rows.to_dict())


def test_progress_is_shown():
    """`progress` is called with the number of users done after each batch."""
    calls = []
    of_three(progress=lambda *numbers: calls.append(numbers), batch_size=1)
    assert calls == [(1, 2), (2, 2)]


def test_candidates_are_matched_by_id():
    """Candidates whose vocabularies differ from those of the ground truth are matched by id."""
    target = trm.Interactions.from_columns(["al", "bo"], ["x", "y"], user_ids=["al", "bo"], item_ids=["x", "y"])
    candidates = trm.Interactions.from_columns(
        ["al", "bo", "al"], ["x", "y", "z"], user_ids=["bo", "al"], item_ids=["z", "y", "x"]
    )
    evaluation = trm.evaluate("HR@1", trm.Embeddings(torch.eye(2), torch.eye(2), allowed=candidates), target=target)
    assert (evaluation["HR@1"], evaluation.num_unreachable) == (1, 0)


def test_scores_are_float32_under_autocast():
    """Scores keep float32 under autocast, and for embeddings of half the width."""
    users, items = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0], [1.0001, 0]])
    target = trm.Interactions.from_columns([0], [1], num_users=1, num_items=2)
    both = trm.Interactions.from_dense(torch.ones(1, 2, dtype=torch.bool))
    with torch.autocast("cpu", torch.bfloat16):
        assert trm.evaluate("HR@1", trm.Embeddings(users, items, allowed=both), target=target)["HR@1"] == 1


NAMED = trm.Interactions.from_columns(["a"], ["x"], user_ids=["a", "b", "c"], item_ids=["x", "y", "z"])


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"items": torch.ones(3, 2)}, ValueError, "embedding widths differ: users 3, items 2"),
        ({"items": torch.ones(4, 3)}, ValueError, "4 items have embeddings, but target has 3 items"),
        ({"allowed": torch.ones(3, 3) > 0}, ValueError, r"allowed must be bool \[3\], got torch.bool \[3, 3\]"),
        ({"allowed": trm.Interactions.from_columns([0], [0], num_users=3, num_items=4)}, ValueError, "is 3 x 4"),
        ({"allowed": NAMED}, ValueError, "allowed has user_ids, target has none: row 5 could mean two users"),
        ({"exclude": NAMED}, ValueError, "exclude has user_ids, target has none: row 5 could mean two users"),
        ({"exclude": torch.ones(3).bool()}, ValueError, r"excluded Interactions, not with bool \[I\]"),
        ({"target": torch.ones(3, 3)}, TypeError, "target must be Interactions, got"),
        ({"user_ids": [0, 5]}, ValueError, "user_ids hold 0..5, expected 0..2"),
        ({"user_ids": [0, 0]}, ValueError, "user_ids hold a user twice"),
        ({"bias": torch.ones(2)}, ValueError, r"bias must be float \[3\], got"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_input(changed, error, message):
    """Each error names the argument that is wrong."""
    given = {"users": torch.eye(3), "items": torch.eye(3), "allowed": ALL, "target": TRUTH} | changed
    parts = {name: given.pop(name) for name in ("users", "items", "allowed", "bias") if name in given}
    with pytest.raises(error, match=message):
        trm.evaluate("HR@5", trm.Embeddings(**parts), **given)
