/* Inside the transport by NCCL: NCCL's interface, the links of a rank's GPU with others, and what
 * nccl.cu (collectives), nccl_group.cu (joining and leaving) and nccl_watch.cu (waits, the
 * watchdog) have of each other.
 *
 * NCCL's header is not part of CUDA's toolkit; the declarations in use are repeated here, as in
 * version 2.18 and all later ones.  The fake of the specs is compiled against NVIDIA's header. */
#ifndef AX_CUDA_NCCL_H
#define AX_CUDA_NCCL_H

#include "device.h"
extern "C" {
#include "dist.h"
}

#include <atomic>
#include <vector>

/* ---- NCCL's interface */

typedef struct nccl_communicator *nccl_comm;
struct nccl_id {
  char internal[AX_GROUP_ID];
};
enum { NCCL_OK = 0 };
enum { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG };
enum {
  NCCL_UINT8 = 1,
  NCCL_INT32 = 2,
  NCCL_INT64 = 4,
  NCCL_FLOAT16 = 6,
  NCCL_FLOAT32 = 7,
  NCCL_FLOAT64 = 8,
  NCCL_BFLOAT16 = 9
};
enum { NCCL_NO_COLOUR = -1 }; /* this rank is in no part of a division */
/* NCCL reads `size` bytes, and uses its own defaults for fields of later versions. */
struct nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share;
};

#define NCCL_FUNCTIONS(F) \
  F(GetVersion, (int *)) \
  F(GetUniqueId, (nccl_id *)) \
  F(CommInitRankConfig, (nccl_comm *, int, nccl_id, int, nccl_config *)) \
  F(CommSplit, (nccl_comm, int, int, nccl_comm *, nccl_config *)) \
  F(CommFinalize, (nccl_comm)) \
  F(CommDestroy, (nccl_comm)) \
  F(CommAbort, (nccl_comm)) \
  F(CommGetAsyncError, (nccl_comm, int *)) \
  F(AllReduce, (const void *, void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(Broadcast, (const void *, void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(AllGather, (const void *, void *, size_t, int, nccl_comm, cudaStream_t)) \
  F(ReduceScatter, (const void *, void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(Reduce, (const void *, void *, size_t, int, int, int, nccl_comm, cudaStream_t)) \
  F(Send, (const void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(Recv, (void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(GroupStart, (void)) \
  F(GroupEnd, (void))

/* The functions, found when the first rank joins (nccl_group.cu). */
extern struct ax_nccl_functions {
  void *library;
#define F(name, parameters) int(*name) parameters;
  NCCL_FUNCTIONS(F)
#undef F
  const char *(*GetErrorString)(int);
  const char *(*GetLastError)(nccl_comm);
  int version;
} ax_nccl;

/* ---- a rank's GPU and its links
 *
 * A link is a communicator: the GPUs of a group's ranks.  All links of a rank share its stream, so
 * that collectives of different groups run in the order of the script's calls on every rank: no
 * rank waits in one group for a rank that waits in another, unless their scripts do.  They share
 * one row of tickets, too, and one watchdog. */

enum { AX_NCCL_EVENTS = 64 };
struct ax_nccl_events {
  cudaEvent_t ready, done;
};
struct ax_nccl_link {
  nccl_comm comm;
  int rank, size;
  uint64_t last; /* the ticket of its last collective */
  bool finalized;
};
/* What the watchdog shares with the rank's own thread ("owner") is atomic, under `lock`, or written
 * before the thread starts. */
struct ax_nccl_rank {
  int device;
  cudaStream_t stream;
  /* of the last AX_NCCL_EVENTS collectives: the work queued before them, and their ends */
  cudaEvent_t ready[AX_NCCL_EVENTS], done[AX_NCCL_EVENTS];

  pthread_t owner, watcher;
  bool watched; /* the thread runs; the owner's */
  /* begun: collectives whose events may be recorded; issued: that are in the stream */
  std::atomic<uint64_t> begun, issued;
  std::atomic<int64_t> inside; /* since when the owner is inside NCCL; 0: it is not */
  std::atomic<bool> waiting;   /* the owner waits for the device, and watches by itself */
  std::atomic<bool> joining, leaving;
  std::atomic<bool> ended; /* the watchdog has aborted the communicators, or is about to */
  pthread_mutex_t calls;   /* held by the owner inside NCCL, and for an abort */
  pthread_mutex_t lock;    /* of what follows */
  pthread_cond_t wake;
  bool over; /* the thread shall end */
  std::vector<ax_nccl_link *> links;
  char reason[2048];

  /* the owner's: events of recorded collectives, used again by the next recording; how many of them
   * the current one has; recordings until now */
  std::vector<ax_nccl_events> recorded;
  int n_recorded;
  uint64_t recordings;
};

extern ax_nccl_rank *ax_nccl_here; /* NULL: this rank has no link */

static inline int ax_nccl_slot(uint64_t ticket) { return (int)((ticket - 1) % AX_NCCL_EVENTS); }
static inline ax_nccl_link *ax_nccl_of(ax_group *g) { return (ax_nccl_link *)g->link; }

/* ---- nccl_group.cu */

/* Fails with NCCL's words.  comm NULL: there is none, or it was aborted. */
ax_status ax_nccl_failed(const char *what, nccl_comm comm, int result);
/* Of ax_transport: see dist.h. */
ax_status ax_nccl_identity(int device, char name[AX_DEVICE_NAME]);
ax_status ax_nccl_make_id(char id[AX_GROUP_ID]);
ax_status ax_nccl_join(ax_group *group, const char id[AX_GROUP_ID]);
ax_status ax_nccl_split(ax_group *from, ax_group *group);
bool ax_nccl_idle(ax_group *group);
void ax_nccl_drop(ax_group *group);
void ax_nccl_leave(ax_group *group, bool abort);

/* ---- nccl_watch.cu */

/* How long the owner may take to leave before it is left. */
static const int64_t AX_NCCL_LEAVING = 5 * INT64_C(1000000000);

/* Waits for `event` or, when it is NULL, for all work queued in `stream`, as long as the other
 * ranks are alive. */
ax_status ax_nccl_wait(const char *what, cudaStream_t stream, cudaEvent_t event);
/* Takes the owner into NCCL (calls, inside).  False: the communicators have been ended. */
bool ax_nccl_take_calls(ax_nccl_rank *g);
/* Around calls of NCCL on the owner's thread.  comm: the call's.  EABORTED: it is gone. */
ax_status ax_nccl_enter_call(ax_nccl_rank *g);
ax_status ax_nccl_leave_call(ax_nccl_rank *g, const char *what, nccl_comm comm, int result);
/* The watchdog's reason as the owner's error.  It frees the links. */
ax_status ax_nccl_stopped(ax_nccl_rank *g);
/* That error where the watchdog has ended this thread's links. */
ax_status ax_nccl_stop_owner(void);
/* Aborts communicators together: each waits for its kernels, which may stand behind another
 * one's. */
void ax_nccl_abort_all(const std::vector<ax_nccl_link *> &links);
/* The thread; none where no link has another rank.  Signals are for the process's other threads. */
ax_status ax_nccl_watch_start(ax_nccl_rank *g);
/* False: it is still inside ncclCommAbort after some seconds, and is left there. */
bool ax_nccl_watch_stop(ax_nccl_rank *g);

/* ---- nccl.cu */

/* The recording ends: brings NCCL's stream back, whose work is in order. */
ax_status ax_nccl_end_recording(int device, cudaStream_t computing);

#endif
