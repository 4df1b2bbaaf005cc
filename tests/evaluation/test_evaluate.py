"""evaluate and recommend: every batch size gives the result of the metrics by hand, within the memory budget."""

import math
import sys
from contextlib import nullcontext
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
U, V, TRAIN, TEST = world()


def by_hand(scores, train, test, k=(5, 10), **options):
    """Return the metrics of the whole users x items matrix, which the library never makes."""
    collection = trm.RecMetricCollection(NAMES, k=k, **options)
    relevant, history = test.select(EVERYONE), None if train is None else train.select(EVERYONE).items
    collection.update(scores, relevant.items, gains=relevant.values, exclude=history)
    return near(collection.compute())


@pytest.mark.parametrize("batch_size", [1, 3, 17, None])
@pytest.mark.parametrize("history", [True, False])
def test_batches_do_not_show(batch_size, history, device):
    """Any batch size gives the counts and means of the whole matrix."""
    users, items, train, test = world()
    embeddings, exclude = (users.to(device), items.to(device)), train.to(device) if history else None
    options = {"target": test.to(device), "exclude": exclude, "k": [5, 10], "batch_size": batch_size}
    got = trm.evaluate(NAMES, *embeddings, **options)
    assert numbers(got) == by_hand(users @ items.T, train if history else None, test)
    assert got.num_users == int((test.degree > 0).sum())
    assert got.num_skipped == int((test.degree == 0).sum())


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), users=st.integers(1, 6), items=st.integers(1, 7), batch_size=st.integers(1, 6))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_random_graphs(data, users, items, batch_size):
    """Isolated users, users with all items and repeated, shuffled edges give the result of the whole matrix."""
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
    got = trm.evaluate(NAMES, u, v, target=test, exclude=train, batch_size=batch_size, **options)
    assert numbers(got) == pytest.approx(numbers(collection.compute()), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_embeddings_score_in_float32_at_least(dtype, device):
    """Autocast, inference mode and batches change nothing: scores of low precision, too, are made in float32."""
    users, items, train, test = world(integer=False, dtype=dtype)
    options = {"target": test.to(device), "exclude": train.to(device), "k": [5, 10]}
    expected = by_hand(users.double() @ items.double().T, train, test)
    for batch_size in (None, 5, 1):
        with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16):
            got = trm.evaluate(NAMES, users.to(device), items.to(device), batch_size=batch_size, **options)
        assert numbers(got) == expected


@pytest.mark.parametrize("action", ["skip", "neg", "pos"])
def test_score_function(action, device):
    """A function of user ids, which it may change in place, gives the same as embeddings.
    It is called only for users with ground truth; the others count as `empty_target_action` says.
    """
    users, items, train, test = world()
    scores, asked = (users @ items.T).to(device).roll(1, 0), []

    def score(ids):
        assert ids.device.type == device.type
        asked.extend(ids.tolist())
        return scores[ids.add_(1) % USERS]

    options = {"target": test.to(device), "exclude": train.to(device), "k": [5, 10], "empty_target_action": action}
    expected = by_hand(users @ items.T, train, test, empty_target_action=action)
    assert numbers(trm.evaluate(NAMES, score, batch_size=7, **options)) == expected
    assert sorted(asked) == test.users.unique().tolist()
    assert numbers(trm.evaluate(NAMES, users.to(device), items.to(device), **options)) == expected


class WeighedHits(trm.RankingMetric):
    """Hits whose rows weigh as many candidates as they have, with or without a relevant item."""

    formula = staticmethod(trm.functional.hit_rate)
    weights = staticmethod(lambda ranking: ranking.num_ranked)

    @property
    def needs(self):
        return super().needs._replace(num_ranked=True)


MASK = torch.arange(ITEMS) % 3 > 0
FORMS = {
    "embeddings": lambda users, items, allowed: (users, items),
    "function": lambda users, items, allowed: (lambda ids: (users @ items.T).masked_fill(~MASK, -math.inf)[ids],),
    "mask": lambda users, items, allowed: (trm.Embeddings(users, items, allowed=MASK),),
    "bias": lambda users, items, allowed: (trm.Embeddings(items=None, users=None, bias=items[:, 0].contiguous()),),
    "candidates": lambda users, items, allowed: (trm.Embeddings(users, items, allowed=allowed),),
}


@pytest.mark.parametrize("action", ["skip", "neg", "pos"])
@pytest.mark.parametrize("form", FORMS)
def test_users_without_ground_truth_weigh_their_candidates(form, action, device):
    """Metrics with row weights count users without ground truth as `all_users` does; metrics of lists count neither."""
    users, items, train, test = world()
    allowed = Interactions.from_dense(torch.rand(USERS, ITEMS, generator=torch.Generator().manual_seed(3)) < 0.5)
    scored = FORMS[form](users.to(device), items.to(device), allowed.to(device))
    metrics = [trm.AUROC(weight="candidates", empty_target_action=action), WeighedHits(5, empty_target_action=action)]
    options = {"target": test.to(device), "exclude": train.to(device), "keep_rows": True}
    found, expected = (trm.evaluate(metrics, *scored, all_users=all_users, **options) for all_users in (False, True))
    assert numbers(found) == near(expected)
    assert found.counts() == expected.counts()
    assert found.rows.mean() == pytest.approx(expected.rows.mean(), abs=1e-12)
    catalogue = trm.Catalogue.from_interactions(train.to(device))
    lists = trm.AveragePopularity(5, catalogue=catalogue, empty_target_action=action)
    both = trm.evaluate([*metrics, lists], *scored, **options)
    assert numbers(both) == near({**expected, **trm.evaluate([lists], *scored, **options)})


@pytest.mark.parametrize(("action", "expected"), [("skip", (1 + 1 / 4) / 2), ("neg", 5 / 12), ("pos", 3 / 4)])
def test_a_user_without_ground_truth_weighs_all_candidates(action, expected):
    """Of three users with three candidates each, one has no ground truth and counts as `empty_target_action` says."""
    target = Interactions.from_columns([0, 1], [0, 2], num_users=3, num_items=3)
    metric = trm.AUROC(weight="candidates", empty_target_action=action)
    got = trm.evaluate([metric], torch.eye(3), torch.eye(3), target=target)
    assert got["AUROC-candidates"].item() == pytest.approx(expected)


@pytest.mark.parametrize("all_users", [False, True])
def test_a_user_without_ground_truth_has_the_limit_cases_of_surprise(all_users, device):
    """Users without ground truth are ranked where precision reads whether they were recommended anything."""
    target = trm.Interactions.from_columns([0], [0], num_users=3, num_items=2).to(device)
    scores = torch.tensor([[4.0, 1.0], [4.0, 1.0], [1.0, 2.0]], device=device)
    options = {"score_threshold": 3.5, "zero_division": 1.0, "empty_target_action": "neg"}
    metrics = [trm.Precision(2, denominator="recommended", **options), trm.Recall(2, **options)]
    got = trm.evaluate(metrics, lambda ids: scores[ids], target=target, all_users=all_users)
    assert [value.item() for value in got.values()] == pytest.approx([(1 + 0 + 1) / 3, 1])
    lists = {"user": [0, 0, 1, 1, 2], "item": [0, 1, 0, 1, 1], "score": [4.0, 1.0, 4.0, 1.0, 2.0]}
    target = target.with_ids(user_ids=torch.arange(3), item_ids=torch.arange(2))
    got = trm.evaluate_lists(metrics, lists, target=target)
    assert [value.item() for value in got.values()] == pytest.approx([(1 + 0 + 1) / 3, 1])


def test_all_is_moved_to_a_named_device(device):
    """With `device="cuda"` everything is moved to the current GPU, and a function is asked there."""
    users, items, train, test = world()
    scores = (users @ items.T).to(device)
    for scored in ((users, items), (lambda ids: scores[ids],)):
        got = trm.evaluate(NAMES, *scored, target=test, exclude=train, k=[5, 10], device=device.type)
        assert numbers(got) == by_hand(users @ items.T, train, test)
        assert trm.recommend(*scored, k=3, exclude=train, device=device.type).ids.device == scores.device


class Model(torch.nn.Module):
    """A model that scores in eval mode alone, and fails if `width` is not the number of items."""

    def __init__(self, width):
        super().__init__()
        self.width, self.frozen, self.drop = width, torch.nn.Dropout().eval(), torch.nn.Dropout()

    def forward(self, ids):
        assert [self.training, self.drop.training] == [False, False]
        return (U @ V.T)[ids, : self.width]


def test_modules_are_evaluated_in_eval_mode():
    assert numbers(trm.evaluate(NAMES, Model(ITEMS), target=TEST, exclude=TRAIN, k=[5, 10])) == by_hand(
        U @ V.T, TRAIN, TEST
    )


@pytest.mark.parametrize("width", [ITEMS, 3], ids=["no error", "error"])
def test_each_submodule_is_back_in_its_mode(width):
    model = Model(width)
    error = pytest.raises(ValueError, match="the score function must return") if width == 3 else nullcontext()
    with error:
        trm.evaluate("HR@5", model, target=TEST)

    assert [part.training for part in (model, model.frozen, model.drop)] == [True, False, True]


def test_a_module_in_eval_mode_stays_in_it():
    model = Model(ITEMS).eval()
    trm.recommend(model, k=3, exclude=TRAIN)

    assert not model.training


def test_bias_cosine_allowed(device):
    """Bias, cosine similarity and allowed items of `Embeddings` give the same as metrics of the changed scores."""
    users, items, train, test = world(dtype=torch.float64)
    bias, allowed = torch.arange(ITEMS).double() / 7, torch.arange(ITEMS) % 3 > 0
    options = {"target": test.to(device), "exclude": train.to(device), "k": 5}
    made = trm.Embeddings(users.to(device), items.to(device), bias.to(device), allowed=allowed.to(device))
    got = trm.evaluate(NAMES, made, **options)
    assert numbers(got) == by_hand((users @ items.T + bias).masked_fill(~allowed, -math.inf), train, test, 5)
    assert got.num_unreachable > 0
    unit = [torch.nn.functional.normalize(x, dim=1).to(device) for x in (users, items)]
    cosine = trm.evaluate(NAMES, trm.Embeddings(users.to(device), items.to(device), similarity="cosine"), **options)
    assert numbers(cosine) == near(trm.evaluate(NAMES, *unit, **options))


def test_gains_and_exclude_tuples(device):
    """Values of the ground truth are used as gains; Interactions and item masks exclude together."""
    users, items, train, test = world()
    graded = Interactions(test.offsets, test.items, ITEMS, torch.arange(len(test)) % 3 + 1)
    mask = torch.arange(ITEMS) >= 50
    metric = trm.NDCG(5, gain="exponential", overlap="miss")
    exclude = train.to(device), mask.to(device)
    got = trm.evaluate([metric], users.to(device), items.to(device), target=graded.to(device), exclude=exclude)
    assert not metric.update_called  # it was copied
    chosen, history = graded.select(EVERYONE), train.select(EVERYONE).items
    metric.update(users @ items.T, chosen.items, gains=chosen.values, exclude=(history, mask))
    assert got["NDCG-exponential@5"].item() == pytest.approx(metric.compute().item(), abs=1e-12)


def test_works_on_a_clone():
    """The collection that is passed keeps its state and its settings, because `evaluate` works on a clone."""
    users, items, train, test = world()
    collection = trm.RecMetricCollection(NAMES, k=[5, 10], prefix="val/")
    collection.update(torch.rand(2, 5), torch.tensor([1, 2]))
    before = numbers(collection.compute())
    got = numbers(trm.evaluate(collection, users, items, target=test, exclude=train))
    assert {key.removeprefix("val/"): value for key, value in got.items()} == by_hand(users @ items.T, train, test)
    assert numbers(collection.compute()) == before
    assert all(metric.sync_on_compute for metric in collection.values())


def test_user_subset():
    """`user_ids` selects the users that are evaluated, in any order, and whose overlap with the history is an error."""
    users, items, train, test = world()
    ids = torch.tensor([33, 4, 12, 5])
    got = trm.evaluate(NAMES, users, items, target=test, exclude=train, k=[5, 10], user_ids=ids.tolist())
    picked = {
        name: Interactions.from_padded(part.select(ids).items, ITEMS)
        for name, part in (("target", test), ("exclude", train))
    }
    assert numbers(got) == near(trm.evaluate(NAMES, users[ids], items, k=[5, 10], **picked))
    of_others = Interactions.from_edge_index(test.to_edge_index()[:, ~torch.isin(test.users, ids)], USERS, ITEMS)
    trm.evaluate("HR@5", users, items, target=test, exclude=of_others, user_ids=ids)
    with pytest.warns(UserWarning, match="no row to average over"):
        assert trm.evaluate("AUROC", users, items, target=test, user_ids=[]).num_users == 0


def test_excluded_pairs_that_are_no_relevant_items():
    """`without` takes the items of a mask out of the ground truth; pairs with the value 0 are no relevant items."""
    users, items, train, test = world()
    unreleased = torch.arange(ITEMS) >= 50
    with pytest.raises(ValueError, match=r"target.without\(part\), .* takes them out of the test; overlap='miss'"):
        trm.evaluate("HR@5", users, items, target=test, exclude=(train, unreleased))
    released = test.without(unreleased)
    assert set(released.items.tolist()) == set(test.items[test.items < 50].tolist())
    found = trm.evaluate("HR@5", users, items, target=released, exclude=(train, unreleased))
    assert found.num_users == len(released.users.unique())
    target = Interactions.from_columns([0, 0], [0, 1], values=torch.tensor([1.0, 0]), num_users=1, num_items=3)
    had = Interactions.from_columns([0], [1], num_users=1, num_items=3)
    vectors = torch.ones(1, 1), torch.tensor([[2.0], [3], [1]])
    assert trm.evaluate("HR@1", *vectors, target=target, exclude=had)["HR@1"] == 1


def test_edge_index():
    """Edges [2, E] as target or exclude, alone or in a tuple, get the sizes of the embeddings."""
    users, items, train, test = world()
    expected = near(trm.evaluate(NAMES, users, items, target=test, exclude=train, k=5))
    seen = train.to_edge_index()
    for exclude in (seen, (seen[:, ::2], train, seen[:, 1::2], torch.zeros(ITEMS, dtype=torch.bool))):
        found = trm.evaluate(NAMES, users, items, target=test.to_edge_index(), exclude=exclude, k=5)
        assert numbers(found) == expected


PAIRS, FLAGS = torch.tensor([[0, 1], [3, 2]]), torch.tensor([[1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0]])


@pytest.mark.parametrize("name", ["target", "exclude"])
@pytest.mark.parametrize("argument", [PAIRS, PAIRS.numpy(), FLAGS], ids=["pairs", "numpy", "0 and 1"])
def test_two_rows_of_two_users_could_be_edges(name, argument):
    """Or rows of items, or a matrix: refused, with the three calls that say which."""
    given = {"target": Interactions.from_padded(torch.tensor([[5], [5]]), 6), name: argument}
    cures = rf"from_edge_index\(.*from_padded\(ids, num_items\), .* {name}\.bool\(\)$"
    with pytest.raises(TypeError, match=rf"^{name} of 2 users, int64 \[2, .*{cures}"):
        trm.evaluate("NDCG@3", torch.eye(2, 6), torch.eye(6), **given)


@pytest.mark.parametrize("name", ["target", "exclude"])
def test_two_rows_of_0_and_1_are_no_edges(name):
    given = {"target": Interactions.from_padded(torch.tensor([[5], [5], [5]]), 6), name: FLAGS}
    with pytest.raises(
        ValueError, match=rf"^{name}: edge_index \[2, 6\] holds 0 and 1 alone: .*from_dense\(matrix.bool"
    ):
        trm.evaluate("NDCG@3", torch.eye(3, 6), torch.eye(6), **given)


@pytest.mark.parametrize("all_users", [False, True])
@pytest.mark.parametrize("ids", [None, torch.randperm(USERS, generator=torch.Generator().manual_seed(1))[:30]])
def test_users_in_order_of_their_lists(all_users, ids):
    """Users with short lists are scored first, ties in order; `all_users` adds users without ground truth."""
    _, _, train, test = world()
    asked = []

    def score(users):
        asked.extend(users.tolist())
        return torch.zeros(len(users), ITEMS)

    options = {"user_ids": ids, "all_users": all_users, "catalogue": trm.Catalogue(ITEMS), "batch_size": 7}
    trm.evaluate(["HR", "Coverage"], score, target=test, exclude=train, k=3, **options)
    lengths = (test.degree + train.degree).tolist()
    users = [user for user in (range(USERS) if ids is None else ids.tolist()) if all_users or test.degree[user]]
    assert asked == sorted(users, key=lengths.__getitem__)


@pytest.mark.parametrize("make", [torch.tensor, np.array], ids=["torch", "numpy"])
def test_ids_are_not_held(make):
    """The caller may overwrite the memory of `user_ids` as soon as the first user is scored."""
    users, items, _, _ = world()
    test = Interactions.from_dense(torch.eye(USERS, ITEMS) > 0)  # lists are equally long: their order is kept
    ids = make([3, 1, 6])

    def score(asked):
        ids[:] = 0
        return (users @ items.T)[asked]

    assert trm.evaluate("HR", score, target=test, k=3, user_ids=ids, keep_rows=True).rows.ids.tolist() == [1, 3, 6]
    ids = make([3, 1, 6])
    assert trm.recommend(score, k=3, num_items=ITEMS, user_ids=ids).users.tolist() == [3, 1, 6]


def test_history_is_no_ground_truth():
    """A history does not add users: lists of users without ground truth do not count."""
    target = Interactions.from_edge_index(torch.tensor([[0], [1]]), 2, 3)
    train = Interactions.from_edge_index(torch.tensor([[0, 1], [0, 2]]), 2, 3)
    known = trm.Catalogue.from_interactions(train)
    found = trm.evaluate("Seen", torch.ones(2, 1), torch.arange(3.0)[:, None], target=target, k=1, catalogue=known)
    assert found["Seen@1"] == 0  # user 1 would be given item 2 again
    assert trm.evaluate("Missing", torch.ones(2, 1), torch.ones(3, 1), target=target, k=4)["Missing@4"] == 0.25


def test_out_of_memory_halves_the_batch():
    """A batch that runs out of GPU memory is tried again in halves; no user is lost or counted twice."""
    users, items, train, test = world()
    calls = []

    def score(ids):
        calls.append(len(ids))
        if len(ids) > 6:
            raise torch.cuda.OutOfMemoryError("pretended")
        return (users @ items.T)[ids]

    got = trm.evaluate(NAMES, score, target=test, exclude=train, k=[5, 10])
    assert numbers(got) == by_hand(users @ items.T, train, test)
    assert max(calls) > 6 >= calls[-1]


def sharded(rank, world_size):
    """Evaluate with an error of the first process only, which counts users without ground truth; then without it."""
    users, items, train, test = world()
    options = {"target": test, "exclude": train, "k": [5, 10]}
    with pytest.raises((ValueError, RuntimeError), match="rows without a relevant item"):
        trm.evaluate("HR", users, items, shard="users", empty_target_action="error", **options)
    options["keep_rows"] = True
    together = trm.evaluate(NAMES, users, items, shard="users", dist_sync_on_step=True, **options)
    assert together.rows.ids.tolist() == list(range(USERS))
    alone = trm.evaluate(NAMES, users, items, user_ids=[int(test.degree.nonzero()[rank])], **options)
    return numbers(together), together.num_users, together.num_skipped, alone.num_users


@pytest.mark.parametrize("world_size", [2, 3])
def test_shard_by_users(world_size, processes):
    """Each process takes its share and all get the whole result, or the error of one; without `shard` none waits."""
    users, items, train, test = world()
    counts = int((test.degree > 0).sum()), int((test.degree == 0).sum()), 1
    for values, *found in processes.run(sharded, world_size):
        assert values == by_hand(users @ items.T, train, test)
        assert tuple(found) == counts


def test_rows_are_in_the_order_of_the_target():
    """Each user has one row, with the user's value, whatever the lengths by which batches are made."""
    users, items, _, test = world()
    rows = trm.evaluate("Recall@5", users, items, target=test, batch_size=7, keep_rows=True).rows
    expected = trm.functional.recall(trm.Scores(users @ items.T, test.select(EVERYONE)).ranking(), 5)

    assert rows.ids.tolist() == list(range(USERS))
    assert rows.values["Recall@5"].tolist() == pytest.approx(expected.tolist(), nan_ok=True)
    assert rows.values["Recall@5"].isnan().tolist() == (test.degree == 0).tolist()


def test_rows_of_some_users_are_in_the_order_of_the_target():
    users, items, _, test = world()
    rows = trm.evaluate("HR@5", users, items, target=test, user_ids=[9, 5, 3], keep_rows=True).rows

    assert rows.ids.tolist() == [3, 5, 9]


OF_TRAIN, OF_TEST = ([0, 0, 1, 1], [1, 2, 3, 2]), ([0, 1], [3, 4])
FROM_1 = {
    "target": Interactions.from_columns(*OF_TEST),
    "exclude": Interactions.from_columns(*OF_TRAIN, num_users=2, num_items=5),
    "k": 1,
}
BIAS = torch.ones(2, 1), torch.tensor([[9.0], [1], [2], [5], [4]])


@pytest.mark.parametrize(
    "call",
    [
        lambda **more: trm.evaluate("HR", *BIAS, **FROM_1, **more),
        lambda **more: trm.evaluate("HR", lambda ids: BIAS[0][ids] @ BIAS[1].T, **FROM_1, **more),
        lambda **more: trm.evaluate("HR", *BIAS, **FROM_1 | {"exclude": None}, **more),
    ],
    ids=["embeddings", "function", "no history"],
)
def test_ids_from_1_are_noticed(call):
    """A warning at the caller's line if no size was given and no id is 0: item 0 would compete with all other items."""
    with pytest.warns(UserWarning, match=r"start at 1, pass padding_idx=0 to keep item 0 .* num_items") as warned:
        assert call()["HR@1"] == 0

    assert [warning.filename for warning in warned] == [__file__]
    assert call(padding_idx=0)["HR@1"] > 0


def test_item_0_does_not_compete_if_it_is_not_allowed():
    allowed = trm.Embeddings(*BIAS, allowed=torch.arange(5) > 0)
    masked = FROM_1 | {"exclude": (FROM_1["exclude"], torch.arange(5) == 0)}

    assert trm.evaluate("HR", allowed, **FROM_1)["HR@1"] > 0
    assert trm.evaluate("HR", *BIAS, **masked)["HR@1"] > 0


def test_an_item_0_that_occurs_is_an_item():
    known = Interactions.from_columns([0, 1], [0, 4])
    trm.evaluate("HR", *BIAS, target=known, exclude=FROM_1["target"], k=1, overlap="keep")


def test_recommend_notices_ids_from_1():
    message = r"ids start at 1, pass Embeddings\(..., allowed=torch.arange\(5\) > 0\) to keep item 0"
    with pytest.warns(UserWarning, match=message) as warned:
        assert trm.recommend(*BIAS, 1, exclude=FROM_1["target"]).ids.tolist() == [[0], [0]]

    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("sizes", [{"num_users": 2, "num_items": 5}, {"num_users": 2, "item_ids": [1, 2, 3, 4]}])
def test_sizes_that_were_given_are_believed(sizes):
    train, test = (Interactions.from_columns(*pairs, **sizes) for pairs in (OF_TRAIN, OF_TEST))
    users, items = torch.ones(2, 1), torch.ones(test.num_items, 1)
    trm.evaluate("HR", users, items, target=test, exclude=train, k=1)
    trm.recommend(users, items, 1, exclude=test)


def test_padding_is_no_overlap():
    """The padding id is neither relevant nor excluded, in `evaluate` as in `update`."""
    users, items = torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0], [1], [2], [5]])
    train = Interactions.from_edge_index(torch.tensor([[0, 0, 1], [0, 3, 0]]), 2, 4)
    test = Interactions.from_edge_index(torch.tensor([[0, 0, 1], [0, 2, 0]]), 2, 4)
    got = trm.evaluate(["HR"], users, items, target=test, exclude=train, k=1, padding_idx=0)
    batch = trm.RecMetricCollection(["HR"], k=1, padding_idx=0)
    batch.update(users @ items.T, test.select([0, 1]), exclude=train.select([0, 1]))
    assert got["HR@1"] == batch.compute()["HR@1"] == 1
    assert (got.num_users, got.num_skipped) == (batch["HR@1"].num_users, batch["HR@1"].num_skipped) == (1, 1)
    other = Interactions.from_edge_index(torch.tensor([[0, 1], [0, 1]]), 2, 4)
    with pytest.raises(ValueError, match=r"1 \(user, item\) pair of target is .* such as \[\[1, 1\]\]"):
        trm.evaluate(["HR"], users, items, target=other, exclude=other, k=1, padding_idx=0)


GRADES = torch.where(torch.rand(USERS, ITEMS) < 0.5, 1.0, 2.5)


def as_matrices(graph, values=None):
    """Return the forms of a matrix of interactions: of torch and numpy, dense and sparse, of bools or of values."""
    dense = torch.zeros(USERS, ITEMS, dtype=torch.bool)
    dense[graph.users, graph.items] = True
    dense = dense if values is None else dense * values
    sparse_forms = [dense.float().to_sparse(), sparse.csr_matrix(dense.float()), sparse.coo_array(dense.float())]
    return [dense, dense.numpy(), np.asfortranarray(dense), *sparse_forms]


@pytest.mark.parametrize("form", range(6))
@pytest.mark.parametrize("values", [None, GRADES], ids=["bool", "graded"])
def test_matrices_are_interactions(form, values):
    """Ground truth and history of torch, numpy or scipy give the values of `Interactions`; factors may be numpy's."""
    graded = None if values is None else values[TEST.users, TEST.items]
    truth = Interactions.from_edge_index(TEST.to_edge_index(), USERS, ITEMS, graded, item_offset=0)
    options = {"k": [5, 10], "keep_rows": True}
    expected = trm.evaluate(NAMES, U, V, target=truth, exclude=TRAIN, **options)
    target, exclude = as_matrices(TEST, values)[form], as_matrices(TRAIN)[form]
    factors = U.numpy(), np.asfortranarray(V.numpy())
    for users, items in ((U, V), factors, (trm.Embeddings(*factors), None), (lambda ids: U[ids] @ V.T, None)):
        found = trm.evaluate(NAMES, users, items, target=target, exclude=(exclude,), **options)
        assert numbers(found) == near(expected)
    assert recommend(U, V, exclude=exclude).ids.equal(recommend(U, V, exclude=TRAIN).ids)


def evaluate(users=U, items=V, **changed):
    return trm.evaluate("HR@5", users, items, **{"target": TEST, "exclude": TRAIN, **changed})


def of_edges(users=None, items=None, exclude=None, **changed):
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
BAD = [
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
    (lambda: evaluate(similarity="cosine"), r"no option 'similarity': pass trm.Embeddings\(users, items, similarity="),
    (
        lambda: evaluate(weights=U[:, 0]),
        r"no option 'weights': pass weights of rows to update\(..., weights=\) of a metric",
    ),
    (
        lambda: trm.evaluate(trm.RecMetricCollection("HR@5"), U, V, k=5, target=TEST),
        "k cannot be given with a collection",
    ),
    (lambda: evaluate(shard="rows"), "shard must be one of None, 'users', 'items', 'both', got 'rows'"),
    (lambda: evaluate(batch_size="8"), r"batch_size must be an integer >= 1, got '8' \(str\)"),
    (lambda: evaluate(progress="yes"), r"progress must be True, False or a function of .*, got 'yes' \(str\)"),
    (lambda: evaluate(device="gpu"), r"device must be .* the name of one, such as 'cuda:0', got 'gpu' \(str\)"),
    (lambda: evaluate(user_ids=[1, 1]), "user_ids repeat a user"),
    (lambda: evaluate(user_ids=3), r"row numbers \[n\], such as \[3\] for user 3, got 3"),
    (lambda: evaluate(user_ids={1, 2}), r"row numbers \[n\] .*, not strings or sets, got set \{1, 2\}"),
    (lambda: evaluate(user_ids=[0.5]), "user_ids must be whole numbers"),
    (lambda: evaluate(user_ids=[-1]), "user_ids hold -1..-1, expected 0..39"),
    (lambda: recommend(num_items=8, user_ids=[-1]), "user_ids hold -1..-1, expected 0..$"),
    (
        lambda: evaluate(target=[[1], [2, 3]]),
        r"got list: Interactions.from_columns\(users, items\), .*, or from_jagged",
    ),
    (
        lambda: evaluate(target={"q1": {"d1"}}),
        r"^target must be Interactions, got dict: Interactions.from_dict\(target, user_ids=..., item_ids=...\)$",
    ),
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
    (lambda: evaluate(exclude=TEST), r"\d+ \(user, item\) pairs of target .*target.without\(exclude\).*'keep'.*'miss'"),
    (lambda: of_edges(rand_scores), r"^target must be Interactions, .*from_edge_index"),
    (
        lambda: of_edges(trm.Embeddings(bias=torch.rand(3))),
        r"^target is an edge_index, which needs embeddings of users and items for their numbers: pass "
        r"Interactions\.from_edge_index\(edge_index, num_users, num_items\)$",
    ),
    (lambda: of_edges(target=EDGES + 1), r"^target: items \(edge_index\[1\]\).*3"),
    (lambda: of_edges(exclude=(EDGES.flip(0), EDGES + 1)), r"^exclude: "),
    (lambda: of_edges(target=EDGES.int()), r"^target must be .*, got a torch\.int32 .*from_edge_index"),
    (lambda: of_edges(*THREE_OF_6, target=BEHIND), r"are 3 or more, the number of users, as PyG .*item_offset"),
    (lambda: recommend(lambda ids: U, 5, num_users=3, num_items=4), "pass k and others by name"),
    (lambda: recommend(U, V, k=0), "k must be at least 1"),
    (lambda: recommend(num_users=4, num_items=0), "num_items must be at least 1, got 0"),
    (lambda: recommend(num_users=-1, num_items=8), "num_users must be at least 0, got -1"),
    (lambda: recommend(U, V, num_items=9), "num_items=9 contradicts the 60 embeddings"),
    (lambda: recommend(NAN_OF_7, V), "1 of 40 rows with a score that is NaN or .inf: user 7"),
    (lambda: recommend(lambda ids: U[ids] + math.inf, num_items=8, user_ids=[5]), "1 of 1 row with a .*: user 5"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def made(users, sizes, batch_size=None, **scorer):
    """Return pairs of a batch, as a list, and the number of users to score at once."""
    scorer, seen = SimpleNamespace(device=torch.device("cpu"), **scorer), []
    for batch in batches(scorer, users, sizes, lambda batch, rows: seen.append((batch.tolist(), rows)), batch_size):
        assert batch.tolist() == seen[-1][0]
    return seen


def test_batches_fit_the_memory():
    """Padded lists count in the memory as scores do: a user with a long list is in a batch alone."""
    sizes = torch.tensor([1] * 50 + [100_000])
    seen = made(torch.arange(51), sizes, row_bytes=4000, reuses_memory=False, memory=50_000)
    assert max(len(batch) for batch, _ in seen) == 50_000 // (4000 + 160)
    assert seen[-1] == ([50], 1)
    assert [user for batch, _ in seen for user in batch] == [*range(51)]


def test_sizes_are_of_users():
    """Sizes belong to user ids, not to positions in the batch: users may come in another order or be left out."""
    sizes, users = torch.tensor([1000] * 4 + [4, 1, 3, 2]), torch.tensor([4, 6, 7, 5])
    seen = made(users, sizes, row_bytes=0, reuses_memory=False, memory=9 * 160)
    assert [batch for batch, _ in seen] == [[5, 7, 6], [4]]


def test_scores_are_made_for_a_few_users_at_once():
    """On the CPU a small buffer of scores is reused within a batch of many users whose lists are read together."""
    users, sizes = torch.arange(10_000), torch.ones(10_000, dtype=torch.int64)
    memory = {"reuses_memory": True, "memory": 256 * 2**20}
    for batch_size, at_once in ((None, 16), (5, 5)):
        seen = made(users, sizes, batch_size, row_bytes=4 * 2**20, **memory)
        assert [(len(batch), rows) for batch, rows in seen] == [(4096, at_once), (4096, at_once), (1808, at_once)]
    for number, at_once in ((256, 31), (257, 64)):  # up to 256 MB in all, the C library reuses a buffer so small
        assert [rows for _, rows in made(users[:number], sizes, row_bytes=2**20, **memory)] == [at_once]


def with_progress(progress):
    users, items, train, test = world()
    options = {"target": test, "exclude": train, "batch_size": 8, "progress": progress}
    trm.evaluate("NDCG@10", lambda ids: users[ids] @ items.T, **options)
    return len(test.users.unique())


def test_progress(capsys):
    """With `progress=True` tqdm shows users and the running value of the first metric; a function is told them."""
    pytest.importorskip("tqdm")
    with_progress(True)
    shown = capsys.readouterr().err
    assert "user/s" in shown
    assert "NDCG@10=0." in shown
    told = []
    total = with_progress(lambda *numbers: told.append(numbers))
    assert told == [(done, total) for done in (*range(8, total, 8), total)]


def test_progress_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"progress=True needs tqdm: pip install 'torchrecmetrics\[progress\]'"):
        with_progress(True)


@pytest.mark.parametrize("number", [9, 10])
def test_scores_of_minus_infinity_alone_are_a_warning(number, recwarn):
    target = trm.Interactions.from_dense(torch.eye(number) > 0)
    found = trm.evaluate("HR@1", lambda users: torch.full((len(users), number), -torch.inf), target=target)

    assert found["HR@1"] == 0
    assert [str(warning.message)[:41] for warning in recwarn] == ["each of 10 users has a relevant item that"] * (
        number == 10
    )
