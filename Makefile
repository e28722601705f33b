# The front door. Each target is a few lines: the work is in setup.sh, meson and tests/run.
B ?= build
MUSTER = $(B)/muster
FIRST = runs/first
FUZZ_SECONDS ?= 60

help:
	@echo "make run      set up, build, train a small network, then start the server with a job"
	@echo "make setup    install what is missing, fetch the data of the examples"
	@echo "make build    build $(MUSTER) and the library"
	@echo "make test     the whole suite: gcc, clang, sanitizers, the real clients"
	@echo "make bench    each goal as a command, beside its peers (builds a large Python environment)"
	@echo "make fuzz     fuzz every parser for FUZZ_SECONDS=$(FUZZ_SECONDS) each"
	@echo "make fmt      format the lines of C changed since the last commit"
	@echo "make install  program, library, header (PREFIX=/usr/local, DESTDIR=)"

setup:
	@./setup.sh

$(B)/build.ninja:
	@meson setup $(B) $(if $(PREFIX),--prefix $(PREFIX)) >/dev/null

build: $(B)/build.ninja
	@ninja -C $(B) --quiet

run: setup $(B)/build.ninja
	@ninja -C $(B) --quiet muster
	@rm -rf $(FIRST)
	@$(MUSTER) train examples/fashion-lenet/train.yaml --out $(FIRST)
	@$(MUSTER) evaluate $(FIRST)
	@echo
	@if $(MUSTER) serve --detach; then \
		$(MUSTER) submit examples/fashion-lenet/train.yaml --workers 1..2 \
			--set resources.cpu=0.5 --set epochs=20; \
	fi
	@echo
	@echo "The model is in $(FIRST). To try next:"
	@echo "  $(MUSTER) train examples/taxi-tabular/train.yaml          another kind of data"
	@echo "  $(MUSTER) export $(FIRST) --format onnx -o lenet.onnx     take the model elsewhere"
	@echo "  $(MUSTER) verify $(FIRST)                                 train again: the same bits?"
	@echo "  $(MUSTER) serve --stop                                    end the server; jobs go on"
	@echo "  $(MUSTER) help                                            what else there is"

test:
	@./setup.sh test
	@tests/run

bench: setup build
	@bench/run

fuzz:
	@./setup.sh test
	@tests/fuzz/run $(FUZZ_SECONDS)

fmt:
	@git clang-format --quiet HEAD

install: build
	@meson install -C $(B) --no-rebuild

.PHONY: help setup build run test bench fuzz fmt install
