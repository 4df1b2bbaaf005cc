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


def questions_of(run, *arguments):
    """Return the warnings that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(*arguments)
    return [str(warning.message) for warning in caught]


class Case(NamedTuple):
    """A batch, or entries of sessions to be collected, of one metric, and its value."""

    metric: str
    batch: object
    value: float | None = None
    padding_idx: int | None = None
    collect: bool = False

    def outcome(self):
        """Return the value of the metric, and the questions about the batch."""
        metrics, arguments = trm.RecMetricCollection([self.metric], padding_idx=self.padding_idx), (self.batch,)
        if self.collect:
            metrics = trm.CollectSessions(metrics)
            arguments = self.batch.scores, self.batch.labels, self.batch.indexes
        questions = questions_of(metrics.update, *arguments) + questions_of(metrics.compute)
        (value,) = metrics.compute().values()
        return value.item(), questions


def rows(*entries, times=32):
    return tensor(entries).repeat(times, 1)


def scored(metric, scores, target, value=None, padding_idx=None, **arguments):
    return Case(metric, trm.Scores(scores, target, **arguments), value, padding_idx)


def sessions(scores, labels, indexes, value=None, metric="MRR", **arguments):
    return Case(metric, trm.Sessions(scores, labels, indexes), value, **arguments)


USERS = torch.arange(32)
ITEM_0, ITEM_1, ITEM_2, ITEM_3, NO_ITEM = (torch.full((32,), item) for item in (0, 1, 2, 3, -1))
FALLS = -torch.arange(12.0).expand(32, -1)  # item 0 is the best
HISTORIES = rows([5, 6, 0, 0], [5, 6, 7, 8], times=16)
PADDED_TARGETS = torch.stack([1 + USERS % 11, NO_ITEM], 1)
# a mistake, words of the question; the cured data; an honest neighbour
MISTAKES_OF_PADDING = {
    "excluded ids end with 0": (
        scored("HR@1", FALLS, ITEM_1, 16 / 32, exclude=HISTORIES), "of exclude looks",
        scored("HR@1", FALLS, ITEM_1, 1, padding_idx=0, exclude=HISTORIES),
        scored("HR@1", FALLS, ITEM_1, 1, exclude=rows([0, 5], [6, 0], times=16))),
    "targets end with 0": (
        scored("Recall@1", FALLS, PADDED_TARGETS.clamp(min=0), 1 / 2), "pad with -1",
        scored("Recall@1", FALLS, PADDED_TARGETS, 0), scored("Recall@1", FALLS, rows([5, 0], [7, 3], times=16), 1 / 4)),
    "some targets end with 0": (
        scored("Recall@1", FALLS, rows([5, 0], [3, 7], times=16), 1 / 4), "of target looks",
        scored("Recall@1", FALLS, rows([5, -1], [3, 7], times=16), 0),
        scored("Recall@1", FALLS, rows([5, 0], [0, 7], times=16), 1 / 2)),
    "a history that no metric reads": (
        scored("HR@1", FALLS, ITEM_1, 0, history=ITEM_0), "no metric of this update reads history=",
        scored("HR@1", FALLS, ITEM_1, 1, exclude=ITEM_0),
        scored("HR@1", FALLS, ITEM_1, 1, history=ITEM_0, exclude=ITEM_0)),
}  # fmt: skip


def negatives(negative, value, metric="AUROC"):
    return Case(metric, trm.Negatives(torch.full((32,), 0.5), negative, pool=negative.dim() == 1), value)


def candidates(scores, items, value):
    return Case("AUROC", trm.Candidates(scores, ITEM_1, items=items), value)


def sessions_with(low, **arguments):
    labels, indexes = tensor([0, 0, 1, 0, 0]).repeat(8), torch.arange(8).repeat_interleave(5)
    return sessions(tensor([0.3, 0.7, 0.5, low, low]).repeat(8), labels, indexes, metric="AUROC", **arguments)


MASKED, REMOVED, ITEMS = rows([0.0, 1, 2, -1e9]), rows([0.0, 1, 2, -INF]), tensor([0, 1, 2, 3])
HALF, HALF_REMOVED = rows([0.3, LOWEST, 0.7, LOWEST]), rows([0.3, -INF, 0.7, -INF])
MISTAKES_OF_LOW_SCORES = {
    "items at -1e9": (
        scored("AUROC", MASKED, ITEM_1, 2 / 3), "the whole list count all candidates",
        scored("AUROC", REMOVED, ITEM_1, 1 / 2), scored("AUROC", MASKED.flip(1), ITEM_2, 1 / 2, padding_idx=0)),
    "some items at -1e9": (
        scored("AUROC", MASKED, ITEM_1, 2 / 3, exclude=NO_ITEM), "or pass exclude=",
        scored("AUROC", MASKED, ITEM_1, 1 / 2, exclude=ITEM_3), scored("HR@1", MASKED, ITEM_1, 0)),
    "candidates at -1e9": (
        candidates(MASKED, ITEMS, 2 / 3), "set their scores to -torch.inf",
        candidates(REMOVED, ITEMS, 1 / 2), candidates(MASKED, tensor([0, 1, 2, -1]), 1 / 2)),
    "negatives at -FLT_MAX": (
        negatives(HALF, 3 / 4), "score -3.40282e+38 of 64 candidates",
        negatives(HALF_REMOVED, 1 / 2), negatives(HALF, 0, "HR@1")),
    "a pool at -FLT_MAX": (
        negatives(HALF[:9].flatten(), 3 / 4), "of 18 candidates is far below all others, 0.3 to 0.7",
        negatives(HALF_REMOVED[:9].flatten(), 1 / 2), negatives(HALF[0], 3 / 4)),
    "sessions at -1e9": (
        sessions_with(-1e9, value=3 / 4), "of 16 candidates",
        sessions_with(-INF, value=1 / 2), sessions_with(-60.0, value=3 / 4)),
    "collected at -1e9": (
        sessions_with(-1e9, value=3 / 4, collect=True), "of 16 candidates",
        sessions_with(-INF, value=1 / 2, collect=True), sessions_with(-60.0, value=3 / 4, collect=True)),
}  # fmt: skip


def hits(flags, num_relevant, value, metric="Recall@3", **options):
    return Case(metric, trm.Hits(flags, num_relevant, **options), value)


FALLING = -(torch.arange(1.0, 6) ** (1 + torch.arange(32.0)[:, None] / 32))  # each row in its own way
LISTED = (torch.arange(5) == 0) & (USERS[:, None] % 4 == 0)  # a hit in each fourth row
FLAGS = rows([0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], times=20)
BINARY, GRADES = rows([0.0, 1], [1, 0], times=16), rows([0.75, 0.25], [0.5, 0.25], times=16)
# sessions of two entries, the second of which is relevant and scores less
SCORES, LABELS, PAIRS = tensor([0.9, 0.1]).repeat(32), tensor([0, 1]).repeat(32), USERS.repeat_interleave(2)
MISTAKES_OF_LABELS = {
    "rounded scores": (
        scored("HR@1", 0 * FALLS, ITEM_1, 1 / 12), "32 of 32 rows have a relevant item that shares",
        scored("HR@1", FALLS, ITEM_1, 0),
        scored("HR@1", rows([0.2, 0.2], [0.2, 0.3], times=16), ITEM_1, (1 / 2 + 1) / 2)),
    "hits beside scores of lists": (
        scored("HR@1", FALLING, LISTED, 1), "Hits(flags, num_relevant=)",
        hits(LISTED, 1, 1 / 4, "HR@1"), scored("HR@1", FALLING[:1] + USERS[:, None], LISTED, 1)),
    "hits as relevant items": (
        hits(FLAGS, FLAGS.sum(1), 1), "num_relevant is the number",
        hits(FLAGS, 1, 3 / 4), hits(FLAGS, FLAGS.sum(1), 1, complete=True)),
    "scores and labels swapped": (
        scored("MRR", BINARY, GRADES, 1), "are the two swapped",
        scored("MRR", GRADES, BINARY, (1 / 2 + 1) / 2),
        scored("MRR", BINARY, GRADES * tensor([1, 0]), (1 / 2 + 1) / 2)),
    "labels 1 and 2": (
        sessions(SCORES, LABELS + 1, PAIRS, 1), "entry of 32 rows is relevant, with labels 1 to 2",
        sessions(SCORES, LABELS, PAIRS, 1 / 2), sessions(-SCORES, LABELS + 1, PAIRS, 1, "NDCG")),
    "ratings of all items": (
        scored("HR@1", FALLS, 1 + FALLS.abs() % 5, 1), "32 rows is relevant, with labels 1 to 5",
        scored("HR@1", FALLS, FALLS.abs() % 5 >= 3, 0), scored("HR@1", FALLS, FALLS.abs() % 5, 0)),
}  # fmt: skip
MISTAKES = MISTAKES_OF_PADDING | MISTAKES_OF_LOW_SCORES | MISTAKES_OF_LABELS


@pytest.mark.parametrize(("case", "words"), [mistake[:2] for mistake in MISTAKES.values()], ids=MISTAKES)
def test_a_mistake_gives_a_number_and_one_question(case, words):
    value, questions = case.outcome()

    assert value == pytest.approx(case.value)
    assert [words in question for question in questions].count(True) == 1, questions


@pytest.mark.parametrize("case", [cured for *_, cured, _ in MISTAKES.values()], ids=MISTAKES)
def test_the_cure_gives_the_right_number_in_silence(case):
    assert case.outcome() == (pytest.approx(case.value), [])


@pytest.mark.parametrize("case", [honest for *_, honest in MISTAKES.values()], ids=MISTAKES)
def test_honest_data_near_a_mistake_gives_its_number_in_silence(case):
    assert case.outcome() == (pytest.approx(case.value), [])


def normal(*shape):
    return torch.randn(*shape, generator=RANDOM)


def numbers(high, *shape):
    return torch.randint(high, shape, generator=RANDOM)


def distinct(items, width=1):
    return torch.rand(64, items, generator=RANDOM).argsort(1)[:, :width]


WIDE, DENSE, OUTLIER = normal(64, 500), torch.rand(64, 50, generator=RANDOM), torch.arange(500) == 7
SQUARE = torch.cartesian_prod(torch.arange(8), torch.arange(8))
CODES = trm.SemanticIds(torch.stack([torch.randperm(8, generator=RANDOM)[:3] for _ in range(200)]))
LAST, FIFTH, ENTRY = rows([49], times=64), torch.arange(64)[:, None] == 5, torch.arange(96)
HONEST_SCORES = {
    "log-probabilities to -5,000": -5000 * DENSE,
    "log-probabilities with one low item": WIDE.log_softmax(1).masked_fill(OUTLIER, -999.0),
    "log(p + 1e-9)": ((DENSE - 0.3).clamp(min=0) + 1e-9).log(),
    "clamped logits": (5000 * WIDE).clamp(-6000, 6000),
    "distances": -(1e6 * WIDE).abs().round(),
    "squared distances with an item far away": torch.where(OUTLIER, -((1000 + 9 * WIDE) ** 2), WIDE),
    "a row that diverged": torch.where(FIFTH & (torch.arange(500) < 9), -1e9, WIDE),
    "repeated rows": WIDE[:1].repeat(64, 1),
    "a catalogue of two": normal(64, 2),
}
HONEST = {name: scored("AUROC", scores, distinct(scores.shape[1])) for name, scores in HONEST_SCORES.items()} | {
    "one user": scored("AUROC", WIDE[:1], tensor([3])),
    "three of four items in descending order": scored("HR@1", DENSE[:, :4], rows([3, 1, 0], times=64)),
    "item 0 last in a catalogue of three": scored("HR@1", DENSE[:, :3], rows([2, 0], [1, 0])),
    "two of five items": scored("MRR", DENSE[:, :5], distinct(5, 2)),
    "padding of -1 behind item 0": scored("HR@5", DENSE, rows([5, 0], [3, 7], [4, -1], [2, 9], times=16)),
    "exclude with repeats, item 0 too": scored("MRR", DENSE, LAST, exclude=numbers(4, 64, 9)),
    "labels 0, 1 and 2": scored("NDCG", DENSE, numbers(3, 64, 50).float()),
    "ratings of all items": scored("NDCG", DENSE, 1.0 + numbers(5, 64, 50)),
    "hashed ids of lists": Case("HR@5", trm.Lists(numbers(2**40, 64, 5), numbers(2**40, 64, 1))),
    "candidates of low recall": Case("MRR", trm.Candidates(DENSE, distinct(9000), items=distinct(9000, 50))),
    "ranks of a model": Case("HR@5", trm.Ranks(4 ** torch.arange(5) + numbers(3, 64, 5), complete=True)),
    "padded ranks": Case("HR@5", trm.Ranks(torch.cat([distinct(9, 2) + 1, 0 * distinct(3, 3)], 1), complete=True)),
    "ranks from 0": Case("HR@1", trm.Ranks(distinct(2, 2), zero_based=True, complete=True)),
    "padded targets": Case("HR@1", trm.Ranks(trm.get_topk_ranks(-FALLS, rows([-1, 11]), 1))),
    "hits of a good model": Case("Recall@9", trm.Hits(rows([1] + [0] * 8, [0] * 9), torch.arange(1, 65) % 2)),
    "one session of equal times": sessions(normal(96), ENTRY % 2, 0 * ENTRY),
    "chunks of items of each session": sessions(normal(96), numbers(2, 96), ENTRY % 12, collect=True),
    "an entry of each session in turn": sessions(normal(96), ENTRY % 7 == 0, ENTRY % 32),
    "probabilities as labels": sessions(normal(96), torch.rand(96, generator=RANDOM), ENTRY // 3, metric="NDCG"),
    "a pool that is sorted": Case("AUROC", trm.Negatives(normal(64), normal(100).sort().values, pool=True)),
    "negatives of uneven number": Case("AUROC", trm.Negatives(normal(64), WIDE.where(WIDE > 0, -INF))),
    "beams of a full code space": Case("MRR@2", trm.SemanticIds(SQUARE).beams(numbers(8, 64, 9, 2), numbers(64, 64))),
    "beams of an untrained model": Case("MRR@2", CODES.beams(numbers(8, 64, 9, 3), numbers(200, 64))),
}


@pytest.mark.parametrize("case", HONEST.values(), ids=HONEST)
def test_honest_data_is_not_asked_about(case):
    _, questions = case.outcome()

    assert questions == []


BATCHES = {name: case for name, (case, *_) in MISTAKES.items() if not case.collect}


def read(case):
    """Return the ranking of a case, and the needs and options with which a collection makes it."""
    evaluator = trm.RecMetricCollection([case.metric], padding_idx=case.padding_idx).evaluator
    needs, options = evaluator.formulas.needs, evaluator.ranking_options
    return case.batch.rank(needs, options), needs, options


@pytest.mark.parametrize("case", BATCHES.values(), ids=BATCHES)
def test_numbers_of_questions_are_computed_without_waiting(case):
    ranking, needs, _ = read(case)
    batch, ranking = away(case.batch), away(ranking)
    with never_waits():
        questions = list(module.questions_about(batch, ranking, needs, case.padding_idx))

    assert {(number.is_meta, number.dim()) for _, answers in questions for number in answers} == {(True, 0)}


class Reads(TorchFunctionMode):
    """Counts the calls that read values, and would wait for a GPU."""

    def __init__(self):
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        waits = (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.cpu)
        if func in (*waits, torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.numpy, torch.Tensor.nonzero):
            self.calls.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", BATCHES.values(), ids=BATCHES)
def test_all_questions_read_values_once(case):
    ranking, needs, options = read(case)
    with Reads() as reads:
        questions = questions_of(module.Questions().ask, case.batch, ranking, needs, options)

    assert questions
    assert reads.calls == [torch.Tensor.tolist]


def test_a_history_that_another_collection_reads_is_not_asked_about():
    batch = trm.Scores(FALLS, ITEM_1, history=ITEM_0)
    trm.Seen(1).update(batch)

    assert questions_of(trm.HR(1).update, batch) == []


def test_swapped_scores_are_asked_about_once():
    """Scores of 0 and 1 are tied, and labels of scores are all relevant, but only the swap is named."""
    (question,) = questions_of(trm.HR(1).update, LISTED.float(), torch.rand(32, 5, generator=RANDOM) + 0.1)

    assert "are the two swapped" in question


class Multiplied(TorchDispatchMode):
    """Counts the rows of matrix products."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.rows += args[-2].shape[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("metric", ["NDCG@10", "AUROC"])
def test_embeddings_of_each_user_are_multiplied_once(metric):
    users, items, truth = torch.rand(50, 4), torch.rand(60, 4), torch.eye(50, 60, dtype=torch.bool)
    with Multiplied() as multiplied:
        trm.evaluate(metric, users, items, target=truth)

    assert multiplied.rows == 50


def test_a_metric_asks_once_about_its_first_batch_of_32_rows():
    metric = trm.AUROC()

    assert [len(questions_of(metric.update, MASKED[:n], ITEM_1[:n])) for n in (31, 32, 32)] == [0, 1, 0]


@pytest.mark.parametrize("again", [lambda metric: metric, lambda metric: metric.clone()], ids=["reset", "copied"])
def test_a_metric_that_has_asked_does_not_ask_again(again):
    metric = trm.AUROC()
    questions_of(metric.update, MASKED, ITEM_1)
    metric.reset()

    assert questions_of(again(metric).update, MASKED, ITEM_1) == []


def test_a_clone_that_has_no_update_asks_itself():
    metric = trm.AUROC()
    clone = metric.clone()
    questions_of(metric.update, MASKED, ITEM_1)

    assert len(questions_of(clone.update, MASKED, ITEM_1)) == 1


def test_a_batch_on_meta_is_left_for_a_later_one():
    metric = trm.AUROC().to("meta")
    metric.update(MASKED.to("meta"), ITEM_1.to("meta"))

    assert not metric._questions.are_asked


def test_an_unchecked_metric_does_not_ask():
    assert questions_of(trm.AUROC(validate_args=False).update, MASKED, ITEM_1) == []


@pytest.mark.parametrize("inference", [False, True])
def test_a_collection_that_is_evaluated_again_does_not_ask_again(inference):
    """As callbacks do in each epoch."""
    metrics, target = trm.RecMetricCollection(["AUROC"]), trm.Interactions.from_dense(rows([0, 1, 0, 0]).bool())

    def evaluate():
        with torch.inference_mode(inference):
            trm.evaluate(metrics, lambda users: tensor([0, 1, 2, -1e9]).repeat(len(users), 1), target=target)

    epochs = [questions_of(evaluate) for _ in range(2)]

    assert [sum("far below" in question for question in questions) for questions in epochs] == [1, 0]


def test_only_the_process_of_rank_zero_asks(monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    metric = trm.AUROC()

    assert questions_of(metric.update, MASKED, ITEM_1) == []
    assert not metric._questions.are_asked


def test_a_compiled_update_asks():
    """`torch.compile` leaves `update` out."""
    metric = trm.AUROC()
    update = torch.compile(lambda: metric.update(MASKED, ITEM_1), backend="eager")

    assert len(questions_of(update)) == 1


def test_tensors_without_data_are_left_for_a_later_batch():
    metric = trm.AUROC(validate_args="deferred", kernels="eager")
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        metric.update(mode.from_tensor(MASKED), mode.from_tensor(ITEM_1))

    assert not metric._questions.are_asked


def value_and_questions_of_shard(rank, world_size):
    metric, scores = trm.AUROC(), MASKED.flip(1)[:, 2 * rank : 2 * rank + 2]
    questions = questions_of(metric.update, trm.ItemShard(scores, ITEM_2, 2 * rank, 4))
    return metric.compute().item(), sum("far below" in question for question in questions)


def test_each_process_asks_about_its_own_columns(processes):
    assert processes.run(value_and_questions_of_shard, 2) == [(2 / 3, 1), (2 / 3, 0)]


class InputOfAnotherPackage:
    scores = "of another kind"

    def rank(self, needs, options):
        return trm.Scores(MASKED, ITEM_1).rank(needs, options)


def test_of_an_input_of_another_package_the_ranking_alone_is_asked_about():
    assert questions_of(trm.AUROC().update, InputOfAnotherPackage()) == []
