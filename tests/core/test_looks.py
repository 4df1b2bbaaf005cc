"""Data of the right shape and the wrong meaning is asked about; honest data near each limit is not."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from waiting import away, never_waits

import torchrecmetrics as trm
from torchrecmetrics.inputs import judges

INF = float("inf")


def told(run):
    """Return the value of `run`, or the text of its error, and the warnings that it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = run()
        except ValueError as error:
            value = str(error)
    return value, [str(warning.message) for warning in caught]


def value_of(name, batches, collect=False, **options):
    """Return the value of a metric of the batches, each an input or the arguments of `update`."""
    metric = trm.RecMetricCollection([name], **options)
    metric = trm.CollectSessions(metric) if collect else metric
    for batch in batches:
        metric.update(*batch if isinstance(batch, tuple) else (batch,))
    (value,) = metric.compute().values()
    return value.item()


def random(seed=0):
    return torch.Generator().manual_seed(seed)


# Pools: each row has negatives of its own
OWN = torch.tensor([0.9, 0.5, 0.1]), torch.tensor([0.8, 0.6, 0.2])
FLAT = [(torch.tensor([3.0, 1]), torch.tensor([2.0, 0, 4, 5])), (torch.tensor([1.0]), torch.tensor([0.0, 2]))]
# Candidates: the relevant item stands in column 0 and is second
ITEMS = torch.arange(32)[:, None] * 10 + torch.tensor([105, 101, 103])
SECOND = torch.tensor([0.5, 0.9, 0.1]).expand(32, -1)
# Codes: 16 of 16^3; the second of two beams is the relevant item
CODES = torch.arange(16)[:, None] * torch.tensor([1, 7, 3]) % 16
SEMANTIC = trm.SemanticIds(CODES)
ROW = torch.arange(32) % 16
BEAMS = torch.stack([CODES[(ROW + 1) % 16], CODES[ROW]], 1)
# Lists of a small catalogue, in which item (row + 3) % 20 is second
LISTS = (torch.arange(40)[:, None] + 3 * torch.arange(5)) % 20
# Flags of hits of lists whose scores fall, each row in its own way; a hit in 2 of 8 rows
FALLING = -(torch.arange(1.0, 6) ** (1 + torch.arange(8.0)[:, None] / 8))
FLAGS = torch.zeros(8, 5, dtype=torch.bool).index_fill_(0, torch.tensor([0, 1]), True) & (torch.arange(5) == 0)
# Sessions of 2 and 3 entries, numbered anew in each batch
TWO_BATCHES = [
    (torch.tensor([0.9, 0.1, 0.5, 0.4, 0.3]), torch.tensor([1, 0, 0, 1, 0]), torch.tensor([0, 0, 1, 1, 1])),
    (torch.tensor([0.2, 0.1, 0.6, 0.1, 0.0]), torch.tensor([0, 1, 1, 0, 0]), torch.tensor([0, 0, 1, 1, 1])),
]
LENGTHS = torch.tensor([1, 3] * 4)
WITHIN = torch.tensor([0, 0, 1, 2] * 4)
ENTRIES = torch.tensor([0.1, 0.9, 0.5, 0.1] * 4), torch.tensor([1, 0, 1, 0] * 4)
PAIRS = torch.tensor([0.9, 0.1]).repeat(20), torch.tensor([1, 2]).repeat(20), torch.arange(20).repeat_interleave(2)
CUT = [[0, 0, 1], [1, 2], [2, 3], [3, 3, 4]]
FOUND = torch.tensor([[True, False]] * 300 + [[False, False]] * 200)
MASKED = torch.tensor([0.0, 1, 2, -1e9]).expand(4, -1)
ONE = torch.ones(4, dtype=torch.int64)
PADDED = torch.tensor([[5, 0], [3, 7]] * 16)
DOWN = -torch.arange(10.0).expand(32, -1)


def cut(ids):
    return trm.Sessions(torch.linspace(0, 1, len(ids)), torch.tensor([1] + [0] * (len(ids) - 1)), torch.tensor(ids))


MISTAKES = {
    # name: metric, mistaken batches, their value (None = an error), right batches, their value, words of the question
    "a pool as long": (
        "MRR", [trm.Negatives(*OWN)], None, [trm.Negatives(OWN[0], OWN[1][:, None])], (1 + 1 / 2 + 1 / 2) / 3,
        "negative[:, None]",
    ),
    "a flat pool": (
        "MRR", [trm.Negatives(*part) for part in FLAT], (1 / 3 + 1 / 4 + 1 / 2) / 3,
        [trm.Negatives(positive, flat.view(-1, 2)) for positive, flat in FLAT], (1 + 1 / 3 + 1 / 2) / 3,
        "negative.view(-1, 2)",
    ),
    "target = column 0": (
        "MRR", [trm.Candidates(SECOND, torch.zeros(32).long(), ITEMS)], 0,
        [trm.Candidates(SECOND, ITEMS[:, 0], ITEMS)], 1 / 2, "32 of 32 targets are no candidates, and all are item 0",
    ),
    "candidates from 1": (
        "MRR", [trm.Candidates(SECOND, ITEMS[:, 0] - 1, ITEMS)], 0, [trm.Candidates(SECOND, ITEMS[:, 0], ITEMS)], 1 / 2,
        "but target + 1 is",
    ),
    "targets from 1": (
        "MRR", [trm.Candidates(SECOND, ITEMS[:, 0] + 1, ITEMS)], 0, [trm.Candidates(SECOND, ITEMS[:, 0], ITEMS)], 1 / 2,
        "but target - 1 is",
    ),
    "token offsets": (
        "MRR@2", [SEMANTIC.beams(BEAMS + torch.arange(3) * 16, ROW)], None, [SEMANTIC.beams(BEAMS, ROW)], 1 / 2,
        "100% of beams - 16 * torch.arange(3) are",
    ),
    "codes from 1": (
        "MRR@2", [SEMANTIC.beams(BEAMS + 1, ROW)], None, [SEMANTIC.beams(BEAMS, ROW)], 1 / 2, "100% of beams - 1 are",
    ),
    "token offsets from 1": (
        "MRR@2", [SEMANTIC.beams(BEAMS + torch.arange(3) * 16 + 1, ROW)], None, [SEMANTIC.beams(BEAMS, ROW)], 1 / 2,
        "100% of beams - 1 - 16 * torch.arange(3) are",
    ),
    "codes as rows": (
        "MRR@2", [SEMANTIC.beams(BEAMS, CODES[ROW])], None, [SEMANTIC.beams(BEAMS, target_codes=CODES[ROW])], 1 / 2,
        "pass target_codes=",
    ),
    "flags as ranks": (
        "MRR@2", [torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0]])], None,
        [trm.Hits(torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0]]), num_relevant=2)], (1 / 2 + 0 + 1) / 3, "pass Hits(",
    ),
    "small ids as ranks": (
        "HR@2", [LISTS], 20 / 40, [trm.Lists(LISTS, (torch.arange(40) + 3) % 20)], 1, "look like item ids",
    ),
    "large ids as ranks": (
        "HR@2", [LISTS + 100], 0, [trm.Lists(LISTS, (torch.arange(40) + 3) % 20)], 1, "Lists(item_ids, target)",
    ),
    "hits beside beam scores": (
        "HR@1", [(FALLING, FLAGS)], 2 / 2, [trm.Hits(FLAGS, num_relevant=1)], 2 / 8, "Hits(flags, num_relevant=)",
    ),
    "sessions numbered anew": (
        "MRR", TWO_BATCHES, (1 + 1) / 2, [(s, y, ids + 2 * i) for i, (s, y, ids) in enumerate(TWO_BATCHES)],
        (1 + 1 / 2 + 1 / 2 + 1) / 4, "session ids begin at 0 in each of 2 batches",
    ),
    "rows numbered in sessions": (
        "MRR", [trm.Sessions(*ENTRIES, WITHIN)], (1 / 5 + 1) / 2, [trm.Sessions(*ENTRIES, lengths=LENGTHS)],
        (1 + 1 / 2) / 2, "lengths= the number of entries",
    ),
    "labels 1 and 2": (
        "HR@1", [trm.Sessions(*PAIRS)], 1, [trm.Sessions(PAIRS[0], PAIRS[1] - 1, PAIRS[2])], 0, "labels 1 to 2",
    ),
    "a session per entry": (
        "MRR", [trm.Sessions(PAIRS[0], PAIRS[1] - 1, torch.arange(40))], 1,
        [trm.Sessions(PAIRS[0], PAIRS[1] - 1, PAIRS[2])], 1 / 2, "each of 40 sessions has one entry",
    ),
    "ratings of all items": (
        "HR@1", [(DOWN, 1 + torch.arange(10.0).expand(32, -1) % 5)], 1,
        [(DOWN, torch.arange(10).expand(32, -1) % 5 >= 3)], 0, "every entry of 32 rows is relevant, with labels 1 to 5",
    ),
    "scores and labels swapped": (
        "HR@1", [trm.Sessions((PAIRS[1] - 1).float(), PAIRS[0], PAIRS[2])], 1,
        [trm.Sessions(PAIRS[0], PAIRS[1] - 1, PAIRS[2])], 0, "are the two swapped",
    ),
    "-1 = not found": (
        "MRR@5", [torch.tensor([1, -1, 2, -1])], None, [trm.Ranks(torch.tensor([1, -1, 2, -1]), miss=-1, depth=5)],
        (1 + 0 + 1 / 2 + 0) / 4, "miss=",
    ),
    "num_relevant = hits": (
        "Recall@2", [trm.Hits(FOUND, num_relevant=FOUND.sum(1))], 1, [trm.Hits(FOUND, num_relevant=1)], 300 / 500,
        "in all of 500 rows num_relevant is the number of hits, and 200 have none",
    ),
    "sessions that go on": (
        "MRR", [cut(ids) for ids in CUT], None,
        [cut([0, 0, 1, 1, 2, 2, 3, 3, 3, 4])], None, "is the first of the next one 3 times",
    ),
    "history at -1e9": (
        "AUROC", [(MASKED, ONE)], 2 / 3, [trm.Scores(MASKED, ONE, exclude=3 * ONE)], 1 / 2, "given as exclude=",
    ),
    "0 as padding": (
        "Recall@1", [(DOWN, PADDED)], (1 / 2 + 0) / 2, [(DOWN, PADDED.where(PADDED > 0, -1))], 0, "pad with -1",
    ),
    "a matrix of two items": (
        "HR@1", [(torch.tensor([[0.1, 0.9]] * 8), torch.tensor([[0, 1], [1, 0]] * 4))], None,
        [(torch.tensor([[0.1, 0.9]] * 8), torch.tensor([[0, 1], [1, 0]] * 4).bool())], (1 + 0) / 2, "target.bool()",
    ),
    "a repeated beam": (
        "MRR@2", [trm.Hits(torch.tensor([[1, 1]]), num_relevant=1)], None,
        [trm.Hits(torch.tensor([[1, 0]]), num_relevant=1)], 1, "hits & (hits.cumsum(1) <= 1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_asked_about(name):
    """On the CPU a mistake is an error, or a number with one question; the cure gives the right number in silence."""
    metric, mistaken, wrong, right, truth, words = MISTAKES[name]
    collect = name == "sessions numbered anew"
    value, questions = told(lambda: value_of(metric, mistaken, collect))
    if wrong is None and not questions:
        assert words in value
    else:
        assert sum(words in question for question in questions) == 1, questions
        assert wrong is None or value == pytest.approx(wrong, abs=1e-12)
    value, questions = told(lambda: value_of(metric, right, collect))
    assert not questions
    assert truth is None or value == pytest.approx(truth, abs=1e-12)


def waits(batch):
    """Return True for sessions and numbers per row, whose update waits for the device."""
    return isinstance(batch, trm.Sessions) or isinstance(getattr(batch, "num_relevant", None), torch.Tensor)


@pytest.mark.parametrize("name", MISTAKES)
def test_where_no_value_is_waited_for_compute_asks(name):
    """With "deferred" all questions come in `compute`, those that are errors on the CPU, too; "meta" reads nothing."""
    metric, mistaken, _, _, _, words = MISTAKES[name]
    collection = trm.RecMetricCollection([metric], validate_args="deferred")
    if collect := name == "sessions numbered anew":
        collection = trm.CollectSessions(collection)
    if name == "a pool as long":
        with pytest.raises(ValueError, match="one of each row's own is negative"):  # a shape, which is known
            collection.update(*mistaken)
        return
    elsewhere = trm.RecMetricCollection([metric], max_relevant=2).to("meta")
    arguments = [away(batch if isinstance(batch, tuple) else (batch,)) for batch in mistaken]
    with never_waits():
        for batch in arguments if not collect and not any(map(waits, mistaken)) else ():
            elsewhere.update(*batch)
    value, questions = told(lambda: [collection.update(*(b if isinstance(b, tuple) else (b,))) for b in mistaken])
    assert not questions
    value, questions = told(collection.compute)
    if name in ("-1 = not found", "a repeated beam"):
        assert words in value
    else:
        assert sum(words in question for question in questions) == 1, (value, questions)
    assert told(collection.compute)[1] == []


def sessions(ids, labels=None):
    labels = torch.arange(len(ids)) % 3 == 0 if labels is None else labels
    return torch.rand(len(ids), generator=random()), labels, ids


def many(rows, width, items):
    return torch.rand(rows, items, generator=random()).argsort(1)[:, :width]


BIG = torch.randn(64, 50, generator=random())
PAIRED = torch.arange(30).repeat_interleave(2)
HONEST = {
    # name: metric, batches; limits of single judges are below
    "pools of whole multiples, said": ("MRR", [trm.Negatives(*part, pool=True) for part in FLAT]),
    "a new item for all rows": ("MRR", [trm.Candidates(SECOND, torch.full((32,), 3), ITEMS)]),
    "ranks with padding": ("HR@5", [torch.cat([many(64, 4, 30) + 1, torch.tensor([[0], [9]] * 32)], 1)]),
    "the same sessions in chunks of items": ("MRR", [sessions(torch.arange(8).repeat_interleave(8))] * 3),
    "sessions numbered over all batches": ("MRR", [sessions(PAIRED + 30 * i) for i in range(4)]),
    "sessions whole in sorted batches": ("MRR", [trm.Sessions(*sessions(PAIRED))] * 5),
    "ratings and NDCG": ("NDCG", [trm.Sessions(*sessions(PAIRED, 1 + torch.arange(60) % 5))]),
    "ratings of all items and NDCG": ("NDCG", [(DOWN, 1 + torch.arange(10.0).expand(32, -1) % 5)]),
    "-1e9 below the cut-off": ("HR@1", [(MASKED, ONE)]),
    "clamped logits": ("AUROC", [((BIG * 5000).clamp(-2000, 2000), ROW.repeat(2))]),
    "distances": ("AUROC", [(-(BIG * 1e6).abs().round(), ROW.repeat(2))]),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_data_is_not_asked_about(name):
    """Data near the limit of a question gives a number in silence, at once and with checks that wait."""
    metric, batches = HONEST[name]
    collect = isinstance(batches[0], tuple) and len(batches[0]) == 3
    for options in ({}, {"validate_args": "deferred"}):
        value, questions = told(lambda: value_of(metric, batches, collect, **options))  # noqa: B023
        assert isinstance(value, float), value
        assert [question for question in questions if "share" not in question] == []


def test_a_question_is_asked_once_by_each_metric():
    """Not at each batch or epoch, nor once per process."""
    for _ in range(2):
        metric = trm.HR(1)
        assert [len(told(lambda: metric.update(FALLING, FLAGS))[1]) for _ in range(2)] == [1, 0]  # noqa: B023
        metric.reset()
        assert told(lambda: metric.update(FALLING, FLAGS))[1] == []  # noqa: B023
    collection = trm.RecMetricCollection(["HR@1"])
    copies = [trm.CollectSessions(collection) for _ in range(2)]  # as callbacks make one for each epoch
    assert [len(told(lambda: copy.update(*ENTRIES, WITHIN))[1]) for copy in copies] == [1, 0]  # noqa: B023
    quiet = trm.HR(1, validate_args=False)
    assert told(lambda: [quiet.update(FALLING, FLAGS), quiet.compute()])[1] == []
    assert len(told(trm.Scores(FALLING, FLAGS).ranking)[1]) == 1


def rows_of(*entries, times=32):
    return torch.tensor(entries).repeat(times, 1)


class Codes:
    """Codes 0 and 1 of one level, each of one item."""

    codes = torch.tensor([[0], [1]])

    def look_up(self, codes):
        return SimpleNamespace(size=((codes >= 0) & (codes < 2)).all(-1).long())


def coded(shifted, valid, total=100):
    """Return beams [1, K, 1] of which `valid` are codes, `shifted` are if 1 is taken off, and others are far away."""
    beams = torch.full((1, total, 1), 50)
    beams[0, :shifted], beams[0, shifted : shifted + valid] = 2, 0
    return Codes(), beams, torch.ones(1, total, dtype=torch.bool), (beams[..., 0] == 0).long()


def absent(missing, rows=32, shifted=32):
    """Return targets that are no candidates in `missing` rows, and candidates beside `shifted` of them."""
    ids = torch.arange(rows)[:, None] * 10
    return torch.arange(rows)[:, None] < missing, ids, ids + 5 - 4 * (torch.arange(rows)[:, None] < shifted)


LOW = torch.tensor([[0.0, 1, -2e3], [0.5, 1, -2e3], [0, 1, 0.5], [0, 1, 0.5]])
COLUMN = torch.tensor([0])
LISTED = torch.arange(10.0, 0, -1) ** (1 + torch.arange(8.0)[:, None])
FLIP = torch.tensor([[0, 1], [1, 0]] * 4)
GRADES = torch.tensor([0.5, 0, 0.25, 0.5] * 5)
RULE = torch.tensor([0.0, 1] * 10)
LIMITS = {
    # name of the judge: facts that are asked about, facts near them that are not
    "flags_as_ranks": ([(rows_of(0, 1, 1),)], [(rows_of(2, 1, 1),), (rows_of(0, 1, 0),), (rows_of(1, 1, 1),)]),
    "ids_as_ranks": (
        [(torch.eye(32, 5).long() * -3 + 3, 5)],
        [
            (torch.eye(31, 5).long() * -3 + 3, 5),
            (torch.eye(32, 5).long() * -3 + 3, 6),
            (torch.eye(32, 4).long() * -3 + 3, 3),
            (rows_of(3, 3, 3, 0, 3), 5),
            (torch.tensor([[0, 3, 3, 3, 3], [3, 0, 3, 3, 3]] * 16), 5),
            (rows_of(0, 0, 0, 0, 60), 5),
            (rows_of(1, 2, 3, 4, 50), 5),
        ],
    ),
    "found_as_relevant": (
        [([[250, 25, 250], [250, 25, 250]],)],
        [([[500, 49, 500]],), ([[499, 50, 500]],), ([[499, 100, 499]],)],
    ),
    "zero_padding": (
        [(torch.tensor([[5, 0]] * 7 + [[3, 7]] * 25),)],
        [
            (torch.tensor([[5, 0]] * 7 + [[3, 7]] * 24),),
            (torch.tensor([[5, 0]] * 7 + [[3, 7]] * 24 + [[3, -1]]),),
            (torch.tensor([[5, 0]] * 6 + [[3, 7]] * 26),),
            (rows_of(5, 0),),
            (torch.tensor([[5, 0], [0, 3]] * 16),),
        ],
    ),
    "matrix_of_two": ([(FLIP,)], [(FLIP[1:],), (rows_of(0, 1),), (FLIP + 1,)]),
    "flags_beside_lists": (
        [(LISTED,)],
        [(LISTED[1:],), (LISTED[:, :4],), (LISTED[:1].repeat(8, 1) + torch.arange(8.0)[:, None],)],
    ),
    "swapped_scores": (
        [(RULE, GRADES.clamp(min=0.1))],
        [(RULE, GRADES), (RULE, GRADES.ceil() + 1), (0 * RULE, GRADES + 1), (RULE[:7], GRADES[:7] + 1)],
    ),
    "masked_by_number": (
        [(LOW,)],
        [(LOW[1:],), (LOW / 2.5,), (LOW * torch.tensor([30.0, 30, 1]),), ((LOW / 2.5).index_fill(1, COLUMN, -INF),)],
    ),
    "shifted_candidates": ([absent(17)], [absent(16), absent(31, 31, 31), absent(32, 32, 28)]),
    "shifted_codes": ([coded(50, 4)], [coded(49, 4), coded(50, 5), coded(31, 0, 31)]),
    "codes_as_rows": (
        [(Codes(), torch.tensor([[1]] * 19 + [[7]]))],
        [(Codes(), torch.tensor([[1]] * 18 + [[7]] * 2)), (Codes(), torch.tensor([[1]] * 7))],
    ),
    "relevant_entries": (
        [([[1, 2, 20, 40, 0]],)],
        [([[1, 2, rows, entries, 0]],) for rows, entries in ((19, 40), (20, 39), (19, 19))]
        + [([[0, 2, 20, 40, 0]],), ([[1, 2, 20, 40, 1]],)],
    ),
    "numbers_within": (
        [(torch.tensor([0, 0, 1, 2] * 4),)],
        [
            (torch.tensor([0, 0, 1, 2] * 4)[:15],),
            (torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]),),
            (torch.tensor([0, 0, 1, 1] * 4),),
            (torch.tensor([0, 1, 2, 3] * 4),),
        ],
    ),
    "cut_sessions": (
        [([[0, 0, 2], [0, 2, 3], [0, 3, 5], [0, 5, 6]],)],
        [
            ([[0, 0, 2], [0, 2, 3], [0, 3, 5]],),
            ([[0, 0, 2], [0, 2, 3], [1, 3, 5], [0, 5, 6]],),
            ([[0, 0, 2], [0, 2, 3], [0, 3, 5], [0, 5, 6], [0, 0, 3]],),
            ([[0, 2, 2], [0, 2, 2], [0, 2, 2], [0, 2, 2]],),
        ],
    ),
    "renumbered_sessions": (
        [
            ([[0, 0, 3, 9, 20, 9], [0, 0, 4, 9, 20, 9]],),
            ([[0, 0, 3, 9, 12, 8], [0, 0, 3, 9, 13, 8], [0, 0, 3, 9, 13, 8]],),  # chunks, two of them uneven
            ([[0, 0, 3, 4, 12, 8], [0, 0, 3, 4, 12, 8]],),  # one relevant entry in each session
        ],
        [
            ([[0, 0, 3, 4, 20, 9]],),
            ([[1, 0, 3, 9, 20, 9], [0, 0, 4, 9, 20, 9]],),
            ([[0, 1, 3, 9, 20, 9], [0, 1, 4, 9, 20, 9]],),
            ([[0, 0, 0, 1, 0, 9], [0, 0, 0, 1, 0, 8]],),
            ([[0, 0, 3, 9, 12, 8], [0, 0, 3, 9, 13, 8]],),
        ],
    ),
    "pools_of_rows": (
        [([[4, 8], [2, 4]],)],
        [([[4, 8], [4, 8]],), ([[4, 4], [2, 2]],), ([[4, 10], [2, 5]],), ([[4, 8], [2, 6]],)],
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_questions(name):
    """Each judge asks about the facts at its limit, and not about those on the other side."""
    judge, (asked, quiet) = getattr(judges, name), LIMITS[name]
    assert all(judge(*facts) for facts in asked)
    assert [judge(*facts) for facts in quiet] == [None] * len(quiet)


def test_entries_of_other_forms():
    """Sessions named by text, and scores [E, 1], are refused with the cure."""
    labels = torch.tensor([0, 1, 1])
    for scores, indexes, words in (
        (torch.rand(3), ["a", "a", "b"], r"text such as 'a': .* trm.Vocabulary.number\(ids\)"),
        (torch.rand(3, 1), torch.tensor([0, 0, 1]), r"pass scores\[:, 0\]"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            trm.MRR(2).update(trm.Sessions(scores, labels, indexes))
        with pytest.raises((TypeError, ValueError), match=words):
            trm.CollectSessions(trm.MRR(2)).update(scores, labels, indexes)


def test_names_of_papers():
    """Names that papers print are those of metrics of ours, or told so by the error."""
    assert list(trm.RecMetricCollection(["Success", "RR", "AP"], k=10).keys()) == ["HR@10", "MRR@10", "MAP@10"]
    others = {"ILD": "IntraListDiversity", "ARP": "AveragePopularity", "APLT": "TailShare", "Cov": "Coverage"}
    others |= {"RSP": "StatisticalParity", "REO": "EqualOpportunity"}
    for printed, ours in others.items():
        with pytest.raises(ValueError, match=f"^{ours}"):
            trm.RecMetricCollection([printed], k=10)
