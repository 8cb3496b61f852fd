/* Hooks on gradients.  A leaf's hooks are on the tensor, a result's on the node that made it. */
#include "core/tape/graph.h"

static _Thread_local uint64_t next_hook = 1;

static _Thread_local ax_hook *live_hooks;
static _Thread_local ax_leaf_holder leaf_holder;

void ax_leaf_set_holder(ax_leaf_holder hold) { leaf_holder = hold; }

ax_status ax_leaf_hold(ax_node *n)
{
  return leaf_holder && !n->drop ? leaf_holder(n->leaf, &n->drop, &n->ud) : AX_OK;
}

static void drop_hook(ax_hook *h)
{
  if ((*h->from_live = h->next_live)) h->next_live->from_live = h->from_live;
  if (h->drop) h->drop(h->ud);
  ax_mfree(h);
}

void ax_hooks_drop(ax_hook **list)
{
  while (*list) {
    ax_hook *h = *list;
    *list = h->next;
    drop_hook(h);
  }
}

ax_status ax_hook_add(ax_tensor *t, ax_hook_kind kind, ax_hook_fn call, void (*drop)(void *), void *ud,
                      uint64_t *id)
{
  ax_hook **at, *h;
  ax_status st = ax_history(t);

  if (st != AX_OK) return st;
  if (!t->requires_grad)
    return ax_fail(AX_EGRAD, "hook: the tensor does not require a gradient, so a hook would never run");
  if (kind == AX_HOOK_POST && t->grad_fn)
    return ax_fail(AX_EGRAD, "hook: only a leaf accumulates its gradient; this is the result of %s",
                   ax_grad_fn_name(t));
  /* treats the hook as one added before the backward pass that released the graph */
  if (t->grad_fn && t->grad_fn->released) {
    *id = next_hook++;
    drop(ud);
    return AX_OK;
  }
  if (!t->grad_fn && t->accumulate && (st = ax_leaf_hold(t->accumulate)) != AX_OK) return st;
  if (!(h = ax_malloc(sizeof *h))) return AX_ENOMEM;
  at = t->grad_fn ? &t->grad_fn->hooks : &t->hooks;
  *h = (ax_hook){ .home = at,
                  .id = next_hook++,
                  .kind = kind,
                  .out = t->out_index,
                  .call = call,
                  .drop = drop,
                  .ud = ud,
                  .next_live = live_hooks,
                  .from_live = &live_hooks };
  if (live_hooks) live_hooks->from_live = &h->next_live;
  live_hooks = h;
  /* hooks run in the order in which they were added */
  while (*at && (kind == AX_HOOK_KEEP || (*at)->kind != AX_HOOK_KEEP)) at = &(*at)->next;
  h->next = *at;
  *at = h;
  *id = h->id;
  return AX_OK;
}

/* The lists whose hooks are being run, the innermost first.  A hook may remove itself or others:
 * what goes from one of these lists stays in memory until the list is through. */
typedef struct running {
  ax_hook **list;
  struct running *outer;
} running;
static _Thread_local running *now_running;

static bool is_running(ax_hook *const *list)
{
  for (const running *r = now_running; r; r = r->outer)
    if (r->list == list) return true;
  return false;
}

void ax_hook_remove(ax_tensor *t, uint64_t id)
{
  ax_hook **list = t->grad_fn ? &t->grad_fn->hooks : &t->hooks;
  const ax_hook *found = *list;

  while (found && found->id != id) found = found->next;
  /* t has got another history since, from an in-place op or detach_: the hook stays with the one
   * that it was added to */
  if (!found) {
    for (found = live_hooks; found && found->id != id; found = found->next_live) continue;
    if (!found) return;
    list = found->home;
  }
  for (ax_hook **at = list; *at; at = &(*at)->next)
    if ((*at)->id == id) {
      ax_hook *h = *at;
      if (is_running(list)) {
        h->gone = true;
        return;
      }
      *at = h->next;
      drop_hook(h);
      return;
    }
}

void ax_hooks_end(ax_hook **list)
{
  if (!is_running(list)) ax_hooks_drop(list);
  else
    for (ax_hook *h = *list; h; h = h->next) h->gone = true;
}

void ax_hooks_follow(ax_node *from, int out, const ax_tensor *t)
{
  ax_hook **end;

  if (!from || !from->hooks || !t->grad_fn || from == t->grad_fn || is_running(&from->hooks)) return;
  for (end = &t->grad_fn->hooks; *end;) end = &(*end)->next;
  for (ax_hook **at = &from->hooks; *at;) {
    ax_hook *h = *at;
    if (h->kind != AX_HOOK_KEEP || h->out != out) {
      at = &h->next;
      continue;
    }
    *at = h->next;
    h->next = NULL;
    h->home = &t->grad_fn->hooks;
    h->out = t->out_index;
    *end = h;
    end = &h->next;
  }
}

static void sweep_hooks(ax_hook **list)
{
  for (ax_hook **at = list; *at;) {
    ax_hook *h = *at;
    if (!h->gone) {
      at = &h->next;
      continue;
    }
    *at = h->next;
    drop_hook(h);
  }
}

/* Replaces *g by what a hook returned, which it takes.  The shape must be that of *g; the type is
 * cast to that of *g, because rules rely on it. */
static ax_status replace(ax_tensor **g, ax_tensor *with)
{
  ax_tensor *cast = NULL;
  char a[AX_SHAPE_TEXT], b[AX_SHAPE_TEXT];
  ax_status st;

  if (!ax_same_shape(with, (*g)->ndim, (*g)->shape))
    st = ax_fail(AX_ESHAPE, "hook: returned a gradient of shape %s in place of %s",
                 ax_shape_text(with->ndim, with->shape, a, sizeof a),
                 ax_shape_text((*g)->ndim, (*g)->shape, b, sizeof b));
  else if ((st = ax_cast(with, (ax_dtype)(*g)->dtype, &cast)) == AX_OK) {
    ax_tensor_release(*g);
    *g = cast;
  }
  ax_tensor_release(with);
  return st;
}

/* Runs the hooks of one result; *g may be replaced. */
ax_status ax_hooks_run(ax_hook **list, bool post, int out, ax_tensor **g)
{
  running here = { list, now_running };
  ax_status st = AX_OK;

  if (!*list) return AX_OK;
  now_running = &here;
  for (ax_hook *h = *list; h && st == AX_OK; h = h->next) {
    ax_tensor *replacement = NULL;
    if (h->gone || (h->kind == AX_HOOK_POST) != post || h->out != out) continue;
    st = h->call(h->ud, *g, &replacement);
    if (st == AX_OK && replacement) st = replace(g, replacement);
  }
  now_running = here.outer;
  if (!is_running(list)) sweep_hooks(list);
  return st;
}
