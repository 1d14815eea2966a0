//! The `Vfs`: page pool, write-behind, stripes, sessions.
