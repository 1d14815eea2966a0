//! `bench net`: measures what the network between hosts carries, independent of any file system.
//!
//! `wire` is the data protocol, `phase` says what a thread does, and `gate` gives the readiness
//! verdict and the advice. All three are pure. `task` is a client's thread, and `serve` is the
//! servers' side. `facts` reads what a host knows of its network. `report` prints the lines, and
//! `run` is the driver.

pub mod facts;
pub mod gate;
pub mod phase;
pub mod report;
pub mod run;
pub mod serve;
pub mod task;
pub mod wire;
