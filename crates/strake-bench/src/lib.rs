//! Benchmarks of any directory, network or disk.
