//! One port for all services of a node.
//!
//! A client's greeting names the service that it wants. The door greets on a thread of its own for
//! each connection, lets the client prove that it knows the secret, and hands the connection to the
//! service. From there on the service is like any other server (`server.rs`): it has its own crew
//! of workers, so an NSD whose disk hangs holds up nothing but itself. Services come and go while
//! the door is open. A client that wants one that is not there is told so after its proof, and sees
//! a service that cannot be reached.
//!
//! Strangers have `ServerOptions::limit` for each step of the greeting, and at most
//! `ServerOptions::connections_max` connections are being greeted at a time; more are closed.

use crate::auth::{Service, SharedSecret, welcome_to};
use crate::control::{ControlHandler, ControlPort};
use crate::meta::MetaHandler;
use crate::nsd::NsdHandler;
use crate::server::{Core, Handler, RpcServer, ServerOptions, is_passing};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use strake_env::stream::{Endpoint, Listener, Stream};
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{FsId, NsdId, Result};

/// Between attempts to accept while descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// An open door; closes when dropped, and ends all services behind it.
pub struct Door {
    hall: Arc<Hall>,
    accepting: Option<JoinHandle<()>>,
}

/// What the door's threads share.
struct Hall {
    listener: Listener,
    endpoint: Endpoint,
    secret: SharedSecret,
    options: ServerOptions,
    services: Mutex<BTreeMap<Service, RpcServer>>,
    state: Mutex<HallState>,
    changed: Condvar,
    rejected: AtomicU64,
}

#[derive(Default)]
struct HallState {
    closed: bool,
    /// Streams that are being greeted, to end them with.
    greeting: BTreeMap<u64, Stream>,
    next: u64,
}

impl Door {
    /// Opens a door without any service behind it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn open(listener: Listener, secret: SharedSecret, options: ServerOptions) -> Result<Door> {
        let endpoint = listener.endpoint()?;
        let hall = Arc::new(Hall {
            listener,
            endpoint,
            secret,
            options,
            services: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            rejected: AtomicU64::new(0),
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

    /// Connections closed for breaking the protocol or not knowing the secret.
    pub fn rejected(&self) -> u64 {
        self.hall.rejected.load(Relaxed)
    }

    /// Serves an NSD.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_nsd(&self, nsd: NsdId, port: Arc<dyn NsdPort>) -> Result<()> {
        self.serve(Service::Nsd(nsd), Arc::new(NsdHandler { port }))
    }

    /// Serves the metadata of a file system.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_meta(&self, fs: FsId, port: Arc<dyn MetaPort>) -> Result<()> {
        self.serve(Service::MetaOf(fs), Arc::new(MetaHandler { port }))
    }

    /// Serves what other nodes ask.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_node(&self, port: Arc<dyn ControlPort>) -> Result<()> {
        self.serve(Service::Node, Arc::new(ControlHandler { port }))
    }

    fn serve(&self, service: Service, handler: Arc<dyn Handler>) -> Result<()> {
        let Hall { endpoint, secret, options, .. } = &*self.hall;
        let (endpoint, secret) = (endpoint.clone(), secret.clone());
        let server = RpcServer::behind_door(endpoint, service, handler, secret, *options)?;
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

    /// Ends everything: services, connections and threads.
    pub fn close(mut self) {
        self.halt();
    }

    fn halt(&mut self) {
        let mut state = self.hall.state.lock();
        state.closed = true;
        state.greeting.values().for_each(Stream::shutdown);
        drop(state);
        self.hall.listener.stop();
        let services = std::mem::take(&mut *self.hall.services.lock());
        services.into_values().for_each(RpcServer::stop);
        let mut state = self.hall.state.lock();
        self.hall.changed.wait_while(&mut state, |state| !state.greeting.is_empty());
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
        stream.set_limits(Some(self.options.limit), Some(self.options.limit))?;
        let to_end = stream.try_clone()?;
        let mut state = self.state.lock();
        if state.closed || state.greeting.len() >= self.options.connections_max {
            self.rejected.fetch_add(1, Relaxed);
            return Ok(());
        }
        let id = state.next;
        state.next += 1;
        let hall = Arc::clone(self);
        Builder::new().name(format!("door client {id}")).spawn(move || hall.receive(id, stream))?;
        // The thread removes its entry under the same lock, so it finds it in any case.
        state.greeting.insert(id, to_end);
        Ok(())
    }

    /// Greets a client and has the service that it wants read its requests.
    fn receive(&self, id: u64, mut stream: Stream) {
        let terms = self.options.terms();
        let welcomed = welcome_to(&mut stream, &self.secret, terms, &|service| self.find(service));
        // A client may be silent for as long as it likes now, and the service ends it.
        let welcomed = welcomed.and_then(|(core, agreed)| {
            stream.set_limits(None, Some(self.options.limit))?;
            Ok((core, agreed))
        });
        {
            let mut state = self.state.lock();
            state.greeting.remove(&id);
            self.changed.notify_all();
        }
        let served = welcomed.and_then(|(core, agreed)| core.adopt(stream, agreed));
        if served.is_err() {
            self.rejected.fetch_add(1, Relaxed);
        }
    }

    fn find(&self, service: Service) -> Option<Arc<Core>> {
        self.services.lock().get(&service).map(RpcServer::core)
    }
}

#[cfg(test)]
#[path = "door_test.rs"]
mod door_test;
