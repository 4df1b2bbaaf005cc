"""Interactions against Python sets: input, output, splits, set operations and errors."""

import math
import re
import typing
import warnings
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples

from torchrecmetrics import Interactions, Log

EDGES = torch.tensor([[2, 0, 2, 0], [1, 4, 3, 0]])


def pairs(interactions):
    return list(zip(interactions.users.tolist(), interactions.items.tolist(), strict=True))


@st.composite
def graphs(draw):
    """Draw edges in any order with repeats; some users and items have no edge."""
    users, items = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    edge = st.tuples(st.integers(0, users - 1), st.integers(0, items - 1))
    return draw(st.lists(edge, max_size=25)), users, items


def build(edges, users, items, **options):
    index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return Interactions.from_edge_index(index, users, items, **options)


@settings(max_examples=examples(100), deadline=None)
@given(graph=graphs(), other=graphs(), offset=st.integers(0, 9))
def test_is_a_set_of_pairs(graph, other, offset):
    """Edges in any order with repeats become sorted distinct pairs; degrees, rows, exports and set operations agree."""
    edges, users, items = graph
    graph = build([(u, i + offset) for u, i in edges], users, items, item_offset=offset)
    expected = sorted(set(edges))
    assert pairs(graph) == expected
    assert len(graph) == len(expected)
    rows = [[i for u, i in expected if u == user] for user in range(users)]
    assert graph.degree.tolist() == [len(row) for row in rows]
    assert graph.max_degree == max(map(len, rows))
    chosen = [*range(users - 1, -1, -1), 0]
    padded = graph.select(chosen).items
    assert [[i for i in row if i >= 0] for row in padded.tolist()] == [rows[u] for u in chosen]
    assert padded.shape[1] == max(1, *map(len, rows))
    back = (
        Interactions.from_edge_index(graph.to_edge_index(3), users, items, item_offset=3),
        Interactions.from_padded(graph.select(torch.arange(users)).items, items),
        Interactions.from_columns([u for u, _ in edges], [i for _, i in edges], num_users=users, num_items=items),
        Interactions.from_scipy(graph.to_scipy()),
    )
    assert all(pairs(b) == expected and (b.num_users, b.num_items) == (users, items) for b in back)
    more = [(u % users, i % items) for u, i in other[0]]
    second = build(more, users, items)
    assert pairs(graph.union(second)) == sorted(set(edges) | set(more))
    assert pairs(graph.without(second)) == sorted(set(edges) - set(more))
    mirrored = graph.to_edge_index(users, undirected=True)
    assert torch.equal(mirrored[:, len(graph) :], mirrored[:, : len(graph)].flip(0))


@pytest.mark.parametrize(("reduce", "expected"), [("sum", [5.0, 2.0]), ("max", [4.0, 2.0]), ("last", [1.0, 2.0])])
def test_values_of_repeated_edges(reduce, expected):
    """Values of repeated edges become their sum, maximum or last value, also in `select`, `without` and `union`.

    `select` pads values with 0.
    """
    edges = torch.tensor([[0, 1, 0], [3, 0, 3]])
    graph = Interactions.from_edge_index(edges, 2, 4, torch.tensor([4.0, 2.0, 1.0]), values_reduce=reduce)
    assert graph.values.tolist() == expected
    assert graph.select([1, 0]).values.tolist() == [[2.0], [expected[0]]]
    wider = graph.union(Interactions.from_edge_index(torch.tensor([[1], [2]]), 2, 4, torch.tensor([7.0])))
    assert wider.select([1, 0]).values.tolist() == [[2.0, 7.0], [expected[0], 0.0]]
    assert graph.without(graph).values.tolist() == []
    assert graph.union(graph).values.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_any_signed_dtype(dtype):
    assert pairs(Interactions.from_edge_index(EDGES.to(dtype), 3, 5)) == [(0, 0), (0, 4), (2, 1), (2, 3)]


def test_default_device_does_not_matter():
    """A scipy matrix becomes interactions on the CPU, whatever the default device is."""
    matrix = Interactions.from_columns([0, 1], [2, 1], values=torch.tensor([2.0, 3.0]), num_items=3).to_scipy()
    torch.set_default_device("meta")
    try:
        made = Interactions.from_scipy(matrix)
    finally:
        torch.set_default_device(None)
    assert (made.users.tolist(), made.items.tolist(), made.values.tolist()) == ([0, 1], [2, 1], [2, 3])


def test_scipy_matrices_are_copies():
    """Changes to an exported scipy matrix do not change the interactions."""
    graph = Interactions.from_edge_index(EDGES, 3, 5, torch.arange(4.0, requires_grad=True))
    matrix = graph.to_scipy()
    matrix.data[:] = matrix.indices[:] = matrix.indptr[:] = 0
    assert pairs(graph) == [(0, 0), (0, 4), (2, 1), (2, 3)]
    assert graph.values.tolist() == [3, 1, 0, 2]
    assert graph.degree.tolist() == [2, 0, 2]


def test_scipy_gets_the_class_that_is_asked_for():
    """`to_scipy` returns an array, or an equal `csr_matrix` for packages that accept only this class (implicit)."""
    sparse = pytest.importorskip("scipy.sparse")
    graph = Interactions.from_edge_index(EDGES, 3, 5, torch.arange(4.0))
    assert type(graph.to_scipy()) is sparse.csr_array
    assert type(graph.to_scipy(matrix=True)) is sparse.csr_matrix
    assert graph.to_scipy(matrix=True).toarray().tolist() == [[3, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 2, 0]]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch: the layout is in beta, invariants are not checked
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_tensors_are_read_as_scipy_matrices_are(layout):
    dense = torch.tensor([[0.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
    graph = Interactions.from_scipy(dense.to_sparse(layout=layout))
    assert (pairs(graph), graph.values.tolist()) == ([(0, 1), (0, 2), (1, 0)], [2, 3, 4])
    assert (graph.num_users, graph.num_items) == (2, 3)


def ragged():
    return torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.jagged)


def scipy_matrix():
    return pytest.importorskip("scipy.sparse").csr_matrix([[0, 1]])


def frame():
    return pytest.importorskip("pandas").DataFrame({"user": [0], "item": [1]})


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.eye(2).to_sparse(), r"sparse tensor \(torch.sparse_coo\): Interactions.from_scipy takes"),
        (lambda: torch.eye(2).to_sparse_csr(), r"sparse tensor \(torch.sparse_csr\): Interactions.from_scipy takes"),
        (ragged, r"nested tensor: Interactions.from_jagged\(.*, num_items=...\) takes it"),
        (scipy_matrix, r"scipy csr_matrix: Interactions.from_scipy takes users x items"),
        (frame, r"DataFrame: pass its columns, Interactions.from_columns\(frame\['user'\], frame\['item'\]\)"),
    ],
)
def test_a_matrix_where_a_column_is_expected_is_named_with_its_way_in(make, message):
    given = make()
    functions = [
        ("edge_index", lambda: Interactions.from_edge_index(given, 3, 5)),
        ("values", lambda: Interactions.from_edge_index(EDGES, 3, 5, given)),
        ("ids", lambda: Interactions.from_padded(given, 5)),
        ("dense", lambda: Interactions.from_dense(given)),
        ("users", lambda: Interactions.from_columns(given, [0])),
        ("users", lambda: Interactions.from_columns(given, [0], user_ids=[0])),
        ("items", lambda: Interactions.from_columns([0], given)),
        ("values", lambda: Interactions.from_columns([0], [0], given)),
        ("item_ids", lambda: Interactions.from_columns([0], [0], item_ids=given)),
        ("users", lambda: GRAPH.select(given)),
    ]
    for name, function in functions:
        with pytest.raises(TypeError, match=f"^{name} is a {message}"):
            function()


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_the_ways_in_that_messages_name_are_open():
    """Sparse tensors can be passed by their indices and nested tensors as they are, as the error messages say."""
    edges = torch.eye(2).to_sparse_csr().to_sparse_coo().coalesce().indices()
    assert pairs(Interactions.from_edge_index(edges, 2, 2)) == [(0, 0), (1, 1)]
    assert pairs(Interactions.from_jagged(ragged(), num_items=4)) == [(0, 1), (0, 2), (1, 3)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bool])
def test_small_integers_do_not_wrap(dtype):
    """Values of small integer dtypes are summed in int64."""
    edges = torch.tensor([[0, 0, 0], [1, 1, 1]])
    graph = Interactions.from_edge_index(edges, 1, 2, torch.tensor([100, 100, 100]).to(dtype), values_reduce="sum")
    assert graph.values.tolist() == [3 if dtype == torch.bool else 300]


def test_repr_and_device(device):
    graph = Interactions.from_edge_index(EDGES, 3, 5).to(device)
    assert repr(graph) == f"Interactions(3 users x 5 items, 4 edges, density 0.27, {graph.device})"
    assert (graph.device.type, graph.select([0]).items.device.type) == (device.type, device.type)


def test_select_on_the_device(device):
    """Rows are padded to `max_items`, or else to the largest degree; a user with more than `max_items` raises."""
    graph = Interactions.from_edge_index(EDGES, 3, 5).to(device)
    ids = torch.tensor([1, 2], device=device)
    assert graph.select(ids).items.tolist() == [[-1, -1], [1, 3]]
    assert graph.select(ids, max_items=3).items.tolist() == [[-1, -1, -1], [1, 3, -1]]
    with pytest.raises(ValueError, match="a user has 2 items, more than max_items=1"):
        graph.select(ids, max_items=1)
    assert graph.select([]).items.shape == (0, 1)


def test_select_with_max_items_never_waits():
    """With max_items at the largest degree, device ids need no host sync ("meta" has no values to read)."""
    graph = Interactions.from_edge_index(EDGES, 3, 5)
    for name in ("offsets", "items"):
        setattr(graph, name, getattr(graph, name).to("meta"))
    assert graph.select(torch.empty(7, dtype=torch.int64, device="meta"), max_items=2).items.shape == (7, 2)
    assert graph.select([0, 2]).items.shape == (2, 2)  # ids on the host need no sync in any case


def test_text_files_share_one_shape(tmp_path):
    """Files of `user item item ...` lines get one shape; a user without items is a line with the user alone."""
    (tmp_path / "train.txt").write_text("0 1 2\n2 5\n\n1\n")
    (tmp_path / "test.txt").write_text("3 0\n")
    train, test = Interactions.from_text(tmp_path / "train.txt", str(tmp_path / "test.txt"))
    assert pairs(train) == [(0, 1), (0, 2), (2, 5)]
    assert pairs(test) == [(3, 0)]
    assert (train.num_users, train.num_items) == (test.num_users, test.num_items) == (4, 6)
    assert len(Interactions.from_text(tmp_path / "test.txt")) == 1
    (tmp_path / "empty.txt").write_text("0 1\n5\n")
    assert Interactions.from_text(tmp_path / "empty.txt").num_users == 6
    (tmp_path / "bad.txt").write_text("0 1\n0 x\n")
    with pytest.raises(ValueError, match=r"bad.txt, line 2: expected whole numbers .*'0 x'"):
        Interactions.from_text(tmp_path / "bad.txt")


EDGE_FILES = {
    "u.data": "196\t242\t3\t881250949\n186\t302\t3\t891717742\n196\t377\t1\t878887116\n",
    "rated.txt": "0 1 5\n0 2 4\n1 1 3\n",
    "header.tsv": "user item rating\n0 1 5\n",
    "ratings.dat": "1::1193::5::978300760\n1::661::3::978302109\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n",
    "fractions.txt": "0 1 3.5\n0 2 4.0\n",
    "titles.latin1": "1|Am\u00e9lie\n",
}


@pytest.mark.parametrize("name", EDGE_FILES)
def test_files_of_edges_are_refused_with_the_reader_to_use(name, tmp_path):
    """Files with columns of ratings or times raise; a header, a separator or a fraction is a sign of such a file."""
    path = tmp_path / name
    path.write_text(EDGE_FILES[name], encoding="latin-1")
    cure = r"column by column.*Interactions.from_columns\(user, item, rating\).*leave_last_out"
    with pytest.raises(ValueError, match=f"{name}.*{cure}"):
        Interactions.from_text(path)
    (tmp_path / "good.txt").write_text("0 1 2\n")
    with pytest.raises(ValueError, match=f"{name}.*{cure}"):
        Interactions.from_text(tmp_path / "good.txt", path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 1 2\n1 3 4\n", [(0, 1), (0, 2), (1, 3), (1, 4)]),  # two items each, each user once
        ("0 1 2 3\n1 3 4 5\n", [(0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (1, 5)]),
        ("0 1\n0 2\n1 1\n", [(0, 1), (0, 2), (1, 1)]),  # pairs
        ("0 1 2\n0 3\n1 4 5\n", [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]),  # user 0 has a second line
        ("0 1 2 3 4\n0 5 6 7 8\n", [(0, item) for item in range(1, 9)]),
        ("0\n0\n", []),
    ],
)
def test_short_lines_of_items_are_no_edges(text, expected, tmp_path):
    (tmp_path / "train.txt").write_text(text)
    assert pairs(Interactions.from_text(tmp_path / "train.txt")) == expected


DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.nightly
@pytest.mark.skipif(not DATA.exists(), reason="the data sets are not here")
def test_real_files_are_read_or_refused():
    """Sizes equal those of the sources; MovieLens, a file of edges, is refused, and its columns go into a split."""
    beauty = Interactions.from_text(DATA / "beauty" / "Beauty.txt")  # ids from 1
    assert (beauty.num_users, beauty.num_items, len(beauty)) == (22364, 12102, 198502)
    train, test = Interactions.from_text(DATA / "gowalla" / "train.txt", DATA / "gowalla" / "test.txt")
    assert (test.num_users, test.num_items, len(train), len(test)) == (29858, 40981, 810128, 217242)
    with pytest.raises(ValueError, match=r"u.data has 4 columns in every line and user \d+ in several: .* edges"):
        Interactions.from_text(DATA / "ml-100k" / "u.data")
    rows = [line.split("\t") for line in (DATA / "ml-100k" / "u.data").read_text().splitlines()]
    users, items, times = ([int(row[at]) for row in rows] for at in (0, 1, 3))
    frame = {"user": users, "item": items, "time": [row[3] for row in rows]}  # as text
    split = Log.from_frame(frame, time="time").leave_last_out()
    last = {}
    for user, item, time in zip(users, items, times, strict=True):
        if user not in last or time >= last[user][0]:
            last[user] = time, item
    test = zip(split.test.user_ids.ids(split.test.users), split.test.item_ids.ids(split.test.items), strict=True)
    assert sorted(test) == sorted((user, item) for user, (_, item) in last.items())


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="typing.get_overloads is of Python 3.11")
def test_type_checkers_know_what_from_text_returns():
    """`from_text` is annotated to return Interactions for one path and a tuple of Interactions for several paths."""
    signatures = [each.__func__.__annotations__ for each in typing.get_overloads(Interactions.from_text)]
    assert [(len(names) - 1, names["return"]) for names in signatures] == [
        (1, "Interactions"),
        (3, "tuple[Interactions, ...]"),
    ]


def test_ids_far_beyond_their_number_are_warned_of(tmp_path):
    """Ids far beyond their number, such as hashes, warn at the caller's line unless a vocabulary or a size is given."""
    (tmp_path / "train.txt").write_text("0 1 2\n1 2 999\n")
    functions = {
        "items": lambda: Interactions.from_text(tmp_path / "train.txt"),
        "users": lambda: Interactions.from_columns([0, 7, 300], [0, 1, 2]),
        " items": lambda: Interactions.from_columns([0, 1, 2], [0, 7, 300]),
    }
    for name, function in functions.items():
        cure = rf"Interactions.from_columns\(..., {name.strip()[:-1]}_ids=sorted\(set\({name.strip()}\)\)\)"
        with pytest.warns(
            UserWarning, match=f"{name.strip()} hold 3 distinct ids up to .*; a vocabulary .*: {cure}"
        ) as got:
            function()
        assert [warning.filename for warning in got] == [__file__]
    with pytest.warns(UserWarning, match="or num_users=301 where there are so many"):
        Interactions.from_columns([0, 7, 300], [0, 1, 2])
    assert len(Interactions.from_columns([0, 7, 300], [0, 1, 2], num_users=301)) == 3
    assert len(Interactions.from_columns([0, 7, 300], [0, 1, 2], user_ids=[0, 7, 300])) == 3
    assert len(Interactions.from_columns([0, 7, 299], [0, 1, 2])) == 3  # 100 times as many
    (tmp_path / "test.txt").write_text("".join(f"{user}\n" for user in range(500)) + "500 1\n")  # 1 of 501 has an item
    assert Interactions.from_text(tmp_path / "test.txt").num_users == 501


def test_columns_with_vocabularies():
    """Strings and hashes become positions in their vocabulary; unknown ids raise, or are counted and dropped."""
    users, items = ["bo", "al", "bo", "eve"], [10**12, 7, 7, 7]
    vocabulary = {"user_ids": ["al", "bo"], "item_ids": [7, 10**12, 8]}
    with pytest.raises(ValueError, match=r"1 of 4 rows .* first in row 3: user 'eve'; unknown='drop'"):
        Interactions.from_columns(users, items, **vocabulary)
    graph = Interactions.from_columns(users, items, [1.0, 2, 3, 4], unknown="drop", **vocabulary)
    assert pairs(graph) == [(0, 0), (1, 0), (1, 1)]
    assert graph.values.tolist() == [2, 3, 1]
    assert (graph.num_users, graph.num_items, graph.num_dropped) == (2, 3, 1)
    with pytest.raises(ValueError, match="user_ids lists 'al' twice"):
        Interactions.from_columns(users, items, user_ids=["al", "bo", "al"])


def test_vocabularies_beyond_float64_are_exact():
    """Ids beyond 2**53 stay distinct in int64, in uint64 and in lists that numpy would convert to floats."""
    np = pytest.importorskip("numpy")
    big = 2**53
    signed, unsigned = np.array([big, big + 1]), np.array([big + 1, big + 2, 2**63 + 1], dtype=np.uint64)
    graph = Interactions.from_columns(signed, [0, 1], user_ids=unsigned, unknown="drop")
    assert (pairs(graph), graph.num_dropped) == ([(0, 1)], 1)
    graph = Interactions.from_columns(unsigned, [0, 1, 2], user_ids=signed, unknown="drop")
    assert (pairs(graph), graph.num_dropped) == ([(1, 0)], 2)
    hashes = [2**63 + 1, 2**64 - 5, 3, 2**63]
    graph = Interactions.from_columns(hashes, range(4), user_ids=hashes[::-1])
    assert pairs(graph) == [(0, 3), (1, 2), (2, 1), (3, 0)]
    graph = Interactions.from_columns(np.array([-1]), [0], user_ids=np.array([2**64 - 1], "u8"), unknown="drop")
    assert graph.num_dropped == 1


def test_missing_entries_do_not_round_the_others():
    """Nullable columns of pandas stay whole numbers, and NA is a missing id both among numbers and among strings."""
    pd = pytest.importorskip("pandas")
    users = pd.Series([2**53 + 1, None, 2**53], dtype="Int64")
    graph = Interactions.from_columns(users, [0, 1, 2], user_ids=[2**53, 2**53 + 1], unknown="drop")
    assert (pairs(graph), graph.num_dropped) == ([(0, 2), (1, 0)], 1)
    users = pd.Series(["b", pd.NA, "a"], dtype="object")
    graph = Interactions.from_columns(users, [0, 1, 2], user_ids=["a", "b"], unknown="drop")
    assert (pairs(graph), graph.num_dropped) == ([(0, 2), (1, 0)], 1)


def test_masked_entries_are_missing():
    """Masked entries of numpy arrays are missing ids; masked values raise."""
    np = pytest.importorskip("numpy")
    masked = np.ma.array([2, 9, 1], mask=[False, True, False])
    graph = Interactions.from_columns(masked, [0, 1, 2], user_ids=[1, 2, 9], unknown="drop")
    assert (pairs(graph), graph.num_dropped) == ([(0, 2), (1, 0)], 1)
    with pytest.raises(TypeError, match="values must be numbers"):
        Interactions.from_columns([0, 1, 2], [0, 1, 2], masked)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda np, ids, kind=kind: np.array(ids, dtype=kind) for kind in ("u1", "u2", "u4", "u8", ">i8", ">u2", "O")),
        *(
            lambda np, ids, kind=kind: torch.tensor(ids, dtype=kind)
            for kind in (torch.uint8, torch.uint16, torch.uint64)
        ),
        lambda np, ids: np.array(ids[::-1])[::-1],
        lambda np, ids: np.array([ids, ids]).T[:, 0],
        lambda np, ids: [np.uint64(i) for i in ids],
        lambda np, ids: [torch.tensor(i) for i in ids],
        lambda np, ids: tuple(ids),
    ],
)
def test_whole_numbers_are_ids_whatever_holds_them(make):
    """Whole numbers of any dtype, byte order or container work as ids, with or without vocabulary, and values."""
    np = pytest.importorskip("numpy")
    ids = make(np, [2, 0, 1])
    expected = [(0, 0), (1, 1), (2, 2)]
    assert pairs(Interactions.from_columns(ids, ids)) == expected
    assert pairs(Interactions.from_columns(ids, ids, user_ids=ids, item_ids=[2, 0, 1])) == expected
    assert pairs(Interactions.from_columns([2, 0, 1], ids, user_ids=ids)) == [(0, 2), (1, 0), (2, 1)]
    assert Interactions.from_columns([0, 1, 2], [0, 1, 2], ids).values.tolist() == [2, 0, 1]
    if not isinstance(ids, torch.Tensor):
        assert GRAPH.select(ids).items.tolist() == [[1, 3], [0, 4], [-1, -1]]


@pytest.mark.parametrize("missing", [None, math.nan])
def test_missing_ids_are_unknown(missing):
    """None and NaN are in no vocabulary, so they raise or are dropped."""
    graph = Interactions.from_columns(["a", missing, "b"], [0, 1, 2], user_ids=["a", "b"], unknown="drop")
    assert (pairs(graph), graph.num_dropped) == ([(0, 0), (1, 2)], 1)
    with pytest.raises(ValueError, match=f"first in row 1: user {missing}"):
        Interactions.from_columns(["a", missing, "b"], [0, 1, 2], user_ids=["a", "b"])


def test_a_million_edges():
    """Interactions are built in O(E) without a dense matrix (10^5 x 10^6 cells would be 100 GB)."""
    generator = torch.Generator().manual_seed(0)
    n = 1_000_000
    edges = torch.stack(
        [torch.randint(0, 10**5, (n,), generator=generator), torch.randint(0, 10**6, (n,), generator=generator)]
    )
    graph = Interactions.from_edge_index(edges, 10**5, 10**6)
    assert n - 100 < len(graph) <= n


@pytest.mark.parametrize("value", ["9", True, math.nan, 9.0, 1j, torch.tensor(True), [9]])
def test_sizes_are_whole_numbers(value):
    """A size that is not a whole number is refused by every function, with its name, type and value."""
    functions = [
        ("num_users", lambda: Interactions.from_edge_index(EDGES, value, 5)),
        ("num_items", lambda: Interactions.from_edge_index(EDGES, 3, value)),
        ("item_offset", lambda: Interactions.from_edge_index(EDGES, 3, 5, item_offset=value)),
        ("num_users", lambda: Interactions.from_columns([0], [0], num_users=value)),
        ("num_items", lambda: Interactions.from_padded(torch.tensor([[0]]), value)),
        ("item_offset", lambda: GRAPH.to_edge_index(value)),
        ("max_items", lambda: GRAPH.select([0], max_items=value)),
    ]
    given = re.escape(f"{type(value).__name__}: {value!r}")
    for name, function in functions:
        with pytest.raises(TypeError, match=f"^{name} must be a whole number >= 0, an int, got {given}$"):
            function()


def test_sizes_of_numpy_and_torch_are_whole_numbers():
    np = pytest.importorskip("numpy")
    graph = Interactions.from_edge_index(EDGES, np.int32(3), torch.tensor(5), item_offset=np.uint8(0))
    assert (type(graph.num_users), graph.num_users, type(graph.num_items), graph.num_items) == (int, 3, int, 5)


@pytest.mark.parametrize("column", [[1j], torch.tensor([1j]), [1j, 2], torch.tensor([1j]).numpy()])
def test_complex_numbers_are_refused_by_every_function(column):
    """Complex numbers are refused by every function, also if the vocabulary is complex too."""
    functions = [
        lambda: Interactions.from_columns(column, [0] * len(column)),
        lambda: Interactions.from_columns(column, [0] * len(column), user_ids=column),
        lambda: Interactions.from_columns([0], [0], item_ids=column),
        lambda: Interactions.from_columns([0] * len(column), [0] * len(column), column),
        lambda: GRAPH.select(column),
    ]
    for function in functions:
        with pytest.raises((TypeError, ValueError), match=r"complex|1j|Tensor"):
            function()


GRAPH = Interactions.from_edge_index(EDGES, 3, 5)
BAD = [
    (
        lambda: Interactions.from_edge_index(EDGES.tolist(), 3, 5),
        TypeError,
        r"signed integers, got list: pass torch.as_tensor\(edge_index\)",
    ),
    (
        lambda: Interactions.from_edge_index(EDGES.byte(), 3, 5),
        TypeError,
        r"a torch.uint8 tensor: pass edge_index.long\(",
    ),
    (lambda: GRAPH.select([0.0]), TypeError, r"users must be whole numbers \[E\]; got 0.0 in row 0"),
    (lambda: Interactions.from_edge_index(EDGES.float(), 3, 5), TypeError, "signed integers, got a torch.float32"),
    (lambda: Interactions.from_edge_index(EDGES.T, 3, 5), ValueError, r"edge_index must be \[2, E\].*got \[4, 2\]"),
    (
        lambda: Interactions.from_edge_index(EDGES, 2, 5),
        ValueError,
        r"users \(edge_index\[0\]\) hold ids 0..2, expected 0..1",
    ),
    (
        lambda: Interactions.from_edge_index(EDGES, 3, 4),
        ValueError,
        r"items \(edge_index\[1\]\) hold ids 0..4, expected 0..3",
    ),
    (
        lambda: Interactions.from_edge_index(EDGES, 3, 5, item_offset=3),
        ValueError,
        "expected 3..7: .*numbered from 0; pass item_offset=0",
    ),
    (
        lambda: Interactions.from_edge_index(EDGES + torch.tensor([[0], [3]]), 3, 5),
        ValueError,
        "behind the users; pass item_offset=3",
    ),
    (lambda: Interactions.from_edge_index(EDGES, -1, 5), ValueError, "num_users must be a whole number >= 0"),
    (
        lambda: Interactions.from_edge_index(EDGES, 3, 5, item_offset=-1),
        ValueError,
        "item_offset must be a whole number >= 0, got -1",
    ),
    (lambda: GRAPH.to_edge_index(-1), ValueError, "item_offset must be a whole number >= 0, got -1"),
    (lambda: GRAPH.select([0], max_items=-1), ValueError, "max_items must be a whole number >= 0, got -1"),
    (
        lambda: Interactions.from_edge_index(EDGES[:, :1], 3, 5, torch.tensor([2**63], dtype=torch.uint64)),
        ValueError,
        r"values must be below 2\^63",
    ),
    (lambda: Interactions.from_edge_index(EDGES, 3, 5, torch.ones(2)), ValueError, r"values must be \[4\]"),
    (
        lambda: Interactions.from_edge_index(EDGES.repeat(1, 2), 3, 5, duplicates="error"),
        ValueError,
        "4 pairs of user and item occur more than once, such as user 0, item 0",
    ),
    (
        lambda: Interactions.from_edge_index(EDGES, 3, 5, values_reduce="mean"),
        ValueError,
        "values_reduce must be one of",
    ),
    (
        lambda: Interactions.from_columns([0.5], [1]),
        TypeError,
        r"users must be whole numbers \[E\], or come with a vocabulary",
    ),
    (lambda: Interactions.from_columns([0, 1], [1]), ValueError, "equally long, got 2 and 1"),
    (
        lambda: Interactions.from_columns(["a"], [1], user_ids={"a"}),
        TypeError,
        "user_ids must be a list or an array, got set",
    ),
    (
        lambda: Interactions.from_columns(["5"], [1], user_ids=[5]),
        TypeError,
        r"users hold text \('5'\), user_ids hold whole numbers \(5\): they cannot be compared; convert one",
    ),
    (
        lambda: Interactions.from_columns([0], [5], item_ids=["5"]),
        TypeError,
        r"items hold whole numbers \(5\), item_ids hold text \('5'\): they cannot be compared; convert one",
    ),
    (
        lambda: Interactions.from_columns([0, 0], [5, "6"], item_ids=["5", "6"]),
        TypeError,
        "items hold int and str: make them all one kind",
    ),
    (
        lambda: Interactions.from_columns([0], [5], item_ids=[5, "6"]),
        TypeError,
        "item_ids hold int and str",
    ),
    (
        lambda: Interactions.from_columns([2**63], [0]),
        ValueError,
        r"users must be below 2\^63, .*; got 9223372036854775808",
    ),
    (
        lambda: Interactions.from_columns([0, None], [0, 0]),
        TypeError,
        r"users must be whole numbers \[E\], or come with a vocabulary .*; got None in row 1",
    ),
    (
        lambda: Interactions.from_columns({0: 1}.keys(), [0]),
        ValueError,
        r"users must be one column \[E\], a list or an array, got dict_keys: pass list\(users\)",
    ),
    (lambda: Interactions.from_columns([0], [0], ["5"]), TypeError, r"values must be numbers \[E\], got list"),
    (lambda: Interactions.from_columns([0], [0], [None]), TypeError, r"values must be numbers \[E\], got list"),
    (lambda: Interactions.from_columns([1, 2], [1, 2], num_users=2), ValueError, "ids seem to start at 1; subtract 1"),
    (lambda: Interactions.from_edge_index(torch.ones(5, 2).long(), 3, 5), ValueError, "pass edges.T"),
    (lambda: Interactions.from_dense([[0, 1]]), TypeError, "dense must be a bool tensor"),
    (lambda: Interactions.from_columns([-1, 1], [0, 1]), ValueError, "users hold ids -1..1"),
    (lambda: Interactions.from_edge_index(EDGES, 3, 2**62), ValueError, "more cells than int64 can number"),
    (lambda: Interactions.from_edge_index(EDGES, 3, 5, torch.ones(4) * 1j), TypeError, "values must be real numbers"),
    (lambda: Interactions.from_columns([2.0**53], [0], user_ids=[2**53 + 1, 7]), ValueError, r"from 2\^53 on"),
    (lambda: Interactions.from_columns([b"a"], [0], user_ids=["a"]), TypeError, "they cannot be compared"),
    (lambda: Interactions.from_text(), ValueError, "at least one path"),
    (lambda: Interactions.from_dense(torch.ones(2, 2)), TypeError, "bool"),
    (lambda: Interactions.from_scipy(torch.eye(3)), TypeError, r"matrix must be .*, got Tensor; .* from_dense\("),
    (
        lambda: Interactions.from_scipy(torch.eye(3).numpy()),
        TypeError,
        r"matrix must be a scipy sparse matrix or a sparse tensor, got ndarray; .* from_scipy\(scipy.sparse.csr_array",
    ),
    (
        lambda: Interactions.from_scipy(torch.ones(2, 2, 2).to_sparse()),
        ValueError,
        r"matrix must be \[users, items\], got \[2, 2, 2\]",
    ),
    (lambda: GRAPH.select([3]), ValueError, "users hold ids 3..3, expected 0..2$"),
    (lambda: GRAPH.select([0, 3]), ValueError, "users hold ids 0..3, expected 0..2$"),
    (lambda: GRAPH.select([2, 1, 3]), ValueError, "users hold ids 1..3, expected 0..2: ids seem to start at 1"),
    (lambda: GRAPH.select([[1]]), ValueError, r"users must be one column \[E\], .* \[1, 1\]"),
    (lambda: GRAPH.union(Interactions.from_edge_index(EDGES, 3, 6)), ValueError, "shapes and devices must be equal"),
    (lambda: GRAPH.without(EDGES), TypeError, "expected Interactions, got Tensor"),
    (
        lambda: GRAPH.without(Log.from_frame({"user": [1], "item": [1]})),
        TypeError,
        r"expected Interactions, got Log: pass other.to_interactions\(\)",
    ),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "fields",
    [
        {"offsets": torch.tensor([0, 2, 4])},  # more items than there are
        {"offsets": torch.tensor([0, 2, 1, 3])},
        {"offsets": torch.tensor([1, 2, 3])},
        {"offsets": torch.tensor([0, 2])},
        {"offsets": torch.tensor([], dtype=torch.int64)},
        {"items": torch.tensor([1, 4, 5])},  # beyond the last
        {"items": torch.tensor([-1, 4, 2])},
        {"items": torch.tensor([4, 1, 2])},  # not ascending
        {"items": torch.tensor([1, 1, 2])},
        {"values": torch.ones(2)},
    ],
)
def test_damaged_files_are_refused(fields, tmp_path):
    """Fields that contradict each other, which would give wrong values, raise when the file is read."""
    path = tmp_path / "graph"
    Interactions.from_edge_index(torch.tensor([[0, 1, 0], [4, 2, 1]]), 2, 5).save(path)
    kept = torch.load(path, weights_only=True)
    assert Interactions.load(path).items.tolist() == [1, 4, 2]
    torch.save(kept | fields, path)
    with pytest.raises(ValueError, match="holds damaged Interactions: offsets"):
        Interactions.load(path)


@pytest.mark.parametrize("field", ["version", "offsets", "num_items"])
def test_missing_fields_are_refused(field, tmp_path):
    """A file without one of the fields raises an error that names file and field."""
    path = tmp_path / "graph"
    Interactions.from_edge_index(torch.tensor([[0], [4]]), 1, 5).save(path)
    kept = torch.load(path, weights_only=True)
    del kept[field]
    torch.save(kept, path)
    with pytest.raises(ValueError, match=f"graph holds a damaged Interactions: it has no {field}"):
        Interactions.load(path)


@pytest.mark.parametrize(
    ("items", "options", "asked"),
    [
        (range(20, 40), {}, True),
        (range(20, 39), {}, False),
        (range(19, 40), {}, False),
        (range(20, 40), {"item_offset": 0}, False),
    ],
)
def test_items_behind_the_users(items, options, asked):
    """Twenty of 40 items, none below the number of 20 users, are asked about unless item_offset= is given."""
    items = torch.tensor(items)
    edges = torch.stack([items % 20, items])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built = Interactions.from_edge_index(edges, 20, 40, **options)
    assert built.num_items == 40
    assert ["item_offset=20, else item_offset=0" in str(warning.message) for warning in caught] == [True] * asked
