"""`Catalogue` against plain Python: its data, its tables and its errors."""

import copy
import math
import pickle
import re

import pytest
import torch
from torch import inf, tensor

import torchrecmetrics as trm
from torchrecmetrics import Catalogue, Interactions

FOUR = tensor([5, 0, 2, 2])


def test_knows_what_it_was_given(device):
    shares, vectors = tensor([[1.0, 0], [0, 1], [1, 0], [0.5, 0.5]]), torch.ones(4, 3)
    catalogue = Catalogue(4, popularity=FOUR, num_users=5, categories=shares, embeddings=vectors.to(device))

    assert (catalogue.num_items, catalogue.num_users, catalogue.num_categories) == (4, 5, 2)
    assert catalogue.device == catalogue.popularity.device == catalogue.categories.device == vectors.to(device).device
    assert torch.equal(catalogue.popularity.cpu(), FOUR)
    assert torch.equal(catalogue.categories.cpu(), shares)
    assert catalogue.known == ("popularity", "num_users", "categories", "embeddings")
    assert repr(catalogue.on("cpu")) == "Catalogue(4 items, popularity, 5 users, 2 categories, embeddings of 3, cpu)"


BARE = Catalogue(4, item_ids=["a", "b", "c", "d"])


def test_a_catalogue_of_ids_alone():
    assert BARE.known == ()
    assert repr(BARE) == "Catalogue(4 items, item ids, cpu)"


@pytest.mark.parametrize("name", ["popularity", "num_users", "categories", "num_categories", "embeddings"])
def test_missing_data_raise_and_say_how_to_give_them(name):
    with pytest.raises(ValueError, match=rf"has no {name[-10:]}.*: Catalogue\(\.\.\., {name[-10:]}=\) or"):
        getattr(BARE, name)


def test_from_interactions():
    """Popularity counts interactions, `num_users` counts users with interactions, and ids and history are kept."""
    train = Interactions.from_columns(["x", "x", "z"], ["b", "d", "b"], user_ids=list("xyz"), item_ids=list("abcd"))
    catalogue = Catalogue.from_interactions(train, categories=tensor([1, 1, 0, 7]))

    assert catalogue.popularity.tolist() == [0, 2, 0, 1]
    assert (catalogue.num_users, catalogue.num_categories, catalogue.item_ids) == (2, 8, train.item_ids)
    assert catalogue.interactions is train


def test_only_interactions_make_a_catalogue():
    log = trm.Log.from_frame({"user": [1, 2], "item": [3, 4]})

    with pytest.raises(TypeError, match=r"got str: of a frame trm.Interactions.from_frame\(frame\), of a file"):
        Catalogue.from_interactions("train.csv")
    with pytest.raises(TypeError, match=re.escape("made from Interactions, got Log: pass train.to_interactions()")):
        Catalogue.from_interactions(log)


def test_tables(device):
    """Self-information, popularity ranks and inverse lengths equal values that were worked out by hand."""
    vectors = tensor([[3.0, 4], [0, 0], [1, 0], [0, -2]])
    catalogue = Catalogue(4, popularity=FOUR.to(device), num_users=8, embeddings=vectors).on(device)

    assert catalogue.self_information.tolist() == pytest.approx([math.log2(8 / 5), 3, 2, 2])
    assert catalogue.popularity_rank.tolist() == [1, 5, 2, 2]
    assert catalogue.inverse_lengths.tolist() == [1 / 5, 0, 1, 1 / 2]
    assert catalogue.self_information is catalogue.self_information


@pytest.mark.parametrize(("head", "tail"), [(0.5, [1, 2, 3]), (0.7, [1, 3]), (0.8, [1])])
def test_the_tail_is_what_the_head_does_not_hold(head, tail):
    """Item 0 has 5 of 9 interactions, items 2 and 3 have 2 each; of these equals the lower id is first in the head."""
    catalogue = Catalogue(4, popularity=FOUR)

    assert catalogue.tail(head).nonzero()[:, 0].tolist() == tail
    assert catalogue.tail(head) is catalogue.tail(head)


def test_head_is_exact_at_its_border():
    """The head is exact although 0.07 * 100 is 7.000000000000001: 7 of 100 equal items hold 7 %."""
    assert Catalogue(100, popularity=torch.ones(100)).tail(0.07).sum() == 93
    fifth = 2**24 + 3  # four times this number is not exact in float32
    assert Catalogue(2, popularity=tensor([4 * fifth, fifth])).tail(0.8).tolist() == [False, True]


@pytest.mark.parametrize("head", [0, 1, 1.2, True, "most", None])
def test_head_is_a_share(head):
    with pytest.raises(ValueError, match="head must be a share between 0 and 1"):
        Catalogue(4, popularity=FOUR).tail(head)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_nothing_was_learned_from(dtype):
    """Without interactions all items are in the tail and ranked behind all others; without users information is nan."""
    catalogue = Catalogue(3, popularity=torch.zeros(3, dtype=dtype), num_users=0)
    assert catalogue.tail(0.8).all()
    assert catalogue.popularity_rank.tolist() == [4, 4, 4]
    assert catalogue.self_information.isnan().all()
    assert Catalogue(0, categories=tensor([], dtype=torch.int64)).num_categories == 0


def test_one_copy_for_each_device():
    """`on` makes one copy for each device, from whichever copy it is called; tables are on the device of their copy."""
    train = Interactions.from_columns([0, 1], [1, 2], num_items=3)
    catalogue = Catalogue.from_interactions(train, embeddings=torch.ones(3, 2, dtype=torch.bfloat16))
    meta = catalogue.on("meta")
    assert catalogue.on("cpu") is meta.on("cpu") is catalogue
    assert meta is catalogue.on(torch.device("meta"))
    assert (meta.num_users, meta.interactions, meta.embeddings.dtype) == (2, train, torch.bfloat16)
    tables = meta.self_information, meta.popularity_rank, meta.tail(0.8), meta.inverse_lengths
    assert {tensor.device.type for tensor in (*tables, meta.popularity, meta.embeddings)} == {"meta"}
    assert catalogue.tail(0.8).device.type == "cpu"


def test_copies_and_files():
    """A deep copy is the catalogue itself; pickling leaves out the tables and the copies on other devices."""
    catalogue = Catalogue(4, popularity=FOUR, num_users=5, item_ids=[4, 5, 6, 7])
    catalogue.on("meta")
    assert catalogue.tail(0.5).sum() == 3
    assert copy.deepcopy([catalogue])[0] is catalogue
    loaded = pickle.loads(pickle.dumps(catalogue))
    assert set(vars(loaded)) < set(vars(catalogue))
    assert loaded.on("cpu") is loaded
    assert (loaded.num_users, loaded.item_ids, repr(loaded)) == (5, catalogue.item_ids, repr(catalogue))
    assert torch.equal(loaded.tail(0.5), catalogue.tail(0.5))


def test_data_that_differ_have_other_fingerprints():
    """Different data have different fingerprints even if their sums are equal; copies have the same fingerprint."""
    popularity, codes = tensor([3, 1, 2]), tensor([0, 1, 0])
    shares = torch.eye(2)[codes]
    catalogues = [
        Catalogue(3),
        Catalogue(4),
        Catalogue(3, popularity=popularity),
        Catalogue(3, popularity=popularity.flip(0)),
        Catalogue(3, popularity=popularity, num_users=9),
        Catalogue(3, categories=codes),
        Catalogue(3, categories=1 - codes),
        Catalogue(3, categories=shares),
        Catalogue(3, embeddings=shares),
        Catalogue(3, embeddings=shares.bfloat16()),
    ]
    assert len({catalogue.fingerprint for catalogue in catalogues}) == len(catalogues)
    for catalogue in catalogues:
        assert pickle.loads(pickle.dumps(catalogue)).fingerprint == catalogue.fingerprint
    assert Catalogue(3, popularity=popularity.int()).fingerprint == catalogues[2].fingerprint
    assert catalogues[0].fingerprint.startswith("3items-")


def test_accepted_categories_and_embeddings():
    """Words are numbered in sorted order, sums of shares may be off by rounding, and no gradient is kept."""
    assert Catalogue(3, categories=["noir", "drama", "noir"]).categories.tolist() == [1, 0, 1]
    for dtype in (torch.float64, torch.float32):
        assert Catalogue(1, categories=torch.full((1, 3), 1 / 3, dtype=dtype)).categories.dtype == dtype
    assert not Catalogue(2, embeddings=torch.ones(2, 2, requires_grad=True)).embeddings.requires_grad


NO_ORDER = "in the order of the items, got a dict: [categories[one] for one in train"
TO_SHARES = "shape [2, 2]: the shares of an item with several are"
BAD = {
    "half": (TypeError, "num_items must be a whole number", 2.5, {}),
    "users": (ValueError, "num_users must be a whole number >= 0, got -2", 4, {"num_users": -2}),
    "list": (TypeError, "must be a tensor, got list: torch.as_tensor(popularity)", 2, {"popularity": [1, 2]}),
    "bool": (TypeError, "popularity must hold numbers, got a torch.bool", 2, {"popularity": tensor([True, False])}),
    "long": (ValueError, "popularity must be [3], one number per item, got shape [4]", 3, {"popularity": FOUR}),
    "negative": (ValueError, ">= 0 and finite, item 1 has -1", 2, {"popularity": tensor([1, -1])}),
    "inf": (ValueError, ">= 0 and finite, item 1 has inf", 2, {"popularity": tensor([1, inf])}),
    "events": (
        ValueError,
        "num_users=4 users once per item, but item 0",
        4,
        {"popularity": FOUR, "num_users": 4},
    ),
    "dict": (TypeError, NO_ORDER, 3, {"categories": {"x": "noir"}}),
    "code": (ValueError, "codes >= 0, item 1 has -1: give items without a known", 2, {"categories": tensor([0, -1])}),
    "matrix": (ValueError, "a 0/1 matrix becomes shares by", 2, {"categories": torch.eye(2).long()}),
    "mask": (TypeError, TO_SHARES, 2, {"categories": torch.eye(2) > 0}),
    "shares": (ValueError, "[2, C], the shares of each item, got shape [2]", 2, {"categories": torch.ones(2)}),
    "empty": (ValueError, "items without a known category one of", 2, {"categories": tensor([[1, 0], [0, 0.0]])}),
    "signs": (ValueError, "those of item 0 are [2.0, -1.0]", 1, {"categories": tensor([[2.0, -1]])}),
    "numbers": (TypeError, "embeddings must be float64, float32", 2, {"embeddings": torch.eye(2).long()}),
    "flat": (
        ValueError,
        "embeddings must be [2, d], one row per item, got",
        2,
        {"embeddings": torch.ones(2)},
    ),
    "infinite": (
        ValueError,
        "must be finite, but that of item 1",
        2,
        {"embeddings": tensor([[1.0], [-inf]])},
    ),
    "sparse": (TypeError, "embeddings is sparse", 2, {"embeddings": torch.eye(2).to_sparse()}),
    "ids": (ValueError, "item_ids holds 2 ids, but there are 3 items", 3, {"item_ids": ["a", "b"]}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    """Bad input raises where it is given, with a message that names the bad value."""
    error, message, num_items, options = BAD[name]
    with pytest.raises(error, match=re.escape(message)):
        Catalogue(num_items, **options)
