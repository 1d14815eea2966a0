//! A file that another process has mapped. A process that serves a mount must not map files of it:
//! the kernel may hold the lock of its address space while it waits for a page, and a thread that
//! is to serve the page may need the lock, to get memory.

use crate::mapping::Mapping;
use crate::peer::Peer;
use crate::world::World;
use crate::{Outcome, byte};
use std::fs::OpenOptions;
use std::path::Path;

/// See the file's head.
pub(crate) struct Mapped(Peer);

impl Mapped {
    /// The first `bytes` of a file.
    pub(crate) fn of(
        world: &World,
        mount: usize,
        name: &str,
        bytes: usize,
    ) -> Result<Mapped, Box<dyn std::error::Error>> {
        let mut peer = Peer::start("peer-mapped", world, mount, name)?;
        peer.ask(&format!("map {bytes}"), "ok")?;
        Ok(Mapped(peer))
    }

    pub(crate) fn load(&mut self, at: usize) -> Result<u8, Box<dyn std::error::Error>> {
        self.0.tell(&format!("load {at}"))?;
        Ok(self.0.answer()?.parse()?)
    }

    pub(crate) fn store(&mut self, at: usize, value: u8) -> Outcome {
        self.0.ask(&format!("store {at} {value}"), "ok")
    }

    /// Stores what [`byte`] says of the first round.
    pub(crate) fn store_piece(&mut self, from: usize, count: usize) -> Outcome {
        self.0.ask(&format!("piece {from} {count}"), "ok")
    }

    pub(crate) fn sync(&mut self) -> Outcome {
        self.0.ask("sync", "ok")
    }
}

/// The other process.
pub(crate) fn peer(path: &Path) -> Outcome {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut mapping = None;
    for order in std::io::stdin().lines() {
        let order = order?;
        let words: Vec<&str> = order.split(' ').collect();
        let mut answer = "ok".to_owned();
        match (&words[..], &mapping) {
            (["map", bytes], _) => mapping = Some(Mapping::of(&file, bytes.parse()?)?),
            (["load", at], Some(mapping)) => answer = mapping.load(at.parse()?).to_string(),
            (["store", at, value], Some(mapping)) => mapping.store(at.parse()?, value.parse()?),
            (["piece", from, count], Some(mapping)) => {
                let (from, count): (usize, usize) = (from.parse()?, count.parse()?);
                (from..from + count).for_each(|at| mapping.store(at, byte(at, 0)));
            }
            (["sync"], Some(mapping)) => mapping.sync()?,
            _ => return Err(format!("no such order: {order}").into()),
        }
        println!("{answer}");
    }
    Ok(())
}
