/* ax.h: the C API of accel's core: tensors, ops, autograd, random numbers, backends, process
 * groups.
 *
 * Three words for ownership.  New reference: the caller releases it.  Borrowed: valid while its
 * owner lives.  Takes: the callee releases it, also when it fails.
 *
 * Every call that can fail returns an ax_status.  The lowest function that knows the facts writes
 * them with ax_fail; callers pass the status up untouched; the binding turns it into a Lua error.
 * The core never prints, never exits and knows neither Lua nor CUDA.
 *
 * Threads: a tensor and its graph belong to one thread (one Lua state).  Storages may be shared
 * between threads. */
#ifndef AX_H
#define AX_H

#include "plugin.h"

/* The status of the last ax_fail on this thread. */
AX_API ax_status ax_last_status(void);
/* Replaces control characters other than line ends and tabs by question marks. */
AX_API void ax_text_clean(char *text);

/* ---- element types */

AX_API ax_category ax_dtype_category(ax_dtype d);
/* *out: the type called `name`.  EINVAL, with the list of names, when there is none. */
AX_API ax_status ax_dtype_parse(const char *name, ax_dtype *out);
/* The type of new tensors without one, of a number that is not whole beside integers, and of the
 * functions of integers whose results are not whole: float32, until a script sets another one. */
extern AX_API ax_dtype ax_default_dtype;
/* Whether an element of the type can be v: an integer of an integer type in its range, and no
 * finite number that rounds to infinity.  A bool takes any number: is it not 0? */
AX_API bool ax_number_fits(ax_dtype d, double v);
/* PyTorch's promotion of two tensor types (both with at least one dim). */
AX_API ax_dtype ax_dtype_promote(ax_dtype a, ax_dtype b);

/* ---- words (words.c) */

/* The number of edits (insert, drop, replace, swap neighbours) between two names; case is ignored.
 * INT_MAX where one has more than 63 letters. */
AX_API int ax_word_distance(const char *a, const char *b);

/* ---- devices */

/* How many devices of a kind can be used; 0 with the reason as the thread's message. */
AX_API int ax_device_count(ax_device_kind kind);
/* From now on d is the process's own device: what names none is made with it (pinned memory).  Does
 * not touch the device. */
AX_API ax_status ax_device_choose(ax_device d);
AX_API int ax_device_chosen(void); /* the number of the GPU that was chosen; -1: none */
/* The device's address on the PCI bus, "0000:1b:00.0"; "" where it has none. */
AX_API ax_status ax_device_bus(ax_device d, char id[32]);
/* Waits until all work queued on the device so far is done.  Returns at once on the CPU. */
AX_API ax_status ax_device_synchronize(ax_device d);

/* ---- memory */

AX_API void ax_memory_get(ax_memory_stats *out);
AX_API void ax_memory_reset_peak(void);
/* bytes 0: back to the default (cgroup limit or available memory, less a margin, divided by the
 * ranks here). */
AX_API void ax_memory_set_limit(int64_t bytes);
AX_API void ax_memory_empty_cache(void);
/* Sets what is called before an allocation of `wanted` bytes fails.  The allocation is tried again
 * after each call; `attempt` counts them from 0.  The hook returns false when it can free nothing
 * more.  (The host collects Lua garbage there, harder with each attempt.)  NULL: none. */
AX_API void ax_memory_set_hook(bool (*hook)(size_t wanted, int attempt));
AX_API void ax_memory_count_collection(void); /* the host ran a collection for us */
/* Live bytes plus a share for structures, without a lock: the binding looks at it on every call. */
AX_API int64_t ax_memory_pressure(void);
/* Bytes of the largest device in use; 0: none is. */
AX_API int64_t ax_memory_of_device(void);
/* ---- what is live, by size and script line: for the message of an allocation that fails.
 * Tensors of a megabyte and more are tracked one by one (their line is looked up when they are
 * made), smaller ones are counted by size. */

/* Tensors of `bytes` each that a line made.  `where`: "train.lua:31 (linear)". */
typedef struct ax_memory_group {
  ax_device device;
  const char *where;
  int64_t bytes, live;
} ax_memory_group;
/* Sets the function that finds the script's line.  It returns "" or a text that lives until the
 * next call.  NULL: there is none, and lines are not known. */
AX_API void ax_memory_set_where(const char *(*where)(void));
/* The groups that are live on `d`, those with most bytes first, at most `most`.  Returns how many
 * were written. */
AX_API int ax_memory_groups(ax_device d, ax_memory_group *out, int most);
/* The smaller blocks that live on the CPU. */
AX_API void ax_memory_small_get(ax_memory_small *out);

/* Fault injection for tests: the n-th allocation from now (1 is the next, of either kind) fails; 0
 * turns it off. */
AX_API void ax_alloc_fail_at(int64_t n);

/* New reference to `bytes` uncleared bytes. */
AX_API ax_status ax_storage_new(ax_device device, size_t bytes, ax_storage **out);
/* New reference around foreign memory; release(s) is called once, with s->owner = owner. */
AX_API ax_status ax_storage_wrap(void *data, size_t bytes, void (*release)(ax_storage *), void *owner,
                                 ax_storage **out);
/* New reference to `bytes` uncleared bytes of pinned memory on the CPU, which devices read and
 * write by themselves.  ENOIMPL, with the reason, where there is no such device. */
AX_API ax_status ax_storage_new_pinned(size_t bytes, ax_storage **out);
AX_API bool ax_storage_is_pinned(const ax_storage *s);
/* Frees the memory of s, which keeps its size. */
AX_API void ax_storage_empty(ax_storage *s);
/* Exchanges the memory of two storages of one size and device: their tensors look at the
 * other's. */
AX_API void ax_storage_trade(ax_storage *a, ax_storage *b);
AX_API ax_storage *ax_storage_retain(ax_storage *s);
AX_API void ax_storage_release(ax_storage *s);

/* ---- claims (plugin.h) */

AX_API void ax_claim_put(ax_storage *s, ax_claim *c);
AX_API void ax_claim_take_off(ax_claim *c); /* one that is off already is left alone */
/* The claim of this kind on s; NULL: there is none. */
static inline ax_claim *ax_claim_of(const ax_storage *s, const ax_claim_kind *kind)
{
  ax_claim *c = s->claims;
  while (__builtin_expect(c != NULL, 0) && c->kind != kind) c = c->next;
  return c;
}
/* Has every claim done that this use must wait for; at: see ax_claim_kind.  On failure the one that
 * failed is left, and can be tried again. */
AX_API AX_COLD ax_status ax_storage_ready(ax_storage *s, ax_use use, int64_t at);
/* Comes before t's memory is read (AX_READ) or written in place (AX_WRITE). */
static inline ax_status ax_tensor_ready(const ax_tensor *t, ax_use use)
{
  return __builtin_expect(t->storage->claims == NULL, 1) ? AX_OK
                                                         : ax_storage_ready(t->storage, use, t->offset);
}
/* Sanitized builds: how often memory was used that a claim stood before; 0 in others. */
AX_API int64_t ax_claims_missed(void);

/* ---- tensors */

AX_API ax_status ax_tensor_new_on(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                                  ax_tensor **out);
/* New reference to a tensor of zeros.  A large one costs no pass over its memory where that comes
 * fresh from the system. */
AX_API ax_status ax_tensor_zeros_on(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                                    ax_tensor **out);
/* New reference to t's elements on the CPU in pinned memory, contiguous; t itself if it is there.
 * EINVAL for a tensor of another device. */
AX_API ax_status ax_tensor_pinned(ax_tensor *t, ax_tensor **out);
/* New reference to t's elements on the CPU, contiguous: t itself if it is so. */
AX_API ax_status ax_tensor_bring(ax_tensor *t, ax_tensor **out);
/* Starts moving t, which is on the CPU, to `to`, in parallel with what that device is computing.
 * *out is a new reference, not to be used before ax_device_arrive with *ticket.  t has been read on
 * return; a pinned t is read until the result has arrived.  No gradient is recorded.
 * *out NULL with AX_OK: this device cannot, or has no room; move t with ax_run(AX_OP_TO_DEVICE). */
AX_API ax_status ax_tensor_send(ax_tensor *t, ax_device to, ax_tensor **out, uint64_t *ticket);
/* Orders work queued on `d` from now on after all sends up to this ticket.  Only the device
 * waits. */
AX_API ax_status ax_device_arrive(ax_device d, uint64_t ticket);
/* New reference over an existing storage (retained).  No bounds are checked: ax_tensor_view_of does
 * that. */
AX_API ax_status ax_tensor_over(ax_storage *s, ax_dtype dtype, int ndim, const int64_t *shape,
                                const int64_t *strides, int64_t offset, ax_tensor **out);
/* New reference to a view of t's storage: elements from `offset` of the storage on, at these
 * strides of elements.  No history.  ERANGE when one of them would lie outside. */
AX_API ax_status ax_tensor_window(const ax_tensor *t, int ndim, const int64_t *shape, const int64_t *strides,
                                  int64_t offset, ax_tensor **out);
/* New reference, 0-d, of the given value (cast to dtype). */
AX_API ax_status ax_tensor_scalar(ax_dtype dtype, double value, ax_tensor **out);
/* New reference to the same elements, without gradient history; shares the version counter.
 * (_shared: for users, who may write through either.) */
AX_API ax_status ax_tensor_alias_shared(ax_tensor *t, ax_tensor **out);
AX_API ax_status ax_tensor_alias(const ax_tensor *t, ax_tensor **out);
/* New reference to the same bytes as elements of another type, for users as above: the last dim has
 * as many as they make.  ESHAPE where the strides do not allow it, EDTYPE for bool. */
AX_API ax_status ax_tensor_view_as(ax_tensor *t, ax_dtype dtype, ax_tensor **out);
AX_API ax_tensor *ax_tensor_retain(ax_tensor *t);
AX_API bool ax_tensor_is_contiguous(const ax_tensor *t);
/* Makes `t` share storage, shape and dtype of `src` (x.data = y); history must be empty. */
AX_API ax_status ax_tensor_set_data(ax_tensor *t, const ax_tensor *src);

/* Shape arithmetic (shape.c), pure. */
AX_API int64_t ax_shape_numel(int ndim, const int64_t *shape);
/* Joint broadcast shape of a and b; ESHAPE naming `op` and both shapes. */
AX_API ax_status ax_shape_broadcast(const char *op, int na, const int64_t *a, int nb, const int64_t *b,
                                    int *nd, int64_t *out);

/* ---- random numbers */

AX_API ax_status ax_generator_new(uint64_t seed, ax_generator **out);
AX_API void ax_generator_release(ax_generator *g);
AX_API ax_generator *ax_generator_default(void); /* borrowed; seed 0 until ax_manual_seed */
/* Borrowed.  Draws with the default generator's seed and draw number, but the same numbers on all
 * ranks also in an unseeded run: for initial values and orders of samples.  It has no state of its
 * own. */
AX_API ax_generator *ax_generator_common(void);
AX_API void ax_manual_seed(uint64_t seed);
AX_API uint64_t ax_random_seedings(void); /* how often the default generator was seeded */
AX_API void ax_random_set_rank(int rank);

/* ---- ops */

/* What an op is called with.  in[k] NULL with bit k of `scalars` set: the operand is the number
 * num[k]. */
typedef struct ax_args {
  int n_in;
  ax_tensor *const *in; /* borrowed */
  uint32_t scalars;     /* which of the first inputs are numbers */
  uint32_t integral;    /* which of those are integral (they keep an integer tensor's dtype) */
  uint32_t booleans;    /* which of those are Lua booleans */
  double num[AX_MAX_INPUTS];
  ax_attrs a;
} ax_args;

/* Attributes of a row by name: AX_ATTRS(narrow, .dim = 0, .start = 2, .length = 3).  Those that are
 * not named are 0; no list. */
#define AX_ATTRS(row, ...) ((ax_attrs){ .row = { __VA_ARGS__ }, .n_list = -1 })

/* Runs an op: checks, allocates, computes, records.  out: AX_MAX_OUT places; new references, the
 * unused ones NULL.  On failure all are NULL. */
AX_API ax_status ax_run(ax_op op, const ax_args *args, ax_tensor **out);
/* Runs an op with its (single) result written into `dst`, broadcasting to its shape; recorded if
 * need be (x:add_(y)). */
AX_API ax_status ax_run_inplace(ax_op op, const ax_args *args, ax_tensor *dst);
/* Runs an op as ax_run does, without recording, and writes the result into `dst`, whose shape and
 * dtype must be the result's. */
AX_API ax_status ax_run_into(ax_op op, const ax_args *args, ax_tensor *dst);

/* Automatic casting, set for each thread.  While it is on, ax_run casts the floating inputs of an
 * op by the row's policy; the casts are recorded, so that gradients come back in the types of the
 * leaves.  float64 stays as it is.  In-place ops, ax_run_into and what a backward pass runs are not
 * touched. */
typedef struct ax_autocast {
  bool enabled;
  /* a leaf is cast once while the region lasts, and again only when it was written meanwhile */
  bool cache;
  ax_dtype dtype; /* the type for rows with the policy LOWER: AX_BF16 or AX_F16 */
} ax_autocast;
AX_API ax_autocast ax_autocast_get(void);
/* Begins a region, inside which `state` holds; hand what it returns to ax_autocast_leave.  The end
 * of the outermost one frees the casts that were kept. */
AX_API ax_autocast ax_autocast_enter(ax_autocast state);
AX_API void ax_autocast_leave(ax_autocast former);

/* Ops with any number of results; their rows are there for their names.  out: `n` places for new
 * references, all NULL on failure.  split: views of sizes[k] positions of dim each; unbind: views
 * of the n = shape[dim] positions, without the dim.  One node of the tape for all of them (each
 * 255): the gradient is one concatenation, however many there are. */
AX_API ax_status ax_split_into(ax_tensor *x, int dim, int n, const int64_t *sizes, ax_tensor **out);
AX_API ax_status ax_unbind_into(ax_tensor *x, int dim, int n, ax_tensor **out);
/* Einstein's sum for an equation such as "bij,bjk->bik": new reference; recorded op by op.  EINVAL
 * for an equation that cannot be read. */
AX_API ax_status ax_einsum(const char *equation, int n, ax_tensor *const *in, ax_tensor **out);

/* Conveniences for C callers (gradient rules, optimizers, data). */
AX_API ax_status ax_run1(ax_op op, ax_tensor *a, ax_tensor **out);
AX_API ax_status ax_run2(ax_op op, ax_tensor *a, ax_tensor *b, ax_tensor **out);
AX_API ax_status ax_run_num(ax_op op, ax_tensor *a, double number, ax_tensor **out); /* op(a, number) */
/* new reference; t itself if it fits */
AX_API ax_status ax_cast(ax_tensor *t, ax_dtype dtype, ax_tensor **out);
AX_API ax_status ax_contiguous(ax_tensor *t, ax_tensor **out); /* likewise */
AX_API ax_status ax_copy(ax_tensor *dst, ax_tensor *src);      /* broadcast, cast; not recorded */
AX_API ax_status ax_fill(ax_tensor *dst, double value);        /* not recorded */
/* Reads the one element of `t`, on any device; waits for that device. */
AX_API ax_status ax_item(ax_tensor *t, double *out);

AX_API void ax_float32_matmul_precision_set(ax_precision p);
AX_API void ax_convolution_tf32_set(int on); /* 0, 1; -1: as with products */
AX_API void ax_deterministic_set(bool on);

/* ---- autograd */

AX_API bool ax_grad_enabled(void);
AX_API bool ax_grad_set_enabled(bool on); /* returns the former value */

/* Runs backward from roots[k] with the starting gradients seeds[k] (NULL entry: ones, for a root of
 * one element), adding into leaves.  Without retain_graph the graph is released as it is walked. */
AX_API ax_status ax_backward(int n, ax_tensor *const *roots, ax_tensor *const *seeds, bool retain_graph,
                             bool create_graph);
/* Runs backward as ax_backward does, but returns the gradients of `inputs` instead of adding into
 * leaves (out: n_in places, new references; NULL where unused and allowed). */
AX_API ax_status ax_grad_of(int n, ax_tensor *const *roots, ax_tensor *const *seeds, int n_in,
                            ax_tensor *const *inputs, bool retain_graph, bool create_graph, bool allow_unused,
                            ax_tensor **out);
/* Whether the backward pass under way (the innermost) is one of ax_grad_of: leaves get nothing from
 * it. */
AX_API bool ax_backward_collects(void);
/* Whether a backward pass is under way. */
AX_API bool ax_backward_runs(void);
/* Whether a backward pass of this thread fails at the first NaN; returns the former setting. */
AX_API bool ax_detect_anomaly(bool on);
/* Sets requires_grad on a leaf; EGRAD for an integer tensor, or for false on a non-leaf. */
AX_API ax_status ax_set_requires_grad(ax_tensor *t, bool on);
/* Drops t->grad; the slot, if any, stays reserved. */
AX_API void ax_zero_grad(ax_tensor *t);
/* Makes t a leaf that requires no gradient (detach_). */
AX_API void ax_detach_inplace(ax_tensor *t);

/* A hook sees the gradient of a tensor.  call: *replacement may be set to a new reference.  drop:
 * frees ud, on the thread of the graph.  POST hooks run after a leaf's gradient is complete (one
 * call for each backward) and may not replace it.  KEEP hooks of a result run behind its others,
 * and go along when an in-place op gives the tensor a new history. */
typedef ax_status (*ax_hook_fn)(void *ud, ax_tensor *grad, ax_tensor **replacement);
typedef enum { AX_HOOK_GRADIENT, AX_HOOK_POST, AX_HOOK_KEEP } ax_hook_kind;
AX_API ax_status ax_hook_add(ax_tensor *t, ax_hook_kind kind, ax_hook_fn call, void (*drop)(void *), void *ud,
                             uint64_t *id);
AX_API void ax_hook_remove(ax_tensor *t, uint64_t id);
/* Sets who keeps alive what the hooks of leaves need.  It may live beside the leaf's object in a
 * script, and that object can die before a graph that has the leaf in it.  `hold` is called when a
 * leaf with hooks gets into a graph.  *drop(*ud) is called when no graph has the leaf any more;
 * *drop may stay NULL. */
typedef ax_status (*ax_leaf_holder)(ax_tensor *leaf, void (**drop)(void *), void **ud);
AX_API void ax_leaf_set_holder(ax_leaf_holder hold);

/* Tensors, their history, and the data of hooks and functions in it (`drop` and `ud`, as given to
 * ax_hook_add, ax_custom_record or by the leaf holder), as far as only `held` holds them.  held[k]:
 * a tensor; the caller holds one reference to it for each time that it is listed.  Objects are
 * numbered from 0.  links: object `from` holds object `to`.  root[k]: the number of held[k], or -1
 * where something else holds it too, or it has no history. */
typedef struct ax_island_link {
  int from, to;
} ax_island_link;
typedef struct ax_island_data {
  int object;
  void (*drop)(void *);
  void *ud;
} ax_island_data;
typedef struct ax_island {
  int n_objects, n_links, n_data;
  ax_island_link *links;
  ax_island_data *data;
  int *root;
} ax_island;
AX_API ax_status ax_island_find(int n, ax_tensor *const *held, ax_island *out);
AX_API void ax_island_free(ax_island *island);

/* A user's differentiable function: `outputs` (fresh aliases made by the caller) get a node whose
 * gradient is `backward`.  It receives one gradient for each output (NULL: none) and fills one for
 * each input (new references, NULL: none). */
typedef ax_status (*ax_custom_fn)(void *ud, int n_out, ax_tensor *const *grads, int n_in, ax_tensor **result);
AX_API ax_status ax_custom_record(const char *name, int n_in, ax_tensor *const *inputs, int n_out,
                                  ax_tensor *const *outputs, ax_custom_fn backward, void (*drop)(void *),
                                  void *ud);
/* Gives a view whose base was changed by a recorded in-place op its new history.  Comes before
 * reading a tensor's history from outside. */
AX_API ax_status ax_history(ax_tensor *t);
/* Gives the fresh alias `t` the place of result `out` of node `n` in the graph (a custom function's
 * saved result). */
AX_API void ax_tensor_join(ax_tensor *t, ax_node *n, int out);
/* Whether recording would happen for these inputs now. */
AX_API bool ax_would_record(int n, ax_tensor *const *inputs);
/* The name of the op that made t ("add"), or NULL for a leaf. */
AX_API const char *ax_grad_fn_name(const ax_tensor *t);
/* Counts a write from outside (data_ptr, a collective). */
static inline void ax_touch(ax_tensor *t) { t->version->edits++; }

/* ---- optimizers: one pass over a segment table */

/* Which states (bit k: states[k]) a kind keeps with these numbers. */
AX_API uint32_t ax_optim_needs(ax_optim_kind kind, const ax_hyper *h);

/* What the elements of state k are before the first step. */
AX_API double ax_optim_first(ax_optim_kind kind, const ax_hyper *h, int k);
/* The state of form NUMBER after step `step`, out of that before it. */
AX_API double ax_optim_number(ax_optim_kind kind, const ax_hyper *h, int64_t step, double before);

/* Runs the backend's kernel over runs that share dtype (float32, float64) and are on `device`.
 * device_args: NULL, or numbers in the device's memory to use instead of the host's; ENOIMPL then
 * for kinds with a state of form NUMBER, which the host computes. */
AX_API ax_status ax_optim_step(ax_device device, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs,
                               int n, const ax_hyper *h, const ax_optim_device_args *device_args);

/* Many floating-point tensors of any layout at once; entries may be NULL.  The norm over all their
 * elements: p any number but 0, also INFINITY and -INFINITY; in float64, in fixed order. */
AX_API ax_status ax_norm_all(int n, ax_tensor *const *list, double p, double *out);
AX_API ax_status ax_scale_all(int n, ax_tensor *const *list, double factor);
/* every element to -limit .. limit; NaN stays */
AX_API ax_status ax_clamp_all(int n, ax_tensor *const *list, double limit);
/* Computes the norm of ax_norm_all without a wait, for tensors on one device (EINVAL otherwise).
 * *out: a new reference, 0-d, float64, on that device. */
AX_API ax_status ax_norm_tensor(int n, ax_tensor *const *list, double p, ax_tensor **out);
/* Multiplies every element by min(1, max_norm / (norm + 1e-6)), also by NaN; norm as ax_norm_tensor
 * gave it. */
AX_API ax_status ax_clip_all(int n, ax_tensor *const *list, double max_norm, ax_tensor *norm);
/* Divides every element by scale, and writes 1 to found where one of them is then infinite or NaN;
 * else found stays.  Both float32 of one element, on the tensors' device. */
AX_API ax_status ax_unscale_all(int n, ax_tensor *const *list, ax_tensor *scale, ax_tensor *found);
/* Updates the loss scale by PyTorch's rule.  state: float64, { scale, clean steps since it
 * changed }.  found: float32, one element.  Where it is not 0, the scale is multiplied by `backoff`
 * and the count begins at 0.  Else the step counts as clean; after `interval` of them the scale is
 * multiplied by `growth`, if float32 holds the product, and the count begins at 0. */
AX_API ax_status ax_scale_update(ax_tensor *state, ax_tensor *found, double growth, double backoff,
                                 int64_t interval);

/* ---- backends */

/* (optional) Returns the CUDA plugin's description of this machine, also where the plugin cannot be
 * used; `accel-run env` shows it. */
typedef const char *(*ax_backend_environment_entry)(void);
#define AX_BACKEND_ENVIRONMENT "ax_cuda_environment"

/* Whether a backend of this kind is loaded, without loading it. */
AX_API bool ax_backend_loaded(ax_device_kind kind);
/* From now on ax_backend_of refuses devices other than the CPU with this reason (static text): in
 * processes that must not touch one. */
AX_API void ax_backend_refuse_devices(const char *reason);
AX_API void ax_backend_set_dir(const char *dir); /* the folder of the plugins; called once by main */
AX_API const char *ax_backend_dir(void);
/* Returns the CUDA plugin's description of this machine (borrowed), or NULL when there is no plugin
 * or no description.  path: its file. */
AX_API const char *ax_backend_environment(char *path, size_t size);

#endif
