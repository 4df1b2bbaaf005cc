"""The cure of each message about tables and files is run as the message shows it, and gives the right number."""

import ast
import datetime
import json
import os
import re
from functools import partial
from pathlib import Path

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log, Table, Vocabulary

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


def table_of(source, columns):
    return Table(source, **columns) if columns else source


def order(lists, **columns):
    """MRR@2 of al's list, whose relevant item is y: 1 if the list is y, x, and 1 / 2 if it is x, y."""
    return trm.evaluate_lists("MRR@2", table_of(lists, columns), target={"al": ["y"]})["MRR@2"].item()


def gain(target, **columns):
    """DCG@1 of the list y of al: the gain of y."""
    return trm.evaluate_lists("DCG@1", {"al": ["y"]}, target=table_of(target, columns))["DCG@1"].item()


def hits(target):
    """HR@1 of the list 7 of user 1, a number."""
    return trm.evaluate_lists("HR@1", pd.DataFrame({"user": [1], "item": [7]}), target=target)["HR@1"].item()


def left(exclude, **columns):
    """HR@1 of the list x, y of al, without the items that al knows."""
    exclude = table_of(exclude, columns)
    return trm.evaluate_lists("HR@1", {"al": ["x", "y"]}, target={"al": ["y"]}, exclude=exclude)["HR@1"].item()


def read(events, columns):
    return Log.read(events if isinstance(events, Table) else Table(events, **columns))


def size(events, **columns):
    """Number of events."""
    return len(read(events, columns))


def last(events, **columns):
    """The item of the last event of a user."""
    test = read(events, columns).leave_last_out().test
    return test.item_ids[int(test.items[0])]


def total(events, **columns):
    """Sum of the values."""
    return read(events, columns).values.sum().item()


def from_frame(frame):
    """Number of events of a frame."""
    return len(frame if isinstance(frame, Log) else Log.from_frame(frame))


def frame(**columns):
    """Return a frame of al's items x and y with further columns."""
    return pd.DataFrame({"user": ["al", "al"], "item": ["x", "y"], **columns})


PASTE = r"(trm\.Table\(.*?\))"
by_p = partial(order, score="p")
BY_P = "user,item,p\nal,x,1\nal,y,2\n"
DAYS = "user,item,day\n1,30,3\n1,10,1\n1,20,2\n"
RECBOLE = "uid:token\tiid:token\trating:float\ntal\tx\t3\nal\ty\t4\n"
TREE = '{"user": 1, "item": 2, "tree": ' + "[" * 2000 + "]" * 2000 + "}\n"
ZONES = [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)]
CASES = {  # file or frame -> content, use, message, cure ({} = the code that the message shows), words for ..., value
    "unread.csv": (BY_P, order, f"highest for the best, pass {PASTE}", "{}", "", 1),
    "rows.csv": (BY_P, order, "or (rank=None)", "trm.Table(path, {})", "", 1 / 2),
    "value.csv": (BY_P, gain, PASTE, "{}", "", 2),
    "relevant.csv": (BY_P, gain, "or (value=None)", "trm.Table(path, {})", "", 1),
    "time.csv": (DAYS, last, PASTE, "{}", "", 30),
    "in_order.csv": (DAYS, last, "or (time=None)", "trm.Table(path, {})", "", 20),
    "two.csv": ("user,user_id,item\nal,bo,y\n", gain, "(user='user')", "trm.Table(path, {}, value=None)", "", 1),
    "one.csv": (BY_P, partial(order, rank="p", score="p"), "give one of the two", "trm.Table(path, score='p')", "", 1),
    "role.csv": (
        BY_P,
        partial(order, item="user", score="p"),
        r"(?:item|user)=\.\.\. says which",
        "trm.Table(path, score='p')",
        "",
        1,
    ),
    "twice.csv": (BY_P.replace("p", "item"), size, "rename them", "table = pandas.read_csv(path)", "", 2),
    "pairs.log": ("user,item\nal,y\n", gain, "(delimiter=',')", "trm.Table(path, {})", "", 1),
    "types.inter": (RECBOLE.replace("\ntal", "\nal"), gain, PASTE, "{}", "", 4),
    "array.jsonl": (
        "[[1, 2], [1, 3]]",
        size,
        "expected a list of objects",
        "table = [{'user': user, 'item': item} for user, item in json.loads(Path(path).read_text())]",
        "",
        2,
    ),
    "deep.jsonl": (
        TREE,
        size,
        "2001 brackets within each other: leave them out",
        "table = [dict(re.findall(r'\"(user|item)\": (\\d)', line)) for line in [Path(path).read_text()]]",
        "",
        1,
    ),
    "latin.csv": (
        "user,item\nal,é\n".encode("latin-1"),
        size,
        "save the file as UTF-8",
        "text = Path(path).read_text('latin-1')\ntable = Path(path).write_text(text, 'utf-8') and path",
        "",
        1,
    ),
    "joined.csv": (
        "user,item\nal,x\nuser,item\nal,y\n",
        size,
        "files that were joined need one header",
        "table = pandas.read_csv(path).drop_duplicates().query('user != \"user\"')",
        "",
        2,
    ),
    "large": (
        frame(p=np.array([5, 2**63], np.uint64)),
        by_p,
        "make them floats",
        "frame['p'] = frame['p'].astype(float)\ntable = trm.Table(frame, score='p')",
        "",
        1,
    ),
    "kinds": (
        frame(p=[1, "2"]),
        by_p,
        "make them all one kind, numbers",
        "frame['p'] = frame['p'].astype(float)\ntable = trm.Table(frame, score='p')",
        "",
        1,
    ),
    "numbers for names": (
        frame(p=[1, 2]).set_axis(range(3), axis=1),
        partial(order, user=0),
        "pass ('0')",
        "trm.Table(frame, user={}, item='1', score='2')",
        "",
        1,
    ),
    "repeated name": (
        pd.concat([frame(), frame()], axis=1),
        order,
        "2 columns named '(?:user|item)': rename them",
        "frame.set_axis(['user', 'item', 'a', 'b'], axis=1)[['user', 'item']]",
        "",
        1 / 2,
    ),
    "series": (pd.Series({"al": ["y"]}), gain, r"pass (target\.to_dict\(\))", "target = frame\ntable = {}", "", 1),
    "lazy": (pl.LazyFrame(frame()), gain, r"pass (target\.collect\(\))", "target = frame\ntable = {}", "", 1),
    "ids of parts": (
        {"user": [1], "item": [{"a": 1, "b": 2}]},
        from_frame,
        r"take one field of each, (\[cell\['a'\] for cell in )\.\.\.\]",
        "frame['item'] = {}frame['item']]\ntable = frame",
        "",
        1,
    ),
    "floats": (
        pd.DataFrame({"user": [1], "item": [7.5]}),
        from_frame,
        "make them whole numbers or text",
        "frame['item'] = frame['item'].astype(str)\ntable = frame",
        "",
        1,
    ),
    "huge floats": (
        pd.DataFrame({"user": [1], "item": [2.0**53]}),
        from_frame,
        "pass integers, or text",
        "frame['item'] = frame['item'].astype(int)\ntable = frame",
        "",
        1,
    ),
    "huge numbers": (
        {"user": [1], "item": [2**70]},
        from_frame,
        "make them text",
        "frame['item'] = list(map(str, frame['item']))\ntable = frame",
        "",
        1,
    ),
    "flags": (
        {"user": [1], "item": [True]},
        from_frame,
        r"make them text, (\[str\(id\) for id in ids\])",
        "ids = frame['item']\nframe['item'] = {}\ntable = frame",
        "",
        1,
    ),
    "text and numbers": (
        pd.DataFrame({"user": ["1"], "item": ["7"]}),
        hits,
        "they cannot be compared; convert one of the two",
        "frame.astype(int)",
        "",
        1,
    ),
    "missing id": (
        pd.DataFrame({"user": ["al", None], "item": ["x", "y"]}),
        from_frame,
        "leave them out",
        "frame.dropna()",
        "",
        1,
    ),
    "time zones": (
        {"user": [1, 1], "item": [7, 8], "time": ZONES},
        from_frame,
        "make them all one kind",
        "frame['time'] = [time.replace(tzinfo=None) for time in frame['time']]\ntable = frame",
        "",
        2,
    ),
    "other dates": (
        pd.DataFrame({"user": [1, 1, 1], "item": [10, 20, 30], "time": ["05/02/2024", "07/01/2024", "06/02/2024"]}),
        last,
        r"(pandas\.to_datetime) makes datetimes",
        "frame['time'] = {}(frame['time'], format='%d/%m/%Y')\ntable = frame",
        "",
        30,
    ),
    "path": (
        "x.csv",
        from_frame,
        r"(Log\.from_file) reads",
        "Path(path).write_text('user,item\\n1,2\\n')\ntable = trm.{}(path)",
        "",
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cures(name, tmp_path, monkeypatch):
    """What a message proposes is run, and the call that failed gives the value of a correct table."""
    content, use, message, cure, words, value = CASES[name]
    monkeypatch.chdir(tmp_path)
    source = content
    if isinstance(content, (str, bytes)) and "." in name:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        source = name
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}") as raised:
        use(source)
    shown = re.search(message, str(raised.value), re.DOTALL)
    code = cure.replace("{}", shown[1] if shown.groups() else "")
    for word in words.split():
        code = code.replace("...", word, 1)
    names = {"pandas": pd, "trm": trm, "ast": ast, "os": os, "Path": Path, "re": re, "json": json}
    names |= {"path": source if name == "path" else name, "frame": source.copy() if hasattr(source, "copy") else source}
    exec(code if "table = " in code or "\n" in code else f"table = {code}", names)
    use = use.func if isinstance(use, partial) else use
    assert use(names["table"]) == pytest.approx(value)


ids, floats = np.array([3, 5]), torch.tensor([[0.0], [1.0]])
al = {"user": ["al", "al"], "item": ["x", "y"]}
text = {"user": ["al"], "item": ["y x"]}
numbers = Vocabulary([3, 5])
DAY = "2024-01-02"
timed = pd.DataFrame({"user": [1, 1, 1, 1], "item": [10, 20, 30, 40], "time": [1.6e9, 1.6e9 + 1, 1.6e9 + 2, -1]})
seconds = timed[:3].assign(time=[1.6e9, 1.6e9 + 1, 1.6e12 + 2000])
dated = Log.from_frame({"user": [1, 1], "item": [7, 8], "time": ["2024-01-01", DAY]})
CALLS = [  # call, message, call as the message says, value
    (lambda: Table(Table(al)), "say all its columns at once", lambda: size(Table(al)), 2),
    (
        lambda: Log.from_frame(Table(al), time=None),
        "time=None stands beside a Table, .*: say it there",
        lambda: size(Table(al, time=None)),
        2,
    ),
    (
        lambda: trm.evaluate_lists("MRR@2", al, target={"al": ["y"]}, rank=None),
        r"trm.Table\(frame, rank=None\)",
        lambda: order(Table(al, rank=None)),
        1 / 2,
    ),
    (lambda: gain(Table(al, item=None)), "item=None is for label=", lambda: gain(Table(al)), 1),
    (
        lambda: order(Table(text, split="")),
        "such as ' '",
        lambda: order(Table(text, split=" ")),
        1,
    ),
    (
        lambda: order(Table({"user": ["al"], "item": [b"y x"]}, split=" ")),
        "split= is for text",
        lambda: order(Table({"user": ["al"], "item": [b"y x".decode()]}, split=" ")),
        1,
    ),
    (
        lambda: Log.from_frame(al, user_ids=["bo"]),
        r"leave such rows out, or join the two, user_ids.union\(...\)",
        lambda: len(Log.from_frame(al, user_ids=Vocabulary(["bo"]).union(["al"]))),
        2,
    ),
    (
        lambda: dated.split_by_time(1704153600, DAY),
        r"if it is in seconds since 1970, pass valid_from=pandas.Timestamp\(1704153600, unit='s'\)",
        lambda: len(dated.split_by_time(pd.Timestamp(1704153600, unit="s"), DAY).test),
        1,
    ),
    (
        lambda: last(timed),
        r"leave out missing times, log\.take\(log\.times > 0\)",
        lambda: (lambda log: log.take(log.times > 0).leave_last_out().test.items.item())(read(timed, {})),
        2,
    ),
    (
        lambda: last(seconds),
        "convert the times to one unit",
        lambda: last(seconds.assign(time=seconds["time"].where(seconds["time"] > 2e9, seconds["time"] * 1000))),
        30,
    ),
    (
        lambda: Interactions.from_columns(["al"], ["x"]),
        r"user_ids=sorted\(set\(users\)\)",
        lambda: len(Interactions.from_columns(["al"], ["x"], user_ids=["al"], item_ids=["x"])),
        1,
    ),
    (
        lambda: Interactions.from_edge_index(floats, 1, 2),
        r"pass edge_index.long\(\)",
        lambda: len(Interactions.from_edge_index(floats.long(), 1, 2)),
        1,
    ),
    (
        lambda: Interactions.from_edge_index(torch.tensor([[1, 2], [0, 1]]), 2, 2),
        "ids seem to start at 1; subtract 1",
        lambda: len(Interactions.from_edge_index(torch.tensor([[0, 1], [0, 1]]), 2, 2)),
        2,
    ),
    (
        lambda: Interactions.from_columns(ids, ids, ids + 1j),
        "values must be (real )?numbers",
        lambda: len(Interactions.from_columns(ids, ids, (ids + 1j).real)),
        2,
    ),
    (
        lambda: numbers.rows([3, 4]),
        "unknown='mark' gives -1 for them",
        lambda: numbers.rows([3, 4], unknown="mark").sum().item(),
        -1,
    ),
    (
        lambda: Vocabulary([3, 5, 3]),
        r"\(Vocabulary.number takes a column with repeats\)",
        lambda: len(Vocabulary.number([3, 5, 3])[0]),
        2,
    ),
    (lambda: numbers.ids([0, -1]), r"take ids\[ids >= 0\]", lambda: numbers.ids(np.array([0]))[0], 3),
    (
        lambda: Interactions.from_columns(ids, ids, user_ids=ids, num_users=2),
        "give one of the two",
        lambda: Interactions.from_columns(ids, ids, user_ids=ids).num_users,
        2,
    ),
]


@pytest.mark.parametrize(("call", "message", "cured", "value"), CALLS)
def test_calls_that_messages_propose(call, message, cured, value):
    """The call that a message proposes gives the value of a correct call."""
    with pytest.raises((TypeError, ValueError), match=message):
        call()
    assert cured() == pytest.approx(value)
