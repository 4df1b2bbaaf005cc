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


def runs(labels=("HR@10", "NDCG@10"), names=("pop", "gcn"), n=80):
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


def bars(container, vertical=True):
    """Return the ends of an errorbar's intervals."""
    along = 1 if vertical else 0
    return [tuple(segment[:, along]) for segment in container.lines[2][0].get_segments() if segment.size]


def check_rows(axes, values, intervals):
    """Check that each key is one dot with a horizontal interval, in order from top to bottom."""
    assert texts(axes.get_yticklabels()) == [*values]
    bottom, top = axes.get_ylim()
    assert bottom > top
    for place, (key, container) in enumerate(zip(values, axes.containers, strict=True)):
        assert list(container.lines[0].get_xdata()) == [values[key].item()]
        assert list(container.lines[0].get_ydata()) == [place]
        assert bars(container, vertical=False) == [pytest.approx(intervals[key])]


def check_layout(figure, axes):
    """Check that labels and legend are in the figure, do not overlap and leave the axes wide."""
    figure.canvas.draw()
    assert axes.get_window_extent().width > 4 * figure.dpi
    if axes.get_legend():
        assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1
    boxes = [text.get_window_extent() for text in axes.get_yticklabels() if text.get_text()]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    assert all(figure.bbox.x0 <= box.x0 and box.y0 >= figure.bbox.y0 for box in boxes)


def test_against_k():
    """Each metric is one line with cut-offs, values and intervals."""
    collection = filled()
    _, axes = trm.plot(collection)
    values = collection.compute()

    assert legend(axes) == ["HR", "NDCG", "AUROC"]
    for name, container in zip(("HR", "NDCG"), axes.containers, strict=True):
        expected = [collection[f"{name}@{k}"].confidence_interval() for k in (1, 5, 20)]
        assert list(container.lines[0].get_xdata()) == [1, 5, 20]
        assert list(container.lines[0].get_ydata()) == [values[f"{name}@{k}"].item() for k in (1, 5, 20)]
        assert bars(container) == [pytest.approx(ends) for ends in expected]


def test_axes_against_k():
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


def test_names():
    """Legend labels hold the prefix, options and a single cut-off; equal metrics are labelled by name."""
    metrics = ["HR", trm.NDCG(5, gain="exponential"), trm.NDCG(20, gain="exponential"), trm.MRR(5)]
    _, axes = trm.plot(filled(metrics, prefix="test/"))
    assert legend(axes) == ["test/HR", "test/NDCG-exponential", "test/MRR@5"]
    _, axes = trm.plot(filled({"a": trm.HR(5), "b": trm.HR(5), "c": trm.MRR(1), "d": trm.MRR(5)}, k=None))
    assert sorted(legend(axes)) == ["MRR", "a", "b"]


def test_rows_of_values():
    """A single cut-off, a metric and a value of a collection are dots in rows; `plot` of these is torchmetrics' own."""
    collection = filled(k=[10])
    values = collection.compute()
    _, axes = trm.plot(collection)
    check_rows(axes, values, {key: collection[key].confidence_interval() for key in collection})
    assert axes.get_legend() is None
    metric = trm.NDCG(5)
    metric.update(torch.arange(1, 31) % 9 + 1, depth=10)
    for result, key in ((metric, "NDCG@5"), (collection["NDCG@10"], "NDCG@10")):
        _, axes = trm.plot(result)
        check_rows(axes, {key: result.compute()}, {key: result.confidence_interval()})
        _, axes = result.plot([result.compute()] * 3)
        assert len(axes.lines[0].get_ydata()) == 3
    _, axes = collection.plot([values, values], together=True)
    assert len(axes.lines) == len(collection.plot()) == len(collection)


def test_without_rows():
    """A collection without rows is plotted with a warning; nan values and intervals are not drawn."""
    collection = trm.RecMetricCollection("HR", k=[1, 5])
    with pytest.warns(UserWarning, match="no row"):
        trm.plot(collection)


LONG = [f"a name of forty characters or so, {number:06d}" for number in range(18)]


@pytest.mark.parametrize("names", [LONG[:12], ["0", "1-4", "5+"]], ids=["12 long", "3 short"])
def test_groups(names):
    """Each group is a row from top to bottom, beside which names do not overlap."""
    found = evaluation("NDCG", k=5, groups=trm.Groups(torch.arange(60) % len(names), names))
    figure, axes = trm.plot(found.groups)
    keys = [f"NDCG@5/{name}" for name in names]
    check_rows(axes, {key: found[key] for key in keys}, found.confidence_intervals)
    check_layout(figure, axes)


@pytest.mark.parametrize("k", [(2, 5, 10), (5,)])
def test_units(k):
    """Each unit has its own axes, so that shares are not flat beside counts; those of the shares are returned."""
    figure, axes = trm.plot(evaluation(UNITS, k))
    low, high = axes.get_ylim() if len(k) > 1 else axes.get_xlim()
    popular = figure.axes[1].get_ylim() if len(k) > 1 else figure.axes[1].get_xlim()

    assert axes is figure.axes[0]
    assert [len(each.containers) for each in figure.axes] == [2, 1, 1]
    assert -1 < low < high < 2
    assert max(popular) > 100


def test_axes_of_units_do_not_overlap():
    figure, _ = trm.plot(evaluation(UNITS, (2, 5, 10)))
    figure.canvas.draw()

    for above, below in pairwise(figure.axes):
        assert not above.get_window_extent().overlaps(below.get_window_extent())
        assert above.get_window_extent().width > 4 * figure.dpi


def test_own_axes():
    """As many axes must be passed as there are scales; a single one raises an error that names the fix."""
    found = evaluation(UNITS, k=(2, 5))
    figure, given = plt.subplots(3)
    assert trm.plot(found, given) == (figure, given[0])
    assert trm.plot(found, given.tolist()) == (figure, given[0])
    assert trm.plot(filled(), given[1]) == (figure, given[1])
    with pytest.raises(ValueError, match=r"3 axes, for 0 to 1, AveragePopularity, 0 to 2: pass ax=\[...\] .*got 1"):
        trm.plot(found, given[0])
    with pytest.raises(TypeError, match=r"ax must be matplotlib axes, got Figure"):
        trm.plot(filled(), figure)
    for result, kind in (({"HR@1": 0.5}, "float"), ([0.5], "list"), ({}, "dict")):
        with pytest.raises(TypeError, match=rf"plot draws an evaluation, .* or models by name, got .*{kind}"):
            trm.plot(result)


class TestModels:
    def test_against_k(self):
        """Each metric has axes of its own with one line per model, and intervals; without cut-offs, one row each."""
        models = {"pop": filled(), "gcn": filled(n=60)}
        figure, axes = trm.plot(models)
        assert [panel.get_title(loc="left") for panel in figure.axes] == ["HR", "NDCG", "AUROC"]
        assert axes is figure.axes[0]
        for name, panel in zip(("HR", "NDCG"), figure.axes, strict=False):
            assert legend(panel) == ["pop", "gcn"]
            for collection, container in zip(models.values(), panel.containers, strict=True):
                points = [collection[f"{name}@{k}"] for k in (1, 5, 20)]
                assert list(container.lines[0].get_xdata()) == [1, 5, 20]
                assert list(container.lines[0].get_ydata()) == [point.compute().item() for point in points]
                assert bars(container) == [pytest.approx(point.confidence_interval()) for point in points]
        of_auroc = {name: collection["AUROC"] for name, collection in models.items()}
        values = {name: value.compute() for name, value in of_auroc.items()}
        intervals = {name: value.confidence_interval() for name, value in of_auroc.items()}
        check_rows(figure.axes[2], values, intervals)
        check_layout(figure, axes)

    def test_one_cutoff(self):
        """With a single cut-off each model is a row in the axes of each metric; axes of one's own can be passed."""
        models = {
            "pop": evaluation(UNITS, k=5),
            "a name of forty characters or more, by chance": evaluation(UNITS, k=5),
        }
        figure, axes = trm.plot(models)
        assert {panel.get_title(loc="left") for panel in figure.axes} == {f"{name}@5" for name in UNITS}
        for panel in figure.axes:
            key = panel.get_title(loc="left")
            values = {name: found[key] for name, found in models.items()}
            check_rows(panel, values, {name: found.confidence_intervals[key] for name, found in models.items()})
        check_layout(figure, axes)
        own_figure, own = plt.subplots(2, 2)
        assert trm.plot(models, own) == (own_figure, own[0, 0])

    def test_rows_and_seeds(self):
        """Models may be `Rows`, and lists of seeds, with the means and the errors that `compare` has."""
        models = runs(["NDCG@5", "NDCG@10", "MRR"], ["pop", "gcn", "other"])
        models = {"pop": models["pop"], "gcn": [models["gcn"], models["other"]]}
        figure, axes = trm.plot(models)
        assert [panel.get_title(loc="left") for panel in figure.axes] == ["NDCG", "MRR"]
        means = trm.compare(models, resamples=100).means
        for name, container in zip(models, axes.containers, strict=True):
            drawn = [means[name, key] for key in ("NDCG@5", "NDCG@10")]
            assert list(container.lines[0].get_ydata()) == [mean.value for mean in drawn]
            half = [(high - low) / 2 for low, high in bars(container)]
            assert half == pytest.approx([quantile(0.975, 79) * mean.standard_error for mean in drawn])

    @pytest.mark.parametrize("form", ["evaluation", "list", "rows"])
    def test_intervals_within_the_bounds(self, form):
        """The interval of a rare hit is that of the evaluation, whose metric has bounds, also for its rows or seeds."""
        found = evaluation(["HR"], k=1, keep_rows=True)
        low, high = found.confidence_intervals["HR@1"]
        assert 0 < low < found["HR@1"] < 0.1
        model = {"evaluation": found, "list": [found, found], "rows": found.rows}[form]
        for models in ({"pop": found, "gcn": model}, {"gcn": model, "pop": found}):
            _, axes = trm.plot(models)
            for container in axes.containers:
                assert bars(container, vertical=False) == [pytest.approx((low, high))]

    @pytest.mark.parametrize("form", ["rows", "seeds"])
    def test_rows_of_three_clusters_have_two_degrees_of_freedom(self, form):
        """The half width is t(.975, 2) = 4.303 standard errors, as three means of equal weight have it."""
        values = torch.rand(99, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rows = trm.Rows({"cost": values}, torch.arange(99), clusters=torch.arange(99) % 3)
        error = values.reshape(33, 3).mean(0).std().item() / 3**0.5
        _, axes = trm.plot({"a": rows if form == "rows" else [rows, rows]})
        ((low, high),) = bars(axes.containers[0], vertical=False)

        assert (high - low) / 2 == pytest.approx(4.302653 * error, rel=1e-6)

    def test_weighted_rows_have_the_interval_of_their_evaluation(self):
        """Weights of 1 and 3 make 30 rows an effective 30 x (2^2) / 5 = 24."""
        metric = trm.RecMetricCollection("NDCG@30", accumulators=[trm.KeptRows()])
        weights = torch.tensor([1.0, 3.0]).repeat(15)
        metric.update(torch.randperm(30) + 1, depth=30, weights=weights, row_ids=torch.arange(30))
        metric.compute()
        _, axes = trm.plot({"all": metric, "rows": metric.rows})
        interval, of_rows = (bars(container, vertical=False)[0] for container in axes.containers)

        assert of_rows == pytest.approx(interval)

    def test_other_cutoffs(self):
        """Models with other cut-offs share the axes of a metric; one with a single cut-off is a dot there."""
        models = {"pop": filled(["HR"], k=[5]), "gcn": filled(["HR"], k=[1, 5]), "mf": filled(["HR", "NDCG"], k=[20])}
        figure, axes = trm.plot(models)
        assert [panel.get_title(loc="left") for panel in figure.axes] == ["HR", "NDCG@20"]
        assert legend(axes) == ["pop", "gcn", "mf"]
        assert [list(container.lines[0].get_xdata()) for container in axes.containers] == [[5], [1, 5], [20]]


@pytest.mark.parametrize("name", ["_own", "$10-$20", "cost$_$", r"$\no$", "$5"])
def test_names_are_shown_as_they_are(name):
    """No name of a model or a group is taken for mathematics, or hidden since it begins with an underscore."""
    runs_by_name = runs(names=[name, "other"])
    _, against_k = trm.plot({name: filled(), "other": filled()})
    _, of_rows = trm.plot(runs_by_name)
    by_group = trm.RecMetricCollection("HR@1", accumulators=[trm.ByGroup("rest", name)])
    by_group.update(torch.rand(4, 5), torch.arange(4), groups=torch.arange(4) % 2)
    _, of_groups = trm.plot(by_group.result().groups)
    _, forest = trm.plot(trm.compare(runs_by_name, resamples=100))
    _, of_pairs = trm.plot(trm.compare(runs_by_name | {"third": runs_by_name["other"]}, resamples=100))
    labels = [against_k.get_legend().get_texts()[0], of_rows.get_yticklabels()[0], of_groups.get_yticklabels()[1]]
    for label in (*labels, forest.xaxis.label, of_pairs.get_legend().get_texts()[0]):
        assert name in label.get_text().replace(r"\$", "$")
        assert not matplotlib.cbook.is_math_text(label.get_text())


class TestComparison:
    def test_forest(self):
        """Each label is one row with a thick interval and a thin corrected interval, and there is a line at 0."""
        found = trm.compare(runs(), resamples=500)
        _, axes = trm.plot(found)
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert [list(line.get_xdata()) for line in dots] == [[result.difference for result in found.results]]
        drawn = {
            (line.get_linewidth(), line.get_ydata()[0]): tuple(line.get_xdata())
            for line in axes.lines
            if len({*line.get_ydata()}) == 1
        }
        for row, result in enumerate(found.results):
            assert drawn[3, row] == (result.low, result.high)
            assert drawn[1, row] == (result.adjusted_low, result.adjusted_high)
        assert [0, 0] in [list(line.get_xdata()) for line in axes.lines]

    def test_forest_says_what_it_shows(self):
        _, axes = trm.plot(trm.compare(runs(), resamples=500))

        assert texts(axes.get_yticklabels()) == ["HR@10", "NDCG@10"]
        assert axes.get_xlabel() == "gcn - pop"
        assert axes.get_title(loc="left") == "95 % intervals, thin: corrected for 2 comparisons"
        assert axes.get_legend() is None

    def test_pairs(self):
        """The pairs of runs are in the legend in colours of their own and apart within a label; the axes stay wide."""
        names = ("popularity", "matrix factorisation, 64 factors", "LightGCN")
        found = trm.compare(runs([f"NDCG-exponential@{k}" for k in range(1, 7)], names), resamples=200, margin=0.01)
        figure, axes = trm.plot(found)
        assert legend(axes) == [*found.pairs, "margin 0.01"]
        dots = [line for line in axes.lines if line.get_marker() not in ("None", "")]
        rows = sorted(y for line in dots for y in line.get_ydata())
        assert len(rows) == 18
        entries = axes.get_legend().legend_handles[:3]
        assert [line.get_color() for line in dots] == [entry.get_color() for entry in entries]
        assert len({line.get_color() for line in dots}) == 3
        assert min(b - a for a, b in pairwise(rows)) > 0.2
        broken = next(line for line in axes.lines if line.get_label() == "margin 0.01")
        assert {end for end in broken.get_xdata() if end == end} == {-0.01}
        check_layout(figure, axes)

    def test_single(self):
        """A single comparison has no corrected interval; a one-sided interval reaches the edge of the axes."""
        found = trm.compare(runs(["HR@10"]), resamples=500, alternative="greater")
        _, axes = trm.plot(found)
        assert axes.get_title(loc="left") == "95 % intervals"
        (interval,) = [line for line in axes.lines if line.get_linewidth() == 3]
        assert tuple(interval.get_xdata()) == (found["HR@10"].low, axes.get_xlim()[1])
        assert sum(line.get_linewidth() == 1 for line in axes.lines) == 1  # only the line at 0


def test_without_matplotlib(monkeypatch):
    """Without matplotlib `plot` raises an error that names the extra."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for result in (filled(), trm.compare(runs(), resamples=100)):
        with pytest.raises(ImportError, match=r"plots need matplotlib: pip install 'torchrecmetrics\[plot\]'"):
            trm.plot(result)
