/* bind/text.c: texts in Lua: core._utf8_repair, core._text_pattern, encodings, core._bpe_trainer;
 * tokenizers are in tokenizer.c.  accelerate.tokenizers reads files and checks options; here only
 * types are checked. */
#include "bind/texts.h"

/* ---- texts from Lua, and back */

ax_text ax_lua_check_text(lua_State *L, int idx, const char *fn, const char *name)
{
  ax_text t;
  if (lua_type(L, idx) != LUA_TSTRING) ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "a string", idx);
  t.s = lua_tolstring(L, idx, &t.n);
  return t;
}

ax_text ax_lua_text_at(lua_State *L, int idx, int64_t i, const char *fn, const char *name)
{
  ax_text t = { NULL, 0 };
  lua_rawgeti(L, idx, (int)i);
  if (lua_type(L, -1) == LUA_TSTRING) t.s = lua_tolstring(L, -1, &t.n);
  else if (!lua_isboolean(L, -1) || lua_toboolean(L, -1))
    ax_lua_error(L, fn, "%s %lld: expected a string, got %s", name, (long long)i, ax_lua_describe(L, -1));
  lua_pop(L, 1);
  return t;
}

void ax_lua_texts_clear(lua_State *L, void *object)
{
  ax_lua_texts *g = object;
  ax_mfree(g->s);
  ax_mfree(g->ends);
  memset(g, 0, sizeof *g);
}

const ax_lua_class ax_lua_texts_class = { "pieces of a text", sizeof(ax_lua_texts), ax_lua_texts_clear,
                                          NULL };

ax_status ax_lua_texts_add(void *p, const char *s, size_t n)
{
  ax_lua_texts *g = p;
  ax_status st = ax_text_grow((void **)&g->s, &g->room, g->n, g->n + (int64_t)n, 1);
  if (st == AX_OK)
    st = ax_text_grow((void **)&g->ends, &g->end_room, g->count, g->count + 1, sizeof *g->ends);
  if (st != AX_OK) return st;
  if (n) memcpy(g->s + g->n, s, n);
  g->n += (int64_t)n;
  g->ends[g->count++] = g->n;
  return AX_OK;
}

/* core._utf8_repair(text) -> the text with U+FFFD for each sequence that is not UTF-8 */
static int utf8_repair(lua_State *L)
{
  ax_lua_texts *g;
  ax_text t;

  ax_lua_enter(L);
  t = ax_lua_check_text(L, 1, "utf8_repair", "text");
  g = ax_lua_push_object(L, &ax_lua_texts_class);
  if (ax_utf8_repair(t, ax_lua_texts_add, g) != AX_OK) return ax_lua_raise(L, "utf8_repair");
  lua_pushlstring(L, g->n ? g->s : "", (size_t)g->n);
  ax_lua_texts_clear(L, g);
  return 1;
}

/* core._text_pattern(expression) -> its number, or nil */
static int text_pattern(lua_State *L)
{
  const int number = ax_pattern_find(ax_lua_check_text(L, 1, "pattern", "expression"));
  if (number < 0) return 0;
  lua_pushinteger(L, number);
  return 1;
}

/* ---- encodings */

static void clear_encodings(lua_State *L, void *object) { ax_encodings_free(object); }

static ax_encodings *check_encodings(lua_State *L)
{
  return ax_lua_check_object(L, 1, &ax_lua_encodings_class, "encodings");
}

/* encodings:size() -> rows, tokens of the longest row */
static int encodings_size(lua_State *L)
{
  const ax_encodings *e = check_encodings(L);
  int64_t longest = 0;
  for (int64_t i = 0; i < e->rows; i++)
    if (e->starts[i + 1] - e->starts[i] > longest) longest = e->starts[i + 1] - e->starts[i];
  lua_pushnumber(L, (double)e->rows);
  lua_pushnumber(L, (double)longest);
  return 2;
}

/* encodings:row(i, field) -> list; field "offsets": of {from, to}, bytes from 0 */
static int encodings_row(lua_State *L)
{
  static const char *const names[] = { "ids", "types", "special", "words", "offsets", NULL };
  const ax_encodings *e = check_encodings(L);
  const int64_t row = ax_lua_check_integer(L, 2, "row", "row", 1, e->rows) - 1;
  const int what = luaL_checkoption(L, 3, NULL, names);
  const int64_t from = e->starts[row], n = e->starts[row + 1] - from;

  lua_createtable(L, (int)n, 0);
  for (int64_t i = from; i < from + n; i++) {
    switch (what) {
    case 0: lua_pushinteger(L, e->ids[i]); break;
    case 1: lua_pushinteger(L, e->types[i]); break;
    case 2: lua_pushinteger(L, e->special[i]); break;
    case 3:
      if (e->words[i] < 0) lua_pushboolean(L, false);
      else lua_pushinteger(L, e->words[i]);
      break;
    default:
      if (!e->from) return ax_lua_error(L, "row", "offsets were not kept");
      lua_createtable(L, 2, 0);
      lua_pushnumber(L, e->from[i]);
      lua_rawseti(L, -2, 1);
      lua_pushnumber(L, e->to[i]);
      lua_rawseti(L, -2, 2);
    }
    lua_rawseti(L, -2, (int)(i - from) + 1);
  }
  return 1;
}

/* encodings:tensor(field, width, pad, left) -> int64 [rows, width]; field: ids, types, special,
 * mask */
static int encodings_tensor(lua_State *L)
{
  const ax_encodings *e = check_encodings(L);
  const char *what = luaL_checkstring(L, 2);
  const int64_t most = INT64_C(1) << 40;
  const int64_t shape[2] = { e->rows, ax_lua_check_integer(L, 3, "tensor", "width", 0, most) };
  const int64_t pad = ax_lua_check_integer(L, 4, "tensor", "pad", -most, most);
  ax_tensor **box;

  ax_lua_enter(L);
  lua_settop(L, 5);
  box = ax_lua_push_result(L);
  if (ax_tensor_new(AX_I64, 2, shape, box) != AX_OK ||
      ax_encodings_pad(e, what, shape[1], pad, lua_toboolean(L, 5), ax_data(*box)) != AX_OK)
    return ax_lua_raise(L, "tensor");
  return 1;
}

static const luaL_Reg encodings_methods[] = {
  { "size", encodings_size }, { "row", encodings_row }, { "tensor", encodings_tensor }, { NULL, NULL }
};
const ax_lua_class ax_lua_encodings_class = { "encodings", sizeof(ax_encodings), clear_encodings,
                                              encodings_methods };

/* ---- training */

static const ax_lua_class trainer_class;
static ax_bpe_trainer *check_trainer(lua_State *L)
{
  return ax_lua_check_pointer(L, 1, &trainer_class, "trainer");
}

/* core._bpe_trainer() -> trainer */
static int trainer_new(lua_State *L)
{
  ax_bpe_trainer **box;
  ax_lua_enter(L);
  box = ax_lua_push_object(L, &trainer_class);
  if (ax_bpe_trainer_new(box) != AX_OK) return ax_lua_raise(L, "trainer");
  return 1;
}

static void clear_trainer(lua_State *L, void *object)
{
  ax_bpe_trainer **b = object;
  ax_bpe_trainer_free(*b);
  *b = NULL;
}

/* trainer:feed(tokenizer, text) */
static int trainer_feed(lua_State *L)
{
  ax_bpe_trainer *b = check_trainer(L);
  ax_tokenizer *t = ax_lua_check_tokenizer(L, 2);
  const ax_text text = ax_lua_check_text(L, 3, "feed", "text");

  ax_lua_enter(L);
  if (ax_bpe_trainer_feed(b, t, text) != AX_OK) return ax_lua_raise(L, "train");
  return 0;
}

/* trainer:run(vocab_size, min_frequency, special tokens) -> list of the tokens' bytes, list of the
 * merges' ids, two for each */
static int trainer_run(lua_State *L)
{
  ax_bpe_trainer *b = check_trainer(L);
  const int64_t size = ax_lua_check_integer(L, 2, "run", "vocab_size", 0, INT32_MAX);
  const int64_t least = ax_lua_check_integer(L, 3, "run", "min_frequency", 0, INT32_MAX);
  const int32_t *merges;
  ax_text *special;
  int64_t n;

  ax_lua_enter(L);
  lua_settop(L, 4);
  luaL_checktype(L, 4, LUA_TTABLE);
  n = (int64_t)lua_objlen(L, 4);
  special = lua_newuserdata(L, (size_t)n * sizeof *special + 1);
  for (int64_t i = 0; i < n; i++) {
    special[i] = ax_lua_text_at(L, 4, i + 1, "train", "special token");
    if (!special[i].s) return ax_lua_error(L, "train", "special token %lld is false", (long long)i + 1);
  }
  if (ax_bpe_trainer_run(b, size, least, n, special) != AX_OK) return ax_lua_raise(L, "train");
  lua_createtable(L, (int)ax_bpe_trainer_size(b), 0);
  for (int64_t i = 0; i < ax_bpe_trainer_size(b); i++) {
    const ax_text token = ax_bpe_trainer_token(b, i);
    lua_pushlstring(L, token.s, token.n);
    lua_rawseti(L, -2, (int)i + 1);
  }
  n = ax_bpe_trainer_merges(b, &merges);
  lua_createtable(L, (int)n * 2, 0);
  for (int64_t i = 0; i < 2 * n; i++) {
    lua_pushinteger(L, merges[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 2;
}

static const luaL_Reg trainer_methods[] = { { "feed", trainer_feed },
                                            { "run", trainer_run },
                                            { NULL, NULL } };
static const ax_lua_class trainer_class = { "a trainer of merges", sizeof(ax_bpe_trainer *), clear_trainer,
                                            trainer_methods };

void ax_lua_open_text(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_bpe_trainer", trainer_new },
    { "_text_pattern", text_pattern },
    { "_utf8_repair", utf8_repair },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &ax_lua_texts_class);
  ax_lua_open_class(L, &ax_lua_encodings_class);
  ax_lua_open_class(L, &trainer_class);
  ax_lua_add_functions(L, functions);
}
