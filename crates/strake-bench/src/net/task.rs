//! A client's thread in a network test.

use std::io::{Read, Write};
use std::net::TcpStream;

use strake_net::{SharedSecret, Stream};

use super::phase::Phase;
use super::wire::{Header, Kind, broken};
use crate::content::Content;
use crate::error::{BenchError, Result};
use crate::remote::agent::Purpose;
use crate::remote::driver;
use crate::remote::message::Answer;
use crate::team::{Meter, Task};

/// The thread of one rank.
pub struct NetTask {
    phase: Phase,
    rank: u32,
    secret: Option<SharedSecret>,
    /// `parallel` connections to each server, by server.
    connections: Vec<Vec<TcpStream>>,
    buffer: Vec<u8>,
}

impl NetTask {
    /// The thread of `rank`; `secret` is what the agent shares with the servers' agents.
    pub fn new(phase: Phase, rank: u32, secret: Option<SharedSecret>) -> Self {
        NetTask { phase, rank, secret, connections: Vec::new(), buffer: Vec::new() }
    }

    fn connect(&self, server: &str, secret: &SharedSecret) -> Result<TcpStream> {
        let mut channel = driver::connect(server, secret)?;
        channel.send(&Purpose::Data(self.phase.id))?;
        match channel.receive()? {
            Answer::Done => {}
            answer => return Err(BenchError::Protocol(format!("{server} answers {answer:?}"))),
        }
        let Stream::Tcp(stream) = channel.into_stream() else {
            return Err(BenchError::Protocol("a data connection that is not TCP".into()));
        };
        set_buffers(&stream, self.phase.socket_bytes)?;
        let patience = Some(driver::SILENCE);
        stream
            .set_read_timeout(patience)
            .and_then(|()| stream.set_write_timeout(patience))
            .map_err(broken)?;
        Ok(stream)
    }

    /// One message to the server of this turn.
    fn exchange(&mut self, turn: u64) -> Result<()> {
        let phase = &self.phase;
        let kind = phase.test.kind(self.rank);
        let server = phase.test.server(self.rank, turn, self.connections.len());
        let lane = turn as usize % phase.parallel as usize;
        let stream = &mut self.connections[server][lane];
        let header = Header {
            kind,
            is_wrong: false,
            length: if kind == Kind::Ping { 0 } else { phase.buffer_bytes },
            sequence: turn,
        };
        let content = Content::new(phase.id, 0, turn);
        if phase.verify && matches!(kind, Kind::Write | Kind::NsdWrite) {
            content.fill(0, &mut self.buffer);
        }
        header.send(stream)?;
        match kind {
            Kind::Write => stream.write_all(&self.buffer).map_err(broken)?,
            Kind::NsdWrite => {
                header.receive_answer(Kind::Fetch, stream)?;
                stream.write_all(&self.buffer).map_err(broken)?;
            }
            Kind::Read | Kind::Ping | Kind::Fetch => {}
        }
        header.receive_answer(kind, stream)?;
        if kind == Kind::Read {
            stream.read_exact(&mut self.buffer).map_err(broken)?;
            if phase.verify && content.check(0, &self.buffer).is_err() {
                return Err(BenchError::Verification(format!(
                    "a message from {} is not what was sent",
                    phase.servers[server]
                )));
            }
        }
        Ok(())
    }
}

/// Sets the size of both buffers of a socket.
pub fn set_buffers(stream: &TcpStream, bytes: Option<u32>) -> Result<()> {
    let Some(bytes) = bytes else { return Ok(()) };
    let bytes = bytes as usize;
    rustix::net::sockopt::set_socket_send_buffer_size(stream, bytes)
        .and_then(|()| rustix::net::sockopt::set_socket_recv_buffer_size(stream, bytes))
        .map_err(|error| BenchError::system("cannot set the size of socket buffers", error))
}

impl Task for NetTask {
    fn prepare(&mut self) -> Result<()> {
        let secret = self.secret.take().ok_or_else(|| {
            BenchError::Usage("network tests run on agents; start `strake bench agent`".into())
        })?;
        for server in &self.phase.servers {
            let lanes = (0..self.phase.parallel).map(|_| self.connect(server, &secret));
            self.connections.push(lanes.collect::<Result<_>>()?);
        }
        self.buffer = vec![0; self.phase.buffer_bytes as usize];
        Content::new(self.phase.id, 0, 0).fill(0, &mut self.buffer);
        Ok(())
    }

    fn run(&mut self, meter: &mut Meter) -> Result<()> {
        let bytes = match self.phase.test.kind(self.rank) {
            Kind::Ping => 0,
            _ => u64::from(self.phase.buffer_bytes),
        };
        let mut turn = 0;
        meter.operation_begins();
        while !meter.is_over() && self.phase.messages.is_none_or(|most| turn < most) {
            self.exchange(turn)?;
            meter.operation_ends(bytes);
            turn += 1;
        }
        meter.clock_stops();
        self.connections.clear();
        Ok(())
    }
}
