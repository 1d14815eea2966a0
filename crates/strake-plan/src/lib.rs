//! Sizing of storage systems from building blocks.
