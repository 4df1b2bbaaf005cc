"""`KeptRows`: collections keep the values of every row once, by id, over batches and processes."""

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import functional

LABELS = ["HR@2", "NDCG@2", "AUROC"]


def batch(seed, rows=5, items=12):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, items, generator=generator)
    target = torch.rand(rows, items, generator=generator).argsort(1)[:, :2]
    target[0] = -1  # a row without a relevant item
    return scores, target


def collection(**options):
    return trm.RecMetricCollection(["HR@2", "NDCG@2", "AUROC"], accumulators=[trm.KeptRows()], **options)


def kept(metrics):
    """Return the accumulator of kept rows."""
    return metrics.accumulators[0]


def same(rows, other):
    assert list(rows.values) == list(other.values)
    for label in rows.values:
        torch.testing.assert_close(rows.values[label], other.values[label], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(rows.ids, other.ids)


def test_rows_are_the_formulas(device):
    """Kept rows hold each formula's value by id, NaN without a relevant item, and their mean is the metric."""
    metrics, scores, targets = collection().to(device), [], []
    for seed in range(3):
        score, target = batch(seed)
        metrics.update(score.to(device), target.to(device), row_ids=torch.arange(5, device=device) + 10 * seed)
        scores.append(score), targets.append(target)
    values = metrics.compute()
    rows = metrics.rows
    assert rows.ids.tolist() == [10 * seed + row for seed in range(3) for row in range(5)]
    ranking = trm.Scores(torch.cat(scores), torch.cat(targets)).ranking()
    expected = {
        "HR@2": functional.hit_rate(ranking, 2),
        "NDCG@2": functional.ndcg(ranking, 2),
        "AUROC": functional.auroc(ranking),
    }
    assert list(rows.values) == LABELS
    rounding = 0 if device.type == "cpu" else 1e-15  # of logarithms
    for label, value in expected.items():
        torch.testing.assert_close(rows.values[label], value, rtol=0, atol=rounding, equal_nan=True)
        assert rows.mean()[label] == pytest.approx(values[label].item(), abs=1e-15)
    assert rows.weights is None
    assert rows.clusters is None
    assert rows.options["ties"] == "expected"


def test_numbered_as_they_come():
    """Rows without ids are numbered in the order of the updates."""
    metrics = collection()
    metrics.update(*batch(0))
    metrics.update(*batch(1))
    metrics.compute()
    assert metrics.rows.ids.tolist() == list(range(10))


def test_weights_and_clusters():
    """Weights and clusters are kept, a row of weight 0 is left out, and a weighted metric has weights of its own."""
    metrics = trm.RecMetricCollection([trm.HR(2), trm.AUROC(weight="relevant")], accumulators=[trm.KeptRows()])
    scores, target = batch(0)
    target[1, 1] = -1
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5, 1.0])
    metrics.update(scores, target, weights=weights, row_ids=torch.arange(5), clusters=torch.tensor([7, 7, 8, 8, 9]))
    values = metrics.compute()
    rows = metrics.rows
    assert rows.ids.tolist() == [0, 1, 3, 4]
    assert rows.weights.tolist() == [1, 2, 0.5, 1]
    assert rows.clusters.tolist() == [7, 7, 8, 9]
    assert rows.own_weights["AUROC-relevant"].tolist() == [0, 2 * 1, 0.5 * 2, 1 * 2]
    assert rows.mean() == {label: pytest.approx(value.item()) for label, value in values.items()}


def test_empty_rows_and_bad_rows():
    """With "neg" a row without a relevant item counts as 0; a deferred error raises in `compute` and for `rows`."""
    metrics = collection(empty_target_action="neg")
    metrics.update(*batch(0))
    metrics.compute()
    assert metrics.rows.values["HR@2"][0] == 0
    metrics = collection(validate_args="deferred")
    metrics.update(torch.rand(2, 3), torch.tensor([1, 7]))
    with pytest.raises(ValueError, match="beyond the last item"):
        metrics.compute()
    with pytest.raises(ValueError, match="HR@2: bad input since the last reset: 1 row with a target id beyond"):
        metrics.rows  # noqa: B018


def test_forward_keeps_a_row_once():
    metrics, other = collection(), collection()
    for seed in range(2):
        metrics(*batch(seed))
        other.update(*batch(seed))
    metrics.compute(), other.compute()
    same(metrics.rows, other.rows)


def test_reset_forgets_and_the_last_rows_stay():
    metrics = collection()
    metrics.update(*batch(0))
    metrics.compute()
    before = metrics.rows
    metrics.reset()
    assert metrics.rows is before
    metrics.update(*batch(1, rows=3))
    assert len(metrics.rows) == 3
    metrics.update(*batch(2, rows=4))
    assert len(metrics.rows) == 7


def test_rows_need_no_compute():
    """Rows are gathered when they are asked for, and once until the next update, merge or load."""
    metrics, other = collection(), collection()
    metrics.update(*batch(0), row_ids=torch.arange(5))
    other.update(*batch(1), row_ids=torch.arange(5) + 5)
    first = metrics.rows
    metrics.compute()
    assert metrics.rows is first
    metrics.merge_state(other)
    assert len(metrics.rows) == 10


def test_merge_appends():
    """`merge_state` appends the rows of the other collection; one that keeps no rows is refused and changes nothing."""
    one, two, whole = collection(), collection(), collection()
    for seed, metrics in enumerate((one, two)):
        ids = torch.arange(5) + 5 * seed
        metrics.update(*batch(seed), row_ids=ids)
        whole.update(*batch(seed), row_ids=ids)
    one.merge_state(two)
    one.compute(), whole.compute()
    same(one.rows, whole.rows)
    plain = trm.RecMetricCollection(LABELS)
    plain.update(*batch(2))
    values = one.compute()
    with pytest.raises(ValueError, match=r"one of the two has KeptRows\(\), the other no accumulators"):
        one.merge_state(plain)
    unnamed = collection()
    unnamed.update(*batch(2))
    with pytest.raises(ValueError, match="rows are kept with ids in all batches, or in none"):
        one.merge_state(unnamed)
    assert one["HR@2"].num_users == 8
    assert one.compute() == values
    same(one.rows, whole.rows)


def test_a_value_that_is_asked_first():
    """Computing one value first, as `log_dict` does, leaves the rows of all metrics."""
    metrics = collection()
    metrics.update(*batch(0))
    metrics["NDCG@2"].compute()
    assert len(metrics.rows) == 5


def test_beyond_the_budget_rows_go_to_the_host(monkeypatch):
    """Kept rows on a device move to the CPU whenever they exceed the budget, and all rows stay."""
    moved = []
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.KeptRows(budget=100)], validate_args=False)
    metrics.to("meta")
    monkeypatch.setattr(torch.Tensor, "cpu", lambda column: moved.append(column) or column)
    for _ in range(4):  # values, weights and flags of 4 rows take 4 * (8 + 8 + 1) = 68 bytes
        metrics.update(torch.zeros(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta"))
    assert len(moved) == 3 * (2 + 4)
    assert len(kept(metrics)) == 16


def test_memory_that_is_used_again():
    """Ids, clusters and weights are copied, so that all batches may share one buffer."""
    metrics = collection()
    ids, weights = torch.arange(5), torch.ones(5, dtype=torch.float64)
    for seed in range(2):
        metrics.update(*batch(seed), row_ids=ids, clusters=ids, weights=weights)
        ids += 5
        weights += 1
    metrics.compute()
    assert metrics.rows.ids.tolist() == metrics.rows.clusters.tolist() == list(range(10))
    assert metrics.rows.weights.tolist() == [1] * 5 + [2] * 5


IDS = torch.arange(5)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"row_ids": IDS[:3]}, ValueError, r"row_ids must be \[5\]"),
        ({"row_ids": IDS.float()}, TypeError, "row_ids must be an integer tensor"),
        ({"row_ids": ["a"] * 5}, TypeError, "number words with a Vocabulary"),
        ({"row_ids": IDS, "clusters": IDS[None]}, ValueError, r"clusters must be \[5\]"),
        ({}, ValueError, "kept with ids in all batches, or in none"),
        ({"row_ids": IDS, "clusters": IDS}, ValueError, "kept with clusters in all batches, or in none"),
    ],
)
@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_refused_batch_changes_nothing(keywords, error, message, call):
    metrics = collection()
    metrics.update(*batch(0), row_ids=IDS)
    with pytest.raises(error, match=message):
        getattr(metrics, call)(*batch(1), **keywords)
    metrics.compute()
    assert len(metrics.rows) == 5
    assert metrics.evaluator._update_count == 1


@pytest.mark.parametrize("call", ["update", "forward"])
def test_ids_that_stand_twice_in_a_batch(call):
    """A batch with an id in two rows is refused on the CPU, unless a row has no weight or checks are deferred."""
    twice = torch.tensor([1, 2, 3, 4, 1])
    metrics, deferred = collection(), collection(validate_args="deferred")
    with pytest.raises(ValueError, match=r"id 1 stands in 2 rows of a batch.*clusters="):
        getattr(metrics, call)(*batch(0), row_ids=twice)
    assert not metrics["HR@2"].update_called
    getattr(metrics, call)(*batch(0), row_ids=twice, weights=torch.tensor([1.0, 1, 1, 1, 0]))
    metrics.compute()
    assert metrics.rows.ids.tolist() == [1, 2, 3, 4]
    getattr(deferred, call)(*batch(0), row_ids=twice)
    deferred.compute()
    with pytest.raises(ValueError, match=r"id 1 stands in 2 rows.*clusters="):
        deferred.rows  # noqa: B018


def test_ids_that_stand_twice_in_several_batches():
    """If an id occurs in two batches, the values stand, and `rows` raises until the next `compute`."""
    metrics, plain = collection(), trm.RecMetricCollection(LABELS)
    for _ in range(2):
        metrics.update(*batch(0), row_ids=IDS)
        plain.update(*batch(0))
    assert metrics.compute() == plain.compute()
    with pytest.raises(ValueError, match=r"id \d+ stands in 2 rows.*clusters="):
        metrics.rows  # noqa: B018
    metrics.reset()
    metrics.update(*batch(0), row_ids=IDS)
    metrics.compute()
    assert len(metrics.rows) == 5


def test_what_keeps_no_rows():
    """Without `KeptRows`, ids of rows and `rows` are refused by its name."""
    metrics = trm.RecMetricCollection("HR@2")
    with pytest.raises(TypeError, match=r"ids of rows are read by KeptRows: .*accumulators=\[trm.KeptRows\(\)\]"):
        metrics.update(*batch(0), row_ids=IDS)
    metrics.update(*batch(0))
    metrics.compute()
    with pytest.raises(ValueError, match=r"no rows were kept: .*accumulators=\[trm.KeptRows\(\)\]"):
        metrics.rows  # noqa: B018


def test_weightless_rows_have_numbers_too():
    """A row of weight 0 takes a number too, so that rows of two runs with other weights pair correctly."""
    metrics = trm.RecMetricCollection("HR@1", accumulators=[trm.KeptRows()])
    metrics.update(torch.tensor([1, 2, 1, 2]), weights=torch.tensor([1.0, 0, 1, 1]))
    metrics.compute()
    assert metrics.rows.ids.tolist() == [0, 2, 3]


def test_keys_that_hide_what_they_are_of():
    """Kept rows under a key that is no label carry the label, so that `compare` refuses rows of two metrics."""
    runs = {}
    for k in (1, 3):
        metrics = trm.RecMetricCollection({"ndcg": trm.NDCG(k)}, accumulators=[trm.KeptRows()])
        metrics.update(*batch(0))
        metrics.compute()
        runs[str(k)] = metrics.rows
    with pytest.raises(ValueError, match=r"same options: metric of ndcg is 'NDCG@1' in '1' and 'NDCG@3' in '3'"):
        trm.compare(runs)


# ------------------------------------------------------------------------------------------------- several processes


def share(rank, world_size, named):
    """Return a collection with the batches of this process: shares are uneven, and the last process has none."""
    metrics = collection()
    for seed in range(4):
        if seed % world_size == rank and (world_size == 1 or rank < world_size - 1):
            ids = torch.arange(5) + 5 * seed if named else None
            metrics.update(*batch(seed), row_ids=ids, weights=torch.arange(1.0, 6) if seed else None)
    return metrics


def gathered(rank, world_size, named):
    metrics = share(rank, world_size, named)
    if named == "by hand":
        metrics.evaluator.sync()
    values = metrics.compute()
    try:
        rows = metrics.rows
    except ValueError as error:
        return str(error)
    order = rows.ids.argsort()
    return {name: value.item() for name, value in values.items()}, {
        "ids": rows.ids[order].tolist(),
        "NDCG@2": rows.values["NDCG@2"][order].nan_to_num(-1).tolist(),
        "weights": rows.weights[order].tolist(),
    }


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes(world_size, processes):
    """Every process has the rows of all processes, also where shares are uneven and one process has no rows."""
    found = processes.run(gathered, world_size, True)
    assert all(each == found[0] for each in found)
    expected = collection()
    for seed in range(4):
        if world_size == 1 or seed % world_size < world_size - 1:
            ids, weights = torch.arange(5) + 5 * seed, torch.arange(1.0, 6) if seed else None
            expected.update(*batch(seed), row_ids=ids, weights=weights)
    expected.compute()
    rows = expected.rows
    assert found[0][1]["ids"] == rows.ids.tolist()
    assert found[0][1]["NDCG@2"] == rows.values["NDCG@2"].nan_to_num(-1).tolist()
    assert found[0][1]["weights"] == rows.weights.tolist()


def test_synchronised_by_hand(processes):
    """After `sync()` is called by hand, the rows are those of all processes, as the values are."""
    assert processes.run(gathered, 2, "by hand")[1][1] == processes.run(gathered, 2, True)[0][1]


def test_processes_need_ids(processes):
    """Rows of several processes need `row_ids`: without them `rows` raises on every process."""
    assert ["told apart by row_ids" in each for each in processes.run(gathered, 2, False)] == [True, True]


# ---------------------------------------------------------------------------------------- callers that pass `keep_rows`


def world():
    generator = torch.Generator().manual_seed(0)
    users, items = torch.rand(6, 4, generator=generator), torch.rand(9, 4, generator=generator)
    names = [f"u{user}" for user in range(6)]
    target = trm.Interactions.from_frame({"user": names, "item": [0, 3, 4, 8, 2, 1]}, item_ids=range(9))
    return users, items, names, target


def test_evaluate():
    """`evaluate` keeps rows by user id, or by row number without a vocabulary; users without targets have rows too."""
    users, items, names, target = world()
    found = trm.evaluate(["HR", "NDCG"], users, items, target=target, k=3, keep_rows=True)
    rows = found.rows
    assert sorted(rows.ids) == names
    assert rows.mean() == {label: pytest.approx(value.item()) for label, value in found.items()}
    plain = trm.Interactions.from_columns(range(6), [0, 3, 4, 8, 2, 1], num_users=8, num_items=9)
    found = trm.evaluate(["HR", "NDCG"], torch.cat([users, users[:2]]), items, target=plain, k=3, keep_rows=True)
    assert sorted(found.rows.ids.tolist()) == list(range(8))  # those without ground truth, too
    assert int(found.rows.values["HR@3"].isnan().sum()) == 2
    with pytest.raises(ValueError, match="keep_rows=True"):
        trm.evaluate("HR@3", users, items, target=target).rows  # noqa: B018


def sharded(rank, world_size):
    users, items, _, target = world()
    found = trm.evaluate("NDCG@3", users, items, target=target, keep_rows=True, shard="users")
    return dict(zip(found.rows.ids, found.rows.values["NDCG@3"].tolist(), strict=True))


def test_evaluate_over_processes(processes):
    """With users sharded, every process has the rows of all processes, under the users' ids."""
    users, items, _, target = world()
    rows = trm.evaluate("NDCG@3", users, items, target=target, keep_rows=True).rows
    expected = dict(zip(rows.ids, rows.values["NDCG@3"].tolist(), strict=True))
    assert processes.run(sharded, 2) == [expected, expected]


def test_evaluate_lists():
    users, items, names, target = world()
    lists = dict(zip(names, trm.recommend(users, items, 3).ids.tolist(), strict=True))
    found = trm.evaluate_lists(["HR", "NDCG"], lists, target=target, k=3, keep_rows=True)
    other = trm.evaluate(["HR", "NDCG"], users, items, target=target, k=3, keep_rows=True)
    assert dict(zip(found.rows.ids, found.rows.values["NDCG@3"].tolist(), strict=True)) == dict(
        zip(other.rows.ids, other.rows.values["NDCG@3"].tolist(), strict=True)
    )


def test_pyg():
    pyg, nn = pytest.importorskip("torchrecmetrics.pyg"), pytest.importorskip("torch_geometric.nn")
    edges = torch.tensor([[0, 1, 2], [3, 4, 5]])
    test = trm.Interactions.from_columns([0, 1, 2], [1, 2, 0], num_users=3, num_items=3)
    found = pyg.evaluate("Recall@2", nn.LightGCN(6, 4, 1), edges, target=test, keep_rows=True)
    assert sorted(found.rows.ids.tolist()) == [0, 1, 2]


def run(pl, step, **options):
    """Validate a module whose step returns `step(batch)`, and return the rows that the callback kept."""
    from torchrecmetrics.lightning import RecMetricsCallback

    class Module(pl.LightningModule):
        def validation_step(self, batch, batch_idx):
            return step(batch)

    data = [
        {"scores": s, "target": t, "index": i, "user": i // 2}
        for i, (s, t) in enumerate(zip(*batch(3, 7), strict=True))
    ]
    callback = RecMetricsCallback(LABELS, accumulators=[trm.KeptRows()], **options)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    loader = torch.utils.data.DataLoader(data, batch_size=3)
    pl.Trainer(callbacks=[callback], **quiet).validate(Module(), loader, verbose=False)
    return callback.collections["val"].rows


@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers", "ignore:.*num_workers")
def test_callback():
    """A row's id is the sample's or else the user's; with both, users are clusters; with neither, rows are numbered."""
    pl = pytest.importorskip("pytorch_lightning")

    def step(batch, *names):
        return {"scores": batch["scores"], "target": batch["target"]} | {
            name: batch[kept] for name, kept in zip(("user_ids", "index"), names, strict=False) if kept
        }

    plain = run(pl, lambda batch: step(batch))
    assert plain.ids.tolist() == list(range(7))
    users = run(pl, lambda batch: step(batch, "index"))
    assert users.ids.tolist() == list(range(7))
    both = run(pl, lambda batch: step(batch, "user", "index"), sample_ids="index")
    assert both.ids.tolist() == list(range(7))
    assert both.clusters.tolist() == [0, 0, 1, 1, 2, 2, 3]
    with pytest.raises(ValueError, match="stands in 2 rows"):
        run(pl, lambda batch: step(batch, "user"))
    for rows in (users, both):
        same(plain, rows)


@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers", "ignore:.*num_workers")
def test_catalogue_callback():
    pl = pytest.importorskip("pytorch_lightning")
    from torchrecmetrics.lightning import CatalogueEvaluationCallback

    users, items, names, target = world()

    class Module(pl.LightningModule):
        def validation_step(self, batch, batch_idx):
            pass

    callback = CatalogueEvaluationCallback(
        "NDCG@3", embed=lambda _: (users, items), target=target, accumulators=[trm.KeptRows()]
    )
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    pl.Trainer(callbacks=[callback], **quiet).validate(Module(), torch.utils.data.DataLoader([0]), verbose=False)
    assert sorted(callback.results["val"].rows.ids) == names
