/* Weights that are gathered in eight bits, a quarter of float32's bytes (home.c has the tour).
 *
 * A product in eight bits takes a matrix times the scale that makes its largest size the type's.
 * No rank has the whole matrix before it is gathered, so the ranks agree on the largest size first;
 * then each casts its part, and the parts are gathered as they are.  Rounding keeps the order of
 * numbers, so that the largest size among rounded ones is the largest size, rounded. */
#include "eight.h"
#include "core/core.h"
#include "core/params/home.h"
#include "float8.h"

#include <math.h>

enum { RUN = 64 }; /* elements of a row in which a piece is cast: parts begin and end at such runs */

/* A view of elements [from, from + n) of a buffer as a matrix. */
static ax_status matrix(const ax_tensor *buffer, int64_t from, int64_t n, ax_tensor **out)
{
  const int64_t cols = n % RUN ? n : RUN;
  return ax_tensor_over(buffer->storage, (ax_dtype)buffer->dtype, 2, (int64_t[]){ n / cols, cols },
                        (int64_t[]){ cols, 1 }, buffer->offset + from, out);
}

static ax_status element(const ax_tensor *buffer, int64_t k, ax_tensor **out)
{
  const int64_t one = 1;
  return ax_tensor_over(buffer->storage, (ax_dtype)buffer->dtype, 1, &one, &one, buffer->offset + k, out);
}

/* ---- scales */

/* New reference to the largest size in this rank's part of each parameter, on its device; 0 where
 * it has nothing of one. */
static ax_status own_sizes(const ax_flat *f, ax_tensor **out)
{
  const int64_t n = f->n;
  ax_args norm = { .n_in = 1, .a = AX_ATTRS(norm, .p = HUGE_VAL) };
  ax_tensor *sizes = NULL, *size[AX_MAX_OUT] = { 0 }, *place = NULL;
  ax_status st;

  AX_TRY(ax_tensor_zeros_on(f->home.values->device, AX_F32, 1, &n, &sizes));
  for (int k = 0; k < f->n; k++) {
    if (!f->home.value_piece[k]) continue;
    norm.in = &f->home.value_piece[k];
    AX_TRY(ax_run(AX_OP_NORM, &norm, size));
    AX_TRY(element(sizes, k, &place));
    AX_TRY(ax_copy(place, size[0]));
    ax_tensor_release(place), ax_tensor_release(size[0]);
    place = size[0] = NULL;
  }
  AX_TRY(ax_tensor_new_on(f->device, AX_F32, 1, &n, out));
  if ((st = ax_copy(*out, sizes)) == AX_OK) goto out;
  ax_tensor_release(*out);
  *out = NULL;
out:
  ax_tensor_release(sizes), ax_tensor_release(place), ax_tensor_release(size[0]);
  return st;
}

/* Takes the largest size of each parameter over the ranks.  Read as integers, the bits of sizes
 * have the order of the sizes, and a NaN is the largest: the maximum loses none. */
static ax_status agree(const ax_flat *f, ax_tensor *sizes)
{
  ax_status st = ax_tensor_ready(sizes, AX_WRITE);
  const ax_collective c = { .op = AX_ALL_REDUCE,
                            .dtype = AX_I32,
                            .reduction = AX_MAX,
                            .kind = f->device.kind,
                            .index = f->device.index,
                            .count = sizes->numel,
                            .in = ax_data(sizes),
                            .out = ax_data(sizes) };
  return st == AX_OK ? ax_dist_run(f->home.group, &c, NULL) : st;
}

/* What ax_float8_scale (kernels/float8_scale.h) makes of each size: MOST / size, limited; 1 where
 * that is no number. */
static ax_status scales_of(ax_tensor *sizes, ax_tensor **out)
{
  ax_tensor *some = NULL, *finite = NULL, *fit = NULL, *ratio = NULL, *limited = NULL, *result[AX_MAX_OUT];
  const ax_args divide = { .n_in = 2,
                           .in = (ax_tensor *[]){ NULL, sizes },
                           .scalars = 1,
                           .num = { AX_E4M3_MOST },
                           .a = { .n_list = -1 } };
  ax_args choose = { .n_in = 3, .scalars = 4, .num = { 0, 0, 1 }, .a = { .n_list = -1 } };
  ax_status st;

  AX_TRY(ax_run_num(AX_OP_GT, sizes, 0, &some));
  AX_TRY(ax_run1(AX_OP_ISFINITE, sizes, &finite));
  AX_TRY(ax_run2(AX_OP_LOGICAL_AND, some, finite, &fit));
  AX_TRY(ax_run(AX_OP_DIV, &divide, result));
  ratio = result[0];
  AX_TRY(ax_run_num(AX_OP_MINIMUM, ratio, AX_FLOAT8_MOST_SCALE, &limited));
  choose.in = (ax_tensor *[]){ fit, limited, NULL };
  AX_TRY(ax_run(AX_OP_WHERE, &choose, result));
  *out = result[0];
out:
  ax_tensor_release(some), ax_tensor_release(finite), ax_tensor_release(fit);
  ax_tensor_release(ratio), ax_tensor_release(limited);
  return st;
}

/* New reference to the scale of each parameter; its inverse goes to the factors. */
static ax_status common_scales(const ax_flat *f, ax_tensor **out)
{
  const ax_eight *e = f->home.eight;
  ax_tensor *sizes = NULL, *rounded = NULL, *wide = NULL, *inverse = NULL;
  ax_status st;

  *out = NULL;
  AX_TRY(own_sizes(f, &sizes));
  AX_TRY(ax_cast(sizes, e->via, &rounded));
  AX_TRY(ax_cast(rounded, AX_F32, &wide));
  AX_TRY(agree(f, wide));
  AX_TRY(scales_of(wide, out));
  AX_TRY(ax_run1(AX_OP_RECIPROCAL, *out, &inverse));
  AX_TRY(ax_copy(e->factors, inverse));
out:
  ax_tensor_release(sizes), ax_tensor_release(rounded), ax_tensor_release(wide), ax_tensor_release(inverse);
  if (st == AX_OK) return st;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

/* ---- casts */

/* A matrix times a scale into another one of eight bits.  scale NULL: its own.  factor: receives
 * 1 / scale; NULL: nobody does. */
static ax_status cast(ax_tensor *from, ax_tensor *scale, ax_tensor *to, ax_tensor *factor)
{
  const ax_args args = { .n_in = 2,
                         .in = (ax_tensor *[]){ from, scale },
                         .a = AX_ATTRS(float8_cast, .dtype = AX_E4M3) };
  ax_tensor *out[AX_MAX_OUT] = { 0 }, *first = NULL;
  ax_status st;

  AX_TRY(ax_run(AX_OP_FLOAT8_CAST, &args, out));
  AX_TRY(ax_copy(to, out[0]));
  if (!factor) goto out;
  AX_TRY(element(out[2], 0, &first));
  st = ax_copy(factor, first);
out:
  for (int k = 0; k < AX_MAX_OUT; k++) ax_tensor_release(out[k]);
  ax_tensor_release(first);
  return st;
}

static ax_status cast_own(const ax_flat *f, ax_tensor *half, ax_tensor *scales, int k, ax_tensor *eight)
{
  ax_tensor *from = NULL, *to = NULL, *scale = NULL;
  int64_t first;
  const int64_t n = ax_flat_piece(f, k, &first), at = f->offsets[k] + first - f->home.first;
  ax_status st = AX_OK;

  if (!n) return AX_OK;
  AX_TRY(matrix(half, at, n, &from));
  AX_TRY(matrix(eight, at, n, &to));
  AX_TRY(element(scales, k, &scale));
  st = cast(from, scale, to, NULL);
out:
  ax_tensor_release(from), ax_tensor_release(to), ax_tensor_release(scale);
  return st;
}

ax_status ax_eight_own_part(const ax_flat *f, ax_tensor **out)
{
  const bool recording = ax_grad_set_enabled(false);
  ax_tensor *half = NULL, *scales = NULL;
  ax_status st;

  *out = NULL;
  AX_TRY(ax_home_record(f, AX_CUT_VALUES, f->home.eight->factors));
  AX_TRY(common_scales(f, &scales));
  AX_TRY(ax_home_own_part(f, f->home.eight->via, &half));
  AX_TRY(ax_tensor_zeros_on(f->device, AX_E4M3, 1, &half->numel, out));
  for (int k = 0; k < f->n; k++) AX_TRY(cast_own(f, half, scales, k, *out));
out:
  ax_grad_set_enabled(recording);
  ax_tensor_release(half), ax_tensor_release(scales);
  if (st == AX_OK) return st;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

/* A parameter, as it is whole here. */
static ax_status cast_whole(const ax_flat *f, int k)
{
  const ax_eight *e = f->home.eight;
  const bool recording = ax_grad_set_enabled(false);
  const int64_t n = f->params[k]->numel;
  ax_tensor *values = NULL, *half = NULL, *to = NULL, *factor = NULL;
  ax_status st;

  AX_TRY(matrix(f->values, f->offsets[k], n, &values));
  AX_TRY(ax_cast(values, e->via, &half));
  AX_TRY(matrix(e->values, f->offsets[k], n, &to));
  AX_TRY(element(e->factors, k, &factor));
  st = cast(half, NULL, to, factor);
out:
  ax_grad_set_enabled(recording);
  ax_tensor_release(values), ax_tensor_release(half), ax_tensor_release(to), ax_tensor_release(factor);
  return st;
}

ax_status ax_eight_from_whole(ax_flat *f)
{
  ax_eight *e = f->home.eight;
  ax_tensor *fresh = NULL;
  ax_status st;

  AX_TRY(ax_tensor_zeros_on(f->device, AX_E4M3, 1, &f->size, &fresh));
  ax_storage_trade(e->values->storage, fresh->storage);
  ax_claim_take_off(&e->none);
  for (int k = 0; k < f->n && st == AX_OK; k++) st = cast_whole(f, k);
  if (st != AX_OK) ax_home_take_memory(e->values, &e->none);
out:
  ax_tensor_release(fresh);
  return st;
}

/* ---- layouts */

bool ax_flat_gathers_eight(const ax_flat *f) { return f->home.eight != NULL; }

static ax_status check(const ax_flat *f, ax_dtype via)
{
  const ax_home *h = &f->home;

  if (!(h->cut & AX_CUT_VALUES) || h->eight)
    return ax_fail(AX_EINVAL, "flat: a layout that is gathered in eight bits is cut with its values, once");
  if (!ax_is_half(via) || (f->dtype != AX_F32 && f->dtype != via) ||
      (h->gathers != f->dtype && h->gathers != via))
    return ax_fail(AX_EINVAL, "flat: values of %s that are gathered in %s cannot be rounded to %s before",
                   ax_dtype_name((ax_dtype)f->dtype), ax_dtype_name((ax_dtype)h->gathers),
                   ax_dtype_name(via));
  for (int k = 0; k < f->n; k++)
    if (f->params[k]->ndim != 2)
      return ax_fail(AX_EINVAL, "flat: %s is no matrix, and cannot be gathered in eight bits",
                     f->names ? f->names[k] : "a parameter");
  return AX_OK;
}

ax_status ax_flat_gather_in_eight(ax_flat *f, ax_dtype via)
{
  const int64_t n = f->n;
  ax_eight *e = NULL;
  ax_status st = check(f, via);

  if (st != AX_OK || f->home.shared) return st;
  if (!(e = ax_calloc(1, sizeof *e))) return AX_ENOMEM;
  AX_TRY(ax_home_new_claim(&e->after));
  AX_TRY(ax_tensor_zeros_on(f->device, AX_F32, 1, &n, &e->factors));
  AX_TRY(ax_home_without_memory(f, AX_E4M3, f->size, &e->values));
  e->via = via;
  e->none = (ax_claim){ .kind = &ax_home_no_eight, .owner = f };
  ax_flat_drop_values(f); /* nothing is here in another type */
  f->home.eight = e;
  ax_claim_put(e->values->storage, &e->none);
  return AX_OK;
out:
  ax_tensor_release(e->factors), ax_mfree(e->after);
  ax_mfree(e);
  return st;
}

void ax_eight_free(ax_flat *f)
{
  ax_eight *e = f->home.eight;

  if (!e) return;
  ax_home_leave_claim(e->values, &e->none, &e->after);
  ax_tensor_release(e->values), ax_tensor_release(e->factors);
  ax_mfree(e);
  f->home.eight = NULL;
}

ax_status ax_flat_in_eight(const ax_tensor *p, ax_dtype via, ax_tensor **values, ax_tensor **factor)
{
  const ax_flat *f = p->flat;
  const ax_eight *e = f ? f->home.eight : NULL;
  const int k = p->slot;
  ax_status st = AX_OK;

  *values = *factor = NULL;
  if (!e || e->via != via || f->params[k] != p) return AX_OK;
  if (!e->none.at && ax_eight_has_whole(f)) AX_TRY(cast_whole(f, k));
  AX_TRY(ax_tensor_over(e->values->storage, AX_E4M3, 2, p->shape, (int64_t[]){ p->shape[1], 1 },
                        e->values->offset + f->offsets[k], values));
  if ((st = element(e->factors, k, factor)) == AX_OK) return AX_OK;
  ax_tensor_release(*values);
  *values = NULL;
out:
  return st;
}
