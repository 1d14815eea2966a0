"""The table: medians, ratios of figures of the same round, goals, verdicts."""

import csv
import statistics


class Samples:
    """Every figure as it comes. A run that is broken off leaves what it had in `samples.tsv`."""

    def __init__(self, raw):
        self.values, self.units = {}, {}
        self.file = open(raw / "samples.tsv", "w", newline="")
        self.writer = csv.writer(self.file, delimiter="\t")
        self.writer.writerow(["round", "contender", "workload", "value", "unit"])

    def add(self, number, contender, name, value, unit):
        self.values.setdefault((name, contender), {})[number] = value
        self.units.setdefault(name, unit)
        self.writer.writerow([number, contender, name, f"{value:.6g}", unit])
        self.file.flush()

    def median(self, name, contender):
        found = self.values.get((name, contender))
        return statistics.median(found.values()) if found else None

    def ratio(self, name, contender, base):
        """The median over the rounds of how many times better than `base`; greater is better."""
        ours, theirs = self.values.get((name, contender), {}), self.values.get((name, base), {})
        pairs = [(ours[number], theirs[number]) for number in ours if number in theirs]
        if not pairs:
            return None
        less_is_better = self.units[name].startswith(("s", "ms", "µs", "KiB"))
        return statistics.median(b / a if less_is_better else a / b for a, b in pairs)


# Workload ▶ (least ratio to XFS, least ratio to JuiceFS, least absolute figure that will do instead).
GOALS = {
    "md easy create": (0.4, 9, None),
    "md easy stat": (0.5, None, None),
    "md easy remove": (0.4, None, None),
    "md hard create": (0.3, None, None),
    "md hard read": (0.3, None, None),
    "md hard remove": (0.4, None, None),
    "untar": (1 / 2.5, None, None),
    "find cold": (1 / 2.5, None, None),
    "grep cold": (1 / 2.5, None, None),
    "rm -rf": (1 / 2.5, None, None),
    "write 4k + fsync": (1 / 1.3, None, None),
    "write 1": (0.85, None, None),
    "write 4": (0.85, None, None),
    "read cold 1": (0.9, None, None),
    "read cold 4": (0.9, None, None),
    "read warm 1": (0.75, 1, None),
    "random read warm": (0.75, 1, None),
    "random read cold": (0.7, None, None),
    "random write": (0.15, None, 60000),
    "shared write": (0.5, None, None),
    "shared read": (0.5, None, None),
}
# The coded file system against code 1: N of the 6 strips written are data.
CODED = {"write 1": 0.85 / 1.5, "write 4": 0.85 / 1.5, "read cold 1": 0.95, "read cold 4": 0.95}

# What an earlier version reached may be lost by no more than this.
PAST = 0.95


def number(value):
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(samples, names, verdicts, more_goals=()):
    """Markdown: one line per workload, one column per contender, ratio and goal."""
    lines = [
        "| workload | unit | " + " | ".join(names) + " | ratio to XFS | goal | |",
        "|---|---|" + "--:|" * len(names) + "--:|--:|---|",
    ]

    def verdict(met):
        return "" if not verdicts or met is None else "met" if met else "**not met**"

    for name, unit in samples.units.items():
        cells = [number(samples.median(name, contender)) for contender in names]
        ratio, (goal, juicefs_goal, figure) = samples.ratio(name, "strake", "xfs"), GOALS.get(name, (None,) * 3)
        met, wanted = None, []
        if goal is not None and ratio is not None:
            value = samples.median(name, "strake")
            # "Whichever is more": both must hold.
            met = ratio >= goal and (figure is None or value >= figure)
            wanted.append(f"≥ {goal:.2f}" + (f" and ≥ {figure:,}" if figure else ""))
        to_juicefs = samples.ratio(name, "strake", "juicefs")
        if juicefs_goal is not None and to_juicefs is not None:
            met = (met is not False) and to_juicefs >= juicefs_goal
            wanted.append(f"≥ {juicefs_goal} × JuiceFS ({to_juicefs:.1f})")
        shown = "" if ratio is None else f"{ratio:.2f}"
        lines.append(f"| {name} | {unit} | " + " | ".join(cells)
                     + f" | {shown} | {'; '.join(wanted)} | {verdict(met)} |")
    more = list(more_goals)
    if more:
        lines += ["", "| goal | figure | wanted | |", "|---|--:|--:|---|"]
        lines += [f"| {what} | {figure} | {goal} | {verdict(met)} |"
                  for what, figure, goal, met in more]
    coded = [(name, samples.ratio(name, "strake-4+2p", "strake"), goal) for name, goal in CODED.items()]
    coded = [line for line in coded if line[1] is not None]
    if coded:
        lines += ["", "| 4+2p against code 1 | ratio | goal | |", "|---|--:|--:|---|"]
        lines += [f"| {name} | {ratio:.2f} | ≥ {goal:.2f} | {verdict(ratio >= goal)} |"
                  for name, ratio, goal in coded]
    # What is left dirty is no rate and no duration.
    past = [(name, samples.ratio(name, "strake", "before"))
            for name, unit in samples.units.items() if unit != "MiB"]
    past = [line for line in past if line[1] is not None]
    if past:
        lines += ["", "| strake against before | ratio | goal | |", "|---|--:|--:|---|"]
        lines += [f"| {name} | {ratio:.2f} | ≥ {PAST:.2f} | {verdict(ratio >= PAST)} |"
                  for name, ratio in past]
    return "\n".join(lines) + "\n"
