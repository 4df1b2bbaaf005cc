"""`evaluate_lists`: lists in every form against other programs, the rules of their order, and errors."""

import itertools
import math
import re
import unicodedata
from pathlib import Path

import pytest
import reference
import torch
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log, Vocabulary, evaluate_lists

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

NAMES = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"]
U, NUM, K = 23, 31, 8


def made(seed=0, k=K, history=0):
    """Return embeddings, train and test with text ids, and the lists that the embeddings recommend."""
    generator = torch.Generator().manual_seed(seed)
    users, items = torch.randn(U, 5, generator=generator), torch.randn(NUM, 5, generator=generator)
    ids = Vocabulary([f"u{n:02d}" for n in range(U)]), Vocabulary([f"ï{n:02d}" for n in range(NUM)])
    order = torch.rand(U, NUM, generator=generator).argsort(1)
    train = Interactions.from_padded(order[:, : history or 1], NUM).with_ids(*ids)
    test = Interactions.from_padded(order[:, 6:9], NUM).with_ids(*ids)
    exclude = train if history else None
    recommended = trm.recommend(users, items, k, exclude=exclude).with_ids(*ids)
    return users, items, train, test, recommended


def frame_of(interactions):
    return {
        "user": interactions.user_ids.ids(interactions.users),
        "item": interactions.item_ids.ids(interactions.items),
    }


def same(found, expected):
    assert numbers(found) == near(expected)


# ------------------------------------------------------------------------------------------------------------ oracles


def test_lists_of_embeddings_get_what_the_embeddings_get():
    """Lists made from embeddings without the history get the values, standard errors and counts of the embeddings."""
    users, items, train, test, recommended = made(history=4)
    expected = trm.evaluate(NAMES, users, items, target=test, exclude=train, k=[1, 5, K])
    found = evaluate_lists(NAMES, recommended, target=test, k=[1, 5, K])
    same(found, expected)
    same(found.standard_errors, expected.standard_errors)
    assert (found.num_users, found.num_skipped, found.num_unserved) == (expected.num_users, expected.num_skipped, 0)


def test_history_leaves_the_lists():
    """`exclude=` removes the history from longer lists, which get the values of lists that never held the history."""
    users, items, train, test, _ = made(history=4)
    longer = trm.recommend(users, items, K + 4).with_ids(test.user_ids, test.item_ids)
    expected = trm.evaluate(NAMES, users, items, target=test, exclude=train, k=[1, 5, K])
    for exclude in (train, frame_of(train), Log.from_frame(frame_of(train)), (frame_of(train), train)):
        same(evaluate_lists(NAMES, longer, target=test, exclude=exclude, k=[1, 5, K]), expected)
    mask = torch.zeros(NUM, dtype=torch.bool)
    mask[[3, 7]] = True
    kept = trm.recommend(users, items, K, exclude=mask).with_ids(test.user_ids, test.item_ids)
    test = test.without(Interactions.from_dense(mask.expand(U, NUM)).with_ids(test.user_ids, test.item_ids))
    expected = evaluate_lists(NAMES, kept, target=test, k=K)
    same(evaluate_lists(NAMES, longer, target=test, exclude=mask, k=K), expected)


FORMS = [
    "pandas",
    "polars",
    "pyarrow",
    "dict",
    "structured",
    "categories",
    "dict of lists",
    "tuple",
    "arrays",
    "result",
]


def given_as(form, recommended):
    """Return lists and the name of the column that orders them."""
    columns = recommended.to_dict()
    order = torch.randperm(len(columns["user"]), generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = {name: [column[row] for row in order] for name, column in columns.items()}
    if form in ("pandas", "polars", "pyarrow"):
        return getattr(
            {"pandas": pd, "polars": pl, "pyarrow": pa}[form], "table" if form == "pyarrow" else "DataFrame"
        )(shuffled), {"rank": "rank"}
    if form == "dict":
        return shuffled, {"score": "score"}
    if form == "structured":
        return pd.DataFrame(shuffled).to_records(index=False).astype(
            [("user", "U9"), ("item", "U9"), ("rank", "i4"), ("score", "f4")]
        ), {"rank": "rank"}
    if form == "categories":
        frame = pd.DataFrame(shuffled)
        frame["user"] = pd.Categorical(frame["user"], categories=[*sorted(set(frame["user"])), "u-unused"])
        frame["item"] = frame["item"].astype("category")
        return frame, {"rank": "rank"}
    named = [recommended.item_ids.ids(row[row >= 0]) for row in recommended.ids]
    owners = recommended.user_ids.ids(recommended.users)
    if form == "dict of lists":
        return dict(zip(owners, named, strict=True)), {}
    if form == "tuple":
        return (named, owners), {}
    return ((np.array(named), np.array(owners)) if form == "arrays" else recommended), {}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gets_the_same(form):
    """Frames in any order of rows, dicts and tuples give equal values, with truth as interactions, log or frame."""
    _, _, _, test, recommended = made()
    expected = evaluate_lists(NAMES, recommended, target=test, k=[1, 5, K])
    lists, how = given_as(form, recommended)
    for target in (test, Log.from_frame(frame_of(test)), frame_of(test), pl.DataFrame(frame_of(test))):
        same(evaluate_lists(NAMES, lists, target=target, k=[1, 5, K], **how), expected)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl", "run"])
def test_every_kind_of_file_gets_the_same(suffix, tmp_path, monkeypatch):
    """Lists get equal values from every kind of file, also if row groups split the rows of a user.
    Runs are ordered by score unless the caller says otherwise, and qrels hold gains.
    """
    _, _, _, test, recommended = made()
    expected = evaluate_lists(NAMES, recommended, target=test, k=[1, 5, K])
    frame = pd.DataFrame(recommended.to_dict()).sample(frac=1, random_state=0)
    path, truth = tmp_path / f"lists.{suffix}", tmp_path / ("a.qrels" if suffix == "run" else "truth.csv")
    pairs = pd.DataFrame(frame_of(test))
    if suffix == "run":
        path.write_text("".join(f"{r.user} Q0 {r.item} {r.rank} {r.score:.9f} tag\n" for r in frame.itertuples()))
        truth.write_text("".join(f"{r.user} 0 {r.item} 1\n" for r in pairs.itertuples()))
        same(evaluate_lists(NAMES, path, target=truth, k=[1, 5, K]), expected)
    else:
        pairs.to_csv(truth, index=False)
    if suffix == "parquet":
        monkeypatch.setattr("torchrecmetrics.data.files._ROWS_PER_CHUNK", 7)
        frame.to_parquet(path, row_group_size=11)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif suffix != "run":
        frame.to_csv(path, index=False, sep="," if suffix == "csv" else "\t")
    same(evaluate_lists(NAMES, path, target=truth, k=[1, 5, K], rank="rank"), expected)
    same(evaluate_lists(NAMES, str(path), target=truth, k=[1, 5, K], score="score"), expected)


def graded(tmp_path, seed=5):
    """Write and return a run without ties and qrels with grades, in which some users are in only one of the two."""
    random = np.random.default_rng(seed)
    run, qrels = {}, {}
    for user in range(30):
        docs = [f"d{d}" for d in random.permutation(40)]
        if user % 7:
            run[f"q{user}"] = {doc: float(s) for doc, s in zip(docs[:12], random.permutation(100)[:12], strict=True)}
        if user % 5:
            wanted = [f"d{d}" for d in random.permutation(40)[:6]]
            qrels[f"q{user}"] = {doc: int(grade) for doc, grade in zip(wanted, [0, 1, 2, 3, 1, 2], strict=True)}
    (tmp_path / "a.run").write_text("".join(f"{q} Q0 {d} 0 {s} t\n" for q, ds in run.items() for d, s in ds.items()))
    (tmp_path / "a.qrels").write_text("".join(f"{q} 0 {d} {g}\n" for q, ds in qrels.items() for d, g in ds.items()))
    return run, qrels


def test_ranx_pytrec_eval_and_ir_measures_agree_on_the_files(tmp_path):
    """Values for a run and qrels of TREC equal those of the three packages.
    Users without a list score 0, as in ranx and ir_measures; pytrec_eval leaves them out.
    """
    ranx, pytrec_eval = pytest.importorskip("ranx"), pytest.importorskip("pytrec_eval")
    ir_measures = pytest.importorskip("ir_measures")
    run, qrels = graded(tmp_path)
    found = evaluate_lists(
        ["NDCG@10", "MRR@10", "Precision@10", "Recall@10", "MAP@10", "HR@10"],
        tmp_path / "a.run",
        target=tmp_path / "a.qrels",
    )
    served = qrels.keys() & run.keys()
    assert found.num_unserved == len(qrels) - len(served) > 0
    assert found.num_left_out == len(run.keys() - qrels.keys()) > 0
    share = len(served) / len(qrels)

    names = {"ndcg@10": "NDCG@10", "mrr@10": "MRR@10", "precision@10": "Precision@10", "recall@10": "Recall@10"}
    names |= {"map@10": "MAP@10", "hit_rate@10": "HR@10"}
    theirs = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), list(names), make_comparable=True)
    for name, label in names.items():
        assert float(found[label]) == pytest.approx(theirs[name], abs=1e-9), name

    measures = {"ndcg_cut_10": "NDCG@10", "P_10": "Precision@10", "recall_10": "Recall@10", "map_cut_10": "MAP@10"}
    each = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "P.10", "recall.10", "map_cut.10"}).evaluate(run)
    assert each.keys() == served
    for name, label in measures.items():
        mean = sum(values[name] for values in each.values()) / len(each)
        assert float(found[label]) == pytest.approx(mean * share, abs=1e-9), name

    asked = {ir_measures.parse_measure(n): label for n, label in {"nDCG@10": "NDCG@10", "RR@10": "MRR@10"}.items()}
    lists = ir_measures.read_trec_run(str(tmp_path / "a.run"))
    truth = ir_measures.read_trec_qrels(str(tmp_path / "a.qrels"))
    for measure, value in ir_measures.calc_aggregate(list(asked), truth, lists).items():
        assert float(found[asked[measure]]) == pytest.approx(value, abs=1e-9), measure


@pytest.mark.parametrize("package", ["rectools", "replay"])
def test_rectools_and_replay_agree(package):
    """RecTools and RePlay agree on frames with ranks or scores, if RecTools' NDCG divides by the achievable DCG."""
    pd, theirs = pytest.importorskip("pandas"), pytest.importorskip(f"{package}.metrics")
    draw = torch.Generator().manual_seed(0)
    lists, pairs = (torch.rand(30, 40, generator=draw).topk(n).indices.tolist() for n in (10, 5))
    truth = pd.DataFrame([(u, i, 1) for u, items in enumerate(pairs) for i in items[: 1 + u % 5]])
    lists = pd.DataFrame([(u, i, rank) for u, items in enumerate(lists) for rank, i in enumerate(items, 1)])
    user = "user_id" if package == "rectools" else "query_id"
    lists.columns, truth.columns = [user, "item_id", "rank"], [user, "item_id", "weight"]
    names = {"HR": "HitRate", "Precision": "Precision", "Recall": "Recall", "MRR": "MRR", "MAP": "MAP", "NDCG": "NDCG"}
    found = evaluate_lists(list(names), lists, target=truth, user=user, item="item_id", rank="rank", k=5)
    for name, kind in names.items():
        if package == "rectools":
            metric = getattr(theirs, kind)(5, **({"divide_by_achievable": True} if name == "NDCG" else {}))
            expected = metric.calc(lists, truth)
        else:
            (expected,) = getattr(theirs, kind)(5)(lists.assign(rating=1 / lists["rank"]), truth).values()
        assert float(found[f"{name}@5"]) == pytest.approx(expected, abs=1e-12), name


def test_lines_of_lightgcn(tmp_path):
    """Lines of LightGCN hold lists in order: six numbers are not a run. A pair that qrels judge twice is refused."""
    (tmp_path / "lists.txt").write_text("0 5 3 9 1 2\n1 7 8 3 4 6\n")
    (tmp_path / "truth.txt").write_text("0 9 77\n1 8\n")
    found = evaluate_lists("MRR", tmp_path / "lists.txt", target=tmp_path / "truth.txt", k=5)
    assert float(found["MRR@5"]) == pytest.approx((1 / 3 + 1 / 2) / 2)
    (tmp_path / "a.qrels").write_text("0 0 9 1\n0 0 9 2\n")
    with pytest.raises(ValueError, match="1 pairs of user and item occur more than once"):
        evaluate_lists("MRR", tmp_path / "lists.txt", target=tmp_path / "a.qrels", k=5)


def test_plain_reference():
    """Values equal plain Python definitions, item by item, for uneven and empty lists and for unknown items."""
    generator = torch.Generator().manual_seed(3)
    lists, truth, users = {}, {"user": [], "item": []}, []
    for user in range(40):
        relevant = torch.randperm(20, generator=generator)[: 1 + user % 4].tolist()
        lists[user] = torch.randperm(30, generator=generator)[: user % 9 if user else 9].tolist()
        truth["user"] += [user] * len(relevant)
        truth["item"] += relevant
        scores = [-math.inf] * 30
        for place, item in enumerate(lists[user]):
            scores[item] = -place
        users.append(reference.rank(scores, dict.fromkeys(relevant, 1.0)))
    found = evaluate_lists([*NAMES, "RPrecision"], lists, target=truth, k=5)
    functions = {"HR": "hit_rate", "NDCG": "ndcg", "MRR": "reciprocal_rank", "Recall": "recall"}
    for label, name in (functions | {"MAP": "average_precision"}).items():
        expected = reference.mean([getattr(reference, name)(user, 5) for user in users])
        assert (float(found[f"{label}@5"]), float(found.standard_errors[f"{label}@5"])) == pytest.approx(expected)
    assert float(found["RPrecision"]) == pytest.approx(reference.mean(list(map(reference.r_precision, users)))[0])


# -------------------------------------------------------------------------------------------------------------- rules

TRUTH = {"user": ["al", "al", "bo", "eve"], "item": ["x", "y", "z", "x"]}


def test_who_has_no_list_and_who_has_no_truth():
    """Users without a list, or with an empty one, score 0 and are counted; those without truth are only counted."""
    lists = {"al": ["x"], "bo": [], "zoe": ["x"], "ian": []}
    found = evaluate_lists("HR", lists, target=TRUTH, k=1)
    assert float(found["HR@1"]) == 1 / 3
    assert (found.num_users, found.num_unserved, found.num_left_out) == (3, 2, 2)
    assert "\n3 users, 2 without a list, 2 more with a list but no ground truth\n" in str(found)
    frame = {"user": ["zoe", "al", "zoe"], "item": ["x", "x", "y"]}
    found = evaluate_lists("HR", frame, target=TRUTH, k=1)
    assert (float(found["HR@1"]), found.num_unserved, found.num_left_out) == (1 / 3, 2, 1)


def test_items_that_truth_does_not_know_take_their_places():
    """Items that the truth lacks keep their ranks as misses and are counted; history that has them removes them."""
    lists = {"al": ["new", "x"], "bo": ["old", "z"], "eve": ["x", "new"]}
    found = evaluate_lists("MRR", lists, target=TRUTH, k=2)
    assert (float(found["MRR@2"]), found.num_unknown) == (pytest.approx((0.5 + 0.5 + 1) / 3), 3)
    had = {"user": ["bo", "other"], "item": ["old", "new"]}
    found = evaluate_lists("MRR", lists, target=TRUTH, exclude=had, k=2, complete=True)
    assert (float(found["MRR@2"]), found.num_unknown) == (pytest.approx((0.5 + 1 + 1) / 3), 3)


def test_lists_that_history_made_too_short():
    """Lists made too short by history are errors that name the user and two cures; lists that ended early are not."""
    lists = {"al": ["x", "y", "z"], "bo": ["z"], "eve": ["x", "y", "z"]}
    had = {"user": ["bo", "eve"], "item": ["x", "y"]}
    with pytest.raises(ValueError, match=r"user 'eve' holds 2 items after .* look at 3 places: .*complete=True"):
        evaluate_lists("HR", lists, target=TRUTH, exclude=had, k=3)
    assert float(evaluate_lists("HR", lists, target=TRUTH, exclude=had, k=3, complete=True)["HR@3"]) == 1
    assert float(evaluate_lists("HR", lists, target=TRUTH, exclude=had, k=2)["HR@2"]) == 1
    lists["al"] = [*"xyzw"]  # a longer list changes nothing for the others
    with pytest.raises(ValueError, match="user 'eve' holds 2 items"):
        evaluate_lists("HR", lists, target=TRUTH, exclude=had, k=3)
    assert evaluate_lists("HR", lists, target=TRUTH, exclude=had, k=3, validate_args=False).num_users == 3


@pytest.mark.parametrize("metric", ["HR@4", "MRR", "RPrecision"])
def test_lists_that_are_all_too_short(metric):
    """An error names the metric that looks beyond the longest list; with complete=True there is no error."""
    lists = {"al": ["y"], "bo": ["z"]}
    said = "ranks, but the ranks are known" if metric == "RPrecision" else f"{metric} looks at .* longest list of lists"
    with pytest.raises(ValueError, match=f"{said}.*complete=True"):
        evaluate_lists(metric, lists, target=TRUTH)
    assert evaluate_lists(metric, lists, target=TRUTH, complete=True).num_users == 3


@pytest.mark.parametrize("complete", [False, True])
def test_metrics_of_all_items(complete):
    """AUROC compares all items, so lists are refused, complete or not."""
    with pytest.raises(ValueError, match=r"AUROC compares all items.*: pass scores, or embeddings$"):
        evaluate_lists("AUROC", {"al": ["y"]}, target=TRUTH, complete=complete)


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("expected", ((1 / 2 + 1 / 3) / 2 + (1 + 1 / 2) / 2) / 2),
        ("realistic", (1 / 2.5 + 1 / 1.5) / 2),
        ("optimistic", (1 / 2 + 1) / 2),
        ("pessimistic", (1 / 3 + 1 / 2) / 2),
    ],
)
def test_equal_scores_are_tied_in_any_order_of_the_rows(ties, expected):
    """Equal scores of a list have no order: the rows of the table have none that changes a value."""
    rows = [("al", "w", 1.0), ("bo", "v", 0.0), ("al", "x", 1.0), ("bo", "z", 0.0), ("al", "y", 2.0)]
    target = {"user": ["al", "bo"], "item": ["x", "z"]}
    for order in itertools.permutations(rows):
        frame = dict(zip(("user", "item", "score"), map(list, zip(*order, strict=True)), strict=True))
        found = evaluate_lists("MRR", frame, target=target, k=3, score="score", ties=ties)
        assert float(found["MRR@3"]) == pytest.approx(expected, abs=1e-15)
        assert found.num_tied == 2
    frame = {"user": ["al", "bo", "al", "bo", "al"], "item": ["w", "v", "x", "z", "y"]}
    found = evaluate_lists("MRR", frame, target=target, k=3)
    assert (float(found["MRR@3"]), found.num_tied) == (pytest.approx((1 / 2 + 1 / 2) / 2), 0)


def test_lists_of_one_order_are_ordered_by_items():
    """Metrics of lists read items of equal scores in the order of their rows in the catalogue, not of the table."""
    users, ids = ["a", "a", "b", "a", "b"], ["x", "y", "z"]  # x has one interaction, y and z have two
    train = trm.Interactions.from_columns(users, ["x", "y", "y", "z", "z"], user_ids=["a", "b"], item_ids=ids)
    catalogue = trm.Catalogue.from_interactions(train)
    for items in itertools.permutations(["x", "y", "z"]):
        frame = {"user": ["a"] * 3, "item": list(items), "score": [0.5] * 3}
        target = {"user": ["a"], "item": ["y"]}
        found = evaluate_lists("AveragePopularity", frame, target=target, k=1, score="score", catalogue=catalogue)
        assert float(found["AveragePopularity@1"]) == 1


def test_large_whole_numbers_are_told_apart():
    """Whole numbers that float64 does not hold are scores without a tie."""
    frame = {"user": ["al", "al"], "item": ["x", "y"], "score": [2**60, 2**60 + 1]}
    found = evaluate_lists("HR", frame, target={"user": ["al"], "item": ["y"]}, k=1, score="score")
    assert (float(found["HR@1"]), found.num_tied) == (1, 0)


def test_masked_scores_are_no_candidates():
    """Scores of -inf in a table are no items of the list."""
    frame = {"user": [0, 0, 1, 1], "item": [3, 7, 6, 5], "score": [0.5, -math.inf, 0.1, 0.1]}
    found = evaluate_lists("HR", frame, target={"user": [0, 1], "item": [7, 5]}, k=2, score="score", complete=True)
    assert float(found["HR@2"]) == 0.5


def test_a_constant_model_has_the_expected_value():
    """50 users with five equal scores have HR@1 = .2 wherever the relevant item stands in the file."""
    for place in range(5):
        items = [[f"{user}-{number}" for number in range(5)] for user in range(50)]
        frame = {
            "user": [user for user in range(50) for _ in range(5)],
            "item": [item for row in items for item in row],
            "score": [0.5] * 250,
        }
        target = {"user": list(range(50)), "item": [row[place] for row in items]}
        found = evaluate_lists("HR", frame, target=target, k=1, score="score")
        assert float(found["HR@1"]) == pytest.approx(0.2, abs=1e-15)


def test_recommended_lists_have_the_value_of_the_model(generator):
    """`recommend` followed by `evaluate_lists` gives what `evaluate` gives, with ties; lists are long enough for it."""
    users, items = torch.ones(12, 2), torch.randint(0, 3, (9, 2), generator=generator).float()
    pairs = torch.stack([torch.arange(12), torch.randint(0, 9, (12,), generator=generator)])
    test = trm.Interactions.from_edge_index(pairs, num_users=12, num_items=9)
    options = {"k": [1, 3, 5]}
    for ties in ("expected", "realistic", "optimistic", "pessimistic"):
        whole = trm.evaluate(["HR", "NDCG", "MRR"], users, items, target=test, ties=ties, **options)
        lists = trm.recommend(users, items, k=9)
        found = evaluate_lists(["HR", "NDCG", "MRR"], lists, target=test, ties=ties, **options)
        assert numbers(found) == pytest.approx(numbers(whole), abs=1e-15)
        assert found.num_tied == whole.num_tied > 0


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_begin_at_0_or_1_throughout(first):
    """Ranks begin at 0 or 1 for all users, with rows in any order; users without truth may have any ranks."""
    frame = {
        "user": ["al", "bo", "al", "zoe", "bo", "al"],
        "item": ["w", "z", "x", "x", "v", "y"],
        "rank": [first + 2, first + 1, first, 77, first, first + 1],
    }
    found = evaluate_lists("MRR", frame, target={"user": ["al", "bo"], "item": ["w", "z"]}, k=3, rank="rank")
    assert float(found["MRR@3"]) == pytest.approx((1 / 3 + 1 / 2) / 2)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([1, 2, 4, 1], r"rows? 2.*'al' has rank 4 after 2"),
        ([1, 2, 2, 1], r"row 2.*'al' has rank 2 twice"),
        ([2, 3, 4, 1], r"row 0.*'al' has rank 2 as the best"),
        ([0, 1, 2, 1], r"row 0.*'al' has rank 0 as the best"),
        ([1, 2, 1.5, 1], r"holds 1.5 in row 2, which is no rank"),
        ([1, 2, -1, 1], r"holds -1 in row 2, which is no rank"),
        ([1, 2, 10**12, 1], r"holds 1000000000000 in row 2, which is no rank"),
        ([1, 2, math.nan, 1], r"is missing in row 2"),
        ([1, 2, "x", 1], r"holds int and str: make them all one kind"),
    ],
)
def test_ranks_that_are_no_places(ranks, said):
    """Gaps, repeats, mixed first ranks and values that are no ranks are errors that name the row where known."""
    frame = {"user": ["al", "al", "al", "bo"], "item": ["w", "x", "y", "z"], "rank": ranks}
    with pytest.raises((ValueError, TypeError), match=said):
        evaluate_lists("HR", frame, target=TRUTH, k=1, rank="rank")


def test_rows_of_errors_are_those_of_the_frame():
    """Errors give the row of the frame, counting rows of users without truth, in any order of rows."""
    frame = {"user": ["zoe", "al", "bo", "zoe", "al"], "item": ["x", "x", "z", "x", "x"], "score": [1, 2, 3, 4, 5]}
    with pytest.raises(ValueError, match=r"^lists, row 1, column 'item': user 'al' has item 'x' for the second"):
        evaluate_lists("HR", frame, target=TRUTH, k=1, score="score")
    found = evaluate_lists("HR", frame, target=TRUTH, k=1, score="score", duplicates="first", complete=True)
    assert (found.num_repeated, float(found["HR@1"])) == (1, pytest.approx(2 / 3))
    frame["rank"] = [1, 1, 1, 2, 3]
    with pytest.raises(ValueError, match=r"^lists, row 4, column 'rank': user 'al' has rank 3 after 1"):
        evaluate_lists("HR", frame, target=TRUTH, k=1, rank="rank")


def test_repeated_rows_of_ranked_lists():
    """With `first`, rows that repeat user, item and rank are the same row; two items of one rank stay an error."""
    rows = pd.DataFrame({"user": ["al", "al", "bo"], "item": ["w", "x", "z"], "rank": [1, 2, 1]})
    expected = evaluate_lists("MRR", rows, target=TRUTH, k=2, rank="rank", complete=True)
    how = {"target": TRUTH, "k": 2, "rank": "rank", "complete": True}
    for more in (rows[:2], rows, rows[1:]):
        twice = pd.concat([rows.assign(user="zoe"), more, rows])
        with pytest.raises(ValueError, match=r"has rank \d twice.*duplicates='first'"):
            evaluate_lists("MRR", twice, **how)
        found = evaluate_lists("MRR", twice, duplicates="first", **how)
        same(found, expected)
        assert found.num_repeated == len(more)
    other = pd.concat([rows, rows[:2].assign(item=["w", "y"])])
    with pytest.raises(ValueError, match=r"^lists, row [14], column 'rank': user 'al' has rank 2 twice.*two lists"):
        evaluate_lists("MRR", other, duplicates="first", **how)


def test_unknown_items_that_repeat_are_found():
    with pytest.raises(ValueError, match=r"^lists: user 'al' has item 'new' for the second time"):
        evaluate_lists("HR", {"al": ["new", "x", "new"]}, target=TRUTH, k=1)


def test_ids_of_64_bits():
    """Ids of 64 bits, signed or not, are exact; frames may hold negative ids, and only -1 is padding in arrays."""
    big = [2**63 + 1, 2**63 + 2, 2**64 - 1]
    truth = {"user": np.array(big, np.uint64), "item": np.array([-7, -(2**63), -8])}
    found = evaluate_lists("HR", dict(zip(big, [[-7], [-(2**63)], [5]], strict=True)), target=truth, k=1)
    assert (float(found["HR@1"]), found.num_unknown) == (pytest.approx(2 / 3), 1)
    lists = np.array([[5, -7], [-(2**63), -1], [-1, -1]])
    found = evaluate_lists("MRR", (lists, np.array(big, np.uint64)), target=truth, k=2)
    assert (float(found["MRR@2"]), found.num_unserved) == (pytest.approx((0.5 + 1) / 3), 1)
    with pytest.raises(ValueError, match="-1 fills up lists, but it is an item of target"):
        evaluate_lists("MRR", (lists, big), target=truth | {"item": [-1, -7, 5]}, k=2)


@pytest.mark.parametrize("form", [list, lambda lists: np.array(lists, dtype=object)])
@pytest.mark.parametrize("filler", [-1, None, float("nan")])
def test_short_lists_of_text_are_filled_up(form, filler):
    """Lists of text are filled up with -1, None or NaN."""
    lists = form([["y", "x"], ["z", filler]])
    found = evaluate_lists("MRR", (lists, ["al", "bo"]), target={"al": ["x"], "bo": ["z"]}, k=2)
    assert (found["MRR@2"], found.num_unknown) == (0.75, 1)


def test_row_numbers_where_target_has_no_ids():
    """Without ids in the target, dicts and tuples hold row numbers; frames hold ids and are refused with the cure."""
    target = Interactions.from_columns([0, 1, 2], [2, 3, 0], num_users=4, num_items=4)
    lists = torch.tensor([[2, 9, -1], [0, 3, 1]])
    found = evaluate_lists("MRR", (lists, [0, 1]), target=target, k=2)
    assert (float(found["MRR@2"]), found.num_unserved, found.num_unknown) == (pytest.approx(1.5 / 3), 1, 1)
    assert found.num_skipped == 1
    same(evaluate_lists("MRR", {0: [2, 9], 1: [0, 3, 1], 7: [1]}, target=target, k=2), found)
    with pytest.raises(ValueError, match="the users of lists hold -1: row numbers are 0 or more"):
        evaluate_lists("MRR", {-1: [2], 0: [2]}, target=target, k=1)
    with pytest.raises(TypeError, match=r"the users of lists must be whole numbers .*target has no user_ids"):
        evaluate_lists("MRR", {"al": [2]}, target=target, k=1)
    frame = {"user": [0, 1, 1, 1], "item": [2, 0, 3, 1]}
    with pytest.raises(ValueError, match=r"target has no user_ids.*with_ids\(user_ids=torch.arange\(4\)\)"):
        evaluate_lists("MRR", frame, target=target, k=2)
    named = target.with_ids(user_ids=torch.arange(4), item_ids=torch.arange(4))
    assert float(evaluate_lists("MRR", frame, target=named, k=2)["MRR@2"]) == pytest.approx(1.5 / 3)


def test_vocabularies_meet():
    """Recommendations with other vocabularies are matched by id, and refused if only one side has a vocabulary."""
    users, items, _, test, recommended = made(history=4)
    expected = evaluate_lists(NAMES, recommended, target=test, k=K)
    order = torch.randperm(U, generator=torch.Generator().manual_seed(2))
    other = trm.Recommendations(
        recommended.ids[order], recommended.scores[order], torch.arange(U), test.user_ids.take(order), test.item_ids
    )
    same(evaluate_lists(NAMES, other, target=test, k=K), expected)
    bare = trm.recommend(users, items, K)
    with pytest.raises(
        ValueError, match=r"target has user_ids, the recommendations has none.*recommendations.with_ids"
    ):
        evaluate_lists(NAMES, bare, target=test, k=K)
    with pytest.raises(ValueError, match=r"the recommendations has user_ids, target has none.*target.with_ids"):
        evaluate_lists(NAMES, recommended, target=Interactions.from_columns([0], [1]), k=K)
    bare_train = Interactions.from_columns([0], [1], num_users=U, num_items=NUM)
    with pytest.raises(ValueError, match="target has user_ids, exclude has none"):
        evaluate_lists(NAMES, recommended, target=test, exclude=bare_train, k=K)
    with pytest.raises(
        TypeError, match=r"column 'user' of lists holds whole numbers \(1\), target's user_ids hold text"
    ):
        evaluate_lists(NAMES, {"user": [1], "item": [2]}, target=test, k=1)


def test_gains_are_those_of_the_truth():
    """Gains are the values of the ground truth, and an item with a gain of 0 is not relevant."""
    log = Log.from_frame(TRUTH | {"stars": [3, 1, 0, 2]}, value="stars")
    found = evaluate_lists("NDCG", {"al": ["y", "x"], "bo": ["z"], "eve": ["x"]}, target=log, k=2)
    al = (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3))
    assert (float(found["NDCG@2"]), found.num_users, found.num_skipped) == (pytest.approx((al + 1) / 2), 2, 1)


def test_grades_in_a_dict():
    """A dict {user: {item: grade}}, as ranx and pytrec_eval take it, is a ground truth with gains, and no history."""
    grades = {"al": {"x": 0, "y": 2, "z": 1}}
    found = evaluate_lists(["NDCG", "HR"], {"al": ["z", "y"]}, target=grades, k=2)
    assert float(found["NDCG@2"]) == pytest.approx((1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3)))
    assert evaluate_lists("HR@1", {"al": ["x"]}, target=grades)["HR@1"] == 0
    with pytest.raises(TypeError, match=r"exclude holds a dict for 'al', .* pass lists of items"):
        evaluate_lists("NDCG", {"al": ["y", "x"]}, target={"al": ["x"]}, exclude=grades, k=1)


def test_batches_change_nothing(monkeypatch):
    """Values do not depend on the number of users per batch, even if all lists of a batch are short."""
    generator = torch.Generator().manual_seed(4)
    lists = {n: torch.randperm(50, generator=generator)[: 3 + n % 11].tolist() for n in range(60)}
    truth = {"user": [*range(60), *range(60)], "item": [n % 50 for n in range(60)] + [(n + 7) % 50 for n in range(60)]}
    had = {"user": [*range(60)], "item": [(n + 20) % 50 for n in range(60)]}
    whole = evaluate_lists([*NAMES, "RPrecision"], lists, target=truth, exclude=had, k=[1, 5])
    monkeypatch.setattr("torchrecmetrics.evaluation.lists._CELLS", 50)
    shown = []
    parts = evaluate_lists(
        [*NAMES, "RPrecision"], lists, target=truth, exclude=had, k=[1, 5], progress=lambda *done: shown.append(done)
    )
    same(parts, whole)
    same(parts.standard_errors, whole.standard_errors)
    assert len(shown) > 10
    assert shown[-1] == (60, 60)


def test_a_short_list_is_whole_in_every_batch(monkeypatch):
    """A list shorter than the R ranks of RPrecision has no more items, whichever users are in the same batch."""
    lists = {"al": [*"xyz"], "bo": [*"uvwxyz"]}
    truth = {"user": [*"aaab"], "item": [*"xpqu"]}
    truth["user"] = ["al" if user == "a" else "bo" for user in truth["user"]]
    had = {"user": ["al"], "item": ["y"]}
    whole = evaluate_lists("RPrecision", lists, target=truth, exclude=had)
    monkeypatch.setattr("torchrecmetrics.evaluation.lists._CELLS", 1)
    same(evaluate_lists("RPrecision", lists, target=truth, exclude=had), whole)
    assert float(whole["RPrecision"]) == pytest.approx((1 / 3 + 1) / 2)


def test_nobody_is_asked():
    """Other processes are not asked, because each process evaluates its own lists."""

    def alone(*_):
        raise AssertionError("asked another process")

    found = evaluate_lists(
        "HR", {"al": ["x"]}, target=TRUTH, k=1, distributed_available_fn=lambda: True, dist_sync_fn=alone
    )
    assert found.num_users == 3


def test_a_collection_stays_as_it_was():
    """A collection is cloned and keeps its state, and the result has its keys; options go to metrics given by name."""
    collection = trm.RecMetricCollection(["HR"], k=1, prefix="val/")
    found = evaluate_lists(collection, {"al": ["x"]}, target=TRUTH)
    assert list(found) == ["val/HR@1"]
    assert collection["HR@1"].update_count == 0
    assert evaluate_lists("HR", {"al": ["x"]}, target=TRUTH, k=1, empty_target_action="neg").num_users == 3
    with pytest.raises(ValueError, match=r"evaluate_lists has no option 'compleet'; did you mean 'complete'\?"):
        evaluate_lists("HR", {"al": ["x"]}, target=TRUTH, k=1, compleet=True)
    for option, cure in (
        ("denominator", "trm.F1(10, denominator=...) or trm.Precision(10, denominator=...)"),
        ("gain", "trm.DCG(10, gain=...) or trm.NDCG(10, gain=...)"),
        ("weight", "trm.AUROC(weight=...)"),
    ):
        with pytest.raises(ValueError, match=f"no option '{option}'.* goes to an instance, {re.escape(cure)}$"):
            evaluate_lists("HR", {"al": ["x"]}, target=TRUTH, k=1, **{option: 1})
    with pytest.raises(TypeError, match="top_k= is called k here"):
        evaluate_lists("HR", {"al": ["x"]}, target=TRUTH, top_k=1)


def test_a_key_that_there_is_not():
    """An unknown key is a KeyError that names the nearest, as in a collection; `get` and `in` are those of a dict."""
    found = evaluate_lists(["HR", "NDCG"], {"al": ["x"]}, target=TRUTH, k=1)
    with pytest.raises(
        KeyError, match=r"no metric has the key 'NDGC@1'; did you mean 'NDCG@1'\? There are HR@1, NDCG@1"
    ):
        found["NDGC@1"]
    assert found.get("NDGC@1") is None
    assert "NDGC@1" not in found


def test_overlap_of_truth_and_history():
    """A pair in both truth and history is an error that names its ids, unless overlap= says what to do."""
    lists, had = {"al": ["x", "y"], "bo": ["z", "y"], "eve": ["y", "x"]}, {"user": ["eve"], "item": ["x"]}
    with pytest.raises(ValueError, match=r"1 \(user, item\) pair of target is also in exclude.*\['eve', 'x'\]"):
        evaluate_lists("HR", lists, target=TRUTH, exclude=had, k=1)
    for overlap, value in (("keep", 2 / 3), ("miss", 2 / 3)):
        found = evaluate_lists("HR", lists, target=TRUTH, exclude=had, k=1, overlap=overlap)
        assert float(found["HR@1"]) == pytest.approx(value)
    assert evaluate_lists("MRR@2", lists, target=TRUTH, exclude=had, overlap="keep")["MRR@2"] == pytest.approx(2.5 / 3)


def test_overlap_may_leave_the_ground_truth(tmp_path):
    """overlap='without' removes the pairs from truth in any form, and skips users who have no truth left."""
    pytest.importorskip("pyarrow")
    lists, had = {"al": ["x", "y"], "bo": ["z", "y"], "eve": ["y", "x"]}, {"user": ["eve", "al"], "item": ["x", "y"]}
    how = {"k": 2, "complete": True}
    truth, seen = Interactions.from_frame(TRUTH), Interactions.from_frame(had)
    expected = evaluate_lists(NAMES, lists, target=truth.without(seen), exclude=seen, **how)
    assert (expected.num_users, expected.num_skipped) == (2, 1)
    for name, frame in (("truth", TRUTH), ("had", had)):
        pd.DataFrame(frame).to_csv(tmp_path / f"{name}.csv", index=False)
    for target, exclude in (
        (truth, seen),
        (TRUTH, (had, seen)),
        (Log.from_frame(TRUTH), Log.from_frame(had)),
        (tmp_path / "truth.csv", tmp_path / "had.csv"),
        ({"al": ["x", "y"], "bo": ["z"], "eve": ["x"]}, {"eve": ["x"], "al": ["y"]}),
    ):
        found = evaluate_lists(NAMES, lists, target=target, exclude=exclude, overlap="without", **how)
        same(found, expected)
        assert found.counts() == expected.counts()
        with pytest.raises(ValueError, match=r"2 \(user, item\) pairs of target .* overlap='without' takes them out"):
            evaluate_lists("HR", lists, target=target, exclude=exclude, **how)
    collection = trm.RecMetricCollection(NAMES, k=2)
    same(evaluate_lists(collection, lists, target=TRUTH, exclude=had, overlap="without", complete=True), expected)
    mask = torch.tensor([True, False, False])  # item x
    found = evaluate_lists("HR", lists, target=truth, exclude=mask, overlap="without", **how)
    assert (float(found["HR@2"]), found.num_users, found.num_skipped) == (1, 2, 1)
    with pytest.raises(ValueError, match=r"all pairs of target are also in exclude: .* leaves nothing to evaluate"):
        evaluate_lists("HR", lists, target=TRUTH, exclude=TRUTH, overlap="without", **how)


# ---------------------------------------------------------------------------------------------------------- bad input

ROWS = {"user": ["al", "bo"], "item": ["x", "z"]}
TWO = {"user": ["al", "al"], "item": ["x", "z"]}
BAD = {
    "a column's name": (ROWS, {"item": "itm"}, "lists has no column 'itm'; did you mean 'item'"),
    "pandas": (pd.DataFrame(ROWS), {"user": "usr"}, "lists has no column 'usr'; did you mean 'user'"),
    "polars": (pl.DataFrame(ROWS), {"rank": "rnk"}, "lists has no column 'rnk'"),
    "pyarrow": (pa.table(ROWS), {"user": "users"}, "lists has no column 'users'; did you mean 'user'"),
    "structured": (
        np.array([("al", "x")], dtype=[("user", "U3"), ("item", "U3")]),
        {"score": "scor"},
        "lists has no column 'scor'",
    ),
    "dict of columns": ({"usr": ["al"], "item": ["x"]}, {}, "lists has no column 'user'; did you mean 'usr'"),
    "two names wrong": (
        {"u": ["al"], "i": ["x"]},
        {},
        "no user of lists has ground truth; such as user 'i'.*item= name",
    ),
    "rank of a dict": ({"al": ["x"]}, {"rank": "rank"}, "rank= names a column of a frame"),
    "both": (ROWS, {"rank": "rank", "score": "score"}, "rank='rank' and score='score' are both to order lists"),
    "rank as score": (ROWS | {"rank": [1, 1]}, {"score": "rank"}, "score='rank'.*upside down.*pass rank='rank'"),
    "no item": (ROWS, {"item": None}, "item=None is for label="),
    "rank unsaid": (TWO | {"rank": [1, 1]}, {}, "has a column that may order the lists: 'rank' "),
    "score unsaid": (pd.DataFrame(TWO | {"Score": [1, 1]}), {}, "may order the lists: 'Score' "),
    "pos unsaid": (pl.DataFrame(TWO | {"pos": [2, 1]}), {}, "may order the lists: 'pos' "),
    "both unsaid": (TWO | {"place": [2, 1], "est": [2, 1]}, {}, "columns that may order the lists: 'place' .* 'est' "),
    "no users": (torch.zeros(2, 3, dtype=torch.int64), {}, r"whose are they\? Pass \(lists, users\)"),
    "a list": ([["x"]], {}, r"whose are they\? Pass \(lists, users\)"),
    "a series": (pd.Series({"al": ["x"]}), {}, r"lists is a Series.*pass lists.to_dict\(\)"),
    "history": (ROWS, {"history": TRUTH}, "no option 'history': items that leave the lists are exclude="),
    "train": (ROWS, {"train": TRUTH}, r"no option 'train': .* catalogue=Catalogue.from_interactions\(train\)"),
    "num_items": (ROWS, {"num_items": 9}, "no option 'num_items': .* catalogue=Catalogue"),
    "a frame as catalogue": (
        ROWS,
        {"catalogue": pd.DataFrame(ROWS)},
        r"got DataFrame: trm.Catalogue.from_interactions\(train\), .* trm.Interactions.from_frame\(frame\)",
    ),
    "a path as catalogue": (ROWS, {"catalogue": "train.csv"}, "got str: .* of a file trm.Log.from_file"),
    "three": ((1, 2, 3), {}, "tuple of two"),
    "a number": (3, {}, "lists must be a frame, got int"),
    "missing": ({"user": ["al", None], "item": ["x", "y"]}, {}, "column 'user' of lists holds a missing value.*row 1"),
    "uneven": ({"user": ["al"], "item": ["x", "y"]}, {}, "columns of lists must be equally long"),
    "two lists": (([["x"], ["y"], ["z"]], ["al", "bo", "al"]), {}, "two lists of user 'al', in rows 0 and 2"),
    "fewer users": (([["x"], ["y"]], ["al"]), {}, "2 lists and 1 users"),
    "one dimension": ((np.array(["x"]), ["al"]), {}, r"lists must be \[lists, places\]"),
    "text for lists": ({"al": "xyz"}, {}, "each of the lists must be a list of item ids.*got str"),
    "nothing": ({}, {}, "lists holds no list"),
    "no rows": ({"user": [], "item": []}, {}, "lists holds no rows"),
    "nobody": ({"user": ["zoe"], "item": ["x"]}, {}, "no user of lists has ground truth; such as user 'zoe', while"),
    "AUROC": (ROWS, {"metrics": "AUROC", "complete": True}, "AUROC"),
    "a lazy frame": (pl.DataFrame(ROWS).lazy(), {}, r"not computed yet, LazyFrame: pass lists.collect\(\)"),
    "a column twice": (ROWS, {"item": "user"}, "column 'user' cannot be user and item at once"),
    "scores in a log": (Log.from_frame(ROWS), {}, "lists must be a frame, got Log"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_lists_name_the_cure(what):
    lists, how, said = BAD[what]
    how = {"k": None if "metrics" in how else 1} | how
    with pytest.raises((ValueError, TypeError), match=said):
        evaluate_lists(how.pop("metrics", "HR"), lists, target=Interactions.from_frame(TRUTH), **how)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"target": {"usr": ["al"], "item": ["x"]}}, "target has no column 'user'; did you mean 'usr'"),
        ({"target": pd.Series({"al": ["x"]})}, r"target is a Series.*pass target.to_dict\(\)"),
        ({"target": 3}, "target must be Interactions, got int"),
        ({"target": Interactions.from_frame(ROWS).select([0])}, "pass the Interactions whole"),
        ({"target": Path("nowhere.csv")}, "nowhere.csv"),
        ({"target": TRUTH, "exclude": {"user": ["al"], "itm": ["x"]}}, "exclude has no column 'item'"),
        ({"target": TRUTH, "exclude": torch.zeros(5, dtype=torch.bool)}, r"exclude must be Interactions, bool \[3\]"),
        ({"target": TRUTH, "padding_idx": 0}, "padding_idx is a row number, but target has item_ids"),
        ({"target": TRUTH, "duplicates": "last"}, "duplicates must be one of 'error', 'first'"),
    ],
)
def test_bad_truth_and_history_name_the_cure(how, said):
    with pytest.raises((ValueError, TypeError, OSError), match=said):
        evaluate_lists("HR", ROWS, k=1, **how)


# ---------------------------------------------------------------------------------------------------- recommendations


@pytest.mark.parametrize(("truth", "lists"), [("7,x9", "7,8"), ("7,8", "x9,7")])
def test_ids_of_text_files_are_what_is_written(truth, lists, tmp_path):
    """Ids of text files are the text as written: 7 in a file of numbers is the same id as 7 in a file with text."""
    pytest.importorskip("pyarrow")
    for name, items in (("truth", truth), ("lists", lists), ("seen", "5")):
        rows = [f"al,{item}" for item in items.split(",")]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    paths = {name: tmp_path / f"{name}.csv" for name in ("truth", "lists", "seen")}
    found = evaluate_lists("MRR", paths["lists"], target=paths["truth"], exclude=paths["seen"], k=2)
    assert float(found["MRR@2"]) == 1 / (1 + lists.split(",").index("7"))
    assert found.num_unknown == 1


@pytest.mark.parametrize("column", ["user", "item"])
@pytest.mark.parametrize("cut", ["lists", "truth", "seen"])
def test_lost_zeros_are_refused(column, cut, tmp_path):
    """Ids that are written 07 in one text file and 7 in another are an error that names both, not a miss."""
    ids = {"lists": ["07", "10"], "truth": ["07", "10"], "seen": ["07"]}
    other = {"user": "item", "item": "user"}[column]
    for name, found in ids.items():
        texts = [text.lstrip("0") for text in found] if name == cut else found
        rows = pd.DataFrame({column: texts, other: ["a" if name != "seen" else "b"] * len(texts)})
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    paths = {name: tmp_path / f"{name}.csv" for name in ids}
    with pytest.raises(ValueError, match=f"{column}.*'07'.* 7.*leading zeros.*dtype=str"):
        evaluate_lists("MRR", paths["lists"], target=paths["truth"], exclude=paths["seen"], k=1, complete=True)


def test_zeros_in_front_of_text_are_no_lost_zeros(tmp_path):
    """Ids of other text beside those with leading zeros, such as hexadecimal ones, are not taken for lost zeros."""
    pd.DataFrame({"user": ["u", "u"], "item": ["0a", "010"]}).to_csv(tmp_path / "truth.csv", index=False)
    pd.DataFrame({"user": ["u", "u"], "item": [10, 8]}).to_csv(tmp_path / "lists.csv", index=False)
    paths = tmp_path / "lists.csv", tmp_path / "truth.csv"
    assert evaluate_lists("HR", paths[0], target=paths[1], k=1, complete=True) == {"HR@1": 0}


@pytest.mark.parametrize("values", [[0.9, 0.2], [-1, -2]])
def test_scores_that_are_called_rank(values):
    """A column called rank whose values are no ranks, such as negated ones, can be the scores."""
    rows = {"user": ["u", "u"], "item": ["x", "y"], "rank": values}
    assert evaluate_lists("MRR", rows, target={"u": ["x"]}, score="rank", k=2) == {"MRR@2": 1}


@pytest.mark.parametrize("cell", ["['x', 'y']", '["x"]', "[1, 2]", "[7]", "['x' 'y']", "[]"])
def test_lists_in_the_cells_of_a_csv_are_refused(cell, tmp_path):
    """Cells of a text file that hold whole lists are an error that says how to write a row per item."""
    pd.DataFrame({"user": ["al"], "item": [cell]}).to_csv(tmp_path / "lists.csv", index=False)
    with pytest.raises(ValueError, match=r"column 'item' of .*holds whole lists.*ast.literal_eval"):
        evaluate_lists("MRR", tmp_path / "lists.csv", target=TRUTH, k=1, complete=True)


def test_titles_in_brackets_are_ids(tmp_path):
    """Text in brackets is an id."""
    pd.DataFrame({"user": ["al", "al"], "item": ["[REC]", "[1, 2]"]}).to_csv(tmp_path / "lists.csv", index=False)
    found = evaluate_lists("MRR", tmp_path / "lists.csv", target={"al": ["[REC]"]}, k=1)
    assert float(found["MRR@1"]) == 1


def test_lines_of_json_may_have_keys_of_their_own(tmp_path):
    """Lines of JSON may have different keys, and a rank in any line must be named as the order."""
    pytest.importorskip("pyarrow")
    (tmp_path / "a.jsonl").write_text('{"user":1,"item":2}\n{"user":1,"item":7,"rank":1}\n')
    with pytest.raises(ValueError, match="has a column that may order the lists: 'rank'"):
        evaluate_lists("HR", tmp_path / "a.jsonl", target={"user": [1], "item": [7]}, k=1)


def test_ground_truth_as_a_dict():
    """A user's relevant items may be in any order or a set; a value that is no collection is refused with the user."""
    lists = {"al": ["y", "x"], "bo": ["z", "w"]}
    found = evaluate_lists("HR", lists, target={"al": {"x"}, "bo": ["q", "w"], "eve": []}, k=2)
    assert float(found["HR@2"]) == 1
    with pytest.raises(TypeError, match="got int for 'al'"):
        evaluate_lists("HR", lists, target={"al": 3}, k=2)


def test_other_names_in_the_ground_truth_show_the_cure():
    pd = pytest.importorskip("pandas")
    truth = pd.DataFrame({"uid": ["al"], "iid": ["x"]})
    with pytest.raises(ValueError, match=r"target has no column 'user'.*uid.*Log\.from_frame\(target, user=\.\.\."):
        evaluate_lists("HR", {"al": ["x"]}, target=truth, k=1)
    found = evaluate_lists("HR", {"al": ["x"]}, target=Log.from_frame(truth, user="uid", item="iid"), k=1)
    assert float(found["HR@1"]) == 1


def test_distances_are_negated():
    """The smallest distance is best: it may not be the score as it is."""
    lists = {"user": ["al", "al"], "item": ["x", "y"], "Distance": [2, 1]}
    target = {"user": ["al"], "item": ["y"]}
    with pytest.raises(ValueError, match=r"score='Distance' would turn the lists of lists upside down.*: negate"):
        evaluate_lists("MRR", lists, target=target, k=2, score="Distance")
    lists["Distance"] = [-2, -1]
    assert float(evaluate_lists("MRR", lists, target=target, k=2, score="Distance")["MRR@2"]) == 1


def test_swapped_files_of_trec_are_refused(tmp_path):
    """A run and qrels that are swapped are refused, and so are two runs and two files of qrels."""
    run, qrels = tmp_path / "bm25.run", tmp_path / "test.qrels"
    run.write_text("al Q0 x 1 2.0 tag\nal Q0 y 2 1.0 tag\n")
    qrels.write_text("al 0 y 1\n")
    assert float(evaluate_lists("MRR", run, target=qrels, k=2)["MRR@2"]) == 0.5
    with pytest.raises(ValueError, match=r"test.qrels is qrels of TREC, got as lists: .* are the two swapped"):
        evaluate_lists("MRR", qrels, target=run, k=2)
    with pytest.raises(ValueError, match="got as lists"):
        evaluate_lists("MRR", qrels, target=qrels, k=2)
    with pytest.raises(ValueError, match=r"bm25.run is a run of TREC, got as target"):
        evaluate_lists("MRR", run, target=run, k=2)


def test_repeated_history_with_values_needs_no_rule():
    log = Log.from_frame({"user": ["al", "al"], "item": ["x", "x"], "stars": [1, 5]}, value="stars")
    with pytest.raises(ValueError, match=r"with \[1, 5\]: values_reduce='sum', 'max' or 'last'"):
        evaluate_lists("HR", {"al": ["y"]}, target=log, k=1)
    assert float(evaluate_lists("HR", {"al": ["x", "y"]}, target={"al": ["y"]}, exclude=log, k=1)["HR@1"]) == 1
    frame = {"user": ["al"] * 3, "item": ["x", "x", "y"], "stars": [1, 5, 2]}
    for reduce, gain in (("sum", 6), ("max", 5), ("last", 5)):
        found = evaluate_lists(
            [trm.Recall(1, weighted=True)], {"al": ["x"]}, target=frame, value="stars", values_reduce=reduce
        )
        assert float(found["Recall-weighted@1"]) == gain / (gain + 2)


def test_lists_with_scores_show_the_cure():
    """Lists as ranx' dicts of scores, or as pairs of item and score, are refused with the cure."""
    with pytest.raises(TypeError, match=r"got dict: of a dict \{item: score\} pass sorted\(scores, key=scores.get"):
        evaluate_lists("HR", {"al": {"x": 0.9, "y": 0.5}}, target={"al": ["x"]}, k=2)
    with pytest.raises(TypeError, match=r"got \('x', 0.9\): pass the items alone"):
        evaluate_lists("HR", {"al": [("x", 0.9), ("y", 0.5)]}, target={"al": ["x"]}, k=2)


# ----------------------------------------------------------------------------------------------------- ids and cells

IDS = [f"B{number:03}" for number in range(40)]
SPELLINGS = {
    "blanks": lambda id_: f"{id_} ",
    "NUL": lambda id_: f"{id_}\0",
    "Unicode": lambda id_: unicodedata.normalize("NFD", id_),
    "case": str.lower,
    r"'\.0'": lambda id_: f"{id_}.0",
}


@pytest.mark.parametrize("form", ["frame", "csv", "parquet", "dict"])
@pytest.mark.parametrize("change", SPELLINGS)
def test_ids_in_another_spelling_are_refused(change, form, tmp_path):
    """Listed ids that differ from those of the ground truth in spelling alone are no misses; the error says how."""
    ids = [f"{'é' if change == 'Unicode' else ''}{id_}" for id_ in IDS]
    if "0" in change:
        ids = [str(number) for number in range(40)]
    truth = {"user": [f"u{row}" for row in range(40)], "item": [*ids[:-1], "OTHER TEXT"]}
    lists = pd.DataFrame({"user": truth["user"], "item": [SPELLINGS[change](id_) for id_ in ids]})
    if form == "csv":
        if change not in ("Unicode", "case"):
            pytest.skip("readers of csv remove such differences")
        lists.to_csv(tmp_path / "lists.csv", index=False)
    lists.to_parquet(tmp_path / "lists.parquet")
    given = {"frame": lists, "dict": lists.to_dict("list")}.get(form, tmp_path / f"lists.{form}")
    with pytest.raises(ValueError, match=rf"items of .* (39|40) of 40 ids that target lacks differ .* {change}"):
        evaluate_lists("HR@1", given, target=truth)


def test_ids_of_mixed_case_are_other_ids():
    """Where ids have capital and small letters, case is part of the id."""
    users = list(range(40))
    truth = {"user": users, "item": [f"a{n}B" for n in users]}
    with pytest.warns(UserWarning, match="no listed item of 40 users"):
        assert evaluate_lists("HR@1", {n: [f"A{n}b"] for n in users}, target=truth)["HR@1"] == 0


def test_users_in_another_spelling_are_refused():
    """Users of whom none has ground truth, but for the spelling, get an error that says how they differ."""
    users = [f"U{row}" for row in range(20)]
    with pytest.raises(ValueError, match=r"users of lists: 20 of 20 ids .* upper and lower case"):
        evaluate_lists("HR@1", {user.lower(): ["x"] for user in users}, target={"user": users, "item": ["x"] * 20})


def test_lists_without_a_known_item():
    """Of 1,000 users or more this is an error, of some a warning with counts, of a few it may well be."""
    for number in (9, 10, 999, 1000):
        lists = {user: [f"a{user}"] for user in range(number)}
        target = {"user": list(range(number)), "item": [f"b{user}" for user in range(number)]}
        message = rf"no listed item of {number} users is an item of target: 'a0' in lists, 'b0' in target"
        if number == 1000:
            with pytest.raises(ValueError, match=message):
                evaluate_lists("HR@1", lists, target=target)
        elif number >= 10:
            with pytest.warns(UserWarning, match=message):
                assert evaluate_lists("HR@1", lists, target=target)["HR@1"] == 0
        else:
            assert evaluate_lists("HR@1", lists, target=target)["HR@1"] == 0


@pytest.mark.parametrize("separator", [" ", "  ", ", ", "|", ";"])
def test_several_ids_in_a_cell(separator, tmp_path):
    """Cells with several ids are an error that names `split=`, which reads them in order; in the ground truth, too."""
    users = [f"u{row}" for row in range(40)]
    cells = [separator.join((IDS[(row + 1) % 40], IDS[row], "unknown")) for row in range(40)]
    lists, truth = pd.DataFrame({"user": users, "item": cells}), {"user": users, "item": IDS}
    lists.to_csv(tmp_path / "lists.csv", index=False, quoting=1)
    cure = separator if separator.strip() else " "
    for given in (lists, tmp_path / "lists.csv"):
        with pytest.raises(ValueError, match=rf"several ids, such as .*: pass split={re.escape(repr(cure))}"):
            evaluate_lists("MRR@3", given, target=truth)
        assert evaluate_lists("MRR@3", given, target=truth, split=cure)["MRR@3"] == 0.5
    blanks = lists.assign(item=lists.item.str.replace(separator, f" {separator} "))
    assert separator == " " or evaluate_lists("MRR@3", blanks, target=truth, split=separator)["MRR@3"] == 0.5
    known = {"user": users, "item": [separator.join((IDS[row], IDS[row - 1])) for row in range(40)]}
    ones = pd.DataFrame({"user": users, "item": IDS})
    with pytest.raises(ValueError, match="target, items of lists: cells hold several ids"):
        evaluate_lists("HR@1", ones, target=known)
    assert evaluate_lists("Recall@1", ones, target=known, split=separator)["Recall@1"] == 0.5
    with pytest.raises(ValueError, match="leave rank= and score= out"):
        evaluate_lists("HR@1", lists, target=truth, split=separator, score="user")


@pytest.mark.parametrize(("action", "expected"), [("skip", 1), ("neg", 0.5), ("pos", 1)])
def test_users_of_a_dict_without_items(action, expected):
    """Users whom a dict of relevant items names with none of them are rows without a relevant item."""
    found = evaluate_lists("HR@1", {0: [1, 2], 1: [3, 4]}, target={0: [1], 1: []}, empty_target_action=action)
    assert (found["HR@1"], found.num_skipped) == (expected, 1)
    with pytest.raises(ValueError, match="without a relevant item"):
        evaluate_lists("HR@1", {0: [1, 2], 1: [3, 4]}, target={0: [1], 1: []}, empty_target_action="error")


def test_negative_judgements_are_not_relevant(tmp_path):
    """Labels below 0 of qrels are 0, as in trec_eval; as a label column they are an error."""
    (tmp_path / "a.qrels").write_text("q 0 x 1\nq 0 y -2\n")
    assert evaluate_lists("NDCG@2", {"q": ["x", "y"]}, target=tmp_path / "a.qrels")["NDCG@2"] == 1
    labelled = {"user": [1, 1], "item": ["x", "y"], "score": [2, 1], "label": [1, -1]}
    with pytest.raises(ValueError, match="1 of 1 row with a label below 0"):
        evaluate_lists("NDCG@2", labelled, label="label", score="score")


def test_grades_beside_users_without_items():
    """An empty list among dicts of grades is a user without items, and takes no grade away."""
    run = {1: [10, 11], 2: [12]}
    graded = {1: {10: 0, 11: 2}, 2: []}
    assert evaluate_lists("MRR@2", run, target=graded, complete=True) == {"MRR@2": 1 / 2}
    assert evaluate_lists("MRR@2", run, target=graded, complete=True, empty_target_action="neg") == {"MRR@2": 1 / 4}
    with pytest.raises(TypeError, match="a dict of grades for 1 and a list without for 2"):
        evaluate_lists("MRR@2", run, target={1: {10: 0}, 2: [12]}, complete=True)


@pytest.mark.parametrize("name", ["item_rank", "recRank", "the position", "rank2"])
def test_ranks_as_scores_by_other_names(name):
    """The last word of the name says that a column holds ranks, which the highest would turn upside down."""
    rows = {"user": ["u", "u"], "item": ["x", "y"], name: [1, 2]}
    with pytest.raises(ValueError, match=f"score='{name}' would turn the lists"):
        evaluate_lists("MRR", rows, target={"u": ["x"]}, score=name, k=2)


@pytest.mark.parametrize(
    ("history", "what"),
    [({"u": [" x"]}, "items of exclude.*blanks"), ({"u ": ["x"]}, "users of exclude.*blanks")],
)
def test_history_in_another_spelling(history, what):
    """Ids of a history that differ from those of the ground truth in blanks alone exclude nothing, and are refused."""
    with pytest.raises(ValueError, match=what):
        evaluate_lists("MRR@1", {"u": ["x"]}, target={"u": ["x"]}, exclude=history, complete=True)


def test_leading_zeros_in_text():
    """Text that lost its zeros is refused."""
    with pytest.raises(ValueError, match="differ from its ids in leading zeros alone, such as '7'"):
        evaluate_lists("MRR@1", {"u": ["7"]}, target={"u": ["007"]})
