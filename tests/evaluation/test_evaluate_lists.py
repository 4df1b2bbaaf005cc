"""`evaluate_lists`: lists in every form against other programs, the rules of their order, and errors."""

import itertools
import math
import re
from pathlib import Path

import pytest
import reference
import torch
from said import evaluate_lists
from values import near, numbers
from worlds import ITEMS, world

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log, Vocabulary
from torchrecmetrics.cli import main
from torchrecmetrics.evaluation.ranked_lists import ListSource
from torchrecmetrics.evaluation.scorers import ENTRY_BYTES

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

NAMES = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"]
NUM_USERS, NUM_ITEMS, K = 23, 31, 8


def made():
    """Return embeddings, history and test with text ids, and lists of K items that the embeddings recommend."""
    generator = torch.Generator().manual_seed(0)
    users, items = torch.randn(NUM_USERS, 5, generator=generator), torch.randn(NUM_ITEMS, 5, generator=generator)
    ids = Vocabulary([f"u{n:02d}" for n in range(NUM_USERS)]), Vocabulary([f"ï{n:02d}" for n in range(NUM_ITEMS)])
    order = torch.rand(NUM_USERS, NUM_ITEMS, generator=generator).argsort(1)
    train, test = (Interactions.from_padded(part, NUM_ITEMS).with_ids(*ids) for part in (order[:, :4], order[:, 6:9]))
    return users, items, train, test, trm.recommend(users, items, K, exclude=train)


def frame_of(interactions):
    return {
        "user": interactions.user_ids.ids(interactions.users),
        "item": interactions.item_ids.ids(interactions.items),
    }


def same(found, expected):
    assert numbers(found) == near(expected)


@pytest.mark.parametrize("ties", ["expected", "realistic", "optimistic", "pessimistic"])
def test_recommended_lists_have_the_values_of_the_model(ties):
    """`recommend` followed by `evaluate_lists` gives what `evaluate` gives, with history and ties."""
    users, items, train, test = world()
    options = {"target": test, "k": [1, 5, K], "ties": ties}
    expected = trm.evaluate(NAMES, users, items, exclude=train, **options)
    found = evaluate_lists(NAMES, trm.recommend(users, items, ITEMS, exclude=train), **options)
    same(found, expected)
    same(found.standard_errors, expected.standard_errors)
    assert found.counts() == expected.counts() | {"num_left_out": found.num_skipped, "num_without_history": 0}
    assert 0 < found.num_tied < found.num_users


class WeighedByLists(trm.RankingMetric):
    """Hits whose rows weigh as many items as their lists hold, with or without a relevant item."""

    formula = staticmethod(trm.functional.hit_rate)
    weights = staticmethod(lambda ranking: ranking.num_recommended)


@pytest.mark.parametrize(("action", "expected"), [("skip", 3 / 5), ("neg", 3 / 6), ("pos", (3 + 1) / 6)])
def test_users_without_ground_truth_weigh_their_lists(action, expected):
    """A metric whose row weights read the lists reads those of users without ground truth; metrics of lists do not."""
    target, lists = {"a": [1], "b": [2], "c": []}, {"a": [7, 8, 1], "b": [3, 4], "c": [5], "d": [1, 2, 3]}
    train = trm.Interactions.from_frame({"user": [*"aabbc"], "item": [1, 2, 3, 4, 5]})
    catalogue = trm.Catalogue.from_interactions(train.recode(item_ids=range(1, 9)))
    metrics = [
        WeighedByLists(3, empty_target_action=action),
        trm.Coverage(3, catalogue=catalogue, empty_target_action=action),
    ]
    found = evaluate_lists(metrics, lists, target=target, complete=True)
    assert numbers(found) == pytest.approx({"WeighedByLists@3": expected, "Coverage@3": 5 / 8})
    assert (found.num_skipped, found.num_unserved, found.num_left_out, found.num_unknown) == (1, 0, 2, 0)


def test_history_leaves_the_lists():
    """`exclude=` removes the history from longer lists, which get the values of lists that never held the history."""
    users, items, train, test, recommended = made()
    longer = trm.recommend(users, items, K + 4).with_ids(test.user_ids, test.item_ids)
    expected = evaluate_lists(NAMES, recommended, target=test, k=[1, 5, K])
    for exclude in (train, frame_of(train), Log.from_frame(frame_of(train)), (frame_of(train), train)):
        same(evaluate_lists(NAMES, longer, target=test, exclude=exclude, k=[1, 5, K]), expected)
    mask = torch.arange(NUM_ITEMS) % 9 == 3
    kept = trm.recommend(users, items, K, exclude=mask).with_ids(test.user_ids, test.item_ids)
    test = test.without(mask)
    same(evaluate_lists(NAMES, longer, target=test, exclude=mask, k=K), evaluate_lists(NAMES, kept, target=test, k=K))


def forms(recommended):
    """Return the lists in every form, with the options that say their order; rows of tables are shuffled."""
    frame = pd.DataFrame(recommended.to_dict()).sample(frac=1, random_state=1)
    columns, types = frame.to_dict("list"), {"user": "U9", "item": "U9", "rank": "i4", "score": "f4"}
    users = pd.Categorical(frame["user"], [*sorted({*frame["user"]}), "u-unused"])
    named = [recommended.item_ids.ids(row) for row in recommended.ids]
    owners = recommended.user_ids.ids(recommended.users)
    tables = [frame, pl.DataFrame(columns), pa.table(columns), frame.to_records(index=False).astype([*types.items()])]
    tables.append(frame.assign(user=users, item=frame["item"].astype("category")))
    wide = [dict(zip(owners, named, strict=True)), (named, owners), (np.array(named), np.array(owners)), recommended]
    by_rank, in_order = [(table, {"rank": "rank"}) for table in tables], [(lists, {}) for lists in wide]
    return [(columns, {"score": "score"}), *by_rank, *in_order]


def test_every_form_gets_the_same():
    """Frames in any order of rows, dicts and tuples give equal values, with truth as interactions, log or frame."""
    *_, test, recommended = made()
    options = {"k": [1, 5, K]}
    expected = evaluate_lists(NAMES, recommended, target=test, **options)
    for lists, order in forms(recommended):
        same(evaluate_lists(NAMES, lists, target=test, **order, **options), expected)
    truth = frame_of(test)
    for target in (truth, pl.DataFrame(truth), Log.from_frame(truth)):
        same(
            evaluate_lists(NAMES, pd.DataFrame(recommended.to_dict()), target=target, rank="rank", **options), expected
        )


def test_ranx_pytrec_eval_and_ir_measures_agree_on_the_files(tmp_path):
    """Values for a run and qrels of TREC, in which some users are in one of the two, equal those of the packages.
    Users without a list score 0, as in ranx and ir_measures; pytrec_eval leaves them out.
    """
    ranx, pytrec_eval, ir_measures = map(pytest.importorskip, ("ranx", "pytrec_eval", "ir_measures"))
    random, run, qrels = np.random.default_rng(5), {}, {}
    for user in range(30):
        documents = [f"d{number}" for number in random.permutation(40)]
        if user % 7:
            run[f"q{user}"] = dict(zip(documents[:12], map(float, random.permutation(100)), strict=False))
        if user % 5:
            qrels[f"q{user}"] = dict(zip(random.permutation(documents).tolist(), [0, 1, 2, 3, 1, 2], strict=False))
    paths = str(tmp_path / "a.run"), str(tmp_path / "a.qrels")
    rows = [f"{user} Q0 {document} 0 {score} t\n" for user, scores in run.items() for document, score in scores.items()]
    Path(paths[0]).write_text("".join(rows))
    rows = [f"{user} 0 {document} {grade}\n" for user, grades in qrels.items() for document, grade in grades.items()]
    Path(paths[1]).write_text("".join(rows))
    names = ["NDCG@10", "Precision@10", "Recall@10", "MAP@10", "MRR@10", "HR@10"]
    found = evaluate_lists(names, paths[0], target=paths[1])
    assert found.num_unserved == len(qrels.keys() - run.keys()) > 0
    assert found.num_left_out == len(run.keys() - qrels.keys()) > 0
    assert pytrec_eval.RelevanceEvaluator(qrels, {"P.10"}).evaluate(run).keys() == qrels.keys() & run.keys()

    words = ["ndcg@10", "precision@10", "recall@10", "map@10", "mrr@10", "hit_rate@10"]
    theirs = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), words, make_comparable=True)
    expected = {name: theirs[word] for name, word in zip(names, words, strict=True)}
    assert numbers(found) == pytest.approx(expected, abs=1e-9)
    measures = [ir_measures.parse_measure(word + "@10") for word in ("nDCG", "P", "R", "AP", "RR", "Success")]
    files = ir_measures.read_trec_qrels(paths[1]), ir_measures.read_trec_run(paths[0])
    theirs = ir_measures.calc_aggregate(measures, *files)
    expected = {name: theirs[measure] for name, measure in zip(names, measures, strict=True)}
    assert numbers(found) == pytest.approx(expected, abs=1e-9)


def test_plain_reference():
    """Values equal plain Python definitions, item by item, for uneven and empty lists and for unknown items."""
    generator = torch.Generator().manual_seed(3)
    lists, truth, users = {}, {"user": [], "item": []}, []
    for user in range(40):
        relevant = torch.randperm(20, generator=generator)[: 1 + user % 4].tolist()
        lists[user] = torch.randperm(30, generator=generator)[: user % 9 if user else 9].tolist()
        truth["user"] += [user] * len(relevant)
        truth["item"] += relevant
        scores = [-lists[user].index(item) if item in lists[user] else -math.inf for item in range(30)]
        users.append(reference.rank(scores, dict.fromkeys(relevant, 1.0)))
    found = evaluate_lists([*NAMES, "RPrecision"], lists, target=truth, k=5)
    functions = {"HR": "hit_rate", "NDCG": "ndcg", "MRR": "reciprocal_rank", "Recall": "recall"}
    for label, name in (functions | {"MAP": "average_precision"}).items():
        expected = reference.mean([getattr(reference, name)(user, 5) for user in users])
        assert (float(found[f"{label}@5"]), float(found.standard_errors[f"{label}@5"])) == pytest.approx(expected)
    assert float(found["RPrecision"]) == pytest.approx(reference.mean(list(map(reference.r_precision, users)))[0])


TRUTH = {"user": ["al", "al", "bo", "eve"], "item": ["x", "y", "z", "x"]}


def outcome(metric, lists, target=TRUTH, **options):
    """Return the value of one metric, and all counts that are not 0, but those that `test_met` holds."""
    found = evaluate_lists(metric, lists, target=target, **options)
    (number,) = numbers(found).values()
    counts = {name: n for name, n in found.counts().items() if n and name not in ("num_unlisted", "num_cut_ties")}
    return pytest.approx(number, abs=1e-12), counts


def value(*args, **options):
    return outcome(*args, **options)[0]


def write(path, text):
    """Write a text, with "|" at the ends of its lines, and return the path."""
    path.write_text(text.replace("|", "\n") + "\n")
    return path


def test_who_has_no_list_and_who_has_no_truth():
    """Users without a list, or with an empty one, score 0 and are counted; those without truth are only counted."""
    counts = {"num_users": 3, "num_unserved": 2, "num_left_out": 2}
    assert outcome("HR@1", {"al": ["x"], "bo": [], "zoe": ["x"], "ian": []}) == (1 / 3, counts)
    frame = {"user": ["zoe", "al", "zoe"], "item": ["x", "x", "y"]}
    assert outcome("HR@1", frame) == (1 / 3, {"num_users": 3, "num_unserved": 2, "num_left_out": 1})


def test_items_that_truth_does_not_know_take_their_places():
    """Items that the truth lacks keep their ranks as misses and are counted; history that has them removes them."""
    lists, counts = {"al": ["new", "x"], "bo": ["old", "z"], "eve": ["x", "new"]}, {"num_users": 3, "num_unknown": 3}
    assert outcome("MRR@2", lists) == ((0.5 + 0.5 + 1) / 3, counts)
    had = {"user": ["bo", "other"], "item": ["old", "new"]}
    assert outcome("MRR@2", lists, exclude=had, complete=True) == (
        (0.5 + 1 + 1) / 3,
        counts | {"num_without_history": 2, "num_excluded": 2},
    )


def test_short_lists():
    """Lists made too short by history are errors that name the user and two cures; lists that ended early are not."""
    lists = {"al": ["x", "y", "z"], "bo": ["z"], "eve": ["x", "y", "z"]}
    had = {"user": ["bo", "eve"], "item": ["x", "y"]}
    for longer in (lists, lists | {"al": [*"xyzw"]}):  # a longer list changes nothing for the others
        with pytest.raises(ValueError, match=r"user 'eve' holds 2 items after .* read 3 ranks: .*complete=True"):
            evaluate_lists("HR@3", longer, target=TRUTH, exclude=had)
        assert value("HR@3", longer, exclude=had, complete=True) == 1
        assert value("HR@3", longer, exclude=had, validate_args=False) == 1
        assert value("HR@2", longer, exclude=had) == 1
    for metric in ("HR@4", "MRR", "RPrecision"):
        said = "ranks, but the ranks are known" if metric == "RPrecision" else f"{metric} reads .* longest list of"
        with pytest.raises(ValueError, match=f"{said}.*complete=True"):
            evaluate_lists(metric, {"al": ["y"], "bo": ["z"]}, target=TRUTH)
    assert value("MRR", {"al": ["y"], "bo": ["z"]}, complete=True) == 2 / 3


ORDERS = {
    "expected": ((1 / 2 + 1 / 3) / 2 + (1 + 1 / 2) / 2) / 2,
    "realistic": (1 / 2.5 + 1 / 1.5) / 2,
    "optimistic": (1 / 2 + 1) / 2,
    "pessimistic": (1 / 3 + 1 / 2) / 2,
}


@pytest.mark.parametrize("ties", ORDERS)
def test_equal_scores_are_tied_in_any_order_of_the_rows(ties):
    """Equal scores of a list have no order: the rows of the table have none that changes a value."""
    rows = [("al", "w", 1.0), ("bo", "v", 0.0), ("al", "x", 1.0), ("bo", "z", 0.0), ("al", "y", 2.0)]
    target = {"al": ["x"], "bo": ["z"]}
    for order in itertools.islice(itertools.permutations(rows), 0, None, 9):
        frame = dict(zip(("user", "item", "score"), map(list, zip(*order, strict=True)), strict=True))
        found = outcome("MRR@3", frame, target, score="score", ties=ties)
        assert found == (ORDERS[ties], {"num_users": 2, "num_tied": 2, "num_unknown": 3})
    frame = {"user": ["al", "bo", "al", "bo", "al"], "item": ["w", "v", "x", "z", "y"]}
    assert outcome("MRR@3", frame, target, ties=ties) == ((1 / 2 + 1 / 2) / 2, {"num_users": 2, "num_unknown": 3})


def test_scores_of_documents_order_a_list():
    """{query: {document: score}}: c is best, a and b are tied at ranks 2 and 3, and a query may have no document."""
    lists = {1: {"a": 0.5, "b": 0.5, "c": 0.9}, 2: {}}
    result = trm.evaluate_lists("MRR@3", lists, target={1: ["a"], 2: ["a"]}, complete=True)

    assert result["MRR@3"] == ((1 / 2 + 1 / 3) / 2 + 0) / 2


def test_users_without_ground_truth_are_served():
    """bo has a list and nothing to find: the gate must not count bo as without a list."""
    options = {"empty_target_action": "neg", "keep_rows": True, "complete": True}
    rows = trm.evaluate_lists("HR@1", {"al": ["x"], "bo": ["y"]}, target={"al": ["x"], "bo": []}, **options).rows

    assert rows.served is None


def test_columns_that_a_format_fixes_are_not_counted_as_unread(tmp_path):
    """The rank and the tag of a TREC run, and the iteration of qrels, mean nothing to a value."""
    run, qrels = tmp_path / "a.run", tmp_path / "a.qrels"
    run.write_text("q1 Q0 d1 1 2.5 tag\n")
    qrels.write_text("q1 0 d1 1\n")

    assert trm.evaluate_lists("MRR", run, target=qrels, complete=True).unread == {}


def test_lists_with_and_without_scores_are_an_error():
    """One kind of list per call."""
    with pytest.raises(TypeError, match="a dict of scores for 1 and a list without for 2"):
        trm.evaluate_lists("MRR@3", {1: {"a": 0.5}, 2: ["a"]}, target={1: ["a"]})


def test_lists_of_one_order_are_ordered_by_items():
    """Metrics of lists read items of equal scores in the order of their rows in the catalogue, not of the table."""
    users, ids = ["a", "a", "b", "a", "b"], ["x", "y", "z"]  # x has one interaction, y and z have two
    train = Interactions.from_columns(users, ["x", "y", "y", "z", "z"], user_ids=["a", "b"], item_ids=ids)
    options = {"target": {"a": ["y"]}, "score": "score", "catalogue": trm.Catalogue.from_interactions(train)}
    for items in itertools.permutations("xyz"):
        frame = {"user": ["a"] * 3, "item": [*items], "score": [0.5] * 3}
        assert value("AveragePopularity@1", frame, **options) == 1


def test_scores():
    """Large whole numbers are told apart, -inf is no item; columns named rank and score are what their names say."""
    pair = {"user": ["al", "al"], "item": ["x", "y"]}
    assert outcome("HR@1", pair | {"score": [2**60, 2**60 + 1]}, {"al": ["y"]}, score="score")[0] == 1
    frame = {"user": [0, 0, 1, 1], "item": [3, 7, 6, 5], "score": [0.5, -math.inf, 0.1, 0.1]}
    assert value("HR@2", frame, {0: [7], 1: [5]}, score="score", complete=True) == 0.5
    assert value("MRR@2", pair | {"Distance": [-1, -2]}, {"al": ["x"]}, score="Distance") == 1
    with pytest.raises(ValueError, match=r"rank='score' would turn .* upside down: pass score='score'"):
        evaluate_lists("MRR@2", pair | {"score": [1, 2]}, target={"al": ["x"]}, rank="score")
    with pytest.raises(ValueError, match=r"score='rank' would turn .* upside down: pass rank='rank'"):
        evaluate_lists("MRR@2", pair | {"rank": [1, 2]}, target={"al": ["x"]}, score="rank")


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_begin_at_0_or_1_throughout(first):
    """Ranks begin at 0 or 1 for all users, with rows in any order; users without truth may have any ranks."""
    frame = {"user": ["al", "bo", "al", "zoe", "bo", "al"], "item": ["w", "z", "x", "x", "v", "y"]}
    frame["rank"] = [first + 2, first + 1, first, 77, first, first + 1]
    assert value("MRR@3", frame, {"al": ["w"], "bo": ["z"]}, rank="rank") == (1 / 3 + 1 / 2) / 2


def test_repeated_rows():
    """With `first`, the best rank of an item counts, and rows that repeat user, item and rank are the same row."""
    frame = {"user": ["zoe", "al", "bo", "zoe", "al"], "item": [*"xxzxx"], "score": [1, 2, 3, 4, 5]}
    found = outcome("HR@1", frame, score="score", duplicates="first", complete=True)
    assert found == (2 / 3, {"num_users": 3, "num_unserved": 1, "num_left_out": 1, "num_repeated": 1})
    rows = pd.DataFrame({"user": ["al", "al", "bo"], "item": ["w", "x", "z"], "rank": [1, 2, 1]})
    how = {"rank": "rank", "complete": True}
    for more in (rows[:2], rows, rows[1:]):
        twice = pd.concat([rows.assign(user="zoe"), more, rows])
        with pytest.raises(ValueError, match=r"has rank \d twice.*duplicates='first'"):
            evaluate_lists("MRR@2", twice, target=TRUTH, **how)
        found, counts = outcome("MRR@2", twice, duplicates="first", **how)
        assert (found, counts["num_repeated"]) == ((1 / 2 + 1) / 3, len(more))
    other = pd.concat([rows, rows[:2].assign(item=["w", "y"])])
    with pytest.raises(ValueError, match=r"^lists, row [14], column 'rank': user 'al' has rank 2 twice.*a second list"):
        evaluate_lists("MRR@2", other, target=TRUTH, duplicates="first", **how)


BIG = [2**63 + 1, 2**63 + 2, 2**64 - 1]
BIG_LISTS = np.array([[5, -7], [-(2**63), -1], [-1, -1]])
ROWS_ALONE = Interactions.from_columns([0, 1, 2], [2, 3, 0], num_users=4, num_items=4)
FRAME_OF_ROWS = {"user": [0, 1, 1, 1], "item": [2, 0, 3, 1]}


def test_ids():
    """Ids of 64 bits, signed or not, are exact; only -1, None and NaN fill up lists; without ids rows are numbered."""
    truth = {"user": np.array(BIG, np.uint64), "item": np.array([-7, -(2**63), -8])}
    lists = dict(zip(BIG, [[-7], [-(2**63)], [5]], strict=True))
    assert outcome("HR@1", lists, truth) == (2 / 3, {"num_users": 3, "num_unknown": 1})
    counts = {"num_users": 3, "num_unserved": 1, "num_unknown": 1}
    assert outcome("MRR@2", (BIG_LISTS, truth["user"]), truth) == ((0.5 + 1) / 3, counts)
    for filler in (-1, None, math.nan):
        lists = [["y", "x"], ["z", filler]]
        for items in (lists, np.array(lists, dtype=object)):
            found = outcome("MRR@2", (items, ["al", "bo"]), {"al": ["x"], "bo": ["z"]})
            assert found == (0.75, {"num_users": 2, "num_unknown": 1})
    counts |= {"num_skipped": 1}
    assert outcome("MRR@2", (torch.tensor([[2, 9, -1], [0, 3, 1]]), [0, 1]), ROWS_ALONE) == (1.5 / 3, counts)
    counts |= {"num_left_out": 1}
    assert outcome("MRR@2", {0: [2, 9], 1: [0, 3, 1], 7: [1]}, ROWS_ALONE) == (1.5 / 3, counts)
    named = ROWS_ALONE.with_ids(user_ids=torch.arange(4), item_ids=torch.arange(4))
    assert value("MRR@2", FRAME_OF_ROWS, named) == 1.5 / 3


def test_recommendations_with_other_vocabularies_are_matched_by_id():
    *_, test, found = made()
    order = torch.randperm(NUM_USERS, generator=torch.Generator().manual_seed(2))
    ids = test.user_ids.take(order), test.item_ids
    other = trm.Recommendations(found.ids[order], found.scores[order], torch.arange(NUM_USERS), *ids)
    same(evaluate_lists(NAMES, other, target=test, k=K), evaluate_lists(NAMES, found, target=test, k=K))


def test_gains():
    """Values of logs and frames and grades of dicts are gains; an item with a gain of 0 is not relevant."""
    log = Log.from_frame(TRUTH | {"stars": [3, 1, 0, 2]}, value="stars")
    found, counts = outcome("NDCG@2", {"al": ["y", "x"], "bo": ["z"], "eve": ["x"]}, log)
    al = (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3))
    assert (found, counts) == ((al + 1) / 2, {"num_users": 2, "num_skipped": 1})
    grades = {"al": {"x": 0, "y": 2, "z": 1}}
    assert value("NDCG@2", {"al": ["z", "y"]}, grades) == (1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3))
    assert value("HR@1", {"al": ["x"]}, grades) == 0
    frame = {"user": ["al"] * 3, "item": ["x", "x", "y"], "stars": [1, 5, 2]}
    for reduce, gain in (("sum", 6), ("max", 5), ("last", 5)):
        weighted = [trm.Recall(1, weighted=True)]
        assert value(weighted, {"al": ["x"]}, frame, value="stars", values_reduce=reduce) == gain / (gain + 2)
    twice = Log.from_frame({"user": ["al", "al"], "item": ["x", "x"], "stars": [1, 5]}, value="stars")
    with pytest.raises(ValueError, match=r"with \[1, 5\]: values_reduce='sum', 'max' or 'last'"):
        evaluate_lists("HR@1", {"al": ["y"]}, target=twice)
    assert value("HR@1", {"al": ["x", "y"]}, {"al": ["y"]}, exclude=twice) == 1  # a history needs no rule


def test_relevant_items_in_a_dict():
    """They may be in any order or a set; users with none of them are rows without a relevant item."""
    assert value("HR@2", {"al": ["y", "x"], "bo": ["z", "w"]}, {"al": {"x"}, "bo": ["q", "w"], "eve": []}) == 1
    lists, target, graded = {0: [5, 1], 1: [3, 4]}, {0: [1], 1: []}, {0: {5: 0, 1: 2}, 1: []}
    for action, expected in (("skip", 0.5), ("neg", 0.25), ("pos", 0.75)):
        for truth in (target, graded):
            found, counts = outcome("MRR@2", lists, truth, empty_target_action=action)
            assert (found, counts["num_skipped"]) == (expected, 1)
    with pytest.raises(ValueError, match="without a relevant item"):
        evaluate_lists("MRR@2", lists, target=target, empty_target_action="error")


def test_batches_change_nothing(monkeypatch):
    """Values do not depend on the number of users per batch, even if all lists of a batch are short."""
    generator = torch.Generator().manual_seed(4)
    lists = {n: torch.randperm(50, generator=generator)[: 3 + n % 11].tolist() for n in range(60)}
    truth = {n: [n % 50, (n + 7) % 50] for n in range(60)}
    had = {n: [(n + 20) % 50] for n in range(60)}
    options = {"target": truth, "exclude": had, "k": [1, 5]}
    whole = evaluate_lists([*NAMES, "RPrecision"], lists, **options)
    monkeypatch.setattr(ListSource, "memory", 50 * ENTRY_BYTES)
    shown = []
    parts = evaluate_lists([*NAMES, "RPrecision"], lists, progress=lambda *done: shown.append(done), **options)
    same(parts, whole)
    same(parts.standard_errors, whole.standard_errors)
    assert len(shown) > 10
    assert shown[-1] == (60, 60)


def test_a_short_list_is_whole_in_every_batch(monkeypatch):
    """A list shorter than the R ranks of RPrecision has no more items, whichever users are in the same batch."""
    for cells in (2**19, 1):
        monkeypatch.setattr(ListSource, "memory", cells * ENTRY_BYTES)
        truth = {"al": [*"xpq"], "bo": ["u"]}
        assert value("RPrecision", {"al": [*"xyz"], "bo": [*"uvwxyz"]}, truth, exclude={"al": ["y"]}) == (1 / 3 + 1) / 2


def test_collections_are_cloned_and_processes_are_not_synchronised():
    """A collection is cloned; other processes are not asked, because each evaluates its own lists."""
    collection = trm.RecMetricCollection(["HR"], k=1, prefix="val/")
    found = evaluate_lists(collection, {"al": ["x"]}, target=TRUTH)
    assert found == {"val/HR@1": pytest.approx(1 / 3)}
    assert collection["HR@1"].update_count == 0
    with pytest.raises(KeyError, match=r"no result has the key 'val/RH@1'; did you mean 'val/HR@1'"):
        found["val/RH@1"]
    assert found.get("val/RH@1") is None

    def alone(*_):
        raise AssertionError("asked another process")

    options = {"distributed_available_fn": lambda: True, "dist_sync_fn": alone}
    assert value("HR@1", {"al": ["x"]}, **options) == 1 / 3


OVERLAP = {"al": ["x", "y"], "bo": ["z", "y"], "eve": ["y", "x"]}
HAD = {"user": ["eve", "al"], "item": ["x", "y"]}


def test_a_pair_in_truth_and_history_is_an_error():
    with pytest.raises(
        ValueError, match=r"1 \(user, item\) pair of target is also in exclude.*\['eve', 'x'\].*without"
    ):
        evaluate_lists("HR@1", OVERLAP, target=TRUTH, exclude={"eve": ["x"]})


@pytest.mark.parametrize(("overlap", "expected"), [("miss", (1 / 2 + 1 + 0) / 3), ("keep", (1 / 2 + 1 + 1 / 2) / 3)])
def test_overlap_says_what_such_a_pair_is(overlap, expected):
    lists, target = {"al": ["y", "x"], "bo": ["z"], "eve": ["y", "x"]}, {"al": ["x"], "bo": ["z"], "eve": ["x"]}
    had = {"exclude": {"eve": ["x"]}, "complete": True}

    assert value("MRR@2", lists, target, overlap=overlap, **had) == expected


@pytest.mark.parametrize("form", ["interactions", "frames", "logs", "files", "dicts"])
def test_such_pairs_are_taken_out_of_truth_in_any_form(form, tmp_path):
    """Pairs al, y and eve, x: as with a ground truth without them."""
    truth, seen = Interactions.from_frame(TRUTH), Interactions.from_frame(HAD)
    how = {"k": 2, "complete": True}
    expected = evaluate_lists(NAMES, OVERLAP, target=truth.without(seen), exclude=seen, **how)
    paths = tmp_path / "truth.csv", tmp_path / "had.csv"
    for frame, path in zip((TRUTH, HAD), paths, strict=True):
        pd.DataFrame(frame).to_csv(path, index=False)
    target, exclude = {
        "interactions": (truth, seen),
        "frames": (TRUTH, (HAD, seen)),
        "logs": (Log.from_frame(TRUTH), Log.from_frame(HAD)),
        "files": paths,
        "dicts": ({"al": ["x", "y"], "bo": ["z"], "eve": ["x"]}, {"eve": ["x"], "al": ["y"]}),
    }[form]
    found = evaluate_lists(NAMES, OVERLAP, target=target, exclude=exclude, overlap="without", **how)

    same(found, expected)
    assert found.counts() | {"num_excluded": 2} == expected.counts()


def test_items_of_a_mask_are_taken_out_of_truth():
    mask = torch.tensor([True, False, False])  # item x
    counts = {"num_users": 2, "num_skipped": 1, "num_left_out": 1}

    assert outcome("HR@2", OVERLAP, Interactions.from_frame(TRUTH), exclude=mask, overlap="without", complete=True) == (
        1,
        counts,
    )


def test_lines_of_lightgcn_and_trec(tmp_path):
    """Six numbers are a list, no run. Judgements below 0 are 0, as in trec_eval."""
    lists, truth = write(tmp_path / "lists.txt", "0 5 3 9 1 2|1 7 8 3 4 6"), write(tmp_path / "truth.txt", "0 9 77|1 8")
    assert value("MRR@5", lists, truth) == (1 / 3 + 1 / 2) / 2
    run, qrels = write(tmp_path / "a.run", "al Q0 x 1 2.0 t|al Q0 y 2 1.0 t"), write(tmp_path / "a.qrels", "al 0 y 1")
    assert value("MRR@2", run, qrels) == 1 / 2
    assert value("NDCG@2", {"q": ["x", "y"]}, write(tmp_path / "b.qrels", "q 0 x 1|q 0 y -2")) == 1
    with pytest.raises(ValueError, match="1 of 2 rows repeat a user and an item"):
        evaluate_lists("MRR@5", {"q": ["x"]}, target=write(tmp_path / "b.qrels", "q 0 x 1|q 0 x 2"))


@pytest.mark.parametrize(
    ("lists", "truth", "expected"),
    [
        ("7|8", "7|x9", 1),
        ("x9|7", "7|8", 1 / 2),
        ("10|8", "0a|010", 0),  # no lost zeros, which would be those of numbers
        ('[REC]|"[1, 2]"', "[REC]", 1),
    ],
)
def test_ids_of_text_files_are_what_is_written(lists, truth, expected, tmp_path):
    """7 in a file of numbers is the same id as 7 in a file with text."""
    paths = []
    for name, items in {"lists": lists, "truth": truth, "seen": "5"}.items():
        paths.append(write(tmp_path / f"{name}.csv", "|al,".join(["user,item", *items.split("|")])))
    assert value("MRR@2", paths[0], paths[1], exclude=paths[2], complete=True) == expected


@pytest.mark.parametrize("column", ["user", "item"])
@pytest.mark.parametrize("cut", ["lists", "truth", "seen"])
def test_lost_zeros_are_refused(column, cut, tmp_path):
    """Ids that are written 07 in one text file and 7 in another are an error that names both, not a miss."""
    paths = {}
    for name, ids in {"lists": ["07", "10"], "truth": ["07", "10"], "seen": ["07"]}.items():
        texts = [id_.lstrip("0") for id_ in ids] if name == cut else ids
        other = {"user": "item", "item": "user"}[column]
        lines = [f"{text},{'b' if name == 'seen' else 'a'}" for text in texts]
        paths[name] = write(tmp_path / f"{name}.csv", "|".join([f"{column},{other}", *lines]))
    with pytest.raises(ValueError, match=f"{column}.* 7, .*'07': leading zeros.*dtype=str"):
        evaluate_lists("MRR@1", paths["lists"], target=paths["truth"], exclude=paths["seen"], complete=True)


ROWS = {"user": ["al", "bo"], "item": ["x", "z"]}
TWO = {"user": ["al", "al"], "item": ["x", "z"]}


def bad(lists, message, metric="HR@1", **options):
    return pytest.param(metric, lists, options, message, id=message)


def ranked(*ranks):
    return {"user": ["al", "al", "al", "bo"], "item": ["w", "x", "y", "z"], "rank": [*ranks]}


BAD = [
    bad(ROWS, "lists has no column 'itm'; did you mean 'item'", item="itm"),
    bad({"usr": ["al"], "item": ["x"]}, "lists has no column 'user' or 'user_id'; did you mean 'usr'"),
    bad({"u": ["al"], "i": ["x"]}, "no user of lists has ground truth: users are such as 'u'.*item= name"),
    bad(ROWS, "item=None is for label=", item=None),
    bad(TWO | {"place": [2, 1], "est": [2, 1]}, "columns that are not read: 'place', 'est'\\."),
    bad([["x"]], r"to say who the users are, pass \(lists, users\)"),
    bad(pl.DataFrame(ROWS).lazy(), r"not computed yet, LazyFrame: pass lists.collect\(\)"),
    bad((1, 2, 3), "tuple of two"),
    bad(ROWS, "no option 'history': items that leave the lists are exclude=", history=TRUTH),
    bad(ROWS, r"no option 'train': .* catalogue=Catalogue.from_interactions\(train\)", train=TRUTH),
    bad(ROWS, "evaluate_lists has no option 'compleet'; did you mean 'complete'", compleet=True),
    bad(ROWS, "no option 'weight'", weight="relevant"),
    bad(ROWS, "got str: .* trm.Log.from_file", catalogue="train.csv"),
    bad({"user": ["al", None], "item": ["x", "y"]}, "column 'user' of lists holds a missing value.*row 1"),
    bad(([["x"], ["y"], ["z"]], ["al", "bo", "al"]), "two lists of user 'al', in rows 0 and 2"),
    bad(([["x"], ["y"]], ["al"]), "2 lists and 1 users"),
    bad((np.array(["x"]), ["al"]), r"lists must be \[users, K\]"),
    bad({"al": [("x", 0.9), ("y", 0.5)]}, r"tuple: take one field of each, \[cell\[0\] for"),
    bad({"al": "xyz"}, "each of the lists must be a list of item ids.*got str"),
    bad({}, "lists is empty"),
    bad({"user": [], "item": []}, "lists holds no rows"),
    bad({"al": ["y"]}, r"AUROC compares all .*: pass scores, or embeddings$", "AUROC", complete=True),
    bad(ranked(1, 2, 4, 1), r"rows? 2.*'al' has rank 4 after 2", rank="rank"),
    bad(ranked(2, 3, 4, 1), r"row 0.*'al' has rank 2 as the best", rank="rank"),
    bad(ranked(0, 1, 2, 1), r"row 0.*'al' has rank 0 as the best", rank="rank"),
    bad(ranked(1, 2, 1.5, 1), r"holds 1.5 in row 2, which is no rank", rank="rank"),
    bad(ranked(1, 2, 10**12, 1), r"holds 1000000000000 in row 2, which is no rank", rank="rank"),
    bad(
        {"user": ["zoe", "al", "bo", "zoe", "al"], "item": [*"xxzxx"], "score": [1, 2, 3, 4, 5]},
        r"^lists, row 1, column 'item': user 'al' has item 'x' twice",
        score="score",
    ),
    bad(
        {"al": ["new", "x", "new"]},
        "'al' has item 'new' twice.*='first' keeps only its first rank; .* pass one list per user",
    ),
    bad(
        (BIG_LISTS, BIG),
        "-1 pads the lists of a dict or a tuple, but it is also an item of target",
        target={"user": BIG, "item": [-1, -7, 5]},
    ),
    bad({"user": [1], "item": [2]}, r"column 'user' of lists holds whole numbers \(1\), target's user_ids hold text"),
    bad(ROWS, "all pairs of target are also in exclude: .* nothing to evaluate", exclude=TRUTH, overlap="without"),
    bad(ROWS, "target must be Interactions, a Log, a Table, a frame, a matrix, a dict or a file, got int", target=3),
    bad(ROWS, "pass the Interactions whole", target=Interactions.from_frame(ROWS).select([0])),
    bad(ROWS, "nowhere.csv", target=Path("nowhere.csv")),
    bad(ROWS, r"exclude must be Interactions, bool \[3\]", exclude=torch.zeros(5, dtype=torch.bool)),
    bad(ROWS, "padding_idx is a row number, but target has item_ids", padding_idx=0),
    bad(ROWS, "duplicates must be one of 'error', 'first'", duplicates="last"),
    bad(TWO | {"score": [2, 1], "label": [1, -1]}, "label below 0", target=None, label="label", score="score"),
    bad({"a": ["x"], "u1 ": ["x"]}, r"such as 'a', but target has 'u1'", target={"u1": ["x"]}),
    bad(
        {"u": ["x"]},
        "no user of exclude .*such as 'u '.*such as 'a'",
        target={"a": [], "u": ["x"]},
        exclude={"u ": ["x"]},
    ),
]


@pytest.mark.parametrize(("metric", "lists", "options", "message"), BAD)
def test_bad_input_names_the_cure(metric, lists, options, message):
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        evaluate_lists(metric, lists, **{"target": Interactions.from_frame(TRUTH), **options})


IDS = [f"B{number:03}" for number in range(40)]


@pytest.mark.parametrize("separator", [" ", "  ", ", ", "|", ";"])
def test_several_ids_in_a_cell(separator, tmp_path):
    """`split=` reads the ids of a cell in order, also in the ground truth."""
    cells = [separator.join((IDS[row - 1], IDS[row], "unknown")) for row in range(40)]
    lists, truth = pd.DataFrame({"user": IDS, "item": cells}), {"user": IDS, "item": IDS}
    lists.to_csv(tmp_path / "lists.csv", index=False, quoting=1)
    split = separator if separator.strip() else " "
    for table in (lists, tmp_path / "lists.csv"):
        with pytest.raises(ValueError, match=re.escape(f"such as {cells[0]!r}, those of target such as 'B000'")):
            evaluate_lists("MRR@3", table, target=truth, complete=True)
        assert value("MRR@3", table, truth, split=split) == 0.5
    blanks = lists.assign(item=lists.item.str.replace(separator, f" {separator} "))
    assert separator == " " or value("MRR@3", blanks, truth, split=separator) == 0.5
    known = {"user": IDS, "item": [separator.join((IDS[row], IDS[row - 1])) for row in range(40)]}
    assert value("Recall@1", pd.DataFrame(truth), known, split=separator) == 0.5
    with pytest.raises(ValueError, match="leave rank= and score= out"):
        evaluate_lists("HR@1", lists.assign(p=1.0), target=truth, split=separator, score="p")


def test_titles_are_not_taken_apart():
    """Entries of dicts and of cells of lists are items, even if their words are items of the other side."""
    users = [*"abcdef"]
    titles, words = ["Alien Resurrection", "Alien", "Resurrection"], ["Alien", "Resurrection"]
    lists, target = dict.fromkeys(users, titles), dict.fromkeys(users, words)
    cells = {"user": users, "item": [titles] * 6}
    for table in (lists, cells):
        assert value("MRR@3", table, target) == 0.5
        assert value("HR@1", table, {"user": users, "item": [words] * 6}) == 0


KNOWN = {"user": ["al", "al"], "item": ["x", "z"]}
"""Items that al had."""


@pytest.mark.parametrize("name", ["clicked", "value", "rating"])
def test_excluded_pairs_have_no_values(name, tmp_path):
    """All pairs of a table leave the lists, whatever its other columns hold; the counts name these columns."""
    frame = pd.DataFrame(KNOWN | {name: [1, 0]})
    frame.to_csv(tmp_path / "known.csv", index=False)
    for exclude in (frame, tmp_path / "known.csv", trm.Table(frame), trm.Table(frame, value=name)):
        found = evaluate_lists("MRR", {"al": ["x", "z", "y"]}, target={"al": ["y"]}, exclude=exclude, complete=True)

        assert found["MRR"] == 1
        assert f"exclude: 2 pairs, not read: {name!r}\n" in str(found)


# ------------------------------------------------------------------------------------------------ tensors, row numbers

ROWS = Interactions.from_columns([0, 1, 2], [2, 3, 3], num_users=3, num_items=5)
DENSE = torch.zeros(3, 5).index_put((ROWS.users, ROWS.items), torch.ones(3))
TOP = torch.tensor([[0, 2], [3, 1], [4, 0]]), torch.arange(3)
"""Lists of three users, of which the first two hold a relevant item, at rank 2 and 1."""


@pytest.mark.parametrize(
    "target",
    [
        torch.tensor([[0, 1, 2], [2, 3, 3]]),
        DENSE > 0,
        DENSE.numpy(),
        DENSE.double(),
        DENSE.to_sparse(),
    ],
    ids=["edge_index", "bool", "numpy", "graded", "sparse"],
)
def test_tensors_are_ground_truths(target):
    """The first call of a graph user: top-k ids beside an edge_index."""
    assert value("MRR@2", TOP, target) == (1 / 2 + 1 + 0) / 3


@pytest.mark.parametrize(
    "exclude", [torch.tensor([[0, 2], [0, 4]]), torch.eye(3, 5) > 2, torch.tensor([True, *[False] * 4])]
)
def test_tensors_are_exclusions(exclude):
    """Edges, a matrix of users and items, a mask of items: as in `evaluate`."""
    removes = exclude.any()
    expected = {True: (1 + 1 + 0) / 3, False: (1 / 2 + 1 + 0) / 3}

    assert value("MRR@2", TOP, ROWS, exclude=exclude, complete=True) == expected[bool(removes)]


@pytest.mark.parametrize("shape", [(3, 2), (3,), (), (2, 3, 4)])
def test_ids_in_rows_are_no_ground_truth(shape):
    with pytest.raises(TypeError, match=r"target must be Interactions, .* a matrix, .*from_padded\(ids, num_items\)"):
        evaluate_lists("HR@2", TOP, target=torch.ones(shape, dtype=torch.int64))


def test_two_rows_of_ids_beside_lists_of_two_users_are_ambiguous():
    with pytest.raises(TypeError, match="is an edge_index or rows of items"):
        evaluate_lists("HR@2", (TOP[0][:2], TOP[1][:2]), target=torch.tensor([[1, 2], [3, 0]]))


def with_ids(interactions):
    return interactions.with_ids(user_ids=torch.arange(3), item_ids=torch.arange(5))


LISTS_OF_ROWS = {user: items.tolist() for user, items in enumerate(TOP[0])}
BESIDE = {
    "table of lists": (ROWS, {"user": [0], "item": [2]}, {}, "lists has user_ids, target has none"),
    "recommendations": (
        with_ids(ROWS),
        trm.recommend(torch.eye(3), torch.eye(5, 3), 2),
        {},
        "target has .* lists has none",
    ),
    "dict to exclude": (ROWS, LISTS_OF_ROWS, {"exclude": {0: [0]}}, "exclude has user_ids, target has none"),
    "table to exclude": (
        ROWS,
        LISTS_OF_ROWS,
        {"exclude": {"user": [0], "item": [0]}},
        "exclude has user_ids, target has",
    ),
    "rows to exclude": (with_ids(ROWS), LISTS_OF_ROWS, {"exclude": ROWS}, "target has user_ids, exclude has none"),
    "second to exclude": (ROWS, LISTS_OF_ROWS, {"exclude": (ROWS, {0: [0]})}, r"exclude\[1\] has user_ids, target has"),
    "rows of a catalogue": (
        with_ids(ROWS),
        LISTS_OF_ROWS,
        {"catalogue": trm.Catalogue(5)},
        "target has item_ids, the cat",
    ),
    "catalogue": (
        ROWS,
        LISTS_OF_ROWS,
        {"catalogue": trm.Catalogue(5, item_ids=range(5))},
        "the catalogue has item_ids",
    ),
}


@pytest.mark.parametrize(("target", "lists", "options", "message"), BESIDE.values(), ids=BESIDE)
def test_row_numbers_are_no_ids(target, lists, options, message):
    """Whole numbers as ids beside row numbers are an error that names both, in both directions."""
    with pytest.raises(ValueError, match=f"{message}.* row 5 could mean two "):
        evaluate_lists("HR@1", lists, target=target, complete=True, **options)


def test_row_numbers_below_0_are_padding():
    lists = torch.tensor([[-2, 2], [-5, 3], [-1, 3]]), torch.arange(3)

    assert value("HR@1", lists, ROWS) == 1


def test_rows_of_users_below_0_are_refused():
    with pytest.raises(ValueError, match="the users of lists hold -1: row numbers are 0 or more"):
        evaluate_lists("HR@1", {-1: [2], 0: [3]}, target=ROWS)


@pytest.mark.parametrize("shape", [(2, 5), (3, 9)])
def test_exclusions_of_other_rows_are_refused(shape):
    exclude = Interactions.from_columns([0], [1], num_users=shape[0], num_items=shape[1])
    with pytest.raises(ValueError, match=r"exclude has \d (user|item)s, target has \d: their rows are not the same"):
        evaluate_lists("HR@1", TOP, target=ROWS, exclude=exclude)


def test_a_mask_is_in_the_order_of_targets_items_beside_a_catalogue():
    """a is removed from both lists; the catalogue has another order."""
    target = Interactions.from_columns(["u", "v"], ["d", "c"], user_ids=["u", "v"], item_ids=["d", "c", "b", "a"])
    options = {"exclude": torch.tensor([False, False, False, True]), "catalogue": trm.Catalogue(4, item_ids=[*"abcd"])}
    found = evaluate_lists("MRR", {"u": [*"adb"], "v": [*"acb"]}, target=target, k=3, complete=True, **options)

    assert found["MRR@3"] == 1


@pytest.mark.parametrize("place", ["lists", "target", "exclude"])
@pytest.mark.parametrize("kind", ["an evaluation", "tensors of one number", "a Series", "a Series of polars"])
def test_objects_without_lists_are_refused(kind, place):
    pl = pytest.importorskip("polars")
    wrong = {
        "an evaluation": evaluate_lists("MRR@2", TOP, target=ROWS),
        "tensors of one number": {0: torch.tensor(1)},
        "a Series": pd.Series({0: [1]}),
        "a Series of polars": pl.Series([[1]]),
    }[kind]
    with pytest.raises(TypeError, match=r"must be a list|is a Series: if it holds the items of each user, pass "):
        evaluate_lists("MRR@2", **{"lists": TOP, "target": ROWS, place: wrong})


pytest.importorskip("pyarrow")
FRAME = pd.DataFrame(
    {
        "session": ["s", "t", "s", "t", "s", "u"],
        "item": ["a", "a", "b", "c", "c", "a"],
        "score": [0.1, 0.9, 0.8, 0.2, 0.5, 0.3],
        "clicked": [0, 0, 0, 1, 1, 0],
    }
)
OPTIONS = {"user": "session", "label": "clicked"}


def forms_of_frame(frame, folder):
    """Return a frame, and paths of files that hold it."""
    frame.to_parquet(folder / "sessions.parquet")
    frame.to_csv(folder / "sessions.csv", index=False)
    return frame, folder / "sessions.parquet", folder / "sessions.csv"


def test_by_hand(tmp_path):
    """Session s has its click, item c, at rank 2 of 3, session t at rank 2 of 2, and session u has no click."""
    for lists in forms_of_frame(FRAME, tmp_path):
        found = evaluate_lists(["MRR", "AUROC"], lists, score="score", keep_rows=True, **OPTIONS)
        assert numbers(found) == {"MRR": 0.5, "AUROC": (0.5 + 0) / 2}
        assert (found.num_users, found.num_skipped) == (2, 1)
        assert found.rows.values["MRR"].nan_to_num(-1).tolist() == [0.5, 0.5, -1]
    by_rank = FRAME.assign(place=FRAME.groupby("session").score.rank(ascending=False))
    assert evaluate_lists("MRR", by_rank, rank="place", **OPTIONS)["MRR"] == 0.5


def test_rows_are_in_the_order_of_the_target():
    """Each user of the ground truth has one row, in its order, whatever the lengths of the lists."""
    lists = {"b": ["x", "y", "z"], "a": ["z"], "other": ["x"]}
    target = Interactions.from_dict({"a": ["z"], "b": ["y"], "c": ["x"]}, user_ids=["c", "b", "none", "a"])
    rows = evaluate_lists("MRR", lists, target=target, k=3, complete=True, keep_rows=True).rows

    assert rows.ids == ["c", "b", "none", "a"]
    assert rows.values["MRR@3"].nan_to_num(-1).tolist() == [0, 1 / 2, -1, 1]


def test_sessions_without_items(tmp_path):
    """In sessions without a column of items each row is a candidate of its own."""
    for lists in forms_of_frame(FRAME.drop(columns="item"), tmp_path):
        for item in ({}, {"item": None}):
            found = evaluate_lists(["MRR", "AUROC"], lists, score="score", **item, **OPTIONS)
            assert numbers(found) == {"MRR": 0.5, "AUROC": 0.25}


def test_labels_are_gains():
    """NDCG reads labels as gains, such as ratings."""
    rated = FRAME.assign(clicked=[3, 0, 1, 2, 0, 0])
    found = evaluate_lists("NDCG", rated, k=2, score="score", **OPTIONS)
    metric = trm.NDCG(2)
    scores = torch.tensor([[0.1, 0.8, 0.5], [0.9, 0.2, -torch.inf]])
    metric.update(scores, torch.tensor([[3.0, 1, 0], [0, 2, 0]]))
    assert found["NDCG@2"].item() == pytest.approx(metric.compute().item())


TWICE = pd.concat([FRAME, FRAME.assign(score=[0.9, 0.1, 0.1, 0.1, 0.1, 0.1], clicked=0)])


def test_an_item_that_a_session_repeats_is_one_candidate():
    """With `first`, it has its highest score and its highest label."""
    found = evaluate_lists(["MRR", "AUROC"], TWICE, score="score", duplicates="first", **OPTIONS)

    assert numbers(found) == {"MRR": (1 / 3 + 1 / 2) / 2, "AUROC": 0}
    assert found.num_repeated == 6


@pytest.mark.parametrize(
    ("file", "options", "code", "message"),
    [
        ("sessions.csv", "--label clicked", 0, "MRR  0.5000"),
        ("twice.csv", "--label clicked --first", 0, "MRR  0.4167"),
        ("twice.csv", "--label clicked", 2, "duplicates='first' is --first"),
        ("sessions.csv", "", 2, "pass either TRUTH, a file of ground truth, or --label COLUMN"),
        ("sessions.csv", "--label clicked --history x", 2, "--history and --train cannot be combined with --label"),
    ],
)
def test_the_command_reads_labels_in_place_of_truth(file, options, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    forms_of_frame(FRAME, tmp_path)
    TWICE.to_csv("twice.csv", index=False)

    assert main(f"evaluate {file} --user session --score score -m MRR {options}".split()) == code
    assert message in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (FRAME, {"score": None}, "pass score= or rank= to trm.Table"),
        (FRAME, {"score": "clicked"}, "column 'clicked' cannot be (order|score|label) and (score|label) at once"),
        (FRAME.assign(item="a"), {}, "item 'a' twice for session 's'.*row 0.*duplicates='first'"),
        (FRAME, {"duplicates": "keep_place"}, "duplicates='keep_place' needs target="),
        (FRAME.to_dict("list") | {"item": ["a"]}, {}, "columns of lists must be equally long"),
        (FRAME.assign(score=None), {}, "column 'score' of lists"),
        (FRAME, {"target": FRAME}, "target cannot be combined with label="),
    ],
)
def test_bad_input(frame, options, message):
    """The error names the column or the argument."""
    with pytest.raises(ValueError, match=message):
        evaluate_lists("MRR", frame, **{"score": "score", **OPTIONS, **options})


def test_a_hit_rate_of_whole_sessions_is_a_warning():
    """Of 4 queries with 10 results each, 2 have a relevant one: HR@10 is 1 whatever the order."""
    frame = {
        "user": [row // 10 for row in range(40)],
        "item": [*range(40)],
        "rank": [1 + row % 10 for row in range(40)],
    }
    frame["clicked"] = [int(row in (3, 17)) for row in range(40)]
    with pytest.warns(
        UserWarning, match=r"HR@10 is 1 by construction: all 2 sessions .* and 2 without one are left out"
    ):
        assert evaluate_lists("HR", frame, label="clicked", k=10)["HR@10"] == 1
