/* replay.c: runs a fuzz target over files, without a fuzzer.
 *
 *   fuzz-replay TARGET FILE...      the last line is "N inputs" */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>

static uint8_t *read_file(const char *path, size_t *n)
{
  FILE *f = fopen(path, "rb");
  uint8_t *data = NULL;
  long size;

  if (f && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && (data = malloc((size_t)size + 1))) {
    rewind(f);
    *n = fread(data, 1, (size_t)size, f);
  }
  if (f) fclose(f);
  if (!data) perror(path);
  return data;
}

int main(int argc, char **argv)
{
  if (argc < 3) {
    fputs("usage: fuzz-replay TARGET FILE...\n", stderr);
    return 2;
  }
  fuzz_begin(argv[1]);
  for (int i = 2; i < argc; i++) {
    size_t n = 0;
    uint8_t *data = read_file(argv[i], &n);
    if (!data) return 2;
    fprintf(stderr, "%s\n", argv[i]); /* the last one is where it ended */
    fuzz_one(data, n);
    free(data);
  }
  printf("%d inputs\n", argc - 2);
  return 0;
}
