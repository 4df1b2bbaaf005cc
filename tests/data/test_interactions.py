"""Interactions against Python sets: input, output, splits, set operations and errors."""

import math
import re
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples
from torch import tensor

from torchrecmetrics import Interactions, Log

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
sparse = pytest.importorskip("scipy.sparse")

of_edges, of_columns = Interactions.from_edge_index, Interactions.from_columns
EDGES = tensor([[2, 0, 2, 0], [1, 4, 3, 0]])
GRAPH = of_edges(EDGES, 3, 5)


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
    return of_edges(index, users, items, **options)


@settings(max_examples=examples(100), deadline=None)
@given(graph=graphs(), offset=st.integers(0, 9))
def test_is_a_set_of_pairs(graph, offset):
    """Edges in any order with repeats become sorted distinct pairs, which users select in any order."""
    edges, users, items = graph
    graph, expected = build([(u, i + offset) for u, i in edges], users, items, item_offset=offset), sorted(set(edges))
    rows = [[i for u, i in expected if u == user] for user in range(users)]
    chosen = [*range(users - 1, -1, -1), 0]

    assert pairs(graph) == expected
    assert graph.degree.tolist() == [len(row) for row in rows]
    assert graph.max_degree == max(map(len, rows))
    assert graph.popularity.tolist() == [sum(item == i for _, i in expected) for item in range(items)]
    assert [[i for i in row if i >= 0] for row in graph.select(chosen).items.tolist()] == [rows[u] for u in chosen]


@settings(max_examples=examples(100), deadline=None)
@given(graph=graphs())
def test_every_form_leads_back(graph):
    edges, users, items = graph
    graph = build(edges, users, items, item_offset=0)
    back = (
        of_edges(graph.to_edge_index(3), users, items, item_offset=3),
        Interactions.from_padded(graph.select(torch.arange(users)).items, items),
        of_columns([u for u, _ in edges], [i for _, i in edges], num_users=users, num_items=items),
        Interactions.from_scipy(graph.to_scipy()),
    )

    for again in back:
        assert (pairs(again), again.num_users, again.num_items) == (sorted(set(edges)), users, items)


@settings(max_examples=examples(100), deadline=None)
@given(graph=graphs(), other=graphs())
def test_unions_and_differences_are_those_of_sets(graph, other):
    edges, users, items = graph
    more = [(u % users, i % items) for u, i in other[0]]
    first, second = build(edges, users, items, item_offset=0), build(more, users, items, item_offset=0)

    assert pairs(first.union(second)) == sorted({*edges, *more})
    assert pairs(first.without(second)) == sorted({*edges} - {*more})


def test_undirected_edges_are_there_and_back():
    forth, back = GRAPH.to_edge_index(3, undirected=True).chunk(2, dim=1)

    assert torch.equal(back, forth.flip(0))


@pytest.mark.parametrize(("reduce", "expected"), [("sum", [5.0, 2.0]), ("max", [4.0, 2.0]), ("last", [1.0, 2.0])])
def test_values_of_repeated_edges(reduce, expected):
    """Values of repeated edges become their sum, maximum or last value; `select` pads values with 0."""
    graph = of_edges(tensor([[0, 1, 0], [3, 0, 3]]), 2, 4, tensor([4.0, 2.0, 1.0]), values_reduce=reduce)
    assert graph.values.tolist() == expected
    assert graph.select([1, 0]).values.tolist() == [[2.0], [expected[0]]]
    wider = graph.union(of_edges(tensor([[1], [2]]), 2, 4, tensor([7.0])))
    assert wider.select([1, 0]).values.tolist() == [[2.0, 7.0], [expected[0], 0.0]]
    assert graph.without(graph).values.tolist() == []
    assert graph.union(graph).values.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_edges_of_any_signed_dtype(dtype):
    assert pairs(of_edges(EDGES.to(dtype), 3, 5)) == [(0, 0), (0, 4), (2, 1), (2, 3)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bool])
def test_small_integers_do_not_wrap(dtype):
    """Values of small integer dtypes are summed in int64."""
    graph = of_edges(tensor([[0, 0, 0], [1, 1, 1]]), 1, 2, tensor([100] * 3).to(dtype), values_reduce="sum")
    assert graph.values.tolist() == [3 if dtype == torch.bool else 300]


def test_scipy_matrices():
    """Matrices are copies, of the class that is asked for, and become interactions on the CPU."""
    graph = of_edges(EDGES, 3, 5, torch.arange(4.0, requires_grad=True))
    array, matrix = graph.to_scipy(), graph.to_scipy(matrix=True)
    assert (type(array), type(matrix)) == (sparse.csr_array, sparse.csr_matrix)
    assert matrix.toarray().tolist() == [[3, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 2, 0]]
    array.data[:] = array.indices[:] = array.indptr[:] = 0
    assert (pairs(graph), graph.values.tolist()) == ([(0, 0), (0, 4), (2, 1), (2, 3)], [3, 1, 0, 2])
    with torch.device("meta"):
        back = Interactions.from_scipy(matrix)
    assert (pairs(back), back.values.tolist()) == (pairs(graph), [3, 1, 0, 2])


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch: the layout is in beta, invariants are not checked
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_tensors_are_read_as_scipy_matrices_are(layout):
    graph = Interactions.from_scipy(tensor([[0.0, 2.0, 3.0], [4.0, 0.0, 0.0]]).to_sparse(layout=layout))
    assert (pairs(graph), graph.values.tolist()) == ([(0, 1), (0, 2), (1, 0)], [2, 3, 4])
    assert (graph.num_users, graph.num_items) == (2, 3)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_negative_values_of_sparse_matrices_are_not_relevant(dtype):
    """Values below 0 become 0, as those of a frame do; values of `from_edge_index` stay penalties."""
    dense = np.array([[-1, 1, 0], [2, 0, -3]], dtype=dtype)
    for make in (sparse.coo_matrix, sparse.csr_array, lambda rows: tensor(rows).to_sparse()):
        assert Interactions.from_scipy(make(dense)).values.tolist() == [0, 1, 2, 0]

    assert of_edges(tensor([[0, 0], [0, 1]]), 1, 3, tensor([-1.0, 1.0])).values.tolist() == [-1, 1]


def ragged():
    return torch.nested.nested_tensor([tensor([1, 2]), tensor([3])], layout=torch.jagged)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.eye(2).to_sparse(), r"sparse tensor \(torch.sparse_coo\): Interactions.from_scipy takes"),
        (lambda: torch.eye(2).to_sparse_csr(), r"sparse tensor \(torch.sparse_csr\): Interactions.from_scipy takes"),
        (ragged, r"nested tensor: Interactions.from_jagged\(.*, num_items=...\) takes it"),
        (lambda: sparse.csr_matrix([[0, 1]]), r"scipy csr_matrix: Interactions.from_scipy takes users x items"),
        (lambda: pd.DataFrame({"user": [0], "item": [1]}), r"DataFrame: .*from_columns\(frame\['user'\], frame\['i"),
    ],
)
def test_a_matrix_where_a_column_is_expected_is_named_with_its_way_in(make, message):
    matrix = make()
    for name, function in [
        ("edge_index", lambda: of_edges(matrix, 3, 5)),
        ("values", lambda: of_edges(EDGES, 3, 5, matrix)),
        ("ids", lambda: Interactions.from_padded(matrix, 5)),
        ("dense", lambda: Interactions.from_dense(matrix)),
        ("users", lambda: of_columns(matrix, [0])),
        ("users", lambda: of_columns(matrix, [0], user_ids=[0])),
        ("items", lambda: of_columns([0], matrix)),
        ("values", lambda: of_columns([0], [0], matrix)),
        ("item_ids", lambda: of_columns([0], [0], item_ids=matrix)),
        ("users", lambda: GRAPH.select(matrix)),
    ]:
        with pytest.raises(TypeError, match=f"^{name} is a {message}"):
            function()


RATINGS = [[0, 2.5, 0], [0, 0, 0], [4, 0, 1]]


@pytest.mark.parametrize("make", [tensor, np.array, lambda rows: tensor(rows).bfloat16(), np.asfortranarray])
def test_dense_matrices_have_values(make):
    """Floats above 0 are edges with their value, of torch and numpy; bools are edges without values."""
    graph = Interactions.from_dense(make(RATINGS))
    assert (pairs(graph), graph.values.tolist()) == ([(0, 1), (2, 0), (2, 2)], [2.5, 4, 1])
    assert (graph.num_users, graph.num_items) == (3, 3)
    plain = Interactions.from_dense(make(RATINGS) > 0)
    assert (pairs(plain), plain.values) == (pairs(graph), None)
    assert torch.equal(Interactions.from_dense(np.nan_to_num(np.array([[np.nan, 1]]))).items, tensor([1]))


def test_the_way_in_of_nested_tensors_is_open():
    assert pairs(Interactions.from_jagged(ragged(), num_items=4)) == [(0, 1), (0, 2), (1, 3)]


def test_select_on_the_device(device):
    """Rows are padded to `max_items`, or else to the largest degree; a user with more than `max_items` raises."""
    graph = GRAPH.to(device)
    assert repr(graph) == f"Interactions(3 users x 5 items, 4 edges, density 0.27, {graph.device})"
    ids = tensor([1, 2], device=device)
    assert graph.select(ids).items.device.type == device.type
    assert graph.select(ids).items.tolist() == [[-1, -1], [1, 3]]
    assert graph.select(ids, max_items=3).items.tolist() == [[-1, -1, -1], [1, 3, -1]]
    with pytest.raises(ValueError, match="a user has 2 items, more than max_items=1"):
        graph.select(ids, max_items=1)
    assert graph.select([]).items.shape == (0, 1)


def test_select_with_max_items_never_waits():
    """With max_items at the largest degree, device ids need no host sync ("meta" has no values to read)."""
    graph = of_edges(EDGES, 3, 5)
    graph.offsets, graph.items = graph.offsets.to("meta"), graph.items.to("meta")
    assert graph.select(torch.empty(7, dtype=torch.int64, device="meta"), max_items=2).items.shape == (7, 2)
    assert graph.select([0, 2]).items.shape == (2, 2)  # ids on the host need no sync in any case


def test_text_files_share_one_shape(tmp_path):
    """Files of `user item item ...` lines get one shape; a user without items is a line with the user alone."""
    files = {"train": "0 1 2\n2 5\n\n1\n", "test": "3 0\n", "empty": "0 1\n5\n", "bad": "0 1\n0 x\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    train, test = Interactions.from_text(tmp_path / "train", str(tmp_path / "test"))
    assert (pairs(train), pairs(test)) == ([(0, 1), (0, 2), (2, 5)], [(3, 0)])
    assert (train.num_users, train.num_items) == (test.num_users, test.num_items) == (4, 6)
    assert Interactions.from_text(tmp_path / "empty").num_users == 6
    with pytest.raises(ValueError, match=r"bad, line 2: expected whole numbers .*'0 x'"):
        Interactions.from_text(tmp_path / "bad")


FILES_OF_EDGES = {
    "rated.txt": "0 1 5\n0 2 4\n1 1 3\n",
    "header.tsv": "user item rating\n0 1 5\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n",
    "titles.latin1": "1|Am\u00e9lie\n",
}


@pytest.mark.parametrize("name", FILES_OF_EDGES)
def test_files_of_edges_are_refused(name, tmp_path):
    """Lines of one length with a user in several, a header, a separator or a fraction are signs of such a file."""
    (tmp_path / "good.txt").write_text("0 1 2\n")
    (tmp_path / name).write_text(FILES_OF_EDGES[name], encoding="latin-1")
    edges = r" has \d columns in every line and a user in several: these seem to be edges,.* Interactions.from_columns"
    with pytest.raises(ValueError, match=f"{name}({edges}|, line 1: expected whole numbers 'user item item ...', got)"):
        Interactions.from_text(tmp_path / "good.txt", tmp_path / name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 1 2\n1 3 4\n", [(0, 1), (0, 2), (1, 3), (1, 4)]),  # two items each, each user once
        ("0 1\n0 2\n1 1\n", [(0, 1), (0, 2), (1, 1)]),  # pairs
        ("0 1 2 3 4\n0 5 6 7 8\n", [(0, item) for item in range(1, 9)]),
        ("0\n0\n", []),
    ],
)
def test_short_lines_of_items_are_no_edges(text, expected, tmp_path):
    (tmp_path / "train.txt").write_text(text)
    assert pairs(Interactions.from_text(tmp_path / "train.txt")) == expected


def test_ids_far_beyond_their_number_are_warned_of(tmp_path):
    """Ids far beyond their number, such as hashes, warn at the caller's line unless a vocabulary or a size is given."""
    (tmp_path / "train.txt").write_text("0 1 2\n1 2 999\n")
    hashes = [0, 7, 300]
    for name, more, function in [
        ("item", "", lambda: Interactions.from_text(tmp_path / "train.txt")),
        ("user", ", or num_users=301 where there are so many", lambda: of_columns(hashes, [0, 1, 2])),
        ("item", ", or num_items=301 where there are so many", lambda: of_columns([0, 1, 2], hashes)),
    ]:
        cure = rf"Interactions.from_columns\(..., {name}_ids=sorted\(set\({name}s\)\)\){more}"
        with pytest.warns(UserWarning, match=f"{name}s hold 3 distinct ids up to .*; a vocabulary .*: {cure}") as got:
            function()
        assert [warning.filename for warning in got] == [__file__]
    assert len(of_columns(hashes, [0, 1, 2], num_users=301)) == 3
    assert len(of_columns(hashes, [0, 1, 2], user_ids=hashes)) == 3
    assert len(of_columns([0, 7, 299], [0, 1, 2])) == 3  # 100 times as many
    (tmp_path / "test.txt").write_text("".join(f"{user}\n" for user in range(500)) + "500 1\n")  # 1 of 501 has an item
    assert Interactions.from_text(tmp_path / "test.txt").num_users == 501


def test_columns_with_vocabularies():
    """Strings and hashes become positions in their vocabulary; unknown ids raise, or are counted and dropped."""
    users, items = ["bo", "al", "bo", "eve"], [10**12, 7, 7, 7]
    vocabulary = {"user_ids": ["al", "bo"], "item_ids": [7, 10**12, 8]}
    with pytest.raises(ValueError, match=r"1 of 4 rows .* first in row 3: user 'eve'; unknown='drop'"):
        of_columns(users, items, **vocabulary)
    graph = of_columns(users, items, [1.0, 2, 3, 4], unknown="drop", **vocabulary)
    assert (pairs(graph), graph.values.tolist()) == ([(0, 0), (1, 0), (1, 1)], [2, 3, 1])
    assert (graph.num_users, graph.num_items, graph.num_dropped) == (2, 3, 1)


def test_missing_entries_are_unknown():
    """None, NaN, NA and masked entries are in no vocabulary, and do not round the numbers beside them."""
    for users, user_ids in (
        (pd.Series([2**53 + 1, None, 2**53], dtype="Int64"), [2**53, 2**53 + 1]),
        (pd.Series(["b", pd.NA, "a"], dtype="object"), ["a", "b"]),
        (np.ma.array([2, 9, 1], mask=[False, True, False]), [1, 2, 9]),
        (["b", None, "a"], ["a", "b"]),
        (["b", math.nan, "a"], ["a", "b"]),
    ):
        graph = of_columns(users, [0, 1, 2], user_ids=user_ids, unknown="drop")
        assert (pairs(graph), graph.num_dropped) == ([(0, 2), (1, 0)], 1)
        with pytest.raises(ValueError, match="first in row 1: user"):
            of_columns(users, [0, 1, 2], user_ids=user_ids)


@pytest.mark.parametrize("kind", [list, set, np.array, pd.Series])
def test_a_dict_of_queries(kind):
    """A dict {query: documents} gets the row numbers of vocabularies; a query without documents has a row, too."""
    relevant = {"q2": kind(["d9", "d1"]), "q0": kind(["d1"]), "q1": kind([])}
    graph = Interactions.from_dict(relevant, user_ids=["q1", "q2", "q3", "q0"], item_ids=["d9", "d5", "d1"])
    assert (pairs(graph), graph.num_users, graph.num_items) == ([(1, 0), (1, 2), (3, 2)], 4, 3)
    assert graph.user_ids[1] == "q2"
    grades = {"q2": {"d9": 1, "d1": 3}, "q0": {"d1": -2}, "q1": {}}
    graded = Interactions.from_dict(grades, user_ids=graph.user_ids, item_ids=graph.item_ids)
    assert (pairs(graded), graded.values.tolist()) == (pairs(graph), [1, 3, 0])
    alone = Interactions.from_dict(relevant)
    assert ([*alone.user_ids], [*alone.item_ids], pairs(alone)) == (
        ["q0", "q1", "q2"],
        ["d1", "d9"],
        [(0, 0), (2, 0), (2, 1)],
    )
    assert len(Interactions.from_dict({})) == 0


@pytest.mark.parametrize(
    "ids",
    [
        *(np.array([2, 0, 1], dtype=kind) for kind in ("u1", "u8", ">i8", "O")),
        tensor([2, 0, 1], dtype=torch.uint16),
        np.array([1, 0, 2])[::-1],
        [np.uint64(2), np.uint64(0), np.uint64(1)],
        [tensor(2), tensor(0), tensor(1)],
        (2, 0, 1),
    ],
    ids=str,
)
def test_whole_numbers_are_ids_whatever_holds_them(ids):
    """Whole numbers of any dtype, byte order or container work as ids, with or without vocabulary, and values."""
    assert pairs(of_columns(ids, ids)) == [(0, 0), (1, 1), (2, 2)]
    assert pairs(of_columns([2, 0, 1], ids, user_ids=ids)) == [(0, 2), (1, 0), (2, 1)]
    assert of_columns([0, 1, 2], [0, 1, 2], ids).values.tolist() == [2, 0, 1]


MATRIX = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 1, 0, 0]])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_a_matrix_of_0_and_1_is_no_edges_and_no_ids(dtype):
    """More than four edges of 0 and 1 alone repeat, and so do rows of such ids as wide as there are items: refused."""
    matrix, dense = MATRIX.to(dtype), Interactions.from_dense(MATRIX.bool())
    with pytest.raises(
        ValueError, match=r"^edge_index \[2, 5\] .* from_dense\(matrix.bool\(\)\); .*edge_index.unique\(dim=1\)"
    ):
        of_edges(matrix, 2, 5)
    with pytest.raises(ValueError, match=r"^ids \[2, 5\] holds 0 and 1 alone: .* from_dense\(matrix.bool\(\)\)"):
        Interactions.from_padded(matrix, 5)
    assert pairs(dense) == [(0, 0), (0, 2), (1, 1), (1, 2)]
    assert pairs(of_edges(matrix.unique(dim=1), 2, 5)) == sorted({*zip(*matrix.tolist(), strict=True)})


def test_edges_and_ids_of_0_and_1_that_are_certain():
    """Four edges, edges with values or an offset, and sequences that repeat an item are what they say they are."""
    assert pairs(of_edges(MATRIX[:, :4], 2, 5)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(of_edges(MATRIX, 2, 5, torch.ones(5), values_reduce="sum")) == 4
    assert len(of_edges(MATRIX, 2, 5, item_offset=0)) == 4
    for ids, items in ((MATRIX, 4), (MATRIX, 6), (MATRIX[:, :2], 2), (MATRIX.where(MATRIX > 0, -1), 5)):
        expected = {(user, item) for user, row in enumerate(ids.tolist()) for item in row if item >= 0}
        assert pairs(Interactions.from_padded(ids, items)) == sorted(expected)
    assert len(Interactions.from_padded(torch.tensor([[0, 1, 0], [1, 0, 1]]), 2)) == 4
    assert len(Interactions.from_jagged(MATRIX.reshape(-1), torch.tensor([0, 5, 10]), 5)) == 4


def test_many_cells_need_no_matrix():
    """Interactions are built in O(E) without a dense matrix (10^5 x 10^6 cells would be 100 GB)."""
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randint(0, size, (100_000,), generator=generator) for size in (10**5, 10**6))
    assert len(of_edges(torch.stack([users, items]), 10**5, 10**6)) == len((users * 10**6 + items).unique())


def test_sizes_of_numpy_and_torch_are_whole_numbers():
    graph = of_edges(EDGES, np.int32(3), tensor(5), item_offset=np.uint8(0))
    assert (type(graph.num_users), graph.num_users, type(graph.num_items), graph.num_items) == (int, 3, int, 5)


@pytest.mark.parametrize("value", ["9", True, 9.0, tensor(True)])
def test_sizes_are_whole_numbers(value):
    """A size that is not a whole number is refused by every function, with its name, type and value."""
    message = re.escape(f"must be a whole number >= 0, an int, got {type(value).__name__}: {value!r}")
    for name, function in [
        ("num_users", lambda: of_edges(EDGES, value, 5)),
        ("item_offset", lambda: of_edges(EDGES, 3, 5, item_offset=value)),
        ("num_users", lambda: of_columns([0], [0], num_users=value)),
        ("num_items", lambda: Interactions.from_padded(tensor([[0]]), value)),
        ("max_items", lambda: GRAPH.select([0], max_items=value)),
    ]:
        with pytest.raises(TypeError, match=f"^{name} {message}$"):
            function()


COMPLEX, REPEATED = "complex|1j|Tensor", tensor([[0, 0], [1, 1]])
HUGE, LOG = tensor([2**63], dtype=torch.uint64), Log.from_frame({"user": [1], "item": [1]})
BAD = [
    (lambda: of_edges(EDGES.tolist(), 3, 5), TypeError, r"got list: pass torch.as_tensor\(edge_index\)"),
    (lambda: of_edges(EDGES.byte(), 3, 5), TypeError, r"a torch.uint8 tensor: pass edge_index.long\("),
    (lambda: of_edges(EDGES.T, 3, 5), ValueError, r"edge_index must be \[2, E\].*got \[4, 2\]"),
    (lambda: of_edges(torch.ones(5, 2).long(), 3, 5), ValueError, "pass edges.T"),
    (lambda: of_edges(EDGES, 2, 5), ValueError, r"users \(edge_index\[0\]\) hold ids 0..2, expected 0..1"),
    (lambda: of_edges(EDGES, 3, 4), ValueError, r"items \(edge_index\[1\]\) hold ids 0..4, expected 0..3"),
    (lambda: of_edges(EDGES, 3, 5, item_offset=3), ValueError, "expected 3..7: .*from 0; pass item_offset=0"),
    (lambda: of_edges(EDGES + tensor([[0], [3]]), 3, 5), ValueError, "after the users; pass item_offset=3"),
    (lambda: GRAPH.to_edge_index(-1), ValueError, "item_offset must be a whole number >= 0, got -1"),
    (lambda: of_edges(EDGES, 3, 2**62), ValueError, "more cells than int64 can number"),
    (lambda: of_edges(EDGES[:, :1], 3, 5, HUGE), ValueError, r"values must be below 2\^63"),
    (lambda: of_edges(EDGES, 3, 5, torch.ones(2)), ValueError, r"values must be \[4\]"),
    (lambda: of_edges(EDGES, 3, 5, torch.ones(4) * 1j), TypeError, "values must be real numbers"),
    (lambda: of_edges(EDGES.repeat(1, 2), 3, 5, duplicates="error"), ValueError, "4 pairs .*such as user 0, item 0"),
    (lambda: of_edges(REPEATED, 1, 2, tensor([1, 5])), ValueError, r"user 0, item 1 with \[1, 5\]: values_reduce="),
    (lambda: of_edges(EDGES, 3, 5, values_reduce="mean"), ValueError, "values_reduce must be one of"),
    (lambda: of_columns([0.5], [1]), TypeError, r"users must be whole numbers \[E\], or come with a vocabulary"),
    (lambda: of_columns([0, None], [0, 0]), TypeError, r"users must be whole numbers \[E\], .*; got None in row 1"),
    (lambda: of_columns([0, 1], [1]), ValueError, "equally long, got 2 and 1"),
    (lambda: of_columns(["a"], [1], user_ids={"a"}), TypeError, "user_ids must be a list or an array, got set"),
    (lambda: of_columns(["a"], [9], user_ids=["a"], item_ids=[7]), ValueError, "the first in row 0: item 9"),
    (lambda: of_columns(["a"], [1], user_ids=["a", "a"]), ValueError, "user_ids lists 'a' twice"),
    (lambda: of_columns([0, 0], [5, "6"], item_ids=["5", "6"]), TypeError, "items hold int and str: make them all one"),
    (lambda: of_columns([b"a"], [0], user_ids=["a"]), TypeError, "they cannot be compared"),
    (lambda: of_columns([2.0**53], [0], user_ids=[2**53 + 1, 7]), ValueError, r"from 2\^53 on"),
    (lambda: of_columns([2**63], [0]), ValueError, r"users must be below 2\^63, .*; got 9223372036854775808"),
    (lambda: of_columns([0], [0], ["5"]), TypeError, r"values must be numbers \[E\], got list"),
    (lambda: of_columns([1, 2], [1, 2], num_users=2), ValueError, "ids seem to start at 1; subtract 1"),
    (lambda: of_columns([-1, 1], [0, 1]), ValueError, "users hold ids -1..1"),
    (lambda: of_columns([0], [0], item_ids=tensor([1j])), (TypeError, ValueError), COMPLEX),
    (lambda: of_columns([0], [0], np.array([1j])), (TypeError, ValueError), COMPLEX),
    (lambda: Interactions.from_text(), ValueError, "at least one path"),
    (lambda: Interactions.from_dense(np.eye(3, dtype=int)), TypeError, "bool or float matrix .*, got a torch.int64"),
    (lambda: Interactions.from_dense(-torch.eye(2)), ValueError, "dense holds -1.0: values must be finite, >= 0"),
    (lambda: Interactions.from_dense(torch.eye(2) / 0), ValueError, "dense holds (inf|nan): values must be finite"),
    (lambda: Interactions.from_scipy(np.eye(3)), TypeError, r"got ndarray; dense ones of bools or .* from_dense\(m"),
    (lambda: Interactions.from_scipy(torch.ones(2, 2, 2).to_sparse()), ValueError, r"\[users, items\], got \[2, 2, 2"),
    (lambda: Interactions.from_dict({"q": "d1"}), TypeError, r"relevant must be a dict .* got str for 'q'"),
    (lambda: Interactions.from_dict({"user": ["q"], "item": ["d"]}), TypeError, "got dict: from_frame reads columns"),
    (lambda: Interactions.from_dict({"q": {"d": 1}, "p": ["d"]}), TypeError, "of values for 'q' and a list .* for 'p'"),
    (
        lambda: Interactions.from_dict({"q": ["d"]}, user_ids=["p"]),
        ValueError,
        "the users of relevant holds 'q'.*not in user_ids",
    ),
    (
        lambda: Interactions.from_dict({"q": [7]}, item_ids=["7"]),
        TypeError,
        "the items of relevant holds whole numbers",
    ),
    (
        lambda: GRAPH.select(tensor([1j])),
        ValueError,
        r"users must be whole numbers \[B\], got a torch.complex64 tensor",
    ),
    (
        lambda: of_columns(["a"], [0], user_ids=["a"], num_users=2),
        ValueError,
        "num_users follows from user_ids: give one of the two",
    ),
    (lambda: GRAPH.select([0, 3]), ValueError, "users hold ids 0..3, expected 0..2$"),
    (lambda: GRAPH.select([[1]]), ValueError, r"users must be one column \[E\], .* \[1, 1\]"),
    (lambda: GRAPH.union(of_edges(EDGES, 3, 6)), ValueError, "shapes and devices must be equal"),
    (lambda: GRAPH.without(EDGES), TypeError, "expected Interactions, got Tensor"),
    (lambda: GRAPH.without(LOG), TypeError, r"expected Interactions, got Log: pass other.to_interactions\(\)"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


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
    items = tensor(items)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        of_edges(torch.stack([items % 20, items]), 20, 40, **options)
    assert ["item_offset=20, else item_offset=0" in str(warning.message) for warning in caught] == [True] * asked
