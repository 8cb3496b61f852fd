/* What the files of the stand-in for NCCL share: its functions (fake_nccl.cpp), and operations in
 * their streams (fake_nccl_work.cpp). */
#ifndef AX_FAKE_NCCL_H
#define AX_FAKE_NCCL_H

#include "cuda/vendor/vendor.h"

#if __has_include(<nccl.h>)
#define AX_FAKE_NCCL

#include <nccl.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

enum { MOST_RANKS = 8 };
static const size_t SLOT = (size_t)64 << 20, MAIL = (size_t)16 << 20;

extern const ax_emulator *emulator;

enum kind { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, REDUCE, SEND, RECV };
struct facts {
  int kind, type, op, root;
  size_t count;
};

struct member {
  std::atomic<int> joined, finalized;
  /* what it has joined with: a device of a host, which $NCCL_HOSTID names, else the launch */
  int device;
  char host[64];
  std::atomic<uint64_t> ready, done; /* operations whose input is in the slot; that are over */
  facts asked[2];
  /* divisions of the communicator: begun; with the path of the new part; over */
  std::atomic<uint64_t> divides, has_path, divided;
  int colour, key;
  char path[64];
};
struct mailbox {
  std::atomic<uint64_t> sent, taken;
  facts what;
};
struct shared {
  int size;
  member of[MOST_RANKS];
  mailbox mail[MOST_RANKS][MOST_RANKS]; /* [from][to] */
};
static const size_t HEAD = 1 << 20;
static_assert(sizeof(shared) <= HEAD, "the head has room");

struct operation {
  facts what;
  const void *in;
  void *out;
  ncclComm *comm;
  cudaStream_t stream;
};

struct ncclComm {
  std::atomic<unsigned> magic;
  shared *area;
  int rank, size, device;
  bool blocking;
  std::atomic<bool> aborted, wrong;
  std::string error;
  int looks; /* before the state changes */
  bool joining, finalizing;
  /* what a communicator that does not block has not yet put into streams */
  std::vector<std::function<void()>> later;
  uint64_t issued, divisions;
};
static const unsigned LIVE = 0x4e43434c;

/* Keeps the message for ncclGetLastError, and returns `result`. */
ncclResult_t no(ncclResult_t result, const std::string &why);
size_t size_of(int type); /* 0: the type is not known here */
std::string told(const facts &f);
/* Whether operation k of this rank goes wrong in this way ($ACCEL_FAKE_NCCL). */
bool goes_wrong(const char *kind, const ncclComm *c, uint64_t k);
/* Puts operations into their streams; those of a group together. */
ncclResult_t start(const std::vector<operation> &list);

#endif
#endif
