/* message.h: the form in which Lua values travel from one process to another.
 *
 * Values are nil, booleans, numbers, strings, tensors and plain tables of them.  They are written
 * as a tree of tagged bytes, in which a tensor is a shape and an offset.  The elements follow, each
 * tensor on a cache line of its own:
 *
 *       length of the tree (8 bytes) | tree | elements of the first tensor | of the second | ... */
#ifndef AX_MESSAGE_H
#define AX_MESSAGE_H

#include "bind/bind.h"
#include "feed.h"

/* Values to be sent.  A Lua object, so that an error frees it. */
typedef struct ax_lua_message {
  char *tree;
  size_t n, room;
  ax_tensor **tensors; /* contiguous, on the CPU; owned */
  int n_tensors, tensor_room;
  size_t data; /* bytes of elements, with the gaps */
} ax_lua_message;

/* Writes the values at first..top into a fresh message, which it pushes.  Raises, with the position
 * of the value, for a value that cannot be sent. */
ax_lua_message *ax_lua_message_write(lua_State *L, int first);
/* The size of a message in bytes, and a copy of its bytes. */
size_t ax_lua_message_size(const ax_lua_message *m);
void ax_lua_message_copy(const ax_lua_message *m, char *to);
/* Releases what it holds at once, not at the next collection. */
void ax_lua_message_release(ax_lua_message *m);

/* Pushes the values of a message, *count of them.  Their tensors are in the slot of `note`, or are
 * copies where w is NULL. */
ax_status ax_lua_message_read(lua_State *L, char *whole, size_t size, ax_worker *w, const ax_note *note,
                              int *count);

void ax_lua_open_message(lua_State *L);

#endif
