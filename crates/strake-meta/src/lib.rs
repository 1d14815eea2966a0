//! The metadata state machine on an ordered key-value store, its log and copies.
