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

pytestmark = pytest.mark.filterwarnings("ignore:this metric or collection does not read history=")

ROWS, ITEMS = 24, 9
NAMES, CUTOFFS = ["HR", "NDCG", "MRR"], [1, 3]

GENERATOR = torch.Generator().manual_seed(1)
SCORES = (4 * torch.rand(ROWS, ITEMS, generator=GENERATOR)).round() / 4  # with ties
TARGET = torch.rand(ROWS, ITEMS, generator=GENERATOR).argsort(1)[:, :2]
TARGET[5::9] = -1
ONE_TARGET = torch.randint(ITEMS, (ROWS,), generator=GENERATOR)
EXCLUDED = torch.randint(-1, ITEMS, (ROWS, 3), generator=GENERATOR)
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
    target = ONE_TARGET[rows][:, None]
    return trm.Negatives(SCORES[rows].gather(1, target), SCORES[rows].scatter(1, target, -torch.inf))


INPUTS = {
    "scores": lambda rows: trm.Scores(SCORES[rows], TARGET[rows]),
    "scores, exclude": lambda rows: trm.Scores(
        SCORES[rows], ONE_TARGET[rows], exclude=EXCLUDED[rows], history=EXCLUDED[rows]
    ),
    "graded": lambda rows: trm.Scores(SCORES[rows], TARGET[rows], gains=1 + TARGET[rows].clamp(min=0)),
    "dense": lambda rows: trm.Scores(SCORES[rows], RELEVANT[rows]),
    "ranking": lambda rows: trm.Scores(SCORES[rows], TARGET[rows]).ranking(overlap="miss"),
    "ranks": ranks,
    "hits": hits,
    "lists": lambda rows: trm.Lists(in_order(rows), TARGET[rows], complete=True),
    "lists, exclude": lambda rows: trm.Lists(in_order(rows), ONE_TARGET[rows], exclude=EXCLUDED[rows], complete=True),
    "sessions": sessions,
    "sessions of lengths": sessions_of_lengths,
    "negatives": negatives,
    "candidates": lambda rows: trm.Candidates(SCORES[rows][:, ORDER], TARGET[rows], items=ORDER),
    "labelled lists": lambda rows: LabelledLists(in_order(rows), complete=True, edges=RELEVANT[rows].nonzero().T),
    "beams": lambda rows: CODES.beams(CODES.codes[in_order(rows)], TARGET[rows], complete=True),
}
OPTIONS = {"overlap": "miss", "empty_target_action": "neg"}


class Summed(trm.Accumulator):
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
    "own": Summed,
}
WITHOUT_WINDOW = ["ByGroup", "KeptRows", "own"]


def subclasses(base):
    """Return all public classes of the package below a base class."""
    below = {cls for child in base.__subclasses__() for cls in (child, *subclasses(child))}
    return {cls for cls in below if cls.__module__.startswith("torchrecmetrics.") and not cls.__name__.startswith("_")}


def test_every_input_has_a_case():
    """Item shards, which need processes, have tests below."""
    cases = {type(make_input(torch.arange(ROWS))) for make_input in INPUTS.values()}
    assert subclasses(BatchInput) - cases == {trm.ItemShard}, "add an input, made of SCORES and TARGET, to INPUTS"


def test_every_accumulator_has_a_case():
    public = {cls for cls in subclasses(trm.Accumulator) if cls.__name__ in trm.__all__}
    cases = {type(make_accumulator()) for make_accumulator in ACCUMULATORS.values()}

    assert not public - cases, "add an accumulator to ACCUMULATORS, and its values to `expected`"


def per_row(kind, columns, rows):
    """Return columns of these rows, or of their entries where the input has session ids."""
    columns = {name: column[rows] for name, column in columns.items()}
    entries = kind == "sessions"
    return {name: column.repeat_interleave(ITEMS) if entries else column for name, column in columns.items()}


def make(*accumulators):
    accumulators = [ACCUMULATORS[name]() for name in accumulators]
    return trm.RecMetricCollection(NAMES, k=CUTOFFS, accumulators=accumulators, **OPTIONS)


def updated(metrics, kind, columns, split):
    """Return the collection after updates with all rows in batches of these sizes."""
    for rows in torch.arange(ROWS).split(split):
        metrics.update(INPUTS[kind](rows), **per_row(kind, columns, rows))
    return metrics


def plain(kind, weights, rows=slice(None)):
    """Return the values of a collection without accumulators, of these rows in one batch with these weights."""
    rows, metrics = torch.arange(ROWS)[rows], make()
    metrics.update(INPUTS[kind](rows), **per_row(kind, {"weights": weights}, rows))
    return numbers(metrics.compute())


def expected(accumulators, kind, split, weights):
    """Return the values of the accumulators, by what plain metrics find of weighted rows."""
    weights = torch.ones(ROWS, dtype=torch.float64) if weights is None else weights.double()
    values = plain(kind, weights)
    if "ByGroup" in accumulators:
        for code, name in enumerate("ab"):
            values |= {f"{key}/{name}": value for key, value in plain(kind, weights * (code == GROUPS)).items()}
    if "Window" in accumulators:
        recent = slice(ROWS - sum(split[-2:]), None)
        values |= {f"{key}/window": value for key, value in plain(kind, weights, recent).items()}
    if "own" in accumulators:
        counted = (weights > 0).double()
        values |= {f"{key}/sum": value * counted.sum().item() for key, value in plain(kind, counted).items()}
    return {key: pytest.approx(value, abs=1e-12) for key, value in values.items()}


def columns_of(accumulators, weights):
    """Return the columns that the accumulators read, and weights if they are given."""
    columns = {} if weights is None else {"weights": weights}
    if "ByGroup" in accumulators:
        columns["groups"] = GROUPS
    if "KeptRows" in accumulators:
        columns |= {"row_ids": IDS, "clusters": IDS // 5}
    return columns


def kept(rows):
    """Return the values of kept rows by their id and cluster."""
    columns = rows.ids, rows.clusters, *rows.values.values()
    table = zip(*(column.tolist() for column in columns), strict=True)
    return {(row_id, cluster): dict(zip(rows.values, values, strict=True)) for row_id, cluster, *values in table}


@functools.cache
def of_row(kind, row):
    return pytest.approx(plain(kind, torch.ones(ROWS), slice(row, row + 1)))


def expected_rows(kind, weights):
    """Return the values of all rows with a weight, each as that of a batch of one row."""
    rows = [row for row in range(ROWS) if weights is None or weights[row] > 0]
    return {(IDS[row].item(), IDS[row].item() // 5): of_row(kind, row) for row in rows}


SPLITS = {"whole": [ROWS], "uneven, one is empty": [5, 7, 0, 1, 11]}
if NIGHTLY:
    SPLITS |= {"single rows": [1] * ROWS, "with empty batches": [0, 10, 0, 14]}
each_input = pytest.mark.parametrize("kind", INPUTS)
equal_or_not = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])


def test_users_with_ranks_1_and_2_have_their_means_in_every_accumulator():
    accumulators = [trm.ByGroup("a", "b"), trm.Window(updates=1), trm.KeptRows(), Summed()]
    metrics = trm.RecMetricCollection("MRR", accumulators=accumulators)
    for rank, group in ((1, 0), (2, 1)):
        metrics.update(trm.Ranks(torch.tensor([rank]), complete=True), groups=torch.tensor([group]))

    means = {"MRR": (1 / 1 + 1 / 2) / 2, "MRR/a": 1 / 1, "MRR/b": 1 / 2, "MRR/window": 1 / 2, "MRR/sum": 1 / 1 + 1 / 2}
    assert numbers(metrics.compute()) == means
    assert metrics.rows.values["MRR"].tolist() == [1 / 1, 1 / 2]


@equal_or_not
@each_input
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_accumulators_have_the_values_of_plain_metrics_of_their_rows(kind, weights, split):
    metrics = updated(make(*ACCUMULATORS), kind, columns_of(ACCUMULATORS, weights), split)

    assert numbers(metrics.compute()) == expected(ACCUMULATORS, kind, split, weights)


@equal_or_not
@each_input
def test_kept_rows_are_those_of_batches_of_one_row(kind, weights):
    metrics = updated(make(*ACCUMULATORS), kind, columns_of(ACCUMULATORS, weights), [5, 7, 0, 1, 11])

    assert kept(metrics.rows) == expected_rows(kind, weights)
    assert metrics.rows.mean() == expected([], kind, None, weights)


@equal_or_not
@each_input
def test_forward_returns_the_values_of_its_batch_and_adds_its_rows(kind, weights):
    metrics, batches, batches_alone = make(*ACCUMULATORS), [], []
    for rows in torch.arange(ROWS).split(8):
        batches.append(numbers(metrics(INPUTS[kind](rows), **per_row(kind, columns_of(ACCUMULATORS, weights), rows))))
        alone = make("ByGroup")
        alone.update(INPUTS[kind](rows), **per_row(kind, columns_of(["ByGroup"], weights), rows))
        batches_alone.append(pytest.approx(numbers(alone.compute()), nan_ok=True, abs=1e-12))

    assert batches == batches_alone
    assert numbers(metrics.compute()) == expected(ACCUMULATORS, kind, [8] * 3, weights)


@equal_or_not
@pytest.mark.parametrize("size", [ROWS * ITEMS, 50])
def test_collected_sessions_with_entries_in_any_order_have_the_values_of_whole_sessions(weights, size):
    columns = {**columns_of(WITHOUT_WINDOW, weights), "indexes": torch.arange(ROWS)}
    columns = {name: column.repeat_interleave(ITEMS) for name, column in columns.items()}
    metrics = trm.CollectSessions(make(*WITHOUT_WINDOW))
    for part in torch.randperm(ROWS * ITEMS, generator=torch.Generator().manual_seed(2)).split(size):
        entries = {name: column[part] for name, column in columns.items()}
        metrics.update(SCORES.flatten()[part], RELEVANT.flatten()[part], **entries)

    assert numbers(metrics.compute()) == expected(WITHOUT_WINDOW, "sessions", None, weights)
    assert kept(metrics.rows) == expected_rows("sessions", weights)


@pytest.mark.parametrize("kind", [kind for kind in INPUTS if kind not in ("hits", "sessions", "sessions of lengths")])
def test_no_input_waits_with_any_accumulator(kind):
    """Inputs whose shapes are known beforehand are added, in every accumulator, without waiting for a GPU."""
    accumulators = [make_accumulator() for make_accumulator in ACCUMULATORS.values()]
    options = {"max_relevant": ITEMS, "accumulators": accumulators, **OPTIONS}
    metrics = trm.RecMetricCollection(NAMES, k=CUTOFFS, **options).to("meta")
    batch, columns = away((INPUTS[kind](torch.arange(ROWS)), columns_of(ACCUMULATORS, WEIGHTS)))
    with never_waits():
        for _ in range(3):
            metrics.update(batch, **columns)


def test_collecting_sessions_waits_for_nothing():
    """Entries of sessions are kept without waiting; `compute` ranks them."""
    metrics = trm.CollectSessions(make(*WITHOUT_WINDOW)).to("meta")
    entries = SCORES[:, 0], RELEVANT[:, 0], torch.arange(ROWS) // 5
    entries, columns = away((entries, columns_of(WITHOUT_WINDOW, WEIGHTS)))
    with never_waits():
        for _ in range(2):
            metrics.update(*entries, **columns)


def shared(rank, world_size, kinds):
    """Update this process with its share of the rows of every input; return all values and kept rows."""
    share = torch.arange(ROWS) % (world_size + 1) % world_size  # the first process has twice as many rows
    results = {}
    for kind in kinds:
        metrics = make(*WITHOUT_WINDOW)
        for rows in (share == rank).nonzero()[:, 0].split(4):
            metrics.update(INPUTS[kind](rows), **per_row(kind, columns_of(WITHOUT_WINDOW, WEIGHTS), rows))
        results[kind] = numbers(metrics.compute()), kept(metrics.rows), metrics.rows.mean()
    return results


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_processes_with_uneven_shares_have_the_values_and_rows_of_a_single_one(processes, world_size):
    kinds = [kind for kind in INPUTS if kind != "scores, exclude"]
    results = {
        kind: (
            expected(WITHOUT_WINDOW, kind, None, WEIGHTS),
            expected_rows(kind, WEIGHTS),
            expected([], kind, None, WEIGHTS),
        )
        for kind in kinds
    }

    assert processes.run(shared, world_size, kinds) == [results] * world_size


def sharded(rank, world_size):
    """Return the values and the kept rows after batches of 8 rows with this process's items."""
    metrics = make("ByGroup", "Window", "KeptRows")
    first, last = (ITEMS * rank // world_size, ITEMS * (rank + 1) // world_size)
    for rows in torch.arange(ROWS).split(8):
        batch = trm.ItemShard(SCORES[rows, first:last], TARGET[rows], offset=first, num_items=ITEMS)
        metrics.update(batch, **per_row("shard", columns_of(ACCUMULATORS, WEIGHTS), rows))
    return numbers(metrics.compute()), kept(metrics.rows)


def test_rows_of_item_shards_count_once_in_every_accumulator(processes):
    values, rows = expected(["ByGroup", "Window"], "scores", [8] * 3, WEIGHTS), expected_rows("scores", WEIGHTS)
    assert processes.run(sharded, 2) == [(values, rows)] * 2


ALL = ["ByGroup", "Window", "KeptRows", "own"]
CATALOGUE = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS), num_users=30)


def full():
    """Return a collection with all accumulators, and counted metrics."""
    names = [*NAMES, "Coverage", trm.AUROC(weight="relevant", **OPTIONS)]
    accumulators = [ACCUMULATORS[name]() for name in ALL]
    return trm.RecMetricCollection(names, k=CUTOFFS, accumulators=accumulators, catalogue=CATALOGUE, **OPTIONS)


def batches(names=ALL):
    """Return the arguments of `update` of each third of the rows."""
    columns = {"scores": SCORES, "target": TARGET, **columns_of(names, WEIGHTS)}
    return [{name: column[rows] for name, column in columns.items()} for rows in torch.arange(ROWS).split(8)]


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


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda metrics: pickle.loads(pickle.dumps(metrics)), lambda metrics: metrics.clone()],
    ids=["deepcopy", "pickle", "clone"],
)
def test_a_copy_of_a_computed_collection_goes_on_alone_from_its_states(duplicate):
    metrics = update(full(), 0, 1)
    metrics.compute()
    states = snapshot(metrics)
    copied = update(duplicate(metrics), 2)

    assert everything(copied) == everything(update(full(), 0, 1, 2))
    assert same(snapshot(metrics), states)


def saved(metrics):
    """Return a module that holds the collection, whose state is saved."""
    module = nn.Module()
    module.metrics = metrics
    metrics.persistent(True)
    return module


@pytest.mark.parametrize("parts", [(), (0, 1, 2)], ids=["into an empty collection", "in place of rows"])
def test_a_saved_state_is_loaded_with_torchs_safe_default(tmp_path, parts):
    torch.save(saved(update(full(), 0, 1)).state_dict(), tmp_path / "state.pt")
    module = saved(update(full(), *parts))
    module.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

    assert everything(module.metrics) == everything(update(full(), 0, 1))
    assert everything(update(module.metrics, 2)) == everything(update(full(), 0, 1, 2))


def test_merging_adds_up_all_states_and_keeps_all_rows():
    """Windows are those of two processes, both of which had their last two updates."""
    first, second = update(full(), 0), update(full(), 1)
    first.compute(), second.compute()
    first.merge_state(second)
    (values, _, *rows), (expected_values, _, *wanted_rows) = everything(first), everything(update(full(), 0, 1))

    assert values == pytest.approx(expected_values)
    assert rows == wanted_rows


def test_a_collection_with_other_accumulators_is_not_merged():
    metrics = update(full(), 0)
    states = snapshot(metrics)

    with pytest.raises(ValueError, match="only one of the two has"):
        metrics.merge_state(make("ByGroup"))
    assert same(snapshot(metrics), states)


WITHOUT_OWN = ["ByGroup", "Window", "KeptRows"]


def beside_others():
    """Return a collection in a MetricCollection of torchmetrics, beside metrics of others, and the outer one."""
    metrics = make(*WITHOUT_OWN)
    others = {"hr": trm.HR(3, **OPTIONS), "mean": torchmetrics.MeanMetric()}
    return metrics, MetricCollection({"ours": metrics, **others})


@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_collection_beside_metrics_of_others_has_its_values_alone(call):
    (metrics, outer), alone = beside_others(), make(*WITHOUT_OWN)
    for arguments in batches(WITHOUT_OWN):
        getattr(outer, call)(**arguments, value=arguments["scores"])
        alone.update(**arguments)
    values = numbers(alone.compute())

    others = {"hr": values["HR@3"], "mean": pytest.approx(SCORES.mean().item())}
    assert numbers(outer.compute()) == {**{f"ours_{key}": value for key, value in values.items()}, **others}
    assert len(metrics.rows) == len(alone.rows)


def test_forward_beside_metrics_of_others_returns_the_values_of_its_batch():
    outer, alone = beside_others()[1], make(*WITHOUT_OWN)
    for arguments in batches(WITHOUT_OWN)[:2]:
        values, batch = numbers(outer(**arguments, value=arguments["scores"])), numbers(alone(**arguments))

    assert {key: values[f"ours_{key}"] for key in batch} == pytest.approx(batch, nan_ok=True)


def test_metrics_with_equal_states_after_a_first_batch_stay_apart():
    """torchmetrics, which merges metrics with equal states, merges none of ours."""
    coverage = functools.partial(trm.Coverage, 2, catalogue=CATALOGUE)
    gini = functools.partial(trm.Gini, 2, catalogue=CATALOGUE)
    kinds = {"coverage": coverage, "gini": gini, "median": trm.MedianRank, "hr": functools.partial(trm.HR, 1)}
    outer = MetricCollection({f"{name}-{copy}": kind() for copy in "ab" for name, kind in kinds.items()})
    for call, rows in zip((outer.update, outer, outer.update), torch.arange(ROWS).split(8), strict=True):
        call(SCORES[rows], ONE_TARGET[rows])
    alone = MetricCollection({name: kind() for name, kind in kinds.items()}, compute_groups=False)
    alone.update(SCORES, ONE_TARGET)

    values = numbers(alone.compute())
    assert numbers(outer.compute()) == {f"{name}-{copy}": values[name] for copy in "ab" for name in kinds}


def tracked():
    """Return a tracker of two epochs, in which the relevant item has ranks 2 and 1."""
    accumulators = [trm.ByGroup("a"), trm.Window(100)]
    tracker = MetricTracker(trm.RecMetricCollection(["MRR", "MeanRank"], accumulators=accumulators))
    for scores in ([0.1, 0.9], [0.9, 0.1]):
        tracker.increment()
        tracker.update(torch.tensor([scores]), torch.tensor([0]), groups=torch.tensor([0]))
    return tracker


MRRS, MEAN_RANKS = ["MRR", "MRR/a", "MRR/window"], ["MeanRank", "MeanRank/a", "MeanRank/window"]


def test_a_tracker_keeps_the_values_of_each_epoch():
    values = {key: (*values.tolist(),) for key, values in tracked().compute_all().items()}
    assert values == dict.fromkeys(MRRS, (1 / 2, 1.0)) | dict.fromkeys(MEAN_RANKS, (2.0, 1.0))


def test_a_tracker_knows_the_better_direction_of_each_key():
    best, epoch = tracked().best_metric(return_step=True)

    assert best == dict.fromkeys([*MRRS, *MEAN_RANKS], 1.0)
    assert epoch == dict.fromkeys([*MRRS, *MEAN_RANKS], 1)


@pytest.mark.parametrize(
    "cast",
    [lambda module: module.to(torch.bfloat16), nn.Module.half, nn.Module.bfloat16, nn.Module.double],
    ids=["to", "half", "bfloat16", "double"],
)
def test_a_cast_of_a_module_leaves_all_states(cast):
    module = nn.ModuleList([update(full(), 0, 1), nn.Linear(2, 2)])
    states = snapshot(module[0])
    cast(module)
    module[0].set_dtype(torch.float16)

    assert module[1].weight.dtype != torch.float32
    assert same(snapshot(module[0]), states)


def test_updates_in_inference_mode_leave_states_that_can_be_copied_and_updated():
    metrics = full()
    with torch.inference_mode():
        update(metrics, 0)
        metrics.compute()
        update(metrics, 1, call="forward")

    assert not any(state.is_inference() for state in tensors(metrics))
    assert everything(update(copy.deepcopy(metrics), 2)) == everything(update(full(), 0, 1, 2))


def test_a_reset_in_inference_mode_leaves_states_that_can_be_updated():
    metrics = update(full(), 1)
    with torch.inference_mode():
        metrics.reset()

    assert not any(state.is_inference() for state in tensors(metrics))
    assert everything(update(metrics, 0)) == everything(update(full(), 0))


def test_a_compiled_function_leaves_collections_out_of_its_graph():
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
