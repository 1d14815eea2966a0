# The commands of a day. `make check` is the fast loop, `make test` is what CI runs.

# Where cargo builds; the variable is cargo's own.
CARGO_TARGET_DIR ?= target

.PHONY: build packages static demo demo-cluster check test fix soak deps clean

build:
	cargo build --release -p strake

# A .deb, a .rpm, tarballs and a bill of materials with checksums in target/packages;
# scripts/try-package tries the .deb and the .rpm, and scripts/reproducible builds twice.
PACKAGED := $(CARGO_TARGET_DIR)/packaged
packages: static
	@CARGO_TARGET_DIR="$(PACKAGED)" scripts/release
	@mkdir -p "$(CARGO_TARGET_DIR)/packages"
	@cargo run -q -p xtask -- sbom > "$(CARGO_TARGET_DIR)/packages/strake.cdx.json"
	@scripts/packages "$(PACKAGED)/release/strake" "$(CARGO_TARGET_DIR)/packages" "$(PACKAGED)/$(STATIC)/release/strake"

# A program that needs no library of the machine: `rustup target add` and musl-gcc make it possible.
STATIC := x86_64-unknown-linux-musl
static:
	@if command -v musl-gcc > /dev/null && [ -d "$$(rustc --print sysroot)/lib/rustlib/$(STATIC)" ]; \
	then CARGO_TARGET_DIR="$(PACKAGED)" scripts/release --target $(STATIC); \
	else echo "static: no musl-gcc or no target $(STATIC) here, so no static program"; fi

deps:
	@scripts/deps

# Builds, brings up a file system on this machine, uses it on real data, shows it, tears down.
demo: build
	@scripts/demo "$(CARGO_TARGET_DIR)/release/strake"

# The same for a cluster: five nodes on this machine, of which three write while others die.
demo-cluster: build
	@scripts/demo-cluster "$(CARGO_TARGET_DIR)/release/strake"

# Formatting, lints, rules and the tests that need no mount. Under three minutes when warm.
check:
	cargo run -q -p xtask -- check

# Everything: check, documentation, suites on real mounts. Never writes to the tree.
test: deps
	cargo run -q -p xtask -- test

# Writes what `check` would complain about, where a program can.
fix:
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# Long versions of the seeded tests: make soak SEED=… MINUTES=…
soak:
	@scripts/deps soak
	cargo run -q -p xtask -- soak --seed $(or $(SEED),1) --minutes $(or $(MINUTES),60)

clean:
	cargo clean
