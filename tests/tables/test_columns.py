"""Text with delimiters, as people and other programs write it: ids, times and headers."""

import pytest

from torchrecmetrics import Log, Table, evaluate_lists

pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfuser,item\nal,x\nal,z\nbo,z\nbo,y\n",  # with a byte order mark
        b"user,item\ral,x\ral,z\rbo,z\rbo,y\r",
        b"user,item\r\nal,x\r\nal,z\r\nbo,z\r\nbo,y\r\n\r\n\r\n",
        b"user;item\nal;x\nal;z\nbo;z\nbo;y\n",
        b"user|item\nal|x\nal|z\nbo|z\nbo|y\n",
        b",user,item\n0,al,x\n1,al,z\n2,bo,z\n3,bo,y\n",  # with the index of pandas
        b"user,item, note\nal,x,a;b\nal,z,\nbo,z,\nbo,y,\n",
        b'user,item\n"al",x\nal,z\nbo,"z"\nbo,y\n',
    ],
)
def test_csv_is_read_as_other_programs_write_it(text, tmp_path):
    """Each file holds the lists x, z of al and z, y of bo."""
    (tmp_path / "lists.csv").write_bytes(text)
    lists = Table(tmp_path / "lists.csv", rank=None)

    assert evaluate_lists("MRR@2", lists, target={"al": ["x"], "bo": ["y"]})["MRR@2"] == (1 + 1 / 2) / 2


def ids_of(text, tmp_path, name="x.csv", **options):
    """Return the users of a file."""
    (tmp_path / name).write_text(text)
    log = Log.from_file(tmp_path / name, **options)
    return log.user_ids.ids(log.users)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["7", "10", "-3"], [7, 10, -3]),
        (["7", "07"], ["7", "07"]),  # as numbers they would be one
        (["7", "7.0"], ["7", "7.0"]),
        (["18446744073709551615", "0"], [2**64 - 1, 0]),
        (["1180591620717411303424", "0"], ["1180591620717411303424", "0"]),  # 2^70
        (["-0", "0"], ["-0", "0"]),
        (['"NA"', '""""', '"é, ü"'], ["NA", '"', "é, ü"]),  # a quoted id is an id like any other
        (["7.0", "10.0", "-3.0", "0.0"], [7, 10, -3, 0]),  # pandas writes whole numbers like this if some are missing
        (["7.0", "7.5"], ["7.0", "7.5"]),
        (["-0.0", "0.0"], ["-0.0", "0.0"]),
        (["7.00", "7.0"], ["7.00", "7.0"]),
    ],
)
def test_ids_of_text_are_numbers_only_if_all_are_written_so(written, expected, tmp_path):
    """Reading ids makes no two of them equal, and loses none."""
    assert ids_of("user,item\n" + "".join(f"{id_},0\n" for id_ in written), tmp_path) == expected


@pytest.mark.parametrize(
    ("times", "unit", "first"),
    [
        (["3", "10"], None, 3),
        (["3.5", "10"], None, 3.5),
        (["2024-01-01", "2024-01-02T12:00:00.5"], "ns", 1704067200_000_000_000),
        (["2024-01-01T01:00+01:00", "2024-01-01T00:00:01Z"], "s", 1704067200),
    ],
)
def test_times_of_text_are_numbers_or_dates(times, unit, first, tmp_path):
    (tmp_path / "x.csv").write_text("user,item,when\n" + "".join(f"a,b,{time}\n" for time in times))
    log = Log.from_file(tmp_path / "x.csv", time="when")

    assert (log.time_unit, log.times[0]) == (unit, first)
    assert log.times[0] < log.times[1]


def test_decimal_ids_and_ranks_meet_whole_ones(tmp_path):
    (tmp_path / "lists.csv").write_text("user,item,rank\n1.0,7.0,1.0\n1.0,8.0,2.0\n")
    (tmp_path / "truth.csv").write_text("user,item\n1,8\n")
    result = evaluate_lists("MRR@2", tmp_path / "lists.csv", target=tmp_path / "truth.csv")

    assert result["MRR@2"] == 1 / 2


@pytest.mark.parametrize(
    ("name", "delimiter", "text"),
    [("x.csv", ";", "user;item\r\na;1\r\n"), ("x.log", "|", "user|item\na|1\n"), ("x.data", ";", "user;item\na;1\n")],
)
def test_a_delimiter_is_read_for_any_ending(name, delimiter, text, tmp_path):
    assert ids_of(text, tmp_path, name, delimiter=delimiter) == ["a"]


def test_a_delimiter_is_one_character(tmp_path):
    with pytest.raises(ValueError, match="delimiter must be one character, got '::'"):
        ids_of("user::item\n", tmp_path, delimiter="::")


def test_a_name_that_begins_with_a_blank_is_found(tmp_path):
    assert ids_of("user, item\nal,x\n", tmp_path, item=" item") == ["al"]


def test_a_name_with_a_blank_is_suggested(tmp_path):
    with pytest.raises(ValueError, match="has no column 'item' or 'item_id'; did you mean ' item'"):
        ids_of("user, item\nal,x\n", tmp_path)


def test_a_missing_flag_is_not_false(tmp_path):
    (tmp_path / "flags.csv").write_text("user,item,value\na,x,true\na,y,\n")
    with pytest.raises(ValueError, match=r"column 'value' of .* is missing in row 1 \(line 3\)"):
        evaluate_lists("HR@1", {"a": ["x"]}, target=tmp_path / "flags.csv")


def test_a_false_value_is_not_relevant(tmp_path):
    (tmp_path / "flags.csv").write_text("user,item,value\na,x,false\na,y,true\n")

    assert evaluate_lists("HR@1", {"a": ["x"]}, target=tmp_path / "flags.csv")["HR@1"] == 0
