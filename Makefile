# Percheron.  `make serve` sets up, builds and serves the embedded model; `make test` sets up, builds
# and tests.  Presets for everything else: cmake --list-presets.
BUILD := build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
# Files of a room are compiled six at a time: from nothing that takes half as long.  Whoever changes
# files every minute, or shares a compiler cache between trees, configures by the preset alone.
JOINED := -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=6

.PHONY: setup build serve test test-slow lint install clean gpu-kit bench-batch bench-draft bench-resend bench-restore bench-server

setup:
	@scripts/setup

build: setup
	@cmake --preset release $(JOINED) >/dev/null
	@cmake --build --preset release -j $(JOBS) --target percheron

serve: build
	@$(BUILD)/percheron serve

test:
	@scripts/setup --tests
	@cmake --preset release $(JOINED) >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@cd $(BUILD) && ctest --output-on-failure -j $(JOBS)

# Sanitizers, fuzzing, speed, whole task accuracy, a bare Debian root: see the head of the script.
test-slow: setup
	@scripts/test-slow

# What a GPU machine with nothing installed needs to check and time the kernels: build/gpu-kit.
gpu-kit:
	@cmake --preset kernels >/dev/null
	@cmake --build --preset kernels -j $(JOBS) --target kernel_test kernel_bench step_bench \
		prefill_bench kda_peer
	@scripts/gpu-kit build-kernels $(BUILD)/gpu-kit

# What batching gains: eight streams over one.
bench-batch: build
	@scripts/bench-batch

# What drafting gains, and whether auto finds it: a grid of streams, texts and temperatures.
bench-draft: build
	@scripts/bench-draft

# What the prefix cache gains: a prompt of 64K tokens sent again.
bench-resend: build
	@build/percheron bench resend

# What its files gain: a prompt of 16K tokens sent after a restart.
bench-restore: build
	@build/percheron bench restore

bench-server: build
	@scripts/bench-server

lint:
	@scripts/lint

# The program and its embedded model, under PREFIX.
install: build
	@cmake --install $(BUILD) --prefix $(PREFIX) --strip

clean:
	@rm -rf $(BUILD) build-*
