/* settings.h: what the files that read settings share: config.c (precedence, checks), options.c
 * (the command line), config_file.c (default_config.yaml). */
#ifndef AX_SETTINGS_H
#define AX_SETTINGS_H

#include "plan.h"

typedef enum {
  AX_KIND_COUNT,
  AX_KIND_SECONDS,
  AX_KIND_SWITCH,
  AX_KIND_FLAG,
  AX_KIND_TEXT,
  AX_KIND_WORD,
  AX_KIND_LIST
} ax_setting_kind;

typedef struct ax_setting_row {
  const char *name;
  ax_setting_kind kind;
  const char *env, *standard; /* env NULL: no variable sets it */
  double least, most;
  const char *argument, *help;
  int engine; /* the switch that it has no effect without; -1: none */
} ax_setting_row;
extern const ax_setting_row ax_settings[AX_SET_COUNT];

/* Parts of Accelerate that are not here. */
typedef enum {
#define ENGINE(ID, ...) AX_ENGINE_##ID,
#define FOREIGN(...)
#include "foreign.def"
#undef ENGINE
#undef FOREIGN
  AX_ENGINE_COUNT
} ax_engine;

typedef struct ax_engine_row {
  const char *option; /* the one that chooses it; NULL: none, so that its options have no effect */
  const char *reason;
} ax_engine_row;
extern const ax_engine_row ax_engines[AX_ENGINE_COUNT];

typedef struct ax_foreign_row {
  const char *name;
  bool takes_value;
  ax_engine engine;
} ax_foreign_row;
extern const ax_foreign_row ax_foreign[];
extern const int ax_foreign_count;

/* The number of the row, or -1. */
int ax_setting_find(const char *name);
/* Reads `text` as the value of row `id`.  Returns 0, or the exit status after printing what is
 * wrong.  Text and origin are borrowed. */
int ax_setting_assign(ax_plan *plan, int id, const char *text, const char *origin);
/* Whether neither option nor environment has set it. */
bool ax_setting_is_default(const ax_plan *plan, int id);
bool ax_setting_is_option(const ax_plan *plan, int id);
/* Whether an engine, which is a row's number, is switched on: a switch, or mixed_precision fp8. */
bool ax_engine_is_on(const ax_plan *plan, int engine);
/* The option that switches it on. */
const char *ax_engine_option(int engine);
/* A text that lives as long as the plan.  Never NULL: "" without memory. */
const char *ax_plan_text(ax_plan *plan, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints why the engine is not there; returns AX_EXIT_USAGE.  `value`: what chose it, or NULL. */
int ax_engine_refuse(ax_engine engine, const char *origin, const char *value);
/* Whether `text` is one of "a|b|c"; case is ignored. */
bool ax_setting_is_word(const char *words, const char *text);

/* engines.c: checks the settings of engines, with each other and with the others.  0 or the exit
 * status. */
int ax_engines_check(ax_plan *plan);
/* Sets the variables of the engines that are on. */
void ax_engines_export(const ax_plan *plan);

/* hostfile.c: settles the machines by DeepSpeed's hostfile, where it is given.  0 or the exit
 * status. */
int ax_hostfile_read(ax_plan *plan);

/* options.c: reads the words from argv[first] on, up to the script.  0 or the exit status. */
int ax_options_read(ax_plan *plan, int first);
/* The one of n names that was probably meant, or NULL: at most half of the letters may differ, and
 * a word of few letters is not turned into another. */
const char *ax_word_nearest(const char *given, const char *(*name_at)(int), int n);
/* Prints environment variables whose names are nearly one of ours. */
void ax_environment_check(void);

/* config_file.c: reads the configuration file, if there is one, into the settings that nothing else
 * has set.  0 or the exit status. */
int ax_config_file_read(ax_plan *plan);

#endif
