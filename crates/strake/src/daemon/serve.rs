//! Puts the parts of a running file system together, and answers admin requests.

use super::check::{self, Checks};
use super::figures::Figures;
use super::known::Known;
use super::life::{Life, Opened};
use super::manage::NewDisk;
use super::tokens::KnownTokens;
use crate::admin::{FsCounters, Request, Status};
use crate::assemble;
use crate::data_dir::{DataDir, NodeConfig};
use crate::mounts;
use crate::show::ShowMemory;
use serde_json::{Value, json};
use std::sync::Arc;
use strake_client::Vfs;
use strake_client::lives::Lives;
use strake_env::RealClock;
use strake_env::net::UnixStream;
use strake_env::sync::{Mutex, RwLock};
use strake_fuse::{FuseMount, KernelOptions, MountOptions, StayAwake};
use strake_manager::Manager;
use strake_observe::health::SpaceHistory;
use strake_observe::{IoCounters, LinkRow, Observe};
use strake_proto::meta::{Configuration, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::NsdContext;
use strake_proto::{ByteCount, Code, Error, ErrorKind, NsdId, Result, feature};

/// A running file system.
pub(crate) struct Daemon {
    pub(super) dir: DataDir,
    /// Changes when a disk is replaced.
    config: Mutex<NodeConfig>,
    /// What listings have shown last.
    pub(super) figures: Figures,
    /// The leader's last answer about tokens.
    pub(super) tokens: KnownTokens,
    /// The check under way.
    pub(super) checks: Checks,
    /// Held while a request or a job changes the list of disks.
    pub(super) managing: Mutex<()>,
    pub(super) observe: Arc<Observe>,
    /// The space in use over the last day.
    pub(super) space_history: SpaceHistory,
    /// What the counters were when they were reset.
    counted: Mutex<IoCounters>,
    /// Declared before the array, which it repairs, so that its threads end first. In a cluster the
    /// leader has it.
    manager: Option<Manager>,
    pub(super) life: RwLock<Arc<Life>>,
    /// The lives of a mount that others may declare dead.
    pub(super) lives: Option<Arc<Lives>>,
    pub(super) mount: FuseMount,
    pub(super) stopped: Mutex<Option<u64>>,
}

impl Daemon {
    /// Opens the disks, the metadata and the client, and mounts.
    pub(crate) fn start(
        dir: &DataDir,
        config: NodeConfig,
        kernel: KernelOptions,
    ) -> Result<Daemon> {
        let clock = RealClock::shared();
        let history = config.settings.number("io_history_size").unwrap_or(4096) as usize;
        let observe = Observe::new(Arc::clone(&clock), history);
        let Opened { life, manager, described } = Life::open(dir, &config, &observe)?;
        // A lone mount has one life, and pays for no more.
        let lives = life.backend.cluster().map(|_| Arc::new(Lives::new(Arc::clone(&life.vfs))));
        let vfs = match &lives {
            Some(lives) => Arc::clone(lives) as Arc<dyn Vfs>,
            None => Arc::clone(&life.vfs) as Arc<dyn Vfs>,
        };
        let options = mount_options(&config, kernel);
        let mount = FuseMount::mount(vfs, Arc::clone(&observe), &options)?;
        let daemon = Daemon {
            dir: dir.clone(),
            config: Mutex::new(config),
            figures: Figures::new(*described, &clock, &observe.waiters),
            tokens: Known::new(None, &clock, &observe.waiters),
            checks: Checks::default(),
            managing: Mutex::new(()),
            observe,
            space_history: SpaceHistory::default(),
            counted: Mutex::default(),
            manager,
            life: RwLock::new(life),
            lives,
            mount,
            stopped: Mutex::new(None),
        };
        daemon.figures.begin(&daemon.sources());
        Ok(daemon)
    }

    /// What repairs.
    ///
    /// # Errors
    /// `NotSupported` in a cluster, where the leader repairs.
    pub(super) fn manager(&self) -> Result<&Manager> {
        self.manager.as_ref().ok_or_else(|| {
            let detail = "in a cluster the leader repairs, and does not take this request";
            Error::new(ErrorKind::NotSupported, detail)
        })
    }

    /// The node's present configuration.
    pub(crate) fn config(&self) -> NodeConfig {
        self.config.lock().clone()
    }

    /// Writes a new configuration durably and uses it from now on.
    pub(super) fn change_config(&self, config: NodeConfig) -> Result<()> {
        self.dir.write_config(&config)?;
        *self.config.lock() = config;
        self.life().backend.kick();
        Ok(())
    }

    /// True once [`Daemon::stop`] has succeeded.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.lock().is_some()
    }

    /// The redundancy code of new files.
    pub(super) fn code(&self) -> Result<Code> {
        Ok(configuration(&*self.life().meta)?.code)
    }

    /// An NSD's name in listings.
    pub(super) fn nsd_name(&self, nsd: NsdId) -> String {
        self.config.lock().nsd_name(nsd)
    }

    /// True if the file system belongs to a cluster, whose nodes have the disks.
    pub(super) fn is_of_cluster(&self) -> bool {
        self.config.lock().node.is_some()
    }

    /// Returns when the mount is gone.
    pub(crate) fn wait_for_unmount(&self) {
        self.mount.wait();
    }

    /// Unmounts, makes everything durable, and returns the bytes that had to be written. After it
    /// has succeeded once, further calls return the same number.
    pub(crate) fn stop(&self, force: bool) -> Result<u64> {
        let mut stopped = self.stopped.lock();
        if let Some(bytes) = *stopped {
            return Ok(bytes);
        }
        if force {
            self.lives.iter().for_each(|lives| lives.end());
        }
        self.unmount(force)?;
        self.checks.stop(&self.observe.waiters);
        self.manager.iter().for_each(Manager::stop);
        let life = self.life();
        let flushed = if force { life.vfs.shutdown() } else { life.vfs.unmount() };
        let flushed = flushed.map(|report| report.bytes);
        // A mount that was declared dead has lost what was not durable, and its log says so.
        let bytes = if life.is_dead() { 0 } else { flushed? };
        life.backend.finish()?;
        *stopped = Some(bytes);
        Ok(bytes)
    }

    fn unmount(&self, force: bool) -> Result<()> {
        self.mount.unmount(force).map_err(|error| {
            if error.kind() != ErrorKind::Busy {
                return error;
            }
            let mount = self.config().mount;
            let users = mounts::users(&mount);
            let who = if users.is_empty() { "someone".to_owned() } else { users.join(", ") };
            Error::new(
                ErrorKind::Busy,
                format!(
                    "{} is busy, used by {who}: end that first, or use --force",
                    mount.display()
                ),
            )
        })
    }

    /// Answers an admin request of `caller`.
    pub(crate) fn answer(&self, request: &Request, caller: &UnixStream) -> Result<Value> {
        match request {
            Request::Status => encode(&self.status()?),
            Request::Totals => encode(&self.totals()),
            Request::Activity { since } => encode(&self.activity(*since)),
            Request::Settings => encode(&self.settings_in_force()?),
            Request::Health => encode(&self.health()?),
            Request::Show => encode(&self.show()?),
            Request::Sync => Ok(json!({ "flushedBytes": self.life().vfs.sync()? })),
            Request::Moved { mount } => {
                self.change_config(NodeConfig { mount: mount.clone(), ..self.config() })?;
                Ok(Value::Null)
            }
            Request::Check { data } => check::answer(caller, self, *data),
            Request::CheckStatus => encode(&self.checks.status()),
            Request::IoHistory => encode(&self.observe.io.snapshot()),
            Request::Metrics => encode(&self.metrics()?),
            Request::Waiters => encode(&self.waiters()),
            Request::Threads => encode(&self.threads()?),
            Request::Tokens => encode(&self.tokens_view()?),
            Request::Network => {
                let rows = self.observe.links.view().into_iter().map(LinkRow::from);
                encode(&rows.collect::<Vec<LinkRow>>())
            }
            Request::Stats => encode(&self.observe.operations.snapshot()),
            Request::Memory => encode(&self.memory()?),
            Request::IoCounters { reset } => encode(&self.io_counters(*reset)),
            Request::Histograms { order } => encode(&self.observe.histograms.control(order)),
            Request::ExplainFile { inode, blocks } => encode(&self.explain(*inode, *blocks)?),
            Request::ExplainSlow { since, filter } => encode(&self.explain_slow(*since, *filter)),
            Request::TraceStart { events } => {
                self.observe.trace.start(*events);
                Ok(Value::Null)
            }
            Request::TraceStop => encode(&self.observe.trace.stop()),
            Request::TraceReport { question } => encode(&self.trace_report(question)?),
            Request::TraceEvents { question, from } => encode(&self.trace_part(question, *from)?),
            Request::DiskStart { disk } => self.start_disk(disk),
            Request::DiskSuspend { disk, suspended } => self.suspend_disk(disk, *suspended),
            Request::DiskReplace { disk, path, size, rate, force, given } => {
                let (path, size, force) = (path.clone(), *size, *force);
                self.replace_disk(disk, NewDisk { path, size, force, given: given.clone() }, *rate)
            }
            Request::DiskAdd { disks, size, force } => self.add_disks(disks, *size, *force),
            Request::DiskDelete { disk, rate } => self.delete_disk(disk, *rate),
            Request::Scrub { order } => encode(&self.scrub(*order)?),
            Request::Rebalance { order } => encode(&self.rebalance(*order)?),
            Request::Down { force } => Ok(json!({ "flushedBytes": self.stop(*force)? })),
        }
    }

    pub(super) fn status(&self) -> Result<Status> {
        let (config, places) = (self.config(), self.mount.places()?);
        Ok(Status {
            name: config.name,
            mount: config.mount.to_string_lossy().into_owned(),
            pid: std::process::id(),
            serves: !places.is_empty(),
            places,
            understands: feature::understood(),
        })
    }

    fn io_counters(&self, reset: bool) -> FsCounters {
        let operations = self.observe.operations.snapshot();
        let now = IoCounters::of(&operations, self.life().array.meta.changes());
        let mut counted = self.counted.lock();
        if reset {
            *counted = now;
        }
        let (config, disks) = (self.config(), self.life().array.nsds().len());
        let (cluster, name) = (config.cluster, config.name);
        FsCounters { cluster, name, disks, counters: now.since(*counted) }
    }

    fn memory(&self) -> Result<ShowMemory> {
        let view = self.life().vfs.view();
        Ok(ShowMemory {
            resident_bytes: strake_env::process::resident_bytes()?,
            pool_budget_bytes: view.page_pool.budget,
            pool_used_bytes: view.page_pool.used,
            pool_spare_bytes: view.page_pool.spare,
            pool_withheld_bytes: view.page_pool.withheld,
            pool_dirty_bytes: view.page_pool.dirty,
            first_touch_bytes_per_second: view.page_pool.first_touch,
            inodes: view.inodes,
            dirty_inodes: view.dirty_inodes,
            handles: view.handles,
        })
    }

    /// Who asks NSDs past the array.
    pub(super) fn nsd_context(&self) -> NsdContext {
        NsdContext { client: self.life().array.io.nsds().client(), ..NsdContext::default() }
    }
}

pub(super) fn configuration(meta: &dyn MetaPort) -> Result<Box<Configuration>> {
    match meta.query(&MetaQuery::Configuration)? {
        MetaReply::Configuration(configuration) => Ok(configuration),
        other => Err(Error::new(ErrorKind::Internal, format!("not a configuration: {other:?}"))),
    }
}

pub(super) fn client_settings(config: &NodeConfig) -> Result<strake_client::Settings> {
    let values = &config.settings;
    let mut settings = strake_client::Settings {
        sync_interval: values.time("sync_interval"),
        own_process: true,
        ..strake_client::Settings::default()
    };
    settings.page_pool = ByteCount(assemble::page_pool_bytes(config)?);
    if let Some(bytes) = values.number("write_cache_threshold") {
        settings.write_cache_threshold = ByteCount(bytes);
    }
    if let Some(count) = values.number("worker_threads") {
        settings.flushers = (count as usize).div_ceil(2);
        settings.io_threads = count as usize;
    }
    if let Some(count) = values.number("flushers") {
        settings.flushers = count as usize;
    }
    if let Some(count) = values.number("io_threads") {
        settings.io_threads = count as usize;
    }
    if let Some(count) = values.number("prefetch_blocks") {
        settings.prefetch_blocks = count;
    }
    settings.standstill_max = values.time("standstill_max");
    settings.patches = values.get("patches").parse()?;
    Ok(settings)
}

/// The answer as JSON.
pub(super) fn encode(value: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}

/// How the adapter mounts.
fn mount_options(config: &NodeConfig, kernel: KernelOptions) -> MountOptions {
    MountOptions {
        name: config.name.clone(),
        path: config.mount.clone(),
        threads: config.settings.number("fuse_threads").unwrap_or(8) as usize,
        io_uring: config.settings.get("fuse_io_uring") == "on",
        stay_awake: match config.settings.get("stay_awake") {
            "off" => StayAwake::Off,
            "on" => StayAwake::On,
            _ => StayAwake::Auto,
        },
        kernel,
    }
}
