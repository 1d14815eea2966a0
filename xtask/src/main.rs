//! Developers' commands: tidy checks and the tally of all test runners.

fn main() {}
