/* options.c: fuzz targets of the command line, of the configuration file and of the hostfile.
 *
 * An input of the first is lines.  NAME=VALUE lines at the beginning set environment variables of
 * ours; each further line is a word after "accel-run".  What is refused ends with status 2 and a
 * message; what is taken can be explained and exported. */
#define _GNU_SOURCE
#include "fuzz.h"
#include "launch/launch.h"
#include "settings/settings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_WORDS = 64, MOST_NAMES = 8 };

/* Only ours: another name could change this process itself. */
static bool is_setting(const char *line, const char *equals)
{
  return equals && equals - line < 64 &&
         (strncmp(line, "ACCELERATE_", 11) == 0 || strncmp(line, "OMP_NUM_THREADS=", 16) == 0);
}

/* Cuts `text` into lines: the first ones into the environment, the others into `argv`. */
static int read_words(char *text, char **argv, char **names, int *n_names)
{
  int argc = 1;
  bool settings = true;

  argv[0] = (char *)"accel-run";
  for (char *line = strtok(text, "\n"); line && argc < MOST_WORDS; line = strtok(NULL, "\n")) {
    char *equals = strchr(line, '=');
    if (settings && *n_names < MOST_NAMES && is_setting(line, equals)) {
      *equals = '\0';
      setenv(line, equals + 1, 1);
      names[(*n_names)++] = line;
      continue;
    }
    settings = false;
    argv[argc++] = line;
  }
  argv[argc] = NULL;
  return argc;
}

static void check_refusal(int status, const char *text)
{
  /* a word that is neither a file nor a command gets the help, and status 1 */
  if (status != AX_EXIT_USAGE &&
      !(status == AX_EXIT_FAILED && strstr(text, "is neither a file nor a command")))
    fuzz_violation("status %d; expected %d", status, AX_EXIT_USAGE);
  if (strncmp(text, "accel-run", 9) != 0 || strlen(text) < 20 || text[strlen(text) - 1] != '\n')
    fuzz_violation("the refusal says '%s'", text);
}

static void use(const ax_plan *plan, FILE *f)
{
  const int ranks = ax_config_ranks_here(plan);
  bool given;

  if (ranks < 1 || ax_config_threads(plan, ranks, &given) < 1) fuzz_violation("no ranks or no threads");
  for (int i = 0; i < plan->n_actions; i++) {
    char letter;
    if (!ax_config_action(plan, i, &letter) || !strchr("elj", letter)) fuzz_violation("action %d is none", i);
  }
  if (plan->script < 0 || plan->script >= plan->argc) fuzz_violation("the script is word %d", plan->script);
  ax_config_explain(plan, f);
  ax_config_export(plan, ranks);
}

/* Parses a command line and uses what it says; restores the environment, apart from `names`. */
static void parse(int argc, char **argv)
{
  static const char *const exported[] = {
    "OMP_NUM_THREADS",      "ACCEL_RUN_THREADS",          "GOMP_SPINCOUNT",
    "ACCELERATE_USE_CPU",   "CUDA_VISIBLE_DEVICES",       "CUDA_DEVICE_ORDER",
    "ACCELERATE_GPU_IDS",   "ACCELERATE_MIXED_PRECISION", "ACCELERATE_CONFIG_DS_FIELDS",
    "ACCEL_SETTING_ORIGINS"
  };
  FILE *const before = stderr;
  char *said = NULL;
  size_t length;
  ax_plan plan;
  int status;

  setenv("HF_HOME", "/nowhere", 1); /* no configuration of this machine */
  stderr = open_memstream(&said, &length);
  status = ax_config_parse(argc, argv, &plan);
  if (status == 0 && (plan.mode == AX_MODE_SCRIPT || plan.mode == AX_MODE_EXPLAIN)) use(&plan, stderr);
  ax_config_free(&plan);
  fclose(stderr);
  stderr = before;
  if (status != 0) check_refusal(status, said);
  for (size_t i = 0; i < sizeof exported / sizeof *exported; i++) unsetenv(exported[i]);
  for (int i = 0; i < AX_SET_COUNT; i++) /* what engines export */
    if (ax_settings[i].env && (ax_settings[i].engine >= 0 || strstr(ax_settings[i].env, "_USE_")))
      unsetenv(ax_settings[i].env);
  free(said);
}

void fuzz_options(const uint8_t *data, size_t size)
{
  char *text = strndup((const char *)data, size), *argv[MOST_WORDS + 1], *names[MOST_NAMES];
  int n_names = 0;
  const int argc = read_words(text, argv, names, &n_names);

  parse(argc, argv);
  for (int i = 0; i < n_names; i++) unsetenv(names[i]);
  free(text);
}

void fuzz_settings(const uint8_t *data, size_t size)
{
  const int fd = memfd_create("settings", MFD_CLOEXEC);
  char option[64], *argv[] = { (char *)"accel-run", option, (char *)"--explain", NULL };

  snprintf(option, sizeof option, "--config_file=/proc/self/fd/%d", fd);
  if (fd < 0 || write(fd, data, size) != (ssize_t)size) fuzz_violation("no memory for a file");
  parse(3, argv);
  close(fd);
}

/* The first line is the filter of what takes part, the second the filter of what does not; the file
 * is the rest. */
void fuzz_hostfile(const uint8_t *data, size_t size)
{
  char *text = strndup((const char *)data, size), *rest = text, *in = strsep(&rest, "\n"),
       *out = rest ? strsep(&rest, "\n") : NULL;
  const size_t n = rest ? strlen(rest) : 0;
  const int fd = memfd_create("hosts", MFD_CLOEXEC);
  char file[64];
  char *argv[] = { (char *)"accel-run",
                   (char *)"--use_deepspeed",
                   (char *)"--machine_rank=0",
                   (char *)"--deepspeed_hostfile",
                   file,
                   (char *)"--deepspeed_inclusion_filter",
                   *in ? in : (char *)"none",
                   (char *)"--deepspeed_exclusion_filter",
                   out && *out ? out : (char *)"none",
                   (char *)"--explain",
                   NULL };

  snprintf(file, sizeof file, "/proc/self/fd/%d", fd);
  if (fd < 0 || (n && write(fd, rest, n) != (ssize_t)n)) fuzz_violation("no memory for a file");
  parse((int)(sizeof argv / sizeof *argv) - 1, argv);
  close(fd);
  free(text);
}
