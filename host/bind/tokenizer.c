/* bind/tokenizer.c: tokenizers in Lua: core._tokenizer.  accelerate.tokenizers reads files and
 * checks options; here only types are checked. */
#include "bind/texts.h"

ax_tokenizer *ax_lua_check_tokenizer(lua_State *L, int idx)
{
  return ax_lua_check_pointer(L, idx, &ax_lua_tokenizer_class, "tokenizer");
}

/* core._tokenizer() -> tokenizer */
static int tokenizer_new(lua_State *L)
{
  ax_tokenizer **box;
  ax_lua_enter(L);
  box = ax_lua_push_object(L, &ax_lua_tokenizer_class);
  if (ax_tokenizer_new(box) != AX_OK) return ax_lua_raise(L, "tokenizer");
  if (&ax_interrupted) ax_tokenizer_interrupts(*box, &ax_interrupted);
  return 1;
}

static void clear_tokenizer(lua_State *L, void *object)
{
  ax_tokenizer **t = object;
  ax_tokenizer_free(*t);
  *t = NULL;
}

typedef ax_status (*step_fn)(ax_tokenizer *t, const char *kind, ax_text a, ax_text b, int flags);

static int add_step(lua_State *L, step_fn add)
{
  ax_tokenizer *t = ax_lua_check_tokenizer(L, 1);
  const char *kind = luaL_checkstring(L, 2);
  const ax_text a = ax_lua_check_text(L, 3, "step", "a"), b = ax_lua_check_text(L, 4, "step", "b");

  ax_lua_enter(L);
  if (add(t, kind, a, b, (int)ax_lua_check_integer(L, 5, "step", "flags", 0, 1 << 20)) != AX_OK)
    return ax_lua_raise(L, "tokenizer");
  return 0;
}

/* tokenizer:normalizer(kind, a, b, flags), tokenizer:splitter(...): appends a step of
 * text/steps.def */
static int tokenizer_normalizer(lua_State *L) { return add_step(L, ax_tokenizer_normalizer); }
static int tokenizer_splitter(lua_State *L) { return add_step(L, ax_tokenizer_splitter); }

static ax_text text_field(lua_State *L, int idx, const char *name)
{
  ax_text t = { "", 0 };
  lua_getfield(L, idx, name);
  if (lua_type(L, -1) == LUA_TSTRING) t.s = lua_tolstring(L, -1, &t.n);
  lua_pop(L, 1); /* the table keeps it */
  return t;
}

static bool flag_field(lua_State *L, int idx, const char *name)
{
  bool flag;
  lua_getfield(L, idx, name);
  flag = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return flag;
}

static int64_t number_field(lua_State *L, int idx, const char *name, int64_t otherwise)
{
  int64_t n = otherwise;
  lua_getfield(L, idx, name);
  if (!lua_isnil(L, -1)) n = ax_lua_check_integer(L, -1, "model", name, -1, INT32_MAX);
  lua_pop(L, 1);
  return n;
}

/* tokenizer:model(kind, options, n, tokens, scores): tokens[i] has id i - 1, or is false; scores: a
 * list, or nil */
static int tokenizer_model(lua_State *L)
{
  static const char *const kinds[] = { "WordPiece", "BPE", "Unigram", "WordLevel", NULL };
  ax_tokenizer *t = ax_lua_check_tokenizer(L, 1);
  ax_model_options o = { .kind = (ax_model_kind)luaL_checkoption(L, 2, NULL, kinds) };
  const int64_t n = ax_lua_check_integer(L, 4, "model", "n", 0, INT32_MAX / 2);
  ax_text *tokens;
  double *scores = NULL;

  ax_lua_enter(L);
  lua_settop(L, 6);
  luaL_checktype(L, 3, LUA_TTABLE);
  luaL_checktype(L, 5, LUA_TTABLE);
  o.unk = number_field(L, 3, "unk", -1);
  o.longest = number_field(L, 3, "longest", 100);
  o.prefix = text_field(L, 3, "prefix");
  o.suffix = text_field(L, 3, "suffix");
  o.byte_fallback = flag_field(L, 3, "byte_fallback");
  o.fuse_unk = flag_field(L, 3, "fuse_unk");
  o.ignore_merges = flag_field(L, 3, "ignore_merges");
  o.bytes = flag_field(L, 3, "bytes");
  tokens = lua_newuserdata(L, (size_t)n * sizeof *tokens + 1);
  for (int64_t i = 0; i < n; i++) tokens[i] = ax_lua_text_at(L, 5, i + 1, "model", "token");
  if (lua_istable(L, 6)) {
    scores = lua_newuserdata(L, (size_t)n * sizeof *scores + 1);
    for (int64_t i = 0; i < n; i++) {
      lua_rawgeti(L, 6, (int)i + 1);
      scores[i] = lua_tonumber(L, -1);
      lua_pop(L, 1);
    }
  }
  if (ax_tokenizer_model(t, &o, n, tokens, scores) != AX_OK) return ax_lua_raise(L, "tokenizer");
  return 0;
}

/* Entry i of a list of merges: "a b", or a list of both. */
static void read_merge(lua_State *L, int64_t i, ax_text *pair)
{
  lua_rawgeti(L, 2, (int)i);
  if (lua_type(L, -1) == LUA_TSTRING) {
    const char *space;
    pair[0].s = lua_tolstring(L, -1, &pair[0].n);
    if (!(space = memchr(pair[0].s, ' ', pair[0].n)))
      ax_lua_error(L, "tokenizer", "merge %lld has no space", (long long)i);
    pair[1] = (ax_text){ space + 1, (size_t)(pair[0].s + pair[0].n - space - 1) };
    pair[0].n = (size_t)(space - pair[0].s);
  } else if (lua_istable(L, -1)) {
    pair[0] = ax_lua_text_at(L, lua_gettop(L), 1, "tokenizer", "half of a merge");
    pair[1] = ax_lua_text_at(L, lua_gettop(L), 2, "tokenizer", "half of a merge");
    if (!pair[0].s || !pair[1].s) ax_lua_error(L, "tokenizer", "merge %lld lacks a half", (long long)i);
  } else {
    ax_lua_error(L, "tokenizer", "merge %lld: expected a string or a list of two, got %s", (long long)i,
                 ax_lua_describe(L, -1));
  }
  lua_pop(L, 1);
}

/* tokenizer:merges(list) */
static int tokenizer_merges(lua_State *L)
{
  ax_tokenizer *t = ax_lua_check_tokenizer(L, 1);
  ax_text *pairs;
  int64_t n;

  ax_lua_enter(L);
  lua_settop(L, 2);
  luaL_checktype(L, 2, LUA_TTABLE);
  n = (int64_t)lua_objlen(L, 2);
  pairs = lua_newuserdata(L, (size_t)n * 2 * sizeof *pairs + 1);
  for (int64_t i = 0; i < n; i++) read_merge(L, i + 1, pairs + 2 * i);
  if (ax_tokenizer_merges(t, n, pairs) != AX_OK) return ax_lua_raise(L, "tokenizer");
  return 0;
}

/* tokenizer:add(content, id, flags, place) -> place; flags as in text.h.  With a place that add has
 * returned, the token there gets the flags. */
static int tokenizer_add(lua_State *L)
{
  ax_tokenizer *t = ax_lua_check_tokenizer(L, 1);
  const ax_text content = ax_lua_check_text(L, 2, "add", "content");
  const int64_t id = ax_lua_check_integer(L, 3, "add", "id", 0, INT32_MAX);

  ax_lua_enter(L);
  const int flags = (int)ax_lua_check_integer(L, 4, "add", "flags", 0, 31);
  const bool old = !lua_isnoneornil(L, 5);
  const int64_t place =
      old ? ax_lua_check_integer(L, 5, "add", "place", 0, INT32_MAX) : ax_tokenizer_added(t);
  if ((old ? ax_tokenizer_reflag(t, place, flags) : ax_tokenizer_add(t, content, id, flags)) != AX_OK)
    return ax_lua_raise(L, "tokenizer");
  lua_pushnumber(L, (double)place);
  return 1;
}

/* tokenizer:trim(trim, prefix) */
static int tokenizer_trim(lua_State *L)
{
  ax_tokenizer_trim(ax_lua_check_tokenizer(L, 1), lua_toboolean(L, 2), lua_toboolean(L, 3));
  return 0;
}

/* tokenizer:template(pair, list): three numbers for each part: id or -1, text (0 or 1), type */
static int tokenizer_template(lua_State *L)
{
  ax_tokenizer *t = ax_lua_check_tokenizer(L, 1);
  ax_template_part *parts;
  int n;

  ax_lua_enter(L);
  lua_settop(L, 3);
  luaL_checktype(L, 3, LUA_TTABLE);
  n = (int)(lua_objlen(L, 3) / 3);
  parts = lua_newuserdata(L, (size_t)n * sizeof *parts + 1);
  for (int i = 0; i < 3 * n; i++) {
    lua_rawgeti(L, 3, i + 1);
    const int64_t v =
        ax_lua_check_integer(L, -1, "template", "part", -1, i % 3 ? i % 3 == 1 ? 1 : 255 : INT32_MAX);
    if (i % 3 == 0) parts[i / 3].id = (int32_t)v;
    else if (i % 3 == 1) parts[i / 3].text = v > 0;
    else parts[i / 3].type = (uint8_t)v;
    lua_pop(L, 1);
  }
  if (ax_tokenizer_template(t, lua_toboolean(L, 2), n, parts) != AX_OK) return ax_lua_raise(L, "tokenizer");
  return 0;
}

/* Entry i of a list of texts: a text, or a list of words, which a userdata on the stack then
 * holds. */
static ax_words words_at(lua_State *L, int idx, int64_t i, ax_text *one)
{
  ax_words w = { one, 1, false };
  ax_text *list;

  lua_rawgeti(L, idx, (int)i);
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    *one = ax_lua_text_at(L, idx, i, "tokenizer", "text");
    if (!one->s) ax_lua_error(L, "tokenizer", "text %lld: expected a string, got false", (long long)i);
    return w;
  }
  w.n = (int64_t)lua_objlen(L, -1);
  w.split = true;
  w.list = list = lua_newuserdata(L, (size_t)w.n * sizeof *list + 1);
  for (int64_t k = 0; k < w.n; k++) {
    list[k] = ax_lua_text_at(L, lua_gettop(L) - 1, k + 1, "tokenizer", "word");
    if (!list[k].s) ax_lua_error(L, "tokenizer", "word %lld: expected a string, got false", (long long)k + 1);
  }
  return w;
}

/* tokenizer:encode(texts, pairs, add_special, offsets, split_special, truncation, left, max_length,
 * overflow, stride) -> encodings, and with `overflow` the number of each row's text; texts:
 * strings, or lists of words; pairs: the second ones, or nil */
static int tokenizer_encode(lua_State *L)
{
  static const char *const cuts[] = { "do_not_truncate", "longest_first", "only_first", "only_second", NULL };
  ax_tokenizer *t = ax_lua_check_tokenizer(L, 1);
  ax_encode_options o = { 0 };
  ax_encodings *e;
  int64_t n;

  ax_lua_enter(L);
  lua_settop(L, 11);
  luaL_checktype(L, 2, LUA_TTABLE);
  o.add_special = lua_toboolean(L, 4);
  o.offsets = lua_toboolean(L, 5);
  o.split_special = lua_toboolean(L, 6);
  o.cut = (ax_cut)luaL_checkoption(L, 7, "do_not_truncate", cuts);
  o.cut_left = lua_toboolean(L, 8);
  o.max_length =
      lua_isnil(L, 9) ? 0 : ax_lua_check_integer(L, 9, "encode", "max_length", 0, INT64_C(1) << 40);
  o.overflow = lua_toboolean(L, 10);
  o.stride = lua_isnil(L, 11) ? 0 : ax_lua_check_integer(L, 11, "encode", "stride", 0, INT64_C(1) << 40);
  n = (int64_t)lua_objlen(L, 2);
  e = ax_lua_push_object(L, &ax_lua_encodings_class);
  lua_createtable(L, o.overflow ? (int)n : 0, 0);
  for (int64_t i = 1; i <= n; i++) {
    const int64_t before = e->rows;
    const int top = lua_gettop(L);
    const bool pair = lua_istable(L, 3);
    ax_text one[2];
    const ax_words first = words_at(L, 2, i, one);
    const ax_words second = pair ? words_at(L, 3, i, one + 1) : (ax_words){ 0 };
    if (ax_tokenizer_encode(t, &first, pair ? &second : NULL, &o, e) != AX_OK)
      return ax_lua_raise(L, "tokenizer");
    lua_settop(L, top);
    for (int64_t row = before + 1; o.overflow && row <= e->rows; row++) {
      lua_pushnumber(L, (double)i);
      lua_rawseti(L, -2, (int)row);
    }
  }
  lua_settop(L, 12 + o.overflow);
  return 1 + o.overflow;
}

static int push_texts(lua_State *L, ax_lua_texts *g)
{
  int64_t at = 0;
  lua_createtable(L, (int)g->count, 0);
  for (int64_t i = 0; i < g->count; i++) {
    lua_pushlstring(L, g->s + at, (size_t)(g->ends[i] - at));
    lua_rawseti(L, -2, (int)i + 1);
    at = g->ends[i];
  }
  ax_lua_texts_clear(L, g);
  return 1;
}

typedef ax_status (*pieces_fn)(ax_tokenizer *t, ax_text text, ax_text_fn fn, void *p);

static int gather_pieces(lua_State *L, pieces_fn run)
{
  ax_tokenizer *t = ax_lua_check_tokenizer(L, 1);
  const ax_text text = ax_lua_check_text(L, 2, "tokenizer", "text");
  ax_lua_texts *g;

  ax_lua_enter(L);
  g = ax_lua_push_object(L, &ax_lua_texts_class);
  if (run(t, text, ax_lua_texts_add, g) != AX_OK) return ax_lua_raise(L, "tokenizer");
  return push_texts(L, g);
}

/* tokenizer:normalize(text) -> list of one text; tokenizer:pieces(text) -> list of texts, as
 * bytes */
static int tokenizer_normalize(lua_State *L) { return gather_pieces(L, ax_tokenizer_normalize); }
static int tokenizer_pieces(lua_State *L) { return gather_pieces(L, ax_tokenizer_pieces); }

static const luaL_Reg tokenizer_methods[] = {
  { "normalizer", tokenizer_normalizer },
  { "splitter", tokenizer_splitter },
  { "model", tokenizer_model },
  { "merges", tokenizer_merges },
  { "add", tokenizer_add },
  { "trim", tokenizer_trim },
  { "template", tokenizer_template },
  { "encode", tokenizer_encode },
  { "normalize", tokenizer_normalize },
  { "pieces", tokenizer_pieces },
  { NULL, NULL },
};
const ax_lua_class ax_lua_tokenizer_class = { "a tokenizer", sizeof(ax_tokenizer *), clear_tokenizer,
                                              tokenizer_methods };

void ax_lua_open_tokenizer(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_tokenizer", tokenizer_new }, { NULL, NULL } };

  ax_lua_open_class(L, &ax_lua_tokenizer_class);
  ax_lua_add_functions(L, functions);
}
