"""What is measured in a cluster: by one client on three servers, and by several at once.

A contender has a mount for each client. One that has a single mount is left out of the rows with
several. Cold means: the client's mount is made anew, and the kernel's caches are dropped.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time

import workloads
from contenders import run
from nodes import StrakeLab, Tcp

HANDS = pathlib.Path(__file__).resolve().parent / "hands.py"
RECORD_COUNT = 2000


class Together:
    """Programs of several clients that begin at once."""

    def __init__(self, parts):
        self.parts = [subprocess.Popen([sys.executable, HANDS, *map(str, words)], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                      for words in parts]
        for part in self.parts:
            part.stdout.readline()
        for part in self.parts:
            part.stdin.write("go\n")
            part.stdin.flush()

    def found(self):
        found = []
        for part in self.parts:
            line = part.stdout.readline()
            if part.wait() or not line:
                raise RuntimeError(f"hands.py ended with {part.returncode}")
            found.append(json.loads(line))
        return found


def together(parts):
    """All operations of all parts over the time from the first begin to the last end."""
    found = Together(parts).found()
    seconds = max(one["ended"] for one in found) - min(one["begun"] for one in found)
    return sum(one["count"] for one in found) / seconds


class Runner(workloads.Runner):
    """As for one machine, with the sizes of a cluster's rows."""

    def __init__(self, *words, files):
        super().__init__(*words)
        self.files = files

    def directories(self):
        return [mount / "compared" for mount in self.contender.mounts]

    def keep(self, name, text):
        text = text.replace(str(self.contender.stage.work), "WORK")
        (self.raw / f"{self.number}-{self.contender.name}-{name}").write_text(text)

    def run(self, rows, found):
        if isinstance(self.contender, Tcp):
            rows = {streams: tcp}.get(rows, lambda _: ())
            for name, value, unit in rows(self):
                print(f"  {name:<34} {value:12.5g} {unit}", flush=True)
                found(name, value, unit)
            return
        self.directory.mkdir(exist_ok=True)
        for name, value, unit in rows(self):
            print(f"  {name:<34} {value:12.5g} {unit}", flush=True)
            found(name, value, unit)
        subprocess.run(["rm", "-rf", self.directory], check=True)


def tcp(it):
    """One stream each way, for the rows of streams."""
    network = it.contender.network
    for name, words in (("write 1", []), ("read cold 1", ["-R"])):
        text = network.run(2, "iperf3", "-c", network.address(1), "-t", 3, "-J", *words)
        yield name, json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8 / (1 << 20), "MiB/s"


def names(it):
    """One client alone: names in a directory of its own, and again what it knows already."""
    steps = {"file-create": "create", "file-stat": "stat", "file-remove": "remove"}
    found = {}
    for _ in range(it.scale.repeats):
        for detail in it.bench("md", "-n", it.files, "-u", "-F"):
            step = steps.get(detail["step"])
            if step:
                found.setdefault(step, []).append(detail["operations_per_second"])
    for step, rates in found.items():
        yield f"{step}, own directory", statistics.median(rates), "/s"
    own = it.directory / "own"
    own.mkdir()
    yield "create, one task", together([("create", own, "f", it.files)]), "/s"
    yield "stat warm, one task", together([("stat", own, "f", it.files, 4)]), "/s"
    yield "open and close warm, one task", together([("open", own, "f", it.files, 4)]), "/s"
    shutil.rmtree(own)


def tree(it):
    """Programs that work on trees of files."""
    def timed(*words, **more):
        start = time.monotonic()
        subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, **more)
        return time.monotonic() - start

    it.archive.read_bytes()
    os.sync()
    yield "untar", timed("tar", "xf", it.archive, "-C", it.directory), "s"
    yield "find warm", timed("find", it.directory, "-type", "f", "-size", "+1M"), "s"
    yield "rm -rf", timed("rm", "-rf", it.directory / "tree"), "s"
    out = it.directory / "out"
    out.mkdir()
    git = ["git", f"--git-dir={repository(it)}", f"--work-tree={out}"]
    index = dict(os.environ, GIT_INDEX_FILE=str(it.contender.stage.work / "index"))
    pathlib.Path(index["GIT_INDEX_FILE"]).unlink(missing_ok=True)
    yield "git checkout", timed(*git, "checkout", "-f", "-q", "HEAD", "--", ".", env=index), "s"
    timed(*git, "status", env=index)
    yield "git status warm", timed(*git, "status", env=index), "s"
    shutil.rmtree(out)


def repository(it):
    """A repository with the files of the archive, outside of what is measured."""
    place = it.archive.with_suffix(".git")
    if place.exists():
        return place
    work = it.archive.with_suffix(".work")
    work.mkdir()
    run("tar", "xf", it.archive, "-C", work)
    git = ["git", f"--git-dir={place}.partial", f"--work-tree={work}", "-c", "user.name=bench",
           "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    run(*git, "init", "-q")
    run(*git, "add", "-A")
    run(*git, "commit", "-q", "-m", "tree")
    shutil.rmtree(work)
    pathlib.Path(f"{place}.partial").rename(place)
    return place


def streams(it):
    one = [f"--filename={it.directory}/one", "--bs=1M", f"--size={it.scale.megabytes}M"]

    def rate(job, side):
        return job[side]["bw_bytes"] / (1 << 20)

    os.sync()
    yield "write 1", rate(it.fio("write-1", *one, "--rw=write", "--end_fsync=1"), "write"), "MiB/s"
    it.cold()
    yield "read cold 1", rate(it.fio("read-1", *one, "--rw=read"), "read"), "MiB/s"
    (it.directory / "one").unlink()
    # What fits into the client's own memory.
    small = [f"--filename={it.directory}/small", "--bs=1M", "--size=96M"]
    it.fio("fill", *small, "--rw=write", "--end_fsync=1")
    it.fio("warm", *small, "--rw=read")
    yield "read warm", rate(it.fio("reread", *small, "--rw=read", "--loops=4"), "read"), "MiB/s"


def small(it):
    job = it.fio("fsync", f"--filename={it.directory}/fsync", "--rw=write", "--bs=4k", "--size=2M",
                 "--fsync=1")
    yield "write 4k + fsync", job["job_runtime"] * 1000 / 512, "µs"
    path = f"--filename={it.directory}/random"
    it.fio("fill", path, "--bs=1M", f"--size={it.scale.megabytes}M", "--rw=write", "--end_fsync=1")
    it.cold()
    job = it.fio("random", path, "--bs=4k", f"--size={it.scale.megabytes}M", "--rw=randread",
                 "--time_based", f"--runtime={it.scale.seconds}", "--norandommap", "--direct=1")
    yield "random read 4k", job["read"]["iops"], "/s"


def several(it):
    """Two and four clients in directories of their own, and two in one directory and one file."""
    if len(it.contender.mounts) < 4:
        return
    directories = it.directories()
    for clients in (1, 2, 4):
        for number in range(clients):
            (directories[0] / f"of{number}").mkdir()
        parts = [("create", directories[number] / f"of{number}", "f", it.files)
                 for number in range(clients)]
        yield f"create, {clients} clients, own directories", together(parts), "/s"
        for number in range(clients):
            shutil.rmtree(directories[number] / f"of{number}")
    for clients in (1, 2, 4):
        parts = [("stream", directories[number] / f"stream{number}", it.scale.megabytes // 4)
                 for number in range(clients)]
        yield f"write, {clients} clients, own files", together(parts), "MiB/s"
    (directories[0] / "all").mkdir()
    parts = [("create", directories[number] / "all", f"c{number}-", it.files // 4)
             for number in range(2)]
    yield "create, 2 clients, one directory", together(parts), "/s"
    path = [directory / "records" for directory in directories]
    path[0].touch()
    for mode in ("write", "read"):
        # Each reads what the other one has written.
        parts = [("records", path[number], mode, number if mode == "write" else 1 - number, 2,
                  RECORD_COUNT) for number in range(2)]
        yield f"records, 2 clients, one file: {mode}", together(parts) * 47008 / (1 << 20), "MiB/s"


def handed(it):
    """One block, written by two clients in turn, and what one writes read by the other."""
    if len(it.contender.mounts) < 2:
        return
    path = [directory / "block" for directory in it.directories()]
    path[0].write_bytes(bytes(1 << 20))
    files = [os.open(one, os.O_RDWR) for one in path[:2]]

    def rate(turn):
        count, start = 0, time.monotonic()
        while time.monotonic() - start < it.scale.seconds:
            turn(count)
            count += 1
        return 2 * count / (time.monotonic() - start)

    def write_both(count):
        for number, file in enumerate(files):
            os.pwrite(file, (2 * count + number).to_bytes(8, "little"), 0)

    def write_and_read(count):
        wanted = (1 << 60 | count).to_bytes(8, "little")
        os.pwrite(files[0], wanted, 0)
        found = os.pread(files[1], 8, 0)
        if found != wanted and it.contender.name.startswith(("strake", "before")):
            raise RuntimeError("a client reads what is no longer so")
    yield "hand-overs, write and write", rate(write_both), "/s"
    yield "hand-overs, write and read", rate(write_and_read), "/s"
    for file in files:
        os.close(file)


def recovery(it):
    """The longest write and fsync of a client while a server, a client or the leader dies."""
    if not isinstance(it.contender, StrakeLab):
        return
    lab = it.contender
    for what, node in (("client", lab.nodes[-1]), ("server", 3), ("leader", 1)):
        file = it.directory / f"while-{what}"
        other = lab.mounts[-1] / "compared/shared"
        if what == "client":
            other.write_bytes(b"x" * (1 << 20))  # It holds tokens when it dies.
        part = Together([("synced", file, 30)])
        threading.Timer(5, lab.node, (node, "kill")).start()
        yield f"longest write + fsync, {what} dies", part.found()[0]["longest"], "s"
        lab.node(node, "start") if what != "client" else None
        time.sleep(15)


GROUPS = {"names": names, "tree": tree, "small": small, "streams": streams, "several": several,
          "handed": handed, "recovery": recovery}
