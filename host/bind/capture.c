/* bind/capture.c: captured steps, for lua/accelerate/capture/step.lua.
 *
 * The collector is paused while a step is captured.  A finaliser that frees a tensor would do no
 * harm: memory of the recording returns to the recording's pool, where a later op of the recording
 * may reuse it, as it would outside; the recording itself holds memory from outside that it refers
 * to.  Two reasons remain.  The moment of a collection depends on the garbage that the script made
 * before, and the layout of the recording's memory would depend on it too.  And a finaliser may
 * free another recording, which calls the driver, or run a function of the script that computes on
 * the device; the recording would contain that computation, and each replay would repeat it. */
#include "bind/bind.h"
#include "capture.h"

#include <stdio.h>

typedef struct box {
  ax_capture *c;
  bool paused;
} box;

static void resume(lua_State *L, box *b)
{
  if (!b->paused) return;
  b->paused = ax_lua.collecting = false;
  lua_gc(L, LUA_GCRESTART, 0);
}

/* Abandons a recording that is under way. */
static void clear_capture(lua_State *L, void *object)
{
  box *b = object;
  ax_capture *c = b->c;
  b->c = NULL;
  ax_capture_free(c);
  resume(L, b);
}

static void clear_state(lua_State *L, void *object)
{
  ax_saved_state **s = object;
  ax_saved_state_free(*s);
  *s = NULL;
}

static const ax_lua_class capture_class = { "a captured step", sizeof(box), clear_capture, NULL };
static const ax_lua_class state_class = { "a saved state", sizeof(ax_saved_state *), clear_state, NULL };

static box *check_box(lua_State *L, int idx, const char *fn)
{
  box *b = ax_lua_check_object(L, idx, &capture_class, fn);
  if (!b->c) ax_lua_error(L, fn, "the captured step was released");
  return b;
}

ax_capture *ax_lua_check_capture(lua_State *L, int idx, const char *fn) { return check_box(L, idx, fn)->c; }

/* core.capture_begin(device) -> a recording */
static int capture_begin(lua_State *L)
{
  box *b;
  ax_device d;
  ax_lua_enter(L);
  d = ax_lua_check_device(L, 1, "capture", "device");
  b = ax_lua_push_object(L, &capture_class);
  if (ax_capture_begin(d, &b->c) != AX_OK) return ax_lua_raise(L, "capture");
  lua_gc(L, LUA_GCSTOP, 0);
  ax_lua.collecting = b->paused = true;
  return 1;
}

/* core.capture_leave_gradients(c): see ax_capture_leave_gradients; call it right after
 * capture_begin */
static int capture_leave_gradients(lua_State *L)
{
  ax_capture_leave_gradients(check_box(L, 1, "capture")->c);
  return 0;
}

static int capture_end(lua_State *L)
{
  box *b = check_box(L, 1, "capture");
  const ax_status st = ax_capture_end(b->c);
  resume(L, b);
  return st == AX_OK ? 0 : ax_lua_raise(L, "capture");
}

/* core.capture_free(c): abandons a recording that is under way */
static int capture_free(lua_State *L)
{
  clear_capture(L, ax_lua_check_object(L, 1, &capture_class, "capture_free"));
  return 0;
}

/* core.capture_fits(c) -> true, or false and the reason why it cannot be replayed now */
static int capture_fits(lua_State *L)
{
  const char *why;
  const box *b = check_box(L, 1, "capture");
  const bool fits = ax_capture_fits(b->c, &why);
  lua_pushboolean(L, fits);
  if (fits) return 1;
  lua_pushstring(L, why);
  return 2;
}

/* core.capture_writes(c, t) -> whether the recording changes the leaf t in place */
static int capture_writes(lua_State *L)
{
  const box *b = check_box(L, 1, "capture");
  lua_pushboolean(L, ax_capture_writes(b->c, ax_lua_check_tensor(L, 2, "capture", "t")));
  return 1;
}

/* core.same_bits(a, b) -> whether both have one type and shape and the same bits in every
 * element */
static int same_bits(lua_State *L)
{
  const ax_tensor *t[2];
  bool same;
  ax_lua_enter(L);
  lua_settop(L, 2);
  for (int k = 0; k < 2; k++) {
    ax_tensor *given = ax_lua_check_tensor(L, k + 1, "same_bits", NULL), **box = ax_lua_push_box(L);
    if (ax_tensor_new((ax_dtype)given->dtype, given->ndim, given->shape, box) != AX_OK ||
        ax_copy(*box, given) != AX_OK)
      return ax_lua_raise(L, "same_bits");
    t[k] = *box;
  }
  same = t[0]->dtype == t[1]->dtype && t[0]->ndim == t[1]->ndim &&
         memcmp(t[0]->shape, t[1]->shape, sizeof *t[0]->shape * (size_t)t[0]->ndim) == 0;
  lua_pushboolean(L,
                  same && memcmp(ax_data(t[0]), ax_data(t[1]), (size_t)t[0]->numel * ax_itemsize(t[0])) == 0);
  return 1;
}

/* core.capture_replay(c, first) */
static int capture_replay(lua_State *L)
{
  box *b;
  ax_lua_enter(L);
  b = check_box(L, 1, "capture");
  if (ax_capture_replay(b->c, lua_toboolean(L, 2)) != AX_OK) return ax_lua_raise(L, "capture");
  ax_lua_backward_ends(L); /* what is left of the step are the batches of those before it */
  return 0;
}

/* core.is_recording() */
static int is_recording(lua_State *L)
{
  lua_pushboolean(L, ax_recording != NULL);
  return 1;
}

/* core.capture_info(c) -> leaves, storages from outside, draws, optimizer steps */
static int capture_info(lua_State *L)
{
  int leaves, storages, draws;
  const box *b = check_box(L, 1, "capture");
  ax_capture_counts(b->c, &leaves, &storages, &draws);
  lua_pushinteger(L, leaves);
  lua_pushinteger(L, storages);
  lua_pushinteger(L, draws);
  lua_pushinteger(L, ax_capture_optims(b->c));
  return 4;
}

/* core.tensor_key(t) -> "float32[2, 3]cuda:0": the properties that a recording depends on */
static int tensor_key(lua_State *L)
{
  char shape[192], device[16];
  const ax_tensor *t;
  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, "tensor_key", "t");
  lua_pushfstring(L, "%s%s%s%s", ax_dtype_name((ax_dtype)t->dtype),
                  ax_shape_text(t->ndim, t->shape, shape, sizeof shape),
                  ax_device_text(t->device, device, sizeof device), t->requires_grad ? "+" : "");
  return 1;
}

/* The piece that this rank has of a parameter or gradient that is cut; of another tensor itself. */
static const ax_tensor *resting(const ax_tensor *t)
{
  ax_tensor *piece = NULL;
  int64_t from;

  for (ax_claim *c = t->storage->claims; c && !piece; c = c->next)
    if (!c->kind->piece_of || !c->kind->piece_of(c, t, &piece, &from)) piece = NULL;
  return piece ? piece : t;
}

/* core.tensor_place(t) -> the address of its storage, and the bytes in it where t begins and ends;
 * for a tensor that is cut over ranks: of this rank's piece */
static int tensor_place(lua_State *L)
{
  const ax_tensor *t = resting(ax_lua_check_tensor(L, 1, "tensor_place", "t"));
  const double begin = (double)t->offset * (double)ax_itemsize(t);
  lua_pushnumber(L, (double)(uintptr_t)t->storage->data);
  lua_pushnumber(L, begin);
  /* the end is exact for contiguous tensors; others are identified by their beginning */
  lua_pushnumber(L, begin + (double)t->numel * (double)ax_itemsize(t));
  return 3;
}

/* ---- comparing */

/* core.capture_compare(on): the eager step that follows is compared with a replay */
static int capture_compare(lua_State *L)
{
  ax_lua_enter(L);
  ax_comparing = ax_lua_check_boolean(L, 1, "capture", "on");
  return 0;
}

static int capture_save(lua_State *L)
{
  ax_saved_state **s;
  box *b;
  ax_lua_enter(L);
  b = check_box(L, 1, "capture");
  s = ax_lua_push_object(L, &state_class);
  return ax_capture_save(b->c, s) == AX_OK ? 1 : ax_lua_raise(L, "capture");
}

static int capture_restore(lua_State *L)
{
  ax_lua_enter(L);
  if (ax_capture_restore(check_box(L, 1, "capture")->c,
                         ax_lua_check_pointer(L, 2, &state_class, "capture")) != AX_OK)
    return ax_lua_raise(L, "capture");
  return 0;
}

/* core.capture_differ(c, a, b) -> nil, or the address of the storage that differs (0: a generator)
 * and the first differing byte in it (-1: the gradient of the leaf there) */
static int capture_differ(lua_State *L)
{
  const void *storage;
  int64_t byte;
  const box *b = check_box(L, 1, "capture");
  const ax_saved_state *first = ax_lua_check_pointer(L, 2, &state_class, "capture");
  const ax_saved_state *second = ax_lua_check_pointer(L, 3, &state_class, "capture");
  if (!ax_saved_state_differ(b->c, first, second, &storage, &byte)) return 0;
  lua_pushnumber(L, (double)(uintptr_t)storage);
  lua_pushnumber(L, (double)byte);
  return 2;
}

void ax_lua_open_capture(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "capture_begin", capture_begin },
    { "capture_end", capture_end },
    { "capture_free", capture_free },
    { "capture_fits", capture_fits },
    { "capture_replay", capture_replay },
    { "capture_info", capture_info },
    { "capture_save", capture_save },
    { "capture_restore", capture_restore },
    { "capture_differ", capture_differ },
    { "capture_leave_gradients", capture_leave_gradients },
    { "capture_writes", capture_writes },
    { "same_bits", same_bits },
    { "is_recording", is_recording },
    { "tensor_key", tensor_key },
    { "tensor_place", tensor_place },
    { "capture_compare", capture_compare },
    { NULL, NULL },
  };
  ax_lua_add_functions(L, functions);
  ax_lua_open_class(L, &capture_class);
  ax_lua_open_class(L, &state_class);
}
