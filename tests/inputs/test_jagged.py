"""Jagged rows (values and offsets) against the same rows padded, and the input that is refused."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from rankings import rank_lists, rank_scores
from sizes import examples
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.core.checks import VIOLATIONS
from torchrecmetrics.inputs import exclude as exclude_module
from torchrecmetrics.inputs import jagged

ITEMS = 9


def flat(rows, dtype=torch.int64, offsets_dtype=torch.int64):
    """Return the rows as values and offsets."""
    values = torch.tensor([each for row in rows for each in row], dtype=dtype)
    lengths = torch.tensor([0, *map(len, rows)])
    return values, lengths.cumsum(0).to(offsets_dtype)


def side_by_side(rows, fill=-1, dtype=torch.int64):
    rows = [torch.tensor(row, dtype=dtype) for row in rows]
    return pad_sequence(rows, batch_first=True, padding_value=fill) if rows else torch.empty(0, 1, dtype=dtype)


FORMS = {
    "pair": lambda values, offsets: (values, offsets),
    "int32": lambda values, offsets: (values, offsets.int()),
    "Jagged": lambda values, offsets: trm.Jagged(values, offsets),
    "max_length": lambda values, offsets: trm.Jagged(values, offsets, ITEMS + 1),
    "nested": lambda values, offsets: torch.nested.nested_tensor_from_jagged(values, offsets),
}


@st.composite
def ragged(draw):
    """Draw targets with gains, histories and lists of any length."""
    rows = draw(st.integers(0, 5))
    distinct = st.lists(st.integers(0, ITEMS - 1), max_size=ITEMS, unique=True)
    several = st.lists(distinct, min_size=rows, max_size=rows)
    targets, lists = draw(several), draw(several)
    gains = [draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0, 3.0]), min_size=len(t), max_size=len(t))) for t in targets]
    history = draw(st.lists(st.lists(st.integers(-1, ITEMS - 1), max_size=7), min_size=rows, max_size=rows))
    return targets, gains, history, lists


def same(one, other):
    """Assert that two rankings are equal, apart from columns of padding."""
    pad = max(one.ranks.shape[1], other.ranks.shape[1])

    def wide(ranks):
        return torch.nn.functional.pad(ranks, (0, pad - ranks.shape[1]), value=torch.inf)

    for name in ("num_relevant", "tied", "unreachable", "num_ranked", "num_recommended"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None and b is None) or a.equal(b), name
    assert wide(one.ranks).equal(wide(other.ranks))
    if one.gains is not None or other.gains is not None:
        found = [ranking.gains.where(ranking.ranks.isfinite(), 0).sum(1) for ranking in (one, other)]
        assert found[0].equal(found[1])
    ndcg = [trm.functional.ndcg(ranking, 3).nan_to_num(7) for ranking in (one, other)]
    assert ndcg[0].equal(ndcg[1])


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(20), deadline=None)
@given(batch=ragged(), at_once=st.sampled_from([1, 7, 2**18]), padding_idx=st.sampled_from([None, 0]))
def test_as_padded(form, batch, at_once, padding_idx):
    """Every jagged argument of every function gives the ranking of the padded rows, also a few rows at a time."""
    targets, gains, history, lists = batch
    make = FORMS[form]
    scores = torch.arange(len(targets) * ITEMS).reshape(-1, ITEMS).mul(7).remainder(5).double()
    target, exclude = make(*flat(targets)), make(*flat(history))
    worth = make(*flat(gains, torch.float64))
    masks = (scores[0] > 3 if len(scores) else torch.zeros(ITEMS, dtype=torch.bool), scores < 1)
    other = side_by_side([row[:1] for row in lists])
    padded, past, padded_gains = side_by_side(targets), side_by_side(history), side_by_side(gains, 0, torch.float64)
    options = {"overlap": "miss", "padding_idx": padding_idx}
    exclude_module.PADDED_IDS_CPU = at_once
    try:
        for mine, theirs in (
            ({}, {}),
            ({"gains": worth}, {"gains": padded_gains}),
            ({"exclude": exclude}, {"exclude": past}),
            ({"exclude": (exclude, *masks)}, {"exclude": (past, *masks)}),
            ({"exclude": (masks[0], (other, exclude))}, {"exclude": (masks[0], other, past)}),
            ({"gains": worth, "exclude": (exclude, target)}, {"gains": padded_gains, "exclude": (past, padded)}),
        ):
            same(
                rank_scores(scores, target, **mine, **options),
                rank_scores(scores, padded, **theirs, **options),
            )
            same(
                rank_lists(make(*flat(lists)), target, complete=True, **mine, **options),
                rank_lists(side_by_side(lists), padded, complete=True, **theirs, **options)
                if side_by_side(lists).shape[1]
                else rank_lists(padded.new_full((len(padded), 1), -1), padded, complete=True, **theirs, **options),
            )
            mine.pop("gains", None), theirs.pop("gains", None)
            ranks = [trm.get_topk_ranks(scores, t, 4, **w, **options) for t, w in ((target, mine), (padded, theirs))]
            width = max(part.shape[1] for part in ranks)
            a, b = (torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in ranks)
            assert a.equal(b)
    finally:
        exclude_module.PADDED_IDS_CPU = 2**18


SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.4, 0.2]])
TARGETS, HISTORY = [[2, 0], [], [3]], [[1], [0, 1, 1], []]


@pytest.mark.parametrize("form", FORMS)
def test_update_and_forward(form, device):
    """`update` of a collection and `forward` of a metric take jagged targets and histories."""
    target, history = (FORMS[form](*(part.to(device) for part in flat(rows))) for rows in (TARGETS, HISTORY))
    collection, metric = trm.RecMetricCollection(["HR", "MAP"], k=[1, 2]).to(device), trm.NDCG(2).to(device)
    scores = SCORES.to(device)
    collection.update(scores, target, exclude=history)
    value = metric(scores, target, exclude=history).item()
    # without item 1, item 2 is first and 0 last in row 0; row 1 has no target; item 3 is third in row 2
    assert numbers(collection.compute()) == {"HR@1": 0.5, "MAP@1": 0.25, "HR@2": 0.5, "MAP@2": 0.25}
    assert value == metric.compute().item() == pytest.approx(1 / (1 + 1 / torch.log2(torch.tensor(3.0)).item()) / 2)


def test_max_relevant_is_the_width():
    """`max_relevant` is the width of the ranks; a row with more relevant items raises, as with dense targets."""
    target = trm.Jagged(*flat(TARGETS))
    assert trm.Scores(SCORES, target).ranking(max_relevant=5).ranks.shape == (3, 5)
    with pytest.raises(ValueError, match="1 of 3 rows with more relevant items than max_relevant: row 0 has 2 > 1"):
        trm.Scores(SCORES, target).ranking(max_relevant=1)
    deferred = trm.Scores(SCORES, target).ranking(max_relevant=1, validate_args="deferred")
    assert deferred.valid.tolist() == [False, True, True]
    assert deferred.num_relevant[1:].tolist() == [0, 1]
    assert trm.HR(2, max_relevant=5)(SCORES, target) == 0.5


def test_two_columns_of_ids_stay_two_columns():
    """Two tensors [B] are two ids per row; offsets have B + 1 entries, so that no pair can be read as both."""
    two = (torch.tensor([1, 0, 2]), torch.tensor([0, 1, 3]))
    as_ids = trm.Scores(SCORES, torch.tensor([[3], [3], [1]]), exclude=two).ranking()
    assert as_ids.num_ranked.tolist() == [2, 2, 2]
    # rows [1], [0, 2] and [], because offsets of 3 rows have 4 entries
    as_rows = trm.Scores(SCORES, torch.tensor([[3], [3], [1]]), exclude=(two[0], torch.tensor([0, 1, 3, 3]))).ranking()
    assert as_rows.num_ranked.tolist() == [3, 2, 4]
    both = trm.Scores(SCORES, torch.tensor([[3], [3], [1]]), exclude=(two, torch.tensor([0, 1, 3, 3])[:3])).ranking()
    assert both.num_ranked.tolist() == [2, 2, 2]
    # a mask of the four items is not read as offsets
    masked = (two[0], torch.tensor([True, False, False, False]))
    assert trm.Scores(SCORES, torch.tensor([3, 3, 1]), exclude=masked).ranking().num_ranked.tolist() == [2, 3, 2]
    with pytest.raises(
        ValueError, match=r"exclude ids must be \[3\].*, got \[2\]; offsets of a jagged exclude are \[4\]"
    ):
        trm.Scores(SCORES, torch.tensor([3, 3, 1]), exclude=(two[0], torch.tensor([0, 3]))).ranking()


# ------------------------------------------------------------------------------------------------------------- refused

VALUES, OFFSETS = flat(TARGETS)
BAD_OFFSETS = {
    "start": ([1, 2, 2, 3], "row 0 is 1 to 2 of 3 values"),
    "descend": ([0, 3, 2, 3], "row 1 is 3 to 2 of 3 values"),
    "negative": ([0, -1, 2, 3], "row 0 is 0 to -1 of 3 values"),
    "short": ([0, 2, 2, 2], "row 2 is 2 to 2 of 3 values"),
    "beyond": ([0, 2, 2, 9], "row 2 is 2 to 9 of 3 values"),
}


def functions(form):
    """Return the functions that take jagged rows, each with the name of its argument."""
    target = torch.tensor([2, 1, 3])
    return [
        ("target", lambda **o: rank_scores(SCORES, form, **o)),
        ("target", lambda **o: rank_lists(SCORES.argsort(1), form, **o)),
        ("exclude", lambda **o: rank_scores(SCORES, target, exclude=form, overlap="miss", **o)),
        ("item_ids", lambda **o: rank_lists(form, target, complete=True, **o)),
    ]


@pytest.mark.parametrize("case", BAD_OFFSETS)
def test_offsets_that_are_none(case):
    """Invalid offsets raise on the CPU and are counted with deferred checks; without checks indexing is still safe."""
    offsets, detail = BAD_OFFSETS[case]
    bad = (VALUES, torch.tensor(offsets))
    for name, function in functions(bad):
        with pytest.raises(
            ValueError, match=rf"rows that offsets do not tell \(they start at 0.*\): {name}'s {detail}"
        ):
            function()
        counted = function(validate_args="deferred")
        told = dict(zip(VIOLATIONS, counted.violations.tolist(), strict=True))
        assert told == {**dict.fromkeys(told, 0), "offsets": sum((~counted.valid).tolist())}
        assert len(function(validate_args=False)) == 3
    with pytest.raises(ValueError, match=f"matrix's {detail}"):
        trm.Interactions.from_jagged(*bad, num_items=4)
    with pytest.raises(ValueError, match=f"history's {detail}"):
        trm.prefix_history(*bad)
    metric = trm.HR(2, validate_args="deferred")
    metric.update(SCORES, bad)
    with pytest.raises(ValueError, match=r"bad input since the last reset: \d rows? that offsets do not tell"):
        metric.compute()


@pytest.mark.parametrize("argument", ["target", "exclude", "item_ids"])
def test_rows_longer_than_max_length(argument):
    for name, function in functions(trm.Jagged(VALUES, OFFSETS, 1)):
        if name == argument:
            with pytest.raises(ValueError, match=f"{name}'s row 0 is 0 to 2 of 3 values, max_length=1"):
                function()
            assert function(validate_args="deferred").valid.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("form", "error", "message"),
    [
        ((VALUES, OFFSETS.float()), TypeError, r"offsets of a jagged \w+ must be int64 or int32, got a torch.float32"),
        ((VALUES, OFFSETS.short()), TypeError, r"offsets of a jagged \w+ must be int64 or int32"),
        (
            trm.Jagged(VALUES, OFFSETS[:, None]),
            ValueError,
            r"offsets of a jagged \w+ must be \[rows \+ 1\], got \[4, 1\]",
        ),
        (trm.Jagged(VALUES, OFFSETS[:0]), ValueError, r"offsets of a jagged \w+ must be \[rows \+ 1\], got \[0\]"),
        (trm.Jagged(VALUES, OFFSETS[:1]), ValueError, r"offsets of a jagged \w+ hold no row, its values 3 entries"),
        (trm.Jagged(VALUES[:, None], OFFSETS), ValueError, r"values of a jagged \w+ must be \[E\].*, got \[3, 1\]"),
        (trm.Jagged(VALUES.tolist(), OFFSETS), TypeError, r"values of a jagged \w+ must be a tensor, got list"),
        (trm.Jagged(VALUES, OFFSETS.to("meta")), ValueError, r"offsets of a jagged \w+ are on meta, its values on cpu"),
        ((VALUES.double(), OFFSETS), TypeError, r"must hold int64, int32 or int16, got a torch.float64"),
        ((VALUES.to(torch.uint8), OFFSETS), TypeError, r"must hold int64, int32 or int16, got a torch.uint8"),
    ],
)
def test_what_is_no_jagged_tensor(form, error, message):
    for name, function in functions(form):
        with pytest.raises(error, match=message) as raised:
            function()
        assert name in str(raised.value)


def test_a_row_counts_once():
    """A bad row is counted once, even if several arguments are wrong in it."""
    bad = (VALUES, torch.tensor([1, 2, 2, 3]))
    counted = trm.Scores(SCORES, bad, exclude=bad).ranking(overlap="miss", validate_args="deferred")
    assert (counted.violations.sum().item(), (~counted.valid).tolist()) == (1, [True, False, False])
    short = (VALUES, torch.tensor([0, 2, 2, 2]))
    counted = trm.Scores(SCORES, short, exclude=bad).ranking(overlap="miss", validate_args="deferred")
    assert (counted.violations.sum().item(), (~counted.valid).tolist()) == (2, [True, False, True])


def test_sequences_that_nobody_could_look_at():
    """Errors that `prefix_history` finds without waiting for the device are counted by the update that uses it."""
    past = trm.prefix_history(VALUES, OFFSETS)
    past.broken[1] = True
    counted = trm.Scores(SCORES, VALUES, exclude=past).ranking(overlap="miss", validate_args="deferred")
    assert (~counted.valid).tolist() == [False, True, False]


def test_rows_of_another_number():
    two = trm.Jagged(VALUES, torch.tensor([0, 2, 3]))
    for name, function in functions(two)[:3]:
        with pytest.raises(ValueError, match=rf"{name} has 2 rows \(offsets \[3\]\), the scores \(or lists\) have 3"):
            function()
    past = trm.prefix_history(VALUES, OFFSETS)
    with pytest.raises(ValueError, match=r"exclude has 2 rows, the scores \(or lists\) have 3"):
        trm.HR(1).update(SCORES, torch.tensor([1, 2, 3]), exclude=past[:2])


def test_on_another_device():
    away = trm.Jagged(VALUES.to("meta"), OFFSETS.to("meta"), 2)
    for name, function in functions(away)[:3]:
        with pytest.raises(ValueError, match=rf"{name} is on meta, but the scores \(or lists\) are on cpu"):
            function()


@pytest.mark.parametrize(
    ("gains", "message"),
    [
        (
            torch.ones(3),
            r"gains beside a jagged target are jagged too, such as \(gains, offsets\); got a torch.float32",
        ),
        ((torch.ones(2), torch.tensor([0, 1, 1, 2])), "must have the target's rows, 3 of 3 entries, got 3 of 2"),
        ((torch.ones(3), torch.tensor([0, 3])), "must have the target's rows, 3 of 3 entries, got 1 of 3"),
        ((torch.ones(3), torch.tensor([0, 2, 3, 3])), "row 1 of gains is not where row 1 of target is"),
        ((torch.ones(3, dtype=torch.bool), OFFSETS), "gains must be numbers in the shape of target"),
    ],
)
def test_gains_that_do_not_fit(gains, message):
    with pytest.raises(ValueError, match=message):
        trm.Scores(SCORES, (VALUES, OFFSETS), gains=gains).ranking()


def test_jagged_gains_beside_padded_targets():
    with pytest.raises(ValueError, match="gains are jagged, target is not: pass both as one or the other"):
        trm.Scores(SCORES, torch.tensor([1, 2, 3]), gains=(torch.ones(3), torch.arange(4))).ranking()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_of_other_kinds():
    """Nested tensors that are strided, have gaps or have more dimensions raise an error that names the fix."""
    strided = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([0])])
    table = torch.arange(9).remainder(4).reshape(3, 3)
    gaps = torch.nested.narrow(table, 1, torch.zeros(3).long(), torch.tensor([2, 1, 3]), layout=torch.jagged)
    deep = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    for name, function in functions(strided):
        with pytest.raises(TypeError, match=rf"{name} is a nested tensor of the strided layout: pass .*\({name}, -1\)"):
            function()
    for name, function in functions(gaps):
        with pytest.raises(ValueError, match=rf"{name} is a nested tensor with gaps .*: pass {name}.contiguous\(\)"):
            function()
    for name, function in functions(deep):
        with pytest.raises(ValueError, match=rf"values of a jagged {name} must be \[E\]"):
            function()
    again = torch.nested.as_nested_tensor(list(strided.unbind()), layout=torch.jagged)
    for cured in (gaps.contiguous(), again):
        assert len(trm.Scores(SCORES, cured).ranking()) == 3


# ------------------------------------------------------------------------------------------------------ prefix_history


def pasts(sequences):
    """Return the items before each position, in plain Python."""
    return [row[:place] for row in sequences for place in range(len(row))]


@settings(max_examples=examples(40), deadline=None)
@given(sequences=st.lists(st.lists(st.integers(-1, ITEMS - 1), max_size=8), max_size=5))
def test_prefix_history_is_a_loop(sequences):
    """Each position has the items before it; test_exclude.py ranks without them, a few rows at a time, too."""
    values, offsets = flat(sequences)
    past, rows = trm.prefix_history(values, offsets), pasts(sequences)
    assert len(past) == len(rows)
    for position, row in enumerate(rows):
        assert past.values[past.start[position] : past.stop[position]].tolist() == row


def test_prefix_history_of_some_rows(device):
    """Rows of a history are selected by slice, number or mask, also if it is made from a nested tensor."""
    sequences = [[3, 1, 3, 2], [], [0, 1]]
    values, offsets = (part.to(device) for part in flat(sequences))
    past = trm.prefix_history(values, offsets)
    nested = trm.prefix_history(torch.nested.nested_tensor_from_jagged(values, offsets), max_length=4)
    assert str(past) == f"Spans(6 rows of up to 3 of 6 values, {values.device})"
    rows = pasts(sequences)
    for some in (slice(1, 4), torch.tensor([5, 0, 2], device=device), torch.arange(6, device=device) % 2 == 1):
        wanted = side_by_side([rows[row] for row in torch.arange(6)[some.cpu() if hasattr(some, "cpu") else some]])
        for these in (past[some], nested[some]):
            padded = these.padded(-1).cpu()
            assert padded[:, : wanted.shape[1]].equal(wanted)
            assert (padded[:, wanted.shape[1] :] == -1).all()


def test_history_that_is_not_in_the_catalogue():
    """Ids beyond the last item raise with their row, and ids below 0 are padding; also a few rows at a time."""
    values, offsets = flat([[-5, 9, 1], [2]])
    past, scores = trm.prefix_history(values, offsets), torch.rand(4, 5)
    for at_once in (1, 2**18):
        exclude_module.PADDED_IDS_CPU = at_once
        try:
            with pytest.raises(
                ValueError, match="1 of 4 rows with an excluded id beyond the last item: row 2 excludes 9 of"
            ):
                trm.Scores(scores, torch.tensor([0, 1, 2, 3]), exclude=past).ranking()
            deferred = trm.Scores(scores, torch.tensor([0, 1, 2, 3]), exclude=past).ranking(validate_args="deferred")
            assert (~deferred.valid).tolist() == [False, False, True, False]
            unchecked = trm.Scores(scores, torch.tensor([0, 1, 2, 3]), exclude=past).ranking(validate_args=False)
            assert unchecked.num_ranked.tolist() == [5, 5, 5, 5]
        finally:
            exclude_module.PADDED_IDS_CPU = 2**18


class Largest(TorchDispatchMode):
    """A mode that records the number of entries of the largest tensor made inside it."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        parts = made if isinstance(made, (tuple, list)) else [made]
        self.entries = max([self.entries, *(part.numel() for part in parts if isinstance(part, torch.Tensor))])
        return made


@pytest.mark.parametrize("padding_idx", [None, 0])
def test_pasts_never_stand_side_by_side(monkeypatch, padding_idx):
    """No tensor is as large as all pasts, padded: of 400 positions only a few rows are padded at a time."""
    items, scores = torch.arange(400) % 30, torch.rand(400, 30)
    monkeypatch.setattr(exclude_module, "PADDED_IDS_CPU", 4000)
    collection = trm.RecMetricCollection(["HR", "NDCG", "Recall"], k=3, overlap="keep", padding_idx=padding_idx)
    with Largest() as made:
        collection.update(scores, items, exclude=trm.prefix_history(items, torch.tensor([0, 400])))
        trm.Scores(scores, items, exclude=trm.prefix_history(items, torch.tensor([0, 400]))).ranking(overlap="miss")
    assert made.entries <= scores.numel() < 400 * 400 / 10


# ------------------------------------------------------------------------------------------------------- never waiting


@pytest.mark.parametrize("k", [1, 3])
def test_update_never_waits_for_the_device(k):
    """With max_relevant or max_length an update reads no value from the device ("meta" has no values to read)."""
    scores = torch.empty(8, 30, device="meta")
    values, offsets = (
        torch.empty(24, dtype=torch.int64, device="meta"),
        torch.empty(9, dtype=torch.int64, device="meta"),
    )
    collection = trm.RecMetricCollection(["HR", "NDCG", "RPrecision", "AUROC"], k=k, max_relevant=5).to("meta")
    known = trm.Jagged(values, offsets, 5)
    past = trm.prefix_history(values[:8], offsets[:3], max_length=7)
    for target in ((values, offsets), (values, offsets.int()), known, FORMS["nested"](values, offsets)):
        collection.update(scores, target, exclude=known)
        collection.update(scores, target, exclude=(past, known))
    collection.update(scores, known, gains=(values, offsets))
    exclude_module.PADDED_IDS = 7
    try:
        collection.update(scores, known, exclude=past)
    finally:
        exclude_module.PADDED_IDS = 2**22
    trm.get_topk_ranks(scores, known, k, exclude=past)
    lists = trm.Lists(known, known, gains=known, exclude=past).ranking()
    trm.RecMetricCollection(["HR", "NDCG"], k=k).to("meta").update(lists)
    with pytest.raises((RuntimeError, NotImplementedError)):  # without a width a value is read, which meta refuses
        trm.Scores(scores, (values, offsets)).ranking()


# --------------------------------------------------------------------------------------------------------- from_jagged


@pytest.mark.parametrize("form", FORMS)
def test_interactions(form, device):
    """`from_jagged` equals `from_edge_index` of the same edges, with gains as values."""
    rows, gains = [[4, 1], [], [2, 4, 0]], torch.tensor([5.0, 1.0, 2.0, 3.0, 4.0])
    values, offsets = flat(rows)
    edges = torch.tensor([[0, 0, 2, 2, 2], values.tolist()])
    plain = trm.Interactions.from_edge_index(edges, 3, 5, gains)
    made = FORMS[form](values.to(device), offsets.to(device))
    given = made if isinstance(made, torch.Tensor) or form in ("Jagged", "max_length") else None
    built = trm.Interactions.from_jagged(*([given] if given is not None else made), num_items=5, gains=gains.to(device))
    assert (built.num_users, built.num_items, built.device.type) == (3, 5, device.type)
    for name in ("offsets", "items", "values"):
        assert getattr(built, name).cpu().equal(getattr(plain, name))


def test_interactions_of_repeats():
    values, offsets, gains = torch.tensor([1, 1, 2]), torch.tensor([0, 3]), torch.tensor([1.0, 2.0, 5.0])
    built = trm.Interactions.from_jagged(values, offsets, 3, gains=gains, values_reduce="max")
    assert (built.items.tolist(), built.values.tolist()) == ([1, 2], [2.0, 5.0])
    with pytest.raises(ValueError, match="1 pairs of user and item occur more than once, such as user 0, item 1"):
        trm.Interactions.from_jagged(values, offsets, 3, duplicates="error")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (VALUES,),
            TypeError,
            r"values must be \[E\] beside offsets, a jagged nested tensor or Jagged, got a torch.int64",
        ),
        ((VALUES.tolist(), OFFSETS, 4), TypeError, r"values must be \[E\] beside offsets, .*got list"),
        ((VALUES, OFFSETS), TypeError, "num_items must be a whole number >= 0, an int, got NoneType"),
        ((VALUES.double(), OFFSETS, 4), TypeError, "values must be a tensor of signed integers"),
        ((VALUES, OFFSETS, 3), ValueError, r"hold ids 0..3, expected 0..2"),
    ],
)
def test_what_interactions_are_not_made_of(arguments, error, message):
    with pytest.raises(error, match=message):
        trm.Interactions.from_jagged(*arguments)


def test_prefix_history_of_what_is_not_jagged():
    with pytest.raises(
        TypeError, match=r"values must be ids \[E\] beside offsets, .*got a torch.int64 tensor of shape \[3\]"
    ):
        trm.prefix_history(VALUES)
    with pytest.raises(TypeError, match="history must hold int64, int32 or int16, got a torch"):
        trm.prefix_history(VALUES.double(), OFFSETS)


def test_no_sequences():
    assert len(trm.prefix_history(VALUES[:0], OFFSETS[:1])) == 0
    assert jagged.side_by_side(VALUES[:0], OFFSETS[:0], OFFSETS[:0], 0, -1).shape == (0, 1)


@pytest.mark.parametrize("width", [0, 1, 4])
def test_rows_side_by_side_are_copies(width):
    """Rows side by side are copies: writing into them does not change the tensors that they are made of."""
    values, ends = torch.arange(10, 16), torch.tensor([0, 2, 2, 6])
    before = values.clone(), ends.clone()
    made = jagged.side_by_side(values, ends[:-1], ends[1:], width, -1)
    assert made.tolist() == [row[: max(width, 1)] for row in ([10, 11, -1, -1], [-1] * 4, [12, 13, 14, 15])]
    made.fill_(7)
    assert torch.equal(values, before[0])
    assert torch.equal(ends, before[1])
