#define _GNU_SOURCE
#include "feed.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

enum { UNIT = 64 << 10 }; /* the least number of bytes that are copied at a time */

struct ax_gather {
  int n;
  ax_tensor *source[AX_GATHER_MAX], *result[AX_GATHER_MAX];
  ax_storage *storage[AX_GATHER_MAX]; /* the sources' when the batch began */
  uint32_t edits[AX_GATHER_MAX];
  const char *from[AX_GATHER_MAX];
  char *to[AX_GATHER_MAX];
  size_t row[AX_GATHER_MAX];        /* bytes */
  int64_t at_once[AX_GATHER_MAX];   /* rows of one unit */
  int64_t first[AX_GATHER_MAX + 1]; /* the first unit of each source; the last entry: the number of units */
  int64_t *positions, count, room;
  _Atomic int64_t next_unit;
  bool started;
  bool helped; /* the thread works on it; read and written with the lock held */
  bool queued; /* likewise */
  ax_gather *next;
};

/* ---- the thread */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static ax_gather *queue;
static pthread_t thread;
static bool running, stop, watching;

static void copy_rows(const ax_gather *g, int k, int64_t lo, int64_t hi)
{
  const size_t row = g->row[k];
  const char *from = g->from[k];
  char *to = g->to[k];

  if (row == 8) {
    for (int64_t i = lo; i < hi; i++) ((uint64_t *)to)[i] = ((const uint64_t *)from)[g->positions[i]];
    return;
  }
  for (int64_t i = lo; i < hi; i++) memcpy(to + (size_t)i * row, from + (size_t)g->positions[i] * row, row);
}

/* Copies units until none is left.  The thread does this, and so does the caller when it takes the
 * batch, side by side: where the thread got no core, the caller does not wait for it. */
static void copy_units(ax_gather *g)
{
  int64_t unit;
  while ((unit = atomic_fetch_add_explicit(&g->next_unit, 1, memory_order_relaxed)) < g->first[g->n]) {
    int k = 0;
    while (unit >= g->first[k + 1]) k++;
    const int64_t lo = (unit - g->first[k]) * g->at_once[k], hi = lo + g->at_once[k];
    copy_rows(g, k, lo, hi < g->count ? hi : g->count);
  }
}

static void unqueue(ax_gather *g)
{
  for (ax_gather **p = &queue; g->queued && *p; p = &(*p)->next)
    if (*p == g) {
      *p = g->next;
      break;
    }
  g->queued = false;
}

static void *work(void *unused)
{
  (void)unused;
  pthread_mutex_lock(&lock);
  for (;;) {
    ax_gather *g = queue;
    if (g) {
      unqueue(g);
      g->helped = true;
      pthread_mutex_unlock(&lock);
      copy_units(g);
      pthread_mutex_lock(&lock);
      g->helped = false;
      pthread_cond_broadcast(&finished);
    } else if (stop) break;
    else pthread_cond_wait(&wake, &lock);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* Lets the thread finish what is queued and end.  Also called before each fork: a child has no
 * threads but the caller's. */
static void stop_thread(void)
{
  if (!running) return;
  pthread_mutex_lock(&lock);
  stop = true;
  pthread_cond_signal(&wake);
  pthread_mutex_unlock(&lock);
  pthread_join(thread, NULL);
  running = stop = false;
}

static bool start_thread(void)
{
  sigset_t all, former;
  if (running) return true;
  if (!watching) watching = pthread_atfork(stop_thread, NULL, NULL) == 0;
  if (!watching) return false;
  sigfillset(&all); /* the thread that runs Lua handles signals */
  pthread_sigmask(SIG_SETMASK, &all, &former);
  running = pthread_create(&thread, NULL, work, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &former, NULL);
  return running;
}

/* ---- gatherers */

static int gatherers;

/* Copying rows needs what is checked here; a source may lose it when a script sets its data. */
static ax_status check_sources(int n, ax_tensor *const *sources)
{
  for (int k = 0; k < n; k++) {
    const ax_tensor *t = sources[k];
    if (t->ndim == 0 || t->shape[0] != sources[0]->shape[0])
      return ax_fail(AX_ESHAPE, "the sizes of dim 1 of all tensors must be the same");
    if (t->device.kind != AX_CPU || !ax_tensor_is_contiguous(t) || t->requires_grad)
      return ax_fail(AX_EINVAL, "tensor %d must be contiguous, on the CPU and without a gradient", k + 1);
  }
  return AX_OK;
}

ax_status ax_gather_new(int n, ax_tensor *const *sources, ax_gather **out)
{
  ax_gather *g;
  ax_status st;

  *out = NULL;
  if (n < 1 || n > AX_GATHER_MAX)
    return ax_fail(AX_EINVAL, "expected 1 to %d tensors, got %d", AX_GATHER_MAX, n);
  if ((st = check_sources(n, sources)) != AX_OK) return st;
  if (!(g = ax_calloc(1, sizeof *g))) return AX_ENOMEM;
  g->n = n;
  for (int k = 0; k < n; k++) g->source[k] = ax_tensor_retain(sources[k]);
  gatherers++;
  *out = g;
  return AX_OK;
}

/* Completes the current batch. */
static void finish(ax_gather *g)
{
  if (!g->started) return;
  copy_units(g);
  pthread_mutex_lock(&lock);
  unqueue(g);
  while (g->helped) pthread_cond_wait(&finished, &lock);
  pthread_mutex_unlock(&lock);
}

static void drop_results(ax_gather *g)
{
  for (int k = 0; k < g->n; k++) {
    ax_tensor_release(g->result[k]);
    ax_storage_release(g->storage[k]);
    g->result[k] = NULL;
    g->storage[k] = NULL;
  }
  g->started = false;
}

void ax_gather_free(ax_gather *g)
{
  if (!g) return;
  finish(g);
  drop_results(g);
  for (int k = 0; k < g->n; k++) ax_tensor_release(g->source[k]);
  free(g->positions);
  ax_mfree(g);
  if (--gatherers == 0) stop_thread();
}

int ax_gather_sources(const ax_gather *g) { return g->n; }
int64_t ax_gather_rows(const ax_gather *g) { return g->source[0]->shape[0]; }

ax_status ax_gather_positions(ax_gather *g, int64_t count, int64_t **to)
{
  if (g->started) return ax_fail(AX_EINVAL, "a batch is under way");
  if (count > g->room) {
    int64_t *grown = realloc(g->positions, (size_t)count * sizeof *grown);
    if (!grown) return ax_fail(AX_ENOMEM, "no memory for %lld positions", (long long)count);
    g->positions = grown;
    g->room = count;
  }
  *to = g->positions;
  return AX_OK;
}

static ax_status check_batch(const ax_gather *g)
{
  const ax_status st = check_sources(g->n, g->source);

  if (st != AX_OK) return st;
  for (int k = 0; k < g->n; k++) {
    const int64_t rows = g->source[k]->shape[0];
    for (int64_t i = 0; i < g->count; i++)
      if (g->positions[i] < 0 || g->positions[i] >= rows)
        return ax_fail(AX_ERANGE, "expected a position from 1 to %lld, got %lld", (long long)rows,
                       (long long)g->positions[i] + 1);
  }
  return AX_OK;
}

/* Notes the sources' memory and versions, and where the rows go. */
static ax_status prepare(ax_gather *g)
{
  for (int k = 0; k < g->n; k++) {
    const ax_tensor *t = g->source[k];
    int64_t shape[AX_MAX_DIMS];
    ax_status st = ax_tensor_ready(t, AX_READ);

    if (st != AX_OK) return st;
    memcpy(shape, t->shape, sizeof shape);
    shape[0] = g->count;
    if ((st = ax_tensor_new((ax_dtype)t->dtype, t->ndim, shape, &g->result[k])) != AX_OK) return st;
    g->storage[k] = ax_storage_retain(t->storage);
    g->edits[k] = t->version->edits;
    g->from[k] = ax_data(t);
    g->to[k] = ax_data(g->result[k]);
    g->row[k] = t->shape[0] > 0 ? (size_t)(t->numel / t->shape[0]) * ax_itemsize(t) : 0;
    g->at_once[k] = g->row[k] > 0 ? (int64_t)(UNIT / g->row[k]) + 1 : g->count + 1;
    g->first[k + 1] = g->first[k] + (g->count + g->at_once[k] - 1) / g->at_once[k];
  }
  atomic_store_explicit(&g->next_unit, 0, memory_order_relaxed);
  return AX_OK;
}

ax_status ax_gather_start(ax_gather *g, int64_t count, bool ahead)
{
  ax_status st;

  if (g->started) return ax_fail(AX_EINVAL, "a batch is under way");
  g->count = count;
  if ((st = check_batch(g)) != AX_OK) return st;
  if ((st = prepare(g)) != AX_OK) {
    drop_results(g);
    return st;
  }
  g->started = true;
  if (!ahead || !start_thread()) return AX_OK; /* it is copied when it is taken */
  pthread_mutex_lock(&lock);
  g->queued = true;
  g->next = NULL;
  ax_gather **last = &queue;
  while (*last) last = &(*last)->next;
  *last = g;
  pthread_cond_signal(&wake);
  pthread_mutex_unlock(&lock);
  return AX_OK;
}

ax_status ax_gather_take(ax_gather *g, ax_tensor **out)
{
  bool stale = false;
  ax_status st = AX_OK;

  if (!g->started) return ax_fail(AX_EINVAL, "no batch is under way");
  finish(g);
  for (int k = 0; k < g->n; k++)
    stale |= g->storage[k] != g->source[k]->storage || g->edits[k] != g->source[k]->version->edits;
  if (stale) { /* a source was written or replaced: read the batch again from its present contents */
    drop_results(g);
    if ((st = check_batch(g)) == AX_OK && (st = prepare(g)) == AX_OK) copy_units(g);
  }
  for (int k = 0; k < g->n; k++) {
    out[k] = st == AX_OK ? g->result[k] : NULL;
    if (st == AX_OK) g->result[k] = NULL;
  }
  drop_results(g);
  return st;
}
