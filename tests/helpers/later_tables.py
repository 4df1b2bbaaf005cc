"""Two further sets of tables for tests of the roles of columns, made after the rules and never used to change them."""

import numpy as np
from tables import (
    STARS,
    Collection,
    counts,
    days_of,
    flag,
    floats,
    formatted,
    moments,
    of,
    pick,
    seconds,
    text_of,
    whole,
)


def logs_of_media(seed=0):
    """Return 19 ground truths and logs of films, music, news and videos."""
    made = Collection(seed)
    log = made.log
    log(
        "Netflix",
        {"rating": STARS, "date": text_of(moments("D"))},
        ("customer", "movie"),
        fair=("rating",),
        time="date",
    )
    video = {"click": flag(0.2), "follow": flag(0.01), "like": flag(0.02), "share": flag(0.01)}
    video |= {"video_category": of("item", [0, 1]), "watching_times": whole(0, 9), "gender": of("user", [0, 1, 2])}
    log("Tenrec", video | {"age": of("user", range(8))}, relevance="click")
    log("MicroLens", {"timestamp": lambda draft: seconds()(draft) * 1000}, ("user", "item"), time="timestamp")
    listens = {
        "album_id": of("item", range(99)),
        "s": seconds(),
        "timestamp": text_of(lambda d: d["s"].astype("M8[s]")),
    }
    ids = ("user_id", "track_id")
    log("LFM-2b", listens, ids, sort="s", reverse=True, drop=("s",), time="timestamp")
    log("Taste Profile", {"play_count": lambda draft: draft.rng.zipf(1.5, draft.size)}, ("user", "song"))
    skips = {"session_position": whole(1, 21), "session_length": of("user", range(10, 21)), "skip_1": flag(0.4, bool)}
    skips |= {"skip_2": flag(0.5, bool), "not_skipped": flag(0.3, bool), "no_pause_before_play": flag(0.8)}
    skips |= {"hist_user_behavior_is_shuffle": of("user", [True, False]), "hour_of_day": of("user", range(24))}
    skips |= {"date": of("user", ["2018-07-15", "2018-07-16", "2018-09-18"]), "premium": of("user", [True, False])}
    log("Spotify sessions", skips, ("session_id", "track_id_clean"), relevance="not_skipped")
    clicks = {"click_timestamp": lambda draft: seconds(in_order=True)(draft) * 1000, "click_environment": pick(1, 2, 4)}
    clicks |= {
        "click_deviceGroup": pick(1, 3, 4),
        "click_os": pick(2, 17, 20),
        "click_country": of("user", [1, 10, 11]),
    }
    log("Globo", clicks | {"click_region": of("user", range(1, 29))}, ("user_id", "click_article_id"))
    news = {"impression_id": whole(0, 9000), "impression_time": moments(), "read_time": floats(90)}
    news |= {"device_type": whole(1, 4), "is_sso_user": of("user", [True, False]), "clicked": flag(0.1)}
    news |= {"is_subscriber": of("user", [False, False, True]), "scroll_percentage": floats(100)}
    log("EB-NeRD, a row per article", news, ("user_id", "article_id"), relevance="clicked", time="impression_time")
    log("Outbrain", {"clicked": flag(0.2)}, ("display_id", "ad_id"), relevance="clicked")
    log("Jester", {"rating": lambda draft: floats(20)(draft) - 10}, ("user", "joke"), relevance="rating")
    log("Goodbooks", {"rating": whole(1, 6)}, ("user_id", "book_id"), fair=("rating",))
    tweets = {"created_at": text_of(moments()), "hashtag": pick("np", "music"), "lang": of("user", ["en", "es"])}
    log("#nowplaying", tweets | {"tempo": of("item", np.linspace(60, 190, 298))}, ids, time="created_at")
    streams = {"streamer": of("item", range(70)), "time_start": whole(0, 6000)}
    streams["time_stop"] = lambda draft: draft["time_start"] + whole(1, 4)(draft)
    log("Twitch", streams, ("user", "stream_id"), sort="time_start")
    short = {"time": lambda draft: seconds()(draft) * 1000 + 3, "click": flag(), "is_search_item": flag(0.05, bool)}
    log("KuaiSAR", short | {"play_duration": whole(0, 9000)}, relevance="click", time="time")
    log(
        "MovieLens tags",
        {"tag": pick("noir", "space"), "timestamp": seconds()},
        ("userId", "movieId"),
        time="timestamp",
    )
    log(
        "Delicious",
        {"tagID": whole(1, 900), "timestamp": lambda d: seconds()(d) * 1000},
        ("userID", "bookmarkID"),
        time="timestamp",
    )
    log("Douban", {"rating": whole(0, 6), "time": seconds()}, ("user", "film"), relevance="rating", time="time")
    pins = {"board": whole(0, 500), "pin_no": lambda draft: draft.rng.permutation(draft.size)}
    log("Pinterest", pins, ("user", "pin"))
    podcasts = {
        "listened_share": floats(),
        "completed": flag(0.4, bool),
        "started_on": moments("D"),
        "downloads": counts,
    }
    log("podcasts", podcasts, ("listener", "episode"), relevance="completed", time="started_on")
    return made.cases


def logs_of_shops(seed=0):
    """Return 19 ground truths and logs of shops, jobs, places, advertisements and search."""
    made = Collection(seed)
    log = made.log
    jobs = {"interaction_type": pick(0, 0, 0, 1, 2, 3, 4, 5), "created_at": seconds()}
    log("XING", jobs, relevance="interaction_type", time="created_at")
    hotels = {
        "timestamp": seconds(),
        "action_type": pick("clickout", "image"),
        "device": of("user", ["mobile", "tablet"]),
    }
    log("Trivago", hotels, ("session_id", "reference"), sort="timestamp")
    tafeng = {"s": lambda d: seconds(in_order=True)(d) // 86400 * 86400, "TRANSACTION_DT": formatted("s", "%m/%d/%Y")}
    tafeng |= {"AGE_GROUP": of("user", ["25-29", "30-34"]), "AMOUNT": whole(1, 9), "SALES_PRICE": whole(9, 999)}
    log("Ta-Feng", tafeng, ("CUSTOMER_ID", "PRODUCT_ID"), drop=("s",))
    dunnhumby = {"DAY": lambda draft: np.sort(whole(1, 712)(draft)), "QUANTITY": whole(1, 4), "STORE_ID": whole(1, 500)}
    dunnhumby |= {"SALES_VALUE": lambda d: floats(9)(d).round(2), "TRANS_TIME": whole(0, 2360), "COUPON_DISC": 0.0}
    dunnhumby["WEEK_NO"] = lambda draft: draft["DAY"] // 7 + 1
    log("Dunnhumby", dunnhumby, ("household_key", "PRODUCT_ID"))
    beers = {f"review/{name}": pick(*np.arange(1, 5.5, 0.5)) for name in ("appearance", "aroma", "palate", "overall")}
    beers |= {"beer/ABV": of("item", np.linspace(3, 12, 287)), "review/time": seconds()}
    log("BeerAdvocate", beers, ("review/profileName", "beer/beerId"), fair=("review/overall",), time="review/time")
    recipes = {"date": text_of(moments("D")), "rating": pick(0, 4, 5), "review": "good"}
    log("Food.com", recipes, ("user_id", "recipe_id"), relevance="rating", time="date")
    opinions = {"categoryid": of("item", range(27)), "rating": whole(1, 6), "helpfulness": whole(0, 6)}
    log("Ciao", opinions, ("userid", "productid"), fair=("rating",))
    visits = {
        "time": text_of(moments()),
        "model_id": whole(0, 300),
        "type": whole(1, 7),
        "cate": of("item", range(4, 9)),
    }
    log("JData", visits, ("user_id", "sku_id"), time="time")
    mobile = {"behavior_type": pick(1, 2, 3, 4), "item_category": of("item", range(99)), "s": seconds()}
    log("Tianchi", mobile | {"time": formatted("s", "%Y-%m-%d %H")}, drop=("s",), time="time")
    features = {f"feature_{number}": floats() for number in range(3)}
    log("MSLR", {"label": pick(0, 0, 1, 2, 3, 4), **features}, ("qid", "doc"), relevance="label")
    log("MS MARCO", {"score": 1}, ("query-id", "corpus-id"))
    dresses = {"rating": pick(2, 4, 6, 8, 10), "fit": pick("fit", "small"), "size": whole(0, 40), "s": seconds()}
    dresses |= {"age": of("user", range(18, 70)), "review_date": formatted("s", "%B %d, %Y")}
    log("Rent the Runway", dresses, drop=("s",), fair=("rating",), time="review_date")
    places = {"time": lambda draft: seconds()(draft) * 1000, "rating": whole(1, 6)}
    log("Google Local", places, ("user_id", "gmap_id"), fair=("rating",), time="time")
    ads = {"timestamp": lambda draft: np.sort(whole(0, 2_671_000)(draft)), "conversion": flag(0.05), "click": flag(0.4)}
    ads |= {"conversion_timestamp": lambda d: np.where(d["conversion"] == 1, d["timestamp"] + 900, -1)}
    ads |= {"click_pos": whole(-1, 9), "cost": floats(0.01), "cat1": of("item", range(9))}
    log("Criteo attribution", ads, ("uid", "campaign"), relevance="click")
    log(
        "grocery orders", {"ordered_at": moments(), "is_gift": flag(0.05, bool)}, ("customer", "sku"), time="ordered_at"
    )
    loans = {"due_dt": moments("D"), "renewals": whole(0, 3), "s": seconds(), "loan_day": days_of("s")}
    log("library loans", loans, ("card", "copy"), drop=("s",), time="loan_day")
    log("candidates with sampled negatives", {"is_pos": flag(0.01), "weight": floats()}, relevance="is_pos")
    likes = {"swiped_right": flag(0.4, bool), "distance_km": floats(90), "seen_ms": lambda d: seconds()(d) * 1000}
    log("swipes", likes, ("from_user", "to_user"), relevance="swiped_right", time="seen_ms")
    returns = {"returned": flag(0.2, bool), "order_value": floats(200), "order_no": lambda d: np.arange(d.size)}
    log("purchases, some returned", returns, ("customer", "product"), fair=("returned",))
    return made.cases


def score(draft):
    """Return the true score."""
    return draft["hidden"]


def rank(draft):
    """Return the true rank."""
    return draft["place"]


def noisy(draft):
    """Return another score."""
    return draft["hidden"] + draft.rng.normal(size=draft.size)


def lists_of_libraries(seed=0):
    """Return 18 tables of lists as libraries write them."""
    made = Collection(seed)
    lists = made.lists
    lists("Spark ALS, exploded", {"rating": score})
    lists("Spark ALS, cross join", {"prediction": score, "rating": STARS}, False, "prediction")
    lists("Cornac", {"Score": score})
    lists("LensKit", {"score": score, "rank": rank, "algorithm": "knn"})
    lists("LensKit, shuffled", {"score": score, "rank": rank, "algorithm": "knn"}, False, "rank")
    lists("LightGBM", {"label": whole(0, 5), "pred": score, "leaf_index": whole(0, 31)}, False, "pred")
    lists("XGBoost margin", {"margin": score}, False, "margin")
    lists("margin in half precision", {"margin": lambda d: d["hidden"].astype(np.float16)}, False, "margin")
    lists("Elasticsearch", {"_score": score, "_shard": whole(0, 5), "took": 12})
    lists("Elasticsearch, shuffled", {"_score": score, "_shard": whole(0, 5), "took": 12}, False, "_score")
    lists("Milvus", {"distance": lambda draft: np.exp(-draft["hidden"])})
    lists("pgvector", {"l2": lambda draft: np.exp(-draft["hidden"])}, False, "l2")
    lists("BigQuery", {"predicted_rating_confidence": score}, False, "predicted_rating_confidence")
    lists("Personalize", {"score": score, "reason": "popular", "recommendation_time": 1_700_000_000})
    lists("SASRec ranks", {"rank": lambda draft: draft["place"] - 1}, False, "rank")
    lists("RecBole top k", {"prediction": lambda draft: draft["hidden"].astype(np.float32), "epoch": 30})
    lists("saturated sigmoid", {"prob": lambda d: np.minimum(d["hidden"], 1).astype(np.float32)}, fair=("prob",))
    lists("ranx run", {"run": "a", "score": lambda draft: (draft["hidden"] * 1e6).astype(np.int64)})
    return made.cases


def served_lists(seed=0):
    """Return 18 tables of lists as services log them."""
    made = Collection(seed)
    lists = made.lists
    by_list = {"served_at": of("user", range(1_700_000_000, 1_700_090_000, 50)), "latency_ms": of("user", range(9, 99))}
    lists("slots", {"slot": lambda draft: draft["place"] - 1, **by_list})
    lists("slots, shuffled", {"slot": lambda draft: draft["place"] - 1, **by_list}, False, "slot")
    lists("slots from the last", {"slot": rank, **by_list}, order="slot", reverse=True)
    lists("propensities", {"propensity": floats()})
    lists("tokens of a language model", {"relevance_score": score, "tokens": whole(200, 900)})
    lists("three scores", {"score_cf": noisy, "score_content": noisy, "score_final": score}, fair=("score_cf",))
    scores = {"score_cf": noisy, "score_content": noisy, "score_final": score}
    lists("three scores, shuffled", scores, False, "score_final")
    films = {
        "avg_rating": of("item", np.linspace(1, 5, 291)),
        "votes": of("item", range(4000)),
        "runtime": of("item", range(80, 180)),
    }
    lists("films", films)
    lists("films, shuffled by uplift", {"uplift": noisy, **films}, False, "uplift")
    lists("nearby places", {"distance_km": floats(20)})
    lists("auction", {"ecpm": score, "bid": floats(9)})
    lists("auction, shuffled", {"ecpm": score, "bid": of("item", np.linspace(0, 9, 289))}, False, "ecpm")
    lists(
        "stock", {"in_stock": flag(0.9, bool), "stock": of("item", range(50)), "discount": of("item", [0.0, 0.1, 0.2])}
    )
    lists("row and list numbers", {"list_no": of("user", range(1000)), "row": lambda draft: np.arange(draft.size)})
    lists("preference, 5 items", {"preference": score}, False, "preference", k=5)
    lists("preference, 2 items", {"preference": score}, False, "preference", k=2)
    lists("stars of five levels", {"level": lambda draft: np.clip(np.round(draft["hidden"] + 3), 1, 5)}, False, "level")
    lists("negative log likelihood", {"nll": lambda draft: -draft["hidden"]})
    return made.cases
