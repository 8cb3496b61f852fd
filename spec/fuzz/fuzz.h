/* fuzz.h: shared by the fuzz targets, the fuzzer and the replay of the seeds. */
#ifndef AX_FUZZ_H
#define AX_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Chooses the target: a file of targets/, or one that is written in C.  Ends the process when there
 * is none of that name. */
void fuzz_begin(const char *name);
/* Runs the target over one input.  What breaks a property ends in fuzz_violation. */
void fuzz_one(const uint8_t *data, size_t size);
void fuzz_end(void);
/* Makes an input fit again after a mutation (checksums, say), in place; returns its size. */
size_t fuzz_repair(uint8_t *data, size_t size, size_t most);

/* Prints what was violated and aborts, which the fuzzer takes for a crash. */
_Noreturn void fuzz_violation(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The events of Lua lines, for coverage; NULL: nobody counts. */
extern void (*fuzz_count)(uint32_t place);

/* ---- the targets in C */

void fuzz_options(const uint8_t *data, size_t size);  /* options.c: the command line */
void fuzz_settings(const uint8_t *data, size_t size); /* options.c: a configuration file */
void fuzz_hostfile(const uint8_t *data, size_t size); /* options.c: DeepSpeed's hostfile */
void fuzz_hello(const uint8_t *data, size_t size);    /* hello.c: the meeting of machines */

#endif
