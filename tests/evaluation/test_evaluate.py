"""`evaluate`: every batch size gives the result of the metrics by hand, within the memory budget."""

import math
import sys
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy import sparse
from sizes import examples
from values import near, numbers
from worlds import ITEMS, USERS, world

import torchrecmetrics as trm
from torchrecmetrics import Interactions
from torchrecmetrics.evaluation.evaluate import batches

NAMES = ["HR", "NDCG", "Recall", "MAP", "MRR", "RPrecision", "AUROC"]
EVERYONE = torch.arange(USERS)
U, V, TRAIN, TEST = world()  # a random model of 40 users and 60 items, and their interactions


def by_hand(scores, train=TRAIN, test=TEST, k=(5, 10), **options):
    """Return the metrics of the whole users x items matrix, which the library never makes."""
    collection = trm.RecMetricCollection(NAMES, k=k, **options)
    relevant, history = test.select(EVERYONE), None if train is None else train.select(EVERYONE).items
    collection.update(scores, relevant.items, gains=relevant.values, exclude=history)
    return near(collection.compute())


@pytest.mark.parametrize("batch_size", [1, 3, 17, None])
@pytest.mark.parametrize("train", [TRAIN, None], ids=["history", "no history"])
def test_batches_of_any_size_give_a_random_model_the_values_of_the_whole_matrix(batch_size, train, device):
    exclude = None if train is None else train.to(device)
    options = {"target": TEST.to(device), "exclude": exclude, "k": [5, 10], "batch_size": batch_size}
    result = trm.evaluate(NAMES, U.to(device), V.to(device), **options)

    assert numbers(result) == by_hand(U @ V.T, train)
    assert (result.num_users, result.num_skipped) == (int((TEST.degree > 0).sum()), int((TEST.degree == 0).sum()))


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), users=st.integers(1, 6), items=st.integers(1, 7), batch_size=st.integers(1, 6))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_random_graphs_have_the_values_of_the_whole_matrix(data, users, items, batch_size):
    """Users may have no item or all items, and edges are repeated and shuffled."""
    cells = st.lists(st.tuples(st.integers(0, users - 1), st.integers(0, items - 1)), max_size=30)
    seen, wanted = data.draw(cells), data.draw(cells.filter(len))
    seen += [(0, item) for item in range(items)] if data.draw(st.booleans()) else []
    train, test = (
        Interactions.from_edge_index(
            torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T, users, items, item_offset=0
        )
        for edges in (data.draw(st.permutations(seen + seen[:3])), wanted)
    )
    vectors = st.lists(st.integers(-2, 2), min_size=2, max_size=2)
    u, v = (torch.tensor(data.draw(st.lists(vectors, min_size=n, max_size=n))).double() for n in (users, items))
    options = {"k": [1, 3], "overlap": data.draw(st.sampled_from(["keep", "miss"]))}
    collection = trm.RecMetricCollection(NAMES, **options)
    collection.update(u @ v.T, test.select(range(users)), exclude=train.select(range(users)).items)
    result = trm.evaluate(NAMES, u, v, target=test, exclude=train, batch_size=batch_size, **options)

    assert numbers(result) == pytest.approx(numbers(collection.compute()), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("dtype", "large"), [(torch.bfloat16, 256), (torch.float16, 2048), (torch.float32, 256), (torch.float64, 2**24)]
)
def test_scores_are_not_rounded_to_the_dtype_of_embeddings_or_autocast(dtype, large, device):
    """bfloat16 rounds 256 + 1 to 256, float16 2048 + 1 to 2048, and float32 2^24 + 1 to 2^24: items would be tied."""
    items = torch.tensor([[large, 0], [large, 1]], dtype=dtype, device=device)
    target = Interactions.from_columns([0], [1], num_items=2).to(device)
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16):
        result = trm.evaluate("MRR", torch.ones_like(items[:1]), items, target=target)

    assert result["MRR"] == 1


@pytest.mark.parametrize(
    ("action", "expected"), [("skip", (1 + 1 / 2) / 2), ("neg", (1 + 1 / 2 + 0) / 3), ("pos", (1 + 1 / 2 + 1) / 3)]
)
@pytest.mark.parametrize("form", ["embeddings", "function"])
def test_users_without_ground_truth_count_as_the_action_says(form, action, expected, device):
    """All users have item 0 first; user 2 has no ground truth."""
    target = Interactions.from_columns([0, 1], [0, 1], num_users=3, num_items=2).to(device)
    users, items = torch.ones(3, 1, device=device), torch.tensor([[2.0], [1.0]], device=device)
    scored = {"embeddings": (users, items), "function": (lambda ids: (users @ items.T)[ids],)}[form]

    assert trm.evaluate("MRR", *scored, target=target, empty_target_action=action)["MRR"].item() == expected


def test_a_function_that_overwrites_its_ids_changes_no_users():
    def score(ids):
        scores = torch.eye(2)[ids]
        ids.zero_()
        return scores

    rows = trm.evaluate("HR@1", score, target=torch.eye(2) > 0, keep_rows=True).rows

    assert rows.ids.tolist() == [0, 1]
    assert rows.values["HR@1"].tolist() == [1, 1]


VECTORS = torch.eye(3), torch.eye(4, 3)
HAD_3 = Interactions.from_columns([0, 1, 2], [3, 3, 3], num_items=4)
CANDIDATES = Interactions.from_padded(torch.tensor([[0, 1, 2]] * 3), 4)
FORMS = {  # scores and exclusions that leave three users the candidates 0, 1 and 2
    "embeddings": (VECTORS, HAD_3),
    "function": ((lambda ids: torch.eye(3, 4, device=ids.device)[ids],), HAD_3),
    "bias": ((trm.Embeddings(bias=torch.tensor([1.0, 0, 0, 0])),), HAD_3),
    "mask": ((trm.Embeddings(*VECTORS, allowed=torch.arange(4) < 3),), None),
    "candidates": ((trm.Embeddings(*VECTORS, allowed=CANDIDATES),), None),
}
OF_TWO = 1 + 1 / 4  # item 0 of user 0 is first; item 2 of user 1 is behind one item and tied with the other


@pytest.mark.parametrize(("action", "expected"), [("skip", OF_TWO / 2), ("neg", OF_TWO / 3), ("pos", (OF_TWO + 1) / 3)])
@pytest.mark.parametrize("form", FORMS)
def test_a_user_without_ground_truth_weighs_all_candidates(form, action, expected, device):
    """User 2 has no ground truth; each user has three candidates."""
    scored, exclude = FORMS[form]
    options = {"target": Interactions.from_columns([0, 1], [0, 2], num_users=3, num_items=4), "exclude": exclude}
    metric = trm.AUROC(weight="candidates", empty_target_action=action)
    result = trm.evaluate([metric], *scored, keep_rows=True, device=device, **options)

    assert result["AUROC-candidates"].item() == pytest.approx(expected)
    assert result.rows.mean()["AUROC-candidates"] == pytest.approx(expected)
    assert result.num_skipped == 1


@pytest.mark.parametrize("action", ["skip", "neg", "pos"])
def test_metrics_of_lists_leave_out_users_who_are_ranked_for_their_weight(action):
    """User 1 has no ground truth: of the items 0 and 1, item 1 is recommended to that user alone."""
    target = Interactions.from_columns([0], [0], num_users=2, num_items=2)
    coverage = trm.Coverage(1, catalogue=trm.Catalogue(2), empty_target_action=action)
    metrics = [trm.AUROC(weight="candidates", empty_target_action=action), coverage]

    assert trm.evaluate(metrics, torch.eye(2), torch.eye(2), target=target)["Coverage@1"] == 1 / 2


SURPRISE = {"score_threshold": 3.5, "zero_division": 1.0, "empty_target_action": "neg"}
PRECISION_AND_RECALL = [trm.Precision(2, denominator="recommended", **SURPRISE), trm.Recall(2, **SURPRISE)]


@pytest.mark.parametrize("all_users", [False, True])
def test_users_without_ground_truth_have_the_precision_and_recall_of_surprise(all_users, device):
    """Recall is 1 where nothing is relevant, and precision where nothing is recommended: to user 2."""
    target = Interactions.from_columns([0], [0], num_users=3, num_items=2).to(device)
    scores = torch.tensor([[4.0, 1.0], [4.0, 1.0], [1.0, 2.0]], device=device)
    result = trm.evaluate(PRECISION_AND_RECALL, lambda ids: scores[ids], target=target, all_users=all_users)

    assert [*result.floats().values()] == pytest.approx([(1 + 0 + 1) / 3, (1 + 1 + 1) / 3])


@pytest.mark.parametrize("form", ["embeddings", "function"])
def test_all_is_moved_to_a_named_device(form, device):
    """With `device="cuda"` everything is moved to the current GPU, and a function is asked there."""
    scores = torch.eye(2, device=device)
    scored = {"embeddings": (torch.eye(2), torch.eye(2)), "function": (lambda ids: scores[ids],)}[form]
    options = {"exclude": Interactions.from_columns([0], [1], num_users=2, num_items=2), "device": device.type}

    assert trm.evaluate("HR@1", *scored, target=torch.eye(2) > 0, **options)["HR@1"] == 1
    assert trm.recommend(*scored, k=1, **options).ids.device == scores.device


class Model(torch.nn.Module):
    """Two users whose scores are right in eval mode, and all 0 in training mode, where everything is dropped."""

    def __init__(self, num_items=2):
        super().__init__()
        self.num_items, self.frozen, self.drop = num_items, torch.nn.Dropout().eval(), torch.nn.Dropout(1.0)

    def forward(self, ids):
        return self.drop(torch.eye(2))[ids, : self.num_items]


def test_modules_are_evaluated_in_eval_mode():
    assert trm.evaluate("HR@1", Model(), target=torch.eye(2) > 0)["HR@1"] == 1


def test_each_submodule_is_back_in_its_mode_after_an_error():
    model = Model(num_items=1)
    with pytest.raises(ValueError, match="the score function must return"):
        trm.evaluate("HR@1", model, target=torch.eye(2) > 0)

    assert [part.training for part in (model, model.frozen, model.drop)] == [True, False, True]


def test_a_module_in_eval_mode_stays_in_it():
    model = Model().eval()
    trm.recommend(model, k=1, num_users=2, num_items=2)

    assert not model.training


def test_bias_is_added_and_items_that_are_not_allowed_are_left_out(device):
    """Scores are 9, 1, 2 with the bias; item 0 is not allowed, so that items 2, 1 are the ranking."""
    users, items, bias = torch.ones(2, 1), torch.tensor([[9.0], [1], [0]]), torch.tensor([0.0, 0, 2])
    embeddings = trm.Embeddings(users.to(device), items.to(device), bias.to(device), allowed=torch.arange(3) > 0)
    target = Interactions.from_columns([0, 1], [2, 0], num_items=3)
    result = trm.evaluate("MRR", embeddings, target=target.to(device))

    assert (result["MRR"].item(), result.num_unreachable) == ((1 + 0) / 2, 1)


def test_cosine_similarity_is_that_of_the_angle(device):
    """The items are at 0 and at 45 degrees of the user."""
    user, items = torch.tensor([[10.0, 0]], device=device), torch.tensor([[2.0, 0], [3, 3]], device=device)
    lists = trm.recommend(trm.Embeddings(user, items, similarity="cosine"), k=2)

    assert lists.scores.tolist() == [[1, pytest.approx(1 / math.sqrt(2))]]


def test_the_state_and_the_settings_of_a_collection_stay_what_they_were():
    collection = trm.RecMetricCollection("HR", k=1, prefix="val/")
    collection.update(torch.eye(2), torch.tensor([0, 0]))  # one hit of two
    result = trm.evaluate(collection, torch.eye(2), torch.eye(2), target=torch.eye(2) > 0)

    assert result["val/HR@1"] == 1
    assert collection.compute()["val/HR@1"] == 1 / 2
    assert collection["HR@1"].sync_on_compute


THREE_ITEMS = torch.ones(3, 1), torch.tensor([[3.0], [2.0], [1.0]])
"""Three users with the ranking 0, 1, 2."""


def test_user_ids_select_the_users_that_are_evaluated():
    result = trm.evaluate("MRR", *THREE_ITEMS, target=torch.eye(3) > 0, user_ids=[2, 0])

    assert result["MRR"].item() == pytest.approx((1 / 3 + 1) / 2)


def test_overlap_of_a_user_who_is_not_evaluated_is_no_error():
    both = Interactions.from_columns([1], [1], num_users=3, num_items=3)

    assert trm.evaluate("HR@1", *THREE_ITEMS, target=torch.eye(3) > 0, exclude=both, user_ids=[0])["HR@1"] == 1


def test_no_users_are_a_warning():
    with pytest.warns(UserWarning, match="no row to average over"):
        assert trm.evaluate("AUROC", U, V, target=TEST, user_ids=[]).num_users == 0


def test_a_pair_with_the_value_0_is_no_overlap_where_it_is_excluded():
    """It is no relevant item: item 1 is excluded, so that item 0 is first."""
    target = Interactions.from_columns([0, 0], [0, 1], values=torch.tensor([1.0, 0]), num_users=1, num_items=3)
    train = Interactions.from_columns([0], [1], num_users=1, num_items=3)
    vectors = torch.ones(1, 1), torch.tensor([[2.0], [3], [1]])

    assert trm.evaluate("HR@1", *vectors, target=target, exclude=train)["HR@1"] == 1


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        (torch.tensor([[0], [0]]), 1 / 2),
        ((torch.tensor([[1], [2]]), torch.eye(3) > 0, torch.tensor([[0], [1]]), torch.zeros(3) > 0), 1),
    ],
    ids=["alone", "in a tuple"],
)
def test_edges_have_the_sizes_of_the_embeddings(exclude, expected):
    """User 0 has item 2, of the ranking 0, 1, 2; other users and items have no edge in the target."""
    assert trm.evaluate("MRR", *THREE_ITEMS, target=torch.tensor([[0], [2]]), exclude=exclude)["MRR"] == expected


PAIRS, FLAGS = torch.tensor([[0, 1], [3, 2]]), torch.tensor([[1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0]])


@pytest.mark.parametrize("name", ["target", "exclude"])
@pytest.mark.parametrize("argument", [PAIRS, PAIRS.numpy(), FLAGS], ids=["pairs", "numpy", "0 and 1"])
def test_two_rows_of_two_users_could_be_edges(name, argument):
    """They could be rows of items or a matrix, too: the message has the three calls that say which."""
    arguments = {"target": Interactions.from_padded(torch.tensor([[5], [5]]), 6), name: argument}
    cures = rf"from_edge_index\(.*from_padded\(ids, num_items\), .* {name}\.bool\(\)$"
    with pytest.raises(TypeError, match=rf"^{name} of 2 users, int64 \[2, .*{cures}"):
        trm.evaluate("NDCG@3", torch.eye(2, 6), torch.eye(6), **arguments)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3, 0, 1]),  # of lengths 1, 2 and 3; user 2 has no ground truth
        ({"user_ids": [1, 0, 3, 2]}, [3, 0, 1]),
        ({"all_users": True}, [2, 3, 0, 1]),  # users 2 and 3 both have the length 1
        ({"all_users": True, "user_ids": [1, 0, 3, 2]}, [3, 2, 0, 1]),
    ],
)
def test_users_are_scored_in_the_order_of_the_lengths_of_their_lists(options, expected):
    """Relevant and excluded items count; those of equal length are in their order."""
    target = Interactions.from_columns([0, 0, 1, 3], [0, 1, 0, 0], num_users=4, num_items=3)
    exclude = Interactions.from_columns([1, 1, 2], [1, 2, 0], num_users=4, num_items=3)
    asked = []

    def score(users):
        asked.extend(users.tolist())
        return torch.zeros(len(users), 3)

    trm.evaluate("Coverage@1", score, target=target, exclude=exclude, catalogue=trm.Catalogue(3), **options)

    assert asked == expected


@pytest.mark.parametrize("make", [torch.tensor, np.array], ids=["torch", "numpy"])
def test_user_ids_that_are_overwritten_while_users_are_scored_change_no_users(make):
    ids = make([3, 1, 6])

    def score(asked):
        ids[:] = 0
        return torch.eye(7)[asked]

    lists = trm.recommend(score, k=1, num_users=7, num_items=7, user_ids=ids, batch_size=1)

    assert lists.users.tolist() == [3, 1, 6]
    assert lists.ids.tolist() == [[3], [1], [6]]


def test_a_history_adds_no_users():
    """User 1, who has no ground truth, would be given item 2 again."""
    target = Interactions.from_edge_index(torch.tensor([[0], [1]]), 2, 3)
    train = Interactions.from_edge_index(torch.tensor([[0, 1], [0, 2]]), 2, 3)
    catalogue = trm.Catalogue.from_interactions(train)
    result = trm.evaluate("Seen@1", torch.ones(2, 1), torch.arange(3.0)[:, None], target=target, catalogue=catalogue)

    assert result["Seen@1"] == 0


def test_out_of_memory_halves_the_batch():
    """No user is lost or counted twice."""
    sizes = []

    def score(ids):
        sizes.append(len(ids))
        if len(ids) > 6:
            raise torch.cuda.OutOfMemoryError("pretended")
        return torch.eye(10)[ids]

    result = trm.evaluate("HR@1", score, target=torch.eye(10) > 0)

    assert sizes == [10, 5, 5]
    assert (result["HR@1"], result.num_users) == (1, 10)


def of_one_share(rank, world_size):
    """Return the values and counts of all users, and the number of users of this process alone."""
    options = {"target": TEST, "exclude": TRAIN, "k": [5, 10], "keep_rows": True}
    together = trm.evaluate(NAMES, U, V, shard="users", dist_sync_on_step=True, **options)
    alone = trm.evaluate(NAMES, U, V, user_ids=[int(TEST.degree.nonzero()[rank])], **options)
    return numbers(together), together.num_users, together.num_skipped, together.rows.ids.tolist(), alone.num_users


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_that_share_users_have_the_whole_result(world_size, processes):
    """Without `shard` no process waits for others."""
    counts = [int((TEST.degree > 0).sum()), int((TEST.degree == 0).sum()), [*range(USERS)], 1]
    for values, *others in processes.run(of_one_share, world_size):
        assert values == by_hand(U @ V.T)
        assert others == counts


def test_rows_are_in_the_order_of_the_target():
    """User 0, with two items, is scored last; user 2 has no item."""
    target = Interactions.from_columns([0, 0, 1, 3], [0, 2, 1, 2], num_users=4, num_items=3)
    scores = torch.tensor([[3.0, 2.0, 1.0]] * 4)
    rows = trm.evaluate("MRR", lambda ids: scores[ids], target=target, batch_size=1, keep_rows=True).rows

    assert rows.ids.tolist() == [0, 1, 2, 3]
    assert rows.values["MRR"].tolist() == pytest.approx([1, 1 / 2, math.nan, 1 / 3], nan_ok=True)


def test_rows_of_some_users_are_in_the_order_of_the_target():
    rows = trm.evaluate("HR@5", U, V, target=TEST, user_ids=[9, 5, 3], keep_rows=True).rows

    assert rows.ids.tolist() == [3, 5, 9]


# items 1 to 4 of two users
FROM_1 = {
    "target": Interactions.from_columns([0, 1], [3, 4]),
    "exclude": Interactions.from_columns([0, 0, 1, 1], [1, 2, 3, 2], num_users=2, num_items=5),
    "k": 1,
}
BEST_IS_0 = torch.ones(2, 1), torch.tensor([[9.0], [1], [2], [5], [4]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: trm.evaluate("HR", *BEST_IS_0, **FROM_1),
        lambda: trm.evaluate("HR", lambda ids: BEST_IS_0[0][ids] @ BEST_IS_0[1].T, **FROM_1),
        lambda: trm.evaluate("HR", *BEST_IS_0, **FROM_1 | {"exclude": None}),
    ],
    ids=["embeddings", "function", "no history"],
)
def test_ids_from_1_are_a_warning_at_the_line_of_the_caller(call):
    """If no size was given and no id is 0, item 0 competes with all other items."""
    with pytest.warns(UserWarning, match=r"start at 1, pass padding_idx=0 to keep item 0 .* num_items") as warned:
        assert call()["HR@1"] == 0

    assert [warning.filename for warning in warned] == [__file__]


def test_padding_idx_0_keeps_item_0_out_and_warns_of_nothing():
    assert trm.evaluate("HR", *BEST_IS_0, **FROM_1, padding_idx=0)["HR@1"] == 1


def test_recommend_warns_of_ids_from_1():
    message = r"ids start at 1, pass Embeddings\(..., allowed=torch.arange\(5\) > 0\) to keep item 0"
    with pytest.warns(UserWarning, match=message) as warned:
        assert trm.recommend(*BEST_IS_0, 1, exclude=FROM_1["target"]).ids.tolist() == [[0], [0]]

    assert [warning.filename for warning in warned] == [__file__]


MASK_OF_0 = torch.arange(5) == 0
WITH_ITEM_0 = Interactions.from_columns([0, 1], [0, 4])


@pytest.mark.parametrize(
    ("embeddings", "options"),
    [
        (trm.Embeddings(*BEST_IS_0, allowed=~MASK_OF_0), {}),
        (trm.Embeddings(*BEST_IS_0), {"exclude": (FROM_1["exclude"], MASK_OF_0)}),
        (trm.Embeddings(*BEST_IS_0), {"target": WITH_ITEM_0}),
    ],
    ids=["not allowed", "masked", "an item like others"],
)
def test_an_item_0_that_cannot_be_recommended_or_occurs_is_no_warning(embeddings, options):
    assert trm.evaluate("HR", embeddings, **FROM_1 | options)["HR@1"] > 0


@pytest.mark.parametrize("sizes", [{"num_users": 2, "num_items": 5}, {"num_users": 2, "item_ids": [1, 2, 3, 4]}])
def test_sizes_that_were_given_are_no_warning(sizes):
    train = Interactions.from_columns([0, 0, 1, 1], [1, 2, 3, 2], **sizes)
    test = Interactions.from_columns([0, 1], [3, 4], **sizes)
    users, items = torch.ones(2, 1), torch.ones(test.num_items, 1)

    trm.evaluate("HR@1", users, items, target=test, exclude=train)  # where warnings are errors
    trm.recommend(users, items, 1, exclude=test)


# item 0 pads the lists of two users, of whom the first has item 2
PADDED_TRAIN = Interactions.from_edge_index(torch.tensor([[0, 0, 1], [0, 3, 0]]), 2, 4)
PADDED_TEST = Interactions.from_edge_index(torch.tensor([[0, 0, 1], [0, 2, 0]]), 2, 4)
OF_PADDED = torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0], [1], [2], [5]])


def test_padding_is_neither_relevant_nor_excluded():
    result = trm.evaluate("HR@1", *OF_PADDED, target=PADDED_TEST, exclude=PADDED_TRAIN, padding_idx=0)

    assert (result["HR@1"], result.num_users, result.num_skipped) == (1, 1, 1)


def test_padding_is_no_overlap():
    both = Interactions.from_edge_index(torch.tensor([[0, 1], [0, 1]]), 2, 4)
    with pytest.raises(ValueError, match=r"1 \(user, item\) pair of target is .* such as \[\[1, 1\]\]"):
        trm.evaluate("HR@1", *OF_PADDED, target=both, exclude=both, padding_idx=0)


MATRICES = {
    "torch": lambda matrix: matrix,
    "numpy": lambda matrix: matrix.numpy(),
    "columns first": np.asfortranarray,
    "sparse": lambda matrix: matrix.float().to_sparse(),
    "csr": lambda matrix: sparse.csr_matrix(matrix.float()),
    "coo": lambda matrix: sparse.coo_array(matrix.float()),
}


@pytest.mark.parametrize("make", MATRICES.values(), ids=MATRICES)
def test_matrices_are_interactions_and_their_entries_gains(make):
    """Ranked 3, 0, 1, 2, where item 3 is excluded: gain 1 at rank 2 and gain 3 at rank 3."""
    target, exclude = make(torch.tensor([[0, 1.0, 3.0, 0]])), make(torch.tensor([[0, 0, 0, 1.0]]))
    items = torch.tensor([[3.0], [2.0], [1.0], [9.0]])
    result = trm.evaluate("NDCG@3", torch.ones(1, 1), items, target=target, exclude=exclude)

    assert result["NDCG@3"].item() == pytest.approx((1 / math.log2(3) + 3 / 2) / (3 + 1 / math.log2(3)))


@pytest.mark.parametrize("wrap", [lambda *factors: factors, lambda *factors: (trm.Embeddings(*factors),)])
def test_factors_of_numpy_are_embeddings(wrap):
    """The scores are 3, 1 and 2, also of arrays in the order of columns."""
    factors = wrap(np.array([[1.0, 2.0]]), np.asfortranarray([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))

    assert trm.evaluate("HR@1", *factors, target=np.array([[1.0, 0.0, 0.0]]))["HR@1"] == 1


def evaluate(users=U, items=V, **changed):
    """Evaluate the 40 users and 60 items of `world`, with some arguments changed."""
    return trm.evaluate("HR@5", users, items, **{"target": TEST, "exclude": TRAIN, **changed})


def of_edges(users=None, items=None, exclude=None, **changed):
    """Evaluate three users and three items whose ground truth is an edge_index."""
    embeddings = (torch.eye(3), torch.eye(3)) if users is None else (users, items)
    return evaluate(*embeddings, exclude=exclude, **{"target": EDGES, **changed})


def recommend(users=lambda ids: U[ids], *args, **changed):
    return trm.recommend(users, *args, **{"k": 2, **changed})


def rand_scores(ids):
    return torch.rand(len(ids), 3)


EDGES = torch.tensor([[0, 1, 1], [2, 0, 1]])
NAN_OF_7 = U.where(torch.arange(USERS)[:, None] != 7, math.nan)
BEHIND = torch.tensor([[0, 1], [3, 4]])
THREE_OF_6 = torch.eye(3, 6), torch.eye(6)
REFUSED = [
    # embeddings and functions
    (lambda: evaluate(np.ma.array(U.numpy())), r"users must be a tensor \[U, d\], .* got MaskedArray"),
    (lambda: evaluate(items=V[:, :4]), "embedding widths differ: users 8, items 4"),
    (lambda: evaluate(U[:3]), "3 users have embeddings, but target has 40 users$"),
    (lambda: evaluate(items=None), "user embeddings need item embeddings"),
    (lambda: evaluate(U.long()), "users must be float"),
    (lambda: evaluate(3, None), r"a tensor \[U, d\], Embeddings or a function of user ids, got int"),
    (lambda: evaluate(len), "leave items out"),
    (lambda: evaluate(trm.Embeddings(U, V)), "Embeddings hold the items"),
    (lambda: evaluate(lambda ids: U[ids], None), r"must return float \[\d+, 60\], or an input .*, got .*, 8\]"),
    (lambda: evaluate(lambda ids: U[ids].tolist(), None), "got list: torch.as_tensor"),
    (lambda: evaluate(U.to("meta")), "items is on cpu, but scores are computed on meta"),
    (lambda: evaluate(U.to_sparse()), r"users is sparse .*: pass users.to_dense\(\)"),
    (lambda: trm.Embeddings(), "Embeddings take users and items, or bias alone"),
    (lambda: trm.Embeddings(U, bias=V[:, 0]), r"items must be a tensor \[n, d\], got None"),
    (lambda: trm.Embeddings(U, V, bias=U[0]), r"bias must be float \[60\]"),
    (lambda: trm.Embeddings(U, V, allowed=[True]), "allowed must be a tensor, got list"),
    (lambda: trm.Embeddings(U, V, allowed=V[:, 0]), r"allowed must be bool \[60\]"),
    (lambda: trm.Embeddings(U, V, similarity="l2"), "similarity must be one of 'dot', 'cosine', got 'l2'"),
    # options
    (lambda: evaluate(similarity="cosine"), r"no option 'similarity': pass trm.Embeddings\(users, items, similarity="),
    (lambda: evaluate(weights=U[:, 0]), r"no option 'weights': pass weights of rows to update\(..., weights=\)"),
    (lambda: trm.evaluate(trm.RecMetricCollection("HR@5"), U, V, k=5, target=TEST), "k cannot be given with a coll"),
    (lambda: evaluate(shard="rows"), "shard must be one of None, 'users', 'items', 'both', got 'rows'"),
    (lambda: evaluate(shard="items"), 'shard="items" is for several processes'),
    (lambda: evaluate(items=[V[:9], V[9:]]), r"items must be a tensor \[n, d\], got list"),
    (lambda: evaluate(batch_size="8"), r"batch_size must be an integer >= 1, got '8' \(str\)"),
    (lambda: evaluate(progress="yes"), r"progress must be True, False or a function of .*, got 'yes' \(str\)"),
    (lambda: evaluate(device="gpu"), r"device must be .* the name of one, such as 'cuda:0', got 'gpu' \(str\)"),
    # users
    (lambda: evaluate(user_ids=[1, 1]), "user_ids repeat a user"),
    (lambda: evaluate(user_ids=3), r"row numbers \[n\], such as \[3\] for user 3, got 3"),
    (lambda: evaluate(user_ids={1, 2}), r"row numbers \[n\] .*, not strings or sets, got set \{1, 2\}"),
    (lambda: evaluate(user_ids=[0.5]), "user_ids must be whole numbers"),
    (lambda: evaluate(user_ids=[-1]), "user_ids hold -1..-1, expected 0..39"),
    (lambda: recommend(num_items=8, user_ids=[-1]), "user_ids hold -1..-1, expected 0..$"),
    # ground truth and exclusions
    (lambda: evaluate(target=[[1], [2, 3]]), r"got list: Interactions.from_columns\(users, items\), .*, or from_jagg"),
    (lambda: evaluate(target={"q1": {"d1"}}), r"^target must be Interactions, got dict: Interactions.from_dict\(targ"),
    (lambda: evaluate(target="test.csv"), r"got str: Log.from_file\('test.csv'\).to_interactions\(\)$"),
    (lambda: recommend(num_items=8, num_users=3, exclude="a.csv"), r"got str: pass Log.from_file\('a.csv'\)"),
    (lambda: evaluate(target=TEST.select([0])), "got SelectedItems: pass the Interactions whole, without select"),
    (lambda: evaluate(target=U > 0), "60 items have embeddings, but target has 8 items"),
    (lambda: evaluate(target=U), r"^target: dense holds -\d.0: values must be finite"),
    (lambda: evaluate(target=TEST.without(TEST)), "target holds no interactions"),
    (lambda: evaluate(exclude=TRAIN.select([0])), "exclude .*, got SelectedItems: pass the Interactions whole"),
    (lambda: evaluate(exclude=U > 0), "exclude has 8 items, the scores have 60"),
    (lambda: evaluate(exclude=torch.ones(60).byte()), r"got torch.uint8 \[60\]: pass exclude.bool\(\)"),
    (lambda: evaluate(exclude=EDGES[0]), r"^exclude must be Interactions, bool \[60\] or a tuple of"),
    (lambda: evaluate(exclude=(TEST, torch.zeros(ITEMS) > 0)), r"target.without\(part\), .*overlap='miss'"),
    (lambda: evaluate(exclude=TEST), r"\d+ \(user, item\) pairs of target .*target.without\(exclude\).*'keep'.*'miss'"),
    # edges
    (lambda: of_edges(rand_scores), r"^target must be Interactions, .*from_edge_index"),
    (lambda: of_edges(trm.Embeddings(bias=torch.rand(3))), "edge_index, which needs embeddings of users and items for"),
    (lambda: of_edges(target=FLAGS), r"^target: edge_index \[2, 6\] holds 0 and 1 alone: .*from_dense\(matrix.bool"),
    (lambda: of_edges(target=EDGES + 1), r"^target: items \(edge_index\[1\]\).*3"),
    (lambda: of_edges(exclude=(EDGES.flip(0), EDGES + 1)), r"^exclude: "),
    (lambda: of_edges(target=EDGES.int()), r"^target must be .*, got a torch\.int32 .*from_edge_index"),
    (lambda: of_edges(*THREE_OF_6, target=BEHIND), r"are 3 or more, the number of users, as PyG .*item_offset"),
    # recommend
    (lambda: recommend(lambda ids: U, 5, num_users=3, num_items=4), "pass k and others by name"),
    (lambda: recommend(U, V, k=0), "k must be at least 1"),
    (lambda: recommend(num_users=4, num_items=0), "num_items must be at least 1, got 0"),
    (lambda: recommend(num_users=-1, num_items=8), "num_users must be at least 0, got -1"),
    (lambda: recommend(U, V, num_items=9), "num_items=9 contradicts the 60 embeddings"),
    (lambda: recommend(NAN_OF_7, V), "1 of 40 rows with a score that is NaN or .inf: user 7"),
    (lambda: recommend(lambda ids: U[ids] + math.inf, num_items=8, user_ids=[5]), "1 of 1 row with a .*: user 5"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_bad_arguments_of_evaluate_and_recommend_are_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def made(users, sizes, batch_size=None, **scorer):
    """Return the users of each batch, as a list, and the number of users to score at once."""
    scorer, seen = SimpleNamespace(device=torch.device("cpu"), **scorer), []
    for _ in batches(scorer, users, sizes, lambda batch, rows: seen.append((batch.tolist(), rows)), batch_size):
        pass
    return seen


def test_a_user_with_a_long_list_is_in_a_batch_alone():
    """Padded lists count in the memory as scores do: 160 bytes for an item, 4,000 for scores of a user."""
    sizes = torch.tensor([1] * 50 + [100_000])
    seen = made(torch.arange(51), sizes, row_bytes=4000, reuses_memory=False, memory=50_000)

    assert [len(users) for users, _ in seen] == [12, 12, 12, 12, 2, 1]  # 50,000 / 4,160 = 12.02
    assert [user for users, _ in seen for user in users] == [*range(51)]


def test_sizes_of_lists_are_those_of_users_in_any_order():
    sizes, users = torch.tensor([1000] * 4 + [4, 1, 3, 2]), torch.tensor([4, 6, 7, 5])
    seen = made(users, sizes, row_bytes=0, reuses_memory=False, memory=9 * 160)

    assert [users for users, _ in seen] == [[5, 7, 6], [4]]


ON_THE_CPU = {"reuses_memory": True, "memory": 256 * 2**20}


@pytest.mark.parametrize(("batch_size", "at_once"), [(None, 64 // 4), (5, 5)])
def test_scores_are_made_for_a_few_users_of_a_batch_at_once(batch_size, at_once):
    """A buffer of 64 MB is reused for 4 MB of scores a user; lists of up to 4096 users are read together."""
    users, sizes = torch.arange(10_000), torch.ones(10_000, dtype=torch.int64)
    seen = made(users, sizes, batch_size, row_bytes=4 * 2**20, **ON_THE_CPU)

    assert [(len(users), rows) for users, rows in seen] == [(4096, at_once), (4096, at_once), (1808, at_once)]


@pytest.mark.parametrize(("number", "at_once"), [(256, 31), (257, 64)])
def test_a_buffer_of_scores_is_small_where_all_scores_take_256_mb(number, at_once):
    """A buffer is 31 MB then, and 64 MB otherwise: up to 256 MB the C library reuses its memory."""
    seen = made(torch.arange(number), torch.ones(number, dtype=torch.int64), row_bytes=2**20, **ON_THE_CPU)

    assert [rows for _, rows in seen] == [at_once]


TWO_HITS = {"users": torch.eye(2), "items": torch.eye(2), "target": torch.eye(2) > 0}


def test_progress_shows_users_and_the_running_value(capsys):
    pytest.importorskip("tqdm")
    trm.evaluate("HR@1", **TWO_HITS, progress=True)
    shown = capsys.readouterr().err

    assert "user/s" in shown
    assert "HR@1=1" in shown


def test_a_function_is_told_the_users_done_after_each_batch():
    told, scores = [], torch.eye(5)
    options = {"batch_size": 2, "progress": lambda done, total: told.append((done, total))}
    trm.evaluate("HR@1", lambda ids: scores[ids], target=scores > 0, **options)

    assert told == [(2, 5), (4, 5), (5, 5)]


def test_progress_without_tqdm_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"progress=True needs tqdm: pip install 'torchrecmetrics\[progress\]'"):
        trm.evaluate("HR@1", **TWO_HITS, progress=True)


def test_other_processes_are_not_asked_without_shard():
    def sync(*_):
        raise AssertionError("asked another process")

    options = {"distributed_available_fn": lambda: True, "dist_sync_fn": sync}
    assert trm.evaluate("HR@1", **TWO_HITS, **options)["HR@1"] == 1


@pytest.mark.parametrize(("number", "warned"), [(10, ["each of 10 users has a relevant item that"]), (9, [])])
def test_scores_of_minus_infinity_alone_are_a_warning_from_ten_users_on(number, warned, recwarn):
    scores, target = torch.full((number, number), -torch.inf), torch.eye(number) > 0

    assert trm.evaluate("HR@1", lambda users: scores[users], target=target)["HR@1"] == 0
    assert [str(warning.message)[:41] for warning in recwarn] == warned
