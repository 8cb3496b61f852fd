/* Saving what a captured step reads and writes, restoring it, and comparing two such states. */
#include "core/core.h"
#include "core/device/recording.h"
#include "core/params/home.h"
#include "core/tape/graph.h"
#include "slot.h"

#include <string.h>

struct ax_saved_state {
  int n, n_leaves, n_generators;
  void **bytes;       /* the bytes of each storage */
  ax_tensor **grads;  /* the gradient of each leaf; counted */
  ax_tensor **values; /* their elements on the host; NULL: the gradient is cut, and `bytes` has them */
  bool *work;
  ax_generator *generators;
};

void ax_saved_state_free(ax_saved_state *s)
{
  if (!s) return;
  for (int k = 0; k < s->n; k++) ax_mfree(s->bytes[k]);
  for (int k = 0; k < s->n_leaves; k++) ax_tensor_release(s->grads[k]), ax_tensor_release(s->values[k]);
  ax_mfree(s->bytes), ax_mfree(s->grads), ax_mfree(s->values), ax_mfree(s->work), ax_mfree(s->generators);
  ax_mfree(s);
}

ax_status ax_capture_save(ax_capture *c, ax_saved_state **out)
{
  const ax_device cpu = { AX_CPU, 0 };
  ax_saved_state *s = *out = ax_calloc(1, sizeof *s);
  ax_status st = AX_ENOMEM;

  if (!s) return AX_ENOMEM;
  s->bytes = ax_calloc((size_t)c->n_storages + 1, sizeof *s->bytes);
  s->grads = ax_calloc((size_t)c->n_leaves + 1, sizeof *s->grads);
  s->values = ax_calloc((size_t)c->n_leaves + 1, sizeof *s->values);
  s->work = ax_calloc((size_t)c->n_leaves + 1, sizeof *s->work);
  s->generators = ax_calloc((size_t)c->n_generators + 1, sizeof *s->generators);
  if (!s->bytes || !s->grads || !s->values || !s->work || !s->generators) goto out;
  st = AX_OK;
  for (; s->n < c->n_storages; s->n++) {
    const ax_storage *from = c->storages[s->n];
    if (!(s->bytes[s->n] = ax_malloc(from->bytes ? from->bytes : 1))) {
      st = AX_ENOMEM;
      goto out;
    }
    if (from->bytes)
      AX_TRY(c->backend->memory->copy(cpu, s->bytes[s->n], from->device, from->data, from->bytes));
  }
  s->n_leaves = c->n_leaves;
  for (int k = 0; k < c->n_leaves; k++) {
    ax_tensor *g = c->leaves[k].t->grad;
    s->work[k] = ax_slot_work_is_current(c->leaves[k].t);
    if (!g) continue;
    s->grads[k] = ax_tensor_retain(g);
    if (ax_home_resting_grad(c->leaves[k].t) != g) continue;
    AX_TRY(ax_tensor_new((ax_dtype)g->dtype, g->ndim, g->shape, &s->values[k]));
    AX_TRY(ax_copy(s->values[k], g));
  }
  s->n_generators = c->n_generators;
  for (int k = 0; k < c->n_generators; k++) s->generators[k] = *c->generators[k].g;
out:
  if (st != AX_OK) {
    s->n = s->n < c->n_storages ? s->n + 1 : s->n; /* the one that failed half-way */
    if (!s->bytes) s->n = 0;
    ax_saved_state_free(s);
    *out = NULL;
  }
  return st;
}

ax_status ax_capture_restore(ax_capture *c, const ax_saved_state *s)
{
  const ax_device cpu = { AX_CPU, 0 };
  ax_status st = AX_OK;

  for (int k = 0; k < s->n; k++) {
    ax_storage *to = c->storages[k];
    if (to->bytes) AX_TRY(c->backend->memory->copy(to->device, to->data, cpu, s->bytes[k], to->bytes));
  }
  for (int k = 0; k < s->n_leaves; k++) {
    ax_tensor *t = c->leaves[k].t;
    set_grad(t, s->grads[k]);
    if (s->values[k]) AX_TRY(ax_copy(t->grad, s->values[k]));
    ax_touch(t);
    ax_slot_set_work_current(t, s->work[k]);
  }
  for (int k = 0; k < s->n_generators; k++)
    c->generators[k].g->seed = s->generators[k].seed, c->generators[k].g->draws = s->generators[k].draws;
out:
  return st;
}

static int64_t first_difference(const char *a, const char *b, size_t n)
{
  if (memcmp(a, b, n) == 0) return -1;
  for (size_t i = 0; i < n; i++)
    if (a[i] != b[i]) return (int64_t)i;
  return -1;
}

bool ax_saved_state_differ(const ax_capture *c, const ax_saved_state *a, const ax_saved_state *b,
                           const void **storage, int64_t *byte)
{
  for (int k = 0; k < c->n_storages; k++) {
    *storage = c->storages[k]->data;
    if ((*byte = first_difference(a->bytes[k], b->bytes[k], c->storages[k]->bytes)) >= 0) return true;
  }
  for (int k = 0; k < c->n_leaves; k++) {
    *storage = c->leaves[k].data;
    *byte = -1;
    if (!a->grads[k] != !b->grads[k]) return true;
    if (a->values[k] && b->values[k] &&
        first_difference(ax_data(a->values[k]), ax_data(b->values[k]),
                         (size_t)a->values[k]->numel * ax_itemsize(a->values[k])) >= 0)
      return true;
  }
  *storage = NULL;
  for (int k = 0; k < c->n_generators; k++)
    if (a->generators[k].draws != b->generators[k].draws || a->generators[k].seed != b->generators[k].seed)
      return true;
  return false;
}
