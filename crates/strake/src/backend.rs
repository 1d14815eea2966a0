//! Hides where the NSDs and the metadata are. With `rpc=direct` they are in this process. With
//! `rpc=socket` they are in a server process of their own, behind authenticated sockets. A mount of
//! a cluster finds them on the cluster's nodes ([`cluster`]). The code above and below this file is
//! the same in all cases.
//!
//! With `rpc=socket` one server process holds the metadata *and* all NSDs. The copies of the
//! metadata lie inside the NSDs' containers, and a container can have only one owner.

pub(crate) mod cluster;
pub(crate) mod member;

use crate::assemble;
use crate::data_dir::{DataDir, NodeConfig};
use crate::disks::{DiskUser, Disks};
use crate::supervisor::Supervisor;
use cluster::ClusterBackend;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_array::Array;
use strake_client::tokens::Tokens;
use strake_env::sync::Mutex;
use strake_env::{Clock, RealClock, Rng};
use strake_meta::{MetaStore, MetaWorker};
use strake_net::{
    Endpoint, Listener, MetaClientSession, NsdClientSession, RpcServer, ServerOptions,
    ServerProcess, Service, SessionEnv, SessionLimits, SharedSecret, serve_meta, serve_nsd,
};
use strake_observe::Observe;
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{ClientId, Error, NsdId, Result};
use tracing::error;

/// The id of the only client that a file system on one machine has.
const ONLY_CLIENT: ClientId = ClientId(1);
/// How long calls wait until a server process that died serves again. A start replays logs, which
/// takes seconds. If every start fails, the supervisor gives up sooner than this.
const RESTART_WAIT_MAX: Duration = Duration::from_secs(300);
/// How much longer a session waits than the disk behind it is allowed to take.
const CALL_MARGIN: Duration = Duration::from_secs(5);

/// Puts the names of missing disks in front of an error of the start, so that the user knows which
/// disks to look for.
fn name_missing(dir: &DataDir, config: &NodeConfig, present: &[NsdId], error: Error) -> Error {
    let missing: Vec<String> = config
        .nsd
        .iter()
        .filter(|nsd| !present.contains(&NsdId(nsd.id)))
        .map(|nsd| format!("{} ({})", nsd.name, dir.container_path(nsd).display()))
        .collect();
    if missing.is_empty() {
        return error;
    }
    error.context(format!("missing or unreadable: {}", missing.join(", ")))
}

/// The disks and the metadata, opened in this process.
pub(crate) struct Local {
    disks: Arc<Disks>,
    meta: Arc<MetaStore>,
    _worker: MetaWorker,
    /// Declared last, so that it is released after the NSDs are closed.
    _lock: File,
}

impl Local {
    /// Opens every NSD that is there, and the metadata on them.
    pub(crate) fn open(
        dir: &DataDir,
        config: &NodeConfig,
        observe: &Arc<Observe>,
    ) -> Result<Local> {
        let lock = dir.lock_disks(&RealClock)?;
        let disks = Disks::open(dir, config, observe)?;
        let containers = disks.containers();
        let meta = assemble::open_meta(dir, config, &containers, observe).map_err(|error| {
            let present: Vec<NsdId> = containers.iter().map(|it| it.superblock().nsd).collect();
            name_missing(dir, config, &present, error)
        })?;
        meta.begin_life(RealClock.wall())?;
        let worker = meta.start_worker()?;
        Ok(Local { disks, meta, _worker: worker, _lock: lock })
    }

    /// Ends in order and takes checkpoints, so that the next start has little to replay.
    pub(crate) fn finish(&self) -> Result<()> {
        self.disks.stop();
        self.meta.sync()?;
        self.meta.end_life(RealClock.wall())?;
        self.meta.checkpoint()?;
        self.disks.give_back();
        Ok(())
    }

    /// Serves everything on sockets in the data directory until the servers are dropped.
    pub(crate) fn serve(&self, dir: &DataDir) -> Result<Arc<Servers>> {
        std::fs::create_dir_all(dir.run_path())?;
        let secret = SharedSecret::load(&dir.secret_path())?;
        // Zero is reserved: to a client it means that it has met no server yet.
        let options = ServerOptions::new(Rng::from_entropy()?.next_u64().max(1));
        let servers = Arc::new(Servers {
            dir: dir.clone(),
            secret: secret.clone(),
            options,
            meta: Mutex::new(None),
            nsds: Mutex::default(),
        });
        for (nsd, port) in self.disks.ports() {
            servers.came(nsd, port);
        }
        // The metadata is served last. Once a client can connect to it, the client takes an NSD
        // that is not served for one that is gone.
        let meta = Arc::clone(&self.meta) as Arc<dyn MetaPort>;
        *servers.meta.lock() = Some(serve_meta(bind(dir, "meta")?, meta, secret, options)?);
        let meta = Some(Arc::clone(&self.meta));
        self.disks.watch(meta, Arc::clone(&servers) as Arc<dyn DiskUser>)?;
        Ok(servers)
    }
}

/// The servers for the metadata and each NSD in a server process.
pub(crate) struct Servers {
    dir: DataDir,
    secret: SharedSecret,
    options: ServerOptions,
    meta: Mutex<Option<RpcServer>>,
    nsds: Mutex<BTreeMap<NsdId, RpcServer>>,
}

impl Servers {
    /// Ends all of them.
    pub(crate) fn stop(&self) {
        let nsds = std::mem::take(&mut *self.nsds.lock());
        nsds.into_values().for_each(RpcServer::stop);
        if let Some(meta) = self.meta.lock().take() {
            meta.stop();
        }
    }
}

impl DiskUser for Servers {
    fn came(&self, nsd: NsdId, port: Arc<dyn NsdPort>) {
        self.went(nsd);
        let served = bind(&self.dir, &socket_name(nsd))
            .and_then(|listener| serve_nsd(listener, nsd, port, self.secret.clone(), self.options));
        match served {
            Ok(server) => {
                self.nsds.lock().insert(nsd, server);
            }
            Err(error) => error!(target: "disks", "NSD {nsd} cannot be served: {error}"),
        }
    }

    fn went(&self, nsd: NsdId) {
        let server = self.nsds.lock().remove(&nsd);
        // `stop` waits for requests under way. They end within the limit for the disk's I/O.
        if let Some(server) = server {
            server.stop();
        }
    }
}

/// Tells the array in this process about disks in this process.
struct OwnArray(Weak<Array>);

impl DiskUser for OwnArray {
    fn came(&self, nsd: NsdId, port: Arc<dyn NsdPort>) {
        if let Some(array) = self.0.upgrade() {
            array.attach(nsd, Some(port));
        }
    }

    fn went(&self, nsd: NsdId) {
        if let Some(array) = self.0.upgrade() {
            array.attach(nsd, None);
        }
    }
}

/// How long a call to an NSD may take. The server's own limit must run out first, because the
/// server knows which disk hangs.
fn call_limit(config: &NodeConfig) -> Duration {
    let disk = config.settings.time("nsd_io_limit");
    if disk.is_zero() { Duration::MAX } else { disk * 2 + CALL_MARGIN }
}

fn socket_name(nsd: NsdId) -> String {
    format!("nsd{nsd}")
}

fn endpoint(dir: &DataDir, name: &str) -> Endpoint {
    Endpoint::Unix(dir.run_path().join(format!("{name}.sock")))
}

fn bind(dir: &DataDir, name: &str) -> Result<Listener> {
    let endpoint = endpoint(dir, name);
    if let Endpoint::Unix(path) = &endpoint {
        // We hold the data directory's lock, so the process that made this socket is gone.
        let _ = std::fs::remove_file(path);
    }
    Listener::bind(&endpoint)
}

/// The disks and the metadata, in this process or in another.
pub(crate) enum Backend {
    /// In this process.
    Direct(Local),
    /// In a process of its own.
    Socket {
        /// The server process.
        server: Supervisor,
        /// What sessions need.
        dir: DataDir,
        env: SessionEnv,
        limits: Box<SessionLimits>,
        /// Ways to the NSDs, made when first asked for.
        sessions: Mutex<BTreeMap<NsdId, Arc<dyn NsdPort>>>,
        /// The way to the metadata.
        meta: Arc<dyn MetaPort>,
    },
    /// On the nodes of a cluster.
    Cluster(Arc<ClusterBackend>),
}

impl Backend {
    /// Opens the disks here or starts the server process, as the setting `rpc` says.
    pub(crate) fn open(
        dir: &DataDir,
        config: &NodeConfig,
        observe: &Arc<Observe>,
    ) -> Result<Backend> {
        if let Some(node) = &config.node {
            return ClusterBackend::open(node, config, observe)
                .map(|cluster| Backend::Cluster(Arc::new(cluster)));
        }
        if config.settings.get("rpc") == "direct" {
            return Local::open(dir, config, observe).map(Backend::Direct);
        }
        let server = Supervisor::start(dir)?;
        let env = SessionEnv {
            introduction: SharedSecret::load(&dir.secret_path())?.into(),
            clock: RealClock::shared(),
            waits: Arc::clone(observe) as _,
            process: None,
            links: None,
        };
        let meta_endpoint = endpoint(dir, "meta");
        let limits = SessionLimits {
            absent: RESTART_WAIT_MAX,
            broken: RESTART_WAIT_MAX,
            ..SessionLimits::META
        };
        let meta = Arc::new(MetaClientSession::new(meta_endpoint.clone(), limits, env.clone()));
        let (introduction, clock, waits) =
            (env.introduction.clone(), Arc::clone(&env.clock), Arc::clone(&env.waits));
        let last = (meta_endpoint, Service::Meta);
        let process = ServerProcess::new(last, introduction, clock, waits, RESTART_WAIT_MAX);
        let env = SessionEnv { process: Some(Arc::new(process)), ..env };
        let call = call_limit(config);
        let limits = Box::new(SessionLimits { call, ..SessionLimits::NSD });
        let (dir, sessions) = (dir.clone(), Mutex::default());
        Ok(Backend::Socket { server, dir, env, limits, sessions, meta })
    }

    /// Why an NSD is not used. `None` if that is not known here: with `rpc=socket` the server
    /// process reports it only in the log.
    pub(crate) fn fault_of(&self, nsd: NsdId) -> Option<String> {
        match self {
            Backend::Direct(local) => local.disks.fault_of(nsd),
            Backend::Socket { .. } | Backend::Cluster(_) => None,
        }
    }

    /// The way to an NSD. `None` if the NSD is certainly not there.
    pub(crate) fn port(&self, nsd: NsdId) -> Option<Arc<dyn NsdPort>> {
        match self {
            Backend::Direct(local) => local.disks.ports().remove(&nsd),
            Backend::Socket { dir, env, limits, sessions, .. } => {
                let connect = || {
                    let endpoint = endpoint(dir, &socket_name(nsd));
                    let session = NsdClientSession::new(endpoint, nsd, **limits, env.clone());
                    Arc::new(session) as Arc<dyn NsdPort>
                };
                Some(Arc::clone(sessions.lock().entry(nsd).or_insert_with(connect)))
            }
            Backend::Cluster(cluster) => cluster.port(nsd),
        }
    }

    /// The way to the metadata.
    pub(crate) fn meta(&self) -> Arc<dyn MetaPort> {
        match self {
            Backend::Direct(local) => Arc::clone(&local.meta) as Arc<dyn MetaPort>,
            Backend::Socket { meta, .. } => Arc::clone(meta),
            Backend::Cluster(cluster) => cluster.meta(),
        }
    }

    /// The name under which the file system knows this client, and what the client may use beside
    /// others. `None` for a client that is alone.
    pub(crate) fn client(&self) -> (ClientId, Option<Arc<Tokens>>) {
        match self {
            Backend::Cluster(cluster) => {
                let (client, tokens) = cluster.client();
                (client, Some(tokens))
            }
            _ => (ONLY_CLIENT, None),
        }
    }

    /// The cluster that has everything, if one has.
    pub(crate) fn cluster(&self) -> Option<Arc<ClusterBackend>> {
        match self {
            Backend::Cluster(cluster) => Some(Arc::clone(cluster)),
            _ => None,
        }
    }

    /// From now on tells `array` about disks that come and go. With `rpc=socket` there is nothing
    /// to tell, because the sessions notice it themselves.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn watch(&self, array: &Arc<Array>) -> Result<()> {
        match self {
            Backend::Direct(local) => {
                let user = Arc::new(OwnArray(Arc::downgrade(array)));
                local.disks.watch(Some(Arc::clone(&local.meta)), user)
            }
            Backend::Socket { .. } | Backend::Cluster(_) => Ok(()),
        }
    }

    /// Has all disks looked at now instead of at the next interval.
    pub(crate) fn kick(&self) {
        if let Backend::Direct(local) = self {
            local.disks.kick();
        }
    }

    /// Ends the ways of a client that was declared dead.
    pub(crate) fn leave(&self) {
        if let Backend::Cluster(cluster) = self {
            cluster.leave();
        }
    }

    /// Closes the disks or ends the server process. The caller has made everything durable before.
    ///
    /// # Errors
    /// The disks'; `Io` when the server process failed.
    pub(crate) fn finish(&self) -> Result<()> {
        match self {
            Backend::Direct(local) => local.finish(),
            Backend::Socket { server, .. } => server.finish(),
            Backend::Cluster(cluster) => cluster.finish(),
        }
    }
}
