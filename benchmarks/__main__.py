"""The command line of the benchmarks.

python -m benchmarks                       run all rows, C on the CPU and, if there is a GPU with CUDA, G on the GPU:
                                           printed, and written to benchmarks/results (cpu.json, nvidia-h200.json)
python -m benchmarks --device cuda         run the rows of one device; printed and written in the same way
python -m benchmarks --only scores ranks    run some rows: printed, and written to the file that --out names
python -m benchmarks table [FILE ...]      write the tables of docs/benchmarks.md (default: all in benchmarks/results)
python -m benchmarks scaling               measure cost against size: benchmarks/results/scaling.json and scaling.png
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import gpu, report, scaling, timing, workloads


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run the chosen command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = ["run", *arguments]
    parser = argparse.ArgumentParser("benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="time the rows of the table (the default)")
    run.add_argument("--only", nargs="+", choices=report.ROWS, metavar="ID", help="these rows")
    run.add_argument("--device", choices=["cpu", "cuda"], help="the rows of this device; default: of all there are")
    run.add_argument("--rounds", type=int, help="default: 5 to 30, as long as they are cheap")
    run.add_argument("--out", type=Path, help="results file for all of them; default as above, none with --only")
    run.add_argument("--no-memory", action="store_true", help="do not measure memory")
    table = commands.add_parser("table", help="write the tables of docs/benchmarks.md")
    table.add_argument("files", nargs="*", type=Path)
    scale = commands.add_parser("scaling", help="cost against the size of the problem")
    scale.add_argument("--out", type=Path, default=report.RESULTS, help="folder")
    scale.add_argument("--plot", action="store_true", help="draw the data that is there once more")
    memory = commands.add_parser("memory", help="memory of one case, for `run`")
    memory.add_argument("id", choices=report.ROWS)
    memory.add_argument("index", type=int)
    for command in (run, memory):
        command.add_argument("--data", type=Path, default=workloads.DATA, help="Gowalla's train.txt and test.txt")
        command.add_argument("--tiny", action="store_true", help="small inputs, to try the programme")
    chosen = parser.parse_args(arguments)

    if chosen.command == "run":
        if chosen.rounds is not None and chosen.rounds < 1:
            parser.error("--rounds must be at least 1")
        devices = ["cpu", *(["cuda"] if gpu.missing(False) is None else [])]
        if chosen.device is not None:
            devices = [chosen.device]
        ids = chosen.only or [id for name in devices for id in (workloads.ROWS if name == "cpu" else gpu.ROWS)]
        everything: list[dict[str, Any]] = []
        for rows, device in ((workloads.ROWS, "cpu"), (gpu.ROWS, "cuda" if gpu.missing(False) is None else "cpu")):
            some = [id for id in ids if id in rows]
            if not some:
                continue
            machine = timing.machine(device)
            print(report.header(machine), flush=True)
            cases = report.run_rows(some, chosen.rounds, chosen.tiny, chosen.data, not chosen.no_memory)
            everything += cases
            if chosen.out is not None:
                write(chosen.out, machine, everything)
            elif not chosen.only and not chosen.tiny and (device == "cuda" or rows is workloads.ROWS):
                write(report.file_for(machine), machine, cases)
    elif chosen.command == "table":
        report.write_page(chosen.files or None)
    elif chosen.command == "scaling":
        scaling.main(chosen.out, chosen.plot)
    else:
        print(json.dumps(report.memory_of(chosen.id, chosen.index, chosen.tiny, chosen.data)))


def write(out: Path, machine: dict[str, Any], cases: list[dict[str, Any]]) -> None:
    """Write the results of the cases, with the day, the commit and the machine, to a JSON file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    day = datetime.date.today().isoformat()
    kept = {"date": day, "commit": timing.commit(), "machine": machine, "cases": cases}
    out.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    main()
