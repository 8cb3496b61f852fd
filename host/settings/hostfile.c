/* hostfile.c: DeepSpeed's hostfile, and its filters, as settings of the machines: how many there
 * are, how many ranks each has, where machine 0 is, which one this is.
 *
 * A line is NAME slots=RANKS; '#' begins a comment.  A filter is NAME[:SLOT,...]@NAME..., and names
 * what takes part (inclusion) or does not (exclusion). */
#define _GNU_SOURCE
#include "script/script.h"
#include "settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MOST_HOSTS = 256, MOST_SLOTS = 256, NAME = 256 };

typedef struct host {
  char name[NAME];
  int slots, chosen;               /* ranks of its line; those that take part */
  unsigned char takes[MOST_SLOTS]; /* by slot, whether it does */
} host;

typedef struct hosts {
  const char *path;
  host *list;
  int n;
} hosts;

/* ---- the file */

static host *find(const hosts *h, const char *name, size_t n)
{
  for (int i = 0; i < h->n; i++)
    if (strlen(h->list[i].name) == n && strncmp(h->list[i].name, name, n) == 0) return &h->list[i];
  return NULL;
}

static int read_line(hosts *h, int number, char *line)
{
  host *one = &h->list[h->n];
  char *hash = strchr(line, '#'), rest;
  int slots;

  if (hash) *hash = 0;
  if (!line[strspn(line, " \t\r\n")]) return 0;
  if (sscanf(line, " %255s slots=%d %c", one->name, &slots, &rest) != 2 || slots < 1 || slots > MOST_SLOTS) {
    ax_print(stderr, "accel-run: %s:%d: expected NAME slots=N with 1 to %d ranks, got '%.*s'\n", h->path,
             number, MOST_SLOTS, (int)strcspn(line, "\r\n"), line);
    return AX_EXIT_USAGE;
  }
  if (find(h, one->name, strlen(one->name))) {
    ax_print(stderr, "accel-run: %s:%d: the machine %s is there twice\n", h->path, number, one->name);
    return AX_EXIT_USAGE;
  }
  if (h->n + 1 == MOST_HOSTS) {
    ax_print(stderr, "accel-run: %s:%d: more than %d machines\n", h->path, number, MOST_HOSTS - 1);
    return AX_EXIT_USAGE;
  }
  one->slots = one->chosen = slots;
  memset(one->takes, 1, (size_t)slots);
  h->n++;
  return 0;
}

static int read_file(hosts *h)
{
  FILE *f = fopen(h->path, "re");
  char line[1024];
  int status = 0;

  if (!f) {
    ax_print(stderr, "accel-run: cannot read the hostfile %s: %s\n", h->path, strerror(errno));
    return AX_EXIT_USAGE;
  }
  for (int number = 1; status == 0 && fgets(line, sizeof line, f); number++)
    status = read_line(h, number, line);
  fclose(f);
  if (status == 0 && h->n == 0) {
    ax_print(stderr, "accel-run: %s: expected lines NAME slots=N, there are none\n", h->path);
    status = AX_EXIT_USAGE;
  }
  return status;
}

/* ---- filters */

/* Marks the slots "0,2" of a host, or all for an empty text, with `takes`. */
static int mark(const ax_setting *filter, host *one, const char *slots, size_t n, bool takes)
{
  char *end;

  if (n == 0) memset(one->takes, takes, (size_t)one->slots);
  for (const char *at = slots; at < slots + n; at = end + 1) {
    const long slot = strtol(at, &end, 10);
    if (end == at || (end < slots + n && *end != ',') || slot < 0 || slot >= one->slots) {
      ax_print(stderr, "accel-run: %s: %s: expected slots from 0 to %d of %s, got '%.*s'\n", filter->origin,
               filter->text, one->slots - 1, one->name, (int)n, slots);
      return AX_EXIT_USAGE;
    }
    one->takes[slot] = takes;
  }
  return 0;
}

static int filter_hosts(hosts *h, const ax_setting *filter, bool takes)
{
  int status = 0;

  for (const char *at = filter->text; *at && status == 0;) {
    const size_t n = strcspn(at, "@"), name = strcspn(at, "@:");
    host *one = find(h, at, name);
    if (!one) {
      ax_print(stderr, "accel-run: %s: %s: there is no machine '%.*s' in %s\n", filter->origin, filter->text,
               (int)name, at, h->path);
      return AX_EXIT_USAGE;
    }
    status = mark(filter, one, at + name + (at[name] == ':'), name < n ? n - name - 1 : 0, takes);
    at += n + (at[n] == '@');
  }
  return status;
}

/* Drops machines without a slot. */
static void drop_empty(hosts *h)
{
  int kept = 0;

  for (int i = 0; i < h->n; i++) {
    host *one = &h->list[i];
    one->chosen = 0;
    for (int s = 0; s < one->slots; s++) one->chosen += one->takes[s];
    if (one->chosen > 0 && kept++ != i) h->list[kept - 1] = *one;
  }
  h->n = kept;
}

static int apply_filters(hosts *h, const ax_plan *plan)
{
  const ax_setting *in = &plan->set[AX_SET_deepspeed_inclusion_filter],
                   *out = &plan->set[AX_SET_deepspeed_exclusion_filter];
  int status = 0;

  if (in->number && out->number) {
    ax_print(stderr, "accel-run: %s and %s: give one of them\n", in->origin, out->origin);
    return AX_EXIT_USAGE;
  }
  if (in->number) {
    for (int i = 0; i < h->n; i++) memset(h->list[i].takes, 0, sizeof h->list[i].takes);
    status = filter_hosts(h, in, true);
  } else if (out->number) status = filter_hosts(h, out, false);
  if (status != 0) return status;
  drop_empty(h);
  for (int i = 1; i < h->n; i++)
    if (h->list[i].chosen != h->list[0].chosen) {
      ax_print(stderr, "accel-run: %s: %s has %d ranks and %s %d; all machines have equally many\n", h->path,
               h->list[0].name, h->list[0].chosen, h->list[i].name, h->list[i].chosen);
      return AX_EXIT_USAGE;
    }
  if (h->n > 0) return 0;
  ax_print(stderr, "accel-run: %s: no machine of %s is left\n", (in->number ? in : out)->origin, h->path);
  return AX_EXIT_USAGE;
}

/* ---- settings */

/* Whether the hostfile says what a setting is: nothing else does, or the configuration file alone
 * does and the hostfile is an option, which beats it. */
static bool is_open(const ax_plan *plan, int id)
{
  const ax_setting *file = &plan->set[AX_SET_config_file];

  if (ax_setting_is_default(plan, id)) return true;
  return file->number && ax_setting_is_option(plan, AX_SET_deepspeed_hostfile) &&
         strncmp(plan->set[id].origin, file->text, strlen(file->text)) == 0;
}

static int settle(ax_plan *plan, int id, const char *value, const char *origin)
{
  return is_open(plan, id) ? ax_setting_assign(plan, id, value, origin) : 0;
}

static int settle_counts(ax_plan *plan, const hosts *h, const char *origin)
{
  const ax_setting *machines = &plan->set[AX_SET_num_machines], *ranks = &plan->set[AX_SET_num_processes];
  int status;

  if (!is_open(plan, AX_SET_num_machines) && machines->number != h->n) {
    ax_print(stderr, "accel-run: %s: %s machines, and %s has %d\n", machines->origin, machines->text, h->path,
             h->n);
    return AX_EXIT_USAGE;
  }
  if (!is_open(plan, AX_SET_num_processes) && ranks->number > h->n * h->list[0].chosen) {
    ax_print(stderr, "accel-run: %s: %s ranks, and %s has room for %d\n", ranks->origin, ranks->text, h->path,
             h->n * h->list[0].chosen);
    return AX_EXIT_USAGE;
  }
  if ((status = settle(plan, AX_SET_num_machines, ax_plan_text(plan, "%d", h->n), origin)) != 0)
    return status;
  return settle(plan, AX_SET_num_processes, ax_plan_text(plan, "%d", h->n * h->list[0].chosen), origin);
}

/* Which of the machines this is, by its name; -1: none. */
static int own_place(const hosts *h)
{
  char own[NAME] = "";

  gethostname(own, sizeof own - 1);
  for (int i = 0; i < h->n; i++) {
    const char *name = h->list[i].name;
    const size_t a = strcspn(own, "."), b = strcspn(name, ".");
    if (strcasecmp(own, name) == 0 || (a == b && strncasecmp(own, name, a) == 0)) return i;
  }
  return -1;
}

static int settle_place(ax_plan *plan, const hosts *h, const char *origin)
{
  int mine = h->n == 1 ? 0 : own_place(h), status;

  if (!is_open(plan, AX_SET_machine_rank)) mine = (int)plan->set[AX_SET_machine_rank].number;
  if (mine < 0) {
    ax_print(stderr, "accel-run: %s: none of the machines has this one's name; give --machine_rank N\n",
             origin);
    return AX_EXIT_USAGE;
  }
  if ((status = settle(plan, AX_SET_machine_rank, ax_plan_text(plan, "%d", mine), origin)) != 0)
    return status;
  if (h->n > 1 &&
      (status = settle(plan, AX_SET_main_process_ip, ax_plan_text(plan, "%s", h->list[0].name), origin)) != 0)
    return status;
  if (mine < h->n && h->list[mine].chosen < h->list[mine].slots && !plan->set[AX_SET_cpu].number) {
    const char *ids = "";
    for (int s = 0; s < h->list[mine].slots; s++)
      if (h->list[mine].takes[s]) ids = ax_plan_text(plan, "%s%s%d", ids, *ids ? "," : "", s);
    return settle(plan, AX_SET_gpu_ids, ids, origin);
  }
  return 0;
}

/* mpirun has the same file, and starts accel-run on each machine. */
static int settle_mpirun(ax_plan *plan, const hosts *h, const char *origin)
{
  if (plan->set[AX_SET_deepspeed_inclusion_filter].number ||
      plan->set[AX_SET_deepspeed_exclusion_filter].number) {
    fputs(
        "accel-run: --deepspeed_multinode_launcher openmpi reads the whole hostfile; leave the filters out\n",
        stderr);
    return AX_EXIT_USAGE;
  }
  return settle(plan, AX_SET_mpirun_hostfile, h->path, origin);
}

/* Launchers of DeepSpeed that start other machines, and are not here. */
static int check_launcher(const ax_plan *plan)
{
  const ax_setting *launcher = &plan->set[AX_SET_deepspeed_multinode_launcher];
  const char *why = "its list of machines has another form; --mpirun_hostfile takes that";

  if (plan->set[AX_SET_num_machines].number < 2 ||
      ax_setting_is_word("none|standard|nossh|openmpi", launcher->text))
    return 0;
  if (strcasecmp(launcher->text, "pdsh") == 0)
    why = "nothing is started over ssh from here; start accel-run on each machine (standard), or use openmpi";
  else if (strcasecmp(launcher->text, "slurm") == 0)
    why = "start accel-run with srun, one task on each machine; it finds its place by itself";
  ax_print(stderr, "accel-run: %s: %s is not there: %s\n", launcher->origin, launcher->text, why);
  return AX_EXIT_USAGE;
}

/* Reads the file into the settings of the machines. */
static int settle_machines(ax_plan *plan)
{
  const ax_setting *file = &plan->set[AX_SET_deepspeed_hostfile];
  const char *origin = ax_plan_text(plan, "%s %s", file->origin, file->text);
  hosts h = { .path = file->text };
  int status;

  if (!(h.list = calloc(MOST_HOSTS, sizeof *h.list))) {
    fputs("accel-run: out of memory\n", stderr);
    return AX_EXIT_FAILED;
  }
  if ((status = read_file(&h)) == 0 && (status = apply_filters(&h, plan)) == 0 &&
      (status = settle_counts(plan, &h, origin)) == 0) {
    if (strcasecmp(plan->set[AX_SET_deepspeed_multinode_launcher].text, "openmpi") == 0 && h.n > 1)
      status = settle_mpirun(plan, &h, origin);
    else status = settle_place(plan, &h, origin);
  }
  free(h.list);
  return status;
}

int ax_hostfile_read(ax_plan *plan)
{
  const ax_setting *in = &plan->set[AX_SET_deepspeed_inclusion_filter],
                   *out = &plan->set[AX_SET_deepspeed_exclusion_filter];
  const bool shown = plan->mode == AX_MODE_EXPLAIN || plan->mode == AX_MODE_ENV;
  int status = 0;

  if (!plan->set[AX_SET_use_deepspeed].number || (!plan->script && !shown) || getenv("ACCEL_RUN_RANK"))
    return 0;
  if (plan->set[AX_SET_deepspeed_hostfile].number) status = settle_machines(plan);
  else if (in->number || out->number) {
    ax_print(stderr, "accel-run: %s needs --deepspeed_hostfile FILE\n", (in->number ? in : out)->origin);
    return AX_EXIT_USAGE;
  }
  return status ? status : check_launcher(plan);
}
