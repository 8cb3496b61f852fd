/* bring.c: weights come to where they are used, and leave (offload.c). */
#include "capture.h"
#include "core/core.h"
#include "core/device/meta.h"
#include "core/io/file.h"
#include "core/offload/page.h"
#include "core/offload/read_ahead.h"
#include "core/offload/scratch.h"
#include "core/ops/dispatch.h"

enum { STEPS = 512, BEGUN_AT_ONCE = 32, PATIENCE = 8 };

/* Requests the pages of a page's home. */
static void touch(ax_page *p)
{
  if (p->at && !p->touched) ax_pages_read_ahead(p->at, p->at_bytes);
  p->touched = true;
}

/* ---- coming */

static void storage_gone(ax_claim *c) { ax_page_end(c->owner); }
static ax_status before_use(ax_claim *c, int64_t at);
static ax_status before_write(ax_claim *c, int64_t at);
static const ax_claim_kind written_away = { .uses = AX_READ, .before = before_use, .gone = storage_gone },
                           written_here = { .uses = 0, .before = before_use, .gone = storage_gone };
const ax_claim_kind ax_page_away = { .uses = AX_READ | AX_WRITE, .before = before_use, .gone = storage_gone };
const ax_claim_kind ax_page_here = { .uses = AX_WRITE, .before = before_write, .gone = storage_gone };

static void claim(ax_page *p, bool here)
{
  ax_claim_take_off(&p->claim);
  p->claim.kind = p->written ? here ? &written_here : &written_away : here ? &ax_page_here : &ax_page_away;
  ax_claim_put(p->s, &p->claim);
}

void ax_page_follow_written(ax_page *p)
{
  p->written = true;
  claim(p, false);
}

/* Begins the way of a page to the device. */
static void begin(ax_page *p)
{
  uint64_t ticket = 0;
  ax_tensor *raw = NULL;

  touch(p);
  if (p->home && p->of->device.kind != AX_CPU &&
      (ax_tensor_send(p->home, p->of->device, &raw, &ticket) != AX_OK || !raw))
    return; /* it is brought when it is requested */
  pthread_mutex_lock(&ax_pages_lock);
  p->raw = raw;
  p->ticket = ticket;
  if (raw || !p->home) ax_page_settle(p, AX_COMING);
  pthread_mutex_unlock(&ax_pages_lock);
}

/* Fetches the weights that come next in the order.  For a device, which gets copies, the thread
 * reads as many bytes again, of the weights behind these. */
static void look_ahead(ax_offload *o)
{
  ax_page *chosen[BEGUN_AT_ONCE], *before, *p;
  int n = 0, begun = 0;

  pthread_mutex_lock(&ax_pages_lock);
  int64_t fetched = o->coming, wanted = o->device.kind == AX_CPU ? o->ahead : 2 * o->ahead;
  before = o->before_now;
  p = o->now;
  for (int k = 0; p && k < STEPS && n < BEGUN_AT_ONCE && fetched < wanted; k++) {
    ax_page *const q = ax_page_guess(before, p);
    before = p;
    p = q;
    if (!q || q == o->now) break;
    if (q->place != AX_AWAY) continue;
    if (q->touched && fetched >= o->ahead) fetched += (int64_t)q->bytes;
    else if (ax_page_hold(q)) {
      chosen[n++] = q;
      begun += fetched < o->ahead;
      fetched += (int64_t)q->bytes;
    }
  }
  pthread_mutex_unlock(&ax_pages_lock);
  for (int k = 0; k < n; k++) {
    ax_storage *const s = chosen[k]->s;
    if (k < begun) begin(chosen[k]);
    else touch(chosen[k]);
    ax_storage_release(s);
  }
}

/* What was fetched on a wrong guess goes back. */
static void turn_back(ax_offload *o)
{
  for (;;) {
    pthread_mutex_lock(&ax_pages_lock);
    ax_page *const p = o->on_the_way.first;
    ax_tensor *const raw = p ? p->raw : NULL;
    const void *const read = p && !p->home ? p->at : NULL;
    const size_t n = p ? p->at_bytes : 0;
    if (p) {
      p->raw = NULL;
      p->touched = false;
      ax_page_settle(p, AX_AWAY);
    }
    pthread_mutex_unlock(&ax_pages_lock);
    if (!p) return;
    if (read) ax_pages_drop(read, n);
    if (raw) ax_device_arrive(o->device, p->ticket);
    ax_tensor_release(raw);
  }
}

/* Takes the memory of a tensor that came from the home in its own type. */
static void take_memory(ax_page *p, ax_tensor *from)
{
  p->s->data = from->storage->data;
  from->storage->data = NULL;
  from->storage->release = NULL;
}

static ax_status new_memory(ax_page *p)
{
  const ax_backend *backend;
  const ax_device device = p->of->device;
  ax_status st;

  if (device.kind == AX_CPU) return ax_alloc(p->bytes, &p->s->data);
  if ((st = ax_backend_of(device, &backend)) != AX_OK) return st;
  if ((st = backend->memory->alloc(device.index, p->bytes, &p->s->data)) == AX_ENOMEM) {
    ax_offload_over = true; /* weights of earlier calls make room */
    turn_back(p->of);
  }
  return st;
}

/* The elements of `from`, on the same device, into the page's memory. */
static ax_status cast_into(ax_page *p, ax_tensor *from)
{
  int64_t strides[AX_MAX_DIMS];
  ax_tensor *t = NULL;
  ax_status st;

  AX_TRY(new_memory(p));
  ax_strides_contiguous(from->ndim, from->shape, strides);
  AX_TRY(ax_tensor_over(p->s, p->dtype, from->ndim, from->shape, strides, 0, &t));
  t->device = p->of->device;
  st = ax_dispatch_copy(t, from);
out:
  ax_tensor_release(t);
  if (st != AX_OK) ax_page_free_data(p->s);
  return st;
}

/* Fills the storage's memory.  Its claim is off. */
static ax_status bring(ax_page *p)
{
  const ax_device device = p->of->device;
  ax_tensor *raw = p->raw;
  ax_status st = AX_OK;

  p->raw = NULL;
  if (device.kind == AX_CPU) return cast_into(p, p->home);
  if (raw) AX_TRY(ax_device_arrive(device, p->ticket));
  else {
    AX_TRY(ax_tensor_new_on(device, (ax_dtype)p->home->dtype, p->home->ndim, p->home->shape, &raw));
    AX_TRY(ax_transfer(raw, p->home, false));
  }
  if (raw->dtype == p->dtype) take_memory(p, raw);
  else st = cast_into(p, raw);
out:
  ax_tensor_release(raw);
  return st;
}

/* The mapped memory that a page's home is. */
static const ax_storage *mapped(const ax_page *p) { return p->home ? p->home->storage : p->s; }

static ax_status lost(const ax_page *p)
{
  return AX_FILE_FAIL(AX_EIO, "offload", p->file,
                      "an offloaded weight is in it, and it can no longer be read to its end: another "
                      "program has truncated it, or its disk fails");
}

static ax_status before_use(ax_claim *c, int64_t at)
{
  ax_page *const p = c->owner;
  ax_offload *const o = p->of;
  ax_status st = AX_OK;

  (void)at; /* a weight comes as a whole */
  if (ax_recording)
    return ax_fail(AX_EINVAL, "an offloaded weight is needed while a step is captured: a replay could not "
                              "bring it; call the model outside the step");
  if (p->file && !ax_mapping_holds(mapped(p), p->file)) return lost(p);
  const bool guessed = p->place == AX_COMING;
  o->missed = guessed ? 0 : o->missed + 1;
  if (o->missed > PATIENCE) turn_back(o); /* the weights fetched belong to another order */
  if (!guessed) touch(p);
  ax_claim_take_off(c);
  if (p->home && (st = bring(p)) != AX_OK) {
    pthread_mutex_lock(&ax_pages_lock);
    ax_page_settle(p, AX_AWAY);
    pthread_mutex_unlock(&ax_pages_lock);
    claim(p, false);
    return st;
  }
  if (p->home && p->bytes >= AX_MEMORY_TRACKED) ax_memory_track(p->s);
  claim(p, true);
  pthread_mutex_lock(&ax_pages_lock);
  ax_page_settle(p, AX_HERE);
  o->stats.loads++;
  o->stats.guessed += guessed;
  ax_page_record(o->before_now, o->now, p);
  o->before_now = o->now;
  o->now = p;
  if (o->stats.here > o->keep) ax_offload_over = true;
  pthread_mutex_unlock(&ax_pages_lock);
  look_ahead(o);
  return AX_OK;
}

/* The memory becomes the weight's home. */
static void keep_here(ax_page *p)
{
  ax_claim_take_off(&p->claim);
  ax_page_end(p);
}

static ax_status before_write(ax_claim *c, int64_t at)
{
  ax_page *const p = c->owner;

  (void)at;
  if (p->file && !ax_mapping_holds(mapped(p), p->file)) return lost(p);
  if (!p->home && ax_mapping_open(p->s) != AX_OK)
    return ax_fail(AX_ENOMEM, "no memory to write into an offloaded weight of %zu bytes", p->bytes);
  keep_here(p);
  return AX_OK;
}

/* ---- leaving */

/* Whether the memory may be used without a query: by a script that has its address, by a thread
 * that writes it to a file. */
static bool is_in_use(const ax_page *p)
{
  return p->s->exposed || p->s->claims != &p->claim || p->claim.next;
}

static void send_home(ax_page *p)
{
  if (p->home) ax_page_free_data(p->s);
  else ax_pages_drop(p->at, p->at_bytes);
  claim(p, false);
  pthread_mutex_lock(&ax_pages_lock);
  ax_page_settle(p, AX_AWAY);
  p->of->stats.left++;
  pthread_mutex_unlock(&ax_pages_lock);
}

/* The oldest page of a schedule that holds more than it keeps, with a hold on its storage. */
static ax_page *surplus(void)
{
  ax_page *found = NULL;

  pthread_mutex_lock(&ax_pages_lock);
  for (ax_offload *o = ax_offload_schedules; o && !found; o = o->next)
    for (ax_page *p = o->stats.here > o->keep ? o->here.first : NULL; p && !found; p = p->newer)
      if (p != o->now && !(p->home && is_in_use(p)) && ax_page_hold(p)) found = p;
  pthread_mutex_unlock(&ax_pages_lock);
  return found;
}

/* A weight in use whose file has become shorter, so that zeros were read in its place, with a hold
 * on its storage; *st says so.  Copies that are in use stay. */
static ax_page *lost_page(ax_status *st)
{
  ax_page *found = NULL;

  pthread_mutex_lock(&ax_pages_lock);
  for (ax_offload *o = ax_offload_schedules; o && !found; o = o->next)
    for (ax_page *p = o->here.first; p && !found; p = p->newer) {
      if (!p->file || !ax_mapping_is_cut(mapped(p))) continue;
      *st = lost(p);
      if (!(p->home && is_in_use(p)) && ax_page_hold(p)) found = p;
    }
  pthread_mutex_unlock(&ax_pages_lock);
  return found;
}

static void leave(ax_page *p)
{
  ax_storage *const s = p->s;

  send_home(p);
  ax_storage_release(s);
}

ax_status ax_offload_trim(void)
{
  ax_status st = AX_OK;
  ax_page *p;

  while ((p = lost_page(&st))) leave(p); /* so that each later use fails, too */
  if (st == AX_OK) st = ax_scratch_check_all();

  ax_offload_over = false;
  while ((p = surplus())) leave(p);
  return st;
}
