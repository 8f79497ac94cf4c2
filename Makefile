# make demo           Train a small GPT on this repository's own text: about nine minutes on two cores, including the build.
# make test           Run the whole test suite; install PoCL with apt if no OpenCL device exists.
# make check          Check formatting, lints, layering, sizes and documents; check dependencies if cargo-deny is installed.
# make deny           Check dependencies with cargo-deny: licenses, advisories, duplicate versions (cargo install cargo-deny).
# make bench          Time matrix products, attention, operations and training. PEER=python compares with PyTorch in that Python.
# make sanitize       Run the operation suite under Oclgrind, which finds races and uninitialized memory.
# make compile-check  Compile every kernel variant with clang for AMD and SPIR targets, at most LIMIT sources of each (24).
# make intel          Run the operation suite on Intel's CPU runtime.
# make kills          Kill ranks of MPI runs at 20 moments each; takes minutes.
# make step-times     Compare the model of step time with steps of 1, 2 and 4 ranks over slow links; takes two minutes.
# make collectives    Sum vectors of more than 2^31 bytes between threads and with both MPIs; needs 14 GB of memory.
# make large          Test tensors of more than 2^31 elements on Intel's CPU runtime and the simulated GPU: five minutes, 24 GB of memory.
#                     Another device: NETCL_TEST_DEVICE=... cargo test -p netcl-tensor --test large -- --ignored
# make sim            Test every operation, storage type, variant and tuned value on the simulated GPU with all checks.
# make mnist          Train a classifier on MNIST, if its files are available, and print its accuracy; takes a minute on two cores.
# make candidates     Test every combination of tuned values on the test device and the simulated GPU; takes half an hour or more.
# make sim-speed      Compare the speed of the simulated GPU with Oclgrind 21.10 on the same kernels (apt-get install oclgrind).
# make differential   Compare 10,000 random kernels on the simulated GPU, PoCL and Intel's CPU runtime.
# make trees          Compare 5,000 random expression trees with the interpreter on PoCL, the simulated GPU and Intel's CPU runtime.
# make fuzz           Test the simulated GPU's compiler with broken programs, and each model reader with damaged files: SECONDS each (3600).
# make peers          Read files that netcl writes with llama.cpp and with pip's gguf (NETCL_PYTHON names a Python that has them).
# make python         Build the Python wheel and test it in clean environments (PYTHONS="python3.9 python3.13" names the interpreters).
# make array-api      Run array-api-tests on netcl.array_api (ARRAY_API_TESTS names their folder, NETCL_PYTHON a Python with netcl).
# make mutants        Plant fifty defects in kernels, ten of them in variants and tuned values that are not the default, and count those found.
# make book           Build the documents as a website in the folder book with mdBook (cargo install mdbook --locked).
# make aethercl       Build AetherCL as an OpenCL driver in target/aethercl: library, ICD file, and the program that runs others on it.
# make capi           Build libnetcl for C in target/capi: headers, libraries, pkg-config file, CMake package. Run its programs, also with
#                     valgrind and from Python if these are installed (NETCL_PYTHON names a Python that has NumPy).
# make serve-check    Test `netcl serve` with openai, ollama, litellm, instructor and headless Chromium, which pip installs in target. CHROMIUM
#                     names a browser [default: the one that playwright downloads], MODEL a model with a chat template.
# make report-check   Open the page of `aethercl run --html` in headless Chromium. CHROMIUM names a browser [default: the one on the path].
# make drawings       Render the drawings in docs/drawings/*.dot with Graphviz (apt-get install graphviz).

PEER ?= auto
SECONDS ?= 3600
CARGO ?= cargo
NETCL ?= target/release/netcl

.PHONY: drawings serve-check kills step-times collectives demo test check deny bench sanitize compile-check intel large sim mnist candidates sim-speed differential fuzz peers mutants python array-api capi aethercl trees build book

demo: build
	tools/opencl.sh $(NETCL)
	$(NETCL) train --preset demo

build:
	$(CARGO) build --locked --release --package netcl-cli

# Kernels of tests run for milliseconds, so most of them are built without optimizations. Tests that need users' builds open `suite::optimized`.
test: export NETCL_QUICK_BUILDS = 1
test:
	tools/opencl.sh
	@if $(CARGO) nextest --version >/dev/null 2>&1; \
	  then tools/grouped.sh $(CARGO) nextest run --locked --workspace --no-fail-fast; \
	  else $(CARGO) test --locked --workspace --no-fail-fast --lib --bins --tests --examples; fi
	$(CARGO) test --locked --workspace --doc

check:
	git ls-files -z "*.rs" | xargs -0 rustfmt --edition 2024 --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) test --locked --workspace --test layering --test docs --test language --test seeds
	$(CARGO) check --locked --package netcl --no-default-features
	$(CARGO) test --locked --package netcl-device --no-default-features --lib
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(MAKE) --no-print-directory deny; \
	  else echo "make deny: skipped, cargo-deny is not installed (cargo install cargo-deny --locked)"; fi

drawings:
	@dot -V >/dev/null 2>&1 || { echo "make drawings: Graphviz is not installed (apt-get install graphviz)"; exit 1; }
	for source in docs/drawings/*.dot; do dot -Tsvg $$source -o $${source%.dot}.svg || exit 1; done
	dot -Tpng -Gdpi=110 -Gbgcolor=white docs/drawings/aethercl_architecture.dot -o docs/aethercl_architecture.png
	python3 tools/animate_drawing.py docs/drawings/aethercl_architecture.svg docs/aethercl_architecture_animated.svg

book:
	@if mdbook --version >/dev/null 2>&1; then mdbook build; \
	  else echo "make book: mdBook is not installed; run cargo install mdbook --locked"; exit 1; fi

deny:
	@$(CARGO) deny --version >/dev/null 2>&1 || { echo "make deny: cargo-deny is not installed (cargo install cargo-deny --locked)"; exit 1; }
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
	@if $(CARGO) nextest --version >/dev/null 2>&1; \
	  then tools/intel.sh $(CARGO) nextest run --locked --no-fail-fast --package netcl-tensor --package netcl-model --package netcl-train; \
	  else tools/intel.sh $(CARGO) test --locked --no-fail-fast --package netcl-tensor --package netcl-model --package netcl-train --lib --tests; fi

large:
	CL_CONFIG_CPU_FORCE_GLOBAL_MEM_SIZE=20GB CL_CONFIG_CPU_FORCE_MAX_MEM_ALLOC_SIZE=8GB tools/intel.sh \
		$(CARGO) test --locked --package netcl-tensor --test large -- --ignored --nocapture
	NETCL_SIM_MEMORY=19500000000 NETCL_TEST_DEVICE=sim:h200 $(CARGO) test --locked --package netcl-tensor --test large -- --ignored --nocapture

kills:
	$(CARGO) test --locked --package netcl-cli --test program mpi_faults -- --ignored --nocapture

step-times:
	$(CARGO) test --locked --package netcl --test engine parallel -- --ignored --nocapture

collectives: build
	@for launcher in mpirun.openmpi mpirun.mpich; do command -v $$launcher >/dev/null || \
	  { echo "make collectives: $$launcher is not installed (apt-get install openmpi-bin mpich)"; exit 1; }; done
	$(CARGO) test --locked --release --package netcl-dist --test collectives -- --ignored --nocapture
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; for launcher in mpirun.openmpi mpirun.mpich; do \
	  $$launcher -n 2 $(NETCL) doctor --mpi --in-a-row 10000 --vector 4294967316 || exit 1; done

sim:
	NETCL_TEST_DEVICE=sim NETCL_SIM_CHECK=all $(CARGO) test --locked --package netcl-tensor --package netcl-model --package netcl-train --lib --tests

mnist:
	$(CARGO) test --locked --release --package netcl-cli --test program images -- --ignored --nocapture

candidates:
	$(CARGO) test --locked --package netcl-tensor --test variants -- --ignored --nocapture

sim-speed:
	@command -v oclgrind-kernel >/dev/null || { echo "make sim-speed: Oclgrind is not installed (apt-get install oclgrind)"; exit 1; }
	$(CARGO) run --locked --release --package aethercl --example speed -- peer

differential:
	NETCL_DIFFERENTIAL=10000 $(CARGO) test --locked --release --package netcl-device --test differential -- --nocapture
	NETCL_DIFFERENTIAL=10000 tools/intel.sh $(CARGO) test --locked --release --package netcl-device --test differential -- --nocapture

# Generates kernels from 5,000 random trees. Two processes share them on PoCL. On Intel's runtime processes run one after the other, because that
# runtime does not free the memory of programs.
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

report-check: aethercl
	python=$$(tools/serve_python.sh page) && $$python tools/sim_report_check.py --aethercl target/aethercl/aethercl $(if $(CHROMIUM),--chromium $(CHROMIUM))

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
