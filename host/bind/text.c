/* bind/text.c: tokenizers in Lua: core._tokenizer, core._bpe_trainer, core._text_pattern,
 * core._utf8_repair.  accelerate.tokenizers reads files and checks options; here only types are
 * checked. */
#include "bind/bind.h"
#include "text.h"

/* ---- texts from Lua, and back */

static ax_text check_text(lua_State *L, int idx, const char *fn, const char *name)
{
  ax_text t;
  if (lua_type(L, idx) != LUA_TSTRING) ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "a string", idx);
  t.s = lua_tolstring(L, idx, &t.n);
  return t;
}

/* A text of the list at idx, which keeps it alive.  false becomes a text that is NULL. */
static ax_text text_at(lua_State *L, int idx, int64_t i, const char *fn, const char *name)
{
  ax_text t = { NULL, 0 };
  lua_rawgeti(L, idx, (int)i);
  if (lua_type(L, -1) == LUA_TSTRING) t.s = lua_tolstring(L, -1, &t.n);
  else if (!lua_isboolean(L, -1) || lua_toboolean(L, -1))
    ax_lua_error(L, fn, "%s %lld: expected a string, got %s", name, (long long)i, ax_lua_describe(L, -1));
  lua_pop(L, 1);
  return t;
}

/* Texts and where each one ends. */
typedef struct gathered {
  char *s;
  int64_t n, room;
  int64_t *ends;
  int64_t count, end_room;
} gathered;

static void clear_gathered(lua_State *L, void *object)
{
  gathered *g = object;
  ax_mfree(g->s);
  ax_mfree(g->ends);
  memset(g, 0, sizeof *g);
}

static const ax_lua_class gathered_class = { "pieces of a text", sizeof(gathered), clear_gathered, NULL };

static ax_status gather(void *p, const char *s, size_t n)
{
  gathered *g = p;
  ax_status st = ax_grow((void **)&g->s, &g->room, g->n, g->n + (int64_t)n, 1);
  if (st == AX_OK) st = ax_grow((void **)&g->ends, &g->end_room, g->count, g->count + 1, sizeof *g->ends);
  if (st != AX_OK) return st;
  if (n) memcpy(g->s + g->n, s, n);
  g->n += (int64_t)n;
  g->ends[g->count++] = g->n;
  return AX_OK;
}

/* core._utf8_repair(text) -> the text with U+FFFD for each sequence that is not UTF-8 */
static int utf8_repair(lua_State *L)
{
  gathered *g;
  ax_text t;

  ax_lua_enter(L);
  t = check_text(L, 1, "utf8_repair", "text");
  g = ax_lua_push_object(L, &gathered_class);
  if (ax_utf8_repair(t, gather, g) != AX_OK) return ax_lua_raise(L, "utf8_repair");
  lua_pushlstring(L, g->n ? g->s : "", (size_t)g->n);
  clear_gathered(L, g);
  return 1;
}

/* core._text_pattern(expression) -> its number, or nil */
static int text_pattern(lua_State *L)
{
  const int number = ax_pattern_find(check_text(L, 1, "pattern", "expression"));
  if (number < 0) return 0;
  lua_pushinteger(L, number);
  return 1;
}

/* ---- encodings */

static void clear_encodings(lua_State *L, void *object) { ax_encodings_free(object); }

static const ax_lua_class encodings_class;
static ax_encodings *check_encodings(lua_State *L)
{
  return ax_lua_check_object(L, 1, &encodings_class, "encodings");
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
static const ax_lua_class encodings_class = { "encodings", sizeof(ax_encodings), clear_encodings,
                                              encodings_methods };

/* ---- tokenizers */

static const ax_lua_class tokenizer_class;
static ax_tokenizer *check_tokenizer(lua_State *L, int idx)
{
  return ax_lua_check_pointer(L, idx, &tokenizer_class, "tokenizer");
}

/* core._tokenizer() -> tokenizer */
static int tokenizer_new(lua_State *L)
{
  ax_tokenizer **box;
  ax_lua_enter(L);
  box = ax_lua_push_object(L, &tokenizer_class);
  if (ax_tokenizer_new(box) != AX_OK) return ax_lua_raise(L, "tokenizer");
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
  ax_tokenizer *t = check_tokenizer(L, 1);
  const char *kind = luaL_checkstring(L, 2);
  const ax_text a = check_text(L, 3, "step", "a"), b = check_text(L, 4, "step", "b");

  ax_lua_enter(L);
  if (add(t, kind, a, b, (int)ax_lua_check_integer(L, 5, "step", "flags", 0, 1 << 20)) != AX_OK)
    return ax_lua_raise(L, "tokenizer");
  return 0;
}

/* tokenizer:normalizer(kind, a, b, flags), tokenizer:splitter(...): appends a step of
 * core/text/steps.def */
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
  ax_tokenizer *t = check_tokenizer(L, 1);
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
  for (int64_t i = 0; i < n; i++) tokens[i] = text_at(L, 5, i + 1, "model", "token");
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
    pair[0] = text_at(L, lua_gettop(L), 1, "tokenizer", "half of a merge");
    pair[1] = text_at(L, lua_gettop(L), 2, "tokenizer", "half of a merge");
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
  ax_tokenizer *t = check_tokenizer(L, 1);
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

/* tokenizer:add(content, id, flags); flags as in text.h */
static int tokenizer_add(lua_State *L)
{
  ax_tokenizer *t = check_tokenizer(L, 1);
  const ax_text content = check_text(L, 2, "add", "content");
  const int64_t id = ax_lua_check_integer(L, 3, "add", "id", 0, INT32_MAX);

  ax_lua_enter(L);
  if (ax_tokenizer_add(t, content, id, (int)ax_lua_check_integer(L, 4, "add", "flags", 0, 31)) != AX_OK)
    return ax_lua_raise(L, "tokenizer");
  return 0;
}

/* tokenizer:trim(trim, prefix) */
static int tokenizer_trim(lua_State *L)
{
  ax_tokenizer_trim(check_tokenizer(L, 1), lua_toboolean(L, 2), lua_toboolean(L, 3));
  return 0;
}

/* tokenizer:template(pair, list): three numbers for each part: id or -1, text (0 or 1), type */
static int tokenizer_template(lua_State *L)
{
  ax_tokenizer *t = check_tokenizer(L, 1);
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

/* tokenizer:encode(texts, pairs, add_special, offsets, split_special, truncation, left, max_length,
 * overflow, stride) -> encodings, and with `overflow` the number of each row's text; pairs: a list
 * of the second texts, or nil */
static int tokenizer_encode(lua_State *L)
{
  static const char *const cuts[] = { "do_not_truncate", "longest_first", "only_first", "only_second", NULL };
  ax_tokenizer *t = check_tokenizer(L, 1);
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
  e = ax_lua_push_object(L, &encodings_class);
  lua_createtable(L, o.overflow ? (int)n : 0, 0);
  for (int64_t i = 1; i <= n; i++) {
    const ax_text first = text_at(L, 2, i, "tokenizer", "text");
    ax_text second = { NULL, 0 };
    if (lua_istable(L, 3)) second = text_at(L, 3, i, "tokenizer", "second text");
    if (!first.s)
      return ax_lua_error(L, "tokenizer", "text %lld: expected a string, got false", (long long)i);
    const int64_t before = e->rows;
    if (ax_tokenizer_encode(t, first, second, &o, e) != AX_OK) return ax_lua_raise(L, "tokenizer");
    for (int64_t row = before + 1; o.overflow && row <= e->rows; row++) {
      lua_pushnumber(L, (double)i);
      lua_rawseti(L, -2, (int)row);
    }
  }
  lua_settop(L, 12 + o.overflow);
  return 1 + o.overflow;
}

static int push_gathered(lua_State *L, gathered *g)
{
  int64_t at = 0;
  lua_createtable(L, (int)g->count, 0);
  for (int64_t i = 0; i < g->count; i++) {
    lua_pushlstring(L, g->s + at, (size_t)(g->ends[i] - at));
    lua_rawseti(L, -2, (int)i + 1);
    at = g->ends[i];
  }
  clear_gathered(L, g);
  return 1;
}

typedef ax_status (*pieces_fn)(ax_tokenizer *t, ax_text text, ax_text_fn fn, void *p);

static int gather_pieces(lua_State *L, pieces_fn run)
{
  ax_tokenizer *t = check_tokenizer(L, 1);
  const ax_text text = check_text(L, 2, "tokenizer", "text");
  gathered *g;

  ax_lua_enter(L);
  g = ax_lua_push_object(L, &gathered_class);
  if (run(t, text, gather, g) != AX_OK) return ax_lua_raise(L, "tokenizer");
  return push_gathered(L, g);
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
static const ax_lua_class tokenizer_class = { "a tokenizer", sizeof(ax_tokenizer *), clear_tokenizer,
                                              tokenizer_methods };

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
  ax_tokenizer *t = check_tokenizer(L, 2);
  const ax_text text = check_text(L, 3, "feed", "text");

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
    special[i] = text_at(L, 4, i + 1, "train", "special token");
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
    { "_tokenizer", tokenizer_new },
    { "_bpe_trainer", trainer_new },
    { "_text_pattern", text_pattern },
    { "_utf8_repair", utf8_repair },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &gathered_class);
  ax_lua_open_class(L, &encodings_class);
  ax_lua_open_class(L, &tokenizer_class);
  ax_lua_open_class(L, &trainer_class);
  ax_lua_add_functions(L, functions);
}
