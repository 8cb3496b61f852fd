/* bind/texts.h: texts from Lua and back, for text.c (texts, encodings, training) and
 * tokenizer.c. */
#ifndef AX_BIND_TEXTS_H
#define AX_BIND_TEXTS_H

#include "bind/bind.h"
#include "text.h"

ax_text ax_lua_check_text(lua_State *L, int idx, const char *fn, const char *name);
/* A text of the list at idx, which keeps it alive.  false becomes a text that is NULL. */
ax_text ax_lua_text_at(lua_State *L, int idx, int64_t i, const char *fn, const char *name);

/* Texts and where each one ends. */
typedef struct ax_lua_texts {
  char *s;
  int64_t n, room;
  int64_t *ends;
  int64_t count, end_room;
} ax_lua_texts;

extern const ax_lua_class ax_lua_texts_class, ax_lua_encodings_class, ax_lua_tokenizer_class;
/* Appends a text to p, an ax_lua_texts: an ax_text_fn. */
ax_status ax_lua_texts_add(void *p, const char *s, size_t n);
void ax_lua_texts_clear(lua_State *L, void *object);

ax_tokenizer *ax_lua_check_tokenizer(lua_State *L, int idx);

#endif
