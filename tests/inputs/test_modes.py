"""Every input, of 40 rows, has the same value under inference mode, `no_grad` and autocast as outside."""

import pytest
import torch

import torchrecmetrics as trm

ROWS, DRAWN = torch.arange(40), torch.Generator().manual_seed(0)
SCORES = torch.rand(40, 50, generator=DRAWN)
TARGET = torch.randint(50, (40, 2), generator=DRAWN).sort(1).values + torch.tensor([0, 50])
CODES = trm.SemanticIds(torch.arange(50)[:, None])
INPUTS = {
    "Scores": lambda scores: trm.Scores(scores, TARGET[:, 0], exclude=TARGET[:, :1] - 1),
    "get_topk_ranks": lambda scores: trm.Ranks(trm.get_topk_ranks(scores, TARGET[:, 0], 9)),
    "Ranks": lambda scores: trm.Ranks(1 + ROWS % 12, depth=9),
    "Hits": lambda scores: trm.Hits(scores[:, :9] > 0.9, num_relevant=9),
    "Lists": lambda scores: trm.Lists(scores.topk(9).indices, TARGET, scores=scores.topk(9).values),
    "Candidates": lambda scores: trm.Candidates(scores, TARGET, items=2 * torch.arange(50)),
    "Negatives": lambda scores: trm.Negatives(scores[:, 0], scores[:, 1:]),
    "pool": lambda scores: trm.Negatives(scores[:, 0], scores[0], pool=True),
    "Sessions": lambda scores: trm.Sessions(scores.flatten(), scores.flatten() > 0.9, ROWS.repeat_interleave(50)),
    "beams": lambda scores: CODES.beams(scores.topk(9).indices[..., None], TARGET[:, 0]),
}
MODES = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.filterwarnings("ignore:.* rows have a relevant item that shares its score")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_that_is_made_and_added_in_a_mode_has_the_value_of_outside(name, mode):
    inside, outside = (trm.RecMetricCollection(["NDCG", "HR"], k=9) for _ in range(2))
    outside.update(INPUTS[name](SCORES))
    with MODES[mode]():
        inside.update(INPUTS[name](SCORES.clone()))
        values = inside.compute()

    assert values == outside.compute()
