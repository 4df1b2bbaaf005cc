"""Interactions against Python sets: input, output, splits, set operations and errors."""

import math
import re

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
def test_edges_become_sorted_distinct_pairs_and_rows(graph, offset):
    edges, users, items = graph
    graph, expected = build([(u, i + offset) for u, i in edges], users, items, item_offset=offset), sorted(set(edges))
    rows = [[i for u, i in expected if u == user] for user in range(users)]
    backwards = graph.select(range(users - 1, -1, -1)).items.tolist()

    assert pairs(graph) == expected
    assert [[i for i in row if i >= 0] for row in backwards] == rows[::-1]
    assert graph.degree.tolist() == [len(row) for row in rows]
    assert graph.popularity.tolist() == [sum(i == item for _, i in expected) for item in range(items)]


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

    assert [(pairs(each), each.num_users, each.num_items) for each in back] == [(sorted(set(edges)), users, items)] * 4


@settings(max_examples=examples(100), deadline=None)
@given(graph=graphs(), other=graphs())
def test_unions_and_differences_are_those_of_sets(graph, other):
    edges, users, items = graph
    more = [(u % users, i % items) for u, i in other[0]]
    first, second = build(edges, users, items, item_offset=0), build(more, users, items, item_offset=0)

    assert pairs(first.union(second)) == sorted({*edges, *more})
    assert pairs(first.without(second)) == sorted({*edges} - {*more})


def test_undirected_edges_are_there_and_back():
    assert GRAPH.to_edge_index(3, undirected=True).tolist() == [[0, 0, 2, 2, 3, 7, 4, 6], [3, 7, 4, 6, 0, 0, 2, 2]]


@pytest.mark.parametrize(("reduce", "value"), [("sum", 4 + 1), ("max", 4), ("last", 1)])
def test_values_of_repeated_edges_are_reduced(reduce, value):
    graph = of_edges(tensor([[0, 1, 0], [3, 0, 3]]), 2, 4, tensor([4.0, 2.0, 1.0]), values_reduce=reduce)
    assert graph.values.tolist() == [value, 2]


def test_values_are_joined_removed_and_selected_with_their_edges():
    graph = of_edges(tensor([[0, 1], [3, 0]]), 2, 4, tensor([5.0, 2.0]))
    other = of_edges(tensor([[0, 1], [3, 2]]), 2, 4, tensor([6.0, 7.0]))  # the first pair is in both

    assert graph.union(other).select([1, 0]).values.tolist() == [[2, 7], [6, 0]]
    assert graph.without(other).values.tolist() == [2]


@pytest.mark.parametrize(("dtype", "total"), [(torch.int8, 300), (torch.uint8, 300), (torch.bool, 3)])
def test_sums_of_small_integers_do_not_wrap(dtype, total):
    graph = of_edges(tensor([[0, 0, 0], [1, 1, 1]]), 1, 2, tensor([100] * 3).to(dtype), values_reduce="sum")
    assert graph.values.tolist() == [total]


@pytest.mark.parametrize(("matrix", "kind"), [(False, sparse.csr_array), (True, sparse.csr_matrix)])
def test_a_scipy_matrix_is_of_the_class_that_is_asked_for(matrix, kind):
    made = of_edges(EDGES, 3, 5, torch.arange(4.0, requires_grad=True)).to_scipy(matrix=matrix)

    assert type(made) is kind
    assert made.toarray().tolist() == [[3, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 2, 0]]


@pytest.mark.parametrize("matrix", [False, True])
def test_a_change_of_a_scipy_matrix_does_not_change_the_interactions(matrix):
    graph = of_edges(EDGES, 3, 5, torch.tensor([6.0, 7, 8, 9]))
    made = graph.to_scipy(matrix=matrix)
    made.data[:], made.indices[:], made.indptr[:] = 0, 0, 0

    assert (pairs(graph), graph.values.tolist()) == ([(0, 0), (0, 4), (2, 1), (2, 3)], [9, 7, 6, 8])


def test_a_scipy_matrix_is_read_on_the_cpu():
    with torch.device("meta"):
        graph = Interactions.from_scipy(sparse.csr_matrix([[0, 2.0], [3.0, 0]]))

    assert (pairs(graph), graph.values.tolist()) == ([(0, 1), (1, 0)], [2, 3])


RATINGS = tensor([[0, 2.5, 0], [0, 0, 0], [4, 0, 1]])


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch: the layout is in beta, invariants are not checked
@pytest.mark.parametrize(
    "read",
    [
        lambda: Interactions.from_dense(RATINGS),
        lambda: Interactions.from_dense(RATINGS.numpy()),
        lambda: Interactions.from_dense(np.asfortranarray(RATINGS)),
        lambda: Interactions.from_scipy(sparse.coo_matrix(RATINGS)),
        lambda: Interactions.from_scipy(RATINGS.to_sparse()),
        lambda: Interactions.from_scipy(RATINGS.to_sparse_csr()),
        lambda: Interactions.from_scipy(RATINGS.to_sparse_csc()),
    ],
)
def test_numbers_above_0_of_a_matrix_are_edges_with_values(read):
    graph = read()

    assert (pairs(graph), graph.values.tolist()) == ([(0, 1), (2, 0), (2, 2)], [2.5, 4, 1])
    assert (graph.num_users, graph.num_items) == (3, 3)


def test_bools_of_a_matrix_are_edges_without_values():
    graph = Interactions.from_dense(RATINGS.numpy() > 0)
    assert (pairs(graph), graph.values) == ([(0, 1), (2, 0), (2, 2)], None)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_values_below_0_of_a_sparse_matrix_become_0(dtype):
    matrix = sparse.csr_array(np.array([[-1, 1, 0], [2, 0, -3]], dtype=dtype))
    assert Interactions.from_scipy(matrix).values.tolist() == [0, 1, 2, 0]


def test_values_below_0_of_edges_stay():
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
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("edge_index", lambda matrix: of_edges(matrix, 3, 5)),
        ("values", lambda matrix: of_edges(EDGES, 3, 5, matrix)),
        ("ids", lambda matrix: Interactions.from_padded(matrix, 5)),
        ("dense", Interactions.from_dense),
        ("users", lambda matrix: of_columns(matrix, [0])),
        ("items", lambda matrix: of_columns([0], matrix)),
        ("values", lambda matrix: of_columns([0], [0], matrix)),
        ("item_ids", lambda matrix: of_columns([0], [0], item_ids=matrix)),
        ("users", GRAPH.select),
    ],
)
def test_a_matrix_where_a_column_is_expected_is_refused_with_its_way_in(name, read, make, message):
    with pytest.raises(TypeError, match=f"^{name} is a {message}"):
        read(make())


def test_the_way_in_of_nested_tensors_is_open():
    assert pairs(Interactions.from_jagged(ragged(), num_items=4)) == [(0, 1), (0, 2), (1, 3)]


def test_rows_are_padded_to_max_items_or_to_the_largest_degree(device):
    ids = tensor([1, 2], device=device)
    graph = GRAPH.to(device)

    assert graph.select(ids).items.tolist() == [[-1, -1], [1, 3]]
    assert graph.select(ids, max_items=3).items.tolist() == [[-1, -1, -1], [1, 3, -1]]
    assert graph.select([]).items.shape == (0, 1)


@pytest.mark.parametrize(
    ("users", "max_items"), [(torch.empty(7, dtype=torch.int64, device="meta"), 2), ([0, 2, 1, 1, 1, 1, 1], None)]
)
def test_select_reads_no_value_of_a_device_with_max_items_or_users_of_the_host(users, max_items):
    """On "meta", where reading a value raises."""
    graph = of_edges(EDGES, 3, 5)
    graph.offsets, graph.items = graph.offsets.to("meta"), graph.items.to("meta")

    assert graph.select(users, max_items=max_items).items.shape == (7, 2)


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a file and returns its path."""
    return lambda name, text: (tmp_path / name).write_text(text, encoding="latin-1") and tmp_path / name


def test_text_files_share_one_shape(file):
    """User 7 has no item: a line with the user alone."""
    train, test = Interactions.from_text(file("train", "0 1 2\n2 5\n\n7\n"), str(file("test", "3 0\n")))

    assert (pairs(train), pairs(test)) == ([(0, 1), (0, 2), (2, 5)], [(3, 0)])
    assert (train.num_users, train.num_items) == (test.num_users, test.num_items) == (8, 6)


EDGES_IN_LINES = r" has \d columns in every line and a user in several: these seem to be edges,.*from_columns"
NO_NUMBERS = ": expected whole numbers 'user item item ...', got"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rated.txt", "0 1 5\n0 2 4\n1 1 3\n", EDGES_IN_LINES),
        ("header.tsv", "user item rating\n0 1 5\n", ", line 1" + NO_NUMBERS),
        ("ratings.csv", "userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n", ", line 1" + NO_NUMBERS),
        ("titles.latin1", "1|Am\u00e9lie\n", ", line 1" + NO_NUMBERS),
        ("bad.txt", "0 1\n0 x\n", ", line 2" + NO_NUMBERS + " '0 x'"),
    ],
)
def test_files_that_are_no_lists_of_items_are_refused(name, text, message, file):
    with pytest.raises(ValueError, match=name + message):
        Interactions.from_text(file("good.txt", "0 1 2\n"), file(name, text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 1 2\n1 3 4\n", [(0, 1), (0, 2), (1, 3), (1, 4)]),  # two items each, each user once
        ("0 1\n0 2\n1 1\n", [(0, 1), (0, 2), (1, 1)]),  # pairs
        ("0 1 2 3 4\n0 5 6 7 8\n", [(0, item) for item in range(1, 9)]),
        ("0\n0\n", []),
        ("".join(f"{user}\n" for user in range(500)) + "500 1\n", [(500, 1)]),  # 1 of 501 users: no id is far away
    ],
)
def test_short_lines_of_items_are_no_edges(text, expected, file):
    assert pairs(Interactions.from_text(file("train.txt", text))) == expected


HASHES = [0, 7, 300]


@pytest.mark.parametrize(
    ("read", "name", "more"),
    [
        (lambda file: Interactions.from_text(file("train.txt", "0 1 2\n1 2 999\n")), "item", ""),
        (lambda file: of_columns(HASHES, [0, 1, 2]), "user", ", or num_users=301 where there are so many"),
        (lambda file: of_columns([0, 1, 2], HASHES), "item", ", or num_items=301 where there are so many"),
    ],
)
def test_ids_far_beyond_their_number_are_warned_of_at_the_callers_line(read, name, more, file):
    cure = rf"Interactions.from_columns\(..., {name}_ids=sorted\(set\({name}s\)\)\){more}"
    with pytest.warns(UserWarning, match=f"{name}s hold 3 distinct ids up to .*; a vocabulary .*: {cure}") as caught:
        read(file)

    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("options", [{"num_users": 301}, {"user_ids": HASHES}, {"users": [0, 7, 299]}])  # 300 = 100 * 3
def test_ids_of_a_known_number_or_below_100_times_theirs_are_not_warned_of(options):
    assert len(of_columns(**{"users": HASHES, "items": [0, 1, 2]} | options)) == 3


def test_ids_become_positions_in_their_vocabulary_and_unknown_ones_are_dropped():
    users, items = ["bo", "al", "bo", "eve"], [10**12, 7, 7, 7]
    vocabularies = {"user_ids": ["al", "bo"], "item_ids": [7, 10**12, 8]}
    graph = of_columns(users, items, [1.0, 2, 3, 4], unknown="drop", **vocabularies)

    assert (pairs(graph), graph.values.tolist()) == ([(0, 0), (1, 0), (1, 1)], [2, 3, 1])
    assert (graph.num_users, graph.num_items, graph.num_dropped) == (2, 3, 1)


@pytest.mark.parametrize(
    ("users", "user_ids"),
    [
        (pd.Series([2**53 + 1, None, 2**53], dtype="Int64"), [2**53, 2**53 + 1]),  # floats would round them
        (pd.Series(["b", pd.NA, "a"], dtype="object"), ["a", "b"]),
        (np.ma.array([2, 9, 1], mask=[False, True, False]), [1, 2, 9]),
        (["b", None, "a"], ["a", "b"]),
        (["b", math.nan, "a"], ["a", "b"]),
    ],
)
def test_missing_entries_are_in_no_vocabulary(users, user_ids):
    graph = of_columns(users, [0, 1, 2], user_ids=user_ids, unknown="drop")
    assert (pairs(graph), graph.num_dropped) == ([(0, 2), (1, 0)], 1)


QUERIES = {"user_ids": ["q1", "q2", "q3", "q0"], "item_ids": ["d9", "d5", "d1"]}


@pytest.mark.parametrize("kind", [list, set, np.array, pd.Series])
def test_a_dict_of_queries_has_the_rows_of_vocabularies(kind):
    graph = Interactions.from_dict({"q2": kind(["d9", "d1"]), "q0": kind(["d1"]), "q1": kind([])}, **QUERIES)

    assert (pairs(graph), graph.num_users, graph.num_items) == ([(1, 0), (1, 2), (3, 2)], 4, 3)
    assert graph.user_ids[1] == "q2"


def test_grades_of_a_dict_are_values_not_below_0():
    graded = Interactions.from_dict({"q2": {"d9": 1, "d1": 3}, "q0": {"d1": -2}, "q1": {}}, **QUERIES)
    assert (pairs(graded), graded.values.tolist()) == ([(1, 0), (1, 2), (3, 2)], [1, 3, 0])


def test_a_dict_has_vocabularies_of_its_own_with_a_row_for_an_empty_query():
    graph = Interactions.from_dict({"q2": ["d9", "d1"], "q0": ["d1"], "q1": []})

    assert ([*graph.user_ids], [*graph.item_ids]) == (["q0", "q1", "q2"], ["d1", "d9"])
    assert pairs(graph) == [(0, 0), (2, 0), (2, 1)]


def test_an_empty_dict_has_no_edges():
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
def test_whole_numbers_are_ids_and_values_whatever_holds_them(ids):
    assert pairs(of_columns(ids, ids)) == [(0, 0), (1, 1), (2, 2)]
    assert pairs(of_columns([2, 0, 1], ids, user_ids=ids)) == [(0, 2), (1, 0), (2, 1)]
    assert of_columns([0, 1, 2], [0, 1, 2], ids).values.tolist() == [2, 0, 1]


MATRIX = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 1, 0, 0]])  # edges among the ids 0 and 1, or 2 users and 5 items


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda m: of_edges(m, 2, 5), r"edge_index \[2, 5\] .* from_dense\(matrix.bool\(\)\); .*index.unique\(dim=1\)"),
        (lambda m: Interactions.from_padded(m, 5), r"ids \[2, 5\] holds 0 and 1 alone: .* from_dense\(matrix.bool\("),
    ],
)
def test_a_matrix_of_0_and_1_is_no_edges_and_no_ids(read, message, dtype):
    """More than four edges of 0 and 1 alone repeat, and so do rows of such ids as wide as there are items."""
    with pytest.raises(ValueError, match=f"^{message}"):
        read(MATRIX.to(dtype))


@pytest.mark.parametrize(
    "read",
    [
        lambda: of_edges(MATRIX[:, :4].to(torch.int8), 2, 5),
        lambda: of_edges(MATRIX, 2, 5, torch.ones(5), values_reduce="sum"),
        lambda: of_edges(MATRIX, 2, 5, item_offset=0),
        lambda: Interactions.from_padded(MATRIX, 4),
        lambda: Interactions.from_padded(MATRIX, 6),
        lambda: Interactions.from_padded(tensor([[0, 1, 0], [1, 0, 1]]), 2),
        lambda: Interactions.from_padded(tensor([[0, 1, -1], [1, 0, -1]]), 3),
        lambda: Interactions.from_jagged(MATRIX.reshape(-1), tensor([0, 5, 10]), 5),
    ],
)
def test_edges_and_ids_of_0_and_1_that_are_certain_are_read(read):
    """Four edges, edges with values or an offset, and lists of another length than there are items, or with padding."""
    assert pairs(read()) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_sizes_of_numpy_and_torch_are_whole_numbers():
    graph = of_edges(EDGES, np.int32(3), tensor(5), item_offset=np.uint8(0))
    assert (type(graph.num_users), graph.num_users, type(graph.num_items), graph.num_items) == (int, 3, int, 5)


@pytest.mark.parametrize("value", ["9", True, 9.0, tensor(True)])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("num_users", lambda value: of_edges(EDGES, value, 5)),
        ("item_offset", lambda value: of_edges(EDGES, 3, 5, item_offset=value)),
        ("num_users", lambda value: of_columns([0], [0], num_users=value)),
        ("num_items", lambda value: Interactions.from_padded(tensor([[0]]), value)),
        ("max_items", lambda value: GRAPH.select([0], max_items=value)),
    ],
)
def test_a_size_that_is_no_whole_number_is_refused(name, read, value):
    message = f"{name} must be a whole number >= 0, an int, got {type(value).__name__}: {value!r}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        read(value)


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
    (lambda: of_columns(["a", None], [1, 2], user_ids=["a"]), ValueError, "in row 1: user None; unknown='drop'"),
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
    (lambda: Interactions.from_dict({"q": ["d"]}, user_ids=["p"]), ValueError, "relevant holds 'q'.*not in user_ids"),
    (lambda: Interactions.from_dict({"q": [7]}, item_ids=["7"]), TypeError, "items of relevant holds whole numbers"),
    (lambda: GRAPH.select(tensor([1j])), ValueError, r"whole numbers \[B\], got a torch.complex64 tensor"),
    (lambda: of_columns(["a"], [0], user_ids=["a"], num_users=2), ValueError, "num_users follows from user_ids: give"),
    (lambda: GRAPH.select([0, 3]), ValueError, "users hold ids 0..3, expected 0..2$"),
    (lambda: GRAPH.select([1, 2], max_items=1), ValueError, "a user has 2 items, more than max_items=1"),
    (lambda: GRAPH.select([[1]]), ValueError, r"users must be one column \[E\], .* \[1, 1\]"),
    (lambda: GRAPH.union(of_edges(EDGES, 3, 6)), ValueError, "shapes and devices must be equal"),
    (lambda: GRAPH.without(EDGES), TypeError, "expected Interactions, got Tensor"),
    (lambda: GRAPH.without(LOG), TypeError, r"expected Interactions, got Log: pass other.to_interactions\(\)"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_input_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_twenty_items_that_are_numbered_after_twenty_users_are_asked_about():
    with pytest.warns(UserWarning, match="item_offset=20, else item_offset=0"):
        of_edges(tensor([range(20), range(20, 40)]), 20, 40)


@pytest.mark.parametrize(("items", "options"), [((20, 39), {}), ((19, 40), {}), ((20, 40), {"item_offset": 0})])
def test_fewer_items_or_one_below_twenty_or_a_stated_offset_are_not_asked_about(items, options):
    """Warnings are errors here."""
    items = torch.arange(*items)
    assert len(of_edges(torch.stack([items % 20, items]), 20, 40, **options)) == len(items)
