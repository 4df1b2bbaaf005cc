"""`evaluate_lists`: lists in every form against other programs, their order, ids, truth, exclusions, files, errors."""

import math
from pathlib import Path

import pytest
import reference
import torch
from values import near, numbers
from worlds import ITEMS, world

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log, Table
from torchrecmetrics.evaluation.ranked_lists import ListSource
from torchrecmetrics.evaluation.scorers import ENTRY_BYTES

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

NAMES = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"]


def value(metric, lists, target, **options):
    """Return the value of one metric, which compares equal within 1e-12."""
    (number,) = trm.evaluate_lists(metric, lists, target=target, **options).floats().values()
    return pytest.approx(number, abs=1e-12)


@pytest.mark.parametrize("ties", ["expected", "realistic", "optimistic", "pessimistic"])
def test_recommended_lists_have_the_values_of_the_model(ties):
    users, items, train, test = world()  # many scores are tied
    options = {"target": test, "k": [1, 5, 8], "ties": ties}
    of_model = trm.evaluate(NAMES, users, items, exclude=train, **options)
    of_lists = trm.evaluate_lists(NAMES, trm.recommend(users, items, ITEMS, exclude=train), **options)

    assert numbers(of_lists) == near(of_model)
    assert numbers(of_lists.standard_errors) == near(of_model.standard_errors)
    assert of_lists.counts() == of_model.counts() | {
        "num_left_out": of_lists.num_skipped,  # their lists
        "num_without_history": 0,  # no history was passed with the lists
    }


def write(path, *lines):
    """Write lines of text, and return the path."""
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def trec(tmp_path):
    """Return a run and qrels of random documents as dicts, where some users are in one of the two, and their files."""
    random, run, qrels = np.random.default_rng(5), {}, {}
    for user in range(30):
        documents = [f"d{number}" for number in random.permutation(40)]
        if user % 7:
            run[f"q{user}"] = dict(zip(documents[:12], map(float, random.permutation(100)), strict=False))
        if user % 5:
            qrels[f"q{user}"] = dict(zip(random.permutation(documents).tolist(), [0, 1, 2, 3, 1, 2], strict=False))
    rows = [f"{user} Q0 {item} 0 {score} t" for user, scores in run.items() for item, score in scores.items()]
    grades = [f"{user} 0 {item} {grade}" for user, items in qrels.items() for item, grade in items.items()]
    return run, qrels, str(write(tmp_path / "a.run", *rows)), str(write(tmp_path / "a.qrels", *grades))


RANX = {"HR@10": "hit_rate@10", "NDCG@10": "ndcg@10", "MRR@10": "mrr@10", "Recall@10": "recall@10", "MAP@10": "map@10"}


def test_random_files_of_trec_have_the_values_of_ranx(trec):
    ranx = pytest.importorskip("ranx")
    run, qrels, run_path, qrels_path = trec
    result = trm.evaluate_lists([*RANX], run_path, target=qrels_path)
    theirs = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), [*RANX.values()], make_comparable=True)

    assert result.floats() == pytest.approx({name: theirs[of_ranx] for name, of_ranx in RANX.items()}, abs=1e-9)


MEASURES = {"HR@10": "Success@10", "NDCG@10": "nDCG@10", "MRR@10": "RR@10", "Precision@10": "P@10", "MAP@10": "AP@10"}


def test_random_files_of_trec_have_the_values_of_ir_measures(trec):
    ir_measures = pytest.importorskip("ir_measures")
    *_, run_path, qrels_path = trec
    result = trm.evaluate_lists([*MEASURES], run_path, target=qrels_path)
    measures = {name: ir_measures.parse_measure(theirs) for name, theirs in MEASURES.items()}
    files = ir_measures.read_trec_qrels(qrels_path), ir_measures.read_trec_run(run_path)
    theirs = ir_measures.calc_aggregate(measures.values(), *files)

    assert result.floats() == pytest.approx({name: theirs[measure] for name, measure in measures.items()}, abs=1e-9)


@pytest.mark.parametrize(
    ("metric", "formula"),
    [
        ("HR@5", lambda user: reference.hit_rate(user, 5)),
        ("NDCG@5", lambda user: reference.ndcg(user, 5)),
        ("MRR@5", lambda user: reference.reciprocal_rank(user, 5)),
        ("Recall@5", lambda user: reference.recall(user, 5)),
        ("MAP@5", lambda user: reference.average_precision(user, 5)),
        ("RPrecision", reference.r_precision),
    ],
)
def test_values_and_standard_errors_are_those_of_plain_python(metric, formula):
    """Lists of 0 to 9 of 30 items, of which the ground truth knows 20."""
    generator = torch.Generator().manual_seed(3)
    lists, truth, users = {}, {}, []
    for user in range(40):
        truth[user] = torch.randperm(20, generator=generator)[: 1 + user % 4].tolist()
        lists[user] = torch.randperm(30, generator=generator)[: user % 9 if user else 9].tolist()
        scores = [-lists[user].index(item) if item in lists[user] else -math.inf for item in range(30)]
        users.append(reference.rank(scores, dict.fromkeys(truth[user], 1.0)))
    result = trm.evaluate_lists(metric, lists, target=truth)

    mean, error = reference.mean([formula(user) for user in users])
    assert result[metric].item() == pytest.approx(mean)
    assert result.standard_errors[metric].item() == pytest.approx(error)


RANKED = {"user": ["bo", "al", "bo", "al"], "item": ["z", "x", "v", "y"], "rank": [1, 2, 2, 1]}
"""Lists y, x of al and z, v of bo, in a table whose rows are in another order."""
SCORED = RANKED | {"score": [0.9, 0.1, 0.4, 0.5]}
LISTS = {"al": ["y", "x"], "bo": ["z", "v"]}
TRUTH = {"al": ["x"], "bo": ["z"]}
TRUTH_COLUMNS = {"user": ["al", "bo"], "item": ["x", "z"]}
CATEGORIES = pd.DataFrame(RANKED).astype({"user": pd.CategoricalDtype(["al", "bo", "unused"]), "item": "category"})
TYPES = {"user": "U2", "item": "U1", "rank": "i4"}
RECOMMENDED = trm.Recommendations(torch.tensor([[1, 0], [2, 3]]), torch.zeros(2, 2), torch.arange(2))
FORMS_OF_LISTS = {
    "pandas": pd.DataFrame(RANKED),
    "polars": pl.DataFrame(RANKED),
    "pyarrow": pa.table(RANKED),
    "numpy": pd.DataFrame(RANKED).to_records(index=False).astype([*TYPES.items()]),
    "categories": CATEGORIES,
    "columns": RANKED,
    "scores": Table(SCORED, score="score"),
    "dict": LISTS,
    "dict of scores": {"al": {"x": 0.1, "y": 0.5}, "bo": {"v": 0.4, "z": 0.9}},
    "tuple": ([["y", "x"], ["z", "v"]], ["al", "bo"]),
    "tuple of arrays": (np.array([["y", "x"], ["z", "v"]]), np.array(["al", "bo"])),
    "recommendations": RECOMMENDED.with_ids(user_ids=["al", "bo"], item_ids=["x", "y", "z", "v"]),
}
FORMS_OF_TRUTH = {
    "dict": TRUTH,
    "dict of sets": {"al": {"x"}, "bo": {"z"}},
    "columns": TRUTH_COLUMNS,
    "polars": pl.DataFrame(TRUTH_COLUMNS),
    "log": Log.from_frame(TRUTH_COLUMNS),
    "interactions": Interactions.from_frame(TRUTH_COLUMNS),
}


@pytest.mark.parametrize("form", FORMS_OF_LISTS)
def test_lists_of_any_form_have_the_same_value(form):
    assert value("MRR@2", FORMS_OF_LISTS[form], TRUTH) == (1 / 2 + 1) / 2


@pytest.mark.parametrize("form", FORMS_OF_TRUTH)
def test_ground_truths_of_any_form_give_the_same_value(form):
    assert value("MRR@2", LISTS, FORMS_OF_TRUTH[form]) == (1 / 2 + 1) / 2


@pytest.mark.parametrize("form", FORMS_OF_TRUTH)
def test_exclusions_of_any_form_leave_the_lists(form):
    """Of TRUTH, x leaves al's list and z leaves bo's."""
    lists = {"al": ["x", "y"], "bo": ["z", "v", "w"]}
    target, exclude = {"al": ["y"], "bo": ["w"]}, FORMS_OF_TRUTH[form]

    assert value("MRR@2", lists, target, exclude=exclude, complete=True) == (1 + 1 / 2) / 2


def test_several_exclusions_are_taken_together():
    exclude = ({"al": ["x"]}, Interactions.from_frame({"user": ["al"], "item": ["y"]}))

    assert value("MRR", {"al": ["x", "y", "z"]}, {"al": ["z"]}, exclude=exclude, complete=True) == 1


def test_recommendations_are_matched_by_id():
    """The lists are y of bo and x of al, in other row numbers than those of the ground truth."""
    target = Interactions.from_columns(["al", "bo"], ["x", "y"], user_ids=["al", "bo"], item_ids=["x", "y", "z"])
    lists = trm.Recommendations(torch.tensor([[1], [2]]), torch.ones(2, 1), torch.arange(2))

    assert value("HR@1", lists.with_ids(user_ids=["bo", "al"], item_ids=["z", "y", "x"]), target) == 1


def test_users_without_a_list_score_0():
    assert value("HR@1", {"al": ["x"], "bo": []}, {"al": ["x"], "bo": ["z"], "eve": ["x"]}) == (1 + 0 + 0) / 3


class WeighedByLists(trm.RankingMetric):
    """Hits whose rows weigh as many items as their lists hold, with or without a relevant item."""

    formula = staticmethod(trm.functional.hit_rate)
    weights = staticmethod(lambda ranking: ranking.num_recommended)


OF_THREE = {"a": [7, 8, 1], "b": [3, 4], "c": [5]}
"""A list of three items with a hit, one of two without a hit, and one of one item of a user without ground truth."""


@pytest.mark.parametrize(("action", "expected"), [("skip", 3 / 5), ("neg", 3 / 6), ("pos", (3 + 1) / 6)])
def test_users_without_ground_truth_weigh_their_lists(action, expected):
    metric = WeighedByLists(3, empty_target_action=action)

    assert value(metric, OF_THREE, {"a": [1], "b": [2], "c": []}, complete=True) == expected


def test_a_user_with_a_list_and_an_empty_ground_truth_is_served():
    options = {"empty_target_action": "neg", "keep_rows": True, "complete": True}
    rows = trm.evaluate_lists("HR@1", {"al": ["x"], "bo": ["y"]}, target={"al": ["x"], "bo": []}, **options).rows

    assert rows.served is None  # no gate counts bo as unserved


@pytest.mark.parametrize(("action", "expected"), [("skip", 1 / 2), ("neg", 1 / 4), ("pos", 3 / 4)])
@pytest.mark.parametrize("truth", [{0: [1], 1: []}, {0: {5: 0, 1: 2}, 1: []}], ids=["items", "grades"])
def test_users_with_an_empty_ground_truth_count_as_the_action_says(truth, action, expected):
    lists = {0: [5, 1], 1: [3, 4]}

    assert value("MRR@2", lists, truth, empty_target_action=action) == expected


def test_rows_are_in_the_order_of_the_target():
    lists = {"b": ["x", "y", "z"], "a": ["z"], "other": ["x"]}
    target = Interactions.from_dict({"a": ["z"], "b": ["y"], "c": ["x"]}, user_ids=["c", "b", "none", "a"])
    rows = trm.evaluate_lists("MRR@3", lists, target=target, complete=True, keep_rows=True).rows

    assert rows.ids == ["c", "b", "none", "a"]
    assert rows.values["MRR@3"].tolist() == pytest.approx([0, 1 / 2, math.nan, 1], nan_ok=True)


UNEVEN = {"al": [*"xyzw"], "bo": ["z"], "eve": [*"xyz"]}
HITS = {"al": ["x", "y"], "bo": ["z"], "eve": ["x"]}
HAD = {"bo": ["x"], "eve": ["y"]}


def test_a_list_that_exclusions_make_shorter_than_k_is_refused():
    with pytest.raises(ValueError, match=r"user 'eve' holds 2 items after .* read 3 ranks: .*complete=True"):
        trm.evaluate_lists("HR@3", UNEVEN, target=HITS, exclude=HAD)


@pytest.mark.parametrize(("k", "options"), [(3, {"complete": True}), (3, {"validate_args": False}), (2, {})])
def test_a_shortened_list_is_read_if_it_is_complete_or_long_enough(k, options):
    """bo's list was short before, and is taken as complete."""
    assert value("HR", UNEVEN, HITS, k=k, exclude=HAD, **options) == 1


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("HR@4", "HR@4 reads 4 ranks, but the longest list of lists holds 1 item: .*complete=True"),
        ("MRR", "MRR reads the whole ranking, but the longest list of .*complete=True"),
        ("RPrecision", "ranks, but the ranks are known.*complete=True"),
    ],
)
def test_lists_that_are_all_shorter_than_the_cutoff_are_refused(metric, message):
    with pytest.raises(ValueError, match=message):
        trm.evaluate_lists(metric, {"al": ["y"], "bo": ["z"]}, target={"al": ["x", "y"], "bo": ["z"]})


TWO_TIES = {"user": ["al", "bo", "al", "bo", "al"], "item": [*"wvxzy"], "score": [1.0, 0.0, 1.0, 0.0, 2.0]}
"""al's x is tied with w at ranks 2 and 3, bo's z with v at ranks 1 and 2."""


@pytest.mark.parametrize("step", [1, -1], ids=["rows in order", "rows reversed"])
@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("expected", ((1 / 2 + 1 / 3) / 2 + (1 + 1 / 2) / 2) / 2),
        ("realistic", (1 / 2.5 + 1 / 1.5) / 2),
        ("optimistic", (1 / 2 + 1) / 2),
        ("pessimistic", (1 / 3 + 1 / 2) / 2),
    ],
)
def test_equal_scores_are_tied_in_any_order_of_the_rows(ties, expected, step):
    lists = {name: column[::step] for name, column in TWO_TIES.items()}

    assert value("MRR@3", lists, {"al": ["x"], "bo": ["z"]}, ties=ties) == expected


@pytest.mark.parametrize("items", ["xyz", "zyx"])
def test_items_of_equal_scores_are_listed_in_the_order_of_the_catalogue(items):
    """Whatever the order of the rows, the item at rank 1 is x, which has one interaction."""
    catalogue = trm.Catalogue(3, popularity=torch.tensor([1, 5, 7]), item_ids=["x", "y", "z"])
    lists = {"user": ["a", "a", "a"], "item": [*items], "score": [0.5, 0.5, 0.5]}

    assert value("AveragePopularity@1", lists, {"a": ["y"]}, catalogue=catalogue) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_begin_at_0_or_1_throughout(first):
    """Ranks of users without ground truth, such as zoe and ida, are not read."""
    lists = {"user": ["al", "bo", "al", "zoe", "bo", "al", "ida"], "item": [*"wzxxvyx"]}
    lists["rank"] = [first + 2, first + 1, first, 77, first, first + 1, 55]

    assert value("MRR@3", lists, {"al": ["w"], "bo": ["z"], "zoe": []}) == (1 / 3 + 1 / 2) / 2


def test_first_keeps_the_best_rank_of_an_item():
    """al's list is x, y; zoe, whose list repeats an item, has no ground truth."""
    lists = {"user": ["al", "al", "al", "zoe", "zoe"], "item": [*"xxyww"], "score": [5, 2, 1, 2, 1]}
    result = trm.evaluate_lists("MRR@2", lists, target={"al": ["y"]}, duplicates="first", complete=True)

    assert (result["MRR@2"], result.num_repeated) == (1 / 2, 1)


TWICE = pd.DataFrame({"user": ["al", "al", "bo"] * 2, "item": ["w", "x", "z"] * 2, "rank": [1, 2, 1] * 2})


def test_first_takes_rows_of_equal_rank_and_item_for_one():
    result = trm.evaluate_lists("MRR@2", TWICE, target={"al": ["x"], "bo": ["z"]}, duplicates="first", complete=True)

    assert (result["MRR@2"], result.num_repeated) == ((1 / 2 + 1) / 2, 3)


def test_first_refuses_another_item_at_the_same_rank():
    lists = TWICE.assign(item=["w", "x", "z", "w", "y", "z"])
    with pytest.raises(ValueError, match=r"^lists, row [14], column 'rank': user 'al' has rank 2 twice.*a second list"):
        trm.evaluate_lists("MRR@2", lists, target={"al": ["x"]}, duplicates="first", complete=True)


BELOW_0 = np.array([[5, -7], [-(2**63), -1], [-1, -1]])


def test_ids_below_0_other_than_the_padding_are_items():
    """Lists 5, -7 and -2^63, and an empty one."""
    assert value("MRR@2", (BELOW_0, [1, 2, 3]), {1: [-7], 2: [-(2**63)], 3: [-8]}) == (1 / 2 + 1 + 0) / 3


@pytest.mark.parametrize("filler", [-1, None, math.nan])
@pytest.mark.parametrize("make", [list, lambda lists: np.array(lists, dtype=object)], ids=["lists", "array"])
def test_minus_1_and_missing_values_fill_up_lists(make, filler):
    lists = make([["y", "x"], ["z", filler]]), ["al", "bo"]
    result = trm.evaluate_lists("MRR@2", lists, target={"al": ["x"], "bo": ["z"]})

    assert (result["MRR@2"], result.num_unknown) == ((1 / 2 + 1) / 2, 1)  # y is unknown, the filler is no item


def test_items_that_the_truth_lacks_keep_their_ranks():
    assert value("MRR@2", {"al": ["new", "x"], "bo": ["z", "new"]}, {"al": ["x"], "bo": ["z"]}) == (1 / 2 + 1) / 2


def test_items_that_the_truth_lacks_are_excluded_by_id():
    assert value("MRR@2", {"bo": ["old", "z"]}, {"bo": ["z"]}, exclude={"bo": ["old"]}, complete=True) == 1


def test_numbers_of_a_frame_match_numbers_of_a_vocabulary():
    target = Interactions.from_columns([0, 1], [2, 3], user_ids=torch.arange(2), item_ids=torch.arange(4))

    assert value("MRR@2", {"user": [0, 1, 1], "item": [2, 0, 3]}, target) == (1 + 1 / 2) / 2


def test_titles_are_not_taken_apart():
    """Entries of dicts and of cells of lists are items, even if their words are items of the other side."""
    titles, words = ["Alien Resurrection", "Alien", "Resurrection"], ["Alien", "Resurrection"]

    assert value("MRR@3", {"a": titles}, {"a": words}) == 1 / 2
    assert value("MRR@3", {"user": ["a"], "item": [titles]}, {"a": words}) == 1 / 2
    assert value("HR@1", {"a": titles}, {"user": ["a"], "item": [words]}) == 0


def test_grades_of_a_dict_are_gains():
    assert value("NDCG@2", {"al": ["z", "y"]}, {"al": {"y": 2, "z": 1}}) == (1 + 2 / math.log2(3)) / (
        2 + 1 / math.log2(3)
    )


REPEATED = {"user": ["al"] * 3, "item": ["x", "x", "y"], "value": [5, 1, 2]}


@pytest.mark.parametrize(("rule", "gain"), [("sum", 5 + 1), ("max", 5), ("last", 1)])
def test_values_reduce_says_the_gain_of_a_repeated_pair(rule, gain):
    recall = trm.Recall(1, weighted=True)

    assert value(recall, {"al": ["x"]}, REPEATED, values_reduce=rule) == gain / (gain + 2)


def test_a_repeated_pair_of_an_exclusion_needs_no_rule():
    exclude = Log.from_frame({"user": ["al", "al"], "item": ["x", "x"], "value": [5, 1]})

    assert value("HR@1", {"al": ["x", "y"]}, {"al": ["y"]}, exclude=exclude) == 1


READ_AGAIN = {"al": ["y", "x"], "bo": ["z"], "eve": ["y", "x"]}
RELEVANT = {"al": ["x"], "bo": ["z"], "eve": ["x"]}


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("miss", (1 / 2 + 1 + 0) / 3),
        ("keep", (1 / 2 + 1 + 1 / 2) / 3),
        ("without", (1 / 2 + 1) / 2),  # eve has no other relevant item
    ],
)
def test_overlap_says_how_a_relevant_item_counts_that_is_excluded(overlap, expected):
    options = {"exclude": {"eve": ["x"]}, "overlap": overlap, "complete": True}

    assert value("MRR@2", READ_AGAIN, RELEVANT, **options) == expected


def test_without_takes_items_of_a_mask_out_of_the_truth():
    """Item x, of al and eve; al's y is at rank 1 where x is gone."""
    target = Interactions.from_frame({"user": ["al", "al", "eve"], "item": ["x", "y", "x"]})
    options = {"exclude": torch.tensor([True, False]), "overlap": "without", "complete": True}
    result = trm.evaluate_lists("HR@1", {"al": ["x", "y"], "eve": ["x"]}, target=target, **options)

    assert (result["HR@1"], result.num_users, result.num_skipped) == (1, 1, 1)


RATED = pd.DataFrame({"user": ["al", "al"], "item": ["x", "z"], "rating": [1, 0]})


@pytest.mark.parametrize(
    "exclude", [RATED, Table(RATED), Table(RATED, value="rating")], ids=["frame", "Table", "value"]
)
def test_values_of_excluded_pairs_are_not_read(exclude):
    """Both pairs leave the list, also the one with the value 0."""
    lists, target = {"al": ["x", "z", "y"]}, {"al": ["y"]}
    result = trm.evaluate_lists("MRR", lists, target=target, exclude=exclude, complete=True)

    assert result["MRR"] == 1
    assert "exclude: 2 pairs, not read: 'rating'\n" in str(result)


def test_runs_and_qrels_of_trec_are_lists_and_truth(tmp_path):
    run = write(tmp_path / "a.run", "al Q0 x 1 2.0 tag", "al Q0 y 2 1.0 tag")
    result = trm.evaluate_lists("MRR@2", run, target=write(tmp_path / "a.qrels", "al 0 y 1"))

    assert result["MRR@2"] == 1 / 2
    assert result.unread == {}  # neither the rank and the tag of a run, nor the iteration of qrels


@pytest.mark.parametrize(
    ("lists", "truth", "expected"),
    [
        (["7", "8"], ["7", "x9"], 1),  # 7 in a file of numbers is the same id as 7 in a file with text
        (["x9", "7"], ["7", "8"], 1 / 2),
        (["10", "8"], ["0a", "010"], 0),  # no lost zeros, which would be those of numbers
        (["[REC]", '"[1, 2]"'], ["[REC]"], 1),
    ],
)
def test_ids_of_text_files_are_what_is_written(lists, truth, expected, tmp_path):
    lists = write(tmp_path / "lists.csv", "user,item", *(f"al,{item}" for item in lists))
    truth = write(tmp_path / "truth.csv", "user,item", *(f"al,{item}" for item in truth))
    exclude = write(tmp_path / "had.csv", "user,item", "al,5")

    assert value("MRR@2", lists, truth, exclude=exclude, complete=True) == expected


@pytest.mark.parametrize("header", ["user,item", "item,user"])
@pytest.mark.parametrize(
    "rows", [("7,a", "07,a", "07,b"), ("07,a", "7,a", "07,b"), ("07,a", "07,a", "7,b")], ids=["lists", "truth", "had"]
)
def test_ids_that_lost_their_zeros_in_one_of_the_files_are_refused(rows, header, tmp_path):
    names = "lists.csv", "truth.csv", "had.csv"
    lists, truth, had = (write(tmp_path / name, header, row) for name, row in zip(names, rows, strict=True))
    with pytest.raises(ValueError, match=rf"{header[:4]}.* 7, .*'07': leading zeros.*dtype=str"):
        trm.evaluate_lists("MRR@1", lists, target=truth, exclude=had, complete=True)


@pytest.mark.parametrize("separator", [" ", "  ", ", ", "|", ";"])
def test_split_reads_the_ids_of_a_cell_in_order(separator):
    lists = {"user": ["a", "b"], "item": [separator.join("xyz"), separator.join("zyx")]}
    table = Table(lists, split=separator if separator.strip() else " ")

    assert value("MRR@3", table, {"a": ["z"], "b": ["y"]}) == (1 / 3 + 1 / 2) / 2


def test_blanks_beside_a_separator_are_no_part_of_an_id():
    lists = Table({"user": ["a"], "item": ["x | y"]}, split="|")

    assert value("MRR@2", lists, {"a": ["y"]}) == 1 / 2


ROWS = {"user": ["al", "bo"], "item": ["x", "z"]}
TWO = {"user": ["al", "al"], "item": ["x", "z"]}
TWO_X = {"user": ["zoe", "al", "bo", "zoe", "al"], "item": [*"xxzxx"], "score": [1, 2, 3, 4, 5]}


def ranked(*ranks):
    return {"user": ["al", "al", "al", "bo"], "item": ["w", "x", "y", "z"], "rank": [*ranks]}


def evaluate(lists, metric="HR@1", **options):
    """Evaluate lists with the ground truth x, y of al, z of bo and x of eve, unless the options have another."""
    target = Interactions.from_frame({"user": ["al", "al", "bo", "eve"], "item": ["x", "y", "z", "x"]})
    return trm.evaluate_lists(metric, lists, **{"target": target, **options})


REFUSED = [
    # columns
    (lambda: evaluate(Table(ROWS, item="itm")), "lists has no column 'itm'; did you mean 'item'"),
    (lambda: evaluate({"usr": ["al"], "item": ["x"]}), "no column 'user' or 'user_id'; did you mean 'usr'"),
    (lambda: evaluate({"u": ["al"], "i": ["x"]}), "no user of lists has ground truth: .* such as 'u'.*item= name"),
    (lambda: evaluate(Table(ROWS, item=None)), "item=None is for label="),
    (lambda: evaluate(TWO | {"place": [2, 1], "est": [2, 1]}), "columns that are not read: 'place', 'est'\\."),
    (lambda: evaluate(Table(TWO | {"score": [1, 2]}, rank="score")), "upside down: pass score='score'"),
    (lambda: evaluate(Table(TWO | {"rank": [1, 2]}, score="rank")), "upside down: pass rank='rank'"),
    (lambda: evaluate(Table(TWO | {"p": [1, 2]}, score="p", split=" ")), "leave rank= and score= out"),
    # lists
    (lambda: evaluate([["x"]]), r"to say who the users are, pass \(lists, users\)"),
    (lambda: evaluate(pl.DataFrame(ROWS).lazy()), r"not computed yet, LazyFrame: pass lists.collect\(\)"),
    (lambda: evaluate((1, 2, 3)), "tuple of two"),
    (lambda: evaluate({0: torch.tensor(1)}), "the items of each user must be a list"),
    (lambda: evaluate(pd.Series({0: [1]})), "is a Series: if it holds the items of each user, pass "),
    (lambda: evaluate(ROWS, target=pl.Series([[1]])), "is a Series: if it holds the items of each user, pass "),
    (lambda: evaluate(ROWS, exclude=pd.Series({0: [1]})), "is a Series: if it holds the items of each user, pass "),
    (lambda: evaluate({"al": {"x": 0.5}, "bo": ["x"]}), "a dict of scores for 'al' and a list without for 'bo'"),
    (lambda: evaluate(([["x"], ["y"], ["z"]], ["al", "bo", "al"])), "two lists of user 'al', in rows 0 and 2"),
    (lambda: evaluate(([["x"], ["y"]], ["al"])), "2 lists and 1 users"),
    (lambda: evaluate((np.array(["x"]), ["al"])), r"lists must be \[users, K\]"),
    (lambda: evaluate({"al": [("x", 0.9), ("y", 0.5)]}), r"tuple: take one field of each, \[cell\[0\] for"),
    (lambda: evaluate({"al": "xyz"}), "each of the lists must be a list of item ids.*got str"),
    (lambda: evaluate({}), "lists is empty"),
    (lambda: evaluate({"user": [], "item": []}), "lists holds no rows"),
    (lambda: evaluate({"user": ["al", None], "item": ["x", "y"]}), "column 'user' of lists holds a missing .*row 1"),
    # ranks and repeats
    (lambda: evaluate(ranked(1, 2, 4, 1)), r"row 2.*'al' has rank 4 after 2"),
    (lambda: evaluate(ranked(2, 3, 4, 1)), r"row 0.*'al' has rank 2 as the best"),
    (lambda: evaluate(ranked(0, 1, 2, 1)), r"row 0.*'al' has rank 0 as the best"),
    (lambda: evaluate(ranked(1, 2, 1.5, 1)), r"holds 1.5 in row 2, which is no rank"),
    (lambda: evaluate(ranked(1, 2, 10**12, 1)), r"holds 1000000000000 in row 2, which is no rank"),
    (lambda: evaluate(TWICE), r"has rank \d twice.*duplicates='first'"),
    (lambda: evaluate(TWO_X), r"^lists, row 1, column 'item': user 'al' has item 'x' twice"),  # which has a lower score
    (lambda: evaluate({"al": ["new", "x", "new"]}), "'al' has item 'new' twice.*='first' .* pass one list per user"),
    # ids
    (lambda: evaluate({"user": [1], "item": [2]}), r"lists holds whole numbers \(1\), target's user_ids hold"),
    (lambda: evaluate((BELOW_0, [1, 2, 3]), target={1: [-1], 2: [5]}), "-1 pads the lists .* but it is also an item"),
    (lambda: evaluate({"a": ["x"], "u1 ": ["x"]}, target={"u1": ["x"]}), "such as 'a', but target has 'u1'"),
    (lambda: evaluate({"u": ["x"]}, target={"u": ["x"]}, exclude={"u ": ["x"]}), "no user of exclude .*such as 'u '"),
    # options
    (lambda: evaluate(ROWS, history=ROWS), "no option 'history': items that leave the lists are exclude="),
    (lambda: evaluate(ROWS, train=ROWS), r"no option 'train': .* catalogue=Catalogue.from_interactions\(train\)"),
    (lambda: evaluate(ROWS, compleet=True), "evaluate_lists has no option 'compleet'; did you mean 'complete'"),
    (lambda: evaluate(ROWS, weight="relevant"), "no option 'weight'"),
    (lambda: evaluate(ROWS, catalogue="train.csv"), "got str: .* trm.Log.from_file"),
    (lambda: evaluate(ROWS, padding_idx=0), "padding_idx is a row number, but target has item_ids"),
    (lambda: evaluate(ROWS, duplicates="last"), "duplicates must be one of 'error', 'first'"),
    (lambda: evaluate({"al": ["y"]}, "AUROC", complete=True), r"AUROC compares all .*: pass scores, or embeddings$"),
    # ground truth and exclusions
    (lambda: evaluate(ROWS, target=3), "target must be Interactions, a Log, a Table, a frame, a matrix, .*, got int"),
    (lambda: evaluate(ROWS, target=Interactions.from_frame(ROWS).select([0])), "pass the Interactions whole"),
    (lambda: evaluate(ROWS, target=Path("nowhere.csv")), "nowhere.csv"),
    (lambda: evaluate(ROWS, target={"al": ["x"], "bo": []}, empty_target_action="error"), "without a relevant item"),
    (lambda: evaluate(ROWS, target=Log.from_frame(REPEATED)), r"with \[5, 1\]: values_reduce='sum', 'max' or 'last'"),
    (lambda: evaluate(ROWS, exclude={"eve": ["x"]}), r"1 .* pair of target is also in .*\['eve', 'x'\].*without"),
    (lambda: evaluate(ROWS, exclude=torch.zeros(5, dtype=torch.bool)), r"exclude must be Interactions, bool \[3\]"),
    (lambda: evaluate(ROWS, target=ROWS, exclude=ROWS, overlap="without"), "all pairs of target are also in exclude"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_bad_arguments_are_refused_with_the_cure(call, message):
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        call()


def test_values_of_random_lists_do_not_depend_on_the_number_of_users_per_batch(monkeypatch):
    generator = torch.Generator().manual_seed(4)
    lists = {n: torch.randperm(50, generator=generator)[: 3 + n % 11].tolist() for n in range(60)}
    truth = {n: [n % 50, (n + 7) % 50] for n in range(60)}
    options = {"target": truth, "exclude": {n: [(n + 20) % 50] for n in range(60)}, "k": [1, 5]}
    whole = trm.evaluate_lists([*NAMES, "RPrecision"], lists, **options)
    monkeypatch.setattr(ListSource, "memory", 50 * ENTRY_BYTES)
    in_batches = trm.evaluate_lists([*NAMES, "RPrecision"], lists, **options)

    assert numbers(in_batches) == near(whole)
    assert numbers(in_batches.standard_errors) == near(whole.standard_errors)


@pytest.mark.parametrize("entries", [2**19, 1], ids=["one batch", "a batch for each user"])
def test_a_short_list_is_whole_in_every_batch(entries, monkeypatch):
    """A list shorter than the R ranks of RPrecision has no more items, whichever users are in the same batch."""
    monkeypatch.setattr(ListSource, "memory", entries * ENTRY_BYTES)
    lists, truth = {"al": [*"xyz"], "bo": [*"uvwxyz"]}, {"al": [*"xpq"], "bo": ["u"]}

    assert value("RPrecision", lists, truth, exclude={"al": ["y"]}) == (1 / 3 + 1) / 2


def test_other_processes_are_not_asked():
    """Each process evaluates its own lists."""

    def sync(*_):
        raise AssertionError("asked another process")

    options = {"distributed_available_fn": lambda: True, "dist_sync_fn": sync}
    assert value("HR@1", {"al": ["x"]}, {"al": ["x"]}, **options) == 1


TRUTH_OF_ROWS = Interactions.from_columns([0, 1, 2], [2, 3, 3], num_users=3, num_items=5)
TOP = torch.tensor([[0, 2], [3, 1], [4, 0]]), torch.arange(3)
"""Lists of three users, of which the first two hold a relevant item, at rank 2 and 1."""
DENSE = torch.tensor([[0, 0, 1.0, 0, 0], [0, 0, 0, 1.0, 0], [0, 0, 0, 1.0, 0]])


@pytest.mark.parametrize(
    "target",
    [torch.tensor([[0, 1, 2], [2, 3, 3]]), DENSE > 0, DENSE.numpy(), DENSE.double(), DENSE.to_sparse(), TRUTH_OF_ROWS],
    ids=["edge_index", "bool", "numpy", "graded", "sparse", "interactions"],
)
def test_tensors_are_ground_truths(target):
    """The first call of a graph user: top-k ids beside an edge_index."""
    assert value("MRR@2", TOP, target) == (1 / 2 + 1 + 0) / 3


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        (torch.tensor([[0, 2], [0, 4]]), (1 + 1 + 0) / 3),  # edges: user 0 had item 0
        (torch.eye(3, 5) > 0, (1 + 1 + 0) / 3),  # a matrix of users and items
        (torch.tensor([True, False, False, False, False]), (1 + 1 + 0) / 3),  # a mask of items
        (torch.eye(3, 5) > 2, (1 / 2 + 1 + 0) / 3),  # nothing
    ],
)
def test_tensors_are_exclusions(exclude, expected):
    assert value("MRR@2", TOP, TRUTH_OF_ROWS, exclude=exclude, complete=True) == expected


def test_dicts_hold_row_numbers_where_the_target_has_no_ids():
    """User 7 and item 9 are beyond its rows."""
    lists = {0: [9, 2], 1: [3, 1], 7: [1]}

    assert value("MRR@2", lists, TRUTH_OF_ROWS) == (1 / 2 + 1 + 0) / 3


def test_row_numbers_below_0_are_padding():
    assert value("HR@1", (torch.tensor([[-2, 2], [-5, 3], [-1, 3]]), torch.arange(3)), TRUTH_OF_ROWS) == 1


def test_a_mask_is_in_the_order_of_targets_items_beside_a_catalogue():
    """a is removed from both lists; the catalogue has another order."""
    target = Interactions.from_columns(["u", "v"], ["d", "c"], user_ids=["u", "v"], item_ids=["d", "c", "b", "a"])
    options = {"exclude": torch.tensor([False, False, False, True]), "catalogue": trm.Catalogue(4, item_ids=[*"abcd"])}

    assert value("MRR@3", {"u": [*"adb"], "v": [*"acb"]}, target, complete=True, **options) == 1


WITH_IDS = TRUTH_OF_ROWS.with_ids(user_ids=torch.arange(3), item_ids=torch.arange(5))
LISTS_OF_ROWS = {0: [0, 2], 1: [3, 1], 2: [4, 0]}
FRAME_OF_ROWS = {"user": [0], "item": [0]}


@pytest.mark.parametrize(
    ("target", "lists", "options", "message"),
    [
        (TRUTH_OF_ROWS, FRAME_OF_ROWS, {}, "lists has user_ids, target has none"),
        (WITH_IDS, trm.recommend(torch.eye(3), torch.eye(5, 3), 2), {}, "target has .* lists has none"),
        (TRUTH_OF_ROWS, LISTS_OF_ROWS, {"exclude": {0: [0]}}, "exclude has user_ids, target has none"),
        (TRUTH_OF_ROWS, LISTS_OF_ROWS, {"exclude": FRAME_OF_ROWS}, "exclude has user_ids, target has"),
        (WITH_IDS, LISTS_OF_ROWS, {"exclude": TRUTH_OF_ROWS}, "target has user_ids, exclude has none"),
        (TRUTH_OF_ROWS, LISTS_OF_ROWS, {"exclude": (TRUTH_OF_ROWS, {0: [0]})}, r"exclude\[1\] has user_ids, target"),
        (WITH_IDS, LISTS_OF_ROWS, {"catalogue": trm.Catalogue(5)}, "target has item_ids, the cat"),
        (TRUTH_OF_ROWS, LISTS_OF_ROWS, {"catalogue": trm.Catalogue(5, item_ids=range(5))}, "catalogue has item_ids"),
    ],
)
def test_ids_beside_row_numbers_are_refused(target, lists, options, message):
    with pytest.raises(ValueError, match=f"{message}.* row 5 could mean two "):
        trm.evaluate_lists("HR@1", lists, target=target, complete=True, **options)


@pytest.mark.parametrize(
    ("lists", "exclude", "message"),
    [
        ({-1: [2], 0: [3]}, None, "the users of lists hold -1: row numbers are 0 or more"),
        (TOP, torch.eye(2, 5) > 0, "exclude has 2 users, target has 3: their rows"),
        (TOP, torch.eye(3, 9) > 0, "exclude has 9 items, target has 5: their rows"),
    ],
    ids=["user -1", "2 of 3 users", "9 of 5 items"],
)
def test_row_numbers_that_do_not_fit_the_target_are_refused(lists, exclude, message):
    with pytest.raises(ValueError, match=message):
        trm.evaluate_lists("HR@1", lists, target=TRUTH_OF_ROWS, exclude=exclude)


@pytest.mark.parametrize("shape", [(3, 2), (3,), ()], ids=str)
def test_whole_numbers_in_another_shape_than_edges_are_no_ground_truth(shape):
    with pytest.raises(TypeError, match=r"a matrix, .*from_padded\(ids, num_items\)"):
        trm.evaluate_lists("HR@1", TOP, target=torch.ones(shape, dtype=torch.int64))


def test_two_rows_beside_two_lists_could_be_edges_or_items():
    two_by_two = torch.tensor([[0, 2], [3, 1]])
    with pytest.raises(TypeError, match="is an edge_index or rows of items"):
        trm.evaluate_lists("HR@1", (two_by_two, [0, 1]), target=two_by_two)


SESSIONS = pd.DataFrame(
    {
        "session": ["s", "t", "s", "t", "s", "u"],
        "item": ["a", "a", "b", "c", "c", "a"],
        "score": [0.1, 0.9, 0.8, 0.2, 0.5, 0.3],
        "clicked": [0, 0, 0, 1, 1, 0],
    }
)
"""Session s has its click at rank 2 of 3, t at rank 2 of 2, and u has none."""


def of_sessions(metric, frame=SESSIONS, score="score", label="clicked", columns=(), **options):
    table = Table(frame, user="session", score=score, **dict(columns))
    return trm.evaluate_lists(metric, table, label=label, **options)


@pytest.mark.parametrize(("metric", "expected"), [("MRR", (1 / 2 + 1 / 2) / 2), ("AUROC", (1 / 2 + 0) / 2)])
@pytest.mark.parametrize(
    ("frame", "columns"),
    [(SESSIONS, {}), (SESSIONS.drop(columns="item"), {}), (SESSIONS, {"item": None})],
    ids=["items", "no items", "item=None"],
)
def test_rows_of_a_session_are_its_candidates(frame, columns, metric, expected):
    """Without a column of items each row is a candidate of its own."""
    assert of_sessions(metric, frame, columns=columns)[metric] == expected


def test_sessions_without_a_label_have_no_value():
    result = of_sessions("MRR", keep_rows=True)

    assert result.rows.values["MRR"].tolist() == pytest.approx([1 / 2, 1 / 2, math.nan], nan_ok=True)
    assert (result.num_users, result.num_skipped) == (2, 1)


def test_progress_counts_sessions_with_a_label():
    told = []
    of_sessions("MRR", progress=lambda *numbers: told.append(numbers))

    assert told == [(2, 2)]


def test_ranks_order_the_rows_of_a_session():
    ranks = SESSIONS.assign(place=[3, 1, 1, 2, 2, 1]).drop(columns="score")

    assert trm.evaluate_lists("MRR", Table(ranks, user="session", rank="place"), label="clicked")["MRR"] == 1 / 2


def test_labels_are_gains():
    """Session s lists b, c, a with the gains 1, 0, 3; t lists a, c with 0, 2, and u has none."""
    rated = SESSIONS.assign(clicked=[3, 0, 1, 2, 0, 0])
    of_s, of_t = 1 / (3 + 1 / math.log2(3)), 1 / math.log2(3)

    assert of_sessions("NDCG@2", rated)["NDCG@2"].item() == pytest.approx((of_s + of_t) / 2)


TWICE_LISTED = pd.concat([SESSIONS, SESSIONS.assign(score=[0.9, 0.1, 0.1, 0.1, 0.1, 0.1], clicked=0)])


def test_an_item_that_a_session_repeats_is_one_candidate():
    """With `first`, it has its highest score and its highest label: a of s now has 0.9, so the click has rank 3."""
    result = of_sessions(["MRR", "AUROC"], TWICE_LISTED, duplicates="first")

    assert numbers(result) == {"MRR": (1 / 3 + 1 / 2) / 2, "AUROC": 0}
    assert result.num_repeated == 6


REFUSED_SESSIONS = [
    (lambda: of_sessions("MRR", score=None), "pass score= or rank= to trm.Table"),
    (lambda: of_sessions("MRR", score="clicked"), "column 'clicked' cannot be (order|score|label) and (score|label)"),
    (lambda: of_sessions("MRR", SESSIONS.assign(item="a")), "item 'a' twice for session 's'.*duplicates='first'"),
    (lambda: of_sessions("MRR", duplicates="keep_place"), "duplicates='keep_place' needs target="),
    (lambda: of_sessions("MRR", SESSIONS.to_dict("list") | {"item": ["a"]}), "must be equally long"),
    (lambda: of_sessions("MRR", SESSIONS.assign(score=None)), "column 'score' of (lists|frame)"),
    (lambda: of_sessions("MRR", SESSIONS.assign(clicked=[0, 0, 0, 1, -1, 0])), "label below 0"),
    (lambda: of_sessions("MRR", target=SESSIONS), "target cannot be combined with label="),
]


@pytest.mark.parametrize(("call", "message"), REFUSED_SESSIONS, ids=[message for _, message in REFUSED_SESSIONS])
def test_bad_sessions_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_hit_rate_of_whole_sessions_is_a_warning():
    """Of 4 sessions of 2 items each, 2 have a relevant one: HR@2 is 1 whatever the order."""
    sessions = {"user": [*"aabbccdd"], "item": [*range(8)], "rank": [1, 2] * 4, "clicked": [0, 1, 1, 0, 0, 0, 0, 0]}
    message = "HR@2 is 1 by construction: all 2 sessions .* and 2 without one are left out"
    with pytest.warns(UserWarning, match=message):
        assert trm.evaluate_lists("HR@2", sessions, label="clicked")["HR@2"] == 1
