# accel: settings first, then targets; `make help` lists them.  The first build fetches LuaJIT's
# source.  Nothing else here downloads or installs anything, except `make deps` and what runs it
# first (demo, test) when a package is missing.

MODE     ?= release#    release, asan, ubsan or tsan; the last three build into build/MODE
PREFIX   ?= /usr/local# where `make install` puts things; DESTDIR is put before it
CC       ?= cc
SPEC     ?= spec#       what `make test` runs: files or folders
SECONDS  ?= 60#         how long `make fuzz` runs each target
JIT      ?= on#         off: `make test` runs the specs with LuaJIT's compiler off
# Where `make gpu-report` leaves its logs: $OUT.
REPORT   := $(abspath $(if $(filter environment,$(origin OUT)),$(OUT),gpu-report))
OUT      := build$(if $(filter-out release,$(MODE)),/$(MODE))
# Also where it is given as an absolute path: the files of dependencies (.d) name it in one way.
override OUT := $(if $(filter /%,$(OUT)),$(OUT:$(CURDIR)/%=%),$(OUT))

ifeq ($(filter release asan ubsan tsan fuzz,$(MODE)),)
$(error MODE is "$(MODE)"; it must be release, asan, ubsan, tsan or fuzz)
endif

# All cores, unless a -j is given (it comes later on make's command line, and wins) or several goals
# are (`make clean all` has an order).
ifeq ($(MAKELEVEL)$(word 2,$(MAKECMDGOALS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

OPT_release := -O2
OPT_asan    := -O1 -fsanitize=address -fno-omit-frame-pointer -DAX_CHECK_CLAIMS
OPT_ubsan   := -O1 -fsanitize=undefined -fno-sanitize-recover=undefined
OPT_tsan    := -O1 -fsanitize=thread
OPT_fuzz    := -O1 -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined \
               -fno-omit-frame-pointer -Wno-unknown-pragmas
OPT         := $(OPT_$(MODE))
WARN        := -Wall -Wextra -Wno-unused-parameter -Wstrict-prototypes -Wvla -Werror=implicit-function-declaration
BASE_CFLAGS := -std=gnu11 -g $(OPT) $(WARN) -fvisibility=hidden -fPIC -Ihost -Ikernels -I$(OUT)/include

# The interpreter: a LuaJIT of our own, linked in.  LUA52COMPAT: `#`, pairs and ipairs honour
# metamethods.  CHECKHOOK: Ctrl-C stops a compiled loop.  Modules that distributions install for Lua
# 5.1 are found where theirs are.
LUAJIT_SRC ?=# a folder or an archive of LuaJIT's source; else host/tools/get_luajit fetches the one that it pins
LUAJIT     := $(OUT)/luajit
MULTIARCH   = $(eval MULTIARCH := $$(shell $(CC) -print-multiarch 2>/dev/null))$(MULTIARCH)
LUAJIT_XCFLAGS = -DLUAJIT_ENABLE_LUA52COMPAT -DLUAJIT_ENABLE_CHECKHOOK \
  -DLUA_ROOT=\"/usr\" -DLUA_MULTILIB=\"$(patsubst %/,%,lib/$(MULTIARCH))\"
# The sanitizer sees what the C side reads and writes of Lua's memory when malloc gives it.
LUAJIT_TARGET_asan := -fsanitize=address -fno-omit-frame-pointer -DLUAJIT_USE_SYSMALLOC -DLUA_USE_APICHECK
LUAJIT_TARGET_fuzz := $(LUAJIT_TARGET_asan)

HOST_CFLAGS := -I$(LUAJIT)/src
HOST_LIBS   := -Wl,--whole-archive $(LUAJIT)/src/libluajit.a -Wl,--no-whole-archive -lz -ldl -lm -lpthread
# In a bundle the libraries lie beside the plugins.  DT_RPATH, which counts for what those libraries
# need in turn, and for plugins; elsewhere the folder does not exist and says nothing.
HOST_RPATH := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib/accel/deps'
HOST_SRC   := $(wildcard $(patsubst %,host/%/*.c,launch settings script text bind core core/*))
HOST_OBJ   := $(HOST_SRC:%.c=$(OUT)/%.o)

# Members of ax_attrs (plugin.h), written from the op table by a program that runs here; HOST_CC
# makes it where CC compiles for another machine.
HOST_CC    ?= $(CC)
ATTRS      := $(OUT)/include/op_attrs.h

# The CPU kernels are built once for each level of processor; the host loads the best that the
# processor runs.  Products and sums are not contracted behind our back: the levels, and a GPU, are
# to agree where the code says so.  No kernel looks at floating-point exceptions; not keeping them
# exact lets choices between results become vector code.
LEVELS       := $(if $(filter x86_64,$(shell uname -m)),v2 v3 v4,native)
MARCH_v2     := -march=x86-64-v2
MARCH_v3     := -march=x86-64-v3
MARCH_v4     := -march=x86-64-v4 -mprefer-vector-width=512
CPU_OPT      := $(if $(filter release,$(MODE)),-O3) $(if $(filter tsan,$(MODE)),-fno-sanitize=all)
CPU_CFLAGS   := $(CPU_OPT) -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off
CPU_SRC      := $(wildcard kernels/cpu/*.c kernels/cpu/*/*.c)
CPU_PLUGINS  := $(LEVELS:%=$(OUT)/libax_cpu_%.so)
IMAGE_PLUGIN := $(OUT)/libax_image.so
MPI_PLUGIN   := $(OUT)/libax_mpi.so

# Debian's and Ubuntu's packages, each with what shows that it is there: a header, a file or a
# command.
BUILD_DEPS := gcc:cc libc6-dev:stdio.h xz-utils:xz zlib1g-dev:zlib.h \
              libedit-dev:histedit.h libyaml-dev:yaml.h libdnnl-dev:dnnl.h
IMAGE_DEPS := libjpeg-dev:jpeglib.h libpng-dev:png.h
MPI_DEPS   := libopenmpi-dev:mpicc
DEPS       := $(BUILD_DEPS) $(IMAGE_DEPS) $(MPI_DEPS) openmpi-bin:mpirun lua-busted:busted \
              libopenblas0-pthread:/usr/lib/*/libopenblas.so.0 \
              dataset-fashion-mnist:/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
# Shell: sets `want` to the packages of $(1) that are missing.  The compiler looks for headers,
# so that CFLAGS=-I... counts.
MISSING     = want=; for dep in $(1); do probe=$${dep\#*:}; \
  case $$probe in \
    /*)  test -e $$probe ;; \
    *.h) printf '\#include <stdio.h>\n\#include <%s>\n' $$probe | $(CC) $(CFLAGS) -E -x c -o /dev/null - ;; \
    *)   command -v $$probe ;; \
  esac >/dev/null 2>&1 || want="$$want $${dep%%:*}"; done

# The file of suppressions lists what libraries keep.  gcc 12's leak checker takes the header of a
# large block of thread-local storage for one of an old glibc's and crashes; the option makes it not
# look there (it finds the block on the heap too).  The quarantine of freed memory is small, since
# specs that watch resident memory would see it grow.
RUN_asan  := \
  ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0:intercept_tls_get_addr=0:quarantine_size_mb=16 \
  LSAN_OPTIONS='suppressions=$(CURDIR)/spec/support/lsan.supp:print_suppressions=0'
# Threads of OpenMP meet in ways that the sanitizer does not see, so kernels are left out; it
# watches the threads that the host starts.
RUN_tsan  := OMP_NUM_THREADS=1 TSAN_OPTIONS='die_after_fork=0:suppressions=$(CURDIR)/spec/support/tsan.supp'
RUN_ubsan := UBSAN_OPTIONS=print_stacktrace=1
RUN       := $(RUN_$(MODE)) $(if $(filter off,$(JIT)),SPEC_FLAGS='-e jit.off()')

# ---- build; V=1 shows the commands

Q   := $(if $(V),,@)
say  = $(if $(V),,@echo "  $(1)")

# At a fixed address the host has no pointers to relocate when it starts: 2 to 4 % of an empty run.
PLACE_release := -no-pie
# Linked beside and moved in place: what runs meanwhile keeps the file that it has mapped.
all: $(OUT)/accel-run $(CPU_PLUGINS) modules image mpi  ## build the host and its plugins (MODE=asan: sanitized)

$(OUT)/accel-run: $(HOST_OBJ) $(LUAJIT)/src/libluajit.a
	$(call say,link $@)
	$(Q)$(CC) $(OPT) $(PLACE_$(MODE)) -rdynamic -Wl,--wrap=popen,--wrap=system -o $@.new $(HOST_OBJ) \
	  $(HOST_RPATH) $(LDFLAGS) $(HOST_LIBS)
	@mv $@.new $@

modules: $(OUT)/accelerate.modules

# What LuaJIT makes of the library's files, so that scripts start at once: host/script/modules.c.
$(OUT)/accelerate.modules: $(OUT)/accel-run host/tools/modules.lua $(shell find lua -name '*.lua')
	$(call say,write $@)
	$(Q)$(OUT)/accel-run host/tools/modules.lua lua $@.new
	@mv $@.new $@

# Made again when its flags, its source or how it is fetched change.
$(LUAJIT).flags: always
	@mkdir -p $(@D); echo "$(CC) $(LUAJIT_XCFLAGS) $(LUAJIT_TARGET_$(MODE)) $(LUAJIT_SRC)" >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(LUAJIT)/src/libluajit.a: $(LUAJIT).flags host/tools/get_luajit
	@LUAJIT_SRC='$(LUAJIT_SRC)' host/tools/get_luajit $(LUAJIT)
	$(call say,cc $(LUAJIT))
	$(Q)$(MAKE) -s -C $(LUAJIT)/src E=@: BUILDMODE=static CC='$(CC)' CCDEBUG=-g XCFLAGS='$(LUAJIT_XCFLAGS)' \
	  TARGET_CFLAGS='$(LUAJIT_TARGET_$(MODE))' libluajit.a jit/vmdef.lua
$(HOST_OBJ): | $(LUAJIT)/src/libluajit.a $(ATTRS)

OP_TABLE := $(wildcard host/core/*.def host/core/*/*.def)
$(ATTRS): host/tools/attrs.c host/core/ops/signature.c host/signature.h host/plugin.h \
          host/optim_table.h $(OP_TABLE) Makefile
	@mkdir -p $(@D)
	$(call say,write $@)
	$(Q)$(HOST_CC) -std=gnu11 $(WARN) -Ihost -DAX_NO_OP_ATTRS -o $(@D)/attrs $(filter %.c,$^) -lpthread
	$(Q)$(@D)/attrs >$@.new
	@mv $@.new $@

$(OUT)/host/%.o: host/%.c Makefile
	@mkdir -p $(@D)
	$(call say,cc $<)
	$(Q)$(CC) $(BASE_CFLAGS) -MMD -MP $(HOST_CFLAGS) $(CFLAGS) -c -o $@ $<

# Pictures need libjpeg and libpng; without them all else builds, and reading a picture says what to
# install.
image:
	@$(call MISSING,$(IMAGE_DEPS)); if test -z "$$want"; then $(MAKE) -s --no-print-directory $(IMAGE_PLUGIN); \
	elif ! test -e $(IMAGE_PLUGIN); then echo "  no $(IMAGE_PLUGIN) (JPEG and PNG): missing$$want"; fi

$(IMAGE_PLUGIN): host/image/image.c host/image.h Makefile
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(CC) $(BASE_CFLAGS) $(CFLAGS) -shared -o $@.new host/image/image.c $(LDFLAGS) -ljpeg -lpng
	@mv $@.new $@

# Tensors of CPU ranks travel between machines through MPI; without it all else builds, and such a
# run says what to install.
mpi:
	@$(call MISSING,$(MPI_DEPS)); if test -z "$$want"; then $(MAKE) -s --no-print-directory $(MPI_PLUGIN); \
	elif ! test -e $(MPI_PLUGIN); then echo "  no $(MPI_PLUGIN) (CPU ranks on several machines): missing$$want"; fi

$(MPI_PLUGIN): host/mpi/mpi.c host/messages.h Makefile
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(CC) $(BASE_CFLAGS) $(CFLAGS) $(shell mpicc --showme:compile) -shared -o $@.new host/mpi/mpi.c $(LDFLAGS) \
	  $(shell mpicc --showme:link)
	@mv $@.new $@

define cpu_level
CPU_OBJ += $(CPU_SRC:%.c=$(OUT)/$(1)/%.o)
$(OUT)/$(1)/%.o: %.c Makefile
	@mkdir -p $$(@D)
	$$(call say,cc $$< ($(1)))
	$(Q)$(CC) $(BASE_CFLAGS) -MMD -MP $(CPU_CFLAGS) $(MARCH_$(1)) -DAX_CPU_LEVEL='"$(1)"' $(CFLAGS) -c -o $$@ $$<
$(OUT)/libax_cpu_$(1).so: $(CPU_SRC:%.c=$(OUT)/$(1)/%.o)
	$$(call say,link $$@)
	$(Q)$(CC) $(OPT) -shared -fopenmp -o $$@.new $$^ $(LDFLAGS) -ldnnl -lm
	@mv $$@.new $$@
endef
$(foreach l,$(LEVELS),$(eval $(call cpu_level,$(l))))
$(CPU_OBJ): | $(ATTRS)

# The CUDA backend: where nvcc is, or as CUDA_HOME says.
CUDA_HOME    ?= $(patsubst %/bin/,%,$(dir $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)))
# Machine code to build: `make cuda CUDA_ARCH="sm_80 sm_90"`; compute_100 is PTX, which later GPUs'
# drivers compile.
CUDA_ARCH    ?= sm_90
RELEASE_ARCH := sm_80 sm_90 sm_100 compute_100
CUDA_EXTRA   ?=# more flags for nvcc
NVCC         := $(if $(CUDA_HOME),$(CUDA_HOME)/bin/nvcc)
CUDA_SRC     := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
CUDA_FLAGS   := -std=c++17 -O3 --extended-lambda -Ihost -Ikernels -I$(OUT)/include \
                -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wno-unused-parameter \
                $(foreach a,$(CUDA_ARCH),-gencode arch=$(a:sm_%=compute_%),code=$(a)) $(CUDA_EXTRA)

# What nvcc made of each file: registers, stack, shared memory, and accesses to global memory.
CUOBJDUMP ?= $(or $(wildcard $(CUDA_HOME)/bin/cuobjdump),cuobjdump)
MADE      := $(CUDA_SRC:kernels/cuda/%.cu=$(OUT)/cuda/%.made)
$(OUT)/cuda/%.made: $(OUT)/cuda/%.o
	@command -v $(CUOBJDUMP) >/dev/null || { echo "no $(CUOBJDUMP), of CUDA's toolkit (CUOBJDUMP=FILE)" >&2; exit 1; }
	$(call say,cuobjdump $<)
	@$(CUOBJDUMP) --dump-resource-usage $< >$@.new 2>/dev/null || true
	@$(CUOBJDUMP) -sass $< 2>/dev/null | grep -E 'arch =|Function :|LDG|STG' >>$@.new || true
	@mv $@.new $@
check-cuda: all $(MADE)  ## hold kernels/cuda/budgets.txt: registers, stack, accesses (CUDA_ARCH=, CUOBJDUMP=)
	@$(OUT)/accel-run spec/support/check_cuda.lua $(BUDGETS) $(OUT)/cuda

cuda: $(OUT)/libax_cuda.so  ## build the CUDA backend (CUDA_HOME=..., CUDA_ARCH="sm_80 sm_90")

release: all  ## build everything; CUDA for sm_80, sm_90, sm_100 and PTX for what comes after; fifteen minutes of a core
	@$(MAKE) --no-print-directory cuda CUDA_ARCH="$(RELEASE_ARCH)" CUDA_EXTRA=--compress-mode=size

# Another CUDA_ARCH compiles again: the flags that objects were made with are kept beside them.
$(OUT)/cuda/flags: always
	@test -n "$(NVCC)" || { echo "make cuda: no nvcc here; CUDA_HOME=FOLDER says where CUDA's toolkit is" >&2; exit 1; }
	@mkdir -p $(@D); echo '$(CUDA_FLAGS)' >$@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(OUT)/cuda/%.o: kernels/cuda/%.cu Makefile $(OUT)/cuda/flags
	@mkdir -p $(@D)
	$(call say,nvcc $<)
	$(Q)$(NVCC) $(CUDA_FLAGS) -MMD -MP -c -o $@ $<
# Private: build/cuda/flags, which these need too, has the flags of all.
AX_ARCHS := $(subst $() ,:,$(strip $(CUDA_ARCH)))
$(OUT)/cuda/runtime/device.o: private CUDA_FLAGS += -DAX_CUDA_ARCHS=$(AX_ARCHS)
# Their bits are the CPU's, or those of a format's reference (encoded).  Centred RMSprop subtracts
# two numbers that are nearly equal.
$(OUT)/cuda/random.o $(OUT)/cuda/optim.o $(OUT)/cuda/encoded.o: private CUDA_FLAGS += -fmad=false
$(OUT)/cuda/backend.o: kernels/cuda/backend.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE_CFLAGS) -MMD -MP -c -o $@ $<
CUDA_OBJ := $(CUDA_SRC:kernels/cuda/%.cu=$(OUT)/cuda/%.o) $(OUT)/cuda/backend.o
$(CUDA_OBJ): | $(ATTRS)
$(OUT)/libax_cuda.so: $(CUDA_OBJ)
	$(call say,link $@)
	$(Q)$(CXX) -shared -o $@.new $^ -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread
	@mv $@.new $@

# For the benchmarks alone: what a launch costs by itself.
BENCH_CUDA := $(OUT)/libax_bench_cuda.so
ON_GPU     := all cuda $(BENCH_CUDA)
$(BENCH_CUDA): bench/bare_launch.cu Makefile $(OUT)/cuda/flags
	$(call say,nvcc $<)
	$(Q)$(NVCC) $(CUDA_FLAGS) -shared -o $@.new $<
	@mv $@.new $@

include spec/devices.mk  # devices without a GPU, stand-ins of libraries, fuzzers: for the specs

-include $(wildcard $(foreach kind,cuda emulated traffic,$(OUT)/$(kind)/*.d $(OUT)/$(kind)/*/*.d))
-include $(HOST_OBJ:.o=.d) $(CPU_OBJ:.o=.d) $(FUZZ_OBJ:.o=.d)

# ---- run

demo: all  ## train on Fashion-MNIST with two processes; installs what is missing first
	$(OUT)/accel-run --num_processes 2 examples/fashion_mnist.lua

TEST_NEEDS := $(OUT)/libax_fake_device.so $(OUT)/libax_disk_faults.so $(OUT)/fuzz-replay
test: all $(TEST_NEEDS)  ## run the specs (SPEC=spec/core for some, JIT=off); installs what is missing
	@$(RUN) ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' spec/support/run_specs $(SPEC)

test-faults: all $(OUT)/libax_disk_faults.so  ## inject faults, print what came of them; minutes (JOBS=2, ROWS=...)
	@$(RUN) $(OUT)/accel-run spec/faults/run.lua $(or $(JOBS),2) $(ROWS)

test-gpu: $(ON_GPU)  ## run spec/gpu on a GPU
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' spec/support/on_gpu test-gpu

bench-gpu: $(ON_GPU)  ## measure against PyTorch on a GPU; six minutes (ROUNDS=3, ONLY=gpt, PYTHON=...)
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' spec/support/on_gpu bench-gpu

bench-collectives: $(ON_GPU)  ## check and time collectives between the GPUs here (RANKS=2, ARGS="--max 1G")
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' RANKS='$(RANKS)' spec/support/on_gpu bench-collectives $(ARGS)

gpu-report: $(ON_GPU)  ## ranks on one GPU, bench-gpu, test-gpu, bench-collectives: ten minutes; logs in $OUT
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' OUT='$(REPORT)' spec/support/on_gpu report

EMULATED := $(OUT)/libax_cuda_emulated.so $(OUT)/libax_cuda_traffic.so
test-emulated: all $(EMULATED) fakes  ## run spec/gpu on an emulated device (MODES=, SEED=, ALL=1)
	@$(RUN) EMULATE_FMA=$(EMULATE_FMA) ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' spec/support/test_emulated $(MODES)

# The kernels are those of the ordinary build, as fast as they are there.  The target ops needs the
# host alone, of any MODE.
fuzz: all  ## fuzz the readers, the command line, the meeting, the ops (SECONDS=60 for each, ONLY=npy; needs clang)
	@test '$(ONLY)' = ops || $(MAKE) --no-print-directory fuzz-host
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' spec/fuzz/run '$(SECONDS)' $(ONLY)

fuzz-host:
	@$(call MISSING,$(FUZZ_DEPS)); test -z "$$want" || { echo "make fuzz: please install$$want" >&2; exit 1; }
	@$(MAKE) --no-print-directory MODE=fuzz CC=clang build/fuzz/fuzz build/fuzz/libax_image.so
	@for file in $(OUT)/libax_cpu_*.so; do ln -sf ../$${file##*/} build/fuzz/; done

traffic: all $(OUT)/libax_cuda_traffic.so fakes  ## bytes that the kernels of training steps move (ONLY=GPT)
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' $(OUT)/accel-run bench/traffic.lua $(ONLY)

# PyTorch's own test data: PYTHON names a Python with torch, numpy and expecttest.
check-torch: all  ## compare with PyTorch's own test data; minutes (PYTHON=..., ENTRIES="sum ..", SAMPLES=all)
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' PYTHONDONTWRITEBYTECODE=1 $(or $(PYTHON),python3) \
	  spec/support/check_torch/check.py $(ENTRIES)

bench: all  ## measure against PyTorch, when $PYTHON or python3 has it; minutes (ROUNDS=5, ONLY=step, PYTHON=...)
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' $(OUT)/accel-run bench/run.lua

bench-calls: all  ## time single calls beside PyTorch's, the slowest first (ROUNDS=3, ONLY=conv, THREADS=1, LEAST=1)
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' $(OUT)/accel-run bench/compare_calls.lua

deps:  ## install the packages that are missing (Debian, Ubuntu; as root or with sudo)
	@$(call MISSING,$(DEPS)); test -n "$$want" || exit 0; \
	run="apt-get install -y --no-install-recommends$$want"; \
	if ! command -v apt-get >/dev/null; then \
	  echo "make deps: no apt-get here; please install by hand what Debian calls$$want" >&2; exit 1; fi; \
	if [ "$$(id -u)" = 0 ]; then sudo=; elif command -v sudo >/dev/null; then sudo=sudo; \
	else echo "make deps: not root and no sudo; please run as root: $$run" >&2; exit 1; fi; \
	echo "make deps: installing$$want"; \
	$$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive $$run

build-deps:
	@$(call MISSING,$(BUILD_DEPS)); test -z "$$want" || { echo "missing:$$want; run: make deps" >&2; exit 1; }

# What trains or tests installs what is missing first; a plain `make` names it and leaves the
# machine as it is.
$(ATTRS) $(LUAJIT)/src/libluajit.a $(HOST_OBJ) $(CPU_OBJ) image mpi $(TEST_NEEDS): \
  | $(if $(filter demo test,$(MAKECMDGOALS)),deps,build-deps)

# ---- install, docs, upkeep

install: all  ## install below PREFIX=/usr/local: bin/accel-run, lib/accel (plugins), share/accel (Lua files)
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/lib/accel' \
	  '$(DESTDIR)$(PREFIX)/share/accel'
	install $(OUT)/accel-run '$(DESTDIR)$(PREFIX)/bin/'
	install -m 644 $(OUT)/accelerate.modules $(CPU_PLUGINS) \
	  $(wildcard $(IMAGE_PLUGIN) $(MPI_PLUGIN) $(OUT)/libax_cuda.so) \
	  '$(DESTDIR)$(PREFIX)/lib/accel/'
	cp -R lua examples '$(DESTDIR)$(PREFIX)/share/accel/'
	cp -R $(LUAJIT)/src/jit '$(DESTDIR)$(PREFIX)/share/accel/lua/'
	install -d '$(DESTDIR)$(PREFIX)/share/accel/docs/reference' '$(DESTDIR)$(PREFIX)/share/accel/meta'
	install -m 644 docs/*.md '$(DESTDIR)$(PREFIX)/share/accel/docs/'
	install -m 644 docs/reference/*.md '$(DESTDIR)$(PREFIX)/share/accel/docs/reference/'
	$(OUT)/accel-run host/tools/meta.lua '$(DESTDIR)$(PREFIX)/share/accel/meta'
	install -d '$(DESTDIR)$(PREFIX)/share/accel/licences'
	install -m 644 $(LUAJIT)/COPYRIGHT '$(DESTDIR)$(PREFIX)/share/accel/licences/luajit'

# A folder that runs where nothing is installed but glibc (that of this machine or a later one):
# what `make install` puts somewhere, the libraries it needs, the specs with busted, the benchmarks.
# CUDA's own libraries it finds on the other machine.
BUNDLE      ?= build/bundle/accel# the folder; .tar.gz is made beside it
BUNDLE_DATA ?=# "yes": with Fashion-MNIST, 30 MB, when it is installed here
bundle: $(if $(NVCC),$(ON_GPU),all)  ## make a folder and an archive that run elsewhere (BUNDLE=FOLDER, BUNDLE_DATA=yes)
	@rm -rf '$(BUNDLE)'
	@$(MAKE) -s --no-print-directory install PREFIX= DESTDIR='$(abspath $(BUNDLE))'
	@$(if $(NVCC),cp $(BENCH_CUDA) '$(BUNDLE)/lib/accel/')
	@BUNDLE_DATA='$(BUNDLE_DATA)' host/tools/bundle '$(abspath $(BUNDLE))'

features: all  ## print the rows of spec/features that no spec shows yet (DOCUMENT=FILE compares them with a document)
	@$(OUT)/accel-run spec/support/features.lua $(DOCUMENT)

docs: all  ## write docs/reference from the op table and the annotations (a spec fails when it is out of date)
	$(OUT)/accel-run host/tools/gendoc.lua docs/reference
	$(OUT)/accel-run host/tools/reference.lua docs/reference

meta: all  ## write definitions for editors (LuaLS) into build/meta, as `make install` does: docs/editors.md
	@mkdir -p $(OUT)/meta
	$(OUT)/accel-run host/tools/meta.lua $(OUT)/meta

fmt: $(OUT)/accel-run  ## format all C and CUDA: clang-format, comments filled to 100 columns
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' host/tools/format

lint: $(OUT)/accel-run  ## hold the laws of the house (host/tools/lint.lua --list), C with warnings as errors, luacheck
	@ACCEL_RUN='$(CURDIR)/$(OUT)/accel-run' $(OUT)/accel-run host/tools/lint.lua
	@echo $(HOST_SRC) | xargs -n 8 -P $$(nproc) $(CC) $(BASE_CFLAGS) $(HOST_CFLAGS) $(CFLAGS) -Werror -fsyntax-only
	@echo $(CPU_SRC) | xargs -n 8 -P $$(nproc) $(CC) $(BASE_CFLAGS) $(CPU_CFLAGS) -DAX_CPU_LEVEL='""' $(CFLAGS) \
	  -Werror -fsyntax-only
	@command -v luacheck >/dev/null || { echo "make lint: no luacheck here (package lua-check)" >&2; exit 1; }
	@luacheck -q lua examples spec bench host/tools

clean:  ## remove build/
	rm -rf build

help:  ## this list
	@echo "make TARGET [MODE=release|asan|ubsan|tsan] [PREFIX=...] [CC=...] [CFLAGS=...] [V=1]"
	@sed -n 's/^\([a-z-]*\):[^#]*##/  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

always:

.PHONY: all modules mpi fakes fuzz fuzz-host plan-cudnn image cuda check-cuda release features demo test test-faults \
        test-gpu test-emulated check-torch traffic bench bench-calls bench-gpu bench-collectives \
        gpu-report bundle deps build-deps install docs fmt lint clean help always
