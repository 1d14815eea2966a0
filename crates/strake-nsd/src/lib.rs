//! The NSD block store and its server.
