/* index_key.h: a key between brackets, as a view and the tensors that pick from its dims. */
#ifndef AX_INDEX_KEY_H
#define AX_INDEX_KEY_H

#include "bind/bind.h"

#define SHAPE(t) ax_shape_text((t)->ndim, (t)->shape, (char[192]){ 0 }, 192)

/* The temporaries of one access.  Their boxes are on the Lua stack, so an error leaks nothing.
 * After a success the boxes are emptied at once, so that dead handles do not keep memory until the
 * next collection. */
enum { AX_MOST_TEMPS = 96 };
typedef struct ax_lua_work {
  lua_State *L;
  int n, at; /* at: stack index of the newest result */
  ax_tensor **temps[AX_MOST_TEMPS];
} ax_lua_work;

ax_tensor **ax_lua_push_temp(ax_lua_work *w);
/* Frees all temporaries but `keep`. */
void ax_lua_drop_temps(ax_lua_work *w, const ax_tensor *keep);
/* Runs an op on x; the result is borrowed, its box is on the stack. */
ax_tensor *ax_lua_apply1(ax_lua_work *w, ax_op op, ax_tensor *x, ax_attrs attrs);
/* op (RESHAPE, VIEW, EXPAND, PERMUTE) with one list. */
ax_tensor *ax_lua_apply_list(ax_lua_work *w, ax_op op, ax_tensor *x, int n, const int64_t *list);

/* A tensor of a key: positions of one dim, or a mask over some. */
typedef struct ax_lua_pick {
  ax_tensor *index; /* counted from 0: negative positions of `given` have their dim's size added */
  ax_tensor *given;
  int dim, dims; /* of the view: the first one, and how many (a mask may have several) */
  int shown;     /* the first dim in x, as users count */
  int64_t size;  /* the product of their sizes */
} ax_lua_pick;

typedef struct ax_lua_key {
  ax_tensor *x, *view; /* view: x where nothing but tensors is in the key */
  int n;
  ax_lua_pick pick[AX_MAX_DIMS];
} ax_lua_key;

/* Reads the value at idx as a key of x. */
void ax_lua_read_key(ax_lua_work *w, ax_tensor *x, int idx, ax_lua_key *k);

/* What the picks of a key come to: one list of positions along one dim of a tensor. */
typedef struct ax_lua_picked {
  int order[AX_MAX_DIMS]; /* the view's dims as they must come; the picked ones are neighbours */
  bool ordered;           /* they are in that order */
  int dim, dims;          /* the picked ones */
  int64_t merged[AX_MAX_DIMS];
  int n_merged; /* the ordered view's shape with the picked dims as one */
  int64_t shape[2 * AX_MAX_DIMS];
  int ndim;         /* the result's shape, with the dims of the index in their place */
  ax_tensor *index; /* int64, one dim */
} ax_lua_picked;
void ax_lua_join_picks(ax_lua_work *w, const ax_lua_key *k, ax_lua_picked *p);
/* Raises about the first position that is out of range; else returns, and ax_last_error counts. */
void ax_lua_explain_picks(ax_lua_work *w, const ax_lua_key *k);

#endif
