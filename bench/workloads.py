"""What is measured: the same programs in the same order on every contender.

Cold means: synced, taken down, mounted again, the kernel's caches dropped. A rate of writing
counts the time until fsync has returned.
"""

import contextlib
import dataclasses
import io
import json
import mmap
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import tarfile
import time

from contenders import drop_caches, run

# The kernel halts no processor while this is open with 0 in it.
LATENCY = pathlib.Path("/dev/cpu_dma_latency")
# Jobs of the runs that have more than one.
JOBS = 4


@dataclasses.dataclass
class Scale:
    megabytes: int  # of one fio workload
    seconds: int    # of one random I/O run
    repeats: int    # of a short run, of which the median counts


def tarball(work, count=15000):
    """15,000 files in about 1,100 directories, 150 MiB of text: the same bytes every time.
    With another count so many files in the same directories."""
    path = work / f"tree{count / 1000:g}k.tar"
    if path.exists():
        return path
    rng = random.Random(20240607)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(rng.choice(letters) for _ in range(rng.randint(2, 10))) for _ in range(3000)]
    ends = ["", "", "", "\n", ";\n", "()", " ="]
    text = " ".join(rng.choice(words) + rng.choice(ends) for _ in range(700000)).encode()
    directories = ["tree"]
    while len(directories) < 1100:
        parent = rng.choice(directories[-300:] if rng.random() < 0.7 else directories)
        if parent.count("/") < 8:
            directories.append(f"{parent}/{rng.choice(words)}{len(directories)}")
    files = []
    for number in range(count):
        ending = rng.choice(["c", "h", "go", "rs", "txt"])
        name = f"{rng.choice(directories)}/{rng.choice(words)}_{number}.{ending}"
        files.append((name, min(2_000_000, int(rng.lognormvariate(8.0, 1.55)))))
    files.sort(key=lambda file: file[0].rsplit("/", 1)[0])
    partial = path.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(directories):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, 1700000000
            archive.addfile(entry)
        for name, size in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = size, 0o644, 1700000000
            start = rng.randrange(0, max(1, len(text) - size))
            archive.addfile(entry, io.BytesIO(text[start:start + size]))
    partial.rename(path)
    return path


@contextlib.contextmanager
def awake(is_wanted):
    """Keeps idle processors from halting: see `crates/strake-fuse/src/awake.rs`."""
    if not is_wanted:
        yield
        return
    with open(LATENCY, "wb", buffering=0) as limit:
        limit.write(struct.pack("i", 0))
        yield


def machine():
    """What a machine's figures depend on, a line each."""
    def read(path):
        path = pathlib.Path(path)
        return path.read_text().strip() if path.exists() else "none"

    model = next((line.split(":")[1].strip() for line in read("/proc/cpuinfo").splitlines()
                  if line.startswith("model name")), "unknown")
    size, page = 512 << 20, 4096
    with mmap.mmap(-1, size) as memory:
        start = time.monotonic()
        for at in range(0, size, page):
            memory[at] = 1
        seconds = time.monotonic() - start
    lines = {
        "kernel": os.uname().release.split("-")[0],
        "processors": f"{os.cpu_count()} x {model}",
        "memory": read("/proc/meminfo").splitlines()[0].split(":")[1].strip(),
        "cpuidle driver": read("/sys/devices/system/cpu/cpuidle/current_driver"),
        "guest_halt_poll_ns": read("/sys/module/haltpoll/parameters/guest_halt_poll_ns"),
        "huge pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "fuse enable_uring": read("/sys/module/fuse/parameters/enable_uring"),
        # Slow where a host has to find the memory first.
        "first touch": f"{size / (1 << 20) / seconds:.0f} MiB/s",
    }
    return "".join(f"{name}: {value}\n" for name, value in lines.items())


def busy_seconds():
    """Processor seconds that the whole machine has spent since it started: programs, daemons, kernel."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, *_rest = map(int, fields)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def dirty_mebibytes():
    """What the whole machine still has to write."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    wanted = [line for line in lines if line.startswith(("Dirty:", "Writeback:"))]
    return sum(int(line.split()[1]) for line in wanted) / 1024


class Runner:
    """Runs groups of workloads on one contender; leaves every tool's own output in `raw`."""

    def __init__(self, contender, scale, archive, raw, number, strake):
        self.contender, self.scale, self.archive = contender, scale, archive
        self.raw, self.number, self.strake = raw, number, strake
        self.directory = contender.mount and contender.mount / "compared"
        self.busy = 0.0  # processor seconds of the machine during the last program
        raw.mkdir(parents=True, exist_ok=True)

    def run(self, rows, found):
        """Runs the rows of a function like those in `GROUPS`."""
        self.directory.mkdir(exist_ok=True)
        for name, value, unit in rows(self):
            print(f"  {name:<28} {value:12.5g} {unit}", flush=True)
            found(name, value, unit)
        shutil.rmtree(self.directory)

    def cold(self):
        os.sync()
        self.contender.cold()
        drop_caches()

    def keep(self, name, text):
        kind = type(self.contender).__name__.lower() + getattr(self.contender, "code", "")
        (self.raw / f"{self.number}-{kind}-{name}").write_text(
            text.replace(str(self.contender.stage.work), "WORK").replace(os.uname().nodename, "HOST"))

    def fio(self, name, *words):
        """The first job's line of fio's JSON, all jobs in one."""
        before = busy_seconds()
        text = run("fio", "--ioengine=psync", "--fallocate=none", "--invalidate=0", "--thread=1",
                   "--group_reporting", "--output-format=json", f"--name={name}", *words)
        self.busy = busy_seconds() - before
        self.keep(f"fio-{name}.json", text)
        job = json.loads(text[text.index("{"):])["jobs"][0]
        if job["error"]:
            raise RuntimeError(f"fio {name}: error {job['error']}")
        return job

    def bench(self, kind, *words):
        text = run(self.strake, "bench", kind, self.directory, "--tasks", "2", "--json", *words)
        self.keep(f"bench-{kind}.json", text)
        return json.loads(text)["detail"]


def streaming(it):
    one = [f"--filename={it.directory}/one", "--bs=1M", f"--size={it.scale.megabytes}M"]
    four = [f"--directory={it.directory}", "--filename_format=m.$jobnum", "--bs=1M",
            f"--numjobs={JOBS}", f"--size={it.scale.megabytes // JOBS}M"]

    def rate(job, side):
        return job[side]["bw_bytes"] / (1 << 20)

    os.sync()
    job = it.fio("write-1", *one, "--rw=write", "--end_fsync=1")
    # Near 0: fsync reached the disk. Near the size: it was acknowledged before it was so.
    yield "dirty after fsync", dirty_mebibytes(), "MiB"
    yield "write 1", rate(job, "write"), "MiB/s"
    yield "write 1: processor", it.busy * 1e6 / it.scale.megabytes, "µs/MiB"
    it.cold()
    yield "read cold 1", rate(it.fio("read-1", *one, "--rw=read"), "read"), "MiB/s"
    yield "read cold 1: processor", it.busy * 1e6 / it.scale.megabytes, "µs/MiB"
    yield "read warm 1", rate(it.fio("reread-1", *one, "--rw=read"), "read"), "MiB/s"
    (it.directory / "one").unlink()
    os.sync()
    job = it.fio("write-4", *four, "--rw=write", "--end_fsync=1")
    yield "write 4", rate(job, "write"), "MiB/s"
    it.cold()
    yield "read cold 4", rate(it.fio("read-4", *four, "--rw=read"), "read"), "MiB/s"


def scattered(it):
    four = [f"--directory={it.directory}", "--filename_format=m.$jobnum", f"--numjobs={JOBS}",
            f"--size={it.scale.megabytes // JOBS}M"]
    rand = [*four, "--bs=4k", "--time_based", f"--runtime={it.scale.seconds}", "--norandommap"]
    os.sync()
    job = it.fio("fsync", f"--filename={it.directory}/fsync", "--rw=write", "--bs=4k", "--size=2M",
                 "--fsync=1")
    yield "write 4k + fsync", job["job_runtime"] * 1000 / 512, "µs"
    it.fio("fill", *four, "--bs=1M", "--rw=write", "--end_fsync=1")
    it.fio("warm", *four, "--bs=1M", "--rw=read")
    yield "random read warm", it.fio("rand-warm", *rand, "--rw=randread")["read"]["iops"], "/s"
    it.cold()
    job = it.fio("rand-cold", *rand, "--rw=randread", "--direct=1")
    yield "random read cold", job["read"]["iops"], "/s"
    os.sync()
    # The fsync at the end counts: operations over the whole time of the job.
    job = it.fio("rand-write", *rand, "--rw=randwrite", "--end_fsync=1")
    yield "random write", job["write"]["total_ios"] * 1000 / job["job_runtime"] * JOBS, "/s"


def metadata(it):
    steps = {"file-create": "create", "file-stat": "stat", "file-read": "read",
             "file-remove": "remove"}
    cases = [
        ("easy", ("create", "stat", "remove"), ["-n", "5000", "-u", "-F"]),
        ("hard", ("create", "read", "remove"), ["-n", "2500", "-F", "-w", "3901", "-e", "3901"]),
    ]
    for name, wanted, words in cases:
        found = {}
        for _ in range(it.scale.repeats):
            os.sync()
            for detail in it.bench("md", *words):
                step = steps.get(detail["step"])
                if step in wanted:
                    found.setdefault(step, []).append(detail["operations_per_second"])
        # A step lasts a fraction of a second, and the work of the step before falls into it or
        # not: one sample says little.
        for step, rates in found.items():
            yield f"md {name} {step}", statistics.median(rates), "/s"


def shared(it):
    os.sync()
    for detail in it.bench("io", "--layout", "interleaved", "--record", "47008", "--records", "8000",
                           "--shift", "1", "--fsync", "counted", "--cache", "keep"):
        name = {"create": "write", "read": "read"}[detail["operation"]]
        yield f"shared {name}", detail["rates"]["natural_aggregate"] / (1 << 20), "MiB/s"


def tree(it):
    def timed(*words, codes=(0,)):
        start, before = time.monotonic(), busy_seconds()
        ended = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        seconds, it.busy = time.monotonic() - start, busy_seconds() - before
        if ended.returncode not in codes:
            raise RuntimeError(f"{words}: {ended.stderr.decode(errors='replace')}")
        return seconds, ended.stdout

    it.archive.read_bytes()
    os.sync()
    yield "untar", timed("tar", "xf", it.archive, "-C", it.directory)[0], "s"
    yield "untar: processor", it.busy * 1e6 / 15000, "µs/file"
    it.cold()
    seconds, names = timed("find", it.directory, "-type", "f")
    if names.count(b"\n") != 15000:
        raise RuntimeError(f"find saw {names.count(bytes([10]))} files instead of 15000")
    yield "find cold", seconds, "s"
    it.cold()
    # grep's 1 means: not found, as it must be.
    yield "grep cold", timed("grep", "-r", "needle_not_there", it.directory, codes=(1,))[0], "s"
    yield "rm -rf", timed("rm", "-rf", it.directory / "tree")[0], "s"


# In this order: what leaves little behind first.
GROUPS = {"metadata": metadata, "tree": tree, "scattered": scattered, "streaming": streaming,
          "shared": shared}
