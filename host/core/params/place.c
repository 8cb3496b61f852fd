/* place.c: buffers of layouts in files, or in host memory (place.h). */
#include "core/core.h"
#include "core/memory/lasting.h"
#include "core/offload/page.h"
#include "core/ops/dispatch.h"
#include "core/params/home.h"
#include "place.h"

#include <string.h>

enum { UNITS_AHEAD = 2 };

/* The file of another rank, in which values are that all ranks have. */
typedef struct guest {
  struct guest *next;
  ax_scratch *file;
  int pid, number;
} guest;

struct ax_place {
  int32_t refs;
  ax_scratch *own; /* NULL: the place is the host's memory */
  guest *guests;
  ax_offload *values; /* whose values are read next, and which of them stay (offload.h) */
  int64_t largest;    /* bytes of the largest layout's values */
};

ax_status ax_place_files(const char *folder, ax_place **out)
{
  ax_place *p = ax_calloc(1, sizeof *p);
  ax_status st;

  *out = NULL;
  if (!p) return AX_ENOMEM;
  p->refs = 1;
  AX_TRY(ax_scratch_new(folder, &p->own));
  AX_TRY(ax_offload_new((ax_device){ AX_CPU, 0 }, 0, 0, &p->values));
  *out = p;
  p = NULL;
out:
  ax_place_release(p);
  return st;
}

ax_status ax_place_host(ax_place **out)
{
  if (!(*out = ax_calloc(1, sizeof **out))) return AX_ENOMEM;
  (*out)->refs = 1;
  return AX_OK;
}

void ax_place_release(ax_place *p)
{
  if (!p || --p->refs > 0) return;
  while (p->guests) {
    guest *const g = p->guests;
    p->guests = g->next;
    ax_scratch_release(g->file);
    ax_mfree(g);
  }
  ax_offload_release(p->values);
  ax_scratch_release(p->own);
  ax_mfree(p);
}

ax_scratch *ax_place_file(const ax_place *p) { return p->own; }

ax_status ax_place_guest(ax_place *p, int pid, int number, ax_scratch **out)
{
  guest *g = p->guests;
  ax_status st;

  while (g && (g->pid != pid || g->number != number)) g = g->next;
  if (!g) {
    if (!(g = ax_calloc(1, sizeof *g))) return AX_ENOMEM;
    if ((st = ax_scratch_open(ax_scratch_folder(p->own), pid, number, &g->file)) != AX_OK) {
      ax_mfree(g);
      return st;
    }
    g->pid = pid, g->number = number;
    g->next = p->guests;
    p->guests = g;
  }
  *out = g->file;
  return AX_OK;
}

static ax_status new_tensor(ax_place *p, const char *what, ax_dtype dtype, int64_t n, int flags,
                            ax_tensor **out)
{
  const int64_t one = 1;
  const size_t bytes = (size_t)n * ax_dtype_size(dtype);
  ax_stretch *x = NULL;
  ax_storage *s = NULL;
  int64_t at;
  ax_status st;

  *out = NULL;
  AX_TRY(ax_scratch_reserve(p->own, bytes, what, &at));
  AX_TRY(ax_scratch_map(p->own, at, bytes, flags, &x));
  AX_TRY(ax_stretch_show(x, 0, bytes, &s));
  st = ax_tensor_over(s, dtype, 1, &n, &one, 0, out);
out:
  ax_storage_release(s);
  ax_stretch_release(x);
  return st;
}

static ax_status new_in_memory(ax_dtype dtype, int64_t n, ax_tensor **out)
{
  ax_status st = ax_tensor_new_pinned(dtype, 1, &n, out);

  if (st != AX_OK) return ax_tensor_zeros_lasting((ax_device){ AX_CPU, 0 }, dtype, 1, &n, out);
  if ((st = ax_fill(*out, 0)) == AX_OK) return AX_OK;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

ax_status ax_place_tensor(ax_place *p, const char *what, ax_dtype dtype, int64_t n, ax_tensor **out)
{
  return p->own ? new_tensor(p, what, dtype, n, 0, out) : new_in_memory(dtype, n, out);
}

/* Puts the memory of a tensor, all of its storage, into the place's file. */
static ax_status move_to_file(ax_place *p, const char *what, ax_tensor *t)
{
  const size_t n = t->storage->bytes;
  ax_tensor *there = NULL;
  size_t moved;
  int why;
  ax_status st;

  AX_TRY(ax_tensor_ready(t, AX_READ | AX_WRITE));
  AX_TRY(new_tensor(p, what, AX_U8, (int64_t)n, AX_STRETCH_CACHED, &there));
  void *const to = there->storage->data;
  why = ax_scratch_transfer(ax_stretch_at(to), true, to, t->storage->data, n, &moved);
  if (why) {
    st = ax_place_fail(p->own, true, what, n, moved, why);
    goto out;
  }
  ax_storage_trade(t->storage, there->storage);
out:
  ax_tensor_release(there);
  return st;
}

ax_status ax_place_move(ax_place *p, const char *what, ax_tensor **t)
{
  ax_tensor *there;
  ax_status st;

  if (p->own) return move_to_file(p, what, *t);
  if ((st = new_in_memory((ax_dtype)(*t)->dtype, (*t)->numel, &there)) != AX_OK) return st;
  if ((st = ax_copy(there, *t)) != AX_OK) {
    ax_tensor_release(there);
    return st;
  }
  ax_tensor_release(*t);
  *t = there;
  return AX_OK;
}

ax_status ax_place_follow(ax_place *p, ax_storage *s)
{
  if (!p->own) return AX_OK;
  if ((int64_t)s->bytes > p->largest) {
    p->largest = (int64_t)s->bytes;
    ax_offload_limit(p->values, UNITS_AHEAD * p->largest, UNITS_AHEAD * p->largest);
  }
  return ax_offload_add_written(p->values, s);
}

ax_status ax_place_fail(const ax_scratch *s, bool write, const char *what, size_t n, size_t moved, int why)
{
  ax_size_buffer whole, part;

  return ax_fail(AX_EIO, "offload: '%s': %s: %s of %s were %s: %s", ax_scratch_folder(s), what,
                 ax_size_text((int64_t)moved, part), ax_size_text((int64_t)n, whole),
                 write ? "written" : "read", strerror(why));
}

void ax_place_count(ax_place_stats *out)
{
  ax_scratch_stats s;

  ax_scratch_count(&s);
  *out = (ax_place_stats){ .bytes = s.bytes, .read = s.read, .written = s.written };
}

/* ---- layouts */

ax_status ax_flat_rest_in(ax_flat *f, ax_place *p, uint8_t what, bool cut)
{
  ax_home *h = &f->home;
  ax_status st;

  if (h->place) return ax_fail(AX_EINVAL, "flat: it is decided already where the layout rests");
  if (h->group) return ax_fail(AX_EINVAL, "flat: the layout is cut already");
  if (p->own && f->device.kind != AX_CPU)
    return ax_fail(AX_ENOIMPL, "offload to files is for models on the CPU, and %s is on %s", ax_home_title(f),
                   AX_DEVICE_TEXT(f->device));
  if (!p->own && f->device.kind == AX_CPU)
    return ax_fail(
        AX_EINVAL,
        "offload to host memory is for models on devices, and %s is on the CPU: its memory is the host's",
        ax_home_title(f));
  if (!p->own && !cut && what & (AX_CUT_VALUES | AX_CUT_GRADS))
    return ax_fail(AX_EINVAL, "flat: values and gradients that rest on the host have to be cut");
  if (what & AX_CUT_VALUES && !cut) {
    if ((st = move_to_file(p, ax_home_title(f), f->values)) != AX_OK ||
        (st = ax_place_follow(p, f->values->storage)) != AX_OK)
      return st;
  }
  p->refs++;
  h->place = p;
  h->away = what;
  return AX_OK;
}

const char *ax_home_title(const ax_flat *f) { return f->name ? f->name : "the model"; }
