//! The whole cluster of one seed: nodes and hosts with mounts, each in simulated processes of its
//! own, that are started, killed and started again.

use super::disk::AttachedDisk;
use super::mount::Mount;
use super::node::{self, Node, Records, Site};
use super::place::NODES;
use super::program::{Program, Universe};
use super::record::{Life, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use strake_env::disk::sim::Sequence;
use strake_env::simulation::{self, in_process, network, undisturbed};
use strake_env::sync::Mutex;
use strake_env::thread::{self, JoinHandle};
use strake_env::{Clock, RealClock, Rng, SimDisk};
use strake_proto::{ClientId, Code, Result};
use strake_store::container::CONTAINER_BYTES_MIN;

/// Hosts that mount the file system.
pub(crate) const HOSTS: usize = 3;
/// Between attempts to mount, and before a mount that died is made anew.
const PAUSE: Duration = Duration::from_millis(300);
/// How often a life is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A machine of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Machine {
    /// A node, by its number.
    Node(u32),
    /// A host with a mount.
    Host(usize),
}

impl Machine {
    pub(crate) fn all() -> Vec<Machine> {
        NODES.map(Machine::Node).chain((0..HOSTS).map(Machine::Host)).collect()
    }
}

/// How a node's process ends without its own doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It is killed.
    Process,
    /// The power goes: what was not synced may be lost.
    Power,
}

/// A mount that works, in one of its lives.
pub(crate) struct Living {
    pub(crate) life: Life,
    pub(crate) mount: Arc<Mount>,
    /// Whether it was killed.
    is_killed: Arc<AtomicBool>,
}

/// What changes while the world goes on.
#[derive(Default)]
struct State {
    nodes: BTreeMap<u32, Arc<Node>>,
    disks: BTreeMap<u32, Arc<SimDisk>>,
    /// The process of each machine, while it has one.
    processes: BTreeMap<Machine, u32>,
    living: BTreeMap<usize, Arc<Living>>,
    /// Threads that end what was killed.
    ending: Vec<JoinHandle<()>>,
}

/// See the head of this file.
pub(crate) struct World {
    pub(crate) recorder: Arc<Recorder>,
    sequence: Sequence,
    code: Code,
    records: Arc<Records>,
    universe: Mutex<Option<Arc<Universe>>>,
    state: Mutex<State>,
    next_process: AtomicU32,
    next_life: AtomicU32,
    rng: Mutex<Rng>,
    /// Programs end, and no mount is made any more.
    is_over: AtomicBool,
    keepers: Mutex<Vec<JoinHandle<()>>>,
}

impl World {
    /// Makes the disks and starts the nodes.
    pub(crate) fn start(code: Code, seed: u64) -> Arc<World> {
        let sequence = Sequence::default();
        let mut state = State::default();
        for number in NODES {
            let disk = SimDisk::with_sequence(CONTAINER_BYTES_MIN, &sequence);
            node::format(number, &disk).expect("formats");
            disk.forget_log();
            state.disks.insert(number, disk);
        }
        let world = Arc::new(World {
            recorder: Arc::default(),
            sequence,
            code,
            records: Arc::default(),
            universe: Mutex::default(),
            state: Mutex::new(state),
            next_process: AtomicU32::new(1),
            next_life: AtomicU32::new(1),
            rng: Mutex::new(Rng::new(seed)),
            is_over: AtomicBool::new(false),
            keepers: Mutex::default(),
        });
        NODES.for_each(|number| world.start_node(number));
        world
    }

    /// Nothing else runs meanwhile, so that nobody waits for a paused thread.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        undisturbed(|| work(&mut self.state.lock()))
    }

    fn process_of(&self, machine: Machine) -> u32 {
        let process = self.next_process.fetch_add(1, Ordering::SeqCst);
        self.with(|state| state.processes.insert(machine, process));
        process
    }

    pub(crate) fn rng(&self) -> Rng {
        undisturbed(|| Rng::new(self.rng.lock().next_u64()))
    }

    /// The process of a machine, if it has one.
    pub(crate) fn process(&self, machine: Machine) -> Option<u32> {
        self.with(|state| state.processes.get(&machine).copied())
    }

    /// The nodes that have a process.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.with(|state| state.nodes.values().cloned().collect())
    }

    /// The mounts that work.
    pub(crate) fn living(&self) -> Vec<Arc<Living>> {
        self.with(|state| state.living.values().cloned().collect())
    }

    /// What the programs use.
    pub(crate) fn universe(&self) -> Arc<Universe> {
        undisturbed(|| self.universe.lock().clone()).expect("the first mount has made it")
    }

    /// Starts the process of a node that has none.
    pub(crate) fn start_node(&self, number: u32) {
        let disk = self.with(|state| Arc::clone(&state.disks[&number]));
        let site = Site {
            number,
            records: Arc::clone(&self.records),
            recorder: Arc::clone(&self.recorder),
            code: self.code,
        };
        let process = self.process_of(Machine::Node(number));
        let node = Node::start(&site, process, &disk).expect("its disk is sound");
        self.with(|state| state.nodes.insert(number, node));
    }

    /// Ends the process of a node.
    pub(crate) fn lose_node(&self, number: u32, loss: Loss) {
        let lost = self.with(|state| {
            state.processes.remove(&Machine::Node(number));
            state.nodes.remove(&number)
        });
        let Some(node) = lost else { return };
        network().kill(node.process);
        let disk = match loss {
            Loss::Process => node.disk.detach(),
            Loss::Power => self.cut_power(&node.disk),
        };
        let ending = in_process(node.process, || thread::spawn(move || node.stop()));
        self.with(|state| {
            state.disks.insert(number, disk);
            state.ending.push(ending);
        });
    }

    fn cut_power(&self, disk: &AttachedDisk) -> Arc<SimDisk> {
        let disk = disk.detach();
        let mut cuts = disk.power_cuts().counting_in(&self.sequence);
        cuts.advance(disk.position());
        cuts.crash(&mut self.rng())
    }

    /// Kills the process of a mount. Another one follows soon.
    pub(crate) fn kill_mount(&self, host: usize) {
        let Some(process) = self.process(Machine::Host(host)) else { return };
        let killed = self.with(|state| {
            state.processes.remove(&Machine::Host(host));
            state.living.remove(&host)
        });
        network().kill(process);
        let Some(living) = killed else { return };
        living.is_killed.store(true, Ordering::SeqCst);
        self.recorder.killed(living.life);
        let ending = in_process(process, || thread::spawn(move || living.mount.kill()));
        self.with(|state| state.ending.push(ending));
    }

    /// Mounts the file system on the first host, and makes what the programs use. Then all hosts
    /// have a mount with programs, again and again.
    pub(crate) fn populate(self: &Arc<World>) {
        let process = self.process_of(Machine::Host(0));
        let world = Arc::clone(self);
        let made = in_process(process, || {
            thread::spawn(move || {
                let mount = world.mount(0, &|_| ()).expect("nobody ends it");
                let universe = Universe::make(&world.recorder, &mount.vfs).expect("there is room");
                mount.end().expect("a node leads");
                universe
            })
        });
        let universe = made.join().expect("no panic");
        *self.universe.lock() = Some(Arc::new(universe));
        for host in 0..HOSTS {
            let world = Arc::clone(self);
            let keeper = thread::spawn(move || {
                while !world.is_over() {
                    world.live(host);
                    RealClock.sleep(PAUSE);
                }
            });
            self.keepers.lock().push(keeper);
        }
    }

    /// Tries to mount until that succeeds. `None` at the end, or if the process was killed.
    fn mount(&self, host: usize, named: &dyn Fn(ClientId)) -> Option<Arc<Mount>> {
        let own = simulation::process();
        loop {
            match Mount::open(host, named) {
                Ok(mount) => return Some(Arc::new(mount)),
                Err(_) if self.is_over() => return None,
                Err(_) if self.process(Machine::Host(host)) != own => return None,
                Err(_) => RealClock.sleep(PAUSE),
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// One life of the mount on a host, with its programs.
    fn live(self: &Arc<World>, host: usize) {
        let process = self.process_of(Machine::Host(host));
        let world = Arc::clone(self);
        let life = Life(self.next_life.fetch_add(1, Ordering::SeqCst));
        let living = in_process(process, || thread::spawn(move || world.life(host, life)));
        // Nobody waits for the threads of a process that was killed.
        while !living.is_finished() {
            if self.process(Machine::Host(host)) != Some(process) {
                return self.with(|state| state.ending.push(living));
            }
            RealClock.sleep(LOOK);
        }
        living.join().expect("no panic");
    }

    fn life(self: &Arc<World>, host: usize, life: Life) {
        let process = simulation::process();
        let named = |client| self.recorder.named(life, client);
        let Some(mount) = self.mount(host, &named) else { return };
        let is_killed = Arc::new(AtomicBool::new(false));
        let living = Arc::new(Living { life, mount: Arc::clone(&mount), is_killed });
        let is_wanted = self.with(|state| {
            let is_wanted = state.processes.get(&Machine::Host(host)).copied() == process;
            if is_wanted {
                state.living.insert(host, Arc::clone(&living));
            }
            is_wanted
        });
        if !is_wanted {
            self.recorder.killed(life);
            mount.kill();
            return;
        }
        let programs = [Program::work_on_files, Program::work_on_names].map(|work| {
            let (world, living) = (Arc::clone(self), Arc::clone(&living));
            thread::spawn(move || world.run(&living, work))
        });
        programs.into_iter().for_each(|program| program.join().expect("no panic"));
        if living.is_killed.load(Ordering::SeqCst) {
            return;
        }
        if !self.is_over() {
            // It was declared dead: another process follows.
            assert!(mount.tokens().is_dead(), "programs end when their mount is dead");
            self.with(|state| {
                state.processes.remove(&Machine::Host(host));
                state.living.remove(&host)
            });
            mount.kill();
        }
    }

    fn run(&self, living: &Living, work: fn(&mut Program, &dyn Fn() -> bool)) {
        let (universe, rng) = (self.universe(), self.rng());
        match Program::new(&universe, living.life, &living.mount, rng) {
            Ok(mut program) => work(&mut program, &|| self.is_over()),
            Err(error) => {
                let is_dead = living.mount.tokens().is_dead();
                assert!(is_dead, "the files of a mount cannot be opened: {error}");
            }
        }
    }

    /// Ends the programs. Their mounts stay.
    pub(crate) fn end_programs(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let keepers = std::mem::take(&mut *self.keepers.lock());
        keepers.into_iter().for_each(|keeper| keeper.join().expect("no panic"));
    }

    /// Calls `work` in the process of a mount.
    pub(crate) fn on_mount<T>(
        &self,
        host: usize,
        work: impl FnOnce(&Arc<Living>) -> Result<T>,
    ) -> Result<T> {
        let (process, living) = self.with(|state| {
            (state.processes.get(&Machine::Host(host)).copied(), state.living.get(&host).cloned())
        });
        let living = living.expect("it lives");
        in_process(process.expect("it has a process"), || work(&living))
    }

    /// What everything waits for now.
    pub(crate) fn waits(&self) -> String {
        let mut text = String::new();
        let nodes = self.nodes();
        let mounts = self.living();
        let of_nodes =
            nodes.iter().map(|node| (format!("process {}", node.process), &node.observe));
        let of_mounts =
            mounts.iter().map(|it| (format!("client {}", it.mount.client()), &it.mount.observe));
        for (who, observe) in of_nodes.chain(of_mounts) {
            for wait in observe.waiters.snapshot_with_locks() {
                text.push_str(&format!("  {who}: {} {}\n", wait.reason, wait.detail));
            }
        }
        text
    }

    /// Ends the nodes, and waits for all that was killed.
    pub(crate) fn stop(&self) {
        let (nodes, ending) = self
            .with(|state| (std::mem::take(&mut state.nodes), std::mem::take(&mut state.ending)));
        nodes.values().for_each(|node| node.stop());
        ending.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
