//! The seam for clock, chance, disk and network: real ones, and simulated ones for tests.
