/* content.c: what a file is going to hold, and writing it (content.h). */
#define _GNU_SOURCE /* pwrite */
#include "core/io/content.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"
#include "core/grow.h"
#include "core/io/crc.h"
#include "core/offload/scratch.h"

/* Bytes that are written at a time.  Chunks end where those of the file end, so that the page cache
 * can hold each as one large page, which is written, mapped and read with less work than small ones
 * are. */
enum { CHUNK = 1 << 21 };

/* ---- making */

ax_status ax_content_new(const char *fn, const char *path, ax_content **out)
{
  const size_t length = strlen(path) + 1;
  ax_content *c = ax_calloc(1, sizeof *c);

  *out = c;
  if (!c) return AX_ENOMEM;
  c->fn = fn;
  c->to.fd = -1;
  if ((c->path = ax_malloc(length))) memcpy(c->path, path, length);
  return c->path ? AX_OK : AX_ENOMEM;
}

static void clear_piece(ax_piece *p)
{
  ax_claim_take_off(&p->unread);
  ax_tensor_release(p->tensor);
  if (p->storage) ax_storage_release(p->storage);
  else if (p->release) p->release((void *)p->at);
  p->tensor = NULL;
  p->storage = NULL;
  p->release = NULL;
}

void ax_content_free(ax_content *c)
{
  if (!c) return;
  for (int i = 0; i < c->n; i++) clear_piece(&c->pieces[i]);
  ax_mfree(c->pieces);
  ax_mfree(c->fills);
  ax_mfree(c->sums);
  ax_mfree(c->path);
  ax_mfree(c);
}

static ax_status add(ax_content *c, ax_piece p)
{
  const ax_status st = ax_grow(&c->pieces, c->n, &c->room, sizeof *c->pieces);

  if (st != AX_OK) {
    clear_piece(&p);
    return st;
  }
  p.begin = c->bytes;
  c->bytes += p.n;
  c->pieces[c->n++] = p;
  return AX_OK;
}

ax_status ax_content_text(ax_content *c, const void *p, size_t n, void (*release)(void *))
{
  return add(c, (ax_piece){ .at = p, .n = (int64_t)n, .sum = -1, .release = release });
}

ax_status ax_content_tensor(ax_content *c, ax_tensor *t)
{
  return add(c,
             (ax_piece){ .tensor = ax_tensor_retain(t), .n = t->numel * (int64_t)ax_itemsize(t), .sum = -1 });
}

ax_status ax_content_part(ax_content *c, const ax_part *part)
{
  return part->tensor ? ax_content_tensor(c, part->tensor) : ax_content_text(c, part->text, part->n, NULL);
}

ax_status ax_content_fill(ax_content *c, int at, int sum)
{
  const ax_status st = ax_grow(&c->fills, c->n_fills, &c->fill_room, sizeof *c->fills);
  if (st == AX_OK) c->fills[c->n_fills++] = (ax_sum_place){ c->n - 1, at, sum };
  return st;
}

ax_status ax_content_sums(ax_content *c, int n)
{
  c->n_sums = n;
  return (c->sums = ax_calloc((size_t)n + 1, sizeof *c->sums)) ? AX_OK : AX_ENOMEM;
}

/* ---- freezing */

/* The tensor's elements as memory of the CPU; a copy of them where its own is none. */
static ax_status bring(ax_piece *p)
{
  ax_tensor *flat = NULL;
  const ax_status st = ax_tensor_bring(p->tensor, &flat);

  if (st != AX_OK) return st;
  p->live = flat == p->tensor;
  p->at = ax_data(flat);
  p->storage = ax_storage_retain(flat->storage);
  ax_tensor_release(flat);
  ax_tensor_release(p->tensor);
  p->tensor = NULL;
  return AX_OK;
}

static ax_status copy_text(ax_piece *p)
{
  char *own = ax_malloc((size_t)p->n + 1);

  if (!own) return AX_ENOMEM;
  memcpy(own, p->at, (size_t)p->n);
  p->at = own;
  p->release = ax_mfree;
  return AX_OK;
}

static ax_status copy_texts(ax_content *c)
{
  ax_status st = AX_OK;
  for (int i = 0; i < c->n && st == AX_OK; i++)
    if (!c->pieces[i].tensor && !c->pieces[i].release) st = copy_text(&c->pieces[i]);
  return st;
}

ax_status ax_content_freeze(ax_content *c)
{
  ax_status st = AX_OK;
  for (int i = 0; i < c->n && st == AX_OK; i++)
    if (c->pieces[i].tensor) st = bring(&c->pieces[i]);
  return st;
}

static ax_status settle_piece(ax_piece *p)
{
  const int64_t left = p->n - p->taken;
  ax_storage *copy;
  ax_status st;

  if (!p->live) return AX_OK;
  if (left > 0 && (st = ax_storage_new((ax_device){ AX_CPU, 0 }, (size_t)left, &copy)) != AX_OK) return st;
  ax_claim_take_off(&p->unread);
  p->live = false;
  if (left == 0) return AX_OK;
  memcpy(copy->data, p->at + (p->taken - p->skipped), (size_t)left);
  ax_storage_release(p->storage);
  p->storage = copy;
  p->at = copy->data;
  p->skipped = p->taken;
  return AX_OK;
}

ax_status ax_content_settle(ax_content *c, bool all)
{
  ax_status st = AX_OK;
  for (int i = 0; i < c->n && st == AX_OK; i++)
    if (all || (c->pieces[i].live && c->pieces[i].storage->exposed)) st = settle_piece(&c->pieces[i]);
  return st;
}

bool ax_content_rests_in_files(const ax_content *c)
{
  for (int i = 0; i < c->n; i++)
    if (c->pieces[i].live && c->pieces[i].taken < c->pieces[i].n && ax_stretch_at(c->pieces[i].at))
      return true;
  return false;
}

void ax_content_await(ax_content *c, const ax_claim_kind *kind)
{
  for (int i = 0; i < c->n; i++) {
    ax_piece *const p = &c->pieces[i];
    p->unread.kind = kind;
    if (p->live) ax_claim_put(p->storage, &p->unread);
  }
}

void ax_content_taken(ax_content *c)
{
  for (int i = 0; i < c->n; i++) {
    ax_claim_take_off(&c->pieces[i].unread);
    c->pieces[i].live = false;
  }
}

/* ---- writing */

/* Where the next bytes of a piece are.  A live one is read until end_reading. */
static const char *begin_reading(ax_content *c, ax_piece *p, int64_t from)
{
  const char *at;

  if (!c->snapshot) return p->at + from;
  pthread_mutex_lock(&c->snapshot->lock);
  c->snapshot->reading = true;
  at = p->at + (from - p->skipped);
  pthread_mutex_unlock(&c->snapshot->lock);
  return at;
}

static void end_reading(ax_content *c, ax_piece *p, int64_t taken)
{
  if (!c->snapshot) return;
  pthread_mutex_lock(&c->snapshot->lock);
  c->snapshot->reading = false;
  p->taken = taken;
  pthread_cond_broadcast(&c->snapshot->moved);
  pthread_mutex_unlock(&c->snapshot->lock);
}

static ax_status put_piece(ax_content *c, ax_piece *p)
{
  ax_status st = AX_OK;

  p->crc = 0;
  for (int64_t from = 0, n; from < p->n && st == AX_OK; from += n) {
    const int64_t room = CHUNK - c->to.written % CHUNK;
    n = p->n - from < room ? p->n - from : room;
    const char *at = begin_reading(c, p, from);
    p->crc = ax_crc32c(p->crc, at, (size_t)n);
    if (p->sum >= 0) c->sums[p->sum] = ax_crc32(c->sums[p->sum], at, (size_t)n);
    st = ax_replace_write(&c->to, at, n);
    ax_stretch_forget(at, (size_t)n);
    end_reading(c, p, from + n);
  }
  return st;
}

/* A piece that is not there as memory is there for the time of its writing only: states of a device
 * come down one by one. */
static ax_status put_tensor(ax_content *c, ax_piece *p)
{
  ax_tensor *flat = NULL;
  ax_status st = ax_tensor_bring(p->tensor, &flat);

  if (st != AX_OK) return st;
  p->at = ax_data(flat);
  st = put_piece(c, p);
  p->at = NULL;
  ax_tensor_release(flat);
  return st;
}

/* Checksums stand before and behind the bytes that they are of, so all come last. */
static ax_status put_sums(ax_content *c)
{
  for (int i = 0; i < c->n_fills; i++) {
    const ax_sum_place *f = &c->fills[i];
    ax_piece *p = &c->pieces[f->piece];
    uint8_t *to = (uint8_t *)p->at + f->at;
    for (int k = 0; k < 4; k++) to[k] = (uint8_t)(c->sums[f->sum] >> (8 * k));
    const ax_status st = ax_replace_write_at(&c->to, to, 4, p->begin + f->at);
    if (st != AX_OK) return st;
    if (i + 1 == c->n_fills || c->fills[i + 1].piece != f->piece) p->crc = ax_crc32c(0, p->at, (size_t)p->n);
  }
  return AX_OK;
}

ax_status ax_content_put(ax_content *c)
{
  ax_status st = AX_OK;

  for (int i = 0; i < c->n && st == AX_OK; i++)
    st = c->pieces[i].tensor ? put_tensor(c, &c->pieces[i]) : put_piece(c, &c->pieces[i]);
  return st == AX_OK ? put_sums(c) : st;
}

uint32_t ax_content_crc32c(const ax_content *c)
{
  uint32_t crc = 0;
  for (int i = 0; i < c->n; i++) crc = ax_crc32c_join(crc, c->pieces[i].crc, (uint64_t)c->pieces[i].n);
  return crc;
}

/* Writes the file beside its path, syncs it and renames it. */
static ax_status write_whole(ax_content *c)
{
  const ax_status st = ax_replace_begin(c->fn, c->path, &c->to);
  c->to.heeds = true;
  return ax_replace_end(&c->to, st == AX_OK ? ax_content_put(c) : st);
}

ax_status ax_content_done(ax_content *c, ax_save *save, ax_status st)
{
  if (st == AX_OK && save && (st = copy_texts(c)) == AX_OK) return ax_save_add(save, c);
  if (st == AX_OK) st = write_whole(c);
  ax_content_free(c);
  return st;
}
