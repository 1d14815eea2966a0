//! What a daemon has of the file system: the way to disks and metadata, and the client. A mount of
//! a cluster's file system that was declared dead gets them anew, and goes on ([`Lives`]).

use super::serve::{Daemon, client_settings, configuration};
use crate::backend::Backend;
use crate::data_dir::{DataDir, NodeConfig};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_array::{Array, ArrayOptions, Exclusion};
use strake_client::StrakeVfs;
use strake_client::lives::Lives;
use strake_env::{Clock, RealClock};
use strake_manager::{Manager, after_crash};
use strake_observe::Observe;
use strake_proto::meta::{Configuration, MetaPort};
use strake_proto::{Error, ErrorKind, Result, SlotIndex};
use tracing::{info, warn};

/// How often a mount looks whether it was declared dead, and tries to go on.
const LOOK: Duration = Duration::from_millis(500);

/// See the head of this file.
pub(super) struct Life {
    pub(super) backend: Backend,
    pub(super) meta: Arc<dyn MetaPort>,
    pub(super) array: Arc<Array>,
    pub(super) vfs: Arc<StrakeVfs>,
}

/// The metadata, the array and the client, what repairs, and the configuration.
type Begun = (Arc<dyn MetaPort>, Arc<Array>, Arc<StrakeVfs>, Option<Manager>, Box<Configuration>);

/// A file system that was opened.
pub(super) struct Opened {
    pub(super) life: Arc<Life>,
    /// What repairs. `None` in a cluster, where the leader does.
    pub(super) manager: Option<Manager>,
    pub(super) described: Box<Configuration>,
}

impl Life {
    /// Opens the disks, the metadata and the client.
    pub(super) fn open(
        dir: &DataDir,
        config: &NodeConfig,
        observe: &Arc<Observe>,
    ) -> Result<Opened> {
        let backend = Backend::open(dir, config, observe)?;
        // Nobody else would end the threads of ways that are not used.
        let ends = |_: &Error| backend.leave();
        let (meta, array, vfs, manager, described) =
            Life::begin(&backend, config, observe).inspect_err(ends)?;
        let life = Arc::new(Life { backend, meta, array, vfs });
        Ok(Opened { life, manager, described })
    }

    fn begin(backend: &Backend, config: &NodeConfig, observe: &Arc<Observe>) -> Result<Begun> {
        let meta = backend.meta();
        let described = configuration(&*meta)?;
        let slots = (0..).map(SlotIndex).zip(&described.pool.slots);
        let settings = client_settings(config)?;
        let (client, tokens) = backend.client();
        let array = Array::open(ArrayOptions {
            meta: Arc::clone(&meta),
            nsds: slots.map(|(at, slot)| (at, backend.port(slot.nsd))).collect(),
            clock: RealClock::shared(),
            observe: Arc::clone(observe),
            client,
            io_threads: settings.io_threads,
            beside_others: tokens.is_some(),
            find: backend
                .cluster()
                .map(|cluster| Arc::new(move |nsd| cluster.port(nsd)) as strake_array::FindNsd),
        })?;
        let (vfs, manager) = match tokens {
            Some(tokens) => {
                (StrakeVfs::start_with_tokens(Arc::clone(&array), settings, tokens)?, None)
            }
            None => {
                after_crash::recover(&array).map_err(|error| error.context("recovery at start"))?;
                let vfs = StrakeVfs::start(Arc::clone(&array), settings)?;
                let exclusion = Arc::clone(&vfs) as Arc<dyn Exclusion>;
                (vfs, Some(Manager::start(Arc::clone(&array), exclusion)?))
            }
        };
        backend.watch(&array)?;
        Ok((meta, array, vfs, manager, described))
    }

    /// Whether the cluster has declared this mount dead.
    pub(super) fn is_dead(&self) -> bool {
        self.backend.client().1.is_some_and(|tokens| tokens.is_dead())
    }

    /// Ends a life that was declared dead. False if operations of it hang.
    fn bury(&self) -> bool {
        let is_buried = self.backend.client().1.is_none_or(|tokens| tokens.bury());
        if is_buried {
            // It says that this client is dead.
            let _ = self.vfs.shutdown();
            self.backend.leave();
        }
        is_buried
    }
}

/// Goes on with a new life whenever the mount was declared dead.
pub(super) fn live_on(daemon: &Weak<Daemon>, lives: &Lives) {
    while let Some(daemon) = daemon.upgrade() {
        if daemon.is_stopped() {
            return;
        }
        if daemon.life().is_dead() {
            daemon.begin_life(lives);
        }
        drop(daemon);
        RealClock.sleep(LOOK);
    }
}

impl Daemon {
    /// What the daemon has of the file system now.
    pub(super) fn life(&self) -> Arc<Life> {
        Arc::clone(&self.life.read())
    }

    fn begin_life(&self, lives: &Lives) {
        let config = self.config();
        let _wait = self.observe.waiters.enter("a new life of this mount", config.name.clone());
        if !self.life().bury() {
            return;
        }
        let mut is_told = false;
        let opened = loop {
            match Life::open(&self.dir, &config, &self.observe) {
                Ok(opened) => break opened,
                Err(_) if self.is_stopped() => return,
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        warn!(target: "daemon", "the mount cannot go on yet: {error}");
                    }
                    RealClock.sleep(LOOK);
                }
            }
        };
        if let Err(error) = self.go_on(lives, opened.life) {
            warn!(target: "daemon", "the mount stays dead: {error}");
            lives.end();
        }
    }

    fn go_on(&self, lives: &Lives, next: Arc<Life>) -> Result<()> {
        // Nobody ends the life of before meanwhile.
        let stopped = self.stopped.lock();
        if stopped.is_some() || !lives.begin(&next.vfs) {
            next.vfs.shutdown().map(drop).and(next.backend.finish())?;
            let detail = "it ends, or had too many lives: unmount it, and mount it again";
            return Err(Error::new(ErrorKind::Io, detail));
        }
        let (client, _) = next.backend.client();
        // What ends with the life of before takes its time.
        let last = std::mem::replace(&mut *self.life.write(), next);
        drop(last);
        info!(target: "daemon", "the mount goes on as client {client}");
        Ok(())
    }
}
