//! The machine's sockets, as all product crates take them.
//!
//! Sessions between the parts of a file system do not use these types: [`crate::stream`] puts
//! Unix and TCP sockets behind one type, which a simulation replaces. What remains is a daemon's
//! command socket and programs that measure the machine's own network.

pub use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs,
};
pub use std::os::unix::net::{
    SocketAddr as UnixSocketAddr, UnixDatagram, UnixListener, UnixStream,
};
