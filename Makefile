# The targets below set up what they need on a Debian 12 that has rustup's toolchain (tools/packages.sh).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# better-compute and all Rust tests share one profile and one set of features, so that no dependency is compiled twice.
OPERATOR := --profile operator --features control-plane
VENV := target/venv
REQUIREMENTS := tests/requirements.txt

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: ## a node joins a control plane on this machine, before your eyes
	@tools/packages.sh demo
	@tools/demo.sh

.PHONY: test
test: ## all tests: units, and end to end with the static binaries
	@tools/packages.sh test
	@tools/test.sh

.PHONY: static
static: ## the bcd that ships, for amd64 and arm64, into dist/
	@tools/packages.sh static
	@tools/static.sh

.PHONY: dist
dist: ## what a release hands out, in dist/: archives, Debian packages, checksums, bills of materials
	@tools/packages.sh static
	@tools/build.sh amd64 arm64
	@tools/dist.sh

.PHONY: ramdisk
ramdisk: ## the image a bare machine boots, dist/initrd-<ARCH>.img (ARCH=amd64)
	@tools/packages.sh ramdisk
	@tools/ramdisk.sh $(ARCH)

.PHONY: lint
lint: ## formatting, clippy, shellcheck, dependencies, floors
	@tools/packages.sh lint
	@tools/lint.sh

.PHONY: bench
bench: $(VENV)/ready ## measure what SPECIFICATION.md promises (ONLY="join journal", QUICK=1, WRITE=1 into the page)
	@tools/packages.sh bench
	@$(VENV)/bin/python benches/run.py $(ONLY:%=--only %) $(QUICK:%=--quick) $(WRITE:%=--write)

.PHONY: fuzz
fuzz: ## fuzz every parser with libFuzzer, FUZZ_SECONDS each (60)
	@tools/packages.sh fuzz
	@tools/fuzz.sh

.PHONY: fmt
fmt: ## format the sources
	@cargo fmt --all
	@cargo fmt --manifest-path fuzz/Cargo.toml

.PHONY: clean
clean: ## remove everything that was built
	@rm -rf target dist

# What the labs run on, and the inspecting proxy and the S3 server of two of them, which need other versions of the same.
$(VENV)/ready: $(REQUIREMENTS)
target/mitmproxy/ready: tests/proxy/requirements.txt
target/moto/ready: tests/downloads/requirements.txt
%/ready:
	@tools/packages.sh test
	@python3 -m venv $*
	@$*/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@
