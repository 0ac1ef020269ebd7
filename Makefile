# The whole workflow. `make demo` and `make test` need nothing but this checkout: they call `venv` first.
.DEFAULT_GOAL := help
.PHONY: help venv services services-stop test test-all lint api-reference wheel demo verify prove mutate matrix bench-state bench-growth bench-checksums bench-dedup bench-windows bench-join bench-edges bench-policies bench-recovery bench-snapshots bench-tracker clean

BIN := .venv/bin
READY := .venv/.ready
ARCHIVE := .venv/spark.jsa

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

# Made again when the pinned versions or the package's description change; otherwise there is nothing to do.
$(READY): pyproject.toml constraints.txt scripts/setup
	@scripts/setup

# Tests start many JVMs; with this, each starts in half the time.
$(ARCHIVE): $(READY) scripts/class_archive
	@$(BIN)/python scripts/class_archive 2>/dev/null || echo "no class archive: tests take longer" >&2

venv: $(READY) ## make .venv with the pinned versions, and check for Java 17+

lint: $(READY) ## ruff, mypy and import-linter
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

api-reference: $(READY) ## write docs/API.md from the docstrings (a test says when it is stale)
	@$(BIN)/python scripts/api_reference

wheel: $(READY) ## build dist/holdfast-VERSION-py3-none-any.whl from what is committed
	@scripts/wheel

services: $(READY) ## start PostgreSQL and Kafka for tests, and say how to reach them
	@$(BIN)/python scripts/services start
	@$(BIN)/python scripts/services env

services-stop: $(READY) ## stop them; their data stays
	@$(BIN)/python scripts/services stop

# Where a server cannot be had, its tests are skipped, or fail if CI=true.
# pytest comes last, so that the run ends with its summary.
test: lint $(ARCHIVE) ## everything except the slow tests
	@$(BIN)/python scripts/services start || true
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder --durations=40 --durations-min=5

test-all: lint $(ARCHIVE) ## everything
	@$(BIN)/python scripts/services start || true
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=40 --durations-min=5

demo: $(READY) ## run the example flow, kill it, run it again, compare
	@$(BIN)/python examples/demo.py

verify: $(READY) ## kill the example flow, its standbys and its supervisor at every point, under every policy (JSON=FILE, HTML=FILE write reports)
	@$(BIN)/holdfast verify examples/orders.py --policies all --standbys 1 --faults kill,worker,zombie,standby,supervisor,both \
		$(if $(JSON),--json $(JSON)) $(if $(HTML),--html $(HTML))

prove: $(READY) ## is every planted bug found, and nothing that is right accused? (half an hour)
	@PYTHONPATH=tests $(BIN)/python -m prove.prove

mutate: $(READY) ## which small bugs does no fast test find? (PARTS="protocols ledger"; hours for all of them)
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[mutation]'
	@$(BIN)/python scripts/mutate $(PARTS)

matrix: $(READY) ## who is ill is replaced, who is starved is not: every load with every fault on a real flow (an hour)
	@PYTHONPATH=tests $(BIN)/python tests/detection_matrix.py

bench-state: $(READY) ## running aggregate against Spark's own state stores (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench state $(if $(JSON),--json $(JSON))

bench-growth: $(READY) ## cost of an epoch as the state grows (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench growth $(if $(JSON),--json $(JSON))

bench-checksums: $(READY) ## the two above with checksums and without (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench checksums $(if $(JSON),--json $(JSON))

bench-dedup: $(READY) ## dropping duplicates against Spark's own ways (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench dedup $(if $(JSON),--json $(JSON))

bench-windows: $(READY) ## windowed aggregates against Spark's own (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench windows $(if $(JSON),--json $(JSON))

bench-join: $(READY) ## an interval join of two streams against Spark's own (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench join $(if $(JSON),--json $(JSON))

bench-edges: $(READY) ## sinks against Spark's own ways to write there (JSON=FILE writes the figures)
	@$(BIN)/python scripts/services start
	@eval "$$($(BIN)/python scripts/services env)" && \
		HOLDFAST_JDBC_JAR="$$($(BIN)/python scripts/services jdbc)" $(BIN)/holdfast bench edges $(if $(JSON),--json $(JSON))

bench-policies: $(READY) ## what every recovery policy costs, relative to gap (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench policies $(if $(JSON),--json $(JSON))

bench-recovery: $(READY) ## kill -9 at full load under every policy, and Spark (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench recovery $(if $(JSON),--json $(JSON))

bench-snapshots: $(READY) ## what snapshots cost, by mode, with epochs queued and with states up to 1 GB (JSON=FILE writes the figures)
	@$(BIN)/holdfast bench snapshots $(if $(JSON),--json $(JSON))

bench-tracker: $(READY) ## traffic of punctuations and of the XOR tracker by nodes (JSON=FILE, SVG=FILE write figures and plot)
	@$(BIN)/holdfast bench tracker $(if $(JSON),--json $(JSON)) $(if $(SVG),--svg $(SVG))

clean: ## remove what the tools left behind, but not .venv and .services
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist demo-work spark-warehouse
	@find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
