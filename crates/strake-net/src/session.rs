//! A session: a connection that is made anew when it breaks, and calls that survive that.

use crate::auth::Service;
use crate::connection::{CallError, Connection};
use crate::credentials::Introduction;
use crate::frame::{Frame, FrameKind};
use crate::server_process::ServerProcess;
use crate::whereabouts::Whereabouts;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::WaitNames;
use strake_env::clock::Clock;
use strake_env::links::Links;
use strake_env::sync::{Mutex, WatchedMutex};
use strake_proto::feature::{self, Feature};
use strake_proto::{Error, ErrorKind, Result};

/// The pause after the first failed attempt to connect; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The time limits of a session's calls.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    /// For a connection and its greetings.
    pub connect: Duration,
    /// For a reply.
    pub call: Duration,
    /// For a server that cannot be reached when a call begins.
    pub absent: Duration,
    /// For a server to come back after the connection broke during the call.
    pub broken: Duration,
    /// A call without a reply looks that often whether its service is somewhere else.
    pub look: Duration,
}

impl SessionLimits {
    /// Limits for NSDs. Other NSDs hold the data, too, so an NSD that is not there is given up at
    /// once.
    pub const NSD: SessionLimits = SessionLimits {
        connect: Duration::from_secs(5),
        call: Duration::from_secs(30),
        absent: Duration::ZERO,
        broken: Duration::from_secs(2),
        look: Duration::from_secs(2),
    };
    /// Limits for the metadata. Nothing works without it, so its return is awaited.
    pub const META: SessionLimits = SessionLimits {
        connect: Duration::from_secs(5),
        call: Duration::from_secs(60),
        absent: Duration::from_secs(30),
        broken: Duration::from_secs(30),
        look: Duration::from_secs(2),
    };
}

/// The result of one attempt of a call.
pub(crate) enum Attempt<T> {
    /// The attempt was the last one.
    Over(Result<T>),
    /// The connection broke.
    Disconnected(Error),
}

/// What sessions take from above.
#[derive(Clone)]
pub struct SessionEnv {
    /// How the sessions prove themselves, and whom they expect.
    pub introduction: Introduction,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where their waits are named.
    pub waits: Arc<dyn WaitNames>,
    /// The process that the services of these sessions live in, if it is started anew when it
    /// dies. Calls wait through that.
    pub process: Option<Arc<ServerProcess>>,
    /// Where the connections count as links with nodes, if that is done.
    pub links: Option<Arc<Links>>,
}

impl SessionEnv {
    /// A connection was made for a session.
    pub(crate) fn made(&self, connection: &Connection) {
        if let Some(links) = &self.links {
            connection.count_in(links);
        }
    }
}

/// The work to be done on a fresh connection before calls may use it.
pub(crate) type Prepare<'a> = &'a dyn Fn(&Connection) -> Result<()>;

strake_env::lock_names! {
    /// Held while a connection is made.
    Connecting = "new connection to a server";
}

pub(crate) struct Session {
    whereabouts: Whereabouts,
    service: Service,
    limits: SessionLimits,
    env: SessionEnv,
    connection: WatchedMutex<Connecting, Option<Arc<Connection>>>,
    /// Attempts to connect so far, and how the last one failed: callers that queued up behind a
    /// failing attempt share its failure instead of each repeating it.
    attempts: AtomicU64,
    failure: Mutex<Option<Error>>,
    /// The count of times at which the calls under way were given up.
    abandoned: AtomicU64,
    /// The last connection that was made. Unlike `connection` it is never locked for long.
    last: Mutex<Weak<Connection>>,
}

/// A reply and the connection that brought it, which takes the payload's buffer back.
pub(crate) struct Reply {
    pub(crate) frame: Frame,
    pub(crate) connection: Arc<Connection>,
}

impl Session {
    /// How long a reply may take.
    pub(crate) fn call_max(&self) -> Duration {
        self.limits.call
    }

    pub(crate) fn new(
        whereabouts: impl Into<Whereabouts>,
        service: Service,
        limits: SessionLimits,
        env: SessionEnv,
    ) -> Session {
        Session {
            whereabouts: whereabouts.into(),
            service,
            limits,
            env,
            connection: WatchedMutex::default(),
            attempts: AtomicU64::new(0),
            failure: Mutex::new(None),
            abandoned: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }

    pub(crate) fn limits(&self) -> SessionLimits {
        self.limits
    }

    /// The time, for limits.
    pub(crate) fn now(&self) -> Duration {
        self.env.clock.monotonic()
    }

    /// The service at the other end.
    pub(crate) fn service(&self) -> Service {
        self.service
    }

    /// Ends the connection. The next call makes another one.
    pub(crate) fn disconnect(&self) {
        let connection = self.connection.lock().take();
        drop(connection);
    }

    /// Ends the calls under way, and none of them is tried again. A call that waits for a
    /// connection ends when that is made, or cannot be made.
    pub(crate) fn abandon(&self, error: &Error) {
        self.abandoned.fetch_add(1, SeqCst);
        let last = self.last.lock().upgrade();
        last.into_iter().for_each(|connection| connection.end(error));
    }

    /// Waits between two attempts.
    pub(crate) fn sleep(&self, pause: Duration) {
        self.env.clock.sleep(pause);
    }

    pub(crate) fn waits(&self) -> &dyn WaitNames {
        &*self.env.waits
    }

    /// Sends a request until there is a reply or the limits are reached. `message(true)` makes the
    /// message for a repetition, when an earlier attempt may have been executed. It is `None` if
    /// the request must not be repeated. `feature` is the one that the request belongs to, if it
    /// came after the first level.
    pub(crate) fn call(
        &self,
        kind: FrameKind,
        reason: &'static str,
        message: &dyn Fn(bool) -> Result<Option<Vec<u8>>>,
        payload: &[u8],
        feature: Option<Feature>,
    ) -> Result<Reply> {
        let mut broken = None;
        self.persist(reason, &|_| Ok(()), &mut |connection| {
            if let Err(error) = feature::check_spoken(feature, connection.protocol()) {
                return Attempt::Over(Err(error));
            }
            let message = match message(broken.is_some()) {
                Ok(Some(message)) => message,
                Ok(None) => {
                    let error = broken.take().unwrap_or_else(|| ErrorKind::Internal.into());
                    return Attempt::Over(Err(error));
                }
                Err(error) => return Attempt::Over(Err(error)),
            };
            match self.send(connection, kind, &message, payload) {
                Ok(frame) => Attempt::Over(Ok(Reply { frame, connection: Arc::clone(connection) })),
                Err(CallError::Failed(error)) => Attempt::Over(Err(error)),
                Err(CallError::Disconnected(error)) => {
                    broken = Some(error.clone());
                    Attempt::Disconnected(error)
                }
            }
        })
    }

    /// Sends a request once. While the reply does not come, looks now and then whether the service
    /// is somewhere else, and ends the connection if it is: a server that is cut off says nothing.
    pub(crate) fn send(
        &self,
        connection: &Connection,
        kind: FrameKind,
        message: &[u8],
        payload: &[u8],
    ) -> std::result::Result<Frame, CallError> {
        self.send_within(self.limits.call, connection, kind, message, payload)
    }

    /// Like [`Session::send`], with a limit of its own for the reply.
    pub(crate) fn send_within(
        &self,
        limit: Duration,
        connection: &Connection,
        kind: FrameKind,
        message: &[u8],
        payload: &[u8],
    ) -> std::result::Result<Frame, CallError> {
        let limits = (limit, self.limits.look);
        connection.call_looking(kind, message, payload, limits, &|| {
            if let Whereabouts::Moving(seek) = &self.whereabouts
                && let Ok(site) = seek.seek()
                && site.endpoint != *connection.endpoint()
            {
                let detail = format!("{} is at {} now", self.service, site.endpoint);
                connection.end(&Error::new(ErrorKind::Unreachable, detail));
            }
        })
    }

    /// Makes attempts, each on a connection, until one is the last or the limits are reached.
    pub(crate) fn persist<T>(
        &self,
        reason: &'static str,
        prepare: Prepare<'_>,
        attempt: &mut dyn FnMut(&Arc<Connection>) -> Attempt<T>,
    ) -> Result<T> {
        let wait = self.env.waits.begin_wait(reason, &self.service.to_string());
        let result = self.attempt_until_over(prepare, attempt);
        self.env.waits.end_wait(wait);
        result
    }

    fn attempt_until_over<T>(
        &self,
        prepare: Prepare<'_>,
        attempt: &mut dyn FnMut(&Arc<Connection>) -> Attempt<T>,
    ) -> Result<T> {
        let (mut since, mut was_connected, mut pause) = (None, false, PAUSE_MIN);
        let mut served = None;
        let abandoned = self.abandoned.load(SeqCst);
        loop {
            let is_abandoned = || self.abandoned.load(SeqCst) != abandoned;
            let error = match self.connected(prepare) {
                Ok(_) if is_abandoned() => {
                    let detail = format!("{} was given up", self.service);
                    Error::new(ErrorKind::Unreachable, detail)
                }
                Ok(connection) => match attempt(&connection) {
                    Attempt::Over(result) => return result,
                    Attempt::Disconnected(error) => {
                        was_connected = true;
                        error
                    }
                },
                Err(error) => error,
            };
            // Waiting helps against absence and silence, not against a refusal.
            let may_end = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut);
            if !may_end || is_abandoned() {
                return Err(error);
            }
            if let Some(process) = self.env.process.as_ref().filter(|process| process.matters()) {
                // A server process that is started anew brings the service back.
                let now = process.wait_until_it_serves()?;
                if served.replace(now) != Some(now) {
                    since = None;
                    continue;
                }
            }
            let now = self.env.clock.monotonic();
            let patience = if was_connected { self.limits.broken } else { self.limits.absent };
            if now.saturating_sub(*since.get_or_insert(now)) >= patience {
                return Err(error);
            }
            self.env.clock.sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The connection, made if there is none.
    fn connected(&self, prepare: Prepare<'_>) -> Result<Arc<Connection>> {
        let attempts = self.attempts.load(SeqCst);
        let mut place = self.connection.lock();
        let is_of_use = |it: &&Arc<Connection>| !it.is_broken() && !it.is_detour_over();
        if let Some(connection) = place.as_ref().filter(is_of_use) {
            return Ok(Arc::clone(connection));
        }
        *place = None;
        if self.attempts.load(SeqCst) != attempts
            && let Some(error) = self.failure.lock().clone()
        {
            return Err(error);
        }
        self.attempts.fetch_add(1, SeqCst);
        let (service, limit) = (self.service, self.limits.connect);
        let made = self
            .whereabouts
            .site(&self.env.introduction)
            .and_then(|site| Connection::open(&site.endpoint, &site.introduction, service, limit))
            .and_then(|connection| {
                self.env.made(&connection);
                prepare(&connection).map(|()| Arc::new(connection))
            });
        *self.failure.lock() = made.as_ref().err().cloned();
        let connection = made?;
        *self.last.lock() = Arc::downgrade(&connection);
        *place = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

/// Decodes the whole of `bytes`.
pub(crate) fn decode<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Error::new(ErrorKind::Corrupt, "a message does not decode")),
    }
}

/// Encodes a message.
pub(crate) fn encode<T: serde::Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}
