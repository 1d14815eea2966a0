//! Reference models and whole-stack tests on simulated disks.
