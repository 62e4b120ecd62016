# This Makefile builds and runs Unsplit. `make help` lists the commands. The build needs GNU make
# and a shell; tools/setup installs the rest.
#
# A new file needs no entry here. Chapters are the folders NN_name/. A lesson is a program if
# EXPERIMENT(...) is in the lesson's file or in the file of the same name in experiments/. The first
# lines of the lesson give the rank count, the level and the question. The chapter's library has all
# C files of the chapter, except the files in experiments/ with EXPERIMENT(...).

BACKEND   = cpu
PRECISION = fp32
SANITIZE  =
# For the CPU and for the stand-ins ARCH is a value for -march=. For GPUs ARCH is a list of compute
# capabilities ("80 90"), all-major, or native. native means the GPU of this machine, or all-major
# if there is no GPU.
ARCH      = native
CC        = mpicc
CXX       = g++
# With STRICT=yes a warning ends the build. make test sets STRICT=yes. By default warnings are
# allowed, because a user's compiler may have newer warnings.
STRICT    =
WERROR    = $(if $(STRICT),-Werror)
# Only a student's tree has student.mk. This file turns off the warnings that open exercises cause,
# such as unused variables.
-include student.mk
# ARGS has the options of a lesson. NP is a rank count that replaces the count in the lesson's first
# lines.
ARGS =
NP   =
# break, student, check, grade, predict, design and plant use these variables.
BUG =
DIR =
EXERCISES =
SUBMISSION =
JSON =
EX =
ANSWER =
FILE =
SEED =
# TESTS selects files of tests/, such as TESTS="comm ops". The default is all files.
TESTS =
# The values of these variables are plain text, even $( ) and ;. Recipes read the values from the
# environment.
text_variables = ARGS NP BUG DIR EXERCISES SUBMISSION JSON EX ANSWER FILE SEED
$(foreach name,$(text_variables),$(eval override $(name) := $$(value $(name))))
export $(text_variables)
# The compiler wrapper of Open MPI calls the compiler OMPI_CC, and the wrapper of MPICH calls
# MPICH_CC. With CC=mpicc.mpich also set MPIRUN=mpirun.mpich, the launcher.
export OMPI_CC ?= gcc
export MPICH_CC ?= $(OMPI_CC)

# If CUDA_HOME is given, a cuda build takes nvcc only from this folder. If NCCL_HOME is given, the
# build takes NCCL only from this folder. STANDIN=yes builds the same host code with stand-ins for
# CUDA, cuBLAS and NCCL (tests/standin), which need no toolkit and no GPU.
STANDIN   =
CUDA_HOME ?=
NCCL_HOME ?=
ifeq ($(filter $(BACKEND),cpu cuda),)
    $(error BACKEND=$(BACKEND): choose BACKEND=cpu or BACKEND=cuda)
endif
ifneq ($(STANDIN),)
    ifneq ($(STANDIN) $(BACKEND),yes cuda)
        $(error STANDIN=$(STANDIN): choose STANDIN=yes together with BACKEND=cuda, or leave it out)
    endif
endif
# KIND is the name of this build: cpu, cuda or standin.
KIND = $(if $(STANDIN),standin,$(BACKEND))
ifeq ($(filter $(PRECISION),fp32 fp64),)
    $(error PRECISION=$(PRECISION): choose PRECISION=fp32 or PRECISION=fp64)
endif
san-address,undefined := -asan
san-thread := -tsan
ifneq ($(SANITIZE),)
    ifeq ($(san-$(SANITIZE)),)
        $(error SANITIZE=$(SANITIZE): choose SANITIZE=address,undefined or SANITIZE=thread)
    endif
endif
O = build/$(KIND)-$(PRECISION)$(san-$(SANITIZE))

# The build uses no fused multiply-add and no fast-math, so the bits do not depend on the compiler
# or on the instructions of the processor. The bits of matrix products still depend on the BLAS.
# -fno-math-errno and -fno-trapping-math let the compiler vectorise sqrt and comparisons. These two
# flags change no value. They are safe, because no code here reads errno of sqrt or uses traps.
CFLAGS  = -std=gnu11 $(BOTH) $(CUT_TEXT) $(CFLAGS-threads-$(KIND))
CFLAGS-threads-cpu = $(OPENMP)
BOTH    = $(if $(SANITIZE),-O0 -g -fno-omit-frame-pointer -fsanitize=$(SANITIZE) -fno-sanitize-recover=all,$(OPTIMIZE-$(KIND))) \
          $(MARCH-$(KIND)) -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra $(WERROR) -pthread
# The stand-ins only test the host code, so a fast build matters more than a fast program. A build
# for the CPU has no debug information in fp64.
OPTIMIZE-cpu     = -O3 $(if $(filter fp64,$(PRECISION)),,-g)
OPTIMIZE-cuda    = -O3 -g
OPTIMIZE-standin = -O1
# With -Wall gcc warns when a buffer may truncate text. The truncation is intended here, so this
# flag turns the warning off. clang before 19 does not know this flag.
CUT_TEXT = $(if $(findstring clang version,$(COMPILER)),,-Wno-format-truncation)
MARCH-cpu     = -march=$(ARCH)
MARCH-standin = -march=$(ARCH)
DEFINES = $(if $(filter fp64,$(PRECISION)),-DREAL_IS_DOUBLE)
LIBS    = $(LIBS-$(KIND)) -lcjson -lpthread -lm
LIBS-cpu     = $(BLAS_LIBS)
LIBS-cuda    = $(NCCL_LIBS) $(CUDA_LIBS) -lstdc++
LIBS-standin = -lstdc++
TEXT    = build/text.txt

# ---- sources and programs ----
SOURCES  := $(filter-out common/device/device_$(if $(filter cpu,$(BACKEND)),cuda,cpu).c, \
                $(wildcard common/*/*.c judge/*.c judge/*/*.c [0-9][0-9]_*/*.c [0-9][0-9]_*/experiments/*.c \
                           tests/test_*.c tests/bench_*.c))
ENTRIES  := $(shell grep -l '^EXPERIMENT.' $(SOURCES))
LESSONS  := $(subst /experiments/,/,$(ENTRIES))
PROGRAMS := $(sort $(LESSONS) $(wildcard tests/test_*.c tests/bench_*.c))
# OWN are the experiments that are programs. No library has these files, so a program compiles no
# experiment of another program.
OWN      := $(foreach source,$(ENTRIES),$(if $(findstring /experiments/,$(source)),$(source)))
MODULES  := $(filter-out tests/% $(OWN),$(SOURCES))
PRELOADS := $(wildcard tests/pmpi_*.c) tests/openblas_choice.c tests/malloc_peak.c \
            tests/no_single_copy.c tests/pretend_cores.c tests/nan_product.c tests/record_sync.c
# PARALLEL are the files with kernels, which contain FOR_EACH. A cuda build compiles these files for
# a GPU.
PARALLEL := $(if $(filter cuda fp64,$(BACKEND) $(PRECISION)), \
                $(shell grep -lE '^ +FOR_EACH(_PART)?.[a-z]' $(SOURCES)))
KERNELS  := $(if $(filter cuda,$(BACKEND)),$(PARALLEL))
FOLDERS  := $(sort $(patsubst %/,%,$(wildcard [0-9][0-9]_*/)))
CHAPTERS := $(foreach folder,$(FOLDERS),$(firstword $(subst _, ,$(folder))))
# ARROWS are the includes between chapters. 05_pipeline_1f1b>04_pipeline_naive means that 05
# includes a header of 04. A program links with the libraries of its chapter, of the chapters
# reached from there, of judge and of common. So make run-05 compiles no chapter that 05 does not
# reach. A test links with all libraries.
ARROWS   := $(sort $(shell awk '/^\#include "[0-9]/ { split(FILENAME, from, "/"); split(substr($$2, 2), to, "/"); \
                if (to[1] < from[1]) print from[1] ">" to[1] }' $(foreach folder,$(FOLDERS),$(wildcard $(folder)/*.[ch] $(folder)/*/*.[ch]))))
reached   = $(1) $(foreach folder,$(patsubst $(1)>%,%,$(filter $(1)>%,$(ARROWS))),$(call reached,$(folder)))
objects   = $(patsubst %.c,$(O)/%.o,$(filter $(1)/%,$(MODULES)))
own       = $(patsubst %.c,$(O)/%.o,$(filter $(dir $(1))experiments/$(notdir $(1)).c,$(OWN)))
of_folder = $(if $(filter tests,$(1)),$(FOLDERS),$(call reached,$(1)))
libraries = $(patsubst %,$(O)/%.a,judge common $(sort $(filter-out common judge,$(of_folder))))
CORES     = $(shell nproc 2>/dev/null || echo 2)

.SECONDARY:
.SECONDEXPANSION:
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: book all programs preloads run figures pages bench test test-quick test-all lint bugs \
        student check predict design plant capstone grade grader-flags list doctor help setup clean \
        FORCE

# A second make builds with every core, unless make was called with -j. ONLY= limits the build to
# some programs. V=1 shows make's own lines.
export V
BUILD = tools/build $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(CORES)) programs
all:
	+@$(BUILD)

# ---- commands ----
# A key in run-KEY selects programs: 03 a chapter, 03-02 a lesson, 08-train a program by name, and
# 00 week 0.
key-chapter = $(firstword $(subst -, ,$(1)))
key-lesson  = $(word 2,$(subst -, ,$(1)))
programs-of = $(patsubst %.c,$(O)/%,$(filter $(PROGRAMS),$(if $(filter 00,$(1)),judge/run_00.c,$(wildcard \
    $(if $(key-lesson),$(key-chapter)_*/$(key-lesson)_*.c $(key-chapter)_*/$(key-lesson).c,$(key-chapter)_*/*.c)))))
BUILD_LESSON = +@$(if $(call programs-of,$*),$(BUILD) ONLY="$(call programs-of,$*)")
RUN_LESSON = tools/args tools/run-lesson $(O)

run:
	+@tools/run-all "$(MAKE)" $(CHAPTERS)

run-%: FORCE
	$(BUILD_LESSON)
	@$(RUN_LESSON) run $*

emu-%: FORCE
	$(BUILD_LESSON)
	@$(RUN_LESSON) emu $*

play-%: FORCE
	$(BUILD_LESSON)
	@tools/args tools/play-lesson $(O) $*

# tools/figures runs the commands of the pages, which use the default build.
figures:
	+@$(BUILD) BACKEND=cpu STANDIN= PRECISION=fp32 SANITIZE=
	@tools/figures

book:
	@tools/book

# Writes the page of every lesson, one file per chapter.
pages:
	+@$(BUILD) BACKEND=cpu STANDIN= PRECISION=fp32 SANITIZE=
	@tools/pages

bench:
	+@$(BUILD) ONLY="$(patsubst %.c,$(O)/%,$(wildcard tests/bench_*.c) 08_3d/train.c 08_3d/sample.c 08_3d/plan.c) $(O)/tests/malloc_peak.so"
	@tools/args tools/bench $(O)

# ON_STANDINS are the programs that make test runs on the stand-ins: one lesson per chapter, the
# trainer and tests of the library. make test-all sets TEST_ALL=1 and runs all programs.
ON_STANDINS = $(addprefix build/standin-fp32/,01_data_parallel/02_all_reduce 02_grad_accumulation/03_no_sync \
                03_tensor_parallel/06_transformer 04_pipeline_naive/03_gpipe 05_pipeline_1f1b/02_1f1b 06_zero/04_zero3 \
                07_recompute/03_selective 08_3d/01_mesh 08_3d/train \
                $(addprefix tests/test_,comm compression memory model ops outputs overlap storage))

# With BACKEND=cuda the tests compare that backend with the CPU. Otherwise tests/cuda.t uses the
# toolkit and the GPU if they are present.
test:
	@tools/setup prove
	@tools/setup grade || echo "make test: without a sandbox the tests of grading are left out"
	+@$(BUILD) STRICT=yes BACKEND=cpu STANDIN= PRECISION=fp32
	+@$(BUILD) STRICT=yes BACKEND=cpu STANDIN= PRECISION=fp64
ifeq ($(BACKEND),cpu)
	+@$(BUILD) STRICT=yes BACKEND=cuda STANDIN=yes PRECISION=fp32 ONLY="$(ON_STANDINS)"
	@tools/run-tests $(if $(TESTS),$(TESTS:%=tests/%.t),tests/*.t)
else
	+@$(BUILD) STRICT=yes PRECISION=fp32
	+@$(BUILD) STRICT=yes PRECISION=fp64
	@TEST_BACKEND=$(KIND) tools/run-tests tests/gpu.t
endif

# QUICK are the tests to run after each change. All of QUICK takes less than a minute.
QUICK = structure ops memory model units cost-model layers schedule pipeline compression costs zero-costs recompute-costs oracle plot lessons
test-quick:
	@tools/setup prove
	+@$(BUILD) STRICT=yes BACKEND=cpu STANDIN= PRECISION=fp32
	+@$(BUILD) STRICT=yes BACKEND=cpu STANDIN= PRECISION=fp64
	@TEST_QUICK=1 tools/run-tests $(QUICK:%=tests/%.t)

lint: compile_commands.json
	@tools/lint

test-all:
	@tools/setup prove
	@tools/setup grade || echo "make test-all: without a sandbox the tests of grading are left out"
	@tools/setup book || echo "make test-all: without pandoc and clang a part of the tests of the book is left out"
	+@$(BUILD) STRICT=yes BACKEND=cpu STANDIN= PRECISION=fp32
	+@$(BUILD) STRICT=yes BACKEND=cpu STANDIN= PRECISION=fp64
	+@$(BUILD) STRICT=yes BACKEND=cpu STANDIN= SANITIZE=address,undefined
	+@$(BUILD) STRICT=yes BACKEND=cpu STANDIN= SANITIZE=thread
	+@$(BUILD) STRICT=yes BACKEND=cuda STANDIN=yes PRECISION=fp32
	+@$(BUILD) STRICT=yes BACKEND=cuda STANDIN=yes PRECISION=fp64
	@TEST_ALL=1 tools/run-tests tests/*.t

break-%: FORCE
	@[ -e tools/break ] || { echo "unsplit: this is a student's tree, which has no bugs/: make break-$* needs the original tree" >&2; exit 3; }
	@tools/setup build build/tools.mk
	+@$(BUILD)
	@tools/break $* "$$BUG"

student:
	@tools/student "$$DIR" "$$EXERCISES"

# Checks exercises of a student's tree: make check EX=03.02a
check:
	@tools/check "$$EX"

# These targets are for the exercises without a function body to fill. tools/tasks lists the
# exercises of predict and design.
predict:
	@tools/task predict "$$EX" "$$ANSWER"
design:
	@tools/task design "$$EX" "$$FILE"
plant:
	@tools/task plant "$$DIR" "$$EX" "$$SEED"
capstone:
	@tools/task capstone

# Prints the flags of the build for tools/Grader.pm.
grader-flags:
	@echo "compile $(subst ",\",$(COMPILE))"
	@echo "compiler $(or $(OMPI_CC),gcc)"
	@echo "openmp $(OPENMP)"
	@echo "libs $(LIBS)"

grade:
	@[ -e tools/grade ] || { echo "unsplit: this is a student's tree: make check EX=03.02a checks your work" >&2; exit 3; }
	@tools/setup build build/tools.mk
	@case "$$ARGS" in *--trusted*) ;; *) tools/setup grade || true ;; esac
	+@$(BUILD) PRECISION=fp32 SANITIZE=
	@tools/args tools/grade $${JSON:+--json "$$JSON"} "$$SUBMISSION" "$$EXERCISES"

bugs:
	@tools/setup build build/tools.mk
	+@$(BUILD)
	@tools/try-bug

list:
	@tools/list

doctor:
	@tools/doctor

help:
	@tools/help

setup:
	@tools/setup build build/tools.mk
	@tools/setup prove
	@tools/setup grade || true

clean:
	rm -rf build

# ---- the build ----
# tools/setup finds the flags of the libraries once and installs missing packages. Then make
# starts again with these flags.
FOUND-cpu     = build/tools.mk
FOUND-cuda    = build/tools-cuda.mk
FOUND-standin = build/tools-standin.mk
ifneq ($(filter-out help list doctor setup clean student check predict design plant capstone,$(or $(MAKECMDGOALS),all)),)
    include $(FOUND-$(KIND))
    # once(NAME,COMMAND) gives NAME the output of the command. The command runs when NAME is first
    # used, so a make that needs no flags runs no command.
    once = $(eval $(1) := $(shell $(2)))$($(1))
    # WRAPPER is the compiler's command. COMPILER describes the compiler and the MPI: "gcc (Debian
    # 12.2.0-14) 12.2.0 gcc -I/usr/lib/x86_64-linux-gnu/openmpi/include ..."
    WRAPPER  := OMPI_CC='$(OMPI_CC)' MPICH_CC='$(MPICH_CC)' $(CC)
    COMPILER  = $(call once,COMPILER,{ $(WRAPPER) --version | head -n 1; $(WRAPPER) -show; } 2>/dev/null)
    # clang needs an extra package for OpenMP (libomp-dev). Without OpenMP a rank has one thread.
    # The thread sanitizer does not support OpenMP.
    OPENMP    = $(call once,OPENMP,$(if $(filter thread,$(SANITIZE)),,echo 'int main(void) { return 0; }' | $(WRAPPER) -fopenmp -x c -o /dev/null - 2>/dev/null && echo -fopenmp))
endif
build/tools.mk:
	@tools/setup build $@
build/tools-standin.mk:
	@tools/setup standin $@
build/tools-cuda.mk: build/cuda-asked
	@CUDA_HOME='$(CUDA_HOME)' NCCL_HOME='$(NCCL_HOME)' tools/setup cuda $@
build/cuda-asked: FORCE
	@mkdir -p $(@D)
	@echo '$(CUDA_HOME) $(NCCL_HOME)' | cmp -s - $@ || echo '$(CUDA_HOME) $(NCCL_HOME)' >$@

programs: $(or $(ONLY),$(PROGRAMS:%.c=$(O)/%) preloads) $(TEXT)
preloads: $(PRELOADS:%.c=$(O)/%.so)
	@:

# Objects are built again when the compiler, the MPI or the flags change. -Werror does not count
# as a change.
COMPILE = $(CC) $(CFLAGS) $(DEFINES) $(CFLAGS-$(KIND)) -I.
CFLAGS-cpu     = $(BLAS_CFLAGS)
CFLAGS-cuda    = $(NCCL_CFLAGS) $(CUDA_CFLAGS)
CFLAGS-standin = -DHAVE_NCCL -Itests/standin/include
FLAGS_NOW = $(COMPILER) $(filter-out $(WERROR) -Werror all-warnings,$(COMPILE) $(KERNEL-$(KIND)))
$(O)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS_NOW)' | cmp -s - $@ || echo '$(FLAGS_NOW)' >$@

# SYMBOL defines the symbol of EXPERIMENT: experiment_03_tensor_parallel_experiments_02_linear.
SYMBOL = -DEXPERIMENT_SYMBOL=experiment_$(subst /,_,$(basename $<))
# Experiments, judge/frame, judge/draw and tests calculate little, so a fast build matters more than
# a fast program. fp64 serves mainly for tests, so in fp64 -O1 also compiles all other files without
# kernels.
BUILD_FAST = $(if $(or $(findstring /experiments/,$<),$(filter judge/frame/% judge/draw/% tests/test_%,$<),\
                 $(if $(filter fp64,$(PRECISION)),$(if $(filter $<,$(PARALLEL)),,yes))),-O1)
# The .d file is removed first, because copies of the tree have hard links to it. The compiler
# removes the .o file.
$(O)/%.o: %.c $(O)/flags
	@mkdir -p $(@D)
	@rm -f $(@:.o=.d)
	@echo "compiling $<"
	@$(COMPILE) $(BUILD_FAST) -DDEFAULT_TEXT='"$(TEXT)"' $(SYMBOL) -MMD -MP -c -o $@ $<

# A file with kernels is C. For a GPU the file is compiled as CUDA C++, and for the stand-ins as
# plain C++. The functions keep C linkage. --fmad=false turns off the fused multiply-add, which
# would change bits.
GPUS   = $(patsubst sm_%,%,$(if $(filter native,$(ARCH)),$(GPU_HERE),$(ARCH)))
GENCODE = $(if $(filter all%,$(GPUS)),-arch=$(GPUS),$(foreach n,$(GPUS),-gencode arch=compute_$n,code=sm_$n) \
              -gencode arch=compute_$(lastword $(GPUS)),code=compute_$(lastword $(GPUS)))
KERNEL-cuda    = $(NVCC) -std=c++17 --extended-lambda --fmad=false -O3 -g -lineinfo $(GENCODE) \
                 $(if $(filter -Werror,$(WERROR)),-Werror all-warnings) -Wno-deprecated-gpu-targets -Xcompiler -Wall,-Wextra,-ffp-contract=off $(DEFINES) -I.
KERNEL-standin = $(CXX) -std=gnu++17 $(BOTH) $(DEFINES) $(CFLAGS-standin) -I.
$(KERNELS:%.c=$(O)/%.o): $(O)/%.o: %.c $(O)/flags
	@mkdir -p $(@D)
	@echo "compiling $< for a GPU$(if $(STANDIN), (stand-in))"
	@rm -f $(@:.o=.d)
	@printf '#include "common/device/for_each.h"\nextern "C" {\n#include "%s"\n}\n' $< >$(@:.o=$(if $(STANDIN),.cpp,.cu))
	@$(KERNEL-$(KIND)) $(SYMBOL) -MMD -MP -MF $(@:.o=.d) -c -o $@ $(@:.o=$(if $(STANDIN),.cpp,.cu))

$(O)/tests/standin/%.o: tests/standin/%.cpp $(O)/flags
	@mkdir -p $(@D)
	@rm -f $(@:.o=.d)
	@$(KERNEL-standin) -MMD -MP -c -o $@ $<
STANDINS := $(if $(STANDIN),$(wildcard tests/standin/*.cpp))
$(O)/libstandin.a: $(STANDINS:%.cpp=$(O)/%.o)
	@rm -f $@
	@ar rcs $@ $^

# Writes the compile command of each source, for editors and clang-tidy.
compile_commands.json: FORCE
	@tools/compile-commands "$(filter-out -L% -l% -Wl%,$(shell $(WRAPPER) -show)) $(CFLAGS) $(DEFINES) $(CFLAGS-$(KIND)) -I." $(SOURCES) >$@

$(O)/%.info.c: %.c tools/lesson-info $$(wildcard $$(dir $$*)experiments/$$(notdir $$*).c)
	@mkdir -p $(@D)
	@rm -f $@
	@tools/lesson-info c $< >$@
$(O)/%.info.o: $(O)/%.info.c $(O)/flags
	@rm -f $(@:.o=.d)
	@$(COMPILE) -MMD -MP -c -o $@ $<

$(patsubst %,$(O)/%.a,common judge $(FOLDERS)): $(O)/%.a: $$(call objects,$$*)
	@rm -f $@
	@ar rcs $@ $^

$(LESSONS:%.c=$(O)/%): $(O)/%: $(O)/%.info.o $$(call own,$$*)
$(filter $(O)/tests/%,$(PROGRAMS:%.c=$(O)/%)): $(O)/%: $(O)/%.o $(O)/%.info.o
$(PROGRAMS:%.c=$(O)/%): $(O)/%: $$(call libraries,$$(firstword $$(subst /, ,$$*))) $(if $(STANDIN),$(O)/libstandin.a)
	@$(CC) $(CFLAGS) -o $@ $(filter-out %.a,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS)

# Tests preload these libraries into a program, to replace functions of MPI, of the C library or of
# OpenBLAS.
$(O)/%.so: %.c $(O)/flags
	@mkdir -p $(@D)
	@$(COMPILE) -shared -fPIC -o $@ $<

$(TEXT): FORCE
	@tools/gather-text $@

-include $(SOURCES:%.c=$(O)/%.d) $(STANDINS:%.cpp=$(O)/%.d) $(PROGRAMS:%.c=$(O)/%.info.d)
