//! Erasure codes, checksums and placement; pure.
