//! One network test as the threads of a client run it. All of it is pure.

use serde::{Deserialize, Serialize};

use super::wire::{Kind, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN};
use crate::error::{BenchError, Result};

/// The tests, named as nsdperf names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Threads write to all servers in turn.
    Write,
    /// Threads read from all servers in turn.
    Read,
    /// As write, but servers fetch the data when a worker is free.
    Nwrite,
    /// Each thread writes to one server only.
    Swrite,
    /// Each thread reads from one server only.
    Sread,
    /// Half of the threads read, half write.
    Rw,
    /// Small messages one after the other: the latency of an idle network.
    #[value(skip)]
    Ping,
}

impl Test {
    /// Its name in the result line.
    pub fn name(self) -> &'static str {
        match self {
            Test::Write => "write",
            Test::Read => "read",
            Test::Nwrite => "nwrite",
            Test::Swrite => "swrite",
            Test::Sread => "sread",
            Test::Rw => "rw",
            Test::Ping => "ping",
        }
    }

    /// The kind of message that the thread of a rank sends.
    pub fn kind(self, rank: u32) -> Kind {
        match self {
            Test::Write | Test::Swrite => Kind::Write,
            Test::Read | Test::Sread => Kind::Read,
            Test::Nwrite => Kind::NsdWrite,
            Test::Rw if rank.is_multiple_of(2) => Kind::Read,
            Test::Rw => Kind::Write,
            Test::Ping => Kind::Ping,
        }
    }

    /// The server of a thread's `turn`-th message. Threads start at different servers, so that
    /// they do not all meet at the first.
    pub fn server(self, rank: u32, turn: u64, servers: usize) -> usize {
        let start = match self {
            // Both halves of a mixed test must reach every server.
            Test::Rw => u64::from(rank / 2),
            _ => u64::from(rank),
        };
        let fixed = matches!(self, Test::Swrite | Test::Sread);
        let turn = if fixed { 0 } else { turn };
        ((start + turn) % servers as u64) as usize
    }
}

/// One test as a client runs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Which test.
    pub test: Test,
    /// Names the test at the servers.
    pub id: u64,
    /// Agents to talk to.
    pub servers: Vec<String>,
    /// Bytes per message.
    pub buffer_bytes: u32,
    /// Connections of each thread to each server.
    pub parallel: u32,
    /// Size of socket buffers, or what the system chooses.
    pub socket_bytes: Option<u32>,
    /// Whether to compare the bytes that arrive.
    pub verify: bool,
    /// How many seconds the test lasts.
    pub seconds: f64,
    /// If set, each thread stops after this many messages (pings).
    pub messages: Option<u64>,
}

/// The most connections from one host. More are a mistake.
const CONNECTIONS_MAX: u64 = 8191;

impl Phase {
    /// Refuses parameters out of bounds.
    pub fn validate(&self, tasks: u32) -> Result<()> {
        let usage = |message: String| Err(BenchError::Usage(message));
        if !(MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&self.buffer_bytes) {
            return usage("a message has 4K to 16M".into());
        }
        if self.servers.is_empty() {
            return usage("a network test needs servers".into());
        }
        let connections = u64::from(tasks) * u64::from(self.parallel) * self.servers.len() as u64;
        if self.parallel == 0 || connections > CONNECTIONS_MAX {
            return usage(format!(
                "{connections} connections; threads × parallel × servers must be 1 to \
                 {CONNECTIONS_MAX}"
            ));
        }
        if self.socket_bytes.is_some_and(|bytes| bytes > 100 << 20) {
            return usage("a socket buffer has at most 100M".into());
        }
        Ok(())
    }
}

/// The part of a test that a server is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServePlan {
    /// Names the test.
    pub id: u64,
    /// Messages worked on at the same time.
    pub workers: u32,
    /// The largest message.
    pub buffer_bytes: u32,
    /// Size of socket buffers.
    pub socket_bytes: Option<u32>,
    /// Whether to compare the bytes that arrive.
    pub verify: bool,
}

/// The most workers of a test. More are a mistake.
pub const WORKERS_MAX: u32 = 4096;

impl ServePlan {
    /// Refuses parameters out of bounds.
    pub fn validate(&self) -> Result<()> {
        let buffers = MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX;
        let workers = 1..=WORKERS_MAX;
        if !workers.contains(&self.workers) || !buffers.contains(&self.buffer_bytes) {
            return Err(BenchError::Usage("workers or message size out of bounds".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_visit_servers_as_the_test_says() {
        let servers = |test: Test, rank| -> Vec<usize> {
            (0..4).map(|turn| test.server(rank, turn, 3)).collect()
        };
        assert_eq!(servers(Test::Write, 0), [0, 1, 2, 0]);
        assert_eq!(servers(Test::Read, 2), [2, 0, 1, 2]);
        assert_eq!(servers(Test::Sread, 4), [1, 1, 1, 1]);
        assert_eq!((Test::Rw.kind(0), Test::Rw.kind(1)), (Kind::Read, Kind::Write));
        assert_eq!(Test::Rw.server(0, 0, 3), Test::Rw.server(1, 0, 3));
    }
}
