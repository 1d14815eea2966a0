"""Small writes: random overwrites of files that exist, appends, databases, images.

Strake gets a small page pool, so that the files are 1.5 and 8 times as large as it. Each row of
random writes runs until at least three times the dirty limit is written. Its rate counts the last
half of the run and the flush after it. Beside the rate each such row has the longest write, the
99.9th percentile, and the bytes that the disk wrote for one byte of the program.
"""

import json
import mmap
import os
import pathlib
import random
import shutil
import sqlite3
import subprocess
import time

from contenders import run

POOL_MIB = 512
# Strake lets half of its page pool be dirty.
DIRTY_BYTES_LEAST = 3 * POOL_MIB // 2 << 20
JOBS = 2
SMALL_FILES, LARGE_FILES = POOL_MIB * 3 // 2, POOL_MIB * 8  # MiB, all files together
SETTINGS = ["--set", f"pagepool={POOL_MIB}M"]
IDLE_SECONDS = 60  # Strips are straightened while the disks are idle.


class Small:
    """The rows on one contender."""

    def __init__(self, it, pgbench_seconds):
        self.it, self.pgbench_seconds = it, pgbench_seconds
        self.seconds = it.scale.seconds
        self.is_xfs = type(it.contender).__name__ == "Xfs"
        self.is_coded = getattr(it.contender, "code", "1") != "1"

    def device_bytes(self):
        """What the disk wrote since it was made."""
        name = pathlib.Path(self.it.contender.stage.device).name
        return int(pathlib.Path(f"/sys/block/{name}/stat").read_text().split()[6]) * 512

    def fill(self, megabytes):
        """Files of that size together, written in order and flushed."""
        for path in self.it.directory.glob("f.*"):
            path.unlink()
        self.it.fio("fill", *self.files(megabytes), "--bs=1M", "--rw=write", "--end_fsync=1")

    def files(self, megabytes):
        return [f"--directory={self.it.directory}", "--filename_format=f.$jobnum",
                f"--numjobs={JOBS}", f"--size={megabytes // JOBS}M"]

    def flush(self):
        """Seconds until what was written to the files is durable."""
        start = time.monotonic()
        for path in self.it.directory.glob("f.*"):
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        return time.monotonic() - start

    def overwrite(self, name, megabytes, *words):
        """Yields the figures of one row of random writes."""
        logs = self.it.raw / f"{self.it.number}-{id(self)}-{name}".replace(" ", "-").replace("/", "-")
        os.sync()
        before, written, seconds = self.device_bytes(), 0, self.seconds
        job = self.it.fio(name.replace(" ", "-").replace("/", "-"), *self.files(megabytes),
                          "--time_based", f"--runtime={seconds}", "--norandommap", "--rw=randwrite",
                          "--percentile_list=99.9", f"--write_iops_log={logs}",
                          "--log_avg_msec=500", *words)
        written = job["write"]["io_bytes"]
        flushed = self.flush()
        rate = self.last_half(logs, job["write"]["runtime"] / 1000, flushed)
        bytes_each = written / max(1, job["write"]["total_ios"])
        device = (self.device_bytes() - before) / max(1, written) * bytes_each
        yield name, rate, "/s"
        yield f"{name}: longest", job["write"]["clat_ns"]["max"] / 1e6, "ms"
        yield f"{name}: p99.9", job["write"]["clat_ns"]["percentile"]["99.900000"] / 1e6, "ms"
        yield f"{name}: device bytes", device / 1024, "KiB"
        yield f"{name}: written", written / DIRTY_BYTES_LEAST * 3, "x dirty limit"

    def last_half(self, logs, seconds, flushed):
        """Writes in the last half of a run over the time of that half and of the flush."""
        total = 0.0
        for path in logs.parent.glob(logs.name + "_iops.*.log"):
            points = [line.split(",") for line in path.read_text().splitlines()]
            points = [(int(at) / 1000, int(value)) for at, value, direction, *_ in points
                      if direction.strip() == "1" and int(at) / 1000 > seconds / 2]
            if points:
                total += sum(value for _, value in points) / len(points)
            path.unlink()
        return total * (seconds / 2) / (seconds / 2 + flushed)

    def random_writes(self):
        direct, both = ["--direct=1", "--bs=4k"], (("1.5x", SMALL_FILES), ("8x", LARGE_FILES))
        for times, megabytes in both:
            self.fill(megabytes)
            yield from self.overwrite(f"4k direct {times}", megabytes, *direct)
            yield from self.overwrite(f"4k buffered {times}", megabytes, "--bs=4k")
        if self.is_xfs:
            yield from self.overwrite("4k direct depth 32", LARGE_FILES, *direct, "--ioengine=libaio",
                                      "--iodepth=32")
        for size in ("8k", "16k", "64k"):
            yield from self.overwrite(f"{size} direct 8x", LARGE_FILES, "--direct=1", f"--bs={size}")
        yield from self.overwrite("47008 B buffered 8x", LARGE_FILES, "--bs=47008", "--bs_unaligned=1")
        yield from self.overwrite("70/30 direct 8x", LARGE_FILES, *direct, "--rw=randrw",
                                  "--rwmixread=70")
        yield from self.overwrite("zipf direct 8x", LARGE_FILES, *direct,
                                  "--random_distribution=zipf:1.1")

    def image(self):
        """A virtual machine's disk: 4 KiB, 32 at once, flushed after every 32."""
        yield from self.overwrite("image 8x", LARGE_FILES, "--direct=1", "--bs=4k",
                                  "--ioengine=libaio", "--iodepth=32", "--fsync=32")

    def nsd_away(self):
        """One NSD away, and while it catches up."""
        if self.is_xfs or not self.is_coded:
            return
        data = self.it.contender.data
        (data / "nsd2").rename(data / "nsd2.away")
        time.sleep(3)
        yield from self.overwrite("one NSD away 8x", LARGE_FILES, "--direct=1", "--bs=4k")
        (data / "nsd2.away").rename(data / "nsd2")
        yield from self.overwrite("catching up 8x", LARGE_FILES, "--direct=1", "--bs=4k")
        self.wait_until_up()

    def wait_until_up(self):
        for _ in range(600):
            listed = run(self.it.strake, "disk", "list", "--data", self.it.contender.data, "--json")
            if '"recovering"' not in listed and '"down"' not in listed:
                return
            time.sleep(1)
        raise RuntimeError("the NSD that was away does not come up")

    def full(self):
        """The same at 90 % full."""
        if self.is_xfs:
            return
        found = os.statvfs(self.it.directory)
        size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        with open(self.it.directory / "filler", "wb") as filler:
            piece = os.urandom(1 << 20) * 8
            for _ in range(max(0, free - size // 10) // len(piece)):
                filler.write(piece)
            os.fsync(filler.fileno())
        yield from self.overwrite("90 % full 8x", LARGE_FILES, "--direct=1", "--bs=4k")
        (self.it.directory / "filler").unlink()

    def appends(self):
        job = self.it.fio("append", f"--filename={self.it.directory}/log", "--rw=write", "--bs=4k",
                          "--size=4G", "--fdatasync=1", "--time_based", f"--runtime={self.seconds}")
        (self.it.directory / "log").unlink()
        yield "4k append + fdatasync", job["write"]["iops"], "/s"

    def sqlite(self, journal):
        """Transactions of one row each, a table of 100,000 rows."""
        path, rng = self.it.directory / f"{journal}.db", random.Random(7)
        base = sqlite3.connect(path, isolation_level=None)
        base.execute(f"pragma journal_mode={journal}")
        base.execute("pragma synchronous=full")
        base.execute("create table t (k integer primary key, v blob)")
        base.execute("begin")
        base.executemany("insert into t values (?, ?)",
                         ((key, os.urandom(200)) for key in range(100_000)))
        base.execute("commit")
        count, start = 0, time.monotonic()
        while time.monotonic() - start < self.seconds:
            base.execute("update t set v = ? where k = ?", (os.urandom(200), rng.randrange(100_000)))
            count += 1
        seconds = time.monotonic() - start
        if base.execute("pragma integrity_check").fetchone() != ("ok",):
            raise RuntimeError("SQLite finds its file damaged")
        base.close()
        path.unlink()
        yield f"SQLite {journal}", count / seconds, "/s"

    def mapped(self):
        """Stores to random pages of a mapped file of 256 MiB, each followed by msync."""
        path, size, rng = self.it.directory / "mapped", 256 << 20, random.Random(8)
        with open(path, "wb") as file:
            file.write(bytes(size))
            os.fsync(file.fileno())
        count = 0
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as memory:
            start = time.monotonic()
            while time.monotonic() - start < self.seconds:
                at = rng.randrange(size // 4096) * 4096
                memory[at:at + 8] = count.to_bytes(8, "little")
                memory.flush(at, 4096)
                count += 1
            seconds = time.monotonic() - start
        path.unlink()
        yield "mmap + msync", count / seconds, "/s"

    def postgres(self):
        """pgbench at scale 100, with checkpoints every minute. XFS has all memory of the machine for
        it. So Strake gets the page pool that `strake up` chooses."""
        if not self.pgbench_seconds:
            return
        if not self.is_xfs:
            self.it.contender.restart_with_defaults()
        binaries = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        data = self.it.directory / "postgres"
        data.mkdir()
        shutil.chown(data, "postgres")
        for directory in (self.it.directory, self.it.contender.mount):
            directory.chmod(0o755)

        def as_postgres(*words):
            return run("runuser", "-u", "postgres", "--", *words, cwd="/")

        as_postgres(binaries / "initdb", "-D", data, "-A", "trust", "--no-sync")
        options = ("-c listen_addresses= -c unix_socket_directories=/tmp -c port=7964 "
                   "-c shared_buffers=128MB -c checkpoint_timeout=60s -c max_wal_size=1GB")
        as_postgres(binaries / "pg_ctl", "-D", data, "-w", "-o", options, "-l", data / "log", "start")
        try:
            reach = ["-h", "/tmp", "-p", "7964"]
            as_postgres(binaries / "pgbench", *reach, "-i", "-s", "100", "-q", "postgres")
            text = as_postgres(binaries / "pgbench", *reach, "-c", "8", "-j", "2", "-T",
                               self.pgbench_seconds, "postgres")
        finally:
            as_postgres(binaries / "pg_ctl", "-D", data, "-w", "-m", "fast", "stop")
        self.it.keep("pgbench", text)
        shutil.rmtree(data)
        rate = [line for line in text.splitlines() if line.startswith("tps = ")][0].split()[2]
        yield "pgbench", float(rate), "/s"

    def sequential(self):
        """Reading in order before a million random writes, at once after them, and later."""
        megabytes, read = 2048, ["--bs=1M", "--rw=read"]

        def cold_read():
            self.it.cold()
            job = self.it.fio("read", *self.files(megabytes), *read)
            return job["read"]["bw_bytes"] / (1 << 20)

        self.fill(megabytes)
        yield "read before patches", cold_read(), "MiB/s"
        count = 1_000_000 if self.seconds >= 20 else 100_000
        self.it.fio("patch", *self.files(megabytes), "--rw=randwrite", "--bs=4k", "--norandommap",
                    "--direct=1", f"--io_size={count * 4 // 1024 // JOBS}M", "--end_fsync=1")
        yield "read at once", cold_read(), "MiB/s"
        time.sleep(IDLE_SECONDS)
        yield "read after straightening", cold_read(), "MiB/s"

    def rows(self):
        for part in (self.random_writes, self.image, self.nsd_away, self.full, self.appends,
                     lambda: self.sqlite("wal"), lambda: self.sqlite("delete"), self.mapped,
                     self.sequential, self.postgres):
            yield from part()


def is_random(name):
    """Whether a row has figures beside its rate."""
    return name.endswith(("1.5x", "8x"))


# Row ▶ the least part of XFS' rate that code 1 reaches.
OF_XFS = {
    "4k direct 1.5x": 0.7, "4k direct 8x": 0.7, "4k buffered 1.5x": 0.12, "4k buffered 8x": 0.12,
    "8k direct 8x": 0.5, "16k direct 8x": 0.5, "64k direct 8x": 0.5, "47008 B buffered 8x": 0.5,
    "70/30 direct 8x": 0.5, "zipf direct 8x": 0.5, "image 8x": 0.5, "4k append + fdatasync": 0.8,
    "SQLite wal": 0.5, "SQLite delete": 0.5, "mmap + msync": 0.5, "pgbench": 0.7,
}
# (contender, row) ▶ (the least part, of which row of the same contender).
OF_OWN = {
    ("strake-4+2p", "one NSD away 8x"): (0.7, "4k direct 8x"),
    ("strake-4+2p", "catching up 8x"): (0.5, "4k direct 8x"),
    ("strake", "90 % full 8x"): (0.9, "4k direct 8x"),
    ("strake", "read at once"): (0.5, "read before patches"),
    ("strake", "read after straightening"): (0.9, "read before patches"),
}
BUFFERED_LEAST = 15_000            # writes a second
LONGEST_MOST, P999_MOST = 200, 20  # ms
DEVICE_MOST = {"strake": 12, "strake-4+2p": 40}  # KiB for a write of 4 KiB
# A patch with 4+2p writes three units and reads three.
CODED_LEAST, CODED_PARTS = 0.7, 6


def goals(samples):
    """Yields (what, figure, goal, whether it is met) for each goal that has its figures."""
    def of(name, contender, base_name, base):
        ours, theirs = samples.median(name, contender), samples.median(base_name, base)
        return None if ours is None or not theirs else ours / theirs

    for name, least in OF_XFS.items():
        ratio = samples.ratio(name, "strake", "xfs")
        if ratio is not None:
            yield name, f"{ratio:.2f} x XFS", f"≥ {least}", ratio >= least
        if "buffered" in name and name.startswith("4k"):
            rate = samples.median(name, "strake")
            if rate is not None:
                yield name, f"{rate:,.0f}/s", f"≥ {BUFFERED_LEAST:,}/s", rate >= BUFFERED_LEAST
    for times in ("1.5x", "8x"):
        part = of(f"4k direct {times}", "strake-4+2p", "4k direct depth 32", "xfs")
        if part is not None:
            allowed = CODED_LEAST / CODED_PARTS
            yield (f"4+2p: 4k direct {times}", f"{part:.3f} of the disk's random writes",
                   f"≥ {allowed:.3f}", part >= allowed)
    for (contender, name), (least, base) in OF_OWN.items():
        part = of(name, contender, base, contender)
        if part is not None:
            yield f"{contender}: {name}", f"{part:.2f} of {base}", f"≥ {least}", part >= least
    for contender, most in DEVICE_MOST.items():
        for name in filter(is_random, list(samples.units)):
            for end, limit in (("longest", LONGEST_MOST), ("p99.9", P999_MOST)):
                value = samples.median(f"{name}: {end}", contender)
                if value is not None:
                    yield (f"{contender}: {name}: {end}", f"{value:.1f} ms", f"≤ {limit} ms",
                           value <= limit)
            value = samples.median(f"{name}: device bytes", contender)
            if value is not None and name.startswith("4k direct"):
                yield (f"{contender}: {name}: device bytes a write", f"{value:.1f} KiB",
                       f"≤ {most} KiB", value <= most)
            value = samples.median(f"{name}: written", contender)
            if value is not None and value < 3:
                yield (f"{contender}: {name}: written", f"{value:.1f} x dirty limit", "≥ 3", False)


def missing():
    """Programs that the rows need and the machine lacks."""
    found = list(pathlib.Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
    return [] if found else ["pgbench (Debian: postgresql)"]
