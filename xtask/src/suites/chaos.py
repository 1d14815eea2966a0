"""Random faults on the nodes of a lab, one after the other, under work that is verified.

    chaos.py STRAKE LAB KEPT SEED SECONDS

Three nodes work all the time: they append lines, each with fsync; fill a database; write and read
records of one file; make, rename and remove files; unpack a tree. What was acknowledged is written
down in the folder KEPT, outside the lab. At the end each of the nodes must have all of it. While
it works, no record that is read may be torn, or older than what was acknowledged before the read.
A program may see an error only on a node that a fault concerns. Lines that begin with BAD say what
was broken; the exit code is 1 if there are any.
"""

import ctypes
import errno
import multiprocessing
import os
import pathlib
import random
import sqlite3
import subprocess
import sys
import time

STRAKE, LAB, KEPT = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
SEED, SECONDS = int(sys.argv[4]), float(sys.argv[5])
NODES = 5
WORKERS = (1, 2, 3)
RECORD, RECORDS = 4096, 48
# How a fault begins and ends, as commands of `strake lab node`.
FAULTS = {"kill": ("kill", "start"), "stop": ("stop", "start"), "pause": ("pause", "resume"),
          "cut off": ("partition", "heal"), "cut off one way": ("partition", "heal")}
LENGTHS = (1.5, 4, 14, 25)
HEALED_MAX = 150
ILL = ("down", "dead", "recovering", "no answer", "not mounted", "stopped", "paused", "cut")

START = time.monotonic()
# From when on an error on a node counts; while a fault concerns the node, never.
calm_since = multiprocessing.Array(ctypes.c_double, NODES + 1)
# The newest version of each record that was acknowledged as durable.
acknowledged = multiprocessing.Array(ctypes.c_long, RECORDS)
faults_found = multiprocessing.Value(ctypes.c_long, 0)


def say(*words):
    print(f"{time.monotonic() - START:7.1f}", *words, flush=True)


def bad(*words):
    with faults_found.get_lock():
        faults_found.value += 1
    say("BAD", *words)


def lab(*words):
    command = [STRAKE, "lab", *map(str, words), "--dir", LAB]
    return subprocess.run(command, capture_output=True, text=True, timeout=400)


def place(node):
    return LAB / f"node{node}/mnt/work"


def again_and_again(node, what, step, stop):
    while not stop.is_set():
        began = time.monotonic()
        try:
            step()
        except (OSError, sqlite3.Error) as error:
            if began > calm_since[node]:
                bad(f"{what} on node {node}: {error!r} after {time.monotonic() - began:.1f} s")
            stop.wait(0.3)


def sync_path(path):
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def appends(node, stop):
    log, count = open(KEPT / f"appended{node}", "w"), 0

    def step():
        nonlocal count
        with open(place(node) / f"appended{node}", "ab", buffering=0) as file:
            for _ in range(20):
                count += 1
                file.write(b"%08d\n" % count)
                os.fsync(file.fileno())
                print(f"{count:08}", file=log, flush=True)
    again_and_again(node, "append", step, stop)


def database(node, stop):
    log, count = open(KEPT / f"rows{node}", "w"), 0

    def step():
        nonlocal count
        rows = sqlite3.connect(place(node) / f"rows{node}", timeout=20)
        try:
            rows.execute("pragma synchronous=full")
            rows.execute("create table if not exists t(k integer primary key, v blob)")
            for _ in range(10):
                count += 1
                rows.execute("insert into t values(?,?)", (count, os.urandom(300)))
                rows.commit()
                print(count, file=log, flush=True)
        finally:
            rows.close()
    again_and_again(node, "sqlite", step, stop)


def version_of(record):
    """The version that a record's bytes name. None if they are of two versions."""
    if not record.strip(b"\0"):
        return 0
    return int(record[:16]) if record == record[:16] * (RECORD // 16) else None


def records(node, stop):
    """Each node writes its own records of one file, and reads all."""
    rng, version = random.Random(f"{SEED} {node}"), 0
    own = [record for record in range(RECORDS) if record % len(WORKERS) == node - 1]

    def step():
        nonlocal version
        file = os.open(place(node) / "records", os.O_RDWR | os.O_CREAT)
        try:
            for _ in range(10):
                written, read = rng.choice(own), rng.randrange(RECORDS)
                version += 1
                os.pwrite(file, b"%16d" % version * (RECORD // 16), written * RECORD)
                if rng.random() < 0.5:
                    os.fsync(file)
                    acknowledged[written] = version
                least = acknowledged[read]
                found = version_of(os.pread(file, RECORD, read * RECORD))
                if found is None or found < least:
                    bad(f"node {node} reads record {read}: {found}, and {least} is durable")
        finally:
            os.close(file)
    again_and_again(node, "records", step, stop)


def names(node, stop):
    log, count, folder = open(KEPT / f"names{node}", "w"), 0, place(node) / "names"

    def step():
        nonlocal count
        count += 1
        new, named = folder / f"new{node}-{count}", folder / f"file{node}-{count}"
        with open(new, "xb", buffering=0) as file:
            file.write(named.name.encode())
            os.fsync(file.fileno())
        os.rename(new, named)
        sync_path(folder)
        print(named.name, file=log, flush=True)
        if count % 7 == 0:
            old = f"file{node}-{count - 3}"
            print("-" + old, file=log, flush=True)
            (folder / old).unlink(missing_ok=True)
    again_and_again(node, "names", step, stop)


def trees(node, stop):
    """Unpacks a tree, and compares it with what was packed."""
    tree, packed = place(node) / "tree", KEPT / "tree.tar"
    script = ('rm -rf "$1" && mkdir "$1" && tar -C "$1" -xf "$2" && '
              'find "$1" -type f -exec sync {} + && diff -r "$1" "$3"')

    def step():
        done = subprocess.run(["sh", "-c", script, "sh", tree, packed, KEPT / "tree"],
                              capture_output=True, text=True)
        if done.returncode:
            raise OSError(errno.EIO, (done.stdout + done.stderr)[-300:])
    again_and_again(node, "tar", step, stop)


def is_well():
    status = lab("status")
    return status.returncode == 0 and not any(word in status.stdout for word in ILL)


def hear_of_losses(node):
    """A mount that was declared dead has lost what was not durable. Of files that were closed
    meanwhile the next sync says so, once. The programs here would try the same again, so it is
    heard here."""
    work = place(node)
    for path in (work, work / "names", *work.glob("*[0-9]*"), work / "records"):
        try:
            sync_path(path)
        except OSError:
            pass


def fault(rng):
    kind, length = rng.choice(list(FAULTS)), rng.choice(LENGTHS)
    node, other = rng.sample(range(1, NODES + 1), 2)
    concerned = [node, other] if kind == "cut off one way" else [node]
    say(f"node {node}: {kind} for {length} s", f"from {other}" if len(concerned) > 1 else "")
    for each in concerned:
        calm_since[each] = float("inf")
    begin, end = FAULTS[kind]
    # A node whose mount is in use does not stop. Then nothing happens.
    lab("node", node, begin, *(["--from", other] if len(concerned) > 1 else []))
    time.sleep(length)
    limit = time.monotonic() + HEALED_MAX
    while True:
        ended = [lab("node", each, end) for each in concerned]
        if all(it.returncode == 0 for it in ended) and is_well():
            break
        if time.monotonic() > limit:
            bad("not well again:", *(it.stderr for it in ended), lab("status").stdout)
            break
        time.sleep(2)
    for each in concerned:
        if each in WORKERS:
            hear_of_losses(each)
        calm_since[each] = time.monotonic() + 1


def lines(name):
    return (KEPT / name).read_text().split()


def verify(node, reader):
    """What a node was told is durable must be seen on another one."""
    folder = place(reader)
    lost = set(lines(f"appended{node}")) - set((folder / f"appended{node}").read_text().split())
    rows = sqlite3.connect(folder / f"rows{node}", timeout=20)
    sound = rows.execute("pragma integrity_check").fetchone()[0]
    lost |= set(lines(f"rows{node}")) - {str(row) for row, in rows.execute("select k from t")}
    rows.close()
    told = lines(f"names{node}")
    removed = {line[1:] for line in told if line.startswith("-")}
    there = {name for name in os.listdir(folder / "names") if name.startswith(f"file{node}-")}
    lost |= {line for line in told if not line.startswith("-")} - removed - there
    if lost or sound != "ok":
        bad(f"of node {node}, seen on node {reader}: {sound}, {len(lost)} lost: {sorted(lost)[:5]}")
    for name in there:
        if (folder / "names" / name).read_text() != name:
            bad(f"{name} has other bytes on node {reader}")


def verify_records(reader):
    with open(place(reader) / "records", "rb") as file:
        for record in range(RECORDS):
            found = version_of(file.read(RECORD))
            if found is None or found < acknowledged[record]:
                bad(f"record {record} on node {reader}: {found}, not {acknowledged[record]}")


def main():
    place(1).mkdir()
    (place(1) / "names").mkdir()
    stop = multiprocessing.Event()
    works = [(work, node) for node in WORKERS for work in (appends, database, records, names)]
    workers = [multiprocessing.Process(target=work, args=(node, stop), name=f"{work.__name__}{node}")
               for work, node in [*works, (trees, 2)]]
    for worker in workers:
        worker.start()
    rng, count = random.Random(SEED), 0
    while time.monotonic() - START < SECONDS:
        fault(rng)
        count += 1
        time.sleep(rng.choice((1, 3, 6)))
    time.sleep(5)
    stop.set()
    for worker in workers:
        worker.join(60)
        if worker.is_alive():
            bad(f"{worker.name} hangs")
            worker.kill()
        elif worker.exitcode:
            # What it would have found is not known. Its error is above.
            bad(f"{worker.name} ended with exit code {worker.exitcode}")
    for reader in WORKERS:
        for node in WORKERS:
            verify(node, reader)
        verify_records(reader)
    told = {name: sum(len(lines(f"{name}{node}")) for node in WORKERS)
            for name in ("appended", "rows", "names")}
    say(f"{count} faults; acknowledged: {told}; BAD: {faults_found.value}")
    sys.exit(min(faults_found.value, 1))


main()
