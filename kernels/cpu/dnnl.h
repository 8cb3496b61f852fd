/* The oneDNN primitives that a thread keeps: four for each of 64 hash values of their keys.  Making
 * a primitive costs some 100 microseconds, running one well under 1.  A case for which oneDNN has
 * only its slow reference code is kept too, so that the caller takes another way at once. */
#ifndef AX_CPU_DNNL_H
#define AX_CPU_DNNL_H

#include <omp.h>
#include <string.h>

#include <dnnl.h>

#include "cpu.h"

#define DNNL_TRY(expr) \
  do { \
    if ((st = (expr)) != dnnl_success) goto out; \
  } while (0)

/* Versions 2 (Debian 12) and 3 (Ubuntu 24.04) differ in how memory is described. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t ax_dnnl_desc; /* as functions take it */
static inline dnnl_status_t ax_dnnl_desc_init(dnnl_memory_desc_t *d, int ndims, const dnnl_dims_t dims,
                                              dnnl_data_type_t type, const dnnl_dims_t strides)
{
  return dnnl_memory_desc_create_with_strides(d, ndims, dims, type, strides);
}
static inline void ax_dnnl_desc_clear(dnnl_memory_desc_t *d)
{
  if (*d) dnnl_memory_desc_destroy(*d);
}
static inline ax_dnnl_desc ax_dnnl_shown(const dnnl_memory_desc_t *d) { return *d; }
#else
typedef const dnnl_memory_desc_t *ax_dnnl_desc;
static inline dnnl_status_t ax_dnnl_desc_init(dnnl_memory_desc_t *d, int ndims, const dnnl_dims_t dims,
                                              dnnl_data_type_t type, const dnnl_dims_t strides)
{
  return dnnl_memory_desc_init_by_strides(d, ndims, dims, type, strides);
}
static inline void ax_dnnl_desc_clear(dnnl_memory_desc_t *d) { (void)d; }
static inline ax_dnnl_desc ax_dnnl_shown(const dnnl_memory_desc_t *d) { return d; }
#endif

enum { AX_DNNL_SETS = 64, AX_DNNL_WAYS = 4 };

/* The operands of a primitive, in oneDNN's words.  The packed weights are those that it reads or
 * writes where they are in blocks. */
enum { AX_DNNL_SRC, AX_DNNL_WEIGHTS, AX_DNNL_DST, AX_DNNL_BIAS, AX_DNNL_PACKED, AX_DNNL_OPERANDS };

/* What an entry of a cache begins with; its key follows. */
typedef struct ax_dnnl_head {
  int64_t threads;            /* the number that the primitive was made for; 0: the entry is empty */
  uint64_t used;              /* when, for choosing which entry to drop */
  dnnl_primitive_t primitive; /* NULL: oneDNN has no fast code for this */
  dnnl_primitive_t reorder;   /* of the weights, into blocks or out of them; NULL: not needed */
  dnnl_memory_t operand[AX_DNNL_OPERANDS]; /* NULL: there is none */
} ax_dnnl_head;

/* Frees what the entry of `size` bytes has, and makes it empty. */
static inline void ax_dnnl_clear(ax_dnnl_head *h, size_t size)
{
  if (h->primitive) dnnl_primitive_destroy(h->primitive);
  if (h->reorder) dnnl_primitive_destroy(h->reorder);
  for (int k = 0; k < AX_DNNL_OPERANDS; k++)
    if (h->operand[k]) dnnl_memory_destroy(h->operand[k]);
  memset(h, 0, size);
}

/* Makes operand k, whose data each call gives. */
static inline dnnl_status_t ax_dnnl_operand(ax_dnnl_head *h, int k, ax_dnnl_desc d, dnnl_engine_t engine)
{
  return dnnl_memory_create(&h->operand[k], d, engine, DNNL_MEMORY_NONE);
}

/* Gives the operands that the entry has their data, in the order of their names. */
static inline dnnl_status_t ax_dnnl_give(const ax_dnnl_head *h, const void *const data[AX_DNNL_OPERANDS])
{
  dnnl_status_t st = dnnl_success;
  for (int k = 0; k < AX_DNNL_OPERANDS && st == dnnl_success; k++)
    if (h->operand[k]) st = dnnl_memory_set_data_handle(h->operand[k], (void *)data[k]);
  return st;
}

/* The name of the code that oneDNN takes.  dnnl_unimplemented: it has only plain loops, a hundred
 * times slower than ours. */
static inline dnnl_status_t ax_dnnl_code(dnnl_primitive_desc_t pd, const char **name)
{
  const dnnl_status_t st = dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, name);
  return st == dnnl_success && strstr(*name, "ref") ? dnnl_unimplemented : st;
}

/* what: "a product of 2 x 3 and 3 x 4" */
static inline ax_status ax_dnnl_fail(dnnl_status_t st, const char *what)
{
  return ax_fail(st == dnnl_out_of_memory ? AX_ENOMEM : AX_EINVAL, "oneDNN: %s failed with its status %d%s",
                 what, (int)st, st == dnnl_out_of_memory ? ", out of memory" : "");
}

/* A thread's cache. */
typedef struct ax_dnnl_cache {
  uint64_t now;
  dnnl_engine_t engine;
  dnnl_stream_t stream;
} ax_dnnl_cache;

/* Finds the entry of `key`, or makes it: `build` fills one that is empty.  entries: AX_DNNL_SETS *
 * AX_DNNL_WAYS of `size` bytes.  Fails where oneDNN fails, not where it has no code.  Inlined, so
 * that sizes are constants. */
static inline __attribute__((always_inline)) dnnl_status_t ax_dnnl_lookup(
    ax_dnnl_cache *c, void *entries, size_t size, const void *key, size_t key_bytes,
    dnnl_status_t (*build)(void *entry, const void *key), void **out)
{
  const int64_t threads = omp_get_max_threads(), *word = key;
  uint64_t hash = (uint64_t)threads;
  dnnl_status_t st = dnnl_success;
  char *set, *oldest;

  for (size_t i = 0; i < key_bytes / sizeof(*word); i++)
    hash = (hash ^ (uint64_t)word[i]) * 0x9e3779b97f4a7c15u;
  set = oldest = (char *)entries + (hash >> 58) * AX_DNNL_WAYS * size; /* the upper 6 bits: 64 sets */
  for (int k = 0; k < AX_DNNL_WAYS; k++) {
    ax_dnnl_head *h = (ax_dnnl_head *)(set + (size_t)k * size);
    if (h->threads == threads && memcmp(h + 1, key, key_bytes) == 0) {
      h->used = ++c->now;
      *out = h;
      return dnnl_success;
    }
    if (h->used < ((ax_dnnl_head *)oldest)->used) oldest = (char *)h;
  }
  *out = oldest;
  ax_dnnl_clear((ax_dnnl_head *)oldest, size);
  if (!c->engine) DNNL_TRY(dnnl_engine_create(&c->engine, dnnl_cpu, 0));
  if (!c->stream) DNNL_TRY(dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags));
  if ((st = build(oldest, key)) != dnnl_success) ax_dnnl_clear((ax_dnnl_head *)oldest, size);
  if (st != dnnl_success && st != dnnl_unimplemented && st != dnnl_invalid_arguments) goto out;
  st = dnnl_success;
  memcpy((ax_dnnl_head *)oldest + 1, key, key_bytes);
  ((ax_dnnl_head *)oldest)->threads = threads;
  ((ax_dnnl_head *)oldest)->used = ++c->now;
out:
  return st;
}

#endif
