# Sluice: `make` builds, `make demo` shows it at work, `make test` runs every check. What is missing on a Debian 12 machine
# is installed first (scripts/setup); nothing asks. Logs of every step are in .build/logs.
#
#   make            build the release binaries
#   make demo       two namespaces and a guest on a switch, with real traffic; cleans up after itself
#   make test       format, lints, licences, unit and property tests, fuzz targets, end-to-end tests
#   make explore    models and Miri, then property, differential and fuzz tests with new seeds, for half an hour (MINUTES=5)
#   make e2e        the end-to-end tests alone; TESTS="3_vhost 4_pcap" selects, SWITCHD=ovs runs them on Open vSwitch
#   make conformance  all of os-ken's switch certification tests (about 50 minutes; VERSIONS="1_0" selects); make test runs a sample
#   make bench-accept  puts the counts of instructions that make test compares on record (bench/instructions.txt)
#   make bench      packets per second beside Open vSwitch and DPDK alone (25 minutes; BENCH="--case udp-1 --rounds 1" for less); bench/ has more
#   make install    DESTDIR= PREFIX=/usr/local

PREFIX ?= /usr/local
DESTDIR ?=
UNITDIR ?= /lib/systemd/system
TESTS ?=
# Where cargo puts what it builds; the end-to-end tests find the daemon through it.
TARGET := $(or $(CARGO_TARGET_DIR),target)
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: all build demo test explore e2e conformance bench bench-accept install uninstall clean

all: build

build:
	@scripts/setup build
	@scripts/step build cargo build --release --locked

demo:
	@scripts/setup
	@scripts/step build cargo build --release --locked
	@scripts/demo

test:
	@scripts/check

explore:
	@scripts/explore $(or $(MINUTES),30)

e2e:
	@scripts/setup
	@scripts/step build cargo build --release --locked
	@SWITCHD="$(or $(SWITCHD),$(TARGET)/release/sluiced)" tests/run $(TESTS)

conformance:
	@scripts/setup
	@scripts/step build cargo build --release --locked
	@SWITCHD="$(or $(SWITCHD),$(TARGET)/release/sluiced)" tests/run $(addprefix a_conformance.whole_,$(or $(VERSIONS),1_0 1_3 1_4))

bench:
	@scripts/setup
	@scripts/step build cargo build --release --locked
	@bench/forwarding.py $(BENCH)

bench-accept:
	@scripts/setup
	@bench/instructions.py accept

install: build
	install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/sluice $(DESTDIR)$(UNITDIR) $(DESTDIR)$(PREFIX)/share/doc/sluice
	install -m 755 $(TARGET)/release/sluiced $(DESTDIR)$(PREFIX)/sbin/sluiced
	install -m 755 $(TARGET)/release/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	install -m 755 packaging/rules $(DESTDIR)$(PREFIX)/lib/sluice/rules
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/sluiced.service >$(DESTDIR)$(UNITDIR)/sluiced.service
	chmod 644 $(DESTDIR)$(UNITDIR)/sluiced.service
	install -m 644 README.md CHANGELOG.md LICENSE NOTICE docs/*.md $(DESTDIR)$(PREFIX)/share/doc/sluice/

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/sbin/sluiced $(DESTDIR)$(PREFIX)/bin/sluice $(DESTDIR)$(UNITDIR)/sluiced.service
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/sluice $(DESTDIR)$(PREFIX)/lib/sluice

clean:
	cargo clean
	rm -rf .build
