#!/usr/bin/env python3
"""One client's part of a workload that several clients do at once.

The first line of its input starts it, so that all begin together. It prints one line of JSON: the
operations it did, when it began and ended, and how long the longest one took.
"""

import json
import os
import sys
import time

RECORD = 47008


def measured(operations, limit=None):
    """Does all operations, or those that begin within `limit` seconds."""
    longest, count, begun = 0.0, 0, time.monotonic()
    now = begun
    for operation in operations:
        operation()
        after = time.monotonic()
        longest, now, count = max(longest, after - now), after, count + 1
        if limit and now - begun >= limit:
            break
    return {"count": count, "begun": begun, "ended": now, "longest": longest}


def create(directory, name, count):
    """Makes and closes empty files."""
    def one(number):
        os.close(os.open(f"{directory}/{name}{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    return measured((lambda number=number: one(number)) for number in range(int(count)))


def opened(directory, name, count, rounds):
    """Opens and closes files that exist."""
    names = [f"{directory}/{name}{number}" for number in range(int(count))] * int(rounds)
    return measured((lambda path=path: os.close(os.open(path, os.O_RDONLY))) for path in names)


def stat(directory, name, count, rounds):
    names = [f"{directory}/{name}{number}" for number in range(int(count))] * int(rounds)
    return measured((lambda path=path: os.stat(path)) for path in names)


def stream(path, megabytes):
    """Writes a file and makes it durable; an operation is a MiB."""
    piece = os.urandom(1 << 20)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    found = measured((lambda: os.write(file, piece)) for _ in range(int(megabytes)))
    os.fsync(file)
    found["ended"] = time.monotonic()
    os.close(file)
    return found


def records(path, mode, first, step, count):
    """Writes or reads every `step`th record of a file that others write too."""
    piece = os.urandom(RECORD)
    # A program that may write a file may store to it through a mapping, so a read of it needs the
    # file for itself. IOR reads through a handle that only reads.
    file = os.open(path, os.O_RDWR | os.O_CREAT if mode == "write" else os.O_RDONLY, 0o644)

    def one(number):
        if mode == "write":
            os.pwrite(file, piece, number * RECORD)
        elif len(os.pread(file, RECORD, number * RECORD)) != RECORD:
            raise RuntimeError(f"record {number} is short")
    numbers = [int(first) + int(step) * number for number in range(int(count))]
    found = measured((lambda number=number: one(number)) for number in numbers)
    if mode == "write":
        os.fsync(file)
        found["ended"] = time.monotonic()
    os.close(file)
    return found


def synced(path, seconds):
    """Appends 4 KiB and makes it durable, again and again. An error ends it after its time."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)

    def one():
        os.write(file, b"x" * 4096)
        os.fsync(file)

    def forever():
        while True:
            yield one
    return measured(forever(), float(seconds))


MODES = {"create": create, "open": opened, "stat": stat, "stream": stream, "records": records,
         "synced": synced}

if __name__ == "__main__":
    mode, *words = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(MODES[mode](*words)), flush=True)
