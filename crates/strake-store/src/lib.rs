//! One disk's container: superblock, regions, log, and an ordered key-value store on them.
