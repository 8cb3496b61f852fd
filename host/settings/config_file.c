/* config_file.c: the configuration file, as `accelerate config` writes it and `accelerate launch`
 * reads it, into the settings that neither an option nor the environment has set.
 *
 * Keys are the names of settings, and those that Accelerate has beside them.  Keys of parts that
 * are not here (TPUs, DeepSpeed and others) are known and left alone, unless the file chooses such
 * a part.  Keys that nobody knows are an error that lists them. */
#include "settings.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "ax.h"
#include "script/script.h"
#include "yaml_tree.h"

/* ---- the file */

/* Where Accelerate keeps its configuration; NULL: the user has no home folder. */
static const char *default_place(ax_plan *plan)
{
  char folder[PATH_MAX];

  if (!ax_hf_home(folder, sizeof folder)) return NULL;
  return ax_plan_text(plan, "%s/accelerate/default_config.yaml", folder);
}

/* Sets the path of the file to read, or leaves "none". */
static void find_file(ax_plan *plan)
{
  ax_setting *s = &plan->set[AX_SET_config_file];
  const char *given = getenv(ax_settings[AX_SET_config_file].env), *path;

  if (!ax_setting_is_default(plan, AX_SET_config_file) || (given && !*given)) return;
  if (plan->set[AX_SET_cpu].number && ax_setting_is_option(plan, AX_SET_cpu)) return;
  path = default_place(plan);
  if (path && access(path, F_OK) == 0) *s = (ax_setting){ 1, path, "its usual place" };
}

static int slurp(const char *path, char **text, size_t *size)
{
  FILE *f = fopen(path, "rb");

  *text = NULL;
  if (!f || !(*text = malloc(AX_YAML_SIZE + 1))) {
    ax_print(stderr, "accel-run: cannot read the configuration %s: %s\n", path, strerror(errno));
    if (f) fclose(f);
    return AX_EXIT_USAGE;
  }
  *size = fread(*text, 1, AX_YAML_SIZE + 1, f);
  if (ferror(f)) {
    ax_print(stderr, "accel-run: cannot read the configuration %s: %s\n", path, strerror(errno));
    free(*text);
    *text = NULL;
  }
  fclose(f);
  return *text ? 0 : AX_EXIT_USAGE;
}

/* ---- keys */

typedef struct config_file {
  ax_plan *plan;
  const char *path;
  const ax_yaml_node *root;
} config_file;

typedef enum { KEY_DONE, KEY_REFUSED, KEY_ABOVE_1, KEY_NOTED, KEY_UNUSED } key_use;

/* Keys that Accelerate has written. */
static const struct {
  const char *map, *name;
  key_use use;
  const char *why;
} keys[] = {
#define KEY(map, name, use, why) { #map, #name, KEY_##use, why },
#include "config_keys.def"
#undef KEY
};
#define N_KEYS ((int)(sizeof keys / sizeof *keys))

/* The row of a key in a map, or -1. */
static int find_key(const char *map, const char *name)
{
  for (int i = 0; i < N_KEYS; i++)
    if (strcmp(keys[i].map, map) == 0 && strcmp(keys[i].name, name) == 0) return i;
  return -1;
}

static const ax_yaml_node *value_of(const ax_yaml_node *map, const char *key)
{
  if (!map || map->kind != AX_YAML_MAP) return NULL;
  for (const ax_yaml_node *k = map->first; k; k = k->next->next)
    if (k->text && strcmp(k->text, key) == 0) return k->next->kind == AX_YAML_NULL ? NULL : k->next;
  return NULL;
}

static bool is_known(const char *key)
{
  const int id = ax_setting_find(key);
  return id >= 0 ? id != AX_SET_config_file && ax_settings[id].engine < 0 : find_key("top", key) >= 0;
}

static const char *key_at(int i)
{
  if (i < AX_SET_COUNT) return ax_settings[i].name;
  return strcmp(keys[i - AX_SET_COUNT].map, "top") == 0 ? keys[i - AX_SET_COUNT].name : "";
}

static int check_keys(const config_file *c)
{
  int unknown = 0;

  for (const ax_yaml_node *k = c->root->first; k; k = k->next->next) {
    const char *near;
    if (k->kind == AX_YAML_TEXT && is_known(k->text)) continue;
    if (unknown++ == 0)
      ax_print(stderr, "accel-run: %s has keys that are not known (take them out, or correct them):\n",
               c->path);
    near = ax_word_nearest(k->text, key_at, AX_SET_COUNT + N_KEYS);
    ax_print(stderr, "  line %d: %s%s%s%s\n", k->line, k->text, near ? "; did you mean " : "",
             near ? near : "", near ? "?" : "");
  }
  return unknown ? AX_EXIT_USAGE : 0;
}

/* ---- values */

static const char *origin_of(const config_file *c, const ax_yaml_node *v, const char *key)
{
  return ax_plan_text(c->plan, "%s:%d: %s", c->path, v->line, key);
}

/* The value as an option has it: a word keeps its letters, so that an unquoted no is "no" where
 * words are expected and false where a switch is, or true and false are among the words. */
static const char *text_of(const config_file *c, const ax_yaml_node *v, const ax_setting_row *row)
{
  const ax_setting_kind kind = row->kind;

  if (v->kind == AX_YAML_BOOL && (kind == AX_KIND_SWITCH || kind == AX_KIND_FLAG ||
                                  (kind == AX_KIND_WORD && ax_setting_is_word(row->argument, "true"))))
    return v->truth ? "true" : "false";
  if (v->kind == AX_YAML_INT && kind != AX_KIND_LIST && kind != AX_KIND_TEXT)
    return ax_plan_text(c->plan, "%.17g", v->number);
  return ax_plan_text(c->plan, "%s", v->text);
}

/* The first values of a list with commas between them: one more than any row takes. */
static const char *joined(const config_file *c, const ax_yaml_node *list)
{
  const char *text = "";
  const ax_yaml_node *v = list->first;
  for (int i = 0; v && i < 4; i++, v = v->next)
    text = ax_plan_text(c->plan, "%s%s%s", text, *text ? "," : "", v->text ? v->text : "?");
  return text;
}

static int set(const config_file *c, int id, const char *key, const ax_yaml_node *v)
{
  if (!v || !ax_setting_is_default(c->plan, id)) return 0;
  if (v->kind == AX_YAML_LIST && id == AX_SET_fp8_override_linear_precision)
    return ax_setting_assign(c->plan, id, joined(c, v), origin_of(c, v, key));
  if (v->kind == AX_YAML_LIST || v->kind == AX_YAML_MAP || strlen(v->text) != v->size) {
    ax_print(stderr, "accel-run: %s:%d: %s: expected one value, got %s\n", c->path, v->line, key,
             ax_yaml_kind_name(v->kind));
    return AX_EXIT_USAGE;
  }
  return ax_setting_assign(c->plan, id, text_of(c, v, &ax_settings[id]), origin_of(c, v, key));
}

/* A value that this file alone makes. */
static int imply(const config_file *c, int id, const char *value, const ax_yaml_node *v, const char *key)
{
  if (!ax_setting_is_default(c->plan, id)) return 0;
  return ax_setting_assign(c->plan, id, value, origin_of(c, v, key));
}

static int refuse(const config_file *c, const ax_yaml_node *v, const char *key, ax_engine engine)
{
  return ax_engine_refuse(engine, origin_of(c, v, key), v->text ? v->text : "a map");
}

/* ---- what the file chooses */

static int check_environment(const config_file *c)
{
  const ax_yaml_node *v = value_of(c->root, "compute_environment");

  if (!v || !v->text || strcmp(v->text, "LOCAL_MACHINE") == 0) return 0;
  if (strcmp(v->text, "AMAZON_SAGEMAKER") == 0)
    return refuse(c, v, "compute_environment", AX_ENGINE_SAGEMAKER);
  ax_print(stderr, "accel-run: %s:%d: compute_environment: expected LOCAL_MACHINE, got '%s'\n", c->path,
           v->line, v->text);
  return AX_EXIT_USAGE;
}

/* One rank, whatever num_processes is: Accelerate starts one. */
static int not_distributed(const config_file *c, const ax_yaml_node *type)
{
  ax_setting *s = &c->plan->set[AX_SET_num_processes];

  if (!ax_setting_is_default(c->plan, AX_SET_num_processes) &&
      strncmp(s->origin, c->path, strlen(c->path)) != 0)
    return 0;
  if (s->number > 1)
    ax_print(stderr,
             "accel-run: %s:%d: distributed_type NO starts one rank, and num_processes %s is not used\n",
             c->path, type->line, s->text);
  return ax_setting_assign(c->plan, AX_SET_num_processes, "1", origin_of(c, type, "distributed_type"));
}

static int distributed(const config_file *c, const ax_yaml_node *type)
{
  const ax_yaml_node *n = value_of(c->root, "num_processes");

  if (!ax_setting_is_default(c->plan, AX_SET_num_processes)) return 0;
  ax_print(
      stderr,
      "accel-run: %s:%d: distributed_type %s, and num_processes %s; give it there, or as --num_processes N\n",
      c->path, n ? n->line : type->line, type->text, n ? "is -1" : "is missing");
  return AX_EXIT_USAGE;
}

/* An engine by the file, unless the command line chose otherwise. */
static int imply_engine(const config_file *c, int id, const ax_yaml_node *type)
{
  static const int others[] = { AX_SET_multi_gpu, AX_SET_use_fsdp, AX_SET_use_deepspeed };

  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (others[i] != id && ax_setting_is_option(c->plan, others[i])) return 0;
  return imply(c, id, "true", type, "distributed_type");
}

static int set_type(const config_file *c)
{
  static const char types[] = "NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED";
  static const struct {
    const char *name;
    ax_engine engine;
  } engines[] = { { "MEGATRON_LM", AX_ENGINE_MEGATRON_LM },
                  { "TP", AX_ENGINE_PARALLELISM },
                  { "XLA", AX_ENGINE_TPU },
                  { "TPU", AX_ENGINE_TPU } };
  const ax_yaml_node *v = value_of(c->root, "distributed_type");
  int status;

  if (!v || !v->text) {
    ax_print(stderr, "accel-run: %s: the key distributed_type is missing; expected %s\n", c->path, types);
    return AX_EXIT_USAGE;
  }
  if (strcasecmp(v->text, "NO") == 0) return not_distributed(c, v);
  for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
    if (strcmp(v->text, engines[i].name) == 0) return refuse(c, v, "distributed_type", engines[i].engine);
  if (strcmp(v->text, "FSDP") == 0) status = imply_engine(c, AX_SET_use_fsdp, v);
  else if (strcmp(v->text, "DEEPSPEED") == 0) status = imply_engine(c, AX_SET_use_deepspeed, v);
  else if (strcmp(v->text, "MULTI_CPU") == 0) status = imply(c, AX_SET_cpu, "true", v, "distributed_type");
  else if (strcmp(v->text, "MULTI_GPU") == 0)
    status = imply(c, AX_SET_multi_gpu, "true", v, "distributed_type");
  else {
    ax_print(stderr, "accel-run: %s:%d: distributed_type: expected %s, got '%s'%s\n", c->path, v->line, types,
             v->text,
             strncmp(v->text, "MULTI_", 6) == 0 || strcmp(v->text, "MPS") == 0
                 ? "; there is no backend for such devices"
                 : "");
    return AX_EXIT_USAGE;
  }
  return status ? status : distributed(c, v);
}

/* num_processes -1 stands for a number that the command line gives. */
static bool is_left_open(const char *key, const ax_yaml_node *v)
{
  return strcmp(key, "num_processes") == 0 && v->kind == AX_YAML_INT && v->number == -1;
}

static int set_rows(const config_file *c)
{
  int status;

  for (const ax_yaml_node *k = c->root->first; k; k = k->next->next) {
    const int id = strcmp(k->text, "use_cpu") == 0 ? AX_SET_cpu : ax_setting_find(k->text);
    if (id < 0 || k->next->kind == AX_YAML_NULL || is_left_open(k->text, k->next)) continue;
    if ((status = set(c, id, k->text, k->next)) != 0) return status;
  }
  return 0;
}

/* Whether a value has an effect in Accelerate: not false, 0, null, "no" or nothing. */
static bool is_chosen(const ax_yaml_node *v)
{
  if (v->kind == AX_YAML_NULL || (v->kind == AX_YAML_BOOL && !v->truth)) return false;
  if (v->kind == AX_YAML_INT) return v->number != 0;
  return !v->text || (*v->text && strcasecmp(v->text, "no") != 0 && strcasecmp(v->text, "false") != 0 &&
                      strcasecmp(v->text, "default") != 0);
}

/* A key of a map whose prefix may be left out: Accelerate writes dynamo_backend in
 * dynamo_config. */
static int find_nested(const char *map, const char *name)
{
  static const char *const prefixes[] = { "dynamo_", "parallelism_config_" };
  int row = find_key(map, name);

  for (size_t i = 0; row < 0 && i < sizeof prefixes / sizeof *prefixes; i++)
    if (strncmp(map, prefixes[i], strlen(prefixes[i]) - 1) == 0 &&
        strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
      row = find_key(map, name + strlen(prefixes[i]));
  return row;
}

/* A map of an engine, whose keys are its settings. */
typedef struct engine_map {
  const char *name, *prefix; /* the prefix may be left out in the file */
  int engine;
} engine_map;
static const engine_map engine_maps[] = {
  { "fsdp_config", "fsdp_", AX_SET_use_fsdp },
  { "parallelism_config", "parallelism_config_", AX_SET_use_parallelism_config },
  { "fp8_config", "fp8_", AX_SET_mixed_precision },
  { "deepspeed_config", "", AX_SET_use_deepspeed }, /* Accelerate names its keys as the options */
};
#define N_ENGINE_MAPS ((int)(sizeof engine_maps / sizeof *engine_maps))

/* The setting of a key in an engine's map, or -1. */
static int find_engine_setting(const config_file *c, const engine_map *m, const char *name)
{
  const bool whole = strncmp(name, m->prefix, strlen(m->prefix)) == 0;
  int id = ax_setting_find(whole ? name : ax_plan_text(c->plan, "%s%s", m->prefix, name));

  /* as early versions called it, and as Accelerate's questions do */
  static const struct {
    const char *name;
    int id;
  } others[] = { { "backward_prefetch_policy", AX_SET_fsdp_backward_prefetch },
                 { "amax_history_length", AX_SET_fp8_amax_history_len },
                 { "amax_compute_algorithm", AX_SET_fp8_amax_compute_algo },
                 { "optimization_level", AX_SET_fp8_opt_level } };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (strcmp(name + (whole ? strlen(m->prefix) : 0), others[i].name) == 0) id = others[i].id;
  return id >= 0 && ax_settings[id].engine == m->engine ? id : -1;
}

static int check_nested(const config_file *c, const char *map, const ax_yaml_node *key)
{
  const ax_yaml_node *v = key->next;
  const int row = key->text ? find_nested(map, key->text) : -1;

  if (row < 0)
    ax_print(stderr, "accel-run: %s:%d: %s: the key %s is not known, and has no effect\n", c->path, key->line,
             map, key->text ? key->text : ax_yaml_kind_name(key->kind));
  else if (keys[row].use == KEY_ABOVE_1 && v->kind == AX_YAML_INT && v->number > 1)
    return refuse(c, v, key->text, AX_ENGINE_PARALLELISM);
  else if (keys[row].use == KEY_NOTED && is_chosen(v))
    ax_print(stderr, "accel-run: %s:%d: %s has no effect: %s\n", c->path, v->line, key->text, keys[row].why);
  return 0;
}

/* Finds the map of a name; *map NULL: the file has none. */
static int find_map(const config_file *c, const char *name, const ax_yaml_node **map)
{
  *map = value_of(c->root, name);
  if (!*map || (*map)->kind == AX_YAML_MAP) return 0;
  ax_print(stderr, "accel-run: %s:%d: %s: expected keys with values, got %s\n", c->path, (*map)->line, name,
           ax_yaml_kind_name((*map)->kind));
  return AX_EXIT_USAGE;
}

static int set_engine(const config_file *c, const engine_map *m, const ax_yaml_node *map)
{
  int status = 0;

  for (const ax_yaml_node *k = map->first; k && status == 0; k = k->next->next) {
    const int id = k->text ? find_engine_setting(c, m, k->text) : -1;
    if (id < 0) status = check_nested(c, m->name, k);
    else if (k->next->kind != AX_YAML_NULL) status = set(c, id, k->text, k->next);
  }
  return status;
}

/* The maps of engines that the file, or what came before it, chooses; others are left alone. */
static int set_engines(const config_file *c)
{
  const ax_yaml_node *map;
  int status = 0;

  if ((status = find_map(c, "parallelism_config", &map)) != 0) return status;
  if (map && map->first && c->plan->set[AX_SET_num_processes].number != 1)
    status = imply(c, AX_SET_use_parallelism_config, "true", map, "parallelism_config");
  for (int i = 0; i < N_ENGINE_MAPS && status == 0; i++) {
    if (!ax_engine_is_on(c->plan, engine_maps[i].engine)) continue;
    if ((status = find_map(c, engine_maps[i].name, &map)) == 0 && map)
      status = set_engine(c, &engine_maps[i], map);
  }
  return status;
}

/* The maps that are read here; those of engines are left alone, unless the file chooses one. */
static int check_maps(const config_file *c)
{
  static const char *const maps[] = { "dynamo_config", "mpirun_config", "ipex_config", "tp_config" };
  int status = 0;

  for (size_t i = 0; i < sizeof maps / sizeof *maps && status == 0; i++) {
    const ax_yaml_node *map;
    if ((status = find_map(c, maps[i], &map)) != 0) return status;
    for (const ax_yaml_node *k = map ? map->first : NULL; k && status == 0; k = k->next->next)
      status = check_nested(c, maps[i], k);
  }
  return status;
}

/* Keys of earlier versions, and those of nested maps; in a map the prefix may be left out. */
static int set_others(const config_file *c)
{
  const ax_yaml_node *v, *map = value_of(c->root, "dynamo_config");
  int status;

  if ((v = value_of(c->root, "fp16")) && v->kind == AX_YAML_BOOL && v->truth &&
      !value_of(c->root, "mixed_precision") &&
      (status = imply(c, AX_SET_mixed_precision, "fp16", v, "fp16")) != 0)
    return status;
  if (!(v = value_of(map, "dynamo_backend"))) v = value_of(map, "backend");
  if ((status = set(c, AX_SET_dynamo_backend, "dynamo_backend", v)) != 0) return status;
  v = value_of(value_of(c->root, "mpirun_config"), "mpirun_hostfile");
  if ((status = set(c, AX_SET_mpirun_hostfile, "mpirun_hostfile", v)) != 0) return status;
  return check_maps(c);
}

static int read_map(const config_file *c)
{
  int status;

  if (c->root->kind != AX_YAML_MAP) {
    ax_print(stderr, "accel-run: %s: expected keys with values, got %s\n", c->path,
             ax_yaml_kind_name(c->root->kind));
    return AX_EXIT_USAGE;
  }
  if ((status = check_environment(c)) != 0 || (status = check_keys(c)) != 0 || (status = set_rows(c)) != 0 ||
      (status = set_others(c)) != 0)
    return status;
  status = set_type(c);
  return status ? status : set_engines(c);
}

int ax_config_file_read(ax_plan *plan)
{
  config_file c = { .plan = plan };
  ax_yaml *tree = NULL;
  size_t size, n;
  char *text;
  int status;

  find_file(plan);
  if (ax_setting_is_default(plan, AX_SET_config_file)) return 0;
  c.path = plan->set[AX_SET_config_file].text;
  if ((status = slurp(c.path, &text, &size)) != 0) return status;
  n = strlen(c.path);
  if (ax_yaml_parse(c.path, text, size, n > 5 && strcmp(c.path + n - 5, ".json") == 0, &tree) != AX_OK) {
    ax_print(stderr, "accel-run: %s\n", ax_last_error());
    status = AX_EXIT_USAGE;
  } else {
    c.root = ax_yaml_root(tree);
    status = read_map(&c);
  }
  ax_yaml_free(tree);
  free(text);
  return status;
}
