/* bind.h: what the files of the binding share.
 *
 * A tensor is a full userdata (a box) that holds one counted reference, and a tag by which C knows
 * it.  Lua errors jump: a function makes the box first, with ax_lua_push_box, and lets the core
 * write into it, so that nothing is ever owned by a C variable while a call that can raise is under
 * way.  Tensors read from arguments are borrowed: the Lua stack holds them.
 *
 * Every function that Lua can call starts with ax_lua_enter. */
#ifndef AX_BIND_H
#define AX_BIND_H

#include "ax.h"
#include "offload.h"
#include "signature.h"

#include <lauxlib.h>
#include <lua.h>
#include <string.h>

/* ---- the state of the binding on this thread: one Lua state a thread */

/* a Lua value that C no longer refers to */
typedef struct ax_lua_dead_ref {
  struct ax_lua_dead_ref *next;
  int ref;
} ax_lua_dead_ref;

/* tensor.scope; see bind/scope.c.  References into the registry: the results made in the innermost
 * scope (a weak list), and those that it must not empty. */
typedef struct ax_lua_scope_state {
  bool inside;
  int count, list, kept;
} ax_lua_scope_state;
typedef struct ax_lua_context ax_lua_context;

typedef struct ax_lua_globals {
  lua_State *L;         /* of the innermost call into the binding */
  bool open;            /* a state is open; finalisers that run while it closes do not call Lua */
  bool methods_loaded;  /* those written in Lua; see bind/tensor.c */
  bool pause_shortened; /* of the collector, in training; see bind/memory.c */
  int ref_tensor_mt;    /* in the registry */
  int ref_methods;      /* name -> method, number of a field, or a table with a field's function */
  int ref_require;
  int ref_public;        /* the names of functions that scripts call: see bind/named.c */
  int ref_row_gradients; /* the function behind core._row_gradients; 0: none */
  /* weak: light userdata of a box -> the userdata (only boxes that C must find again) */
  int ref_handles;
  int ref_environments; /* weak: light userdata of a leaf's box -> the table of its hooks */
  /* tensors' boxes whose Lua object was collected while the tensor still had hooks: see
   * bind/grad.c */
  int ref_orphans;
  /* weak: number of a layout -> the function to call when one of its buckets is full; see
   * bind/flat.c */
  int ref_full;
  /* see bind/anchors.c: Lua values held by graph nodes, by luaL_ref; those among them that the
   * boxes hold for one collection (weak); and, while there are any, light userdata of a box -> the
   * box of each result (weak) */
  int ref_anchors, ref_moved, ref_tracked;
  int n_anchors; /* live, and hooks of leaves */
  ax_lua_scope_state scope;
  ax_lua_context *contexts, *parked; /* see bind/context.c; each has `room` places */
  int n_open, n_parked, room, last_context;
  int ref_owners, ref_waiting; /* id of a context -> its coroutine; the second one is weak */
  ax_device device;            /* where constructors put tensors when no device is given */
  int64_t mark;                /* the pressure at which a collection is due */
  /* anchors to drop at the next call: finalisers must not touch Lua themselves */
  ax_lua_dead_ref *dead;
  bool collecting;
  bool raised; /* a Lua function called from C failed; its error waits in the registry */
  int ref_error;
} ax_lua_globals;
extern _Thread_local ax_lua_globals ax_lua;

/* The call comes from another coroutine than the last call did: swaps their contexts. */
void ax_lua_context_switch(lua_State *L);
void ax_lua_slow(lua_State *L); /* collects, drops anchors, reports an interrupt; may raise */
/* set by a signal handler of the host, where there is one */
extern volatile int ax_interrupted __attribute__((weak));

/* Call it first in every function that Lua calls.  May run a full collection, so call it before
 * anything is owned. */
static inline void ax_lua_enter(lua_State *L)
{
  if (__builtin_expect(L != ax_lua.L, 0)) {
    ax_lua_context_switch(L);
    ax_lua.L = L;
  }
  if (__builtin_expect(ax_memory_pressure() > ax_lua.mark || ax_lua.dead != NULL || ax_offload_over ||
                           (&ax_interrupted && ax_interrupted),
                       0))
    ax_lua_slow(L);
}
void ax_lua_drop_dead(lua_State *L);
/* Of the collector: call it when something that was recorded has died. */
void ax_lua_shorten_pause(lua_State *L);
/* Around a backward pass, with nothing owned: the second may run a collection, and raise. */
void ax_lua_backward_begins(lua_State *L);
void ax_lua_backward_ends(lua_State *L);

/* ---- contexts (context.c) */

typedef enum { AX_CONTEXT_GRAD, AX_CONTEXT_AUTOCAST, AX_CONTEXT_SCOPE } ax_lua_context_kind;
/* The settings inside a context; the field of its kind counts. */
typedef struct ax_lua_context_inside {
  bool grad;
  ax_autocast cast;
  ax_lua_scope_state scope;
} ax_lua_context_inside;
/* Opens a context of the coroutine L; errors are raised as `fn`'s.  Returns the id for
 * ax_lua_context_close. */
int ax_lua_context_open(lua_State *L, const char *fn, ax_lua_context_kind kind,
                        const ax_lua_context_inside *inside);
/* Closes it, and the contexts inside it that were left open. */
void ax_lua_context_close(lua_State *L, int id);
void ax_lua_context_free(void); /* the state goes away */

/* ---- errors */

/* Raises "where: message" with the message of the last ax_fail (no second "where:" when it starts
 * with one), or, when a Lua function called from C raised, that error as it was. */
int ax_lua_raise(lua_State *L, const char *where);
/* A hint where a tensor was expected and a function is given: x.real for x:real(). */
const char *ax_lua_uncalled(lua_State *L, const char *expected, int idx);
/* Raises "fn: argument N (name): expected ..., got ..." about the value at `idx`. */
int ax_lua_arg_error(lua_State *L, const char *fn, int arg, const char *name, const char *expected, int idx);
/* Raises "fn: ..." with the caller's position. */
int ax_lua_error(lua_State *L, const char *fn, const char *fmt, ...) AX_PRINTF(3, 4);
/* Pushes upvalues 2 and 3 of a closure that scripts call by this name; its own are 1, and 4 on. */
void ax_lua_push_name(lua_State *L, const char *name);
/* The name of the function that the script called, where `fn` fails inside one; or fn.  Borrowed
 * from the stack. */
const char *ax_lua_called(lua_State *L, const char *fn);
/* Pushes a short text about the value and returns it: string "a", number 1.5, tensor float32 [2,
 * 3], nil. */
const char *ax_lua_describe(lua_State *L, int idx);
/* Reads argument 1, a path; borrowed from the stack.  Raises when it is not a string, is empty, or
 * contains a NUL. */
const char *ax_lua_check_path(lua_State *L, const char *fn);
/* The name in the list that is closest to `given`, or NULL when none is near. */
const char *ax_lua_nearest(const char *given, const char *const *names, int n);

int ax_lua_out_of_memory(lua_State *L);
/* Returns "; did you mean ...?" for the name of a device that does not exist, or "". */
const char *ax_lua_device_hint(const char *given);
/* The element type nearest to a name, or NULL; a list of all names. */
const char *ax_lua_nearest_dtype(const char *given);
const char *ax_lua_dtype_list(void);

/* ---- boxes */

/* Pushes an empty handle and returns where its tensor goes.  _result: for the result of an op,
 * which a scope may empty again. */
ax_tensor **ax_lua_push_box(lua_State *L);
ax_tensor **ax_lua_push_result(lua_State *L);
typedef struct ax_lua_box {
  ax_tensor *t;
  const void *tag;
} ax_lua_box;
/* The box at idx, or NULL when the value is not a tensor.  It may have been released: *box NULL.
 * Comparing a tag takes half the time of comparing metatables; scripts cannot make userdata with
 * contents of their own. */
static inline ax_tensor **ax_lua_to_box(lua_State *L, int idx)
{
  ax_lua_box *b = lua_touserdata(L, idx);
  /* a light userdata has length 0 */
  return b && lua_objlen(L, idx) == sizeof *b && b->tag == &ax_lua ? &b->t : NULL;
}
/* Borrowed.  Raises when the value is not a tensor, or was released. */
ax_tensor *ax_lua_check_tensor(lua_State *L, int idx, const char *fn, const char *name);
/* Borrowed: the tensor that method `fn` is called on, at 1, with at most so many arguments behind
 * it. */
ax_tensor *ax_lua_self(lua_State *L, const char *fn, int arguments);
/* Raises where more than `most` values were given, the tensor of a method among them; nils at the
 * end do not count. */
void ax_lua_at_most(lua_State *L, const char *fn, int most);
/* Pushes a list of whole numbers. */
void ax_lua_push_numbers(lua_State *L, int n, const int64_t *v);
/* Borrowed, or NULL when the value is not a tensor.  Raises when it was released. */
ax_tensor *ax_lua_opt_tensor(lua_State *L, int idx, const char *fn);
/* Pushes the Lua object of `t`: the existing one if ax_lua_remember_handle was called for it, else
 * a new one (which is remembered). */
void ax_lua_push_handle(lua_State *L, ax_tensor *t);
/* Makes the Lua object at idx the one that ax_lua_push_handle finds. */
void ax_lua_remember_handle(lua_State *L, int idx);
/* Takes the tensor out of a box; returns it (owned) or NULL. */
ax_tensor *ax_lua_empty_box(ax_tensor **box);
/* Pushes a CPU tensor with t's elements: the value at idx itself, or a copy.  Borrowed: the stack
 * holds it. */
ax_tensor *ax_lua_push_on_cpu(lua_State *L, int idx, const char *fn);
/* The save (io.h) at idx, borrowed; NULL for nil. */
struct ax_save *ax_lua_opt_save(lua_State *L, int idx, const char *fn);

/* ---- objects (object.c): userdata with a struct of the core's, or a pointer to one */

typedef struct ax_lua_class {
  const char *name; /* "a csv reader": in messages, and as the result of getmetatable */
  size_t size;      /* of the struct */
  /* Frees what the struct holds and leaves it as ax_lua_push_object made it, all zero.  May be
   * called again. */
  void (*clear)(lua_State *L, void *object);
  const luaL_Reg *methods; /* events too (__tostring); NULL: none */
} ax_lua_class;

/* Makes the class's metatable; called before any object is pushed. */
void ax_lua_open_class(lua_State *L, const ax_lua_class *class);
/* Pushes an object, all zero, and returns its struct. */
void *ax_lua_push_object(lua_State *L, const ax_lua_class *class);
/* The struct of the object at idx, or NULL when it is not of this class. */
void *ax_lua_to_object(lua_State *L, int idx, const ax_lua_class *class);
/* Likewise, but raises for other values. */
void *ax_lua_check_object(lua_State *L, int idx, const ax_lua_class *class, const char *fn);
/* The pointer, for a class whose struct is a pointer.  Also raises when it is NULL: the object was
 * closed. */
void *ax_lua_check_pointer(lua_State *L, int idx, const ax_lua_class *class, const char *fn);

/* ---- arguments (args.c, check.c) */

typedef struct ax_lua_read_result {
  ax_args args;
  ax_tensor *in[AX_MAX_INPUTS];
  int at[AX_MAX_INPUTS];    /* the stack index of each input */
  int where[AX_MAX_PARAMS]; /* that of each parameter's value, 0: not given */
  bool formed;              /* a parameter after `+` was given */
} ax_lua_read_result;
/* Reads the stack from index 1 as arguments of `op`.  `shown` is the name that messages use.
 * Raises; owns nothing. */
void ax_lua_read_args(lua_State *L, ax_op op, const char *shown, ax_lua_read_result *r);
/* Likewise, by any signature. */
void ax_lua_read_params(lua_State *L, const ax_signature *sig, const char *shown, ax_lua_read_result *r);
/* Pushes all that was read as Lua has it: dims counted from 1, lists as tables, nil for what was
 * not given. */
void ax_lua_push_arguments(lua_State *L, const ax_signature *sig, const ax_lua_read_result *r);

/* Whether the value is a plain table that is not a list (has no [1]); an empty table is one where
 * `empty_counts`. */
bool ax_lua_is_options(lua_State *L, int idx, bool empty_counts);
/* Raises when the table at idx has a key that is not in `names`. */
void ax_lua_check_options(lua_State *L, int idx, const char *fn, const char *const *names, int n);
/* Checks the options at idx, an absolute index, of a function with a signature, and gives those
 * that have PyTorch's name for a parameter ("input") the one that it has here ("x"): in a copy,
 * which takes the table's place on the stack. */
void ax_lua_settle_names(lua_State *L, int idx, const char *fn, const ax_signature *sig);
/* Replaces the table at idx, an absolute index, by a copy in which `from` is called `to`. */
void ax_lua_rename_option(lua_State *L, int idx, const char *fn, const char *from, const char *to);
/* Puts what a table at the end gives by name at its place: names[0] is the argument at `first`. */
void ax_lua_place_named(lua_State *L, const char *fn, int first, const char *const *names, int n);
/* Whether the value at idx is an integral number that doubles hold exactly. */
bool ax_lua_to_integer(lua_State *L, int idx, int64_t *out);
int64_t ax_lua_check_integer(lua_State *L, int idx, const char *fn, const char *name, int64_t least,
                             int64_t most);
double ax_lua_check_number(lua_State *L, int idx, const char *fn, const char *name);
bool ax_lua_check_boolean(lua_State *L, int idx, const char *fn, const char *name);
ax_dtype ax_lua_check_dtype(lua_State *L, int idx, const char *fn, const char *name);
ax_device ax_lua_check_device(lua_State *L, int idx, const char *fn, const char *name);
bool ax_lua_device_parse(const char *text, ax_device *out);
/* 1-based or negative -> 0-based; raises unless the result is in 0 .. size-1. `what` names it:
 * "dim", "position". */
int64_t ax_lua_check_position(lua_State *L, int idx, const char *fn, const char *name, int64_t size);
/* Sizes at first..last of the stack: several numbers or one list. Returns their number. */
int ax_lua_check_sizes(lua_State *L, int first, int last, const char *fn, int64_t *shape);
ax_generator *ax_lua_check_generator(lua_State *L, int idx, const char *fn, const char *name);
ax_generator *ax_lua_to_generator(lua_State *L, int idx); /* NULL when it is none */
/* Raises unless the table at idx, which is no negative one, holds entries 1 .. n and nothing
 * else. */
void ax_lua_check_list(lua_State *L, int idx, const char *fn, const char *name);
/* Whether that is so at first sight: nothing is behind entry n, or at 0. */
bool ax_lua_ends_with_list(lua_State *L, int idx);
/* The integers of the list at idx; returns their number, at most AX_MAX_DIMS.  Raises for other
 * entries, holes and named ones. */
int ax_lua_read_list(lua_State *L, int idx, const char *fn, const char *name, int arg, int64_t *out);
/* Converts a position as users count, from 1 or from -1 backward, to 0 .. size-1.  A position out
 * of range stays out of range (0 gives -1). */
static inline int64_t ax_lua_position(int64_t p, int64_t size) { return p < 0 ? size + p : p - 1; }

/* ---- running ops */

/* Runs op and pushes its visible results.  A result that is input k itself is pushed as the Lua
 * value at r->at[k]. */
int ax_lua_run_push(lua_State *L, ax_op op, const char *shown, const ax_lua_read_result *r);
/* A row as a Lua function, and as a method that writes into its tensor.  Upvalues: the op, and what
 * ax_lua_push_name pushes. */
int ax_lua_op_call(lua_State *L);
int ax_lua_op_inplace(lua_State *L);
/* One of these two, or what reads calls of its own before them (other_calls.c). */
lua_CFunction ax_lua_function_of(ax_op op, bool inplace);

/* ---- parts: each expects the table of accelerate.core on the stack top and leaves it there */

void ax_lua_open_tensor(lua_State *L);
void ax_lua_open_facts(lua_State *L);
void ax_lua_open_convert(lua_State *L);
void ax_lua_open_values(lua_State *L);
void ax_lua_open_index(lua_State *L);
void ax_lua_open_create(lua_State *L);
void ax_lua_open_named(lua_State *L);
void ax_lua_open_ops(lua_State *L);
void ax_lua_open_composed(lua_State *L);
void ax_lua_open_split(lua_State *L);
void ax_lua_open_grad(lua_State *L);
void ax_lua_open_function(lua_State *L);
void ax_lua_open_scope(lua_State *L);
void ax_lua_open_memory(lua_State *L);
void ax_lua_open_device(lua_State *L);
void ax_lua_open_hyper(lua_State *L);
void ax_lua_open_gradients(lua_State *L);
void ax_lua_open_optim_group(lua_State *L);
void ax_lua_open_random(lua_State *L);
void ax_lua_open_dist(lua_State *L);
void ax_lua_open_io(lua_State *L);
void ax_lua_open_safetensors(lua_State *L);
void ax_lua_open_gguf(lua_State *L);
void ax_lua_open_offload(lua_State *L);
/* The open schedule at idx. */
ax_offload *ax_lua_check_offload(lua_State *L, int idx, const char *fn);
struct ax_place *ax_lua_check_place(lua_State *L, int idx, const char *fn);
void ax_lua_open_encoded(lua_State *L);
void ax_lua_open_archive(lua_State *L);
void ax_lua_open_save(lua_State *L);
void ax_lua_open_flat(lua_State *L);
void ax_lua_open_autocast(lua_State *L);
void ax_lua_open_worker(lua_State *L);
void ax_lua_open_ranks(lua_State *L);
/* The memory of the ranks at idx, which core._ranks_create made. */
struct ax_control *ax_lua_ranks(lua_State *L, int idx, const char *fn);
/* defined by the host; another program that embeds the binding may lack it */
void ax_lua_open_machines(lua_State *L) __attribute__((weak));
void ax_lua_open_gather(lua_State *L);
void ax_lua_open_data(lua_State *L);
void ax_lua_open_net(lua_State *L);
void ax_lua_open_deferred(lua_State *L);
void ax_lua_open_profile(lua_State *L);
void ax_lua_open_capture(lua_State *L);
void ax_lua_open_yaml(lua_State *L);
void ax_lua_open_text(lua_State *L);
void ax_lua_open_tokenizer(lua_State *L);

/* Adds functions to the table on the stack top. */
void ax_lua_add_functions(lua_State *L, const luaL_Reg *list);
/* Adds methods of tensors. */
void ax_lua_add_methods(lua_State *L, const luaL_Reg *list);

/* ---- other functions that files of the binding share */

int ax_lua_index_read(lua_State *L);  /* (tensor, key): x[i], x[{...}], x[mask], x[positions] */
int ax_lua_index_write(lua_State *L); /* (tensor, key, value) */
bool ax_lua_is_newaxis(lua_State *L, int idx);
/* Pushes a tensor of the nested list at idx and returns it, borrowed. */
ax_tensor *ax_lua_push_from_table(lua_State *L, int idx, ax_dtype dtype, ax_device device);
/* bind/grad.c: keeps hooks alive, then releases */
void ax_lua_tensor_finalise(lua_State *L, int idx, ax_tensor **box);
void ax_lua_sweep_orphans(lua_State *L);
/* Calls fn(L) with `p` as light userdata, protected.  A Lua error is kept for ax_lua_raise, and the
 * status says that there was one. */
ax_status ax_lua_protect(lua_CFunction fn, void *p);
/* ---- Lua values that the tape holds (anchors.c) */

/* Pops a value and anchors it; returns its number.  What the tape is given is a struct that begins
 * with an ax_lua_dead_ref of this number (LUA_NOREF where n_anchors was counted up by hand), made
 * by malloc, and ax_lua_drop_anchor, which drops the value later, when Lua may be called, and frees
 * the struct. */
int ax_lua_anchor(lua_State *L);
void ax_lua_unanchor(lua_State *L, int ref); /* at once */
void ax_lua_push_anchor(lua_State *L, int ref);
void ax_lua_drop_anchor(void *anchored);
/* The box at idx may hold anchors, through its tensor's history. */
void ax_lua_track(lua_State *L, int idx);
/* Frees circles of boxes and anchors; runs a full collection if there may be one.  Call it after
 * one, with ax_lua.collecting set.  May raise. */
void ax_lua_break_circles(lua_State *L);
/* bind/deferred.c: an edit in place of the tensor at 1, whose values may be deferred, with its
 * arguments at 1 to n.  True: it was noted, and is made when the values are.  May raise. */
bool ax_lua_note_edit(lua_State *L, const char *name, int n);
void ax_lua_scope_keep(lua_State *L, int idx); /* a scope around does not empty it */
void ax_lua_scope_track(lua_State *L);         /* the result on the stack top was made in a scope */
bool ax_lua_number_fits(ax_dtype d, double v); /* ax_number_fits, but floating types round to infinity */
#endif
