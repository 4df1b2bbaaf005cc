"""Plots, tested by the lines, intervals, labels and legends that they draw; no display is needed."""

import sys
from itertools import pairwise

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.core.intervals import quantile

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    """Use the default style, which sizes depend on; draw every open figure, because a layout fails only then."""
    with plt.style.context("default"):
        yield
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()
        plt.close("all")


def filled(metrics=("HR", "NDCG", "AUROC"), k=(1, 5, 20), n=120, **options):
    """Return a collection of n rows with three relevant items each."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(n, 200, generator=generator)
    target = torch.rand(n, 200, generator=generator).argsort(1)[:, :3]
    scores.scatter_add_(1, target, torch.rand(n, 3, generator=generator) * 0.5)
    collection = trm.RecMetricCollection(metrics, k=k, **options)
    collection.update(scores, target)
    return collection


def evaluation(metrics, k, **options):
    """Return an evaluation of 60 users, with a catalogue whose popularity is no share."""
    generator = torch.Generator().manual_seed(0)
    users, items = torch.randn(60, 4, generator=generator), torch.randn(30, 4, generator=generator)
    target = trm.Interactions.from_padded(torch.randint(30, (60, 1), generator=generator), num_items=30)
    catalogue = trm.Catalogue(30, popularity=torch.arange(1, 31) * 100, embeddings=items)
    return trm.evaluate(metrics, users, items, target=target, k=k, catalogue=catalogue, **options)


UNITS = ["HR", "AveragePopularity", "NDCG", "IntraListDiversity"]
"""Metrics of three units: from 0 to 1, popularities up to 3,000, and from 0 to 2."""


def runs(labels=("HR@10", "NDCG@10"), names=("pop", "gcn"), n=80):
    """Return correlated `Rows` of n rows by name, each 0.05 better than the one before it."""
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(n, generator=generator, dtype=torch.float64)

    def column(at):
        noise = torch.rand(n, generator=generator, dtype=torch.float64)
        return (own + 0.3 * noise + 0.05 * at).where(noise > 0.3, own)

    return {name: trm.Rows({label: column(at) for label in labels}, torch.arange(n)) for at, name in enumerate(names)}


def texts(labels):
    return [text.get_text() for text in labels]


def legend(axes):
    return texts(axes.get_legend().get_texts())


def titles(figure):
    return [panel.get_title(loc="left") for panel in figure.axes]


def bars(container, vertical=True):
    """Return the ends of an errorbar's intervals."""
    along = 1 if vertical else 0
    return [tuple(segment[:, along]) for segment in container.lines[2][0].get_segments() if segment.size]


def drawn_rows(axes):
    """Return the label, value, place and interval of each row of dots; places are counted from top to bottom."""
    bottom, top = axes.get_ylim()
    assert bottom > top
    return [
        (label, *container.lines[0].get_xdata(), *container.lines[0].get_ydata(), *bars(container, vertical=False))
        for label, container in zip(texts(axes.get_yticklabels()), axes.containers, strict=True)
    ]


def rows_of(values, intervals):
    """Return what `drawn_rows` returns for these values."""
    return [(key, value.item(), row, pytest.approx(intervals[key])) for row, (key, value) in enumerate(values.items())]


def drawn_line(container):
    """Return the cut-offs, values and intervals of a line."""
    return [*container.lines[0].get_xdata()], [*container.lines[0].get_ydata()], bars(container)


def line_of(collection, name):
    """Return what `drawn_line` returns for a metric of a collection."""
    points = [collection[f"{name}@{k}"] for k in (1, 5, 20)]
    intervals = [pytest.approx(point.confidence_interval()) for point in points]
    return [1, 5, 20], [point.compute().item() for point in points], intervals


def check_layout(figure, axes):
    """Check that labels and legend are in the figure, do not overlap and leave the axes wide."""
    figure.canvas.draw()
    assert axes.get_window_extent().width > 4 * figure.dpi
    if axes.get_legend():
        assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1
    boxes = [text.get_window_extent() for text in axes.get_yticklabels() if text.get_text()]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    assert all(figure.bbox.x0 <= box.x0 and box.y0 >= figure.bbox.y0 for box in boxes)


def test_each_metric_with_cutoffs_is_a_line_with_intervals():
    collection = filled()
    _, axes = trm.plot(collection)

    assert legend(axes) == ["HR", "NDCG", "AUROC"]
    assert [drawn_line(line) for line in axes.containers[:2]] == [line_of(collection, name) for name in ("HR", "NDCG")]


def test_axes_against_k_are_logarithmic_and_labelled():
    _, axes = trm.plot(filled())

    assert texts(axes.get_xticklabels()) == ["1", "5", "20"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("k", "value, 95 % interval", "log")


def test_a_metric_without_cutoffs_is_a_horizontal_line():
    collection = filled()
    _, axes = trm.plot(collection)
    (across,) = [line for line in axes.lines if line.get_label() == "AUROC"]
    (bottom, top), (low, high) = axes.get_ylim(), collection["AUROC"].confidence_interval()

    assert set(across.get_ydata()) == {collection.compute()["AUROC"].item()}
    assert bottom < low < high < top


def test_legends_have_prefix_options_and_a_single_cutoff():
    metrics = ["HR", trm.NDCG(5, gain="exponential"), trm.NDCG(20, gain="exponential"), trm.MRR(5)]
    _, axes = trm.plot(filled(metrics, prefix="test/"))

    assert legend(axes) == ["test/HR", "test/NDCG-exponential", "test/MRR@5"]


def test_equal_metrics_are_labelled_by_name():
    _, axes = trm.plot(filled({"a": trm.HR(5), "b": trm.HR(5), "c": trm.MRR(1), "d": trm.MRR(5)}, k=None))
    assert sorted(legend(axes)) == ["MRR", "a", "b"]


def test_a_single_cutoff_is_a_row_of_dots_without_legend():
    collection = filled(k=[10])
    _, axes = trm.plot(collection)

    intervals = {key: collection[key].confidence_interval() for key in collection}
    assert drawn_rows(axes) == rows_of(collection.compute(), intervals)
    assert axes.get_legend() is None


def test_a_metric_is_a_dot_with_its_interval():
    metric = trm.NDCG(10)
    metric.update(torch.arange(1, 31) % 9 + 1, depth=10)
    _, axes = trm.plot(metric)

    interval = pytest.approx(metric.confidence_interval())
    assert drawn_rows(axes) == [("NDCG@10", metric.compute().item(), 0, interval)]


def test_a_collection_without_rows_is_plotted_with_a_warning():
    with pytest.warns(UserWarning, match="no row"):
        trm.plot(trm.RecMetricCollection("HR", k=[1, 5]))


LONG = [f"a name of forty characters or so, {number:06d}" for number in range(12)]


@pytest.mark.parametrize("names", [LONG, ["0", "1-4", "5+"]], ids=["long", "short"])
def test_each_group_is_a_row_beside_which_names_do_not_overlap(names):
    result = evaluation("NDCG", k=5, groups=trm.Groups(torch.arange(60) % len(names), names))
    figure, axes = trm.plot(result.groups)

    values = {f"NDCG@5/{name}": result[f"NDCG@5/{name}"] for name in names}
    assert drawn_rows(axes) == rows_of(values, result.confidence_intervals)
    check_layout(figure, axes)


@pytest.mark.parametrize(("k", "axis"), [((2, 5, 10), "yaxis"), ((5,), "xaxis")])
def test_each_unit_has_its_own_axes_of_which_those_of_the_shares_are_returned(k, axis):
    """Shares are not flat beside counts."""
    figure, axes = trm.plot(evaluation(UNITS, k))
    shares, popularities, _ = (getattr(panel, axis).get_view_interval() for panel in figure.axes)

    assert axes is figure.axes[0]
    assert [len(panel.containers) for panel in figure.axes] == [2, 1, 1]
    assert -1 < min(shares) < max(shares) < 2 < 100 < max(popularities)


def test_axes_of_units_do_not_overlap():
    figure, _ = trm.plot(evaluation(UNITS, (2, 5, 10)))
    figure.canvas.draw()
    boxes = [panel.get_window_extent() for panel in figure.axes]

    assert not any(above.overlaps(below) for above, below in pairwise(boxes))
    assert min(box.width for box in boxes) > 4 * figure.dpi


@pytest.mark.parametrize("form", [lambda axes: axes, list])
def test_axes_of_ones_own_are_drawn_in(form):
    figure, axes = plt.subplots(3)
    assert trm.plot(evaluation(UNITS, k=(2, 5)), form(axes)) == (figure, axes[0])


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: trm.plot(evaluation(UNITS, (2, 5)), plt.subplots()[1]), ValueError, "3 axes, for 0 to 1, Ave.*got 1"),
        (lambda: trm.plot(filled(), plt.figure()), TypeError, "ax must be matplotlib axes, got Figure"),
        (lambda: trm.plot({"HR@1": 0.5}), TypeError, "plot draws an evaluation, .* or models by name, got .*float"),
        (lambda: trm.plot([0.5]), TypeError, "plot draws an evaluation, .* or models by name, got .*list"),
        (lambda: trm.plot({}), TypeError, "plot draws an evaluation, .* or models by name, got .*dict"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, error, message):
    with pytest.raises(error, match=message):
        draw()


def test_each_metric_of_several_models_has_axes_with_a_line_per_model():
    models = {"pop": filled(), "gcn": filled(n=60)}
    figure, axes = trm.plot(models)

    assert (titles(figure), legend(axes)) == (["HR", "NDCG", "AUROC"], ["pop", "gcn"])
    for name, panel in zip(("HR", "NDCG"), figure.axes, strict=False):
        assert [drawn_line(line) for line in panel.containers] == [line_of(model, name) for model in models.values()]
    check_layout(figure, axes)


TWO_MODELS = ["pop", "a name of forty characters or more, by chance"]


def test_each_metric_with_one_cutoff_has_axes_with_a_row_per_model():
    result = evaluation(UNITS, k=5)
    figure, axes = trm.plot(dict.fromkeys(TWO_MODELS, result))

    assert [*map(drawn_rows, figure.axes)] == [
        rows_of(dict.fromkeys(TWO_MODELS, result[key]), dict.fromkeys(TWO_MODELS, result.confidence_intervals[key]))
        for key in titles(figure)
    ]
    assert {*titles(figure)} == {f"{name}@5" for name in UNITS}
    check_layout(figure, axes)


def test_rows_and_lists_of_seeds_have_the_means_and_errors_of_compare():
    rows = runs(["NDCG@5", "NDCG@10", "MRR"], ["pop", "gcn", "other"])
    models = {"pop": rows["pop"], "gcn": [rows["gcn"], rows["other"]]}
    figure, axes = trm.plot(models)
    means = trm.compare(models, resamples=100).means

    assert titles(figure) == ["NDCG", "MRR"]
    for name, container in zip(models, axes.containers, strict=True):
        expected = [means[name, key] for key in ("NDCG@5", "NDCG@10")]
        halves = [quantile(0.975, 79) * mean.standard_error for mean in expected]
        assert list(container.lines[0].get_ydata()) == [mean.value for mean in expected]
        assert [(high - low) / 2 for low, high in bars(container)] == pytest.approx(halves)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("form", [lambda e: e, lambda e: [e, e], lambda e: e.rows], ids=["evaluation", "list", "rows"])
def test_an_interval_is_within_the_bounds_of_the_metric(form, order):
    """The interval of a rare hit is that of the evaluation, also for its rows or seeds."""
    result = evaluation(["HR"], k=1, keep_rows=True)
    low, high = result.confidence_intervals["HR@1"]
    _, axes = trm.plot(dict([("pop", result), ("gcn", form(result))][::order]))

    assert 0 < low < result["HR@1"] < 0.1
    assert [bars(container, vertical=False) for container in axes.containers] == [[pytest.approx((low, high))]] * 2


@pytest.mark.parametrize("form", [lambda rows: rows, lambda rows: [rows, rows]], ids=["rows", "seeds"])
def test_rows_of_three_clusters_have_two_degrees_of_freedom(form):
    """The half width is t(.975, 2) = 4.303 standard errors, as three means of equal weight have it."""
    values = torch.rand(99, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = trm.Rows({"cost": values}, torch.arange(99), clusters=torch.arange(99) % 3)
    error = values.reshape(33, 3).mean(0).std().item() / 3**0.5
    _, axes = trm.plot({"a": form(rows)})
    ((low, high),) = bars(axes.containers[0], vertical=False)

    assert (high - low) / 2 == pytest.approx(4.302653 * error, rel=1e-6)


def test_weighted_rows_have_the_interval_of_their_evaluation():
    """Weights of 1 and 3 make 30 rows an effective 30 x (2^2) / 5 = 24."""
    metric = trm.RecMetricCollection("NDCG@30", accumulators=[trm.KeptRows()])
    weights = torch.tensor([1.0, 3.0]).repeat(15)
    metric.update(torch.randperm(30) + 1, depth=30, weights=weights, row_ids=torch.arange(30))
    _, axes = trm.plot({"all": metric, "rows": metric.rows})
    interval, of_rows = (bars(container, vertical=False)[0] for container in axes.containers)

    assert of_rows == pytest.approx(interval)


def test_models_with_other_cutoffs_share_the_axes_of_a_metric():
    models = {"pop": filled(["HR"], k=[5]), "gcn": filled(["HR"], k=[1, 5]), "mf": filled(["HR", "NDCG"], k=[20])}
    figure, axes = trm.plot(models)

    assert (titles(figure), legend(axes)) == (["HR", "NDCG@20"], ["pop", "gcn", "mf"])
    assert [list(container.lines[0].get_xdata()) for container in axes.containers] == [[5], [1, 5], [20]]


def by_group(name):
    collection = trm.RecMetricCollection("HR@1", accumulators=[trm.ByGroup("rest", name)])
    collection.update(torch.rand(4, 5), torch.arange(4), groups=torch.arange(4) % 2)
    return collection.result().groups


@pytest.mark.parametrize("name", ["_own", "$10-$20", "cost$_$", r"$\no$", "$5"])
@pytest.mark.parametrize(
    ("make", "label_of"),
    [
        (lambda name: {name: filled(), "b": filled()}, lambda axes: axes.get_legend().get_texts()[0]),
        (lambda name: runs(names=[name, "b"]), lambda axes: axes.get_yticklabels()[0]),
        (by_group, lambda axes: axes.get_yticklabels()[1]),
        (lambda name: trm.compare(runs(names=[name, "b"]), resamples=100), lambda axes: axes.xaxis.label),
        (
            lambda name: trm.compare(runs(names=[name, "b", "c"]), resamples=100),
            lambda axes: axes.get_legend().get_texts()[0],
        ),
    ],
    ids=["lines", "rows", "groups", "comparison", "pairs"],
)
def test_a_name_is_shown_as_it_is(make, label_of, name):
    """It is not taken for mathematics, or hidden since it begins with an underscore."""
    _, axes = trm.plot(make(name))
    label = label_of(axes).get_text()

    assert name in label.replace(r"\$", "$")
    assert not matplotlib.cbook.is_math_text(label)


THICK, THIN = 3, 1  # widths of the lines of intervals and of corrected ones


def horizontal(axes, width):
    """Return the ends of the horizontal lines of this width by row."""
    lines = [line for line in axes.lines if line.get_linewidth() == width and len({*line.get_ydata()}) == 1]
    return {line.get_ydata()[0]: tuple(line.get_xdata()) for line in lines}


def test_each_difference_is_a_dot_with_a_thick_interval_and_a_thin_corrected_one():
    comparison = trm.compare(runs(), resamples=500)
    _, axes = trm.plot(comparison)
    results = [*enumerate(comparison.results)]

    assert horizontal(axes, THICK) == {row: (result.low, result.high) for row, result in results}
    assert horizontal(axes, THIN) == {row: (result.adjusted_low, result.adjusted_high) for row, result in results}
    (dots,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert list(dots.get_xdata()) == [result.difference for _, result in results]


def test_the_picture_of_a_comparison_says_what_it_shows():
    _, axes = trm.plot(trm.compare(runs(), resamples=500))

    assert texts(axes.get_yticklabels()) == ["HR@10", "NDCG@10"]
    assert (axes.get_xlabel(), axes.get_legend()) == ("gcn - pop", None)
    assert axes.get_title(loc="left") == "95 % intervals, thin: corrected for 2 comparisons"


def three_pairs():
    names = ("popularity", "matrix factorisation, 64 factors", "LightGCN")
    labels = [f"NDCG-exponential@{k}" for k in range(1, 7)]
    return trm.compare(runs(labels, names), resamples=200, margin=0.01)


def test_pairs_of_runs_and_the_margin_are_in_the_legend_in_colours_of_their_own():
    comparison = three_pairs()
    figure, axes = trm.plot(comparison)
    colours = [line.get_color() for line in axes.lines if line.get_marker() not in ("None", "")]
    (broken,) = [line for line in axes.lines if line.get_label() == "margin 0.01"]

    assert legend(axes) == [*comparison.pairs, "margin 0.01"]
    assert colours == [entry.get_color() for entry in axes.get_legend().legend_handles[:3]]
    assert (len({*colours}), {end for end in broken.get_xdata() if end == end}) == (3, {-0.01})
    check_layout(figure, axes)


def test_pairs_of_runs_are_apart_within_a_label():
    _, axes = trm.plot(three_pairs())
    dots = [line for line in axes.lines if line.get_marker() not in ("None", "")]
    rows = sorted(y for line in dots for y in line.get_ydata())

    assert len(rows) == 3 * 6
    assert min(b - a for a, b in pairwise(rows)) > 0.2


def test_a_single_comparison_has_no_corrected_interval():
    _, axes = trm.plot(trm.compare(runs(["HR@10"]), resamples=500))

    assert axes.get_title(loc="left") == "95 % intervals"
    assert horizontal(axes, THIN) == {}


def test_a_one_sided_interval_reaches_the_edge_of_the_axes():
    comparison = trm.compare(runs(["HR@10"]), resamples=500, alternative="greater")
    _, axes = trm.plot(comparison)
    ((low, high),) = horizontal(axes, THICK).values()
    right_edge = axes.get_xlim()[1]

    assert (low, high) == (comparison["HR@10"].low, right_edge)


@pytest.mark.parametrize("make", [filled, lambda: trm.compare(runs(), resamples=100)])
def test_without_matplotlib_the_error_names_the_extra(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"plots need matplotlib: pip install 'torchrecmetrics\[plot\]'"):
        trm.plot(make())
