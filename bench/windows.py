"""What a trace costs where operations are shortest: it is switched while one run of names goes on.

Runs one after the other differ by some 5 %, which hides a cost of 2 %. Here a run of many files is
cut into windows. That is no less noisy with some 50 times four windows, but does not depend on what
lies between two runs. In each four windows the trace is off, on, on and off, so that what drifts evenly
during these does not count. The operations of a window are counted by the daemon.

Rates depend on much else: on the disks, and on other guests of the host. So a second row has the
processor time for an operation of the threads that answer requests, as the kernel counts it. These
threads note the events of a trace.
"""

import math
import pathlib
import re
import subprocess
import time
import urllib.request

ADDRESS = "127.0.0.1:7793"
# A window lasts so long. Before it the switched trace has so long to begin.
WINDOW_SECONDS = 0.25
SETTLE_SECONDS = 0.05
# Whether the trace is on, in each four windows.
PATTERN = (False, True, True, False)
RUNS = {
    "easy": ["-n", "150000", "-u", "-F"],
    "hard": ["-n", "60000", "-F", "-w", "3901", "-e", "3901"],
}
# Which request a step consists of. Windows with others of these are between two steps.
STEPS = {"create": "fuse_create", "read": "fuse_read", "remove": "fuse_unlink"}


def answering(data):
    """The threads of the daemon on this folder that answer requests."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"daemon" in words and str(data).encode() in b" ".join(words):
                threads = [(thread, (thread / "comm").read_text()) for thread in (process / "task").iterdir()]
                found = [thread for thread, name in threads if re.fullmatch(r"fuse-\d+\n", name)]
                if found:
                    return found
        except OSError:
            continue  # it has ended
    raise RuntimeError(f"no daemon answers requests for {data}")


def spent(threads):
    """The seconds that these threads were on a processor."""
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def counts():
    """The time, and how many requests of each step there were so far."""
    with urllib.request.urlopen(f"http://{ADDRESS}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    now, found = time.monotonic(), dict.fromkeys(STEPS, 0.0)
    for line in lines:
        for step, request in STEPS.items():
            if line.startswith("strake_operations_total{") and f'"{request}"' in line:
                found[step] = float(line.rsplit(None, 1)[1])
    return now, found


def window(contender, threads, traced):
    """The step that went on, if it was one alone, its operations in a second, and what each costs, in µs."""
    if contender.traced != traced:
        contender.switch(traced)
    time.sleep(SETTLE_SECONDS)
    (start, before), spent_before = counts(), spent(threads)
    time.sleep(WINDOW_SECONDS)
    (end, after), spent_after = counts(), spent(threads)
    done = {step: after[step] - before[step] for step in STEPS}
    # Each file that is read is created and removed in other steps.
    steps = [step for step in STEPS if done[step] > 0]
    if len(steps) != 1:
        return None, 0, 0
    count = done[steps[0]]
    return steps[0], count / (end - start), (spent_after - spent_before) / count * 1e6


def measure(contender, cycles, add):
    """Calls `add` with the number, "on" or "off", the row, its figure and unit of each four windows."""
    number, threads = 0, answering(contender.data)
    for cycle in range(1, cycles + 1):
        for name, words in RUNS.items():
            print(f"observe: windows {cycle} of {cycles}: {name}", flush=True)
            run = subprocess.Popen([contender.program, "bench", "md", contender.mount, "--tasks", "2",
                                    *words], stdout=subprocess.DEVNULL)
            four = []
            while run.poll() is None:
                found = window(contender, threads, PATTERN[len(four)])
                step = found[0]
                if step is None or four and four[0][0] != step:
                    four = []
                    continue
                four.append(found)
                if len(four) == len(PATTERN):
                    number += 1
                    for which, parts in (("off", (0, 3)), ("on", (1, 2))):
                        for at, row, unit in ((1, "", "/s"), (2, ", processor", "µs")):
                            logs = [math.log(four[part][at]) for part in parts]
                            add(number, which, f"md {name} {step}{row}", math.exp(sum(logs) / len(logs)), unit)
                    four = []
            if run.returncode:
                raise subprocess.CalledProcessError(run.returncode, run.args)


def settings():
    """What `strake up` needs, so that requests can be counted."""
    return ["--set", f"metrics={ADDRESS}"]
