/* dist/mpi.c: MPI's messages between machines: the plugin, and waits that end.
 *
 * MPI is started in the ranks, and not in their launchers, so that whatever it does to its own
 * process when a peer dies, the launcher is there to say what happened.  It takes part as it was
 * started: one process for each rank, or one for each machine, which then is local rank 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"
#include "core/dist/apart.h"

#define YIELDS 4000 /* looks before it sleeps: some milliseconds at most */
#define NAP_US 50
#define SLICE_NS ((int64_t)100000000) /* a pause that was longer was spent stopped */

static const ax_mpi_plugin *plugin;
static int stride, per_machine; /* MPI's processes, and ranks, of a machine */

static ax_status failed(const char *what, int error)
{
  char text[400];

  plugin->text(error, text, sizeof text);
  return ax_fail(AX_EABORTED, "MPI: %s: %s", what, text);
}

static ax_status load(const char *folder)
{
  char path[4200];
  void *lib;

  snprintf(path, sizeof path, "%s/" AX_MPI_FILE, folder);
  /* global: the parts that MPI itself loads look for its names */
  if (!(lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL)))
    return ax_fail(AX_ENOIMPL, "%s cannot be loaded: %s", path, dlerror());
  const ax_mpi_entry entry = (ax_mpi_entry)dlsym(lib, AX_MPI_ENTRY);
  plugin = entry ? entry() : NULL;
  if (plugin && plugin->abi == AX_MPI_ABI) return AX_OK;
  plugin = NULL;
  return ax_fail(AX_ENOIMPL, "%s was built for another version of this program: run make again", path);
}

ax_status ax_mpi_start(const char *folder, int rank, int size, int local_size)
{
  int mine, all, e;
  ax_status st = load(folder);

  if (st != AX_OK) return st;
  /* a crash is reported by the launcher, and workers of loaders do not touch MPI */
  setenv("OMPI_MCA_opal_signal", "", 0);
  setenv("OMPI_MCA_mpi_warn_on_fork", "0", 0);
  ax_busy_begin("the start of MPI", "");
  e = plugin->begin(&mine, &all);
  ax_busy_end();
  if (e != 0) return failed("it cannot start", e);
  per_machine = local_size;
  stride = all == size ? local_size : 1;
  if ((all != size && all != size / local_size) || mine != (all == size ? rank : rank / local_size))
    return ax_fail(AX_EINVAL,
                   "MPI has %d processes, of which rank %d is number %d; expected one for each of %d ranks, "
                   "or one for each of %d machines",
                   all, rank, mine, size, size / local_size);
  return AX_OK;
}

ax_status ax_mpi_end(void) { return plugin && plugin->end() != 0 ? AX_EABORTED : AX_OK; }

ax_status ax_mpi_send(const void *bytes, size_t n, int machine, ax_mpi_tag tag, ax_mpi_request *out)
{
  const int e = plugin->send(bytes, n, machine * stride, (int)tag, out);
  return e == 0 ? AX_OK : failed("a message cannot be sent", e);
}

ax_status ax_mpi_receive(void *bytes, size_t n, int machine, ax_mpi_tag tag, ax_mpi_request *out)
{
  const int e = plugin->receive(bytes, n, machine * stride, (int)tag, out);
  return e == 0 ? AX_OK : failed("a message cannot be received", e);
}

bool ax_mpi_ended(ax_mpi_request *r)
{
  int ended = 0;
  return plugin->test(r, &ended) != 0 || ended;
}

/* The other machine's launcher reports what happened there; it may take a moment. */
static ax_status lost(int machine, int error)
{
  const int64_t since = ax_monotonic_ns();
  char name[48], what[100];

  while (!ax_apart_aborted() && ax_monotonic_ns() - since < 3 * AX_GRACE_NS) usleep(10000);
  if (ax_apart_aborted()) return ax_shm_aborted();
  snprintf(what, sizeof what, "the connection to %s has ended",
           ax_rank_name(machine * per_machine, per_machine, name, sizeof name));
  return failed(what, error);
}

ax_status ax_mpi_wait(ax_mpi_request *r, int machine)
{
  const int64_t given = atomic_load(&ax_shm.control->rank[ax_shm.rank].timeout), limit = given + AX_GRACE_NS;
  int64_t waited = 0, before = 0, now;
  int ended, e;
  char name[48];

  for (int64_t looks = 0;; looks++) {
    if ((e = plugin->test(r, &ended)) != 0) return lost(machine, e);
    if (ended) return AX_OK;
    /* at every look: on a busy core one yield takes as long as all others' slices together */
    now = ax_monotonic_ns();
    if (before && !ax_hold_stands(ax_shm.control))
      waited += now - before < 2 * SLICE_NS ? now - before : SLICE_NS;
    before = now;
    if (looks < YIELDS && looks % 64 != 0) {
      sched_yield();
      continue;
    }
    if (ax_apart_aborted()) return ax_shm_aborted();
    ax_shm_look();
    if (waited > limit)
      return ax_fail(AX_ETIMEOUT,
                     "waited %g s for %s: it, or a rank that it waits for, has not come (%s sets the limit; "
                     "1 s more is for its machine's word)",
                     (double)limit * 1e-9,
                     ax_rank_name(machine * per_machine, per_machine, name, sizeof name),
                     ax_shm_limit_source(given));
    if (looks >= YIELDS) usleep(NAP_US);
  }
}
