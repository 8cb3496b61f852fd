# What the specs build besides the host and its plugins: the CUDA backend emulated on the host, and
# with its accesses counted; stand-ins of NVIDIA's libraries, of a device and of a file system that
# fails; fuzzers.  The Makefile includes this.

# ---- the emulated device: the kernels of kernels/cuda, run on the host

EMULATE_SRC  := $(wildcard kernels/cuda/emulate/*.cpp)
EMULATE_FLAGS = -std=c++17 $(if $(filter release,$(MODE)),-O1,-g $(OPT)) -x c++ -DAX_EMULATE \
                $(if $(CUDA_HOME),-isystem $(CUDA_HOME)/include) -Ihost -Ikernels -I$(OUT)/include \
                -fPIC -fvisibility=hidden -Wall -Wno-unused-parameter -Wno-unknown-pragmas -ffp-contract=off

# The emulated kernels as nvcc makes them: products and sums contracted (EMULATE_FMA=off: not).
# A misaligned access of theirs is reported (emulate.h).
EMULATE_FMA  ?= $(if $(shell grep -m 1 -w fma /proc/cpuinfo 2>/dev/null),on,off)
KERNEL_FLAGS  = $(if $(filter on,$(EMULATE_FMA)),-mfma -fexpensive-optimizations -ffp-contract=fast) \
                $(if $(filter ubsan,$(MODE)),,-fsanitize=alignment)
$(OUT)/emulated/runtime/device.o: EMULATE_FLAGS += -DAX_CUDA_ARCHS=sm_90
# As in the Makefile, for build/cuda: their bits are the CPU's.
$(OUT)/emulated/random.o $(OUT)/emulated/optim.o $(OUT)/emulated/encoded.o: KERNEL_FLAGS += -ffp-contract=off
$(OUT)/emulated/emulate/trial.o: EMULATE_FLAGS += $(KERNEL_FLAGS)

# ThreadSanitizer watches runtime/ and vendor/, which several threads are in; a kernel's threads are
# fibers of one.
WATCHED    = runtime/% vendor/% emulate/traffic
one_thread = $(if $(filter tsan,$(MODE)),$(if $(filter $(WATCHED),$(1)),,-fno-sanitize=thread))
$(OUT)/emulated/%.o: kernels/cuda/%.cu Makefile spec/devices.mk
	@mkdir -p $(@D)
	$(call say,c++ $< (emulated))
	$(Q)$(CXX) $(EMULATE_FLAGS) $(KERNEL_FLAGS) $(call one_thread,$*) -MMD -MP -c -o $@ $<
$(OUT)/emulated/%.o: kernels/cuda/%.cpp Makefile spec/devices.mk
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMULATE_FLAGS) $(call one_thread,$*) -MMD -MP -c -o $@ $<
EMULATE_OBJ := $(CUDA_SRC:kernels/cuda/%.cu=$(OUT)/emulated/%.o) $(EMULATE_SRC:kernels/cuda/%.cpp=$(OUT)/emulated/%.o)
$(EMULATE_OBJ): | $(ATTRS)
$(OUT)/libax_cuda_emulated.so: $(EMULATE_OBJ) $(OUT)/cuda/backend.o
	$(call say,link $@)
	$(Q)$(CXX) $(OPT) -shared -o $@.new $^
	@mv $@.new $@

# Its kernels with every access to memory counted (emulate/traffic.cpp).
TRAFFIC_OBJ := $(CUDA_SRC:kernels/cuda/%.cu=$(OUT)/traffic/%.o)
$(TRAFFIC_OBJ): | $(ATTRS)
$(OUT)/traffic/runtime/device.o: EMULATE_FLAGS += -DAX_CUDA_ARCHS=sm_90
$(OUT)/traffic/%.o: kernels/cuda/%.cu Makefile spec/devices.mk
	@mkdir -p $(@D)
	$(call say,c++ $< (counting))
	$(Q)$(CXX) $(EMULATE_FLAGS) -fsanitize=thread -MMD -MP -c -o $@ $<
$(OUT)/libax_cuda_traffic.so: $(TRAFFIC_OBJ) $(EMULATE_SRC:kernels/cuda/%.cpp=$(OUT)/emulated/%.o) $(OUT)/cuda/backend.o
	$(call say,link $@)
	$(Q)$(CXX) $(OPT) -shared -o $@.new $^
	@mv $@.new $@

# NVIDIA's libraries as the emulated device meets them: what their documentation says, in plain
# loops, strict about what it refuses.
FAKE_OF  := cublasLt cudnn nccl cufft cublas cusolver
FAKES    := $(if $(CUDA_HOME),$(FAKE_OF:%=$(OUT)/fakes/lib%.so))
FAKE_PARTS = $(wildcard spec/fakes/fake_$(1).* spec/fakes/fake_$(1)_*)
SONAME_cublasLt := 13
SONAME_cudnn    := 9
SONAME_nccl     := 2
SONAME_cufft    := 12
SONAME_cublas   := 13
SONAME_cusolver := 12
fakes: $(FAKES)
$(OUT)/fakes/lib%.so: kernels/cuda/vendor/vendor.h kernels/cuda/emulate/emulate.h Makefile spec/devices.mk
	@mkdir -p $(@D)
	$(call say,c++ $(filter %.cpp,$^))
	$(Q)$(CXX) $(EMULATE_FLAGS) -DAX_EMULATED_LIBRARY -O2 -shared -o $@.$(SONAME_$*) $(filter %.cpp,$^) -ldl
	@ln -sf $(@F).$(SONAME_$*) $@
$(foreach f,$(FAKE_OF),$(eval $(OUT)/fakes/lib$(f).so: $(call FAKE_PARTS,$(f))))
$(OUT)/fakes/libcublas.so $(OUT)/fakes/libcusolver.so: spec/fakes/fake_lapack.h

# Which plans NVIDIA's own cuDNN has for our graphs, asked without a GPU.
plan-cudnn: $(OUT)/plan/plan_cudnn $(OUT)/plan/libcuda.so.1  ## ask cuDNN which plans it has for an H200 (CUDNN=folder)
	@LD_LIBRARY_PATH='$(CURDIR)/$(OUT)/plan' $(OUT)/plan/plan_cudnn $(or $(CUDNN),$(CUDA_HOME)/lib64) "$(PART)"
$(OUT)/plan/plan_cudnn: spec/fakes/plan_cudnn.cpp $(wildcard kernels/cuda/vendor/cudnn*)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMULATE_FLAGS) -DAX_EMULATED_LIBRARY -o $@ $< -ldl
$(OUT)/plan/libcuda.so.1: spec/fakes/plan_cudnn.cpp
	@mkdir -p $(@D)
	$(Q)$(CXX) -DAS_DRIVER -shared -fPIC -o $@ $<

# For the specs: a device without a GPU.
$(OUT)/libax_fake_device.so: spec/fakes/fake_device.c host/ax.h $(ATTRS) Makefile spec/devices.mk
	$(call say,cc $<)
	$(Q)$(CC) $(BASE_CFLAGS) -shared -o $@.new $<
	@mv $@.new $@

# For the specs: preloaded, it makes calls of the file system fail.
$(OUT)/libax_disk_faults.so: spec/fakes/disk_faults.c Makefile spec/devices.mk
	$(call say,cc $<)
	$(Q)$(CC) $(BASE_CFLAGS) -fno-sanitize=all -shared -o $@.new $< -ldl
	@mv $@.new $@

# Fuzzers: MODE=fuzz is the host in clang's libFuzzer with both sanitizers; fuzz-replay runs the
# targets over files, in any build.
LIBFUZZER    = $(shell clang --print-resource-dir 2>/dev/null)/lib/linux/libclang_rt.fuzzer-$(shell uname -m).a
FUZZ_DEPS    = clang:clang libclang-rt-dev:$(LIBFUZZER)
FUZZ_OBJ    := $(patsubst %.c,$(OUT)/%.o,$(wildcard spec/fuzz/*.c))
FUZZ_HOST   := $(filter-out %/main.o,$(HOST_OBJ))
FUZZ_LINK    = -rdynamic -Wl,--wrap=popen,--wrap=system -o $@.new $(filter %.o,$^) $(LDFLAGS) $(HOST_LIBS)
$(FUZZ_OBJ): $(OUT)/%.o: %.c Makefile spec/devices.mk | $(LUAJIT)/src/libluajit.a $(ATTRS)
	@mkdir -p $(@D)
	$(call say,cc $<)
	$(Q)$(CC) $(BASE_CFLAGS) -MMD -MP $(HOST_CFLAGS) $(CFLAGS) -c -o $@ $<
$(OUT)/fuzz-replay: $(filter-out %/engine.o,$(FUZZ_OBJ)) $(FUZZ_HOST) $(LUAJIT)/src/libluajit.a
	$(call say,link $@)
	$(Q)$(CC) $(OPT) $(FUZZ_LINK)
	@mv $@.new $@
$(OUT)/fuzz: $(filter-out %/replay.o,$(FUZZ_OBJ)) $(FUZZ_HOST) $(LUAJIT)/src/libluajit.a
	$(call say,link $@)
	$(Q)$(CC) $(OPT:%fuzzer-no-link=%fuzzer) -Wl,--wrap=mmap,--wrap=munmap,--wrap=poll,--wrap=usleep $(FUZZ_LINK)
	@mv $@.new $@
