"""The results of all cases are those that were recorded before the core was rewritten."""

import math

import pytest

from tests.fixed_point import cases
from tests.fixed_point.record import on_processes, recorded

pytestmark = [pytest.mark.fixed, pytest.mark.filterwarnings("ignore::UserWarning")]  # cases without a row warn


@pytest.fixture(scope="module")
def values():
    return recorded()


def is_same(found, expected):
    """Return True for numbers that are equal up to rounding, and for equal ids."""
    if isinstance(expected, str) or isinstance(found, str):
        return found == expected
    return math.isnan(found) if math.isnan(expected) else math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-15)


def differences(found, expected):
    """Return a text for each case and key whose numbers differ from those recorded."""
    told = [f"case {case!r} is only on one side" for case in found.keys() ^ expected.keys()]
    for case in found.keys() & expected.keys():
        told += [f"{case}: {key!r} is only on one side" for key in found[case].keys() ^ expected[case].keys()]
        for key in found[case].keys() & expected[case].keys():
            pair = flat(found[case][key]), flat(expected[case][key])
            if len(pair[0]) != len(pair[1]) or not all(map(is_same, *pair)):
                told.append(f"{case}: {key} is {pair[0]}, recorded {pair[1]}")
    return sorted(told)


def flat(numbers):
    """Return numbers, or rows of numbers, as one list."""
    return [entry for row in numbers for entry in (row if isinstance(row, list) else [row])]


def check(found, expected):
    told = differences(found, expected)
    assert not told, f"{len(told)} results differ:\n" + "\n".join(told[:20])


@pytest.mark.parametrize("name", cases.GROUPS)
def test_values(name, values):
    """Values, standard errors, counts and kept rows of one process are those recorded."""
    for library in cases.NEEDS[name]:
        pytest.importorskip(library)
    check(cases.GROUPS[name](), values[name])


@pytest.mark.parametrize("name", cases.PROCESS_GROUPS)
def test_values_of_several_processes(name, values, processes):
    """All processes have the same results, and these are the ones recorded."""
    check(on_processes(processes, *cases.PROCESS_GROUPS[name]), values[name])


def test_every_recorded_group_is_tried(values):
    """No recorded group is left out."""
    assert values.keys() == cases.GROUPS.keys() | cases.PROCESS_GROUPS.keys()


def test_differences_are_found():
    """Numbers that differ by more than rounding, other counts, and missing keys and cases are differences."""
    recorded = {"case": {"HR@1": [0.25, math.nan, 4], "HR@2": [math.inf, 0.5, 4]}}
    assert not differences({"case": {"HR@1": [0.25 * (1 + 1e-13), math.nan, 4], "HR@2": [math.inf, 0.5, 4]}}, recorded)
    for numbers in ([0.25 * (1 + 1e-11), math.nan, 4], [0.25, 0.0, 4], [0.25, math.nan, 5], [0.25, math.nan]):
        assert len(differences({"case": recorded["case"] | {"HR@1": numbers}}, recorded)) == 1
    assert differences({"case": recorded["case"] | {"HR@2": [1e300, 0.5, 4]}}, recorded)
    assert differences({"case": {"HR@1": recorded["case"]["HR@1"]}}, recorded)
    assert differences({}, recorded)
