/* bind/device.c: pinned memory, batches that are sent ahead, and the live tensors of each script
 * line. */
#include "bind/bind.h"
#include "bind/where.h"
#include "feed.h"

#include <stdio.h>

/* ---- pinned memory */

/* x:pin_memory() -> x's elements in pinned memory, which a device reads and writes by itself; x
 * itself when it is pinned already. */
static int pin_memory(lua_State *L)
{
  ax_tensor *t, **box;
  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, "pin_memory", "self");
  if (ax_storage_is_pinned(t->storage)) {
    lua_settop(L, 1);
    return 1;
  }
  box = ax_lua_push_result(L);
  if (ax_tensor_pinned(t, box) != AX_OK) return ax_lua_raise(L, "pin_memory");
  return 1;
}

static int is_pinned(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushboolean(L, ax_storage_is_pinned(ax_lua_check_tensor(L, 1, "is_pinned", "self")->storage));
  return 1;
}

/* ---- batches sent ahead */

/* core._choose_device(device): what names no device is made with this one from now on.  It is not
 * touched. */
static int choose_device(lua_State *L)
{
  ax_device d;
  ax_lua_enter(L);
  d = ax_lua_check_device(L, 1, "_choose_device", "device");
  if (ax_device_choose(d) != AX_OK) return ax_lua_raise(L, "_choose_device");
  return 0;
}

/* core._device_bus(device) -> its address on the PCI bus, "0000:1b:00.0"; nil where it has none */
static int device_bus(lua_State *L)
{
  char id[32];
  ax_device d;
  ax_lua_enter(L);
  d = ax_lua_check_device(L, 1, "_device_bus", "device");
  if (ax_device_bus(d, id) != AX_OK) return ax_lua_raise(L, "_device_bus");
  if (id[0]) lua_pushstring(L, id);
  else lua_pushnil(L);
  return 1;
}

/* core._send(t, device) -> the tensor on the device, not to be used before core._arrive(device,
 * ticket), and the ticket.  Returns nothing where the caller must use x:to: t is on a device
 * already or requires a gradient, or the device cannot send ahead. */
static int send(lua_State *L)
{
  uint64_t ticket = 0;
  ax_tensor *t, **box;
  ax_device to;

  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, "_send", "t");
  to = ax_lua_check_device(L, 2, "_send", "device");
  box = ax_lua_push_box(L);
  ax_worker_pin(t->storage, to);
  if (ax_tensor_send(t, to, box, &ticket) != AX_OK) return ax_lua_raise(L, "_send");
  if (!*box) return 0;
  lua_pushnumber(L, (double)ticket);
  return 2;
}

static int arrive(lua_State *L)
{
  ax_device d;
  ax_lua_enter(L);
  d = ax_lua_check_device(L, 1, "_arrive", "device");
  if (ax_device_arrive(d, (uint64_t)ax_lua_check_integer(L, 2, "_arrive", "ticket", 0, INT64_C(1) << 53)) !=
      AX_OK)
    return ax_lua_raise(L, "_arrive");
  return 0;
}

/* ---- live tensors */

/* "train.lua:31 (linear)": the innermost line outside the library, and the core function that is
 * running.  A step makes the same large results at the same lines each time, so texts are kept. */
enum { LINES = 64, LONGEST = 96 };
static const char *where(void)
{
  static _Thread_local struct {
    int line;
    char source[LONGEST], name[25], text[LONGEST];
  } known[LINES], *one;
  lua_State *const L = ax_lua.L;
  lua_Debug own, ar;
  const char *name = NULL;
  char line[64];

  if (!ax_lua.open || !L) return "";
  if (lua_getstack(L, 0, &own) && lua_getinfo(L, "n", &own)) name = own.name;
  if (!ax_lua_script_frame(L, &ar)) return "";
  if (name && *name == '_') name++;
  if (!name) name = "";
  one = &known[((uintptr_t)ar.source / 16 + (unsigned)ar.currentline * 7 + (unsigned char)*name) % LINES];
  if (one->line == ar.currentline && strcmp(one->source, ar.source) == 0 &&
      strncmp(one->name, name, sizeof one->name - 1) == 0)
    return one->text;
  /* a longer source is cut, and is then not found again */
  snprintf(one->source, sizeof one->source, "%s", ar.source);
  snprintf(one->name, sizeof one->name, "%s", name);
  one->line = ar.currentline;
  ax_lua_where(L, line, sizeof line);
  snprintf(one->text, sizeof one->text, *name ? "%s (%s)" : "%s", line, one->name);
  return one->text;
}

/* core._memory_groups(device, most) -> a list of { where, bytes, live }, the tensors of 1 MB and
 * more by line and size, largest first; and a list of { blocks, bytes }, the smaller ones in the
 * classes up to 1 KiB, 8 KiB, 64 KiB, 256 KiB and 1 MiB */
static int memory_groups(lua_State *L)
{
  ax_memory_group list[64];
  ax_memory_small small = { 0 };
  const ax_backend *b;
  ax_device d;
  int n;

  ax_lua_enter(L);
  d = ax_lua_check_device(L, 1, "_memory_groups", "device");
  n = ax_memory_groups(d, list, (int)ax_lua_check_integer(L, 2, "_memory_groups", "most", 1, 64));
  if (ax_backend_of(d, &b) != AX_OK) return ax_lua_raise(L, "_memory_groups");
  if (!b->memory) ax_memory_small_get(&small);
  else if (b->memory->small) b->memory->small(d.index, &small);
  lua_createtable(L, n, 0);
  for (int k = 0; k < n; k++) {
    lua_createtable(L, 0, 3);
    lua_pushstring(L, list[k].where);
    lua_setfield(L, -2, "where");
    lua_pushnumber(L, (double)list[k].bytes);
    lua_setfield(L, -2, "bytes");
    lua_pushnumber(L, (double)list[k].live);
    lua_setfield(L, -2, "live");
    lua_rawseti(L, -2, k + 1);
  }
  lua_createtable(L, AX_SMALL_CLASSES, 0);
  for (int k = 0; k < AX_SMALL_CLASSES; k++) {
    lua_createtable(L, 0, 2);
    lua_pushnumber(L, (double)small.blocks[k]);
    lua_setfield(L, -2, "blocks");
    lua_pushnumber(L, (double)small.bytes[k]);
    lua_setfield(L, -2, "bytes");
    lua_rawseti(L, -2, k + 1);
  }
  return 2;
}

/* core._cuda_environment() -> the plugin's file, and its report about this machine or nil */
static int cuda_environment(lua_State *L)
{
  char path[4200];
  const char *text;

  ax_lua_enter(L);
  text = ax_backend_environment(path, sizeof path);
  lua_pushstring(L, path);
  lua_pushstring(L, text); /* NULL: nil */
  return 2;
}

/* core._loaded(kind) -> whether the backend of "cpu" or "cuda" is loaded; does not load it */
static int is_loaded(lua_State *L)
{
  ax_device d;
  ax_lua_enter(L);
  if (lua_type(L, 1) != LUA_TSTRING || !ax_lua_device_parse(lua_tostring(L, 1), &d))
    return ax_lua_arg_error(L, "_loaded", 1, "kind", "\"cpu\" or \"cuda\"", 1);
  lua_pushboolean(L, ax_backend_loaded(d.kind));
  return 1;
}

void ax_lua_open_device(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_choose_device", choose_device },
                                        { "_device_bus", device_bus },
                                        { "_send", send },
                                        { "_arrive", arrive },
                                        { "_memory_groups", memory_groups },
                                        { "_cuda_environment", cuda_environment },
                                        { "_loaded", is_loaded },
                                        { NULL, NULL } };
  static const luaL_Reg methods[] = { { "pin_memory", pin_memory },
                                      { "is_pinned", is_pinned },
                                      { NULL, NULL } };
  ax_lua_add_functions(L, functions);
  ax_lua_add_methods(L, methods);
  ax_memory_set_where(where);
}
