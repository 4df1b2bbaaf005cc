"""Record the fixed point: `python -m tests.fixed_point.record` writes the results of all cases into `values.json`."""

import json
import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).parents[1]
VALUES = Path(__file__).with_name("values.json")


def recorded():
    """Return the results that were recorded, {group: {case: {key: numbers}}}."""
    return json.loads(VALUES.read_text(encoding="utf-8"))


def on_processes(processes, function, world_size):
    """Return the results of a group on several processes, which must agree in every bit."""
    results, *others = processes.run(function, world_size)
    assert [json.dumps(other) for other in others] == [json.dumps(results)] * len(others)
    return results


def main():
    """Write the results of all cases, one line for each case."""
    sys.path.insert(0, str(TESTS / "helpers"))
    warnings.simplefilter("ignore")
    from distributed import Processes

    from tests.fixed_point import cases

    found = {name: function() for name, function in cases.GROUPS.items()}
    processes = Processes()
    for name, (function, world_size) in cases.PROCESS_GROUPS.items():
        found[name] = on_processes(processes, function, world_size)
    processes.close()
    groups = []
    for name, results in found.items():
        lines = [f"{json.dumps(case)}: {json.dumps(result, separators=(',', ':'))}" for case, result in results.items()]
        groups.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    VALUES.write_text("{\n" + ",\n".join(groups) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
