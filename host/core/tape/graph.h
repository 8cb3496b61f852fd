/* The tape's inside: nodes, what they save, and what a gradient rule sees.
 *
 * A node stands for one recorded op.  It holds (counted) the nodes that made its inputs, so a
 * result keeps its history alive and nothing else does.  Sequence numbers rise with creation, and a
 * node is made after the nodes it points to: walking backward in falling order of sequence number
 * is a topological order, with no counting of dependencies beforehand. */
#ifndef AX_GRAPH_H
#define AX_GRAPH_H

#include "core/core.h"

typedef struct ax_edge {
  ax_node *node; /* counted; NULL: this input needs no gradient */
  int out;       /* which result of that node */
} ax_edge;

typedef struct ax_meta {
  ax_dtype dtype;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
} ax_meta;

typedef struct ax_saved {
  ax_tensor *t;   /* counted alias; NULL when not saved */
  uint32_t edits; /* the version it had */
} ax_saved;

struct ax_hook {
  ax_hook *next;
  ax_hook **home;                  /* the list that holds it: a node's or a leaf's */
  ax_hook *next_live, **from_live; /* all hooks of the thread */
  uint64_t id;
  ax_hook_kind kind;
  bool gone; /* removed while its list is being run: freed afterwards */
  int out;
  ax_hook_fn call;
  void (*drop)(void *);
  void *ud;
};

typedef enum { AX_NODE_OP, AX_NODE_ACCUMULATE, AX_NODE_CUSTOM } ax_node_kind;

struct ax_node {
  int32_t refs;
  ax_node_kind kind;
  ax_op op;
  bool released; /* backward ran and freed what was saved */
  bool needed;   /* in search `search`: this is a wanted input, or leads to one */
  uint64_t seq;
  ax_args args; /* attributes and number operands of the call; its `in` is not used */
  size_t bytes; /* of the node with its arrays */
  int n_in, n_out;
  ax_edge *edges;    /* [n_in] */
  ax_meta *in_meta;  /* [n_in] */
  ax_saved *in;      /* [n_in] */
  ax_meta *out_meta; /* [n_out] */
  ax_saved *out;     /* [n_out] */
  ax_tensor **grads; /* [n_out] what has arrived during a backward run */
  ax_hook *hooks;
  ax_tensor *leaf;  /* ACCUMULATE: counted; the leaf points back weakly; NULL once it is a leaf no more */
  const char *name; /* CUSTOM */
  ax_custom_fn custom;
  void (*drop)(void *); /* frees ud: CUSTOM: the function's data; ACCUMULATE: the hooks' */
  void *ud;
  uint64_t search;    /* the last one that came by (mark_needed in inputs.c); 0: none */
  const void *run;    /* the backward run that has it queued, or NULL */
  int32_t place;      /* where in the script it was made, for the profiler; 0: not known */
  bool slot_written;  /* ACCUMULATE: a rule has added into the leaf's gradient slot already */
  ax_node *next_dead; /* list of ax_node_release */
  uint64_t reached;   /* leaves.c: the last list that it was in */
  ax_node *after;     /* the next one in that list */
};

/* Whether the gradient of n is needed.  A search that ran inside the one that marked n may have
 * marked it again: then it counts as needed. */
static inline bool ax_node_needed(const ax_node *n, uint64_t search)
{
  return n->search != search || n->needed || !search;
}

void ax_node_release(ax_node *n);
void ax_hooks_drop(ax_hook **list);
/* No hook in the list runs again; those of a list that is being run stay in memory until it is
 * through. */
void ax_hooks_end(ax_hook **list);
/* Moves the KEEP hooks of result `out` of a node to the node that t has now. */
void ax_hooks_follow(ax_node *from, int out, const ax_tensor *t);
/* Runs the hooks of one result; *g may be replaced. */
ax_status ax_hooks_run(ax_hook **list, bool post, int out, ax_tensor **g);
/* Calls the holder (ax_leaf_set_holder) for the leaf of an ACCUMULATE node with hooks, once. */
ax_status ax_leaf_hold(ax_node *n);
/* Where the gradient of `t` goes: the node that made it, or a leaf's node, made now if need be. */
ax_status ax_edge_of(ax_tensor *t, ax_edge *e);
/* `t`, which was a leaf, gets a history: the node that added into its gradient lets go of it, since
 * its new history may lead there. */
void ax_leaf_ends(ax_tensor *t);
/* Frees what the gradient rule needed, and lets go of the nodes before this one. */
void ax_node_release_saved(ax_node *n);

/* Bits of a row's `saves`. */
enum {
  I0 = 1,
  I1 = 2,
  I2 = 4,
  I3 = 8,
  I4 = 16,
  I5 = 32,
  I6 = 64, /* always */
  X0 = 1 << 16,
  X1 = 1 << 17, /* if the other one of the first two needs a gradient */
  S0 = 1 << 20,
  S1 = 1 << 21, /* if it needs one itself */
  O0 = 1 << 8,
  O1 = 1 << 9,
  O2 = 1 << 10,
  /* results after the first are for the gradient alone: none flows into them */
  HIDDEN = 1 << 24,
};

/* Records a call whose results are `out`.  a: its attributes as the rule completed them (args->a is
 * not read); saves: the row's (ops.def). */
ax_status ax_record(ax_op op, const ax_args *args, const ax_attrs *a, int n_out, ax_tensor **out,
                    uint32_t saves);
/* The two halves of ax_record, for in-place ops: make the node (saving inputs, `overwritten` as a
 * copy) before the kernel, attach the results after it. */
ax_status ax_node_new_op(ax_op op, const ax_args *args, const ax_attrs *a, int n_out, uint32_t saves,
                         const ax_tensor *overwritten, ax_node **out);
ax_status ax_node_attach(ax_node *n, int n_out, ax_tensor **out, uint32_t saves);
/* Makes room for what the gradient needs of the result, so that ax_node_attach to `dst` cannot
 * fail. */
ax_status ax_node_reserve(ax_node *n, ax_tensor *dst, uint32_t saves);

/* A node with nothing filled in but its kind, its number and its arrays. */
ax_status ax_node_new(ax_node_kind kind, int n_in, int n_out, ax_node **out);
void ax_meta_of(const ax_tensor *t, ax_meta *m);
uint64_t ax_next_seq(void);

/* ---- leaves.c */

/* From now on leaves are visited at a place that follows from the graph alone. */
void ax_leaves_keep_order(void);

/* ---- views.c: tensors that show elements of another one */

/* `view` shows elements of x. */
void ax_view_of(ax_tensor *view, ax_tensor *x);
/* It counts as a tensor of its own from now on, with the history that it has.  _own: nobody else
 * ever saw what it was a view of. */
void ax_view_forget(ax_tensor *t);
void ax_view_own(ax_tensor *t);
/* The view has another element type than its base: a recorded in-place op on it is refused. */
void ax_view_foreign(ax_tensor *t);
/* Likewise where the base was given other memory (x.data = y, a move into a flat buffer): t keeps
 * its history, and no longer shares anything. */
void ax_view_check(ax_tensor *t);

/* A recorded in-place op on a view: begin makes all there is to make, before a byte is written;
 * finish hangs it in and cannot fail; drop lets go of what finish did not use. */
typedef struct ax_rewrite {
  ax_node *base, *view;
} ax_rewrite;
ax_status ax_rewrite_begin(ax_node *op, ax_tensor *view, ax_rewrite *r);
void ax_rewrite_finish(ax_rewrite *r, ax_tensor *view);
void ax_rewrite_drop(ax_rewrite *r);

/* ---- helpers for gradient rules (for_rules.c) */

/* A tensor or a number; what rules compute with. */
typedef struct ax_arg {
  ax_tensor *t;
  double num;
  bool integral;
} ax_arg;

enum { AX_RULE_TEMPS = 64 };
typedef struct ax_grad {
  ax_status st; /* first failure; later steps do nothing */
  ax_node *node;
  ax_tensor *const *g;                            /* gradient of each result; NULL: none arrived */
  ax_tensor *in[AX_MAX_INPUTS], *out[AX_MAX_OUT]; /* saved tensors, borrowed; NULL where not saved */
  ax_tensor **d;                                  /* gradient of each input: the rule gives new references */
  bool *slot_written; /* [n_in] set where the rule wrote into the leaf's slot itself */
  bool create_graph;
  uint64_t search; /* which nodes lead to the inputs that are wanted; 0: all are wanted */
  /* bit k: what is given for input k is the gradient of the hidden result of the row that made it
   * (linalg.c) */
  uint32_t hidden;
  ax_tensor *temps[AX_RULE_TEMPS];
  int n_temps;
} ax_grad;

typedef void (*ax_rule)(ax_grad *c);
bool ax_wants(const ax_grad *c, int input);
/* The leaf slot that the gradient of `input` may be written into directly, or NULL.  *accumulate:
 * it holds a gradient already. */
ax_tensor *ax_grad_slot_of(ax_grad *c, int input, bool *accumulate);
void ax_grad_slot_written(ax_grad *c, int input); /* the rule has written there */
/* What has arrived of the gradient of `input` from elsewhere, where the rule may add to it in place
 * of giving the gradient: float32 or wider, contiguous, nobody else's.  NULL: it may not. */
ax_tensor *ax_grad_arrived(const ax_grad *c, int input);

#endif
