#!/usr/bin/env python3
"""Tells a monitor whether every disk of a Strake file system is up.

    examples/disks.py [DATA]        DATA: the data directory, if several file systems are running

Exit codes: 0 all disks are up and nothing was repaired, 1 a disk needs attention, 2 no answer.
"""

import json
import subprocess
import sys


def main():
    command = ["strake", "disk", "list", "--json"]
    if len(sys.argv) > 1:
        command += ["--data", sys.argv[1]]
    answer = subprocess.run(command, text=True, capture_output=True)
    if answer.returncode != 0:
        print(f"UNKNOWN: {answer.stderr.strip()}")
        return 2
    faults = []
    for disk in json.loads(answer.stdout):
        if disk["availability"] != "Up":
            faults.append(f"{disk['name']} is {disk['availability']}: {disk['fault'] or 'wait'}")
        if disk["repairedStrips"] or disk["badStrips"]:
            faults.append(f"{disk['name']}: {disk['badStrips']} bad strips, "
                          f"{disk['repairedStrips']} repaired since the start")
    print("\n".join(faults) or "all disks are up")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
