"""`Vocabulary` against Python's lists and dicts, and operations that match two vocabularies."""

import math
import sys
from decimal import Decimal

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Vocabulary
from torchrecmetrics.core.saving import write

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

SMALL = st.lists(st.integers(-5, 5), max_size=12)
SIGNED = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8)
UNSIGNED = st.lists(st.integers(0, 2**64 - 1), max_size=8)
TEXT = st.lists(st.text(max_size=3), max_size=12)
BYTES = st.lists(st.binary(max_size=3), max_size=12)
IDS = st.one_of(SMALL, SIGNED, UNSIGNED, TEXT, BYTES)
TWO_OF_A_KIND = st.one_of(*(st.tuples(kind, kind) for kind in (SMALL, SIGNED, UNSIGNED, TEXT, BYTES)))


@settings(max_examples=examples(150), deadline=None)
@given(column=IDS)
def test_distinct_ids_are_numbered_in_ascending_order(column):
    vocabulary, rows = Vocabulary.number(column)
    expected = sorted(set(column))

    assert list(vocabulary) == expected
    assert rows.tolist() == [expected.index(value) for value in column]
    assert vocabulary.ids(rows) == column


@settings(max_examples=examples(150), deadline=None)
@given(columns=TWO_OF_A_KIND)
def test_no_other_id_is_found(columns):
    column, asked = columns
    vocabulary, expected = Vocabulary.number(column)[0], sorted(set(column))
    rows = [expected.index(value) if value in expected else -1 for value in asked]

    assert vocabulary.rows(asked, unknown="mark").tolist() == rows


@settings(max_examples=examples(150), deadline=None)
@given(columns=TWO_OF_A_KIND)
def test_a_union_appends_the_new_ids(columns):
    column, others = sorted(set(columns[0])), list(dict.fromkeys(columns[1]))

    assert list(Vocabulary(column).union(others)) == list(dict.fromkeys([*column, *others]))


@settings(max_examples=examples(60), deadline=None)
@given(column=IDS)
def test_a_saved_vocabulary_loads_as_an_equal_one(column, tmp_path_factory):
    """`torch.load` reads its file with the default weights_only=True."""
    path = tmp_path_factory.mktemp("vocabulary") / "ids.pt"
    vocabulary, _ = Vocabulary.number(column)
    vocabulary.save(path)
    torch.load(path, weights_only=True)

    assert list(Vocabulary.load(path)) == list(vocabulary)
    assert Vocabulary.load(path) == vocabulary


WORDS, NUMBERS, HASHES = ["b", "a", "ü"], [7, 2**63 - 1, -3], [2**64 - 1, 0, 5]
CATEGORIES = ["z", "ü", "b", "a"]  # one unused, in another order
COLUMNS = [
    *((pd.Series(WORDS, dtype=kind), WORDS) for kind in ("object", "category", "string[pyarrow]")),
    (pd.Categorical(WORDS, categories=CATEGORIES), WORDS),
    (pd.Series(pd.Categorical(NUMBERS)), NUMBERS),
    (pd.Index(WORDS), WORDS),
    (pl.Series(WORDS, dtype=pl.Enum(CATEGORIES)), WORDS),
    (pa.chunked_array([WORDS[:1], WORDS[1:]]).dictionary_encode(), WORDS),
    (pa.chunked_array([pa.array([word], pa.string_view()) for word in WORDS]), WORDS),
    (np.array(WORDS), WORDS),
    (tuple(WORDS), WORDS),
    (pl.Series([b"\0\1", b"a", b""]), [b"\0\1", b"a", b""]),
    (pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
    *((holds(NUMBERS), NUMBERS) for holds in (pd.Series, torch.tensor, pa.array)),
    (pd.Series(NUMBERS, dtype="Int64"), NUMBERS),
    (np.array(HASHES, dtype=np.uint64), HASHES),
    (torch.tensor([2, 1], dtype=torch.uint8), [2, 1]),
    (pa.array(np.array([3, 1], np.float16)), [3, 1]),
    (np.array([3.0, 1.0]), [3, 1]),  # pandas makes whole numbers floats if some are missing
]


@pytest.mark.parametrize(("column", "expected"), COLUMNS, ids=[type(column).__name__ for column, _ in COLUMNS])
def test_ids_are_taken_from_any_column(column, expected):
    """They keep their type and their order, which `number` makes ascending."""
    vocabulary = Vocabulary(column)

    assert list(vocabulary) == expected
    assert vocabulary.rows(column).tolist() == [*range(len(expected))]
    assert Vocabulary.number(column)[1].tolist() == [sorted(expected).index(value) for value in expected]


def test_without_pyarrow_a_vocabulary_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"ids.* needs pyarrow: pip install 'torchrecmetrics\[frames\]'"):
        Vocabulary([1])


def test_row_numbers_and_comparisons_need_no_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    target = Interactions.from_columns([0, 1], torch.tensor([1, 0]), [2.0, 3.0])
    rows = trm.evaluate("MRR", torch.eye(2), torch.eye(2), target=target, keep_rows=True).rows

    assert trm.compare({"a": rows, "b": rows})["MRR"].difference == 0


@pytest.mark.parametrize(("codes", "words"), [([0, 1], [None, "a"]), ([None, 0], ["a"])], ids=["category", "code"])
def test_a_category_or_a_code_that_is_missing_is_a_missing_id(codes, words):
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(words))
    with pytest.raises(ValueError, match="1 of 2 rows, the first is row 0"):
        Vocabulary(column)

    assert Vocabulary(["a"]).rows(column, unknown="mark").tolist() == [-1, 0]


@pytest.mark.parametrize("convert", [int, str])
@pytest.mark.parametrize(
    ("asked", "rows"), [([21, None, 20, 0, 21], [3, -1, -1, 0, 3]), ([None, 1], [-1, -1])], ids=["some", "none"]
)
def test_few_ids_are_found_in_a_large_vocabulary(asked, rows, convert):
    """The vocabulary holds 0, 7, 14, ..."""
    vocabulary = Vocabulary([convert(7 * number) for number in range(100)])
    asked = [value if value is None else convert(value) for value in asked]

    assert vocabulary.rows(asked, unknown="mark").tolist() == rows


UNSIGNED_HASHES = np.array([2**64 - 1, 7, 5], dtype=np.uint64)


@pytest.mark.parametrize(
    ("asked", "ids", "rows"),
    [
        ([5, -1, 7], UNSIGNED_HASHES, [2, -1, 1]),
        (UNSIGNED_HASHES, [5, -1, 7], [-1, 2, 0]),
        (np.array([2**53, 2**53 + 1]), np.array([2**53 + 1, 2**63 + 1], np.uint64), [-1, 0]),  # beyond float64
    ],
)
def test_the_same_number_is_the_same_id_in_signed_and_unsigned_columns(asked, ids, rows):
    """-1 and 2^64 - 1 are two numbers of the same bits."""
    assert Vocabulary(ids).rows(asked, unknown="mark").tolist() == rows
    assert Vocabulary(asked).rows_in(Vocabulary(ids)).tolist() == rows


def test_a_union_of_signed_and_unsigned_ids_holds_the_numbers():
    assert list(Vocabulary([5, 3]).union(UNSIGNED_HASHES)) == [5, 3, 2**64 - 1, 7]


FOUR = Vocabulary(["al", "bo", "eve", "zoe"])


def test_a_vocabulary_shows_its_first_ids():
    assert repr(FOUR) == "Vocabulary(4 ids, text: 'al', 'bo', 'eve', ...)"


def test_a_vocabulary_reads_like_a_list():
    assert (FOUR[2], list(FOUR)[-1], FOUR.ids([3, 0])) == ("eve", "zoe", ["zoe", "al"])
    assert [value in FOUR for value in (1, "al", None, ["al"])] == [False, True, False, False]


def test_a_vocabulary_equals_vocabularies_of_the_same_ids_alone():
    assert Vocabulary(FOUR) == FOUR
    assert FOUR != ["al", "bo", "eve", "zoe"]
    assert Vocabulary([1, 2]) not in (Vocabulary(["1", "2"]), Vocabulary([2, 1]))


V = Vocabulary(["al", "bo"])
REFUSED = [
    (lambda: Vocabulary(["a", "b", "a"]), ValueError, r"ids lists 'a' twice, in rows 0 and 2: .*Vocabulary.number"),
    (lambda: Vocabulary(["a", None]), ValueError, "ids hold a missing value: 1 of 2 rows, the first is row 1"),
    (lambda: Vocabulary([0.5, 1]), TypeError, "ids hold floats such as 0.5, which are no ids: make them whole numbers"),
    (lambda: Vocabulary([1, "a"]), TypeError, "ids hold int and str: make them all one kind"),
    (lambda: Vocabulary([b"a", "a"]), TypeError, "ids hold bytes and str: make them all one kind"),
    (lambda: Vocabulary([True, False]), TypeError, "ids hold bool, such as True: ids are whole numbers, text or bytes"),
    (lambda: Vocabulary([(1, 2)]), TypeError, r"ids hold list<item: int64>, such as \[1, 2\]: .*\[cell\[0\]"),
    (lambda: Vocabulary([Decimal(7)]), TypeError, r"ids hold decimal128\(1, 0\), such as Decimal\('7'\)"),
    (lambda: Vocabulary([2**70]), ValueError, "ids hold whole numbers that 64 bits do not hold: make them text"),
    (lambda: Vocabulary(torch.tensor([2.0**24])), ValueError, r"torch.float32 rounds whole numbers from 2\^24 on"),
    (lambda: Vocabulary(torch.tensor([2.0**8]).bfloat16()), ValueError, r"torch.bfloat16 rounds .* from 2\^8 on"),
    (lambda: Vocabulary([2.0**53]), ValueError, r"torch.float64 rounds .* from 2\^53 on"),
    (lambda: Vocabulary([1.0, math.inf]), ValueError, "ids hold inf"),
    (lambda: Vocabulary({"a"}), TypeError, r"ids must be a list or an array, got set: list\(...\)"),
    (lambda: Vocabulary("abc"), TypeError, "ids must be a list or an array, got str"),
    (lambda: V.rows(["bo", "eve"]), ValueError, r"1 of 2 ids .* first in row 1: 'eve'; unknown='mark' gives -1"),
    (lambda: V.rows([1]), TypeError, r"ids hold whole numbers \(1\), the vocabulary holds text \('al'\): they cannot"),
    (lambda: V.rows(["al"], unknown="drop"), ValueError, "unknown must be one of 'error', 'mark'"),
    (lambda: V.ids([2]), ValueError, r"rows hold ids 2..2, expected 0..1"),
    (lambda: V.ids([0, -1]), ValueError, r"expected 0..1; take ids\[ids >= 0\] of a list that is filled up with -1"),
    (lambda: V.ids(torch.tensor([[0]])), ValueError, r"rows must be whole numbers \[n\], got torch.int64 \[1, 1\]"),
    (lambda: V[2], IndexError, "row 2 of a vocabulary of 2"),
    (lambda: V["al"], TypeError, "row must be a whole number >= 0"),
    (lambda: Vocabulary([5, -1]).union([2**64 - 1]), ValueError, r"some ids are below 0 and others 2\^63 or more"),
    (lambda: V.union([1]), TypeError, "other holds whole numbers .* cannot be compared"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_ids_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (Interactions.from_columns([0], [0]).save, "holds Interactions, not Vocabulary: Interactions.load reads it"),
        (lambda path: torch.save({"x": 1}, path), "ids was not written by Vocabulary.save"),
        (lambda path: path.write_text("no"), "ids was not written by Vocabulary.save"),
        (lambda path: write(path, "Vocabulary", {"version": 99}), "version 99, later than 1: update torchrecmetrics"),
    ],
    ids=["another type", "no type", "text", "a later version"],
)
def test_files_of_something_else_are_refused(save, message, tmp_path):
    save(tmp_path / "ids")
    with pytest.raises(ValueError, match=message):
        Vocabulary.load(tmp_path / "ids")


def test_a_save_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    Vocabulary([1]).save(tmp_path / "ids")

    def half(_, file):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        Vocabulary([2]).save(tmp_path / "ids")

    assert [path.name for path in tmp_path.iterdir()] == ["ids"]
    assert list(Vocabulary.load(tmp_path / "ids")) == [1]


def graph(pairs, users, items, values=None):
    """Return interactions of named pairs."""
    return Interactions.from_columns(
        [user for user, _ in pairs], [item for _, item in pairs], values, user_ids=users, item_ids=items
    )


def named(interactions):
    """Return the pairs of interactions by name."""
    users, items = interactions.user_ids.ids(interactions.users), interactions.item_ids.ids(interactions.items)
    return set(zip(users, items, strict=True))


USERS, ITEMS = ["al", "bo", "eve"], ["v", "w", "x", "y", "z"]
TEST = graph([("al", "x"), ("bo", "y"), ("eve", "z")], USERS, ITEMS)
PAIRS = [("eve", "v"), ("al", "w"), ("bo", "x"), ("zoe", "x"), ("al", "q")]
TRAIN = graph(PAIRS, ["zoe", "eve", "bo", "al"], ["q", *ITEMS[::-1]])
"""A history in another order, with user zoe and item q, which TEST lacks."""


@pytest.mark.parametrize("exclude", [TRAIN, (TRAIN, torch.zeros(5, dtype=torch.bool))], ids=["alone", "beside a mask"])
def test_a_history_is_matched_by_id(exclude):
    """al's order is w, x, ... without w; bo's v, w, (x), y; eve's (v), w, x, y, z."""
    scores = torch.tensor([[1.0, 5, 4, 3, 2], [5, 4, 3, 2, 1], [5, 4, 3, 2, 1]])
    result = trm.evaluate("MRR", lambda ids: scores[ids], target=TEST, exclude=exclude)

    assert result["MRR"].item() == pytest.approx((1 / 1 + 1 / 3 + 1 / 4) / 3)


def test_recode_keeps_the_values_of_known_pairs_and_counts_others():
    graded = graph(PAIRS, ["zoe", "eve", "bo", "al"], ["q", *ITEMS], [1.0, 2, 3, 4, 5])
    known = graded.recode(USERS, ITEMS)

    assert named(known) == {("eve", "v"), ("al", "w"), ("bo", "x")}
    assert (known.num_users, known.num_items, known.num_dropped) == (3, 5, 2)
    assert known.values.tolist() == [2.0, 3.0, 1.0]


def test_without_matches_by_id():
    others = graph([("bo", "y"), ("al", "z")], USERS[::-1], ITEMS)

    assert named(TEST.without(others)) == {("al", "x"), ("eve", "z")}


def test_union_matches_by_id():
    joined = TEST.union(graph([("bo", "v")], ["bo"], ["v"]))

    assert named(joined) == named(TEST) | {("bo", "v")}
    assert joined.item_ids == TEST.item_ids


BARE = Interactions.from_columns([0, 1, 2], [0, 1, 2], num_users=3, num_items=5)


def hit_rate(target, exclude, **options):
    return trm.evaluate("HR@1", lambda ids: torch.rand(len(ids), 5), target=target, exclude=exclude, **options)


NO_NAMES = r"target has user_ids, exclude has none: row 5 .* two users.*exclude.with_ids\(user_ids=target.user_ids\)"
BARE_SIDES = [
    (lambda: hit_rate(TEST, BARE), ValueError, NO_NAMES),
    (lambda: hit_rate(BARE, TEST), ValueError, r"exclude has user_ids, .*target.with_ids\(user_ids=exclude"),
    (lambda: hit_rate(TEST, BARE.with_ids(USERS)), ValueError, "target has item_ids, exclude has none: .* two items"),
    (lambda: hit_rate(TEST, BARE.with_ids([1, 2, 3], ITEMS)), TypeError, "cannot be compared"),
    (lambda: trm.evaluate("HR@1", None, target=TEST), TypeError, r"got None; Embeddings\(bias=\) ranks"),
    (lambda: trm.recommend(None, k=5), TypeError, "users must be a tensor"),
    (lambda: TEST.union(BARE), ValueError, "self has user_ids, other has none"),
    (lambda: TEST.union(graph([("kim", "x")], ["kim"], ["x"])), ValueError, "1 pairs of other .* lack: recode both"),
    (lambda: BARE.recode(USERS), ValueError, r"has no user_ids to match: name them, with_ids\(user_ids=...\)"),
    (lambda: BARE.with_ids(["a", "b"]), ValueError, "user_ids holds 2 ids, but there are 3 users"),
]


@pytest.mark.parametrize(("call", "error", "message"), BARE_SIDES)
def test_a_side_without_a_vocabulary_is_refused(call, error, message):
    """The message shows how to add one."""
    with pytest.raises(error, match=message):
        call()


def test_splits_set_operations_and_moves_keep_vocabularies(device):
    frame = {"user": ["a"] * 3 + ["b"], "item": [1, 2, 3, 1]}
    log = trm.Log.from_frame(frame, user_ids=Vocabulary(["a", "b"]), item_ids=[3, 2, 1])
    train, valid, test = (part.to_interactions() for part in log.leave_last_out())
    results = [train, valid, test, train.union(valid), train.without(valid), test.to(device)]

    assert [([*part.user_ids], [*part.item_ids]) for part in results] == [(["a", "b"], [3, 2, 1])] * 6
    assert train.user_ids is test.user_ids


SAVED = (TRAIN, Interactions.from_columns([0], [7]), graph([("al", "x")], USERS, ITEMS, [2.5]))


@pytest.mark.parametrize("saved", SAVED, ids=["vocabularies", "rows", "values"])
def test_interactions_survive_a_file(saved, tmp_path, device):
    """`torch.load` reads it with its default; the text has sizes and vocabularies."""
    saved.to(device).save(tmp_path / "x")
    torch.load(tmp_path / "x", weights_only=True)
    loaded = Interactions.load(tmp_path / "x")

    assert (repr(loaded), str(loaded.values)) == (repr(saved), str(saved.values))
    assert (loaded.user_ids, loaded.item_ids) == (saved.user_ids, saved.item_ids)
    assert (loaded.keys.tolist(), loaded.num_items_inferred) == (saved.keys.tolist(), saved.num_items_inferred)
