# Everything a developer runs. `make demo` and `make test` set up what they need by themselves; the machine needs
# Linux, Python 3.11 or newer with venv, gcc and make, and root for the parts with a real Kubernetes node.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
UV_VERSION := 0.13.9

# The same folder as hack/localcluster/common.py finds: XDG_CACHE_HOME, HOME and the system's list of users in turn.
absolute = $(if $(filter /%,$(firstword $(1))),$(1))
HOME_FOLDER := $(or $(call absolute,$(HOME)),$(shell getent passwd "$$(id -u)" | cut -d: -f6))
CACHE_HOME := $(or $(call absolute,$(XDG_CACHE_HOME)),$(if $(HOME_FOLDER),$(HOME_FOLDER)/.cache))
ifeq ($(CACHE_HOME),)
  $(error you have no home directory: set XDG_CACHE_HOME to an absolute path)
endif
ifneq ($(words $(CACHE_HOME)),1)
  $(error the cache folder $(CACHE_HOME) has a space in its name, which make cannot work with: set XDG_CACHE_HOME to another one)
endif
CACHE := $(CACHE_HOME)/dradriver
UV := $(CACHE)/uv-$(UV_VERSION)/bin/uv
VENV := .venv
export UV_PYTHON_DOWNLOADS := never
# The authorities this machine trusts, which behind a company's proxy are more than uv brings along.
export UV_SYSTEM_CERTS := true
export UV_PROJECT_ENVIRONMENT := $(VENV)

UNIT := -n 2 -m 'not node and not control_plane'
OTHER_PYTHONS := 3.12 3.13 3.14

.PHONY: help setup demo demo-down test test-unit test-clusters test-versions test-pythons lint format proto bench clean

help: ## Say what can be done
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(VENV)/.synced ## Install the tools and the package into .venv

demo: setup ## Boot a real Kubernetes node and run pods on eight simulated GPUs
	@$(VENV)/bin/python hack/demo

demo-down: setup ## End the demo's cluster
	@$(VENV)/bin/python hack/demo --down

test: test-unit test-clusters ## Run all tests, those on a real Kubernetes node included
	@$(MAKE) --no-print-directory test-pythons

# Each of the two mostly waits, so they run side by side, each on a cluster of its own; the second one's output comes at
# the end. They are built one after the other, before any test.
test-clusters: setup ## Run the tests on a real Kubernetes node, and those on a real API server
	@hack/cluster build
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(VENV)/bin/pytest -m 'control_plane and not node' >"$$log" 2>&1 & \
	others=$$!; failed=0; \
	$(VENV)/bin/pytest -m node || failed=$$?; \
	wait $$others || failed=$$?; \
	cat "$$log"; exit $$failed

test-unit: setup ## Run the tests that need neither root nor a cluster
	$(VENV)/bin/pytest $(UNIT)

test-versions: setup ## Run what depends on the version of Kubernetes against 1.34 and 1.36, which are built first
	$(VENV)/bin/pytest -m other_kubernetes tests/control_plane tests/node

test-pythons: setup ## Run the unit tests on every newer Python this machine has
	@for version in $(OTHER_PYTHONS); do \
	  python=$$($(UV) python find --no-project $$version 2>/dev/null) || { echo "Python $$version is not here: not tested"; continue; }; \
	  echo "== unit tests on $$($$python --version)"; \
	  UV_PROJECT_ENVIRONMENT=$(VENV)-$$version $(UV) sync --locked --quiet --compile-bytecode --python $$version; \
	  $(VENV)-$$version/bin/pytest -q $(UNIT); \
	done

lint: setup ## Check style, types, structure and generated code
	$(UV) lock --check --quiet
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/python hack/proto --check

format: setup ## Put the code into the project's form
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

proto: setup ## Generate dradriver/proto from proto/
	$(VENV)/bin/python hack/proto

bench: setup ## Measure and print; asserts nothing
	PYTHONPATH=tests $(VENV)/bin/python -m bench

clean: ## Remove what was made in this folder; the cache of built programs stays
	rm -rf $(VENV) $(VENV)-3.* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist

$(VENV)/.synced: pyproject.toml uv.lock $(UV)
	@echo "installing the Python packages of the project"
	@# By its version: given a path, uv makes $(VENV) anew each time, and leaves none when it cannot fetch packages.
	@$(UV) sync --locked --quiet --compile-bytecode --python "$$($(PYTHON) -c 'import platform; print(platform.python_version())')"
	@touch $@

$(UV):
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer with venv is needed: install python3-venv" >&2; exit 1; }
	@echo "installing uv $(UV_VERSION), once"
	@$(PYTHON) -m venv $(CACHE)/uv-$(UV_VERSION)
	@$(CACHE)/uv-$(UV_VERSION)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
