# A thin front for the CMake presets: what each goal needs, it installs or names (scripts/setup.sh).
#
#   make test           builds and runs all tests; the counts are at the end
#   make report         builds, verifies, measures, writes the report and prints its table
#   make conform LIBRARY=path [JUDGE="device=cuda ..."]   judges any library of this ABI
#   make sanitize       the tests under ASan and UBSan, and task slices under TSan
#   make coverage       line coverage of the library's C files; fails below 95 %
#   make format         clang-format in place; format-check only looks
MAKEFLAGS += --no-print-directory
PRESET ?= release
LIBRARY ?= $(BUILD)/libfa_fwd_causal_shared.so
BUILD = build/$(PRESET)
# The Python of the build folder, for scripts and for CMake alike.
export VIRTUAL_ENV = $(CURDIR)/build/venv
export PATH := $(VIRTUAL_ENV)/bin:$(PATH)

SOURCE_ROOMS = include kernels reference tests bench examples
SOURCES = find $(SOURCE_ROOMS) '(' -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' ')' -print

.PHONY: all setup test conform report sanitize coverage format format-check clean

all: setup
	cmake --preset $(PRESET) -DPython3_EXECUTABLE=$(VIRTUAL_ENV)/bin/python
	cmake --build --preset $(PRESET) --parallel $(shell nproc)

setup:
	scripts/setup.sh

test: all
	scripts/run_tests.sh $(BUILD)

conform: all
	mkdir -p build/conform
	$(BUILD)/tests/fa_conform $(LIBRARY) out=build/conform/conform $(JUDGE)

report: all
	scripts/run_tests.sh $(BUILD) --label-exclude vendor
	cmake --build --preset $(PRESET) --target report

sanitize: setup
	scripts/sanitize.sh

coverage: setup
	scripts/coverage.sh

format:
	$(SOURCES) | xargs clang-format -i

format-check:
	$(SOURCES) | xargs clang-format --dry-run -Werror

clean:
	rm -rf build
