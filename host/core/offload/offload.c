/* offload.c: weights whose home is not the memory that computes (offload.h).
 *
 * The storage of an offloaded weight carries a claim (plugin.h).  Its `before` brings the weight
 * when it is about to be used, so that nothing above knows of offloading: shapes, devices,
 * state dicts, views and the tape work as with other tensors.
 *
 * A weight is AWAY, COMING (fetched before it was requested) or HERE.  While it is AWAY or COMING
 * every use queries its claim; while it is HERE only a write does, after which the memory is its
 * home and it leaves the schedule.  Nothing leaves during a call, whose kernel may hold addresses:
 * ax_offload_trim runs between two.
 *
 * The order in which weights are requested is recorded by pairs: the weight that came after `p`,
 * where `before` came before `p`.  A weight that a model's first and last layers share has two
 * places in the order so.  Until an order is known, the order of registration stands for it.
 *
 * A weight of a file that is computed on by the CPU, in the file's type, is never copied: it is
 * HERE when its pages were requested, and leaving gives the mapped pages back.  A thread reads
 * pages that will be needed. */
#include "offload.h"

#include <string.h>

#include "core/core.h"
#include "core/device/meta.h"
#include "core/io/file.h"
#include "core/io/gguf_file.h"
#include "core/io/safetensors.h"
#include "core/offload/page.h"
#include "core/ops/dispatch.h"

/* ---- making */

ax_status ax_offload_new(ax_device device, int64_t keep, int64_t ahead, ax_offload **out)
{
  ax_offload *const o = ax_calloc(1, sizeof *o);

  *out = o;
  if (!o) return AX_ENOMEM;
  o->refs = 1;
  o->device = device;
  o->keep = keep;
  o->ahead = ahead;
  pthread_mutex_lock(&ax_pages_lock);
  o->next = ax_offload_schedules;
  ax_offload_schedules = o;
  pthread_mutex_unlock(&ax_pages_lock);
  return AX_OK;
}

void ax_offload_release(ax_offload *o)
{
  if (!o) return;
  pthread_mutex_lock(&ax_pages_lock);
  ax_schedule_release(o);
  pthread_mutex_unlock(&ax_pages_lock);
}

void ax_offload_limit(ax_offload *o, int64_t keep, int64_t ahead)
{
  pthread_mutex_lock(&ax_pages_lock);
  o->keep = keep;
  o->ahead = ahead;
  if (o->stats.here > keep) ax_offload_over = true;
  pthread_mutex_unlock(&ax_pages_lock);
}

void ax_offload_count(ax_offload *o, ax_offload_stats *out)
{
  pthread_mutex_lock(&ax_pages_lock);
  *out = o->stats;
  pthread_mutex_unlock(&ax_pages_lock);
}

/* Puts a page over a storage.  home: NULL in place; else the page takes a reference.  file: whose
 * mapped bytes `at` are, or NULL. */
static ax_status add_page(ax_offload *o, ax_storage *s, ax_tensor *home, ax_dtype dtype, const char *file,
                          const void *at, size_t at_bytes, ax_page **out)
{
  const size_t length = file ? strlen(file) + 1 : 0;
  ax_page *const p = ax_calloc(1, sizeof *p + length);

  if (!p) return AX_ENOMEM;
  *p = (ax_page){ .of = o,
                  .s = s,
                  .home = home ? ax_tensor_retain(home) : NULL,
                  .at = at,
                  .at_bytes = at_bytes,
                  .bytes = s->bytes,
                  .dtype = dtype };
  if (file) p->file = memcpy(p + 1, file, length);
  if (out) *out = p;
  p->claim = (ax_claim){ .owner = p, .kind = &ax_page_away };
  ax_claim_put(s, &p->claim);
  pthread_mutex_lock(&ax_pages_lock);
  o->refs++;
  o->stats.weights++;
  o->stats.bytes += (int64_t)p->bytes;
  if (o->last_added) o->last_added->registered = p;
  else o->first_added = p;
  o->last_added = p;
  pthread_mutex_unlock(&ax_pages_lock);
  return AX_OK;
}

/* file: in which the home is mapped, or NULL */
static ax_status add(ax_offload *o, ax_tensor *home, ax_dtype dtype, const char *file, ax_tensor **out)
{
  int64_t strides[AX_MAX_DIMS], numel;
  const size_t at_bytes = (size_t)home->numel * ax_itemsize(home);
  const ax_backend *backend = NULL;
  ax_storage *s = NULL;
  size_t bytes;
  ax_status st;

  *out = NULL;
  AX_TRY(ax_shape_checked_bytes(home->ndim, home->shape, ax_dtype_size(dtype), &numel, &bytes));
  if (o->device.kind != AX_CPU) AX_TRY(ax_backend_of(o->device, &backend));
  AX_TRY(ax_storage_wrap(NULL, bytes, ax_page_free_data, backend ? (void *)backend->memory : NULL, &s));
  s->device = o->device;
  ax_strides_contiguous(home->ndim, home->shape, strides);
  AX_TRY(ax_tensor_over(s, dtype, home->ndim, home->shape, strides, 0, out));
  (*out)->device = o->device;
  st = add_page(o, s, home, dtype, file, file ? ax_data(home) : NULL, at_bytes, NULL);
out:
  ax_storage_release(s);
  if (st != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

ax_status ax_offload_add(ax_offload *o, ax_tensor *home, ax_dtype dtype, ax_tensor **out)
{
  *out = NULL;
  if (home->device.kind != AX_CPU)
    return ax_fail(AX_EINVAL, "offload: the home of a weight must be memory of the CPU, this one lies on %s",
                   AX_DEVICE_TEXT(home->device));
  return add(o, home, dtype, NULL, out);
}

ax_status ax_offload_add_written(ax_offload *o, ax_storage *s)
{
  ax_page *p = NULL;
  const ax_status st = add_page(o, s, NULL, AX_U8, NULL, s->data, s->bytes, &p);

  if (st == AX_OK) ax_page_follow_written(p);
  return st;
}

/* t: over mapped bytes that nobody writes, which this call takes. */
static ax_status add_mapped(ax_offload *o, ax_tensor *t, ax_dtype dtype, const char *file, ax_tensor **out)
{
  ax_status st;

  if (o->device.kind == AX_CPU && t->dtype == dtype) {
    st = add_page(o, t->storage, NULL, dtype, file, ax_data(t), t->storage->bytes, NULL);
    if (st == AX_OK) *out = ax_tensor_retain(t);
  } else st = add(o, t, dtype, file, out);
  ax_tensor_release(t);
  return st;
}

/* *t becomes a view of it with its two dims swapped. */
static ax_status turn(ax_tensor **t)
{
  ax_tensor *const from = *t;
  ax_status st;

  if (from->ndim != 2) return ax_fail(AX_ESHAPE, "offload: a matrix was expected, got %d dims", from->ndim);
  st = ax_tensor_over(from->storage, (ax_dtype)from->dtype, 2, (int64_t[]){ from->shape[1], from->shape[0] },
                      (int64_t[]){ from->strides[1], from->strides[0] }, 0, t);
  if (st == AX_OK) ax_tensor_release(from);
  else *t = from;
  return st;
}

/* t: of a file, which this call takes.  file: NULL where it is a copy. */
static ax_status add_shown(ax_offload *o, ax_tensor *t, const char *file, ax_dtype dtype, bool turned,
                           ax_tensor **out)
{
  ax_status st;

  if (!turned && file) return add_mapped(o, t, dtype, file, out);
  if (turned) AX_TRY(turn(&t));
  st = add(o, t, dtype, file, out);
out:
  ax_tensor_release(t);
  return st;
}

ax_status ax_offload_add_file(ax_offload *o, const ax_safetensors *f, int i, ax_dtype dtype, bool turned,
                              ax_tensor **out)
{
  const bool bytes = dtype == AX_U8; /* codes in int8 are these bits, too */
  const char *file = f->path;
  ax_tensor *t;
  ax_status st;

  *out = NULL;
  if ((st = (bytes ? ax_safetensors_show_bytes : ax_safetensors_show)(f, i, &t)) != AX_OK) return st;
  if (!t) { /* bools, and what is not aligned */
    file = NULL;
    if ((st = (bytes ? ax_safetensors_lend_bytes : ax_safetensors_get)(f, i, &t)) != AX_OK) return st;
  }
  return add_shown(o, t, file, dtype, turned, out);
}

ax_status ax_offload_add_gguf(ax_offload *o, const ax_gguf *f, int i, ax_dtype dtype, bool turned,
                              ax_tensor **out)
{
  bool mapped;
  ax_tensor *t;
  const ax_status st = ax_gguf_show(f, i, &t, &mapped);

  *out = NULL;
  if (st != AX_OK) return st;
  if (dtype == AX_DTYPE_COUNT) dtype = (ax_dtype)t->dtype;
  return add_shown(o, t, mapped ? ax_gguf_path(f) : NULL, dtype, turned, out);
}

ax_status ax_offload_add_raw(ax_offload *o, const char *path, ax_dtype stored, int ndim, const int64_t *shape,
                             ax_dtype dtype, ax_tensor **out)
{
  ax_tensor *t;
  ax_status st;

  *out = NULL;
  if ((st = ax_raw_show("offload", path, stored, ndim, shape, &t)) != AX_OK) return st;
  if (t) return add_mapped(o, t, dtype, path, out);
  if ((st = ax_raw_read("offload", path, stored, ndim, shape, &t)) != AX_OK) return st;
  st = add(o, t, dtype, NULL, out);
  ax_tensor_release(t);
  return st;
}

ax_tensor *ax_offload_home(const ax_tensor *t)
{
  const ax_claim *c = ax_claim_of(t->storage, &ax_page_away);
  if (!c) c = ax_claim_of(t->storage, &ax_page_here);
  return c ? ((const ax_page *)c->owner)->home : NULL;
}
