//! One port for all services of a node.
//!
//! A client's greeting names the service that it wants. The door greets on a thread of its own for
//! each connection, lets the client prove that it knows the secret, and hands the connection to the
//! service. From there on the service is like any other server (`server.rs`): it has its own crew
//! of workers, so an NSD whose disk hangs holds up nothing but itself. Services come and go while
//! the door is open. A client that wants one that is not there is told so after its proof, and sees
//! a service that cannot be reached.
//!
//! A client may also have its connection passed on to another node ([`crate::detour`]).
//!
//! Strangers have `ServerOptions::limit` for the greeting as a whole, and at most
//! `ServerOptions::greetings_max` connections are being greeted at a time. One more ends the oldest
//! of the machine that has the most of them (`greetings.rs`), so that a machine that opens
//! connections and says nothing keeps no other machine out.

use crate::auth::{Agreed, Service, Terms};
use crate::control::{ControlHandler, ControlPort};
use crate::credentials::{Credentials, PortFor};
use crate::greetings::Greetings;
use crate::handshake::{Refusal, Welcomed, receive};
use crate::meta::MetaHandler;
use crate::nsd::NsdHandler;
use crate::passage::{self, Passages, Seat};
use crate::refusals::Refusals;
use crate::replicas::{ReplicaHandler, ReplicaPort};
use crate::server::{Core, Handler, RpcServer, ServerOptions, is_passing};
use crate::tokens::{TokenHandler, TokenPort};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_env::stream::{Endpoint, Listener, Stream};
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_env::{Rng, WaitNames};
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{Error, ErrorKind, FsId, NodeName, NsdId, Result};

/// Between attempts to accept while descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Of messages of one replica that wait here. More wait at the other end.
const REPLICA_BYTES_MAX: usize = 8 << 20;
/// The door's name in the log.
const NAME: &str = "this node";

/// An open door; closes when dropped, and ends all services behind it.
pub struct Door {
    hall: Arc<Hall>,
    accepting: Option<JoinHandle<()>>,
}

/// A client that was greeted.
enum Greeted {
    /// Somebody who gets this service.
    Session(Arc<Core>, Box<Agreed>),
    /// Somebody whose connection goes on to another node.
    Passage(Stream, Seat),
    /// Somebody who has become a node of the cluster.
    Joiner,
}

/// What the door's threads share.
struct Hall {
    listener: Listener,
    endpoint: Endpoint,
    credentials: Credentials,
    options: ServerOptions,
    services: Mutex<BTreeMap<Service, RpcServer>>,
    state: Mutex<HallState>,
    changed: Condvar,
    refusals: Refusals,
}

struct HallState {
    closed: bool,
    /// Streams that are being greeted, to end them with.
    greetings: Greetings<Stream>,
    /// Connections that are passed on.
    passages: Passages,
    /// Threads that greet; a stream that was made to go has one for a moment yet.
    threads: usize,
}

impl Door {
    /// Opens a door without any service behind it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn open(
        listener: Listener,
        credentials: impl Into<Credentials>,
        options: ServerOptions,
    ) -> Result<Door> {
        let endpoint = listener.endpoint()?;
        let hall = Arc::new(Hall {
            listener,
            endpoint,
            credentials: credentials.into(),
            options,
            services: Mutex::default(),
            state: Mutex::new(HallState {
                closed: false,
                greetings: Greetings::new(options.greetings_max),
                passages: Passages::default(),
                threads: 0,
            }),
            changed: Condvar::new(),
            refusals: Refusals::default(),
        });
        let of_thread = Arc::clone(&hall);
        let accepting =
            Builder::new().name("door accept".to_owned()).spawn(move || of_thread.accept())?;
        Ok(Door { hall, accepting: Some(accepting) })
    }

    /// Where it listens, with the port that the system chose.
    pub fn endpoint(&self) -> &Endpoint {
        &self.hall.endpoint
    }

    /// Connections closed because the peer broke the protocol or proved nothing.
    pub fn rejected(&self) -> u64 {
        self.hall.refusals.count()
    }

    /// Serves an NSD.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_nsd(&self, nsd: NsdId, port: Arc<dyn NsdPort>) -> Result<()> {
        self.serve(Service::Nsd(nsd), Arc::new(NsdHandler::for_all(port)))
    }

    /// Serves an NSD; `ports` gives each peer its port.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_nsd_for(&self, nsd: NsdId, ports: PortFor<dyn NsdPort>) -> Result<()> {
        self.serve(Service::Nsd(nsd), Arc::new(NsdHandler::new(ports)))
    }

    /// Serves the metadata of a file system, with a boot number of its own: this node may have
    /// served it before, and another one meanwhile.
    ///
    /// # Errors
    /// When no thread can be started; the host's, without randomness.
    pub fn serve_meta(&self, fs: FsId, port: Arc<dyn MetaPort>) -> Result<()> {
        self.serve_anew(fs, MetaHandler::for_all(port))
    }

    /// As [`Door::serve_meta`]; `ports` gives each peer its port.
    ///
    /// # Errors
    /// The same.
    pub fn serve_meta_for(&self, fs: FsId, ports: PortFor<dyn MetaPort>) -> Result<()> {
        self.serve_anew(fs, MetaHandler::new(ports))
    }

    fn serve_anew(&self, fs: FsId, handler: MetaHandler) -> Result<()> {
        let boot = Rng::from_entropy()?.next_u64().max(1);
        let options = ServerOptions { boot, ..self.hall.options };
        self.serve_with(Service::MetaOf(fs), Arc::new(handler), options)
    }

    /// Whether the metadata of a file system is served here now.
    pub fn serves_meta(&self, fs: FsId) -> bool {
        self.hall.services.lock().contains_key(&Service::MetaOf(fs))
    }

    /// Serves what other nodes ask.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_node(&self, port: Arc<dyn ControlPort>) -> Result<()> {
        self.serve(Service::Node, Arc::new(ControlHandler { port }))
    }

    /// Serves the tokens of a file system.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_tokens(
        &self,
        fs: FsId,
        port: Arc<dyn TokenPort>,
        waits: Arc<dyn WaitNames>,
    ) -> Result<()> {
        self.serve(Service::TokensOf(fs), Arc::new(TokenHandler::new(port, waits)))
    }

    /// Serves a replica of the log of the cluster's records, or of that of the metadata of a file
    /// system. One thread hands it all messages.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_replica(&self, of: Option<FsId>, port: Arc<dyn ReplicaPort>) -> Result<()> {
        let service = of.map_or(Service::Replica, Service::ReplicaOf);
        let options =
            ServerOptions { workers: 1, request_bytes_max: REPLICA_BYTES_MAX, ..self.hall.options };
        self.serve_with(service, Arc::new(ReplicaHandler { port }), options)
    }

    fn serve(&self, service: Service, handler: Arc<dyn Handler>) -> Result<()> {
        self.serve_with(service, handler, self.hall.options)
    }

    fn serve_with(
        &self,
        service: Service,
        handler: Arc<dyn Handler>,
        options: ServerOptions,
    ) -> Result<()> {
        let Hall { endpoint, credentials, .. } = &*self.hall;
        let (endpoint, credentials) = (endpoint.clone(), credentials.clone());
        let server = RpcServer::behind_door(endpoint, service, handler, credentials, options)?;
        let before = self.hall.services.lock().insert(service, server);
        before.into_iter().for_each(RpcServer::stop);
        Ok(())
    }

    /// Ends a service and the connections to it, after the requests under way. Nothing happens if
    /// it is not there.
    pub fn end(&self, service: Service) {
        let server = self.hall.services.lock().remove(&service);
        server.into_iter().for_each(RpcServer::stop);
    }

    /// Ends all connections of a node: it is no member any more.
    pub fn disconnect(&self, name: &NodeName) {
        self.hall.services.lock().values().for_each(|service| service.disconnect(name));
    }

    /// Ends everything: services, connections and threads.
    pub fn close(mut self) {
        self.halt();
    }

    fn halt(&mut self) {
        let mut state = self.hall.state.lock();
        state.closed = true;
        state.greetings.enders().for_each(Stream::shutdown);
        state.passages.shutdown();
        drop(state);
        self.hall.listener.stop();
        let services = std::mem::take(&mut *self.hall.services.lock());
        services.into_values().for_each(RpcServer::stop);
        let mut state = self.hall.state.lock();
        self.hall.changed.wait_while(&mut state, |state| state.threads > 0);
        drop(state);
        // A thread that panicked has said so; all others are on their way out.
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if self.accepting.is_some() {
            self.halt();
        }
    }
}

impl Hall {
    fn accept(self: Arc<Hall>) {
        loop {
            match self.listener.accept() {
                // Failing to take on a connection closes it, which tells the client all there is.
                Ok(stream) => drop(self.take_on(stream)),
                Err(error) => {
                    let mut state = self.state.lock();
                    if state.closed || !is_passing(&error) {
                        return;
                    }
                    // Descriptors come back as clients leave.
                    self.changed.wait_for(&mut state, ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Starts the thread of a new connection.
    fn take_on(self: &Arc<Hall>, stream: Stream) -> Result<()> {
        let (to_end, origin) = (stream.try_clone()?, stream.peer_address());
        let mut state = self.state.lock();
        if state.closed {
            return Ok(());
        }
        let (id, gone) = state.greetings.add(origin, to_end);
        state.threads += 1;
        let hall = Arc::clone(self);
        let started = Builder::new()
            .name(format!("door client {id}"))
            .spawn(move || hall.receive(id, stream));
        if let Err(error) = started {
            state.greetings.remove(id);
            state.threads -= 1;
            return Err(error.into());
        }
        drop(state);
        if let Some((origin, stream)) = gone {
            stream.shutdown();
            let detail = "too many connections that prove nothing: the oldest was closed";
            let error = Error::new(ErrorKind::Busy, detail);
            self.refusals.note(origin, NAME, &error.into());
        }
        Ok(())
    }

    /// Greets a client and has the service that it wants read its requests.
    fn receive(&self, id: u64, mut stream: Stream) {
        let origin = stream.peer_address();
        let greeted = self.greet(id, &mut stream);
        self.state.lock().greetings.remove(id);
        // A passage has this thread. A session has those of its service.
        let session = greeted.and_then(|greeted| match greeted {
            Greeted::Session(core, agreed) => Ok(Some((core, agreed))),
            Greeted::Passage(onward, _seat) => {
                Ok(self.pass_on(id, &stream, &onward).map(|()| None)?)
            }
            Greeted::Joiner => Ok(None),
        });
        {
            self.state.lock().threads -= 1;
            self.changed.notify_all();
        }
        let served = session.and_then(|session| {
            let Some((core, agreed)) = session else { return Ok(()) };
            let node = agreed.peer.node().cloned();
            core.adopt(stream, *agreed).map_err(|error| Refusal { node, error })
        });
        if let Err(refusal) = served {
            self.refusals.note(origin, NAME, &refusal);
        }
    }

    /// Passes a client's connection on to another node, until it ends.
    fn pass_on(&self, id: u64, client: &Stream, onward: &Stream) -> Result<()> {
        for end in [client, onward] {
            passage::prepare(end, self.options.limit)?;
        }
        let [there, back] = [(client, onward), (onward, client)]
            .map(|(from, to)| Ok::<_, Error>((from.try_clone()?, to.try_clone()?)));
        let ((from, to), (from_onward, to_client)) = (there?, back?);
        let ends = [client.try_clone()?, onward.try_clone()?];
        {
            let mut state = self.state.lock();
            if state.closed {
                return Err(Error::new(ErrorKind::Unreachable, "the door closes"));
            }
            state.passages.add(id, ends);
        }
        let name = format!("door passage {id}");
        let back = Builder::new().name(name).spawn(move || passage::pass(from_onward, to_client));
        if back.is_ok() {
            passage::pass(from, to);
        }
        // A thread that panicked has said so.
        let ended = back.map(|back| drop(back.join()));
        self.state.lock().passages.remove(id);
        Ok(ended?)
    }

    /// Greets a client. Joiners are served here.
    fn greet(&self, id: u64, stream: &mut Stream) -> std::result::Result<Greeted, Refusal> {
        let mut hurried = stream.within(self.options.limit);
        let credentials = &self.credentials;
        Ok(match receive(&mut hurried, credentials, &|service| self.find(id, service))? {
            Welcomed::Session(core, agreed) => Greeted::Session(core, Box::new(agreed)),
            Welcomed::Passage(onward, seat) => Greeted::Passage(onward, seat),
            Welcomed::Joiner(joiner) => {
                joiner.serve(&mut hurried, credentials.desk())?;
                Greeted::Joiner
            }
        })
    }

    /// The service that a client wants. The client has proven itself, and has not been told so.
    /// From here on no other connection can end this one. A client that had to go before gets
    /// nothing.
    fn find(&self, id: u64, service: Service) -> Option<(Arc<Core>, Terms)> {
        let is_there = self.state.lock().greetings.remove(id);
        is_there.then(|| self.services.lock().get(&service).map(RpcServer::core))?
    }
}

#[cfg(test)]
#[path = "door_test.rs"]
mod door_test;
