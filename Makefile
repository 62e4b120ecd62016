# Unsplit. `make help` lists what can be typed. Needs GNU make and a shell; tools/setup sees to the rest.
#
# Adding a file is enough: chapters are NN_name/, their programs NN_name/KK_name.c (and 08_3d/train.c and the like), everything
# else in a chapter is a module; a program's rank count, level and question are its first lines and stand nowhere else.

BACKEND   = cpu
PRECISION = fp32
SANITIZE  =
ARCH      = native
CC        = mpicc
WERROR    = -Werror
# A student's tree has a file that says what its open exercises ask for: no warnings of what they leave unused.
-include student.mk
# For one lesson: its options, and the number of ranks where it is not the one of the lesson's first lines.
ARGS =
NP   =
# For break, student and grade: see make help.
BUG =
DIR =
EXERCISES =
SUBMISSION =
JSON =
export OMPI_CC ?= gcc

ifeq ($(BACKEND),cuda)
    $(error BACKEND=cuda: the CUDA side is not in this tree yet; leave BACKEND out)
else ifneq ($(BACKEND),cpu)
    $(error BACKEND=$(BACKEND): there is only cpu)
endif
ifeq ($(filter $(PRECISION),fp32 fp64),)
    $(error PRECISION=$(PRECISION): it is fp32 or fp64)
endif
san-address,undefined := -asan
san-thread := -tsan
ifneq ($(SANITIZE),)
    ifeq ($(san-$(SANITIZE)),)
        $(error SANITIZE=$(SANITIZE): it is address,undefined or thread)
    endif
endif
O = build/$(BACKEND)-$(PRECISION)$(san-$(SANITIZE))

# No fused multiply-add and no fast-math: the same text gives the same bits on every machine and backend. The two -fno-... change no
# value: they let sqrt and comparisons be vectorised, as nobody here reads errno or traps.
CFLAGS  = -std=gnu11 $(if $(SANITIZE),-O1 -fno-omit-frame-pointer -fsanitize=$(SANITIZE) -fno-sanitize-recover=all,-O3) -g \
          -march=$(ARCH) -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-format-truncation $(WERROR) -pthread
DEFINES = $(if $(filter fp64,$(PRECISION)),-DREAL_IS_DOUBLE)
LIBS    = $(BLAS_LIBS) -lpthread -lm
TEXT    = build/text.txt

# ---- what there is ----
SOURCES  := $(wildcard common/*.c [0-9][0-9]_*/*.c tests/test_*.c tests/bench_*.c)
PROGRAMS := $(wildcard common/run_00.c [0-9][0-9]_*/[0-9][0-9]_*.c 08_3d/plan.c 08_3d/sample.c 08_3d/train.c tests/test_*.c tests/bench_*.c)
MODULES  := $(filter-out $(PROGRAMS),$(SOURCES))
PRELOADS := $(wildcard tests/pmpi_*.c)
CHAPTERS := $(sort $(foreach d,$(wildcard [0-9][0-9]_*/),$(firstword $(subst _, ,$(d)))))
CORES     = $(shell nproc 2>/dev/null || echo 2)

.SECONDARY:
.SECONDEXPANSION:
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all programs run figures bench test test-all bugs student grade list doctor help setup clean FORCE

# The build itself runs in a second make, which uses every core; ONLY= limits it to some programs.
BUILD = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(CORES)) programs
all:
	+@$(BUILD)

# ---- commands ----
# Programs that a key as in run-KEY means: 03 a chapter, 03-02 a lesson, 08-train a program by its name, 00 week 0.
key-chapter = $(firstword $(subst -, ,$(1)))
key-lesson  = $(word 2,$(subst -, ,$(1)))
programs-of = $(patsubst %.c,$(O)/%,$(filter $(PROGRAMS),$(if $(filter 00,$(1)),common/run_00.c,$(wildcard \
    $(if $(key-lesson),$(key-chapter)_*/$(key-lesson)_*.c $(key-chapter)_*/$(key-lesson).c,$(key-chapter)_*/*.c)))))
BUILD_LESSON = +@$(if $(call programs-of,$*),$(BUILD) ONLY="$(call programs-of,$*)")
RUN_LESSON = NP='$(NP)' tools/run-lesson $(O)

run:
	+@$(BUILD)
	@set -e; for chapter in $(CHAPTERS); do $(RUN_LESSON) run $$chapter; done

run-%: FORCE
	$(BUILD_LESSON)
	@$(RUN_LESSON) run $* $(ARGS)

emu-%: FORCE
	$(BUILD_LESSON)
	@$(RUN_LESSON) emu $* $(ARGS)

play-%: FORCE
	$(BUILD_LESSON)
	@NP='$(NP)' tools/play-lesson $(O) $* $(ARGS)

# The commands in the pages name the build of these defaults.
figures:
	+@$(BUILD) PRECISION=fp32 SANITIZE=
	@tools/figures

bench:
	+@$(BUILD) ONLY=$(O)/tests/bench_record
	@tools/bench $(O) $(ARGS)

test:
	@tools/setup prove
	+@$(BUILD) PRECISION=fp32
	+@$(BUILD) PRECISION=fp64
	@tools/run-tests tests/*.t

test-all:
	@tools/setup prove
	+@$(BUILD) PRECISION=fp32
	+@$(BUILD) PRECISION=fp64
	+@$(BUILD) SANITIZE=address,undefined
	+@$(BUILD) SANITIZE=thread
	@TEST_ALL=1 tools/run-tests tests/*.t

break-%: FORCE
	@tools/setup build build/tools.mk
	+@$(BUILD)
	@NP='$(NP)' tools/break $* '$(BUG)'

student:
	@tools/student '$(DIR)' $(EXERCISES)

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

clean:
	rm -rf build

# ---- the build ----
# Which flags BLAS needs is found out once, by set-up, which installs what is missing; make then starts over with the result.
ifneq ($(filter-out help list doctor setup clean student,$(or $(MAKECMDGOALS),all)),)
    include build/tools.mk
endif
build/tools.mk:
	@tools/setup build $@

programs: $(or $(ONLY),$(PROGRAMS:%.c=$(O)/%) $(PRELOADS:%.c=$(O)/%.so)) $(TEXT)
	@:

# Objects depend on the flags they are built with; whether a warning ends the build makes no difference to them.
COMPILE = $(CC) $(CFLAGS) $(DEFINES) $(BLAS_CFLAGS) -I.
$(O)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(OMPI_CC) $(filter-out $(WERROR),$(COMPILE))' | cmp -s - $@ || echo '$(OMPI_CC) $(filter-out $(WERROR),$(COMPILE))' >$@

$(O)/%.o: %.c $(O)/flags
	@mkdir -p $(@D)
	@echo "compiling $<"
	@$(COMPILE) -DDEFAULT_TEXT='"$(TEXT)"' -MMD -MP -c -o $@ $<

$(O)/%.info.c: %.c tools/lesson-info
	@mkdir -p $(@D)
	@tools/lesson-info c $< >$@
$(O)/%.info.o: $(O)/%.info.c $(O)/flags
	@$(COMPILE) -MMD -MP -c -o $@ $<

$(O)/libunsplit.a: $(MODULES:%.c=$(O)/%.o)
	@rm -f $@
	@ar rcs $@ $^

$(PROGRAMS:%.c=$(O)/%): $(O)/%: $(O)/%.o $(O)/%.info.o $(O)/libunsplit.a
	@$(CC) $(CFLAGS) -o $@ $^ $(LIBS)

# Libraries that tests put between a program and MPI.
$(O)/%.so: %.c $(O)/flags
	@mkdir -p $(@D)
	@$(COMPILE) -shared -fPIC -o $@ $<

$(TEXT): FORCE
	@tools/gather-text $@

-include $(SOURCES:%.c=$(O)/%.d) $(PROGRAMS:%.c=$(O)/%.info.d)
