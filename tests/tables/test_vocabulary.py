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

IDS = st.one_of(
    st.lists(st.integers(-5, 5), max_size=12),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8),
    st.lists(st.integers(0, 2**64 - 1), max_size=8),
    st.lists(st.text(max_size=3), max_size=12),
    st.lists(st.binary(max_size=3), max_size=12),
)


@settings(max_examples=examples(150), deadline=None)
@given(column=IDS)
def test_numbers_what_python_numbers(column):
    """Distinct ids are numbered in ascending order, exactly, with NUL as well."""
    vocabulary, rows = Vocabulary.number(column)
    expected = sorted(set(column))

    assert list(vocabulary) == expected
    assert rows.tolist() == [expected.index(one) for one in column]
    assert vocabulary.ids(rows) == column
    assert (vocabulary == Vocabulary(expected[::-1])) == (len(expected) < 2)


@settings(max_examples=examples(150), deadline=None)
@given(column=IDS, asked=IDS)
def test_finds_what_python_finds(column, asked):
    """No other id is found; a union appends the new ids, unless no 64 bits hold both."""
    vocabulary, expected = Vocabulary.number(column)[0], sorted(set(column))

    assert [one in vocabulary for one in asked] == [one in expected for one in asked]
    if asked and column and type(asked[0]) is not type(column[0]):
        return
    rows = [expected.index(one) if one in expected else -1 for one in asked]
    assert vocabulary.rows(asked, unknown="mark").tolist() == rows
    both = [*asked, *column]
    if not ({*map(type, both)} == {int} and min(both) < 0 and max(both) >= 2**63):
        new = dict.fromkeys(one for one in asked if one not in expected)
        assert list(vocabulary.union(list(dict.fromkeys(asked)))) == [*expected, *new]


@settings(max_examples=examples(60), deadline=None)
@given(column=IDS)
def test_survives_a_file(column, tmp_path_factory):
    """A saved vocabulary loads as an equal one, and `torch.load` reads its file with the default weights_only=True."""
    path = tmp_path_factory.mktemp("vocabulary") / "ids.pt"
    vocabulary, _ = Vocabulary.number(column)
    vocabulary.save(path)
    assert list(Vocabulary.load(path)) == list(vocabulary)
    assert Vocabulary.load(path) == vocabulary
    torch.load(path, weights_only=True)


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


@pytest.mark.parametrize(("column", "expected"), COLUMNS)
def test_takes_ids_whatever_holds_them(column, expected):
    """A vocabulary takes ids from any column in their order and with their type, and categories by their values."""
    vocabulary = Vocabulary(column)
    ascending, rows = Vocabulary.number(column)

    assert list(vocabulary) == expected
    assert vocabulary.rows(column).tolist() == list(range(len(expected)))
    assert list(ascending) == sorted(expected)
    assert rows.tolist() == [sorted(expected).index(value) for value in expected]


def test_without_pyarrow(monkeypatch):
    """Without pyarrow the error for a vocabulary names the extra; row numbers and tensors need none."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"ids.* needs pyarrow: pip install 'torchrecmetrics\[frames\]'"):
        Vocabulary([1])
    graph = Interactions.from_columns([0, 1], torch.tensor([1, 0]), [2.0, 3.0])
    assert graph.select([0, 1]).items.tolist() == [[1], [0]]
    rows = trm.evaluate("MRR", torch.eye(2), torch.eye(2), target=graph, keep_rows=True).rows
    assert trm.compare({"a": rows, "b": rows})["MRR"].difference == 0


def test_a_category_that_is_missing_is_a_missing_id():
    """An id is missing if its category code is null or if the category of that code is null."""
    for codes, words in (([0, 1], [None, "a"]), ([None, 0], ["a"])):
        column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(words))
        with pytest.raises(ValueError, match="1 of 2 rows, the first is row 0"):
            Vocabulary(column)
        assert Vocabulary(["a"]).rows(column, unknown="mark").tolist() == [-1, 0]


@pytest.mark.parametrize("convert", [int, str])
def test_few_ids_are_found_in_a_large_vocabulary(convert):
    """A few ids, some repeated, unknown or missing, are found in a vocabulary of many."""
    vocabulary = Vocabulary([convert(7 * number) for number in range(100)])
    asked = [convert(21), None, convert(20), convert(0), convert(21)]
    assert vocabulary.rows(asked, unknown="mark").tolist() == [3, -1, -1, 0, 3]
    assert vocabulary.rows([None, convert(1)], unknown="mark").tolist() == [-1, -1]


def test_signed_and_unsigned_hashes_are_one_kind():
    """The same number is the same id in signed and in unsigned columns."""
    signed, unsigned = Vocabulary([5, -1, 7]), Vocabulary(np.array([2**64 - 1, 7, 5], dtype=np.uint64))
    assert signed.rows_in(unsigned).tolist() == [2, -1, 1]
    assert unsigned.rows_in(signed).tolist() == [-1, 2, 0]
    assert unsigned.rows(np.array([-1, 7]), unknown="mark").tolist() == [-1, 1]
    assert signed.rows(np.array([2**64 - 1, 5], dtype=np.uint64), unknown="mark").tolist() == [-1, 0]
    exact = Vocabulary(np.array([2**53 + 1, 2**53 + 2, 2**63 + 1], dtype=np.uint64))
    assert exact.rows(np.array([2**53, 2**53 + 1]), unknown="mark").tolist() == [-1, 0]  # beyond float64
    assert list(Vocabulary([5, 3]).union(unsigned)) == [5, 3, 2**64 - 1, 7]


def test_reads_like_a_list():
    vocabulary = Vocabulary(["al", "bo", "eve", "zoe"])
    assert repr(vocabulary) == "Vocabulary(4 ids, text: 'al', 'bo', 'eve', ...)"
    assert (vocabulary[2], list(vocabulary)[-1], vocabulary.ids([3, 0])) == ("eve", "zoe", ["zoe", "al"])
    assert vocabulary != ["al", "bo", "eve", "zoe"]
    assert Vocabulary([1, 2]) != Vocabulary(["1", "2"])
    assert [value in vocabulary for value in (1, "al", None, ["al"])] == [False, True, False, False]
    assert Vocabulary(vocabulary) == vocabulary


V = Vocabulary(["al", "bo"])
BAD = [
    (lambda: Vocabulary(["a", "b", "a"]), ValueError, r"ids lists 'a' twice, in rows 0 and 2: .*Vocabulary.number"),
    (lambda: Vocabulary(["a", None]), ValueError, "ids hold a missing value: 1 of 2 rows, the first is row 1"),
    (lambda: Vocabulary([0.5, 1]), TypeError, "ids hold floats such as 0.5, which are no ids: make them whole numbers"),
    (lambda: Vocabulary([1, "a"]), TypeError, "ids hold int and str: make them all one kind"),
    (lambda: Vocabulary([b"a", "a"]), TypeError, "ids hold bytes and str: make them all one kind"),
    (lambda: Vocabulary([True, False]), TypeError, "ids hold bool, such as True: ids are whole numbers, text or bytes"),
    (
        lambda: Vocabulary([(1, 2)]),
        TypeError,
        r"ids hold list<item: int64>, such as \[1, 2\]: .*\[cell\[0\]",
    ),
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


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_input(make, error, message):
    """Each error says what was given, what is accepted, or how to correct it."""
    with pytest.raises(error, match=message):
        make()


def test_files_of_something_else_are_refused(tmp_path):
    """Files of another type, of no type or of a later version are refused."""
    Interactions.from_columns([0], [0]).save(tmp_path / "a")
    with pytest.raises(ValueError, match=r"holds Interactions, not Vocabulary: Interactions\.load reads it"):
        Vocabulary.load(tmp_path / "a")
    torch.save({"x": 1}, tmp_path / "b")
    (tmp_path / "c").write_text("no")
    for name in "bc":
        with pytest.raises(ValueError, match=rf"{name} was not written by Vocabulary.save"):
            Vocabulary.load(tmp_path / name)
    write(tmp_path / "d", "Vocabulary", {"version": 99})
    with pytest.raises(ValueError, match="version 99, later than 1: update torchrecmetrics"):
        Vocabulary.load(tmp_path / "d")
    with pytest.raises(FileNotFoundError):
        Vocabulary.load(tmp_path / "e")


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    """A save that fails on a full disk leaves the old file and no other file."""
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


def test_history_is_matched_by_id():
    """History in another order, with users and items that the truth lacks, gives the values of a common vocabulary."""
    common = graph([pair for pair in PAIRS if pair[0] in USERS and pair[1] in ITEMS], USERS, ITEMS)
    scores = torch.tensor([[1.0, 5, 4, 3, 2], [5, 4, 3, 2, 1], [5, 4, 3, 2, 1]])
    run = {"users": lambda ids: scores[ids], "target": TEST, "k": [1, 2, 3]}
    expected = trm.evaluate(["HR", "MRR"], exclude=common, **run)
    assert trm.evaluate(["HR", "MRR"], exclude=TRAIN, **run) == expected
    assert trm.evaluate(["HR", "MRR"], exclude=(TRAIN, torch.zeros(5, dtype=torch.bool)), **run) == expected
    assert trm.evaluate(["HR", "MRR"], **run) != expected
    assert expected["HR@1"] == pytest.approx(1 / 3)  # item w is excluded for al, so x is first


def test_recode_matches_by_id():
    """`recode` keeps the values of known pairs and counts the other pairs."""
    graded = graph(PAIRS, ["zoe", "eve", "bo", "al"], ["q", *ITEMS], [1.0, 2, 3, 4, 5])
    made = graded.recode(USERS, ITEMS)

    assert named(made) == {("eve", "v"), ("al", "w"), ("bo", "x")}
    assert (made.num_users, made.num_items, made.num_dropped) == (3, 5, 2)
    assert made.values.tolist() == [2.0, 3.0, 1.0]
    assert named(graded.recode(item_ids=ITEMS)) == set(PAIRS[:4])


def test_set_operations_match_by_id():
    joined = TEST.union(graph([("bo", "v")], ["bo"], ["v"]))

    assert named(TEST.without(graph([("bo", "y"), ("al", "z")], USERS[::-1], ITEMS))) == {("al", "x"), ("eve", "z")}
    assert named(joined) == named(TEST) | {("bo", "v")}
    assert joined.item_ids == TEST.item_ids


BARE = Interactions.from_columns([0, 1, 2], [0, 1, 2], num_users=3, num_items=5)


def hit_rate(target, exclude, **options):
    return trm.evaluate("HR@1", lambda ids: torch.rand(len(ids), 5), target=target, exclude=exclude, **options)


NO_NAMES = r"target has user_ids, exclude has none: row 5 .* two users.*exclude.with_ids\(user_ids=target.user_ids\)"
BAD_SIDES = [
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


@pytest.mark.parametrize(("make", "error", "message"), BAD_SIDES)
def test_a_side_without_a_vocabulary_is_refused(make, error, message):
    """The message shows how to add a vocabulary."""
    with pytest.raises(error, match=message):
        make()


def test_names_are_added_to_a_copy():
    named_too = BARE.with_ids(TEST.user_ids, TEST.item_ids)
    assert len(hit_rate(TEST, named_too, overlap="keep")) == 1
    assert (BARE.user_ids, named_too.user_ids) == (None, TEST.user_ids)


def test_interactions_carry_their_vocabularies(device):
    """Vocabularies are kept by splits, set operations, and moves between devices."""
    frame = {"user": ["a"] * 3 + ["b"], "item": [1, 2, 3, 1]}
    log = trm.Log.from_frame(frame, user_ids=Vocabulary(["a", "b"]), item_ids=[3, 2, 1])
    train, valid, test = (part.to_interactions() for part in log.leave_last_out())

    for part in (train, valid, test, train.union(valid), train.without(valid), test.to(device)):
        assert (list(part.user_ids), list(part.item_ids)) == (["a", "b"], [3, 2, 1])
    assert train.user_ids is test.user_ids


SAVED = (TRAIN, Interactions.from_columns([0], [7]), graph([("al", "x")], USERS, ITEMS, [2.5]))


@pytest.mark.parametrize("saved", SAVED, ids=["vocabularies", "rows", "values"])
def test_interactions_survive_a_file(saved, tmp_path, device):
    """`torch.load` reads the file with its default."""
    saved.to(device).save(tmp_path / "x")
    torch.load(tmp_path / "x", weights_only=True)
    back = Interactions.load(tmp_path / "x")

    assert repr(back) == repr(saved)
    assert (back.user_ids, back.item_ids) == (saved.user_ids, saved.item_ids)
    assert torch.equal(back.keys, saved.keys)
    assert str(back.values) == str(saved.values)
    assert back.num_items_inferred == saved.num_items_inferred
