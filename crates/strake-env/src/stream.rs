//! Unix and TCP stream sockets behind one type.

use crate::clock::{Clock, RealClock};
use crate::links::tcp::TcpFigures;
use crate::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use crate::net::{UnixListener, UnixStream};
#[cfg(any(test, feature = "simulation"))]
use crate::simulation::{SimListener, SimStream};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_proto::{Error, ErrorKind, Result};

/// Between two attempts to get into the queue of a Unix socket.
const QUEUE_PAUSE: Duration = Duration::from_millis(1);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket's path.
    Unix(PathBuf),
    /// An address and port.
    Tcp(SocketAddr),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(out, "{}", path.display()),
            Endpoint::Tcp(address) => write!(out, "{address}"),
        }
    }
}

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP connection.
    Tcp(TcpStream),
    /// A connection of a simulated thread.
    #[cfg(any(test, feature = "simulation"))]
    Simulated(SimStream),
}

impl Stream {
    /// Connects within `limit`.
    ///
    /// # Errors
    /// `Unreachable` if nobody listens there, `TimedOut`, else the host's.
    pub fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Stream> {
        let stream = Stream::open(endpoint, limit).map_err(|error| {
            // A Unix socket that is not there is a server that is not there.
            let kind = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::Unreachable,
                // The last router, or this machine, has got no answer.
                io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                    ErrorKind::TimedOut
                }
                _ => Error::from(io::Error::from(error.kind())).kind(),
            };
            Error::new(kind, format!("cannot connect to {endpoint}: {error}"))
        })?;
        stream.without_delay()?;
        Ok(stream)
    }

    fn open(endpoint: &Endpoint, limit: Duration) -> io::Result<Stream> {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(connected) = SimStream::connect(&endpoint.to_string(), limit) {
            return connected.map(Stream::Simulated);
        }
        match endpoint {
            Endpoint::Unix(path) => connect_unix(path, limit).map(Stream::Unix),
            Endpoint::Tcp(address) => TcpStream::connect_timeout(address, limit).map(Stream::Tcp),
        }
    }

    /// Frames are written whole, so waiting for more to fill a packet only costs time.
    fn without_delay(&self) -> io::Result<()> {
        match self {
            Stream::Unix(_) => Ok(()),
            Stream::Tcp(stream) => stream.set_nodelay(true),
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(_) => Ok(()),
        }
    }

    /// A second handle on the same socket.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn try_clone(&self) -> io::Result<Stream> {
        match self {
            Stream::Unix(stream) => stream.try_clone().map(Stream::Unix),
            Stream::Tcp(stream) => stream.try_clone().map(Stream::Tcp),
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(stream) => Ok(Stream::Simulated(stream.try_clone())),
        }
    }

    /// How long one read or write may make no progress; `None` for ever.
    ///
    /// # Errors
    /// The host's.
    pub fn set_limits(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(stream) => {
                stream.set_limits(read, write);
                Ok(())
            }
        }
    }

    /// How long one read may make no progress. It counts on all handles.
    ///
    /// # Errors
    /// The host's.
    pub fn set_read_limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(Some(limit)),
            Stream::Tcp(stream) => stream.set_read_timeout(Some(limit)),
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(stream) => {
                stream.set_read_limit(limit);
                Ok(())
            }
        }
    }

    /// The stream with one time limit for all that is read and written through it together. The
    /// limits of single reads and writes must be set anew afterwards.
    pub fn within(&mut self, limit: Duration) -> Within<'_> {
        let end = RealClock.monotonic().saturating_add(limit);
        Within { stream: self, end }
    }

    /// The address of the machine at the other end; `None` for a process of this machine on a Unix
    /// socket.
    pub fn peer_address(&self) -> Option<IpAddr> {
        match self {
            Stream::Unix(_) => None,
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(_) => None,
        }
    }

    /// Whether bytes, or the end, wait to be read; waits for them up to `patience`. A signal ends
    /// the wait early.
    ///
    /// # Errors
    /// The host's.
    pub fn is_readable(&self, patience: Duration) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let descriptor = match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
            // Only the benchmark asks, which is not simulated.
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        match poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&patience)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a short write would not have to wait now.
    pub fn is_writable(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Stream::Tcp(stream) = self else { return false };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::OUT)], Some(&now))
            .is_ok_and(|count| count > 0)
    }

    /// The kernel's counts of a TCP connection; `None` for every other stream.
    pub fn figures(&self) -> Option<TcpFigures> {
        match self {
            Stream::Tcp(stream) => TcpFigures::of(stream),
            _ => None,
        }
    }

    /// Ends both directions; every read and write on any handle returns.
    pub fn shutdown(&self) {
        // An error means that the connection is gone already, which is what is wanted.
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(stream) => {
                stream.shutdown();
                Ok(())
            }
        };
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Tcp(stream) => stream.read(bytes),
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write_vectored(parts),
            Stream::Tcp(stream) => stream.write_vectored(parts),
            #[cfg(any(test, feature = "simulation"))]
            Stream::Simulated(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream whose reads and writes together have one time limit: a peer that sends a byte now and
/// then gets no more time than one that sends nothing. Afterwards each fails like a read or write
/// that has made no progress ([`Stream::set_limits`]).
#[derive(Debug)]
pub struct Within<'a> {
    stream: &'a mut Stream,
    /// By the monotonic clock.
    end: Duration,
}

impl Within<'_> {
    fn hurry(&self) -> io::Result<()> {
        let left = self.end.saturating_sub(RealClock.monotonic());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stream.set_limits(Some(left), Some(left))
    }
}

impl Read for Within<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        self.stream.read(bytes)
    }
}

impl Write for Within<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hurry()?;
        self.stream.write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.hurry()?;
        self.stream.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// A TCP port.
    Tcp(TcpListener),
    /// A listener of a simulated thread.
    #[cfg(any(test, feature = "simulation"))]
    Simulated(SimListener, Endpoint),
}

impl Listener {
    /// Listens at `endpoint`. A Unix socket that a dead server left behind is replaced. A socket
    /// that is answered is not.
    ///
    /// # Errors
    /// `Busy` if another process listens there; the host's.
    pub fn bind(endpoint: &Endpoint) -> Result<Listener> {
        Listener::open(endpoint).map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::AddrInUse => ErrorKind::Busy,
                _ => Error::from(io::Error::from(error.kind())).kind(),
            };
            Error::new(kind, format!("cannot listen at {endpoint}: {error}"))
        })
    }

    fn open(endpoint: &Endpoint) -> io::Result<Listener> {
        #[cfg(any(test, feature = "simulation"))]
        if crate::simulation::is_simulated() {
            return SimListener::bind(endpoint)
                .map(|(listener, endpoint)| Listener::Simulated(listener, endpoint));
        }
        match endpoint {
            Endpoint::Unix(path) => {
                remove_stale(path)?;
                UnixListener::bind(path).map(Listener::Unix)
            }
            Endpoint::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp),
        }
    }

    /// Where it listens, with the port that the system chose.
    ///
    /// # Errors
    /// The host's.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Ok(match self {
            Listener::Unix(listener) => {
                let address = listener.local_addr()?;
                Endpoint::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned())
            }
            Listener::Tcp(listener) => Endpoint::Tcp(listener.local_addr()?),
            #[cfg(any(test, feature = "simulation"))]
            Listener::Simulated(_, endpoint) => endpoint.clone(),
        })
    }

    /// The next connection.
    ///
    /// # Errors
    /// The host's, and after [`Listener::stop`].
    pub fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Listener::Unix(listener) => Stream::Unix(listener.accept()?.0),
            Listener::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            #[cfg(any(test, feature = "simulation"))]
            Listener::Simulated(listener, _) => Stream::Simulated(listener.accept()?),
        };
        stream.without_delay()?;
        Ok(stream)
    }

    /// Makes `accept` fail from now on, also one that is waiting.
    pub fn stop(&self) {
        let descriptor = match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
            #[cfg(any(test, feature = "simulation"))]
            Listener::Simulated(listener, _) => return listener.stop(),
        };
        // An error means that it listens no more, which is what is wanted.
        let _ = rustix::net::shutdown(descriptor, rustix::net::Shutdown::Both);
    }
}

/// Connects to a Unix socket within `limit`. A blocking `connect` has no limit: it waits for a
/// place in the listener's queue, even after that listener was shut down.
fn connect_unix(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let end = RealClock.monotonic().saturating_add(limit);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            // The queue is full. Nothing tells when it is not.
            Err(rustix::io::Errno::AGAIN) if RealClock.monotonic() < end => {
                RealClock.sleep(QUEUE_PAUSE);
            }
            Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Removes the socket at `path` if no process answers there.
fn remove_stale(path: &Path) -> io::Result<()> {
    // Connecting to a plain file is refused as well, and that must not be removed.
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    // One that cannot be connected to at once for its many callers is alive.
    match connect_unix(path, Duration::ZERO) {
        Err(error) if is_socket && error.kind() == io::ErrorKind::ConnectionRefused => {
            match std::fs::remove_file(path) {
                // Its server ends at this moment, and has removed it itself.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
        }
        // Nothing there, or something that bind reports.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_accepts_nobody_holds_nobody_up() {
        let name = format!("strake-stream-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let endpoint = Endpoint::Unix(path.clone());
        let listener = Listener::bind(&endpoint).expect("a socket");
        let hasty = Duration::from_millis(5);
        let mut waiting = Vec::new();
        let full = loop {
            match Stream::connect(&endpoint, hasty) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 1 << 14, "a queue has an end");
        };
        assert_eq!(full.kind(), ErrorKind::TimedOut, "{full}");
        let busy = Listener::bind(&endpoint).expect_err("somebody listens");
        assert_eq!(busy.kind(), ErrorKind::Busy);
        // One place becomes free while the client waits for it.
        crate::thread::scope(|scope| {
            let patient = scope.spawn(|| Stream::connect(&endpoint, Duration::from_secs(20)));
            listener.accept().expect("one of many");
            patient.join().expect("no panic").expect("there is a place");
        });
        std::fs::remove_file(path).expect("its file");
    }
}
