"""The table of `bench/cluster`: medians, ratios of figures of the same round, goals, verdicts."""

import statistics

from nodes import PEERS
from report import number

# Row ▶ (least ratio to `strake up`, least ratio to the better peer, least figure).
GOALS = {
    "create, own directory": (0.6, 10, None),
    "create, one task": (0.6, 10, None),
    "untar": (0.6, None, None),
    "git checkout": (0.6, None, None),
    "stat, own directory": (0.9, None, None),
    "stat warm, one task": (0.9, None, None),
    "open and close warm, one task": (0.9, None, None),
    "git status warm": (0.9, None, None),
    "find warm": (0.9, None, None),
    "read warm": (0.9, None, None),
    "write 1": (0.6, 3, None),
    "read cold 1": (0.6, 3, None),
    "write 4k + fsync": (0.5, 3, None),
    "random read 4k": (0.5, 3, None),
    "create, 2 clients, one directory": (None, 2, None),
    "records, 2 clients, one file: write": (None, 5, None),
    "records, 2 clients, one file: read": (None, 5, None),
    "hand-overs, write and write": (None, None, 1000),
    "hand-overs, write and read": (None, None, 1000),
}
# Row ▶ the most seconds.
MOST = {
    "longest write + fsync, leader dies": 5,
    "longest write + fsync, server dies": 12,
    "longest write + fsync, client dies": 12,
}
# Streams may miss their ratio to `strake up` where they reach this part of TCP.
OF_TCP = 0.7


def ratio_to_peer(samples, name, contender):
    """The median over the rounds of the ratio to the better peer of the round."""
    less_is_better = samples.units[name].startswith(("s", "ms", "µs"))
    ours, ratios = samples.values.get((name, contender), {}), []
    for round_number, value in ours.items():
        peers = [samples.values.get((name, peer), {}).get(round_number) for peer in PEERS]
        peers = [peer for peer in peers if peer is not None]
        if peers:
            ratios.append(min(peers) / value if less_is_better else value / max(peers))
    return statistics.median(ratios) if ratios else None


def goal(samples, name):
    """Whether a row's goals are met, and in words what is wanted. None where nothing is known."""
    least_up, least_peer, least = GOALS.get(name, (None, None, None))
    met, wanted = [], []
    to_up = samples.ratio(name, "strake", "strake up")
    if least_up is not None and to_up is not None:
        to_tcp = samples.ratio(name, "strake", "tcp")
        met.append(to_up >= least_up or (to_tcp is not None and to_tcp >= OF_TCP))
        wanted.append(f"≥ {least_up} of `strake up`"
                      + ("" if to_tcp is None else f" or ≥ {OF_TCP} of TCP ({to_tcp:.2f})"))
    to_peer = ratio_to_peer(samples, name, "strake")
    if least_peer is not None and to_peer is not None:
        met.append(to_peer >= least_peer)
        wanted.append(f"≥ {least_peer} × the better peer")
    value = samples.median(name, "strake")
    if least is not None and value is not None:
        met.append(value >= least)
        wanted.append(f"≥ {least:,}/s")
    if name in MOST and value is not None:
        met.append(value <= MOST[name])
        wanted.append(f"≤ {MOST[name]} s")
    return (all(met) if met else None), "; ".join(wanted)


def table(samples, names, verdicts):
    """Markdown: a line for each row, a column for each contender, ratios, goals."""
    compared = [("before", "to before")] if "before" in names else []
    heads = [*names, "to `strake up`", "to the better peer", *(head for _, head in compared)]
    lines = ["| row | unit | " + " | ".join(heads) + " | goal | |",
             "|---|---|" + "--:|" * len(heads) + "---|---|"]

    def shown(ratio):
        return "" if ratio is None else f"{ratio:.2f}"

    for name, unit in samples.units.items():
        cells = [number(samples.median(name, contender)) for contender in names]
        cells += [shown(samples.ratio(name, "strake", "strake up")),
                  shown(ratio_to_peer(samples, name, "strake"))]
        cells += [shown(samples.ratio(name, "strake", base)) for base, _ in compared]
        met, wanted = goal(samples, name)
        verdict = "" if met is None or not verdicts else "met" if met else "**not met**"
        lines.append(f"| {name} | {unit} | " + " | ".join(cells) + f" | {wanted} | {verdict} |")
    return "\n".join(lines) + "\n"
