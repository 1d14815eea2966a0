//! The driver's side of a session with an agent.

use std::net::ToSocketAddrs;
use std::path::Path;
use std::time::Duration;

use strake_net::{Endpoint, Service, SharedSecret, Talk};
use strake_proto::ErrorKind;

use super::agent::PORT_DEFAULT;
use super::channel::{Channel, broken};
use super::message::{Answer, Request};
use crate::clock::Tick;
use crate::crew::Crew;
use crate::error::{BenchError, Result};
use crate::host::HostFacts;
use crate::net::facts::NetFacts;
use crate::net::phase::ServePlan;
use crate::net::serve::Served;
use crate::outcome::HostOutcome;
use crate::work::Assignment;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// How long an agent may prepare a phase (it may have to flush a large cache).
const PREPARE: Duration = Duration::from_secs(600);
/// An agent reports every half second; one that is silent for so long is gone.
pub const SILENCE: Duration = Duration::from_secs(30);

/// `host` or `host:port`, with the usual port where none is given.
pub fn with_port(host: &str) -> String {
    let has_port = match host.rfind(':') {
        // An IPv6 address in brackets may still lack its port.
        Some(colon) => {
            !host[colon..].contains(']') && (host.matches(':').count() == 1 || host.contains(']'))
        }
        None => false,
    };
    if has_port {
        host.to_string()
    } else if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{PORT_DEFAULT}")
    } else {
        format!("{host}:{PORT_DEFAULT}")
    }
}

/// Opens a proven connection to an agent.
pub fn connect(host: &str, secret: &SharedSecret) -> Result<Channel> {
    let address = with_port(host);
    let at = |message: String| BenchError::Host { host: host.into(), message };
    let mut addresses = address
        .to_socket_addrs()
        .map_err(|error| at(format!("{address} is no address: {error}")))?;
    let first = addresses.next().ok_or_else(|| at(format!("{address} has no address")))?;
    let talk = Talk::call(&Endpoint::Tcp(first), secret, Service::Agent, CONNECT);
    let talk = talk.map_err(|error| match error.kind() {
        ErrorKind::Access | ErrorKind::Corrupt | ErrorKind::NotSupported => at(error.to_string()),
        _ => at(format!("no agent answers at {first}: {error}; start `strake bench agent` there")),
    })?;
    talk.set_limit(PREPARE).map_err(broken)?;
    Ok(Channel::new(talk))
}

/// A session with an agent or a worker.
pub struct Session {
    host: String,
    channel: Channel,
    progress: (u64, u64),
    heard: Tick,
    outcome: Option<HostOutcome>,
}

impl Session {
    /// Connects to the agent of `host` for tasks.
    pub fn connect(host: &str, secret: &SharedSecret) -> Result<Self> {
        let mut channel = connect(host, secret)?;
        channel.send(&super::agent::Purpose::Tasks)?;
        Ok(Session::new(host, channel))
    }
}

impl Session {
    /// A session on a channel that is ready.
    pub fn new(host: &str, channel: Channel) -> Self {
        Session { host: host.into(), channel, progress: (0, 0), heard: Tick::now(), outcome: None }
    }

    fn error(&self, message: impl ToString) -> BenchError {
        BenchError::Host { host: self.host.clone(), message: message.to_string() }
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let sent = self.channel.send(request);
        sent.map_err(|error| self.error(error))
    }

    fn receive(&mut self) -> Result<Answer> {
        let answer = self.channel.receive();
        match answer.map_err(|error| self.error(error))? {
            Answer::Failed(message) => Err(self.error(message)),
            answer => Ok(answer),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        self.send(request)?;
        self.receive()
    }

    fn done(&mut self) -> Result<()> {
        match self.receive()? {
            Answer::Done => Ok(()),
            other => Err(self.error(format!("unexpected answer {other:?}"))),
        }
    }

    /// Asks for a directory and joins the run's scratch in it.
    pub fn open(&mut self, directory: &Path, scratch: &str) -> Result<()> {
        let directory = directory
            .to_str()
            .ok_or_else(|| BenchError::Usage(format!("{} is not UTF-8", directory.display())))?;
        self.send(&Request::Open { directory: directory.into(), scratch: scratch.into() })?;
        self.done()
    }
}

/// Tasks of an agent or a worker.
pub struct RemoteCrew {
    session: Session,
}

impl RemoteCrew {
    /// Opens the run's directory at an agent.
    pub fn open(mut session: Session, directory: &Path, scratch: &str) -> Result<Self> {
        session.open(directory, scratch)?;
        Ok(RemoteCrew { session })
    }
}

impl RemoteCrew {
    /// A crew on a session whose directory is known.
    pub fn new(session: Session) -> Self {
        RemoteCrew { session }
    }
}

impl Crew for RemoteCrew {
    fn begin(&mut self, assignment: &Assignment) -> Result<()> {
        self.session.send(&Request::Begin(assignment.clone()))
    }

    fn ready(&mut self) -> Result<()> {
        self.session.done()
    }

    fn release(&mut self) -> Result<()> {
        let session = &mut self.session;
        session.progress = (0, 0);
        session.outcome = None;
        session.heard = Tick::now();
        session.send(&Request::Release)
    }

    fn poll(&mut self) -> Result<Option<(u64, u64)>> {
        let session = &mut self.session;
        while session.outcome.is_none() && session.channel.is_readable(Duration::ZERO)? {
            session.heard = Tick::now();
            match session.receive()? {
                Answer::Progress { bytes, operations } => session.progress = (bytes, operations),
                Answer::Outcome(outcome) => session.outcome = Some(outcome),
                other => return Err(session.error(format!("unexpected answer {other:?}"))),
            }
        }
        if session.outcome.is_none() && session.heard.elapsed_seconds() > SILENCE.as_secs_f64() {
            return Err(session.error("silent for 30 s; its host or the network is down"));
        }
        Ok(session.outcome.is_none().then_some(session.progress))
    }

    fn collect(&mut self) -> Result<HostOutcome> {
        let outcome = self.session.outcome.take();
        Ok(outcome.expect("invariant: collect follows the end of a phase"))
    }

    fn tidy(&mut self) -> Result<()> {
        self.session.send(&Request::Tidy)?;
        self.session.done()
    }

    fn facts(&mut self) -> Result<HostFacts> {
        match self.session.ask(&Request::Facts)? {
            Answer::Facts(facts) => Ok(facts),
            other => Err(self.session.error(format!("unexpected answer {other:?}"))),
        }
    }

    fn mark(&mut self) -> Result<()> {
        self.session.send(&Request::Mark)?;
        self.session.done()
    }

    fn is_marked(&mut self) -> Result<bool> {
        match self.session.ask(&Request::IsMarked)? {
            Answer::Marked(marked) => Ok(marked),
            other => Err(self.session.error(format!("unexpected answer {other:?}"))),
        }
    }
}

/// A client of network tests.
pub struct NetCrew;

impl NetCrew {
    /// A session with an agent whose tasks call other agents.
    pub fn connect(host: &str, secret: &SharedSecret) -> Result<RemoteCrew> {
        let mut session = Session::connect(host, secret)?;
        session.send(&Request::OpenNet)?;
        session.done()?;
        Ok(RemoteCrew { session })
    }
}

/// A server of network tests.
pub struct ServerSession {
    session: Session,
}

impl ServerSession {
    /// A session that asks only.
    pub fn connect(host: &str, secret: &SharedSecret) -> Result<Self> {
        let session = Session::connect(host, secret)?;
        Ok(ServerSession { session })
    }

    /// Lets an agent serve a test for as long as this session lives.
    pub fn serve(host: &str, secret: &SharedSecret, plan: &ServePlan) -> Result<Self> {
        let mut server = ServerSession::connect(host, secret)?;
        server.session.send(&Request::Serve(plan.clone()))?;
        server.session.done()?;
        Ok(server)
    }

    /// What serving cost since the test began.
    pub fn served(&mut self) -> Result<Served> {
        match self.session.ask(&Request::Served)? {
            Answer::Served(served) => Ok(served),
            other => Err(self.session.error(format!("unexpected answer {other:?}"))),
        }
    }

    /// What the host knows of its network.
    pub fn net_facts(&mut self) -> Result<NetFacts> {
        match self.session.ask(&Request::NetFacts)? {
            Answer::NetFacts(facts) => Ok(facts),
            other => Err(self.session.error(format!("unexpected answer {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::with_port;

    #[test]
    fn ports_are_added_where_they_are_missing() {
        for (given, wanted) in [
            ("node1", "node1:7719"),
            ("node1:80", "node1:80"),
            ("10.0.0.1", "10.0.0.1:7719"),
            ("fe80::1", "[fe80::1]:7719"),
            ("[fe80::1]", "[fe80::1]:7719"),
            ("[fe80::1]:80", "[fe80::1]:80"),
        ] {
            assert_eq!(with_port(given), wanted);
        }
    }
}
