/* Compiled modules of the library.
 *
 * `make` writes each file of lua/accelerate and what LuaJIT made of it into one archive, beside the
 * plugins.  A module whose file is still the one in the archive, byte for byte, is not compiled
 * again: that takes most of the time that `require` takes.  Without an archive, or with another
 * LuaJIT, files are compiled as ever. */

#include <fcntl.h>
#include <lauxlib.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "script.h"

/* The archive: HEADER, then one entry for each module: three numbers of 32 bits (bytes of the name,
 * of the file, of the code), the name, the file, the code.  host/tools/modules.lua writes it. */
static const char HEADER[] = "accel modules 1\n";

typedef struct module {
  const char *name, *file, *code;
  uint32_t sizes[3];
} module;

/* Mapped once; NULL: there is none. */
static const char *archive;
static size_t archive_size;

static void open_archive(void)
{
  char path[PATH_MAX];
  struct stat s;
  const int n = snprintf(path, sizeof path, "%s/accelerate.modules", ax_interp_plugin_dir());
  const int fd = n < (int)sizeof path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *p;

  if (fd < 0) return;
  if (fstat(fd, &s) == 0 && s.st_size >= (off_t)sizeof HEADER &&
      (p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) != MAP_FAILED) {
    if (memcmp(p, HEADER, sizeof HEADER - 1) == 0) {
      archive = p;
      archive_size = (size_t)s.st_size;
    } else {
      munmap(p, (size_t)s.st_size);
    }
  }
  close(fd);
}

static bool find_module(const char *name, module *m)
{
  const size_t n = strlen(name);
  size_t at = sizeof HEADER - 1;

  while (archive_size - at >= sizeof m->sizes) {
    memcpy(m->sizes, archive + at, sizeof m->sizes);
    at += sizeof m->sizes;
    const uint64_t all = (uint64_t)m->sizes[0] + m->sizes[1] + m->sizes[2];
    if (all > archive_size - at) return false;
    m->name = archive + at;
    m->file = m->name + m->sizes[0];
    m->code = m->file + m->sizes[1];
    if (m->sizes[0] == n && memcmp(m->name, name, n) == 0) return true;
    at += all;
  }
  return false;
}

static bool file_equals(const char *path, const char *bytes, size_t size)
{
  char part[16384];
  struct stat s;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  bool same;

  if (fd < 0) return false;
  same = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && (uint64_t)s.st_size == size;
  while (same && size > 0) {
    const ssize_t n = read(fd, part, size < sizeof part ? size : sizeof part);
    same = n > 0 && memcmp(part, bytes, (size_t)n) == 0;
    bytes += same ? n : 0;
    size -= same ? (size_t)n : 0;
  }
  close(fd);
  return same;
}

/* LuaJIT's own header holds the name of the file, for messages: the archive's place may be another
 * one, so that this name is replaced.  The header: ESC "LJ", a version, flags, the name's size, the
 * name; flags and size are numbers of 7 bits a byte. */
enum { FLAG_STRIPPED = 2 };

typedef struct pieces {
  struct {
    const char *p;
    size_t n;
  } list[3];
  size_t next;
} pieces;

static bool read_number(const char **p, const char *end, uint32_t *v)
{
  *v = 0;
  for (int shift = 0; *p < end && shift < 35; shift += 7) {
    const unsigned char c = (unsigned char)*(*p)++;
    *v |= (uint32_t)(c & 0x7f) << shift;
    if (c < 0x80) return true;
  }
  return false;
}

static bool rename_code(const module *m, const char *name, char *head, size_t room, pieces *out)
{
  const char *p = m->code + 4, *end = m->code + m->sizes[2], *flags_end;
  uint32_t flags, size, left = (uint32_t)strlen(name);
  size_t n;

  if (m->sizes[2] < 8 || memcmp(m->code, "\033LJ", 3) != 0 || !read_number(&p, end, &flags)) return false;
  flags_end = p;
  if ((flags & FLAG_STRIPPED) || !read_number(&p, end, &size) || size > (size_t)(end - p)) return false;
  p += size;
  n = (size_t)(flags_end - m->code);
  if (n + 5 > room) return false;
  memcpy(head, m->code, n);
  for (; left >= 0x80; left >>= 7) head[n++] = (char)(left | 0x80);
  head[n++] = (char)left;
  *out = (pieces){ .list = { { head, n }, { name, strlen(name) }, { p, (size_t)(end - p) } } };
  return true;
}

static const char *next_piece(lua_State *L, void *at, size_t *size)
{
  pieces *p = at;

  (void)L;
  if (p->next == sizeof p->list / sizeof *p->list) return NULL;
  *size = p->list[p->next].n;
  return p->list[p->next++].p;
}

/* A searcher of package.loaders, before the one that compiles files: it finds the file as that one
 * does.  Upvalue: package. */
static int load_module(lua_State *L)
{
  const char *name = luaL_checkstring(L, 1), *path;
  char head[32];
  module m;
  pieces p;

  if (strncmp(name, "accelerate", 10) != 0 || !find_module(name, &m)) return 0;
  lua_getfield(L, lua_upvalueindex(1), "searchpath");
  lua_pushvalue(L, 1);
  lua_getfield(L, lua_upvalueindex(1), "path");
  lua_call(L, 2, 1);
  path = lua_tostring(L, -1);
  if (!path || !file_equals(path, m.file, m.sizes[1])) return 0;
  path = lua_pushfstring(L, "@%s", path);
  if (!rename_code(&m, path, head, sizeof head, &p)) return 0;
  return lua_load(L, next_piece, &p, path) == 0 ? 1 : 0;
}

void ax_modules_install(lua_State *L)
{
  open_archive();
  if (!archive) return;
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaders");
  for (int i = (int)lua_objlen(L, -1); i >= 2; i--) { /* after package.preload's */
    lua_rawgeti(L, -1, i);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushvalue(L, -2);
  lua_pushcclosure(L, load_module, 1);
  lua_rawseti(L, -2, 2);
  lua_pop(L, 2);
}
