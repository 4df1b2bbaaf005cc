"""Tables with the columns of public data sets and of files of recommendations, for tests of the roles of columns.

Names of columns are those of the data sets; values are random, with the type, the range and the dependence (on user,
item or event) of the real ones.
"""

import zlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa

NUM_EVENTS, NUM_USERS, NUM_ITEMS = 4000, 250, 300


class Case(NamedTuple):
    """A table, the column that a role needs (None = none does), and columns about which a question is fair."""

    name: str
    table: pa.Table
    user: str
    item: str
    needed: dict
    fair: tuple


class Draft(dict):
    """Columns of a table in the making: each new one is a constant, or a function of the columns before it."""

    def __init__(self, name, seed, user, item):
        super().__init__()
        self.rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        self.user, self.item = user, item

    @property
    def size(self):
        return len(self[self.user])

    def add(self, columns):
        for name, make in columns.items():
            values = make(self) if callable(make) else make
            self[name] = np.full(self.size, values) if np.ndim(values) == 0 else np.asarray(values)

    def take(self, rows):
        for name in self:
            self[name] = self[name][rows]

    def table(self, leave_out=()):
        return pa.table({name: values for name, values in self.items() if name not in leave_out})


def pick(*values, p=None):
    """Values at random for each row."""
    return lambda draft: draft.rng.choice(values, draft.size, p=p)


def flag(share=0.3, dtype=int):
    """1 in a share of the rows, else 0."""
    return lambda draft: (draft.rng.random(draft.size) < share).astype(dtype)


def whole(low, high):
    """Whole numbers below `high` at random for each row."""
    return lambda draft: draft.rng.integers(low, high, draft.size)


def floats(scale=1.0):
    """Floats in [0, scale)."""
    return lambda draft: draft.rng.random(draft.size) * scale


def counts(draft):
    """Counts of votes, most of them 0."""
    return draft.rng.negative_binomial(0.25, 0.15, draft.size)


def of(key, values):
    """Values that belong to the user or the item: equal in all rows of one."""

    def make(draft):
        ids, codes = np.unique(draft[getattr(draft, key)], return_inverse=True)
        return draft.rng.permutation(np.resize(values, len(ids)))[codes]

    return make


def seconds(start=1_500_000_000, days=600, in_order=False):
    """Seconds since 1970."""

    def make(draft):
        values = start + draft.rng.integers(0, days * 86400, draft.size)
        return np.sort(values) if in_order else values

    return make


def moments(unit="s", **options):
    """Datetimes; of `unit` "D" dates."""
    return lambda draft: seconds(**options)(draft).astype("M8[s]").astype(f"M8[{unit}]")


def text_of(make, end=""):
    """Datetimes as ISO text."""
    return lambda draft: np.char.add(np.char.replace(np.datetime_as_string(make(draft)), "T", end[:1] or " "), end[1:])


def days_of(column):
    """YYYYMMDD of a column of seconds."""
    return lambda draft: np.char.replace(
        np.datetime_as_string(draft[column].astype("M8[s]").astype("M8[D]")), "-", ""
    ).astype(int)


def formatted(column, pattern):
    """Dates of a column of seconds in another form."""
    return lambda draft: [value.strftime(pattern) for value in draft[column].astype("M8[s]").tolist()]


STARS = pick(1.0, 2.0, 3.0, 4.0, 5.0)
HALF_STARS = pick(*np.arange(0.5, 5.5, 0.5))
POINTS = {"latitude": of("item", np.linspace(38, 42, 301)), "longitude": of("item", np.linspace(-75, -73, 307))}


class Collection:
    """Tables of one kind, made with one seed."""

    def __init__(self, seed):
        self.seed, self.cases = seed, []

    def log(self, name, columns, ids=("user_id", "item_id"), keep=None, sort=None, reverse=False, drop=(), **needs):
        """Add a ground truth or log with a row per user and item; `keep`, `sort` and `drop` change it at the end."""
        draft = Draft(name, self.seed, *ids)
        pairs = np.stack([draft.rng.integers(0, NUM_USERS, NUM_EVENTS), draft.rng.zipf(1.3, NUM_EVENTS) % NUM_ITEMS])
        _, rows = np.unique(pairs, axis=1, return_index=True)
        users, items = pairs[:, np.sort(rows)]
        if "asin" in ids[1] or "business" in ids[1]:  # these data sets have ids of letters and digits
            users, items = np.char.mod("A%013d", users), np.char.mod("B%09d", items)
        draft.update({ids[0]: users, ids[1]: items})
        draft.add(columns)
        if keep is not None:
            draft.take(np.flatnonzero(keep(draft)))
        if sort is not None:
            values = draft[sort].astype(np.int64)
            draft.take(np.lexsort((-values if reverse else values, draft[ids[0]])))
        fair = needs.pop("fair", ())
        self.cases.append(Case(name, draft.table(drop), *ids, {"relevance": None, "time": None, **needs}, fair))

    def lists(self, name, columns, in_order=True, order=None, fair=(), k=10, users=200, pool=NUM_ITEMS, reverse=False):
        """Add lists; `hidden` and `place` are the true score and rank, which `columns` may read and no table holds."""
        draft = Draft(name, self.seed, "user_id", "item_id")
        popularity = 1 / np.arange(1, pool + 1) ** (1 if pool == NUM_ITEMS else 0)
        popularity /= popularity.sum()
        items = [draft.rng.choice(pool, k, replace=False, p=popularity) for _ in range(users)]
        hidden = -np.sort(-draft.rng.normal(size=(users, k)), axis=1)
        draft.update(user_id=np.repeat(np.arange(users), k), item_id=np.concatenate(items), hidden=hidden.ravel())
        draft["place"] = np.tile(np.arange(1, k + 1), users)
        if not in_order:
            draft.take(draft.rng.permutation(draft.size))
        if reverse:
            draft.take(slice(None, None, -1))
        draft.add(columns)
        table = draft.table(("hidden", "place"))
        self.cases.append(Case(name, table, "user_id", "item_id", {"order": order}, fair))


def ground_truths(seed=0):
    """Return 64 ground truths and logs; 21 need the column of relevance, 22 that of times."""
    made = Collection(seed)
    log = made.log
    movies, films = {"rating": HALF_STARS, "timestamp": seconds()}, ("userId", "movieId")
    log("MovieLens 20M", movies, films, fair=("rating",), time="timestamp")
    people = {"age": of("user", [1, 18, 25, 35, 45, 50, 56]), "gender": of("user", ["M", "F"])}
    people |= {"occupation": of("user", range(21)), "year": of("item", range(1930, 2001))}
    log("MovieLens 1M, merged", movies | people, films, fair=("rating",), time="timestamp")
    genres = {name: of("item", [0, 0, 1]) for name in ("unknown", "Action", "Adventure", "Comedy", "Drama")}
    log("MovieLens 100K, positives, genres and age", genres | {"age": of("user", range(7, 74))}, films)

    def on_days(draft):
        return seconds()(draft) // 86400 * 86400

    reviews = {"overall": STARS, "unixReviewTime": on_days, "reviewTime": formatted("unixReviewTime", "%m %d, %Y")}
    log("Amazon 2014", reviews, ("reviewerID", "asin"), fair=("overall",), time="unixReviewTime")
    reviews |= {"verified": flag(0.9, bool)}
    reviews["vote"] = lambda draft: np.where(draft.rng.random(draft.size) < 0.9, np.nan, counts(draft) + 2)
    log("Amazon 2018", reviews, ("reviewerID", "asin"), fair=("overall",), time="unixReviewTime")
    reviews = {"rating": STARS, "timestamp": lambda draft: seconds()(draft) * 1000 + 7, "helpful_vote": counts}
    reviews |= {"verified_purchase": flag(0.9, bool)}
    products = ("user_id", "parent_asin")
    log("Amazon 2023", reviews, products, fair=("rating",), time="timestamp")
    good = {"keep": lambda draft: draft["rating"] >= 4, "drop": ("rating",)}
    log("Amazon 2023, positives without rating", reviews, products, time="timestamp", **good)
    votes = {"useful": counts, "funny": counts, "cool": counts, "date": text_of(moments())}
    log("Yelp", {"stars": STARS, **votes}, ("user_id", "business_id"), fair=("stars",), time="date")
    log("Yelp without stars", votes, ("user_id", "business_id"), time="date")
    sales = {"t_dat": moments("D", in_order=True), "price": floats(0.06), "sales_channel_id": whole(1, 3)}
    sales["week"] = lambda draft: np.sort(whole(0, 105)(draft))
    log("H&M transactions", sales, ("customer_id", "article_id"))

    shown = {
        "s": seconds(1_649_376_000, 28),
        "date": days_of("s"),
        "hourmin": lambda draft: draft["s"] // 3600 % 24 * 100,
    }
    shown |= {"time_ms": lambda draft: draft["s"] * 1000, "is_click": flag(0.4)}
    for name in ("is_like", "is_follow", "is_comment", "is_forward", "is_hate"):
        shown[name] = lambda draft: flag(0.02)(draft) * draft["is_click"]
    shown |= {"long_view": flag(), "play_time_ms": lambda draft: whole(0, 60000)(draft) * draft["is_click"]}
    shown |= {"duration_ms": of("item", range(3000, 90000, 77)), "is_rand": 0, "tab": whole(0, 5)}
    videos, clicks = ("user_id", "video_id"), {"keep": lambda draft: draft["is_click"] == 1}
    log("KuaiRand", shown, videos, drop=("s",), relevance="is_click", time="time_ms")
    log("KuaiRand, clicks", shown, videos, drop=("s",), time="time_ms", **clicks)
    watched = {"play_duration": whole(0, 60000), "video_duration": of("item", range(3000, 90000, 77))}
    watched |= {"s": seconds(1_593_800_000, 60), "timestamp": lambda draft: draft["s"] + floats()(draft).round(3)}
    watched |= {"time": lambda draft: text_of(lambda rows: (rows["timestamp"] * 1000).astype("M8[ms]"))(draft)}
    watched |= {"date": days_of("s"), "watch_ratio": lambda draft: draft["play_duration"] / draft["video_duration"]}
    log("KuaiRec", watched, videos, drop=("s",), fair=("watch_ratio",), time="timestamp")
    news = {"impression_id": whole(1, 900), "clicked": flag(0.1), "time": moments()}
    log("MIND, a row per article", news, ("user", "news"), relevance="clicked", time="time")
    otto, sessions = {"ts": lambda draft: seconds()(draft) * 1000}, ("session", "aid")
    log("OTTO", {**otto, "type": pick("clicks", "carts", "orders")}, sessions, sort="ts")
    otto["type"] = pick(0, 1, 2, p=[0.8, 0.15, 0.05])
    log("OTTO, types as numbers", otto, sessions, sort="ts", fair=("type",))
    log("OTTO, orders", otto, sessions, sort="ts", keep=lambda draft: draft["type"] == 2)
    music = {"timestamp": lambda draft: whole(0, 26_000_000)(draft) // 5 * 5, "is_organic": flag(0.6, np.uint8)}
    log("Yambda likes", music, ("uid", "item_id"), sort="timestamp")
    music |= {"played_ratio_pct": whole(0, 130), "track_length_seconds": of("item", range(60, 400))}
    log("Yambda listens", music, ("uid", "item_id"), sort="timestamp", fair=("played_ratio_pct",))
    visits = {"s": seconds(), "check-in time": text_of(lambda draft: draft["s"].astype("M8[s]"), "TZ"), **POINTS}
    log("Gowalla", visits, ("user", "location"), sort="s", reverse=True, drop=("s",), time="check-in time")
    visits = {**POINTS, "timezoneOffset": pick(-240, -300), "s": seconds(in_order=True)}
    visits["utcTimestamp"] = formatted("s", "%a %b %d %H:%M:%S +0000 %Y")
    log("Foursquare", visits, ("userId", "venueId"), drop=("s",))
    games = {"helpful": counts, "funny": counts, "date": text_of(moments("D")), "is_recommended": flag(0.85, bool)}
    games |= {"hours": floats(100), "review_id": lambda draft: np.arange(draft.size)}
    log("Steam recommendations", games, ("user_id", "app_id"), relevance="is_recommended", time="date")
    games = {"behavior": pick("purchase", "play"), "value": lambda draft: floats(100)(draft).round(1) + 0.1, "0": 0}
    log("Steam 200K", games, ("user", "game"), fair=("value",))
    shop = {"timestamp": lambda draft: seconds()(draft) * 1000, "event": pick("view", "addtocart", "transaction")}
    shop["transactionid"] = lambda d: np.where(d["event"] == "transaction", whole(0, 17000)(d), np.nan)
    log("RetailRocket", shop, ("visitorid", "itemid"), time="timestamp")

    def plays(draft):
        return draft.rng.zipf(1.4, draft.size).clip(1, 300_000)

    log("Last.fm HetRec", {"weight": plays}, ("userID", "artistID"), fair=("weight",))
    log("Last.fm 360K", {"plays": plays}, ("user", "artist"))
    bought = {"Time": lambda draft: seconds(in_order=True)(draft).astype(float)}
    sessions = ("SessionId", "ItemId")
    log("YooChoose clicks", bought | {"category": whole(0, 13)}, sessions, sort="Time")
    bought |= {"price": of("item", [0, 0, 523, 1046, 12462]), "quantity": pick(0, 0, 1, 1, 1, 2, 3, 30)}
    log("YooChoose buys", bought, sessions, sort="Time")
    judged, grades = ("query_id", "doc_id"), pick(0, 0, 0, 1, 2, 3)
    log("TREC qrels", {"iteration": 0, "relevance": grades}, judged, relevance="relevance")
    log("TREC qrels, grades by a rare name", {"iteration": 0, "urteil": grades}, judged, relevance="urteil")
    log("BEIR qrels, all 1", {"score": 1}, judged)
    atomic = {"rating": STARS, "timestamp": lambda draft: seconds()(draft).astype(float)}
    log("RecBole .inter", atomic, fair=("rating",), time="timestamp")
    ads = {"time_stamp": seconds(), "clk": flag(0.05), "noclk": lambda draft: 1 - draft["clk"]}
    log("Taobao ads", ads, ("user", "adgroup_id"), relevance="clk", time="time_stamp")
    log("Taobao", {"cat_id": of("item", range(40)), "behavior": pick("pv", "buy"), "time": seconds()}, time="time")
    tmall = {"time_stamp": lambda draft: whole(5, 12)(draft) * 100 + whole(1, 29)(draft), "action_type": pick(0, 2, 3)}
    tmall |= {"age_range": of("user", range(9)), "gender": of("user", [0, 1, 2])}
    tmall["month"] = lambda draft: draft["time_stamp"] // 100
    log("Tmall", tmall, fair=("action_type",), time="time_stamp")
    log("Tmall, purchases", tmall, keep=lambda draft: draft["action_type"] == 2, time="time_stamp")
    baskets = {"order_id": whole(1, 3000), "add_to_cart_order": whole(1, 40), "reordered": flag(0.6)}
    baskets |= {"order_dow": whole(0, 7), "order_hour_of_day": whole(0, 24)}
    baskets["days_since_prior_order"] = lambda draft: whole(0, 31)(draft).astype(float)
    log("Instacart", baskets, ("user_id", "product_id"))
    retail = {"Quantity": whole(-20, 80), "UnitPrice": of("item", np.linspace(0, 10, 299))}
    retail["InvoiceDate"] = moments(in_order=True)
    log("UCI online retail", retail, ("CustomerID", "StockCode"), fair=("Quantity",))
    books = {"is_read": flag(0.5), "rating": lambda draft: pick(0, 1, 2, 3, 4, 5)(draft) * draft["is_read"]}
    books["is_reviewed"] = lambda draft: flag(0.1)(draft) * draft["is_read"]
    log("Goodreads", books, ("user_id", "book_id"), relevance="is_read")
    log("MyAnimeList", {"rating": pick(-1, *range(5, 11))}, ("user_id", "anime_id"), relevance="rating")
    log("Book-Crossing", {"Book-Rating": pick(0, 0, 5, 7, 8, 10)}, ("User-ID", "ISBN"), relevance="Book-Rating")
    bandit = {"timestamp": moments(in_order=True), "position": whole(1, 4), "click": flag(0.025)}
    log("Open Bandit", bandit | {"propensity_score": floats(0.1)}, relevance="click")
    for name, dtype in {
        **{"wurde_gekauft": bool, "achat": int, "y": int, "target": float},
        **{"is_attributed": int, "converted": bool, "outcome": int, "hat_geklickt": bool},
    }.items():
        log(f"impressions with {name}", {name: flag(dtype=dtype)}, relevance=name)
    log("impressions with rare purchases", {"bought": flag(0.004)}, relevance="bought")
    log("labels -1 and 1", {"label": pick(-1, 1)}, relevance="label")
    log("sentiments", {"sentiment": pick(-1, 0, 1)}, relevance="sentiment")
    log("folds", {"fold": whole(0, 5)})
    log("the test part of a split", {"is_test": True, "split": "test"})
    calendar = {"event_time": moments(in_order=True), "dow": whole(0, 7), "hour": whole(0, 24), "month": whole(1, 13)}
    log("features of the calendar", calendar | {"is_weekend": lambda draft: (draft["dow"] > 4).astype(int)})
    features = {
        "is_premium": of("user", [False, True]),
        "age": of("user", range(18, 80)),
        "is_free": of("item", [0, 1]),
    }
    log("features of users and items", features | {"price": of("item", np.linspace(1, 9, 293))})
    purchases = {"Unnamed: 0": lambda draft: np.arange(draft.size), "quantity": pick(1, 1, 2, 3)}
    log("purchases with a row number", purchases | {"review_length": whole(0, 4000)})

    def place_in_session(draft):
        rows = np.argsort(draft[draft.user], kind="stable")
        starts = np.r_[True, np.diff(draft[draft.user][rows]) != 0]
        places = np.arange(draft.size) - np.maximum.accumulate(np.where(starts, np.arange(draft.size), 0))
        return places[np.argsort(rows)]

    log("sessions with places from 0", {"position": place_in_session}, ("session_id", "item_id"))
    log("purchases with flags of devices", {"is_mobile": flag(0.5), "platform": whole(0, 3)})
    log("positives, all labelled 1", {"label": 1})
    views = {"timeframe": whole(0, 600_000), "eventdate": text_of(moments("D", in_order=True))}
    log("Diginetica", views, ("sessionId", "itemId"), time="timeframe")
    watched = {"last_watch_dt": moments("D"), "total_dur": whole(1, 90000)}
    watched["watched_pct"] = lambda draft: whole(0, 101)(draft).astype(float)
    log("KION", watched, time="last_watch_dt")
    log("ids in the range of times", {"tweet_id": lambda draft: seconds()(draft) * 10**9, "phone": seconds()})
    return made.cases


def recommendations(seed=0):
    """Return 56 tables of lists; 34 need the column that orders them."""
    made = Collection(seed)
    lists = made.lists

    def score(draft):
        return draft["hidden"]

    def rank(draft):
        return draft["place"]

    def squashed(draft):
        return 1 / (1 + np.exp(-draft["hidden"]))

    for in_order in (True, False):
        for name, columns in {
            "score of RecTools": {"score": score, "rank": rank},
            "rating of RePlay": {"rating": score},
            "score of implicit": {"score": lambda draft: draft["hidden"].astype(np.float32)},
            "score of TREC": {"Q0": "Q0", "rank": lambda draft: draft["place"] - 1, "score": score, "tag": "bm25"},
            "position": {"position": rank},
            "distance of Faiss": {"distance": lambda draft: np.exp(-draft["hidden"])},
            "rank beside counts": {"rank": rank, "n_clicks_item": of("item", range(5000))},
        }.items():
            role = name.split()[0]
            lists(f"{name}, {in_order=}", columns, in_order, None if in_order else role)
        two = {"bm25": score, "dense": lambda draft: draft["hidden"] + draft.rng.normal(size=draft.size)}
        fair = ("dense",) if in_order else ()
        lists(f"two scores, {in_order=}", two, in_order, None if in_order else "bm25", fair)
        coarse = {"score": lambda draft: (draft["hidden"] * 4).round() / 4}
        fair = ("score",) if in_order else ()
        lists(f"coarse score, {in_order=}", coarse, in_order, None if in_order else "score", fair)

    years, days = of("item", range(1930, 2000)), of("item", range(1, 13))
    facts = {"title": "t", "price": of("item", np.linspace(0, 1, 297)), "year": years}
    places = {"latitude": POINTS["latitude"], "longitude": POINTS["longitude"]}
    people = {"age": of("user", range(18, 80)), "fold": of("user", range(5)), "n_history": of("user", range(300))}
    run = {"model": "als", "seed": 42, "k": 10, "generated_at": lambda draft: 1.7e9 + np.arange(draft.size) // 100}
    lists("a submission of ids", {})
    facts |= {"popularity": of("item", range(5000)), "category_id": of("item", range(20))}
    lists("features of items", facts)
    lists("coordinates", places)
    lists("features of users", people)
    lists("facts of the run", run)
    lists("row numbers", {"Unnamed: 0": lambda draft: np.arange(draft.size)})
    lists("row numbers, shuffled", {"level_0": lambda draft: draft.rng.permutation(draft.size)})
    lists("flags of rows", {"is_new": flag(), "hit": flag(0.1)})
    lists("prices of user and item", {"offer_price": floats()})
    lists("prices, no item twice", {"price": of("item", np.linspace(0, 1, 1999))}, pool=100_000)
    first_stage = {"retrieval_score": lambda draft: draft.rng.normal(size=draft.size)}
    lists("scores of a first stage", first_stage, fair=("retrieval_score",))
    lists("codes of sources", {"source": whole(0, 3), "month": days})
    lists("channels", {"month": 5, "sales_channel_id": whole(1, 3)})

    names = (
        "y_pred",
        "logit",
        "cosine",
        "rec_score",
        "vorhersage",
        "out",
        "0",
        "dot",
        "affinity",
        "utility",
        "logprob",
    )
    for name in names:
        lists(f"shuffled {name}", {name: score}, False, name)
    for name in ("prob", "pctr", "p", "yhat"):
        lists(f"shuffled {name}", {name: squashed}, False, name)
    lists("Surprise", {"r_ui": STARS, "est": lambda draft: draft["hidden"].clip(-1.5, 1.5) + 3}, False, "est")
    lists("prediction and price", {"pred": score, "price": of("item", np.linspace(0, 1, 297))}, False, "pred")
    lists("the most popular items, by count", {"n_views": of("item", range(5000))}, False, "n_views")
    lists("constant score", {"score": 1.0}, order="score")
    lists("the worst item first", {"prob": score}, order="prob", reverse=True)
    candidates = {"logit": lambda draft: draft["hidden"].round(1), "label": flag(0.1)}
    lists("candidates with a label", candidates, False, "logit")
    lists("shuffled sim, no item twice", {"sim": score}, False, "sim", pool=100_000)
    lists("shuffled sim, 3 users", {"sim": score}, False, "sim", users=3)
    lists("ranks named step", {"step": rank}, False, "step")
    lists("whole scores", {"log_score": lambda draft: (draft["hidden"] * 100).astype(int)}, False, "log_score")
    return made.cases
