"""The one file that the repository keeps of a run, and where the rest goes.

A run is kept as `bench/runs/NAME.md`: how to repeat the run, the machine, the table, and every
figure of every round, so that a reader can recompute each median. What the measuring programs
print themselves is many times as large. It goes to `bench/runs/tmp/NAME`, which git ignores.
"""

import os
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RUNS = REPOSITORY / "bench/runs"
# Where cargo builds: the variable counts from the folder that cargo is started in.
TARGET = REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target")


def add_arguments(parser):
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE",
                        help="the file that keeps the run [bench/runs/DATE….md]")
    parser.add_argument("--raw", type=pathlib.Path, metavar="FOLDER",
                        help="what the measuring programs print [bench/runs/tmp/DATE…]")


def places(asked, name):
    """The file that keeps the run, and the folder of the raw output, which is made."""
    out, raw = asked.out or RUNS / f"{name}.md", asked.raw or RUNS / "tmp" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    raw.mkdir(parents=True, exist_ok=True)
    return out, raw


def rows(head, body, right_from=1):
    """A Markdown table; columns from `right_from` on hold figures."""
    rule = ["---"] * right_from + ["--:"] * (len(head) - right_from)
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(rule) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, line)) + " |" for line in body]) + "\n"


def samples(values, units, columns):
    """Each figure of each round. `values` is {(row, column): {round: figure}}."""
    def cell(row, column):
        found = values.get((row, column), {})
        return " ".join(f"{found[number]:.6g}" for number in sorted(found)) or "–"

    body = [[row, unit, *(cell(row, column) for column in columns)] for row, unit in units.items()]
    return ("A cell has the figure of each round, in the order of the rounds.\n\n"
            + rows(["", "unit", *columns], body, right_from=2))


def write(out, command, machine, table, rounds):
    """Writes the file. `machine` has a line `name: value` for each fact."""
    facts = "".join(f"- {line}\n" for line in machine.splitlines())
    out.write_text(f"# {out.stem}\n\n`{command}`\n\n## Machine\n\n{facts}\n## Table\n\n{table}\n"
                   f"## Rounds\n\n{rounds}")
