"""What a trace costs where operations are shortest: it is switched while one run of names goes on.

Runs one after the other differ by some 5 %, which hides a cost of 2 %. Here a run of many files is
cut into windows. That is no less noisy with some 50 times four windows, but does not depend on what
lies between two runs. In each four windows the trace is off, on, on and off, so that what drifts evenly
during these does not count. The operations of a window are counted by the daemon.
"""

import math
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


def window(contender, traced):
    """The step that went on, if it was one alone, and its operations in a second."""
    if contender.traced != traced:
        contender.switch(traced)
    time.sleep(SETTLE_SECONDS)
    start, before = counts()
    time.sleep(WINDOW_SECONDS)
    end, after = counts()
    done = {step: after[step] - before[step] for step in STEPS}
    # Each file that is read is created and removed in other steps.
    steps = [step for step in STEPS if done[step] > 0]
    return (steps[0], done[steps[0]] / (end - start)) if len(steps) == 1 else (None, 0)


def measure(contender, cycles, add):
    """Calls `add` with the number, "on" or "off", the row, its figure and unit of each four windows."""
    number = 0
    for cycle in range(1, cycles + 1):
        for name, words in RUNS.items():
            print(f"observe: windows {cycle} of {cycles}: {name}", flush=True)
            run = subprocess.Popen([contender.program, "bench", "md", contender.mount, "--tasks", "2",
                                    *words], stdout=subprocess.DEVNULL)
            four = []
            while run.poll() is None:
                step, rate = window(contender, PATTERN[len(four)])
                if step is None or four and four[0][0] != step:
                    four = []
                    continue
                four.append((step, rate))
                if len(four) == len(PATTERN):
                    number += 1
                    rates = [math.log(rate) for _, rate in four]
                    for which, parts in (("off", (0, 3)), ("on", (1, 2))):
                        mean = math.exp(sum(rates[at] for at in parts) / len(parts))
                        add(number, which, f"md {name} {step}", mean, "/s")
                    four = []
            if run.returncode:
                raise subprocess.CalledProcessError(run.returncode, run.args)


def settings():
    """What `strake up` needs, so that requests can be counted."""
    return ["--set", f"metrics={ADDRESS}"]
