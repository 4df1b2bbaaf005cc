"""LightningCLI makes the callbacks from YAML: options, types and defaults go through jsonargparse."""

import importlib
import inspect
import textwrap

import pytest
from trainers import (
    QUIET,
    both_packages,
    by_hand,
    catalogue,
    loader,
    logged,
    make_embedding_module,
    make_module,
    samples,
)
from values import near

import torchrecmetrics as trm

pytest.importorskip("jsonargparse")

pytestmark = QUIET


def embeddings(module):
    return module.users, module.items


def made(returned, batch):
    return returned


def validation_edges() -> trm.Interactions:
    return catalogue()[0]


def train_edges() -> trm.Interactions:
    return catalogue()[2]


def run_cli(pl, tmp_path, module, name, arguments):
    """Validate with the callback `name`, made from these lines of YAML; return the Trainer and the callback."""
    cli = importlib.import_module(f"{pl.__name__}.cli")
    lines = f"""
        trainer:
          logger: false
          enable_progress_bar: false
          enable_model_summary: false
          accelerator: cpu
          default_root_dir: {tmp_path}
          callbacks:
            - class_path: torchrecmetrics.lightning.{name}
              init_args:
        """
    config = tmp_path / "config.yaml"
    config.write_text(f"{inspect.cleandoc(lines)}\n{textwrap.indent(inspect.cleandoc(arguments), ' ' * 8)}")

    class Data(pl.LightningDataModule):
        def val_dataloader(self):
            return loader(samples(10))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["main.py", "validate", "--config", str(config)])
        done = cli.LightningCLI(type(module), Data, save_config_callback=None, seed_everything_default=False)
    return done.trainer, next(callback for callback in done.trainer.callbacks if type(callback).__name__ == name)


@both_packages
def test_yaml_sets_metrics_stages_and_options_of_the_steps_callback(pl, tmp_path):
    arguments = f"""
        metrics: [HR, NDCG]
        k: [1, 10]
        stages: [validate, test]
        ties: optimistic
        validate_args: deferred
        outputs: {__name__}.made
        """
    run, callback = run_cli(pl, tmp_path, make_module(pl), "RecMetricsCallback", arguments)
    rules = callback.collections["val"].evaluator.ranking_options

    assert logged(run) == by_hand(samples(10), "val/", names=["HR", "NDCG"])
    assert (rules.ties, rules.validate_args, rules.padding_idx) == ("optimistic", "deferred", None)
    assert callback.prog_bar == {"NDCG@10"}


def test_yaml_names_functions_and_data_of_the_catalogue_callback_by_their_import_path(pl, tmp_path):
    module, (valid, _, train) = make_embedding_module(pl), catalogue()
    arguments = f"""
        metrics: HR
        k: 10
        embed: {__name__}.embeddings
        target:
          class_path: {__name__}.validation_edges
        exclude:
          class_path: {__name__}.train_edges
        stages: validate
        prog_bar: HR@10
        empty_target_action: neg
        """
    run, _ = run_cli(pl, tmp_path, module, "CatalogueEvaluationCallback", arguments)
    users, items = module.users.detach(), module.items.detach()
    expected = trm.evaluate("HR", users, items, target=valid, exclude=train, k=10, empty_target_action="neg")

    assert logged(run) == {f"val/{key}": value for key, value in near(expected, 1e-6).items()}
    assert set(run.progress_bar_metrics) == {"val/HR@10"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("metrics: [HR]\nk: 10\nstages: train", "validate"),
        ("metrics: [HR]\nk: 10\ntie: optimistic", "tie"),
        ("metrics: [NGDC]\nk: 10", "unknown metric 'NGDC'; did you mean 'NDCG'"),
        ("metrics: [HR]\nk: 10\nties: optimist", "optimist"),
    ],
)
def test_a_mistake_in_yaml_is_refused_by_the_parser_or_the_callback(arguments, message, pl, tmp_path, capsys):
    with pytest.raises((SystemExit, ValueError)) as caught:
        run_cli(pl, tmp_path, make_module(pl), "RecMetricsCallback", arguments)

    assert message in str(caught.value) + capsys.readouterr().err
