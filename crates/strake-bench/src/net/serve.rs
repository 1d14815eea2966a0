//! The servers' side of a network test: a registry of tests, and a thread per data connection.
//!
//! A test exists from the driver's `Serve` to the end of the driver's session. Data connections for
//! any other test are refused. At most `workers` messages of a test are worked on at the same time,
//! because an NSD server has a fixed number of worker threads. With too few workers, `nwrite`
//! waits.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use strake_net::Stream;

use super::facts::{self, NetCounters};
use super::phase::ServePlan;
use super::task::set_buffers;
use super::wire::{Header, Kind, broken};
use crate::content::Content;
use crate::error::{BenchError, Result};
use crate::host::CpuTimes;
use crate::outcome::CpuUse;
use crate::remote::channel::Channel;
use crate::remote::message::Answer;
use crate::stop::Stop;

/// The most tests that one agent serves at the same time.
const TESTS_MAX: usize = 16;

/// The tests that this agent serves.
#[derive(Default)]
pub struct Registry {
    tests: Mutex<BTreeMap<u64, Arc<Test>>>,
}

struct Test {
    plan: ServePlan,
    free_workers: Mutex<u32>,
    freed: Condvar,
    stop: Stop,
}

/// A test in the registry; dropping it ends the test and its connections.
pub struct Serving {
    registry: Arc<Registry>,
    id: u64,
    cpu: CpuTimes,
    counters: NetCounters,
}

/// What a server measured during a test.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Served {
    /// Its processors.
    pub cpu: CpuUse,
    /// Segments that its kernel sent twice.
    pub retransmits: u64,
}

impl Registry {
    /// Takes a test on.
    pub fn serve(self: &Arc<Self>, plan: &ServePlan, stop: &Stop) -> Result<Serving> {
        plan.validate()?;
        let mut tests = self.tests.lock();
        if tests.len() >= TESTS_MAX || tests.contains_key(&plan.id) {
            return Err(BenchError::Usage("this agent serves too many tests already".into()));
        }
        let test = Test {
            plan: plan.clone(),
            free_workers: Mutex::new(plan.workers),
            freed: Condvar::new(),
            stop: stop.for_session(),
        };
        tests.insert(plan.id, Arc::new(test));
        Ok(Serving {
            registry: Arc::clone(self),
            id: plan.id,
            cpu: CpuTimes::now(),
            counters: facts::counters(),
        })
    }

    /// Serves a data connection until its caller hangs up or the test ends. The bytes after the
    /// answer are the measured ones. They have no frames.
    pub fn connection(&self, mut channel: Channel, id: u64) -> Result<()> {
        let test = self.tests.lock().get(&id).cloned();
        let Some(test) = test else {
            channel.send(&Answer::Failed("no such test".into()))?;
            return Err(BenchError::Protocol("a data connection for an unknown test".into()));
        };
        let mut buffer = vec![0; test.plan.buffer_bytes as usize];
        Content::new(id, 0, 0).fill(0, &mut buffer);
        channel.send(&Answer::Done)?;
        let Stream::Tcp(mut stream) = channel.into_stream() else {
            return Err(BenchError::Protocol("a data connection that is not TCP".into()));
        };
        set_buffers(&stream, test.plan.socket_bytes)?;
        stream.set_read_timeout(Some(LOOK)).map_err(broken)?;
        loop {
            // Looks at the first byte only. A header that has begun is then read whole.
            let mut first = [0];
            match stream.peek(&mut first) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {
                    if test.stop.raised() {
                        return Ok(());
                    }
                    continue;
                }
                Err(_) => return Ok(()),
            }
            stream.set_read_timeout(Some(MESSAGE)).map_err(broken)?;
            let header = Header::receive(&mut stream)?;
            test.answer(header, &mut stream, &mut buffer)?;
            stream.set_read_timeout(Some(LOOK)).map_err(broken)?;
        }
    }
}

/// The time between two checks whether the test is over.
const LOOK: Duration = Duration::from_millis(500);
/// A message that has begun must end within this.
const MESSAGE: Duration = Duration::from_secs(30);

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

impl Test {
    fn answer(&self, header: Header, stream: &mut TcpStream, buffer: &mut [u8]) -> Result<()> {
        let length = header.length as usize;
        if length > buffer.len() {
            return Err(BenchError::Protocol(format!("a message of {length} bytes")));
        }
        let data = &mut buffer[..length];
        let content = Content::new(self.plan.id, 0, header.sequence);
        let mut answer = header;
        let _worker = Worker::take(self)?;
        match header.kind {
            Kind::Ping => {}
            Kind::Read => {
                if self.plan.verify {
                    content.fill(0, data);
                }
                answer.send(stream)?;
                return stream.write_all(data).map_err(broken);
            }
            Kind::Write => stream.read_exact(data).map_err(broken)?,
            Kind::NsdWrite => {
                Header { kind: Kind::Fetch, ..header }.send(stream)?;
                stream.read_exact(data).map_err(broken)?;
            }
            Kind::Fetch => {
                return Err(BenchError::Protocol("a caller that fetches".into()));
            }
        }
        answer.is_wrong = self.plan.verify && content.check(0, data).is_err();
        answer.send(stream)
    }
}

/// One of the workers of a test; dropping it frees it.
struct Worker<'a>(&'a Test);

impl<'a> Worker<'a> {
    fn take(test: &'a Test) -> Result<Worker<'a>> {
        let mut free = test.free_workers.lock();
        while *free == 0 {
            test.freed.wait_for(&mut free, LOOK);
            test.stop.check()?;
        }
        *free -= 1;
        Ok(Worker(test))
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        *self.0.free_workers.lock() += 1;
        self.0.freed.notify_one();
    }
}

impl Serving {
    /// What this host did since the test began.
    pub fn served(&self) -> Served {
        Served {
            cpu: CpuTimes::now().since(self.cpu),
            retransmits: facts::counters().retransmits_since(self.counters),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(test) = self.registry.tests.lock().remove(&self.id) {
            test.stop.raise();
        }
    }
}
