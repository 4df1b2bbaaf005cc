"""Every input goes with every accumulator, in any batches, and collections with all of them live as others do."""

import copy
import functools
import pickle

import pytest
import torch
import torchmetrics
from sizes import NIGHTLY
from states import same, snapshot, tensors
from torch import nn
from torchmetrics import MetricCollection, MetricTracker
from values import numbers
from waiting import away, never_waits

import torchrecmetrics as trm
from torchrecmetrics.inputs.batch_input import BatchInput
from torchrecmetrics.inputs.lists import LabelledLists

ROWS, ITEMS = 24, 9
NAMES, K = ["HR", "NDCG", "MRR"], [1, 3]

GENERATOR = torch.Generator().manual_seed(1)
SCORES = (4 * torch.rand(ROWS, ITEMS, generator=GENERATOR)).round() / 4  # with ties
TARGET = torch.rand(ROWS, ITEMS, generator=GENERATOR).argsort(1)[:, :2]
TARGET[5::9] = -1
ONE = torch.randint(ITEMS, (ROWS,), generator=GENERATOR)
EXCLUDE = torch.randint(-1, ITEMS, (ROWS, 3), generator=GENERATOR)
RELEVANT = torch.zeros(ROWS, ITEMS + 1).scatter(1, TARGET.where(TARGET >= 0, ITEMS), 1.0)[:, :ITEMS] > 0
ORDER = torch.randperm(ITEMS, generator=GENERATOR)
CODES = trm.SemanticIds(
    torch.tensor([[i // 3, i % 3] for i in range(ITEMS)]).where(torch.arange(ITEMS)[:, None] > 1, 0)
)
WEIGHTS = torch.randint(0, 3, (ROWS,), generator=GENERATOR)
GROUPS = torch.randint(-1, 2, (ROWS,), generator=GENERATOR)
IDS = torch.randperm(ROWS, generator=GENERATOR) + 100


def in_order(rows):
    return SCORES[rows].sort(dim=1, descending=True, stable=True).indices


def ranks(rows):
    ranking = trm.Scores(SCORES[rows], TARGET[rows]).ranking()
    return trm.Ranks(
        ranking.ranks.where(ranking.ranks.isfinite(), 0), num_ranked=ranking.num_ranked.long(), complete=True
    )


def hits(rows):
    flags = RELEVANT[rows].gather(1, in_order(rows))
    return trm.Hits(flags, num_relevant=flags.sum(1), complete=True)


def sessions(rows):
    entries = SCORES[rows].flatten(), RELEVANT[rows].flatten()
    return trm.Sessions(*entries, rows[:, None].expand(-1, ITEMS).flatten())


def sessions_of_lengths(rows):
    """Return sessions, of which those without a relevant item have no entry."""
    lengths = ITEMS * RELEVANT[rows].any(1).long()
    kept = rows[lengths > 0]
    return trm.Sessions(SCORES[kept].flatten(), RELEVANT[kept].flatten(), lengths=lengths)


def negatives(rows):
    positive = SCORES[rows].gather(1, ONE[rows][:, None])
    negative = SCORES[rows].scatter(1, ONE[rows][:, None], -torch.inf)
    return trm.Negatives(positive, negative)


INPUTS = {
    "scores": lambda rows: trm.Scores(SCORES[rows], TARGET[rows]),
    "scores, exclude": lambda rows: trm.Scores(SCORES[rows], ONE[rows], exclude=EXCLUDE[rows], history=EXCLUDE[rows]),
    "graded": lambda rows: trm.Scores(SCORES[rows], TARGET[rows], gains=1 + TARGET[rows].clamp(min=0)),
    "dense": lambda rows: trm.Scores(SCORES[rows], RELEVANT[rows]),
    "ranking": lambda rows: trm.Scores(SCORES[rows], TARGET[rows]).ranking(overlap="miss"),
    "ranks": ranks,
    "hits": hits,
    "lists": lambda rows: trm.Lists(in_order(rows), TARGET[rows], complete=True),
    "lists, exclude": lambda rows: trm.Lists(in_order(rows), ONE[rows], exclude=EXCLUDE[rows], complete=True),
    "sessions": sessions,
    "sessions of lengths": sessions_of_lengths,
    "negatives": negatives,
    "candidates": lambda rows: trm.Candidates(SCORES[rows][:, ORDER], TARGET[rows], items=ORDER),
    "labelled lists": lambda rows: LabelledLists(in_order(rows), complete=True, edges=RELEVANT[rows].nonzero().T),
    "beams": lambda rows: CODES.beams(CODES.codes[in_order(rows)], TARGET[rows], complete=True),
}
OPTIONS = {"overlap": "miss", "empty_target_action": "neg"}


class Ranked(trm.Accumulator):
    """An accumulator of one's own: the sum of all values of rows with a weight, under `HR@1/sum`."""

    @property
    def suffixes(self):
        return ("/sum",)

    def begin(self, layout):
        super().begin(layout)
        self.add_state("total", torch.zeros(len(layout.keys), dtype=torch.float64), "sum")

    def added(self, rows):
        return {"total": self.total + rows.values.sum(1)}

    def totals(self):
        return {"total": self.total}

    def results(self, totals):
        pairs = zip(self.layout.metrics, totals["total"], strict=True)
        results = [metric.with_value(value, 0, "sum") for metric, value in pairs]
        return {result.key: result for result in results}


ACCUMULATORS = {
    "ByGroup": lambda: trm.ByGroup("a", "b"),
    "Window": lambda: trm.Window(updates=2),
    "KeptRows": lambda: trm.KeptRows(),
    "own": Ranked,
}


def subclasses(base):
    """Return all public classes of the package below a base class."""
    below = {cls for child in base.__subclasses__() for cls in (child, *subclasses(child))}
    return {cls for cls in below if cls.__module__.startswith("torchrecmetrics.") and not cls.__name__.startswith("_")}


def test_every_input_and_accumulator_has_a_case():
    """Inputs and the accumulators of users are in the tables; item shards, which need processes, have a test below."""
    inputs = {type(make_input(torch.arange(ROWS))) for make_input in INPUTS.values()}
    lacking = subclasses(BatchInput) - inputs - {trm.ItemShard}
    assert not lacking, f"add {lacking} to INPUTS, made of the scores and relevant items of some rows"
    accumulators = {type(make_one()) for make_one in ACCUMULATORS.values()}
    lacking = {cls for cls in subclasses(trm.Accumulator) if cls.__name__ in trm.__all__} - accumulators
    assert not lacking, f"add {lacking} to ACCUMULATORS, and what they find to `expected`"


SPLITS = {"whole": [ROWS], "uneven, one is empty": [5, 7, 0, 1, 11]}
if NIGHTLY:
    SPLITS |= {"single rows": [1] * ROWS, "with empty batches": [0, 10, 0, 14]}


def per_row(kind, columns, rows):
    """Return columns of these rows, or of their entries where the input has session ids."""
    columns = {name: column[rows] for name, column in columns.items() if column is not None}
    entries = kind == "sessions"
    return {name: column.repeat_interleave(ITEMS) if entries else column for name, column in columns.items()}


def make(*accumulators):
    return trm.RecMetricCollection(NAMES, k=K, accumulators=[ACCUMULATORS[name]() for name in accumulators], **OPTIONS)


def fed(metrics, kind, split, columns):
    """Return the collection after updates with all rows in batches of these sizes."""
    for rows in torch.arange(ROWS).split(split):
        metrics.update(INPUTS[kind](rows), **per_row(kind, columns, rows))
    return metrics


def plain(kind, weights, rows=slice(None)):
    """Return the values of a collection without accumulators, of these rows in one batch with these weights."""
    rows, metrics = torch.arange(ROWS)[rows], make()
    metrics.update(INPUTS[kind](rows), **per_row(kind, {"weights": weights}, rows))
    return numbers(metrics.compute())


@functools.cache
def of_row(kind, row):
    return plain(kind, torch.ones(ROWS), slice(row, row + 1))


def expected(accumulators, kind, split, weights):
    """Return what the accumulators find, by what plain metrics find of weighted rows."""
    weights = torch.ones(ROWS, dtype=torch.float64) if weights is None else weights.double()
    found = plain(kind, weights)
    if "ByGroup" in accumulators:
        for code, name in enumerate("ab"):
            found |= {f"{key}/{name}": value for key, value in plain(kind, weights * (code == GROUPS)).items()}
    if "Window" in accumulators:
        recent = slice(ROWS - sum(split[-2:]), None)
        found |= {f"{key}/window": value for key, value in plain(kind, weights, recent).items()}
    if "own" in accumulators:
        counted = (weights > 0).double()
        found |= {f"{key}/sum": value * counted.sum().item() for key, value in plain(kind, counted).items()}
    return {key: pytest.approx(value, abs=1e-12) for key, value in found.items()}


def columns_of(accumulators, weights):
    """Return the columns that the accumulators read, and weights if they are given."""
    columns = {} if weights is None else {"weights": weights}
    if "ByGroup" in accumulators:
        columns["groups"] = GROUPS
    if "KeptRows" in accumulators:
        columns |= {"row_ids": IDS, "clusters": IDS // 5}
    return columns


def check_rows(metrics, kind, weights):
    """Compare kept rows with the totals and with single rows, and their ids with those that were given."""
    rows, totals = metrics.rows, numbers(metrics.compute())
    counted = slice(None) if weights is None else weights > 0
    order = rows.ids.argsort()
    mine = IDS[counted].argsort()
    assert rows.ids[order].tolist() == IDS[counted][mine].tolist()
    assert rows.clusters[order].tolist() == (IDS[counted] // 5)[mine].tolist()
    assert rows.mean() == pytest.approx({key: totals[key] for key in rows.values}, abs=1e-12)
    for at, row in enumerate(torch.arange(ROWS)[counted][mine][:6].tolist()):
        found = {key: values[order][at].item() for key, values in rows.values.items()}
        assert found == pytest.approx(of_row(kind, row))


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.filterwarnings("ignore:this metric or collection does not read history=")
def test_every_input_with_every_accumulator(kind, weights):
    """Each accumulator finds, in any batches, what plain metrics find of its rows."""
    for split in SPLITS.values():
        metrics = fed(make(*ACCUMULATORS), kind, split, columns_of(ACCUMULATORS, weights))
        found = numbers(metrics.compute())
        assert found == expected(ACCUMULATORS, kind, split, weights)
        assert list(found) == list(metrics.keys())
        check_rows(metrics, kind, weights)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.filterwarnings("ignore:this metric or collection does not read history=")
def test_forward_gives_the_values_of_its_batch_groups_included(kind, weights):
    metrics, columns = make(*ACCUMULATORS), columns_of(ACCUMULATORS, weights)
    for rows in torch.arange(ROWS).split(8):
        batch = numbers(metrics(INPUTS[kind](rows), **per_row(kind, columns, rows)))
        alone = make("ByGroup")
        alone.update(INPUTS[kind](rows), **per_row(kind, columns_of(["ByGroup"], weights), rows))
        assert batch == pytest.approx(numbers(alone.compute()), nan_ok=True, abs=1e-12)
    assert numbers(metrics.compute()) == expected(ACCUMULATORS, kind, [8] * 3, weights)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_collected_sessions_with_every_accumulator(weights):
    """Sessions whose entries come in any order and batches find the same in every accumulator that sessions have."""
    names = ["ByGroup", "KeptRows", "own"]
    columns = {name: column.repeat_interleave(ITEMS) for name, column in columns_of(names, weights).items()}
    entries = SCORES.flatten(), RELEVANT.flatten(), torch.arange(ROWS).repeat_interleave(ITEMS)
    shuffled = torch.randperm(ROWS * ITEMS, generator=torch.Generator().manual_seed(2))
    for size in (ROWS * ITEMS, 50):
        metrics = trm.CollectSessions(make(*names))
        for part in shuffled.split(size):
            metrics.update(*(column[part] for column in entries), **{key: each[part] for key, each in columns.items()})
        assert numbers(metrics.compute()) == expected(names, "sessions", [ROWS], weights)
        check_rows(metrics, "sessions", weights)


@pytest.mark.parametrize("kind", [kind for kind in INPUTS if kind not in ("hits", "sessions", "sessions of lengths")])
@pytest.mark.filterwarnings("ignore:this metric or collection does not read history=")
def test_no_input_waits_with_any_accumulator(kind):
    """Inputs whose shapes are known beforehand are added, in every accumulator, without waiting for a GPU."""
    accumulators = [make_one() for make_one in ACCUMULATORS.values()]
    metrics = trm.RecMetricCollection(NAMES, k=K, accumulators=accumulators, max_relevant=ITEMS, **OPTIONS).to("meta")
    batch, columns = away((INPUTS[kind](torch.arange(ROWS)), columns_of(ACCUMULATORS, WEIGHTS)))
    with never_waits():
        for _ in range(3):
            metrics.update(batch, **columns)


def test_collecting_sessions_waits_for_nothing():
    """Entries of sessions are kept without waiting; `compute` ranks them."""
    names = ["ByGroup", "KeptRows", "own"]
    metrics = trm.CollectSessions(make(*names)).to("meta")
    entries, columns = away(((SCORES[:, 0], RELEVANT[:, 0], torch.arange(ROWS) // 5), columns_of(names, WEIGHTS)))
    with never_waits():
        for _ in range(2):
            metrics.update(*entries, **columns)


def shared(rank, world_size, kinds):
    """Update this process with its share of the rows of every input, and return values and sorted ids of kept rows."""
    names, found = ["ByGroup", "KeptRows", "own"], {}
    for kind in kinds:
        metrics = make(*names)
        share = torch.arange(ROWS) % (world_size + 1) % world_size  # the first process has twice as many rows
        for part in (share == rank).nonzero()[:, 0].split(4):
            metrics.update(INPUTS[kind](part), **per_row(kind, columns_of(names, WEIGHTS), part))
        found[kind] = numbers(metrics.compute()), sorted(metrics.rows.ids.tolist()), metrics.rows.mean()
    return found


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_every_input_over_processes(processes, world_size):
    """Values, groups, own accumulators and kept rows are those of a single process, with uneven shares."""
    kinds = [kind for kind in INPUTS if kind != "scores, exclude"]
    names = ["ByGroup", "KeptRows", "own"]
    for found in processes.run(shared, world_size, kinds):
        for kind in kinds:
            values, ids, mean = found[kind]
            assert values == expected(names, kind, [ROWS], WEIGHTS)
            assert ids == sorted(IDS[WEIGHTS > 0].tolist())
            assert mean == pytest.approx({key: values[key] for key in mean}, abs=1e-12)


def sharded(rank, world_size):
    """Update with this process's items of all rows, in batches of 8, and return the values."""
    metrics = make("ByGroup", "Window", "KeptRows")
    rows_alone = trm.RecMetricCollection("MRR", k=3, accumulators=[trm.Window(100)], **OPTIONS)
    first, last = (ITEMS * rank // world_size, ITEMS * (rank + 1) // world_size)
    for rows in torch.arange(ROWS).split(8):
        batch = trm.ItemShard(SCORES[rows, first:last], TARGET[rows], offset=first, num_items=ITEMS)
        metrics.update(batch, **per_row("shard", columns_of(ACCUMULATORS, WEIGHTS), rows))
        for _ in range(6):  # 48 rows, of which a window of 100 rows holds 2.1 batches
            rows_alone.update(batch)
    found = numbers(metrics.compute())
    check_rows(metrics, "scores", WEIGHTS)
    rows_alone.compute()
    return found, rows_alone["MRR@3/window"].num_users


def test_item_shards_with_every_accumulator(processes):
    """Rows of which each process ranks some items count once, in every accumulator."""
    wanted = expected(["ByGroup", "Window"], "scores", [8] * 3, WEIGHTS)
    for found, num_users in processes.run(sharded, 2):
        assert found == wanted
        assert num_users == 13 * 8  # the fewest batches with 100 rows


ALL = ["ByGroup", "Window", "KeptRows", "own"]
CATALOGUE = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS), num_users=30)


def full():
    """Return a collection with all accumulators, and counted metrics."""
    names = [*NAMES, "Coverage", trm.AUROC(weight="relevant", **OPTIONS)]
    accumulators = [ACCUMULATORS[name]() for name in ALL]
    return trm.RecMetricCollection(names, k=K, accumulators=accumulators, catalogue=CATALOGUE, **OPTIONS)


def batches(names=ALL):
    """Return the arguments of `update` of each third of the rows."""
    columns = columns_of(names, WEIGHTS)
    return [
        {"scores": SCORES[rows], "target": TARGET[rows], **{name: column[rows] for name, column in columns.items()}}
        for rows in torch.arange(ROWS).split(8)
    ]


def update(metrics, *parts, call="update"):
    """Update with these thirds of the rows."""
    for part in parts:
        getattr(metrics, call)(**batches()[part])
    return metrics


def everything(metrics):
    """Return all values, standard errors and kept rows."""
    values = {key: value.nan_to_num(-1).item() for key, value in metrics.compute().items()}
    errors = {key: value.nan_to_num(-1).item() for key, value in metrics.standard_errors().items()}
    rows = metrics.rows
    ids = rows.ids.tolist(), rows.clusters.tolist()
    return values, errors, ids, {key: value.nan_to_num(-1).tolist() for key, value in rows.values.items()}


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda metrics: pickle.loads(pickle.dumps(metrics)),
    "clone": lambda metrics: metrics.clone(),
}


@pytest.mark.parametrize("duplicate", COPIES)
@pytest.mark.parametrize("computed", [False, True])
def test_copies(duplicate, computed):
    """A copy has all states, and goes its own way."""
    metrics = update(full(), 0, 1)
    if computed:
        metrics.compute()
    before = snapshot(metrics)
    other = update(COPIES[duplicate](metrics), 2)
    assert everything(other) == everything(update(full(), 0, 1, 2))
    assert same(snapshot(metrics), before)
    assert everything(metrics) == everything(update(full(), 0, 1))


def saved(metrics):
    """Return a module that holds the collection, whose state is saved."""
    module = nn.Module()
    module.metrics = metrics
    metrics.persistent(True)
    return module


def test_a_state_dict_holds_all_states(tmp_path):
    """`torch.load` reads it with its safe default, and it is loaded into a collection with rows, too."""
    module, other = saved(update(full(), 0, 1)), saved(full())
    torch.save(module.state_dict(), tmp_path / "state.pt")
    for _ in range(2):
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

        assert everything(other.metrics) == everything(module.metrics)
        assert everything(update(other.metrics, 2)) == everything(update(full(), 0, 1, 2))


def test_a_state_that_is_not_persistent_is_not_saved():
    module = saved(update(full(), 0))
    module.metrics.persistent(False)
    before = snapshot(module.metrics)
    module.load_state_dict(module.state_dict())

    assert not module.state_dict()
    assert same(snapshot(module.metrics), before)


def test_a_state_of_other_metrics_is_refused():
    with pytest.raises((RuntimeError, ValueError)):
        saved(make()).load_state_dict(saved(update(full(), 0)).state_dict())


def test_merge_state():
    """Merging adds all states up; windows are those of two processes."""
    one, other = update(full(), 0), update(full(), 1)
    one.compute(), other.compute()
    one.merge_state(other)
    (values, _, *rows), (wanted, _, *wanted_rows) = everything(one), everything(update(full(), 0, 1))
    assert rows == wanted_rows
    for key in plain("scores", WEIGHTS, slice(0, 16)):
        assert values.pop(f"{key}/window") == pytest.approx(wanted[key])  # both had their last two updates
    assert values == pytest.approx({key: wanted[key] for key in values})
    before = snapshot(one)
    with pytest.raises(ValueError, match="only one of the two has"):
        one.merge_state(make("ByGroup"))
    assert same(snapshot(one), before)


@pytest.mark.parametrize("call", ["update", "forward"])
def test_beside_foreign_metrics(call):
    """In a `MetricCollection` of torchmetrics, beside metrics of others, a collection gives what it gives alone."""
    names = ["ByGroup", "Window", "KeptRows"]
    metrics, alone, mean = make(*names), make(*names), torchmetrics.MeanMetric()
    outer = MetricCollection({"ours": metrics, "hr": trm.HR(3, **OPTIONS), "mean": mean})
    for arguments in batches(names):
        found = getattr(outer, call)(**arguments, value=arguments["scores"])
        batch = numbers(alone(**arguments))
        if call == "forward":
            found = {key: value.item() for key, value in found.items() if key in batch}
            assert found == pytest.approx({key: batch[key] for key in found}, nan_ok=True)
    values, wanted = numbers(outer.compute()), numbers(alone.compute())
    assert values.pop("hr") == wanted["HR@3"]
    assert values.pop("mean") == pytest.approx(SCORES.mean().item())
    assert {key.removeprefix("ours_"): value for key, value in values.items()} == wanted
    assert len(metrics.rows) == len(alone.rows)
    outer.reset()
    assert not any(state.any() for state in tensors(metrics))


def test_first_batches_merge_nothing():
    """torchmetrics merges no two of our metrics, nor ours with others', whatever their states after a first batch."""
    coverage = functools.partial(trm.Coverage, 2, catalogue=CATALOGUE)
    twice = {"coverage": coverage, "median": trm.MedianRank, "hr": functools.partial(trm.HR, 1)}
    metrics = {f"{name}-{copy}": kind() for copy in "ab" for name, kind in twice.items()}
    outer = MetricCollection({**metrics, "gini": trm.Gini(2, catalogue=CATALOGUE)})
    for number, rows in enumerate(torch.arange(ROWS).split(8)):
        outer(SCORES[rows], ONE[rows]) if number == 1 else outer.update(SCORES[rows], ONE[rows])
    values = numbers(outer.compute())
    for name, kind in twice.items():
        metric = kind()
        metric.update(SCORES, ONE)
        assert values[f"{name}-a"] == values[f"{name}-b"] == metric.compute().item()


def test_metric_tracker():
    """`MetricTracker` keeps a collection per epoch, with its accumulators, and knows each key's better direction."""
    metrics = trm.RecMetricCollection(["MRR", "MeanRank"], accumulators=[trm.ByGroup("a", "b"), trm.Window(100)])
    tracker, values = MetricTracker(metrics), []
    for rows in torch.arange(ROWS).split(8):
        tracker.increment()
        tracker.update(SCORES[rows], ONE[rows], groups=rows % 2)
        values.append(numbers(tracker.compute()))
    best, step = tracker.best_metric(return_step=True)
    assert tracker.n_steps == 3
    for key, found in tracker.compute_all().items():
        epochs = [each[key] for each in values]
        assert found.tolist() == pytest.approx(epochs)
        assert best[key] == pytest.approx(min(epochs) if key.startswith("MeanRank") else max(epochs))
        assert epochs[step[key]] == pytest.approx(best[key])


@pytest.mark.parametrize("cast", ["to", "half", "bfloat16", "double"])
def test_casts_leave_the_states(cast):
    """`.to(torch.bfloat16)`, `.half()`, `.bfloat16()` and `.double()` of a module change no state and no value."""
    module = nn.Module()
    module.metrics, module.linear = update(full(), 0, 1), nn.Linear(2, 2)
    before = snapshot(module.metrics)
    module.to(torch.bfloat16) if cast == "to" else getattr(module, cast)()
    assert module.linear.weight.dtype != torch.float32
    assert same(snapshot(module.metrics), before)
    module.metrics.set_dtype(torch.float16)
    assert everything(update(module.metrics, 2)) == everything(update(full(), 0, 1, 2))
    module.metrics.reset()
    assert everything(update(module.metrics, 0)) == everything(update(full(), 0))


def test_inference_mode():
    """Updates, resets and computes in inference mode leave ordinary states, which later updates and copies take."""
    metrics = full()
    with torch.inference_mode():
        update(metrics, 0)
        metrics.compute()
        update(metrics, 1, call="forward")
    assert not any(state.is_inference() for state in tensors(metrics))
    assert everything(update(copy.deepcopy(metrics), 2)) == everything(update(full(), 0, 1, 2))
    with torch.inference_mode():
        metrics.reset()
    assert not any(state.is_inference() for state in tensors(metrics))
    assert everything(update(metrics, 0)) == everything(update(full(), 0))


def test_around_a_compiled_function():
    """`torch.compile` leaves collections with all accumulators out of its graph, in every batch."""
    torch._dynamo.reset()
    updated, forwarded = full(), full()

    def step(scores, target, **columns):
        scores = scores * 2 - scores
        updated.update(scores, target, **columns)
        forwarded(scores, target, **columns)
        return scores.sum()

    compiled = torch.compile(step, backend="eager")
    for arguments in batches():
        compiled(**arguments)

    assert everything(updated) == everything(forwarded) == everything(update(full(), 0, 1, 2))
