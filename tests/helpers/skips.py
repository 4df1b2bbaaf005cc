"""List the tests that were skipped, and refuse those that run nowhere: python tests/helpers/skips.py PLACE ... < LOG.

Reads the lines that pytest prints with `-ra`. Exits with 1 if a test skipped for a reason that is not listed here, or
that does not hold at these places.
"""

import re
import sys
from collections import Counter

PEERS = ("rectools", "replay", "recpack", "jurity", "lenskit", "rbo", "ogb", "tgb", "pykeen")
PACKAGES = {  # modules that README's environment lacks, and the stage of .ci/nightly that installs them
    **dict.fromkeys((*PEERS, "implicit", "recommenders", "optuna"), "peers"),
    **dict.fromkeys(("ray", "pyspark", "duckdb", "dask"), "engines"),
}
REASONS = {  # other reasons, as regular expressions, and where they do not hold
    "no CUDA device": "card",
    "the (Gowalla )?data sets? (is|are) not here": "data",
    "LINKS TO OTHER SITES WERE NOT FOLLOWED": "network",
    "NO PAGE WAS LOOKED AT": "browser",
}
LACKING = re.compile(
    r"could not import '(\w+)|: (\w+)[\w.]* is not installed|needs (\w+), which is not|: (\w+) WAS NOT TESTED"
)


def place_of(line):
    """Return the place where a skipped test runs, None if it is not listed."""
    if lacking := LACKING.search(line):
        module = next(filter(None, lacking.groups())).lower()
        return PACKAGES.get({"spark": "pyspark"}.get(module, module))
    return next((place for reason, place in REASONS.items() if re.search(reason, line)), None)


def main(places, lines):
    """Print the number of skipped tests by the place where they run, and return the exit status."""
    counts, faults = Counter(), []
    for line in lines:
        if skipped := re.match(r"SKIPPED \[(\d+)\]", line):
            place = place_of(line)
            counts[place] += int(skipped[1])
            faults += [line] if place is None or place in places else []
    for place, count in counts.items():
        print(f"{count:4} skipped that run at: {place}")
    for line in faults:
        print("must not skip here:", line.strip())
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin))
