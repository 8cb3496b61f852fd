/* bind/io.c: plain files, checksums and codes: core.read_idx, core._read_file, core._file_head,
 * core._write_file, core._file_digest, core._crc32c, core._checksum, core._sha256,
 * core._hmac_sha256, core._same_text. */
#include "bind/bind.h"
#include "io.h"
#include "sha256.h"

#include <stdio.h>
#include <stdlib.h>

/* read_idx(path) -> tensor */
static int read_idx(lua_State *L)
{
  const char *path;
  ax_tensor **box;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "read_idx");
  box = ax_lua_push_result(L);
  if (ax_idx_read(path, box) != AX_OK) return ax_lua_raise(L, "read_idx");
  return 1;
}

/* ---- texts */

static void clear_text(lua_State *L, void *object)
{
  char **text = object;
  free(*text);
  *text = NULL;
}

#define MOST_TEXT 0x7fffff00 /* LJ_MAX_STR */

static const ax_lua_class text_class = { "the text of a file", sizeof(char *), clear_text, NULL };

/* Pushes the text, or nil and the reason. */
static int push_text(lua_State *L, ax_status st, char **text, size_t n)
{
  if (st == AX_OK) {
    lua_pushlstring(L, *text, n);
    clear_text(L, text);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, ax_last_error());
  return 2;
}

/* core._read_file(path, most?) -> text, or nil and the reason why it cannot be read.  Regular files
 * only.  most: bytes that it may have; default: as many as a string of LuaJIT holds. */
static int read_file(lua_State *L)
{
  const char *path;
  char **text;
  size_t n, most;
  ax_status st;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "read_file");
  most = lua_isnoneornil(L, 2) ? MOST_TEXT
                               : (size_t)ax_lua_check_integer(L, 2, "read_file", "most", 0, MOST_TEXT);
  text = ax_lua_push_object(L, &text_class);
  st = ax_file_slurp(path, most, text, &n);
  return push_text(L, st, text, n);
}

/* core._file_head(path, n) -> the first n bytes, fewer where the file ends; or nil and the reason
 * why it cannot be read.  Regular files only. */
static int file_head(lua_State *L)
{
  const char *path;
  char **text;
  size_t n;
  ax_status st;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "file_head");
  n = (size_t)ax_lua_check_integer(L, 2, "file_head", "n", 1, 1 << 20);
  text = ax_lua_push_object(L, &text_class);
  st = ax_file_head(path, text, &n);
  return push_text(L, st, text, n);
}

/* core._write_file(path, text, synced) -> true, or nil and the reason why it was not written.  The
 * file appears whole or not at all; unless it is synced, a power cut may lose it. */
static int write_file(lua_State *L)
{
  const char *path, *text;
  size_t n;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "write_file");
  if (lua_type(L, 2) != LUA_TSTRING) return ax_lua_arg_error(L, "write_file", 2, "text", "a string", 2);
  text = lua_tolstring(L, 2, &n);
  if (ax_file_put(path, text, n, lua_toboolean(L, 3)) == AX_OK) {
    lua_pushboolean(L, true);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, ax_last_error());
  return 2;
}

/* core._file_digest(path, threads?, keep?) -> size in bytes, CRC-32C; or nil and the reason why the
 * file cannot be read.  threads: default 1; keep: its mapping stays for the next reader of the
 * file, until core._forget_kept_files() */
static int file_digest(lua_State *L)
{
  const char *path;
  int threads;
  ax_digest d;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "file_digest");
  threads = lua_isnoneornil(L, 2) ? 1 : (int)ax_lua_check_integer(L, 2, "file_digest", "threads", 1, 65536);
  if (ax_file_digest(path, threads, lua_toboolean(L, 3), &d) == AX_OK) {
    lua_pushnumber(L, (lua_Number)d.bytes);
    lua_pushnumber(L, d.crc32c);
    return 2;
  }
  lua_pushnil(L);
  lua_pushstring(L, ax_last_error());
  return 2;
}

static int forget_kept_files(lua_State *L)
{
  ax_lua_enter(L);
  ax_file_forget_kept();
  return 0;
}

/* core._crc32c(text) -> its CRC-32C */
static int crc32c(lua_State *L)
{
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);

  lua_pushnumber(L, ax_text_crc32c(text, n));
  return 1;
}

/* core._checksum(list of tensors) -> the CRC-32C of their elements' bytes, one tensor after the
 * other; those of a device are copied to the host, one by one */
static int checksum(lua_State *L)
{
  uint32_t crc = 0;

  ax_lua_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  for (int i = 1, n = (int)lua_objlen(L, 1); i <= n; i++) {
    ax_tensor *t;
    lua_rawgeti(L, 1, i);
    t = ax_lua_check_tensor(L, -1, "checksum", "tensor");
    if (ax_tensor_crc32c(t, &crc) != AX_OK) return ax_lua_raise(L, "checksum");
    lua_pop(L, 1);
  }
  lua_pushnumber(L, crc);
  return 1;
}

static int push_hex(lua_State *L, const unsigned char *digest)
{
  char text[2 * AX_SHA256_BYTES + 1];

  for (int i = 0; i < AX_SHA256_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
  lua_pushlstring(L, text, 2 * AX_SHA256_BYTES);
  return 1;
}

/* core._sha256(text) -> its SHA-256 in hexadecimal */
static int sha256(lua_State *L)
{
  unsigned char digest[AX_SHA256_BYTES];
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  ax_sha256 h;

  ax_sha256_begin(&h);
  ax_sha256_add(&h, text, n);
  ax_sha256_end(&h, digest);
  return push_hex(L, digest);
}

/* core._hmac_sha256(key, text, ...) -> the HMAC-SHA-256 in hexadecimal of texts one after the
 * other */
static int hmac_sha256(lua_State *L)
{
  unsigned char code[AX_SHA256_BYTES];
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  ax_hmac_sha256 h;

  ax_hmac_sha256_begin(&h, text, n);
  for (int i = 2; i <= lua_gettop(L); i++) {
    text = luaL_checklstring(L, i, &n);
    ax_hmac_sha256_add(&h, text, n);
  }
  ax_hmac_sha256_end(&h, code);
  return push_hex(L, code);
}

/* core._same_text(a, b) -> whether they are equal, in a time that shows nothing but their
 * lengths */
static int same_text(lua_State *L)
{
  size_t n, m;
  const char *a = luaL_checklstring(L, 1, &n), *b = luaL_checklstring(L, 2, &m);

  lua_pushboolean(L, n == m && ax_same_bytes(a, b, n));
  return 1;
}

void ax_lua_open_io(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "read_idx", read_idx },        { "_read_file", read_file },
    { "_file_head", file_head },     { "_write_file", write_file },
    { "_file_digest", file_digest }, { "_forget_kept_files", forget_kept_files },
    { "_crc32c", crc32c },           { "_checksum", checksum },
    { "_sha256", sha256 },           { "_hmac_sha256", hmac_sha256 },
    { "_same_text", same_text },     { NULL, NULL },
  };

  if (&ax_interrupted) ax_file_interrupts(&ax_interrupted);
  ax_lua_open_class(L, &text_class);
  ax_lua_add_functions(L, functions);
}
