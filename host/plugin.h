/* plugin.h: the part of accel that a backend sees: statuses, element types, tensors as they are in
 * memory, the op table, loop nests, and the table of functions that a plugin exports.
 *
 * Kernels include this, and capture.h and dist.h where they record steps or run collectives; ax.h
 * is for callers of the core.  Ownership and statuses are as in ax.h. */
#ifndef AX_PLUGIN_H
#define AX_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AX_API __attribute__((visibility("default")))
#define AX_COLD __attribute__((cold)) /* calls lie apart from the code that runs at every op */
#define AX_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define AX_ABI 17       /* the version of the structures here */
#define AX_MAX_DIMS 8   /* dims of a tensor */
#define AX_MAX_OUT 3    /* results of an op */
#define AX_MAX_INPUTS 7 /* tensor inputs of an op that takes no list */

/* ---- status */

typedef enum {
#define STATUS(ID, text) AX_##ID,
#include "core/status.def"
#undef STATUS
} ax_status;

/* Writes the thread's message and returns `st`, so that `return ax_fail(AX_ESHAPE, "...", ...)`
 * reads well. */
AX_API AX_COLD ax_status ax_fail(ax_status st, const char *fmt, ...) AX_PRINTF(2, 3);
/* The message of the last ax_fail on this thread.  Borrowed until the next one. */
AX_API const char *ax_last_error(void);
AX_API const char *ax_status_text(ax_status st);

#define AX_TRY(expr) \
  do { \
    if ((st = (expr)) != AX_OK) goto out; \
  } while (0)

/* Nanoseconds of a clock that never goes back. */
AX_API int64_t ax_monotonic_ns(void);

/* ---- element types */

typedef enum {
#define DTYPE(ID, name, ctype, size, category) AX_##ID,
#include "core/dtype.def"
#undef DTYPE
  AX_DTYPE_COUNT
} ax_dtype;

typedef enum { AX_BOOLEAN, AX_INTEGRAL, AX_FLOATING, AX_COMPLEX } ax_category;

AX_API size_t ax_dtype_size(ax_dtype d);
AX_API const char *ax_dtype_name(ax_dtype d);

/* Real and imaginary part of a complex number, in this order, as in PyTorch, NumPy and C. */
typedef struct ax_c64 {
  float re, im;
} ax_c64;
typedef struct ax_c128 {
  double re, im;
} ax_c128;

/* A floating type of eight bits, which numbers are stored in: most rows refuse it. */
static inline bool ax_is_float8(ax_dtype d) { return d >= AX_E4M3; }
/* A real floating type. */
static inline bool ax_is_float(ax_dtype d) { return d <= AX_BF16 || ax_is_float8(d); }
static inline bool ax_is_complex(ax_dtype d) { return d == AX_C64 || d == AX_C128; }
/* Can a tensor of this type have a gradient? */
static inline bool ax_has_gradient(ax_dtype d) { return ax_is_float(d) || ax_is_complex(d); }
/* The type of the parts of a complex type. */
static inline ax_dtype ax_part_dtype(ax_dtype d) { return d == AX_C128 ? AX_F64 : AX_F32; }
static inline bool ax_is_half(ax_dtype d) { return d == AX_F16 || d == AX_BF16; }

/* How a matrix may rest in fewer bits than a type has (core/encodings.def); op attribute
 * `encoding`. */
typedef enum {
#define ENCODING(ID, name, block, bytes) AX_ENC_##ID,
#include "core/encodings.def"
#undef ENCODING
  AX_ENCODING_COUNT
} ax_encoding;
/* Scales in dynamic8 begin with its 256 numbers and the one that is added; float32. */
enum { AX_DYNAMIC_SCALES = 257 };

/* ---- devices */

typedef enum { AX_CPU, AX_CUDA, AX_DEVICE_KINDS } ax_device_kind;
typedef struct ax_device {
  uint8_t kind;
  uint8_t index;
} ax_device;

static inline bool ax_same_device(ax_device a, ax_device b) { return a.kind == b.kind && a.index == b.index; }
AX_API const char *ax_device_text(ax_device d, char *buf, size_t size); /* "cpu", "cuda:1" */

/* ---- memory */

/* Allocates small C structures (nodes, tables), as malloc does; counted, and subject to
 * ax_alloc_fail_at.  Free with ax_mfree.  NULL, with the message written, when memory is out. */
AX_API void *ax_malloc(size_t bytes);
AX_API void *ax_calloc(size_t n, size_t size);
AX_API void ax_mfree(void *p);

/* Tensor bytes on the CPU, 64-byte aligned, from the caching allocator.  Not cleared.  ENOMEM, with
 * the requested size, the live bytes and the limit, when the limit is reached after the pressure
 * hook has run. */
AX_API ax_status ax_alloc(size_t bytes, void **out);
/* As ax_alloc; *zeros says whether all bytes are 0, as memory fresh from the system is. */
AX_API ax_status ax_alloc_fresh(size_t bytes, bool *zeros, void **out);
AX_API void ax_free(void *p, size_t bytes);

typedef struct ax_memory_stats {
  int64_t live_bytes, peak_bytes; /* in tensors now; the largest value since the last reset */
  int64_t cached_bytes;           /* freed by tensors, kept for later ones */
  int64_t limit_bytes;            /* live + cached never exceed it */
  int64_t live_blocks, structs;   /* storages alive; C structures alive (for leak tests) */
  int64_t allocations, cache_hits, pressure_collections;
  int64_t waits, uploads; /* devices: how often the host waited for one, and copied to it */
  /* devices; 0 on the CPU */
  int64_t reserved_bytes, peak_reserved_bytes; /* allocated from the driver: live + cached */
  int64_t available_bytes;                     /* what the driver has left, for all processes */
  /* allocations from the driver now; requests that had to make room first; requests that failed */
  int64_t segments, retries, failures;
} ax_memory_stats;
/* Calls the memory hook, for backends whose memory is full.  Returns true when it is worth
 * allocating again. */
AX_API bool ax_memory_relieve(size_t wanted, int attempt);
/* Counts bytes taken (or, negative, given back) on a device: they press on the collector like host
 * memory. */
AX_API void ax_memory_count_device(int64_t bytes);
/* Counts bytes taken or given back by tensors over foreign memory (batches from worker
 * processes). */
AX_API void ax_memory_count_foreign(int64_t bytes);
/* ---- what is live, by size and script line: for the message of an allocation that fails.
 * Tensors of a megabyte and more are tracked one by one (their line is looked up when they are
 * made), smaller ones are counted by size. */

enum { AX_MEMORY_TRACKED = 1 << 20, AX_SMALL_CLASSES = 5 };
/* The number of smaller blocks and their bytes, in the classes up to 1 KiB, 8 KiB, 64 KiB, 256 KiB,
 * 1 MiB. */
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
AX_API const char *ax_memory_where(void);
/* A number of bytes as messages have it: "512 bytes", "52.4 MB" (10^6 bytes), "1.07 GB".  Returns
 * `text`. */
typedef char ax_size_buffer[32];
AX_API const char *ax_size_text(int64_t bytes, ax_size_buffer text);
/* Writes a few lines for a message, each after a line feed: the eight largest groups, the rest of
 * them, and `small`. */
AX_API void ax_memory_report(ax_device d, const ax_memory_small *small, char *buf, size_t size);

typedef struct ax_version {
  int32_t refs; /* <0: part of its storage */
  uint32_t edits;
} ax_version;

/* A claim stands between a storage and its use: a call that has not run and writes it or reads it
 * (ops/later.c), a save by a thread that has still to read it (io/content.c).  Who is about to use
 * the memory asks ax_tensor_ready (ax.h); `before` then does the work that the claim waits for and
 * takes the claim off, or fails and leaves it.  ax_data runs nothing. */
typedef enum { AX_READ = 1, AX_WRITE = 2 } ax_use;
typedef struct ax_claim ax_claim;
typedef struct ax_storage ax_storage;

struct ax_tensor;
typedef struct ax_claim_kind {
  uint8_t uses; /* AX_READ | AX_WRITE: the uses that ask it */
  /* at: the element of the storage, of its user's type, where the use begins; -1: not known */
  ax_status (*before)(ax_claim *c, int64_t at);
  /* Of memory that rests in parts: *piece: this rank's elements of t, one dim, which begin at
   * element *from of it and on which elementwise edits of t act; NULL: it has none.  False: t is
   * not one of the tensors that are known.  NULL: the memory is elsewhere, or not written yet */
  bool (*piece_of)(ax_claim *c, const struct ax_tensor *t, struct ax_tensor **piece, int64_t *from);
  /* Comes before and after such an edit; NULL: nothing is to be done */
  ax_status (*edits)(ax_claim *c, bool begins);
  void (*gone)(ax_claim *c); /* the storage is being freed; NULL: the claimant holds the storage */
} ax_claim_kind;

struct ax_claim {
  ax_claim *next, **at; /* at: the pointer that leads here; NULL: the claim is off */
  const ax_claim_kind *kind;
  void *owner; /* for the kind */
};

struct ax_storage {
  int32_t refs; /* atomic */
  ax_device device;
  uint16_t group; /* the group of ax_memory_groups that counts it; 0: none */
  bool exposed;   /* a script has got a pointer to it, and writes when it likes */
  void *data;
  size_t bytes;
  void (*release)(ax_storage *); /* frees `data` only; NULL: the data is not freed */
  void *owner;                   /* for `release` */
  ax_claim *claims;              /* NULL: it may be read and written */
  uint64_t made;                 /* number of the call that wrote it, for ops/join.c; 0: not fusable */
  ax_version version;            /* shared by the tensors that have no cell of their own */
};

/* ---- tensors */

typedef struct ax_tensor ax_tensor;
typedef struct ax_node ax_node;
typedef struct ax_hook ax_hook;

/* A recorded in-place op on a view rewrites the base's history (views.c), so a view points to its
 * base.  A view that was made while nothing was recorded, or by a custom function, or that shows
 * the parts of complex numbers, has no base whose history could be rewritten: a recorded in-place
 * op on it is refused. */
typedef enum { AX_NO_VIEW, AX_VIEW, AX_VIEW_UNRECORDED, AX_VIEW_CUSTOM, AX_VIEW_PARTS } ax_view_kind;

struct ax_tensor {
  int32_t refs; /* one thread */
  uint8_t dtype, ndim;
  bool requires_grad; /* leaf that needs a gradient, or result of a recorded op */
  uint8_t view;       /* ax_view_kind */
  bool shared;        /* another tensor that users see shares (or shared) this memory */
  uint8_t out_index;  /* which result of grad_fn this is */
  ax_device device;
  int64_t numel;
  int64_t offset;                                   /* in elements, into storage */
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS]; /* in elements */
  ax_storage *storage;
  ax_version *version; /* shared with views; edits counts writes */
  ax_tensor *base;     /* AX_VIEW: the tensor that it is a view of, itself no such view; counted */
  /* counts rewrites of this tensor's history by in-place ops; views: the base's count when their
   * own history was set */
  uint32_t rewrites;
  ax_node *grad_fn;    /* counted; NULL for leaves */
  ax_node *accumulate; /* leaves: weak pointer to the node that adds into grad */
  ax_tensor *grad;     /* leaves: counted; NULL when there is none */
  ax_hook *hooks;      /* leaves: called with the gradient before it is added */
  void *handle;        /* for the binding: leads to the Lua object of this tensor; NULL if none */
  /* leaves: the layout that contains it, weak; NULL: none.  Its slot there has the place of the
   * gradient and the working copy (flat.h). */
  struct ax_flat *flat;
  int32_t slot;
};

/* New reference, contiguous, uncleared. */
AX_API ax_status ax_tensor_new(ax_dtype dtype, int ndim, const int64_t *shape, ax_tensor **out);
AX_API void ax_tensor_release(ax_tensor *t); /* NULL is fine */

static inline size_t ax_itemsize(const ax_tensor *t) { return ax_dtype_size((ax_dtype)t->dtype); }
#ifdef AX_CHECK_CLAIMS /* sanitized builds count the readers that did not ask (ax_claims_missed) */
AX_API void ax_claims_check(const ax_storage *s);
#else
static inline void ax_claims_check(const ax_storage *s) {}
#endif
/* Where t's elements begin.  Whoever reads or writes them has asked ax_tensor_ready before. */
static inline void *ax_data(const ax_tensor *t)
{
  ax_claims_check(t->storage);
  return (char *)t->storage->data + (size_t)t->offset * ax_dtype_size((ax_dtype)t->dtype);
}

/* "[2, 3]" into buf. */
AX_API const char *ax_shape_text(int ndim, const int64_t *shape, char *buf, size_t size);

/* Reads or writes one element through double / int64 (for item, printing, tests).  `at` is an
 * element offset from ax_data.  Of a complex number: the real part; a written one has no imaginary
 * part. */
AX_API double ax_load_double(ax_dtype d, const void *data, int64_t at);
AX_API int64_t ax_load_int(ax_dtype d, const void *data, int64_t at);
AX_API void ax_store_double(ax_dtype d, void *data, int64_t at, double v);
AX_API void ax_store_int(ax_dtype d, void *data, int64_t at, int64_t v);

/* ---- random numbers */

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

/* ---- ops */

typedef enum {
#define OP(ID, ...) AX_OP_##ID,
#include "core/ops/ops.def"
#undef OP
  AX_OP_COUNT
} ax_op;

/* A backend that was built with other structures or another op table is refused by this number. */
#define AX_INTERFACE ((uint32_t)AX_ABI << 16 | (uint32_t)AX_OP_COUNT)

#define AX_NO_DIM INT64_MIN /* the value of an optional dim that was left out */

/* Arguments that are not tensors, by name: a->clamp.min is parameter `min` of the row CLAMP;
 * ops.def has the details.  op_attrs.h has a structure for every row and every family of rows; the
 * build writes it from the signatures (host/tools/attrs.c) into build/include.  A row's structure
 * covers all places of the union, so that naming one member of it in an initializer sets the others
 * to 0. */
enum { AX_MAX_INTEGERS = 14, AX_MAX_NUMBERS = 4 };
typedef struct ax_attrs {
  union {
    struct { /* by place, as signature.h has it: for the reader of arguments */
      int64_t integers[AX_MAX_INTEGERS];
      double numbers[AX_MAX_NUMBERS]; /* also for formulas that take all numbers of their row */
    };
#ifndef AX_NO_OP_ATTRS /* the program that writes them does without */
#include "op_attrs.h"
#endif
  };
  int n_list; /* -1: the list was not given */
  int64_t list[AX_MAX_DIMS];
  bool accumulate;   /* internal: the result is added to what `out` holds (mm, sum) */
  bool wide;         /* internal: inputs of half types give a float32 result, without rounding in between */
  double dropped;    /* internal: the second term of a sum is zeroed with this probability (join.c); 0: not */
  ax_generator *gen; /* borrowed during the call; NULL: the default generator */
  /* Filled by the dispatcher for random ops, so that a gradient can draw again.  device_args: in a
   * captured step (capture.h), device memory that holds the seed to use instead of `seed` and an
   * offset to add to `draw`; otherwise NULL. */
  struct {
    uint64_t seed, stream, draw;
    const struct ax_draw_args *device_args;
  } rng;
} ax_attrs;

typedef enum {
  AX_FORM_POINTWISE,
  AX_FORM_REDUCE,
  AX_FORM_KERNEL,
  AX_FORM_VIEW,
  AX_FORM_CPU,
  AX_FORM_HOST,
  AX_FORM_COMPOSITE
} ax_form;
typedef enum { AX_CAST_KEEP, AX_CAST_LOWER, AX_CAST_FLOAT, AX_CAST_INSIDE, AX_CAST_WIDEST } ax_cast_policy;

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
/* What messages call the row: "copy" for _copy, "linalg.svd" for _linalg_svd.  The text lives until
 * the thread's next call. */
AX_API const char *ax_op_shown(ax_op op);

/* How GPUs compute float32 products, for the whole process, as with PyTorch's
 * torch.set_float32_matmul_precision: HIGHEST (the default) in float32; HIGH and MEDIUM with
 * operands rounded to TF32 (10 bits of mantissa) and sums in float32.  The CPU always computes in
 * float32. */
typedef enum { AX_PRECISION_HIGHEST, AX_PRECISION_HIGH, AX_PRECISION_MEDIUM } ax_precision;
AX_API ax_precision ax_float32_matmul_precision(void);
/* Whether GPUs may round the operands of float32 convolutions to TF32, for the whole process: as
 * torch.backends.cudnn.allow_tf32 was set, else as with products. */
AX_API bool ax_convolution_tf32(void);
/* Whether every run has to give the same bits, for the whole process, as with
 * torch.use_deterministic_algorithms; true at first. */
AX_API bool ax_deterministic(void);

/* ---- backends */

#include "optim_table.h"

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

/* The arguments of a kernel.  POINTWISE: `iter` runs over out[0] and the inputs; all inputs have
 * the compute dtype (cast: its own source dtype).  Where that is float32, inputs and the result may
 * also be of the types in the backend's `widens`.  REDUCE: `iter` runs over the input's dims;
 * out[0] has strides 0 in reduced dims; second results, such as the indices of max, are written
 * through out[1], contiguous.  KERNEL: tensors as the row's rule requires them (contiguous and cast
 * where it says so).  CPU: likewise; a device's kernel may return AX_EAWAY, without a message, for
 * what it leaves to the CPU: a library is missing, or does not take these sizes. */
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
  /* 256-byte aligned, not cleared.  Work on a device runs in order, so freed memory may be handed
   * out again at once.  ENOMEM's message gives the requested, live and free bytes. */
  ax_status (*alloc)(int device, size_t bytes, void **out);
  void (*release)(int device, void *data, size_t bytes);
  /* Copies between host and device or between two devices.  On return `src` may be reused, and data
   * on the host is complete. */
  ax_status (*copy)(ax_device to, void *dst, ax_device from, const void *src, size_t bytes);
  ax_status (*synchronize)(int device);
  void (*stats)(int device, ax_memory_stats *out);
  void (*reset_peak)(int device);
  void (*empty_cache)(int device);
  /* The rest is optional, all of it or none.  copy_later: copies, but reads or writes pinned memory
   * in order with the device's work, without a wait. */
  ax_status (*copy_later)(ax_device to, void *dst, ax_device from, const void *src, size_t bytes);
  /* send: begins a copy beside the computation.  *out is device memory (for `release`); `src` has
   * been read on return unless it is pinned.  arrive: work queued from now on runs after all copies
   * up to this ticket. */
  ax_status (*send)(int device, const void *src, size_t bytes, void **out, uint64_t *ticket);
  ax_status (*arrive)(int device, uint64_t ticket);
  ax_status (*pinned_new)(size_t bytes, void **out);
  void (*pinned_free)(void *p, size_t bytes);
  /* the live small blocks, including the kernels' scratch memory */
  void (*small)(int device, ax_memory_small *out);
  /* From now on `device` is the process's own: what names no device (pinned memory) is made with
   * it.  Does not touch any device.  (optional by itself) */
  void (*choose)(int device);
  /* The device's address on the PCI bus, in lower case: "0000:1b:00.0".  (optional by itself) */
  ax_status (*bus)(int device, char id[32]);
  /* Memory of the host that is not the backend's own (optional, all of it or none).  pin: from now
   * on `send` reads these pages when its copy runs.  pin_idle: whether all such copies are done;
   * the pages must stay as they are until then.  unpin waits for the copies. */
  ax_status (*pin)(void *p, size_t bytes);
  bool (*pin_idle)(const void *p);
  void (*unpin)(void *p);
} ax_device_memory;

typedef struct ax_transport ax_transport; /* dist.h */

/* How often a kernel was chosen on this thread, by a name such as "mm bfloat16 -> float32, oneDNN
 * brg:avx512_core_bf16". */
typedef struct ax_kernel_stat {
  char name[96];
  int64_t calls;
} ax_kernel_stat;

/* Passes over the gradients in all segments.  Each backend has them all. */
typedef struct ax_gradient_passes {
  /* sum over all segments of |grad|^p (p = INFINITY: the largest, -INFINITY: the least; NaN if
   * there is one), in float64, in an order that does not depend on threads */
  ax_status (*norm)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double *out);
  /* grad *= factor; grad is writable here */
  ax_status (*scale)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double factor);
  /* to -limit .. limit; grad is writable here */
  ax_status (*clamp)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double limit);
  /* The next four keep their numbers in device memory (*out, norm, scale, found, state), so that
   * the host does not wait. */
  /* norm's result ^ (1 / root) */
  ax_status (*norm_into)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double root,
                         double *out);
  /* grad *= max_norm / (*norm + 1e-6) unless that is >= 1 */
  ax_status (*clip)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double max_norm,
                    const double *norm);
  /* grad *= 1 / *scale; *found = 1 where not finite */
  ax_status (*unscale)(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const float *scale,
                       float *found);
  /* the rule of ax_scale_update */
  ax_status (*scale_update)(ax_device d, double *state, const float *found, double growth, double backoff,
                            int64_t interval);
} ax_gradient_passes;

typedef struct ax_backend {
  uint32_t abi;
  /* bit d: pointwise kernels that compute in float32 take operands of type d as they are; the
   * dispatcher casts all others.  `where` and `masked_fill` move bits and never mix types. */
  uint32_t widens;
  /* gradients of layer_norm and rms_norm take g in a half type beside a float32 x, and add to dx
   * where add_input says so */
  bool joins_norms;
  /* linear writes long rows, and cross_entropy reads and writes them, at a stride of their own
   * (ax_strides_padded): rows then begin on 16 bytes, whatever their length. */
  bool pads_rows;
  /* kernel calls may wait until their results are read, and run as one with the reader's
   * (core/ops/later.c, join.c) */
  bool defers;
  /* gradients of linear layers go through _linear_backward and _mm_dgelu */
  bool fuses_linear;
  /* linear takes a float32 bias beside operands of a half type */
  bool float_bias;
  /* grid_sample takes planes that are contiguous, where ax_grid_sample_by_planes says so */
  bool by_planes;
  const char *name;         /* "cpu" */
  const char *level;        /* "x86-64-v3" */
  const ax_kernel *kernels; /* [AX_OP_COUNT]; NULL: not implemented (views and composites never are) */
  /* [AX_OP_COUNT]: those that run in their place where an operand or the result is complex; NULL
   * entries: the one above.  NULL: the ones above take complex numbers too. */
  const ax_kernel *complex_kernels;
  ax_status (*optim)(ax_device d, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n,
                     const ax_hyper *h, const ax_optim_device_args *device_args);
  const ax_gradient_passes *grads;
  int (*get_threads)(void);
  void (*set_threads)(int n);
  const char *(*describe)(void);  /* "oneDNN 2.6.3, 2 threads" */
  const ax_device_memory *memory; /* NULL: the host's (CPU) */
  const ax_transport *transport;  /* between the devices of several ranks (dist.h); NULL: there is none */
  /* (optional; NULL: nothing is counted) borrowed, *n of them; reset: sets all counts to 0 */
  const ax_kernel_stat *(*stats)(int *n, bool reset);
  const struct ax_device_capture *capture; /* (optional) recording steps: capture.h */
} ax_backend;
/* The one symbol of a plugin.  It returns NULL when the backend cannot be used here; ax_last_error
 * has the reason. */
typedef const ax_backend *(*ax_backend_entry)(void);
#define AX_BACKEND_ENTRY "ax_backend_get"

/* Borrowed.  Loads the plugin on first use and checks the number of a CUDA device.  The message of
 * a failure names the files tried and why each was refused. */
AX_API ax_status ax_backend_of(ax_device device, const ax_backend **out);

#endif
