/* engines.c: the settings of an engine (FSDP, ParallelismConfig, DeepSpeed, FP8): they have an
 * effect only with its switch, and travel to the ranks as the variables of Accelerate's launcher.
 *
 * A variable of an engine that is not switched on may hold anything: other programs read it. */
#define _GNU_SOURCE
#include "script/script.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

bool ax_engine_is_on(const ax_plan *plan, int engine)
{
  if (engine == AX_SET_mixed_precision) return strcmp(plan->set[engine].text, "fp8") == 0;
  return plan->set[engine].number != 0;
}

const char *ax_engine_option(int engine)
{
  return engine == AX_SET_mixed_precision ? "mixed_precision fp8" : ax_settings[engine].name;
}

static bool is_on(const ax_plan *plan, int id) { return ax_engine_is_on(plan, ax_settings[id].engine); }

/* ---- checks */

/* Reads what the environment gave to engines that are on, and names options without their
 * switch. */
static int check_values(ax_plan *plan)
{
  for (int i = 0; i < AX_SET_COUNT; i++) {
    const ax_setting s = plan->set[i];
    int status;
    if (ax_settings[i].engine < 0 || ax_setting_is_default(plan, i)) continue;
    if (is_on(plan, i)) {
      if ((status = ax_setting_assign(plan, i, s.text, s.origin)) != 0) return status;
    } else if (ax_setting_is_option(plan, i) && !plan->set[AX_SET_quiet].number) {
      ax_print(stderr, "accel-run: %s has no effect without --%s\n", s.origin,
               ax_engine_option(ax_settings[i].engine));
    }
  }
  return 0;
}

static int check_fsdp(const ax_plan *plan)
{
  const ax_setting *efficient = &plan->set[AX_SET_fsdp_cpu_ram_efficient_loading],
                   *sync = &plan->set[AX_SET_fsdp_sync_module_states];

  if (ax_setting_is_option(plan, AX_SET_use_fsdp) && ax_setting_is_option(plan, AX_SET_multi_gpu)) {
    fputs("accel-run: --multi_gpu and --use_fsdp: give one of them; FSDP takes the GPUs, too\n", stderr);
    return AX_EXIT_USAGE;
  }
  if (efficient->number && !sync->number) {
    ax_print(
        stderr,
        "accel-run: fsdp_cpu_ram_efficient_loading true (%s) needs fsdp_sync_module_states true (%s is %s)\n",
        efficient->origin, sync->origin, sync->text);
    return AX_EXIT_USAGE;
  }
  return 0;
}

static int check_parallelism(const ax_plan *plan)
{
  static const int missing[] = { AX_SET_parallelism_config_tp_size, AX_SET_parallelism_config_cp_size,
                                 AX_SET_parallelism_config_sp_size };
  const ax_setting *version = &plan->set[AX_SET_fsdp_version];

  for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
    if (plan->set[missing[i]].number > 1)
      return ax_engine_refuse(AX_ENGINE_PARALLELISM, plan->set[missing[i]].origin,
                              plan->set[missing[i]].text);
  if (!ax_setting_is_option(plan, AX_SET_use_parallelism_config)) return 0;
  if (!plan->set[AX_SET_use_fsdp].number) {
    fputs("accel-run: --use_parallelism_config needs --use_fsdp, with --fsdp_version 2\n", stderr);
    return AX_EXIT_USAGE;
  }
  if (strcmp(version->text, "2") != 0) {
    ax_print(stderr, "accel-run: --use_parallelism_config needs --fsdp_version 2; it is %s (%s)\n",
             version->text, version->origin);
    return AX_EXIT_USAGE;
  }
  return 0;
}

static int check_deepspeed(const ax_plan *plan)
{
  static const int others[] = { AX_SET_multi_gpu, AX_SET_use_fsdp };

  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (ax_setting_is_option(plan, AX_SET_use_deepspeed) && ax_setting_is_option(plan, others[i])) {
      ax_print(stderr, "accel-run: --%s and --use_deepspeed: give one of them\n",
               ax_settings[others[i]].name);
      return AX_EXIT_USAGE;
    }
  return 0;
}

/* The three truth values of override_linear_precision; false: there are others. */
static bool three_flags(const char *text, bool flags[3])
{
  for (int i = 0; i < 3; i++) {
    const size_t n = strcspn(text, ",");
    flags[i] = n == 4 && strncasecmp(text, "true", 4) == 0;
    if (!flags[i] && !(n == 5 && strncasecmp(text, "false", 5) == 0)) return false;
    if (text[n] != (i < 2 ? ',' : '\0')) return false;
    text += n + 1;
  }
  return true;
}

static int check_fp8(const ax_plan *plan)
{
  const ax_setting *s = &plan->set[AX_SET_fp8_override_linear_precision];
  bool flags[3];

  if (strcmp(s->text, "none") == 0 || three_flags(s->text, flags)) return 0;
  ax_print(stderr, "accel-run: %s: expected three of true and false, such as false,false,true; got '%s'\n",
           s->origin, s->text);
  return AX_EXIT_USAGE;
}

int ax_engines_check(ax_plan *plan)
{
  int status;

  if ((status = check_values(plan)) != 0) return status;
  if (plan->set[AX_SET_use_fsdp].number && (status = check_fsdp(plan)) != 0) return status;
  if (plan->set[AX_SET_use_deepspeed].number && (status = check_deepspeed(plan)) != 0) return status;
  if (ax_engine_is_on(plan, AX_SET_mixed_precision) && (status = check_fp8(plan)) != 0) return status;
  return plan->set[AX_SET_use_parallelism_config].number ? check_parallelism(plan) : 0;
}

/* ---- what the ranks see */

/* Where the values of the variables came from, a line each: "FSDP_VERSION\tc.yaml:3: version". */
#define ORIGINS "ACCEL_SETTING_ORIGINS"

/* The DeepSpeed settings that the configuration file gives: beside a DeepSpeed configuration, which
 * has them, the library refuses some. */
static void export_fields(const ax_plan *plan)
{
  const ax_setting *file = &plan->set[AX_SET_config_file];
  char text[1024] = "";
  size_t at = 0;

  if (!plan->set[AX_SET_use_deepspeed].number || !file->number) return;
  for (int i = 0; i < AX_SET_COUNT; i++)
    if ((ax_settings[i].engine == AX_SET_use_deepspeed || i == AX_SET_mixed_precision) &&
        strncmp(plan->set[i].origin, file->text, strlen(file->text)) == 0 && at < sizeof text)
      at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", at ? "," : "", ax_settings[i].name);
  setenv("ACCELERATE_CONFIG_DS_FIELDS", text, 1);
}

/* Accelerate has a variable for each of the three. */
static void export_overrides(const ax_plan *plan)
{
  static const char *const names[3] = { "ACCELERATE_FP8_OVERRIDE_FPROP", "ACCELERATE_FP8_OVERRIDE_DGRAD",
                                        "ACCELERATE_FP8_OVERRIDE_WGRAD" };
  bool flags[3];

  if (!ax_engine_is_on(plan, AX_SET_mixed_precision) ||
      !three_flags(plan->set[AX_SET_fp8_override_linear_precision].text, flags))
    return;
  for (int i = 0; i < 3; i++) setenv(names[i], flags[i] ? "true" : "false", 1);
}

void ax_engines_export(const ax_plan *plan)
{
  char *text = NULL;
  size_t size = 0;
  FILE *origins = open_memstream(&text, &size);

  for (int i = 0; i < AX_SET_COUNT; i++) {
    const ax_setting_row *r = &ax_settings[i];
    const ax_setting *s = &plan->set[i];
    if (r->engine < 0 || !r->env || !is_on(plan, i) || strcmp(s->text, "none") == 0 ||
        strstr(s->origin, r->env))
      continue;
    /* (what nobody gave is the recipe's default in the library, too) */
    if (r->engine == AX_SET_mixed_precision && ax_setting_is_default(plan, i)) continue;
    setenv(r->env, r->kind == AX_KIND_SWITCH ? (s->number ? "true" : "false") : s->text, 1);
    if (origins && !strpbrk(s->origin, "\t\n")) fprintf(origins, "%s\t%s\n", r->env, s->origin);
  }
  if (origins && fclose(origins) == 0 && size > 0) setenv(ORIGINS, text, 1);
  free(text);
  export_overrides(plan);
  export_fields(plan);
}
