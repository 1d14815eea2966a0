//! I/O history, named waits, histograms.
