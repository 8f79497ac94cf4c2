# make demo           train a small GPT on this repository's own text, about nine minutes on two cores with the build
# make test           the whole test suite (installs PoCL through apt where there is no OpenCL)
# make check          formatting, lints, layering, sizes; dependencies where cargo-deny is installed
# make deny           licences, known faults and double versions of dependencies, by cargo-deny (cargo install cargo-deny)
# make bench          matrix products, attention, ops and training, beside PyTorch where PEER=python names one that has it
# make sanitize       the op suite under Oclgrind: races and uninitialised memory
# make compile-check  every kernel variant, at most 24 sources of each (LIMIT), through clang for AMD and SPIR targets
# make intel          the op suite on Intel's CPU runtime
# make kills          ranks of runs under MPI killed at 20 moments each, minutes
# make step-times      the model of step time beside measured steps of 1, 2 and 4 ranks over slowed links, two minutes
# make collectives    sums of vectors of more than 2^31 bytes, threads and both MPIs, 14 GB of memory
# make large          tensors of more than 2^31 elements on Intel's CPU runtime and the simulated GPU, five minutes and 24 GB of
#                     memory (NETCL_TEST_DEVICE and cargo test -p netcl-tensor --test large -- --ignored for another device)
# make sim            every op and storage type, with every variant and tuned value, on the simulated GPU with all its checks
# make mnist          a classifier of MNIST where its files are at hand, and its accuracy, a minute on two cores
# make candidates     the same with every combination of tuned values, on the test device and the simulated GPU, half an hour and more
# make sim-speed      the simulated GPU beside Oclgrind 21.10 on the same kernels (apt-get install oclgrind)
# make differential   10,000 random kernels on the simulated GPU, PoCL and Intel's CPU runtime
# make fuzz           broken programs for the simulated GPU's compiler, and damaged files for each reader of models, SECONDS for each (an hour)
# make peers          files that are written here, in llama.cpp and in pip's gguf (NETCL_PYTHON names a Python that has them)
# make python         the Python wheel, built and tested in clean environments (PYTHONS="python3.9 python3.13" names the interpreters)
# make array-api    array-api-tests on netcl.array_api: ARRAY_API_TESTS names a checkout of them, NETCL_PYTHON a Python that has netcl
# make mutants        fifty defects planted in the kernels, ten of them in variants and tuned values that are not the default,
#                     and how many of them are found
# make book           the documents as a website in the folder book, by mdBook (cargo install mdbook --locked)
# make aethercl       AetherCL as an OpenCL driver: library, loader's file and the program that runs others on it, in target/aethercl
# make capi           libnetcl for C: headers, libraries, pkg-config file and CMake package in target/capi; its programs, also under valgrind
#                     and from Python where those are (NETCL_PYTHON names a Python that has NumPy)
# make serve-check    `netcl serve` asked by openai, ollama, litellm, instructor and headless Chromium (pip installs them in target; CHROMIUM
#                     names a browser, without it playwright fetches one; MODEL a model with a chat template)
# make drawings       the drawings of ARCHITECTURE.md from docs/drawings/*.dot, by Graphviz (apt-get install graphviz)

PEER ?= auto
SECONDS ?= 3600
CARGO ?= cargo
NETCL = target/release/netcl

.PHONY: drawings serve-check kills step-times collectives demo test check deny bench sanitize compile-check intel large sim mnist candidates sim-speed differential fuzz peers mutants python array-api capi aethercl trees build book

demo: build
	tools/opencl.sh $(NETCL)
	$(NETCL) train --preset demo

build:
	$(CARGO) build --locked --release --package netcl-cli

test:
	tools/opencl.sh
	@if $(CARGO) nextest --version >/dev/null 2>&1; \
	  then $(CARGO) nextest run --locked --workspace --no-fail-fast; \
	  else $(CARGO) test --locked --workspace --no-fail-fast --lib --bins --tests --examples; fi
	$(CARGO) test --locked --workspace --doc

check:
	git ls-files -z "*.rs" | xargs -0 rustfmt --edition 2024 --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) test --locked --workspace --test layering --test docs --test language
	$(CARGO) check --locked --package netcl --no-default-features
	$(CARGO) test --locked --package netcl-device --no-default-features --lib
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(MAKE) --no-print-directory deny; \
	  else echo "make deny: skipped, cargo-deny is not installed (cargo install cargo-deny --locked)"; fi

drawings:
	@dot -V >/dev/null 2>&1 || { echo "make drawings: Graphviz is not installed (apt-get install graphviz)"; exit 1; }
	for source in docs/drawings/*.dot; do dot -Tsvg $$source -o $${source%.dot}.svg || exit 1; done

book:
	@if mdbook --version >/dev/null 2>&1; then mdbook build; \
	  else echo "make book: mdBook is not installed; run cargo install mdbook --locked"; exit 1; fi

deny:
	$(CARGO) deny --all-features --locked check

bench: build
	$(NETCL) bench gemm --peer $(PEER)
	$(NETCL) bench attention --peer $(PEER)
	$(NETCL) bench ops --peer $(PEER)
	$(NETCL) bench train --peer $(PEER)
	$(NETCL) bench generate --peer $(PEER)

sanitize:
	tools/sanitize.sh

compile-check:
	tools/compile_check.sh

intel:
	tools/intel.sh $(CARGO) nextest run --locked --package netcl-tensor --package netcl-model --package netcl-train

large:
	CL_CONFIG_CPU_FORCE_GLOBAL_MEM_SIZE=20GB CL_CONFIG_CPU_FORCE_MAX_MEM_ALLOC_SIZE=8GB tools/intel.sh \
		$(CARGO) test --locked --package netcl-tensor --test large -- --ignored --nocapture
	NETCL_SIM_MEMORY=19500000000 NETCL_TEST_DEVICE=sim:h200 $(CARGO) test --locked --package netcl-tensor --test large -- --ignored --nocapture

kills:
	$(CARGO) test --locked --package netcl-cli --test program mpi_faults -- --ignored --nocapture

step-times:
	$(CARGO) test --locked --package netcl --test engine parallel -- --ignored --nocapture

collectives: build
	$(CARGO) test --locked --release --package netcl-dist --test collectives -- --ignored --nocapture
	for launcher in mpirun.openmpi mpirun.mpich; do \
	  $$launcher -n 2 $(NETCL) doctor --mpi --in-a-row 10000 --vector 4294967316 || exit 1; done

sim:
	NETCL_TEST_DEVICE=sim NETCL_SIM_CHECK=all $(CARGO) test --locked --package netcl-tensor --package netcl-model --package netcl-train --lib --tests

mnist:
	$(CARGO) test --locked --release --package netcl-cli --test program images -- --ignored --nocapture

candidates:
	$(CARGO) test --locked --package netcl-tensor --test variants -- --ignored --nocapture

sim-speed:
	$(CARGO) run --locked --release --package aethercl --example speed -- peer

differential:
	NETCL_DIFFERENTIAL=10000 $(CARGO) test --locked --release --package netcl-device --test differential -- --nocapture
	NETCL_DIFFERENTIAL=10000 tools/intel.sh $(CARGO) test --locked --release --package netcl-device --test differential -- --nocapture

# 5000 random trees as generated kernels, on PoCL (half each in two processes), Intel's runtime (one process after the other, because it keeps
# memory of every program) and the simulated GPU.
TREES = NETCL_TEST_TREES=2502 $(CARGO) test --locked --release --package netcl-tensor --lib five_thousand -- --ignored --nocapture
trees:
	$(CARGO) test --locked --release --package netcl-tensor --lib --no-run
	NETCL_TEST_SEED=209 $(TREES) & NETCL_TEST_SEED=0 $(TREES) && wait $$!
	NETCL_TEST_DEVICE=sim $(CARGO) test --locked --release --package netcl-tensor --lib five_thousand -- --ignored --nocapture
	for seed in 0 42 84 126 168 210 252 294 336 378; do \
	  NETCL_TEST_TREES=504 NETCL_TEST_SEED=$$seed tools/intel.sh $(CARGO) test --locked --release --package netcl-tensor --lib five_thousand -- --ignored --nocapture \
	    || exit 1; done

fuzz:
	AETHERCL_FUZZ_SECONDS=$(SECONDS) $(CARGO) test --locked --release --package aethercl --test fuzz -- --ignored --nocapture
	$(CARGO) test --locked --release --package netcl --test fuzz --no-run
	ulimit -v 6000000; NETCL_FUZZ_SECONDS=$(SECONDS) $(CARGO) test --locked --release --package netcl --test fuzz -- --ignored --nocapture damaged_files_for_a_while

peers:
	$(CARGO) test --locked --package netcl-llm --lib -- --nocapture peer_tests the_python_package

serve-check: build
	CHROMIUM="$(CHROMIUM)" tools/serve_check.sh $(NETCL) $(MODEL)

# The page of `aethercl run --html` in a browser (pip install playwright).
report-check: aethercl
	python3 tools/sim_report_check.py --aethercl target/aethercl/aethercl $(if $(CHROMIUM),--chromium $(CHROMIUM))

python:
	tools/python.sh $(PYTHONS)

array-api:
	tools/array_api.sh

mutants:
	$(CARGO) test --locked --package netcl-tensor --test mutants -- --nocapture

aethercl:
	$(CARGO) build --locked --release --package aethercl-icd
	mkdir -p target/aethercl
	cp target/release/libaethercl_icd.so target/aethercl/libaethercl.so
	cp target/release/aethercl target/aethercl/aethercl
	echo "$(CURDIR)/target/aethercl/libaethercl.so" > target/aethercl/aethercl.icd

capi:
	tools/capi.sh
