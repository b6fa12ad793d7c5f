# Sluice: `make` builds, `make demo` shows it at work, `make test` runs every check. What is missing
# on a Debian 12 machine is installed first (scripts/setup); nothing asks. Logs of every step are in
# .build/logs.
#
#   make                  build the release binaries
#   make demo             two namespaces and a guest on a switch, with real traffic; cleans up after
#                         itself
#   make test             format, lints, licences, unit and property tests, fuzz targets, end-to-end
#                         tests, deb-check
#   make explore          models and Miri, then property, differential and fuzz tests with new
#                         seeds, for half an hour (MINUTES=5)
#   make e2e              the end-to-end tests alone; TESTS="vhost pcap" selects, SWITCHD=ovs
#                         runs them on Open vSwitch
#   make conformance      all of os-ken's switch certification tests (about 50 minutes;
#                         VERSIONS="1_0" selects); make test runs a sample
#   make bench-accept     puts the counts of instructions that make test compares on record
#                         (bench/instructions.txt)
#   make bench            packets per second beside Open vSwitch and DPDK alone (25 minutes;
#                         BENCH="--case udp-1 --rounds 1" for less); bench/ has more
#   make install          DESTDIR= PREFIX=/usr/local; make uninstall takes it away, but for what may
#                         have been changed in etc
#   make deb              Debian packages of the binaries and of their debug symbols, in .build/deb
#   make container-check  builds the container image and runs it by podman, which it installs
#                         (minutes, and the network once)
#   make deb-check        installs and removes them in a clean Debian 12, and runs the container's
#                         steps there (two minutes; the network where dependencies are new)

PREFIX ?= /usr/local
DESTDIR ?=
# All below PREFIX; where that is /usr, as distributions have it, what administrators change is in
# /etc.
override PREFIX := $(patsubst %/,%,$(PREFIX))
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSCONFDIR ?= $(if $(subst X/usr,,X$(PREFIX)),$(PREFIX)/etc,/etc)
DOCDIR ?= $(PREFIX)/share/doc/sluice
# What is installed beside binaries, manual and completion.
HELPERS := rules container await-database
# What measures the lab's experiments: its programs, what they import of bench/ and tests/, and
# what they compile.
LAB := $(addprefix bench/,cases.py cases_connections.py cases_long.py cases_tunnels.py \
    contender.py curve.py frames.py kernel.py lab_forwarding.py lab_slicing.py lab_steering.py \
    live_frames.py slicing_cpu.py slicing_peers.py steering.py steering_crypt.bpf.c \
    steering_peer.c traffic.c) \
  $(addprefix tests/,guest.py harness.py hugepages.py isolated.py openflow_client.py \
    test_steer.py testpmd.py)
DOCUMENTS := README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md LICENSE NOTICE
PAGES := $(wildcard docs/*.md docs/*.svg)
REPORT := $(wildcard docs/report/*.html docs/report/*.svg)
TESTS ?=
# Where cargo puts what it builds; the end-to-end tests find the daemon through it.
TARGET := $(or $(CARGO_TARGET_DIR),target)
BINARIES ?= $(TARGET)/release
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: all build demo test explore e2e conformance bench bench-accept install install-built \
  install-place report uninstall deb deb-check container-check clean

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
	@scripts/step build cargo build --release --locked --bins --example subject
	@SWITCHD="$(or $(SWITCHD),$(TARGET)/release/sluiced)" tests/run $(TESTS)

conformance:
	@scripts/setup
	@scripts/step build cargo build --release --locked
	@SWITCHD="$(or $(SWITCHD),$(TARGET)/release/sluiced)" tests/run \
	  $(addprefix conformance.whole_,$(or $(VERSIONS),1_0 1_3 1_4))

bench:
	@scripts/setup
	@scripts/step build cargo build --release --locked
	@bench/forwarding.py $(BENCH)

# The report that the documentation has, of a run that is there:
#   target/release/sluice lab run all --quick --output DIR --commit $(git rev-parse HEAD)
report:
	@test -n "$(RUN)" || { echo "make report RUN=DIR: DIR is a run of sluice lab"; exit 2; }
	@$(TARGET)/release/sluice lab report "$(RUN)" --publish docs/report --plots A1 \
	  $(if $(COMMIT),--commit $(COMMIT)) $(if $(EARLIER),--earlier "$(EARLIER)")

bench-accept:
	@scripts/setup
	@bench/instructions.py accept

install: build install-built

# Paths in the unit are absolute; spaces are well there, but not what systemd, sed or a shell take
# for something else.
install-place:
	@for place in '$(subst ','\'',$(PREFIX))' '$(subst ','\'',$(UNITDIR))' \
	  '$(subst ','\'',$(SYSCONFDIR))' '$(subst ','\'',$(DOCDIR))'; do \
	  case "$$place" in \
	    *[!-A-Za-z0-9_./+:,~@\ ]*) \
	      wrong="has a character that systemd would take for something else";; \
	    ''|/*) continue;; *) wrong="is not absolute";; esac; \
	  echo "make: the place '$$place' $$wrong" >&2; exit 1; done

# What stands in $(BINARIES) already.
install-built: install-place
	install -d "$(DESTDIR)$(PREFIX)/sbin" "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/lib/sluice" \
	  "$(DESTDIR)$(UNITDIR)" "$(DESTDIR)$(SYSCONFDIR)/default" \
	  "$(DESTDIR)$(SYSCONFDIR)/logrotate.d" "$(DESTDIR)$(DOCDIR)/docs/report"
	install -m 755 "$(BINARIES)/sluiced" "$(DESTDIR)$(PREFIX)/sbin/sluiced"
	install -m 755 "$(BINARIES)/sluice" "$(DESTDIR)$(PREFIX)/bin/sluice"
	install -m 755 $(addprefix packaging/,$(HELPERS)) "$(DESTDIR)$(PREFIX)/lib/sluice"
	sed 's|@PREFIX@|$(PREFIX)|g; s|@SYSCONFDIR@|$(SYSCONFDIR)|g; s|@DOCDIR@|$(DOCDIR)|g' \
	  packaging/sluiced.service >"$(DESTDIR)$(UNITDIR)/sluiced.service"
	chmod 644 "$(DESTDIR)$(UNITDIR)/sluiced.service"
	[ -e "$(DESTDIR)$(SYSCONFDIR)/default/sluiced" ] || \
	  install -m 644 packaging/default "$(DESTDIR)$(SYSCONFDIR)/default/sluiced"
	[ -e "$(DESTDIR)$(SYSCONFDIR)/logrotate.d/sluice" ] || \
	  install -m 644 packaging/logrotate "$(DESTDIR)$(SYSCONFDIR)/logrotate.d/sluice"
	install -d "$(DESTDIR)$(PREFIX)/share/sluice/lab/bench" \
	  "$(DESTDIR)$(PREFIX)/share/sluice/lab/tests"
	for file in $(LAB); do mode=644; [ ! -x $$file ] || mode=755; \
	  install -m $$mode $$file "$(DESTDIR)$(PREFIX)/share/sluice/lab/$$file" || exit; done
	install -m 644 $(DOCUMENTS) "$(DESTDIR)$(DOCDIR)"
	install -m 644 $(PAGES) "$(DESTDIR)$(DOCDIR)/docs"
	install -m 644 $(REPORT) "$(DESTDIR)$(DOCDIR)/docs/report"
	packaging/documents "$(BINARIES)" "$(DESTDIR)$(PREFIX)/share/man" \
	  "$(DESTDIR)$(PREFIX)/share/bash-completion/completions"

# What /etc has may have been changed, and stays. Nothing is removed but by its name: DOCDIR may be
# everybody's. An enabled unit would leave its second name, ovs-vswitchd.service, which would hide
# Open vSwitch's own unit.
uninstall: install-place
	[ -n "$(DESTDIR)" ] || ! command -v systemctl >/dev/null || \
	  [ ! -e "$(UNITDIR)/sluiced.service" ] || systemctl --quiet disable sluiced.service || true
	rm -f "$(DESTDIR)$(PREFIX)/sbin/sluiced" "$(DESTDIR)$(PREFIX)/bin/sluice" \
	  "$(DESTDIR)$(UNITDIR)/sluiced.service"
	rm -f "$(DESTDIR)$(PREFIX)/share/man/man1/sluice.1" \
	  "$(DESTDIR)$(PREFIX)/share/man/man1"/sluice-*.1 "$(DESTDIR)$(PREFIX)/share/man/man8/sluiced.8"
	rm -f "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice" \
	  "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluiced"
	for name in $(HELPERS); do rm -f "$(DESTDIR)$(PREFIX)/lib/sluice/$$name"; done
	for name in $(LAB); do rm -f "$(DESTDIR)$(PREFIX)/share/sluice/lab/$$name"; done
	for name in $(DOCUMENTS) $(PAGES) $(REPORT); do rm -f "$(DESTDIR)$(DOCDIR)/$$name"; done
	for directory in "$(DESTDIR)$(PREFIX)/lib/sluice" \
	  "$(DESTDIR)$(PREFIX)/share/sluice/lab/bench" "$(DESTDIR)$(PREFIX)/share/sluice/lab/tests" \
	  "$(DESTDIR)$(PREFIX)/share/sluice/lab" "$(DESTDIR)$(PREFIX)/share/sluice" \
	  "$(DESTDIR)$(DOCDIR)/docs/report" "$(DESTDIR)$(DOCDIR)/docs" \
	  "$(DESTDIR)$(DOCDIR)"; do \
	  [ ! -d "$$directory" ] || rmdir --ignore-fail-on-non-empty "$$directory"; done
	@if [ -z "$(DESTDIR)" ] && command -v systemctl >/dev/null && \
	  systemctl --quiet is-active sluiced.service; then \
	  echo "make: sluiced still runs; to end it: systemctl stop sluiced" >&2; fi

# As for the end-to-end tests: without the example, which has other dependencies, cargo would choose
# other features of crates, and make test would compile everything twice.
deb:
	@scripts/setup build
	@scripts/step build cargo build --release --locked --bins --example subject
	@scripts/step deb packaging/deb $(BINARIES) .build/deb
	@ls -1 .build/deb/*.deb

deb-check: deb
	@scripts/setup
	@scripts/step debian-root scripts/debian-root .build/deb/sluice_*.deb
	@SWITCHD="$(TARGET)/release/sluiced" tests/run packaging.

container-check: deb
	@scripts/setup containers
	@scripts/step debian-root scripts/debian-root .build/deb/sluice_*.deb
	@SWITCHD="$(TARGET)/release/sluiced" tests/run container.

clean:
	cargo clean
	rm -rf .build
