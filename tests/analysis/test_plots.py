"""Plots, tested by the lines, intervals, labels and legends that they draw; no display is needed."""

import math
import sys
from itertools import pairwise

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.core.student import cdf

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    """Draw every open figure after the test, because a layout fails only when it is drawn, and close all figures."""
    yield
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    plt.close("all")


def filled(metrics=("HR", "NDCG", "AUROC"), k=(1, 5, 20), n=120, shift=0.0, keep_rows=False, **options):
    """Return a collection of n rows with three relevant items each."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(n, 200, generator=generator)
    target = torch.rand(n, 200, generator=generator).argsort(1)[:, :3]
    scores.scatter_add_(1, target, torch.rand(n, 3, generator=generator) * (0.5 + shift))
    accumulators = [trm.KeptRows()] if keep_rows else []
    collection = trm.RecMetricCollection(metrics, k=k, accumulators=accumulators, **options)
    ids = {"row_ids": torch.arange(n)} if collection.keep_rows else {}
    collection.update(scores, target, **ids)
    return collection


def evaluation(**options):
    generator = torch.Generator().manual_seed(0)
    users, items = torch.randn(40, 4, generator=generator), torch.randn(30, 4, generator=generator)
    target = trm.Interactions.from_padded(torch.randint(30, (40, 1), generator=generator), num_items=30)
    return trm.evaluate(["HR", "NDCG"], users, items, target=target, k=[1, 5], **options)


def runs(labels=("HR@10", "NDCG@10"), names=("pop", "gcn"), n=80):
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(n, generator=generator, dtype=torch.float64)

    def column(at):
        noise = torch.rand(n, generator=generator, dtype=torch.float64)
        return (own + 0.3 * noise + 0.05 * at).where(noise > 0.3, own)

    return {name: trm.Rows({label: column(at) for label in labels}, torch.arange(n)) for at, name in enumerate(names)}


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def bars(container, vertical=True):
    """Return the ends of an errorbar's intervals."""
    along = 1 if vertical else 0
    return [tuple(segment[:, along]) for segment in container.lines[2][0].get_segments() if segment.size]


class TestValues:
    def test_against_k(self):
        """Each metric is one line with cut-offs, values and intervals; without cut-offs the line is horizontal."""
        collection = filled()
        figure, axes = collection.plot()
        assert axes.figure is figure
        assert legend(axes) == ["HR", "NDCG", "AUROC"]
        values = collection.compute()
        for name, container in zip(("HR", "NDCG"), axes.containers, strict=True):
            line = container.lines[0]
            assert list(line.get_xdata()) == [1, 5, 20]
            assert list(line.get_ydata()) == [values[f"{name}@{k}"].item() for k in (1, 5, 20)]
            expected = [collection[f"{name}@{k}"].confidence_interval() for k in (1, 5, 20)]
            assert bars(container) == [pytest.approx(ends) for ends in expected]
        (across,) = [line for line in axes.lines if line.get_label() == "AUROC"]
        assert set(across.get_ydata()) == {values["AUROC"].item()}
        bottom, top = axes.get_ylim()
        low, high = collection["AUROC"].confidence_interval()
        assert bottom < low < high < top
        assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "5", "20"]
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("k", "value, 95 % interval", "log")

    def test_intervals_stand_side_by_side(self):
        """Intervals at the same k are drawn 4 points apart, and all intervals are within the axes."""
        figure, axes = filled(["HR", "NDCG", "MRR"]).plot()
        figure.canvas.draw()
        places = [c.lines[0].get_transform().transform((5, 0.5))[0] for c in axes.containers]
        assert places[1] - places[0] == pytest.approx(places[2] - places[1])
        assert places[1] - places[0] == pytest.approx(4 * figure.dpi / 72)
        assert places[1] == pytest.approx(axes.transData.transform((5, 0.5))[0])
        left, right = axes.get_xlim()
        assert left < 1 < 20 < right

    def test_names(self):
        """Legend labels hold the prefix, options and a single cut-off; equal metrics are labelled by name."""
        metrics = ["HR", trm.NDCG(5, gain="exponential"), trm.NDCG(20, gain="exponential"), trm.MRR(5)]
        _, axes = filled(metrics, prefix="test/").plot()
        assert legend(axes) == ["test/HR", "test/NDCG-exponential", "test/MRR@5"]
        _, axes = filled({"a": trm.HR(5), "b": trm.HR(5), "c": trm.MRR(1), "d": trm.MRR(5)}, k=None).plot()
        assert sorted(legend(axes)) == ["MRR", "a", "b"]

    def test_one_cutoff(self):
        """With one cut-off each key is one dot with a horizontal interval, in order from top to bottom."""
        collection = filled(k=[10])
        _, axes = collection.plot()
        assert [text.get_text() for text in axes.get_yticklabels()] == ["HR@10", "NDCG@10", "AUROC"]
        assert axes.get_ylim()[0] > axes.get_ylim()[1]
        assert axes.get_legend() is None
        for place, (key, container) in enumerate(zip(collection, axes.containers, strict=True)):
            assert list(container.lines[0].get_xdata()) == [collection.compute()[key].item()]
            assert list(container.lines[0].get_ydata()) == [place]
            assert bars(container, vertical=False) == [pytest.approx(collection[key].confidence_interval())]

    def test_many_cutoffs(self):
        """With 59 cut-offs at most 17 ticks are drawn, and the largest cut-off is one of them."""
        _, axes = filled(["HR"], k=range(1, 60)).plot()
        ticks = axes.get_xticks()
        assert len(ticks) <= 17
        assert ticks[-1] == 59

    def test_evaluation(self):
        found = evaluation()
        _, axes = found.plot()
        assert legend(axes) == ["HR", "NDCG"]
        assert list(axes.containers[1].lines[0].get_ydata()) == [found["NDCG@1"].item(), found["NDCG@5"].item()]
        assert bars(axes.containers[1])[0] == pytest.approx(found.confidence_intervals["NDCG@1"])

    def test_own_axes(self):
        figure, (left, right) = plt.subplots(1, 2)
        assert filled().plot(ax=left) == (figure, left)
        assert evaluation().plot(right) == (figure, right)
        with pytest.raises(TypeError, match=r"ax must be matplotlib axes, got Figure"):
            filled().plot(ax=figure)

    def test_values_that_are_passed(self):
        """Values of one dict are drawn without intervals; several dicts give one line per key over steps."""
        collection = filled()
        values = collection.compute()
        _, axes = collection.plot(values)
        assert axes.get_ylabel() == "value"
        assert list(axes.containers[0].lines[0].get_ydata()) == [values[f"HR@{k}"].item() for k in (1, 5, 20)]
        assert not bars(axes.containers[0])
        _, axes = collection.plot([values, values])
        assert legend(axes) == list(collection)
        assert list(axes.lines[0].get_ydata()) == [values["HR@1"].item()] * 2
        with pytest.raises(ValueError, match=r"no value of 'NDCG@1'; it holds HR@1"):
            collection.plot({"HR@1": values["HR@1"]})
        with pytest.raises(TypeError, match="values by key"):
            collection.plot([1.0])

    def test_apart(self):
        """With `together=False` each metric has its own figure, as in torchmetrics."""
        collection = filled(k=[5])
        drawn = collection.plot(together=False)
        assert [axes.get_ylabel() for _, axes in drawn] == ["HR@5", "NDCG@5", "AUROC"]
        _, both = plt.subplots(1, 3)
        assert [axes for _, axes in collection.plot(collection.compute(), both.tolist(), False)] == both.tolist()

    def test_metric(self):
        """A metric draws its value with the interval; several values are drawn as torchmetrics draws them."""
        metric = filled()["NDCG@5"]
        figure, axes = metric.plot()
        assert axes.figure is figure
        assert axes.get_ylabel() == "NDCG@5"
        assert bars(axes.containers[0]) == [pytest.approx(metric.confidence_interval())]
        assert axes.lines[0].get_ydata()[0] == metric.compute()
        _, axes = metric.plot([metric.compute()] * 3)
        assert len(axes.lines[0].get_ydata()) == 3
        assert not axes.containers

    def test_without_rows(self):
        """A collection without rows is plotted with a warning; nan values and intervals are not drawn."""
        collection = trm.RecMetricCollection("HR", k=[1, 5])
        with pytest.warns(UserWarning, match="no row"):
            collection.plot()


class TestCurve:
    def test_from_sums(self):
        """Intervals from sums alone have the Bonferroni correction: the level of each is 1 - .05 / 3."""
        collection = filled()
        curve = collection.curve("NDCG")
        assert (curve.name, curve.level, curve.k) == ("NDCG", 0.95, (1, 5, 20))
        for k, value, low, high in zip(*curve[2:], strict=True):
            metric = collection[f"NDCG@{k}"]
            assert value == metric.compute().item()
            assert (low, high) == pytest.approx(metric.confidence_interval(1 - 0.05 / 3))

    def test_from_rows(self):
        """The band from kept rows is between single and Bonferroni intervals, since cut-offs are dependent."""
        collection = filled(k=[5, 10, 20, 50, 100], keep_rows=True)
        curve = collection.curve("NDCG")
        for k, low, high in zip(curve.k, curve.low, curve.high, strict=True):
            metric = collection[f"NDCG@{k}"]
            alone, widest = metric.confidence_interval(), metric.confidence_interval(1 - 0.05 / 5)
            assert widest[0] < low < alone[0]
            assert alone[1] < high < widest[1]
        assert curve == collection.curve("NDCG")
        assert curve != collection.curve("NDCG", seed=1)
        narrower = collection.curve("NDCG", level=0.8)
        assert narrower.low > curve.low

    def test_critical_value(self):
        """The band uses the quantile of the largest deviation over k, in units of the resample's standard error.

        The expected ends are from multinomial resamples.
        """
        collection = filled(k=[2, 5, 10, 20], keep_rows=True, n=300)
        curve = collection.curve("HR", resamples=4000)
        values = torch.stack([collection.rows.values[f"HR@{k}"] for k in curve.k])
        counts = torch.stack(
            [
                torch.bincount(drawn, minlength=300)
                for drawn in torch.randint(300, (4000, 300), generator=torch.Generator().manual_seed(0))
            ]
        ).double()
        means = counts @ values.T / 300  # of zeros and ones: the variance is m (1 - m) n / (n - 1)
        errors = (means * (1 - means) / 299).sqrt()
        largest = ((means - values.mean(1)).abs() / errors).amax(1).quantile(0.95).item()
        level = 2 * cdf(largest, 299) - 1
        expected = [collection[f"HR@{k}"].confidence_interval(level) for k in curve.k]
        assert curve.low == pytest.approx([low for low, _ in expected], abs=0.003)
        assert curve.high == pytest.approx([high for _, high in expected], abs=0.003)

    def test_clusters(self):
        """Rows that are repeated within a cluster give the same band as the rows without repeats."""
        generator = torch.Generator().manual_seed(0)
        ranks = torch.randint(1, 40, (60,), generator=generator)
        once = trm.RecMetricCollection("MRR", k=[5, 20], accumulators=[trm.KeptRows()])
        once.update(ranks, row_ids=torch.arange(60))
        thrice = trm.RecMetricCollection("MRR", k=[5, 20], accumulators=[trm.KeptRows()])
        thrice.update(ranks.repeat(3), row_ids=torch.arange(180), clusters=torch.arange(60).repeat(3))
        assert thrice.curve("MRR").low == pytest.approx(once.curve("MRR").low)
        assert thrice.curve("MRR").high == pytest.approx(once.curve("MRR").high)

    def test_one_cutoff_and_none_that_varies(self):
        collection = filled(k=[10], keep_rows=True)
        curve = collection.curve("HR")
        assert (curve.low[0], curve.high[0]) == pytest.approx(collection["HR@10"].confidence_interval())
        assert len(curve.plot()[1].containers) == 1
        nothing = trm.RecMetricCollection("HR", k=[1, 2], accumulators=[trm.KeptRows()])
        nothing.update(torch.full((30,), 9))
        assert nothing.curve("HR").high == pytest.approx([nothing["HR@1"].confidence_interval(0.975)[1]] * 2)

    @pytest.mark.nightly
    @pytest.mark.slow
    @pytest.mark.parametrize("keep_rows", [False, True])
    def test_coverage(self, keep_rows):
        """The band holds all true values at once in 95 of 100 samples; single intervals do so in fewer than 90."""
        generator = torch.Generator().manual_seed(0)
        cutoffs, n, inside, alone = (1, 2, 5, 10, 20, 50), 200, 0, 0
        for _ in range(1000):
            accumulators = [trm.KeptRows()] if keep_rows else []
            collection = trm.RecMetricCollection("HR", k=cutoffs, accumulators=accumulators)
            collection.update(torch.randint(1, 101, (n,), generator=generator))
            curve = collection.curve("HR", resamples=200)
            inside += all(low <= k / 100 <= high for k, low, high in zip(curve.k, curve.low, curve.high, strict=True))
            ends = [collection[f"HR@{k}"].confidence_interval() for k in cutoffs]
            alone += all(low <= k / 100 <= high for k, (low, high) in zip(cutoffs, ends, strict=True))
        assert 0.935 * 1000 <= inside <= 0.975 * 1000
        assert alone < 0.9 * 1000

    def test_evaluation(self):
        kept = evaluation(keep_rows=True)
        assert kept.curve("HR").values == (kept["HR@1"].item(), kept["HR@5"].item())
        assert kept.curve("HR").high < evaluation().curve("HR").high

    def test_errors(self):
        collection = filled()
        with pytest.raises(ValueError, match=r"no metric 'NDGC'; did you mean 'NDCG'\?"):
            collection.curve("NDGC")
        with pytest.raises(ValueError, match="AUROC has no cut-off"):
            collection.curve("AUROC")
        with pytest.raises(ValueError, match="two metrics are HR@5"):
            filled({"a": trm.HR(5), "b": trm.HR(5)}, k=None).curve("HR")
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            collection.curve("HR", level=95)

    def test_drawn(self):
        """Two models in one figure have separate lines and bands, and the legend shows the given names."""
        weak, strong = filled().curve("NDCG"), filled(k=[1, 5, 40], shift=0.3).curve("NDCG")
        figure, axes = weak.plot(label="pop")
        assert strong.plot(axes, "gcn") == (figure, axes)
        assert legend(axes) == ["pop", "gcn"]
        for line, band, curve in zip(axes.lines, axes.collections, (weak, strong), strict=True):
            assert tuple(line.get_xdata()) == curve.k
            assert tuple(line.get_ydata()) == curve.values
            corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
            assert corners == {*zip(curve.k, curve.low, strict=True), *zip(curve.k, curve.high, strict=True)}
        assert list(axes.get_xticks()) == [1, 5, 20, 40]
        assert (axes.get_ylabel(), axes.get_title(loc="left")) == ("NDCG@k", "band: 95 %, all k together")
        assert filled().curve("HR").plot()[1].get_legend() is None


def grouped(names, n=240):
    """Return an evaluation of users in groups of these names."""
    generator = torch.Generator().manual_seed(0)
    users, items = torch.randn(n, 4, generator=generator), torch.randn(30, 4, generator=generator)
    target = trm.Interactions.from_padded(torch.randint(30, (n, 1), generator=generator), num_items=30)
    groups = trm.Groups(torch.arange(n) % len(names), names)
    return trm.evaluate("NDCG", users, items, target=target, k=5, groups=groups)


def beyond(k=(2, 5, 10), **options):
    """Return an evaluation of accuracy metrics and of popularity, whose unit is interactions."""
    generator = torch.Generator().manual_seed(0)
    users, items = torch.randn(60, 4, generator=generator), torch.randn(30, 4, generator=generator)
    target = trm.Interactions.from_padded(torch.randint(30, (60, 1), generator=generator), num_items=30)
    catalogue = trm.Catalogue(30, popularity=torch.arange(1, 31) * 100, embeddings=items)
    metrics = ["HR", "AveragePopularity", "NDCG", "IntraListDiversity"]
    return trm.evaluate(metrics, users, items, target=target, k=k, catalogue=catalogue, **options)


def boxes(figure, texts):
    """Draw the figure and return the extents of the texts."""
    figure.canvas.draw()
    return [text.get_window_extent() for text in texts if text.get_text()]


LONG = [f"a name of forty characters or so, {number:06d}" for number in range(12)]


@pytest.fixture(autouse=True)
def default_style():
    """Use matplotlib's default style, because sizes depend on the style and other tests may have changed it."""
    with plt.style.context("default"):
        yield


class TestLayout:
    """Labels and legends beside the axes neither overlap nor make the axes narrow."""

    @pytest.mark.parametrize("names", [LONG, LONG[:3], ["0", "1-4", "5+"]], ids=["12 long", "3 long", "3 short"])
    def test_groups(self, names):
        """Group names do not overlap, lie within the figure and leave the axes wide, also with three models."""
        found = grouped(names)
        figure, axes = found.groups.plot("NDCG@5", name="popularity")
        for model in ("matrix factorisation of forty characters", "LightGCN"):
            found.groups.plot("NDCG@5", axes, model)
        ticks = boxes(figure, axes.get_yticklabels())
        assert len(ticks) == len(names)
        assert not any(one.overlaps(other) for one, other in pairwise(ticks))
        assert all(figure.bbox.x0 <= box.x0 and box.y0 >= figure.bbox.y0 for box in ticks)
        assert axes.get_window_extent().width > 4 * figure.dpi
        assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1

    def test_groups_are_rows(self):
        """Each group is one row with a horizontal interval, in order from top to bottom."""
        found = grouped(["north", "south"])
        _, axes = found.groups.plot("NDCG@5")
        assert [text.get_text() for text in axes.get_yticklabels()] == ["north", "south"]
        assert axes.get_ylim() == (1.8, -0.5)
        values = [found[f"NDCG@5/{name}"].item() for name in ("north", "south")]
        assert list(axes.containers[0].lines[0].get_xdata()) == values
        ends = [found.confidence_intervals[f"NDCG@5/{name}"] for name in ("north", "south")]
        assert bars(axes.containers[0], vertical=False) == [pytest.approx(each) for each in ends]
        assert axes.get_xlabel() == "NDCG@5"

    def test_curve_in_a_figure_of_ours(self):
        """In a figure made by `plot`, a long label of a second curve widens the figure, and the axes stay wide."""
        figure, axes = filled().curve("NDCG").plot(label="pop")
        before = boxes(figure, [axes.yaxis.label]) and axes.get_window_extent().width
        filled(shift=0.3).curve("NDCG").plot(axes, LONG[0])
        figure.canvas.draw()
        assert axes.get_window_extent().width > 0.95 * before
        assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1

    def test_curve_in_axes_of_yours(self):
        """A figure that the caller passed keeps its size: long labels are wrapped."""
        figure, axes = plt.subplots(layout="constrained")
        size = tuple(figure.get_size_inches())
        for name in LONG[:2]:
            filled().curve("NDCG").plot(axes, name)
        figure.canvas.draw()
        assert tuple(figure.get_size_inches()) == size
        assert axes.get_window_extent().width > 0.42 * figure.bbox.width  # 0.36 if labels are not wrapped
        assert [text.replace("\n", " ") for text in legend(axes)] == LONG[:2]

    def test_many_metrics(self):
        """Eighteen metrics with long keys leave the axes wide, and the legend is within the figure."""
        metrics = {f"{LONG[0]}, {number}": trm.HR(5 + number % 2) for number in range(18)}
        figure, axes = filled(metrics, k=None).plot()
        figure.canvas.draw()
        assert len(legend(axes)) == 18
        assert axes.get_window_extent().width > 4 * figure.dpi
        assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1


class TestUnits:
    @pytest.mark.parametrize("k", [(2, 5, 10), (5,)])
    def test_axes(self, k):
        """Each unit has its own axes, so that shares are not flat beside counts; those of the shares are returned."""
        found = beyond(k)
        figure, axes = found.plot()
        assert len(figure.axes) == 3
        assert axes is figure.axes[0]
        assert [len(each.containers) for each in figure.axes] == [2, 1, 1]
        low, high = axes.get_ylim() if len(k) > 1 else axes.get_xlim()
        assert -1 < low < high < 2
        popular = figure.axes[1].get_ylim() if len(k) > 1 else figure.axes[1].get_xlim()
        assert max(popular) > 100
        figure.canvas.draw()
        for above, below in pairwise(figure.axes):
            assert not above.get_window_extent().overlaps(below.get_window_extent())
            assert above.get_window_extent().width > 4 * figure.dpi

    def test_given(self):
        """As many axes must be passed as there are scales; a single one raises an error that names the fix."""
        found = beyond()
        figure, given = plt.subplots(3)
        assert found.plot(given) == (figure, given[0])
        assert found.plot(given.tolist()) == (figure, given[0])
        with pytest.raises(
            ValueError, match=r"3 scales, 0 to 1, AveragePopularity, 0 to 2, .* pass ax=\[...\] .*got 1"
        ):
            found.plot(given[0])

    def test_steps(self):
        """Values over steps are drawn in separate axes for each unit."""
        catalogue = trm.Catalogue(30, popularity=torch.arange(1, 31) * 100)
        collection = trm.RecMetricCollection(["HR", "AveragePopularity"], k=[1, 5], catalogue=catalogue)
        values = {"HR@1": 0.1, "HR@5": 0.3, "AveragePopularity@1": 900.0, "AveragePopularity@5": 800.0}
        figure, axes = collection.plot([values, values])
        assert [len(each.lines) for each in figure.axes] == [2, 2]
        assert axes.get_ylim()[1] < 1


class TestComparison:
    def test_forest(self):
        """Each label is one row with a thick interval and a thin corrected interval, and there is a line at 0."""
        found = trm.compare(runs(), resamples=500)
        _, axes = found.plot()
        assert [text.get_text() for text in axes.get_yticklabels()] == ["HR@10", "NDCG@10"]
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
        assert axes.get_xlabel() == "gcn - pop"
        assert axes.get_title(loc="left") == "95 % intervals, thin: corrected for 2 comparisons"
        assert axes.get_legend() is None

    def test_pairs(self):
        """The pairs of runs are in the legend in colours of their own and apart within a label; the axes stay wide."""
        names = ("popularity", "matrix factorisation, 64 factors", "LightGCN")
        found = trm.compare(runs([f"NDCG-exponential@{k}" for k in range(1, 7)], names), resamples=200, margin=0.01)
        figure, axes = found.plot()
        pairs = list(dict.fromkeys(f"{result.run} - {result.against}" for result in found.results))
        assert legend(axes) == [*pairs, "margin 0.01"]
        dots = [line for line in axes.lines if line.get_marker() not in ("None", "")]
        rows = sorted(y for line in dots for y in line.get_ydata())
        assert len(rows) == 18
        entries = axes.get_legend().legend_handles[: len(pairs)]
        assert [line.get_color() for line in dots] == [entry.get_color() for entry in entries]
        assert len({line.get_color() for line in dots}) == len(pairs)
        assert min(b - a for a, b in pairwise(rows)) > 0.2
        assert [-0.01, -0.01] in [list(line.get_xdata()) for line in axes.lines]
        figure.canvas.draw()
        assert axes.get_window_extent().width > 4 * figure.dpi
        assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1

    def test_single(self):
        """A single comparison has no corrected interval; a one-sided interval reaches the edge of the axes."""
        found = trm.compare(runs(["HR@10"]), resamples=500, alternative="greater")
        _, axes = found.plot()
        assert axes.get_title(loc="left") == "95 % intervals"
        (interval,) = [line for line in axes.lines if line.get_linewidth() == 3]
        assert tuple(interval.get_xdata()) == (found["HR@10"].low, axes.get_xlim()[1])
        assert sum(line.get_linewidth() == 1 for line in axes.lines) == 1  # only the line at 0

    def test_nothing_known(self):
        """A comparison of one row has no interval and is drawn all the same."""
        _, axes = trm.compare({name: trm.Rows({"HR": torch.ones(1)}, [name[0] and "a"]) for name in "xy"}).plot()
        assert len(axes.get_yticks()) == 1


class TestDifferences:
    def test_counts(self):
        """Wins, ties and losses equal those of `compare`; values are the second run minus the first run."""
        both = runs()
        found, expected = trm.differences(both, "HR@10"), trm.compare(both, resamples=100)["HR@10"]
        assert (found.wins, found.ties, found.losses) == (expected.wins, expected.ties, expected.losses)
        assert found.values.tolist() == (both["gcn"].values["HR@10"] - both["pop"].values["HR@10"]).tolist()
        assert repr(found) == f"Differences(HR@10, gcn - pop: {found.wins} won, {found.ties} tied, {found.losses} lost)"

    def test_undefined_and_weightless_rows_are_left_out(self):
        """Undefined rows and rows of weight 0 are left out, and runs of the same name are averaged."""
        ids, nan = torch.arange(4), math.nan
        make = lambda *values: trm.Rows({"HR": torch.tensor(values)}, ids, torch.tensor([1.0, 1, 1, 0]))  # noqa: E731
        found = trm.differences({"a": make(0.0, 0, nan, 0), "b": [make(1.0, 0, 1, 1), make(0.0, 0, 1, 1)]}, "HR")
        assert found.values.tolist() == [0.5, 0]

    def test_histogram(self):
        """Wins are on one side of 0 and losses on the other side; the share of equal rows is in the legend."""
        found = trm.differences(runs(n=200), "NDCG@10")
        _, axes = found.plot(bins=10)
        better, worse = axes.containers
        assert sum(bar.get_height() for bar in better) == found.wins
        assert sum(bar.get_height() for bar in worse) == found.losses
        assert len(better) == len(worse) == 10
        assert min(bar.get_x() for bar in better) == pytest.approx(0, abs=1e-12)
        assert max(bar.get_x() + bar.get_width() for bar in worse) == pytest.approx(0, abs=1e-12)
        shares = [f"{100 * number / 200:.1f}%" for number in (found.wins, found.ties, found.losses)]
        assert legend(axes) == [f"gcn better: {shares[0]}", f"equal: {shares[1]}", f"pop better: {shares[2]}"]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("NDCG@10, gcn - pop", "rows")

    def test_all_equal(self):
        same = runs(["HR@10"])["pop"]
        _, axes = trm.differences({"a": same, "b": same}, "HR@10").plot()
        assert legend(axes) == ["b better: 0.0%", "equal: 100.0%", "a better: 0.0%"]

    def test_errors(self):
        with pytest.raises(ValueError, match=r"no label 'NDGC@10'; did you mean 'NDCG@10'\?"):
            trm.differences(runs(), "NDGC@10")
        with pytest.raises(ValueError, match="differences are those of two runs, got 3: a, b, c"):
            trm.differences(runs(names="abc"), "HR@10")
        with pytest.raises(ValueError, match="bins must be"):
            trm.differences(runs(), "HR@10").plot(bins=0)


def test_without_matplotlib(monkeypatch):
    """Without matplotlib every plot, of a metric too, raises an error that names the extra; numbers still work."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    collection = filled()
    curve = collection.curve("HR")
    both = runs()
    for plot in (
        collection.plot,
        collection["HR@5"].plot,
        curve.plot,
        evaluation().plot,
        trm.compare(both, resamples=100).plot,
        trm.differences(both, "HR@10").plot,
    ):
        with pytest.raises(ImportError, match=r"plots need matplotlib: pip install 'torchrecmetrics\[plot\]'"):
            plot()
