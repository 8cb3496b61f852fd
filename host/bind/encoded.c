/* bind/encoded.c: what Lua knows of encodings. */
#include "bind/bind.h"

typedef struct encoding {
  const char *name;
  int block, bytes;
} encoding;

/* core._encodings() -> name -> { number =, block =, bytes = }: a table of each encoding's number
 * for the rows that take one, and how many neighbouring values rest in how many bytes */
static int encodings(lua_State *L)
{
  static const encoding list[] = {
#define ENCODING(ID, name, block, bytes) { #name, block, bytes },
#include "core/encodings.def"
#undef ENCODING
  };
  lua_createtable(L, 0, AX_ENCODING_COUNT);
  for (int k = 0; k < AX_ENCODING_COUNT; k++) {
    lua_createtable(L, 0, 3);
    lua_pushinteger(L, k);
    lua_setfield(L, -2, "number");
    lua_pushinteger(L, list[k].block);
    lua_setfield(L, -2, "block");
    lua_pushinteger(L, list[k].bytes);
    lua_setfield(L, -2, "bytes");
    lua_setfield(L, -2, list[k].name);
  }
  return 1;
}

void ax_lua_open_encoded(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_encodings", encodings }, { NULL, NULL } };
  ax_lua_add_functions(L, functions);
}
