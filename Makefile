# make demo: the main job on a real Hadoop.  make test: everything that is checked.
VENV := .venv
PY := $(VENV)/bin/python
MVN := mvn -B -q
PYTHON ?= python3.11

.PHONY: demo demo-cells demo-oef test lint unit cluster-test policy-test java java-test bench setup clean tools

demo: setup java
	dev-cluster/demo/run

demo-cells: setup java
	$(PY) dev-cluster/demo/cells.py

demo-oef: setup java
	$(PY) dev-cluster/demo/oef.py

test: setup lint java-test unit cluster-test

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml $(wildcard pycontrol/wire/v1/*.proto) $(wildcard pycontrol/auction/*.[ch])
	@command -v $(PYTHON) >/dev/null || command -v python3 >/dev/null || { echo "install Python 3.11"; exit 1; }
	test -x $(PY) || $$(command -v $(PYTHON) || command -v python3) -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check -e '.[worker,plots,optuna,dev]'
	@test -f pycontrol/auction/_solver.so || echo "no C compiler was found: HiGHS solves the auctions, more slowly"
	touch $@

tools:
	@command -v java >/dev/null || { echo "java is missing: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)"; exit 1; }
	@command -v mvn >/dev/null || { echo "mvn is missing: install Maven (Debian: apt-get install maven)"; exit 1; }

java: tools
	$(MVN) package -Dmaven.test.skip=true

java-test: tools
	$(MVN) package

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

unit: setup
	$(VENV)/bin/pytest -q -m "not cluster and not policies"

cluster-test: setup java
	$(VENV)/bin/pytest -q -m cluster

# Every policy and every app scheduler on a real cluster; about ten minutes, so apart.
policy-test: setup java
	$(VENV)/bin/pytest -q -m policies

bench: setup java
	$(PY) -m tests.bench

clean:
	rm -rf build $(VENV)
	$(MVN) clean
