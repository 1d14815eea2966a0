//! `bench agent`: lets a driver elsewhere run tasks and network tests on this host.
//!
//! Whoever connects must first prove the shared secret, within ten seconds. Connections,
//! sessions, tasks and bytes are bounded; nothing outside the given directory is touched; and
//! what a driver made goes away with its session.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use strake_net::{Service, SharedSecret, Stream, Talk};

use super::channel::{Channel, broken};
use super::secret;
use super::serve::{Limits, Root, Session};
use crate::error::{BenchError, Result};
use crate::net::serve::Registry;
use crate::size::ByteSize;
use crate::stop::Stop;

/// Where agents listen unless told otherwise.
pub const PORT_DEFAULT: u16 = 7719;

/// `bench agent` on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct AgentArgs {
    /// Tasks work below this directory and nowhere else.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:7719")]
    pub listen: String,
    /// File with the secret that driver and agents share (one line, at least 16 characters).
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Most tasks of one phase.
    #[arg(long, value_name = "N", default_value = "256")]
    pub max_tasks: u32,
    /// Most bytes that one phase may occupy.
    #[arg(long, value_name = "SIZE", default_value = "1T")]
    pub max_bytes: ByteSize,
    /// Most connections at a time (a network test has several per thread).
    #[arg(long, value_name = "N", default_value = "1024")]
    pub max_connections: usize,
}

/// What a proven connection is for; its first frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// A session of a driver.
    Tasks,
    /// Data of a network test.
    Data(u64),
}

/// A stranger has so long to prove the secret.
const PROOF: Duration = Duration::from_secs(10);
/// A frame that was begun must end within this, and what is sent must be taken.
const TRANSFER: Duration = Duration::from_secs(60);

/// Listens until asked to stop.
pub fn run(args: &AgentArgs, stop: &Stop) -> Result<()> {
    let secret = secret::read(args.secret_file.as_deref())?;
    let agent = Agent::bind(args, secret)?;
    crate::tell("bench agent", &format_args!("listening on {}", agent.address()?));
    agent.serve(stop)
}

/// A listening agent.
pub struct Agent {
    listener: TcpListener,
    inner: Arc<Inner>,
}

struct Inner {
    secret: SharedSecret,
    root: PathBuf,
    limits: Limits,
    registry: Arc<Registry>,
    connections: AtomicUsize,
    connections_max: usize,
}

impl Agent {
    /// Binds the address and finds the directory.
    pub fn bind(args: &AgentArgs, secret: SharedSecret) -> Result<Agent> {
        let root = args.dir.canonicalize();
        let root = root.map_err(|error| BenchError::path("find", &args.dir, error))?;
        let listener = TcpListener::bind(&args.listen).map_err(|error| {
            BenchError::system(format!("cannot listen on {}", args.listen), error)
        })?;
        Ok(Agent {
            listener,
            inner: Arc::new(Inner {
                secret,
                root,
                limits: Limits { tasks_max: args.max_tasks, bytes_max: args.max_bytes.0 },
                registry: Arc::default(),
                connections: AtomicUsize::new(0),
                connections_max: args.max_connections.max(1),
            }),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<std::net::SocketAddr> {
        let address = self.listener.local_addr();
        address.map_err(|error| BenchError::system("cannot name the address", error))
    }

    /// Serves each connection in a thread of its own until `stop` is raised; then waits until
    /// all sessions have cleaned up.
    pub fn serve(&self, stop: &Stop) -> Result<()> {
        let mut sessions: Vec<thread::JoinHandle<()>> = Vec::new();
        while !stop.raised() {
            let mut set = [PollFd::new(&self.listener, PollFlags::IN)];
            let patience = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            match rustix::event::poll(&mut set, Some(&patience)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(BenchError::system("cannot wait for callers", error)),
            }
            sessions.retain(|session| !session.is_finished());
            // A caller that hung up again is no reason to end.
            let Ok((stream, _)) = self.listener.accept() else { continue };
            let inner = Arc::clone(&self.inner);
            if inner.connections.fetch_add(1, Ordering::SeqCst) >= inner.connections_max {
                inner.connections.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (stop, counted) = (stop.clone(), Counted(inner));
            let spawned = thread::Builder::new().name("session".into()).spawn(move || {
                if let Err(error) = counted.0.session(stream, &stop) {
                    crate::tell("bench agent", &error);
                }
            });
            if let Ok(handle) = spawned {
                sessions.push(handle);
            }
        }
        for session in sessions {
            let _ = session.join();
        }
        Ok(())
    }
}

/// Gives a connection's place back however its thread ends.
struct Counted(Arc<Inner>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inner {
    fn session(&self, stream: TcpStream, stop: &Stop) -> Result<()> {
        stream
            .set_nodelay(true)
            .map_err(|error| BenchError::system("cannot set up a connection", error))?;
        let talk = Talk::welcome(Stream::Tcp(stream), &self.secret, Service::Agent, PROOF)
            .map_err(broken)?;
        talk.set_limit(TRANSFER).map_err(broken)?;
        let mut channel = Channel::new(talk);
        match channel.receive()? {
            Purpose::Tasks => {
                let root = Root::Below {
                    directory: self.root.clone(),
                    secret: self.secret.clone(),
                    registry: Arc::clone(&self.registry),
                };
                Session::new(&mut channel, root, self.limits.clone(), stop).run()
            }
            Purpose::Data(test) => self.registry.connection(channel, test),
        }
    }
}
