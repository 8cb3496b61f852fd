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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AX_API __attribute__((visibility("default")))
#define AX_PRINTF(f, a) __attribute__((format(printf, f, a)))

#define AX_ABI 6        /* of the structures here */
#define AX_MAX_DIMS 8   /* dims of a tensor */
#define AX_MAX_OUT 3    /* results of an op */
#define AX_MAX_INPUTS 7 /* tensor inputs of an op that takes no list */

/* ---- status ---------------------------------------------------------------------------------- */

typedef enum {
#define STATUS(ID, text) AX_##ID,
#include "core/status.def"
#undef STATUS
} ax_status;

/* Writes the thread's message and returns `st`, so that `return ax_fail(AX_ESHAPE, "...", ...)`
 * reads well. */
AX_API ax_status ax_fail(ax_status st, const char *fmt, ...) AX_PRINTF(2, 3);
/* The message of the last ax_fail on this thread.  Borrowed until the next one. */
AX_API const char *ax_last_error(void);
AX_API const char *ax_status_text(ax_status st);

#define AX_TRY(expr) \
  do { \
    if ((st = (expr)) != AX_OK) goto out; \
  } while (0)

/* ---- element types --------------------------------------------------------------------------- */

typedef enum {
#define DTYPE(ID, name, ctype, size, category) AX_##ID,
#include "core/dtype.def"
#undef DTYPE
  AX_DTYPE_COUNT
} ax_dtype;

typedef enum { AX_BOOLEAN, AX_INTEGRAL, AX_FLOATING } ax_category;

AX_API size_t ax_dtype_size(ax_dtype d);
AX_API const char *ax_dtype_name(ax_dtype d);
AX_API ax_category ax_dtype_category(ax_dtype d);
/* *out: the type called `name`.  EINVAL, with the list of names, when there is none. */
AX_API ax_status ax_dtype_parse(const char *name, ax_dtype *out);
/* PyTorch's promotion of two tensor types (both with at least one dim). */
AX_API ax_dtype ax_dtype_promote(ax_dtype a, ax_dtype b);

static inline bool ax_is_float(ax_dtype d) { return d <= AX_BF16; }
static inline bool ax_is_half(ax_dtype d) { return d == AX_F16 || d == AX_BF16; }

/* ---- devices --------------------------------------------------------------------------------- */

typedef enum { AX_CPU, AX_CUDA, AX_DEVICE_KINDS } ax_device_kind;
typedef struct ax_device {
  uint8_t kind;
  uint8_t index;
} ax_device;

static inline bool ax_same_device(ax_device a, ax_device b) { return a.kind == b.kind && a.index == b.index; }
AX_API const char *ax_device_text(ax_device d, char *buf, size_t size); /* "cpu", "cuda:1" */
/* How many devices of a kind can be used; 0 with the reason as the thread's message. */
AX_API int ax_device_count(ax_device_kind kind);
/* Waits until everything asked of the device so far is done.  Nothing to wait for on the CPU. */
AX_API ax_status ax_device_synchronize(ax_device d);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Small C structures (nodes, tables).  As malloc, but counted, and made to fail by
 * ax_alloc_fail_at.  Free with ax_mfree.  NULL, with the message written, when memory is out. */
AX_API void *ax_malloc(size_t bytes);
AX_API void *ax_calloc(size_t n, size_t size);
AX_API void ax_mfree(void *p);

/* Tensor bytes on the CPU, 64-byte aligned, from the caching allocator.  Not cleared.  ENOMEM, with
 * the size asked for, the live bytes and the limit, when the limit is reached after the pressure
 * hook has run. */
AX_API ax_status ax_alloc(size_t bytes, void **out);
AX_API void ax_free(void *p, size_t bytes);

typedef struct ax_memory_stats {
  int64_t live_bytes, peak_bytes; /* in tensors now; the most there ever was since reset */
  int64_t cached_bytes;           /* freed by tensors, kept for the next ones */
  int64_t limit_bytes;            /* live + cached never exceed it */
  int64_t live_blocks, structs;   /* storages alive; C structures alive (for leak tests) */
  int64_t allocations, cache_hits, pressure_collections;
  int64_t waits, uploads; /* of a device: how often the host has waited for it, and copied to it */
  /* of devices; 0 on the CPU */
  int64_t reserved_bytes, peak_reserved_bytes; /* taken from the driver: live + cached */
  int64_t available_bytes;                     /* that the driver has left, for all processes */
  /* taken from the driver now; requests that had to make room first; those that failed */
  int64_t segments, retries, failures;
} ax_memory_stats;
AX_API void ax_memory_get(ax_memory_stats *out);
AX_API void ax_memory_reset_peak(void);
/* bytes 0: back to the default (cgroup limit or available memory, less a margin, divided by the
 * ranks here). */
AX_API void ax_memory_set_limit(int64_t bytes);
AX_API void ax_memory_empty_cache(void);
/* Called before an allocation of `wanted` bytes fails, with attempt 0, 1, 2 ... until the
 * allocation succeeds or the hook returns false: there is nothing more that it can do.  (The host
 * collects Lua garbage there, harder with each attempt.)  NULL: none. */
AX_API void ax_memory_set_hook(bool (*hook)(size_t wanted, int attempt));
/* Calls the hook, for backends that ran out of their memory.  True: it is worth allocating
 * again. */
AX_API bool ax_memory_relieve(size_t wanted, int attempt);
/* Bytes taken (or, negative, given back) on a device: they press on the collector as those here
 * do. */
AX_API void ax_memory_count_device(int64_t bytes);
AX_API void ax_memory_count_collection(void); /* the host ran a collection for us */
/* Tensors over memory that is not the allocator's (batches from worker processes) took, or gave
 * back, so many bytes. */
AX_API void ax_memory_count_foreign(int64_t bytes);
/* Live bytes plus a share for structures, without a lock: the binding looks at it on every call. */
AX_API int64_t ax_memory_pressure(void);
/* ---- what is live, by size and script line: for the message of an allocation that fails.
 * Tensors of a megabyte and more are tracked one by one (their line is looked up when they are
 * made), smaller ones are counted by size. */

enum { AX_MEMORY_TRACKED = 1 << 20, AX_SMALL_CLASSES = 5 };
/* How many smaller blocks there are, and their bytes: up to 1 KB, 8 KB, 64 KB, 256 KB, 1 MB. */
typedef struct ax_memory_small {
  int64_t blocks[AX_SMALL_CLASSES], bytes[AX_SMALL_CLASSES];
} ax_memory_small;
static inline void ax_memory_small_add(ax_memory_small *s, size_t bytes)
{
  const int k = bytes <= 1024 ? 0 : bytes <= 8192 ? 1 : bytes <= 65536 ? 2 : bytes <= 262144 ? 3 : 4;
  if (bytes >= AX_MEMORY_TRACKED) return;
  s->blocks[k]++;
  s->bytes[k] += (int64_t)bytes;
}
/* Tensors of `bytes` each that a line made.  `where`: "train.lua:31 (linear)". */
typedef struct ax_memory_group {
  ax_device device;
  const char *where;
  int64_t bytes, live;
} ax_memory_group;
/* The host says here how the script's line is found.  Returns "" or a text that lives until the
 * next call.  NULL: nobody knows. */
AX_API void ax_memory_set_where(const char *(*where)(void));
AX_API const char *ax_memory_where(void);
/* The groups that are live on `d`, those with most bytes first, at most `most`.  Returns how many
 * were written. */
AX_API int ax_memory_groups(ax_device d, ax_memory_group *out, int most);
/* A few lines for a message, each begun by a line feed: the eight largest groups, the rest of them,
 * and `small`. */
AX_API void ax_memory_report(ax_device d, const ax_memory_small *small, char *buf, size_t size);
/* The smaller blocks that live on the CPU. */
AX_API void ax_memory_small_get(ax_memory_small *out);

/* Fault injection for tests: the n-th allocation from now (1 is the next, of either kind) fails; 0
 * turns it off. */
AX_API void ax_alloc_fail_at(int64_t n);

typedef struct ax_version {
  int32_t refs; /* <0: part of its storage */
  uint32_t edits;
} ax_version;

typedef struct ax_storage {
  int32_t refs; /* atomic */
  ax_device device;
  uint16_t group; /* which group of ax_memory_groups counts it; 0: none */
  void *data;
  size_t bytes;
  void (*release)(struct ax_storage *); /* frees `data` only; NULL: not ours to free */
  void *owner;                          /* for `release` */
  ax_version version;                   /* of the tensors that are not given a cell of their own */
} ax_storage;

/* New reference to `bytes` uncleared bytes. */
AX_API ax_status ax_storage_new(ax_device device, size_t bytes, ax_storage **out);
/* New reference around foreign memory; release(s) is called once, with s->owner = owner. */
AX_API ax_status ax_storage_wrap(void *data, size_t bytes, void (*release)(ax_storage *), void *owner,
                                 ax_storage **out);
/* As ax_storage_new on the CPU, in memory that devices read and write by themselves.  ENOIMPL, with
 * the reason, where there is no such device. */
AX_API ax_status ax_storage_new_pinned(size_t bytes, ax_storage **out);
AX_API bool ax_storage_is_pinned(const ax_storage *s);
AX_API ax_storage *ax_storage_retain(ax_storage *s);
AX_API void ax_storage_release(ax_storage *s);

/* ---- tensors --------------------------------------------------------------------------------- */

typedef struct ax_tensor ax_tensor;
typedef struct ax_node ax_node;
typedef struct ax_hook ax_hook;

/* A recorded in-place op on a view rewrites the base's history (views.c), so a view knows its base.
 * Where nothing was recorded while the view was made, or a custom function made it, there is none
 * to rewrite: then a recorded in-place op on the view is refused. */
typedef enum { AX_NO_VIEW, AX_VIEW, AX_VIEW_UNRECORDED, AX_VIEW_CUSTOM } ax_view_kind;

struct ax_tensor {
  int32_t refs; /* one thread */
  uint8_t dtype, ndim;
  bool requires_grad; /* leaf that wants a gradient, or result of a recorded op */
  uint8_t view;       /* ax_view_kind */
  bool shared;        /* another tensor that users see shows (or showed) this memory */
  uint8_t out_index;  /* which result of grad_fn this is */
  ax_device device;
  int64_t numel;
  int64_t offset;                                   /* in elements, into storage */
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS]; /* in elements */
  ax_storage *storage;
  ax_version *version; /* shared with views; edits counts writes */
  ax_tensor *base;     /* AX_VIEW: whose elements these are, itself no such view; counted */
  /* of this tensor's history by in-place ops; of a view: the base's when its own history was set */
  uint32_t rewrites;
  ax_node *grad_fn;     /* counted; NULL for leaves */
  ax_node *accumulate;  /* leaves: weak pointer to the node that adds into grad */
  ax_tensor *grad;      /* leaves: counted; NULL when there is none */
  ax_tensor *grad_slot; /* leaves: where grad goes (a view of a flat buffer) when there is one; counted */
  /* leaves: their copy in autocast's type (a view of a flat buffer) when there is one; counted */
  ax_tensor *work;
  uint32_t work_edits;  /* version->edits when `work` was written: it is current while they are equal */
  ax_hook *hooks;       /* leaves: called with the gradient before it is added */
  void *handle;         /* for the binding: how it finds the Lua object of this tensor; NULL if none */
  struct ax_flat *flat; /* leaves: the layout that it is laid out in (flat.h), weak; NULL: none */
  int32_t slot;         /* its place there */
};

/* New reference, contiguous, uncleared. */
AX_API ax_status ax_tensor_new(ax_dtype dtype, int ndim, const int64_t *shape, ax_tensor **out);
AX_API ax_status ax_tensor_new_on(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                                  ax_tensor **out);
/* New reference to t's elements on the CPU in pinned memory, contiguous; t itself if it is there.
 * EINVAL for a tensor of another device. */
AX_API ax_status ax_tensor_pinned(ax_tensor *t, ax_tensor **out);
/* Starts moving t, which lies on the CPU, to `to`, beside what that device is computing: new
 * reference, not to be used before ax_device_arrive with *ticket.  t has been read on return unless
 * it is pinned (then: when it has arrived).  *out NULL with AX_OK: this device cannot, or has no
 * room; move it with ax_run(AX_OP_TO_DEVICE).  No gradient is recorded. */
AX_API ax_status ax_tensor_send(ax_tensor *t, ax_device to, ax_tensor **out, uint64_t *ticket);
/* What `d` is asked for from now on finds all that was sent up to this ticket.  Nobody waits but
 * the device. */
AX_API ax_status ax_device_arrive(ax_device d, uint64_t ticket);
/* New reference over an existing storage (retained).  No bounds are checked: ax_tensor_view_of does
 * that. */
AX_API ax_status ax_tensor_over(ax_storage *s, ax_dtype dtype, int ndim, const int64_t *shape,
                                const int64_t *strides, int64_t offset, ax_tensor **out);
/* New reference, 0-d, of the given value (cast to dtype). */
AX_API ax_status ax_tensor_scalar(ax_dtype dtype, double value, ax_tensor **out);
/* New reference to the same elements, without gradient history; shares the version counter.
 * (_shared: for users, who may write through either.) */
AX_API ax_status ax_tensor_alias_shared(ax_tensor *t, ax_tensor **out);
AX_API ax_status ax_tensor_alias(const ax_tensor *t, ax_tensor **out);
AX_API ax_tensor *ax_tensor_retain(ax_tensor *t);
AX_API void ax_tensor_release(ax_tensor *t); /* NULL is fine */
AX_API bool ax_tensor_is_contiguous(const ax_tensor *t);
/* Turns `t` into a view of `flat` (1-d, same dtype and device) at element `offset`: its elements
 * are copied there first, its shape stays, its strides become contiguous and it gets a version cell
 * of its own.  Objects that hold `t` see the new place.  Gradient history must be empty. */
AX_API ax_status ax_tensor_rebind(ax_tensor *t, ax_tensor *flat, int64_t offset);
/* Points t->grad_slot at elements [offset, offset + numel) of `flat`; an existing gradient moves
 * there.  flat NULL: none. */
AX_API ax_status ax_tensor_set_grad_slot(ax_tensor *t, ax_tensor *flat, int64_t offset);
/* Points t->work at elements [offset, offset + numel) of `flat`, which is of a half type; it is
 * written when it is first used.  flat NULL: none. */
AX_API ax_status ax_tensor_set_work(ax_tensor *t, ax_tensor *flat, int64_t offset);
/* Makes `t` share storage, shape and dtype of `src` (x.data = y); history must be empty. */
AX_API ax_status ax_tensor_set_data(ax_tensor *t, const ax_tensor *src);

static inline size_t ax_itemsize(const ax_tensor *t) { return ax_dtype_size((ax_dtype)t->dtype); }
static inline void *ax_data(const ax_tensor *t)
{
  return (char *)t->storage->data + (size_t)t->offset * ax_dtype_size((ax_dtype)t->dtype);
}

/* Shape arithmetic (shape.c), pure. */
AX_API int64_t ax_shape_numel(int ndim, const int64_t *shape);
/* "[2, 3]" into buf. */
AX_API const char *ax_shape_text(int ndim, const int64_t *shape, char *buf, size_t size);
/* Joint broadcast shape of a and b; ESHAPE naming `op` and both shapes. */
AX_API ax_status ax_shape_broadcast(const char *op, int na, const int64_t *a, int nb, const int64_t *b,
                                    int *nd, int64_t *out);

/* Reads or writes one element through double / int64 (for item, printing, tests).  `at` is an
 * element offset from ax_data. */
AX_API double ax_load_double(ax_dtype d, const void *data, int64_t at);
AX_API int64_t ax_load_int(ax_dtype d, const void *data, int64_t at);
AX_API void ax_store_double(ax_dtype d, void *data, int64_t at, double v);
AX_API void ax_store_int(ax_dtype d, void *data, int64_t at, int64_t v);

/* ---- random numbers -------------------------------------------------------------------------- */

/* Philox 4x32-10.  Element i of a draw is a pure function of (seed, stream, draw, i): the same bits
 * on every device and for any number of threads.  The stream is 0, or 1 + rank where ranks differ:
 * in dropout, and in all draws of a generator that is `per_rank`.  The default generator is
 * per_rank until it is seeded, except on rank 0, whose draws are those of a run of one rank. */
typedef struct ax_generator {
  int32_t refs;
  bool per_rank;
  uint64_t seed;
  uint64_t draws;
} ax_generator;
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

/* ---- ops ------------------------------------------------------------------------------------- */

typedef enum {
#define OP(ID, ...) AX_OP_##ID,
#include "core/ops/ops.def"
#undef OP
  AX_OP_COUNT
} ax_op;

/* A backend that was built against other structures or another op table is refused by this
 * number. */
#define AX_INTERFACE ((uint32_t)AX_ABI << 16 | (uint32_t)AX_OP_COUNT)

#define AX_NO_DIM INT64_MIN /* an optional dim that was not given */

/* Arguments that are not tensors.  The signature in ops.def says which slot means what: dims,
 * integers, booleans, choices and dtypes fill `i` in order, numbers fill `f`, one list (dims or
 * sizes) fills `list`. */
typedef struct ax_attrs {
  int64_t i[12];
  double f[4];
  int n_list; /* -1: the list was not given */
  int64_t list[AX_MAX_DIMS];
  bool accumulate;   /* internal: the result is added to what `out` holds (mm, sum) */
  bool wide;         /* internal: inputs of half types give a float32 result, with no rounding in between */
  ax_generator *gen; /* borrowed during the call; NULL: the default one */
  /* Filled by the dispatcher for random ops, so that a gradient can draw again.  device_args: in a
   * captured step (capture.h), device memory that holds the seed to use instead of `seed` and an
   * offset to add to `draw`; otherwise NULL. */
  struct {
    uint64_t seed, stream, draw;
    const struct ax_draw_args *device_args;
  } rng;
} ax_attrs;

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

/* Runs an op: checks, allocates, computes, records.  out: AX_MAX_OUT places; new references, the
 * unused ones NULL.  On failure all are NULL. */
AX_API ax_status ax_run(ax_op op, const ax_args *args, ax_tensor **out);
/* Runs an op with its (single) result written into `dst`, broadcasting to its shape; recorded if
 * need be (x:add_(y)). */
AX_API ax_status ax_run_inplace(ax_op op, const ax_args *args, ax_tensor *dst);
/* As ax_run with no recording and the result written into `dst`, whose shape and dtype must be the
 * result's. */
AX_API ax_status ax_run_into(ax_op op, const ax_args *args, ax_tensor *dst);

typedef enum {
  AX_FORM_POINTWISE,
  AX_FORM_REDUCE,
  AX_FORM_KERNEL,
  AX_FORM_VIEW,
  AX_FORM_HOST,
  AX_FORM_COMPOSITE
} ax_form;
typedef enum { AX_CAST_KEEP, AX_CAST_LOWER, AX_CAST_FLOAT, AX_CAST_WIDEST } ax_cast_policy;

typedef struct ax_op_row {
  const char *name;
  const char *signature;
  const char *summary;
  ax_form form;
  ax_cast_policy autocast;
  bool differentiable; /* has a gradient rule */
  bool inplace;        /* has a name_ form */
} ax_op_row;
AX_API extern const ax_op_row ax_ops[AX_OP_COUNT];

/* Automatic casting, of one thread.  While it is on, ax_run casts the floating inputs of an op as
 * the row's policy says; the casts are recorded, so that gradients come back in the types of the
 * leaves.  float64 stays as it is.  In-place ops, ax_run_into and what a backward pass runs are not
 * touched. */
typedef struct ax_autocast {
  bool enabled;
  /* a leaf is cast once while the region lasts, and again only when it was written meanwhile */
  bool cache;
  ax_dtype dtype; /* of rows with the policy LOWER: AX_BF16 or AX_F16 */
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
/* Einstein's sum, as "bij,bjk->bik" says: new reference; recorded op by op.  EINVAL for an equation
 * that cannot be read. */
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
/* The one element of `t`, wherever it lies; waits for its device. */
AX_API ax_status ax_item(ax_tensor *t, double *out);

/* How products of float32 are computed on GPUs, as PyTorch's torch.set_float32_matmul_precision:
 * HIGHEST (the default) in float32; HIGH and MEDIUM with operands rounded to TF32 (10 bits of
 * mantissa), sums in float32.  The CPU always computes in float32.  Of the whole process. */
typedef enum { AX_PRECISION_HIGHEST, AX_PRECISION_HIGH, AX_PRECISION_MEDIUM } ax_precision;
AX_API ax_precision ax_float32_matmul_precision(void);
AX_API void ax_float32_matmul_precision_set(ax_precision p);

/* ---- autograd -------------------------------------------------------------------------------- */

AX_API bool ax_grad_enabled(void);
AX_API bool ax_grad_set_enabled(bool on); /* returns the former value */

/* Runs backward from roots[k] with the starting gradients seeds[k] (NULL entry: ones, for a root of
 * one element), adding into leaves.  Without retain_graph the graph is released as it is walked. */
AX_API ax_status ax_backward(int n, ax_tensor *const *roots, ax_tensor *const *seeds, bool retain_graph,
                             bool create_graph);
/* The same, but returns the gradients of `inputs` (out: n_in places, new references; NULL where
 * unused and allowed). */
AX_API ax_status ax_grad_of(int n, ax_tensor *const *roots, ax_tensor *const *seeds, int n_in,
                            ax_tensor *const *inputs, bool retain_graph, bool create_graph, bool allow_unused,
                            ax_tensor **out);
/* Whether the backward pass under way (the innermost) is one of ax_grad_of: leaves get nothing from
 * it. */
AX_API bool ax_backward_collects(void);
/* Sets requires_grad on a leaf; EGRAD for an integer tensor, or for false on a non-leaf. */
AX_API ax_status ax_set_requires_grad(ax_tensor *t, bool on);
/* Drops t->grad; the slot, if any, stays reserved. */
AX_API void ax_zero_grad(ax_tensor *t);
/* Makes t a leaf that requires no gradient (detach_). */
AX_API void ax_detach_inplace(ax_tensor *t);

/* A hook sees the gradient of a tensor.  call: *replacement may be set to a new reference.  drop:
 * frees ud, on the thread of the graph.  POST hooks run after a leaf's gradient is complete (one
 * call for each backward) and may not replace it. */
typedef ax_status (*ax_hook_fn)(void *ud, ax_tensor *grad, ax_tensor **replacement);
AX_API ax_status ax_hook_add(ax_tensor *t, bool post, ax_hook_fn call, void (*drop)(void *), void *ud,
                             uint64_t *id);
AX_API void ax_hook_remove(ax_tensor *t, uint64_t id);
/* What a leaf's hooks need may live beside the leaf's object in a script, which can die before a
 * graph that has the leaf in it.  `hold` is called when a leaf with hooks gets into a graph;
 * *drop(*ud) when no graph has it any more.  *drop may stay NULL. */
typedef ax_status (*ax_leaf_holder)(ax_tensor *leaf, void (**drop)(void *), void **ud);
AX_API void ax_leaf_set_holder(ax_leaf_holder hold);

/* A user's differentiable function: `outputs` (fresh aliases made by the caller) get a node whose
 * gradient is `backward`.  It receives one gradient for each output (NULL: none) and fills one for
 * each input (new references, NULL: none). */
typedef ax_status (*ax_custom_fn)(void *ud, int n_out, ax_tensor *const *grads, int n_in, ax_tensor **result);
AX_API ax_status ax_custom_record(const char *name, int n_in, ax_tensor *const *inputs, int n_out,
                                  ax_tensor *const *outputs, ax_custom_fn backward, void (*drop)(void *),
                                  void *ud);
/* A view whose base was changed by a recorded in-place op gets the history that it has since.
 * Whatever reads a tensor's history from outside asks for this first. */
AX_API ax_status ax_history_renew(ax_tensor *t);
static inline ax_status ax_history(ax_tensor *t)
{
  return t->base && t->base->rewrites != t->rewrites ? ax_history_renew(t) : AX_OK;
}
/* Gives the fresh alias `t` the place of result `out` of node `n` in the graph (a custom function's
 * saved result). */
AX_API void ax_tensor_join(ax_tensor *t, ax_node *n, int out);
/* Whether recording would happen for these inputs now. */
AX_API bool ax_would_record(int n, ax_tensor *const *inputs);
/* The name of the op that made t ("add"), or NULL for a leaf. */
AX_API const char *ax_grad_fn_name(const ax_tensor *t);
/* Counts a write from outside (data_ptr, a collective). */
static inline void ax_touch(ax_tensor *t) { t->version->edits++; }

/* ---- optimizers: one pass over a segment table ----------------------------------------------- */

enum { AX_MAX_STATES = 3 };

typedef enum {
#define OPTIM(ID, ...) AX_OPTIM_##ID,
#include "core/optim.def"
  AX_OPTIM_COUNT
} ax_optim_kind;

/* The numbers of a step, named in optim.def; those that a kind does not take are 0. */
typedef struct ax_hyper {
#define NUMBER(name) double name;
#define PAIR(name) double name[2];
#define FLAG(name) bool name;
#define HYPER(name, form) form(name)
#include "core/optim.def"
#undef FLAG
#undef PAIR
#undef NUMBER
} ax_hyper;

typedef enum { AX_STATE_EACH, AX_STATE_ROWS, AX_STATE_COLS, AX_STATE_SMALL, AX_STATE_NUMBER } ax_state_form;
typedef struct ax_optim_state {
  const char *name;
  ax_state_form form;
} ax_optim_state;
typedef struct ax_optim_row {
  const char *name;
  const char *hyper; /* names of ax_hyper's fields, a space between */
  bool by_matrix;
  int n_states;
  ax_optim_state states[AX_MAX_STATES];
} ax_optim_row;
AX_API extern const ax_optim_row ax_optims[AX_OPTIM_COUNT];
/* Which states (bit k: states[k]) a kind keeps with these numbers. */
AX_API uint32_t ax_optim_needs(ax_optim_kind kind, const ax_hyper *h);

/* What the elements of state k are before the first step. */
AX_API double ax_optim_first(ax_optim_kind kind, const ax_hyper *h, int k);
/* The state of form NUMBER after step `step`, out of that before it. */
AX_API double ax_optim_number(ax_optim_kind kind, const ax_hyper *h, int64_t step, double before);

/* One run of parameters: the members of an optimizer group (flat.h) that can be stepped as one. */
typedef struct ax_segment {
  void *param, *state[AX_MAX_STATES]; /* the param's dtype; states NULL where they are not kept */
  /* of work_dtype, bfloat16 or float16: the kernel writes the new parameter there, rounded; NULL:
   * no such copy */
  void *work;
  const void *grad;
  ax_dtype work_dtype;
  int64_t n;
  /* count including this step.  SGD: 1 means that the momentum buffer is not yet filled */
  int64_t step;
  int64_t rows, cols; /* by_matrix: of each of the n / (rows * cols) matrices; 0: fewer than two dims */
  double number;      /* of the state of form NUMBER, up to and including this step */
} ax_segment;
/* Memory of the device that a step reads because the host does not know it when it asks for the
 * step. */
typedef struct ax_optim_live {
  const float *skip; /* non-zero: the step changes nothing (gradients overflowed); NULL: never */
  /* steps skipped so far, taken from the segments' `step`; a step that is skipped adds 1.  NULL: 0,
   * and not counted */
  int64_t *skipped;
  /* read instead of the host's copy (captured steps); NULL: the host's.  Both say alike which
   * states are kept */
  const ax_hyper *hyper;
  const int64_t *ran; /* added to the segments' `step` (captured steps: replays so far); NULL: 0 */
} ax_optim_live;

/* Runs the backend's kernel over runs that share dtype (float32, float64) and lie on `device`.
 * live: NULL, or what the device knows better; ENOIMPL then for kinds with a state of form NUMBER,
 * which the host reckons. */
AX_API ax_status ax_optim_step(ax_device device, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs,
                               int n, const ax_hyper *h, const ax_optim_live *live);

/* Many floating-point tensors of any layout at once; entries may be NULL.  The norm over all their
 * elements: p any number but 0, also INFINITY and -INFINITY; in float64, in fixed order. */
AX_API ax_status ax_norm_all(int n, ax_tensor *const *list, double p, double *out);
AX_API ax_status ax_scale_all(int n, ax_tensor *const *list, double factor);
/* every element to -limit .. limit; NaN stays */
AX_API ax_status ax_clamp_all(int n, ax_tensor *const *list, double limit);
/* The same without a wait, of tensors that lie on one device (EINVAL where not).  *out: a new
 * reference, 0-d, float64, on that device. */
AX_API ax_status ax_norm_tensor(int n, ax_tensor *const *list, double p, ax_tensor **out);
/* Multiplies every element by min(1, max_norm / (norm + 1e-6)), also by NaN; norm as ax_norm_tensor
 * gave it. */
AX_API ax_status ax_clip_all(int n, ax_tensor *const *list, double max_norm, ax_tensor *norm);
/* Divides every element by scale, and writes 1 to found where one of them is then infinite or NaN;
 * else found stays.  Both float32 of one element, on the tensors' device. */
AX_API ax_status ax_unscale_all(int n, ax_tensor *const *list, ax_tensor *scale, ax_tensor *found);
/* torch's rule for the loss scale.  state: float64, { scale, clean steps since it changed }.  found
 * (float32, one element) non-zero: the scale times backoff, counted from 0 again; else one more
 * clean step, and after `interval` of them the scale times growth where float32 holds that. */
AX_API ax_status ax_scale_update(ax_tensor *state, ax_tensor *found, double growth, double backoff,
                                 int64_t interval);

/* ---- backends -------------------------------------------------------------------------------- */

/* One operand of a pointwise or reducing kernel. */
typedef struct ax_operand {
  char *data;
  ax_dtype dtype;
  int64_t stride[AX_MAX_DIMS]; /* in bytes; 0 where broadcast, or (result of a reduction) reduced */
} ax_operand;

/* A loop nest shared by up to five operands.  Dims are outermost first, size-1 dims dropped and
 * neighbours merged where every operand allows it: contiguous operands come as one dim.  ndim may
 * be 0 (one element); numel may be 0 (nothing to do, except that a reduction must still write its
 * identity).  op[0] is the result.  Numbers come as operands of one element with stride 0. */
typedef struct ax_iter {
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  int64_t numel;
  int n;
  ax_operand op[1 + AX_MAX_INPUTS];
} ax_iter;

/* What a kernel is called with.  POINTWISE: `iter` over out[0] and the inputs, all inputs in the
 * compute dtype (cast: its own source dtype), except that inputs of half types stay as they are
 * where that is float32 (ax_cpu_pointwise widens them block by block).  REDUCE: `iter` over the
 * input's dims with out[0]'s strides 0 in reduced dims (second results, as the indices of max,
 * through out[1], contiguous); KERNEL: tensors as the row's rule asked for them (contiguous and
 * cast where it says so). */
typedef struct ax_call {
  ax_op op;
  const ax_attrs *a;
  int n_in, n_out;
  ax_tensor *const *in;
  ax_tensor *const *out;
  const ax_iter *iter;
} ax_call;
typedef ax_status (*ax_kernel)(const ax_call *call);

/* The memory of devices other than the CPU. */
typedef struct ax_device_memory {
  int (*count)(void); /* devices that can be used */
  /* 256-byte aligned, not cleared.  Work is ordered: memory given back may be handed out again at
   * once.  ENOMEM says how much was asked for, is live and free. */
  ax_status (*alloc)(int device, size_t bytes, void **out);
  void (*release)(int device, void *data, size_t bytes);
  /* Between host and device or two devices.  On return `from` may be reused, and what lies on the
   * host is complete. */
  ax_status (*copy)(ax_device to, void *dst, ax_device from, const void *src, size_t bytes);
  ax_status (*synchronize)(int device);
  void (*stats)(int device, ax_memory_stats *out);
  void (*reset_peak)(int device);
  void (*empty_cache)(int device);
  /* The rest is optional, all of it or none.  copy_later: as copy, but what lies in pinned memory
   * is read or written in the order of the device's work, and nobody waits. */
  ax_status (*copy_later)(ax_device to, void *dst, ax_device from, const void *src, size_t bytes);
  /* Begins a copy beside the computation: *out is memory of the device (for `release`), `src` has
   * been read unless it is pinned; arrive: what is asked for from now on comes after all copies up
   * to this ticket. */
  ax_status (*send)(int device, const void *src, size_t bytes, void **out, uint64_t *ticket);
  ax_status (*arrive)(int device, uint64_t ticket);
  ax_status (*pinned_new)(size_t bytes, void **out);
  void (*pinned_free)(void *p, size_t bytes);
  /* the small blocks that are live, scratch memory of kernels included */
  void (*small)(int device, ax_memory_small *out);
} ax_device_memory;

typedef struct ax_transport ax_transport; /* dist.h */

/* How often a kernel was chosen on this thread, under a name such as "mm bfloat16 -> float32,
 * oneDNN brg:avx512_core_bf16". */
typedef struct ax_kernel_stat {
  char name[96];
  int64_t calls;
} ax_kernel_stat;

typedef struct ax_backend {
  uint32_t abi;
  const char *name;         /* "cpu" */
  const char *level;        /* "x86-64-v3" */
  const ax_kernel *kernels; /* [AX_OP_COUNT]; NULL: the op is not there (views and composites never are) */
  ax_status (*optim)(ax_device d, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n,
                     const ax_hyper *h, const ax_optim_live *live);
  /* sum over all segments of |grad|^p (p = INFINITY: the largest, -INFINITY: the least; NaN if
   * there is one), in float64, in an order that does not depend on threads */
  ax_status (*norm)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double *out);
  /* grad *= factor; grad is writable here */
  ax_status (*scale)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double factor);
  /* to -limit .. limit; grad is writable here */
  ax_status (*clamp)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double limit);
  /* The same on numbers that lie on the device, so that the host waits for none of them: *out,
   * norm, scale, found and state are the device's. */
  /* norm's result ^ (1 / root) */
  ax_status (*norm_into)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double root,
                         double *out);
  /* grad *= max_norm / (*norm + 1e-6) unless that is >= 1 */
  ax_status (*clip)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double max_norm,
                    const double *norm);
  /* grad *= 1 / *scale; *found = 1 where not finite */
  ax_status (*unscale)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const float *scale,
                       float *found);
  /* as ax_scale_update */
  ax_status (*scale_update)(ax_device d, double *state, const float *found, double growth, double backoff,
                            int64_t interval);
  int (*get_threads)(void);
  void (*set_threads)(int n);
  const char *(*describe)(void);  /* "oneDNN 2.6.3, 2 threads" */
  const ax_device_memory *memory; /* NULL: the host's (CPU) */
  const ax_transport *transport;  /* between the devices of several ranks (dist.h); NULL: there is none */
  /* (optional; NULL: nothing is counted) borrowed, *n of them; reset: all counts go back to 0 */
  const ax_kernel_stat *(*stats)(int *n, bool reset);
  const struct ax_device_capture *capture; /* (optional) recording steps: capture.h */
} ax_backend;
/* The one symbol of a plugin.  NULL: it cannot be used here; ax_fail has said why. */
typedef const ax_backend *(*ax_backend_entry)(void);
#define AX_BACKEND_ENTRY "ax_backend_get"
/* (optional) What the CUDA plugin says of this machine, also where it cannot be used; `accel-run
 * env` shows it. */
typedef const char *(*ax_backend_environment_entry)(void);
#define AX_BACKEND_ENVIRONMENT "ax_cuda_environment"

/* Borrowed; loads the plugin on first use.  The status' message names the files tried and why each
 * was refused. */
/* of a CUDA device: checks its number, too */
AX_API ax_status ax_backend_of(ax_device device, const ax_backend **out);
/* Whether a backend of this kind is loaded, without loading it. */
AX_API bool ax_backend_loaded(ax_device_kind kind);
/* From now on ax_backend_of refuses devices other than the CPU with this reason (static text): in
 * processes that must not touch one. */
AX_API void ax_backend_refuse_devices(const char *reason);
AX_API void ax_backend_set_dir(const char *dir); /* where plugins lie; called once by main */
AX_API const char *ax_backend_dir(void);
/* What the CUDA plugin says of this machine (borrowed), or NULL: there is none, or it says nothing.
 * path: its file. */
AX_API const char *ax_backend_environment(char *path, size_t size);

/* ---- process group: dist.h ------------------------------------------------------------------- */

#endif
