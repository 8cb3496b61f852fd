/* dist/chain_stream.c: data that is not reduced, along the chain of machines. */
#define _GNU_SOURCE
#include <string.h>

#include "core/dist/chain.h"

/* `bytes` of each of `n` local ranks, from `first` on, of `machine`. */
typedef struct flow {
  int machine, first, n;
  int to; /* the machine that gets the data; -1: all */
  size_t bytes, most;
  const char *in; /* on a rank that sends: its data */
  char *out;      /* on a rank that receives: where the data of rank `first` goes; else NULL */
  size_t stride;  /* between the data of one rank and of the next */
} flow;

typedef struct buffer {
  char *at;
  ax_mpi_request in, out[2];
  bool is_sent[2];
} buffer;

/* Whether this machine passes the stream on to that side. */
static bool passes(const flow *f, int side)
{
  if (!ax_chain_has(side)) return false;
  if (side == BEFORE) return ax_chain.machine <= f->machine && (f->to < 0 || f->to < ax_chain.machine);
  return ax_chain.machine >= f->machine && (f->to < 0 || f->to > ax_chain.machine);
}

/* Does the stream pass through this machine? */
static bool crosses(const flow *f)
{
  const int a = f->machine < f->to ? f->machine : f->to, b = f->machine < f->to ? f->to : f->machine;
  return f->to < 0 || (ax_chain.machine >= a && ax_chain.machine <= b);
}

static ax_status expect(const flow *f, buffer *b, size_t at)
{
  const size_t len = f->bytes - at < f->most ? f->bytes - at : f->most;
  const int side = f->machine < ax_chain.machine ? BEFORE : BEHIND;
  ax_status st = AX_OK;

  if (at >= f->bytes || f->machine == ax_chain.machine) return AX_OK;
  for (int s = 0; s < 2; s++) AX_TRY(ax_chain_settle(&b->is_sent[s], &b->out[s], ax_chain_neighbour(s)));
  return ax_mpi_receive(b->at, len * (size_t)f->n, ax_chain_neighbour(side),
                        side == BEFORE ? AX_TAG_UP : AX_TAG_DOWN, &b->in);
out:
  return st;
}

/* The leader's part of a chunk: gets it into the buffer, and passes it on. */
static ax_status relay(const flow *f, buffer *b, size_t len)
{
  const int side = f->machine < ax_chain.machine ? BEFORE : BEHIND;
  ax_status st = AX_OK;

  if (f->machine != ax_chain.machine) {
    AX_TRY(ax_mpi_wait(&b->in, ax_chain_neighbour(side)));
  } else {
    for (int s = 0; s < 2; s++) AX_TRY(ax_chain_settle(&b->is_sent[s], &b->out[s], ax_chain_neighbour(s)));
    if (!passes(f, BEFORE) && !passes(f, BEHIND)) return AX_OK;
    for (int k = 0; k < f->n; k++)
      memcpy(b->at + (size_t)k * len, ax_step_slot(&ax_shm.world, f->first + k), len);
  }
  for (int s = 0; s < 2; s++) {
    if (!passes(f, s)) continue;
    AX_TRY(ax_mpi_send(b->at, len * (size_t)f->n, ax_chain_neighbour(s),
                       s == BEHIND ? AX_TAG_UP : AX_TAG_DOWN, &b->out[s]));
    b->is_sent[s] = true;
  }
out:
  return st;
}

static void copy_out(const flow *f, size_t at, size_t len)
{
  for (int k = 0; f->out && k < f->n; k++) {
    const char *from = f->machine == ax_chain.machine ? ax_step_slot(&ax_shm.world, f->first + k)
                                                      : ax_step_slot(&ax_shm.world, 0) + (size_t)k * len;
    memcpy(f->out + (size_t)k * f->stride + at, from, len);
  }
}

static ax_status walk(const flow *f, buffer *ring)
{
  const bool home = f->machine == ax_chain.machine;
  const bool gives = home && ax_shm.rank >= f->first && ax_shm.rank < f->first + f->n;
  ax_status st = AX_OK;

  for (int k = 0; ax_chain_leads() && k < AX_CHAIN_AHEAD; k++)
    AX_TRY(expect(f, &ring[k], (size_t)k * f->most));
  for (size_t at = 0, k = 0; at < f->bytes; at += f->most, k++) {
    const size_t len = f->bytes - at < f->most ? f->bytes - at : f->most;
    buffer *b = ax_chain_leads() ? &ring[k % AX_CHAIN_AHEAD] : NULL;
    AX_TRY(ax_step_begin(&ax_shm.world));
    if (gives) ax_step_put(&ax_shm.world, 0, f->in + at, len);
    if (b && !home) {
      AX_TRY(relay(f, b, len));
      ax_step_put(&ax_shm.world, 0, b->at, len * (size_t)f->n);
    }
    AX_TRY(ax_step_meet(&ax_shm.world, false, !home ? 0 : f->n > 1 ? AX_FROM_ALL : f->first));
    copy_out(f, at, len);
    if (b && home) AX_TRY(relay(f, b, len));
    ax_step_end(&ax_shm.world);
    if (b) AX_TRY(expect(f, b, at + AX_CHAIN_AHEAD * f->most));
  }
  for (int k = 0; ax_chain_leads() && k < AX_CHAIN_AHEAD; k++)
    for (int s = 0; s < 2; s++)
      AX_TRY(ax_chain_settle(&ring[k].is_sent[s], &ring[k].out[s], ax_chain_neighbour(s)));
out:
  return st;
}

static ax_status stream(flow *f)
{
  buffer ring[AX_CHAIN_AHEAD];
  char *room = NULL;
  ax_status st;

  if (f->bytes == 0 || !crosses(f)) return AX_OK;
  f->most = ax_shm.chunk / (size_t)f->n / 64 * 64;
  if (f->most > f->bytes) f->most = f->bytes;
  memset(ring, 0, sizeof ring);
  if (ax_chain_leads()) {
    if (!(room = ax_malloc(AX_CHAIN_AHEAD * f->most * (size_t)f->n))) return AX_ENOMEM;
    for (int k = 0; k < AX_CHAIN_AHEAD; k++) ring[k].at = room + (size_t)k * f->most * (size_t)f->n;
  }
  st = walk(f, ring);
  if (st == AX_OK) ax_mfree(room); /* else MPI may still write there */
  return st;
}

ax_status ax_chain_broadcast(const ax_collective *c)
{
  flow f = { .machine = c->root / ax_chain.here,
             .first = c->root % ax_chain.here,
             .n = 1,
             .to = -1,
             .bytes = (size_t)c->count * ax_dtype_size(c->dtype),
             .in = c->in,
             .out = ax_chain.rank == c->root ? NULL : c->out };

  if (ax_chain.rank == c->root && c->out != c->in && f.bytes > 0) memcpy(c->out, c->in, f.bytes);
  return stream(&f);
}

ax_status ax_chain_gather(const ax_collective *c, int root)
{
  const size_t bytes = (size_t)c->count * ax_dtype_size(c->dtype);
  const bool keeps = root < 0 || ax_chain.rank == root;
  ax_status st = AX_OK;

  for (int m = 0; m < ax_chain.machines; m++) {
    flow f = { .machine = m,
               .n = ax_chain.here,
               .to = root < 0 ? -1 : root / ax_chain.here,
               .bytes = bytes,
               .in = c->in,
               .out = keeps ? (char *)c->out + (size_t)m * (size_t)ax_chain.here * bytes : NULL,
               .stride = bytes };
    AX_TRY(stream(&f));
  }
out:
  return st;
}
