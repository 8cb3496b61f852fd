/* Views under autograd.  A view knows its base: the tensor whose elements it shows, which is no
 * view itself.  A recorded in-place op on a view is an op on the base,
 *
 *     base' = base with op(view) in the view's place
 *
 * and so the base gets a new history: a node with two inputs, the base as it was and the op's
 * result.  The view itself is from then on a view of base'.  So are all other views of the base,
 * which notice it when they are next used (ax_history): they compare their count of rewrites with
 * the base's.  There is no list of views.
 *
 * Two nodes carry this, and each one's gradient is made of what the other one does: "copy_slices"
 * (base', from base and result) and "as_strided" (a view, from base').  Sizes, strides and an
 * offset within the base's memory describe a view's place; gradients have the base's layout.
 * Gradients are computed by ops that are recorded under create_graph. */
#include "core/ops/infer.h"

#include <string.h>

/* The place of a view in its base. */
typedef struct place {
  ax_dtype dtype;
  ax_device device;
  int base_ndim, ndim;
  int64_t base_shape[AX_MAX_DIMS], base_strides[AX_MAX_DIMS];
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS], offset; /* from the base's first element */
} place;

void ax_view_of(ax_tensor *view, ax_tensor *x)
{
  view->shared = x->shared = true;
  if (!ax_has_gradient((ax_dtype)view->dtype)) return; /* nothing to differentiate */
  if (x->view > AX_VIEW) view->view = x->view;
  else if (!ax_grad_enabled()) view->view = AX_VIEW_UNRECORDED;
  else {
    view->view = AX_VIEW;
    view->base = ax_tensor_retain(x->base ? x->base : x);
    view->rewrites = view->base->rewrites;
  }
}

void ax_view_forget(ax_tensor *t)
{
  ax_tensor_release(t->base);
  t->base = NULL;
  t->view = AX_NO_VIEW;
}

/* A place in the base is counted in the base's elements: a view in another type has none. */
void ax_view_foreign(ax_tensor *t)
{
  if (t->view != AX_VIEW) return;
  ax_view_forget(t);
  t->view = AX_VIEW_PARTS;
}

void ax_view_own(ax_tensor *t)
{
  ax_view_forget(t);
  t->shared = false;
}

void ax_view_check(ax_tensor *t)
{
  if (t->base && t->base->storage != t->storage) ax_view_forget(t);
}

/* Elements of memory from the first one to the last. */
static int64_t span(int ndim, const int64_t *shape, const int64_t *strides)
{
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] == 0) return 0;
    n += (shape[d] - 1) * strides[d];
  }
  return n;
}

static ax_status place_of(const ax_tensor *view, place **out)
{
  const ax_tensor *base = view->base;
  const int64_t offset = view->numel ? view->offset - base->offset : 0;
  place *p;

  *out = NULL;
  if (offset < 0 ||
      offset + span(view->ndim, view->shape, view->strides) > span(base->ndim, base->shape, base->strides))
    return ax_fail(AX_EGRAD,
                   "a view of a tensor that has other bounds since x.data was set: make the view again");
  if (!(p = ax_malloc(sizeof *p))) return AX_ENOMEM;
  *p = (place){ .dtype = (ax_dtype)view->dtype,
                .device = view->device,
                .base_ndim = base->ndim,
                .ndim = view->ndim,
                .offset = offset };
  memcpy(p->base_shape, base->shape, sizeof p->base_shape);
  memcpy(p->base_strides, base->strides, sizeof p->base_strides);
  memcpy(p->shape, view->shape, sizeof p->shape);
  memcpy(p->strides, view->strides, sizeof p->strides);
  *out = p;
  return AX_OK;
}

static void drop_place(void *ud) { ax_mfree(ud); }

/* ---- the nodes */

static ax_status as_strided_backward(void *ud, int n_out, ax_tensor *const *grads, int n_in,
                                     ax_tensor **result);
static ax_status copy_slices_backward(void *ud, int n_out, ax_tensor *const *grads, int n_in,
                                      ax_tensor **result);

static ax_status new_node(const char *name, int n_in, ax_custom_fn backward, const ax_tensor *view,
                          ax_node **out)
{
  ax_status st;
  place *p = NULL;

  *out = NULL;
  AX_TRY(place_of(view, &p));
  AX_TRY(ax_node_new(AX_NODE_CUSTOM, n_in, 1, out));
  ax_meta_of(view->base, &(*out)->in_meta[0]);
  if (n_in > 1) ax_meta_of(view, &(*out)->in_meta[1]);
  ax_meta_of(n_in > 1 ? view->base : view, &(*out)->out_meta[0]);
  (*out)->name = name;
  (*out)->custom = backward;
  (*out)->drop = drop_place;
  (*out)->ud = p;
  p = NULL;
out:
  ax_mfree(p);
  return st;
}

/* Hangs a new history into t; takes n. */
static void set_history(ax_tensor *t, ax_node *n)
{
  ax_node *old = t->grad_fn;
  const int out = t->out_index;
  t->grad_fn = n;
  t->out_index = 0;
  t->requires_grad = true;
  ax_hooks_follow(old, out, t);
  if (old) ax_node_release(old);
}

/* t gets the history of a view of its base as that is now. */
static ax_status join_base(ax_tensor *t)
{
  ax_node *n;
  ax_status st = new_node("as_strided", 1, as_strided_backward, t, &n);
  if (st != AX_OK) return st;
  if ((st = ax_edge_of(t->base, &n->edges[0])) != AX_OK) {
    ax_node_release(n);
    return st;
  }
  n->seq = ax_next_seq();
  set_history(t, n);
  return AX_OK;
}

ax_status ax_history(ax_tensor *t)
{
  if (!t->base || t->base->rewrites == t->rewrites) return AX_OK;
  ax_view_check(t);
  if (!t->base) return AX_OK;
  const ax_status st = t->base->requires_grad ? join_base(t) : AX_OK;
  if (st == AX_OK) t->rewrites = t->base->rewrites;
  return st;
}

ax_status ax_rewrite_begin(ax_node *op, ax_tensor *view, ax_rewrite *r)
{
  const ax_tensor *base = view->base;
  bool differs = false; /* does the op's result depend on anything that needs a gradient? */
  ax_status st;

  for (int d = 0; d < base->ndim; d++)
    if (base->numel && base->strides[d] == 0 && base->shape[d] > 1)
      return ax_fail(AX_EINVAL,
                     "%s_: dim %d of the tensor that this is a view of is expanded: several positions share "
                     "an element; clone it first",
                     ax_op_shown(op->op), d + 1);
  AX_TRY(new_node("copy_slices", 2, copy_slices_backward, view, &r->base));
  AX_TRY(ax_edge_of(view->base, &r->base->edges[0]));
  for (int k = 0; k < op->n_in; k++) differs |= op->edges[k].node != NULL;
  if (differs) {
    r->base->edges[1] = (ax_edge){ op, 0 };
    op->refs++;
  }
  r->base->seq = ax_next_seq();
  AX_TRY(new_node("as_strided", 1, as_strided_backward, view, &r->view));
  r->view->edges[0] = (ax_edge){ r->base, 0 };
  r->base->refs++;
out:
  return st;
}

void ax_rewrite_finish(ax_rewrite *r, ax_tensor *view)
{
  ax_leaf_ends(view->base);
  set_history(view->base, r->base);
  set_history(view, r->view);
  view->rewrites = ++view->base->rewrites;
  *r = (ax_rewrite){ 0 };
}

void ax_rewrite_drop(ax_rewrite *r)
{
  if (r->view) ax_node_release(r->view);
  if (r->base) ax_node_release(r->base);
}

/* ---- gradients */

static ax_status copy_into(ax_tensor *dst, ax_tensor *src)
{
  return ax_run_inplace(AX_OP_COPY, &(ax_args){ .n_in = 1, .in = &src, .a = { .n_list = -1 } }, dst);
}

static ax_status fill(ax_tensor *dst, double v)
{
  ax_tensor *none = NULL;
  return ax_run_inplace(AX_OP_COPY,
                        &(ax_args){
                            .n_in = 1, .in = &none, .scalars = 1, .num = { v }, .a = { .n_list = -1 } },
                        dst);
}

/* A new tensor with the base's shape and strides. */
static ax_status like_base(const place *p, ax_dtype dtype, ax_tensor **out)
{
  const int64_t n = span(p->base_ndim, p->base_shape, p->base_strides);
  ax_tensor *memory;
  ax_status st = ax_tensor_new_on(p->device, dtype, 1, &n, &memory);
  if (st != AX_OK) return st;
  st = ax_tensor_over(memory->storage, dtype, p->base_ndim, p->base_shape, p->base_strides, 0, out);
  ax_tensor_release(memory);
  return st;
}

/* The place in `whole`, which has the base's layout, as a view with a history. */
static ax_status show(const place *p, ax_tensor *whole, ax_tensor **out)
{
  ax_status st = ax_tensor_view(whole, p->ndim, p->shape, p->strides, whole->offset + p->offset, out);
  if (st != AX_OK) return st;
  ax_view_of(*out, whole);
  if (!ax_would_record(1, &whole) || (st = join_base(*out)) == AX_OK) return AX_OK;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

/* May several positions of the place share an element, as those of expand and unfold do? */
static bool overlaps_itself(const place *p)
{
  int64_t reach = 1; /* elements of memory from the first to the last of the dims so far */
  bool done[AX_MAX_DIMS] = { false };

  for (int k = 0; k < p->ndim; k++) {
    int next = -1; /* the dim of the least stride */
    if (p->shape[k] == 0) return false;
    for (int d = 0; d < p->ndim; d++)
      if (!done[d] && (next < 0 || p->strides[d] < p->strides[next])) next = d;
    done[next] = true;
    if (p->shape[next] == 1) continue;
    if (p->strides[next] < reach) return true;
    reach += (p->shape[next] - 1) * p->strides[next];
  }
  return false;
}

/* ax_run for an op of one result: *out alone is written. */
static ax_status run_one(ax_op op, const ax_args *args, ax_tensor **out)
{
  ax_tensor *all[AX_MAX_OUT];
  const ax_status st = ax_run(op, args, all);
  *out = all[0];
  return st;
}

static ax_status reshaped(ax_tensor *x, int ndim, const int64_t *shape, ax_tensor **out)
{
  ax_args a = { .n_in = 1, .in = &x, .a = { .n_list = ndim } };
  memcpy(a.a.list, shape, sizeof *shape * (size_t)ndim);
  return run_one(AX_OP_RESHAPE, &a, out);
}

/* For each position of the place, in order, the number of the base's element there. */
static ax_status elements_of(const place *p, ax_tensor **out)
{
  ax_tensor *ramp = NULL, *numbers = NULL, *part = NULL;
  int64_t n = ax_shape_numel(p->ndim, p->shape);
  ax_status st;

  AX_TRY(ax_tensor_new_on(p->device, AX_I64, p->base_ndim, p->base_shape, &ramp));
  AX_TRY(ax_run_into(AX_OP_ARANGE, &(ax_args){ .a = AX_ATTRS(arange, .start = 0, .step = 1) }, ramp));
  AX_TRY(like_base(p, AX_I64, &numbers));
  AX_TRY(copy_into(numbers, ramp));
  AX_TRY(ax_tensor_over(numbers->storage, AX_I64, p->ndim, p->shape, p->strides, p->offset, &part));
  AX_TRY(reshaped(part, 1, &n, out));
out:
  ax_tensor_release(part);
  ax_tensor_release(numbers);
  ax_tensor_release(ramp);
  return st;
}

/* The base's gradient of a view whose positions share elements: these get the sum. */
static ax_status overlapping_backward(const place *p, ax_tensor *grad, ax_tensor **result)
{
  ax_tensor *at = NULL, *flat = NULL, *zeros = NULL, *sums = NULL;
  const int64_t n = ax_shape_numel(p->base_ndim, p->base_shape);
  ax_status st;

  AX_TRY(elements_of(p, &at));
  AX_TRY(reshaped(grad, 1, &at->shape[0], &flat));
  AX_TRY(ax_tensor_new_on(p->device, p->dtype, 1, &n, &zeros));
  AX_TRY(fill(zeros, 0));
  AX_TRY(run_one(AX_OP_INDEX_ADD,
                 &(ax_args){ .n_in = 3,
                             .in = (ax_tensor *[]){ zeros, at, flat },
                             .a = AX_ATTRS(index_add, .dim = 0, .alpha = 1) },
                 &sums));
  AX_TRY(reshaped(sums, p->base_ndim, p->base_shape, result));
out:
  ax_tensor_release(sums);
  ax_tensor_release(zeros);
  ax_tensor_release(flat);
  ax_tensor_release(at);
  return st;
}

static ax_status as_strided_backward(void *ud, int n_out, ax_tensor *const *grads, int n_in,
                                     ax_tensor **result)
{
  const place *p = ud;
  ax_tensor *whole = NULL, *part = NULL;
  ax_status st;
  (void)n_out, (void)n_in;

  if (overlaps_itself(p)) return overlapping_backward(p, grads[0], &result[0]);
  AX_TRY(like_base(p, p->dtype, &whole));
  AX_TRY(fill(whole, 0));
  AX_TRY(show(p, whole, &part));
  AX_TRY(copy_into(part, grads[0]));
  result[0] = whole;
  whole = NULL;
out:
  ax_tensor_release(part);
  ax_tensor_release(whole);
  return st;
}

/* Whether the gradient has no other owner and the base's layout.  It can then be cut up in
 * place. */
static bool usable(const place *p, const ax_tensor *g)
{
  return !ax_grad_enabled() && g->refs == 1 && g->storage->refs == 1 && g->dtype == p->dtype &&
         ax_strides_equal(p->base_ndim, p->base_shape, g->strides, p->base_strides);
}

static ax_status copy_slices_backward(void *ud, int n_out, ax_tensor *const *grads, int n_in,
                                      ax_tensor **result)
{
  const place *p = ud;
  ax_tensor *whole = NULL, *part = NULL;
  ax_status st = AX_OK;
  (void)n_out, (void)n_in;

  if (usable(p, grads[0])) whole = ax_tensor_retain(grads[0]);
  else {
    AX_TRY(like_base(p, p->dtype, &whole));
    AX_TRY(copy_into(whole, grads[0]));
  }
  AX_TRY(show(p, whole, &part));
  AX_TRY(ax_run1(AX_OP_CLONE, part, &result[1]));
  AX_TRY(fill(part, 0));
  result[0] = whole;
  whole = NULL;
out:
  ax_tensor_release(part);
  ax_tensor_release(whole);
  return st;
}
