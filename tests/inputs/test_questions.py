"""Mistakes are asked about, and their cures give the right number; honest data near them is not asked about."""

import warnings
from typing import NamedTuple

import pytest
import torch
from torch import tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.utilities.prints import rank_zero_only
from waiting import away, never_waits

import torchrecmetrics as trm
from torchrecmetrics.inputs import questions as module

INF, LOWEST, RANDOM = float("inf"), torch.finfo(torch.float32).min, torch.Generator().manual_seed(0)


def told(run, *arguments):
    """Return the warnings that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(*arguments)
    return [str(warning.message) for warning in caught]


class Case(NamedTuple):
    """A batch, or entries of sessions to be collected, of one metric, and its value."""

    metric: str
    batch: object
    value: float = INF
    padding_idx: int | None = None
    collect: bool = False

    def start(self):
        """Return an empty collection, and the arguments of its update."""
        collection = trm.RecMetricCollection([self.metric], padding_idx=self.padding_idx)
        if not self.collect:
            return collection, (self.batch,)
        return trm.CollectSessions(collection), (self.batch.scores, self.batch.labels, self.batch.indexes)

    def questions(self):
        """Return the questions about the batch, whose value is checked."""
        collection, arguments = self.start()
        questions = told(collection.update, *arguments) + told(collection.compute)
        (value,) = collection.compute().values()
        assert self.value in (INF, pytest.approx(value.item(), abs=1e-12)), value
        return questions


def rows(*entries, times=32):
    return tensor(entries).repeat(times, 1)


def scored(metric, scores, target, value=INF, padding_idx=None, **arguments):
    return Case(metric, trm.Scores(scores, target, **arguments), value, padding_idx)


def beamed(beams, target=None, value=INF, metric="MRR@2", **arguments):
    return Case(metric, SEMANTIC.beams(beams, target, **arguments), value)


def chosen(scores, target, items, value):
    return Case("MRR", trm.Candidates(scores, target, items=items), value)


def sessions(scores, labels, indexes, value=INF, metric="MRR", **arguments):
    return Case(metric, trm.Sessions(scores, labels, indexes), value, **arguments)


def low_sessions(low, **arguments):
    labels, indexes = tensor([0, 0, 1, 0, 0]).repeat(8), torch.arange(8).repeat_interleave(5)
    return sessions(tensor([0.3, 0.7, 0.5, low, low]).repeat(8), labels, indexes, metric="AUROC", **arguments)


def against(negative, value, metric="AUROC", **arguments):
    return Case(metric, trm.Negatives(torch.full((32,), 0.5), negative, negative.dim() == 1, **arguments), value)


ROW, ITEM, ONE = torch.arange(32), torch.arange(64, 96), torch.ones(32, dtype=torch.int64)
DOWN = -torch.arange(12.0).expand(32, -1)  # item 0 is the best
# sessions of two entries, the second of which is relevant and scores less
SCORES, LABELS, PAIRS = tensor([0.9, 0.1]).repeat(32), tensor([0, 1]).repeat(32), ROW.repeat_interleave(2)
# the relevant item stands in column 0 and is second
# the second of two beams is the relevant item; 200 of 8^3 codes are those of items
CODES = torch.stack([torch.randperm(8, generator=RANDOM)[:3] for _ in range(900)]).unique(dim=0)
CODES = CODES[torch.randperm(len(CODES), generator=RANDOM)[:200]]
BEAMS, SEMANTIC = torch.stack([CODES[ROW + 32], CODES[ITEM]], 1), trm.SemanticIds(CODES)
FLAGS = rows([0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], times=20)
FALLING = -(torch.arange(1.0, 6) ** (1 + torch.arange(32.0)[:, None] / 32))  # each row in its own way
LISTED = (torch.arange(5) == 0) & (ROW[:, None] % 4 == 0)  # a hit in each fourth row
MASKED, REMOVED, OF_FOUR = rows([0.0, 1, 2, -1e9]), rows([0.0, 1, 2, -INF]), tensor([7, 8, 9, 10])
HALF, POOL = rows([0.3, LOWEST, 0.7, LOWEST]), tensor([0.9, 0.1] * 16)
BINARY, GRADES = rows([0.0, 1], [1, 0], times=16), rows([0.75, 0.25], [0.5, 0.25], times=16)
TRUE_ENDS = torch.stack([1 + ROW % 11, 0 * ROW - 1], 1)
MISTAKES = {
    # a mistake, words of the question; the cured data; an honest neighbour
    "excluded ids end with 0": (
        scored("HR@1", DOWN, ONE, 16 / 32, exclude=rows([5, 6, 0, 0], [5, 6, 7, 8], times=16)), "of exclude looks",
        scored("HR@1", DOWN, ONE, 1, 0, exclude=rows([5, 6, 0, 0], [5, 6, 7, 8], times=16)),
        scored("HR@1", DOWN, ONE, 1, exclude=rows([0, 5], [6, 0], times=16))),
    "targets end with 0": (scored("Recall@1", DOWN, TRUE_ENDS.clamp(min=0), 1 / 2), "pad with -1",
        scored("Recall@1", DOWN, TRUE_ENDS, 0), scored("Recall@1", DOWN, rows([5, 0], [7, 3], times=16), 1 / 4)),
    "some targets end with 0": (scored("Recall@1", DOWN, rows([5, 0], [3, 7], times=16), 1 / 4), "of target looks",
        scored("Recall@1", DOWN, rows([5, -1], [3, 7], times=16), 0),
        scored("Recall@1", DOWN, rows([5, 0], [0, 7], times=16), 1 / 2)),
    "items at -1e9": (scored("AUROC", MASKED, ONE, 2 / 3), "the whole list count all candidates",
        scored("AUROC", REMOVED, ONE, 1 / 2), scored("AUROC", MASKED.flip(1), 2 * ONE, 1 / 2, 0)),
    "some items at -1e9": (scored("AUROC", MASKED, ONE, 2 / 3, exclude=-ONE), "or pass exclude=",
        scored("AUROC", MASKED, ONE, 1 / 2, exclude=3 * ONE), scored("HR@1", MASKED, ONE, 0)),
    "negatives at -FLT_MAX": (against(HALF, 3 / 4), "score -3.40282e+38 of 64 candidates",
        against(HALF.clamp(min=-1e9).where(HALF > -1, -INF), 1 / 2), against(HALF, 0, "HR@1")),
    "a pool at -FLT_MAX": (against(HALF[:9].flatten(), 3 / 4), "of 18 candidates is far below all others, 0.3 to 0.7",
        against(HALF[:9].where(HALF[:9] > -1, -INF).flatten(), 1 / 2), against(HALF[0], 3 / 4)),
    "candidates at -1e9": (
        Case("AUROC", trm.Candidates(MASKED, 8 * ONE, items=OF_FOUR), 2 / 3), "set their scores to -torch.inf",
        Case("AUROC", trm.Candidates(REMOVED, 8 * ONE, items=OF_FOUR), 1 / 2),
        Case("AUROC", trm.Candidates(MASKED, 8 * ONE, items=OF_FOUR.where(OF_FOUR < 10, -1)), 1 / 2)),
    "sessions at -1e9": (low_sessions(-1e9, value=3 / 4), "of 16 candidates", low_sessions(-INF, value=1 / 2),
        low_sessions(-60.0, value=3 / 4)),
    "collected at -1e9": (low_sessions(-1e9, value=3 / 4, collect=True), "of 16 candidates",
        low_sessions(-INF, value=1 / 2, collect=True), low_sessions(-60.0, value=3 / 4, collect=True)),
    "rounded scores": (scored("HR@1", 0 * DOWN, ONE, 1 / 12), "32 of 32 rows have a relevant item that shares",
        scored("HR@1", DOWN, ONE, 0), scored("HR@1", rows([0.2, 0.2], [0.2, 0.3], times=16), ONE, 3 / 4)),
    "hits beside scores of lists": (scored("HR@1", FALLING, LISTED, 1), "Hits(flags, num_relevant=)",
        Case("HR@1", trm.Hits(LISTED, num_relevant=1), 1 / 4), scored("HR@1", FALLING[:1] + ROW[:, None], LISTED, 1)),
    "hits as relevant items": (Case("Recall@3", trm.Hits(FLAGS[:, :3], FLAGS.sum(1)), 1), "num_relevant is the number",
        Case("Recall@3", trm.Hits(FLAGS[:, :3], num_relevant=1), 3 / 4),
        Case("Recall@3", trm.Hits(FLAGS[:, :3], FLAGS.sum(1), complete=True), 1)),
    "scores and labels swapped": (scored("MRR", BINARY, GRADES, 1), "are the two swapped",
        scored("MRR", GRADES, BINARY, 3 / 4), scored("MRR", BINARY, GRADES * tensor([1, 0]), 3 / 4)),
    "a history that nobody reads": (
        scored("HR@1", DOWN, ONE, 0, history=0 * ONE), "no metric of this update reads history=",
        scored("HR@1", DOWN, ONE, 1, exclude=0 * ONE), scored("HR@1", DOWN, ONE, 1, history=0 * ONE, exclude=0 * ONE)),
    "labels 1 and 2": (sessions(SCORES, LABELS + 1, PAIRS, 1), "entry of 32 rows is relevant, with labels 1 to 2",
        sessions(SCORES, LABELS, PAIRS, 1 / 2), sessions(-SCORES, LABELS + 1, PAIRS, 1, "NDCG")),
    "ratings of all items": (scored("HR@1", DOWN, 1 + DOWN.abs() % 5, 1), "32 rows is relevant, with labels 1 to 5",
        scored("HR@1", DOWN, DOWN.abs() % 5 >= 3, 0), scored("HR@1", DOWN, DOWN.abs() % 5, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_asked_about(name):
    """It gives a number and one question, whose cure gives the right number in silence, as an honest neighbour does."""
    mistake, words, cured, honest = MISTAKES[name]
    assert sum(words in question for question in mistake.questions()) == 1, mistake.questions()
    assert cured.questions() == honest.questions() == []


def normal(*shape):
    return torch.randn(*shape, generator=RANDOM)


def numbers(high, *shape):
    return torch.randint(high, shape, generator=RANDOM)


def distinct(items, width=1):
    return torch.rand(64, items, generator=RANDOM).argsort(1)[:, :width]


WIDE, DENSE, OUTLIER = normal(64, 500), torch.rand(64, 50, generator=RANDOM), torch.arange(500) == 7
SQUARE = torch.cartesian_prod(torch.arange(8), torch.arange(8))
LAST, FIFTH, ENTRY = rows([49], times=64), torch.arange(64)[:, None] == 5, torch.arange(96)
HONEST = {
    "log-probabilities to -5,000": -5000 * DENSE,
    "log-probabilities with one low item": WIDE.log_softmax(1).masked_fill(OUTLIER, -999.0),
    "log(p + 1e-9)": ((DENSE - 0.3).clamp(min=0) + 1e-9).log(),
    "clamped logits": (5000 * WIDE).clamp(-6000, 6000),
    "distances": -(1e6 * WIDE).abs().round(),
    "squared distances with an item far away": torch.where(OUTLIER, -((1000 + 9 * WIDE) ** 2), WIDE),
    "a row that diverged": torch.where(FIFTH & (torch.arange(500) < 9), -1e9, WIDE),
    "integer scores": (5000 * WIDE).round(),
    "constant columns": WIDE.masked_fill(OUTLIER, 0.5).masked_fill(OUTLIER.roll(1), 0),
    "repeated rows": WIDE[:1].repeat(64, 1),
    "a catalogue of two": normal(64, 2),
    "one user": scored("AUROC", WIDE[:1], tensor([3])),
    "three of four items in descending order": scored("HR@1", DENSE[:, :4], rows([3, 1, 0], times=64)),
    "item 0 last in a catalogue of three": scored("HR@1", DENSE[:, :3], rows([2, 0], [1, 0])),
    "descending ids": scored("MRR", DENSE, distinct(50, 40).sort(1, descending=True).values),
    "two of five items": scored("MRR", DENSE[:, :5], distinct(5, 2)),
    "padding of -1 behind item 0": scored("HR@5", DENSE, rows([5, 0], [3, 7], [4, -1], [2, 9], times=16)),
    "exclude with repeats, item 0 too": scored("MRR", DENSE, LAST, exclude=numbers(4, 64, 9)),
    "labels 0, 1 and 2": scored("NDCG", DENSE, numbers(3, 64, 50).float()),
    "ratings of all items": scored("NDCG", DENSE, 1.0 + numbers(5, 64, 50)),
    "hashed ids of lists": Case("HR@5", trm.Lists(numbers(2**40, 64, 5), numbers(2**40, 64, 1))),
    "candidates of low recall": chosen(DENSE, distinct(9000), distinct(9000, 50), INF),
    "ranks of a model": Case("HR@5", trm.Ranks(4 ** torch.arange(5) + numbers(3, 64, 5), complete=True)),
    "padded ranks": Case("HR@5", trm.Ranks(torch.cat([distinct(9, 2) + 1, 0 * distinct(3, 3)], 1), complete=True)),
    "ranks from 0": Case("HR@1", trm.Ranks(distinct(2, 2), zero_based=True, complete=True)),
    "padded targets": Case("HR@1", trm.Ranks(trm.get_topk_ranks(-DOWN, rows([-1, 11]), 1))),
    "hits of a good model": Case("Recall@9", trm.Hits(rows([1] + [0] * 8, [0] * 9), torch.arange(1, 65) % 2)),
    "one session of equal times": sessions(normal(96), ENTRY % 2, 0 * ENTRY),
    "chunks of items of each session": sessions(normal(96), numbers(2, 96), ENTRY % 12, collect=True),
    "an entry of each session in turn": sessions(normal(96), ENTRY % 7 == 0, ENTRY % 32),
    "hashed session ids": sessions(normal(96), numbers(2, 96), numbers(2**60, 32).repeat(3)),
    "probabilities as labels": sessions(normal(96), torch.rand(96, generator=RANDOM), ENTRY // 3, metric="NDCG"),
    "a pool that is sorted": Case("AUROC", trm.Negatives(normal(64), normal(100).sort().values, pool=True)),
    "negatives of uneven number": Case("AUROC", trm.Negatives(normal(64), WIDE.where(WIDE > 0, -INF))),
    "beams of a full code space": Case("MRR@2", trm.SemanticIds(SQUARE).beams(numbers(8, 64, 9, 2), numbers(64, 64))),
    "beams of an untrained model": beamed(numbers(8, 64, 9, 3), numbers(200, 64)),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_data_is_not_asked_about(name):
    """Scores of any scale, repeated rows, tiny catalogues, hashed ids and other data give a number in silence."""
    case = HONEST[name]
    case = scored("AUROC", case, distinct(case.shape[1])) if isinstance(case, torch.Tensor) else case
    assert case.questions() == []


@pytest.mark.parametrize("name", [name for name, (mistake, *_) in MISTAKES.items() if not mistake.collect])
def test_elsewhere_reading_waits_once(name):
    """Numbers of all questions are computed without waiting; `ask` reads them with one call."""
    case = MISTAKES[name][0]
    needs = trm.RecMetricCollection([case.metric]).evaluator.formulas.needs
    options = trm.RecMetricCollection([case.metric], padding_idx=case.padding_idx).evaluator.ranking_options
    ranking = case.batch.rank(needs, options)
    batch, of_meta = away(case.batch), away(ranking)
    with never_waits():
        questions = list(module.questions_about(batch, of_meta, needs, case.padding_idx))
    assert all(number.is_meta and not number.dim() for _, numbers in questions for number in numbers)
    with Reads() as reads:
        assert told(module.Questions().ask, case.batch, ranking, needs, options)
    assert reads.calls == [torch.Tensor.tolist]


class Reads(TorchFunctionMode):
    """Counts the calls that read values, and would wait for a GPU."""

    def __init__(self):
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        waits = (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.cpu)
        if func in (*waits, torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.numpy, torch.Tensor.nonzero):
            self.calls.append(func)
        return func(*args, **(kwargs or {}))


def test_a_history_that_another_collection_reads():
    """One input for two collections is not asked about, if the first of them reads the history."""
    batch = trm.Scores(DOWN, ONE, history=0 * ONE)
    seen = told(trm.Seen(1).update, batch)

    assert seen == told(trm.HR(1).update, batch) == []


def test_swapped_scores_are_asked_about_once():
    """Scores of 0 and 1 are tied, and labels of scores are all relevant, but only the swap is named."""
    (question,) = told(trm.HR(1).update, LISTED.float(), torch.rand(32, 5, generator=RANDOM) + 0.1)

    assert "are the two swapped" in question


class Multiplied(TorchDispatchMode):
    """Counts the rows of matrix products."""

    def __init__(self):
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.rows += args[-2].shape[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("metric", ["NDCG@10", "AUROC"])
def test_products_are_multiplied_once(metric):
    """`evaluate` of 50 users multiplies 50 rows of embeddings."""
    users, items, truth = torch.rand(50, 4), torch.rand(60, 4), torch.eye(50, 60, dtype=torch.bool)
    with Multiplied() as multiplied:
        trm.evaluate(metric, users, items, target=truth)
    assert multiplied.rows == 50


@pytest.mark.parametrize("make", [trm.AUROC, lambda **options: trm.RecMetricCollection(["AUROC", "HR@1"], **options)])
def test_a_metric_asks_once(make):
    """About its first batch of 32 rows, not after `reset` or in copies; a clone that has no update asks itself."""
    metric, clone, empty = make(), make().clone(), make().to("meta")
    assert [len(told(metric.update, MASKED[:n], ONE[:n])) for n in (31, 32, 32)] == [0, 1, 0]
    metric.reset()
    assert told(metric.update, MASKED, ONE) == told(metric.clone().update, MASKED, ONE) == []
    assert [len(told(clone.update, MASKED, ONE)) for _ in range(2)] == [1, 0]
    empty.update(MASKED.to("meta"), ONE.to("meta"))
    assert not getattr(empty, "evaluator", empty)._questions.are_asked
    assert told(make(validate_args=False).update, MASKED, ONE) == []


@pytest.mark.parametrize("inference", [False, True])
def test_evaluate_asks_in_the_first_epoch(inference):
    """A collection that is evaluated again, as callbacks do, does not ask again."""
    truth, metrics, values = rows([0, 1, 0, 0]).bool(), trm.RecMetricCollection(["AUROC"]), []

    def evaluate(low):
        target = trm.Interactions.from_dense(truth)
        with torch.inference_mode(inference):
            evaluation = trm.evaluate(
                metrics, lambda users: tensor([0, 1, 2, low]).repeat(len(users), 1), target=target
            )
        values.append(evaluation["AUROC"])

    epochs = [told(evaluate, low) for low in (-1e9, -1e9, -INF)]
    assert [sum("far below" in text for text in texts) for texts in epochs] == [1, 0, 0]
    assert values == [2 / 3, 2 / 3, 1 / 2]


def test_other_processes_do_not_ask(monkeypatch):
    """Only the process of rank zero reads the batch."""
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    metric = trm.AUROC()
    assert told(metric.update, MASKED, ONE) == []
    assert not metric._questions.are_asked


@pytest.mark.parametrize("compiler", [None, "eager"])
def test_traced_batches_are_not_read(compiler):
    """Tensors without data, as in a fake-tensor mode, are left for a later batch; torch.compile leaves `update` out."""
    if compiler:
        metric = trm.AUROC()
        update = torch.compile(lambda: metric.update(MASKED, ONE), backend=compiler)
        assert len(told(update)) == 1
        return
    metric = trm.AUROC(validate_args="deferred", kernels="eager")
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        metric.update(mode.from_tensor(MASKED), mode.from_tensor(ONE))
    assert not metric._questions.are_asked


def shard(rank, world_size):
    metric, scores = trm.AUROC(), MASKED.flip(1)[:, 2 * rank : 2 * rank + 2]
    questions = told(metric.update, trm.ItemShard(scores, 2 * ONE, 2 * rank, 4))
    return metric.compute().item(), sum("far below" in question for question in questions)


def test_shards_of_items(processes):
    """Each process asks about its own columns."""
    assert processes.run(shard, 2) == [(2 / 3, 1), (2 / 3, 0)]


class Own:
    scores = "of another kind"

    def rank(self, needs, options):
        return trm.Scores(MASKED, ONE).rank(needs, options)


def test_an_input_of_another_package():
    """It is asked about its ranking alone, whatever its attributes are."""
    assert told(trm.AUROC().update, Own()) == []
