# A thin front for the CMake presets (CMakePresets.json): each target is one or two commands that can be typed by hand.
# JOBS=n limits the compilers and tests that run at once (default: one per core).
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PROMPT ?= Why is the sky blue?

.DEFAULT_GOAL := help
.PHONY: help demo build check check-all asan tsan fuzz format tidy install clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## build, fetch the demo model (98 MB, once) and stream an answer: make demo PROMPT="..."
	@scripts/install-deps.sh demo
	@MERE=build/release/mere scripts/demo.sh "$(PROMPT)"

build: ## release build: build/release/mere
	@scripts/install-deps.sh build
	@cmake --preset release -DMERE_TESTS=OFF >/dev/null
	@cmake --build --preset release --parallel $(JOBS)

check: ## build and run the tests (at most 6 minutes on 2 cores)
	@scripts/install-deps.sh build test
	@cmake --preset dev >/dev/null
	@cmake --build --preset dev --parallel $(JOBS)
	@ctest --preset check --parallel $(JOBS)

check-all: ## every test there is: slow ones, real checkpoints, sanitizers, static analysis, fuzzers
	@.ci/run

asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/install-deps.sh build test
	@cmake --preset asan >/dev/null && cmake --build --preset asan --parallel $(JOBS) && ctest --preset asan --parallel $(JOBS)

tsan: ## the threaded tests under ThreadSanitizer
	@scripts/install-deps.sh build test
	@cmake --preset tsan >/dev/null && cmake --build --preset tsan --parallel $(JOBS) && ctest --preset tsan --parallel 1

fuzz: ## each fuzzer for a minute: make fuzz T=600 for ten
	@scripts/install-deps.sh build test ci
	@cmake --preset fuzz >/dev/null && cmake --build --preset fuzz --parallel $(JOBS) --target fuzzers && scripts/fuzz.sh build/fuzz $(or $(T),60) $(JOBS)

format: ## clang-format every C file
	@scripts/format.sh

tidy: ## clang-tidy on the C files last changed (on all: make tidy FILES=all)
	@scripts/install-deps.sh build test ci
	@cmake --preset dev >/dev/null && scripts/tidy.sh build/dev $(or $(FILES),changed) $(JOBS)

install: build ## install below PREFIX (default /usr/local)
	@cmake --install build/release $(if $(PREFIX),--prefix $(PREFIX))

clean: ## remove build/
	@cmake -E rm -rf build
