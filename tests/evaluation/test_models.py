"""evaluate and recommend: every batch size gives the result of the metrics by hand, within the memory budget."""

import math
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sizes import examples
from values import near, numbers
from worlds import ITEMS, USERS, world

import torchrecmetrics as trm
from torchrecmetrics import Interactions

NAMES = ["HR", "NDCG", "Recall", "MAP", "MRR", "RPrecision", "AUROC"]


def by_hand(users, items, train, test, **options):
    """Return the metrics of the whole users x items matrix, which the library never makes."""
    collection = trm.RecMetricCollection(NAMES, k=[5, 10], **options)
    everyone = torch.arange(USERS)
    relevant = test.select(everyone)
    history = None if train is None else train.select(everyone).items
    collection.update(users @ items.T, relevant.items, gains=relevant.values, exclude=history)
    return near(collection.compute())


@pytest.mark.parametrize("batch_size", [1, 3, 17, None])
@pytest.mark.parametrize("history", [True, False])
def test_batches_do_not_show(batch_size, history, device):
    """Any batch size gives the counts and means of the whole matrix."""
    users, items, train, test = world()
    train = train if history else None
    got = trm.evaluate(
        NAMES,
        users.to(device),
        items.to(device),
        target=test.to(device),
        exclude=None if train is None else train.to(device),
        k=[5, 10],
        batch_size=batch_size,
    )
    assert numbers(got) == by_hand(users, items, train, test)
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
        Interactions.from_edge_index(torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T, users, items)
        for edges in (data.draw(st.permutations(seen + seen[:3])), wanted)
    )
    value = st.integers(-2, 2)
    u, v = (
        torch.tensor(data.draw(st.lists(st.lists(value, min_size=2, max_size=2), min_size=n, max_size=n))).double()
        for n in (users, items)
    )
    overlap = data.draw(st.sampled_from(["keep", "miss"]))
    collection = trm.RecMetricCollection(NAMES, k=[1, 3], overlap=overlap)
    collection.update(u @ v.T, test.select(range(users)).items, exclude=train.select(range(users)).items)
    got = trm.evaluate(NAMES, u, v, target=test, exclude=train, k=[1, 3], batch_size=batch_size, overlap=overlap)
    assert numbers(got) == {
        key: pytest.approx(x.item(), abs=1e-12, nan_ok=True) for key, x in collection.compute().items()
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_low_precision_embeddings_score_in_float32(dtype, device):
    """Half-precision embeddings, autocast and inference mode change nothing: scores are made and kept in float32."""
    users, items, train, test = world(integer=False, dtype=dtype)
    expected = by_hand(users.double(), items.double(), train, test)
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16):
        got = trm.evaluate(
            NAMES, users.to(device), items.to(device), target=test.to(device), exclude=train.to(device), k=[5, 10]
        )
    assert numbers(got) == expected


def test_random_floats_differ_by_close_scores_only():
    """Products of other batch shapes differ in the last bits; ranks differ only by items within d 2^-22 |u||v|."""
    users, items, train, test = world(integer=False)
    exact = users.double() @ items.double().T
    bound = 8 * 2**-22 * users.double().norm(dim=1)[:, None] * items.double().norm(dim=1)
    for user in range(USERS):
        relevant = test.select([user]).items[0]
        relevant = relevant[relevant >= 0]
        if not len(relevant):
            continue
        out = torch.zeros(ITEMS, dtype=torch.bool)
        out[train.items[train.users == user]] = True
        for batch_size in (1, 5):
            got = trm.evaluate("MRR", users, items, target=test, exclude=train, user_ids=[user], batch_size=batch_size)
            best = exact[user][relevant].max()
            surely = ((exact[user] > best + 2 * bound[user].max()) & ~out).sum()
            maybe = ((exact[user] > best - 2 * bound[user].max()) & ~out).sum()
            assert 1 / max(int(maybe), 1) - 1e-9 <= got["MRR"] <= 1 / (1 + int(surely)) + 1e-9


def test_score_function(device):
    """A function of user ids gives the same as embeddings; it is called only for users with ground truth."""
    users, items, train, test = world()
    asked = []

    def score(ids):
        assert ids.device.type == device.type
        asked.extend(ids.tolist())
        return (users @ items.T).to(device)[ids]

    got = trm.evaluate(NAMES, score, target=test.to(device), exclude=train.to(device), k=[5, 10], batch_size=7)
    assert numbers(got) == by_hand(users, items, train, test)
    assert sorted(asked) == (test.degree > 0).nonzero()[:, 0].tolist()


def test_all_is_moved_to_a_named_device(device):
    """With `device="cuda"` everything is moved to the current GPU, and a function is asked there."""
    users, items, train, test = world()
    scores = (users @ items.T).to(device)
    for scored in ((users, items), (lambda ids: scores[ids],)):
        got = trm.evaluate(NAMES, *scored, target=test, exclude=train, k=[5, 10], device=device.type)
        assert numbers(got) == by_hand(users, items, train, test)
        assert trm.recommend(*scored, k=3, exclude=train, device=device.type).ids.device == scores.device


def test_modules_are_evaluated_in_eval_mode():
    """A module that scores is put into eval mode, and each submodule is back in its mode afterwards, even on error."""
    users, items, train, test = world()

    class Model(torch.nn.Module):
        width = ITEMS

        def __init__(self):
            super().__init__()
            self.frozen, self.drop = torch.nn.Dropout().eval(), torch.nn.Dropout()

        def forward(self, ids):
            assert not self.training
            assert not self.drop.training
            return (users @ items.T)[ids, : self.width]

    model = Model()
    expected = by_hand(users, items, train, test)
    assert numbers(trm.evaluate(NAMES, model, target=test, exclude=train, k=[5, 10])) == expected
    assert [m.training for m in (model, model.frozen, model.drop)] == [True, False, True]
    model.width = 3
    with pytest.raises(ValueError, match="the score function must return"):
        trm.evaluate(NAMES, model, target=test, k=5)
    assert [m.training for m in (model, model.frozen, model.drop)] == [True, False, True]
    model.width = ITEMS
    trm.recommend(model.eval(), k=3, exclude=train)
    assert not model.training


def test_functions_may_change_their_ids():
    """A score function may change its ids in place, because the ids are a copy."""
    users, items, train, test = world()
    scores = (users @ items.T).roll(1, 0)
    got = trm.evaluate(
        NAMES, lambda ids: scores[ids.add_(1) % USERS], target=test, exclude=train, k=[5, 10], batch_size=7
    )
    assert numbers(got) == by_hand(users, items, train, test)


def test_bias_cosine_allowed(device):
    """Bias, cosine similarity and allowed items of `Embeddings` give the same as metrics of the changed scores."""
    users, items, train, test = world(dtype=torch.float64)
    bias, allowed = torch.arange(ITEMS).double() / 7, torch.arange(ITEMS) % 3 > 0
    scores = users @ items.T + bias
    collection = trm.RecMetricCollection(NAMES, k=5)
    everyone = torch.arange(USERS)
    collection.update(
        scores.masked_fill(~allowed, -math.inf), test.select(everyone).items, exclude=train.select(everyone).items
    )
    options = {"target": test.to(device), "exclude": train.to(device), "k": 5}
    given = trm.Embeddings(users.to(device), items.to(device), bias.to(device), allowed=allowed.to(device))
    got = trm.evaluate(NAMES, given, **options)
    assert numbers(got) == {k: pytest.approx(v.item(), abs=1e-12) for k, v in collection.compute().items()}
    assert got.num_unreachable > 0
    unit = [torch.nn.functional.normalize(x, dim=1) for x in (users, items)]
    cosine = trm.evaluate("NDCG@5", trm.Embeddings(users, items, similarity="cosine"), target=test, exclude=train)
    assert cosine["NDCG@5"] == pytest.approx(trm.evaluate("NDCG@5", *unit, target=test, exclude=train)["NDCG@5"].item())


def test_gains_and_exclude_tuples(device):
    """Values of the ground truth are used as gains; Interactions and item masks exclude together."""
    users, items, train, test = world()
    graded = Interactions(test.offsets, test.items, ITEMS, torch.arange(len(test)) % 3 + 1)
    mask = torch.arange(ITEMS) >= 50
    got = trm.evaluate(
        [trm.NDCG(5, gain="exponential", overlap="miss")],
        users.to(device),
        items.to(device),
        target=graded.to(device),
        exclude=(train.to(device), mask.to(device)),
    )
    metric = trm.NDCG(5, gain="exponential", overlap="miss")
    chosen = graded.select(torch.arange(USERS))
    metric.update(
        users @ items.T, chosen.items, gains=chosen.values, exclude=(train.select(torch.arange(USERS)).items, mask)
    )
    assert got["NDCG-exponential@5"].item() == pytest.approx(metric.compute().item(), abs=1e-12)


@pytest.mark.parametrize("action", ["skip", "neg", "pos"])
def test_users_without_ground_truth(action):
    """Users without ground truth are counted as `empty_target_action` says, and are never scored."""
    users, items, train, test = world()
    options = {"target": test, "exclude": train, "k": [5, 10], "empty_target_action": action}
    expected, scored = by_hand(users, items, train, test, empty_target_action=action), []
    assert numbers(trm.evaluate(NAMES, users, items, **options)) == expected

    def scores(ids):
        scored.extend(ids.tolist())
        return users[ids] @ items.T

    assert numbers(trm.evaluate(NAMES, scores, **options)) == expected
    assert sorted(scored) == test.users.unique().tolist()


def test_works_on_a_clone():
    """The collection that is passed keeps its state and its settings, because `evaluate` works on a clone."""
    users, items, train, test = world()
    collection = trm.RecMetricCollection(NAMES, k=[5, 10], prefix="val/")
    collection.update(torch.rand(2, 5), torch.tensor([1, 2]))
    before = collection.compute()
    got = trm.evaluate(collection, users, items, target=test, exclude=train)
    assert {key.removeprefix("val/"): v.item() for key, v in got.items()} == by_hand(users, items, train, test)
    assert numbers(collection.compute()) == numbers(before)
    assert all(metric.sync_on_compute for metric in collection.values())


def test_leaves_the_callers_metric_alone():
    """A metric that is passed is copied: it belongs to no collection afterwards and is not updated."""
    users, items, train, test = world()
    metric = trm.HR(5)
    assert trm.evaluate([metric], users, items, target=test, exclude=train)["HR@5"] > 0
    assert "_collection" not in metric.__dict__
    assert not metric.update_called


def test_user_subset():
    """`user_ids` selects the users that are evaluated, in any order."""
    users, items, train, test = world()
    picked = [33, 4, 12, 5]
    got = trm.evaluate(NAMES, users, items, target=test, exclude=train, k=[5, 10], user_ids=picked)
    rows = torch.tensor(picked)
    part = (
        Interactions.from_padded(test.select(rows).items, ITEMS),
        Interactions.from_padded(train.select(rows).items, ITEMS),
    )
    expected = trm.evaluate(NAMES, users[rows], items, target=part[0], exclude=part[1], k=[5, 10])
    assert numbers(got) == {k: pytest.approx(v.item(), abs=1e-12) for k, v in expected.items()}
    others = (test.degree > 0).nonzero()[:, 0][~torch.isin((test.degree > 0).nonzero()[:, 0], rows)]
    seen_by_others = Interactions.from_edge_index(test.to_edge_index()[:, torch.isin(test.users, others)], USERS, ITEMS)
    trm.evaluate("HR@5", users, items, target=test, exclude=seen_by_others, user_ids=picked)  # no overlap in `picked`


def test_targets_that_a_mask_excludes():
    """The error of relevant items in a mask offers what works there; `without` takes the mask."""
    users, items, train, test = world()
    unreleased = torch.arange(ITEMS) >= 50
    exclude = (train, unreleased)
    with pytest.raises(ValueError, match=r"target.without\(part\), .* takes them out of the test; overlap='miss'"):
        trm.evaluate("HR@5", users, items, target=test, exclude=exclude)
    released = test.without(unreleased)
    assert set(released.items.tolist()) == set(test.items[test.items < 50].tolist())
    found = trm.evaluate("HR@5", users, items, target=released, exclude=exclude)
    assert found.num_users == len(released.users.unique())


def test_values_that_are_not_relevant_are_no_overlap():
    """An excluded pair whose value in the ground truth is 0 is no relevant item, and no error."""
    target = Interactions.from_columns([0, 0], [0, 1], values=torch.tensor([1.0, 0]), num_users=1, num_items=3)
    had = Interactions.from_columns([0], [1], num_users=1, num_items=3)
    assert (
        trm.evaluate("HR@1", torch.ones(1, 1), torch.tensor([[2.0], [3], [1]]), target=target, exclude=had)["HR@1"] == 1
    )


def test_edge_index():
    """Edges [2, E] as target or exclude, alone or in a tuple, get the sizes of the embeddings."""
    users, items, train, test = world()
    expected = trm.evaluate(NAMES, users, items, target=test, exclude=train, k=5)
    edges, seen = test.to_edge_index(), train.to_edge_index()
    got = trm.evaluate(NAMES, users, items, target=edges, exclude=seen, k=5)
    assert numbers(got) == numbers(expected)
    parts = (seen[:, ::2], train, seen[:, 1::2], torch.zeros(ITEMS, dtype=torch.bool))
    found = trm.evaluate(NAMES, users, items, target=edges, exclude=parts, k=5)
    assert numbers(found) == pytest.approx(numbers(expected), abs=1e-12)


EDGES = torch.tensor([[0, 1, 1], [2, 0, 1]])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"users": lambda ids: torch.rand(len(ids), 3), "target": EDGES},
            TypeError,
            r"^target must be Interactions, .*from_edge_index",
        ),
        (
            {"users": trm.Embeddings(bias=torch.rand(3)), "target": EDGES},
            TypeError,
            r"^target is an edge_index, which needs embeddings of both to know how many there are: pass "
            r"Interactions\.from_edge_index\(edge_index, num_users, num_items\)$",
        ),
        (
            {"users": lambda ids: torch.rand(len(ids), 3), "target": "interactions", "exclude": EDGES},
            TypeError,
            r"^exclude is an edge_index, .* pass Interactions\.from_edge_index\(",
        ),
        ({"target": EDGES + 1}, ValueError, r"^target: items \(edge_index\[1\]\).*3"),
        ({"target": EDGES - 1}, ValueError, r"^target: users \(edge_index\[0\]\).*-1"),
        ({"target": EDGES, "exclude": (EDGES.flip(0), EDGES + 1)}, ValueError, r"^exclude: "),
        (
            {"target": EDGES.int()},
            TypeError,
            r"^target must be .*, got a torch\.int32 .*from_edge_index",
        ),
        ({"target": EDGES.T}, TypeError, r"^target must be Interactions, got .*from_edge_index"),
        ({"target": EDGES, "exclude": EDGES[0]}, TypeError, r"^exclude must be Interactions, bool \[3\] or a tuple of"),
        (
            {"target": EDGES, "exclude": torch.ones(3).byte()},
            TypeError,
            r"got torch.uint8 \[3\]: pass exclude.bool\(\)",
        ),
        ({"target": EDGES, "exclude": EDGES > 1}, TypeError, r"exclude must be .*Interactions\.from_dense\(exclude\)"),
    ],
)
def test_edge_index_without_sizes_or_beyond_them(given, error, message):
    """An edge_index without embeddings, ids beyond the embeddings and other tensors raise an error with the fix."""
    given = {**({} if "users" in given else {"users": torch.eye(3), "items": torch.eye(3)}), **given}
    if given["target"] == "interactions":
        given["target"] = Interactions.from_edge_index(EDGES, 2, 3)
    with pytest.raises(error, match=message):
        trm.evaluate("HR", k=1, **given)


def test_edges_numbered_behind_the_users_are_refused():
    """PyG's node ids of items raise if the catalogue is larger than the number of users: they would be other items."""
    edges = torch.tensor([[0, 1], [3, 4]])
    for options in ({"target": edges}, {"target": EDGES[:, 1:2], "exclude": edges}):
        with pytest.raises(ValueError, match=r"are 2 or more, the number of users, as PyG numbers items.*item_offset"):
            trm.evaluate("HR", torch.eye(2, 6), torch.eye(6), k=1, **options)
    found = trm.evaluate("HR", torch.eye(2, 6), torch.eye(6), target=Interactions.from_edge_index(edges, 2, 6), k=1)
    assert found["HR@1"] == 0


@pytest.mark.parametrize("all_users", [False, True])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("history", [False, True])
def test_users_in_order_of_their_lists(all_users, alike, chosen, history):
    """Users with short lists are scored first, ties in order; `all_users` adds users without ground truth."""
    _, _, train, test = world()
    test = Interactions.from_dense(torch.eye(USERS, ITEMS) > 0) if alike else test
    train = train.without(test) if history else None
    ids = torch.randperm(USERS, generator=torch.Generator().manual_seed(1))[:30] if chosen else None
    asked = []

    def score(users):
        asked.extend(users.tolist())
        return torch.zeros(len(users), ITEMS)

    options = {"catalogue": trm.Catalogue(ITEMS)} if all_users else {}
    trm.evaluate(
        ["HR", "Coverage"] if all_users else "HR",
        score,
        target=test,
        exclude=train,
        k=3,
        user_ids=ids,
        all_users=all_users,
        batch_size=7,
        **options,
    )
    lengths = (test.degree + (train.degree if history else 0)).tolist()
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

    assert trm.evaluate("HR", score, target=test, k=3, user_ids=ids, keep_rows=True).rows.ids.tolist() == [3, 1, 6]
    ids = make([3, 1, 6])
    assert trm.recommend(score, k=3, num_items=ITEMS, user_ids=ids).users.tolist() == [3, 1, 6]


@pytest.mark.filterwarnings("ignore:no row to average over")
def test_nobody_is_asked_for():
    """An empty `user_ids` does not raise and evaluates 0 users."""
    target = trm.Interactions.from_edge_index(torch.tensor([[0], [1]]), 2, 3)
    assert trm.evaluate("HR", torch.ones(2, 1), torch.ones(3, 1), target=target, k=1, user_ids=[]).num_users == 0


def test_history_is_no_ground_truth():
    """A history does not add users: lists of users without ground truth do not count."""
    target = trm.Interactions.from_edge_index(torch.tensor([[0], [1]]), 2, 3)
    train = trm.Interactions.from_edge_index(torch.tensor([[0, 1], [0, 2]]), 2, 3)
    known = trm.Catalogue.from_interactions(train)
    found = trm.evaluate("Seen", torch.ones(2, 1), torch.arange(3.0)[:, None], target=target, k=1, catalogue=known)
    assert found["Seen@1"] == 0  # user 1 would be given item 2 again
    assert trm.evaluate("Missing", torch.ones(2, 1), torch.ones(3, 1), target=target, k=4)["Missing@4"] == 0.25


def test_nothing_is_looked_for_in_no_history(monkeypatch):
    """Without `exclude` the keys of the ground truth's edges are not computed."""
    users, items, _, test = world()
    monkeypatch.setattr(Interactions, "keys", property(lambda self: pytest.fail("asked for")))
    trm.evaluate("HR", users, items, target=test, k=3)


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
    assert numbers(got) == by_hand(users, items, train, test)
    assert max(calls) > 6 >= calls[-1]


# ------------------------------------------------------------------------------------------------- recommend


# ------------------------------------------------------------------------------------------------- several processes


def empty_is_an_error(rank, world_size):
    users, items, train, test = world()
    with pytest.raises((ValueError, RuntimeError), match="rows without a relevant item"):
        trm.evaluate("HR@5", users, items, target=test, exclude=train, shard="users", empty_target_action="error")
    return True


def test_shard_raises_everywhere(processes):
    """If a user without ground truth is an error, it raises on every process: no process waits for another."""
    assert processes.run(empty_is_an_error, 2) == [True, True]


def sharded(rank, world_size):
    users, items, train, test = world()
    together = trm.evaluate(NAMES, users, items, target=test, exclude=train, k=[5, 10], shard="users")
    alone = trm.evaluate(
        NAMES, users, items, target=test, exclude=train, k=[5, 10], user_ids=[int(test.degree.nonzero()[rank])]
    )
    return numbers(together), together.num_users, together.num_skipped, alone.num_users


@pytest.mark.parametrize("world_size", [2, 3])
def test_shard_by_users(world_size, processes):
    """Each process takes its share and all get the whole result; without `shard` processes do not communicate."""
    users, items, train, test = world()
    for values, num_users, num_skipped, alone in processes.run(sharded, world_size):
        assert values == by_hand(users, items, train, test)
        assert (num_users, num_skipped) == (int((test.degree > 0).sum()), int((test.degree == 0).sum()))
        assert alone == 1


DIFFERENT = {
    "keep_rows": lambda rank: {"keep_rows": rank == 0},
    "all_users": lambda rank: {"all_users": rank == 0},
    "groups": lambda rank: {"groups": trm.Groups(torch.arange(USERS) % 2 * rank, ["a", "b"])},
    "similarity": lambda rank: {"similarity": ["dot", "cosine"][rank]},
    "whether bias is given": lambda rank: {"bias": [None, torch.ones(ITEMS)][rank]},
    "batch_size": lambda rank: {"batch_size": [None, 7][rank]},
}


def unequal(rank, world_size, name):
    users, items, train, test = world()
    given = DIFFERENT[name](rank)
    embeddings = {part: given.pop(part) for part in ("similarity", "bias") if part in given}
    try:
        embeddings = trm.Embeddings(users, items, **embeddings)
        trm.evaluate("HR@5", embeddings, target=test, exclude=train, shard="users", **given)
    except (ValueError, RuntimeError) as error:
        return str(error)


@pytest.mark.parametrize("name", DIFFERENT)
def test_processes_that_differ(name, processes):
    """What decides the work or the value of a process must be the same on all; the error says what differs."""
    for message in processes.run(unequal, 2, name, timeout=60):
        assert f"processes differ in {name}" in message


# ------------------------------------------------------------------------------------------------- ids from 1


def from_1(tmp_path, make):
    """Return train and test interactions whose ids start at 1, without a given size unless `make` says so."""
    if make == "text":
        for name, line in (("train", "0 1 2\n1 3 2"), ("test", "0 3\n1 4")):
            (tmp_path / name).write_text(line)
        return trm.Interactions.from_text(tmp_path / "train", tmp_path / "test")
    if make == "vocabulary":
        ids = {"item_ids": [1, 2, 3, 4], "num_users": 2}
        return trm.Interactions.from_columns([0, 0, 1, 1], [1, 2, 3, 2], **ids), trm.Interactions.from_columns(
            [0, 1], [3, 4], **ids
        )
    test = trm.Interactions.from_columns([0, 1], [3, 4], num_items=5 if make == "sized" else None)
    return trm.Interactions.from_columns([0, 0, 1, 1], [1, 2, 3, 2], num_users=2, num_items=5), test


@pytest.mark.parametrize("make", ["columns", "text"])
def test_ids_from_1_are_noticed(make, tmp_path):
    """A warning is given if no size was given and no id is 0: item 0 would compete with all other items."""
    train, test = from_1(tmp_path, make)
    users, items = torch.ones(2, 1), torch.tensor([[9.0], [1], [2], [5], [4]])
    both = {"target": test, "exclude": train, "k": 1}
    for call in (
        lambda **more: trm.evaluate("HR", users, items, **both, **more),
        lambda **more: trm.evaluate("HR", lambda ids: users[ids] @ items.T, **both, **more),
        lambda **more: trm.evaluate("HR", users, items, **(both | {"exclude": None}), **more),
    ):
        with pytest.warns(
            UserWarning, match=r"start at 1, pass padding_idx=0 to keep item 0 .* vocabulary .* num_items"
        ) as w:
            assert call()["HR@1"] == 0
        assert [warning.filename for warning in w] == [__file__]
        assert call(padding_idx=0)["HR@1"] > 0
    allowed = trm.Embeddings(users, items, allowed=torch.arange(5) > 0)
    assert trm.evaluate("HR", allowed, **both)["HR@1"] > 0
    assert trm.evaluate("HR", users, items, target=test, exclude=(train, torch.arange(5) == 0), k=1)["HR@1"] > 0
    known = trm.Interactions.from_columns([0, 1], [0, 4])
    trm.evaluate("HR", users, items, target=known, exclude=test, k=1, overlap="keep")  # item 0 is an item too
    with pytest.warns(
        UserWarning, match=r"ids start at 1, pass Embeddings\(..., allowed=torch.arange\(5\) > 0\) to keep item 0"
    ) as w:
        assert trm.recommend(users, items, 1, exclude=test)[0].tolist() == [[0], [0]]
    assert [warning.filename for warning in w] == [__file__]
    assert trm.recommend(allowed, k=1, exclude=test)[0].tolist() == [[4], [3]]


@pytest.mark.parametrize("make", ["sized", "vocabulary"])
def test_sizes_that_were_given_are_believed(make, tmp_path):
    train, test = from_1(tmp_path, make)
    trm.evaluate("HR", torch.ones(2, 1), torch.ones(test.num_items, 1), target=test, exclude=train, k=1)
    trm.recommend(torch.ones(2, 1), torch.ones(test.num_items, 1), 1, exclude=test)


def test_padding_is_no_overlap():
    """The padding id is neither relevant nor excluded, in `evaluate` as in `update`."""
    users, items = torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0], [1], [2], [5]])
    train = trm.Interactions.from_edge_index(torch.tensor([[0, 0, 1], [0, 3, 0]]), 2, 4)
    test = trm.Interactions.from_edge_index(torch.tensor([[0, 0, 1], [0, 2, 0]]), 2, 4)
    got = trm.evaluate(["HR"], users, items, target=test, exclude=train, k=1, padding_idx=0)
    batch = trm.RecMetricCollection(["HR"], k=1, padding_idx=0)
    batch.update(users @ items.T, test.select([0, 1]), exclude=train.select([0, 1]))
    assert got["HR@1"] == batch.compute()["HR@1"] == 1
    assert (got.num_users, got.num_skipped) == (batch["HR@1"].num_users, batch["HR@1"].num_skipped) == (1, 1)
    other = trm.Interactions.from_edge_index(torch.tensor([[0, 1], [0, 1]]), 2, 4)
    with pytest.raises(ValueError, match=r"1 \(user, item\) pair of target is .* such as \[\[1, 1\]\]"):
        trm.evaluate(["HR"], users, items, target=other, exclude=other, k=1, padding_idx=0)


# ------------------------------------------------------------------------------------------------- bad input

U, V, TRAIN, TEST = world()
BOTH = {"target": TEST, "exclude": TRAIN, "k": 5}
BAD = [
    (
        lambda: trm.evaluate("HR", U.numpy(), V, **BOTH),
        TypeError,
        r"got ndarray: torch.as_tensor",
    ),
    (lambda: trm.evaluate("HR", torch.nn.Embedding(3, 2), V, **BOTH), TypeError, "got Embedding: pass its .weight"),
    (lambda: trm.evaluate("HR", U, V, user_ids=[1, 1], **BOTH), ValueError, "user_ids hold a user twice"),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST, exclude=TEST.popularity > 0, k=5),
        ValueError,
        r"also in exclude, such as .*\. target\.without\(part\), for each part of exclude, takes them out",
    ),
    (lambda: trm.evaluate("HR", U, V, user_ids=["a"], **BOTH), TypeError, "row numbers .*, not strings"),
    (
        lambda: trm.Embeddings(U, V, allowed=[True]),
        TypeError,
        "allowed must be a tensor, got list",
    ),
    (lambda: trm.evaluate("HR", U, V, target=(TRAIN, TEST), k=5), TypeError, "target must be Interactions, got tuple"),
    (
        lambda: trm.recommend(lambda ids: U, 5, num_users=3, num_items=4),
        ValueError,
        "k and others go by name",
    ),
    (lambda: trm.evaluate("HR", U, V[:, :4], **BOTH), ValueError, "embedding widths differ: users 8, items 4"),
    (lambda: trm.evaluate("HR", U[:3], V, **BOTH), ValueError, "3 users have embeddings, but target has 40 users$"),
    (lambda: trm.evaluate("HR", U, V[:3], **BOTH), ValueError, "3 items have embeddings, but target has 60 items$"),
    (
        lambda: trm.evaluate("HR", U, V[[0, *range(60)]], **BOTH),
        ValueError,
        r"61 items have .*, but target has 60 items; a Log .*, unless item_ids= lists all: .*item_ids=range\(61\)",
    ),
    (lambda: trm.evaluate("HR", U, **BOTH), ValueError, "user embeddings need item embeddings"),
    (lambda: trm.evaluate("HR", U.long(), V, **BOTH), ValueError, "users must be float"),
    (
        lambda: trm.evaluate("HR", 3, **BOTH),
        TypeError,
        r"a tensor \[U, d\], Embeddings or a function of user ids, got int",
    ),
    (lambda: trm.evaluate("HR", lambda ids: U[ids], **BOTH), ValueError, r"must return float \[\d+, 60\], got .*, 8\]"),
    (lambda: trm.evaluate("HR", lambda ids: None, **BOTH), ValueError, "got NoneType"),
    (lambda: trm.evaluate("HR", U.to("meta"), V, **BOTH), ValueError, "items is on cpu, the scores are made on meta"),
    (
        lambda: trm.evaluate("HR", U, V, target=[[1], [2, 3]], k=5),
        TypeError,
        r"target must be Interactions, got list: Interactions.from_columns\(users, items\), .*, or from_jagged",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST.select([0]).items, k=5),
        TypeError,
        "target must be Interactions, got a torch.int64 tensor",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST.select([0]), k=5),
        TypeError,
        "target must be Interactions, got SelectedItems: pass the Interactions whole, without select",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST, exclude=TRAIN.select([0]), k=5),
        TypeError,
        "exclude must be Interactions, .*, got SelectedItems: pass the Interactions whole, without select",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST.to_scipy(), k=5),
        TypeError,
        r"target must be Interactions, got csr_array: Interactions.from_scipy\(target\)",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST, exclude=TRAIN.to_scipy(), k=5),
        TypeError,
        r"exclude must be Interactions, .*, got csr_array: pass Interactions.from_scipy\(exclude\)",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=torch.ones(40, 60) > 0, k=5),
        TypeError,
        r"target must be Interactions, got a torch.bool .*: Interactions.from_dense\(target\)",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST, exclude=torch.ones(40, 60) > 0, k=5),
        TypeError,
        r"exclude must be .*, got torch.bool \[40, 60\]: pass Interactions.from_dense\(exclude\)",
    ),
    (
        lambda: trm.evaluate("HR", U, V, weights=torch.ones(40), **BOTH),
        ValueError,
        r"evaluate has no option 'weights': rows are weighed in update\(..., weights=\) of a metric or a RecMetric",
    ),
    (lambda: trm.evaluate("HR", U.to_sparse(), V, **BOTH), TypeError, r"users is sparse .*: pass users.to_dense\(\)"),
    (lambda: trm.evaluate("HR", lambda ids: U[ids].numpy(), **BOTH), ValueError, r"got ndarray: torch.as_tensor"),
    (lambda: trm.evaluate("HR", U, V, target=TEST.without(TEST), k=5), ValueError, "target holds no interactions"),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST, exclude=TEST, k=5),
        ValueError,
        r"\d+ \(user, item\) pairs of target .*without\(exclude\).*'keep'.*'miss'",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST, exclude=(TRAIN, TEST), k=5),
        ValueError,
        r"target.without\(part\), for each part of exclude, takes them out",
    ),
    (
        lambda: trm.evaluate("HR", U, V, target=TEST, exclude=torch.eye(3) > 0, k=5),
        TypeError,
        r"exclude must be Interactions, bool \[60\]",
    ),
    *(
        (lambda user_ids=user_ids, door=door: door(user_ids), error, message)
        for door in (
            lambda user_ids: trm.evaluate("HR", U, V, user_ids=user_ids, **BOTH),
            lambda user_ids: trm.recommend(lambda ids: U[ids], k=2, num_items=8, user_ids=user_ids),
        )
        for user_ids, error, message in (
            (3, ValueError, r"row numbers \[n\], such as \[3\] for user 3, got 3"),
            ([[3]], ValueError, r"row numbers \[n\], such as \[3\] for user 3, got \[\[3\]\]"),
            ({1, 2}, TypeError, r"row numbers \[n\] .*, not strings or sets, got set \{1, 2\}"),
            ([0, None], TypeError, r"row numbers \[n\] .*, got list \[0, None\]"),
            ("abc", TypeError, r"row numbers \[n\] .*, got str 'abc'"),
            ([1j], ValueError, r"user_ids must be whole numbers \[n\], got torch.complex64 \[1\]"),
            ([-1], ValueError, "user_ids hold -1..-1, expected 0.."),
        )
    ),
    *(
        (lambda more=more, door=door: door(**more), error, message)
        for door in (
            lambda **more: trm.evaluate("HR", U, V, **BOTH, **more),
            lambda **more: trm.recommend(U, V, 2, **more),
        )
        for more, error, message in (
            ({"batch_size": "8"}, TypeError, r"batch_size must be an integer >= 1, got '8' \(str\)"),
            ({"progress": "yes"}, TypeError, r"progress must be True, False or a function of .*, got 'yes' \(str\)"),
            ({"progress": 1}, TypeError, r"got 1 \(int\)"),
            ({"device": "gpu"}, ValueError, r"device must be .* the name of one, such as 'cuda:0', got 'gpu' \(str\)"),
            ({"device": 3.5}, ValueError, r"got 3.5 \(float\)"),
        )
    ),
    *(
        (
            lambda more=more: trm.recommend(lambda ids: U[ids], k=2, **({"num_users": 4, "num_items": 8} | more)),
            error,
            message,
        )
        for more, error, message in (
            ({"num_items": 0}, ValueError, "num_items must be at least 1, got 0"),
            ({"num_items": "8"}, TypeError, r"num_items must be an integer >= 1, got '8' \(str\)"),
            ({"num_users": -1}, ValueError, "num_users must be at least 0, got -1"),
        )
    ),
    (lambda: trm.recommend(U, V[:0], 2), ValueError, "num_items must be at least 1, got 0"),
    (lambda: trm.recommend(U, V, 2, num_items=9), ValueError, "num_items=9 was given beside 60 embeddings"),
    (
        lambda: trm.recommend(U.where(torch.arange(40)[:, None] != 7, math.nan), V, 2),
        ValueError,
        "1 of 40 rows with a score that is NaN or .inf: user 7",
    ),
    (
        lambda: trm.recommend(lambda ids: U[ids] + math.inf, k=2, num_items=8, user_ids=[5]),
        ValueError,
        "1 of 1 row with a score that is NaN or .inf: user 5",
    ),
    (lambda: trm.evaluate("HR", U, V, user_ids=[99], **BOTH), ValueError, r"user_ids hold 99..99, expected 0..39"),
    (lambda: trm.evaluate("HR", U, V, user_ids=[0.5], **BOTH), ValueError, "user_ids must be whole numbers"),
    (lambda: trm.Embeddings(U, V, bias=U[0]), ValueError, r"bias must be float \[60\]"),
    (lambda: trm.Embeddings(U, V, allowed=V[:, 0]), ValueError, r"allowed must be bool \[60\]"),
    (
        lambda: trm.Embeddings(U, V, similarity="l2"),
        ValueError,
        "similarity must be one of 'dot', 'cosine', got 'l2'",
    ),
    (lambda: trm.Embeddings(), TypeError, "Embeddings take users and items, or bias alone"),
    (lambda: trm.Embeddings(U, bias=V[:, 0]), TypeError, r"items must be a tensor \[n, d\], got None"),
    (
        lambda: trm.evaluate("HR", U, V, similarity="cosine", **BOTH),
        ValueError,
        r"evaluate has no option 'similarity': pass trm.Embeddings\(users, items, similarity=",
    ),
    (lambda: trm.evaluate("HR", trm.Embeddings(U, V), V, **BOTH), ValueError, "Embeddings hold the items"),
    (
        lambda: trm.evaluate("HR", U, V, shard="rows", **BOTH),
        ValueError,
        "shard must be one of None, 'users', 'items', 'both', got 'rows'",
    ),
    (lambda: trm.evaluate("HR", U, V, batch_size=0, **BOTH), ValueError, "batch_size must be at least 1"),
    (lambda: trm.evaluate(trm.RecMetricCollection("HR@5"), U, V, **BOTH), ValueError, "k given beside a collection"),
    (lambda: trm.recommend(U, V, 0), ValueError, "k must be at least 1"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


# ------------------------------------------------------------------------------------------------- a real data set

GOWALLA = Path(__file__).parents[3] / "shared" / "data" / "gowalla"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not GOWALLA.exists(), reason="the Gowalla data set is not here")
def test_memory_on_gowalla():
    """Evaluating 600 users of 29,858 x 40,981 at d = 64 takes at most 512 MB beside embeddings and edges."""
    program = f"""
import resource, torch, torchrecmetrics as trm
train, test = trm.Interactions.from_text("{GOWALLA}/train.txt", "{GOWALLA}/test.txt")
users, items = torch.randn(train.num_users, 64), torch.randn(train.num_items, 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids = torch.cat([torch.arange(0, 29858, 60), test.degree.topk(50).indices, train.degree.topk(50).indices]).unique()
trm.evaluate(["HR", "NDCG", "MAP", "AUROC"], users, items, target=test, exclude=train, k=[5, 10, 20], user_ids=ids)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200)
    assert int(done.stdout) < 512


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not GOWALLA.exists(), reason="the Gowalla data set is not here")
def test_gowalla_equals_pyg():
    """For 500 users of Gowalla with fixed embeddings, means are those of PyG."""
    link = pytest.importorskip("torch_geometric.metrics")
    cutoffs = (5, 10, 20, 50)
    train, test = Interactions.from_text(GOWALLA / "train.txt", GOWALLA / "test.txt")
    generator = torch.Generator().manual_seed(0)
    users, items = (
        torch.randn(n, 64, generator=generator, dtype=torch.float64) for n in (train.num_users, train.num_items)
    )
    picked = torch.randperm(train.num_users, generator=generator)[:500]
    scores, seen = users[picked] @ items.T, train.select(picked).items
    for row in range(500):
        scores[row, seen[row][seen[row] >= 0]] = -math.inf
    peers = {"HR": "HitRatio", "Precision": "Precision", "Recall": "Recall", "F1": "F1", "NDCG": "NDCG", "MRR": "MRR"}
    theirs = link.LinkPredMetricCollection(
        {f"{name}@{k}": getattr(link, f"LinkPred{peer}")(k) for name, peer in peers.items() for k in cutoffs}
    )
    relevant = Interactions.from_padded(test.select(picked).items, len(items))
    theirs.update(scores.topk(50).indices, relevant.to_edge_index())
    options = {"target": test, "exclude": train, "k": cutoffs, "user_ids": picked, "overlap": "miss"}
    found = numbers(trm.evaluate(list(peers), users, items, **options))
    assert found == pytest.approx(numbers(theirs.compute()), abs=1e-6)


def refuses_nobody(ranking, k):
    if not ranking.num_relevant.any():
        raise ValueError("nobody has a relevant item")
    return ranking.num_hits(k)


class RefusesNobody(trm.RankingMetric):
    formula = staticmethod(refuses_nobody)


def only_the_first_fails(rank, world_size):
    """Run an evaluation that fails before scoring on the first process alone, and then one that works.

    Only the first process counts the users without ground truth, which it does before any user is scored.
    """
    test = trm.Interactions.from_edge_index(torch.tensor([[0, 1], [1, 2]]), num_users=3, num_items=4)
    with pytest.raises((ValueError, RuntimeError), match="nobody has a relevant item"):
        trm.evaluate([RefusesNobody(2)], torch.eye(3, 4), torch.eye(4), target=test, shard="users")
    found = trm.evaluate("HR@2", torch.eye(3, 4), torch.eye(4), target=test, shard="users", dist_sync_on_step=True)
    return found.num_users, found.num_skipped


def test_what_fails_before_scoring_raises_on_all(processes):
    """An error of one process before scoring raises on all processes, and the next evaluation works."""
    assert processes.run(only_the_first_fails, 2, timeout=60) == [(2, 1)] * 2
