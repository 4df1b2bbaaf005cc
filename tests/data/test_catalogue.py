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

FOUR = tensor([5, 0, 2, 2])  # interactions of four items


def test_data_are_moved_to_the_device_of_embeddings(device):
    vectors = torch.ones(4, 3, device=device)
    catalogue = Catalogue(4, popularity=FOUR, categories=FOUR, embeddings=vectors)

    assert {data.device for data in (catalogue, catalogue.popularity, catalogue.categories)} == {vectors.device}


def test_a_catalogue_knows_what_it_was_given():
    shares = tensor([[1.0, 0], [0, 1], [1, 0], [0.5, 0.5]])
    catalogue = Catalogue(4, popularity=FOUR, num_users=5, categories=shares, embeddings=torch.ones(4, 3))

    assert catalogue.known == ("popularity", "num_users", "categories", "embeddings")
    assert repr(catalogue) == "Catalogue(4 items, popularity, 5 users, 2 categories, embeddings of 3, cpu)"


BARE = Catalogue(4, item_ids=["a", "b", "c", "d"])


def test_a_catalogue_of_ids_alone_knows_nothing_else():
    assert (BARE.known, repr(BARE)) == ((), "Catalogue(4 items, item ids, cpu)")


@pytest.mark.parametrize("name", ["popularity", "num_users", "categories", "embeddings"])
def test_missing_data_raise_and_say_how_to_give_them(name):
    with pytest.raises(ValueError, match=rf"has no {name}.*: Catalogue\(\.\.\., {name}=\) or"):
        getattr(BARE, name)


def test_popularity_and_users_of_interactions_are_counted():
    train = Interactions.from_columns(["x", "x", "z"], ["b", "d", "b"], user_ids=list("xyz"), item_ids=list("abcd"))
    catalogue = Catalogue.from_interactions(train, categories=tensor([1, 1, 0, 7]))

    assert catalogue.popularity.tolist() == [0, 2, 0, 1]
    assert (catalogue.num_users, catalogue.num_categories, catalogue.item_ids) == (2, 8, train.item_ids)
    assert catalogue.interactions is train


def test_tables_are_worked_out_by_hand(device):
    vectors = tensor([[3.0, 4], [0, 0], [1, 0], [0, -2]])
    catalogue = Catalogue(4, popularity=FOUR.to(device), num_users=8, embeddings=vectors).on(device)

    # an item without users counts as if it had one
    assert catalogue.self_information.tolist() == pytest.approx([math.log2(8 / n) for n in (5, 1, 2, 2)])
    assert catalogue.popularity_rank.tolist() == [1, 5, 2, 2]
    assert catalogue.inverse_lengths.tolist() == [1 / 5, 0, 1, 1 / 2]


@pytest.mark.parametrize(("head", "tail"), [(0.5, [1, 2, 3]), (0.7, [1, 3]), (0.8, [1])])
def test_the_tail_is_what_the_head_does_not_hold(head, tail):
    """Item 0 has 5 of 9 interactions, items 2 and 3 have 2 each; of these equals the lower id is first in the head."""
    assert Catalogue(4, popularity=FOUR).tail(head).nonzero()[:, 0].tolist() == tail


def test_a_head_is_exact_where_rounding_would_move_its_end():
    """0.07 * 100 is 7.000000000000001, and 4 * (2^24 + 3) is no float32."""
    fifth = 2**24 + 3

    assert Catalogue(100, popularity=torch.ones(100)).tail(0.07).sum() == 93
    assert Catalogue(2, popularity=tensor([4 * fifth, fifth])).tail(0.8).tolist() == [False, True]


@pytest.mark.parametrize("head", [0, 1, 1.2, True, "most", None])
def test_a_head_that_is_no_share_is_refused(head):
    with pytest.raises(ValueError, match="head must be a share between 0 and 1"):
        Catalogue(4, popularity=FOUR).tail(head)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_without_interactions_all_items_are_in_the_tail_and_ranked_last(dtype):
    catalogue = Catalogue(3, popularity=torch.zeros(3, dtype=dtype), num_users=0)

    assert catalogue.tail(0.8).all()
    assert catalogue.popularity_rank.tolist() == [4, 4, 4]
    assert catalogue.self_information.isnan().all()


def test_each_device_has_one_copy():
    meta = BARE.on("meta")

    assert BARE.on("cpu") is BARE
    assert meta.on("cpu") is BARE
    assert BARE.on(torch.device("meta")) is meta


def test_a_deep_copy_of_what_holds_a_catalogue_shares_it():
    assert copy.deepcopy([BARE])[0] is BARE


def test_tables_are_on_the_device_of_their_copy():
    train = Interactions.from_columns([0, 1], [1, 2], num_items=3)
    catalogue = Catalogue.from_interactions(train, embeddings=torch.ones(3, 2, dtype=torch.bfloat16))
    meta = catalogue.on("meta")
    tables = meta.self_information, meta.popularity_rank, meta.tail(0.8), meta.inverse_lengths, meta.embeddings

    assert {table.device.type for table in tables} == {"meta"}
    assert (meta.num_users, meta.interactions, meta.embeddings.dtype) == (2, train, torch.bfloat16)
    assert catalogue.tail(0.8).device.type == "cpu"


def test_a_pickle_leaves_out_tables_and_copies_on_other_devices():
    catalogue = Catalogue(4, popularity=FOUR, num_users=5, item_ids=[4, 5, 6, 7])
    catalogue.on("meta")
    tail = catalogue.tail(0.5)
    loaded = pickle.loads(pickle.dumps(catalogue))

    assert set(vars(loaded)) < set(vars(catalogue))
    assert (loaded.on("cpu"), loaded.num_users, loaded.item_ids) == (loaded, 5, catalogue.item_ids)
    assert torch.equal(loaded.tail(0.5), tail)


POPULARITY, CODES = tensor([3, 1, 2]), tensor([0, 1, 0])
SHARES = torch.eye(2)[CODES]
DIFFERENT = [
    {"num_items": 4},
    {},
    {"popularity": POPULARITY},
    {"popularity": POPULARITY.flip(0)},
    {"popularity": POPULARITY, "num_users": 9},
    {"categories": CODES},
    {"categories": 1 - CODES},
    {"categories": SHARES},
    {"embeddings": SHARES},
    {"embeddings": SHARES.bfloat16()},
]


CATALOGUES = [Catalogue(**({"num_items": 3} | data)) for data in DIFFERENT]


def test_data_that_differ_have_other_fingerprints():
    assert len({catalogue.fingerprint for catalogue in CATALOGUES}) == len(DIFFERENT)


def test_a_catalogue_from_a_pickle_has_the_same_fingerprint():
    loaded = pickle.loads(pickle.dumps(CATALOGUES))
    assert [catalogue.fingerprint for catalogue in loaded] == [catalogue.fingerprint for catalogue in CATALOGUES]


def test_equal_numbers_of_other_integers_have_the_same_fingerprint():
    assert Catalogue(3, popularity=POPULARITY.int()).fingerprint == CATALOGUES[2].fingerprint


def test_words_are_categories_numbered_in_sorted_order():
    assert Catalogue(3, categories=["noir", "drama", "noir"]).categories.tolist() == [1, 0, 1]


def test_a_catalogue_without_items_has_no_categories():
    assert Catalogue(0, categories=tensor([], dtype=torch.int64)).num_categories == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_of_shares_may_be_off_by_rounding(dtype):
    assert Catalogue(1, categories=torch.full((1, 3), 1 / 3, dtype=dtype)).categories.dtype == dtype


def test_no_gradient_is_kept():
    assert not Catalogue(2, embeddings=torch.ones(2, 2, requires_grad=True)).embeddings.requires_grad


NO_ORDER = "in the order of the items, got a dict: [categories[one] for one in train"
TO_SHARES = "shape [2, 2]: the shares of an item with several are"
BAD = [
    (2.5, {}, TypeError, "num_items must be a whole number"),
    (4, {"num_users": -2}, ValueError, "num_users must be a whole number >= 0, got -2"),
    (2, {"popularity": [1, 2]}, TypeError, "must be a tensor, got list: torch.as_tensor(popularity)"),
    (2, {"popularity": tensor([True, False])}, TypeError, "popularity must hold numbers, got a torch.bool"),
    (3, {"popularity": FOUR}, ValueError, "popularity must be [3], one number per item, got shape [4]"),
    (2, {"popularity": tensor([1, -1])}, ValueError, ">= 0 and finite, item 1 has -1"),
    (2, {"popularity": tensor([1, inf])}, ValueError, ">= 0 and finite, item 1 has inf"),
    (4, {"popularity": FOUR, "num_users": 4}, ValueError, "num_users=4 users once per item, but item 0"),
    (3, {"categories": {"x": "noir"}}, TypeError, NO_ORDER),
    (2, {"categories": tensor([0, -1])}, ValueError, "codes >= 0, item 1 has -1: give items without a known"),
    (2, {"categories": torch.eye(2).long()}, ValueError, "a 0/1 matrix becomes shares by"),
    (2, {"categories": torch.eye(2) > 0}, TypeError, TO_SHARES),
    (2, {"categories": torch.ones(2)}, ValueError, "[2, C], the shares of each item, got shape [2]"),
    (2, {"categories": tensor([[1, 0], [0, 0.0]])}, ValueError, "items without a known category one of"),
    (1, {"categories": tensor([[2.0, -1]])}, ValueError, "those of item 0 are [2.0, -1.0]"),
    (2, {"embeddings": torch.eye(2).long()}, TypeError, "embeddings must be float64, float32"),
    (2, {"embeddings": torch.ones(2)}, ValueError, "embeddings must be [2, d], one row per item, got"),
    (2, {"embeddings": tensor([[1.0], [-inf]])}, ValueError, "must be finite, but that of item 1"),
    (2, {"embeddings": torch.eye(2).to_sparse()}, TypeError, "embeddings is sparse"),
    (3, {"item_ids": ["a", "b"]}, ValueError, "item_ids holds 2 ids, but there are 3 items"),
]


@pytest.mark.parametrize(("num_items", "data", "error", "message"), BAD)
def test_bad_data_are_refused_where_they_are_given(num_items, data, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Catalogue(num_items, **data)


LOG = trm.Log.from_frame({"user": [1, 2], "item": [3, 4]})


@pytest.mark.parametrize(("wrong", "cure"), [("a.csv", "trm.Interactions.from_f"), (LOG, "train.to_interactions()")])
def test_what_is_no_interactions_is_refused_with_its_cure(wrong, cure):
    with pytest.raises(TypeError, match=re.escape(cure)):
        Catalogue.from_interactions(wrong)
