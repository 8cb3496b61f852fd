/* engines.c: the settings of an engine (FSDP, ParallelismConfig, DeepSpeed): they have an effect
 * only with its switch, and travel to the ranks as the variables of Accelerate's launcher.
 *
 * A variable of an engine that is not switched on may hold anything: other programs read it. */
#define _GNU_SOURCE
#include "script/script.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

static bool is_on(const ax_plan *plan, int id) { return plan->set[ax_settings[id].engine].number != 0; }

/* ---- checks ---------------------------------------------------------------------------------- */

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
               ax_settings[ax_settings[i].engine].name);
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

int ax_engines_check(ax_plan *plan)
{
  int status;

  if ((status = check_values(plan)) != 0) return status;
  if (plan->set[AX_SET_use_fsdp].number && (status = check_fsdp(plan)) != 0) return status;
  if (plan->set[AX_SET_use_deepspeed].number && (status = check_deepspeed(plan)) != 0) return status;
  return plan->set[AX_SET_use_parallelism_config].number ? check_parallelism(plan) : 0;
}

/* ---- what the ranks see ---------------------------------------------------------------------- */

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
    setenv(r->env, s->text, 1);
    if (origins && !strpbrk(s->origin, "\t\n")) fprintf(origins, "%s\t%s\n", r->env, s->origin);
  }
  if (origins && fclose(origins) == 0 && size > 0) setenv(ORIGINS, text, 1);
  free(text);
  export_fields(plan);
}
