//! A disk in memory that can lose power, tear, lose, reorder, flip, fail and hang.
