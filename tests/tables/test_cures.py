"""The code that a message about a table shows is run as it stands, and gives the right number."""

import re
from pathlib import Path

import pytest

import torchrecmetrics as trm
from torchrecmetrics import Log, Table

pd = pytest.importorskip("pandas")
pytest.importorskip("polars")
pytest.importorskip("pyarrow")


def order(lists):
    """Return MRR@2 of al's list, whose relevant item is y: 1 if the list is y, x, and 1 / 2 if it is x, y."""
    return trm.evaluate_lists("MRR@2", lists, target={"al": ["y"]})["MRR@2"].item()


def gain(target):
    """Return DCG@1 of the list y of al: the gain of y."""
    return trm.evaluate_lists("DCG@1", {"al": ["y"]}, target=target)["DCG@1"].item()


def last(events):
    """Return the item of the last event of a user."""
    test = Log.from_frame(events if isinstance(events, Table) else Table(events)).leave_last_out().test
    return test.item_ids[int(test.items[0])]


PASTE = r"(trm\.Table\(.*?\))"
BY_P = "user,item,p\nal,x,1\nal,y,2\n"
DAYS = "user,item,day\n1,30,3\n1,10,1\n1,20,2\n"
RECBOLE = "uid:token\tiid:token\trating:float\nal\tx\t3\nal\ty\t4\n"
CASES = {  # file -> content, use, message, cure ({} = the code that the message shows), value
    "unread.csv": (BY_P, order, f"highest for the best, pass {PASTE}", "{}", 1),
    "rows.csv": (BY_P, order, "or (rank=None)", "trm.Table(source, {})", 1 / 2),
    "value.csv": (BY_P, gain, PASTE, "{}", 2),
    "relevant.csv": (BY_P, gain, "or (value=None)", "trm.Table(source, {})", 1),
    "time.csv": (DAYS, last, PASTE, "{}", 30),
    "in_order.csv": (DAYS, last, "or (time=None)", "trm.Table(source, {})", 20),
    "two.csv": ("user,user_id,item\nal,bo,y\n", gain, "(user='user')", "trm.Table(source, {}, value=None)", 1),
    "pairs.log": ("user,item\nal,y\n", gain, "(delimiter=',')", "trm.Table(source, {})", 1),
    "types.inter": (RECBOLE, gain, PASTE, "{}", 4),
}


@pytest.mark.parametrize("name", CASES)
def test_the_code_of_a_message_reads_the_file(name, tmp_path, monkeypatch):
    """The call that failed gives the value of a correct table."""
    content, use, message, cure, value = CASES[name]
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    with pytest.raises(ValueError, match=f"(?s){message}") as error:
        use(name)
    shown = re.search(message, str(error.value), re.DOTALL)[1]

    assert use(eval(cure.format(shown), {"trm": trm, "source": name})) == value


def test_the_code_of_a_message_makes_datetimes():
    """Dates in an order that is not guessed: day, month, year."""
    dates = pd.Series(["05/02/2024", "07/01/2024", "06/02/2024"])
    events = {"user": [1, 1, 1], "item": [10, 20, 30], "time": dates}
    with pytest.raises(TypeError, match=r"pandas\.to_datetime makes datetimes"):
        last(events)

    assert last(events | {"time": pd.to_datetime(dates, format="%d/%m/%Y")}) == 30


def test_the_code_of_a_message_makes_a_date_of_a_number():
    log = Log.from_frame({"user": [1, 1], "item": [7, 8], "time": ["2024-01-01", "2024-01-02"]})
    with pytest.raises(TypeError, match=r"in seconds since 1970, pass valid_from=pandas.Timestamp\(1704153600, unit"):
        log.split_by_time(1704153600, "2024-01-02")

    assert len(log.split_by_time(pd.Timestamp(1704153600, unit="s"), "2024-01-02").test) == 1
