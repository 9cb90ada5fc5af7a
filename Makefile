# SPDX-License-Identifier: GPL-3.0-or-later
# `make help` lists the targets; everything runs from a bare clone and keeps what it installs outside of it.
export GPUOPS_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpuops
export PATH := $(CURDIR)/.ansible/venv/bin:$(PATH)
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/.ansible/collections
gate := @tests/tools/gate
# Of the unit tests: module_utils are pure, and loaded by the rest.
meets_core := tests/unit --ignore tests/unit/plugins/module_utils

help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install what the tests need (a second run takes a second)
	@tests/tools/setup.sh test

demo: ## two incidents from alert to release on simulated GPUs
	@tests/tools/setup.sh demo
	@.ansible/venv/bin/python tests/demo

test: setup ## every gate, cheap ones first; logs in tests/output
	@$(MAKE) --no-print-directory lint docs
	@$(MAKE) --no-print-directory -j2 --output-sync=target sanity units
	@$(MAKE) --no-print-directory -j2 --output-sync=target molecule simulator
	@$(MAKE) --no-print-directory integration

lint: setup ## ruff, mypy --strict, ansible-lint, changelog, alert rules
	$(gate) ruff ruff check
	$(gate) format ruff format --check
	$(gate) mypy mypy
	$(gate) ansible-lint ansible-lint --offline
	$(gate) changelog antsibull-changelog lint
	$(gate) rules sh -ec 'promtool check rules roles/monitoring/files/*.yml; promtool test rules tests/rules/*.yml'

docs: setup ## check the documentation of modules and roles
	$(gate) docs antsibull-docs lint-collection-docs --plugin-docs .

sanity: setup ## ansible-test sanity on every Python found
	$(gate) sanity tests/tools/sanity.sh

units: setup ## unit tests with coverage, then what meets ansible-core on the oldest and newest
	@pytest tests/unit --cov --cov-report= --cov-fail-under=0
	$(gate) coverage coverage report
	$(gate) units-oldest env PYTHONPATH=.ansible/oldest-core pytest $(meets_core)
	@[ ! -e .ansible/newest ] || tests/tools/gate units-newest .ansible/newest/bin/pytest $(meets_core)

molecule: setup ## the roles on a simulated node
	$(gate) molecule molecule test --all

simulator: setup ## the simulated GPU node against the unmodified NVML bindings
	@pytest tests/simulator

integration: setup ## playbooks and modules on simulated nodes and a real Kubernetes API
	@pytest tests/integration --numprocesses 3 --dist worksteal # each worker has a cluster of its own; on two cores a third works while others wait

bench: setup ## measurements
	@.ansible/venv/bin/python tests/benchmarks

crash-matrix: setup ## kill everything everywhere (hours; ARGS="--jobs 16" on more CPUs); ARGS="bare --who rulebook --repeats 1" for a part
	@.ansible/venv/bin/python tests/crash $(ARGS)

clean: ## remove what was built here; the cache outside the checkout stays
	rm -rf .ansible .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache tests/output

.PHONY: help setup demo test lint docs sanity units molecule simulator integration bench crash-matrix clean
