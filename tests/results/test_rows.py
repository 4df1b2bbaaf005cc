"""Rows kept by id: their contents, their files, and their intervals."""

import math
import struct
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from states import same

import torchrecmetrics as trm
from torchrecmetrics.core.intervals import interval

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
stats = pytest.importorskip("scipy.stats")

NAN = float("nan")


def make(n=40, seed=0, words=False, **options):
    """Return rows of two labels, one of which is undefined in every seventh row."""
    generator = torch.Generator().manual_seed(seed)
    values = {name: torch.rand(n, generator=generator, dtype=torch.float64) for name in ("NDCG@5", "RPrecision")}
    values["RPrecision"][::7] = NAN
    ids = torch.randperm(10 * n, generator=generator)[:n]
    return trm.Rows(values, [f"ü{i}" for i in ids.tolist()] if words else ids, **options)


FULL = {
    "weights": torch.rand(40, generator=torch.Generator().manual_seed(1)),
    "own_weights": {"RPrecision": torch.arange(40.0)},
    "options": {"ties": "realistic", "overlap": None},
}


def test_rows_are_on_the_host_as_float64_and_int64():
    rows = trm.Rows({"a": torch.tensor([0.5, 1.0])}, torch.tensor([3, 4], dtype=torch.int32), torch.tensor([1, 2]))

    assert rows.values["a"].dtype == rows.weights.dtype == torch.float64
    assert rows.ids.dtype == torch.int64
    assert torch.equal(trm.Rows({"a": torch.ones(2)}, [3, 4]).ids, rows.ids)


def test_rows_cannot_be_changed():
    with pytest.raises(AttributeError):
        make().ids = torch.tensor([1, 2])


def test_rows_say_what_they_hold():
    assert repr(make(clusters=torch.arange(40) // 8, **FULL)) == "Rows(40 rows, 2 labels, weights, 5 clusters)"
    assert repr(trm.Rows({"a": torch.ones(1)}, ["x"], clusters=["y"])) == "Rows(1 row, 1 label, 1 cluster)"


def test_the_mean_is_weighted_and_leaves_out_undefined_rows():
    """A metric's own weights replace those of the rows."""
    values = {"a": torch.tensor([1.0, 0.0, NAN]), "b": torch.tensor([1.0, 0.0, 0.5]), "c": torch.full((3,), NAN)}
    own = {"b": torch.tensor([0.0, 1.0, 1.0])}
    rows = trm.Rows(values, torch.arange(3), torch.tensor([3.0, 1.0, 9.0]), own_weights=own)

    assert rows.mean() == pytest.approx({"a": 3 / (3 + 1), "b": 0.5 / 2, "c": NAN}, nan_ok=True)


TWO, PAIR = {"a": torch.ones(2)}, torch.arange(2)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((TWO, torch.tensor([7, 7])), ValueError, "id 7 occurs in 2 rows, .* clusters= for rows that belong together"),
        ((TWO, torch.tensor([0.0, 1.0])), TypeError, "ids must be whole numbers .* got a torch.float32 tensor"),
        ((TWO, torch.tensor([1, 2**63], dtype=torch.uint64)), ValueError, r"ids must be below 2\^63"),
        ((TWO, ["x", 1]), TypeError, "ids must be whole numbers .*, or a list of text"),
        ((TWO, torch.arange(3)), ValueError, r"values of a must be numbers \[3\], as many as ids"),
        (({"a": [1, 2]}, PAIR), TypeError, r"values of a must be a tensor of numbers \[2\], got list"),
        (({}, PAIR), TypeError, "values must be a dict of labels"),
        (({"id": torch.ones(2)}, PAIR), ValueError, "'id' cannot be a label"),
        ((TWO, PAIR, -torch.ones(2)), ValueError, "weights must be finite and not negative"),
        ((TWO, PAIR, None, torch.arange(3)), ValueError, "clusters must have 2 rows, as many as ids, got 3"),
        ((TWO, PAIR, None, None, {"b": torch.ones(2)}), ValueError, "own_weights has 'b', which is not in values"),
    ],
)
def test_columns_that_do_not_fit_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        trm.Rows(*arguments)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bounds": (1, 0)}, r"bounds must be \(least, greatest\) of a row's value, or None, got \(1, 0\)"),
        ({"level": 2}, "level must be between 0 and 1"),
    ],
)
def test_a_bad_option_of_an_interval_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        make().confidence_interval(**options)


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("options", [{}, FULL, FULL | {"clusters": torch.arange(40) // 3}, {"clusters": ["a"] * 40}])
def test_a_parquet_file_gives_back_every_column_bit_by_bit(words, options, tmp_path):
    rows = make(words=words, **options)
    rows.to_parquet(tmp_path / "rows.parquet")
    read = trm.Rows.from_parquet(tmp_path / "rows.parquet")

    names = ("ids", "values", "weights", "clusters", "own_weights", "options")
    assert [same(getattr(read, name), getattr(rows, name)) for name in names] == [True] * 6
    assert [*read.values] == [*rows.values]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def write_other(path):
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"id": [1]}), path)


def write_later(path):
    """Write rows as a later version of the package would."""
    table = make().to_arrow()
    later = {key: value.replace(b'"version": 1', b'"version": 2') for key, value in table.schema.metadata.items()}
    pytest.importorskip("pyarrow.parquet").write_table(table.replace_schema_metadata(later), path)


@pytest.mark.parametrize(
    ("write", "error", "says"),
    [
        (lambda path: path.write_text("text"), ValueError, "is no parquet file of Rows, or is damaged"),
        (write_other, ValueError, "was not written by Rows.to_parquet"),
        (write_later, ValueError, "of version 2, later than 1: update torchrecmetrics"),
        (lambda path: None, FileNotFoundError, "there is no file"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(write, error, says, tmp_path):
    write(tmp_path / "rows")
    with pytest.raises(error, match=says):
        trm.Rows.from_parquet(tmp_path / "rows")


def test_a_value_that_the_disk_has_changed_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = trm.Rows({"HR": torch.tensor([0.25, 0.75])}, torch.arange(2))
    rows.to_parquet(path)
    path.write_bytes(path.read_bytes().replace(struct.pack("<d", 0.75), struct.pack("<d", 0.5)))

    with pytest.raises(ValueError, match="is damaged"):
        trm.Rows.from_parquet(path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        make().to_parquet(tmp_path / "no" / "rows.parquet")


def test_dicts_and_frames_have_the_same_columns_with_the_ids_first():
    rows = make(clusters=torch.arange(40) // 8, **FULL)
    frames = (
        pytest.importorskip("pandas").DataFrame(rows.to_pandas()),
        pytest.importorskip("polars") and rows.to_polars(),
    )

    names = ["id", "cluster", "weight", "NDCG@5", "RPrecision", "weight of RPrecision"]
    assert [*rows.to_dict()] == [*frames[0].columns] == frames[1].columns == names
    assert frames[1]["NDCG@5"].to_list() == rows.to_dict()["NDCG@5"] == rows.values["NDCG@5"].tolist()
    assert math.isnan(frames[0]["RPrecision"][0])


def ends(values, weights=None, clusters=None, **options):
    """Return the interval of rows with these values."""
    return trm.Rows({"a": values}, torch.arange(len(values)), weights, clusters).confidence_interval(**options)["a"]


def test_the_interval_of_250_rows_is_scipys_bca_bootstrap():
    """Up to the draws, and to t in place of the normal quantile; the percentile bootstrap is further away."""
    values = torch.rand(250, generator=torch.Generator().manual_seed(2)).double() ** 4
    bootstrap = stats.bootstrap((values.numpy(),), np.mean, n_resamples=40_000, rng=np.random.default_rng(0))
    low, high = bootstrap.confidence_interval
    _, percentile = np.quantile(bootstrap.bootstrap_distribution, [0.025, 0.975])

    assert ends(values) == pytest.approx((low, high), abs=0.02 * (high - low))
    assert abs(ends(values)[1] - percentile) > 0.02 * (high - low)


def abc(values, weights, z, step=1e-4):
    """Return the ABC interval of a weighted mean by numerical derivatives: Efron and Tibshirani's `abcnon` (1993)."""
    n, normal = len(values), NormalDist()

    def mean(shares):
        weighted = [share * weight for share, weight in zip(shares, weights, strict=True)]
        return sum(w * x for w, x in zip(weighted, values, strict=True)) / sum(weighted)

    def moved(row, by):
        return mean([(1 - by) / n + by * (other == row) for other in range(n)])

    centre = mean([1 / n] * n)
    slopes = [(moved(row, step) - moved(row, -step)) / (2 * step) for row in range(n)]
    bends = [(moved(row, step) - 2 * centre + moved(row, -step)) / step**2 for row in range(n)]
    squares = sum(slope**2 for slope in slopes)
    error, skewness = squares**0.5 / n, sum(slope**3 for slope in slopes) / (6 * squares**1.5)
    direction = [slope / (n**2 * error) for slope in slopes]
    along = lambda by: mean([1 / n + by * d for d in direction])  # noqa: E731
    curvature = (along(step) - 2 * centre + along(-step)) / (2 * error * step**2)
    bias = sum(bends) / (2 * n**2)
    z0 = normal.inv_cdf(2 * normal.cdf(skewness) * normal.cdf(curvature - bias / error))
    return [along((z0 + end) / (1 - skewness * (z0 + end)) ** 2) for end in (-z, z)]


@pytest.mark.parametrize(
    "weights", [torch.ones(50), 1 + 9 * torch.rand(50, generator=torch.Generator().manual_seed(6))]
)
def test_distances_from_the_mean_are_those_of_the_abc_algorithm(weights):
    """With t for z, times sqrt(n / (n - 1)) as Student's are; they are not alike."""
    values, weights = torch.rand(50, generator=torch.Generator().manual_seed(6)).double() ** 5, weights.double()
    low, high = ends(values, weights, level=0.9)
    t = stats.t((weights.sum() ** 2 / weights.square().sum()).item() - 1).ppf(0.95)
    mean = ((weights * values).sum() / weights.sum()).item()
    distances = [(50 / 49) ** 0.5 * (end - mean) for end in abc(values.tolist(), weights.tolist(), t)]

    assert (low - mean, high - mean) == pytest.approx(distances, rel=1e-5)
    assert abs(high + low - 2 * mean) > 0.1 * (high - low)


@pytest.mark.parametrize("level", [0.95, 1 - 1e-9, 1 - 1e-15])
@pytest.mark.parametrize("largest", [1.0, 10.0])
def test_no_end_leaves_the_range_of_the_values(largest, level):
    values = torch.tensor([0.5] + [0.1] * 20 + [0.2] * 20).double()
    low, high = ends(values, torch.tensor([largest] + [1.0] * 40), level=level)

    assert 0.1 <= low <= high <= 0.5


def test_a_few_heavy_rows_are_few_rows():
    """They have Student's interval: a weight of 1,000 beside 40 of 1 is an effective number of 1.08 rows."""
    values = torch.tensor([0.5] + [0.1] * 20 + [0.2] * 20).double()
    mean, size = (500 + 2 + 4) / 1040, 1040**2 / (1000**2 + 40)
    squares = (1000 * (0.5 - mean)) ** 2 + 20 * (0.1 - mean) ** 2 + 20 * (0.2 - mean) ** 2

    expected = interval(mean, (squares * 41 / 40) ** 0.5 / 1040, size)
    assert ends(values, torch.tensor([1000.0] + [1.0] * 40)) == pytest.approx(expected)


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**6), clustered=st.booleans(), weighted=st.booleans())
def test_intervals_are_equal_bit_by_bit_in_any_order_of_the_rows(seed, clustered, weighted):
    columns = {"clusters": torch.arange(40) % 13} if clustered else {}
    columns |= {"weights": FULL["weights"]} if weighted else {}
    own = FULL["own_weights"] if weighted else {}
    rows, order = make(**columns, own_weights=own), torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    other = trm.Rows(
        {label: values[order] for label, values in rows.values.items()},
        rows.ids[order],
        **{name: column[order] for name, column in columns.items()},
        own_weights={label: weights[order] for label, weights in own.items()},
    )

    assert other.confidence_interval() == rows.confidence_interval()


def test_rows_repeated_in_clusters_of_two_have_the_interval_of_the_rows_once():
    values = torch.rand(150, generator=torch.Generator().manual_seed(4)).double()
    once, separate = ends(values), ends(values.repeat_interleave(2))

    assert ends(values.repeat_interleave(2), clusters=torch.arange(300) // 2) == pytest.approx(once)
    assert (separate[1] - separate[0]) * 1.3 < once[1] - once[0]


def test_a_row_of_weight_0_or_without_a_value_counts_as_absent():
    values, kept = torch.rand(60, generator=torch.Generator().manual_seed(5)).double(), torch.arange(60) % 3 > 0

    expected = pytest.approx(ends(values[kept]))
    assert ends(values, kept.double()) == ends(values.where(kept, NAN)) == ends(values, 2 * kept) == expected


@pytest.mark.parametrize(
    ("values", "clusters"), [([0.3] + [NAN] * 8, None), ([0.0, 1.0, 2.0], ["x"] * 3), ([], None), ([], [])]
)
def test_fewer_than_two_rows_or_clusters_have_no_interval(values, clusters):
    assert all(map(math.isnan, ends(torch.tensor(values), clusters=clusters)))


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("options", "bounds"), [({}, (0, 1)), ({"bounds": (0, 4)}, (0, 4))])
def test_equal_rows_have_the_score_interval(options, bounds, value):
    expected = pytest.approx(interval(value, 0.0, 200, bounds))
    assert ends(torch.full((200,), value), **options) == expected


@pytest.mark.parametrize("bounds", [None, (2.0, 3.0), (0.0, math.inf)])
def test_equal_rows_without_finite_bounds_around_them_have_no_interval(bounds):
    assert all(map(math.isnan, ends(torch.full((200,), 0.1), bounds=bounds)))


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("hits", "is_score"), [(9, True), (10, False), (55, False), (56, True)])
def test_fewer_than_10_of_65_rows_unlike_the_others_have_the_score_interval(weighted, clustered, hits, is_score):
    """It is the metric's own. All rows of a cluster count as one."""
    values = (torch.arange(65) < hits).double()
    weights = 1 + (torch.arange(65) % 4) if weighted else None
    metric = trm.HR(1)
    metric.update((2 - values).long(), depth=2, weights=weights)
    clusters = None
    if clustered:
        values, clusters = values.repeat_interleave(2), torch.arange(130) // 2
        weights = weights.repeat_interleave(2) if weighted else None

    score = pytest.approx(metric.result().confidence_intervals["HR@1"], abs=1e-12)
    assert (ends(values, weights, clusters) == score) == is_score


@pytest.mark.parametrize(("options", "method"), [({}, {"method": "student"}), ({"bounds": (0, 5)}, {"bounds": (0, 5)})])
def test_few_values_have_students_interval_or_the_score_interval_of_bounds_that_hold_them(options, method):
    values = torch.tensor([0.0, 0, 0, 5, 2], dtype=torch.float64)

    expected = interval(7 / 5, values.std().item() / 5**0.5, 5, **method)
    assert ends(values, **options) == pytest.approx(expected)


FINITE = torch.arange(30).double()
WITH_INFINITY = {"MeanRank": FINITE.index_fill(0, torch.tensor([4]), math.inf), "HR@1": (FINITE < 9).double()}


def test_an_infinite_value_makes_the_mean_infinite_unless_it_has_no_weight():
    """It is in the place of 4; of both signs, the mean is undefined."""
    weights = torch.ones(30).index_fill(0, torch.tensor([4]), 0)
    both = {"a": torch.tensor([math.inf, -math.inf, 1.0])}

    assert trm.Rows(WITH_INFINITY, torch.arange(30)).mean() == {"MeanRank": math.inf, "HR@1": 9 / 30}
    assert trm.Rows(WITH_INFINITY, torch.arange(30), weights).mean()["MeanRank"] == pytest.approx((29 * 15 - 4) / 29)
    assert math.isnan(trm.Rows(both, torch.arange(3)).mean()["a"])


def test_an_infinite_value_is_saved(tmp_path):
    trm.Rows(WITH_INFINITY, torch.arange(30)).to_parquet(tmp_path / "rows.parquet")
    assert trm.Rows.from_parquet(tmp_path / "rows.parquet").values["MeanRank"].equal(WITH_INFINITY["MeanRank"])


@pytest.mark.parametrize(
    "call",
    [trm.Rows.confidence_interval, lambda rows: trm.compare({"a": rows, "b": rows})],
    ids=["interval", "compare"],
)
def test_infinite_values_are_refused_by_intervals_and_tests(call):
    with pytest.raises(ValueError, match=r"values of MeanRank are infinite in 1 of 30 rows.*rank inf"):
        call(trm.Rows(WITH_INFINITY, torch.arange(30)))


def test_rows_know_which_users_have_a_list(tmp_path):
    """Of three users one has none; the file keeps the flag."""
    pytest.importorskip("pyarrow")
    truth = {"al": ["x"], "bo": ["y"], "eve": ["x"]}
    rows = trm.evaluate_lists("HR@1", {"al": ["x"], "eve": ["y"]}, target=truth, keep_rows=True).rows
    rows.to_parquet(tmp_path / "rows.parquet")

    assert dict(zip(rows.ids, rows.served.tolist(), strict=True)) == {"al": True, "bo": False, "eve": True}
    assert trm.Rows.from_parquet(tmp_path / "rows.parquet").served.tolist() == rows.served.tolist()
