//! Where the NSDs and the metadata are: in this process (`rpc=direct`), or in a server process of
//! their own behind authenticated sockets (`rpc=socket`). Above and below this file the code is the
//! same.
//!
//! The server process holds the metadata *and* all NSDs: on one machine the metadata's copies lie
//! inside the NSDs' containers, and a container has one owner.

use crate::assemble::{self, OpenNsd};
use crate::data_dir::{DataDir, NodeConfig};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use strake_env::rpc::{
    Endpoint, Listener, MetaClientSession, NsdClientSession, RpcServer, ServerOptions, SessionEnv,
    SessionLimits, SharedSecret, serve_meta, serve_nsd,
};
use strake_env::{RealClock, Rng};
use strake_meta::{MetaStore, MetaWorker};
use strake_observe::Observe;
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// Ways to the NSDs, in slot order; `None` for one that is missing.
pub(crate) type Ports = Vec<Option<Arc<dyn NsdPort>>>;

/// The disks and the metadata, opened in this process.
pub(crate) struct Local {
    nsds: Vec<Option<OpenNsd>>,
    meta: Arc<MetaStore>,
    _worker: MetaWorker,
    /// Let go last, when the NSDs are closed.
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
        let mut nsds = Vec::new();
        for nsd in &config.nsd {
            let opened = assemble::open_nsd(dir, config, nsd, observe);
            if let Err(error) = &opened {
                eprintln!("daemon: NSD missing: {error}");
            }
            nsds.push(opened.ok());
        }
        let meta = assemble::open_meta(dir, &nsds, observe)?;
        let worker = meta.start_worker()?;
        Ok(Local { nsds, meta, _worker: worker, _lock: lock })
    }

    fn ports(&self) -> Ports {
        let port = |nsd: &OpenNsd| Arc::clone(&nsd.store) as Arc<dyn NsdPort>;
        self.nsds.iter().map(|nsd| nsd.as_ref().map(port)).collect()
    }

    /// Leaves as little as possible to replay at the next start.
    pub(crate) fn finish(&self) -> Result<()> {
        self.meta.sync()?;
        self.meta.checkpoint()
    }

    /// Serves everything on sockets in the data directory until the servers are dropped.
    pub(crate) fn serve(&self, dir: &DataDir, config: &NodeConfig) -> Result<Vec<RpcServer>> {
        let run = dir.run_path();
        std::fs::create_dir_all(&run)?;
        let secret = SharedSecret::load(&dir.secret_path())?;
        // Zero means that no server was met yet.
        let options = ServerOptions::new(Rng::from_entropy()?.next_u64().max(1));
        let mut servers = Vec::new();
        for (nsd, port) in config.nsd.iter().zip(self.ports()) {
            let Some(port) = port else { continue };
            let listener = bind(dir, &nsd.name)?;
            servers.push(serve_nsd(listener, NsdId(nsd.id), port, secret.clone(), options)?);
        }
        let meta = Arc::clone(&self.meta) as Arc<dyn MetaPort>;
        servers.push(serve_meta(bind(dir, "meta")?, meta, secret, options)?);
        Ok(servers)
    }
}

fn endpoint(dir: &DataDir, name: &str) -> Endpoint {
    Endpoint::Unix(dir.run_path().join(format!("{name}.sock")))
}

fn bind(dir: &DataDir, name: &str) -> Result<Listener> {
    let endpoint = endpoint(dir, name);
    if let Endpoint::Unix(path) = &endpoint {
        // The data directory's lock is ours: whoever made it is gone.
        let _ = std::fs::remove_file(path);
    }
    Listener::bind(&endpoint)
}

/// The disks and the metadata, wherever they are.
pub(crate) enum Backend {
    /// In this process.
    Direct(Local),
    /// In a child process; dropping its standard input ends it.
    Socket {
        /// The server process.
        child: Child,
        /// Ways to the NSDs.
        ports: Ports,
        /// The way to the metadata.
        meta: Arc<dyn MetaPort>,
    },
}

impl Backend {
    /// Opens or starts what the settings ask for.
    pub(crate) fn open(
        dir: &DataDir,
        config: &NodeConfig,
        observe: &Arc<Observe>,
    ) -> Result<Backend> {
        if config.settings.get("rpc") == "direct" {
            return Local::open(dir, config, observe).map(Backend::Direct);
        }
        let mut child = start_server(dir)?;
        let served = read_served(&mut child);
        let served = match served {
            Ok(served) => served,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        let env = SessionEnv {
            secret: SharedSecret::load(&dir.secret_path())?,
            clock: RealClock::shared(),
            waits: Arc::clone(observe) as _,
        };
        let session = |nsd: &crate::data_dir::NsdConfig| -> Option<Arc<dyn NsdPort>> {
            let (id, limits) = (NsdId(nsd.id), SessionLimits::NSD);
            let is_served = served.contains(&nsd.name);
            let connect =
                || NsdClientSession::new(endpoint(dir, &nsd.name), id, limits, env.clone());
            is_served.then(|| Arc::new(connect()) as Arc<dyn NsdPort>)
        };
        let ports = config.nsd.iter().map(session).collect();
        let meta_endpoint = endpoint(dir, "meta");
        let meta =
            Arc::new(MetaClientSession::new(meta_endpoint, SessionLimits::META, env.clone()));
        Ok(Backend::Socket { child, ports, meta })
    }

    /// Ways to the NSDs.
    pub(crate) fn ports(&self) -> Ports {
        match self {
            Backend::Direct(local) => local.ports(),
            Backend::Socket { ports, .. } => ports.clone(),
        }
    }

    /// The way to the metadata.
    pub(crate) fn meta(&self) -> Arc<dyn MetaPort> {
        match self {
            Backend::Direct(local) => Arc::clone(&local.meta) as Arc<dyn MetaPort>,
            Backend::Socket { meta, .. } => Arc::clone(meta),
        }
    }

    /// Ends what was started; everything is durable already.
    ///
    /// # Errors
    /// The disks'; `Io` when the server process failed.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self {
            Backend::Direct(local) => local.finish(),
            Backend::Socket { child, .. } => {
                drop(child.stdin.take());
                let status = child.wait()?;
                if status.success() {
                    return Ok(());
                }
                Err(Error::new(ErrorKind::Io, format!("the server process failed: {status}")))
            }
        }
    }
}

/// Starts the server process. It lives as long as our end of its standard input.
fn start_server(dir: &DataDir) -> Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .args(["daemon", "--role", "server", "--data"])
        .arg(dir.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    Ok(child)
}

/// Waits until the server serves: one line `ready NAME NAME…`, or its error as JSON.
fn read_served(child: &mut Child) -> Result<Vec<String>> {
    let stdout = child.stdout.take().expect("invariant: stdout is piped");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    if let Some(names) = line.trim_end().strip_prefix("ready") {
        return Ok(names.split_whitespace().map(str::to_owned).collect());
    }
    Err(serde_json::from_str::<Error>(&line).unwrap_or_else(|_| {
        Error::new(ErrorKind::Internal, "the server process ended before it served; see the log")
    }))
}

/// What the server process tells when it serves.
pub(crate) fn ready_line(config: &NodeConfig, local: &Local) -> String {
    let served = config.nsd.iter().zip(&local.nsds).filter(|(_, nsd)| nsd.is_some());
    served.fold("ready".to_owned(), |line, (nsd, _)| line + " " + &nsd.name)
}
