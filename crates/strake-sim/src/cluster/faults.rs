//! What happens to the cluster: everything is drawn from the seed.

use super::place::NODES;
use super::world::{HOSTS, Loss, Machine, World};
use std::time::Duration;
use strake_env::simulation::{self, Link, network};
use strake_env::{Clock, RealClock, Rng};

/// A fault, which ends after a while.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A machine is cut off from all others: both ways, or so that they do not hear it, or so that
    /// it does not hear them.
    Cut(Machine, bool, bool),
    /// One machine does not reach another.
    CutLink(Machine, Machine),
    /// A machine's links are slow, and lose packets.
    Slow(Machine, Duration, u64),
    /// All streams between two machines end, so that what was under way is lost or sent again.
    Break(Machine, Machine),
    /// A process stands still.
    Pause(Machine),
    /// A node's process ends, and starts again.
    LoseNode(u32, Loss),
    /// A mount's process ends, and another one follows.
    KillMount(usize),
    /// The power goes everywhere.
    PowerCut,
}

fn draw(rng: &mut Rng) -> (Fault, Duration) {
    let machines = Machine::all();
    let machine = machines[rng.index(machines.len())];
    let others: Vec<Machine> = machines.into_iter().filter(|other| *other != machine).collect();
    let other = others[rng.index(others.len())];
    let node = 1 + rng.below(3) as u32;
    let fault = match rng.below(20) {
        0..=3 => {
            let (in_, out) = [(true, true), (true, false), (false, true)][rng.index(3)];
            Fault::Cut(machine, in_, out)
        }
        4..=5 => Fault::CutLink(machine, other),
        6..=7 => {
            let delay = Duration::from_millis(1 + rng.below(400));
            Fault::Slow(machine, delay, [0, 5, 50][rng.index(3)])
        }
        8..=9 => Fault::Break(machine, other),
        10..=12 => Fault::Pause(machine),
        13..=15 => {
            let loss = if rng.one_in(2) { Loss::Process } else { Loss::Power };
            Fault::LoseNode(node, loss)
        }
        16..=18 => Fault::KillMount(rng.index(HOSTS)),
        _ => Fault::PowerCut,
    };
    // Shorter and longer than a lease, which is 10 s.
    let millis = match rng.below(3) {
        0 => 20 + rng.below(400),
        1 => 400 + rng.below(4_000),
        _ => 4_000 + rng.below(12_000),
    };
    (fault, Duration::from_millis(millis))
}

impl World {
    /// Lets so many faults happen, one after the other, and mends the last one.
    pub(crate) fn suffer(&self, count: usize) {
        let mut rng = self.rng();
        for _ in 0..count {
            RealClock.sleep(Duration::from_millis(rng.below(2_500)));
            let (fault, time) = draw(&mut rng);
            self.begin(fault, time);
        }
    }

    /// A fault happens, and is over after `time`.
    fn begin(&self, fault: Fault, time: Duration) {
        tracing::info!(target: "faults", "{fault:?} for {time:?}");
        match fault {
            Fault::Cut(machine, in_, out) => {
                let pairs = self.pairs_of(machine, in_, out);
                self.change_links(&pairs, time, |link| link.is_cut = true);
            }
            Fault::CutLink(from, to) => {
                let pair = self.process(from).zip(self.process(to));
                self.change_links(pair.as_slice(), time, |link| link.is_cut = true);
            }
            Fault::Slow(machine, delay, loss_one_in) => {
                let pairs = self.pairs_of(machine, true, true);
                self.change_links(&pairs, time, |link| {
                    (link.delay_max, link.loss_one_in) = (delay, loss_one_in);
                });
            }
            Fault::Break(one, other) => {
                if let Some((one, other)) = self.process(one).zip(self.process(other)) {
                    network().break_streams(one, other);
                }
            }
            Fault::Pause(machine) => {
                let Some(process) = self.process(machine) else { return };
                simulation::pause(process, true);
                RealClock.sleep(time);
                simulation::pause(process, false);
            }
            Fault::LoseNode(node, loss) => {
                self.lose_node(node, loss);
                RealClock.sleep(time);
                self.start_node(node);
            }
            Fault::KillMount(host) => self.kill_mount(host),
            Fault::PowerCut => {
                NODES.for_each(|node| self.lose_node(node, Loss::Power));
                (0..HOSTS).for_each(|host| self.kill_mount(host));
                RealClock.sleep(time / 4);
                NODES.for_each(|node| self.start_node(node));
            }
        }
    }

    /// The directions from all others to a machine (`in_`), and from it to them (`out`).
    fn pairs_of(&self, machine: Machine, in_: bool, out: bool) -> Vec<(u32, u32)> {
        let Some(own) = self.process(machine) else { return Vec::new() };
        let others = Machine::all().into_iter().filter(|other| *other != machine);
        let others: Vec<u32> = others.filter_map(|other| self.process(other)).collect();
        let to = others.iter().filter(|_| in_).map(|other| (*other, own));
        let from = others.iter().filter(|_| out).map(|other| (own, *other));
        to.chain(from).collect()
    }

    fn change_links(&self, pairs: &[(u32, u32)], time: Duration, change: impl Fn(&mut Link)) {
        let network = network();
        pairs.iter().for_each(|(from, to)| network.set_link(*from, *to, &change));
        RealClock.sleep(time);
        let mend = |link: &mut Link| *link = Link::default();
        pairs.iter().for_each(|(from, to)| network.set_link(*from, *to, mend));
    }
}
