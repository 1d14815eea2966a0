//! Ids, units, error kinds and the messages that cross Strake's two arrows.
